//! A killed process leaves its writes in the page cache; a failed fsync leaves writes there that never reach the disk. The next opening must not
//! treat either as durable.

mod support;

use std::path::Path;
use std::sync::Arc;

use support::{EIO, Fault, FaultyDisk, Random};
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath};
use wholegrain_store::disk::Disk;
use wholegrain_store::{AppendOutcome, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

/// The number of crashes, after each of which a random part of the unsynced writes is on the disk.
const CRASHES: u64 = 3;

fn schema() -> Schema {
    Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "")]).unwrap()
}

fn payload(seq: u64) -> bytes::Bytes {
    let header =
        BatchHeader { agent: "n".to_owned(), boot: 1, seq, schema: schema().hash(), interval_ns: 1_000_000_000 };
    let column = Column { values: ColumnValues::Int(vec![seq as i64]), gaps: Gaps::default() };
    encode_batch(&Batch { header, times: vec![seq as i64 * 1_000_000_000], columns: vec![column] }).into()
}

fn open(disk: &FaultyDisk) -> Result<Store, StoreError> {
    let config = StoreConfig { background: false, ..StoreConfig::new("/store") };
    Store::open_on(config, Arc::new(disk.clone())).map(|(store, _)| store)
}

fn readings(store: &Store) -> usize {
    let sensors = store.sensors(&[Pattern::new("/**").unwrap()]);
    let snapshot = store.snapshot();
    let scan = |id| snapshot.scan(id, i64::MIN, i64::MAX).unwrap().map(|chunk| chunk.unwrap().times.len());
    sensors.iter().flat_map(|sensor| scan(sensor.id)).sum()
}

/// The machine stops; this number of readings must be stored, whatever part of the unsynced writes was lost.
#[track_caller]
fn check_after_crash(disk: &FaultyDisk, expected: usize, what: &str) {
    for crash in 0..CRASHES {
        let disk = disk.after_crash(&mut Random::new(crash));
        assert_eq!(readings(&open(&disk).unwrap()), expected, "{what}, crash {crash}");
    }
}

/// A disk whose next changing operation has an even or an odd number: this decides which failed fsyncs lose their writes.
fn shifted(disk: FaultyDisk, odd: bool) -> FaultyDisk {
    if odd {
        disk.sync_dir(Path::new("/elsewhere")).unwrap();
    }
    disk
}

#[test]
fn a_record_of_a_killed_process_is_made_durable_before_it_counts_as_a_repeat() {
    for (fault, odd) in [(Fault::Crash, false), (Fault::Errors(EIO, 2), false), (Fault::Errors(EIO, 2), true)] {
        let disk = shifted(FaultyDisk::default(), odd);
        let store = open(&disk).unwrap();
        store.register_schema(&schema()).unwrap();
        store.append_blocking(payload(1)).unwrap();
        // The write succeeds, its fsync does not, nor does cutting the file.
        disk.plan(1, fault);
        store.append_blocking(payload(2)).unwrap_err();
        let killed = disk.after_kill();
        let store = open(&killed).unwrap();
        store.append_blocking(payload(2)).unwrap();
        check_after_crash(&killed, 2, &format!("{fault:?} {odd}"));
    }
}

#[test]
fn a_catalogue_whose_fsync_failed_is_not_believed() {
    for (operation, odd, kill) in
        (0..60).flat_map(|at| [(at, false, false), (at, true, false), (at, false, true), (at, true, true)])
    {
        let disk = shifted(FaultyDisk::default(), odd);
        let mut store = open(&disk).unwrap();
        store.register_schema(&schema()).unwrap();
        store.append_blocking(payload(1)).unwrap();
        disk.plan(operation, Fault::Errors(EIO, 1));
        let _ = store.seal();
        disk.calm();
        let disk = if kill { disk.after_kill() } else { disk };
        if kill {
            store = open(&disk).unwrap();
        }
        store.seal().unwrap();
        assert_eq!(readings(&store), 1);
        check_after_crash(&disk, 1, &format!("operation {operation}, odd {odd}, kill {kill}"));
    }
}

