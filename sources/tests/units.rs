//! The units of all sensors can be converted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use wholegrain_model::Unit;

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[track_caller]
fn check(units: &BTreeSet<String>, least: usize) {
    assert!(units.len() >= least, "{units:?}");
    let wrong: Vec<String> =
        units.iter().filter_map(|unit| Unit::parse(unit).err()).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn of_all_sensors_of_the_fixtures() {
    let golden = include_str!("../fixtures/golden.txt");
    let unit = |line: &str| {
        let (before, _) = line.split_once(" gauge").or_else(|| line.split_once(" counter"))?;
        let mut words = before.split_whitespace();
        (words.clone().count() >= 3).then(|| words.next_back().map(str::to_owned)).flatten()
    };
    check(&golden.lines().filter(|line| !line.starts_with(['#', '[', '!'])).filter_map(unit).collect(), 8);
}

/// Also units of hardware without a fixture: literals in the second argument of `SensorDef::gauge` and `counter`, in tables (a name, a unit, …), and
/// in selections by a name.
#[test]
fn of_literals_in_the_sources() {
    let mut files = Vec::new();
    for dir in ["src", "../agent/src"] {
        rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut files);
    }
    let mut units = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for call in ["gauge(", "counter("] {
            for (at, _) in text.match_indices(call) {
                let arguments = text[at..].split(';').next().unwrap_or_default();
                // The literal after the first comma at the depth of the call.
                let mut depth = 0;
                let comma = arguments.char_indices().find(|(_, c)| {
                    match c {
                        '(' => depth += 1,
                        ')' => depth -= 1,
                        _ => {}
                    }
                    *c == ',' && depth == 1
                });
                let second =
                    comma.map(|(at, _)| arguments[at + 1..].trim_start()).and_then(|rest| rest.strip_prefix('"'));
                units.extend(second.and_then(|rest| rest.split_once('"')).map(|(unit, _)| unit.to_owned()));
            }
        }
        for before in ["unit: \"", "unit = \"", "=> (\""] {
            for (at, _) in text.match_indices(before) {
                let found = text[at + before.len()..].split_once('"');
                // In a selection by name a scale follows.
                let scaled = |rest: &str| {
                    rest.strip_prefix(", ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                };
                let found = found.filter(|(_, rest)| !before.starts_with('=') || scaled(rest));
                units.extend(found.map(|(unit, _)| unit.to_owned()));
            }
        }
    }
    check(&units, 12);
}
