//! A source as it runs: its groups, its own thread if it blocks, and its notes.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, Schema};
use wholegrain_sources::{GroupPlan, Roots, Source, descriptors};

use crate::config::SourceConfig;
use crate::engine::schedule::TickSchedule;
use crate::engine::{Group, Sampled, Sampler};
use crate::state::{AgentState, SourceStatus};

use super::rediscovery::Rediscovery;

/// What one source keeps of what it had to say: so many lines.
const NOTES_MAX: usize = 100;

/// How often that is warned of: 10 min.
const WARN_EVERY: Duration = Duration::from_secs(600);
/// Reported when a discovery is not trusted.
const NO_DESCRIPTORS: &str = "the agent has too few file descriptors to look at the system: its groups stay as they are, and it is \
     looked at again (raise LimitNOFILE= of the agent's unit)";

/// A source and its groups.
pub(super) struct RunningSource {
    pub name: String,
    summary: String,
    config: Option<SourceConfig>,
    source: Option<Box<dyn Source>>,
    phase: &'static str,
    groups: Vec<Arc<Group>>,
    own: Option<Sampler>,
    notes: Vec<String>,
    /// Groups whose last checked read had a problem.
    failing: Vec<String>,
    rediscovery: Rediscovery,
    /// When it was last warned of a lack of descriptors.
    warned: Option<Instant>,
}

/// What the manager lends a source to change its groups.
pub(super) struct SourceContext<'a> {
    pub state: &'a AgentState,
    pub fast: &'a mut Sampler,
    pub interval_overrides: &'a HashMap<String, Interval>,
    pub interval: Interval,
    pub send_interval: Interval,
}

/// A source that is being changed.
pub(super) struct SourceChange<'a>(pub &'a mut RunningSource);

impl Deref for SourceChange<'_> {
    type Target = RunningSource;
    fn deref(&self) -> &RunningSource {
        self.0
    }
}

impl DerefMut for SourceChange<'_> {
    fn deref_mut(&mut self) -> &mut RunningSource {
        self.0
    }
}

impl RunningSource {
    /// A source of the configuration, not started yet.
    pub fn configured(config: &SourceConfig) -> Self {
        Self {
            name: config.name.to_owned(),
            summary: config.summary().to_owned(),
            config: Some(config.clone()),
            source: None,
            phase: "stopped",
            groups: Vec::new(),
            own: None,
            notes: Vec::new(),
            failing: Vec::new(),
            rediscovery: Rediscovery::default(),
            warned: None,
        }
    }

    /// A source that is not from the table of sources.
    pub fn of(name: &str, summary: &str, source: Box<dyn Source>) -> Self {
        Self {
            name: name.to_owned(),
            summary: summary.to_owned(),
            config: None,
            source: Some(source),
            phase: "stopped",
            groups: Vec::new(),
            own: None,
            notes: Vec::new(),
            failing: Vec::new(),
            rediscovery: Rediscovery::default(),
            warned: None,
        }
    }

    pub fn is_running(&self) -> bool {
        self.phase == "running"
    }

    pub fn has_group(&self, name: &str) -> bool {
        self.groups.iter().any(|group| group.name() == name)
    }

    pub fn status(&self) -> SourceStatus {
        SourceStatus {
            name: self.name.clone(),
            summary: self.summary.clone(),
            state: self.phase,
            groups: self.groups.iter().map(|group| group.name().to_owned()).collect(),
            notes: self.notes.clone(),
        }
    }

    pub fn has_said(&self, note: &String) -> bool {
        self.notes.contains(note)
    }

    pub fn reconfigured(&mut self, config: &SourceConfig) {
        self.config = Some(config.clone());
        self.notes.clear();
    }

    pub fn put_source(&mut self, source: Box<dyn Source>) {
        self.source = Some(source);
    }

    /// Makes the source from its configuration.
    pub fn build(&mut self, roots: &Roots) {
        if let Some(config) = &self.config {
            match config.build(roots) {
                Ok(source) => self.source = Some(source),
                Err(error) => self.note(error.to_string()),
            }
        }
    }

    /// Ready to discover? A source that cannot be made is noted as failed.
    pub fn prepare(&mut self, roots: &Roots) -> bool {
        if self.source.is_none() {
            self.build(roots);
        }
        self.phase = if self.source.is_some() { "running" } else { "failed" };
        self.is_running()
    }

