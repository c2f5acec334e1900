//! Deletions: exact, also in windows, newest readings and repeated readings; refused as a whole if the disk is full.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use support::{ENOSPC, Fault, FaultyDisk, Random, seed};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Value,
};
use wholegrain_store::{AppendOutcome, Deletion, RetentionRule, ScanPart, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const START: i64 = 20_000 * DAY;

fn config() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new("/store") }
}

fn schema() -> Schema {
    let sensors = vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("b", "1", "")];
    Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap()
}

/// Ten minutes of both sensors, one reading a second, from `second` after the start on.
fn payload(seq: u64, second: i64) -> Vec<u8> {
    let times: Vec<i64> = (second..second + 600).map(|second| START + second * SECOND).collect();
    let column = |factor: i64| {
        let values = (second..second + 600).map(|second| second * factor).collect();
        Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
    };
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema().hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times, columns: vec![column(1), column(-1)] })
}

/// Two hours in merged blocks with tiers, ten minutes in a separate block, ten in the journal.
fn filled(disk: &FaultyDisk) -> Store {
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    store.register_schema(&schema()).unwrap();
    for seq in 0..12 {
        store.append_blocking(payload(seq, seq as i64 * 600).into()).unwrap();
        if seq % 3 == 2 {
            store.seal().unwrap();
        }
    }
    store.maintain(START + 2 * DAY).unwrap();
    assert!(store.stats().tiers >= 3);
    store.append_blocking(payload(12, 12 * 600).into()).unwrap();
    store.seal().unwrap();
    store.append_blocking(payload(13, 13 * 600).into()).unwrap();
    store
}

fn deletion(pattern: &str, from: i64, to: i64) -> Deletion {
    Deletion { patterns: vec![Pattern::new(pattern).unwrap()], from: START + from, to: START + to }
}

type ValuesBySensor = BTreeMap<(String, i64), i64>;

fn rows(store: &Store) -> ValuesBySensor {
    let snapshot = store.snapshot();
    let mut rows = ValuesBySensor::new();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        for chunk in snapshot.scan(sensor.id, i64::MIN, i64::MAX).unwrap() {
            let chunk = chunk.unwrap();
            for (at, time) in chunk.times.iter().enumerate() {
                let Some(Value::Int(value)) = chunk.column.get(at) else { panic!() };
                rows.insert((sensor.path.to_string(), time - START), value);
            }
        }
    }
    rows
}

/// Sums of windows of the day from the tiers, as a query computes them.
fn sums(store: &Store, every: i64) -> ValuesBySensor {
    sums_of(store, every, (START, START + DAY))
}

fn sums_of(store: &Store, every: i64, (from, to): (i64, i64)) -> ValuesBySensor {
    let snapshot = store.snapshot();
    let mut sums = ValuesBySensor::new();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        let parts = support::windows(&snapshot, &sensor, (from, to), every).unwrap().parts;
        let mut add = |time: i64, value: Option<Value>| {
            let Some(Value::Int(value)) = value else { panic!() };
            *sums.entry((sensor.path.to_string(), (time - START) / every)).or_default() += value;
        };
        for part in parts {
            match part.unwrap() {
                ScanPart::Readings(chunk) => {
                    (0..chunk.times.len()).for_each(|at| add(chunk.times[at], chunk.column.get(at)))
                }
                ScanPart::Windows(windows) => {
                    (0..windows.len()).for_each(|at| add(windows.get(at).time, Some(windows.get(at).sum)))
                }
            }
        }
    }
    sums
}

/// The first few differences of two answers.
#[track_caller]
fn same(left: &ValuesBySensor, right: &ValuesBySensor, what: &str) {
    let keys = left.keys().chain(right.keys()).filter(|key| left.get(key) != right.get(key));
    let differ: Vec<_> = keys.take(4).map(|key| (key, left.get(key), right.get(key))).collect();
    assert!(differ.is_empty(), "{what}: {differ:?}");
}

