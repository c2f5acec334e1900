//! A flood of job directories, which cost their user nothing: its effects on the node's own groups, other users' jobs and the agent's memory.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use wholegrain_testkit::{DEADLINE, wait_until};

use serde_json::Value;
use support::{Broker, parse_answer};

/// The agent as a process, on a unified tree in `dir` and the machine's /proc.
struct Program {
    child: Child,
    dir: PathBuf,
}

impl Program {
    fn start(dir: &Path, open_files_max: usize, more: &str) -> Self {
        fs::create_dir_all(dir.join("cgroup")).unwrap();
        fs::write(dir.join("cgroup/cgroup.controllers"), "cpu memory pids\n").unwrap();
        let text = format!(
            "name = \"n1\"\nrescan = \"1s\"\n[roots]\ncgroup = \"cgroup\"\n[cache]\nduration = \"1s\"\nbytes_max = \"64KiB\"\n\
             [defaults]\ninterval = \"100ms\"\n[api]\nsocket = \"agent.sock\"\n\
             [sources.procfs]\ngroups = [\"meminfo\", \"stat\", \"loadavg\"]\n[sources.cgroup]\n\
             [jobs]\nmanagers = [\"slurm\", \"systemd\"]\nunits = [\"run-*.scope\"]\nhooks = \"\"\ngpustat = \"\"\nhierarchies = []\nrescan = \"200ms\"\n{more}"
        );
        fs::write(dir.join("agent.toml"), text).unwrap();
        let script = format!(
            "ulimit -n {open_files_max}; exec '{}' --config agent.toml",
            env!("CARGO_BIN_EXE_wholegrain-agent")
        );
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new("sh");
        // As in the agent's systemd unit.
        command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        command.args(["-c", &script]).current_dir(dir).stdout(Stdio::null()).stderr(log);
        let program = Self { child: command.spawn().unwrap(), dir: dir.to_owned() };
        wait_until("the socket", || dir.join("agent.sock").exists());
        program
    }

