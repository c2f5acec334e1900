//! Queries of a counter with 60 increments a second around a clock step of -5 s. The agent samples no time twice, and sends a gap 1 ns before the first
//! sample after the step (docs/clock-steps.md).

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::{Agg, Op, Query, run};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
/// A time aligned with every window.
const START: i64 = 1_769_860_800 * SECOND;

/// Time and value of each sample: one a second; after 100 s the clock steps back by 5 s, and 5 s later it passes its earlier value.
fn samples() -> Vec<(i64, Option<i64>)> {
    let before = (0..=100).map(|second| (START + second * SECOND, Some(second * 60)));
    let gap = (START + 101 * SECOND - 1, None);
    let after = (101..=300).map(|second| (START + second * SECOND, Some((second + 5) * 60)));
    before.chain([gap]).chain(after).collect()
}

fn values(store: &Store, op: Op, every: Option<i64>) -> Vec<Option<f64>> {
    let query = Query {
        patterns: vec![Pattern::new("/**").unwrap()],
        from: Timestamp(START),
        to: Timestamp(START + 301 * SECOND),
        every: every.map(|every| Interval::from_ns(every as u64)),
        agg: every.map(|_| if op == Op::Delta { Agg::Sum } else { Agg::Max }),
        op: Some(op),
        ..Query::default()
    };
    let mut found = Vec::new();
    for batch in run(store, &query).unwrap().batches.by_ref() {
        let batch = batch.unwrap();
        let column = batch.column(2).as_primitive::<Float64Type>();
        found.extend((0..batch.num_rows()).map(|row| (!column.is_null(row)).then(|| column.value(row))));
    }
    found
}

#[test]
fn rates_and_differences_do_not_cross_a_step_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap().0;
    let sensor = SensorDef { wraps_at: Some(1 << 32), ..SensorDef::counter("packets", "1", "") };
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", vec![sensor]).unwrap();
    store.register_schema(&schema).unwrap();
    for (seq, samples) in (1..).zip(samples().chunks(64)) {
        let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
        let mut gaps = Gaps::default();
        for at in (0..samples.len()).filter(|at| samples[*at].1.is_none()) {
            gaps.set(at, samples.len());
        }
        let column = ColumnValues::Int(samples.iter().map(|(_, value)| value.unwrap_or(0)).collect());
        let times = samples.iter().map(|(time, _)| *time).collect();
        let batch = Batch { header, times, columns: vec![Column { values: column, gaps }] };
        store.append_blocking(encode_batch(&batch).into()).unwrap();
    }
    for sealed in [false, true] {
        if sealed {
            store.seal().unwrap();
        }
        for every in [None, Some(SECOND), Some(10 * SECOND), Some(60 * SECOND)] {
            let rates: Vec<f64> = values(&store, Op::Rate, every).into_iter().flatten().collect();
            let what = format!("sealed: {sealed}, every {every:?}: {rates:?}");
            assert!(rates.len() > 4 && rates.iter().all(|rate| (rate - 60.0).abs() < 0.01), "{what}");
            let all: f64 = values(&store, Op::Delta, every).into_iter().flatten().sum();
            // What the counter went while the clock passed over times that were sampled already belongs to no time.
            assert_eq!(all, (100.0 + 199.0) * 60.0, "sealed: {sealed}, every {every:?}");
        }
    }
}
