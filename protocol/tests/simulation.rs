//! Random walks through larger systems than exploration can exhaust.
//!
//! `WHOLEGRAIN_SEEDS=100000 cargo test -p wholegrain-protocol --test simulation` runs more of them; `WHOLEGRAIN_SEED=N WHOLEGRAIN_SEEDS=1`
//! repeats one and prints its steps.

mod walk;

use walk::{Totals, Walk};
use wholegrain_protocol::Fault;

const SEEDS: u64 = 1000;

fn seeds() -> u64 {
    match std::env::var("WHOLEGRAIN_SEEDS") {
        Ok(text) => text.parse().expect("WHOLEGRAIN_SEEDS is a number"),
        Err(_) => SEEDS,
    }
}

#[test]
fn no_seed_breaks_an_invariant() {
    let first = wholegrain_testkit::seed();
    let count = seeds();
    let mut sum = Totals::default();
    for seed in (0..count).map(|number| first.wrapping_add(number)) {
        let mut walk = Walk::new(seed, None);
        match walk.run() {
            Ok(totals) => {
                sum.steps += totals.steps;
                sum.acknowledged += totals.acknowledged;
                sum.deleted += totals.deleted;
                sum.runs += totals.runs;
                sum.adopted += totals.adopted;
                sum.snapshots += totals.snapshots;
            }
            Err(text) => {
                walk.trace.iter().enumerate().for_each(|(number, action)| println!("{:4} {action:?}", number + 1));
                panic!("WHOLEGRAIN_SEED={seed}: {text}; {:?} {:?}", walk.rules, walk.bounds);
            }
        }
    }
    println!("{count} seeds: {sum:?}");
    // The walks reach what they are for.
    assert!(sum.acknowledged > 0 && sum.runs > sum.adopted);
    if count >= SEEDS {
        assert!(sum.deleted > 0 && sum.adopted > 0 && sum.snapshots > 0, "{sum:?}");
    }
}

/// The walks alone find faults that need a long history; the exploration finds each fault.
#[test]
fn walks_find_faults() {
    let faults = [
        Fault::NoCheckAfterInsert,
        Fault::NewRunReplacesRow,
        Fault::ReceivedOfLocalStore,
        Fault::VectorBeforeLocalPart,
        Fault::OnePhaseDeletion,
        Fault::ScanFromZero,
    ];
    for fault in faults {
        let broken = |seed| Walk::new(seed, Some(fault)).run().err().filter(|text| !text.starts_with("no end"));
        let found = (0..2000).find_map(|seed| broken(seed).map(|text| (seed, text)));
        let (seed, text) = found.unwrap_or_else(|| panic!("no walk found {fault:?}"));
        println!("{fault:?}: seed {seed}: {}", text.chars().take(100).collect::<String>());
    }
}
