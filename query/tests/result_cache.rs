//! Whatever happens to readings, definitions and properties, virtual sensors answer with kept results as they would without any: random sequences of
//! everything that can change a result, over a store and its [`Space`], compared with a computation from the same readings.
//!
//! `WHOLEGRAIN_SEED` repeats a run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Pattern, Schema, SensorDef, SensorPath, Timestamp,
    Value, ValueType,
};
use wholegrain_query::virtuals::eval::ComputedSnapshot;
use wholegrain_query::virtuals::{Definition, DefinitionChange, MissingOperands, VirtualSensors};
use wholegrain_query::{Agg, Query, Space, run};
use wholegrain_store::{
    Deletion, ImportSeries, Property, ReadSnapshot, ReadStore, Reading, ScanRequest, SchemalessSensor, SensorId,
    SensorInfo, SensorSetting, Store, StoreConfig,
};
use wholegrain_testkit::{Random, seed};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// The longest cached pieces.
const PIECE: i64 = 6 * HOUR;
const START: i64 = 20_000 * 24 * HOUR;
const ROUNDS: u64 = 1;
const STEPS: u64 = 110;
/// Late batches during concurrent queries, each time.
const RACES: u64 = 8;
/// Enough members for several parts.
const CORES: usize = 18;
/// The tolerance for sums of windows: with cached pieces chunks end at other times, so that sums are added in another order.
const ROUNDING: f64 = 1e-12;
/// The most sensors that are added later.
const SCHEMALESS_MAX: u64 = 4;

/// The same space without a result cache.
struct Uncached {
    space: Space,
    virtuals: Arc<VirtualSensors>,
}

impl Uncached {
    fn snapshot(&self) -> ComputedSnapshot {
        ComputedSnapshot::new(Box::new(self.space.store().snapshot()), self.virtuals.clone(), None)
    }
}

impl ReadStore for Uncached {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.space.sensors(patterns)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        self.space.store().newest(ids)
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        Box::new(self.snapshot())
    }
}

/// The virtual sensors; `scale` makes another definition of the same. Path, expression, unit, seconds of its interval, whether what is missing is skipped.
fn definitions(scale: u64) -> Vec<(&'static str, String, &'static str, Option<u64>, bool)> {
    // The same expression, of other sensors.
    let (over, under) = if scale.is_multiple_of(2) { ("n1", "n2") } else { ("n2", "n1") };
    vec![
        ("/v/sum", format!("</lab/n1/power> + {scale} * </lab/n2/power>"), "W", None, false),
        ("/v/total", "sum(</lab/n*/power>)".to_owned(), "kW", None, false),
        ("/v/seen", "sum(</lab/*/power>)".to_owned(), "W", None, true),
        ("/v/ratio", format!("</lab/{over}/load> / </lab/{under}/load>"), "1", Some(90), false),
        ("/v/rate", "rate(</lab/n1/energy>)".to_owned(), "W", None, false),
        ("/v/rates", "sum(rate(</lab/*/energy>))".to_owned(), "W", Some(120), true),
        ("/v/moving", format!("moving_average(</lab/n1/power>, {}min)", 20 + scale), "W", None, false),
        ("/v/used", "integral(</lab/n2/power>, 6h)".to_owned(), "J", Some(300), false),
        ("/v/twice", "</v/sum> + 2 * </v/moving>".to_owned(), "W", Some(300), false),
        ("/v/smooth", format!("moving_max(</v/twice>, {scale}h) - </v/total>"), "W", None, false),
        ("/v/cores", "mean(</lab/n1/core/*/busy>)".to_owned(), "1", None, true),
        ("/lab/*/double", format!("{scale} * <power>"), "W", None, false),
        // Several slices to a query, which begin and end anywhere in the pieces.
        ("/fine/power", format!("{scale} * moving_average(</lab/n1/power>, 10s)"), "W", Some(0), false),
    ]
}

fn definition(of: &(&str, String, &str, Option<u64>, bool)) -> Definition {
    let interval = |seconds| if seconds == 0 { Interval::from_ns(200_000_000) } else { Interval::from_s(seconds) };
    Definition {
        path: of.0.to_owned(),
        expression: of.1.clone(),
        unit: of.2.to_owned(),
        interval: of.3.map(interval),
        missing: if of.4 { MissingOperands::Skip } else { MissingOperands::Gap },
        ..Definition::default()
    }
}

