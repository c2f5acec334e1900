//! The agent's part: a sample from recorded files into the ring, and from the ring into batches. What the kernel does to make such
//! files is not in it, as they are a disk's here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, ensure};
use wholegrain_agent::encoder::Encoder;
use wholegrain_agent::engine::passes::ClockPasses;
use wholegrain_agent::engine::schedule::TickSchedule;
use wholegrain_agent::engine::{Group, Sampled};
use wholegrain_agent::jobs::groups::reader::CombinedReader;
use wholegrain_agent::{AgentHandles, Config};
use wholegrain_model::config::Document;
use wholegrain_model::{Interval, Schema, SensorDef};
use wholegrain_sources::job::JobCgroups;
use wholegrain_sources::{Reader, Roots, SOURCES};

use super::Work;
use super::readings::{Moving, SECOND, START};

/// Samples counted of each group.
const SAMPLES: u64 = 50;
/// About the number of values in `/proc/meminfo`, `/proc/vmstat` and `/proc/stat`.
const SENSORS: usize = 285;
/// The agent's configuration: batches wait in memory, because there is no server.
const AGENT: &str = "name = \"n0\"\n[mqtt]\nurl = \"mqtt://localhost:1\"\n[cache]\nduration = \"10s\"\n";

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sources/fixtures/recorded")
}

fn roots() -> Roots {
    let tree = recorded();
    Roots { proc: tree.join("proc"), sys: tree.join("sys"), cgroup: tree.join("cgroup") }
}

fn handles() -> anyhow::Result<AgentHandles> {
    let config = Config::parse(Path::new("hot-paths.toml"), AGENT, Path::new("."))?;
    Ok(AgentHandles::new(&config)?)
}

fn group(handles: &AgentHandles, schema: Schema, interval: Interval) -> Arc<Group> {
    let ticking = TickSchedule { interval, offset: Interval::default(), synchronous: true };
    Arc::new(Group::new("hot", &handles.identity.name, schema, ticking, false, Interval::from_s(1), Arc::default()))
}

struct Sample {
    handles: AgentHandles,
    groups: Vec<Sampled>,
    passes: ClockPasses,
    time: i64,
}

impl Sample {
    fn of(groups: Vec<(String, Vec<SensorDef>, Box<dyn Reader>)>) -> anyhow::Result<Box<dyn Work>> {
        let handles = handles()?;
        let sampled = |(name, sensors, reader): (String, Vec<SensorDef>, Box<dyn Reader>)| {
            let schema = Schema::new(handles.identity.prefix.clone(), name, sensors)?;
            Ok(Sampled::new(group(&handles, schema, Interval::from_ms(10)), reader))
        };
        let groups = groups.into_iter().map(sampled).collect::<anyhow::Result<_>>()?;
        Ok(Box::new(Self { handles, groups, passes: ClockPasses::new(START), time: START }))
    }
}

impl Work for Sample {
    fn work(&mut self) -> anyhow::Result<u64> {
        for _ in 0..SAMPLES {
            self.time += SECOND / 100;
            for sampled in &mut self.groups {
                ensure!(sampled.read(self.time, &self.passes, &self.handles.counters), "a recorded group is no more");
            }
        }
        Ok(SAMPLES)
    }
}

pub fn procfs() -> anyhow::Result<Box<dyn Work>> {
    let source = SOURCES.iter().find(|source| source.name == "procfs").context("there is no source procfs")?;
    let section = Document::new("hot-paths.toml", "").root().child("sources").child("procfs");
    let plans = (source.configure)(&section, &roots().into())?.discover(&mut |_| {});
    let wanted = plans.into_iter().filter(|plan| ["meminfo", "vmstat", "stat"].contains(&plan.name.as_str()));
    let groups: Vec<_> = wanted.map(|plan| (plan.name, plan.sensors, plan.reader)).collect();
    ensure!(groups.len() == 3, "of meminfo, vmstat and stat {} were found in {}", groups.len(), recorded().display());
    Sample::of(groups)
}

