//! The source against a real API, and against servers that do everything wrong.

mod documents;
mod fleet;
mod hostile;
mod prometheus;
#[path = "../../../http/tests/http/stub.rs"]
mod stub;
mod tables;
mod values;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use stub::StubServer;
use wholegrain_model::ValueType;
use wholegrain_model::config::{ConfigError, Document};
use wholegrain_plugin_rest::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reading, Row, Source};
use wholegrain_testkit::{wait_for, wait_until};

/// The values of a group by the sensors' names, `None` for a gap.
type Values = BTreeMap<String, Option<f64>>;

fn configure_in(folder: &Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("rest");
    (SOURCE.configure)(&section, &ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() })
}

/// Writes files of credentials with the modes that they need.
fn write_credentials(folder: &Path, files: &[(&str, &str)]) {
    let credentials = folder.join("credentials");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    for (name, text) in files {
        std::fs::write(credentials.join(name), text).unwrap();
        std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Settings with one device `d` with one address `u`; `keys` are those of the address, `common` those of the plug-in.
fn config(server: &StubServer, common: &str, keys: &str) -> String {
    format!(
        "[plugins.rest]\ninterval = \"40ms\"\nstale_after = \"1s\"\ntimeout = \"10s\"\n{common}\n[[plugins.rest.device]]\n\
         hosts = [\"127.0.0.1:{}\"]\npath = \"d\"\n[[plugins.rest.device.url]]\nname = \"u\"\nuri = \"/x\"\n{keys}\n",
        server.port
    )
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

    fn count_notes(&self, part: &str) -> usize {
        self.notes.iter().filter(|note| note.contains(part)).count()
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

    /// The bits of a sensor in the next answer that has some.
    fn bits(&mut self, name: &str, sensor: &str) -> i64 {
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

    /// The next answer of a group for which `is_right` is true.
    fn answer(&mut self, name: &str, is_right: impl Fn(&Values) -> bool) -> Values {
        self.answer_at(name, is_right).1
    }

    /// The same with its time.
    fn answer_at(&mut self, name: &str, is_right: impl Fn(&Values) -> bool) -> (i64, Values) {
        wait_for("an answer", || {
            let (reading, values) = self.read(name);
            reading.taken_at.filter(|_| is_right(&values)).map(|taken_at| (taken_at, values))
        })
    }

    /// Waits until a group has gaps, with this problem.
    fn wait_for_gaps(&mut self, name: &str, expected: ReadProblem) {
        wait_until("gaps with a problem", || {
            let (reading, values) = self.read(name);
            let is_right = !reading.unchanged && reading.taken_at.is_none() && reading.problem == Some(expected);
            assert!(!is_right || values.values().all(Option::is_none), "{values:?}");
            is_right
        });
    }
}