    fn get(&self, target: &str) -> Option<Value> {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(self.dir.join("agent.sock")).ok()?;
        write!(stream, "GET {target} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        (!answer.is_empty()).then(|| parse_answer(&answer).1)
    }

    #[track_caller]
    fn status(&self) -> Value {
        let mut status = None;
        wait_until("the status", || {
            status = self.get("/v1/status");
            status.is_some()
        });
        status.unwrap()
    }

    /// Names of groups, with samples and gaps.
    fn groups(&self) -> Vec<(String, u64, u64)> {
        let status = self.status();
        let group = |group: &Value| {
            let number = |key: &str| group[key].as_u64().unwrap();
            (group["group"].as_str().unwrap().to_owned(), number("samples"), number("gaps"))
        };
        status["groups"].as_array().unwrap().iter().map(group).collect()
    }

    fn of_jobs(&self, key: &str) -> u64 {
        self.status()["jobs"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {}", self.status()["jobs"]))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// The agent's anonymous memory, in KiB (`proc(5)`).
    fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that a user can create: a unit of the user's own manager.
fn of_user(dir: &Path, uid: u32, n: usize) -> PathBuf {
    dir.join(format!("cgroup/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/run-{n}.scope"))
}

/// Creates a job's directory with its files in one step, as the kernel does.
fn fill(job: &Path, populated: bool, stat_lines: usize) {
    let stage = tempfile::tempdir_in(job.ancestors().find(|above| above.join("agent.toml").exists()).unwrap()).unwrap();
    fs::create_dir_all(job.parent().unwrap()).unwrap();
    let stat: String = (0..stat_lines).map(|line| format!("key_{line} 1\n")).collect();
    let events = format!("populated {}\nfrozen 0\n", u8::from(populated));
    let files =
        [("memory.current", "1\n"), ("pids.current", "2\n"), ("memory.stat", &stat), ("cgroup.events", &events)];
    files.iter().for_each(|(name, text)| fs::write(stage.path().join(name), text).unwrap());
    fs::rename(stage.keep(), job).unwrap();
}

#[test]
fn a_flood_of_jobs_takes_nothing_from_the_node_nor_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Program::start(dir.path(), 300, "");
    let own = ["loadavg", "meminfo", "stat"];
    let samples = |name: &str| agent.groups().into_iter().find(|group| group.0 == name).map(|group| (group.1, group.2));
    wait_until("the node's groups", || own.iter().all(|name| samples(name).is_some_and(|(samples, _)| samples > 0)));
    // Each job has three files, which together need more descriptors than the process may have.
    for n in 0..200 {
        fill(&of_user(dir.path(), 1000, n), true, 3);
    }
    wait_until("the flood", || agent.of_jobs("running") == 200);
    let job = dir.path().join("cgroup/system.slice/slurmstepd.scope/job_7");
    fill(&job, true, 3);
    wait_until("the job of another", || samples("job/7/1s").is_some_and(|(samples, _)| samples > 0));
    assert!(agent.of_jobs("waiting") > 100 && agent.of_jobs("descriptors") <= 150, "{}", agent.status()["jobs"]);
    let before: Vec<u64> = own.iter().map(|name| samples(name).unwrap().0).collect();
    // After several rediscoveries.
    wait_until("samples of the node", || {
        own.iter().zip(&before).all(|(name, before)| samples(name).unwrap().0 > before + 35)
    });
    assert!(own.iter().all(|name| samples(name).unwrap().1 == 0), "no gap: {:?}", agent.groups());
    let log = agent.log();
    assert!(!log.contains("is removed") && !log.contains("Too many open files"), "{log}");
    assert_eq!(log.matches("is not read:").count(), 1, "logged once in ten minutes: {log}");
    for n in 0..200 {
        fs::remove_dir_all(of_user(dir.path(), 1000, n)).unwrap();
    }
    wait_until("the end of the flood", || agent.of_jobs("running") == 1 && agent.of_jobs("waiting") == 0);
    assert_eq!(agent.of_jobs("sensors"), 5);
}

#[test]
fn without_descriptors_the_nodes_groups_stay() {
    let dir = tempfile::tempdir().unwrap();
    // A configuration that allows jobs more files than the process may open.
    let agent = Program::start(dir.path(), 200, "[jobs.bounds]\ndescriptors = 5000\ndescriptors_per_user = 5000\n");
    wait_until("the node's groups", || agent.groups().iter().filter(|group| group.1 > 0).count() >= 3);
    for n in 0..120 {
        fill(&of_user(dir.path(), 1000, n), true, 3);
    }
    wait_until("a discovery without descriptors", || {
        agent.log().contains("too few file descriptors to discover groups")
    });
    for n in 0..120 {
        fs::remove_dir_all(of_user(dir.path(), 1000, n)).unwrap();
    }
    wait_until("the end of the flood", || agent.get("/v1/status").is_some() && agent.of_jobs("running") == 0);
    let groups = agent.groups();
    for name in ["loadavg", "meminfo", "stat"] {
        assert!(groups.iter().any(|group| group.0 == name), "{name} is there: {groups:?}");
    }
    let log = agent.log();
    assert!(!log.contains("is removed"), "{log}");
}

#[test]
fn directories_without_processes_are_not_read_and_of_very_many_not_all_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Program::start(dir.path(), 4096, "[jobs.bounds]\njobs_per_user = 20\ndirectories_per_user = 50\n");
    let top = dir.path().join("cgroup/user.slice/user-1000.slice/user@1000.service/app.slice");
    fs::create_dir_all(&top).unwrap();
    std::os::unix::fs::chown(&top, Some(1000), Some(1000)).unwrap();
    for n in 0..40 {
        fill(&of_user(dir.path(), 1000, n), false, 3);
    }
    wait_until("the bound of one user's jobs", || agent.of_jobs("running") == 20 && agent.of_jobs("skipped") == 20);
    assert_eq!(agent.of_jobs("sensors"), 0);
    let job = dir.path().join("cgroup/system.slice/slurmstepd.scope/job_7");
    fill(&job, false, 3);
    wait_until("the other's job", || agent.of_jobs("running") == 21);
    assert_eq!(agent.of_jobs("sensors"), 0, "no process yet");
    fs::write(job.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    wait_until("its sensors", || agent.of_jobs("sensors") == 5);
    // A wide tree: fifty of the user's two hundred directories are visited, and jobs of later users are found.
    for n in 0..200 {
        fs::create_dir_all(top.join(format!("s{n}.slice"))).unwrap();
    }
    wait_until("the bound of one user's directories", || agent.of_jobs("directories_skipped") > 0);
    assert!(agent.of_jobs("watches") < 120, "{}", agent.status()["jobs"]);
    fill(&dir.path().join("cgroup/user.slice/user-2000.slice/user@2000.service/run-1.scope"), true, 3);
    wait_until("another user's job", || {
        agent.groups().iter().any(|group| group.0.starts_with("job/run-1.scope-u2000"))
    });
}

/// RssAnon before the flood, at its peak, and afterwards, when the server has acknowledged all records.
#[test]
fn after_a_burst_of_jobs_memory_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start();
    let agent = Program::start(dir.path(), 20_000, &format!("[mqtt]\nurl = \"mqtt://127.0.0.1:{}\"\n", broker.port));
    let burst = |from: usize, to: usize| {
        (from..to).for_each(|n| fill(&of_user(dir.path(), 1000, n), true, 60));
        wait_until("the jobs", || agent.of_jobs("running") == (to - from) as u64);
        let most = agent.memory_kib();
        (from..to).for_each(|n| fs::remove_dir_all(of_user(dir.path(), 1000, n)).unwrap());
        wait_until("their end", || agent.of_jobs("running") == 0);
        most
    };
    // A first burst leaves shared lists of sensors, buffers, and the schemas of the last groups, which the server may request.
    burst(0, 80);
    let deadline = std::time::Instant::now() + DEADLINE;
    let (mut before, mut last) = (agent.memory_kib(), std::time::Instant::now());
    while last.elapsed() < std::time::Duration::from_secs(11) && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = agent.memory_kib();
        if now < before {
            (before, last) = (now, std::time::Instant::now());
        }
    }
    let most = burst(100, 600);
    let mut after = most;
    wait_until("memory to be given back", || {
        after = agent.memory_kib();
        after * 10 <= before * 12
    });
    println!("own memory: {before} KiB before, {most} KiB with 500 jobs, {after} KiB after");
    assert!(most > 2 * before, "{before} KiB before, {most} KiB with the jobs");
}
