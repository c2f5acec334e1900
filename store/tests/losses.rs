//! Acknowledged readings that the journal loses are recorded with number, times and senders until an administrator acknowledges the loss.

use std::path::{Path, PathBuf};

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath, Timestamp};
use wholegrain_store::verify::{VerifyReport, verify};
use wholegrain_store::{LossRecord, OpenReport, ReadSnapshot, Store, StoreConfig, StoreError, loss_records};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;
/// Samples of a batch; of 2 sensors each.
const SAMPLES: i64 = 17;
const BATCHES: i64 = 5;

fn open(dir: &Path) -> (Store, OpenReport) {
    Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) }).unwrap()
}

fn append(store: &Store, agent: &str, seq: i64) {
    let sensors = vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("b", "1", "")];
    let schema = Schema::new(SensorPath::new(format!("/{agent}")).unwrap(), "g", sensors).unwrap();
    store.register_schema(&schema).unwrap();
    let times: Vec<i64> = (0..SAMPLES).map(|at| START + (seq * SAMPLES + at) * SECOND).collect();
    let column =
        Column { values: ColumnValues::Int(times.iter().map(|time| time % 97).collect()), gaps: Gaps::default() };
    let header = BatchHeader { agent: agent.into(), boot: 1, seq: seq as u64, schema: schema.hash(), interval_ns: 1 };
    store
        .append_blocking(encode_batch(&Batch { header, times, columns: vec![column.clone(), column] }).into())
        .unwrap();
}

/// A store with alternating batches of two agents, as a killed server leaves it; the last segment, and the end of each of its records.
fn filled() -> (tempfile::TempDir, PathBuf, Vec<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, report) = open(dir.path());
    assert!(report.is_clean());
    let segment = dir.path().join("journal/0000000001.wal");
    let mut ends = Vec::new();
    for seq in 0..BATCHES {
        append(&store, if seq % 2 == 0 { "n0" } else { "n1" }, seq);
        ends.push(std::fs::metadata(&segment).unwrap().len() as usize);
    }
    let killed = copy(dir.path());
    drop(store);
    let segment = killed.path().join("journal/0000000001.wal");
    (killed, segment, ends)
}

fn copy(dir: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let mut dirs = vec![PathBuf::new()];
    while let Some(below) = dirs.pop() {
        for entry in std::fs::read_dir(dir.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                std::fs::create_dir_all(to.path().join(&path)).unwrap();
                dirs.push(path);
            } else {
                std::fs::copy(entry.path(), to.path().join(&path)).unwrap();
            }
        }
    }
    to
}

fn change(segment: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(segment).unwrap();
    change(&mut bytes);
    std::fs::write(segment, bytes).unwrap();
}

fn verified(dir: &Path) -> VerifyReport {
    verify(dir, &mut |_, _| {}).unwrap()
}

fn warnings(store: &Store, from: i64, to: i64) -> Vec<String> {
    ReadSnapshot::warnings(&store.snapshot(), START + from * SECOND, START + to * SECOND)
}

/// A verification before a start finds the loss; its record exists after this start, after another one and after a seal, until it is acknowledged.
fn stays_until_acknowledged(dir: &Path, expected: impl Fn(&LossRecord)) {
    assert!(!verified(dir).is_whole(), "before a start");
    for start in 0..3 {
        let (store, report) = open(dir);
        let [lost] = &report.lost[..] else { panic!("start {start}: {:?}", report.lost) };
        expected(lost);
        let stats = store.stats();
        assert_eq!((stats.lost, Some(stats.lost_readings)), (1, lost.readings));
        let said = warnings(&store, 0, BATCHES * SAMPLES);
        assert!(said.len() == 1 && said[0].contains(&Timestamp(lost.from).to_string()), "{said:?}");
        assert!(warnings(&store, -100, -1).is_empty() && warnings(&store, 1_000_000_000, 1_000_000_001).is_empty());
        if start == 1 {
            store.seal().unwrap();
        }
        drop(store);
        assert!(!verified(dir).is_whole() && loss_records(dir).unwrap() == report.lost, "after start {start}");
    }
    let (store, report) = open(dir);
    let id = report.lost[0].id.clone();
    assert!(store.acknowledge_losses(Some(&["0-0".to_owned()]), "ada", 1).is_err());
    assert_eq!(store.acknowledge_losses(Some(&[id]), "ada", 1).unwrap(), 1);
    assert!(store.losses().is_empty() && warnings(&store, 0, BATCHES * SAMPLES).is_empty());
    let history = store.registry().history("loss", None, 10).unwrap();
    assert_eq!(history.last().map(|entry| entry.who.as_str()), Some("ada"));
    drop(store);
    assert!(verified(dir).is_whole() && open(dir).1.lost.is_empty());
}

