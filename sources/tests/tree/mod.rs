//! Helpers for tests of sources: trees that a test changes, and sources from a configuration.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Document, Section};
use wholegrain_sources::job::{JobCgroups, JobSource, MetricSet};
use wholegrain_sources::{GroupPlan, Reader, Reading, Roots, Row, SOURCES, Source};
use wholegrain_testkit::wait_until;

/// A folder below `fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// The roots of a tree of fixtures.
pub fn roots(tree: &Path) -> Roots {
    Roots { proc: tree.join("proc"), sys: tree.join("sys"), cgroup: tree.join("cgroup") }
}

/// A source from the text of a configuration file.
pub fn source(name: &str, config: &str, roots: &Roots) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", config).root().child("sources").child(name);
    let source = SOURCES.iter().find(|one| one.name == name).expect("a source of that name");
    (source.configure)(&section, &roots.clone().into())
}

/// The trees of fixtures.
pub const TREES: [&str; 2] = ["recorded", "handmade"];

/// Sources whose job scope does not read files below the roots.
pub const WITHOUT_FIXTURES_OF_JOBS: [&str; 1] = ["perf"];

/// Sources whose values are the machine's, whatever the tree.
pub const OF_THE_MACHINE: [&str; 1] = ["timex"];

/// The table of a source in `fixtures/every-group.toml`, which turns on every group.
pub fn every_group(source: &str) -> Section {
    let text = include_str!("../../fixtures/every-group.toml");
    Document::new("every-group.toml", text).root().child("sources").child(source)
}

/// The jobs of the fixtures, each with its tree.
pub fn jobs() -> [(&'static str, JobCgroups); 3] {
    let handmade = |v1, v2| ("handmade", cgroups(&fixture("handmade/cgroup"), v1, v2));
    [("recorded", recorded(&fixture("recorded/cgroup"))), handmade(V1_JOB, "none"), handmade("none", V2_JOB)]
}

/// A copy of a fixture that a test changes.
pub struct Tree(tempfile::TempDir);

impl Tree {
    /// A copy of `fixtures/<tree>`.
    pub fn copy(tree: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture(tree), folder.path());
        Self(folder)
    }

    pub fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn roots(&self) -> Roots {
        roots(self.0.path())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    pub fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.write(path, &text.replacen(from, to, 1));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// The groups by name, and the reports.
pub fn discover(source: &mut dyn Source) -> (BTreeMap<String, GroupPlan>, Vec<String>) {
    let mut reports = Vec::new();
    let groups = source.discover(&mut |text| reports.push(text));
    (groups.into_iter().map(|group| (group.name.clone(), group)).collect(), reports)
}

/// A sample of a group by name, `None` for a gap.
pub fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let named = group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index)));
    (named.collect(), reading)
}

/// The controllers of version 1 of the jobs in the fixtures.
pub const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "blkio", "pids"];

/// The job scope of a source from the text of a configuration file.
pub fn job_source(name: &str, config: &str, roots: &Roots) -> Result<Box<dyn JobSource>, ConfigError> {
    let section = Document::new("agent.toml", config).root().child("sources").child(name);
    let source = SOURCES.iter().find(|one| one.name == name).expect("a source of that name");
    (source.jobs.expect("a source of jobs"))(&section, &roots.clone().into())
}

/// A job with a directory in each existing controller, and with `v2` below the cgroup root.
pub fn cgroups(cgroup: &Path, v1: &str, v2: &str) -> JobCgroups {
    let v1 = CONTROLLERS.iter().map(|name| ((*name).to_owned(), cgroup.join(name).join(v1)));
    let v1 = v1.filter(|(_, path)| path.is_dir()).collect();
    let v2 = Some(cgroup.join(v2)).filter(|path| path.is_dir());
    JobCgroups { level: "4711".to_owned(), v2, v1, ..JobCgroups::default() }
}

/// The handmade job of the unified hierarchy.
pub const V2_JOB: &str = "system.slice/slurmstepd.scope/job_4711";
/// The handmade job of version 1.
pub const V1_JOB: &str = "slurm/uid_1000/job_4712";

