//! The source against sushy-tools, and against services that do everything wrong.

mod config;
mod events;
mod hostile;
mod mockup;
mod service;
mod sessions;
mod tls;

use std::collections::BTreeMap;

use wholegrain_model::ValueType;
use wholegrain_model::config::{ConfigError, Document};
use wholegrain_plugin_redfish::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reading, Row, Source};
use wholegrain_testkit::{wait_for, wait_until};

/// The values of a group by the sensors' names, `None` for a gap.
type Values = BTreeMap<String, Option<f64>>;

fn configure_in(folder: &std::path::Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("redfish");
    (SOURCE.configure)(&section, &ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() })
}

/// A configured source with its groups, as the agent has it.
struct Running {
    source: Box<dyn Source>,
    notes: Vec<String>,
    groups: Vec<GroupPlan>,
}

impl Running {
    fn new(text: &str) -> Self {
        Self::of(configure_in("".as_ref(), text).unwrap_or_else(|error| panic!("{error}")))
    }

    fn of(source: Box<dyn Source>) -> Self {
        let mut running = Self { source, notes: Vec::new(), groups: Vec::new() };
        running.discover();
        running
    }

    fn discover(&mut self) {
        let notes = &mut self.notes;
        self.groups = self.source.discover(&mut |note| notes.push(note));
    }

    /// Waits for a note with this text, as a discovery gives it.
    fn wait_for_note(&mut self, part: &str) {
        wait_until(part, || {
            self.discover();
            self.notes.iter().any(|note| note.contains(part))
        });
    }

    fn group(&mut self, name: &str) -> &mut GroupPlan {
        wait_until("the group", || {
            let is_there = self.groups.iter().any(|group| group.name == name);
            if !is_there {
                self.discover();
            }
            is_there
        });
        self.groups.iter_mut().find(|group| group.name == name).expect("a group of this name")
    }

    fn read(&mut self, name: &str) -> (Reading, Values) {
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

    /// The next answer of a controller for which `is_right` is true.
    fn answer(&mut self, name: &str, is_right: impl Fn(&Values) -> bool) -> Values {
        wait_for("an answer", || {
            let (reading, values) = self.read(name);
            (reading.taken_at.is_some() && is_right(&values)).then_some(values)
        })
    }

    /// Waits until a controller counts as one that does not answer: gaps, with this problem.
    fn wait_for_gaps(&mut self, name: &str, expected: ReadProblem) {
        wait_until("gaps with a problem", || {
            let (reading, values) = self.read(name);
            let is_right = !reading.unchanged && reading.taken_at.is_none() && reading.problem == Some(expected);
            assert!(!is_right || values.values().all(Option::is_none), "{values:?}");
            is_right
        });
    }
}
