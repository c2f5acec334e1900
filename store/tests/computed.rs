//! The result cache: after late readings, drops and crashes, a cached result equals the result computed from the present readings.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use support::{EIO, Fault, FaultyDisk, Random, seed};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Pattern, Schema, SensorDef, SensorPath, Value,
    ValueType,
};
use wholegrain_store::{
    CacheKey, CachedResults, Reading, ResultCache, RetentionRule, SchemalessSensor, SensorId, Snapshot, Store,
    StoreConfig,
};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;
const PIECE: i64 = 10 * SECOND;
const ROUNDS: u64 = 8;

fn schema(agent: &str) -> Schema {
    let sensors = vec![SensorDef::gauge("g/x", "1", ""), SensorDef::gauge("g/y", "1", "")];
    Schema::new(SensorPath::new(format!("/{agent}")).unwrap(), "g", sensors).unwrap()
}

fn config(bytes: u64, retention: bool) -> StoreConfig {
    let rule = |pattern: &str, seconds| RetentionRule {
        pattern: Pattern::new(pattern).unwrap(),
        raw: Some(Interval::from_s(seconds)),
        tiers: Vec::new(),
    };
    StoreConfig {
        background: false,
        merge_fan_in: 3,
        tiers: vec![Interval::from_s(10)],
        result_cache_bytes: ByteSize(bytes),
        retention: if retention { vec![rule("/a/g/y", 200)] } else { Vec::new() },
        retention_age: retention.then(|| Interval::from_s(600)),
        ..StoreConfig::new("/store")
    }
}

fn payload(agent: &str, seq: u64, times: &[i64], value: i64) -> Vec<u8> {
    let column = |sensor: i64| Column {
        values: ColumnValues::Int(times.iter().map(|time| value * 10 + sensor + time % 7).collect()),
        gaps: Gaps::default(),
    };
    let header =
        BatchHeader { agent: agent.into(), boot: 1, seq, schema: schema(agent).hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times: times.to_vec(), columns: vec![column(0), column(1)] })
}

/// The content of a piece in these tests: the readings that it is computed from, as text.
fn computed(snapshot: &Snapshot, cache_key: &CacheKey, number: i64) -> Option<Vec<u8>> {
    let (from, to) = (number * PIECE - cache_key.back_ns, (number + 1) * PIECE + cache_key.ahead_ns);
    let mut text = String::new();
    for id in &cache_key.operands {
        for chunk in snapshot.scan(*id, from, to).ok()? {
            let chunk = chunk.ok()?;
            for (at, time) in chunk.times.iter().enumerate() {
                text.push_str(&format!("{} {time} {:?}\n", id.0, chunk.column.get(at)));
            }
        }
    }
    Some(text.into_bytes())
}

fn cache_key(key: u8, mut operands: Vec<SensorId>) -> CacheKey {
    operands.sort_unstable();
    CacheKey { key: [key; 16], operands, piece_ns: PIECE, back_ns: 3 * SECOND, ahead_ns: 2 * SECOND }
}

struct CacheModel {
    random: Random,
    disk: FaultyDisk,
    store: Option<Store>,
    held: Vec<Snapshot>,
    time: i64,
    seq: u64,
    retention: bool,
    hits: u64,
}

