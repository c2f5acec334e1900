//! Performance events, counted by the kernel: of jobs by their cgroups, and of the whole node.
//!
//! - In: `[sources.perf]`, perf_event_open(2), and the events that sysfs and tracefs list.
//! - Out: for each job, groups of events that are counted and read together; for the node, the group `perf`.
//! - Never: a sum that falls; a value for a time in which nothing was counted; a rate or a ratio, which queries calculate.

mod config;
mod counter_lock;
mod counter_sums;
mod event;
mod event_group;
mod jobs;
mod kernel;
mod machine;
mod open_errors;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use self::config::PerfConfig;
use self::counter_lock::CounterLock;
use self::event_group::{EventGroup, EventGroupReader, EventSlots};
use self::jobs::{PerfJobs, running_sensor, yielded};
use self::kernel::{CountScope, Kernel, Linux};
use self::machine::{Machine, RequestedGroup};
use self::open_errors::OpenErrors;
use crate::job::JobSource;
use crate::options::{GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Roots, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
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

fn node(config: PerfConfig, roots: &Roots, kernel: Arc<dyn Kernel>) -> PerfNode {
    let counter_lock = CounterLock::new(&kernel, config.lock_file.as_deref());
    let groups = config.node.into_iter().map(|requested| (requested, None)).collect();
    PerfNode {
        kernel,
        counter_lock,
        machine: Machine::new(roots),
        groups,
        per_cpu: config.per_cpu,
        common: config.common,
    }
}

fn of_jobs(config: PerfConfig, roots: &Roots, kernel: Arc<dyn Kernel>) -> PerfJobs {
    let counter_lock = CounterLock::new(&kernel, config.lock_file.as_deref());
    PerfJobs::new(kernel, Machine::new(roots), counter_lock, config.jobs)
}

/// The source at node scope.
struct PerfNode {
    kernel: Arc<dyn Kernel>,
    counter_lock: Arc<CounterLock>,
    machine: Machine,
    /// The configured groups, each with its counters once discovery has found its events.
    groups: Vec<(RequestedGroup, Option<Arc<EventGroup>>)>,
    per_cpu: bool,
    common: GroupOptions,
}

impl Source for PerfNode {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.groups.is_empty() {
            return Vec::new();
        }
        if self.counter_lock.check() {
            report(yielded(&self.counter_lock));
        }
        let online = self.machine.online();
        let mut errors = OpenErrors::default();
        for (requested, group) in &mut self.groups {
            if group.is_none() {
                let resolved = self.machine.resolve(requested, report).map(Arc::new);
                *group = resolved.map(|resolved| Arc::new(EventGroup::new(&self.kernel, &self.counter_lock, resolved)));
            }
            if let Some(group) = group {
                group.refresh(CountScope::Node, None, &online, &mut errors);
            }
        }
        errors.report(&self.machine, report);
        self.plan(report).into_iter().collect()
    }
}

impl PerfNode {
    fn plan(&self, report: &mut dyn FnMut(String)) -> Option<GroupPlan> {
        let mut plan = SensorPlan::new(&self.common, &NO_OPTIONS, report);
        let mut readers = Vec::new();
        for group in self.groups.iter().filter_map(|(_, group)| group.as_ref()) {
            let slots = self.slots(group, &mut plan);
            readers.push(EventGroupReader::new(group.clone(), slots));
        }
        let sensors = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: GROUP.to_owned(),
            sensors,
            reader: Box::new(NodeReader { readers }),
            timing: NO_OPTIONS.timing(&self.common),
            blocking: false,
        })
    }

    fn slots(&self, group: &EventGroup, plan: &mut SensorPlan<'_>) -> EventSlots {
        let (resolved, (events, places)) = (group.resolved(), group.offered());
        let mut slots = EventSlots::default();
        if self.per_cpu {
            for place in places {
                let on_cpu = events.iter().filter_map(|event| {
                    let sensor = resolved.events[*event].sensor.clone();
                    let name = sensor.name.replacen("perf/", &format!("perf/cpu/{}/", place.1), 1);
                    Some((*event, plan.add(SensorDef { name, ..sensor })?))
                });
                slots.places.push((place, on_cpu.collect()));
            }
        } else {
            let sensor = |event: &usize| resolved.events[*event].sensor.clone();
            slots.sums = events.iter().filter_map(|event| Some((*event, plan.add(sensor(event))?))).collect();
        }
        if !resolved.is_software && !events.is_empty() {
            slots.running = plan.add(running_sensor(resolved, &events));
        }
        slots
    }
}

/// Reads the groups of the node into one row.
struct NodeReader {
    readers: Vec<EventGroupReader>,
}

impl Reader for NodeReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut result = Reading::default();
        for reader in &mut self.readers {
            let reading = reader.read(row);
            result.layout_changed |= reading.layout_changed;
            result.problem = result.problem.or(reading.problem);
        }
        result
    }
}
