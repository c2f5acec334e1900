//! Which runs are made and in which order. It depends on the experiment's file, its seed, and which monitors are here: on nothing
//! else, so that a run's number means the same after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;
use wholegrain_testing::Random;

use super::file::{Experiment, MonitorUse, NONE, Workload};

/// Runs of one experiment, at most: years of them.
const RUNS_MAX: usize = 1_000_000;
/// About how long a monitor takes to start and stop, s; only what `plan` prints follows from it.
pub const MONITOR_S: f64 = 2.0;

/// What is measured: a workload beside a monitor's setting. Runs with the same one are repetitions of each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// The workload's name.
    pub workload: String,
    /// Its size.
    pub size: String,
    /// Its processes.
    pub ranks: usize,
    /// Nodes it runs on.
    pub hosts: usize,
    /// The monitor, or [`NONE`].
    pub monitor: String,
    /// Its configuration; empty for none.
    pub configuration: String,
    /// Its period; `None` for none.
    pub interval_ns: Option<u64>,
}

impl Condition {
    /// Whether no monitor runs.
    pub fn is_without(&self) -> bool {
        self.interval_ns.is_none()
    }

    /// The monitor's part alone.
    pub fn setting(&self) -> (&str, &str, Option<u64>) {
        (&self.monitor, &self.configuration, self.interval_ns)
    }

    /// The workload's part alone.
    pub fn load(&self) -> (&str, &str, usize, usize) {
        (&self.workload, &self.size, self.ranks, self.hosts)
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} x{}", self.workload, self.size, self.ranks)?;
        if self.hosts > 1 {
            write!(f, " on {}", self.hosts)?;
        }
        match self.interval_ns {
            None => write!(f, ", {NONE}"),
            Some(ns) => write!(f, ", {} {} {}", self.monitor, self.configuration, Interval::from_ns(ns)),
        }
    }
}

/// One run to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Its position in the order, from 0.
    pub run: usize,
    /// Its round, from 0, those of the warm-up first.
    pub round: usize,
    /// Whether it does not count.
    pub warm_up: bool,
    /// Which of [`Plan::conditions`].
    pub condition: usize,
}

/// A setting that is not measured, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The monitor.
    pub monitor: String,
    /// Its configuration.
    pub configuration: String,
    /// The period.
    pub interval_ns: u64,
    /// Why.
    pub reason: String,
}

/// What this machine says about a monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its version, or why it cannot be run here.
    pub version: Result<String, String>,
    /// The shortest period it can be told.
    pub shortest: Duration,
}

/// What this machine says about the monitors that the file names, those with a command of their own left out.
pub fn offers(experiment: &Experiment) -> BTreeMap<String, Offer> {
    let named = |name: &str| experiment.monitors.iter().any(|m| m.command.is_none() && m.name == name);
    let all = crate::monitors::all().into_iter().filter(|monitor| named(monitor.name()));
    all.map(|monitor| {
        let version = monitor.version().map_err(|error| format!("{error:#}"));
        (monitor.name().to_owned(), Offer { version, shortest: monitor.shortest_interval() })
    })
    .collect()
}

/// All runs in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What is measured.
    pub conditions: Vec<Condition>,
    /// What the file names and is not measured.
    pub left_out: Vec<LeftOut>,
    /// The runs.
    pub runs: Vec<Planned>,
}

impl Plan {
    /// Draws the order: each round makes every condition, in an order of its own, so that what drifts slowly meets all alike.
    pub fn new(
        experiment: &Experiment,
        seed: u64,
        offers: &BTreeMap<String, Offer>,
        hosts: usize,
    ) -> anyhow::Result<Self> {
        let (mut conditions, mut left_out) = (Vec::new(), Vec::new());
        for workload in &experiment.workloads {
            let wanted = workload.hosts.unwrap_or(hosts);
            ensure!(wanted <= hosts, "{} is to run on {wanted} hosts; the launcher has {hosts}", workload.name);
            let without = Condition {
                workload: workload.name.clone(),
                size: workload.size.clone(),
                ranks: workload.ranks,
                hosts: wanted,
                monitor: NONE.to_owned(),
                configuration: String::new(),
                interval_ns: None,
            };
            let beside = experiment.monitors.iter().flat_map(|m| settings(m, workload, &without));
            let (kept, refused): (Vec<_>, Vec<_>) =
                beside.map(|condition| (reason(&condition, offers), condition)).partition(|(why, _)| why.is_none());
            conditions.push(without);
            conditions.extend(kept.into_iter().map(|(_, condition)| condition));
            for (reason, condition) in refused {
                let Condition { monitor, configuration, interval_ns, .. } = condition;
                let interval_ns = interval_ns.unwrap_or_default();
                let entry = LeftOut { monitor, configuration, interval_ns, reason: reason.unwrap_or_default() };
                if !left_out.contains(&entry) {
                    left_out.push(entry);
                }
            }
        }
        let mut once = BTreeSet::new();
        if let Some(twice) = conditions.iter().find(|condition| !once.insert(*condition)) {
            bail!("{twice} is named twice: on {hosts} hosts `hosts = {hosts}` and no `hosts` are the same");
        }
        let mut each_round: Vec<usize> = (0..conditions.len()).collect();
        for (index, _) in conditions.iter().enumerate().filter(|(_, condition)| condition.is_without()) {
            each_round.extend(std::iter::repeat_n(index, experiment.none_per_round - 1));
        }
        let rounds = experiment.warm_up + experiment.repetitions;
        let count = each_round.len().saturating_mul(rounds);
        ensure!(count <= RUNS_MAX, "{count} runs are more than {RUNS_MAX}: fewer repetitions or settings are wanted");
        let mut random = Random::new(seed);
        let mut runs = Vec::with_capacity(count);
        for round in 0..rounds {
            let mut order = each_round.clone();
            for last in (1..order.len()).rev() {
                order.swap(last, random.within(0, last as u64 + 1) as usize);
            }
            let warm_up = round < experiment.warm_up;
            for condition in order {
                runs.push(Planned { run: runs.len(), round, warm_up, condition });
            }
        }
        Ok(Self { conditions, left_out, runs })
    }
}

/// A monitor's settings beside a workload, those at which it is not wanted left out.
fn settings<'a>(
    monitor: &'a MonitorUse,
    workload: &'a Workload,
    without: &'a Condition,
) -> impl Iterator<Item = Condition> + 'a {
    let wanted = monitor.workloads.is_empty() || monitor.workloads.contains(&workload.name);
    let configurations = monitor.configurations.iter().filter(move |_| wanted);
    configurations.flat_map(move |configuration| {
        monitor.intervals.iter().map(move |interval| Condition {
            monitor: monitor.name.clone(),
            configuration: configuration.clone(),
            interval_ns: Some(interval.ns()),
            ..without.clone()
        })
    })
}

/// Why a setting cannot be measured here.
fn reason(condition: &Condition, offers: &BTreeMap<String, Offer>) -> Option<String> {
    let offer = offers.get(&condition.monitor)?;
    if let Err(why) = &offer.version {
        return Some(why.clone());
    }
    let shortest = Interval::from_ns(u64::try_from(offer.shortest.as_nanos()).unwrap_or(u64::MAX));
    (condition.interval_ns? < shortest.ns()).then(|| format!("{shortest} is the shortest period it can be told"))
}
