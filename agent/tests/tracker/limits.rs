//! Bounds and errors of the system: descriptors, watches, permissions.

use std::collections::HashSet;
use std::sync::Mutex;

use super::kernel::Cgroups;
use super::*;

/// The log lines of this process, which runs no other test.
fn log() -> Arc<Mutex<Vec<u8>>> {
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
    let theirs = lines.clone();
    tracing_subscriber::fmt().with_writer(move || Lines(theirs.clone())).with_ansi(false).init();
    lines
}

fn text(log: &Mutex<Vec<u8>>) -> String {
    String::from_utf8(log.lock().unwrap().clone()).unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Inotify's watches of this process (`proc(5)`, fdinfo).
fn watches() -> usize {
    let infos = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = infos.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.map(|text| text.matches("inotify wd:").count()).sum()
}

/// CPU time of the tracker's threads so far, in ms (`proc(5)`, schedstat).
fn tracker_ms() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let ours = tasks.filter(|task| {
        ["tracker", "records"].contains(&fs::read_to_string(task.join("comm")).unwrap_or_default().trim())
    });
    let ns =
        ours.filter_map(|task| fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse::<f64>().ok());
    ns.sum::<f64>() / 1e6
}

/// Prints the cost of running jobs.
#[test]
fn two_hundred_jobs_at_rest() {
    if !alone("limits::two_hundred_jobs_at_rest", &[]) {
        return;
    }
    let cgroups = Cgroups::new();
    let tracked = Tracked::start(&config(Interval::from_s(1)), &Roots::default(), None);
    let ids: Vec<String> = (0..200).map(|_| cgroups.id()).collect();
    for id in &ids {
        for controller in ["freezer", "cpuacct", "memory", "pids"] {
            fs::create_dir_all(cgroups.v1(controller, 1, id).join("step_0/task_0")).unwrap();
        }
    }
    let all = || ids.iter().all(|id| tracked.record(id).is_some_and(|record| record.steps.len() == 2));
    wait_until("200 jobs", all);
    // The pauses between reads have reached their maximum.
    std::thread::sleep(Duration::from_secs(2));
    let (start, before) = (Instant::now(), tracker_ms());
    std::thread::sleep(Duration::from_secs(3));
    let share = (tracker_ms() - before) / start.elapsed().as_secs_f64();
    println!("200 jobs in 4 hierarchies, a rescan every second: {share:.1} ms of CPU a second");
    assert!(ids.iter().all(|id| tracked.record(id).is_some_and(|record| record.to.is_none())));
    tracked.tracker.stop();
}

/// Counts the events of jobs so far.
#[derive(Default)]
struct EventCounts {
    began: HashSet<String>,
    ended: usize,
}

impl EventCounts {
    /// Takes the events since the last call; returns the numbers of jobs that began and ended.
    fn take(&mut self, tracked: &Tracked) -> (usize, usize) {
        tracked.events.try_iter().for_each(|event| match event {
            JobEvent::Began(job) => {
                assert!(self.began.insert(job.record.job.clone()), "{} began twice", job.record.job)
            }
            JobEvent::Ended(_) => self.ended += 1,
            JobEvent::Changed(_) => {}
        });
        (self.began.len(), self.ended)
    }
}

