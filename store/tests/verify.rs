//! Damage: if a bit of a file flips, an answer is right or has a warning about missing readings, and a verification finds the damage.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use support::{Random, seed};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, Value, ValueType,
};
use wholegrain_store::verify::{FileKind, VerifyReport, holdings, verify};
use wholegrain_store::{ScanPart, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;
const ROUNDS: usize = 80;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir) }
}

/// A day of blocks with tiers, a block without, and a segment of the journal.
fn fill(dir: &Path, random: &mut Random) {
    let (store, _) = Store::open(config(dir)).unwrap();
    let sensors =
        vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("b", "1", "").float(), SensorDef::counter("c", "1", "")];
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap();
    store.register_schema(&schema).unwrap();
    for seq in 0..6i64 {
        let start = if seq < 4 { seq * 600 } else { 86_400 + seq * 600 };
        let times: Vec<i64> = (start..start + 600).map(|second| START + second * SECOND).collect();
        let mut column = |sensor: usize| {
            let mut values = || (0..600).map(|_| random.below(100_000) as f64 / 8.0).collect::<Vec<f64>>();
            let values = match schema.sensors()[sensor].value_type {
                ValueType::Int => ColumnValues::Int(values().iter().map(|value| *value as i64).collect()),
                ValueType::Float => ColumnValues::Float(values()),
            };
            Column { values, gaps: Gaps::default() }
        };
        let columns = (0..3).map(&mut column).collect();
        let header = BatchHeader { agent: "n".into(), boot: 1, seq: seq as u64, schema: schema.hash(), interval_ns: 1 };
        store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
        if seq < 5 {
            store.seal().unwrap();
        }
        if seq == 3 {
            store.maintain(START + 2 * DAY).unwrap();
        }
    }
    store.close().unwrap();
}

type StoredAnswer = BTreeMap<(String, i64), Option<Value>>;
type SensorSums = BTreeMap<(String, i64), f64>;

/// All readings, the sums of the hours, and whether a warning says that readings are missing.
fn ask(store: &Store) -> Result<(StoredAnswer, SensorSums, bool), StoreError> {
    let (mut rows, mut sums) = (StoredAnswer::new(), BTreeMap::new());
    let snapshot = store.snapshot();
    let (from, to) = (START, START + 3 * DAY);
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        for chunk in snapshot.scan(sensor.id, from, to)? {
            let chunk = chunk?;
            for (at, time) in chunk.times.iter().enumerate() {
                rows.insert((sensor.path.to_string(), *time), chunk.column.get(at));
            }
        }
        let parts = support::windows(&snapshot, &sensor, (from, to), 3_600 * SECOND)?.parts;
        let mut add = |time: i64, value: Value| {
            *sums.entry((sensor.path.to_string(), time / (3_600 * SECOND))).or_insert(0.0) += value.as_f64();
        };
        for part in parts {
            match part? {
                ScanPart::Readings(chunk) => {
                    for (at, time) in chunk.times.iter().enumerate() {
                        chunk.column.get(at).into_iter().for_each(|value| add(*time, value));
                    }
                }
                ScanPart::Windows(windows) => {
                    (0..windows.len()).for_each(|at| add(windows.get(at).time, windows.get(at).sum));
                }
            }
        }
    }
    Ok((rows, sums, !snapshot.damaged_blocks(from, to).is_empty()))
}

fn check(dir: &Path) -> VerifyReport {
    verify(dir, &mut |_, _| {}).unwrap()
}

fn files(report: &VerifyReport, kinds: &[FileKind]) -> Vec<PathBuf> {
    report.files.iter().filter(|file| kinds.contains(&file.kind)).map(|file| file.path.clone()).collect()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            std::fs::create_dir_all(to.join(&name)).unwrap();
            copy(&path, &to.join(&name));
        } else {
            std::fs::copy(&path, to.join(&name)).unwrap();
        }
    }
}

