//! How fast CSV comes in: the real command and a real server share two cores, from the file to durable blocks; beside DuckDB, which makes a
//! Parquet file of the same one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::json;
use wholegrain_testing::{Process, Random, Site, python};

use crate::report::{Aim, aim, keep, line, median};

/// The data begins at 2026-01-31T00:00:00Z.
const BEGIN: u64 = 1_769_817_600;
/// Columns of the wide table, and sensors of the long one.
const SENSORS: u64 = 100;
/// Aim: readings a second.
const READINGS_PER_S_MIN: f64 = 1e6;

#[derive(clap::Args, Clone)]
pub struct ImportOptions {
    /// Readings of each file
    #[arg(long, default_value_t = 10_000_000)]
    readings: u64,
    /// Imports of each file, each below a prefix of its own; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Cores that the command and the server share; 0 for all
    #[arg(long, default_value_t = 2)]
    cores: usize,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { readings: 10_000_000, rounds: 5, cores: 2 }
    }
}

pub fn run(options: &ImportOptions) -> anyhow::Result<()> {
    println!("import of CSV: {} readings a file, {} rounds, {} cores", options.readings, options.rounds, options.cores);
    share(options.cores)?;
    let dir = tempfile::tempdir()?;
    let mut random = Random::seeded();
    let files = [("wide", dir.path().join("wide.csv")), ("long", dir.path().join("long.csv"))];
    wide(&files[0].1, options.readings / SENSORS, &mut random)?;
    long(&files[1].1, options.readings, &mut random)?;
    let site = Site::new();
    let server = site.start_server();
    let (mut figures, mut reached) = (serde_json::Map::new(), true);
    for (name, file) in &files {
        let (mut seconds, mut duckdb, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..options.rounds {
            let used = server.cpu_ns();
            seconds.push(import(&site, file, &format!("/bench/{name}/{round}"), options.readings)?);
            cpu.push((server.cpu_ns() - used) as f64 / 1e9);
            duckdb.push(peer(file, &dir.path().join("peer.parquet"))?);
        }
        let rate = options.readings as f64 / median(&seconds);
        let ratio = median(&seconds) / median(&duckdb);
        let megabytes = std::fs::metadata(file)?.len() as f64 / 1e6;
        line(&format!("{name}: size of the file, MB"), format!("{megabytes:.0}"), "");
        let what = format!("{name}: readings a second, from the file to durable blocks");
        reached &= aim(&what, rate, 0, Aim::AtLeast(READINGS_PER_S_MIN, "1,000,000"));
        line(&format!("{name}: CPU of the server, s"), format!("{:.2}", median(&cpu)), "");
        line(&format!("{name}: time beside DuckDB's read_csv to Parquet"), format!("{ratio:.2}"), "a ratio");
        let results = json!({ "readings_per_s": rate, "seconds": seconds, "duckdb_s": duckdb, "duckdb_ratio": ratio, "server_cpu_s": cpu,
            "megabytes": megabytes });
        figures.insert((*name).to_owned(), results);
    }
    stop(server);
    keep("import", serde_json::Value::Object(figures))?;
    ensure!(reached, "an aim is not reached");
    Ok(())
}

fn stop(mut server: Process) {
    server.stop();
}

/// One import; its seconds, the command's start and the reading of the whole file for its name included.
fn import(site: &Site, file: &Path, prefix: &str, readings: u64) -> anyhow::Result<f64> {
    let file = file.to_str().context("the file's name")?;
    let begun = Instant::now();
    let output = site.answer(&["import", "csv", file, "--prefix", prefix, "--yes", "--json"]);
    let seconds = begun.elapsed().as_secs_f64();
    let output: serde_json::Value = serde_json::from_str(output.lines().last().context("no output")?)?;
    let counts = [&output["readings"], &output["readings_there_before"], &output["refused_lines"]]
        .map(serde_json::Value::as_u64);
    ensure!(counts == [Some(readings), Some(0), Some(0)], "not every reading was imported: {output}");
    Ok(seconds)
}

/// DuckDB's seconds, without the interpreter's start.
fn peer(file: &Path, target: &Path) -> anyhow::Result<f64> {
    let output = python("csv_to_parquet.py", &[file, target]);
    let seconds = output.split_whitespace().nth(1).context("DuckDB printed nothing")?;
    Ok(seconds.parse()?)
}

/// Binds this process and its children to this number of cores.
fn share(cores: usize) -> anyhow::Result<()> {
    if cores == 0 {
        return Ok(());
    }
    // SAFETY: a set of processors is plain numbers, of which all zeros is the empty one; both calls get its own size and write within it.
    let result = unsafe {
        let (mut all, mut some): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
        let size = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &raw mut all) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let allowed = (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &all));
        allowed.take(cores).for_each(|cpu| libc::CPU_SET(cpu, &mut some));
        libc::sched_setaffinity(0, size, &raw const some)
    };
    ensure!(result == 0, "cannot bind to {cores} cores: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Every sensor's walk: powers with one decimal and counters.
fn value(sensor: u64, state: &mut u64, random: &mut Random) -> String {
    *state += random.within(0, 40);
    if sensor.is_multiple_of(2) { format!("{}.{}", 200 + *state % 97, *state % 10) } else { state.to_string() }
}

fn wide(path: &Path, lines: u64, random: &mut Random) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write!(out, "time")?;
    (0..SENSORS).try_for_each(|sensor| write!(out, ",rack{}/node{sensor}/power", sensor / 10))?;
    let mut state = vec![0; SENSORS as usize];
    for second in 0..lines {
        write!(out, "\n{}", BEGIN + second)?;
        for sensor in 0..SENSORS {
            write!(out, ",{}", value(sensor, &mut state[sensor as usize], random))?;
        }
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

fn long(path: &Path, readings: u64, random: &mut Random) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "sensor,time,value")?;
    let mut state = vec![0; SENSORS as usize];
    for at in 0..readings {
        let (second, sensor) = (BEGIN + at / SENSORS, at % SENSORS);
        let value = value(sensor, &mut state[sensor as usize], random);
        writeln!(out, "rack{}/node{sensor}/power,{second},{value}", sensor / 10)?;
    }
    Ok(out.flush()?)
}
