//! The spool on a real directory, and on a disk that fills up, fails and loses power when the test says so.

mod page;
#[allow(dead_code)]
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use wholegrain_testkit::Random;
use wholegrain_transport::spool::disk::{Disk, DiskFile, SystemDisk};
use wholegrain_transport::spool::{DAMAGED_FILES_MAX, Record, RecordId, Spool, SpoolConfig, SpoolError, SpoolReport};

fn config(dir: &Path) -> SpoolConfig {
    SpoolConfig { dir: dir.to_owned(), bytes_max: 1 << 20, segment_bytes: 1 << 16, sync: true }
}

fn text(record: &Record) -> String {
    assert_eq!(record.topic, format!("t/{}", record.payload.len()));
    String::from_utf8(record.payload.clone()).unwrap()
}

fn push(spool: &mut Spool, payload: &str) -> RecordId {
    spool.push(&format!("t/{}", payload.len()), payload.as_bytes()).unwrap()
}

/// Everything that is left, in order; leaves it unconfirmed.
fn read_all(spool: &mut Spool) -> Vec<Record> {
    std::iter::from_fn(|| spool.next().unwrap()).collect()
}

fn texts(spool: &mut Spool) -> Vec<String> {
    read_all(spool).iter().map(text).collect()
}

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(suffix))
        .collect();
    files.sort();
    files
}

#[test]
fn oldest_first_confirmed_in_any_order_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (mut spool, report) = Spool::open(config(dir.path())).unwrap();
    assert_eq!(report, SpoolReport::default());
    let wanted: Vec<String> = (0..10).map(|number| format!("record {number}")).collect();
    wanted.iter().for_each(|text| _ = push(&mut spool, text));
    spool.flush().unwrap();
    let records = read_all(&mut spool);
    assert_eq!(records.iter().map(text).collect::<Vec<_>>(), wanted);
    for index in [0, 1, 4, 9, 4] {
        spool.confirm(records[index].id).unwrap();
    }
    assert_eq!(spool.len(), 6);
    // A lost connection: what was not confirmed comes again, and nothing else.
    spool.rewind();
    assert_eq!(texts(&mut spool), ["record 2", "record 3", "record 5", "record 6", "record 7", "record 8"]);
    assert!(matches!(Spool::open(config(dir.path())), Err(SpoolError::InUse { .. })));
    drop(spool);
    // A restart: also what was confirmed out of order.
    let (mut spool, report) = Spool::open(config(dir.path())).unwrap();
    assert_eq!((report.records, spool.len(), report.problems.len()), (8, 8, 0));
    push(&mut spool, "record 10");
    let records = read_all(&mut spool);
    assert_eq!(records.iter().map(text).collect::<Vec<_>>(), [&wanted[2..], &["record 10".to_owned()]].concat());
    records.iter().rev().for_each(|record| spool.confirm(record.id).unwrap());
    assert!(spool.is_empty());
    assert_eq!((spool.bytes(), files(dir.path(), ".spool").len()), (0, 0));
    push(&mut spool, "after");
    assert_eq!(texts(&mut spool), ["after"]);
}

#[test]
fn the_examples_of_the_page_are_what_the_code_reads_and_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(config(dir.path())).unwrap();
    spool.push("a/b", b"hi").unwrap();
    spool.push("c", b"").unwrap();
    let first = spool.next().unwrap().unwrap();
    spool.confirm(first.id).unwrap();
    drop(spool);
    let (segment, position) = (dir.path().join("00000000000000000001.spool"), dir.path().join("position"));
    assert_eq!(fs::read(&segment).unwrap(), page::example("segment"));
    assert_eq!(fs::read(&position).unwrap(), page::example("position"));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("00000000000000000001.spool"), page::example("segment")).unwrap();
    fs::write(dir.path().join("position"), page::example("position")).unwrap();
    let (mut spool, report) = Spool::open(config(dir.path())).unwrap();
    assert_eq!((report.records, report.problems), (1, vec![]));
    let record = spool.next().unwrap().unwrap();
    assert_eq!((record.topic.as_str(), record.payload.as_slice()), ("c", &b""[..]));
}

