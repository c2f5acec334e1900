//! What a query costs: milliseconds, and nanoseconds for each row of the answer, on the real file system.
//!
//! `cargo run --release -p wholegrain-query --example query_cost [DIRECTORY]`
//!
//! Many sensors of one group that nothing has been sealed of, the same sealed, and one sensor of many over an hour that is mostly sealed.
//! Each number is the best of several runs, so that the files are in the page cache.

use std::path::Path;
use std::time::{Duration, Instant};

use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::{Query, run};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;
const RUNS: usize = 5;

type Error = Box<dyn std::error::Error>;

/// Whole numbers, a third of them standing still.
fn value(sensor: usize, second: usize) -> i64 {
    let noise = (sensor * 2_654_435_761 + second * 40_503) >> 7;
    match sensor % 3 {
        0 => sensor as i64 * 7919,
        1 => (second * 100 * sensor) as i64 + (noise % 200) as i64,
        _ => 4_000_000 + (noise % 5_000) as i64,
    }
}

struct Site {
    store: Store,
    schema: Schema,
    sensors: usize,
    second: usize,
    seq: u64,
}

impl Site {
    fn new(dir: &Path, sensors: usize) -> Result<Self, Error> {
        let _ = std::fs::remove_dir_all(dir);
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?;
        let defs = (0..sensors).map(|i| SensorDef::gauge(format!("proc/sensor{i}"), "1", "")).collect();
        let schema = Schema::new(SensorPath::new("/lab/n0")?, "proc", defs)?;
        store.register_schema(&schema)?;
        Ok(Self { store, schema, sensors, second: 0, seq: 0 })
    }

    fn send(&mut self, batches: usize, samples: usize) -> Result<(), Error> {
        for _ in 0..batches {
            let seconds = self.second..self.second + samples;
            let column = |sensor| {
                let values = seconds.clone().map(|second| value(sensor, second)).collect();
                Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
            };
            self.seq += 1;
            let header = BatchHeader {
                agent: "n0".to_owned(),
                boot: 1,
                seq: self.seq,
                schema: self.schema.hash(),
                interval_ns: SECOND as u64,
            };
            let times = seconds.clone().map(|second| START + second as i64 * SECOND).collect();
            let columns = (0..self.sensors).map(column).collect();
            self.store.append_blocking(encode_batch(&Batch { header, times, columns }).into())?;
            self.second += samples;
        }
        Ok(())
    }

    fn query(&self, what: &str, pattern: &str, every: Option<Interval>) -> Result<(), Error> {
        let query = Query {
            patterns: vec![Pattern::new(pattern)?],
            from: Timestamp(START),
            to: Timestamp(START + 86_400 * SECOND),
            every,
            ..Query::default()
        };
        let (mut best, mut first, mut rows) = (Duration::MAX, Duration::MAX, 0);
        for _ in 0..RUNS {
            let started = Instant::now();
            rows = 0;
            for (at, batch) in run(&self.store, &query)?.batches.enumerate() {
                rows += batch?.num_rows();
                if at == 0 {
                    first = first.min(started.elapsed());
                }
            }
            best = best.min(started.elapsed());
        }
        let readings = if pattern.contains('*') { self.sensors * self.second } else { self.second };
        let each = |of: usize| best.as_nanos() as f64 / of.max(1) as f64;
        println!(
            "{what:34} {:9.1} ms, first batch {:8.1} ms, {rows:8} rows, {:8.1} ns a row, {:8.1} ns a reading",
            best.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            each(rows),
            each(readings),
        );
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("wholegrain-query-cost"), Into::into);
    let every = Some(Interval::from_s(10));
    let mut site = Site::new(&dir, 2_000)?;
    site.send(400, 1)?;
    site.query("live, all sensors, raw", "/**", None)?;
    site.query("live, all sensors, every 10s", "/**", every)?;
    site.query("live, one sensor, raw", "/lab/n0/proc/sensor1999", None)?;
    site.query("live, eleven sensors, raw", "/lab/n0/proc/sensor199*", None)?;
    site.store.seal()?;
    site.query("sealed, all sensors, raw", "/**", None)?;
    site.query("sealed, all sensors, every 10s", "/**", every)?;
    drop(site);
    let mut site = Site::new(&dir, 1_000)?;
    for _ in 0..58 {
        site.send(6, 10)?;
        site.store.seal()?;
        site.store.maintain(START + site.second as i64 * SECOND)?;
    }
    site.send(120, 1)?;
    site.query("1 h sealed and live, one sensor", "/lab/n0/proc/sensor500", None)?;
    site.query("the same, every 10s", "/lab/n0/proc/sensor500", every)?;
    site.query("1 h sealed and live, all sensors", "/**", None)?;
    drop(site);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