fn schema(agent: &str) -> Schema {
    let mut sensors = vec![
        SensorDef::gauge("power", "W", "").scaled(0.1),
        SensorDef::gauge("load", "1", "").float(),
        SensorDef::counter("energy", "J", ""),
    ];
    sensors.extend((0..CORES).map(|core| SensorDef::gauge(format!("core/{core}/busy"), "1", "").float()));
    Schema::new(SensorPath::new(format!("/lab/{agent}")).unwrap(), "g", sensors).unwrap()
}

fn schemaless(path: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: "kW".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    }
}

fn open(dir: &Path) -> Store {
    let config = StoreConfig { background: false, merge_fan_in: 3, ..StoreConfig::new(dir) };
    Store::open(config).unwrap().0
}

struct World {
    random: Random,
    dir: tempfile::TempDir,
    /// `None` only while it is closed.
    uncached: Option<Uncached>,
    /// The newest time so far.
    time: i64,
    seq: u64,
    schemaless: u64,
    /// Cache hits and insertions of closed stores.
    used: (u64, u64),
}

impl World {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uncached = Some(uncached(open(dir.path())));
        let mut world =
            Self { random: Random::new(seed), dir, uncached, time: START, seq: 0, schemaless: 0, used: (0, 0) };
        ["n1", "n2"].iter().for_each(|agent| world.store().register_schema(&schema(agent)).unwrap());
        let define = definitions(2).iter().map(definition).collect();
        world.space().virtuals().change(DefinitionChange { define, ..DefinitionChange::default() }, "ada", 5).unwrap();
        world.append(false);
        world
    }

    fn uncached(&self) -> &Uncached {
        self.uncached.as_ref().unwrap()
    }

    fn space(&self) -> &Space {
        &self.uncached().space
    }

    fn store(&self) -> &Store {
        self.space().store()
    }

    fn before(&mut self, hours: u64) -> i64 {
        self.time - self.random.below(hours * 3_600) as i64 * SECOND
    }

    /// A batch of an agent: the next one, or a late one.
    fn append(&mut self, late: bool) {
        let agents: &[&str] =
            if self.time - START > 20 * HOUR { &["n1", "n1", "n2", "n2", "n3"] } else { &["n1", "n2"] };
        let agent = self.random.pick(agents);
        if agent == "n3" {
            self.store().register_schema(&schema(agent)).unwrap();
        }
        if late {
            let (from, rows) = (self.before(40), 1 + self.random.below(20) as i64);
            self.batch(agent, from, rows);
            return;
        }
        // Both, mostly, so that one is not always ahead; sometimes after a hole.
        let hole = if self.random.chance(15) { self.random.below(4 * 3_600) as i64 * SECOND } else { 0 };
        let (from, rows) = (self.time + hole, 40 + self.random.below(300) as i64);
        let other = ["n1", "n2"].into_iter().find(|other| *other != agent).unwrap_or("n1");
        self.batch(agent, from, rows);
        if self.random.chance(80) {
            self.batch(other, from, rows);
        }
        self.time = from + rows * MINUTE;
    }

    fn batch(&mut self, agent: &str, from: i64, rows: i64) {
        self.seq += 1;
        let payload = payload(agent, self.seq, from, rows, &mut self.random);
        self.store().append_blocking(payload.into()).unwrap();
    }

    /// Single readings, possibly of new sensors.
    fn readings(&mut self) {
        if self.schemaless < SCHEMALESS_MAX && self.random.chance(30) {
            self.schemaless += 1;
            let path = format!("/lab/x{}/power", self.schemaless);
            self.store().register_sensors("gateway", &[schemaless(&path)]).unwrap();
        }
        let measured = self.schemaless == 0 || self.random.chance(50);
        let path = if measured { "/lab/n1/power".to_owned() } else { format!("/lab/x{}/power", self.schemaless) };
        let from = self.before(30);
        let times: Vec<i64> = (0..1 + self.random.below(60) as i64).map(|at| from + at * 40 * SECOND).collect();
        self.send(&path, &times);
    }

    fn send(&self, path: &str, times: &[i64]) {
        let sensor = self.store().sensor_id(path).unwrap();
        let float = self.store().sensor(sensor).unwrap().value_type == ValueType::Float;
        let value = |at: usize| if float { Value::Float(at as f64 / 7.0) } else { Value::Int(at as i64) };
        let reading = |(at, time): (usize, &i64)| Reading { sensor, time: *time, value: value(at) };
        let readings: Vec<Reading> = times.iter().enumerate().map(reading).collect();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.store().append_readings("gateway", readings, Box::new(move |result| drop(sender.send(result))));
        receiver.recv().unwrap().unwrap();
    }

    fn unit_is_set(&self, path: &str) -> bool {
        let chooses = |pattern: &str| Pattern::new(pattern).unwrap().matches(path);
        self.store().property_settings().iter().any(|set| set.property == Property::Unit && chooses(&set.pattern))
    }

    fn import(&mut self) {
        let path = self.random.pick(&["/lab/n1/power", "/lab/n2/load", "/lab/y/power"]);
        let known = self.store().sensor_id(path).and_then(|id| self.store().sensor(id));
        let mut sensor = schemaless(path);
        if let Some(known) = known {
            let (unit, kind) = (known.unit.to_string(), known.kind);
            sensor = SchemalessSensor { unit, kind, value_type: known.value_type, scale: known.scale, ..sensor };
        } else if self.unit_is_set(path) {
            // The new sensor will have the unit that is set for it, and an import with another one is refused.
            sensor.unit = String::new();
        }
        let from = self.before(60) / MINUTE * MINUTE;
        let times: Vec<i64> = (0..1 + self.random.below(120) as i64).map(|at| from + at * MINUTE).collect();
        let random = &mut self.random;
        let values = match sensor.value_type {
            ValueType::Int => ColumnValues::Int(times.iter().map(|_| random.below(900) as i64).collect()),
            ValueType::Float => ColumnValues::Float(times.iter().map(|_| random.below(90) as f64 / 9.0).collect()),
        };
        self.seq += 1;
        let series = ImportSeries { sensor, times, column: Column { values, gaps: Gaps::default() } };
        let imported = self.store().import(&format!("old{}", self.seq), 0, "archive", vec![series]).unwrap();
        assert!(!imported.duplicate);
    }

    fn delete(&mut self) {
        let pattern = self.random.pick(&["/lab/n1/power", "/lab/n2/**", "/lab/*/power", "/lab/n1/core/3/*"]);
        let from = self.before(50);
        let to = from + (1 + self.random.below(5 * 3_600)) as i64 * SECOND;
        self.store().delete(&Deletion { patterns: vec![Pattern::new(pattern).unwrap()], from, to }).unwrap();
    }

    /// A single reading near the end of a piece, then the next one, which changes both pieces.
    fn edge(&mut self) {
        let path = self.random.pick(&["/lab/n1/power", "/lab/n2/power"]);
        let edge = self.before(40) / PIECE * PIECE;
        let patterns = vec![Pattern::new(path).unwrap()];
        self.store().delete(&Deletion { patterns, from: edge - 10 * MINUTE, to: edge + 10 * MINUTE }).unwrap();
        let mut times = [edge - 70 * SECOND, edge + 50 * SECOND];
        if self.random.chance(50) {
            times.reverse();
        }
        for time in times {
            self.send(path, &[time]);
            self.compare(&question("/v/s*", edge - 2 * HOUR, edge + 2 * HOUR, None, None));
        }
    }

    fn redefine(&mut self) {
        let all = definitions(1 + self.random.below(4));
        let define = all.iter().filter(|_| self.random.chance(30)).map(definition).collect();
        self.space()
            .virtuals()
            .change(DefinitionChange { define, ..DefinitionChange::default() }, "ada", self.time)
            .unwrap();
    }

    fn set_property(&mut self) {
        let pattern = self.random.pick(&["/lab/n1/power", "/lab/*/power", "/lab/n1/energy"]);
        let power = pattern.ends_with("power");
        let (unit, scale, kind) = match self.random.below(3) {
            0 if power => (Some(self.random.pick(&["W", "kW", "mW"]).to_owned()), None, None),
            1 if !power => (None, None, Some(self.random.pick(&[Kind::Counter, Kind::Gauge]))),
            _ => (None, Some(self.random.pick(&[0.1, 0.5, 3.0])), None),
        };
        let setting = SensorSetting {
            pattern: Pattern::new(pattern).unwrap(),
            unit,
            scale,
            kind,
            description: None,
            interval: None,
        };
        self.store().set_properties(&[setting], false, "ada", self.time).unwrap();
    }

    fn retain(&mut self) {
        if self.random.chance(30) {
            let pattern = self.random.pick(&["/lab/n2/power", "/lab/x*/**", "/lab/n1/load"]);
            let keep = self.random.chance(60).then(|| Interval::from_s(20 * 3_600 + self.random.below(40 * 3_600)));
            let pattern = Pattern::new(pattern).unwrap();
            self.store().set_retention(&pattern, keep, "ada", self.time).unwrap();
        }
        self.store().maintain(self.time).unwrap();
    }

    fn count(&mut self) {
        let stats = self.store().stats();
        self.used = (self.used.0 + stats.result_cache_hits, self.used.1 + stats.result_cache_stored);
    }

    /// Closes and opens the store, or opens a copy of its files, as after a kill.
    fn restart(&mut self) {
        self.count();
        if self.random.chance(50) {
            let copy = tempfile::tempdir().unwrap();
            copy_all(self.dir.path(), copy.path());
            self.store().close().unwrap();
            self.uncached = Some(uncached(open(copy.path())));
            self.dir = copy;
            return;
        }
        let dir = self.dir.path().to_owned();
        self.store().close().unwrap();
        // The old one goes before the new one comes: two cannot have the same directory.
        self.uncached = None;
        self.uncached = Some(uncached(open(&dir)));
    }

    fn change(&mut self) {
        match self.random.below(100) {
            0..35 => self.append(false),
            35..50 => self.append(true),
            50..57 => self.readings(),
            57..63 => self.import(),
            63..67 => self.delete(),
            67..70 => self.edge(),
            70..76 => self.redefine(),
            76..82 => self.set_property(),
            82..86 => self.store().seal().unwrap(),
            86..92 => self.retain(),
            92..96 => self.restart(),
            _ => self.unnoticed(),
        }
    }

    /// Late readings arrive, and the next query follows a restart.
    fn unnoticed(&mut self) {
        let all = question("/v/*", self.time - 40 * HOUR, self.time, None, None);
        self.compare(&all);
        if self.random.chance(50) {
            self.append(true);
        } else {
            self.readings();
        }
        if self.random.chance(50) {
            self.store().seal().unwrap();
        }
        self.restart();
        self.compare(&all);
    }

    fn range(&mut self, hours: u64) -> (i64, i64) {
        let round = |time: i64, random: &mut Random| if random.chance(40) { time / HOUR * HOUR } else { time };
        let from = self.time - self.random.below((hours + 4) * 3_600) as i64 * SECOND;
        let to = from + (1 + self.random.below(hours * 3_600)) as i64 * SECOND;
        let from = round(from, &mut self.random);
        (from, round(to, &mut self.random).max(from + 1))
    }

    fn query(&mut self) {
        let fine = self.random.chance(6);
        let patterns = ["/v/*", "/v/*", "/v/sum", "/v/smooth", "/v/twice", "/lab/*/double", "/v/rate*", "/v/used"];
        let pattern = if fine { "/fine/*" } else { self.random.pick(&patterns) };
        let (from, to) = self.range(if fine { 2 } else { 60 });
        let every = self.random.chance(30).then(|| Interval::from_ns(self.random.pick(&[10 * MINUTE, HOUR]) as u64));
        let agg = every.map(|_| Agg::ALL[self.random.below(7) as usize].1);
        self.compare(&question(pattern, from, to, every, agg));
    }

    fn compare(&self, query: &Query) {
        let (found, expected) = (answer(self.space(), query), answer(self.uncached(), query));
        let what = format!("{query:?}");
        let at = |row: &(String, i64, Option<f64>)| (row.0.clone(), row.1);
        let other = found.iter().zip(&expected).find(|(found, expected)| at(found) != at(expected));
        assert!(found.len() == expected.len(), "{what}: {} rows, {} computed; {other:?}", found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let same = match (found.2, expected.2) {
                (Some(a), Some(b)) if query.agg.is_some() => (a - b).abs() <= ROUNDING * a.abs().max(b.abs()),
                (a, b) => a.map(f64::to_bits) == b.map(f64::to_bits),
            };
            let same = same && (&found.0, found.1) == (&expected.0, expected.1);
            assert!(same, "{what}: {found:?} from the cache, computed {expected:?}");
        }
    }

    /// Reads an older snapshot while readings arrive: it has the older readings, and no outdated result is cached.
    fn straddle(&mut self) {
        let sensors = self.space().sensors(&[Pattern::new("/v/*").unwrap()]);
        let sensor = self.random.pick(&sensors);
        let (from, to) = self.range(40);
        let (with, without) = (self.space().snapshot_for(&sensors), self.uncached().snapshot());
        let expected = rows(&without, &sensor, from, to, || ());
        let (change, mut chunks_before) = (self.random.below(5), self.random.below(2) as i64);
        let found = rows(with.as_ref(), &sensor, from, to, || {
            chunks_before -= 1;
            match change {
                _ if chunks_before != -1 => {}
                0 => self.import(),
                1 => self.delete(),
                2 => self.readings(),
                _ => self.append(true),
            }
        });
        assert!(found == expected, "{} from {from} to {to} of a view of before", sensor.path);
        self.compare(&question(&sensor.path, from, to, None, None));
    }

    /// Two concurrent queries while late readings arrive in their range.
    fn race(&mut self) {
        let from = self.before(30) / HOUR * HOUR;
        let to = from + 2 * HOUR;
        for _ in 0..RACES {
            self.seq += 1;
            let at = from + self.random.below(120) as i64 * MINUTE;
            let payload = payload("n1", self.seq, at, 1, &mut self.random);
            let over = AtomicBool::new(false);
            let ask = |pattern: &str| {
                while !over.load(SeqCst) {
                    answer(self.space(), &question(pattern, from, to, None, None));
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| ask("/v/s*"));
                scope.spawn(|| ask("/v/*i*"));
                self.store().append_blocking(payload.into()).unwrap();
                over.store(true, SeqCst);
            });
            self.compare(&question("/v/*", from, to, None, None));
        }
    }
}