    /// Says something about the source once.
    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) && self.notes.len() < NOTES_MAX {
            tracing::info!("source {}: {text}", self.name);
            self.notes.push(text);
        }
    }

    /// Whether any reader has asked for a new look and it is time for one, as it always is at a rescan.
    pub fn take_layout_changed(&mut self, rescan: bool) -> bool {
        let changed = self.groups.iter().filter(|group| group.stats.layout_changed.swap(false, Ordering::AcqRel));
        // Counted, not `any`: every flag is to be taken down.
        let asked = changed.count() > 0;
        self.rediscovery.is_due(asked, Instant::now()) || (rescan && self.rediscovery.take())
    }

    /// Whether it is to be looked at again soon.
    pub fn is_changing(&self) -> bool {
        self.rediscovery.is_waiting()
    }

    /// The shortest interval of the groups that the common thread reads, in ns.
    pub fn interval_min(&self) -> Option<u64> {
        let common = self.groups.iter().filter(|group| !group.blocking);
        common.map(|group| group.ticking.interval.ns()).min()
    }

    /// Logs a problem once, and once more when it is over.
    pub fn tell_problems(&mut self) {
        for group in &self.groups {
            let at = self.failing.iter().position(|name| name == group.name());
            match (group.stats.problem.get(), at) {
                (Some(problem), None) => {
                    tracing::warn!("group {}: {problem}; its values are gaps until it can be read again", group.name());
                    self.failing.push(group.name().to_owned());
                }
                (None, Some(at)) => {
                    tracing::info!("group {}: can be read again", group.name());
                    self.failing.swap_remove(at);
                }
                _ => {}
            }
        }
    }

    pub fn stop_own_thread(&mut self, timeout: Duration) {
        if let Some(own) = self.own.take()
            && !own.join(timeout)
        {
            tracing::warn!("source {}: a read hangs; its thread is left behind", self.name);
        }
    }
}

