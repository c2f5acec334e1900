//! The store on the real file system, and on one that fills up: one test for each guarantee.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{ENOSPC, Fault, FaultyDisk};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Value,
};
use wholegrain_store::{AppendOutcome, LiveItem, SensorId, Snapshot, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

/// Bytes before a segment's first record.
const HEADER_BYTES: usize = 68;
const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn schema(group: &str, sensors: Vec<SensorDef>) -> Schema {
    Schema::new(SensorPath::new("/n1").unwrap(), group, sensors).unwrap()
}

fn one(name: &str) -> Schema {
    schema("g", vec![SensorDef::gauge(name, "1", "")])
}

fn payload(schema: &Schema, seq: u64, times: &[i64], value: impl Fn(usize, usize) -> Option<f64>) -> Vec<u8> {
    let column = |sensor: usize| {
        let mut gaps = Gaps::default();
        let raw: Vec<f64> = (0..times.len())
            .map(|i| {
                value(sensor, i).unwrap_or_else(|| {
                    gaps.set(i, times.len());
                    0.0
                })
            })
            .collect();
        let values = match schema.sensors()[sensor].value_type {
            wholegrain_model::ValueType::Int => ColumnValues::Int(raw.iter().map(|v| *v as i64).collect()),
            wholegrain_model::ValueType::Float => ColumnValues::Float(raw),
        };
        Column { values, gaps }
    };
    let columns = (0..schema.len()).map(column).collect();
    let header =
        BatchHeader { agent: "n1".to_owned(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times: times.to_vec(), columns })
}

/// Ten seconds of whole-second readings from `START + from` seconds on; the value is the second.
fn ten(schema: &Schema, seq: u64, from: i64) -> Vec<u8> {
    let times: Vec<i64> = (from..from + 10).map(|s| START + s * SECOND).collect();
    payload(schema, seq, &times, |_, i| Some((from + i as i64) as f64))
}

fn manual(dir: impl AsRef<Path>) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir.as_ref()) }
}

fn open(config: StoreConfig) -> Store {
    Store::open(config).unwrap().0
}

fn rows(snapshot: &Snapshot, id: SensorId, from: i64, to: i64) -> Vec<(i64, Option<Value>)> {
    let mut rows = Vec::new();
    for chunk in snapshot.scan(id, from, to).unwrap() {
        let chunk = chunk.unwrap();
        rows.extend(chunk.times.iter().enumerate().map(|(i, time)| (*time, chunk.column.get(i))));
    }
    rows
}

fn all(store: &Store, path: &str) -> Vec<(i64, Option<Value>)> {
    let id = store.sensors(&[Pattern::new(path).unwrap()])[0].id;
    rows(&store.snapshot(), id, i64::MIN, i64::MAX)
}

fn seq_of(item: &LiveItem) -> u64 {
    match item {
        LiveItem::Batch(batch) => batch.seq,
        LiveItem::Readings(readings) => panic!("{readings:?}"),
    }
}

fn seconds(rows: &[(i64, Option<Value>)]) -> Vec<i64> {
    rows.iter().map(|(time, _)| (time - START) / SECOND).collect()
}

