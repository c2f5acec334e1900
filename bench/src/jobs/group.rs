//! The cgroups of jobs on a machine without a resource manager, and the reads of our agent when it reads everything of node and job.
//! Monitors and benchmarks of jobs start it; it holds the jobs until its standard input ends.

use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use wholegrain_model::config::Document;
use wholegrain_sources::job::{JobCgroups, MetricSet};
use wholegrain_sources::{GroupPlan, Roots, SOURCES, SourceType, procfs};
use wholegrain_testing::Process;
use wholegrain_testing::cgroups::{self, Cgroups, JobGroup};

use super::bare::{EVENTS, Read, event};

/// The agent's own memory.
const OWN: &str = "/proc/self/statm";

#[derive(clap::Args)]
pub struct JobGroupOptions {
    /// Where to write the list of reads, as `bare --reads` expects it.
    #[arg(long)]
    reads: Option<PathBuf>,
    /// How many jobs to make.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Each job has a process that uses a core, not one that sleeps.
    #[arg(long)]
    busy: bool,
}

pub fn run(options: &JobGroupOptions) -> anyhow::Result<()> {
    if let Some(reason) = Cgroups::missing() {
        bail!("{reason}");
    }
    let cgroups = Cgroups::new();
    let groups: Vec<JobGroup> = (1..=options.jobs).map(|number| cgroups.job(&number.to_string(), 0)).collect();
    let _processes: Vec<Process> =
        groups.iter().map(|group| if options.busy { group.burn() } else { group.idle() }).collect();
    let first = groups.first().context("--jobs 0: there is no job")?;
    let mut values = 0;
    if let Some(path) = &options.reads {
        let (reads, count) = reads_of(first)?;
        std::fs::write(path, reads).with_context(|| format!("writing {}", path.display()))?;
        values = count;
    }
    let root = cgroups.root();
    let links: Vec<PathBuf> = cgroups::links(&root).into_iter().collect();
    let folders: Vec<&Path> = groups.iter().filter_map(JobGroup::v2).collect();
    let about = json!({ "root": root, "links": links, "task_files": first.task_files(), "values": values, "v2": folders, "events": EVENTS });
    let mut out = std::io::stdout().lock();
    writeln!(out, "{about}").and_then(|()| out.flush()).context("printing the job")?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("waiting for the end of standard input")?;
    Ok(())
}

fn source(name: &str) -> anyhow::Result<&'static SourceType> {
    SOURCES.iter().find(|source| source.name == name).with_context(|| format!("there is no source {name}"))
}

/// The list of reads and how many values they give: the files of the node's groups, of the job and of the agent itself, and the job's software
/// events, as far as the agent could read them on this machine.
fn reads_of(group: &JobGroup) -> anyhow::Result<(String, u64)> {
    let table = |name: &str| Document::new("job-reads", "").root().child("sources").child(name);
    let roots = Roots::default();
    let mut node: Vec<GroupPlan> =
        (source("procfs")?.configure)(&table("procfs"), &roots.clone().into())?.discover(&mut |_| {});
    // The others have longer intervals of their own.
    node.retain(|plan| plan.timing.interval.is_none());
    let files = node.iter().flat_map(|plan| procfs::files(&plan.name, &roots));
    let mut reads: Vec<Read> = files.map(Read::File).collect();
    reads.push(Read::File(OWN.into()));
    let mut values: u64 = node.iter().map(|plan| plan.sensors.len() as u64).sum();

    let controllers = ["cpu", "cpuacct", "memory", "blkio", "pids"].into_iter();
    let v1 = controllers.filter_map(|name| Some((name.to_owned(), group.v1(name)?.to_owned())));
    let v2 = group.v2().map(Path::to_owned);
    let cgroups = JobCgroups { level: group.id().to_owned(), v2, v1: v1.collect(), ..JobCgroups::default() };
    let metric_sets = |name: &str| -> anyhow::Result<Vec<MetricSet>> {
        let configure = source(name)?.jobs.with_context(|| format!("the source {name} reads nothing of jobs"))?;
        Ok(configure(&table(name), &roots.clone().into())?.metric_sets(&cgroups, &mut |_| {}))
    };
    for set in metric_sets("cgroup")? {
        reads.push(Read::File(file_of(&set.name, &cgroups).with_context(|| format!("no file of {}", set.name))?));
        values += set.sensors.len() as u64;
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for set in metric_sets("perf")? {
        let names = set.sensors.iter().filter_map(|sensor| sensor.name.strip_prefix("perf/"));
        let events: Vec<String> = names.filter_map(event).collect();
        let Some(dir) = cgroups.v2.as_ref().filter(|_| !events.is_empty()) else { continue };
        values += events.len() as u64;
        reads.extend((0..cpus).map(|cpu| Read::Perf(dir.clone(), cpu, events.clone())));
    }
    ensure!(values > 0, "nothing can be read on this machine");
    Ok((reads.iter().map(|read| format!("{read}\n")).collect(), values))
}

/// The file after which a metric set of a job is named, such as `v1/memory.stat`: it begins with the controller's name.
fn file_of(set: &str, cgroups: &JobCgroups) -> Option<PathBuf> {
    let Some(name) = set.strip_prefix("v1/") else { return Some(cgroups.v2.as_ref()?.join(set)) };
    Some(cgroups.v1(name.split('.').next()?)?.join(name))
}