#[test]
fn a_thousand_jobs_in_ten_seconds_leave_nothing_behind() {
    if !alone("limits::a_thousand_jobs_in_ten_seconds_leave_nothing_behind", &[]) {
        return;
    }
    const JOBS: usize = 1000;
    const AT_ONCE: usize = 50;
    let cgroups = Cgroups::new();
    let dir = tempfile::tempdir().unwrap();
    // Other tests create jobs too: a layout of their own distinguishes these.
    let (v1, v2) = cgroups.patterns();
    let patterns = vec![pattern("own", &v1), pattern("own", &v2)];
    let config = TrackerConfig { managers: Vec::new(), patterns, ..config(Interval::from_s(2)) };
    let tracked = Tracked::start(&config, &Roots::default(), Some(dir.path()));
    let controllers = ["freezer", "cpuacct", "memory", "pids"];
    let dirs = |id: &str| {
        let v1 = controllers.iter().map(|controller| cgroups.v1(controller, 1, id)).collect::<Vec<_>>();
        [v1, vec![cgroups.v2(id)]].concat()
    };
    let remove = |id: &String| {
        for dir in dirs(id) {
            fs::remove_dir(dir.join("step_0")).unwrap();
            fs::remove_dir(dir).unwrap();
        }
    };
    // The parent directories remain; one job before shows the fixed cost of a tracker.
    let first = cgroups.id();
    dirs(&first).iter().for_each(|dir| fs::create_dir_all(dir.join("step_0")).unwrap());
    tracked.began(&first);
    remove(&first);
    tracked.ended(&first);
    let before = (descriptors(), watches());
    let (start, cpu) = (Instant::now(), tracker_ms());
    let mut events = EventCounts::default();
    let own = |tracked: &Tracked| -> Vec<JobRecord> { tracked.job_table.pending(usize::MAX) };
    let mut running = std::collections::VecDeque::new();
    let (mut most, mut reported_before_the_end) = ((0, 0), HashSet::new());
    for number in 0..JOBS {
        let due = start + Duration::from_secs(10) * number as u32 / JOBS as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let id = cgroups.id();
        dirs(&id).iter().for_each(|dir| fs::create_dir_all(dir.join("step_0")).unwrap());
        running.push_back(id);
        events.take(&tracked);
        if running.len() > AT_ONCE {
            let oldest: String = running.pop_front().unwrap();
            // Every second job stays until the tracker has reported it; the others end after their time.
            if number % 2 == 0 {
                wait_until("the beginning of a job", || {
                    events.take(&tracked);
                    events.began.contains(&oldest)
                });
            }
            remove(&oldest);
            if events.began.contains(&oldest) {
                reported_before_the_end.insert(oldest);
            }
        }
        if number % 100 == 99 {
            most = most.max((descriptors(), watches()));
        }
    }
    running.iter().for_each(remove);
    wait_until("the ends of all jobs", || {
        events.take(&tracked);
        let records = own(&tracked);
        let over = records.iter().filter(|record| record.to.is_some()).count();
        assert!(records.len() <= JOBS + 1, "a record too many: {records:#?}");
        over == JOBS + 1
    });
    wait_until("all descriptors and watches to be given back", || descriptors() <= before.0 && watches() <= before.1);
    println!(
        "{JOBS} jobs, each in {} hierarchies, in {:?}: {:.0} ms of the tracker's CPU; at most {} descriptors and {} watches, {} and {} before and after; records.json has {} bytes",
        controllers.len() + 1,
        start.elapsed(),
        tracker_ms() - cpu,
        most.0,
        most.1,
        before.0,
        before.1,
        fs::metadata(dir.path().join("records.json")).unwrap().len(),
    );
    // A record is closed before the event of its end is sent.
    wait_until("an event of each end", || events.take(&tracked).1 >= JOBS);
    assert_eq!(events.take(&tracked), (JOBS, JOBS));
    let records = own(&tracked);
    let (with, without): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.totals.contains_key("cpu/usage"));
    println!(
        "{} of {} left totals; {} were reported before they ended",
        with.len(),
        records.len(),
        reported_before_the_end.len()
    );
    // The load of the machine decides how many jobs the tracker sees in time. It had time for those that it reported.
    assert!(reported_before_the_end.len() >= (JOBS - AT_ONCE) / 2);
    let lost = without.iter().find(|record| reported_before_the_end.contains(&record.job));
    assert_eq!(lost, None, "a job that was reported left no totals");
    records.iter().for_each(|record| tracked.job_table.acknowledged(record));
    assert!(own(&tracked).is_empty() && tracked.job_table.dropped() == 0);
    tracked.tracker.stop();
}