fn of(batches: std::ops::Range<i64>) -> (u64, i64, i64) {
    let count = (batches.end - batches.start) * SAMPLES * 2;
    (count as u64, START + batches.start * SAMPLES * SECOND, START + (batches.end * SAMPLES - 1) * SECOND)
}

#[test]
fn a_flipped_bit_costs_one_record_which_is_named() {
    let (dir, segment, ends) = filled();
    // In the values of the fourth batch.
    change(&segment, |bytes| bytes[ends[3] - 3] ^= 16);
    stays_until_acknowledged(dir.path(), |lost| {
        let (count, from, to) = of(3..4);
        assert_eq!((lost.readings, lost.segment, lost.bytes), (Some(count), 1, (ends[3] - ends[2]) as u64));
        assert_eq!((lost.agents.clone(), lost.others), (vec!["n1".to_owned()], false));
        assert!(lost.from <= from && lost.to >= to && lost.to <= of(0..BATCHES).2, "{lost:?}");
    });
}

#[test]
fn an_end_that_was_cut_off_is_lost() {
    let (dir, segment, ends) = filled();
    // Three whole batches and a part of one more.
    change(&segment, |bytes| bytes.truncate(ends[0] + 50));
    stays_until_acknowledged(dir.path(), |lost| {
        let (count, from, to) = of(1..BATCHES);
        assert_eq!((lost.readings, lost.bytes), (Some(count), (ends[4] - ends[0]) as u64));
        assert!(lost.others && lost.from <= from && lost.to == to, "{lost:?}");
    });
}

#[test]
fn a_segment_that_is_gone_is_lost() {
    for last in [true, false] {
        let (dir, segment, _) = filled();
        if !last {
            let (store, _) = open(dir.path());
            append(&store, "n0", BATCHES);
            drop(store);
        }
        std::fs::remove_file(&segment).unwrap();
        let (_, report) = open(dir.path());
        let (count, from, to) = of(0..BATCHES);
        let found: Vec<_> = report.lost.iter().map(|lost| (lost.readings, lost.from, lost.to)).collect();
        assert_eq!(found, [(Some(count), from, to)]);
    }
}

#[test]
fn what_was_never_acknowledged_and_what_holds_no_reading_is_not_lost() {
    // An append that did not come to its end.
    let (dir, segment, ends) = filled();
    change(&segment, |bytes| bytes.extend_from_within(ends[2]..ends[3] - 1));
    let (store, report) = open(dir.path());
    assert!(report.torn_bytes > 0 && report.damaged_bytes == 0 && report.lost.is_empty(), "{report:?}");
    drop(store);
    assert!(open(dir.path()).1.is_clean() && verified(dir.path()).is_whole());
    // The header: all records are there.
    let (dir, segment, _) = filled();
    change(&segment, |bytes| bytes[14] ^= 1);
    let report = open(dir.path()).1;
    assert!(report.damaged_bytes > 0 && report.lost.is_empty() && report.batches == BATCHES as u64, "{report:?}");
}

#[test]
fn a_newer_journal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let mut head = b"WGJOURNL".to_vec();
    head.extend(7u32.to_le_bytes());
    head.extend(1u64.to_le_bytes());
    head.extend(crc32c::crc32c(&head).to_le_bytes());
    std::fs::write(dir.path().join("journal/0000000001.wal"), head).unwrap();
    let error = Store::open(StoreConfig::new(dir.path())).err().unwrap();
    assert!(matches!(error, StoreError::NewerVersion { found: 7, known: 3, .. }), "{error}");
}