#[test]
fn the_whole_life_of_a_reading() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = schema(
        "g",
        vec![SensorDef::gauge("x", "By", "An x.").scaled(1024.0), SensorDef::counter("c/y", "s", "").float()],
    );
    let first = ten(&schema, 1, 0);
    assert!(
        matches!(store.append_blocking(first.clone().into()), Err(StoreError::UnknownSchema(hash)) if hash == schema.hash())
    );
    store.register_schema(&schema).unwrap();
    store.register_schema(&schema).unwrap();
    let live = store.subscribe(4);
    assert_eq!(store.append_blocking(first.clone().into()).unwrap(), AppendOutcome::Stored);
    assert_eq!(store.append_blocking(first.into()).unwrap(), AppendOutcome::Duplicate);
    assert_eq!(live.recv().unwrap().iter().map(seq_of).collect::<Vec<_>>(), [1]);
    assert!(live.try_recv().is_err(), "a duplicate is not news");
    let info = &store.sensors(&[Pattern::new("/n1/x").unwrap()])[0];
    assert_eq!((&*info.path, info.unit.as_str(), info.scale, &*info.agent), ("/n1/x", "By", 1024.0, "n1"));
    assert_eq!((info.interval_ns, info.last_time), (SECOND as u64, Some(START + 9 * SECOND)));
    let ids: Vec<SensorId> = store.sensors(&[Pattern::new("/**").unwrap()]).iter().map(|info| info.id).collect();
    let newest =
        vec![Some((START + 9 * SECOND, Some(Value::Float(9.0)))), Some((START + 9 * SECOND, Some(Value::Int(9))))];
    assert_eq!(store.newest(&ids), newest);
    let before = all(&store, "/n1/x");
    assert_eq!(seconds(&before), (0..10).collect::<Vec<_>>());
    store.seal().unwrap();
    assert_eq!(store.stats().blocks, 2, "integers and floats");
    assert_eq!(all(&store, "/n1/x"), before);
    let id = info.id;
    let part = rows(&store.snapshot(), id, START + 3 * SECOND, START + 5 * SECOND);
    assert_eq!(seconds(&part), [3, 4], "from is in, to is out");
    store.close().unwrap();
    assert!(matches!(store.append_blocking(ten(&schema, 2, 10).into()), Err(StoreError::Closed)));
    drop(store);
    let (store, report) = Store::open(manual(dir.path())).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(all(&store, "/n1/x"), before);
    assert_eq!(store.newest(&ids), newest, "from the blocks");
    store.append_blocking(ten(&schema, 9, -100).into()).unwrap();
    assert_eq!(store.newest(&ids), newest, "an old batch that comes late is not the newest");
    assert_eq!(store.sensors(&[Pattern::new("/n1/x").unwrap()])[0].last_time, Some(START + 9 * SECOND));
    assert_eq!(store.append_blocking(ten(&schema, 1, 0).into()).unwrap(), AppendOutcome::Duplicate);
}

#[test]
fn background_threads_seal_and_merge_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { seal_after: Interval::from_ms(1), merge_fan_in: 2, ..StoreConfig::new(dir.path()) };
    let store = open(config);
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seq = 0;
    while store.stats().merges == 0 {
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        seq += 1;
        store.append_blocking(ten(&schema, seq, seq as i64 * 10).into()).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(all(&store, "/n1/x").len() as u64, seq * 10);
    store.close().unwrap();
}

#[test]
fn out_of_order_and_twice_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let at = |s: i64| START + s * SECOND;
    let append = |seq, times: &[i64], value: f64| {
        store.append_blocking(payload(&schema, seq, times, |_, _| Some(value)).into()).unwrap()
    };
    append(1, &[at(5), at(3), at(4)], 1.0);
    append(2, &[at(1), at(4)], 2.0);
    let expected = vec![
        (at(1), Some(Value::Int(2))),
        (at(3), Some(Value::Int(1))),
        (at(4), Some(Value::Int(2))),
        (at(5), Some(Value::Int(1))),
    ];
    assert_eq!(all(&store, "/n1/x"), expected, "live");
    assert_eq!(store.newest(&[SensorId(0)]), [Some((at(5), Some(Value::Int(1))))]);
    store.seal().unwrap();
    assert_eq!(all(&store, "/n1/x"), expected, "sealed");
    append(3, &[at(5), at(2)], 3.0);
    let expected = vec![
        (at(1), Some(Value::Int(2))),
        (at(2), Some(Value::Int(3))),
        (at(3), Some(Value::Int(1))),
        (at(4), Some(Value::Int(2))),
        (at(5), Some(Value::Int(3))),
    ];
    assert_eq!(all(&store, "/n1/x"), expected, "block and live");
    store.seal().unwrap();
    assert_eq!(all(&store, "/n1/x"), expected, "two blocks");
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!(store.stats().blocks, 1);
    assert_eq!(all(&store, "/n1/x"), expected, "merged");
    assert_eq!(store.stats().block_rows, 5);
}

