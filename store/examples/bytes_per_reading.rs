//! The bytes of a reading on disk: this machine's own /proc (meminfo, vmstat, stat) at 1 s, sealed each minute and merged.
//!
//! - `bytes_per_reading record FILE SECONDS`: reads /proc once a second for SECONDS and writes the numbers to FILE.
//! - `bytes_per_reading FILE`: stores a recording and prints the bytes a reading takes.
//! - `bytes_per_reading`: reads /proc 3,600 times, 10 ms apart, and stores it as if 1 s apart. Counters move less in 10 ms than in
//!   1 s, so that the result is too good: use a recording for an honest figure.
//!
//! A recording is text: a line of sensor names, then a line of numbers for each second, `-` for a gap.

use std::collections::BTreeMap;
use std::io::{BufRead, BufWriter, Write};
use std::time::{Duration, Instant};

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;
/// Samples of one batch.
const SAMPLES: usize = 10;

/// Name and number of everything in the three files.
fn read_proc() -> std::io::Result<BTreeMap<String, i64>> {
    let mut row = BTreeMap::new();
    for line in std::fs::read_to_string("/proc/meminfo")?.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            row.insert(format!("meminfo/{}", name.trim_end_matches(':').replace(['(', ')'], "_")), value);
        }
    }
    for line in std::fs::read_to_string("/proc/vmstat")?.lines() {
        if let Some((name, Ok(value))) = line.split_once(' ').map(|(name, value)| (name, value.parse())) {
            row.insert(format!("vmstat/{name}"), value);
        }
    }
    for line in std::fs::read_to_string("/proc/stat")?.lines() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        // Of the interrupts only the total.
        let most = if name == "intr" || name == "softirq" { 1 } else { usize::MAX };
        for (at, value) in words.take(most).enumerate() {
            if let Ok(value) = value.parse() {
                row.insert(format!("stat/{name}/{at}"), value);
            }
        }
    }
    Ok(row)
}

struct Recording {
    names: Vec<String>,
    rows: Vec<Vec<Option<i64>>>,
}

fn record(seconds: usize, interval: Duration) -> std::io::Result<Recording> {
    let names: Vec<String> = read_proc()?.into_keys().collect();
    let started = Instant::now();
    let mut rows = Vec::with_capacity(seconds);
    for tick in 0..seconds {
        let due = started + interval * tick as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let row = read_proc()?;
        rows.push(names.iter().map(|name| row.get(name).copied()).collect());
    }
    Ok(Recording { names, rows })
}

fn save(recording: &Recording, path: &str) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    writeln!(out, "{}", recording.names.join(" "))?;
    for row in &recording.rows {
        let text: Vec<String> =
            row.iter().map(|value| value.map_or_else(|| "-".to_owned(), |v| v.to_string())).collect();
        writeln!(out, "{}", text.join(" "))?;
    }
    out.flush()
}

fn load(path: &str) -> Result<Recording, Box<dyn std::error::Error>> {
    let mut lines = std::io::BufReader::new(std::fs::File::open(path)?).lines();
    let names: Vec<String> = lines.next().ok_or("the recording is empty")??.split(' ').map(str::to_owned).collect();
    let mut rows = Vec::new();
    for line in lines {
        rows.push(line?.split(' ').map(|word| word.parse().ok()).collect());
    }
    Ok(Recording { names, rows })
}

fn store(recording: &Recording) -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("wholegrain-bytes-per-reading-{}", std::process::id()));
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(&dir) })?;
    // One group a file, as the agent has it.
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, name) in recording.names.iter().enumerate() {
        groups.entry(name.split('/').next().unwrap_or_default()).or_default().push(at);
    }
    let mut schemas = Vec::new();
    for (group, columns) in groups {
        let sensors = columns.iter().map(|&at| SensorDef::gauge(recording.names[at].as_str(), "1", "")).collect();
        let schema = Schema::new(SensorPath::new("/lab/n1")?, group, sensors)?;
        store.register_schema(&schema)?;
        schemas.push((schema, columns));
    }
    let mut seq = 0;
    for (minute, rows) in recording.rows.chunks(60).enumerate() {
        for (part, rows) in rows.chunks(SAMPLES).enumerate() {
            let second = minute * 60 + part * SAMPLES;
            let times: Vec<i64> = (0..rows.len()).map(|i| START + (second + i) as i64 * SECOND).collect();
            for (schema, columns) in &schemas {
                seq += 1;
                let header =
                    BatchHeader { agent: "n1".into(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
                let columns = columns.iter().map(|&at| column(rows, at)).collect();
                store.append_blocking(encode_batch(&Batch { header, times: times.clone(), columns }).into())?;
            }
        }
        store.seal()?;
    }
    let readings = (recording.names.len() * recording.rows.len()) as f64;
    println!("{} sensors x {} samples = {readings} readings", recording.names.len(), recording.rows.len());
    let stats = store.stats();
    println!("payload {:.3} bytes/reading in {} batches", stats.payload_bytes as f64 / readings, stats.batches);
    println!("sealed  {:.3} bytes/reading in {} blocks", stats.block_bytes as f64 / readings, stats.blocks);
    store.maintain(START + 2 * 86_400 * SECOND)?;
    let stats = store.stats();
    println!("merged  {:.3} bytes/reading in {} blocks", stats.block_bytes as f64 / readings, stats.blocks);
    store.close()?;
    drop(store);
    if std::env::var_os("WHOLEGRAIN_KEEP").is_some() {
        println!("kept in {}", dir.display());
    } else {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn column(rows: &[Vec<Option<i64>>], at: usize) -> Column {
    let mut gaps = Gaps::default();
    let mut values = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let value = row.get(at).copied().flatten();
        if value.is_none() {
            gaps.set(i, rows.len());
        }
        values.push(value.unwrap_or(0));
    }
    Column { values: ColumnValues::Int(values), gaps }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["record", file, seconds] => Ok(save(&record(seconds.parse()?, Duration::from_secs(1))?, file)?),
        [file] => store(&load(file)?),
        [] => store(&record(3_600, Duration::from_millis(10))?),
        _ => Err("usage: bytes_per_reading [record FILE SECONDS | FILE]".into()),
    }
}
