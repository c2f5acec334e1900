//! The yardsticks: a tick and nothing else, a tick with only the reads of the same files as our configuration `same`, and one with those of
//! `job`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use wholegrain_model::config::Document;
use wholegrain_sources::job::{JobPart, JobPlace};
use wholegrain_sources::{GroupPlan, Roots, SOURCES, SourceType};

use super::wholegrain::Job;
use super::{Folder, Monitor, Parts, Role, Running};
use crate::bare::{Counts, FILES};
use crate::jobs::bare::{Read, event};

/// See the module.
pub struct Bare;

/// Times in a line of /proc/stat for one CPU, or for all.
const CPU_TIMES: u64 = 10;
/// A line that is no measurement: when the system was started.
const NO_VALUE: &str = "btime";
/// The configuration with the reads of our `job`.
const JOB_READS: &str = "job-reads";
/// Files of a group of ours that are not named as the group.
const PRESSURE: [&str; 3] = ["pressure/cpu", "pressure/memory", "pressure/io"];
/// What the agent reads of itself.
const OWN: &str = "/proc/self/statm";

impl Monitor for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["tick", "reads", JOB_READS]
    }

    fn version(&self) -> anyhow::Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_micros(50)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        let folder = Folder::new(dir, role)?;
        let mut parts = Parts::new();
        if !folder.has_node() {
            return Ok(Box::new(Loop { parts, job: None, counts: None, metrics: 0, configured: String::new() }));
        }
        let counts = folder.node("counts")?;
        // Those of an earlier loop in the same folder.
        let _ = std::fs::remove_file(&counts);
        let tick_only = configuration == "tick";
        let job = (configuration == JOB_READS).then(Job::new).transpose()?;
        let (reads, of_job) = job.as_ref().map(reads_of_job).transpose()?.unwrap_or_default();
        let mut command = Command::new(std::env::current_exe().context("this program's path")?);
        command.arg("bare").arg("--interval-ms").arg((interval.as_nanos() as f64 / 1e6).to_string());
        command.arg("--counts").arg(&counts);
        if tick_only {
            command.arg("--tick-only");
        }
        let mut configured = String::new();
        if job.is_some() {
            let list = folder.node("reads")?;
            configured += &folder.write(&list, &reads)?;
            command.arg("--reads").arg(&list);
        }
        configured += &format!("{command:?}");
        parts.start("bare loop", false, &mut command, &folder.node("log")?)?;
        parts.wait_until("the bare loop ticks", || Counts::read(&counts).is_some_and(|(made, _)| made > 0))?;
        let metrics = match configuration {
            "tick" => 0,
            JOB_READS => of_job,
            _ => values()?,
        };
        Ok(Box::new(Loop { parts, job, counts: Some(counts), metrics, configured }))
    }
}

struct Loop {
    /// Before the job, whose cgroups are removed when nothing reads them any more.
    parts: Parts,
    job: Option<Job>,
    counts: Option<PathBuf>,
    metrics: u64,
    configured: String,
}

impl Running for Loop {
    fn metrics(&self) -> u64 {
        self.metrics
    }

    fn configured(&self) -> String {
        self.configured.clone()
    }

    fn processes(&self) -> Vec<(String, u32, bool)> {
        self.parts.list()
    }

    fn ticks(&self) -> Option<(u64, u64)> {
        Counts::read(self.counts.as_deref()?)
    }

    fn job(&self) -> Vec<PathBuf> {
        self.job.iter().flat_map(|job| job.group.task_files()).collect()
    }

    fn stop(self: Box<Self>) {
        let Self { mut parts, job, .. } = *self;
        parts.stop();
        drop(job);
    }
}

fn source(name: &str) -> anyhow::Result<&'static SourceType> {
    SOURCES.iter().find(|source| source.name == name).with_context(|| format!("there is no source {name}"))
}

/// What our configuration `job` reads at each tick, as a list, and how many values that gives: the files of the node's groups, of the
/// job and of the agent itself, and of the job's counters those of software, as far as the agent could read them here.
fn reads_of_job(job: &Job) -> anyhow::Result<(String, u64)> {
    let table = |name: &str| Document::new("job-reads", "").root().child("sources").child(name);
    let roots = Roots::default();
    let node: Vec<GroupPlan> =
        (source("procfs")?.configure)(&table("procfs"), &roots.clone().into())?.discover(&mut |_| {});
    let files =
        node.iter().flat_map(|plan| if plan.name == "pressure" { PRESSURE.to_vec() } else { vec![&*plan.name] });
    let mut reads: Vec<Read> = files.map(|file| Read::File(roots.proc.join(file))).collect();
    reads.push(Read::File(OWN.into()));
    let mut values: u64 = node.iter().map(|plan| plan.sensors.len() as u64).sum();

    let controllers = ["cpu", "cpuacct", "memory", "blkio", "pids"].into_iter();
    let v1 = controllers.filter_map(|name| Some((name.to_owned(), job.group.v1(name)?.to_owned())));
    let v2 = job.group.v2().map(Path::to_owned);
    let place = JobPlace { level: job.group.id().to_owned(), v2, v1: v1.collect(), ..JobPlace::default() };
    let parts = |name: &str| -> anyhow::Result<Vec<JobPart>> {
        let configure = source(name)?.jobs.with_context(|| format!("the source {name} has nothing of jobs"))?;
        Ok(configure(&table(name), &roots.clone().into())?.parts(&place, &mut |_| {}))
    };
    for part in parts("cgroup")? {
        reads.push(Read::File(file_of(&part.name, &place).with_context(|| format!("where is {}?", part.name))?));
        values += part.sensors.len() as u64;
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for part in parts("perf")? {
        let names = part.sensors.iter().filter_map(|sensor| sensor.name.strip_prefix("perf/"));
        let events: Vec<String> = names.filter_map(event).collect();
        let Some(dir) = place.v2.as_ref().filter(|_| !events.is_empty()) else { continue };
        values += events.len() as u64;
        reads.extend((0..cpus).map(|cpu| Read::Perf(dir.clone(), cpu, events.clone())));
    }
    ensure!(values > 0, "nothing can be read here");
    Ok((reads.iter().map(|read| format!("{read}\n")).collect(), values))
}

/// The file that a part of a job is named after, such as `v1/memory.stat`: the controller's name is its beginning.
fn file_of(part: &str, place: &JobPlace) -> Option<PathBuf> {
    let Some(name) = part.strip_prefix("v1/") else { return Some(place.v2.as_ref()?.join(part)) };
    Some(place.v1(name.split('.').next()?)?.join(name))
}

/// Values in the files that are read: a number a line; of a CPU's line all; of the interrupts' lines their sums alone.
fn values() -> anyhow::Result<u64> {
    let mut count = 0;
    for file in FILES {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        let lines = text.lines().filter(|line| !line.starts_with(NO_VALUE));
        count += lines.map(|line| if line.starts_with("cpu") { CPU_TIMES } else { 1 }).sum::<u64>();
    }
    Ok(count)
}