#[test]
fn the_oldest_is_dropped_at_the_bound_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let small = SpoolConfig { bytes_max: 4000, segment_bytes: 1000, ..config(dir.path()) };
    let (mut spool, _) = Spool::open(small.clone()).unwrap();
    for number in 0..200 {
        push(&mut spool, &format!("{number:080}"));
        assert!(spool.bytes() <= 4000);
        assert_eq!(spool.bytes(), files(dir.path(), ".spool").iter().map(|file| file.metadata().unwrap().len()).sum());
        if number == 20 {
            read_all(&mut spool);
        }
    }
    let dropped = spool.dropped();
    assert_eq!(spool.len() + dropped.records, 200);
    assert!(spool.len() >= 20, "{} records kept", spool.len());
    let left: Vec<usize> = texts(&mut spool).iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(left, (dropped.records as usize..200).collect::<Vec<_>>());
    let error = spool.push("t", &[0; 4000]).unwrap_err();
    assert!(matches!(error, SpoolError::TooLarge { .. }), "{error}");
    let error = spool.push(&"t".repeat(65_536), &[]).unwrap_err();
    assert!(matches!(error, SpoolError::TooLarge { .. }), "{error}");
    // A record larger than a segment has one to itself.
    spool.push("t", &[7; 2000]).unwrap();
    drop(spool);
    let (spool, report) = Spool::open(small).unwrap();
    assert_eq!((report.records, report.problems.len()), (spool.len(), 0));
}

#[test]
fn cut_at_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(config(dir.path())).unwrap();
    let mut ends = vec![8];
    for number in 0..6 {
        let payload = format!("record {number}{}", "x".repeat(number * 3));
        push(&mut spool, &payload);
        ends.push(ends.last().unwrap() + 8 + 2 + 4 + payload.len() - usize::from(payload.len() < 10));
    }
    drop(spool);
    let whole = fs::read(&files(dir.path(), ".spool")[0]).unwrap();
    assert_eq!(whole.len(), ends[6]);
    let zeros = vec![0; 50];
    for cut in 0..=whole.len() {
        for tail in [&[][..], &zeros] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("00000000000000000001.spool");
            fs::write(&file, [&whole[..cut], tail].concat()).unwrap();
            let (mut spool, report) = Spool::open(config(dir.path())).unwrap();
            let whole_records = ends[1..].iter().filter(|end| **end <= cut).count();
            // The zeros complete no record: these end in other bytes.
            assert_eq!(report.records as usize, whole_records, "cut at {cut}");
            if tail.is_empty() {
                let torn = if cut < 8 { cut } else { cut - ends[whole_records] };
                assert_eq!((report.torn_bytes as usize, report.damaged_bytes), (torn, 0), "cut at {cut}");
                assert_eq!(report.problems.len(), usize::from(torn > 0), "cut at {cut}");
            }
            push(&mut spool, "after");
            let left = texts(&mut spool);
            assert_eq!(left.len(), whole_records + 1, "cut at {cut}");
            assert!(
                left[..whole_records]
                    .iter()
                    .enumerate()
                    .all(|(number, text)| text.starts_with(&format!("record {number}")))
            );
            assert_eq!(left.last().unwrap(), "after");
            drop(spool);
            let (spool, report) = Spool::open(config(dir.path())).unwrap();
            assert_eq!(
                (report.problems.len(), spool.len() as usize),
                (0, whole_records + 1),
                "second start, cut at {cut}"
            );
        }
    }
}