/// The recorded job, which has directories in both versions.
pub fn recorded(cgroup: &Path) -> JobCgroups {
    cgroups(cgroup, "slurm/uid_1000/job_42", "unified/slurm/uid_1000/job_42")
}

/// The metric sets of a job by name, and the reports.
pub fn metric_sets(source: &mut dyn JobSource, cgroups: &JobCgroups) -> (BTreeMap<String, MetricSet>, Vec<String>) {
    let mut reports = Vec::new();
    let sets = source.metric_sets(cgroups, &mut |text| reports.push(text));
    (sets.into_iter().map(|set| (set.name.clone(), set)).collect(), reports)
}

/// A reader of all sensors of a metric set.
pub fn open(set: &MetricSet) -> Box<dyn Reader> {
    let slots: Vec<Option<u32>> = (0..set.sensors.len() as u32).map(Some).collect();
    (set.open)(&slots)
}

/// A sample of the sensors of a metric set.
pub fn read_set(set: &MetricSet, reader: &mut dyn Reader) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = set.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = reader.read(&mut row);
    let named = set.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index)));
    (named.collect(), reading)
}

/// A sample of all sensors of a job, in units, without gaps.
pub fn sample(source: &mut dyn JobSource, cgroups: &JobCgroups) -> BTreeMap<String, f64> {
    let (sets, _) = metric_sets(source, cgroups);
    let mut all = BTreeMap::new();
    for set in sets.values() {
        let (values, _) = read_set(set, open(set).as_mut());
        for sensor in &set.sensors {
            if let Some(value) = values[&sensor.name] {
                assert!(
                    all.insert(sensor.name.clone(), value as f64 * sensor.scale).is_none(),
                    "{} twice",
                    sensor.name
                );
            }
        }
    }
    all
}

/// Directories of a job in the hierarchies of the running kernel. Dropping it kills the processes and removes the directories.
pub struct RealJob {
    name: String,
    pub cgroups: JobCgroups,
}

impl RealJob {
    /// Creates the directories; `None`, with a message, without the permission.
    pub fn new(v1: bool, v2: bool) -> Option<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("wgtest_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut cgroups = JobCgroups { level: name.clone(), ..JobCgroups::default() };
        let root = Path::new("/sys/fs/cgroup");
        let make = |path: PathBuf| fs::create_dir(&path).ok().map(|()| path);
        if v1 {
            for controller in CONTROLLERS {
                if root.join(controller).is_dir() {
                    cgroups
                        .v1
                        .extend(make(root.join(controller).join(&name)).map(|path| (controller.to_owned(), path)));
                }
            }
        }
        if v2 {
            let unified = [root.join("unified"), root.to_owned()];
            let unified = unified.into_iter().find(|path| path.join("cgroup.controllers").is_file());
            cgroups.v2 = unified.and_then(|path| make(path.join(&name)));
        }
        let job = Self { name, cgroups };
        let is_made = (!v1 || !job.cgroups.v1.is_empty()) && (!v2 || job.cgroups.v2.is_some());
        if !is_made {
            println!("skipped: cannot create a cgroup of this version (needs root)");
        }
        is_made.then_some(job)
    }

    /// All directories of the job.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.cgroups.v1.values().cloned().chain(self.cgroups.v2.clone()).collect()
    }

    /// Moves a process into all directories.
    pub fn add(&self, pid: u32) {
        for directory in self.directories() {
            fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
        }
    }

    /// Waits until its processes have ended and removes the directories.
    pub fn remove(&self) {
        for directory in self.directories() {
            wait_until("the removal", || fs::remove_dir(&directory).is_ok() || !directory.is_dir());
        }
    }
}

impl Drop for RealJob {
    fn drop(&mut self) {
        for directory in self.directories() {
            let inside = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            for pid in inside.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 1) {
                // SAFETY: the process is one that the test put into its own cgroup.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        if !std::thread::panicking() {
            self.remove();
            return;
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        for directory in self.directories() {
            while fs::remove_dir(&directory).is_err() && directory.is_dir() && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        println!("{} removed", self.name);
    }
}
