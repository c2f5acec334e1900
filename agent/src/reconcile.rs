//! Changes of the running groups, and the one place that applies them: to the threads that read the groups, then to the registry that the encoder
//! and the API read.
//!
//! Sources of the node and jobs decide on their own which groups there are to be; both describe the difference as [`GroupChanges`].

use std::collections::{BTreeMap, HashMap};
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

/// Which group has which sensor, by the sensor's path: groups of jobs have another prefix than those of the node. A sensor has one group: two would
/// mix their readings in the store.
#[derive(Default)]
pub struct SensorOwners(HashMap<String, String>);

impl SensorOwners {
    /// The sensors of running groups.
    pub fn of<'a>(groups: impl Iterator<Item = &'a Arc<Group>>) -> Self {
        let sensors = groups
            .flat_map(|group| (0..group.schema.len()).map(|index| (group.schema.path(index), group.name().to_owned())));
        Self(sensors.collect())
    }

    /// Gives the sensors of a schema to its group. Fails with the first sensor of another group, and that group; then nothing changes.
    pub fn take(&mut self, schema: &Schema) -> Result<(), (String, String)> {
        let other = |index: usize| self.0.get(&schema.path(index)).filter(|owner| *owner != schema.group()).cloned();
        if let Some((index, owner)) = (0..schema.len()).find_map(|index| Some((index, other(index)?))) {
            return Err((schema.sensors()[index].name.clone(), owner));
        }
        self.0.extend((0..schema.len()).map(|index| (schema.path(index), schema.group().to_owned())));
        Ok(())
    }

    /// The sensors whose paths begin with `prefix`, by the rest of their paths, with their groups.
    pub fn below(&self, prefix: &str) -> BTreeMap<String, String> {
        let below =
            self.0.iter().filter_map(|(path, group)| Some((path.strip_prefix(prefix)?.to_owned(), group.clone())));
        below.collect()
    }
}

/// Why a metric of a job is left out whose sensor `group` has.
pub fn taken_metric(metric: &str, group: &str) -> String {
    format!("jobs: metric {metric} of a job is left out: group {group} has its sensor already")
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

#[cfg(test)]
mod tests {
    use wholegrain_model::{SensorDef, SensorPath};

    use super::*;

    #[test]
    fn owners_are_compared_by_path() {
        let schema = |prefix: &str, group: &str, names: &[&str]| {
            let sensors = names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect();
            Schema::new(SensorPath::new(prefix).unwrap(), group, sensors).unwrap()
        };
        let job = schema("/n1/job/7", "job/7/1s", &["cpu/usage"]);
        let mut owners = SensorOwners::of([Arc::new(Group::of_events("jobs", "n1", job.clone()))].iter());
        // The node's own sensor of the same relative name is another sensor.
        owners.take(&schema("/n1", "stat", &["cpu/usage"])).unwrap();
        let claimed = owners.take(&schema("/n1", "forged", &["a", "job/7/cpu/usage"])).unwrap_err();
        assert_eq!(claimed, ("job/7/cpu/usage".to_owned(), "job/7/1s".to_owned()));
        owners.take(&schema("/n1", "other", &["a"])).unwrap();
        owners.take(&job).unwrap();
        assert_eq!(
            owners.below("/n1/job/7/").into_iter().collect::<Vec<_>>(),
            [("cpu/usage".into(), "job/7/1s".into())]
        );
    }
}
