//! Collects a change of jobs' groups and applies it to the samplers and the registry; shares what groups of many jobs have in common.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::{Interval, Schema, SchemaError};

use super::plan::GroupKey;
use crate::engine::{Accumulated, Group, Sampler, SamplerChange};
use crate::state::AgentState;

/// The name of the thread that reads what can take long.
const THREAD: &str = "jobs";
/// Shapes kept, at most: there is one for each kind of group, of which jobs have few.
const SHAPES_MAX: usize = 256;

/// Sensors of groups, in memory once for all jobs whose groups have the same: their names are below the job.
#[derive(Default)]
pub struct SharedSchemas {
    schemas: HashMap<GroupKey, Schema>,
    accumulated: HashMap<GroupKey, Arc<Accumulated>>,
}

impl SharedSchemas {
    /// The schema, its sensors shared with the last one of its kind if they are the same.
    pub fn shared(&mut self, key: &GroupKey, schema: Schema) -> Schema {
        if self.schemas.len() >= SHAPES_MAX {
            self.schemas.clear();
        }
        let schema = self.schemas.get(key).map_or(schema.clone(), |other| schema.sharing(other));
        self.schemas.insert(key.clone(), schema.clone());
        schema
    }

    /// How the samples of a group are folded, if they are.
    pub fn accumulated(&mut self, key: &GroupKey, schema: &Schema) -> Result<Option<Arc<Accumulated>>, SchemaError> {
        let Some(windows) = &key.windows else { return Ok(None) };
        if self.accumulated.len() >= SHAPES_MAX {
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

/// A change of a job's groups that is being collected.
pub struct ChangeSet<'a> {
    /// Names and the registry.
    pub state: &'a AgentState,
    /// Reads what does not block.
    pub fast: &'a mut Sampler,
    /// Reads what can take long; started when it is first needed.
    pub slow: &'a mut Option<Sampler>,
    /// How long samples are collected into a batch.
    pub send_interval: Interval,
    pub shapes: &'a mut SharedSchemas,
    /// What people should know.
    pub notes: &'a mut Vec<String>,
    /// Groups that end with this change.
    pub retired: Vec<u64>,
    /// Groups that begin with it.
    pub added: Vec<Arc<Group>>,
    fast_change: SamplerChange,
    blocking_change: SamplerChange,
}

impl<'a> ChangeSet<'a> {
    /// Nothing to do yet.
    pub fn new(
        state: &'a AgentState,
        fast: &'a mut Sampler,
        slow: &'a mut Option<Sampler>,
        send_interval: Interval,
        shapes: &'a mut SharedSchemas,
        notes: &'a mut Vec<String>,
    ) -> Self {
        let (retired, added, fast_change, blocking_change) =
            (Vec::new(), Vec::new(), SamplerChange::new(), SamplerChange::new());
        Self { state, fast, slow, send_interval, shapes, notes, retired, added, fast_change, blocking_change }
    }

    /// The change of one of the two threads.
    pub fn change(&mut self, blocking: bool) -> &mut SamplerChange {
        if blocking { &mut self.blocking_change } else { &mut self.fast_change }
    }

    /// Whether there is a thread for reads that can take long.
    pub fn can_block(&mut self) -> bool {
        if self.slow.is_none() {
            match Sampler::start(THREAD, self.state.counters.clone(), false) {
                Ok(sampler) => *self.slow = Some(sampler),
                Err(error) => self.report(format!("cannot start a thread for reads that can take long: {error}")),
            }
        }
        self.slow.is_some()
    }

    pub fn report(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Tells why a group is not there.
    pub fn left_out<T>(&mut self, why: &dyn std::error::Error) -> Option<T> {
        self.report(format!("left out: {why}"));
        None
    }

    /// Applies the change: each sampler at one instant, then the registry that the encoder reads.
    pub fn carry_out(&mut self) {
        if !self.fast_change.is_empty() {
            self.fast.change(std::mem::take(&mut self.fast_change));
        }
        if !self.blocking_change.is_empty()
            && let Some(slow) = self.slow
        {
            slow.change(std::mem::take(&mut self.blocking_change));
        }
        let (retired, added) = (std::mem::take(&mut self.retired), std::mem::take(&mut self.added));
        self.state.registry.exchange(&retired, added);
    }
}
