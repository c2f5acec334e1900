//! A source as the agent has it: discovered, and read group by group.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use wholegrain_model::config::Document;
use wholegrain_model::{SensorDef, ValueType};
use wholegrain_plugin_ipmi::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, Reading, Row, Source};
use wholegrain_testkit::wait_for;

use crate::stand_in::{PASSWORD, StandIn, USER};

/// A source with its groups.
pub struct Sampled {
    source: Box<dyn Source>,
    groups: BTreeMap<String, GroupPlan>,
    /// All notes, each as often as it was reported.
    pub notes: Vec<String>,
    _folder: tempfile::TempDir,
}

/// Puts a file of credentials into `folder/credentials`.
pub fn put_credentials(folder: &Path, name: &str, text: &str) {
    let credentials = folder.join("credentials");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(credentials.join(name), text).unwrap();
    std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A source of this configuration with credentials `bmc` of this text, after its first discovery.
pub fn source(text: &str, credentials: &str) -> Sampled {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "bmc", credentials);
    let section = Document::new("agent.toml", text).root().child("plugins").child("ipmi");
    let context = ConfigureContext { config_dir: folder.path().to_owned(), ..ConfigureContext::default() };
    let source = (SOURCE.configure)(&section, &context).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut sampled = Sampled { source, groups: BTreeMap::new(), notes: Vec::new(), _folder: folder };
    sampled.discover();
    sampled
}

/// The right credentials of the stand-in.
pub fn right() -> String {
    format!("user = \"{USER}\"\npassword = \"{PASSWORD}\"\n")
}

/// A source of these controllers with paths `d0`, `d1`, …, and more keys for each.
pub fn devices(ports: &[u16], keys: &str) -> Sampled {
    let mut text = "[plugins.ipmi]\ninterval = \"200ms\"\ntimeout = \"400ms\"\nretries = 2\n".to_owned();
    for (number, port) in ports.iter().enumerate() {
        text += &format!(
            "[[plugins.ipmi.device]]\nhosts = [\"127.0.0.1:{port}\"]\npath = \"d{number}\"\ncredentials = \"bmc\"\n{keys}\n"
        );
    }
    source(&text, &right())
}

/// A source of one controller at the path `d0`.
pub fn device(bmc: &StandIn, keys: &str) -> Sampled {
    devices(&[bmc.port], keys)
}

impl Sampled {
    /// Discovers again, as the agent does.
    pub fn discover(&mut self) {
        let notes = &mut self.notes;
        let plans = self.source.discover(&mut |note| notes.push(note));
        self.groups = plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect();
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// How often a text was noted so far.
    pub fn noted(&mut self, text: &str) -> usize {
        self.discover();
        self.notes.iter().filter(|note| note.contains(text)).count()
    }

    /// Reads a group: its values without gaps, as raw numbers.
    pub fn read(&mut self, group: &str) -> (Reading, BTreeMap<String, f64>) {
        let Some(plan) = self.groups.get_mut(group) else { return (Reading::default(), BTreeMap::new()) };
        let (mut values, mut gaps) = (vec![0; plan.sensors.len()], vec![0; plan.sensors.len().div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = plan.reader.read(&mut row);
        let number = |(at, sensor): (usize, &SensorDef)| {
            let bits = row.int(at)?;
            let number = match sensor.value_type {
                ValueType::Int => bits as f64,
                ValueType::Float => f64::from_bits(bits as u64),
            };
            Some((sensor.name.clone(), number))
        };
        let values = plan.sensors.iter().enumerate().filter_map(number).collect();
        if reading.layout_changed {
            self.discover();
        }
        (reading, values)
    }

    /// Waits for the next answer of a group.
    #[track_caller]
    pub fn wait(&mut self, group: &str) -> BTreeMap<String, f64> {
        wait_for(group, || {
            if !self.has_group(group) {
                self.discover();
            }
            let (reading, values) = self.read(group);
            (reading.taken_at.is_some() && !values.is_empty()).then_some(values)
        })
    }

    /// Waits until the next answer of a group has this value of a sensor.
    #[track_caller]
    pub fn wait_for_value(&mut self, group: &str, sensor: &str, value: f64) {
        wait_for(sensor, || (self.wait(group).get(sensor) == Some(&value)).then_some(()));
    }

    /// A sensor by its name.
    #[track_caller]
    pub fn sensor(&self, name: &str) -> &SensorDef {
        let mut sensors = self.groups.values().flat_map(|plan| &plan.sensors);
        sensors
            .find(|sensor| sensor.name == name)
            .unwrap_or_else(|| panic!("no sensor {name}: {:?}", self.groups.keys()))
    }

    /// A number of the group `ipmi`.
    pub fn status(&mut self, name: &str) -> i64 {
        self.read("ipmi").1[&format!("ipmi/{name}")] as i64
    }
}