#[track_caller]
fn sums_agree(store: &Store, rows: &ValuesBySensor) {
    for every in [10 * SECOND, 300 * SECOND, HOUR] {
        let mut expected = ValuesBySensor::new();
        for ((path, time), value) in rows {
            *expected.entry((path.clone(), time / every)).or_default() += value;
        }
        same(&sums(store, every), &expected, &format!("windows of {every}"));
    }
}

#[test]
fn exactly_the_range_goes_from_readings_and_windows_at_once_and_for_ever() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let before = rows(&store);
    assert_eq!(before.len(), 2 * 14 * 600);
    // Across merged, sealed and live readings; not at the edges of windows.
    let ranges =
        [("/n/a", 1234 * SECOND + 1, 1300 * SECOND), ("/n/*", 7000 * SECOND, 8000 * SECOND), ("/n/b", 0, SECOND)];
    let mut expected = before.clone();
    for (pattern, from, to) in ranges {
        let deletion = deletion(pattern, from, to);
        let chosen = &deletion.patterns[0];
        let goes = |key: &(String, i64)| chosen.matches(&key.0) && (from..to).contains(&key.1);
        let (count, sensors) =
            (expected.keys().filter(|key| goes(key)).count() as u64, if pattern == "/n/*" { 2 } else { 1 });
        let would = store.would_delete(&deletion).unwrap();
        assert_eq!((would.readings, would.sensors), (count, sensors), "{pattern}");
        same(&rows(&store), &expected, "asking changes nothing");
        let done = store.delete(&deletion).unwrap();
        assert_eq!((done.readings, done.sensors), (count, sensors), "{pattern}");
        expected.retain(|key, _| !goes(key));
        same(&rows(&store), &expected, "readings");
        sums_agree(&store, &expected);
        assert_eq!(store.would_delete(&deletion).unwrap().readings, 0);
    }
    // After a crash, before and after the files are written again.
    assert!(store.stats().deletion_files > 0);
    store.close().unwrap();
    let disk = disk.after_kill();
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    same(&rows(&store), &expected, "readings");
    sums_agree(&store, &expected);
    let bytes = store.stats().block_bytes;
    store.maintain(START + 3 * DAY).unwrap();
    let stats = store.stats();
    assert_eq!((stats.deletion_files, stats.block_rows), (0, expected.len() as u64));
    assert!(stats.block_bytes < bytes);
    same(&rows(&store), &expected, "readings");
    sums_agree(&store, &expected);
    // Everything, and nothing is left of it on the disk.
    store.delete(&deletion("/**", -DAY, DAY)).unwrap();
    assert_eq!(rows(&store), ValuesBySensor::new());
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!((store.stats().blocks, store.stats().tiers), (0, 0));
}

#[test]
fn what_is_sent_again_stays_gone_and_what_is_new_is_kept() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let all = deletion("/n/a", 0, DAY);
    store.delete(&all).unwrap();
    for seq in 0..14 {
        let again = store.append_blocking(payload(seq, seq as i64 * 600).into()).unwrap();
        assert_eq!(again, AppendOutcome::Duplicate);
    }
    assert!(rows(&store).keys().all(|(path, _)| path == "/n/b"));
    let ids: Vec<_> = store.sensors(&[Pattern::new("/n/*").unwrap()]).iter().map(|sensor| sensor.id).collect();
    let newest = store.newest(&ids);
    assert_eq!((newest[0], newest[1].unwrap().0), (None, START + (14 * 600 - 1) * SECOND));
    // A batch of its own number is new, also in the range.
    store.append_blocking(payload(99, 0).into()).unwrap();
    assert_eq!(rows(&store).keys().filter(|(path, _)| path == "/n/a").count(), 600);
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!(rows(&store).keys().filter(|(path, _)| path == "/n/a").count(), 600);
    assert_eq!(store.newest(&ids)[0].unwrap().0, START + 599 * SECOND);
}