impl SourceChange<'_> {
    /// The thread that reads a group.
    fn sampler<'a>(&'a mut self, blocking: bool, context: &'a mut SourceContext<'_>) -> Option<&'a mut Sampler> {
        if !blocking {
            return Some(context.fast);
        }
        if self.own.is_none() {
            match Sampler::start(&self.name.clone(), context.state.counters.clone(), false) {
                Ok(own) => self.own = Some(own),
                Err(error) => {
                    self.note(format!("cannot start a thread to read it: {error}"));
                    return None;
                }
            }
        }
        self.own.as_mut()
    }

    /// Looks at the system and makes the groups so. With `afresh`, readers of groups that look the same are exchanged too.
    /// Whether anything changed. Groups that could not be looked at go on as they are: with gaps, until they can be read.
    pub fn discover(&mut self, mut context: SourceContext<'_>, afresh: bool) -> bool {
        let mut notes = Vec::new();
        let Some(source) = &mut self.source else { return false };
        let before = descriptors::are_left();
        let plans = source.discover(&mut |text| notes.push(text));
        let is_sure = before && descriptors::are_left();
        let mut kept: Vec<String> = source.unseen().iter().map(|name| (*name).to_owned()).collect();
        if !is_sure {
            let running = self.groups.iter().map(|group| group.name().to_owned());
            kept.extend(running);
            notes.push(NO_DESCRIPTORS.to_owned());
            let now = Instant::now();
            if self.warned.is_none_or(|warned| now.saturating_duration_since(warned) >= WARN_EVERY) {
                self.warned = Some(now);
                tracing::warn!("source {}: {NO_DESCRIPTORS}", self.name);
            }
        }
        if !kept.is_empty() {
            self.rediscovery.request();
        }
        notes.into_iter().for_each(|text| self.note(text));
        let held = kept.clone();
        let mut changed = false;
        for plan in plans.into_iter().filter(|plan| !held.contains(&plan.name)) {
            let name = plan.name.clone();
            if kept.contains(&name) {
                self.note(format!("offers the group {name} twice; the second is left out"));
                continue;
            }
            changed |= self.take_plan(plan, &mut context, afresh);
            kept.push(name);
        }
        let gone: Vec<Arc<Group>> =
            self.groups.iter().filter(|group| !kept.iter().any(|name| name == group.name())).cloned().collect();
        for group in gone {
            tracing::info!("group {} is gone", group.name());
            self.remove(&group, &mut context);
            changed = true;
        }
        changed
    }

    fn take_plan(&mut self, plan: GroupPlan, context: &mut SourceContext<'_>, afresh: bool) -> bool {
        let schema = match Schema::new(context.state.prefix.clone(), plan.name.clone(), plan.sensors) {
            Ok(schema) => schema,
            Err(error) => {
                self.note(format!("left out: {error}"));
                return false;
            }
        };
        let interval =
            context.interval_overrides.get(&plan.name).copied().or(plan.timing.interval).unwrap_or(context.interval);
        let ticking = TickSchedule { interval, offset: plan.timing.offset, synchronous: plan.timing.synchronous };
        let Some(old) = self.groups.iter().find(|group| group.name() == plan.name).cloned() else {
            return self.add(schema, ticking, plan.reader, plan.blocking, context);
        };
        let (same_schema, same_ticking) = (old.schema == schema, old.ticking == ticking);
        if old.blocking != plan.blocking {
            self.remove(&old, context);
            return self.add(schema, ticking, plan.reader, plan.blocking, context);
        }
        if same_schema && same_ticking {
            if afresh && let Some(sampler) = self.sampler(plan.blocking, context) {
                sampler.replace(old.id, Sampled::new(old.clone(), plan.reader), true);
            }
            return false;
        }
        if same_schema && !afresh {
            self.put_in_place(&old, ticking, context);
            return true;
        }
        let (agent, stats) = (&context.state.name, old.stats.clone());
        let new = Arc::new(Group::new(&self.name, agent, schema, ticking, plan.blocking, context.send_interval, stats));
        if !same_schema {
            tracing::info!("group {} has {} sensors now, before {}", new.name(), new.schema.len(), old.schema.len());
        }
        if let Some(sampler) = self.sampler(plan.blocking, context) {
            sampler.replace(old.id, Sampled::new(new.clone(), plan.reader), same_ticking);
        }
        self.exchange(&old, new, context);
        true
    }

    fn add(
        &mut self,
        schema: Schema,
        ticking: TickSchedule,
        reader: Box<dyn wholegrain_sources::Reader>,
        blocking: bool,
        context: &mut SourceContext<'_>,
    ) -> bool {
        if let Some(other) = context.state.registry.find(schema.group()) {
            self.note(format!("group {} is left out: source {} has one of that name", schema.group(), other.source));
            return false;
        }
        let agent = &context.state.name;
        let group =
            Arc::new(Group::new(&self.name, agent, schema, ticking, blocking, context.send_interval, Arc::default()));
        let Some(sampler) = self.sampler(blocking, context) else { return false };
        sampler.add(Sampled::new(group.clone(), reader));
        tracing::debug!("group {} has {} sensors, every {}", group.name(), group.schema.len(), group.ticking.interval);
        context.state.registry.add(group.clone());
        self.groups.push(group);
        true
    }

    /// The same group at another interval; the reader stays where it is.
    fn put_in_place(&mut self, old: &Arc<Group>, ticking: TickSchedule, context: &mut SourceContext<'_>) {
        let new = Arc::new(old.retimed(&context.state.name, ticking, context.send_interval));
        if let Some(sampler) = self.sampler(old.blocking, context) {
            sampler.retime(old.id, new.clone());
        }
        self.exchange(old, new, context);
    }

    fn exchange(&mut self, old: &Arc<Group>, new: Arc<Group>, context: &SourceContext<'_>) {
        context.state.registry.exchange(&[old.id], vec![new.clone()]);
        if let Some(place) = self.groups.iter_mut().find(|group| group.id == old.id) {
            *place = new;
        }
    }

    fn remove(&mut self, group: &Arc<Group>, context: &mut SourceContext<'_>) {
        if let Some(sampler) = self.sampler(group.blocking, context) {
            sampler.remove(group.id);
        }
        context.state.registry.retire(group.id);
        self.groups.retain(|other| other.id != group.id);
    }

    /// Gives a group another interval.
    pub fn retime(&mut self, name: &str, interval: Interval, mut context: SourceContext<'_>) {
        if let Some(old) = self.groups.iter().find(|group| group.name() == name).cloned()
            && old.ticking.interval != interval
        {
            self.put_in_place(&old, TickSchedule { interval, ..old.ticking }, &mut context);
        }
    }

    pub fn stop(&mut self, mut context: SourceContext<'_>) {
        for group in self.groups.clone() {
            self.remove(&group, &mut context);
        }
        self.phase = "stopped";
        self.failing.clear();
        self.stop_own_thread(Duration::from_millis(100));
        if self.config.is_some() {
            self.source = None;
        }
    }
}
