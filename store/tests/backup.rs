//! Backups of an open store, and stores restored from them.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::{ENOSPC, Fault, FaultyDisk};
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, Value};
use wholegrain_store::backup::{Backup, BackupManifest, held_in, restore, take_into, take_tar};
use wholegrain_store::verify::verify;
use wholegrain_store::{Deletion, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir) }
}

fn open(dir: &Path) -> Store {
    let (store, report) = Store::open(config(dir)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    store
}

fn schema() -> Schema {
    Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("a", "1", "")]).unwrap()
}

fn append(store: &Store, seq: u64) {
    store.register_schema(&schema()).unwrap();
    let times: Vec<i64> = (0..600).map(|second| START + (seq as i64 * 600 + second) * SECOND).collect();
    let values = ColumnValues::Int(times.iter().map(|time| time % 1013).collect());
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema().hash(), interval_ns: SECOND as u64 };
    let batch = Batch { header, times, columns: vec![Column { values, gaps: Gaps::default() }] };
    store.append_blocking(encode_batch(&batch).into()).unwrap();
}

fn rows(store: &Store) -> BTreeMap<i64, Option<Value>> {
    let mut rows = BTreeMap::new();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        for chunk in store.snapshot().scan(sensor.id, i64::MIN, i64::MAX).unwrap() {
            let chunk = chunk.unwrap();
            rows.extend((0..chunk.times.len()).map(|at| (chunk.times[at], chunk.column.get(at))));
        }
    }
    rows
}

fn filled(dir: &Path) -> Store {
    let store = open(dir);
    for seq in 0..6 {
        append(&store, seq);
        store.seal().unwrap();
    }
    store.maintain(START + 3 * DAY).unwrap();
    append(&store, 6);
    store.set_retention(&Pattern::new("/x").unwrap(), None, "ada", 1).unwrap();
    store
}

fn stream(backup: &Backup, has: &dyn Fn(&str) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    backup.write_tar(&|file| has(&file.name), &mut out).unwrap();
    out
}

fn restored(backup: &Path) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("store");
    let restored = restore(backup, &target, &mut |_, _| {}).unwrap();
    assert!(restored.damaged.is_empty(), "{:?}", restored.damaged);
    let report = verify(&target, &mut |_, _| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damaged().collect::<Vec<_>>());
    let store = open(&target);
    (dir, store)
}

