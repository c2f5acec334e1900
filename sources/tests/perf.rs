//! Events of the running kernel: counts of a process in its own cgroup, compared with those that the process reports.

mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use tree::{discover, job_source, metric_sets, open, read_set, source};
use wholegrain_sources::job::{JobCgroups, JobSource};
use wholegrain_sources::{Reading, Roots};

/// The work of the process: pages, each of which faults; sleeps, nearly each of which is a switch (none where the time is over before the process
/// sleeps); ms of CPU time.
const PAGES: u64 = 2_000;
const SLEEPS: u64 = 100;
const BURN_MS: u64 = 300;

/// Held by tests that count descriptors or CPU time, which other tests would disturb.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether this process may count events. Without the permission (in a container) there is nothing to test.
fn is_permitted() -> bool {
    let (groups, reports) = discover(
        source("perf", "[sources.perf]\nnode_events = [\"page-faults\"]\n", &Roots::default()).unwrap().as_mut(),
    );
    if groups.is_empty() {
        println!("skipped: perf events cannot be opened here: {reports:?}");
    }
    !groups.is_empty()
}

/// The processes of a job are in cgroups below its own.
const STEP: &str = "step_0";

/// A cgroup that is removed with its processes, also when the test fails.
struct Cgroup {
    path: PathBuf,
    worker: Option<Worker>,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Cgroup {
    /// A cgroup in the unified hierarchy, if there is a writable one.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let root = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
        let name = format!("wholegrain-perf-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(root).join(name);
        match fs::create_dir_all(path.join(STEP)) {
            Ok(()) => Some(Self { path, worker: None }),
            Err(error) => {
                println!("skipped: {} cannot be made: {error}", path.display());
                None
            }
        }
    }

    fn cgroups(&self) -> JobCgroups {
        JobCgroups { level: "4711".to_owned(), v2: Some(self.path.clone()), ..JobCgroups::default() }
    }

    /// Starts a process in the step of the job, which waits for a line.
    fn start_worker(&mut self) {
        let mut child = helper("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        fs::write(self.path.join(STEP).join("cgroup.procs"), child.id().to_string()).unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let worker = self.worker.insert(Worker { child, stdin, stdout });
        worker.answer("ready");
    }

    /// Lets the process work once; gives its own counts.
    fn work(&mut self) -> BTreeMap<String, u64> {
        let worker = self.worker.as_mut().unwrap();
        worker.stdin.write_all(b"go\n").unwrap();
        let line = worker.answer("done");
        let words = line.split_whitespace().filter_map(|word| word.split_once('='));
        words.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }
}

impl Worker {
    /// The next line with this beginning. The test harness of the process writes other lines.
    fn answer(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the worker ended");
            if let Some(at) = line.find(beginning) {
                return line[at..].to_owned();
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        // The kernel releases a process shortly after its parent has waited for it.
        let removed = (0..500).any(|_| {
            let _ = fs::remove_dir(self.path.join(STEP));
            fs::remove_dir(&self.path).is_ok() || {
                std::thread::sleep(std::time::Duration::from_millis(10));
                false
            }
        });
        assert!(removed || std::thread::panicking(), "{} still exists", self.path.display());
    }
}

/// Runs this program again, as the helper of this name.
fn helper(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "parts_that_are_other_processes", "--nocapture", "--test-threads=1"]);
    command.env("WHOLEGRAIN_PERF_PART", part).stderr(Stdio::null());
    command
}

/// Does nothing, except in the processes that [`helper`] starts.
#[test]
fn parts_that_are_other_processes() {
    match std::env::var("WHOLEGRAIN_PERF_PART").as_deref() {
        Ok("worker") => worker(),
        Ok("reports") => {
            let config = "[sources.perf]\nnode_events = [\"page-faults\"]\n";
            let (groups, reports) = discover(source("perf", config, &Roots::default()).unwrap().as_mut());
            println!("\nreports {} {reports:?}", groups.len());
        }
        Ok("few descriptors") => {
            let events = ["task-clock", "cpu-clock", "page-faults", "minor-faults", "major-faults", "cs", "migrations"];
            let config = format!("[sources.perf]\nnode_events = {events:?}\n");
            let mut source = source("perf", &config, &Roots::default()).unwrap();
            for limit in [8, 1000] {
                limit_descriptors(limit);
                let (groups, reports) = discover(source.as_mut());
                println!("\nreports {} {reports:?}", groups.len());
            }
        }
        _ => {}
    }
}

fn limit_descriptors(limit: u64) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is of the type that is asked for, and writable.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits), 0);
        limits.rlim_cur = limit;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limits), 0);
    }
}

