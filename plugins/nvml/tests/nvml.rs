//! The plug-in against a stand-in for NVIDIA's library, which answers what a file says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::expect_file;
use wholegrain_model::config::{ConfigError, Document};
use wholegrain_model::{Kind, ValueType};
use wholegrain_plugin::abi::PluginDescriptor;
use wholegrain_plugin::{HostSettings, HostedSource};
use wholegrain_plugin_nvml::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reading, Roots, Row, Source};

unsafe extern "C" {
    safe fn wholegrain_source_v1() -> *const PluginDescriptor;
}

/// A node with a driver: the stand-in, its answers, and the processes and jobs of the node.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub");
        let library = folder.path().join("libnvidia-ml.so.1");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
            .args(options)
            .arg(stub.join("nvml.c"))
            .arg("-o")
            .arg(&library)
            .status()
            .expect("a C compiler");
        assert!(status.success());
        std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(stub.join("nvml.txt"), folder.path().join("nvml.txt")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Changes answers: `key value` replaces one, `-key` removes it.
    fn set(&self, changes: &[&str]) {
        let mut text = std::fs::read_to_string(self.path("nvml.txt")).unwrap();
        for change in changes {
            let key = change.strip_prefix('-').unwrap_or(change).split(' ').next().unwrap();
            text = text
                .lines()
                .filter(|line| line.split(' ').next() != Some(key))
                .fold(String::new(), |all, line| all + line + "\n");
            if !change.starts_with('-') {
                text += &format!("{change}\n");
            }
        }
        std::fs::write(self.path("nvml.txt"), text).unwrap();
    }

    fn process(&self, pid: u32, cgroup: &str) {
        let folder = self.path("proc").join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cgroup"), cgroup).unwrap();
    }

    /// The agent's records: running jobs of Slurm by id.
    fn jobs(&self, ids: &[u32]) {
        let dir = |id: &u32| self.path("cgroup").join(format!("system.slice/slurmstepd.scope/job_{id}"));
        let record =
            |id: &u32| format!(r#"{{"acknowledged":1,"dirs":[[{:?},1]],"record":{{"level":"{id}"}}}}"#, dir(id));
        let all: Vec<String> = ids.iter().map(record).collect();
        let text = format!(r#"{{"version":1,"records":[{}]}}"#, all.join(","));
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::set_permissions(self.path("new"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(self.path("new"), self.path("records.json")).unwrap();
    }

    fn configure(&self, settings: &str) -> Result<Box<dyn Source>, ConfigError> {
        let text = format!("[plugins.nvml]\nnvml = \"libnvidia-ml.so.1\"\njob_records = \"records.json\"\n{settings}");
        let roots = Roots { proc: self.path("proc"), sys: self.path("sys"), cgroup: self.path("cgroup") };
        let context = ConfigureContext { roots, config_dir: self.folder.path().to_owned() };
        (SOURCE.configure)(&Document::new("agent.toml", &text).root().child("plugins").child("nvml"), &context)
    }

    fn source(&self, settings: &str) -> Box<dyn Source> {
        self.configure(settings).unwrap()
    }
}

type Groups = BTreeMap<String, GroupPlan>;

fn discover(source: &mut dyn Source) -> (Groups, Vec<String>) {
    let mut reports = Vec::new();
    let groups = source.discover(&mut |text| reports.push(text));
    assert!(groups.iter().all(|group| group.blocking), "a call of the library can hang");
    (groups.into_iter().map(|group| (group.name.clone(), group)).collect(), reports)
}

/// A sample in raw numbers, `None` for gaps.
fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<f64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let value = |index: usize| {
        let bits = row.int(index)?;
        Some(match group.sensors[index].value_type {
            ValueType::Int => bits as f64,
            ValueType::Float => f64::from_bits(bits as u64),
        })
    };
    let named = group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), value(index)));
    (named.collect(), reading)
}

fn value(group: &mut GroupPlan, name: &str) -> Option<f64> {
    read(group).0[name]
}