#[test]
fn of_windows_that_outlived_their_readings_whole_ones_go() {
    let disk = FaultyDisk::default();
    let rule = RetentionRule {
        pattern: Pattern::new("/**").unwrap(),
        raw: Some(Interval::from_s(86_400)),
        tiers: vec![(Interval::from_s(3600), None), (Interval::from_s(300), None), (Interval::from_s(10), None)],
    };
    let config = || StoreConfig { retention: vec![rule.clone()], ..config() };
    let store = filled(&disk);
    let before = rows(&store);
    store.seal().unwrap();
    store.close().unwrap();
    drop(store);
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    store.maintain(START + 5 * DAY).unwrap();
    assert!(rows(&store).is_empty() && store.stats().blocks == 0);
    let deletion = deletion("/n/a", 605 * SECOND, 1195 * SECOND);
    let would = store.would_delete(&deletion).unwrap();
    assert!(would.windows > 0 && would.readings == 0, "{would:?}");
    store.delete(&deletion).unwrap();
    let expected = |every: i64, lo: i64, hi: i64| {
        let mut sums = ValuesBySensor::new();
        for ((path, time), value) in &before {
            if path != "/n/a" || !(lo..hi).contains(&(time / SECOND)) {
                *sums.entry((path.clone(), time / every)).or_default() += value;
            }
        }
        sums
    };
    for _ in 0..2 {
        same(&sums(&store, 10 * SECOND), &expected(10 * SECOND, 600, 1200), "windows");
        same(&sums(&store, 300 * SECOND), &expected(300 * SECOND, 600, 1200), "windows");
        same(&sums(&store, HOUR), &expected(HOUR, 0, 3600), "windows");
        store.maintain(START + 5 * DAY).unwrap();
        assert_eq!(store.stats().deletion_files, 0);
    }
}

/// Rules that keep the windows of matching sensors forever and their readings for an hour.
fn windows_only(pattern: &str) -> RetentionRule {
    let tiers = [3600, 300, 10].map(|seconds| (Interval::from_s(seconds), None)).to_vec();
    RetentionRule { pattern: Pattern::new(pattern).unwrap(), raw: Some(Interval::from_s(3600)), tiers }
}

#[test]
fn a_sensor_whose_readings_are_all_there_keeps_its_windows_where_others_have_lost_theirs() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    store.seal().unwrap();
    store.maintain(START + 2 * DAY).unwrap();
    let before = rows(&store);
    store.close().unwrap();
    drop(store);
    let config = StoreConfig { retention: vec![windows_only("/n/b")], ..config() };
    let (store, _) = Store::open_on(config, Arc::new(disk.clone())).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    assert!(rows(&store).keys().all(|(path, _)| path == "/n/a"), "the readings of b are gone");
    assert_eq!(store.stats().block_rows, 14 * 600, "and not only hidden");
    sums_agree(&store, &before);
    let range = (625 * SECOND, 645 * SECOND);
    let taken = |pattern: &str| {
        let deletion = deletion(pattern, range.0, range.1);
        assert_eq!(store.would_delete(&deletion).unwrap(), store.delete(&deletion).unwrap());
        store.would_delete(&deletion).unwrap()
    };
    let chosen = deletion("/n/a", range.0, range.1);
    let would = store.would_delete(&chosen).unwrap();
    assert_eq!((would.readings, would.windows, would.sensors), (20, 0, 1), "no window is lost");
    assert_eq!(taken("/n/a").readings, 0);
    let mut expected = before.clone();
    expected.retain(|(path, time), _| path != "/n/a" || !(range.0..range.1).contains(time));
    sums_agree(&store, &expected);
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!(store.stats().deletion_files, 0);
    sums_agree(&store, &expected);
    // Of the other one only windows are left, and what is touched of them goes as a whole.
    assert_eq!(taken("/n/b").windows, 0);
    for _ in 0..2 {
        for (every, lo, hi) in [(10 * SECOND, 620, 650), (300 * SECOND, 600, 900), (HOUR, 0, 3600)] {
            let mut sums_left = ValuesBySensor::new();
            let known = |path: &str, time: i64| path == "/n/a" || !(lo * SECOND..hi * SECOND).contains(&time);
            for ((path, time), value) in expected.iter().filter(|((path, time), _)| known(path, *time)) {
                *sums_left.entry((path.clone(), time / every)).or_default() += value;
            }
            same(&sums(&store, every), &sums_left, &format!("windows of {every}"));
        }
        store.maintain(START + 3 * DAY).unwrap();
        assert_eq!(store.stats().deletion_files, 0);
    }
}

