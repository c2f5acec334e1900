//! What a store in Cassandra costs beside the embedded store: processor time, bytes on disk and time of queries, one after the other with the same
//! batches. It starts its own Cassandra.
//!
//! `cargo run --release -p wholegrain-testing --example cassandra_cost [AGENTS [SENSORS [MINUTES]]]`
//!
//! Batches of 10 samples at 1 s, appended as fast as the store takes them, sealed every five minutes of their times. The values move as those of
//! /proc do: three of five sensors stand still, the others count up or vary.

use std::path::Path;
use std::time::{Duration, Instant};

use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath};
use wholegrain_store::{ReadStore, ScanRequest, SensorInfo, SensorRange, Store, StoreConfig};
use wholegrain_testing::Random;
use wholegrain_testing::cassandra::CassandraCluster;
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;
const SAMPLES: usize = 10;
/// Seconds between two seals, of the readings' times.
const SEAL_S: usize = 300;
/// Repetitions of each query; the median counts.
const REPEAT: usize = 5;
const RANDOM_SEED: u64 = 1;

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which `time` is.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn value(sensor: usize, second: usize, random: &mut Random) -> i64 {
    match sensor % 5 {
        0 => (second * 100 * sensor) as i64 + random.below(200) as i64,
        1 => 4_000_000 + random.below(5_000) as i64,
        _ => (sensor * 7919) as i64,
    }
}

struct Load {
    schemas: Vec<Schema>,
    minutes: usize,
}

impl Load {
    fn new(agents: usize, sensors: usize, minutes: usize) -> AnyResult<Self> {
        let all = || (0..sensors).map(|at| SensorDef::gauge(format!("proc/sensor{at}"), "1", "")).collect();
        let schema = |agent| -> AnyResult<Schema> {
            Ok(Schema::new(SensorPath::new(format!("/lab/n{agent}"))?, "proc", all())?)
        };
        Ok(Self { schemas: (0..agents).map(schema).collect::<AnyResult<_>>()?, minutes })
    }

    fn readings(&self) -> f64 {
        self.schemas.iter().map(Schema::len).sum::<usize>() as f64 * (self.minutes * 60) as f64
    }

    /// Appends everything; calls `sealed` after each seal. Making the batches is not counted: returns its processor and wall time.
    fn append(&self, store: &Store, sealed: &mut dyn FnMut() -> AnyResult<()>) -> AnyResult<(u64, Duration)> {
        let mut random = Random::new(RANDOM_SEED);
        let mut making = (0, Duration::ZERO);
        self.schemas.iter().try_for_each(|schema| store.register_schema(schema))?;
        let (sender, receiver) = std::sync::mpsc::channel();
        for from in (0..self.minutes * 60).step_by(SAMPLES) {
            let (cpu, wall) = (cpu_ns(), Instant::now());
            let times: Vec<i64> = (from..from + SAMPLES).map(|second| START + second as i64 * SECOND).collect();
            let mut batches = Vec::new();
            for (agent, schema) in self.schemas.iter().enumerate() {
                let column = |sensor| {
                    let values = (from..from + SAMPLES).map(|second| value(sensor, second, &mut random)).collect();
                    Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
                };
                let columns = (0..schema.len()).map(column).collect();
                let seq = (from / SAMPLES) as u64;
                let (agent, schema) = (format!("n{agent}"), schema.hash());
                let header = BatchHeader { agent, boot: 1, seq, schema, interval_ns: SECOND as u64 };
                batches.push(encode_batch(&Batch { header, times: times.clone(), columns }));
            }
            making.0 += cpu_ns() - cpu;
            making.1 += wall.elapsed();
            let count = batches.len();
            for batch in batches {
                let sender = sender.clone();
                store.append(batch.into(), Box::new(move |result| drop(sender.send(result))));
            }
            for result in receiver.iter().take(count) {
                result?;
            }
            if (from + SAMPLES).is_multiple_of(SEAL_S) {
                store.seal()?;
                sealed()?;
            }
        }
        Ok(making)
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                bytes_below(&entry.path())
            } else {
                entry.metadata().map_or(0, |data| data.len())
            }
        })
        .sum()
}

/// Reads sensors over a range: the time to the first chunk and to the end, and the sum of the values.
fn read(
    store: &dyn ReadStore,
    sensors: &[SensorInfo],
    (from, to): (i64, i64),
) -> AnyResult<(Duration, Duration, i128)> {
    let started = Instant::now();
    let snapshot = store.snapshot();
    let reader = snapshot.open(&mut sensors.iter().map(|sensor| SensorRange { sensor, from, to }))?;
    let (mut first, mut sum) = (None, 0i128);
    for sensor in sensors {
        for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
            let chunk = chunk?;
            first.get_or_insert_with(|| started.elapsed());
            if let ColumnValues::Int(values) = &chunk.column.values {
                sum += values.iter().map(|value| i128::from(*value)).sum::<i128>();
            }
        }
    }
    Ok((first.unwrap_or_default(), started.elapsed(), sum))
}

