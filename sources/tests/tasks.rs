//! Processes of jobs on the running kernel: ended ones stay in the sums, and I/O is counted once, with and without taskstats.

mod tree;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use tree::{RealJob, job_source, metric_sets, open, read_set};
use wholegrain_model::Kind;
use wholegrain_sources::job::{FinalCounters, JobCgroups, JobSource, MetricSet};
use wholegrain_sources::{Reader, Roots};
use wholegrain_testkit::{wait_for, wait_until};

const BY_PROC: &str = "[sources.tasks]\ntaskstats = false\n";

/// A job with a reader of its only metric set.
struct Job {
    real: RealJob,
    source: Box<dyn JobSource>,
    set: MetricSet,
    reader: Box<dyn Reader>,
    before: BTreeMap<String, i64>,
}

impl Job {
    fn new(config: &str) -> Option<Self> {
        let real = RealJob::new(true, true)?;
        let mut source = job_source("tasks", config, &Roots::default()).unwrap();
        let (sets, reports) = metric_sets(source.as_mut(), &real.cgroups);
        println!("{reports:?}");
        let set = sets.into_values().next().unwrap();
        let reader = open(&set);
        Some(Self { real, source, set, reader, before: BTreeMap::new() })
    }

    /// Whether taskstats works, which gives more metrics.
    fn has_taskstats(&self) -> bool {
        let mut reports = Vec::new();
        let mut other = job_source("tasks", "", &Roots::default()).unwrap();
        other.metric_sets(&self.real.cgroups, &mut |text| reports.push(text));
        !reports.iter().any(|text| text.contains("taskstats cannot be used"))
    }

    /// Takes a sample, and checks that no counter has fallen.
    fn read(&mut self) -> BTreeMap<String, i64> {
        let (values, reading) = read_set(&self.set, self.reader.as_mut());
        assert_eq!(reading, Default::default());
        let values: BTreeMap<String, i64> =
            values.into_iter().map(|(name, value)| (name.clone(), value.unwrap_or_else(|| panic!("{name}")))).collect();
        for sensor in self.set.sensors.iter().filter(|sensor| sensor.kind == Kind::Counter) {
            if let Some(before) = self.before.get(&sensor.name) {
                assert!(values[&sensor.name] >= *before, "{} fell from {before}: {values:?}", sensor.name);
            }
        }
        self.before.clone_from(&values);
        values
    }

    /// Reads until a condition holds.
    #[track_caller]
    fn read_until(&mut self, what: &str, holds: impl Fn(&BTreeMap<String, i64>) -> bool) -> BTreeMap<String, i64> {
        wait_for(what, || Some(self.read()).filter(&holds))
    }

    /// Starts a program in the job, which waits for a line on its standard input.
    fn spawn(&self, program: &str) -> Child {
        let whole =
            format!("import os, sys, time, threading, mmap\nsys.stdin.readline()\n{program}\nsys.stdin.readline()\n");
        let piped = Stdio::piped;
        let child =
            Command::new("/usr/bin/python3").args(["-c", &whole]).stdin(piped()).stdout(piped()).spawn().unwrap();
        self.real.add(child.id());
        child
    }
}

