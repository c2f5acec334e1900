//! What a million sensors cost: memory for each of them and the time to open the store, in fresh processes.
//!
//! `cargo run --release -p wholegrain-store --example million_sensors [DIRECTORY] [WHICH]...`
//!
//! Four stores: 1,000 agents with 1,000 sensors each that are the same but for the agent (`same`); the same with sensors of their own (`own`);
//! 1,000,000 sensors without a schema (`schemaless`); and 15,000 agents with the same 467 sensors that come together, 64 at a time (`fleet`).

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use wholegrain_model::{Kind, Schema, SensorDef, SensorPath, ValueType};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};

const AGENTS: usize = 1_000;
const SENSORS: usize = 1_000;
const FLEET_AGENTS: usize = 15_000;
const FLEET_SENSORS: usize = 467;
const FLEET_AT_ONCE: usize = 64;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir) }
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Registers a fleet's schemas, some at a time, as a server does whose agents come together.
fn fill_fleet(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let schema = |agent| {
        let sensor =
            |i| SensorDef::counter(format!("cpu/{}/metric{i}", i % 64), "s", "Time in user mode.").scaled(0.01);
        let prefix = SensorPath::new(format!("/lrz/sng/node{agent:05}")).ok()?;
        Schema::new(prefix, "cpu", (0..FLEET_SENSORS).map(sensor).collect()).ok()
    };
    let next = AtomicUsize::new(0);
    let register = || {
        while let Some(agent) = Some(next.fetch_add(1, Relaxed)).filter(|agent| *agent < FLEET_AGENTS) {
            let schema = schema(agent).ok_or("an agent's schema is none")?;
            store.register_schema(&schema).map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FLEET_AT_ONCE).map(|_| scope.spawn(register)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread failed".to_owned())))
    })?;
    Ok(())
}

fn fill(what: &str, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (store, _) = Store::open(config(dir))?;
    let started = Instant::now();
    if what == "fleet" {
        fill_fleet(&store)?;
        println!("{what:<6} registered in {:.1} s", started.elapsed().as_secs_f64());
        return Ok(store.close()?);
    }
    for agent in 0..AGENTS {
        let prefix = format!("/lrz/sng/rack{:02}/node{agent:04}", agent / 40);
        let own = if what == "own" { format!("-{agent}") } else { String::new() };
        if what == "schemaless" {
            let sensor = |i| {
                let path = SensorPath::new(format!("{prefix}/cpu/{}/metric{i}", i % 64))?;
                let description = "Time spent in user mode.".to_owned();
                Ok(SchemalessSensor {
                    path,
                    unit: "s".to_owned(),
                    description,
                    kind: Kind::Counter,
                    value_type: ValueType::Int,
                    scale: 0.01,
                })
            };
            let sensors =
                (0..SENSORS).map(sensor).collect::<Result<Vec<SchemalessSensor>, Box<dyn std::error::Error>>>()?;
            store.register_sensors(&format!("node{agent:04}"), &sensors)?;
        } else {
            let sensor = |i| {
                SensorDef::counter(format!("cpu/{}/metric{i}{own}", i % 64), "s", "Time spent in user mode.")
                    .scaled(0.01)
            };
            store.register_schema(&Schema::new(
                SensorPath::new(prefix)?,
                "cpu",
                (0..SENSORS).map(sensor).collect(),
            )?)?;
        }
    }
    println!("{what:<6} registered in {:.1} s", started.elapsed().as_secs_f64());
    store.close()?;
    Ok(())
}

fn open(what: &str, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let before = status("VmRSS:");
    let started = Instant::now();
    let (store, _) = Store::open(config(dir))?;
    let wall = started.elapsed().as_secs_f64();
    let sensors = store.stats().sensors;
    let each = |bytes: u64| (bytes - before) / sensors.max(1);
    let (now, most) = (status("VmRSS:"), status("VmHWM:"));
    let catalogue = std::fs::metadata(dir.join("catalogue.redb"))?.len();
    println!(
        "{what:<6} {sensors} sensors: opened in {wall:.2} s, {} bytes a sensor resident ({} at most while opening), {} bytes each in the catalogue",
        each(now),
        each(most),
        catalogue / sensors.max(1)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, what, dir] = &arguments[..]
        && word == "open"
    {
        return open(what, Path::new(dir));
    }
    let base = arguments.first().map_or_else(|| std::env::temp_dir().join("wholegrain-million-sensors"), Into::into);
    for what in ["same", "own", "schemaless", "fleet"] {
        if arguments.len() > 1 && !arguments[1..].iter().any(|wanted| wanted == what) {
            continue;
        }
        let _ = std::fs::remove_dir_all(&base);
        fill(what, &base)?;
        let status = Command::new(std::env::current_exe()?).args(["open", what]).arg(&base).status()?;
        if !status.success() {
            return Err("opening failed".into());
        }
    }
    std::fs::remove_dir_all(&base)?;
    Ok(())
}