#[test]
fn a_backup_holds_what_was_acknowledged_before_and_a_second_one_copies_only_what_is_new() {
    let (dir, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = filled(dir.path());
    let expected = rows(&store);
    // Readings that are stored meanwhile need not be in the backup, and do not disturb it.
    let going = Arc::new(AtomicBool::new(true));
    let writer = {
        let (store, going) = (store.clone(), going.clone());
        std::thread::spawn(move || {
            let mut seq = 100;
            while going.load(Relaxed) {
                append(&store, seq);
                seq += 1;
                store.seal().unwrap();
                store.maintain(START + 3 * DAY).unwrap();
            }
        })
    };
    let backup = store.backup(1).unwrap();
    store.delete(&Deletion { patterns: vec![Pattern::new("/**").unwrap()], from: 0, to: START + DAY }).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    let first = stream(&backup, &|_| false);
    drop(backup);
    going.store(false, Relaxed);
    writer.join().unwrap();
    let taken = take_into(&first[..], target.path(), &[], &mut |_, _| {}).unwrap();
    assert_eq!((taken.files as usize, taken.damaged.len()), (taken.manifest.files.len(), 0));
    let (_dir, copy) = restored(target.path());
    let found = rows(&copy);
    assert!(expected.iter().all(|(time, value)| found.get(time) == Some(value)), "all of before is there");
    assert_eq!(copy.retention_rules().len(), 1);
    // A batch that is in the backup is known after it was restored.
    append(&copy, 6);
    assert_eq!(copy.stats().duplicates, 1);
    // The same directory again: blocks that are there are not sent, and what is gone at the server goes.
    for seq in 1_000..1_003 {
        append(&store, seq);
    }
    let backup = store.backup(2).unwrap();
    let held = held_in(target.path()).unwrap();
    let has = |name: &str| held.iter().any(|file| file.name == name);
    let second = stream(&backup, &has);
    let again = take_into(&second[..], target.path(), &held, &mut |_, _| {}).unwrap();
    assert!(again.manifest.files.iter().all(|file| target.path().join(&file.name).exists()));
    let (_dir, copy) = restored(target.path());
    assert_eq!(rows(&copy), rows(&store));
    drop(backup);
    // Nothing new: only the state is sent.
    let backup = store.backup(3).unwrap();
    let held = held_in(target.path()).unwrap();
    let third = stream(&backup, &|name| held.iter().any(|file| file.name == name));
    let taken = take_into(&third[..], target.path(), &held, &mut |_, _| {}).unwrap();
    assert!(taken.files < taken.manifest.files.len() as u64 && taken.files <= 3, "{taken:?}");
    let left = std::fs::read_dir(target.path()).unwrap().count();
    assert!(left <= 4, "the manifest, one state, blocks and tiers");
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 2, "copies are there while it is held");
    drop(backup);
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn what_breaks_off_or_is_damaged_harms_neither_the_backup_before_nor_the_target() {
    let (dir, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = filled(dir.path());
    let expected = rows(&store);
    let whole = stream(&store.backup(1).unwrap(), &|_| false);
    take_into(&whole[..], target.path(), &[], &mut |_, _| {}).unwrap();
    append(&store, 7);
    let backup = store.backup(2).unwrap();
    let held = held_in(target.path()).unwrap();
    let next = stream(&backup, &|name| held.iter().any(|file| file.name == name));
    for cut in [0, 700, next.len() / 2, next.len() - 1500] {
        take_into(&next[..cut], target.path(), &held, &mut |_, _| {}).unwrap_err();
        let (_dir, copy) = restored(target.path());
        assert_eq!(rows(&copy), expected, "cut at {cut}");
    }
    // One tar file.
    let file = target.path().join("all.tar");
    let full = stream(&backup, &|_| false);
    take_tar(&full[..full.len() - 2000], &file, &mut |_, _| {}).unwrap_err();
    assert!(!file.exists());
    take_tar(&full[..], &file, &mut |_, _| {}).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), full);
    let (_dir, copy) = restored(&file);
    assert_eq!(rows(&copy), rows(&store));
    // Refused: a directory that holds something, a manifest of a newer release, damaged state. Reported: a damaged block.
    let text = restore(&file, dir.path(), &mut |_, _| {}).unwrap_err();
    assert!(text.contains("is not empty"), "{text}");
    let manifest: BackupManifest =
        serde_json::from_slice(&std::fs::read(target.path().join("backup.json")).unwrap()).unwrap();
    let flip = |name: &str| {
        let path = target.path().join(name);
        let mut content = std::fs::read(&path).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        std::fs::write(&path, content).unwrap();
    };
    let block = manifest.files.iter().find(|file| file.name.starts_with("blocks/")).unwrap();
    flip(&block.name);
    let other = tempfile::tempdir().unwrap();
    let restored = restore(target.path(), &other.path().join("s"), &mut |_, _| {}).unwrap();
    assert_eq!(restored.damaged, std::slice::from_ref(&block.name));
    assert!(!held_in(target.path()).unwrap().contains(block), "it is sent again");
    let catalogue = manifest.files.iter().find(|file| file.name.ends_with("catalogue.redb")).unwrap();
    flip(&catalogue.name);
    let text = restore(target.path(), &other.path().join("t"), &mut |_, _| {}).unwrap_err();
    assert!(text.contains("catalogue.redb") && !other.path().join("t/catalogue.redb").exists(), "{text}");
    let json = std::fs::read_to_string(target.path().join("backup.json")).unwrap();
    std::fs::write(target.path().join("backup.json"), json.replace("\"format\":1", "\"format\":2")).unwrap();
    let text = restore(target.path(), &other.path().join("u"), &mut |_, _| {}).unwrap_err();
    assert!(text.contains("format version 2"), "{text}");
}

#[test]
fn on_a_full_disk_there_is_no_backup_and_all_goes_on() {
    let disk = FaultyDisk::default();
    let config = StoreConfig { background: false, ..StoreConfig::new("/store") };
    let (store, _) = Store::open_on(config, Arc::new(disk.clone())).unwrap();
    append(&store, 0);
    store.seal().unwrap();
    disk.plan(0, Fault::Errors(ENOSPC, u32::MAX));
    assert!(matches!(store.backup(1), Err(StoreError::DiskFull { .. })));
    disk.calm();
    append(&store, 1);
    assert_eq!(rows(&store).len(), 1_200);
    let mut out = Vec::new();
    store.backup(2).unwrap().write_tar(&|_| false, &mut out).unwrap();
    assert!(disk.files("tmp/").is_empty());
}