#[test]
fn a_tier_shows_what_it_may_where_only_other_sensors_have_readings() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    store.seal().unwrap();
    store.maintain(START + 2 * DAY).unwrap();
    let before = rows(&store);
    store.close().unwrap();
    drop(store);
    let hours = |hours: u64| Some(Interval::from_s(hours * 3600));
    let tiers = [(3600, None), (300, hours(70)), (10, hours(1))];
    let tiers = tiers.map(|(seconds, age)| (Interval::from_s(seconds), age)).to_vec();
    let config = StoreConfig { retention: vec![RetentionRule { tiers, ..windows_only("/n/b") }], ..config() };
    let (store, _) = Store::open_on(config, Arc::new(disk.clone())).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    for (every, from) in [(300 * SECOND, 2 * HOUR), (HOUR, 0)] {
        let mut expected = ValuesBySensor::new();
        for ((path, time), value) in before.iter().filter(|((path, time), _)| path == "/n/a" || *time >= from) {
            *expected.entry((path.clone(), time / every)).or_default() += value;
        }
        same(&sums(&store, every), &expected, &format!("windows of {every}"));
    }
}

const SENSORS: usize = 4;
const RESOLUTIONS: [i64; 3] = [10 * SECOND, 300 * SECOND, HOUR];

/// A store with sensors whose readings retention removes at different times, and its expected answers.
struct DeletionModel {
    random: Random,
    disk: FaultyDisk,
    store: Store,
    config: StoreConfig,
    now: i64,
    ages: [i64; SENSORS],
    /// Readings of sensors before these may be gone.
    gone_before: [i64; SENSORS],
    /// Without deleted readings, and with those that retention removed; times since the start.
    readings: ValuesBySensor,
    /// Windows that lost a reading to a deletion, perhaps after retention had removed it: sensor, resolution, start.
    touched: BTreeSet<(usize, i64, i64)>,
    /// Whether readings were deleted after retention had removed some of them.
    trimmed: bool,
}

