//! Every world of small systems is explored: the rules hold in all of them, and each fault breaks an invariant.
//!
//! The arguments are those of the example `explore`, which explores larger systems: see `docs/protocol.md`.

mod explore;

use explore::{Setup, describe, explore, threads};
use wholegrain_protocol::Fault;

/// Systems without a fault.
const SYSTEMS: &[&str] = &[
    // Takeover, a paused server that comes back, three batches.
    "quorum batches=3 fences=1 crashes=0 runs=2 repeats=0 snapshots",
    // The same with a batch that is stored twice; a crash in place of the pause.
    "quorum batches=2 fences=1 crashes=0 runs=2 repeats=1 snapshots",
    "quorum batches=2 fences=0 crashes=1 runs=2 repeats=1 snapshots",
    // Two servers adopt the same run.
    "quorum batches=1 fences=1 crashes=1 runs=2 repeats=1 adopters=2 snapshots",
    // Each step of one kind alone.
    "quorum batches=1 fences=1 crashes=0 runs=2 repeats=0 snapshots split",
    // A deletion.
    "quorum batches=2 cuts=1 fences=0 crashes=0 runs=1 repeats=0 snapshots",
    "quorum batches=1 cuts=1 fences=1 crashes=0 runs=2 repeats=1 snapshots",
    "quorum batches=1 cuts=1 fences=0 crashes=1 runs=2 repeats=1 snapshots",
    "quorum keep batches=1 cuts=1 fences=1 crashes=0 runs=2 repeats=0 snapshots",
    // A deletion while a server joins.
    "quorum batches=1 cuts=1 fences=1 crashes=0 runs=1 repeats=1 joins=1 snapshots",
    // Two deletions at a time.
    "quorum batches=1 cuts=2 fences=0 crashes=0 runs=1 repeats=1 snapshots",
    // Acknowledged from the server's own journal, with the loss of a disk.
    "journal batches=3 fences=1 crashes=0 runs=2 repeats=1 snapshots",
    "journal batches=1 cuts=1 fences=1 crashes=1 losses=1 runs=2 repeats=1 snapshots",
];

/// A system in which each fault shows, and the invariant that it breaks.
const FAULTS: &[(Fault, &str, &str)] = &[
    (Fault::NoCheckAfterInsert, "A", "batches=1 fences=1 crashes=1 runs=1"),
    (Fault::CommitBeforeRows, "D", "batches=1 crashes=1 fences=0 runs=1 snapshots split"),
    (Fault::VectorBeforeLocalPart, "E", "batches=1 crashes=0 fences=0 runs=1 snapshots"),
    (Fault::DeletionDoesNotWait, "A", "batches=1 cuts=1 crashes=0 fences=0 runs=1"),
    (Fault::FlushedBeforeReceived, "C", "batches=1 cuts=1 crashes=0 fences=0 runs=1"),
    (Fault::UploadBeforeCuts, "A", "batches=1 cuts=1 crashes=1 fences=0 runs=2"),
    (Fault::ScanStopsAtFirstGap, "A", "batches=2 crashes=0 fences=1 runs=1"),
    (Fault::AcknowledgeUnchecked, "A", "batches=1 crashes=1 fences=0 runs=1"),
    (Fault::ReceivedBeforeCommit, "A", "batches=1 crashes=1 fences=0 runs=2"),
    (Fault::ReceivedOfLocalStore, "A", "batches=2 cuts=1 crashes=1 fences=1 runs=1"),
    (Fault::OnePhaseDeletion, "C", "batches=1 cuts=1 crashes=0 fences=0 runs=1"),
    (Fault::ScanFromZero, "A", "batches=3 crashes=0 fences=1 runs=1 repeats=0"),
    (Fault::ScanReadsLowOnce, "A", "batches=3 crashes=0 fences=1 runs=1 repeats=0"),
    (Fault::NewRunReplacesRow, "A", "batches=1 crashes=1 fences=0 runs=2"),
    (Fault::FencedCountsAsAdopted, "E", "batches=1 crashes=1 fences=1 runs=1 snapshots"),
    (Fault::ReaderIgnoresFence, "C", "batches=1 cuts=1 crashes=0 fences=1 runs=1"),
    (Fault::ReceivedWithoutCheck, "A", "batches=1 cuts=1 crashes=0 fences=1 runs=2"),
    (Fault::KeepAfterMissedCut, "A", "keep batches=1 cuts=1 crashes=0 fences=1 runs=2"),
    (Fault::VectorOfServer, "D", "batches=2 crashes=1 fences=0 runs=2 repeats=0 snapshots split"),
    (Fault::StampWithoutRun, "B", "batches=2 crashes=1 fences=0 runs=2"),
    (Fault::DeletionIgnoresFenced, "C", "batches=1 cuts=1 crashes=1 fences=1 runs=1"),
    (Fault::CloseBeforeReceived, "C", "batches=1 cuts=1 crashes=0 fences=0 runs=1"),
    (Fault::CutLocalStore, "C", "batches=1 cuts=2 crashes=0 fences=0 runs=1"),
    (Fault::DeleteBeforeLow, "A", "batches=3 crashes=0 fences=1 runs=1 repeats=0"),
    (Fault::AdoptIntoLocalStore, "C", "batches=1 cuts=1 crashes=0 fences=1 runs=2"),
];

