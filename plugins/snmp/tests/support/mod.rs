//! A source as the agent has it: discovered, and read group by group.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use wholegrain_model::config::Document;
use wholegrain_model::{SensorDef, ValueType};
use wholegrain_plugin_snmp::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, Reading, Row, Source};
use wholegrain_testkit::wait_for;

/// A source with its groups.
pub struct Sampled {
    source: Box<dyn Source>,
    groups: BTreeMap<String, GroupPlan>,
    /// All notes, each as often as it was reported.
    pub notes: Vec<String>,
}

/// Puts a file of credentials into `folder/credentials`.
pub fn put_credentials(folder: &Path, name: &str, text: &str) {
    let credentials = folder.join("credentials");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(credentials.join(name), text).unwrap();
    std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A source of this configuration, after its first discovery.
pub fn source(text: &str, folder: &Path) -> Sampled {
    let section = Document::new("agent.toml", text).root().child("plugins").child("snmp");
    let context = ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() };
    let source = (SOURCE.configure)(&section, &context).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut sampled = Sampled { source, groups: BTreeMap::new(), notes: Vec::new() };
    sampled.discover();
    sampled
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

    /// A sensor by its name.
    #[track_caller]
    pub fn sensor(&self, name: &str) -> &SensorDef {
        let mut sensors = self.groups.values().flat_map(|plan| &plan.sensors);
        sensors
            .find(|sensor| sensor.name == name)
            .unwrap_or_else(|| panic!("no sensor {name}: {:?}", self.groups.keys()))
    }

    /// A number of the group `snmp`.
    pub fn status(&mut self, name: &str) -> i64 {
        self.read("snmp").1[&format!("snmp/{name}")] as i64
    }
}