fn worker() {
    println!("\nready");
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "go");
        let before = usage();
        work();
        let after = usage();
        println!("\ndone cpu_ns={} faults={} switches={}", after.0 - before.0, after.1 - before.1, after.2 - before.2);
    }
}

/// The CPU time in ns, page faults and context switches of this process.
fn usage() -> (u64, u64, u64) {
    // SAFETY: these are plain numbers, for which zero is a value.
    let (mut time, mut usage): (libc::timespec, libc::rusage) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both are writable and of the types that are asked for.
    unsafe {
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
    }
    let cpu = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    (cpu, (usage.ru_minflt + usage.ru_majflt) as u64, (usage.ru_nvcsw + usage.ru_nivcsw) as u64)
}

fn work() {
    const PAGE: usize = 4096;
    let length = PAGES as usize * PAGE;
    // SAFETY: fresh memory of `length` bytes, written within its bounds, without huge pages, and given back.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, length, libc::MADV_NOHUGEPAGE);
        for page in 0..PAGES as usize {
            memory.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        libc::munmap(memory, length);
    }
    for _ in 0..SLEEPS {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    let start = usage().0;
    while usage().0 - start < BURN_MS * 1_000_000 {
        std::hint::black_box((0..10_000u64).fold(0, |sum, number| sum ^ number.wrapping_mul(sum | 3)));
    }
}

fn jobs(keys: &str, roots: &Roots) -> Box<dyn JobSource> {
    job_source("perf", &format!("[sources.perf]\n{keys}\n"), roots).unwrap()
}

#[test]
fn a_jobs_software_events_are_what_its_process_says_of_itself() {
    let _alone = alone();
    let Some(mut cgroup) = is_permitted().then(Cgroup::new).flatten() else { return };
    cgroup.start_worker();
    let mut source =
        jobs("events = [\"task-clock\", \"page-faults\", \"minor-faults\", \"context-switches\"]", &Roots::default());
    let (sets, reports) = metric_sets(source.as_mut(), &cgroup.cgroups());
    assert_eq!(reports, [""; 0]);
    let set = &sets["software"];
    let mut reader = open(set);
    let (before, reading) = read_set(set, reader.as_mut());
    assert_eq!(reading, Reading::default());
    assert_eq!(before["perf/page-faults"], Some(0), "it sleeps");
    let said = cgroup.work();
    let (after, reading) = read_set(set, reader.as_mut());
    assert_eq!(reading, Reading::default());
    let counted = |name: &str| (after[name].unwrap() - before[name].unwrap()) as u64;
    println!("the process: {said:?}; counted: {after:?}");
    // The events count its output on the pipe too, before and after its own measurement.
    let (clock, cpu) = (counted("perf/task-clock"), said["cpu_ns"]);
    assert!(clock >= cpu - cpu / 20 && clock <= cpu + cpu / 5 + 20_000_000, "{clock} ns counted, {cpu} ns used");
    let (faults, own) = (counted("perf/page-faults"), said["faults"]);
    assert!(own >= PAGES && faults >= own && faults <= own + 200, "{faults} faults counted, {own} had");
    assert!(counted("perf/minor-faults") >= PAGES);
    let (switches, own) = (counted("perf/context-switches"), said["switches"]);
    assert!(own >= SLEEPS / 2 && switches >= own, "{switches} switches counted, {own} had");
}

#[test]
fn counters_outlive_the_change_of_readers_and_the_jobs_directory_and_leave_nothing() {
    let _alone = alone();
    let Some(mut cgroup) = is_permitted().then(Cgroup::new).flatten() else { return };
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    cgroup.start_worker();
    let before = descriptors();
    let mut source = jobs("", &Roots::default());
    let cgroups = cgroup.cgroups();
    let (sets, _) = metric_sets(source.as_mut(), &cgroups);
    let opened = descriptors();
    assert!(opened >= before + 6, "{opened} descriptors, {before} before");
    let set = &sets["software"];
    let mut first = open(set);
    cgroup.work();
    let (values, _) = read_set(set, first.as_mut());
    let mut second = open(set);
    drop(first);
    cgroup.work();
    let (later, _) = read_set(set, second.as_mut());
    assert!(values["perf/page-faults"].unwrap() as u64 >= PAGES);
    assert!(later["perf/page-faults"].unwrap() as u64 >= values["perf/page-faults"].unwrap() as u64 + PAGES);
    assert_eq!(descriptors(), opened, "a change of readers opens nothing");
    // The final counts can be read after the end of the job.
    drop(cgroup);
    let (last, reading) = read_set(set, second.as_mut());
    assert_eq!(reading, Reading::default());
    assert!(last["perf/task-clock"].unwrap() >= later["perf/task-clock"].unwrap());
    source.forget(&cgroups);
    assert!(read_set(set, second.as_mut()).1.gone);
    // The two pipes of the worker are closed too.
    assert_eq!(descriptors(), before - 2);
}

#[test]
fn a_tracepoint_counts() {
    let _alone = alone();
    let Some(mut cgroup) = is_permitted().then(Cgroup::new).flatten() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tracing = folder.path().join("kernel/tracing");
    fs::create_dir_all(&tracing).unwrap();
    let roots = Roots { sys: folder.path().to_owned(), ..Roots::default() };
    cgroup.start_worker();
    // A mount that only this thread sees.
    let mounted = std::thread::spawn(move || {
        if !mount_privately("tracefs", &tracing) {
            println!("skipped: tracefs cannot be mounted: {}", std::io::Error::last_os_error());
            return;
        }
        let mut source = jobs("events = [\"sched:sched_switch\", \"context-switches\"]", &roots);
        let (sets, reports) = metric_sets(source.as_mut(), &cgroup.cgroups());
        assert_eq!(reports, [""; 0]);
        let set = &sets["software"];
        let mut reader = open(set);
        let own = cgroup.work()["switches"];
        let (values, reading) = read_set(set, reader.as_mut());
        println!("{values:?}");
        assert_eq!(reading, Reading::default());
        let [Some(passes), Some(switches)] =
            ["perf/sched:sched_switch", "perf/context-switches"].map(|name| values[name])
        else {
            panic!("{values:?}")
        };
        assert!(own >= SLEEPS / 2, "{own} switches had");
        assert!(
            passes as u64 >= own && passes.abs_diff(switches) <= 2,
            "{passes} passes, {switches} switches, {own} had"
        );
    });
    mounted.join().unwrap();
}

#[test]
fn counters_leave_descriptors_to_the_rest_of_the_program() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let output = helper("few descriptors").output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = output.lines().filter(|line| line.starts_with("reports ")).collect();
    let [few, enough] = lines[..] else { panic!("{output}") };
    assert!(few.starts_with("reports 0 [\"perf: task-clock, cpu-clock, page-faults"), "{few}");
    assert!(few.contains("no file descriptors are left") && few.contains("LimitNOFILE="), "{few}");
    assert_eq!(enough, "reports 1 []", "taken when there are some");
}

