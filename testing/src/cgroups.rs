//! Real cgroups of the kernel, named like those of a resource manager, with real processes: jobs without a resource manager.
//!
//! - Input: the jobs that a test needs.
//! - Output: directories in every hierarchy of this machine, and processes in them.
//! - Never: a directory left behind, even after a panic; anything in another's directory.
//!
//! All cgroups of one [`Cgroups`] are below one directory in each hierarchy. A directory beside [`Cgroups::root`] has links to them as if each were
//! a whole hierarchy, so that concurrent tests see only their own jobs.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Process;

/// The mount point of the hierarchies.
pub const MOUNT: &str = "/sys/fs/cgroup";
/// The version 1 controllers that a job uses if the machine has them.
const V1: [&str; 8] = ["cpu", "cpuacct", "memory", "blkio", "pids", "cpuset", "freezer", "devices"];
/// The directory of the links.
const LINKS: &str = "links";
/// How long a directory may be busy after its last process was killed.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// The directories of one test in every hierarchy of this machine.
pub struct Cgroups {
    name: String,
    folder: tempfile::TempDir,
    v1: BTreeMap<&'static str, PathBuf>,
    v2: Option<PathBuf>,
}

impl Cgroups {
    /// Why cgroups cannot be created here; `None` if they can.
    pub fn missing() -> Option<String> {
        // SAFETY: geteuid takes no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Some("creating cgroups requires root".into());
        }
        let any = V1.iter().any(|controller| is_hierarchy(&Path::new(MOUNT).join(controller), "tasks"));
        if any || v2_mount().is_some() {
            return None;
        }
        Some(format!("no cgroup hierarchy below {MOUNT}"))
    }

    /// Creates the directories in all version 1 hierarchies and the unified one.
    #[track_caller]
    pub fn new() -> Self {
        Self::of(&V1)
    }

    /// Creates the directories in these version 1 hierarchies and the unified one.
    #[track_caller]
    pub fn of(controllers: &[&'static str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wgtest{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a temporary folder");
        crate::open_to_all(folder.path());
        let (root, links) = (folder.path().join("root"), folder.path().join(LINKS));
        [&root, &links].iter().for_each(|dir| std::fs::create_dir(dir).expect("a folder"));
        let mut made = Self { name, folder, v1: BTreeMap::new(), v2: None };
        for controller in controllers.iter().copied() {
            let mount = Path::new(MOUNT).join(controller);
            if is_hierarchy(&mount, "tasks") {
                let dir = made.make(&mount);
                std::os::unix::fs::symlink(&dir, links.join(controller)).expect("a link to a hierarchy");
                made.v1.insert(controller, dir);
            }
        }
        if let Some(mount) = v2_mount() {
            let dir = made.make(&mount);
            std::os::unix::fs::symlink(&dir, links.join("unified")).expect("a link to a hierarchy");
            made.v2 = Some(dir);
        }
        made
    }

    fn make(&self, mount: &Path) -> PathBuf {
        remove_orphans(mount);
        let dir = mount.join(&self.name);
        std::fs::create_dir(&dir).unwrap_or_else(|e| panic!("making {}: {e}", dir.display()));
        dir
    }

    /// An empty directory for `[roots] cgroup`; [`links`] returns the directory beside it.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The directory in a hierarchy, by its controller's name or `unified`.
    pub fn hierarchy(&self, name: &str) -> Option<&Path> {
        let v2 = self.v2.as_ref().filter(|_| name == "unified");
        self.v1.get(name).or(v2).map(PathBuf::as_path)
    }

    /// Whether the machine has a version 1 controller.
    pub fn has(&self, controller: &str) -> bool {
        self.v1.contains_key(controller)
    }

    /// Whether the machine has the unified hierarchy.
    pub fn has_v2(&self) -> bool {
        self.v2.is_some()
    }

    /// Creates a job with Slurm's names, with one step and one task, in every hierarchy.
    #[track_caller]
    pub fn job(&self, id: &str, uid: u32) -> JobGroup {
        self.job_in(id, uid, true, true)
    }

    /// Creates a job in version 1 hierarchies only, or in the unified one only.
    #[track_caller]
    pub fn job_in(&self, id: &str, uid: u32, v1: bool, v2: bool) -> JobGroup {
        let mut job = JobGroup { id: id.to_owned(), v1: BTreeMap::new(), v2: None };
        for (controller, dir) in self.v1.iter().filter(|_| v1) {
            let job_dir = dir.join(format!("slurm/uid_{uid}/job_{id}"));
            make_all(&job_dir.join("step_0/task_0"));
            if *controller == "cpuset" {
                give_cpus(dir, &job_dir.join("step_0/task_0"));
            }
            job.v1.insert(controller, job_dir);
        }
        if let Some(dir) = self.v2.as_ref().filter(|_| v2) {
            let job_dir = dir.join(format!("system.slice/slurmstepd.scope/job_{id}"));
            make_all(&job_dir.join("step_0/user/task_0"));
            job.v2 = Some(job_dir);
        }
        job
    }
}

impl Default for Cgroups {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for dir in self.v1.values().chain(&self.v2) {
            remove_tree(dir);
        }
    }
}

/// A job with a directory in each hierarchy. Removed with all its content when dropped.
pub struct JobGroup {
    id: String,
    v1: BTreeMap<&'static str, PathBuf>,
    v2: Option<PathBuf>,
}

