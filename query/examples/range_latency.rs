//! How soon the first row of a range comes while readings come in: one sensor of 1,000 over 24 h at 1 s, on the real file system.
//!
//! `cargo run --release -p wholegrain-query --example range_latency [DIRECTORY]`
//!
//! A day is sealed each quarter of an hour and merged as in service; then a thread sends on at 1,000 sensors x 10 samples a batch, as fast as
//! the store takes it, while the range is asked for as readings and in windows. Milliseconds until the first batch and until the last.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::{Query, run};
use wholegrain_store::{Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY_S: usize = 86_400;
const START: i64 = 20_000 * DAY_S as i64 * SECOND;
const SENSORS: usize = 1_000;
const SEAL_S: usize = 900;
const RUNS: usize = 21;

type Error = Box<dyn std::error::Error>;

/// Two of five stand still, the others move.
fn value(sensor: usize, second: usize) -> i64 {
    let noise = (sensor * 2_654_435_761 + second * 40_503) >> 7;
    match sensor % 5 {
        0 => (second * 100 * sensor) as i64 + (noise % 200) as i64,
        1 | 2 => 4_000_000 + (noise % 5_000) as i64,
        _ => (sensor * 7919) as i64,
    }
}

fn payload(schema: &Schema, agent: &str, seq: u64, seconds: std::ops::Range<usize>) -> Vec<u8> {
    let column = |sensor| {
        let values = seconds.clone().map(|second| value(sensor, second)).collect();
        Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
    };
    let header =
        BatchHeader { agent: agent.to_owned(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
    let times = seconds.clone().map(|second| START + second as i64 * SECOND).collect();
    encode_batch(&Batch { header, times, columns: (0..SENSORS).map(column).collect() })
}

fn schema(node: &str) -> Result<Schema, Error> {
    let sensors = (0..SENSORS).map(|i| SensorDef::gauge(format!("proc/sensor{i}"), "1", "")).collect();
    Ok(Schema::new(SensorPath::new(format!("/lab/{node}"))?, "proc", sensors)?)
}

/// A day of readings, all but its last minutes in blocks.
fn fill(dir: &Path) -> Result<Store, Error> {
    let _ = std::fs::remove_dir_all(dir);
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?;
    let schema = schema("n0")?;
    store.register_schema(&schema)?;
    for (seq, second) in (0..DAY_S).step_by(60).enumerate() {
        store.append_blocking(payload(&schema, "n0", seq as u64, second..second + 60).into())?;
        if (second + 60) % SEAL_S == 0 && second + 60 < DAY_S {
            store.seal()?;
            store.maintain(START + second as i64 * SECOND)?;
        }
    }
    store.close()?;
    Ok(store)
}

fn measure(store: &Store, what: &str, every: Option<Interval>) -> Result<(), Error> {
    let query = Query {
        patterns: vec![Pattern::new("/lab/n0/proc/sensor500")?],
        from: Timestamp(START),
        to: Timestamp(START + DAY_S as i64 * SECOND),
        every,
        ..Query::default()
    };
    let (mut first, mut last, mut rows) = (Vec::new(), Vec::new(), 0);
    for _ in 0..RUNS {
        let started = Instant::now();
        rows = 0;
        for (at, batch) in run(store, &query)?.batches.enumerate() {
            rows += batch?.num_rows();
            if at == 0 {
                first.push(started.elapsed());
            }
        }
        last.push(started.elapsed());
    }
    let ms = |times: &mut Vec<Duration>| {
        // The first run reads the files and their footers.
        let mut times = times.split_off(1);
        times.sort();
        let at = |part: usize| times.get(part).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        format!("median {:7.2} ms, worst {:7.2} ms", at(times.len() / 2), at(times.len() - 1))
    };
    println!("{what:22} {rows:6} rows; first batch: {}; all: {}", ms(&mut first), ms(&mut last));
    Ok(())
}

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("wholegrain-range-latency"), Into::into);
    drop(fill(&dir)?);
    let (store, _) = Store::open(StoreConfig::new(&dir))?;
    measure(&store, "quiet, readings", None)?;
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let ingest = {
        let (store, stop, sent, schema) = (store.clone(), stop.clone(), sent.clone(), schema("n1")?);
        store.register_schema(&schema)?;
        std::thread::spawn(move || {
            let mut seq = 0;
            while !stop.load(Relaxed) {
                let second = DAY_S + seq as usize * 10;
                match store.append_blocking(payload(&schema, "n1", seq, second..second + 10).into()) {
                    Ok(_) => seq += 1,
                    Err(StoreError::Busy) => std::thread::sleep(Duration::from_millis(10)),
                    Err(error) => return eprintln!("{error}"),
                }
                sent.fetch_add(10 * SENSORS as u64, Relaxed);
            }
        })
    };
    let begun = Instant::now();
    measure(&store, "under load, readings", None)?;
    measure(&store, "under load, every 1s", Some(Interval::from_s(1)))?;
    measure(&store, "under load, every 1h", Some(Interval::from_s(3600)))?;
    println!(
        "{:.2} million readings a second came in meanwhile",
        sent.load(Relaxed) as f64 / begun.elapsed().as_secs_f64() / 1e6
    );
    stop.store(true, Relaxed);
    ingest.join().map_err(|_| "the sender panicked")?;
    store.close()?;
    drop(store);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