#[test]
fn a_store_whose_making_was_killed_anywhere_keeps_what_it_acknowledges_afterwards() {
    for operation in 0.. {
        let disk = FaultyDisk::default();
        disk.plan(operation, Fault::Crash);
        let finished = open(&disk).is_ok();
        let killed = disk.after_kill();
        let store = open(&killed).unwrap();
        store.register_schema(&schema()).unwrap();
        store.append_blocking(payload(1)).unwrap();
        check_after_crash(&killed, 1, &format!("killed at operation {operation}"));
        if finished {
            return;
        }
    }
}

#[test]
fn a_store_that_lost_its_catalogue_does_not_start_empty() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    store.register_schema(&schema()).unwrap();
    store.append_blocking(payload(1)).unwrap();
    drop(store);
    let catalogue = Path::new("/store/catalogue.redb");
    let content = disk.content(catalogue);
    disk.remove(catalogue).unwrap();
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains("catalogue.redb") && error.contains("journal/"), "{error}");
    disk.put(catalogue, &content);
    assert_eq!(readings(&open(&disk).unwrap()), 1);
}

/// The journal's segments with their content.
fn segments(disk: &FaultyDisk) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = disk.files("/journal/").into_iter();
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "wal"))
        .map(|path| (path.clone(), disk.content(&path)))
        .collect()
}

#[test]
fn records_that_no_fsync_vouches_for_do_not_come_back_when_the_next_segment_was_begun() {
    for odd in [false, true] {
        let disk = shifted(FaultyDisk::default(), odd);
        let store = open(&disk).unwrap();
        store.register_schema(&schema()).unwrap();
        store.append_blocking(payload(1)).unwrap();
        // Neither the fsync succeeds nor the cut: the record stays in the file and was never acknowledged.
        disk.plan(1, Fault::Errors(EIO, 2));
        store.append_blocking(payload(2)).unwrap_err();
        store.append_blocking(payload(3)).unwrap();
        assert_eq!(segments(&disk).len(), 2, "the failed one is not written again");
        let killed = disk.after_kill();
        let store = open(&killed).unwrap();
        assert_eq!(readings(&store), 2);
        assert_eq!(store.append_blocking(payload(2)).unwrap(), AppendOutcome::Stored, "it was not there");
        check_after_crash(&killed, 3, &format!("odd {odd}"));
    }
}

#[test]
fn opening_writes_only_the_last_segment_again() {
    let disk = FaultyDisk::default();
    let small = |disk: &FaultyDisk| {
        let seal_bytes = wholegrain_model::size::ByteSize(2000);
        let config = StoreConfig { background: false, seal_bytes, ..StoreConfig::new("/store") };
        Store::open_on(config, Arc::new(disk.clone())).unwrap().0
    };
    let mut store = small(&disk);
    store.register_schema(&schema()).unwrap();
    for seq in 1..=200 {
        store.append_blocking(payload(seq)).unwrap();
    }
    for round in 0..3u64 {
        drop(store);
        let before = segments(&disk);
        assert!(before.len() > 5, "{}", before.len());
        let (_, earlier) = before.split_last().unwrap();
        disk.watch_writes();
        store = small(&disk);
        let written = disk.written();
        let touched = earlier.iter().filter(|(path, _)| written.contains(path)).count();
        assert_eq!(touched, 0, "round {round}");
        assert!(written.contains(&before.last().unwrap().0), "the last one is, round {round}");
        assert_eq!(readings(&store), 200 + round as usize);
        store.append_blocking(payload(201 + round)).unwrap();
    }
    // A flipped bit in the synced length of a segment only causes the segment to be written again.
    drop(store);
    let (path, mut content) = segments(&disk)[3].clone();
    content[30] ^= 4;
    disk.put(&path, &content);
    disk.watch_writes();
    let store = small(&disk);
    assert!(disk.written().contains(&segments(&disk)[2].0));
    assert_eq!(readings(&store), 203);
}
