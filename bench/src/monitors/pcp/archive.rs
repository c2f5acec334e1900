//! Counts what stands in a PCP archive: version 2 of LOGARCHIVE(5), whose layout that page gives.
//!
//! Counted here and not by `pmdumplog`, whose text of ten minutes of a busy logger has gigabytes.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// The tag of a label of version 2.
const TAG: u32 = 0x5005_2602;
/// Bytes of the shortest record: its length twice.
const RECORD_MIN: u32 = 8;
/// Bytes of the longest one that is believed: thousands of metrics of hundreds of instances.
const RECORD_MAX: u32 = 64 << 20;

/// Records of an archive and their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Values of the fullest record: what one sample has.
    pub values: u64,
    /// Samples: records that have more than half as many values. The others are of metrics that are logged once.
    pub samples: u64,
}

/// Removes the files of an earlier archive of that name: a logger writes over none.
pub fn remove(base: &Path) -> anyhow::Result<()> {
    let (dir, name) = (base.parent().unwrap_or(base), base.file_name().unwrap_or_default().to_string_lossy());
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.strip_prefix(name.as_ref()).is_some_and(|rest| rest.starts_with('.')) {
            std::fs::remove_file(entry.path()).with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// What the volumes `<base>.0`, `<base>.1`, … have, up to the last whole record: the logger may be writing.
pub fn count(base: &Path) -> anyhow::Result<Counted> {
    let mut records = Vec::new();
    for number in 0.. {
        let mut name = base.as_os_str().to_owned();
        name.push(format!(".{number}"));
        let volume = PathBuf::from(name);
        if number > 0 && !volume.exists() {
            break;
        }
        let file = File::open(&volume).with_context(|| format!("opening the archive {}", volume.display()))?;
        records.extend(values(BufReader::new(file)).with_context(|| format!("the archive {}", volume.display()))?);
    }
    let most = records.iter().copied().max().unwrap_or(0);
    let samples = records.iter().filter(|values| **values * 2 > most).count() as u64;
    Ok(Counted { values: most, samples })
}

/// How many values each record of a volume has.
fn values(mut volume: impl Read) -> anyhow::Result<Vec<u64>> {
    let mut records = Vec::new();
    let mut label = true;
    let mut rest = Vec::new();
    loop {
        let mut length = [0; 4];
        if !whole(volume.read_exact(&mut length))? {
            return Ok(records);
        }
        let length = u32::from_be_bytes(length);
        ensure!((RECORD_MIN..=RECORD_MAX).contains(&length), "a record of {length} bytes");
        rest.resize(length as usize - 4, 0);
        if !whole(volume.read_exact(&mut rest))? {
            return Ok(records);
        }
        let (payload, end) = rest.split_at(rest.len() - 4);
        ensure!(word(end, 0) == Some(length), "a record of {length} bytes whose end says another length");
        if label {
            ensure!(word(payload, 0) == Some(TAG), "it is not of version 2");
            label = false;
        } else {
            records.push(of_record(payload).context("a record that ends before its values")?);
        }
    }
}

/// Whether all was there; that a record is not whole yet is no error.
fn whole(read: std::io::Result<()>) -> std::io::Result<bool> {
    match read {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

/// The values of a record, over all metrics and instances.
fn of_record(payload: &[u8]) -> Option<u64> {
    let metrics = word(payload, 8)?;
    let mut at = 12;
    let mut sum = 0;
    for _ in 0..metrics {
        // A negative number is an error instead of values. Without values there is no word for their format.
        let number = (word(payload, at + 4)? as i32).max(0) as usize;
        at += 8;
        if number > 0 {
            at += 4 + number * 8;
        }
        sum += number as u64;
    }
    (at <= payload.len()).then_some(sum)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &[u32]) -> Vec<u8> {
        let length = payload.len() as u32 * 4 + 8;
        let words = [&[length], payload, &[length]].concat();
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// A sample of two metrics: one of `instances` instances, one that failed.
    fn sample(instances: u32) -> Vec<u8> {
        let mut payload = vec![1_700_000_000, 5, 2, 77, instances, 0];
        payload.extend((0..instances).flat_map(|instance| [instance, 42]));
        payload.extend([78, -12_i32 as u32]);
        record(&payload)
    }

    #[test]
    fn values_of_all_instances_count_and_records_of_few_values_are_no_samples() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("node");
        let label = record(&[TAG, 0, 0, 0, 0]);
        let second = [label.clone(), sample(10), sample(10)[..30].to_vec()].concat();
        std::fs::write(dir.path().join("node.0"), [label, sample(2), sample(10), sample(9)].concat()).unwrap();
        std::fs::write(dir.path().join("node.1"), second).unwrap();
        assert_eq!(count(&base).unwrap(), Counted { values: 10, samples: 3 });
    }

    #[test]
    fn an_earlier_archive_is_removed_and_another_nodes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["n1.0", "n1.meta", "n1.log", "n10.0"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        remove(&dir.path().join("n1")).unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(left, ["n10.0"]);
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        assert!(values(record(&[0x5005_2603, 0]).as_slice()).is_err());
        assert!(values([record(&[TAG, 0]), record(&[1, 2, 9, 3, 1, 0])].concat().as_slice()).is_err());
        let mut torn = record(&[TAG, 0]);
        *torn.last_mut().unwrap() = 99;
        assert!(values(torn.as_slice()).is_err());
        assert_eq!(values([].as_slice()).unwrap(), Vec::<u64>::new());
    }
}
