//! Tests with a simulated kernel: hardware, permissions, other programs.

mod hardware;
mod machines;
mod trouble;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::config::{ConfigError, Document};
use wholegrain_model::{SensorDef, ValueType};

use super::config::PerfConfig;
use super::fake::FakeKernel;
use super::{PerfJobs, PerfNode, node, of_jobs};
use crate::job::{JobCgroups, JobSource, MetricSet};
use crate::plan::Slot;
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Roots, Source};

/// Two CPUs, PMUs, tracepoints and the directory of a job, with a simulated kernel.
struct Machine {
    folder: tempfile::TempDir,
    kernel: Arc<FakeKernel>,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), kernel: FakeKernel::new() };
        machine.write("sys/devices/system/cpu/online", "0-1\n");
        machine.write("proc/sys/kernel/perf_event_paranoid", "2\n");
        std::fs::create_dir_all(machine.path("cgroup/job")).unwrap();
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes the folder of a PMU in sysfs.
    fn pmu(&self, name: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            self.write(&format!("sys/bus/event_source/devices/{name}/{file}"), text);
        }
    }

    fn roots(&self) -> Roots {
        Roots { proc: self.path("proc"), sys: self.path("sys"), cgroup: self.path("cgroup") }
    }

    fn cgroups(&self) -> JobCgroups {
        JobCgroups { level: "4711".to_owned(), v2: Some(self.path("cgroup/job")), ..JobCgroups::default() }
    }

    fn jobs(&self, keys: &str) -> PerfJobs {
        of_jobs(config(keys).unwrap(), &self.roots(), self.kernel.clone())
    }

    fn node(&self, keys: &str) -> PerfNode {
        node(config(keys).unwrap(), &self.roots(), self.kernel.clone())
    }
}

fn config(keys: &str) -> Result<PerfConfig, ConfigError> {
    let text = format!("[sources.perf]\n{keys}\n");
    let context = ConfigureContext { config_dir: "/etc/wholegrain".into(), ..ConfigureContext::default() };
    PerfConfig::read(&Document::new("agent.toml", &text).root().child("sources").child("perf"), &context)
}

fn metric_sets(jobs: &mut PerfJobs, cgroups: &JobCgroups) -> (BTreeMap<String, MetricSet>, Vec<String>) {
    let mut reports = Vec::new();
    let sets = jobs.metric_sets(cgroups, &mut |text| reports.push(text));
    (sets.into_iter().map(|set| (set.name.clone(), set)).collect(), reports)
}

/// A reader with its sensors.
struct Sampled {
    sensors: Vec<SensorDef>,
    reader: Box<dyn Reader>,
}

type Values = BTreeMap<String, Option<f64>>;

impl Sampled {
    /// With all sensors of a metric set.
    fn set(set: &MetricSet) -> Self {
        let slots: Vec<Slot> = (0..set.sensors.len() as u32).map(Some).collect();
        Self { sensors: set.sensors.clone(), reader: (set.open)(&slots) }
    }

    /// With some sensors of a metric set.
    fn some(set: &MetricSet, names: &[&str]) -> Self {
        let at = |name: &str| names.iter().position(|other| *other == name).map(|at| at as u32);
        let slots: Vec<Slot> = set.sensors.iter().map(|sensor| at(&sensor.name)).collect();
        let find = |name: &&str| set.sensors.iter().find(|sensor| sensor.name == **name).cloned().unwrap();
        Self { sensors: names.iter().map(find).collect(), reader: (set.open)(&slots) }
    }

    fn group(plan: GroupPlan) -> Self {
        Self { sensors: plan.sensors, reader: plan.reader }
    }

    /// Takes a sample, in the units of the sensors.
    fn read(&mut self) -> (Values, Reading) {
        let count = self.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = self.reader.read(&mut row);
        let values = self.sensors.iter().enumerate().map(|(index, sensor)| {
            let raw = row.int(index).map(|value| match sensor.value_type {
                ValueType::Int => value as f64,
                ValueType::Float => f64::from_bits(value as u64),
            });
            (sensor.name.clone(), raw.map(|raw| raw * sensor.scale))
        });
        (values.collect(), reading)
    }

    #[track_caller]
    fn check(&mut self, expected: &[(&str, Option<f64>)]) {
        let (values, reading) = self.read();
        assert_eq!(reading, Reading::default());
        for (name, value) in expected {
            let is = values.get(*name).unwrap_or_else(|| panic!("no {name} in {values:?}"));
            let same = match (is, value) {
                (Some(is), Some(value)) => (is - value).abs() <= 1e-9 * value.abs(),
                (is, value) => is.is_none() && value.is_none(),
            };
            assert!(same, "{name} is {is:?}, expected {value:?}");
        }
    }
}

fn discover(node: &mut PerfNode) -> (Option<Sampled>, Vec<String>) {
    let mut reports = Vec::new();
    let groups = node.discover(&mut |text| reports.push(text));
    assert!(groups.len() <= 1 && groups.iter().all(|group| group.name == "perf" && !group.blocking));
    (groups.into_iter().next().map(Sampled::group), reports)
}

fn names(sensors: &[SensorDef]) -> Vec<&str> {
    sensors.iter().map(|sensor| sensor.name.as_str()).collect()
}

#[test]
fn virtual_sensors_of_the_package_name_known_events() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/virtual/perf.toml");
    let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let definitions = table["virtual"].as_array().unwrap();
    let mut known: Vec<String> = Vec::new();
    for definition in definitions {
        let text =
            |key: &str| definition[key].as_str().unwrap_or_else(|| panic!("{definition:?}: no {key}")).to_owned();
        let (name, expression) = (text("path"), text("expression"));
        wholegrain_model::name::check_relative(&name).unwrap();
        assert!(!text("unit").is_empty() && text("description").ends_with('.'), "{name}");
        let sensors: Vec<&str> = expression.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0).collect();
        assert!(!sensors.is_empty() && name.starts_with("perf/"), "{name}");
        for sensor in sensors {
            if known.iter().any(|other| other == sensor) {
                continue;
            }
            // The events are next to `perf/ipc`. The name of a PMU's event follows from its text, which the definition gives as `events`.
            let level = sensor;
            let events = definition.get("events").and_then(|events| events.as_array()).cloned().unwrap_or_default();
            let texts = events.iter().filter_map(|event| event.as_str()).chain([level]);
            let found =
                texts.filter_map(|text| super::event::Event::parse(text).ok()).any(|event| event.level == level);
            assert!(found, "{name}: no event has the sensor {sensor}");
        }
        assert!(!known.contains(&name), "{name} twice");
        known.push(name);
    }
    assert!(known.len() >= 8);
}