fn uncached(store: Store) -> Uncached {
    let virtuals = Arc::new(VirtualSensors::new(store.clone()));
    Uncached { space: Space::new(store), virtuals }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn payload(agent: &str, seq: u64, from: i64, rows: i64, random: &mut Random) -> Vec<u8> {
    let schema = schema(agent);
    // On the minute, or anywhere.
    let from = if random.chance(70) { from / MINUTE * MINUTE } else { from };
    let step = if random.chance(90) { MINUTE } else { 5 * MINUTE };
    let times: Vec<i64> = (0..rows).map(|at| from + at * step).collect();
    let column = |sensor: usize| {
        let mut gaps = Gaps::default();
        let gap = |random: &mut Random| random.chance(2);
        (0..times.len()).filter(|_| gap(random)).for_each(|at| gaps.set(at, times.len()));
        let values = match sensor {
            0 => ColumnValues::Int(times.iter().map(|_| random.below(5_000) as i64).collect()),
            // A counter that restarts now and then.
            2 => ColumnValues::Int(times.iter().map(|time| (time / SECOND * 37) % 1_000_003).collect()),
            _ => ColumnValues::Float(times.iter().map(|_| random.below(8) as f64 / 3.0).collect()),
        };
        Column { values, gaps }
    };
    let columns = (0..schema.len()).map(column).collect();
    let header = BatchHeader { agent: agent.into(), boot: 1, seq, schema: schema.hash(), interval_ns: MINUTE as u64 };
    encode_batch(&Batch { header, times: times.clone(), columns })
}

fn question(pattern: &str, from: i64, to: i64, every: Option<Interval>, agg: Option<Agg>) -> Query {
    Query {
        patterns: vec![Pattern::new(pattern).unwrap()],
        from: Timestamp(from),
        to: Timestamp(to),
        every,
        agg,
        ..Query::default()
    }
}

fn answer(store: &dyn ReadStore, query: &Query) -> Vec<(String, i64, Option<f64>)> {
    let mut rows = Vec::new();
    for batch in run(store, query).unwrap().batches {
        let batch = batch.unwrap();
        let sensors = batch.column(0).as_dictionary::<Int32Type>();
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let value = batch.column(2);
        for row in 0..batch.num_rows() {
            let name = sensors.values().as_string::<i32>().value(sensors.keys().value(row) as usize).to_owned();
            let value = match value.as_primitive_opt::<Int64Type>() {
                _ if value.is_null(row) => None,
                Some(ints) => Some(ints.value(row) as f64),
                None => Some(value.as_primitive::<Float64Type>().value(row)),
            };
            rows.push((name, times.value(row), value));
        }
    }
    rows
}

/// The rows of a scan, with an action before and after each chunk.
fn rows(
    snapshot: &dyn ReadSnapshot,
    sensor: &SensorInfo,
    from: i64,
    to: i64,
    mut then: impl FnMut(),
) -> Vec<(i64, Option<u64>)> {
    let mut rows = Vec::new();
    let reader = snapshot.open(&mut std::iter::empty()).unwrap();
    let found = reader.scan(&ScanRequest::readings(sensor, from, to)).unwrap().chunks();
    then();
    for chunk in found {
        let chunk = chunk.unwrap();
        let value = |at| chunk.column.get(at).map(|value| value.as_f64().to_bits());
        rows.extend(chunk.times.iter().enumerate().map(|(at, time)| (*time, value(at))));
        then();
    }
    rows
}

fn round(seed: u64) -> (u64, u64) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.change();
        match world.random.below(100) {
            0..55 => world.query(),
            55..70 => world.straddle(),
            _ => {}
        }
        if step % 50 == 49 {
            world.race();
        }
    }
    let (from, to) = (START - HOUR, world.time + HOUR);
    for _ in 0..2 {
        world.compare(&question("/v/*", from, to, None, None));
        world.compare(&question("/lab/*/double", from, to, None, None));
    }
    world.count();
    world.used
}

