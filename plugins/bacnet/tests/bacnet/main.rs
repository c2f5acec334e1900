//! The source against devices of bacpypes3, and against devices that do everything wrong.

mod bacpypes;
mod hostile;

use std::time::Duration;

use wholegrain_devices::system_time;
use wholegrain_model::ValueType;
use wholegrain_model::config::{ConfigError, Document};
use wholegrain_plugin_bacnet::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reading, Row, Source};
use wholegrain_testkit::{wait_for, wait_until};

/// A value of a row as its sensor's type has it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RowValue {
    Int(i64),
    Float(f64),
    Gap,
}

fn configure(text: &str) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("bacnet");
    (SOURCE.configure)(&section, &ConfigureContext::default())
}

/// A configured source with its groups, as the agent has it.
struct BacnetRun {
    source: Box<dyn Source>,
    notes: Vec<String>,
    groups: Vec<GroupPlan>,
}

impl BacnetRun {
    fn new(text: &str) -> Self {
        let source = configure(text).expect("a valid configuration");
        let mut running = Self { source, notes: Vec::new(), groups: Vec::new() };
        running.discover();
        running
    }

    fn discover(&mut self) {
        let Self { source, notes, groups } = self;
        *groups = source.discover(&mut |note| notes.push(note));
    }

    /// What the administrator learns now and has learnt since the last call, each text once.
    fn notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        self.source.discover(&mut |note| notes.push(note));
        notes.sort();
        notes.dedup();
        notes
    }

    /// Waits until a group is there, with discovery as the agent has it.
    fn wait_for_group(&mut self, name: &str) {
        wait_until("the group", || {
            self.discover();
            self.groups.iter().any(|group| group.name == name)
        });
    }

    fn group(&self, name: &str) -> &GroupPlan {
        self.groups.iter().find(|plan| plan.name == name).expect("a group of this name")
    }

    fn read(&mut self, group: &str) -> (Reading, Vec<RowValue>) {
        let group = self.groups.iter_mut().find(|plan| plan.name == group).expect("a group of this name");
        let count = group.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = group.reader.read(&mut row);
        let value = |index: usize| match row.int(index) {
            None => RowValue::Gap,
            Some(bits) if group.sensors[index].value_type == ValueType::Float => {
                RowValue::Float(f64::from_bits(bits as u64))
            }
            Some(value) => RowValue::Int(value),
        };
        (reading, (0..count).map(value).collect())
    }

    /// The next answer of a device: its time and its values.
    fn answer(&mut self, group: &str) -> (i64, Vec<RowValue>) {
        wait_for("an answer", || {
            let (reading, values) = self.read(group);
            Some((reading.taken_at?, values))
        })
    }

    /// Waits until a device counts as one that does not answer: gaps, with this problem.
    fn wait_for_gaps(&mut self, group: &str, problem: impl Fn(ReadProblem) -> bool) {
        wait_until("gaps with a problem", || {
            let (reading, values) = self.read(group);
            let is_right = !reading.unchanged && reading.taken_at.is_none() && reading.problem.is_some_and(&problem);
            assert!(!is_right || values.iter().all(|value| *value == RowValue::Gap));
            is_right
        });
    }
}

/// Checks that an answer was taken within the last minute, and not in the future.
#[track_caller]
fn check_time(taken_at: i64) {
    let age = system_time() - taken_at;
    assert!((0..Duration::from_secs(60).as_nanos() as i64).contains(&age), "{age} ns");
}