impl DeletionModel {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ages = [0; SENSORS].map(|_| (2 + random.below(40)) as i64 * HOUR);
        let rule = |(at, age): (usize, &i64)| RetentionRule {
            raw: Some(Interval::from_ns(age.unsigned_abs())),
            ..windows_only(&format!("/n/s{at}"))
        };
        let retention = ages.iter().enumerate().map(rule).collect();
        let config = StoreConfig { retention, ..config() };
        let disk = FaultyDisk::default();
        let (store, _) = Store::open_on(config.clone(), Arc::new(disk.clone())).unwrap();
        let (now, gone_before) = (START + 27 * HOUR, [i64::MIN; SENSORS]);
        let (readings, touched) = (ValuesBySensor::new(), BTreeSet::new());
        let mut world = Self { random, disk, store, config, now, ages, gone_before, readings, touched, trimmed: false };
        (0..SENSORS).for_each(|at| world.fill(at));
        world.maintain();
        world
    }

    /// A day of a sensor in a few batches, with holes.
    fn fill(&mut self, at: usize) {
        let sensor = SensorDef::gauge(format!("s{at}"), "1", "");
        let schema = Schema::new(SensorPath::new("/n").unwrap(), format!("g{at}"), vec![sensor]).unwrap();
        self.store.register_schema(&schema).unwrap();
        let mut second = self.random.below(7200) as i64;
        for seq in 0.. {
            let mut times = Vec::new();
            while times.len() < 700 && second < 86_400 {
                times.push(START + second * SECOND);
                second += 20 + if self.random.below(200) == 0 { self.random.below(6000) as i64 } else { 0 };
            }
            if times.is_empty() {
                return;
            }
            let values: Vec<i64> = times.iter().map(|_| self.random.below(1000) as i64 + 1).collect();
            let key = |time: &i64| (format!("/n/s{at}"), time - START);
            self.readings.extend(times.iter().map(key).zip(values.iter().copied()));
            let header = BatchHeader {
                agent: "n".into(),
                boot: 1 + at as u64,
                seq,
                schema: schema.hash(),
                interval_ns: 20 * SECOND as u64,
            };
            let columns = vec![Column { values: ColumnValues::Int(values), gaps: Gaps::default() }];
            self.store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
            if self.random.below(3) == 0 {
                self.store.seal().unwrap();
            }
        }
    }

    fn maintain(&mut self) {
        self.store.seal().unwrap();
        self.store.maintain(self.now).unwrap();
        for (gone_before, age) in self.gone_before.iter_mut().zip(self.ages) {
            // As `Policy::raw_cut` says.
            let cut = (self.now - age).div_euclid(HOUR) * HOUR;
            *gone_before = (*gone_before).max(cut.min((self.now - 2 * HOUR).div_euclid(DAY) * DAY));
        }
    }

    fn reopen(&mut self) {
        self.store.close().unwrap();
        self.disk = self.disk.after_kill();
        let (store, _) = Store::open_on(self.config.clone(), Arc::new(self.disk.clone())).unwrap();
        self.store = store;
    }

    fn delete(&mut self) {
        let rows = self.store.stats().block_rows;
        self.trimmed |= 0 < rows && rows < self.readings.len() as u64;
        let from = self.random.below(86_400) as i64 * SECOND;
        let to = from + [20 * SECOND, 400 * SECOND, 3 * HOUR][self.random.below(3) as usize];
        let at = self.random.below(SENSORS as u64 + 1) as usize;
        let pattern = if at < SENSORS { format!("/n/s{at}") } else { "/n/*".to_owned() };
        let deletion = deletion(&pattern, from, to);
        self.store.delete(&deletion).unwrap();
        self.readings.retain(|(path, time), _| !deletion.patterns[0].matches(path) || !(from..to).contains(time));
        for sensor in (0..SENSORS).filter(|sensor| at == SENSORS || *sensor == at) {
            for resolution in RESOLUTIONS {
                let starts = (from.div_euclid(resolution)..=(to - 1).div_euclid(resolution)).map(|at| at * resolution);
                let gone = starts.filter(|start| START + start < self.gone_before[sensor]);
                self.touched.extend(gone.map(|start| (sensor, resolution, start)));
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(6) {
            0..=2 => self.delete(),
            3 => self.maintain(),
            4 => {
                self.now += self.random.below(12) as i64 * HOUR;
                self.maintain();
            }
            _ => self.reopen(),
        }
    }

    /// Windows of the day, or of a part of it, are those of the readings; those whose readings are gone are what they were, unless a deletion touched them.
    fn check(&mut self, what: &str) {
        for every in RESOLUTIONS {
            let (from, to) = match self.random.below(2) {
                0 => (0, DAY),
                _ => {
                    let from = self.random.below(86_000) as i64 * SECOND;
                    (from, from + 1 + self.random.below(DAY.unsigned_abs()) as i64)
                }
            };
            let found = sums_of(&self.store, every, (START + from, START + to));
            let mut exact = ValuesBySensor::new();
            for ((path, time), value) in self.readings.iter().filter(|((_, time), _)| (from..to).contains(time)) {
                *exact.entry((path.clone(), time.div_euclid(every))).or_default() += value;
            }
            for key in found.keys().chain(exact.keys()) {
                let sensor = (0..SENSORS).find(|at| key.0 == format!("/n/s{at}")).unwrap();
                let start = key.1 * every;
                let gone = START + start < self.gone_before[sensor];
                let cut = start < from || start + every > to;
                let may_be_absent = gone && (cut || self.touched.contains(&(sensor, every, start)));
                let is_right = found.get(key) == exact.get(key) || (may_be_absent && !found.contains_key(key));
                let found = found.get(key);
                assert!(is_right, "{what}, {key:?} of {every} in {from}..{to}: {found:?}, not {:?}", exact.get(key));
            }
        }
        for (key, value) in rows(&self.store) {
            assert_eq!(self.readings.get(&key), Some(&value), "{what}, {key:?}");
        }
    }
}

#[test]
fn windows_are_those_of_the_readings_whatever_retention_took_of_other_sensors() {
    let seed = seed();
    let (mut trimmed, mut round) = (0, 0);
    while round < 6 || trimmed == 0 {
        assert!(round < 60, "in no round retention left a part of a block");
        round += 1;
        let mut world = DeletionModel::new(seed.wrapping_add(round));
        world.check("at first");
        for step in 0..12 {
            world.step();
            world.check(&format!("round {round}, step {step}"));
        }
        world.maintain();
        world.check(&format!("round {round}, at last"));
        trimmed += usize::from(world.trimmed);
    }
}

#[test]
fn on_a_full_disk_nothing_is_deleted_and_all_goes_on() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let before = rows(&store);
    disk.plan(0, Fault::Errors(ENOSPC, u32::MAX));
    let error = store.delete(&deletion("/n/a", 0, HOUR)).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    disk.calm();
    same(&rows(&store), &before, "readings");
    store.delete(&deletion("/n/a", 0, HOUR)).unwrap();
    disk.plan(0, Fault::Errors(ENOSPC, u32::MAX));
    store.maintain(START + 3 * DAY).unwrap_err();
    let hidden = rows(&store);
    assert_eq!(hidden.len(), before.len() - 3600);
    disk.calm();
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!((rows(&store), store.stats().deletion_files), (hidden, 0));
}