/// A bad byte anywhere: what is before it arrives, the rest of its segment is dropped and reported, the other
/// segments arrive.
#[test]
fn damage_in_the_middle_drops_the_rest_of_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let segments = SpoolConfig { segment_bytes: 400, ..config(dir.path()) };
    let (mut spool, _) = Spool::open(segments.clone()).unwrap();
    (0..40).for_each(|number| _ = push(&mut spool, &format!("{number:030}")));
    drop(spool);
    let names = files(dir.path(), ".spool");
    let originals: Vec<_> = names.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(names.len() >= 4);
    for segment in 0..names.len() {
        for at in (0..originals[segment].len() - 48).step_by(7) {
            for leftover in files(dir.path(), ".damaged") {
                fs::remove_file(leftover).unwrap();
            }
            for (name, original) in names.iter().zip(&originals) {
                fs::write(name, original).unwrap();
            }
            let mut bad = originals[segment].clone();
            bad[at] ^= 0x55;
            fs::write(&names[segment], &bad).unwrap();
            let _ = fs::remove_file(dir.path().join("position"));
            let (mut spool, report) = Spool::open(segments.clone()).unwrap();
            let newest_length = segment + 1 == names.len() && report.torn_bytes > 0;
            if !newest_length {
                assert_eq!(report.problems.len(), 1, "segment {segment} at {at}: {report:?}");
                assert!(report.damaged_bytes > 0 && report.problems[0].contains("are dropped"), "{report:?}");
            }
            let records = read_all(&mut spool);
            assert_eq!(records.len() as u64, report.records);
            let numbers: BTreeSet<usize> = records.iter().map(|record| text(record).parse().unwrap()).collect();
            let lost: Vec<usize> = (0..40).filter(|number| !numbers.contains(number)).collect();
            assert!(!lost.is_empty() && lost.len() <= 9, "{lost:?}");
            assert!(lost.windows(2).all(|pair| pair[1] == pair[0] + 1), "{lost:?}");
            records.iter().for_each(|record| spool.confirm(record.id).unwrap());
            assert!(spool.is_empty());
            let aside = files(dir.path(), ".damaged");
            assert_eq!(aside.len(), usize::from(!newest_length), "segment {segment} at {at}");
            aside.iter().for_each(|file| assert_eq!(fs::read(file).unwrap(), bad));
        }
    }
}

#[test]
fn only_some_damaged_segments_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..DAMAGED_FILES_MAX + 3 {
        let (mut spool, _) = Spool::open(config(dir.path())).unwrap();
        push(&mut spool, "one");
        drop(spool);
        let file = files(dir.path(), ".spool").pop().unwrap();
        fs::write(file, b"something else").unwrap();
        let (spool, report) = Spool::open(config(dir.path())).unwrap();
        assert!(
            spool.is_empty() && report.problems[0].contains("does not begin with the header of a segment"),
            "{report:?}"
        );
    }
    assert_eq!(files(dir.path(), ".damaged").len(), DAMAGED_FILES_MAX);
}

/// A disk in memory that does what a real one does on a bad day.
#[derive(Clone, Default)]
struct BadDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, Content>,
    /// Bytes that fit in all; none for no bound.
    capacity: Option<usize>,
    /// Writes take at most so many bytes at once, if any.
    short_writes: Option<usize>,
    no_cut: bool,
    /// Reads behind this offset fail.
    unreadable_from: Option<u64>,
    /// Everything fails: the power is off.
    off: bool,
    locked: bool,
}

#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: usize,
    name_durable: bool,
}

impl BadDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn on(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.off { Err(io::Error::other("power is off")) } else { Ok(state) }
    }

    /// The machine loses power while the spool is open: what was not made durable may be gone, from some byte on.
    fn lose_power(&self, spool: Spool, random: &mut Random) {
        self.state().off = true;
        drop(spool);
        let mut state = self.state();
        state.off = false;
        state.locked = false;
        state.files.retain(|_, content| content.name_durable || random.chance(70));
        for content in state.files.values_mut() {
            let keep = content.durable + random.index(content.bytes.len() - content.durable + 1);
            content.bytes.truncate(keep);
            content.durable = keep;
        }
    }
}

struct Guard(BadDisk);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

