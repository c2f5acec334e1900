//! The kernel's own cgroups, version 1 and unified.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// The version 1 hierarchies of the tests' jobs: those of Slurm, and one without accounting.
pub const V1: &[&str] = &["freezer", "cpuacct", "memory", "pids", "cpuset"];

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Cgroups of this test, which are removed with their processes on drop.
pub struct Cgroups {
    tops: Vec<PathBuf>,
    name: String,
}

impl Cgroups {
    pub fn new() -> Self {
        let name = format!("wgt{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut tops: Vec<PathBuf> =
            V1.iter().map(|ctrl| format!("/sys/fs/cgroup/{ctrl}/slurm_{name}").into()).collect();
        tops.push(format!("/sys/fs/cgroup/unified/{name}.slice").into());
        Self { tops, name }
    }

    /// An id that is unique among the tests.
    pub fn id(&self) -> String {
        (100_000_000_000 + u64::from(std::process::id()) * 10_000 + NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
    }

    /// Settings that find its jobs in the unified hierarchy, which are in their own slice.
    pub fn config(&self, rescan: Interval) -> TrackerConfig {
        TrackerConfig { slurm_slices: vec![format!("{}.slice", self.name)], ..config(rescan) }
    }

    /// Patterns for only its jobs, in both versions.
    pub fn patterns(&self) -> (String, String) {
        let (name, job) = (&self.name, r"job_(?<job>\d+)(/(?<step>step_\d+))?");
        (format!(r"slurm_{name}/uid_(?<uid>\d+)/{job}"), format!("{name}[.]slice/{name}_slurmstepd[.]scope/{job}"))
    }

    pub fn v1(&self, controller: &str, uid: u32, id: &str) -> PathBuf {
        format!("/sys/fs/cgroup/{controller}/slurm_{}/uid_{uid}/job_{id}", self.name).into()
    }

    pub fn v2(&self, id: &str) -> PathBuf {
        format!("/sys/fs/cgroup/unified/{0}.slice/{0}_slurmstepd.scope/job_{id}", self.name).into()
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.tops.iter().for_each(|top| remove_all(top));
    }
}

/// Ends the processes below a directory and removes it.
pub fn remove_all(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_all(&entry.path());
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::remove_dir(dir).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) && Instant::now() < deadline
    {
        for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
            // SAFETY: a signal to a process that is in a cgroup of this test's own.
            pid.parse().map(|pid| unsafe { libc::kill(pid, libc::SIGKILL) }).ok();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a shell script as a user in these cgroups, until it ends.
pub fn run_in(dirs: &[PathBuf], uid: u32, script: &str) {
    let mut whole = String::new();
    for dir in dirs {
        whole.push_str(&format!("echo $$ > {}/cgroup.procs || exit 1\n", dir.display()));
    }
    whole.push_str(&format!("exec setpriv --reuid={uid} --regid={uid} --clear-groups sh -c '{script}'\n"));
    let output = Command::new("sh").args(["-c", &whole]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// About 50 ms of CPU time and 16 MiB of memory.
const WORK: &str =
    "head -c 16000000 /dev/zero | tail | wc -c >/dev/null; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";

fn fill_cpuset(dir: &Path) {
    for name in ["cpuset.mems", "cpuset.cpus"] {
        let top = fs::read_to_string(Path::new("/sys/fs/cgroup/cpuset").join(name)).unwrap();
        let mut above: Vec<&Path> =
            dir.ancestors().take_while(|dir| *dir != Path::new("/sys/fs/cgroup/cpuset")).collect();
        above.reverse();
        above.iter().for_each(|dir| fs::write(dir.join(name), &top).unwrap());
    }
}

/// Events of the kernel for a file: it collects changes for up to 10 ms.
struct News {
    fd: std::os::fd::OwnedFd,
    path: PathBuf,
}

impl News {
    fn of(path: &Path) -> Self {
        use std::os::fd::{AsRawFd, FromRawFd};
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a new descriptor, which nobody else owns.
        let fd =
            unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK)) };
        // SAFETY: the name ends with a zero.
        assert!(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), name.as_ptr(), libc::IN_MODIFY) } >= 0);
        Self { fd, path: path.to_owned() }
    }

    /// Waits until the file has this content and the kernel has sent the event.
    fn wait_until(self, wanted: &str) {
        let mut file = fs::File::from(self.fd);
        wait_until(wanted, || {
            let job_with = std::io::Read::read(&mut file, &mut [0; 4096]).is_ok();
            job_with && fs::read_to_string(&self.path).unwrap().contains(wanted)
        });
    }
}

