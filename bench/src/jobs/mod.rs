//! Costs of jobs: real cgroups with real processes in them, and an agent that reads them.
//!
//! - In: how many jobs, how often.
//! - Out: figures beside those of a program that does the same reads and nothing else.
//! - Never: a figure from recorded trees.

pub mod bare;
pub mod cost;
pub mod group;
pub mod many;
pub mod reconfigure;

use anyhow::{Context, ensure};
use wholegrain_testing::cgroups::{Cgroups, JobGroup};
use wholegrain_testing::jobs::{Descriptors, JobSite};
use wholegrain_testing::{Process, wait_until};

/// The metrics of a job, except those that are summed over its processes.
const PATTERNS: &str = r#"["cpu/**", "memory/**", "io/**", "pids/**", "pressure/**", "perf/**"]"#;
/// How often processes are read: the agent's default.
const TASKS_EVERY: &str = "10s";

/// A site with jobs, and how many processes each has.
pub struct Jobs {
    /// The agent and its server. Before the cgroups, so that it is gone before they are.
    pub site: JobSite,
    jobs: Vec<(JobGroup, Process)>,
    _cgroups: Cgroups,
}

impl Jobs {
    /// `count` jobs with one process each: one that uses a core, or one that sleeps.
    pub fn new(count: usize, busy: bool) -> anyhow::Result<Self> {
        if let Some(why) = Cgroups::missing() {
            anyhow::bail!("no jobs can be made here: {why}");
        }
        let cgroups = Cgroups::new();
        let site = JobSite::new(&cgroups.root());
        let jobs = (1..=count).map(|number| {
            let job = cgroups.job(&number.to_string(), 0);
            let process = if busy { job.burn() } else { job.idle() };
            (job, process)
        });
        Ok(Self { site, jobs: jobs.collect(), _cgroups: cgroups })
    }

    /// Writes the agent's configuration: everything of every job at this interval, as an installation would have it otherwise.
    pub fn configure(&self, interval: &str) {
        configure(&self.site, "node1", interval);
    }

    /// Starts the agent and waits until it samples every job and the server has readings.
    pub fn start(&self) -> Process {
        let agent = self.site.start();
        let count = self.jobs.len();
        wait_until("the agent samples every job", || {
            let jobs = self.site.jobs();
            jobs.len() == count && jobs.iter().all(|job| job["metrics"].as_u64() > Some(0))
        });
        wait_until("the first readings on the server", || {
            let arguments = ["query", "/node1/job/**", "--from", "-1m", "--limit", "1"];
            self.site.site.run(&arguments).status.code() == Some(0)
        });
        wait_until("the server knows every job", || self.site.records().len() >= count);
        agent
    }

    /// Metrics of the first job that are read.
    pub fn metrics(&self) -> Vec<String> {
        let metrics = self.site.metrics("1").into_iter();
        metrics.filter(|(_, interval)| interval.is_some()).map(|(name, _)| name).collect()
    }

    /// The reads of an agent for the jobs in each tick: its open files and counters, as a list for [`bare`].
    pub fn reads(&self, agent: &Process) -> anyhow::Result<Vec<bare::Read>> {
        let mut reads = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", agent.id())).context("the agent's descriptors")?.flatten()
        {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let of_a_job = target.to_string_lossy().contains("/job_") && target.is_file();
            // The reader of processes reads the members of a cgroup, not every tick.
            if of_a_job && !["cgroup.procs", "tasks"].contains(&name.as_str()) {
                reads.push(bare::Read::File(target));
            }
        }
        reads.sort();
        reads.dedup();
        ensure!(!reads.is_empty(), "the agent holds no file of a job open");
        if Descriptors::of(agent.id()).perf > 0 {
            let names = self.metrics();
            let events: Vec<String> = names.iter().filter_map(|n| bare::event(n.strip_prefix("perf/")?)).collect();
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            for dir in self.jobs.iter().filter_map(|(job, _)| job.v2()) {
                reads.extend((0..cpus).map(|cpu| bare::Read::Perf(dir.to_owned(), cpu, events.clone())));
            }
        }
        Ok(reads)
    }

    /// Where the list of reads lies for the bare program.
    pub fn keep_reads(&self, reads: &[bare::Read]) -> anyhow::Result<std::path::PathBuf> {
        let path = self.site.site.path("reads.txt");
        let text: String = reads.iter().map(|read| format!("{read}\n")).collect();
        std::fs::write(&path, text).context("writing the list of reads")?;
        Ok(path)
    }
}

/// Writes an agent's configuration, see [`Jobs::configure`].
pub fn configure(site: &JobSite, name: &str, interval: &str) {
    let rules = format!(
        "[[jobs.rule]]\nmetrics = {PATTERNS}\nevery = \"{interval}\"\n\
             [[jobs.rule]]\nmetrics = [\"tasks/**\"]\nevery = \"{TASKS_EVERY}\"\n"
    );
    site.configure(&rules, "[sources.cgroup]\n[sources.perf]\n[sources.tasks]\n");
    // The agent's default.
    for (table, key, value) in [
        ("mqtt", "send_interval", "\"1s\""),
        ("mqtt", "queue_bytes_max", "\"4MiB\""),
        ("cache", "bytes_max", "\"2MiB\""),
    ] {
        site.site.set(&format!("{name}.toml"), table, key, value);
    }
}