#[test]
fn rules_set_at_run_time_come_first_and_last() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let pattern = |text: &str| Pattern::new(text).unwrap();
    let day = |days: u64| Some(Interval::from_s(days * 86_400));
    let rule = RetentionRule { pattern: pattern("/n/b"), raw: day(1), tiers: Vec::new() };
    let would = store.would_expire(&rule, START + 3 * DAY).unwrap();
    assert_eq!((would.sensors, would.readings), (1, 14 * 600));
    store.set_retention(&pattern("/n/*"), day(1), "ada", 5).unwrap();
    store.set_retention(&pattern("/n/a"), None, "eve", 6).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    assert!(rows(&store).keys().all(|(path, _)| path == "/n/a"));
    store.close().unwrap();
    drop(store);
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    let rules = store.retention_rules();
    let reported: Vec<_> =
        rules.iter().map(|rule| (rule.rule.pattern.as_str(), rule.rule.raw, rule.set.clone())).collect();
    assert_eq!(reported, [("/n/a", None, Some(("eve".into(), 6))), ("/n/*", day(1), Some(("ada".into(), 5)))]);
    assert!(store.unset_retention("/n/a", "eve", 7).unwrap() && !store.unset_retention("/n/a", "eve", 7).unwrap());
    store.maintain(START + 3 * DAY).unwrap();
    assert!(rows(&store).is_empty());
    assert!(store.set_retention(&pattern("/n/a"), Some(Interval::from_s(0)), "eve", 8).is_err());
}
