//! Every format with every fixture: cut anywhere, randomly changed.

use std::path::{Path, PathBuf};

use wholegrain_model::config::Document;
use wholegrain_model::{Schema, SensorDef, SensorPath};

use super::groups::GROUPS;
use super::*;
use crate::parse::{IncrementalParser, ParseOutcome, ParserCapacity, TextParser};
use crate::testing::{Filled, Random, changed, filled, with_other_numbers};

/// A file of a fixture, with the result of its discovery.
struct Case {
    path: PathBuf,
    bytes: Vec<u8>,
    group: &'static ProcGroup,
    file: &'static ProcFile,
    captures: Vec<String>,
    sensors: Vec<SensorDef>,
    parser: ProcParser,
}

fn source(roots: Roots) -> ProcfsSource {
    let config = "[sources.procfs]\ngroups = [\"all\"]\nper_cpu = true\n";
    let section = Document::new("agent.toml", config).root().child("sources").child("procfs");
    ProcfsSource { config: ProcfsConfig::read(&section).unwrap(), roots, ticks_hz: 100, unseen: Vec::new() }
}

fn planned(
    group: &'static ProcGroup,
    file: &'static ProcFile,
    captures: &[String],
    bytes: &[u8],
) -> (Vec<SensorDef>, ProcParser) {
    let source = source(Roots::default());
    let (options, mut report) = (GroupOptions::default(), |_| {});
    let mut plan = SensorPlan::new(&options, &options, &mut report);
    let parser = (group.plan)(&source.context(group, file, captures), bytes, &mut plan);
    (plan.into_sensors(), parser)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for tree in ["recorded", "handmade"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(tree);
        let source = source(Roots { proc: root.join("proc"), sys: root.join("sys"), cgroup: root.join("cgroup") });
        for group in GROUPS {
            for file in group.files {
                for PathMatch { path, captures } in source.places(file) {
                    let Ok(bytes) = std::fs::read(&path) else { continue };
                    let (sensors, parser) = planned(group, file, &captures, &bytes);
                    cases.push(Case { path, bytes, group, file, captures, sensors, parser });
                }
            }
        }
    }
    let with_case = |group: &&ProcGroup| cases.iter().any(|case| case.group == *group);
    let without: Vec<&str> = GROUPS.iter().filter(|group| !with_case(group)).map(|group| group.name).collect();
    assert!(without.is_empty(), "groups without a fixture: {without:?}");
    cases
}

impl Case {
    /// Parses fully, and incrementally after the fixture's own content. Both must give the same result.
    fn parse(&self, bytes: &[u8]) -> Filled {
        let mut incremental_parser =
            IncrementalParser::new(&self.parser, ParserCapacity::of(&self.parser, &self.bytes));
        let full = filled(self.sensors.len(), |row| self.parser.parse(bytes, row));
        filled(self.sensors.len(), |row| incremental_parser.parse(&self.parser, &self.bytes, row));
        let incremental = filled(self.sensors.len(), |row| incremental_parser.parse(&self.parser, bytes, row));
        assert_eq!((&incremental.values, incremental.outcome), (&full.values, full.outcome), "{}", self.path.display());
        full
    }
}

#[test]
fn a_fixture_gives_every_sensor_without_errors() {
    for case in cases() {
        let Filled { values, outcome } = case.parse(&case.bytes);
        assert_eq!(outcome, ParseOutcome::default(), "{}", case.path.display());
        assert!(values.iter().all(Option::is_some), "{}", case.path.display());
        assert!(!case.sensors.is_empty(), "{}", case.path.display());
    }
}

#[test]
fn a_file_cut_anywhere_gives_right_values_or_gaps() {
    for case in cases() {
        let whole = case.parse(&case.bytes).values;
        for end in 0..case.bytes.len() {
            let Filled { values, outcome } = case.parse(&case.bytes[..end]);
            for (index, value) in values.iter().enumerate() {
                let name = &case.sensors[index].name;
                assert!(
                    value.is_none() || *value == whole[index],
                    "{} cut at {end}: {name} is {value:?}",
                    case.path.display()
                );
            }
            let is_noticed = outcome != ParseOutcome::default() || values == whole;
            assert!(is_noticed, "{} cut at {end}: gaps without a report", case.path.display());
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
            let Filled { outcome, .. } = case.parse(&bytes);
            assert!(
                outcome.garbage.is_none_or(|line| (1..=lines).contains(&line)),
                "{} round {round}",
                case.path.display()
            );
            // Discovery of the changed file must give valid names, and a parser without a changed layout.
            let (sensors, parser) = planned(case.group, case.file, &case.captures, &bytes);
            let count = sensors.len();
            if count > 0 {
                Schema::new(SensorPath::new("/n").unwrap(), "g", sensors)
                    .unwrap_or_else(|e| panic!("round {round}: {e}"));
            }
            let again = filled(count, |row| parser.parse(&bytes, row));
            let asks_again = again.outcome.layout_changed && again.outcome.garbage.is_none();
            assert!(count == 0 || !asks_again, "{} round {round}: discovery would repeat forever", case.path.display());
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
        assert!(incremental_parser.has_text(), "{path}");
    }
}