impl CacheModel {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let retention = random.chance(50);
        let (disk, held) = (FaultyDisk::default(), Vec::new());
        let mut world = Self { random, disk, store: None, held, time: START, seq: 0, retention, hits: 0 };
        world.reopen();
        for agent in ["a", "b"] {
            world.store().register_schema(&schema(agent)).unwrap();
        }
        let sensor = SchemalessSensor {
            path: SensorPath::new("/l/p").unwrap(),
            unit: "1".to_owned(),
            kind: Kind::Gauge,
            value_type: ValueType::Float,
            scale: 1.0,
            description: String::new(),
        };
        world.store().register_sensors("gateway", &[sensor]).unwrap();
        world
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.held.clear();
        self.store = None;
        for attempt in 0.. {
            if attempt < 3 && self.random.chance(30) {
                self.disk.plan(self.random.below(30), Fault::Crash);
            }
            let bytes = if self.random.chance(70) { 1 << 20 } else { 20_000 };
            match Store::open_on(config(bytes, self.retention), Arc::new(self.disk.clone())) {
                Ok((store, report)) => {
                    assert!(report.foreign_files.is_empty() && report.damaged_blocks.is_empty(), "{report:?}");
                    self.disk.calm();
                    if !self.disk.crashed() {
                        self.store = Some(store);
                        return;
                    }
                }
                Err(error) => assert!(self.disk.crashed(), "cannot open: {error}"),
            }
            self.disk = self.stopped();
        }
    }

    fn stopped(&mut self) -> FaultyDisk {
        if self.random.chance(30) { self.disk.after_kill() } else { self.disk.after_crash(&mut self.random) }
    }

    fn id(&self, path: &str) -> SensorId {
        self.store().sensor_id(path).unwrap()
    }

    fn cache_keys(&self) -> Vec<CacheKey> {
        let (ax, ay, by, p) = (self.id("/a/g/x"), self.id("/a/g/y"), self.id("/b/g/y"), self.id("/l/p"));
        vec![
            cache_key(1, vec![ax]),
            cache_key(2, vec![ay, by]),
            cache_key(3, vec![p]),
            cache_key(4, vec![ax, ay, by, p]),
        ]
    }

    /// A time to append at: after all readings, or some time before their end.
    fn when(&mut self) -> i64 {
        if self.random.chance(35) {
            return START + self.random.below((self.time - START).max(1) as u64) as i64;
        }
        self.time += SECOND / 2 + self.random.below(4 * SECOND as u64) as i64;
        self.time
    }

    fn append(&mut self) {
        let first = self.when();
        if self.random.chance(30) {
            let sensor = self.id("/l/p");
            let value = Value::Float(self.random.below(100) as f64);
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let done = Box::new(move |result| drop(sender.send(result)));
            self.store().append_readings("gateway", vec![Reading { sensor, time: first, value }], done);
            let _ = receiver.recv().unwrap();
            return;
        }
        self.seq += 1;
        let agent = if self.random.chance(50) { "a" } else { "b" };
        let times: Vec<i64> = (0..1 + self.random.below(4) as i64).map(|at| first + at * SECOND / 3).collect();
        let _ = self.store().append_blocking(payload(agent, self.seq, &times, self.seq as i64).into());
    }

    fn piece(&mut self) -> (CacheKey, i64) {
        let cache_keys = self.cache_keys();
        let cache_key = cache_keys[self.random.below(cache_keys.len() as u64) as usize].clone();
        let last = (self.time - START) / PIECE;
        (cache_key, START / PIECE + last - self.random.below(last.min(30) as u64 + 1) as i64)
    }

    fn keep(&mut self) {
        let (cache_key, number) = self.piece();
        let fresh = self.store().snapshot();
        let old = self.random.chance(30) && !self.held.is_empty();
        let snapshot = if old { &self.held[self.random.below(self.held.len() as u64) as usize] } else { &fresh };
        let Some(content) = computed(snapshot, &cache_key, number) else { return };
        let kept = self.store().result_cache().unwrap().of(cache_key, snapshot.version());
        if self.random.chance(30) {
            // Something comes between the computation and the keeping.
            self.append();
        }
        kept.put(number, &content);
    }

    fn ask(&mut self) {
        let (cache_key, number) = self.piece();
        let snapshot = self.store().snapshot();
        let found = self.store().result_cache().unwrap().of(cache_key.clone(), snapshot.version()).get(number);
        let (Some(found), Some(expected)) = (found, computed(&snapshot, &cache_key, number)) else { return };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&found), text(&expected), "kept piece {number} of {:?} is out of date", cache_key.operands);
        self.hits += 1;
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.append(),
            35..60 => self.keep(),
            60..85 => self.ask(),
            85..90 => drop(self.store().seal()),
            90..93 => drop(self.store().maintain(self.time)),
            93..95 => self.disk.plan(self.random.below(10), Fault::Errors(EIO, 1 + self.random.below(3) as u32)),
            95..97 => self.held.push(self.store().snapshot()),
            97..98 => self.time += 40 * SECOND,
            _ => {
                self.disk.calm();
                self.held.clear();
                self.store().close().unwrap();
                self.reopen();
            }
        }
    }

    /// Every piece in the cache.
    fn verify(&mut self) {
        let snapshot = self.store().snapshot();
        for cache_key in self.cache_keys() {
            let kept = self.store().result_cache().unwrap().of(cache_key.clone(), snapshot.version());
            for number in START / PIECE..=self.time / PIECE {
                if let (Some(found), Some(expected)) = (kept.get(number), computed(&snapshot, &cache_key, number)) {
                    assert!(found == expected, "piece {number} of {:?} is out of date", cache_key.operands);
                    self.hits += 1;
                }
            }
        }
    }
}

