//! Names with any characters, cut and changed stats, and more processes than the bound.

use super::*;
use crate::testing::{Random, changed};

const STAT: &str =
    "1 (a) b (c) S 0 0 0 0 -1 4194560 40545 31973663 0 1935 85 112 140513 13565 20 0 11 0 9 50679808 5304\n";

#[test]
fn the_state_follows_the_last_parenthesis() {
    assert_eq!(parse(STAT.as_bytes()), Some((b'S', 11)));
    assert_eq!(parse(STAT.replace(" S ", " R ").as_bytes()), Some((b'R', 11)));
    for bad in ["", "1", "1 (a", "1 (a) ", "1 (a) S", "1 (a) S 1 2 3", "1 (a) SS 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0"] {
        assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
    }
}

#[test]
fn a_cut_stat_gives_the_right_values_or_none() {
    for end in 0..STAT.len() {
        let found = parse(&STAT.as_bytes()[..end]);
        assert!(found.is_none_or(|found| found == (b'S', 11)), "cut at {end}: {found:?}");
    }
    let mut random = Random::seeded();
    for _ in 0..2000 {
        parse(&changed(STAT.as_bytes(), &mut random));
    }
}

#[test]
fn entries_of_a_folder_that_are_cut_are_none() {
    let mut bytes = vec![0; 24];
    bytes[16..18].copy_from_slice(&24u16.to_ne_bytes());
    bytes[19..21].copy_from_slice(b"42");
    assert_eq!(entry(&bytes), Some((b"42".as_slice(), b"".as_slice())));
    for end in 0..24 {
        assert_eq!(entry(&bytes[..end]), None, "cut at {end}");
    }
    bytes[16..18].copy_from_slice(&3u16.to_ne_bytes());
    assert_eq!(entry(&bytes), None, "an entry that is shorter than its name's place");
}

fn reader(root: &Path, max: u32) -> ProcessesReader {
    let folder = File::open(root).unwrap();
    let states = std::array::from_fn(|index| Some(index as u32));
    ProcessesReader { folder, max, states, total: Some(8), threads: Some(9), names: [0; NAMES_BYTES] }
}

#[test]
fn all_processes_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let state = |index: u32| char::from(STATES[index as usize % STATES.len()].0);
    for pid in 1..=1000u32 {
        let own = folder.path().join(pid.to_string());
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("stat"), STAT.replace(" S ", &format!(" {} ", state(pid)))).unwrap();
    }
    std::fs::create_dir(folder.path().join("sys")).unwrap();
    // It has ended since its name was read.
    std::fs::remove_file(folder.path().join("8/stat")).unwrap();
    let expected = Counts { states: [124, 125, 125, 125, 125, 125, 125, 125], total: 999, threads: 999 * 11 };
    let mut all = reader(folder.path(), 1000);
    assert_eq!(all.count(), Ok(expected));
    assert_eq!(all.count(), Ok(expected), "again from the beginning");
    assert_eq!(reader(folder.path(), 999).count(), Err(ReadProblem::Os { what: NAME, errno: libc::E2BIG }));
    std::fs::write(folder.path().join("77/stat"), "garbage").unwrap();
    assert_eq!(all.count(), Err(ReadProblem::Garbage { what: NAME, line: 1 }));
}

#[test]
fn this_machine_has_this_process() {
    let counts = reader(Path::new("/proc"), PROCESSES_MAX).count().unwrap();
    assert!(counts.total >= 1 && counts.threads >= counts.total, "{counts:?}");
    assert_eq!(counts.states.iter().sum::<i64>(), counts.total, "{counts:?}");
}
