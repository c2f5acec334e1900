//! What opening costs with a long journal: makes one of so many MB that is not sealed, as a killed server leaves it, and opens it in a fresh process.
//!
//! `cargo run --release -p wholegrain-store --example open_cost [MB, 1000] [DIRECTORY]`
//!
//! Batches of 250 sensors x 10 samples of 16 agents, and one part in twenty of the bytes single readings of 1,000 sensors.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Instant;

use wholegrain_model::size::ByteSize;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Schema, SensorDef, SensorPath, Value, ValueType,
};
use wholegrain_store::{Reading, SchemalessSensor, Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const AGENTS: usize = 16;
const SENSORS: usize = 250;
const SAMPLES: i64 = 10;
const SCHEMALESS: usize = 1_000;
const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        live_bytes_max: ByteSize::mib(8192),
        seal_after: Interval::from_s(3600),
        background: false,
        ..StoreConfig::new(dir)
    }
}

fn cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which `time` is.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Fills the journal; nothing seals it.
fn fill(dir: &Path, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    let (store, _) = Store::open(config(dir))?;
    let sensors = || (0..SENSORS).map(|i| SensorDef::gauge(format!("proc/sensor{i}"), "1", "")).collect();
    let schema = |agent| Schema::new(SensorPath::new(format!("/lab/n{agent}"))?, "proc", sensors()).map_err(Into::into);
    let schemas = (0..AGENTS).map(schema).collect::<Result<Vec<Schema>, Box<dyn std::error::Error>>>()?;
    schemas.iter().try_for_each(|schema| store.register_schema(schema))?;
    let schemaless = |i| {
        let (unit, description) = ("Cel".to_owned(), String::new());
        let path = SensorPath::new(format!("/hall/rack{}/t{i}", i % 40))?;
        Ok(SchemalessSensor { path, unit, description, kind: Kind::Gauge, value_type: ValueType::Float, scale: 1.0 })
    };
    let schemaless =
        (0..SCHEMALESS).map(schemaless).collect::<Result<Vec<SchemalessSensor>, Box<dyn std::error::Error>>>()?;
    let ids = store.register_sensors("gateway", &schemaless)?;
    let mut noise = 0x9e37_79b9u64;
    let mut random = move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    let mut seq = 0;
    while store.stats().journal_bytes < bytes {
        let (sender, receiver) = channel();
        for _ in 0..200 {
            seq += 1;
            let from = START + seq as i64 * SAMPLES * SECOND;
            for (agent, schema) in schemas.iter().enumerate() {
                let mut column = |sensor: usize| {
                    let value =
                        |i: i64| if sensor % 5 < 2 { (random() % 5_000) as i64 } else { sensor as i64 * 7919 + i / 7 };
                    Column { values: ColumnValues::Int((0..SAMPLES).map(value).collect()), gaps: Gaps::default() }
                };
                let columns = (0..SENSORS).map(&mut column).collect();
                let times = (0..SAMPLES).map(|i| from + i * SECOND).collect();
                let header = BatchHeader {
                    agent: format!("n{agent}"),
                    boot: 1,
                    seq,
                    schema: schema.hash(),
                    interval_ns: SECOND as u64,
                };
                let sender = sender.clone();
                store.append(
                    encode_batch(&Batch { header, times, columns }).into(),
                    Box::new(move |result| drop(sender.send(result))),
                );
            }
            let reading = |i: usize| Reading {
                sensor: ids[i % SCHEMALESS],
                time: from + i as i64,
                value: Value::Float(i as f64 / 8.0),
            };
            let sender = sender.clone();
            store.append_readings(
                "gateway",
                (0..60).map(reading).collect(),
                Box::new(move |result| drop(sender.send(result))),
            );
        }
        drop(sender);
        receiver.iter().collect::<Result<Vec<_>, _>>()?;
    }
    let stats = store.stats();
    println!("made            {} MB of journal, {} readings", stats.journal_bytes / 1_000_000, stats.readings);
    Ok(())
}

/// Opens it as a server does.
fn open(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let (store, report) = Store::open(config(dir))?;
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_s());
    println!("opened in       {wall:.2} s, {cpu:.2} s of CPU, {} MiB resident at most", resident_mib());
    println!(
        "found           {} segments, {} batches, {} single readings, clean: {}",
        report.segments,
        report.batches,
        report.readings,
        report.is_clean()
    );
    // Not sealed on the way out: a second opening finds the same.
    drop(store);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, dir] = &arguments[..]
        && word == "open"
    {
        return open(Path::new(dir));
    }
    let megabytes: u64 = arguments.first().map_or(Ok(1000), |text| text.parse())?;
    let dir = arguments.get(1).map_or_else(|| std::env::temp_dir().join("wholegrain-open-cost"), Into::into);
    let _ = std::fs::remove_dir_all(&dir);
    fill(&dir, megabytes * 1_000_000)?;
    for _ in 0..2 {
        let status = Command::new(std::env::current_exe()?).arg("open").arg(&dir).status()?;
        if !status.success() {
            return Err("opening failed".into());
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