#[test]
fn gaps_stay_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = schema(
        "g",
        vec![SensorDef::gauge("i", "1", ""), SensorDef::gauge("f", "1", "").float(), SensorDef::gauge("none", "1", "")],
    );
    store.register_schema(&schema).unwrap();
    let times: Vec<i64> = (0..20_000).map(|i| START + i * SECOND).collect();
    let value = |sensor: usize, i: usize| (sensor < 2 && !(i / 100).is_multiple_of(3)).then_some(i as f64);
    store.append_blocking(payload(&schema, 1, &times, value).into()).unwrap();
    let check = |what: &str| {
        for (sensor, path) in ["/n1/i", "/n1/f", "/n1/none"].iter().enumerate() {
            let rows = all(&store, path);
            assert_eq!(rows.len(), times.len(), "{what} {path}");
            for (i, (time, got)) in rows.iter().enumerate() {
                assert_eq!((*time, got.map(Value::as_f64)), (times[i], value(sensor, i)), "{what} {path} {i}");
            }
        }
    };
    check("live");
    store.seal().unwrap();
    check("sealed");
    store.append_blocking(payload(&schema, 2, &[START - SECOND], |_, _| None).into()).unwrap();
    store.seal().unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    let rows = all(&store, "/n1/i");
    assert_eq!((rows.len(), rows[0]), (20_001, (START - SECOND, None)));
}

#[test]
fn a_sensor_that_changes_its_type_keeps_its_number_and_both_kinds_of_value() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let (old, new) =
        (one("x"), schema("g", vec![SensorDef::gauge("y", "1", ""), SensorDef::gauge("x", "m", "").float()]));
    store.register_schema(&old).unwrap();
    store.append_blocking(ten(&old, 1, 0).into()).unwrap();
    let id = store.sensors(&[Pattern::new("/n1/x").unwrap()])[0].id;
    store.register_schema(&new).unwrap();
    store.append_blocking(ten(&new, 2, 10).into()).unwrap();
    store.append_blocking(ten(&old, 3, 20).into()).unwrap();
    let info = &store.sensors(&[Pattern::new("/n1/x").unwrap()])[0];
    assert_eq!((info.id, info.unit.as_str()), (id, "m"), "the latest definition counts");
    let expected: Vec<(i64, Option<Value>)> = (0..30)
        .map(|s| (START + s * SECOND, Some(if (10..20).contains(&s) { Value::Float(s as f64) } else { Value::Int(s) })))
        .collect();
    assert_eq!(all(&store, "/n1/x"), expected);
    store.seal().unwrap();
    assert_eq!(all(&store, "/n1/x"), expected);
    store.register_schema(&old).unwrap();
    assert_eq!(store.sensors(&[Pattern::new("/n1/x").unwrap()])[0].unit, "1", "announced again, it defines again");
    drop(store);
    let store = open(manual(dir.path()));
    assert_eq!(store.sensors(&[Pattern::new("/n1/x").unwrap()])[0].unit, "1");
    assert_eq!(all(&store, "/n1/x"), expected);
}

#[test]
fn merging_changes_nothing_but_the_number_of_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(StoreConfig { merge_fan_in: 4, ..manual(dir.path()) });
    let schema = schema("g", (0..30).map(|i| SensorDef::gauge(format!("s{i}"), "1", "")).collect());
    store.register_schema(&schema).unwrap();
    for seq in 0..24 {
        // The last of each four comes late.
        let from = if seq % 4 == 3 { 500 + seq * 5 } else { seq * 700 };
        let times: Vec<i64> = (from..from + 700).map(|s| START + s * SECOND).collect();
        let value =
            |sensor: usize, i: usize| (i % 11 != sensor % 11).then_some((seq * 1_000_000 + (sensor * i) as i64) as f64);
        store.append_blocking(payload(&schema, seq as u64 + 1, &times, value).into()).unwrap();
        store.seal().unwrap();
    }
    let paths: Vec<String> = (0..30).map(|i| format!("/n1/s{i}")).collect();
    let before: Vec<_> = paths.iter().map(|path| all(&store, path)).collect();
    let old = store.snapshot();
    store.maintain(START + DAY / 2).unwrap();
    assert!((2..=8).contains(&store.stats().blocks), "{:?}", store.stats());
    assert_eq!(paths.iter().map(|path| all(&store, path)).collect::<Vec<_>>(), before);
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!(store.stats().blocks, 1);
    assert_eq!(paths.iter().map(|path| all(&store, path)).collect::<Vec<_>>(), before);
    let id = store.sensors(&[Pattern::new("/n1/s7").unwrap()])[0].id;
    assert_eq!(rows(&old, id, i64::MIN, i64::MAX), before[7], "an old snapshot still reads the old files");
    let files = || walk(&dir.path().join("blocks")).len();
    assert!(files() > 1);
    drop(old);
    assert_eq!(files(), 1, "nobody reads the old files any more");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn retention_drops_whole_old_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(StoreConfig { retention_age: Some(Interval::from_s(2 * 86_400)), ..manual(dir.path()) });
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    for day in 0..5 {
        store.append_blocking(ten(&schema, day + 1, day as i64 * 86_400).into()).unwrap();
    }
    store.seal().unwrap();
    assert_eq!(store.stats().blocks, 5, "one a day");
    store.maintain(START + 4 * DAY + 100 * SECOND).unwrap();
    let left = seconds(&all(&store, "/n1/x"));
    assert_eq!((left.len(), left[0]), (20, 3 * 86_400));
    assert_eq!((store.stats().retention_blocks, store.stats().retention_rows), (3, 30));
    assert_eq!(walk(&dir.path().join("blocks")).len(), 2);
    assert_eq!(
        store.append_blocking(ten(&schema, 1, 0).into()).unwrap(),
        AppendOutcome::Duplicate,
        "dropped is not forgotten"
    );
}

