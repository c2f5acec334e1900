//! What virtual sensors cost beside many sensors: `cargo run --release -p wholegrain-query --example virtual_cost [sensors] [definitions]`.
//!
//! Nodes with a hundred sensors each; a template over all of them, and definitions of single sensors that refer to one another.

use std::time::Instant;

use wholegrain_model::{Kind, Pattern, SensorPath, ValueType};
use wholegrain_query::Space;
use wholegrain_query::virtuals::{Definition, DefinitionChange};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};

type Error = Box<dyn std::error::Error>;

const SENSORS_OF_NODE: usize = 100;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let sensors = arguments.next().transpose()?.unwrap_or(1_000_000);
    let definitions = arguments.next().transpose()?.unwrap_or(10_000);
    let dir = tempfile::tempdir()?;
    let store = Store::open(StoreConfig::new(dir.path().to_owned()))?.0;
    let nodes = sensors / SENSORS_OF_NODE;
    for node in 0..nodes {
        register(&store, &format!("/lab/r{}/n{node}", node / 100), SENSORS_OF_NODE)?;
    }
    println!("{} sensors of {nodes} nodes", store.sensor_numbers().1);
    let space = Space::new(store.clone());
    let one = Pattern::new("/lab/r0/n0/ratio")?;
    timed("the first look, without definitions", || Ok(space.sensors(std::slice::from_ref(&one)).len()))?;
    timed("a template that makes a sensor of each node", || {
        define(&space, vec![definition("/lab/*/*/ratio", "rate(<s0>) / rate(<s1>)", "1")])
    })?;
    timed("the sensors of it, one", || Ok(space.sensors(std::slice::from_ref(&one)).len()))?;
    let all = Pattern::new("/lab/*/*/ratio")?;
    timed("the sensors of it, all", || Ok(space.sensors(std::slice::from_ref(&all)).len()))?;
    let single = |at: usize| {
        let (node, before) = (at % nodes, at.saturating_sub(1));
        let more = if at.is_multiple_of(50) { String::new() } else { format!(" + <v{before}> / 2") };
        definition(&format!("/lab/v/v{at}"), &format!("</lab/r{}/n{node}/s0>{more}", node / 100), "1")
    };
    timed(&format!("{definitions} definitions at once"), || {
        define(&space, (0..definitions.saturating_sub(2)).map(single).collect())
    })?;
    timed("the first look after it", || Ok(space.sensors(std::slice::from_ref(&one)).len()))?;
    timed("one more definition", || define(&space, vec![definition("/lab/more", "<r0/n0/s0> + 1", "1")]))?;
    timed("the first look after it", || Ok(space.sensors(std::slice::from_ref(&one)).len()))?;
    timed("another look", || Ok(space.sensors(std::slice::from_ref(&one)).len()))?;
    let virtuals = Pattern::new("/lab/v/*")?;
    timed("the virtual sensors listed", || Ok(space.sensors(std::slice::from_ref(&virtuals)).len()))?;
    timed("those among them that a user may see", || {
        let mut seen = space.sensors(std::slice::from_ref(&virtuals));
        space.retain_seen("anna", &mut seen);
        Ok(seen.len())
    })?;
    register(&store, "/lab/r0/new", SENSORS_OF_NODE)?;
    timed("the first look after a new node", || Ok(space.sensors(std::slice::from_ref(&all)).len()))?;
    let again = Space::new(store);
    timed("the first look after a restart", || Ok(again.sensors(std::slice::from_ref(&one)).len()))
}

fn timed(what: &str, work: impl FnOnce() -> Result<usize, Error>) -> Result<(), Error> {
    let (before, started) = (resident_mib(), Instant::now());
    let count = work()?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    println!("{what:<50} {took:>10.3} ms  {count:>8} found  {:>+6} MiB", resident_mib() - before);
    Ok(())
}

fn resident_mib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<i64>().ok()).unwrap_or(0) / 1024
}

fn register(store: &Store, place: &str, count: usize) -> Result<(), Error> {
    let sensor = |at: usize| {
        Ok(SchemalessSensor {
            path: SensorPath::new(format!("{place}/s{at}"))?,
            unit: "1".to_owned(),
            kind: if at < 2 { Kind::Counter } else { Kind::Gauge },
            value_type: ValueType::Int,
            scale: 1.0,
            description: String::new(),
        })
    };
    let sensors = (0..count).map(sensor).collect::<Result<Vec<_>, Error>>()?;
    store.register_sensors("cost", &sensors)?;
    Ok(())
}

fn definition(path: &str, expression: &str, unit: &str) -> Definition {
    Definition {
        path: path.to_owned(),
        expression: expression.to_owned(),
        unit: unit.to_owned(),
        ..Definition::default()
    }
}

fn define(space: &Space, define: Vec<Definition>) -> Result<usize, Error> {
    let changed = space.virtuals().change(DefinitionChange { define, ..DefinitionChange::default() }, "cost", 1)?;
    Ok(changed.sensors.values().sum())
}
