//! The tracker through its public interface: on recorded trees, on the kernel's cgroups, with hooks, across restarts.

mod hooks;
mod kernel;
mod limits;
mod owners;
mod trees;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use wholegrain_agent::jobs::pending_records::PendingRecords;
use wholegrain_agent::jobs::tracker::{Job, JobEvent, JobTable, NodeFacts, RawPattern, Tracker, TrackerConfig};
use wholegrain_agent::waker::Waker;
use wholegrain_model::{Interval, JobRecord};
use wholegrain_sources::Roots;
use wholegrain_testkit::{DEADLINE, wait_until};

/// A tracker that runs on a tree.
struct Tracked {
    tracker: Tracker,
    events: Receiver<JobEvent>,
    job_table: Arc<JobTable>,
    waker: Arc<Waker>,
}

fn config(rescan: Interval) -> TrackerConfig {
    TrackerConfig {
        rescan,
        units: Vec::new(),
        hierarchies: Vec::new(),
        hooks: None,
        gpustat: None,
        flux_user: "998".to_owned(),
        oar_user: String::new(),
        ..TrackerConfig::default()
    }
}

/// So long that a test which waits for the rescan fails.
const NO_RESCAN: Interval = Interval::from_s(3600);

impl Tracked {
    fn start(config: &TrackerConfig, roots: &Roots, dir: Option<&Path>) -> Self {
        let waker = Arc::new(Waker::new().unwrap());
        let node = NodeFacts { name: "n1".to_owned(), prefix: "/lab/n1".to_owned() };
        let (tracker, events, job_table) =
            Tracker::start(config, dir, roots, node, waker.clone(), Arc::default()).unwrap();
        Self { tracker, events, job_table, waker }
    }

    /// The next event that `wanted` accepts.
    #[track_caller]
    fn wait(&self, what: &str, wanted: impl Fn(&JobEvent) -> bool) -> Arc<Job> {
        let deadline = Instant::now() + DEADLINE;
        let mut passed = Vec::new();
        loop {
            while let Ok(event) = self.events.try_recv() {
                if wanted(&event) {
                    return job(&event).clone();
                }
                passed.push(format!("{} {:?}", short(&event), job(&event).cgroups.v1.keys()));
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}; there were {passed:#?}");
            self.waker.wait(Duration::from_millis(100));
        }
    }

    #[track_caller]
    fn began(&self, id: &str) -> Arc<Job> {
        self.wait(
            &format!("the beginning of {id}"),
            |event| matches!(event, JobEvent::Began(job) if job.record.job == id),
        )
    }

    #[track_caller]
    fn changed(&self, id: &str, wanted: impl Fn(&Job) -> bool) -> Arc<Job> {
        self.wait(
            &format!("a change of {id}"),
            |event| matches!(event, JobEvent::Changed(job) if job.record.job == id && wanted(job)),
        )
    }

    #[track_caller]
    fn ended(&self, id: &str) -> Arc<Job> {
        self.wait(&format!("the end of {id}"), |event| matches!(event, JobEvent::Ended(job) if job.record.job == id))
    }

    /// The job as any event reports it.
    #[track_caller]
    fn job_with(&self, id: &str, wanted: impl Fn(&Job) -> bool) -> Arc<Job> {
        self.wait(&format!("news of {id}"), |event| job(event).record.job == id && wanted(job(event)))
    }

    /// The record of a job in the job table.
    fn record(&self, id: &str) -> Option<JobRecord> {
        self.job_table.pending(usize::MAX).into_iter().rfind(|record| record.job == id)
    }
}

fn short(event: &JobEvent) -> String {
    let what = match event {
        JobEvent::Began(_) => "began",
        JobEvent::Changed(_) => "changed",
        JobEvent::Ended(_) => "ended",
    };
    format!("{what} {}", job(event).record.job)
}

fn job(event: &JobEvent) -> &Arc<Job> {
    match event {
        JobEvent::Began(job) | JobEvent::Changed(job) | JobEvent::Ended(job) => job,
    }
}

/// Runs a test in its own process, which `wrapper` starts with other limits or users. Whether this is that process.
fn alone(name: &str, wrapper: &[&str]) -> bool {
    if std::env::var("WHOLEGRAIN_TEST_ALONE").is_ok_and(|alone| alone == name) {
        return true;
    }
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<&str> = wrapper.to_vec();
    words.extend([exe.to_str().unwrap(), name, "--exact", "--nocapture", "--test-threads=1"]);
    let output = Command::new(words[0]).args(&words[1..]).env("WHOLEGRAIN_TEST_ALONE", name).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{name}: {}\n{out}\n{err}", output.status);
    print!("{out}");
    false
}

/// A tree of directories with files, like a kernel's.
struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    fn new(hierarchies: &[&str]) -> Self {
        let tree = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(tree.path("proc")).unwrap();
        fs::create_dir_all(tree.path("cgroup")).unwrap();
        hierarchies.iter().for_each(|name| tree.make(&format!("cgroup/{name}")));
        tree
    }

    fn roots(&self) -> Roots {
        Roots { proc: self.path("proc"), sys: self.path("sys"), cgroup: self.path("cgroup") }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn make(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        self.make(path.rsplit_once('/').map_or("", |(dir, _)| dir));
        fs::write(self.path(path), text).unwrap();
    }

    /// Removes a directory with its files, as the kernel does.
    fn remove(&self, path: &str) {
        for entry in fs::read_dir(self.path(path)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        fs::remove_dir(self.path(path)).unwrap();
    }
}

fn pattern(name: &str, path: &str) -> RawPattern {
    RawPattern { name: name.to_owned(), path: path.to_owned(), owner: None }
}
