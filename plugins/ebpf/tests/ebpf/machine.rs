//! The plug-in with records of jobs of its own, and real cgroups as directories of jobs.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use wholegrain_model::config::{ConfigError, Document};
use wholegrain_plugin_ebpf::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, Reading, Roots, Row, Source};
use wholegrain_testkit::wait_for;

/// Where the hierarchies are mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// The values of a group by the sensors' names; `None` for gaps.
pub type Values = BTreeMap<String, Option<i64>>;

/// Why the kernel cannot be used here; `None` if it can. Says so where cargo does not hide it.
pub fn skips(test: &str) -> bool {
    // SAFETY: takes no argument and cannot fail.
    let reason = if unsafe { libc::geteuid() } != 0 {
        "needs root".to_owned()
    } else if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        "the kernel has no /sys/kernel/btf/vmlinux".to_owned()
    } else {
        let machine = Machine::new();
        let refused = machine.configure("programs = [\"tcp\"]\n").err().map(|error| error.to_string());
        if let Some(refused) = refused {
            let clang = std::process::Command::new("clang").arg("--version").output();
            assert!(!clang.is_ok_and(|output| output.status.success()), "there is a clang, but: {refused}");
            return said(test, &refused);
        }
        let mut source = machine.source("programs = [\"tcp\"]\n");
        let mut reports = Vec::new();
        if !source.discover(&mut |text| reports.push(text)).is_empty() {
            return false;
        }
        let reasons = reports.join("; ");
        let is_refused = ["lacks CAP_", "Operation not permitted"].iter().any(|text| reasons.contains(text));
        assert!(is_refused, "root, BTF and programs, but: {reasons}");
        reasons
    };
    said(test, &reason)
}

pub fn said(test: &str, reason: &str) -> bool {
    // Not by a macro, whose text cargo shows only of failed tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
    true
}

/// The mount of the unified hierarchy.
pub fn unified() -> Option<PathBuf> {
    ["unified", ""].iter().map(|name| Path::new(MOUNT).join(name)).find(|dir| dir.join("cgroup.controllers").exists())
}

/// Where the plug-in finds records of jobs.
pub struct Machine {
    pub folder: tempfile::TempDir,
}

impl Machine {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// The agent's records: running jobs with their directories.
    pub fn jobs(&self, jobs: &[(&str, &[&Path])]) {
        let record = |(level, dirs): &(&str, &[&Path])| record(dirs, &format!(r#""level":"{level}""#));
        self.write(jobs.iter().map(record).collect());
    }

    /// The same with the job's user, and one directory each.
    pub fn jobs_of(&self, jobs: &[(&str, u32, &Path)]) {
        let record =
            |(level, uid, dir): &(&str, u32, &Path)| record(&[*dir], &format!(r#""level":"{level}","uid":{uid}"#));
        self.write(jobs.iter().map(record).collect());
    }

    fn write(&self, records: Vec<String>) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!(r#"{{"version":1,"records":[{}]}}"#, records.join(","))).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(new, self.folder.path().join("records.json")).unwrap();
    }

    pub fn configure_below(&self, roots: Roots, settings: &str) -> Result<Box<dyn Source>, ConfigError> {
        let text = format!("[plugins.ebpf]\njob_records = \"records.json\"\n{settings}");
        let context = ConfigureContext { roots, config_dir: self.folder.path().to_owned() };
        (SOURCE.configure)(&Document::new("agent.toml", &text).root().child("plugins").child("ebpf"), &context)
    }

    /// The roots of a kernel whose BTF lacks these names: a later or an earlier kernel.
    pub fn roots_without(&self, names: &[&str]) -> Roots {
        let mut btf = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
        for name in names {
            let text = [b"\0", name.as_bytes(), b"\0"].concat();
            let at = btf.windows(text.len()).position(|part| part == text);
            btf[at.unwrap_or_else(|| panic!("this kernel has no {name}")) + 1] = b'-';
        }
        let sys = self.folder.path().join("sys");
        std::fs::create_dir_all(sys.join("kernel/btf")).unwrap();
        std::fs::write(sys.join("kernel/btf/vmlinux"), btf).unwrap();
        Roots { sys, ..Roots::default() }
    }

    pub fn configure(&self, settings: &str) -> Result<Box<dyn Source>, ConfigError> {
        self.configure_below(Roots::default(), settings)
    }

    pub fn source(&self, settings: &str) -> Box<dyn Source> {
        self.configure(settings).unwrap()
    }
}

fn record(dirs: &[&Path], fields: &str) -> String {
    let dirs: Vec<String> =
        dirs.iter().map(|dir| format!("[{dir:?},{}]", std::fs::metadata(dir).unwrap().ino())).collect();
    format!(r#"{{"acknowledged":1,"dirs":[{}],"record":{{{fields}}}}}"#, dirs.join(","))
}

/// The groups by their names, and what was reported.
pub fn discover(source: &mut dyn Source) -> (BTreeMap<String, GroupPlan>, Vec<String>) {
    let mut reports = Vec::new();
    let groups = source.discover(&mut |text| reports.push(text));
    (groups.into_iter().map(|group| (group.name.clone(), group)).collect(), reports)
}

pub fn sample(group: &mut GroupPlan) -> (Values, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let named = group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index)));
    (named.collect(), reading)
}

#[track_caller]
pub fn values(group: &mut GroupPlan) -> BTreeMap<String, i64> {
    let (values, reading) = sample(group);
    assert_eq!(reading.problem, None);
    values.into_iter().map(|(name, value)| (name.clone(), value.unwrap_or_else(|| panic!("{name} is a gap")))).collect()
}

/// A cgroup that is removed at the end, with its processes.
pub struct Cgroup {
    pub path: PathBuf,
}

impl Cgroup {
    /// A directory in a hierarchy, by the path of its mount.
    pub fn new(mount: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wgebpf{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self::at(mount.join(name))
    }

    pub fn at(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path }
    }

    pub fn enter(&self, pid: i32) {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A killed process leaves its cgroup a little later.
        wait_for("an empty cgroup", || match std::fs::remove_dir(&self.path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(5));
                None
            }
            _ => Some(()),
        });
    }
}
