//! Builds the groups of jobs and collects the changes; shares what the groups of many jobs have in common.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::{Schema, SchemaError, SensorDef};

use super::context::JobGroupsContext;
use super::plan::GroupKey;
use crate::engine::schedule::TickSchedule;
use crate::engine::{Accumulated, Group};
use crate::reconcile::{BlockingSampler, GroupChanges};

/// What all groups of jobs give as their source.
pub const SOURCE: &str = "jobs";
/// Schemas that are remembered: there is one for each kind of group, of which jobs have few.
const SCHEMAS_MAX: usize = 256;

/// Sensor lists of groups, in memory once for all jobs whose groups have the same: names are relative to the job.
#[derive(Default)]
pub struct SharedSchemas {
    schemas: HashMap<GroupKey, Schema>,
    accumulated: HashMap<GroupKey, Arc<Accumulated>>,
}

impl SharedSchemas {
    /// The schema; shares its sensors with the last one of its kind if they are equal.
    fn shared(&mut self, key: &GroupKey, schema: Schema) -> Schema {
        if self.schemas.len() >= SCHEMAS_MAX {
            self.schemas.clear();
        }
        let schema = self.schemas.get(key).map_or(schema.clone(), |other| schema.sharing(other));
        self.schemas.insert(key.clone(), schema.clone());
        schema
    }

    /// The accumulation of a group, if it has one.
    fn accumulated(&mut self, key: &GroupKey, schema: &Schema) -> Result<Option<Arc<Accumulated>>, SchemaError> {
        let Some(windows) = &key.windows else { return Ok(None) };
        if self.accumulated.len() >= SCHEMAS_MAX {
            self.accumulated.clear();
        }
        let made = Accumulated::new(schema, key.interval, windows.length, &windows.quantiles())?;
        let made = Arc::new(match self.accumulated.get(key) {
            Some(other) => made.sharing(other),
            None => made,
        });
        self.accumulated.insert(key.clone(), made.clone());
        Ok(Some(made))
    }
}

/// A change of one job's groups that is being collected.
pub struct GroupBuilder<'a> {
    pub context: &'a JobGroupsContext,
    pub blocking: &'a mut BlockingSampler,
    pub schemas: &'a mut SharedSchemas,
    pub notes: Vec<String>,
    pub changes: GroupChanges,
}

impl GroupBuilder<'_> {
    /// A group of a job; `old` is the one that it replaces. `None`, with a note, if it cannot be.
    pub fn group(
        &mut self,
        level: &str,
        key: &GroupKey,
        sensors: Vec<SensorDef>,
        old: Option<&Arc<Group>>,
    ) -> Option<Arc<Group>> {
        let name = key.name(level);
        if key.blocking
            && let Err(error) = self.blocking.ensure(&self.context.counters)
        {
            self.notes.push(format!("cannot start a thread for blocking reads: {error}"));
            return None;
        }
        let same = old.filter(|old| old.name() == name);
        if same.is_none() && self.changes.collision(&name, &self.context.registry).is_some() {
            self.notes.push(format!("group {name} is left out: another group has this name"));
            return None;
        }
        let prefix = self.context.identity.prefix.join(&format!("job/{level}"));
        let schema = match prefix.map(|prefix| Schema::new(prefix, name, sensors)) {
            Ok(Ok(schema)) => schema,
            Ok(Err(error)) => return self.left_out(&error),
            Err(error) => return self.left_out(&error),
        };
        let schema = self.schemas.shared(key, schema);
        let accumulated = match self.schemas.accumulated(key, &schema) {
            Ok(accumulated) => accumulated,
            Err(error) => return self.left_out(&error),
        };
        let ticking = TickSchedule { interval: key.interval, offset: Default::default(), synchronous: true };
        let (agent, send_interval) = (&self.context.identity.name, self.context.send_interval.get());
        let stats = same.map(|old| old.stats.clone()).unwrap_or_default();
        let carried = old.and_then(|old| self.carried(old, &schema));
        let group = Group::new(SOURCE, agent, schema, ticking, key.blocking, send_interval, stats);
        Some(Arc::new(group.accumulating(accumulated).carrying(carried)))
    }

    fn left_out(&mut self, why: &dyn std::error::Error) -> Option<Arc<Group>> {
        self.notes.push(format!("left out: {why}"));
        None
    }

    /// The values of `schema`'s sensors in the newest sample of `old`.
    fn carried(&self, old: &Group, schema: &Schema) -> Option<crate::engine::group::CarriedSample> {
        let (time, values) = self.context.readings.newest_row(old)?;
        let known: HashMap<&str, _> =
            old.schema.sensors().iter().map(|sensor| sensor.name.as_str()).zip(values).collect();
        Some((time, schema.sensors().iter().map(|sensor| known.get(sensor.name.as_str()).copied().flatten()).collect()))
    }
}