#[test]
fn without_descriptors_no_job_ends_and_with_them_all_is_repaired() {
    if !alone("limits::without_descriptors_no_job_ends_and_with_them_all_is_repaired", &[]) {
        return;
    }
    let log = log();
    let tree = Tree::new(&["cpuacct", "memory"]);
    let tracked = Tracked::start(&config(Interval::from_ms(100)), &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_1/job_1");
    tracked.began("1");
    let limit = |soft: u64| {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: 4096 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    limit(3);
    tree.make("cgroup/cpuacct/slurm/uid_1/job_2/step_0");
    tree.make("cgroup/memory/slurm/uid_1/job_1");
    wait_until("a line about descriptors", || text(&log).contains("Too many open files"));
    // For a few scans nothing can be read.
    let events: Vec<JobEvent> = (0..5).flat_map(|_| tracked.events.recv_timeout(Duration::from_millis(100))).collect();
    assert!(!events.iter().any(|event| matches!(event, JobEvent::Ended(_))), "{events:?}");
    limit(1024);
    wait_until("both jobs", || {
        let jobs = ["1", "2"].map(|id| tracked.record(id));
        jobs.iter().flatten().filter(|record| record.to.is_none()).count() == 2
            && jobs[1].as_ref().is_some_and(|record| record.steps.len() == 1)
    });
    tree.remove("cgroup/cpuacct/slurm/uid_1/job_2/step_0");
    tree.remove("cgroup/cpuacct/slurm/uid_1/job_2");
    tracked.ended("2");
    let text = text(&log);
    assert!(text.lines().count() <= 4, "logged once each:\n{text}");
    tracked.tracker.stop();
}

#[test]
fn without_watches_the_rescan_finds_jobs() {
    let name = "limits::without_watches_the_rescan_finds_jobs";
    let set = "echo 4 > /proc/sys/user/max_inotify_watches && exec \"$@\"";
    if !alone(name, &["unshare", "-U", "-r", "sh", "-c", set, "sh"]) {
        return;
    }
    let log = log();
    let tree = Tree::new(&["cpuacct", "memory"]);
    let tracked = Tracked::start(&config(Interval::from_ms(100)), &tree.roots(), None);
    for job in 0..20 {
        tree.make(&format!("cgroup/cpuacct/slurm/uid_{job}/job_{job}/step_0"));
        tree.make(&format!("cgroup/memory/slurm/uid_{job}/job_{job}"));
    }
    wait_until("all jobs", || tracked.job_table.count() == 20);
    for job in 0..20 {
        tree.remove(&format!("cgroup/cpuacct/slurm/uid_{job}/job_{job}/step_0"));
        tree.remove(&format!("cgroup/cpuacct/slurm/uid_{job}/job_{job}"));
        tree.remove(&format!("cgroup/memory/slurm/uid_{job}/job_{job}"));
        tracked.ended(&job.to_string());
    }
    let text = text(&log);
    assert!(text.contains("max_user_watches") && text.lines().count() == 1, "{text}");
    assert!(watches() <= 4);
    tracked.tracker.stop();
}

#[test]
fn without_inotify_the_rescan_finds_jobs() {
    let name = "limits::without_inotify_the_rescan_finds_jobs";
    let set = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    if !alone(name, &["unshare", "-U", "-r", "sh", "-c", set, "sh"]) {
        return;
    }
    let log = log();
    let tree = Tree::new(&["cpuacct"]);
    let tracked = Tracked::start(&config(Interval::from_ms(100)), &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_1/job_1");
    tracked.began("1");
    tree.remove("cgroup/cpuacct/slurm/uid_1/job_1");
    tracked.ended("1");
    assert!(text(&log).contains("max_user_instances"), "{}", text(&log));
    tracked.tracker.stop();
}

#[test]
fn without_root_it_says_what_it_cannot_see_and_goes_on() {
    if !alone("limits::without_root_it_says_what_it_cannot_see_and_goes_on", &[]) {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let log = log();
    let tree = Tree::new(&["cpuacct"]);
    let hide = |path: &str, mode: u32| fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).unwrap();
    for uid in [1, 2] {
        tree.make(&format!("cgroup/cpuacct/slurm/uid_{uid}/job_{uid}"));
        hide(&format!("cgroup/cpuacct/slurm/uid_{uid}"), 0o700);
    }
    tree.make("cgroup/cpuacct/slurm/uid_3/job_3");
    tree.write("hooks/slurm-3", "manager=slurm\njob=3\nname=x\n");
    hide("hooks", 0o700);
    hide("", 0o755);
    // SAFETY: numbers only; this process has no other test.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 0) }, 0);
    let config = TrackerConfig { hooks: Some(tree.path("hooks")), ..config(Interval::from_ms(100)) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    let began = tracked.began("3");
    assert_eq!(began.record.name, None);
    // Later scans report nothing new.
    let start = Instant::now();
    wait_until("some scans", || text(&log).lines().count() >= 2 && start.elapsed() > Duration::from_secs(1));
    let text = text(&log);
    let about =
        |what: &str| text.lines().filter(|line| line.contains(what) && line.contains("Permission denied")).count();
    assert_eq!((about("uid_"), about("hooks"), text.lines().count()), (1, 1, 2), "{text}");
    tracked.tracker.stop();
    // SAFETY: as above; so that the tree can be removed.
    assert_eq!(unsafe { libc::setresuid(0, 0, 0) }, 0);
}