#[test]
fn a_flipped_bit_is_found_and_never_a_wrong_answer() {
    let mut random = Random::new(seed());
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &mut random);
    let report = check(dir.path());
    assert!(report.is_whole(), "{:?}", report.damaged().collect::<Vec<_>>());
    let blocks = files(&report, &[FileKind::Block, FileKind::Tier]);
    assert!(files(&report, &[FileKind::Tier]).len() >= 6 && files(&report, &[FileKind::Journal]).len() == 1);
    let (expected, sums, missing) = ask(&Store::open(config(dir.path())).unwrap().0).unwrap();
    assert!(!missing && expected.len() == 3 * 3_600 && sums.len() >= 3 * 2);
    let (mut silent, mut reported) = (0, 0);
    for round in 0..ROUNDS {
        let path = &blocks[random.below(blocks.len() as u64) as usize];
        let mut content = std::fs::read(path).unwrap();
        // Half of them among the footer and the index, which are small beside the pages.
        let length = content.len() as u64;
        let at =
            if round % 2 == 0 { random.below(length) } else { length - 1 - random.below(length.min(3_000)) } as usize;
        let bit = 1 << random.below(8);
        content[at] ^= bit;
        std::fs::write(path, &content).unwrap();
        let what = format!("byte {at} of {length}, bit {bit:#x}, of {}", path.display());
        let found = check(dir.path());
        let damaged: Vec<&PathBuf> = found.damaged().map(|file| &file.path).collect();
        assert_eq!(damaged, [path], "{what}");
        let (store, _) = Store::open(config(dir.path())).unwrap();
        let (rows, windows, missing) = ask(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(rows.iter().all(|(key, value)| expected.get(key) == Some(value)), "{what}: a wrong reading");
        assert!(missing || rows.len() == expected.len(), "{what}: readings are missing without a word");
        let close = |key, value: &f64| sums.get(key).is_some_and(|sum: &f64| (sum - value).abs() < 1e-3);
        assert!(missing || windows.iter().all(|(key, value)| close(key, value)), "{what}: a wrong sum");
        assert!(missing || windows.len() == sums.len(), "{what}: windows are missing without a word");
        reported += usize::from(missing);
        silent += usize::from(!missing);
        drop(store);
        content[at] ^= bit;
        std::fs::write(path, &content).unwrap();
    }
    assert!(reported > 0 && silent > 0, "{reported} reported, {silent} without effect");
    assert!(check(dir.path()).is_whole());
}

#[test]
fn what_is_missing_cut_short_or_unknown_is_named() {
    let mut random = Random::new(7);
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &mut random);
    let report = check(dir.path());
    let damage = |change: &dyn Fn(&Path)| {
        let other = tempfile::tempdir().unwrap();
        copy(dir.path(), other.path());
        change(other.path());
        let report = check(other.path());
        let found: Vec<String> = report
            .damaged()
            .map(|file| format!("{}: {}", file.path.strip_prefix(other.path()).unwrap().display(), file.problems[0]))
            .collect();
        let unknown = files(&report, &[FileKind::Unknown]).len();
        (found, unknown)
    };
    let below = |path: &Path| path.strip_prefix(dir.path()).unwrap().to_owned();
    let block = below(&files(&report, &[FileKind::Block])[0]);
    let tier = below(&files(&report, &[FileKind::Tier])[0]);
    let journal = below(&files(&report, &[FileKind::Journal])[0]);
    let (found, _) = damage(&|dir| std::fs::remove_file(dir.join(&tier)).unwrap());
    assert_eq!(found, [format!("{}: it is missing", tier.display())]);
    let (found, _) = damage(&|dir| {
        let file = std::fs::OpenOptions::new().write(true).open(dir.join(&block)).unwrap();
        file.set_len(100).unwrap();
    });
    assert!(found.len() == 1 && found[0].contains("it has 100 bytes"), "{found:?}");
    let (found, unknown) = damage(&|dir| std::fs::write(dir.join("tiers/stray.parquet"), b"x").unwrap());
    assert_eq!((found.len(), unknown), (0, 1));
    let (found, _) = damage(&|dir| {
        // Two records are needed: a first one that is damaged before one that is whole.
        let mut content = std::fs::read(dir.join(&journal)).unwrap();
        content[8] = 9;
        std::fs::write(dir.join(&journal), content).unwrap();
    });
    assert!(!found.is_empty(), "a header that is not the one that was written");
    let (found, _) = damage(&|dir| {
        let path = dir.join("catalogue.redb");
        let content = vec![0x5a; std::fs::read(&path).unwrap().len()];
        std::fs::write(path, content).unwrap();
    });
    assert!(found.len() == 1 && found[0].starts_with("catalogue.redb"), "{found:?}");
    let holdings = holdings(dir.path()).unwrap();
    assert_eq!(holdings.sensors, 3);
    assert_eq!(holdings.groups["integers"].rows, 2 * 5 * 600);
    assert!(holdings.groups.contains_key("tier 5min") && holdings.journal_bytes > 0);
}

#[test]
fn a_running_store_can_be_verified() {
    let mut random = Random::new(9);
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &mut random);
    let (store, _) = Store::open(config(dir.path())).unwrap();
    let mut steps = 0;
    let report = verify(dir.path(), &mut |done, total| {
        assert!(done <= total);
        steps += 1;
        if steps == 1 {
            // What is not read yet goes in the middle of it.
            store.seal().unwrap();
            store.maintain(START + 5 * DAY).unwrap();
        }
    })
    .unwrap();
    assert!(report.is_whole(), "{:?}", report.damaged().collect::<Vec<_>>());
    assert!(report.files.iter().any(|file| file.note.as_deref().is_some_and(|note| note.contains("meanwhile"))));
    drop(store);
    assert!(check(dir.path()).is_whole());
}
