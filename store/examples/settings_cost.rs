//! What properties that people set cost: listing a million sensors with ten thousand settings in force, beside listing them with none.
//!
//! `cargo run --release -p wholegrain-store --example settings_cost [DIRECTORY]`
//!
//! Settings of every form: paths, a subtree each, one name anywhere, and `*` within a level. The first listing looks up what holds for each
//! sensor, the second knows it.

use std::path::Path;
use std::time::Instant;

use wholegrain_model::{Pattern, Schema, SensorDef, SensorPath};
use wholegrain_store::{SensorSetting, Store, StoreConfig};

const AGENTS: usize = 1_000;
const SENSORS: usize = 1_000;
const SETTINGS: usize = 10_000;
const RUNS: usize = 5;

fn fill(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    for agent in 0..AGENTS {
        let prefix = format!("/lrz/sng/rack{:02}/node{agent:04}", agent / 40);
        let sensor =
            |i| SensorDef::counter(format!("cpu/{}/metric{i}", i % 64), "s", "Time in user mode.").scaled(0.01);
        store.register_schema(&Schema::new(SensorPath::new(prefix)?, "cpu", (0..SENSORS).map(sensor).collect())?)?;
    }
    Ok(())
}

fn settings() -> Result<Vec<SensorSetting>, Box<dyn std::error::Error>> {
    let pattern = |i: usize| {
        let node = format!("/lrz/sng/rack{:02}/node{:04}", i % AGENTS / 40, i % AGENTS);
        match i % 4 {
            0 => format!("{node}/cpu/{}/metric{i}", i % 64),
            1 => format!("{node}/**/metric{}", i % SENSORS),
            2 => format!("/lrz/**/metric{i}"),
            _ => format!("{node}/cpu/*/metric{}*", i / AGENTS),
        }
    };
    let setting = |i| {
        let pattern = Pattern::new(pattern(i))?;
        Ok(SensorSetting {
            pattern,
            unit: Some("ms".into()),
            scale: None,
            kind: None,
            description: None,
            interval: None,
        })
    };
    (0..SETTINGS).map(setting).collect()
}

/// Seconds to list everything, and how many sensors are in ms.
fn list(store: &Store) -> Result<(f64, usize), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let sensors = store.sensors(&[Pattern::new("/**")?]);
    Ok((started.elapsed().as_secs_f64(), sensors.iter().filter(|sensor| sensor.unit == "ms").count()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "/tmp/settings_cost".to_owned());
    std::fs::remove_dir_all(&dir).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(Path::new(&dir)) })?;
    fill(&store)?;
    let settings = settings()?;
    let (mut without, mut first, mut again, mut concerned) = (f64::MAX, f64::MAX, f64::MAX, 0);
    for _ in 0..RUNS {
        without = without.min(list(&store)?.0);
    }
    let mut setting = f64::MAX;
    for run in 0..RUNS {
        let started = Instant::now();
        store.set_properties(&settings, false, "bench", run as i64)?;
        setting = setting.min(started.elapsed().as_secs_f64());
        let (seconds, count) = list(&store)?;
        (first, concerned) = (first.min(seconds), count);
        again = again.min(list(&store)?.0);
    }
    println!("{} sensors, {SETTINGS} settings, {concerned} sensors concerned", AGENTS * SENSORS);
    println!("setting them          {setting:8.3} s");
    println!("list without settings {without:8.3} s");
    println!("list, first           {first:8.3} s  x {:.2}", first / without);
    println!("list, again           {again:8.3} s  x {:.2}", again / without);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