/// Other users of the machine cannot read a store or its backups, whatever the umask of the process is, and whatever mode an existing store has.
#[test]
fn what_a_store_writes_is_not_for_everybody() {
    use std::os::unix::fs::PermissionsExt;
    let open_files = |dir: &Path| -> Vec<(std::path::PathBuf, u32)> {
        let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
        while let Some(at) = dirs.pop() {
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            found.push((at.clone(), mode(&at)));
            for entry in std::fs::read_dir(&at).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { dirs.push(path) } else { found.push((path.clone(), mode(&path))) }
            }
        }
        assert!(found.len() > 5, "{found:?}");
        found.retain(|(_, mode)| mode & 0o027 != 0);
        found
    };
    let dir = tempfile::tempdir().unwrap();
    let (at, kept) = (dir.path().join("store"), dir.path().join("kept"));
    std::fs::create_dir(&at).unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o777)).unwrap();
    let store = filled(&at);
    let whole = stream(&store.backup(1).unwrap(), &|_| false);
    take_into(&whole[..], &kept, &[], &mut |_, _| {}).unwrap();
    drop(store);
    assert_eq!((open_files(&at), open_files(&kept)), (Vec::new(), Vec::new()));
    let restored = dir.path().join("restored");
    restore(&kept, &restored, &mut |_, _| {}).unwrap();
    assert_eq!(open_files(&restored), Vec::new());
}

/// A backup, often run by root, writes nothing through the links of another user.
#[test]
fn a_backup_follows_no_link_of_another_user() {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT TESTED: only root can give a directory to another user");
        return;
    }
    const NOBODY: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = filled(&at("store"));
    let whole = stream(&store.backup(1).unwrap(), &|_| false);
    let take = |name: &str| take_into(&whole[..], &at(name), &[], &mut |_, _| {});
    let victim = at("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "theirs").unwrap();

    std::fs::create_dir(at("others")).unwrap();
    std::os::unix::fs::chown(at("others"), Some(NOBODY), None).unwrap();
    let error = take("others").unwrap_err();
    assert!(error.contains("belongs to another user (uid 65534)"), "{error}");
    assert_eq!(std::fs::read_dir(at("others")).unwrap().count(), 0);

    std::os::unix::fs::symlink(&victim, at("link")).unwrap();
    std::os::unix::fs::lchown(at("link"), Some(NOBODY), None).unwrap();
    assert!(take("link/").unwrap_err().contains("belongs to another user"));

    std::fs::create_dir(at("open")).unwrap();
    std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = take("open").unwrap_err();
    assert!(error.contains("written by every user (mode 0777)"), "{error}");

    // Nor below a directory of theirs, which they could exchange meanwhile.
    let tar = at("others/kept.tar");
    let refused = [
        take("others/new").map(drop),
        take_tar(&whole[..], &tar, &mut |_, _| {}).map(drop),
        held_in(&at("others/new")).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.contains("others, which contains ") && error.contains("(uid 65534)"), "{error}");
    }
    take("whole").unwrap();
    for name in ["others", "others/new", "link", "link/new", "open"] {
        let error = restore(&at("whole"), &at(name), &mut |_, _| {}).unwrap_err();
        assert!(error.contains("who could redirect what is written there"), "{name}: {error}");
    }
    assert_eq!(std::fs::read_dir(at("others")).unwrap().count(), 0);

    // Links that were put there before the directory became root's.
    std::fs::create_dir(at("kept")).unwrap();
    std::os::unix::fs::symlink(&victim, at("kept/blocks")).unwrap();
    std::os::unix::fs::lchown(at("kept/blocks"), Some(NOBODY), None).unwrap();
    assert!(take("kept").unwrap_err().contains("belongs to another user"));
    std::fs::remove_file(at("kept/blocks")).unwrap();
    take("kept").unwrap();
    std::os::unix::fs::symlink(&victim, at("kept/blocks/deep")).unwrap();
    std::os::unix::fs::symlink(victim.join("file"), at("kept/backup.json.new")).unwrap();
    take("kept").unwrap();
    assert_eq!(std::fs::read_to_string(victim.join("file")).unwrap(), "theirs");
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 1);
}