fn go_on(child: &mut Child) {
    use std::io::Write;
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

fn wait_for_line(child: &mut Child) {
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
}

fn check_io(config: &str) {
    let Some(mut job) = Job::new(config) else { return };
    let mut child = job.spawn(
        "fd = os.open('/dev/zero', os.O_RDONLY)\nfor _ in range(100): os.read(fd, 50000)\nout = os.open('/dev/null', os.O_WRONLY)\nfor _ in range(70): os.write(out, b'x' * 1001)\nprint('done', flush=True)",
    );
    let before = job.read_until("one process", |values| values["tasks/processes"] == 1);
    go_on(&mut child);
    wait_for_line(&mut child);
    // The program waits for a line now, or soon.
    let after = job.read_until("a wait", |values| values["tasks/switches/voluntary"] > 0);
    let rise = |name: &str| after[name] - before[name];
    // The counts include the start of the interpreter, and the output `done`.
    assert!((5_000_000..6_500_000).contains(&rise("tasks/io/read_chars")), "{}", rise("tasks/io/read_chars"));
    assert!((70_070..80_000).contains(&rise("tasks/io/write_chars")), "{}", rise("tasks/io/write_chars"));
    assert!(rise("tasks/io/read_calls") >= 100 && rise("tasks/io/write_calls") >= 70);
    assert!(after["tasks/memory/peak_rss"] >= after["tasks/memory/rss"] && after["tasks/memory/rss"] > 1 << 20);
    assert!(after["tasks/cpu/run"] > 0 && after["tasks/faults/minor"] > 0, "{after:?}");
    go_on(&mut child);
    child.wait().unwrap();
    let end = job.read_until("no process", |values| values["tasks/processes"] == 0);
    assert_eq!((end["tasks/threads"], end["tasks/ended"], end["tasks/memory/rss"]), (0, 1, 0));
    assert!(end["tasks/io/read_chars"] >= after["tasks/io/read_chars"]);
}

#[test]
fn io_is_counted_with_taskstats() {
    check_io("");
}

#[test]
fn io_is_counted_without_taskstats() {
    check_io(BY_PROC);
}

/// Forks children that use CPU time and read, and waits for some of them.
const CHILDREN: &str = "
def work():
    start = time.process_time()
    while time.process_time() - start < 0.05: pass
    fd = os.open('/dev/zero', os.O_RDONLY)
    for _ in range(10): os.read(fd, 10000)
for n in range(8):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)
print('done', flush=True)";

#[test]
fn children_that_ended_between_two_reads_stay_in_the_sums() {
    let Some(mut job) = Job::new("") else { return };
    if !job.has_taskstats() {
        println!("left out: no taskstats here");
        return;
    }
    let mut child = job.spawn(CHILDREN);
    let before = job.read_until("one process", |values| values["tasks/processes"] == 1);
    go_on(&mut child);
    wait_for_line(&mut child);
    let after = job.read();
    let rise = |name: &str| after[name] - before[name];
    assert_eq!(rise("tasks/ended"), 8);
    assert!(rise("tasks/cpu/run") >= 400_000_000, "{}", rise("tasks/cpu/run"));
    // Counted once: 8 times 100,000, and the reads of the interpreter.
    assert!((800_000..1_500_000).contains(&rise("tasks/io/read_chars")), "{}", rise("tasks/io/read_chars"));
    let cpu =
        tree::sample(job_source("cgroup", "", &Roots::default()).unwrap().as_mut(), &job.real.cgroups)["cpu/usage"];
    let run = after["tasks/cpu/run"] as f64 * 1e-9;
    println!("cpu/usage {cpu} s, tasks/cpu/run {run} s");
    // The cgroup counts since the process was moved into it, the process since its start.
    assert!(run >= cpu - 0.02, "{run} {cpu}");
    go_on(&mut child);
    child.wait().unwrap();
    let end = job.read_until("no process", |values| values["tasks/processes"] == 0);
    assert_eq!(end["tasks/ended"], 9);
}

fn check_reads_while_children_come_and_go(config: &str) {
    let Some(mut job) = Job::new(config) else { return };
    let mut child = job.spawn(CHILDREN);
    go_on(&mut child);
    // Reads happen at any moment of the children's lives. No counter falls.
    let is_over = |values: BTreeMap<String, i64>| {
        values["tasks/ended"] >= 8 || (values["tasks/io/read_chars"] > 800_000 && values["tasks/processes"] == 1)
    };
    wait_until("the end of eight children", || (0..20).any(|_| is_over(job.read())));
    wait_for_line(&mut child);
    job.read();
    go_on(&mut child);
    child.wait().unwrap();
    let end = job.read_until("no process", |values| values["tasks/processes"] == 0);
    assert!((800_000..2_500_000).contains(&end["tasks/io/read_chars"]), "{}", end["tasks/io/read_chars"]);
    // Without taskstats the counts of a child after its last read are lost.
    if config.is_empty() && job.has_taskstats() {
        assert!(end["tasks/cpu/run"] >= 400_000_000, "{}", end["tasks/cpu/run"]);
    }
}

#[test]
fn no_counter_falls_while_children_come_and_go() {
    check_reads_while_children_come_and_go("");
    check_reads_while_children_come_and_go(BY_PROC);
}

