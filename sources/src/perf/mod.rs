//! Performance events, counted by the kernel: of jobs by their cgroups, and of the whole node.
//!
//! - In: `[sources.perf]`, perf_event_open(2), and what sysfs and tracefs say of the events there are.
//! - Out: for each job, parts of events that are counted and read together; for the node the group `perf`.
//! - Never: a sum that falls; a value for a time in which nothing was counted; a rate or a ratio, which queries make.

mod config;
mod event;
mod gate;
mod jobs;
mod kernel;
mod machine;
mod part;
mod refusals;
mod tally;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use wholegrain_model::config::{ConfigError, Section};

use self::config::PerfConfig;
use self::gate::Gate;
use self::jobs::{Jobs, given_up, running_sensor};
use self::kernel::{Kernel, Linux, Whose};
use self::machine::{Machine, Wanted};
use self::part::{Part, PartReader, Slots};
use self::refusals::Refusals;
use crate::job::JobSource;
use crate::options::GroupOptions;
use crate::plan::SensorPlan;
use crate::{ConfigureContext, GroupPlan, Reader, Reading, Roots, Row, Source, SourceType};

/// The line in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "perf",
    summary: "performance events of jobs and of the node: cycles, instructions, caches, faults, tracepoints, RAPL, any PMU",
    configure,
    jobs: Some(configure_jobs),
};

/// The node's group.
const GROUP: &str = "perf";

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Ok(Box::new(node(PerfConfig::read(section, context)?, &context.roots, Arc::new(Linux))))
}

fn configure_jobs(section: &Section, context: &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError> {
    Ok(Box::new(of_jobs(PerfConfig::read(section, context)?, &context.roots, Arc::new(Linux))))
}

fn node(config: PerfConfig, roots: &Roots, kernel: Arc<dyn Kernel>) -> Node {
    let gate = Gate::new(&kernel, config.lock_file.as_deref());
    let parts = config.node.into_iter().map(|wanted| (wanted, None)).collect();
    Node { kernel, gate, machine: Machine::new(roots), parts, per_cpu: config.per_cpu, common: config.common }
}

fn of_jobs(config: PerfConfig, roots: &Roots, kernel: Arc<dyn Kernel>) -> Jobs {
    let gate = Gate::new(&kernel, config.lock_file.as_deref());
    Jobs::new(kernel, Machine::new(roots), gate, config.jobs)
}

/// The source at node scope.
struct Node {
    kernel: Arc<dyn Kernel>,
    gate: Arc<Gate>,
    machine: Machine,
    /// A group's counters, once the machine was seen to have it.
    parts: Vec<(Wanted, Option<Arc<Part>>)>,
    per_cpu: bool,
    common: GroupOptions,
}

impl Source for Node {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.parts.is_empty() {
            return Vec::new();
        }
        if self.gate.look() {
            report(given_up(&self.gate));
        }
        let online = self.machine.online();
        let mut refusals = Refusals::default();
        for (wanted, part) in &mut self.parts {
            if part.is_none() {
                let found = self.machine.find(wanted, report);
                *part = found.map(|found| Arc::new(Part::new(&self.kernel, &self.gate, Arc::new(found))));
            }
            if let Some(part) = part {
                part.refresh(Whose::Everyones, None, &online, &mut refusals);
            }
        }
        refusals.tell(&self.machine, report);
        self.group(report).into_iter().collect()
    }
}

impl Node {
    fn group(&self, report: &mut dyn FnMut(String)) -> Option<GroupPlan> {
        let own = GroupOptions::default();
        let mut plan = SensorPlan::new(&self.common, &own, report);
        let mut readers = Vec::new();
        for part in self.parts.iter().filter_map(|(_, part)| part.as_ref()) {
            let slots = self.slots(part, &mut plan);
            readers.push(PartReader::new(part.clone(), slots));
        }
        let sensors = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: GROUP.to_owned(),
            sensors,
            reader: Box::new(NodeReader { readers }),
            timing: own.timing(&self.common),
            blocking: false,
        })
    }

    fn slots(&self, part: &Part, plan: &mut SensorPlan<'_>) -> Slots {
        let (found, (events, places)) = (part.found(), part.shown());
        let mut slots = Slots::default();
        if self.per_cpu {
            for at in places {
                let on_cpu = events.iter().filter_map(|event| {
                    let sensor = found.events[*event].sensor.clone();
                    let name = sensor.name.replacen("perf/", &format!("perf/cpu/{}/", at.1), 1);
                    Some((*event, plan.add(wholegrain_model::SensorDef { name, ..sensor })?))
                });
                slots.places.push((at, on_cpu.collect()));
            }
        } else {
            let sums = events.iter().filter_map(|event| Some((*event, plan.add(found.events[*event].sensor.clone())?)));
            slots.sums = sums.collect();
        }
        if !found.is_software && !events.is_empty() {
            slots.running = plan.add(running_sensor(found, &events));
        }
        slots
    }
}

/// Reads the node's parts into one row.
struct NodeReader {
    readers: Vec<PartReader>,
}

impl Reader for NodeReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut whole = Reading::default();
        for reader in &mut self.readers {
            let reading = reader.read(row);
            whole.layout_changed |= reading.layout_changed;
            whole.problem = whole.problem.or(reading.problem);
        }
        whole
    }
}