#[test]
fn every_sensor_of_two_gpus() {
    let node = Node::new(&[]);
    let (groups, reports) = discover(node.source("pcie_throughput = true\n").as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let mut out = String::from("# name value x scale unit kind: description, by group and interval\n");
    for (name, mut group) in groups {
        let interval = group.timing.interval.map_or("default".to_owned(), |interval| interval.to_string());
        writeln!(out, "\n[{name}] {interval}").unwrap();
        let (values, reading) = read(&mut group);
        assert_eq!(reading, Reading::COMPLETE);
        for sensor in &group.sensors {
            let kind = if sensor.kind == Kind::Counter { "counter" } else { "gauge" };
            let value = values[&sensor.name].map_or("gap".to_owned(), |value| value.to_string());
            writeln!(out, "{} {value} x {} {} {kind}: {}", sensor.name, sensor.scale, sensor.unit, sensor.description)
                .unwrap();
        }
    }
    expect_file!["golden.txt"].assert_eq(&out);
}

#[test]
fn without_a_driver_there_is_one_line_and_nothing_else() {
    let node = Node::new(&[]);
    std::fs::remove_file(node.path("libnvidia-ml.so.1")).unwrap();
    let mut source = node.source("");
    for _ in 0..2 {
        let (groups, reports) = discover(source.as_mut());
        assert!(groups.is_empty() && reports.len() == 1 && reports[0].contains("libnvidia-ml.so.1"), "{reports:?}");
    }
}

#[test]
fn a_library_that_others_can_write_is_refused() {
    let node = Node::new(&[]);
    let library = node.path("libnvidia-ml.so.1");
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (groups, reports) = discover(node.source("").as_mut());
    assert!(groups.is_empty() && reports[0].contains("no other user can write"), "{reports:?}");
}

#[test]
fn a_driver_that_is_loaded_later_is_found() {
    let node = Node::new(&[]);
    node.set(&["init.error 9"]);
    let mut source = node.source("");
    let (groups, reports) = discover(source.as_mut());
    assert!(groups.is_empty() && reports.len() == 1, "{reports:?}");
    assert!(reports[0].contains("driver is not loaded"), "{reports:?}");
    node.set(&["init.error 18"]);
    assert!(discover(source.as_mut()).1[0].contains("different versions"));
    node.set(&["init.error 0"]);
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty());
    assert_eq!(value(groups.get_mut("gpu/1").unwrap(), "gpu/1/power"), Some(312450.0));
}