/// The medians of several readings.
fn median(store: &dyn ReadStore, sensors: &[SensorInfo], range: (i64, i64)) -> AnyResult<(Duration, Duration, i128)> {
    let mut all = (0..REPEAT).map(|_| read(store, sensors, range)).collect::<AnyResult<Vec<_>>>()?;
    all.sort();
    Ok(all[REPEAT / 2])
}

fn queries(load: &Load, embedded: &dyn ReadStore, cassandra: &dyn ReadStore) -> AnyResult<()> {
    let end = START + (load.minutes as i64) * 60 * SECOND;
    let hour = (end - 3_600 * SECOND).max(START);
    for (what, pattern, most, range) in [
        ("one sensor, everything", "/lab/n0/proc/sensor0", 1, (START, end)),
        ("a node's sensors, the last hour", "/lab/n0/**", 1_000, (hour, end)),
        ("one metric of all nodes, the last hour", "/lab/*/proc/sensor0", 1_000, (hour, end)),
        ("1,000 sensors, the last hour", "/lab/**", 1_000, (hour, end)),
    ] {
        let mut sensors = embedded.sensors(&[Pattern::new(pattern)?]);
        sensors.truncate(most);
        let (first, whole, sum) = median(embedded, &sensors, range)?;
        let ids = cassandra.sensors(&[Pattern::new(pattern)?]);
        let (first_c, whole_c, sum_c) = median(cassandra, &ids[..sensors.len()], range)?;
        assert_eq!(sum, sum_c, "{what}");
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{what} ({} sensors): embedded {:.1} ms (first {:.1}), Cassandra {:.1} ms (first {:.1}): {:.1} times",
            sensors.len(),
            ms(whole),
            ms(first),
            ms(whole_c),
            ms(first_c),
            ms(whole_c) / ms(whole)
        );
    }
    Ok(())
}

fn main() -> AnyResult<()> {
    let number = |at, otherwise: usize| std::env::args().nth(at).map_or(Ok(otherwise), |text| text.parse());
    let load = Load::new(number(1, 100)?, number(2, 100)?, number(3, 60)?)?;
    let readings = load.readings();
    println!(
        "{} agents x {} sensors, {} minutes: {readings} readings",
        load.schemas.len(),
        load.schemas[0].len(),
        load.minutes
    );
    let dir = tempfile::tempdir()?;
    let (embedded, _) =
        Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path().join("embedded")) })?;
    let (cpu, wall) = (cpu_ns(), Instant::now());
    let making = load.append(&embedded, &mut || Ok(()))?;
    let sealed = embedded.stats().block_bytes as f64 / readings;
    embedded.maintain(START + 3 * 86_400 * SECOND)?;
    let ours = (cpu_ns() - cpu - making.0) as f64 / readings;
    let seconds = (wall.elapsed() - making.1).as_secs_f64();
    let merged = embedded.stats().block_bytes as f64 / readings;
    println!(
        "embedded: {ours:.0} ns of processor time a reading, {:.2} million readings/s; {sealed:.3} bytes a reading sealed, {merged:.3} merged",
        readings / seconds / 1e6
    );

    let cluster = CassandraCluster::start(1);
    let config = CassandraConfig::new(cluster.contact_points(), "cost", "a");
    create(&config, &KeyspaceOptions { replication: Vec::new(), shard_levels: 0 })?;
    let local = StoreConfig { background: false, hands_over: true, ..StoreConfig::new(dir.path().join("local")) };
    let (local, _) = Store::open(local)?;
    let store = CassandraStore::open(config, local.clone())?;
    let (cpu, wall, theirs) = (cpu_ns(), Instant::now(), cluster.cpu_ns());
    let making = load.append(&local, &mut || {
        store.wake();
        Ok(())
    })?;
    store.upload_all()?;
    let cassandra_ours = (cpu_ns() - cpu - making.0) as f64 / readings;
    let theirs = (cluster.cpu_ns() - theirs) as f64 / readings;
    let seconds = (wall.elapsed() - making.1).as_secs_f64();
    let stats = store.upload_stats();
    let bodies = stats.bytes as f64 / readings;
    cluster.nodetool(0, &["flush", "cost"]);
    cluster.nodetool(0, &["compact", "cost"]);
    let disk = bytes_below(&cluster.dir(0).join("data/cost")) as f64 / readings;
    println!(
        "Cassandra: {cassandra_ours:.0} ns a reading here ({:.2} times) and {theirs:.0} ns there, {:.2} million readings/s",
        cassandra_ours / ours,
        readings / seconds / 1e6
    );
    println!(
        "Cassandra: {} chunks of {:.0} bytes; {bodies:.3} bytes a reading in chunks, {disk:.3} on disk ({:.2} times the merged blocks)",
        stats.rows,
        stats.bytes as f64 / stats.rows as f64,
        disk / merged
    );
    queries(&load, &embedded, &store)?;
    store.close();
    Ok(())
}
