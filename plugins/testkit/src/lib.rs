//! What tests of sources of devices share: a configured source with its groups, read as the agent reads it.
//!
//! - In: a configured source.
//! - Out: its notes, groups and values; waits for what is expected, with the deadline of `wholegrain-testkit`; the CPU time of its polls.
//! - Never: in product code.

mod cost;

use std::collections::BTreeMap;
use std::path::Path;

use wholegrain_model::ValueType;
use wholegrain_model::config::{ConfigError, Document};
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reading, Row, Source, SourceType};
use wholegrain_testkit::{wait_for, wait_until};

pub use cost::{PeerProcess, PollCost, cpu_time};

/// The values of a group by the sensors' names, `None` for a gap.
pub type SensorValues = BTreeMap<String, Option<f64>>;

/// Configures a plug-in with the text of an agent's configuration in `folder`.
pub fn configure_plugin(kind: &SourceType, folder: &Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child(kind.name);
    (kind.configure)(&section, &ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() })
}

/// A configured source with its groups, as the agent has it.
pub struct SampledSource {
    pub source: Box<dyn Source>,
    pub notes: Vec<String>,
    pub groups: Vec<GroupPlan>,
}

impl SampledSource {
    /// Takes a source and discovers its groups once.
    pub fn of(source: Box<dyn Source>) -> Self {
        let mut running = Self { source, notes: Vec::new(), groups: Vec::new() };
        running.discover();
        running
    }

    pub fn discover(&mut self) {
        let notes = &mut self.notes;
        self.groups = self.source.discover(&mut |note| notes.push(note));
    }

    /// Waits for a note with this text, as a discovery gives it.
    pub fn wait_for_note(&mut self, part: &str) {
        wait_until(part, || {
            self.discover();
            self.notes.iter().any(|note| note.contains(part))
        });
    }

    pub fn count_notes(&self, part: &str) -> usize {
        self.notes.iter().filter(|note| note.contains(part)).count()
    }

    pub fn group(&mut self, name: &str) -> &mut GroupPlan {
        wait_until("the group", || {
            let is_there = self.groups.iter().any(|group| group.name == name);
            if !is_there {
                self.discover();
            }
            is_there
        });
        self.groups.iter_mut().find(|group| group.name == name).expect("a group of this name")
    }

    /// The bits of a sensor in the next answer that has some.
    pub fn bits(&mut self, name: &str, sensor: &str) -> i64 {
        wait_for("bits of a value", || {
            let group = self.group(name);
            let index = group.sensors.iter().position(|other| other.name == sensor)?;
            let count = group.sensors.len();
            let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
            let mut row = Row::new(&mut values, &mut gaps);
            group.reader.read(&mut row);
            row.int(index)
        })
    }

    pub fn read(&mut self, name: &str) -> (Reading, SensorValues) {
        let group = self.group(name);
        let count = group.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = group.reader.read(&mut row);
        let value = |index: usize| {
            let is_float = group.sensors[index].value_type == ValueType::Float;
            row.int(index).map(|bits| if is_float { f64::from_bits(bits as u64) } else { bits as f64 })
        };
        let values = group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), value(index)));
        let values = values.collect();
        if reading.layout_changed {
            self.discover();
        }
        (reading, values)
    }

    /// The next answer of a group for which `is_right` is true.
    pub fn answer(&mut self, name: &str, is_right: impl Fn(&SensorValues) -> bool) -> SensorValues {
        self.answer_at(name, is_right).1
    }

    /// The same with its time.
    pub fn answer_at(&mut self, name: &str, is_right: impl Fn(&SensorValues) -> bool) -> (i64, SensorValues) {
        wait_for("an answer", || {
            let (reading, values) = self.read(name);
            reading.taken_at.filter(|_| is_right(&values)).map(|taken_at| (taken_at, values))
        })
    }

    /// Waits until a group has gaps, with this problem.
    pub fn wait_for_gaps(&mut self, name: &str, expected: ReadProblem) {
        wait_until("gaps with a problem", || {
            let (reading, values) = self.read(name);
            let is_right = !reading.unchanged && reading.taken_at.is_none() && reading.problem == Some(expected);
            assert!(!is_right || values.values().all(Option::is_none), "{values:?}");
            is_right
        });
    }
}
