//! Every format with every fixture: cut anywhere, randomly changed.

use std::path::{Path, PathBuf};

use wholegrain_model::{Schema, SensorDef, SensorPath};

use super::*;
use crate::parse::{IncrementalParser, ParseOutcome, ParserCapacity, TextParser};
use crate::plan::Slot;
use crate::testing::{self, Filled, Random, changed, filled, with_other_numbers};

struct Case {
    path: PathBuf,
    file: &'static CgroupFile,
    bytes: Vec<u8>,
    sensors: Vec<SensorDef>,
    parser: CgroupParser,
}

fn planned(file: &CgroupFile, bytes: &[u8]) -> (Vec<SensorDef>, CgroupParser) {
    let (config, none) = (CgroupConfig::default(), PathBuf::from("/nonexistent"));
    let options = config.options();
    let source = CgroupSource { config, options, devices: none.clone(), blkio: none, last_contents: HashMap::new() };
    testing::planned(|plan| source.parser(file, bytes, plan))
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
fn a_file_gives_every_sensor_without_errors() {
    for case in cases() {
        let Filled { values, outcome } = filled(case.sensors.len(), |row| case.parser.parse(&case.bytes, row));
        assert_eq!(outcome, ParseOutcome::default(), "{}", case.path.display());
        assert!(!case.sensors.is_empty() && values.iter().all(Option::is_some), "{}", case.path.display());
    }
}

#[test]
fn a_file_cut_anywhere_gives_right_values_or_gaps() {
    for case in cases() {
        let parse = |bytes: &[u8]| filled(case.sensors.len(), |row| case.parser.parse(bytes, row));
        let whole = parse(&case.bytes).values;
        // An empty file of block devices belongs to a job without I/O. Other empty files are errors of the read.
        for end in 1..case.bytes.len() {
            let Filled { values, outcome } = parse(&case.bytes[..end]);
            let is_sum = |name: &str| name.starts_with("io/") && name.matches('/').count() == 1;
            for ((value, right), sensor) in values.iter().zip(&whole).zip(&case.sensors) {
                // Only the changed layout shows that complete lines of devices are missing.
                let is_reported = outcome.layout_changed && is_sum(&sensor.name);
                assert!(
                    value.is_none() || value == right || is_reported,
                    "{} cut at {end}: {} is {value:?}",
                    case.path.display(),
                    sensor.name
                );
            }
            let is_noticed = outcome != ParseOutcome::default() || values == whole;
            let is_operations = matches!(case.file.format, FileFormat::Io(layout) if layout != io::IoLayout::Unified);
            assert!(is_noticed || is_operations, "{} cut at {end}: gaps without a report", case.path.display());
        }
    }
}

#[test]
fn a_randomly_changed_file_gives_valid_results() {
    let mut random = Random::seeded();
    for case in cases() {
        for round in 0..300 {
            let bytes = changed(&case.bytes, &mut random);
            let lines = bytes.split(|byte| *byte == b'\n').count() as u32;
            let outcome = filled(case.sensors.len(), |row| case.parser.parse(&bytes, row)).outcome;
            let path = case.path.display();
            assert!(outcome.garbage.is_none_or(|line| (1..=lines).contains(&line)), "{path} round {round}");
            let (sensors, parser) = planned(case.file, &bytes);
            let count = sensors.len();
            if count > 0 {
                let prefix = SensorPath::new("/n/job/1").unwrap();
                Schema::new(prefix, "g", sensors).unwrap_or_else(|e| panic!("{path} round {round}: {e}"));
            }
            let again = filled(count, |row| parser.parse(&bytes, row)).outcome;
            let asks_again = again.layout_changed && again.garbage.is_none();
            assert!(count == 0 || !asks_again, "{path} round {round}: discovery would repeat forever");
        }
    }
}

#[test]
fn readers_of_a_selection_fill_only_their_slots() {
    for case in cases() {
        for keep in 0..case.sensors.len() {
            let slots: Vec<Slot> = (0..case.sensors.len()).map(|n| (n == keep).then_some(1)).collect();
            let parser = case.parser.mapped(&slots);
            let whole = filled(case.sensors.len(), |row| case.parser.parse(&case.bytes, row)).values;
            let Filled { values, outcome } = filled(3, |row| parser.parse(&case.bytes, row));
            assert_eq!(
                (values, outcome),
                (vec![None, whole[keep], None], ParseOutcome::default()),
                "{}",
                case.path.display()
            );
        }
    }
}

#[test]
fn the_incremental_parser_gives_what_a_full_parse_gives() {
    let mut random = Random::seeded();
    for case in cases() {
        let (parser, path) = (&case.parser, case.path.display());
        let mut incremental_parser = IncrementalParser::new(parser, ParserCapacity::of(parser, &case.bytes));
        for round in 0..300 {
            let bytes = match random.index(8) {
                0 => changed(&case.bytes, &mut random),
                1 => case.bytes.clone(),
                _ => with_other_numbers(&case.bytes, &mut random),
            };
            let full = filled(case.sensors.len(), |row| parser.parse(&bytes, row));
            let incremental = filled(case.sensors.len(), |row| incremental_parser.parse(parser, &bytes, row));
            assert_eq!((incremental.values, incremental.outcome), (full.values, full.outcome), "{path} round {round}");
        }
        let is_number = matches!(parser, CgroupParser::Number(..));
        assert!(is_number || incremental_parser.has_text(), "{path}");
    }
}
