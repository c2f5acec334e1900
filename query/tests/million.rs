//! Patterns that match a million sensors: lists are paged, queries are refused with advice, and both use little memory.

use wholegrain_model::{Interval, Kind, Pattern, SensorPath, Timestamp, ValueType};
use wholegrain_query::{Across, Agg, Query, SENSORS_MAX, run};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};

const SENSORS: usize = 1_000_000;
/// The sensors of one node.
const NODE_SENSORS: usize = 1_000;
/// The most additional memory for pages, and for a query over 100,000 sensors, MiB.
const PAGES_MIB_MAX: u64 = 32;
const QUERY_MIB_MAX: u64 = 160;

/// A line of `/proc/self/status` in MiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// The most additional memory in use while `work` runs.
fn peak(work: impl FnOnce()) -> u64 {
    // Resets the peak of memory (proc(5), clear_refs).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS:");
    work();
    memory("VmHWM:").saturating_sub(before)
}

fn sensor(at: usize) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(format!("/lab/n{:03}/s{:03}/power", at / NODE_SENSORS, at % NODE_SENSORS)).unwrap(),
        unit: "W".into(),
        kind: Kind::Gauge,
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    }
}

fn query(pattern: &str) -> Query {
    Query {
        patterns: vec![Pattern::new(pattern).unwrap()],
        from: Timestamp(0),
        to: Timestamp(3_600_000_000_000),
        every: Some(Interval::from_s(60)),
        ..Query::default()
    }
}

#[test]
fn a_million_sensors_are_listed_and_queried_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap();
    for start in (0..SENSORS).step_by(50_000) {
        let sensors: Vec<SchemalessSensor> = (start..start + 50_000).map(sensor).collect();
        store.register_sensors("test", &sensors).unwrap();
    }
    let all = [Pattern::new("/**").unwrap()];
    let grown = peak(|| {
        let (mut count, mut after) = (0, None);
        loop {
            let page = store.sensors_after(&all, after.as_deref(), 4096);
            assert!(page.is_sorted_by(|a, b| a.path < b.path));
            assert!(page.first().is_none_or(|first| after.as_deref().is_none_or(|after| after < &*first.path)));
            let Some(last) = page.last() else { break };
            count += page.len();
            after = Some(last.path.clone());
        }
        assert_eq!(count, SENSORS);
    });
    assert!(grown <= PAGES_MIB_MAX, "listing took {grown} MiB");
    let error = run(&store, &query("/**")).err().unwrap().to_string();
    assert!(error.contains(&format!("more than {SENSORS_MAX} sensors")) && error.contains("select fewer"), "{error}");
    let across = Some(Across { agg: Agg::Sum, levels: Some(2) });
    for query in [query("/lab/n1*/**"), Query { across, ..query("/lab/n1*/**") }] {
        let grown = peak(|| {
            let result = run(&store, &query).unwrap();
            assert_eq!(result.sensors.len(), 100 * NODE_SENSORS);
            assert_eq!(result.batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 0);
        });
        assert!(grown <= QUERY_MIB_MAX, "a query took {grown} MiB");
    }
}