impl Disk for BadDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        self.on().map(|_| ())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Send>>> {
        let was = std::mem::replace(&mut self.on()?.locked, true);
        Ok(if was { None } else { Some(Box::new(Guard(self.clone()))) })
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(self.on()?.files.keys().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect())
    }

    fn open(&self, file: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.on()?;
        if !state.files.contains_key(file) {
            if !create {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.files.insert(file.to_owned(), Content::default());
        }
        Ok(Box::new(BadFile { disk: self.clone(), path: file.to_owned() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.on()?;
        let content = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.on()?.files.remove(file).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.on()?.files.values_mut().for_each(|content| content.name_durable = true);
        Ok(())
    }
}

struct BadFile {
    disk: BadDisk,
    path: PathBuf,
}

impl BadFile {
    fn with<T>(&self, act: impl FnOnce(&mut Content) -> T) -> io::Result<T> {
        self.disk.on()?.files.get_mut(&self.path).map(act).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl DiskFile for BadFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|content| content.bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.disk.state().unreadable_from.is_some_and(|from| offset >= from) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.with(|content| {
            let rest = content.bytes.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (capacity, short) = {
            let state = self.disk.on()?;
            let used: usize = state.files.values().map(|content| content.bytes.len()).sum();
            (state.capacity.map(|capacity| capacity.saturating_sub(used)), state.short_writes)
        };
        self.with(|content| {
            let room = capacity.map_or(usize::MAX, |room| content.bytes.len().saturating_sub(offset as usize) + room);
            let count = bytes.len().min(room).min(short.unwrap_or(usize::MAX));
            if count == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let end = offset as usize + count;
            if content.bytes.len() < end {
                content.bytes.resize(end, 0);
            }
            content.bytes[offset as usize..end].copy_from_slice(&bytes[..count]);
            content.durable = content.durable.min(offset as usize);
            Ok(count)
        })?
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.disk.state().no_cut {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.with(|content| {
            content.bytes.resize(len as usize, 0);
            content.durable = content.durable.min(len as usize);
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|content| content.durable = content.bytes.len())
    }
}

fn on_bad_disk(disk: &BadDisk) -> (Spool, SpoolReport) {
    let config = SpoolConfig { dir: "/spool".into(), bytes_max: 20_000, segment_bytes: 1000, sync: true };
    Spool::open_on(config, Box::new(disk.clone())).unwrap()
}

#[test]
fn a_full_disk_is_an_error_and_no_more() {
    for no_cut in [false, true] {
        let disk = BadDisk::default();
        let (mut spool, _) = on_bad_disk(&disk);
        disk.state().capacity = Some(1500);
        let mut stored = Vec::new();
        let mut refused = 0;
        for number in 0..40 {
            disk.state().no_cut = no_cut && number % 2 == 0;
            match spool.push("t/30", format!("{number:030}").as_bytes()) {
                Ok(_) => stored.push(number),
                Err(error) => {
                    assert!(matches!(error, SpoolError::DiskFull { .. }), "{error}");
                    assert!(error.to_string().contains("make room"), "{error}");
                    refused += 1;
                }
            }
            assert_eq!(spool.len() as usize, stored.len());
        }
        assert!(refused >= 5, "{refused} refused");
        // There is space again: so it goes on, and everything that was said to be stored is there.
        disk.state().capacity = None;
        (40..50).for_each(|number| _ = (push(&mut spool, &format!("{number:030}")), stored.push(number)));
        spool.flush().unwrap();
        for restart in [false, true] {
            if restart {
                drop(spool);
                let report;
                (spool, report) = on_bad_disk(&disk);
                assert!(no_cut || report.problems.is_empty(), "{report:?}");
            }
            let left: Vec<i32> = texts(&mut spool).iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(left, stored);
            assert_eq!(spool.dropped().records, 0);
        }
    }
}

#[test]
fn what_cannot_be_read_is_counted_and_does_not_block_the_rest() {
    let disk = BadDisk::default();
    let (mut spool, _) = on_bad_disk(&disk);
    (0..40).for_each(|number| _ = push(&mut spool, &format!("{number:030}")));
    let first = spool.next().unwrap().unwrap();
    disk.state().unreadable_from = Some(8 + 3 * 44);
    let mut records = vec![first];
    records.extend(read_all(&mut spool));
    assert!(spool.dropped().records > 0);
    assert_eq!(records.len() as u64 + spool.dropped().records, 40);
    assert_eq!(spool.len(), records.len() as u64);
    disk.state().unreadable_from = None;
    push(&mut spool, "after");
    records.extend(read_all(&mut spool));
    assert_eq!(text(records.last().unwrap()), "after");
    records.iter().for_each(|record| spool.confirm(record.id).unwrap());
    assert!(spool.is_empty());
    let aside = disk.state().files.keys().filter(|path| path.to_str().unwrap().ends_with(".damaged")).count();
    assert!((1..=DAMAGED_FILES_MAX).contains(&aside), "{aside}");
}

/// Pushes, reads, confirms, restarts, power losses and full disks in any order, against what must be true: what was
/// flushed and not confirmed comes back, in order, as it was, and nothing else does.
#[test]
fn random_days_on_a_bad_disk() {
    let mut random = Random::seeded();
    for _ in 0..60 {
        let disk = BadDisk::default();
        let (mut spool, _) = on_bad_disk(&disk);
        let mut day = Day::default();
        for _ in 0..300 {
            day.act(&disk, &mut spool, &mut random);
            if random.chance(3) {
                if random.chance(50) {
                    disk.lose_power(spool, &mut random);
                } else {
                    drop(spool);
                    day.flushed.append(&mut day.pushed);
                }
                let report;
                (spool, report) = on_bad_disk(&disk);
                day.check(&mut spool, &report);
            }
        }
    }
}

#[derive(Default)]
struct Day {
    next: u32,
    ever: BTreeSet<u32>,
    /// Pushed since the last flush.
    pushed: BTreeSet<u32>,
    flushed: BTreeSet<u32>,
    confirmed: BTreeSet<u32>,
    handed: Vec<(u32, RecordId)>,
}

fn payload(number: u32) -> String {
    format!("{number:06}{}", "x".repeat(number as usize % 97))
}

impl Day {
    fn act(&mut self, disk: &BadDisk, spool: &mut Spool, random: &mut Random) {
        match random.index(100) {
            0..50 => {
                {
                    let mut state = disk.state();
                    let used: usize = state.files.values().map(|content| content.bytes.len()).sum();
                    state.capacity = random.chance(10).then(|| used + random.index(60));
                    state.short_writes = random.chance(20).then(|| 1 + random.index(20));
                }
                let text = payload(self.next);
                match spool.push(&format!("t/{}", text.len()), text.as_bytes()) {
                    Ok(_) => _ = (self.pushed.insert(self.next), self.ever.insert(self.next)),
                    Err(error) => assert!(matches!(error, SpoolError::DiskFull { .. }), "{error}"),
                }
                self.next += 1;
                (disk.state().capacity, disk.state().short_writes) = Default::default();
            }
            50..75 => {
                if let Some(record) = spool.next().unwrap() {
                    let number = text(&record)[..6].parse().unwrap();
                    assert!(!self.confirmed.contains(&number), "{number} again without a restart");
                    self.handed.push((number, record.id));
                }
            }
            75..93 if !self.handed.is_empty() => {
                let index = random.index(self.handed.len());
                let (number, id) = self.handed.swap_remove(index);
                spool.confirm(id).unwrap();
                self.confirmed.insert(number);
            }
            93..95 => {
                spool.rewind();
                self.handed.clear();
            }
            95.. => {
                spool.flush().unwrap();
                self.flushed.append(&mut self.pushed);
            }
            _ => {}
        }
        assert_eq!(spool.dropped().records, 0, "the bound is not reached in this test");
    }

    fn check(&mut self, spool: &mut Spool, report: &SpoolReport) {
        assert_eq!(report.damaged_bytes, 0, "{report:?}");
        let records = read_all(spool);
        let numbers: Vec<u32> = records.iter().map(|record| text(record)[..6].parse().unwrap()).collect();
        records.iter().zip(&numbers).for_each(|(record, number)| assert_eq!(text(record), payload(*number)));
        assert!(numbers.is_sorted_by(|a, b| a < b), "order: {numbers:?}");
        assert_eq!((report.records, spool.len()), (numbers.len() as u64, numbers.len() as u64));
        let there: BTreeSet<u32> = numbers.into_iter().collect();
        let lost: Vec<_> =
            self.flushed.iter().filter(|number| !there.contains(number) && !self.confirmed.contains(number)).collect();
        assert!(lost.is_empty(), "flushed and lost: {lost:?}");
        assert!(there.is_subset(&self.ever), "never pushed: {:?}", there.difference(&self.ever));
        // Duplicates after a crash are allowed: what is there waits for confirmation again.
        self.confirmed.retain(|number| !there.contains(number));
        self.pushed.clear();
        self.flushed = there;
        self.handed.clear();
        spool.rewind();
    }
}

#[test]
fn the_real_disk_locks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lock");
    let first = SystemDisk.lock(&file).unwrap();
    assert!(first.is_some() && SystemDisk.lock(&file).unwrap().is_none());
    drop(first);
    assert!(SystemDisk.lock(&file).unwrap().is_some());
}
