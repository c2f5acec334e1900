//! What a million sensors cost: memory for each of them and the time to open the store, in fresh processes.
//!
//! `cargo run --release -p wholegrain-store --example million_sensors [DIRECTORY]`
//!
//! Three stores: 1,000 agents with 1,000 sensors each that are the same but for the agent; the same with sensors of their own; and 1,000,000
//! sensors without a schema.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use wholegrain_model::{Kind, Schema, SensorDef, SensorPath, ValueType};
use wholegrain_store::{LooseSensor, Store, StoreConfig};

const AGENTS: usize = 1_000;
const SENSORS: usize = 1_000;

type Failure = Box<dyn std::error::Error>;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir) }
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn fill(what: &str, dir: &Path) -> Result<(), Failure> {
    let (store, _) = Store::open(config(dir))?;
    let started = Instant::now();
    for agent in 0..AGENTS {
        let prefix = format!("/lrz/sng/rack{:02}/node{agent:04}", agent / 40);
        let own = if what == "own" { format!("-{agent}") } else { String::new() };
        if what == "loose" {
            let sensor = |i| {
                let path = SensorPath::new(format!("{prefix}/cpu/{}/metric{i}", i % 64))?;
                let description = "Time spent in user mode.".to_owned();
                Ok(LooseSensor {
                    path,
                    unit: "s".to_owned(),
                    description,
                    kind: Kind::Counter,
                    value_type: ValueType::Int,
                    scale: 0.01,
                })
            };
            let sensors = (0..SENSORS).map(sensor).collect::<Result<Vec<LooseSensor>, Failure>>()?;
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

fn open(what: &str, dir: &Path) -> Result<(), Failure> {
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

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, what, dir] = &arguments[..]
        && word == "open"
    {
        return open(what, Path::new(dir));
    }
    let base = arguments.first().map_or_else(|| std::env::temp_dir().join("wholegrain-million-sensors"), Into::into);
    for what in ["same", "own", "loose"] {
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