impl JobGroup {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its directory for a version 1 controller.
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }

    /// Its directory in the unified hierarchy.
    pub fn v2(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.v1.values().chain(&self.v2).map(PathBuf::as_path)
    }

    /// The files of its task's processes: a process that writes `0` to all of them joins the task.
    pub fn task_files(&self) -> Vec<PathBuf> {
        let v1 = self.v1.values().map(|dir| dir.join("step_0/task_0/cgroup.procs"));
        let v2 = self.v2.iter().map(|dir| dir.join("step_0/user/task_0/cgroup.procs"));
        v1.chain(v2).collect()
    }

    /// Starts a program as the job's task with its output in `log`. The program is in all cgroups of the job before its first instruction.
    #[track_caller]
    pub fn start(&self, command: &mut Command, log: &Path) -> Process {
        let files = self.task_files();
        let enter = move || files.iter().try_for_each(|file| std::fs::write(file, "0"));
        // SAFETY: between fork and exec the child only writes to files. Its allocations are safe because glibc's fork handlers unlock the allocator.
        unsafe { command.pre_exec(enter) };
        Process::start(command, log)
    }

    /// Starts a process that uses a core until it is killed.
    #[track_caller]
    pub fn burn(&self) -> Process {
        self.start(Command::new("sh").args(["-c", "while :; do :; done"]), Path::new("/dev/null"))
    }

    /// Starts an idle process.
    #[track_caller]
    pub fn idle(&self) -> Process {
        self.start(Command::new("sleep").arg("100000").stdin(Stdio::null()), Path::new("/dev/null"))
    }

    /// The job's CPU time counted by the kernel, s: of cpuacct, or of the unified hierarchy.
    pub fn cpu_s(&self) -> Option<f64> {
        if let Some(dir) = self.v1("cpuacct") {
            let text = std::fs::read_to_string(dir.join("cpuacct.usage")).ok()?;
            return Some(text.trim().parse::<f64>().ok()? / 1e9);
        }
        let text = std::fs::read_to_string(self.v2()?.join("cpu.stat")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        Some(line.trim().parse::<f64>().ok()? / 1e6)
    }

    /// Removes the directory of one controller and kills its processes.
    pub fn remove_v1(&mut self, controller: &str) {
        if let Some(dir) = self.v1.remove(controller) {
            remove_tree(&dir);
        }
    }

    /// Removes its directory in the unified hierarchy.
    pub fn remove_v2(&mut self) {
        if let Some(dir) = self.v2.take() {
            remove_tree(&dir);
        }
    }
}

impl Drop for JobGroup {
    fn drop(&mut self) {
        self.dirs().for_each(remove_tree);
    }
}

/// The directory of links to a test's directories, for `[jobs] hierarchies`; none for the machine's own tree.
pub fn links(root: &Path) -> Option<PathBuf> {
    Some(root.parent()?.join(LINKS)).filter(|dir| dir.is_dir())
}

/// Removes the directories of killed tests, whose names contain the process id.
fn remove_orphans(mount: &Path) {
    for entry in std::fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("wgtest").and_then(|rest| rest.split_once('x')).map(|(pid, _)| pid.to_owned());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_tree(&entry.path());
        }
    }
}

/// Whether `dir` is the root of a cgroup hierarchy, which has this file.
fn is_hierarchy(dir: &Path, file: &str) -> bool {
    dir.join(file).is_file()
}

/// The mount point of the unified hierarchy, alone or beside version 1.
pub fn v2_mount() -> Option<PathBuf> {
    let places = [Path::new(MOUNT).join("unified"), PathBuf::from(MOUNT)];
    places.into_iter().find(|dir| is_hierarchy(dir, "cgroup.controllers"))
}

#[track_caller]
fn make_all(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap_or_else(|e| panic!("making {}: {e}", dir.display()));
}

/// A version 1 cpuset accepts processes only after it has CPUs and memory nodes, set from the top down.
fn give_cpus(top: &Path, leaf: &Path) {
    let mut dirs: Vec<&Path> = leaf.ancestors().take_while(|dir| dir.starts_with(top)).collect();
    dirs.reverse();
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let whole = std::fs::read_to_string(Path::new(MOUNT).join("cpuset").join(file)).expect("the machine's cpuset");
        for dir in &dirs {
            // A directory shared by several jobs may have them already.
            let has = std::fs::read_to_string(dir.join(file)).is_ok_and(|text| !text.trim().is_empty());
            if !has {
                std::fs::write(dir.join(file), whole.trim()).expect("a cpuset's CPUs and memory nodes");
            }
        }
    }
}

/// Removes a cgroup with everything below it and kills its processes.
pub fn remove_tree(dir: &Path) {
    let children = std::fs::read_dir(dir).into_iter().flatten().flatten();
    children.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir())).for_each(|entry| remove_tree(&entry.path()));
    let start = Instant::now();
    while dir.exists() {
        let processes = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1) {
            // SAFETY: kill takes two numbers; the process is in a cgroup that this test created.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        match std::fs::remove_dir(dir) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < BUSY_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                eprintln!("left behind: {}: {e}", dir.display());
                return;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_until;

    #[test]
    fn a_job_counts_its_time_and_leaves_nothing() {
        if let Some(why) = Cgroups::missing() {
            println!("NOT TESTED: {why}");
            return;
        }
        let cgroups = Cgroups::new();
        let job = cgroups.job("1", 0);
        let mut burning = job.burn();
        wait_until("the kernel counts", || job.cpu_s().is_some_and(|s| s > 0.05));
        let dirs: Vec<PathBuf> = job.dirs().map(Path::to_owned).collect();
        assert!(!dirs.is_empty() && dirs.iter().all(|dir| dir.is_dir()));
        // The job is dropped while its process runs.
        drop(job);
        assert!(!burning.wait().success());
        drop(cgroups);
        assert!(dirs.iter().all(|dir| !dir.exists() && !dir.parent().is_some_and(Path::exists)));
    }
}