#[test]
fn threads_are_counted_and_stay_when_they_end() {
    let Some(mut job) = Job::new("") else { return };
    let program = "
def burn():
    start = time.thread_time()
    while time.thread_time() - start < 0.05: pass
threads = [threading.Thread(target=burn) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
stay = threading.Event()
[threading.Thread(target=stay.wait, daemon=True).start() for _ in range(4)]
print('done', flush=True)";
    let mut child = job.spawn(program);
    let before = job.read_until("one process", |values| values["tasks/processes"] == 1);
    go_on(&mut child);
    wait_for_line(&mut child);
    // A joined thread stays in the kernel's list for a moment.
    let after = job.read_until("five threads", |values| values["tasks/threads"] == 5);
    assert_eq!((after["tasks/processes"], after["tasks/ended"]), (1, 0));
    if job.has_taskstats() {
        assert!(after["tasks/cpu/run"] - before["tasks/cpu/run"] >= 150_000_000, "{after:?}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let end = job.read_until("no process", |values| values["tasks/processes"] == 0);
    assert_eq!(end["tasks/ended"], 1);
    assert!(end["tasks/cpu/run"] >= after["tasks/cpu/run"]);
}

#[test]
fn sums_go_on_when_readers_change_and_end_when_the_job_is_forgotten() {
    let Some(mut job) = Job::new(BY_PROC) else { return };
    let mut child = job.spawn("");
    job.read_until("one process", |values| values["tasks/processes"] == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    job.read_until("no process", |values| values["tasks/processes"] == 0);
    let cgroups = job.real.cgroups.clone();
    let (sets, _) = metric_sets(job.source.as_mut(), &cgroups);
    let set = &sets["tasks"];
    let ended = set.sensors.iter().position(|sensor| sensor.name == "tasks/ended").unwrap();
    let mut slots = vec![None; set.sensors.len()];
    slots[ended] = Some(0);
    let (mut values, mut gaps) = ([0], [0]);
    let mut read = |reader: &mut dyn Reader| {
        let mut row = wholegrain_sources::Row::new(&mut values, &mut gaps);
        (reader.read(&mut row).gone, row.int(0))
    };
    let mut reader = (set.open)(&slots);
    assert_eq!(read(reader.as_mut()), (false, Some(1)), "another reader of one sensor");
    job.real.remove();
    for _ in 0..2 {
        assert_eq!(read(reader.as_mut()), (true, None));
    }
    job.source.forget(&cgroups);
}

#[test]
fn what_was_used_up_to_the_end_is_known_when_the_directory_is_gone() {
    let Some(mut job) = Job::new("") else { return };
    let has_taskstats = job.has_taskstats();
    let cgroups = job.real.cgroups.clone();
    assert_eq!(job.source.final_counters(&cgroups), None, "never read");
    // A child that is never read, and writes between the last read and the end.
    let mut child = job.spawn("os.system('head -c 50000000 /dev/zero > /dev/null')");
    let before = job.read_until("one process", |values| values["tasks/processes"] == 1);
    go_on(&mut child);
    go_on(&mut child);
    child.wait().unwrap();
    job.real.remove();
    let last = job.source.final_counters(&cgroups).expect("the job was read");
    match last {
        FinalCounters::Known(counters) => {
            let value = |name: &str| counters.iter().find(|(sensor, _)| sensor.name == name).expect(name).1;
            let written = value("tasks/io/write_chars") - before["tasks/io/write_chars"];
            assert!((49_990_000..51_000_000).contains(&written), "{written}");
            // The child, its shell and its own child.
            assert!(value("tasks/ended") >= 2 && value("tasks/cpu/run") > before["tasks/cpu/run"]);
            assert!(counters.iter().all(|(sensor, _)| sensor.kind == Kind::Counter));
            assert!(has_taskstats);
        }
        FinalCounters::Unknown(reason) => assert!(!has_taskstats && reason.contains("taskstats"), "{reason}"),
    }
    // Without taskstats the final counters are unknown, with a reason.
    let Some(mut job) = Job::new(BY_PROC) else { return };
    job.read();
    let cgroups = job.real.cgroups.clone();
    job.real.remove();
    assert!(
        matches!(job.source.final_counters(&cgroups), Some(FinalCounters::Unknown(reason)) if reason.contains("taskstats"))
    );
}

#[test]
fn missing_permissions_are_reported_with_a_remedy() {
    let discover = |config: &str| {
        let mut source = job_source("tasks", config, &Roots::default()).unwrap();
        let cgroups = JobCgroups { level: "1".to_owned(), v2: Some("/nonexistent".into()), ..JobCgroups::default() };
        let (sets, reports) = metric_sets(source.as_mut(), &cgroups);
        let set = &sets["tasks"];
        assert!(set.blocking);
        assert!(open(set).read(&mut wholegrain_sources::Row::new(&mut [0; 64], &mut [0])).gone, "no such directory");
        (set.sensors.iter().map(|sensor| sensor.name.clone()).collect::<Vec<_>>(), reports)
    };
    let (names, reports) = discover(BY_PROC);
    assert_eq!(reports, [""; 0]);
    assert!(!names.iter().any(|name| name.starts_with("tasks/delay/blkio")) && names.len() >= 17, "{names:?}");
    let (names, reports) = discover("");
    let off = std::fs::read_to_string("/proc/sys/kernel/task_delayacct").is_ok_and(|text| text.trim() == "0");
    if off && !reports.iter().any(|text| text.contains("CAP_NET_ADMIN")) {
        assert!(reports.iter().any(|text| text.contains("kernel.task_delayacct=1")), "{reports:?}");
        assert!(!names.contains(&"tasks/delay/blkio/total".to_owned()));
    }
    let error = job_source("tasks", "[sources.tasks]\ntaskstat = false\n", &Roots::default()).err().unwrap();
    assert!(error.to_string().starts_with("agent.toml:2:1: unknown key `taskstat`; did you mean `taskstats`?"));
}

#[test]
fn only_what_is_chosen() {
    let config = "[sources.tasks]\nmetrics = { include = [\"tasks/io/**\"] }\n";
    let mut source = job_source("tasks", config, &Roots::default()).unwrap();
    let cgroups = JobCgroups { level: "1".to_owned(), ..JobCgroups::default() };
    assert_eq!(metric_sets(source.as_mut(), &cgroups).0["tasks"].sensors.len(), 7);
}

#[test]
fn without_privileges() {
    use std::os::unix::process::CommandExt;
    let Some(mut job) = Job::new("") else { return };
    let mut child = job.spawn("");
    job.read_until("one process", |values| values["tasks/processes"] == 1);
    // As another user, who may not read a process of root.
    let name = "without_privileges_in_a_program_of_its_own";
    let cgroups = &job.real.cgroups;
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name, "--nocapture"]).env("WHOLEGRAIN_CGROUP", cgroups.v1.values().next().unwrap());
    let output = program.uid(65534).gid(65534).current_dir("/").output();
    child.kill().unwrap();
    child.wait().unwrap();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("without privileges: done"), "{text}{output:?}");
        }
        Err(error) => println!("left out: the test program cannot be started as another user: {error}"),
    }
}

#[test]
fn without_privileges_in_a_program_of_its_own() {
    let Some(directory) = std::env::var_os("WHOLEGRAIN_CGROUP") else { return };
    const EACCES: i32 = 13;
    let mut source = job_source("tasks", "", &Roots::default()).unwrap();
    let v1 = [("cpuacct".to_owned(), directory.into())].into();
    let cgroups = JobCgroups { level: "1".to_owned(), v1, ..JobCgroups::default() };
    let (sets, reports) = metric_sets(source.as_mut(), &cgroups);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        reports[0]
            .starts_with("tasks: taskstats cannot be used: it needs CAP_NET_ADMIN; the agent reads /proc/PID instead")
    );
    let (values, reading) = read_set(&sets["tasks"], open(&sets["tasks"]).as_mut());
    let problem = wholegrain_sources::ReadProblem::Os { what: "proc/PID/io", errno: EACCES };
    assert_eq!(reading.problem, Some(problem));
    assert_eq!((values["tasks/processes"], values["tasks/io/read_chars"]), (Some(1), None), "no sum without its parts");
    assert!(values["tasks/faults/minor"] > Some(0) && values["tasks/memory/rss"] > Some(0));
    println!("without privileges: done");
}