#[test]
fn retention_by_size_keeps_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(StoreConfig { retention_bytes: Some(wholegrain_model::size::ByteSize(1)), ..manual(dir.path()) });
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    store.append_blocking(ten(&schema, 1, 0).into()).unwrap();
    store.seal().unwrap();
    store.append_blocking(ten(&schema, 2, 86_400).into()).unwrap();
    store.maintain(START).unwrap();
    assert_eq!(store.stats().blocks, 0);
    assert_eq!(all(&store, "/n1/x").len(), 10, "what is not sealed yet stays");
}

#[test]
fn a_directory_in_use_is_refused_and_names_who_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let error = Store::open(manual(dir.path())).err().unwrap();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(store);
    open(manual(dir.path()));
}

/// Three batches in the journal, not sealed; the file's path and content.
fn journal(dir: &Path) -> (Schema, std::path::PathBuf, Vec<u8>) {
    let store = open(manual(dir));
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    for seq in 1..=3 {
        store.append_blocking(ten(&schema, seq, seq as i64 * 10).into()).unwrap();
    }
    store.close().unwrap();
    let path = dir.join("journal/0000000001.wal");
    let content = std::fs::read(&path).unwrap();
    (schema, path, content)
}

#[test]
fn a_journal_cut_at_any_byte_opens_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, path, content) = journal(dir.path());
    let record = (content.len() - HEADER_BYTES) / 3;
    assert_eq!(HEADER_BYTES + 3 * record, content.len());
    let synced = dir.path().join("journal/synced");
    let noted = std::fs::read(&synced).unwrap();
    for (cut, knows) in (0..content.len()).map(|cut| (cut, cut % 3 == 0)) {
        let _ = std::fs::remove_file(dir.path().join("journal/0000000002.wal"));
        let _ = std::fs::remove_file(dir.path().join("registry.log"));
        std::fs::write(&path, &content[..cut]).unwrap();
        // Where nobody has noted how long it was, a lost end cannot be distinguished from one that was never written.
        std::fs::write(&synced, if knows { &noted[..] } else { &[] }).unwrap();
        let (store, report) = Store::open(manual(dir.path())).unwrap();
        let whole = cut.saturating_sub(HEADER_BYTES) / record;
        assert_eq!(report.batches, whole as u64, "cut at {cut}");
        let end = if cut < HEADER_BYTES { 0 } else { HEADER_BYTES + whole * record };
        let (torn, damaged) = if knows { (0, content.len() - end) } else { (cut - end, 0) };
        assert_eq!((report.torn_bytes, report.damaged_bytes), (torn as u64, damaged as u64), "cut at {cut}");
        let lost: Vec<_> = report.lost.iter().map(|lost| lost.readings).collect();
        assert_eq!(lost, if knows { vec![Some(30 - whole as u64 * 10)] } else { Vec::new() }, "cut at {cut}");
        assert_eq!(all(&store, "/n1/x").len(), whole * 10, "cut at {cut}");
        if cut % 16 == 0 {
            let expected = if whole == 3 { AppendOutcome::Duplicate } else { AppendOutcome::Stored };
            assert_eq!(store.append_blocking(ten(&schema, 3, 30).into()).unwrap(), expected, "cut at {cut}");
        }
    }
}

