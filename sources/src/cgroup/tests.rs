//! Every format against every fixture: cut anywhere, changed at random.

use std::path::{Path, PathBuf};

use wholegrain_model::{Schema, SensorPath};

use super::*;
use crate::kept::{Kept, Parse};
use crate::table::Parsed;
use crate::testing::{Filled, Random, changed, filled, with_other_numbers};

struct Case {
    path: PathBuf,
    file: &'static File,
    bytes: Vec<u8>,
    sensors: Vec<SensorDef>,
    parser: Parser,
}

fn planned(file: &File, bytes: &[u8]) -> (Vec<SensorDef>, Parser) {
    let section = wholegrain_model::config::Document::new("agent.toml", "").root();
    let config = Config::read(&section).unwrap();
    let none = PathBuf::from("/nonexistent");
    let cgroup = Cgroup { config, devices: none.clone(), blkio: none, seen: HashMap::new() };
    Offer::testing(|offer| cgroup.parser(file, bytes, offer))
}

fn cases() -> Vec<Case> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut cases = Vec::new();
    for (tree, v1, v2) in [
        ("handmade", "slurm/uid_1000/job_4712", "system.slice/slurmstepd.scope/job_4711"),
        ("recorded", "slurm/uid_1000/job_42", "unified/slurm/uid_1000/job_42"),
    ] {
        let root = fixtures.join(tree).join("cgroup");
        for file in FILES {
            let directory = file.controller.map_or(root.join(v2), |name| root.join(name).join(v1));
            let path = directory.join(file.name());
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let (sensors, parser) = planned(file, &bytes);
            cases.push(Case { path, file, bytes, sensors, parser });
        }
    }
    assert!(cases.len() >= 60, "{} files", cases.len());
    cases
}

#[test]
fn a_file_gives_every_sensor_and_no_complaint() {
    for case in cases() {
        let Filled { values, parsed } = filled(case.sensors.len(), |row| case.parser.parse(&case.bytes, row));
        assert_eq!(parsed, Parsed::default(), "{}", case.path.display());
        assert!(!case.sensors.is_empty() && values.iter().all(Option::is_some), "{}", case.path.display());
    }
}

#[test]
fn a_file_cut_anywhere_gives_right_values_or_gaps() {
    for case in cases() {
        let parse = |bytes: &[u8]| filled(case.sensors.len(), |row| case.parser.parse(bytes, row));
        let whole = parse(&case.bytes).values;
        // An empty file of block devices is one of a job without I/O; an empty one of others is an error of the read.
        for end in 1..case.bytes.len() {
            let Filled { values, parsed } = parse(&case.bytes[..end]);
            let is_sum = |name: &str| name.starts_with("io/") && name.matches('/').count() == 1;
            for ((value, right), sensor) in values.iter().zip(&whole).zip(&case.sensors) {
                // Whole lines of devices can be missing without a trace but for the new layout.
                let is_told = parsed.layout_changed && is_sum(&sensor.name);
                assert!(
                    value.is_none() || value == right || is_told,
                    "{} cut at {end}: {} is {value:?}",
                    case.path.display(),
                    sensor.name
                );
            }
            let is_noticed = parsed != Parsed::default() || values == whole;
            let is_operations = matches!(case.file.format, Format::Io(layout) if layout != io::Layout::Unified);
            assert!(is_noticed || is_operations, "{} cut at {end}: gaps and nothing said", case.path.display());
        }
    }
}

#[test]
fn a_file_changed_at_random_does_no_harm() {
    let mut random = Random::new();
    for case in cases() {
        for round in 0..300 {
            let bytes = changed(&case.bytes, &mut random);
            let lines = bytes.split(|byte| *byte == b'\n').count() as u32;
            let parsed = filled(case.sensors.len(), |row| case.parser.parse(&bytes, row)).parsed;
            let path = case.path.display();
            assert!(parsed.garbage.is_none_or(|line| (1..=lines).contains(&line)), "{path} round {round}");
            let (sensors, parser) = planned(case.file, &bytes);
            let count = sensors.len();
            if count > 0 {
                let prefix = SensorPath::new("/n/job/1").unwrap();
                Schema::new(prefix, "g", sensors).unwrap_or_else(|e| panic!("{path} round {round}: {e}"));
            }
            let again = filled(count, |row| parser.parse(&bytes, row)).parsed;
            let asks_again = again.layout_changed && again.garbage.is_none();
            assert!(count == 0 || !asks_again, "{path} round {round}: discovery would follow discovery");
        }
    }
}

#[test]
fn readers_of_a_choice_touch_only_their_places() {
    for case in cases() {
        for keep in 0..case.sensors.len() {
            let slots: Vec<Slot> = (0..case.sensors.len()).map(|n| (n == keep).then_some(1)).collect();
            let parser = case.parser.mapped(&slots);
            let whole = filled(case.sensors.len(), |row| case.parser.parse(&case.bytes, row)).values;
            let Filled { values, parsed } = filled(3, |row| parser.parse(&case.bytes, row));
            assert_eq!((values, parsed), (vec![None, whole[keep], None], Parsed::default()), "{}", case.path.display());
        }
    }
}

#[test]
fn what_is_kept_of_the_last_content_gives_what_reading_anew_gives() {
    let mut random = Random::new();
    for case in cases() {
        let (parser, path) = (&case.parser, case.path.display());
        let mut kept = Kept::new(parser, Room::of(parser, &case.bytes));
        for round in 0..300 {
            let bytes = match random.below(8) {
                0 => changed(&case.bytes, &mut random),
                1 => case.bytes.clone(),
                _ => with_other_numbers(&case.bytes, &mut random),
            };
            let afresh = filled(case.sensors.len(), |row| parser.parse(&bytes, row));
            let after = filled(case.sensors.len(), |row| kept.parse(parser, &bytes, row));
            assert_eq!((after.values, after.parsed), (afresh.values, afresh.parsed), "{path} round {round}");
        }
        let is_number = matches!(parser, Parser::Number(..));
        assert!(is_number || kept.is_of_use(), "{path}");
    }
}