fn round(seed: u64) -> u64 {
    let mut world = CacheModel::new(seed);
    for _ in 0..4 {
        if world.random.chance(70) {
            world.disk.plan(world.random.below(400), Fault::Crash);
        }
        for _ in 0..80 + world.random.below(150) {
            if world.disk.crashed() {
                break;
            }
            world.step();
        }
        if world.disk.crashed() || world.random.chance(60) {
            world.disk.crash();
            world.held.clear();
            world.store = None;
            world.disk = world.stopped();
            world.reopen();
        }
        world.disk.calm();
        world.verify();
    }
    world.hits
}

#[test]
fn what_is_kept_is_never_out_of_date() {
    let first = seed();
    let mut hits = 0;
    for seed in first..first + ROUNDS {
        match std::panic::catch_unwind(|| round(seed)) {
            Ok(found) => hits += found,
            Err(panic) => {
                println!("failed with WHOLEGRAIN_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{hits} kept pieces compared");
    assert!(hits > ROUNDS * 10, "only {hits} kept pieces were there to compare");
}

fn open(dir: &Path, bytes: u64) -> Store {
    let config = StoreConfig { dir: dir.to_owned(), ..config(bytes, false) };
    let (store, _) = Store::open(config).unwrap();
    store.register_schema(&schema("a")).unwrap();
    store
}

fn append(store: &Store, seq: u64, second: i64) {
    store.append_blocking(payload("a", seq, &[START + second * SECOND], seq as i64).into()).unwrap();
}

fn kept(store: &Store) -> (CachedResults, CacheKey) {
    let cache_key = cache_key(1, vec![store.sensor_id("/a/g/x").unwrap()]);
    let derived: ResultCache = store.result_cache().unwrap();
    (derived.of(cache_key.clone(), store.snapshot().version()), cache_key)
}

#[test]
fn pieces_outlive_a_restart_and_go_with_what_comes_late() {
    let dir = tempfile::tempdir().unwrap();
    let number = START / PIECE;
    let store = open(dir.path(), 1 << 20);
    (0..60).for_each(|second| append(&store, second as u64 + 1, second));
    kept(&store).0.put(number, b"first");
    kept(&store).0.put(number + 3, b"fourth");
    assert_eq!(kept(&store).0.get(number).unwrap(), b"first");
    store.close().unwrap();
    drop(store);
    let store = open(dir.path(), 1 << 20);
    // The journal is as it was: what is in it may have come after what is kept.
    assert_eq!(kept(&store).0.get(number), None);
    kept(&store).0.put(number, b"first");
    kept(&store).0.put(number + 3, b"fourth");
    store.seal().unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(dir.path(), 1 << 20);
    assert_eq!(kept(&store).0.get(number).unwrap(), b"first");
    let (before, _) = kept(&store);
    append(&store, 100, 4);
    assert_eq!(kept(&store).0.get(number), None, "a reading came late");
    assert_eq!(kept(&store).0.get(number + 3).unwrap(), b"fourth");
    before.put(number, b"from a snapshot of before");
    drop(before);
    assert_eq!(kept(&store).0.get(number), None);
    // Of another sensor, or after what is kept: nothing changes.
    store.register_schema(&schema("b")).unwrap();
    store.append_blocking(payload("b", 1, &[START + 35 * SECOND], 1).into()).unwrap();
    append(&store, 101, 70);
    assert_eq!(kept(&store).0.get(number + 3).unwrap(), b"fourth");
    assert_eq!(store.stats().result_cache_invalidated, 1);
    store.seal().unwrap();
    store.close().unwrap();
    drop(store);
    // Where nothing is kept, what was kept goes.
    let store = open(dir.path(), 0);
    assert!(store.result_cache().is_none());
    store.close().unwrap();
    drop(store);
    assert_eq!(std::fs::read_dir(dir.path().join("results")).unwrap().count(), 0);
}

#[test]
fn a_damaged_piece_is_not_given_out_and_the_bound_holds() {
    let dir = tempfile::tempdir().unwrap();
    let number = START / PIECE;
    let store = open(dir.path(), 24_000);
    (0..60).for_each(|second| append(&store, second as u64 + 1, second));
    store.seal().unwrap();
    kept(&store).0.put(number, &[7; 2_000]);
    let piece = |dir: &Path| {
        let found = std::fs::read_dir(dir.join("results")).unwrap().map(|entry| entry.unwrap().path());
        found.into_iter().find(|path| path.extension().is_some_and(|end| end == "piece")).unwrap()
    };
    let mut path = piece(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    for at in [0, 9, 25, 33, 100, bytes.len() - 1] {
        bytes[at] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(kept(&store).0.get(number), None, "byte {at}");
        kept(&store).0.put(number, &[7; 2_000]);
        path = piece(dir.path());
        bytes = std::fs::read(&path).unwrap();
    }
    for more in 1..5 {
        kept(&store).0.get(number);
        kept(&store).0.put(number + more, &[7; 2_000]);
    }
    let stats = store.stats();
    assert!(stats.result_cache_bytes <= 24_000 && stats.result_cache_pieces == 4, "{stats:?}");
    assert!(kept(&store).0.get(number).is_some(), "it was used last");
    assert!(kept(&store).0.get(number + 1).is_none(), "it was used longest ago");
    let on_disk: u64 = std::fs::read_dir(dir.path().join("results"))
        .unwrap()
        // Whole blocks, an inode and a name each.
        .map(|entry| entry.unwrap().metadata().unwrap().len().next_multiple_of(4096) + 512)
        .sum();
    assert_eq!(on_disk, stats.result_cache_bytes);
}

/// A server listens as soon as its store is open: the opening must not wait for a directory with many files.
#[test]
fn an_opening_does_not_wait_for_the_kept_results_and_what_comes_meanwhile_counts() {
    let dir = tempfile::tempdir().unwrap();
    let number = START / PIECE;
    let store = open(dir.path(), 1 << 20);
    (0..60).for_each(|second| append(&store, second as u64 + 1, second));
    store.seal().unwrap();
    kept(&store).0.put(number, b"first");
    kept(&store).0.put(number + 3, b"fourth");
    store.close().unwrap();
    drop(store);
    // Reading this file's head takes as long as nobody writes into it.
    let stuck = dir.path().join(format!("results/{:032x}.about", 99));
    assert!(std::process::Command::new("mkfifo").arg(&stuck).status().unwrap().success());
    let config = StoreConfig { background: true, ..config(1 << 20, false) };
    let store = Store::open(StoreConfig { dir: dir.path().to_owned(), ..config }).unwrap().0;
    assert_eq!((kept(&store).0.get(number), store.stats().result_cache_pieces), (None, 0), "not looked for yet");
    append(&store, 100, 4);
    std::fs::OpenOptions::new().write(true).open(&stuck).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while kept(&store).0.get(number + 3).is_none() {
        assert!(std::time::Instant::now() < deadline, "what is kept is never found");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(kept(&store).0.get(number), None, "a reading came late");
}

#[test]
fn while_readings_come_late_nobody_is_given_what_lacks_one_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 20);
    append(&store, 1, 0);
    append(&store, 2, 500);
    let number = START / PIECE;
    let (over, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut hits = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 3..400u64 {
                // Within the piece, each at a time of its own.
                let time = START + SECOND + seq as i64 * SECOND / 100;
                store.append_blocking(payload("a", seq, &[time], 1).into()).unwrap();
                acknowledged.store(seq - 2, SeqCst);
            }
            over.store(true, SeqCst);
        });
        while !over.load(SeqCst) {
            let snapshot = store.snapshot();
            let (_, cache_key) = kept(&store);
            let of = store.result_cache().unwrap().of(cache_key.clone(), snapshot.version());
            of.put(number, &computed(&snapshot, &cache_key, number).unwrap());
            for _ in 0..3 {
                let before = acknowledged.load(SeqCst);
                let Some(found) = kept(&store).0.get(number) else { continue };
                let rows = found.iter().filter(|byte| **byte == b'\n').count() as u64;
                // One was there at first.
                assert!(rows > before, "{before} were acknowledged, {rows} readings are in what is kept");
                hits += 1;
            }
        }
    });
    println!("{hits} kept pieces looked at");
}