#[test]
fn every_invariant_holds_in_every_world() {
    for arguments in SYSTEMS {
        let setup = Setup::of(arguments);
        let result = explore(&setup, threads());
        println!(
            "{arguments}: {} worlds, {} steps, {:.1} s",
            result.worlds,
            result.steps,
            result.elapsed.as_secs_f64()
        );
        assert!(result.counterexamples.is_empty(), "{}", describe(&setup, &result));
        assert!(result.worlds > 1000, "{arguments}: only {} worlds: is this test blind?", result.worlds);
    }
}

#[test]
fn each_fault_breaks_an_invariant() {
    let listed: Vec<Fault> = FAULTS.iter().map(|(fault, ..)| *fault).collect();
    assert_eq!(listed, Fault::ALL, "a fault is not tried");
    for (fault, invariant, arguments) in FAULTS {
        let setup = Setup::of(&format!("quorum {arguments} fault={fault:?}"));
        let result = explore(&setup, 1);
        let broken: Vec<String> = result
            .counterexamples
            .iter()
            .map(|example| format!("{} after {} steps", example.invariant, example.actions.len()))
            .collect();
        println!("{fault:?}: {} ({} worlds)", broken.join("; "), result.worlds);
        let is_expected = result.counterexamples.iter().any(|example| example.invariant.starts_with(invariant));
        assert!(is_expected, "{fault:?}: no counterexample to {invariant}: {}", describe(&setup, &result));
        let sound = Setup::of(&format!("quorum {arguments}"));
        assert!(sound.rules.fault.is_none());
    }
}

/// What makes the number of worlds smaller does not hide a fault: without it the same system has the same verdict.
#[test]
fn reductions_do_not_change_the_verdict() {
    for arguments in [
        "quorum batches=1 crashes=1 fences=0 runs=1 repeats=1 snapshots",
        "quorum batches=1 crashes=1 fences=0 runs=1 repeats=1 snapshots split",
        "quorum batches=1 cuts=1 crashes=0 fences=0 runs=1 repeats=1 snapshots",
        "journal batches=1 cuts=1 crashes=0 fences=1 runs=2 repeats=0 snapshots",
        "quorum batches=1 crashes=0 fences=1 runs=2 repeats=0 snapshots",
    ] {
        let reduced = explore(&Setup::of(arguments), threads());
        let plain = explore(&Setup::of(&format!("{arguments} plain")), threads());
        println!("{arguments}: {} worlds, {} without reduction", reduced.worlds, plain.worlds);
        assert!(reduced.counterexamples.is_empty() && plain.counterexamples.is_empty());
        assert!(reduced.worlds < plain.worlds);
    }
    for number in [Fault::FencedCountsAsAdopted, Fault::VectorBeforeLocalPart, Fault::OnePhaseDeletion] {
        let (fault, _, arguments) = FAULTS.iter().find(|(fault, ..)| *fault == number).expect("a line of the table");
        let length = |more: &str| {
            let result = explore(&Setup::of(&format!("quorum {arguments} fault={fault:?} {more}")), 1);
            result.counterexamples.first().map(|example| example.actions.len())
        };
        assert!(
            length("").is_some() && length("") == length("plain"),
            "{fault:?}: {:?} {:?}",
            length(""),
            length("plain")
        );
    }
}
