//! Every format against every fixture: cut anywhere, changed at random.

use std::path::{Path, PathBuf};

use wholegrain_model::config::Document;
use wholegrain_model::{Schema, SensorDef, SensorPath};

use super::config::{Config, Group};
use super::*;
use crate::testing::{Filled, Random, changed, filled, with_other_numbers};

/// One file of a fixture, with what discovery made of it.
struct Case {
    path: PathBuf,
    bytes: Vec<u8>,
    group: Group,
    what: &'static str,
    sensors: Vec<SensorDef>,
    parser: Parser,
}

fn procfs() -> Procfs {
    let section = Document::new("agent.toml", "").root();
    Procfs { config: Config::read(&section).unwrap(), root: PathBuf::new(), ticks_hz: 100, unseen: Vec::new() }
}

fn planned(group: Group, what: &'static str, bytes: &[u8]) -> (Vec<SensorDef>, Parser) {
    let options = GroupOptions::default();
    let mut report = |_| {};
    let mut plan = Plan::new(&options, &options, &mut report);
    let parser = procfs().parser(group, what, bytes, &mut plan);
    (plan.into_sensors(), parser)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for tree in ["recorded", "handmade"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(tree).join("proc");
        for group in Group::ALL {
            for &what in files(group) {
                let path = root.join(what);
                let Ok(bytes) = std::fs::read(&path) else { continue };
                let (sensors, parser) = planned(group, what, &bytes);
                cases.push(Case { path, bytes, group, what, sensors, parser });
            }
        }
    }
    assert!(cases.len() >= 19, "{} fixtures", cases.len());
    cases
}

impl Case {
    /// Both afresh and after the fixture's own content, which must give the same.
    fn parse(&self, bytes: &[u8]) -> Filled {
        let mut kept = Kept::new(&self.parser, Room::of(&self.parser, &self.bytes));
        let afresh = filled(self.sensors.len(), |row| self.parser.parse(bytes, row));
        filled(self.sensors.len(), |row| kept.parse(&self.parser, &self.bytes, row));
        let after = filled(self.sensors.len(), |row| kept.parse(&self.parser, bytes, row));
        assert_eq!((&after.values, after.parsed), (&afresh.values, afresh.parsed), "{}", self.path.display());
        afresh
    }
}

#[test]
fn a_fixture_gives_every_sensor_and_no_complaint() {
    for case in cases() {
        let Filled { values, parsed } = case.parse(&case.bytes);
        assert_eq!(parsed, Parsed::default(), "{}", case.path.display());
        assert!(values.iter().all(Option::is_some), "{}", case.path.display());
        assert!(!case.sensors.is_empty(), "{}", case.path.display());
    }
}

#[test]
fn a_file_cut_anywhere_gives_right_values_or_gaps() {
    for case in cases() {
        let whole = case.parse(&case.bytes).values;
        for end in 0..case.bytes.len() {
            let Filled { values, parsed } = case.parse(&case.bytes[..end]);
            for (index, value) in values.iter().enumerate() {
                let name = &case.sensors[index].name;
                assert!(
                    value.is_none() || *value == whole[index],
                    "{} cut at {end}: {name} is {value:?}",
                    case.path.display()
                );
            }
            let is_noticed = parsed != Parsed::default() || values == whole;
            assert!(is_noticed, "{} cut at {end}: gaps and nothing said", case.path.display());
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
            let Filled { parsed, .. } = case.parse(&bytes);
            assert!(
                parsed.garbage.is_none_or(|line| (1..=lines).contains(&line)),
                "{} round {round}",
                case.path.display()
            );
            // Discovery of the same must give names that a schema takes, and a parser that agrees with it.
            let (sensors, parser) = planned(case.group, case.what, &bytes);
            let count = sensors.len();
            if count > 0 {
                Schema::new(SensorPath::new("/n").unwrap(), "g", sensors)
                    .unwrap_or_else(|e| panic!("round {round}: {e}"));
            }
            let again = filled(count, |row| parser.parse(&bytes, row));
            let asks_again = again.parsed.layout_changed && again.parsed.garbage.is_none();
            assert!(
                count == 0 || !asks_again,
                "{} round {round}: discovery would follow discovery",
                case.path.display()
            );
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
        assert!(kept.is_of_use(), "{path}");
    }
}