#[test]
fn a_bit_flipped_anywhere_in_the_journal_loses_one_batch_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path, content) = journal(dir.path());
    let synced = dir.path().join("journal/synced");
    let noted = std::fs::read(&synced).unwrap();
    for byte in 0..content.len() {
        let _ = std::fs::remove_file(dir.path().join("registry.log"));
        std::fs::write(&synced, &noted).unwrap();
        let mut bad = content.clone();
        bad[byte] ^= 1 << (byte % 8);
        std::fs::write(&path, &bad).unwrap();
        let (store, report) = Store::open(manual(dir.path())).unwrap();
        let lost = u64::from(byte >= HEADER_BYTES);
        assert_eq!(report.batches, 3 - lost, "byte {byte}");
        assert!(report.torn_bytes + report.damaged_bytes > 0, "byte {byte}: {report:?}");
        assert_eq!(all(&store, "/n1/x").len() as u64, (3 - lost) * 10, "byte {byte}");
        let reported: u64 = report.lost.iter().filter_map(|lost| lost.readings).sum();
        assert_eq!((reported, report.lost.len() as u64), (lost * 10, lost), "byte {byte}: {:?}", report.lost);
    }
    assert!(!walk(&dir.path().join("damaged")).is_empty(), "the bytes are in damaged/");
}

#[test]
fn a_damaged_block_is_left_out_and_the_rest_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    for seq in 1..=2 {
        let times: Vec<i64> = (0..1000).map(|i| START + (seq * 1000 + i) * SECOND).collect();
        store
            .append_blocking(
                payload(&schema, seq as u64, &times, |_, i| Some((i * i * 2_654_435_761 % 1_000_003) as f64)).into(),
            )
            .unwrap();
        store.seal().unwrap();
    }
    let good = all(&store, "/n1/x");
    drop(store);
    let path = walk(&dir.path().join("blocks"))[0].clone();
    let content = std::fs::read(&path).unwrap();
    // Some bytes of the footer, and the sensors' column, say nothing that a scan uses.
    let (mut unnoticed, mut flips) = (0, 0);
    for at in (4..content.len()).step_by(13) {
        flips += 1;
        let mut bad = content.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        let store = open(manual(dir.path()));
        let rows = all(&store, "/n1/x");
        if rows == good {
            unnoticed += 1;
        } else {
            assert_eq!(rows, good[1000..], "byte {at}");
            assert_eq!(store.stats().damaged_blocks, 1, "byte {at}");
            let damaged = |from, to| store.snapshot().damaged_blocks(from, to);
            assert_eq!(damaged(START, START + 1500 * SECOND), std::slice::from_ref(&path), "byte {at}");
            assert!(damaged(START + 2000 * SECOND, i64::MAX).is_empty(), "the range has nothing of it");
            store.maintain(START + 3 * DAY).unwrap();
            assert_eq!(store.stats().blocks, 2, "damage is not merged into good data");
        }
    }
    assert!(unnoticed * 3 < flips, "{unnoticed} flips of {flips} had no effect");
    std::fs::write(&path, &content[..content.len() - 1]).unwrap();
    let (store, report) = Store::open(manual(dir.path())).unwrap();
    assert_eq!(report.damaged_blocks, std::slice::from_ref(&path));
    assert_eq!(store.snapshot().damaged_blocks(START, i64::MAX), std::slice::from_ref(&path));
    assert_eq!(all(&store, "/n1/x"), good[1000..]);
    assert_eq!(store.stats().damaged_blocks, 1);
    drop(store);
    std::fs::write(&path, &content).unwrap();
    assert_eq!(all(&open(manual(dir.path())), "/n1/x"), good, "put back, it counts again");
}

#[test]
fn foreign_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(manual(dir.path())));
    let path = dir.path().join("blocks/notes.txt");
    std::fs::write(&path, "mine").unwrap();
    let (_store, report) = Store::open(manual(dir.path())).unwrap();
    assert_eq!(report.foreign_files, std::slice::from_ref(&path));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "mine");
}