#[test]
fn a_lost_gpu_has_gaps_until_it_is_back_and_the_other_one_has_values() {
    let node = Node::new(&[]);
    let mut source = node.source("");
    let (mut groups, _) = discover(source.as_mut());
    node.set(&["gpu0.lost 1"]);
    let lost = groups.get_mut("gpu/1").unwrap();
    let (values, reading) = read(lost);
    assert!(values.values().all(Option::is_none), "{values:?}");
    assert!(reading.layout_changed, "a discovery is due");
    assert_eq!(reading.problem, Some(ReadProblem::Os { what: "NVML", errno: libc::ENODEV }));
    let (values, reading) = read(lost);
    assert!(values.values().all(Option::is_none) && !reading.layout_changed, "requested once");
    let sensors = lost.sensors.clone();
    // The library is connected again, and the GPU is still lost. The other one has a new handle, also for its old reader.
    let (mut again, reports) = discover(source.as_mut());
    assert!(reports.iter().any(|line| line.contains("gpu/1") && line.contains("is lost")), "{reports:?}");
    assert_eq!(again["gpu/1"].sensors, sensors, "the sensors stay, with gaps");
    let (values, reading) = read(again.get_mut("gpu/1").unwrap());
    assert!(values.values().all(Option::is_none) && reading.problem.is_some());
    assert_eq!(value(groups.get_mut("gpu/0").unwrap(), "gpu/0/power"), Some(55000.0));
    assert_eq!(value(again.get_mut("gpu/0").unwrap(), "gpu/0/power"), Some(55000.0));
    node.set(&["gpu0.lost 0", "gpu0.power 1000"]);
    let (mut back, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    assert_eq!(back["gpu/1"].sensors, sensors);
    assert_eq!(value(back.get_mut("gpu/1").unwrap(), "gpu/1/power"), Some(1000.0));
    assert_eq!(value(groups.get_mut("gpu/1").unwrap(), "gpu/1/power"), Some(1000.0), "readers find the new handle");
}

#[test]
fn a_failed_call_is_one_gap_and_its_sensor_stays() {
    let node = Node::new(&[]);
    let mut source = node.source("");
    let (mut groups, _) = discover(source.as_mut());
    let gpu = groups.get_mut("gpu/1").unwrap();
    // NVML_ERROR_TIMEOUT
    node.set(&["gpu0.power.error 10"]);
    let (values, reading) = read(gpu);
    assert_eq!((values["gpu/1/power"], values["gpu/1/energy"]), (None, Some(5123456789.0)));
    assert_eq!(reading.problem, Some(ReadProblem::Os { what: "NVML", errno: libc::ETIMEDOUT }));
    assert!(!reading.layout_changed);
    assert_eq!(discover(source.as_mut()).0["gpu/1"].sensors, gpu.sensors);
    // NVML_ERROR_NOT_SUPPORTED: the device does not have it any more.
    node.set(&["gpu0.power.error 3"]);
    assert!(read(gpu).1.layout_changed);
    let (again, _) = discover(source.as_mut());
    assert_eq!(again["gpu/1"].sensors.len(), gpu.sensors.len() - 1);
    assert!(!again["gpu/1"].sensors.iter().any(|sensor| sensor.name == "gpu/1/power"));
}

#[test]
fn an_old_driver_lacks_functions_and_gives_the_rest() {
    let node = Node::new(&["-DOLD"]);
    node.set(&["gpu0.processes 10:5000"]);
    let (mut groups, reports) = discover(node.source("").as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let (values, _) = read(groups.get_mut("gpu/1").unwrap());
    assert_eq!(values["gpu/1/memory/used"], Some(20401094656.0));
    assert!(!values.contains_key("gpu/1/memory/reserved"));
    assert_eq!(values["gpu/1/clocks/reason/sw_power_cap"], Some(1.0), "under its older name");
    assert_eq!(value(groups.get_mut("nvml/jobs").unwrap(), "gpu/1/processes"), Some(1.0));
}

#[test]
fn mig_instances_are_devices_of_their_own() {
    let node = Node::new(&[]);
    let mut source = node.source("");
    let (mut before, _) = discover(source.as_mut());
    let instance = |index: u32, gi: u32, used: u64| {
        vec![
            format!("gpu0.mig{index}.uuid MIG-{index}"),
            format!("gpu0.mig{index}.gi {gi}"),
            format!("gpu0.mig{index}.ci 0"),
            format!("gpu0.mig{index}.memory.total 10000"),
            format!("gpu0.mig{index}.memory.free 9000"),
            format!("gpu0.mig{index}.memory.used {used}"),
            format!("gpu0.mig{index}.memory.reserved 10"),
            format!("gpu0.mig{index}.multiprocessors 14"),
        ]
    };
    let mut changes = vec!["gpu0.mig 1".to_owned(), "gpu0.mig.max 7".to_owned(), "gpu0.utilization.error 3".to_owned()];
    changes.extend(instance(0, 7, 500).into_iter().chain(instance(4, 9, 600)));
    changes.push("gpu0.processes 10:111:9:0 11:222:7:0 12:333:99:0".to_owned());
    node.set(&changes.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(read(before.get_mut("gpu/1").unwrap()).1.layout_changed, "no utilization with MIG");
    [10, 11, 12]
        .iter()
        .for_each(|pid| node.process(*pid, &format!("0::/system.slice/slurmstepd.scope/job_{pid}/step_0\n")));
    node.jobs(&[10, 11, 12]);
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let (values, _) = read(groups.get_mut("mig/1-gi7-ci0").unwrap());
    let expected = [
        ("memory/free", 9000.0),
        ("memory/reserved", 10.0),
        ("memory/total", 10000.0),
        ("memory/used", 500.0),
        ("multiprocessors", 14.0),
    ];
    let expected = expected.map(|(name, value)| (format!("mig/1-gi7-ci0/{name}"), Some(value)));
    assert_eq!(values.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(value(groups.get_mut("mig/1-gi9-ci0").unwrap(), "mig/1-gi9-ci0/memory/used"), Some(600.0));
    let (values, _) = read(groups.get_mut("nvml/jobs").unwrap());
    assert_eq!(values["job/10/mig/1-gi9-ci0/memory_used"], Some(111.0));
    assert_eq!(values["job/11/mig/1-gi7-ci0/memory_used"], Some(222.0));
    assert!(!values.keys().any(|name| name.starts_with("job/12/")), "of an unknown instance: {values:?}");
    // An instance that is removed has no sensors; that is no loss.
    node.set(&["-gpu0.mig4.uuid", "gpu0.processes"]);
    let (groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty() && !groups.contains_key("mig/1-gi9-ci0") && groups.contains_key("mig/1-gi7-ci0"));
    // By UUID, as Slurm and CUDA name them.
    let (groups, _) = discover(node.source("names = \"uuid\"\n").as_mut());
    assert!(groups.contains_key("mig/MIG-0") && groups.contains_key("gpu/GPU-aaaaaaaa-0000-0000-0000-000000000000"));
    let (groups, _) = discover(node.source("names = \"pci\"\n").as_mut());
    assert!(groups.contains_key("gpu/0000:3b:00.0"), "{:?}", groups.keys());
}

#[test]
fn processes_count_for_the_job_of_their_cgroup() {
    let node = Node::new(&[]);
    let job = |id: u32| format!("0::/system.slice/slurmstepd.scope/job_{id}/step_0/user/task_0\n");
    node.process(10, &job(1));
    node.process(11, &job(1));
    node.process(12, &job(2));
    node.process(13, "0::/user.slice/job_1\n");
    node.jobs(&[1]);
    node.set(&[
        "gpu0.processes 10:1000 11:500 13:7 14:8",
        "gpu0.graphics 10:900",
        "gpu0.samples 10:5:40 10:6:60 11:6:20 0:6:3 12:6:4294967295",
    ]);
    let mut source = node.source("");
    let (mut groups, _) = discover(source.as_mut());
    let jobs = groups.get_mut("nvml/jobs").unwrap();
    let (values, reading) = read(jobs);
    assert_eq!(reading, Reading::COMPLETE);
    assert_eq!(values["gpu/1/processes"], Some(4.0));
    let of = |values: &BTreeMap<String, Option<f64>>, job: u32| {
        ["memory_used", "processes", "utilization"].map(|name| values[&format!("job/{job}/gpu/1/{name}")])
    };
    // Process 10 is in two lists and counts once. The discovery's read does not take the samples from the reader.
    assert_eq!(of(&values, 1), [Some(1500.0), Some(2.0), Some(70.0)]);
    assert_eq!(values.len(), 4, "no sensors of processes outside jobs: {values:?}");
    // No newer sample, and memory that the driver does not know.
    node.set(&["gpu0.processes 10:18446744073709551615 11:500", "-gpu0.graphics"]);
    assert_eq!(of(&read(jobs).0, 1), [None, Some(2.0), None]);
    // Another job begins: its sensors need a discovery, which is requested once.
    node.jobs(&[1, 2]);
    node.set(&["gpu0.processes 11:500 12:600"]);
    let (values, reading) = read(jobs);
    assert!(reading.layout_changed && !read(jobs).1.layout_changed);
    assert_eq!(of(&values, 1), [Some(500.0), Some(1.0), None]);
    let (mut groups, _) = discover(source.as_mut());
    let jobs = groups.get_mut("nvml/jobs").unwrap();
    node.set(&["gpu0.processes 12:600"]);
    let (values, _) = read(jobs);
    assert_eq!((of(&values, 1), of(&values, 2)), ([Some(0.0), Some(0.0), None], [Some(600.0), Some(1.0), None]));
    // Without the list of processes nothing is known of the jobs. NVML_ERROR_UNKNOWN
    node.set(&["gpu0.processes.error 999"]);
    let (values, reading) = read(jobs);
    assert!(values.values().all(Option::is_none) && reading.problem.is_some(), "{values:?}");
    // A job that has ended has no sensors.
    node.set(&["-gpu0.processes.error"]);
    node.jobs(&[2]);
    let (groups, _) = discover(source.as_mut());
    let names: Vec<&str> = groups["nvml/jobs"].sensors.iter().map(|sensor| sensor.name.as_str()).collect();
    assert!(
        names.contains(&"job/2/gpu/1/memory_used") && !names.iter().any(|name| name.starts_with("job/1/")),
        "{names:?}"
    );
}

#[test]
fn settings() {
    let node = Node::new(&[]);
    let settings = "metrics = { exclude = [\"gpu/*/clocks/**\", \"**/processes\"] }\njobs = false\ninterval = \"5s\"\n[plugins.nvml.health]\ninterval = \"10min\"\n";
    let (groups, _) = discover(node.source(settings).as_mut());
    assert!(!groups.contains_key("nvml/jobs"));
    assert!(!groups["gpu/1"].sensors.iter().any(|sensor| sensor.name.contains("clocks")));
    let ns = |name: &str| groups[name].timing.interval.map(|interval| interval.ns());
    assert_eq!((ns("gpu/1"), ns("gpu/1/health")), (Some(5_000_000_000), Some(600_000_000_000)));
    for (settings, message) in [
        ("nme = 3", "agent.toml:4"),
        ("names = \"serial\"", "unknown value `serial`"),
        ("[plugins.nvml.health]\ninterval = \"1ns\"", "shortest interval"),
    ] {
        let error = node.configure(settings).err().expect("an error").to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn the_packaged_example_is_valid_and_so_are_its_other_keys() {
    let text = include_str!("../../../packaging/plugins/nvml.toml");
    let all: String = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if setting.starts_with('[') || setting.contains(" = ") => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    for text in [text, &all] {
        let section = Document::new("nvml.toml", text).root().child("plugins").child("nvml");
        (SOURCE.configure)(&section, &ConfigureContext::default()).expect("a valid example");
    }
}

/// The agent refuses names, units and groups that break its bounds, and says so in notes.
#[test]
fn the_agent_takes_every_group_and_value_through_the_interface_of_plug_ins() {
    let node = Node::new(&[]);
    node.process(10, "0::/system.slice/slurmstepd.scope/job_1/step_0\n");
    node.jobs(&[1]);
    node.set(&["gpu0.processes 10:1000"]);
    let roots = Roots { proc: node.path("proc"), sys: node.path("sys"), cgroup: node.path("cgroup") };
    let settings = HostSettings {
        table: "nvml = \"libnvidia-ml.so.1\"\njob_records = \"records.json\"\n".to_owned(),
        file: "agent.toml".to_owned(),
        context: ConfigureContext { roots, config_dir: node.folder.path().to_owned() },
    };
    // SAFETY: the descriptor of this program.
    let mut source = unsafe { HostedSource::configure(wholegrain_source_v1(), &settings) }.expect("a source");
    let found = source.discover().expect("groups");
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let (direct, _) = discover(node.source("").as_mut());
    assert_eq!(found.groups.len(), direct.len());
    for mut group in found.groups {
        assert!(group.blocking && group.sensors == direct[&group.name].sensors, "{}", group.name);
        let count = group.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let problem = group.reader.read(&mut values, &mut gaps).problem.map(str::to_owned);
        assert_eq!(problem, None, "{}", group.name);
        if let Some(index) = group.sensors.iter().position(|sensor| sensor.name == "job/1/gpu/1/memory_used") {
            assert_eq!((group.name.as_str(), values[index]), ("nvml/jobs", 1000));
        }
    }
}
