//! Changes of the running groups, and the one place that applies them: to the threads that read the groups, then to the registry that the encoder
//! and the API read.
//!
//! Sources of the node and jobs decide on their own which groups there are to be; both describe the difference as [`GroupChanges`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use wholegrain_model::Schema;
use wholegrain_sources::Reader;

use crate::counters::AgentCounters;
use crate::engine::{Group, GroupStart, Sampled, Sampler, SamplerChange};
use crate::registry::GroupRegistry;

/// A sampler thread for reads that can block, started when it is first needed.
pub struct BlockingSampler {
    name: String,
    sampler: Option<Sampler>,
}

impl BlockingSampler {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), sampler: None }
    }

    /// Starts the thread unless it runs.
    pub fn ensure(&mut self, counters: &Arc<AgentCounters>) -> io::Result<()> {
        if self.sampler.is_none() {
            self.sampler = Some(Sampler::start(&self.name, counters.clone(), false)?);
        }
        Ok(())
    }

    /// Frees what the thread has handed back.
    pub fn collect(&self) {
        if let Some(sampler) = &self.sampler {
            sampler.collect();
        }
    }

    /// Ends the thread. `false` if a read hangs: the thread is abandoned.
    pub fn join(&mut self, timeout: Duration) -> bool {
        self.sampler.take().is_none_or(|sampler| sampler.join(timeout))
    }
}

/// Which group has which sensor. A sensor has one group: two would mix their readings in the store.
#[derive(Default)]
pub struct SensorOwners(HashMap<String, String>);

impl SensorOwners {
    /// The sensors of running groups.
    pub fn of<'a>(groups: impl Iterator<Item = &'a Arc<Group>>) -> Self {
        let sensors = groups.flat_map(|group| {
            group.schema.sensors().iter().map(|sensor| (sensor.name.clone(), group.name().to_owned()))
        });
        Self(sensors.collect())
    }

    /// Gives the sensors of a schema to its group. Fails with the first sensor of another group, and that group; then nothing changes.
    pub fn take(&mut self, schema: &Schema) -> Result<(), (String, String)> {
        let other = |name: &String| self.0.get(name).filter(|owner| *owner != schema.group()).cloned();
        let names = || schema.sensors().iter().map(|sensor| &sensor.name);
        if let Some((name, owner)) = names().find_map(|name| Some((name, other(name)?))) {
            return Err((name.clone(), owner));
        }
        self.0.extend(names().map(|name| (name.clone(), schema.group().to_owned())));
        Ok(())
    }
}

/// Why a group is left out whose `sensor` the other `group` has.
pub fn left_out(schema: &Schema, sensor: &str, group: &str) -> String {
    format!("group {} is left out: group {group} has its sensor {sensor} already", schema.group())
}

/// Steps that change running groups, all applied between two reads of each thread: no tick falls in between.
#[derive(Default)]
pub struct GroupChanges {
    fast: SamplerChange,
    blocking: SamplerChange,
    retired: Vec<u64>,
    added: Vec<Arc<Group>>,
}

impl GroupChanges {
    fn of(&mut self, group: &Group) -> &mut SamplerChange {
        if group.blocking { &mut self.blocking } else { &mut self.fast }
    }

    pub fn add(&mut self, group: Arc<Group>, reader: Box<dyn Reader>, start: GroupStart) {
        self.of(&group).add(Sampled::new(group.clone(), reader), start);
        self.added.push(group);
    }

    /// Gives a group another reader of the same sensors.
    pub fn reopen(&mut self, group: &Arc<Group>, reader: Box<dyn Reader>) {
        self.of(group).replace(group.id, Sampled::new(group.clone(), reader), true);
    }

    /// Replaces a group and its reader; both groups are read by the same thread.
    pub fn replace(&mut self, old: &Group, new: Arc<Group>, reader: Box<dyn Reader>, keep_ticks: bool) {
        self.of(old).replace(old.id, Sampled::new(new.clone(), reader), keep_ticks);
        self.exchange(old, new);
    }

    /// Replaces a group and keeps its reader: another interval, another name or another accumulation.
    pub fn retime(&mut self, old: &Group, new: Arc<Group>, keep_ticks: bool) {
        self.of(old).retime(old.id, new.clone(), keep_ticks);
        self.exchange(old, new);
    }

    pub fn remove(&mut self, group: &Group) {
        self.of(group).remove(group.id);
        self.retired.push(group.id);
    }

    fn exchange(&mut self, old: &Group, new: Arc<Group>) {
        self.retired.push(old.id);
        self.added.push(new);
    }

    /// The running group that a new group of this name would collide with, once the changes are applied.
    pub fn collision(&self, name: &str, registry: &GroupRegistry) -> Option<Arc<Group>> {
        let added = self.added.iter().find(|group| group.name() == name).cloned();
        added.or_else(|| registry.find(name).filter(|group| !self.retired.contains(&group.id)))
    }

    /// Applies the changes. Whether groups were added or retired, which the encoder has to learn.
    pub fn apply(self, registry: &GroupRegistry, fast: &mut Sampler, blocking: &mut BlockingSampler) -> bool {
        if !self.fast.is_empty() {
            fast.change(self.fast);
        }
        if let (Some(sampler), false) = (&mut blocking.sampler, self.blocking.is_empty()) {
            sampler.change(self.blocking);
        }
        let changes_registry = !self.retired.is_empty() || !self.added.is_empty();
        if changes_registry {
            registry.exchange(&self.retired, self.added);
        }
        changes_registry
    }
}