#[test]
fn a_full_disk_acknowledges_nothing_and_recovers_by_itself() {
    let disk = FaultyDisk::default();
    let (store, _) = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap();
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    store.append_blocking(ten(&schema, 1, 0).into()).unwrap();
    disk.limit(Some(disk.used()));
    for _ in 0..3 {
        assert!(matches!(store.append_blocking(ten(&schema, 2, 10).into()), Err(StoreError::DiskFull { .. })));
        assert!(store.seal().is_err());
    }
    assert_eq!(all(&store, "/n1/x").len(), 10, "what was acknowledged is there, what was not is not");
    disk.limit(None);
    assert_eq!(store.append_blocking(ten(&schema, 2, 10).into()).unwrap(), AppendOutcome::Stored);
    store.seal().unwrap();
    assert_eq!(all(&store, "/n1/x").len(), 20);
    assert!(disk.files("/tmp/").is_empty(), "failed seals leave nothing behind");
}

#[test]
fn a_failed_fsync_acknowledges_nothing_and_its_batch_is_not_doubled() {
    let mut failed = 0;
    for after in 0..12 {
        let disk = FaultyDisk::default();
        let (store, _) = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap();
        let schema = one("x");
        store.register_schema(&schema).unwrap();
        store.append_blocking(ten(&schema, 1, 0).into()).unwrap();
        disk.plan(after, Fault::Errors(support::EIO, 3));
        let mut stored = 0;
        for attempt in 0..6 {
            match store.append_blocking(ten(&schema, 2 + attempt / 3, 10 + (attempt / 3) as i64 * 10).into()) {
                Ok(AppendOutcome::Stored) => stored += 1,
                Ok(_) => {}
                Err(error) => {
                    failed += 1;
                    assert!(matches!(error, StoreError::Io { .. }), "{error}");
                }
            }
        }
        assert_eq!(stored, 2, "after {after}");
        assert_eq!(all(&store, "/n1/x").len(), 30);
        disk.calm();
        drop(store);
        let (store, _) = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap();
        store.seal().unwrap();
        assert_eq!(store.stats().block_rows, 30, "after {after}");
    }
    assert!(failed > 0);
}

#[test]
fn too_much_waiting_is_turned_away_and_taken_later() {
    let disk = FaultyDisk::default();
    let small = wholegrain_model::size::ByteSize(200);
    let config = StoreConfig { live_bytes_max: small, ..manual("/store") };
    let (store, _) = Store::open_on(config.clone(), Arc::new(disk.clone())).unwrap();
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let mut seq = 0;
    let mut fill = |store: &Store| loop {
        seq += 1;
        match store.append_blocking(ten(&schema, seq, seq as i64 * 10).into()) {
            Ok(_) => assert!(seq < 1000),
            Err(error) => {
                assert!(matches!(error, StoreError::Busy) && !store.append_room(), "{error}");
                break seq;
            }
        }
    };
    let first = fill(&store);
    drop(store);
    // What an opening finds does not keep senders waiting, and makes no room for more once it is sealed.
    let (store, _) = Store::open_on(config, Arc::new(disk)).unwrap();
    let second = fill(&store);
    assert!(second > first + 1, "{first} {second}");
    store.seal().unwrap();
    assert!(store.append_room());
    assert_eq!(store.append_blocking(ten(&schema, second, second as i64 * 10).into()).unwrap(), AppendOutcome::Stored);
}

#[test]
fn malformed_payloads_are_refused_before_they_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let good = ten(&schema, 1, 0);
    for cut in 0..good.len() {
        let error = store.append_blocking(good[..cut].to_vec().into()).unwrap_err();
        assert!(matches!(error, StoreError::Payload(_)), "{error}");
    }
    assert_eq!(store.stats().rejected, good.len() as u64);
    assert_eq!(store.stats().batches, 0);
}