#[test]
fn results_are_the_same_with_and_without_the_cache() {
    let first = seed();
    for seed in first..first + ROUNDS {
        match std::panic::catch_unwind(|| round(seed)) {
            Ok((hits, kept)) => {
                println!("{seed}: {kept} pieces were kept, {hits} used");
                assert!(
                    hits > 50 && kept > 50,
                    "{kept} pieces were kept, {hits} used: what is to be tested hardly happens"
                );
            }
            Err(panic) => {
                println!("failed with WHOLEGRAIN_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn after_a_restart_no_result_has_readings_that_retention_removed_from_a_block() {
    let mut world = World::new(1);
    for hour in 0..60 {
        for agent in ["n1", "n2"] {
            world.batch(agent, START + hour * HOUR, 60);
        }
    }
    world.time = START + 60 * HOUR;
    world.store().seal().unwrap();
    let all = question("/v/*", START, world.time, None, None);
    world.compare(&all);
    let pattern = Pattern::new("/lab/n1/**").unwrap();
    world.store().set_retention(&pattern, Some(Interval::from_s(50 * 3_600)), "ada", 5).unwrap();
    world.compare(&all);
    assert!(world.store().stats().result_cache_pieces > 50);
    world.store().maintain(world.time + 40 * HOUR).unwrap();
    assert!(world.store().stats().retention_rewritten_bytes > 0, "a block was written again");
    world.compare(&all);
    let dir = world.dir.path().to_owned();
    world.store().close().unwrap();
    world.uncached = None;
    world.uncached = Some(uncached(open(&dir)));
    world.compare(&all);
}

/// A query from the first reading of an archive to today: in between there is nothing to compute or to cache.
#[test]
fn years_without_readings_cost_neither_time_nor_files() {
    let mut world = World::new(1);
    (0..20).for_each(|hour| world.batch("n1", START + hour * HOUR, 60));
    world.store().register_sensors("archive", &[schemaless("/lab/y/power")]).unwrap();
    // One reading of 1960, two some days apart, and one in 1990: what of them is in one block spans all of the time.
    let times = [-10 * 365 * 24 * HOUR, START - 4 * 24 * HOUR, START - 2 * 24 * HOUR, 20 * 365 * 24 * HOUR];
    let mut sorted = times;
    sorted.sort_unstable();
    let column = Column { values: ColumnValues::Float(vec![1.0; times.len()]), gaps: Gaps::default() };
    let series = ImportSeries { sensor: schemaless("/lab/y/power"), times: sorted.to_vec(), column };
    world.store().import("archive", 0, "ada", vec![series]).unwrap();
    world.store().seal().unwrap();
    world.time = START + 20 * HOUR;
    let fine = Definition {
        interval: Some(Interval::from_ns(100_000_000)),
        ..definition(&("/e/fine", "2 * </lab/y/power>".to_owned(), "kW", None, false))
    };
    let dense = definition(&("/e/dense", "2 * </lab/n1/power>".to_owned(), "W", Some(60), false));
    let both = definition(&("/e/both", "sum(</lab/*/power>)".to_owned(), "kW", Some(60), true));
    let year = definition(&("/e/used", "integral(</lab/y/power>, 1h)".to_owned(), "J", Some(60), false));
    let change = DefinitionChange { define: vec![fine, dense, both, year], ..DefinitionChange::default() };
    world.space().virtuals().change(change, "ada", 6).unwrap();
    for _ in 0..2 {
        world.compare(&question("/e/*", times[0] - HOUR, world.time + HOUR, None, None));
    }
    let rows = answer(world.space(), &question("/e/fine", times[0] - HOUR, world.time + HOUR, None, None));
    assert_eq!(rows.len(), times.len());
    let stats = world.store().stats();
    let files = std::fs::read_dir(world.dir.path().join("results")).unwrap().count();
    assert!(stats.result_cache_pieces > 0 && files < 30, "{files} files of {} pieces", stats.result_cache_pieces);
}
