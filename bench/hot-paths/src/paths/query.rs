//! Reading the store: unchanged, in windows, and as a virtual sensor.

use std::hint::black_box;

use anyhow::ensure;
use tempfile::TempDir;
use wholegrain_model::{Interval, Pattern, Timestamp};
use wholegrain_query::virtuals::{Definition, DefinitionChange, MissingOperands};
use wholegrain_query::{Agg, Query, Space, run_on};

use super::readings::{Moving, SECOND, START, payload, schema};
use super::{Work, store};

const SENSORS: usize = 64;
/// Samples of a batch.
const SAMPLES: usize = 60;
/// Seconds that are stored and asked for.
const SECONDS: usize = 3600;
const READINGS: u64 = (SENSORS * SECONDS) as u64;
/// No multiple of a tier's, so that readings are read.
const WINDOW_S: u64 = 7;

/// A block with an hour of one node.
struct Stored {
    _dir: TempDir,
    space: Space,
}

fn stored() -> anyhow::Result<Stored> {
    let (dir, store) = store::open()?;
    let schema = schema(0, SENSORS)?;
    store.register_schema(&schema)?;
    let mut moving = Moving::new(SENSORS);
    for batch in 0..SECONDS / SAMPLES {
        let payload = payload(&schema, 0, batch as u64 + 1, batch * SAMPLES, SAMPLES, &mut moving);
        store.append_blocking(payload.into())?;
    }
    store.seal()?;
    Ok(Stored { _dir: dir, space: Space::new(store) })
}

const FROM: i64 = START;
const TO: i64 = START + SECONDS as i64 * SECOND;

struct BlockScan(Stored);

pub fn scan() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(BlockScan(stored()?)))
}

impl Work for BlockScan {
    fn work(&mut self) -> anyhow::Result<u64> {
        let store = self.0.space.store();
        let (snapshot, mut rows) = (store.snapshot(), 0);
        for sensor in store.sensors(&[Pattern::new("/lab/**")?]) {
            for chunk in snapshot.scan(sensor.id, FROM, TO)? {
                rows += black_box(chunk?).times.len() as u64;
            }
        }
        ensure!(rows == READINGS, "{rows} readings came back of {READINGS}");
        Ok(rows)
    }
}

/// A query, to its last batch.
struct QueryRequest {
    stored: Stored,
    query: Query,
    rows: u64,
}

impl Work for QueryRequest {
    fn work(&mut self) -> anyhow::Result<u64> {
        let space = &self.stored.space;
        let sensors = space.sensors(&self.query.patterns);
        let mut rows = 0;
        for batch in run_on(space.snapshot_for(&sensors), sensors, &self.query)?.batches {
            rows += black_box(batch?).num_rows() as u64;
        }
        ensure!(rows == self.rows, "{rows} rows came back of {}", self.rows);
        Ok(READINGS)
    }
}

fn query(pattern: &str, every: Option<u64>) -> anyhow::Result<Query> {
    Ok(Query {
        patterns: vec![Pattern::new(pattern)?],
        from: Timestamp(FROM),
        to: Timestamp(TO),
        every: every.map(Interval::from_s),
        points: None,
        agg: every.map(|_| Agg::Mean),
        op: None,
        across: None,
        unit: None,
        limit: None,
    })
}

pub fn windows() -> anyhow::Result<Box<dyn Work>> {
    let window = |time: i64| time.div_euclid(WINDOW_S as i64 * SECOND);
    let rows = SENSORS as u64 * (window(TO - 1) - window(FROM) + 1).cast_unsigned();
    Ok(Box::new(QueryRequest { stored: stored()?, query: query("/lab/n0/proc/*", Some(WINDOW_S))?, rows }))
}

pub fn virtual_sum() -> anyhow::Result<Box<dyn Work>> {
    let stored = stored()?;
    let definition = Definition {
        path: "/lab/sum".to_owned(),
        expression: "sum(</lab/n0/proc/*>)".to_owned(),
        unit: "1".to_owned(),
        description: String::new(),
        interval: Some(Interval::from_s(1)),
        bridge: None,
        missing: MissingOperands::Gap,
    };
    stored.space.virtuals().change(
        DefinitionChange { define: vec![definition], ..DefinitionChange::default() },
        "hot-paths",
        1,
    )?;
    Ok(Box::new(QueryRequest { stored, query: query("/lab/sum", None)?, rows: SECONDS as u64 }))
}