#[test]
fn a_short_job_in_version_1_leaves_its_totals() {
    let cgroups = Cgroups::new();
    let (id, uid) = (cgroups.id(), 54_321);
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let jobs: Vec<PathBuf> = V1.iter().map(|ctrl| cgroups.v1(ctrl, uid, &id)).collect();
    let steps: Vec<PathBuf> = jobs.iter().map(|job| job.join("step_0")).collect();
    steps.iter().for_each(|step| fs::create_dir_all(step).unwrap());
    let began = tracked.began(&id);
    assert_eq!((began.record.uid, began.record.manager.as_str()), (Some(uid), "slurm"));
    fill_cpuset(&steps[4]);
    run_in(&steps, uid, WORK);
    let usage = fs::read_to_string(jobs[1].join("cpuacct.usage")).unwrap().trim().parse::<f64>().unwrap() / 1e9;
    steps.iter().for_each(|step| fs::remove_dir(step).unwrap());
    jobs.iter().for_each(|job| fs::remove_dir(job).unwrap());
    let ended = tracked.ended(&id);
    let record = &ended.record;
    let (life, age) = (record.to.unwrap() - record.from, record.to.unwrap() - record.totals_at.unwrap());
    println!(
        "version 1: {:.3} s of {usage:.3} s CPU known of a job of {} ms, read {} ms before its end; {:?}",
        record.totals["cpu/usage"],
        life / 1_000_000,
        age / 1_000_000,
        record.totals
    );
    assert!(record.totals["cpu/usage"] > 0.0 && record.totals["cpu/usage"] <= usage);
    assert!(record.totals["memory/peak"] > 0.0 && record.totals.contains_key("pids/peak"));
    assert!(record.totals.contains_key("cpu/user") && record.totals.contains_key("memory/events/oom_kill"));
    assert_eq!(record.cpus.as_deref(), Some(fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.cpus").unwrap().trim()));
    assert_eq!(record.steps.len(), 1);
    tracked.tracker.stop();
}

#[test]
fn a_short_job_in_the_unified_hierarchy_leaves_its_totals_whole() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let id = cgroups.id();
    let job = cgroups.v2(&id);
    let task = job.join("step_0/user/task_0");
    fs::create_dir_all(&task).unwrap();
    tracked.began(&id);
    let news = News::of(&job.join("cgroup.events"));
    run_in(&[task], 54_322, WORK);
    news.wait_until("populated 0");
    let stat = fs::read_to_string(job.join("cpu.stat")).unwrap();
    let usage = stat.lines().next().unwrap().trim_start_matches("usage_usec ").parse::<f64>().unwrap() / 1e6;
    // The kernel notifies all watchers at once and in order: with the event of this beginning, all earlier events are known.
    let second = cgroups.id();
    fs::create_dir(cgroups.v2(&second)).unwrap();
    tracked.began(&second);
    remove_all(&job);
    let ended = tracked.ended(&id);
    println!("unified: {:?} of {usage}", ended.record.totals);
    assert_eq!(ended.record.totals["cpu/usage"], usage, "read when its last process was gone");
    tracked.tracker.stop();
}

#[test]
fn whose_a_job_is_without_a_uid_in_its_path() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let id = cgroups.id();
    let task = cgroups.v2(&id).join("step_0/user/task_0");
    fs::create_dir_all(&task).unwrap();
    tracked.began(&id);
    let script =
        format!("echo $$ > {}/cgroup.procs; exec setpriv --reuid=54323 --clear-groups sleep 600", task.display());
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let changed = tracked.changed(&id, |job| job.record.uid.is_some());
    assert_eq!(changed.record.uid, Some(54_323));
    child.kill().unwrap();
    child.wait().unwrap();
    remove_all(&cgroups.v2(&id));
    tracked.ended(&id);
    tracked.tracker.stop();
}