#[test]
fn readers_see_whole_batches_while_appends_seals_and_merges_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(StoreConfig { merge_fan_in: 3, ..manual(dir.path()) });
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let id = store.sensors(&[Pattern::new("/n1/x").unwrap()])[0].id;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 0..300u64 {
                store.append_blocking(ten(&schema, seq + 1, seq as i64 * 10).into()).unwrap();
                if seq % 10 == 9 {
                    store.seal().unwrap();
                    store.maintain(START + DAY / 2).unwrap();
                }
            }
            over.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut before = 0;
                loop {
                    let last = over.load(Ordering::Acquire);
                    let found = seconds(&rows(&store.snapshot(), id, i64::MIN, i64::MAX));
                    assert!(found.len() >= before && found.len().is_multiple_of(10), "{before} then {}", found.len());
                    assert_eq!(found, (0..found.len() as i64).collect::<Vec<_>>());
                    before = found.len();
                    if last {
                        break;
                    }
                }
                assert_eq!(before, 3000);
            });
        }
    });
}

#[test]
fn a_slow_subscriber_loses_batches_and_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(manual(dir.path()));
    let schema = one("x");
    store.register_schema(&schema).unwrap();
    let receiver = store.subscribe(2);
    for seq in 1..=5 {
        store.append_blocking(ten(&schema, seq, seq as i64 * 10).into()).unwrap();
    }
    assert_eq!(receiver.try_iter().map(|items| seq_of(&items[0])).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(store.stats().subscriber_lost, 3);
    drop(receiver);
    store.append_blocking(ten(&schema, 6, 60).into()).unwrap();
    assert_eq!(store.stats().subscriber_lost, 3);
}

#[test]
fn a_catalogue_that_fails_in_the_middle_of_a_seal_is_read_again() {
    let mut failed = 0;
    for after in 0..80 {
        let disk = FaultyDisk::default();
        let (store, _) = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap();
        let schema = one("x");
        store.register_schema(&schema).unwrap();
        store.append_blocking(ten(&schema, 1, 0).into()).unwrap();
        disk.plan(after, Fault::Errors(ENOSPC, 1));
        failed += u32::from(store.seal().is_err());
        store.seal().unwrap();
        disk.calm();
        store.seal().unwrap();
        assert_eq!(
            (store.stats().block_rows, store.stats().blocks, store.stats().live_bytes),
            (10, 1, 0),
            "after {after}"
        );
        drop(store);
        let (store, report) = Store::open_on(manual("/store"), Arc::new(disk)).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(all(&store, "/n1/x").len(), 10, "after {after}");
    }
    assert!(failed > 10, "{failed}");
}

#[test]
fn a_bit_flipped_anywhere_in_the_catalogue_is_harmless_or_refused_and_changes_no_file() {
    let disk = FaultyDisk::default();
    let fresh = || Store::open_on(manual("/store"), Arc::new(disk.clone()));
    let schema = one("x");
    let store = fresh().unwrap().0;
    store.register_schema(&schema).unwrap();
    store.append_blocking(ten(&schema, 1, 0).into()).unwrap();
    store.seal().unwrap();
    store.append_blocking(ten(&schema, 2, 10).into()).unwrap();
    drop(store);
    let catalogue = Path::new("/store/catalogue.redb");
    let good = disk.content(catalogue);
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let mut refused = 0;
    for at in used.iter().step_by(used.len() / 150 + 1) {
        let mut bad = good.clone();
        bad[*at] ^= 1 << (at % 8);
        disk.put(catalogue, &bad);
        let others = |disk: &FaultyDisk| -> Vec<_> {
            let files = disk.files("/store/").into_iter().filter(|path| {
                let path = path.to_string_lossy();
                !path.contains("catalogue") && !path.ends_with("/synced")
            });
            files.map(|path| (path.clone(), disk.content(&path))).collect()
        };
        let before = others(&disk);
        match fresh() {
            Ok((store, _)) => assert_eq!(all(&store, "/n1/x").len(), 20, "byte {at}"),
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(text.contains("catalogue.redb") && text.contains("nothing was changed"), "byte {at}: {text}");
                assert_eq!(disk.content(catalogue), bad, "byte {at}");
            }
        }
        assert!(before == others(&disk), "byte {at}: another file changed");
        disk.put(catalogue, &good);
    }
    assert!(refused > 5, "{refused} of {} refused", used.len());
    assert_eq!(all(&fresh().unwrap().0, "/n1/x").len(), 20, "put back, all is there");
}