fn mount_privately(kind: &str, at: &Path) -> bool {
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let (kind, at, root) = (text(kind), text(at.to_str().unwrap()), text("/"));
    // SAFETY: all texts end in a NUL and outlive the calls; only this thread's own namespace is changed.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                root.as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) == 0
    }
}

#[test]
fn events_of_the_node_and_reports_of_those_it_lacks() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let config = "[sources.perf]\nnode_events = [\"page-faults\", \"task-clock\", \"cycles\", \"msr/tsc/\"]\n";
    let mut source = source("perf", config, &Roots::default()).unwrap();
    let (mut groups, reports) = discover(source.as_mut());
    let mut group = groups.remove("perf").unwrap();
    for name in ["perf/cycles", "perf/msr.tsc"] {
        let exists = group.sensors.iter().any(|sensor| sensor.name == name);
        let is_reported = reports.iter().filter(|report| report.contains("machine has no")).count() == 1;
        assert!(exists || is_reported, "{name} neither exists nor is reported: {reports:?}");
    }
    let (first, reading) = tree::read(&mut group);
    assert_eq!(reading, Reading::default());
    work();
    let (second, _) = tree::read(&mut group);
    println!("{first:?} {second:?}");
    for (name, before) in &first {
        let (Some(before), Some(after)) = (before, second[name]) else { panic!("{name} is a gap") };
        assert!(after >= *before, "{name}");
    }
    assert!(second["perf/page-faults"].unwrap() - first["perf/page-faults"].unwrap() >= PAGES as i64);
    assert_eq!(discover(source.as_mut()).1, reports, "the same text at each discovery");
}

#[test]
fn a_missing_permission_is_reported_with_a_remedy() {
    let _alone = alone();
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    // SAFETY: it only gives a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || level.trim().parse::<i32>().is_ok_and(|level| level < 1) {
        println!("skipped: needs root, to run as another user, and a perf_event_paranoid above 0: it is {level:?}");
        return;
    }
    let nobody = helper("reports").uid(65_534).gid(65_534).output();
    let output = match nobody {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return println!("skipped: another user may not run {:?}: {error}", std::env::current_exe()),
    };
    let line = output.lines().find(|line| line.starts_with("reports ")).unwrap_or_else(|| panic!("{output}"));
    assert!(line.starts_with("reports 0 [\"perf: the agent may not count page-faults"), "{line}");
    assert!(
        line.contains(&format!("perf_event_paranoid is {}", level.trim())) && line.contains("CAP_PERFMON"),
        "{line}"
    );
}