pub fn job() -> anyhow::Result<Box<dyn Work>> {
    let source = SOURCES.iter().find(|source| source.name == "cgroup").context("there is no source cgroup")?;
    let section = Document::new("hot-paths.toml", "").root().child("sources").child("cgroup");
    let roots = roots();
    let job = "slurm/uid_1000/job_42";
    let controllers = ["cpu", "cpuacct", "memory", "blkio", "pids"].into_iter();
    let cgroups = JobCgroups {
        level: "42".to_owned(),
        v2: Some(roots.cgroup.join("unified").join(job)),
        v1: controllers.map(|name| (name.to_owned(), roots.cgroup.join(name).join(job))).collect(),
        ..JobCgroups::default()
    };
    let configure = source.jobs.context("the source cgroup has no jobs")?;
    let sets = configure(&section, &roots.into())?.metric_sets(&cgroups, &mut |_| {});
    ensure!(sets.len() > 10, "{} sets of a job were found in {}", sets.len(), recorded().display());
    // One group of all, as rules with one interval make it.
    let (mut sensors, mut readers) = (Vec::new(), Vec::new());
    for set in sets {
        let first = sensors.len() as u32;
        let slots: Vec<Option<u32>> = (0..set.sensors.len() as u32).map(|index| Some(first + index)).collect();
        readers.push((set.open)(&slots));
        sensors.extend(set.sensors);
    }
    let reader = Box::new(CombinedReader::new(readers, Arc::default()));
    Sample::of(vec![("job/42/all".to_owned(), sensors, reader)])
}

/// Groups that are due at once: they share the cost of a wake-up, as on a node.
const GROUPS: usize = 4;

/// One wake-up of the encoder thread: a batch of each group.
struct Encode {
    handles: AgentHandles,
    encoder: Encoder,
    groups: Vec<Arc<Group>>,
    moving: Moving,
    time: i64,
    /// Samples of a batch.
    samples: usize,
}

fn encode(interval: Interval, samples: usize) -> anyhow::Result<Box<dyn Work>> {
    let handles = handles()?;
    let of = |number: usize| {
        let sensors = (0..SENSORS).map(|index| SensorDef::gauge(format!("g{number}/s{index}"), "1", "")).collect();
        let schema = Schema::new(handles.identity.prefix.clone(), format!("g{number}"), sensors)?;
        Ok(group(&handles, schema, interval))
    };
    let groups = (0..GROUPS).map(of).collect::<anyhow::Result<Vec<_>>>()?;
    groups.iter().for_each(|group| handles.registry.add(group.clone()));
    let encoder = Encoder::new(handles.encoder());
    Ok(Box::new(Encode { handles, encoder, groups, moving: Moving::new(SENSORS), time: START, samples }))
}

pub fn encode_batch() -> anyhow::Result<Box<dyn Work>> {
    encode(Interval::from_ms(10), 100)
}

pub fn encode_sample() -> anyhow::Result<Box<dyn Work>> {
    encode(Interval::from_s(1), 1)
}

impl Work for Encode {
    fn prepare(&mut self) -> anyhow::Result<()> {
        let gaps = [0; SENSORS.div_ceil(64)];
        for _ in 0..self.samples {
            self.time += SECOND;
            let values: Vec<u64> = self.moving.next().iter().map(|value| value.cast_unsigned()).collect();
            for group in &self.groups {
                group.ring.push(self.time, group.ticking.interval.ns(), &values, &gaps);
            }
        }
        Ok(())
    }

    fn work(&mut self) -> anyhow::Result<u64> {
        let made = || self.handles.counters.batches.load(Ordering::Relaxed);
        let before = made();
        self.encoder.pass(true);
        let batches = made() - before;
        ensure!(batches == GROUPS as u64, "{batches} batches were made of {GROUPS} groups");
        Ok(batches)
    }
}