#[test]
fn jobs_that_end_before_a_scan_are_reported() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let first = cgroups.id();
    let parent = cgroups.v1("cpuacct", 1, &first).parent().unwrap().to_owned();
    fs::create_dir_all(parent.join(format!("job_{first}"))).unwrap();
    tracked.began(&first);
    let ids: Vec<String> = (0..500).map(|_| cgroups.id()).collect();
    for id in &ids {
        fs::create_dir(parent.join(format!("job_{id}"))).unwrap();
        fs::remove_dir(parent.join(format!("job_{id}"))).unwrap();
    }
    let over = |id: &String| tracked.record(id).is_some_and(|record| record.to.is_some_and(|to| to >= record.from));
    wait_until("500 ends", || ids.iter().all(&over));
    assert!(tracked.record(&first).unwrap().to.is_none());
    tracked.tracker.stop();
}

#[test]
fn controllers_vanish_one_after_another() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let id = cgroups.id();
    for controller in V1 {
        fs::create_dir_all(cgroups.v1(controller, 1, &id)).unwrap();
    }
    fs::create_dir_all(cgroups.v2(&id)).unwrap();
    tracked.job_with(&id, |job| job.cgroups.v1.len() == V1.len() && job.cgroups.v2.is_some());
    for (left, controller) in (2..=V1.len()).rev().zip(["memory", "cpuacct", "cpuset", "pids"]) {
        fs::remove_dir(cgroups.v1(controller, 1, &id)).unwrap();
        tracked.changed(&id, |job| job.cgroups.v1.len() == left - 1);
    }
    fs::remove_dir(cgroups.v2(&id)).unwrap();
    let ended = tracked.ended(&id);
    assert_eq!(ended.cgroups.v1.keys().collect::<Vec<_>>(), ["freezer"], "which keeps no job running");
    tracked.tracker.stop();
}

/// Slurm up to 22.05 gives a step's directory to the user: directories below it are no tasks.
#[test]
fn a_job_whose_processes_are_in_a_directory_of_its_users_has_processes() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(NO_RESCAN), &Roots::default(), None);
    let (id, uid) = (cgroups.id(), 54_324);
    let step = cgroups.v1("cpuacct", uid, &id).join("step_0");
    fs::create_dir_all(&step).unwrap();
    std::os::unix::fs::chown(&step, Some(uid), Some(uid)).unwrap();
    let task = step.join("task_0");
    fs::create_dir(&task).unwrap();
    assert!(!tracked.began(&id).has_processes);
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    fs::write(task.join("cgroup.procs"), child.id().to_string()).unwrap();
    tracked.changed(&id, |job| job.has_processes);
    child.kill().unwrap();
    child.wait().unwrap();
    remove_all(&cgroups.v1("cpuacct", uid, &id));
    tracked.ended(&id);
    tracked.tracker.stop();
}

/// Prints the delay of events after a directory is created and removed: the goal is 50 ms.
#[test]
fn latency_of_beginnings_and_ends() {
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&cgroups.config(Interval::from_s(1)), &Roots::default(), None);
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let id = cgroups.id();
        let dir = cgroups.v1("cpuacct", 1, &id);
        fs::create_dir_all(dir.parent().unwrap()).unwrap();
        let start = Instant::now();
        fs::create_dir(&dir).unwrap();
        tracked.began(&id);
        begins.push(start.elapsed());
        let start = Instant::now();
        fs::remove_dir(&dir).unwrap();
        tracked.ended(&id);
        ends.push(start.elapsed());
    }
    for (what, times) in [("began", &mut begins), ("ended", &mut ends)] {
        times.sort();
        println!("{what}: median {:?}, 95 % {:?}, longest {:?} of {}", times[100], times[190], times[199], times.len());
    }
    tracked.tracker.stop();
}
