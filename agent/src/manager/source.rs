//! A source of the node: its groups, its thread if it blocks, and its notes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, Schema};
use wholegrain_sources::{GroupPlan, Roots, Source, descriptors};

use super::command::StartedPlugin;
use crate::config::SourceConfig;
use crate::counters::AgentCounters;
use crate::engine::schedule::TickSchedule;
use crate::engine::{Group, GroupStart, Sampler};
use crate::identity::AgentIdentity;
use crate::log_limiter::LogLimiter;
use crate::plugins::{self, PluginConfig, PluginServices};
use crate::reconcile::{BlockingSampler, GroupChanges, SensorOwners, left_out};
use crate::rediscovery::Rediscovery;
use crate::registry::GroupRegistry;
use crate::status::{PluginStatus, SourceStatus};
use crate::sync::lock;

/// The most notes of one source.
const NOTES_MAX: usize = 100;
/// The most characters of a note: longer ones are cut.
const NOTE_CHARACTERS_MAX: usize = 2000;
/// The sources that read what a site has written.
const PROGRAM_SOURCES: [&str; 2] = ["exec", "textfile"];
/// The note of a discovery without file descriptors.
const NO_DESCRIPTORS: &str = "the agent has too few file descriptors to discover groups: the present groups stay, and discovery is tried \
     again (raise LimitNOFILE= of the agent's unit)";
/// How long the thread of a stopped source may take to end: 100 ms.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// What a source is built from: the agent itself, or a table.
enum Origin {
    Own,
    /// A table of the configuration, `[sources.<name>]`.
    Table(Box<SourceConfig>),
    /// A table of the configuration, `[plugins.<name>]`.
    Plugin(Box<PluginConfig>, PluginServices),
}

/// A source and its groups.
pub(super) struct RunningSource {
    pub name: String,
    summary: String,
    origin: Origin,
    source: Option<Box<dyn Source>>,
    phase: &'static str,
    groups: Vec<Arc<Group>>,
    blocking: BlockingSampler,
    notes: Vec<String>,
    /// Groups whose last read had a problem.
    failing: Vec<String>,
    rediscovery: Rediscovery,
    log_limiter: LogLimiter,
}

/// What the manager lends a source to change its groups.
pub(super) struct DiscoveryContext<'a> {
    pub identity: &'a AgentIdentity,
    pub registry: &'a GroupRegistry,
    pub counters: &'a Arc<AgentCounters>,
    pub fast: &'a mut Sampler,
    pub interval_overrides: &'a HashMap<String, Interval>,
    /// The interval of groups that name none.
    pub interval: Interval,
    pub send_interval: Interval,
}

impl RunningSource {
    /// A source of the configuration, not started yet.
    pub fn configured(config: &SourceConfig) -> Self {
        Self::new(config.name, config.summary(), Origin::Table(Box::new(config.clone())), None)
    }

    /// A plug-in, not started yet.
    pub fn plugin(config: &PluginConfig, services: PluginServices) -> Self {
        let summary = format!("plug-in {}", config.library.display());
        Self::new(&config.name, &summary, Origin::Plugin(Box::new(config.clone()), services), None)
    }

    /// A source that the configuration does not build.
    pub fn built(name: &str, summary: &str, source: Box<dyn Source>) -> Self {
        Self::new(name, summary, Origin::Own, Some(source))
    }

    fn new(name: &str, summary: &str, origin: Origin, source: Option<Box<dyn Source>>) -> Self {
        Self {
            name: name.to_owned(),
            summary: summary.to_owned(),
            origin,
            source,
            phase: "stopped",
            groups: Vec::new(),
            blocking: BlockingSampler::new(name),
            notes: Vec::new(),
            failing: Vec::new(),
            rediscovery: Rediscovery::default(),
            log_limiter: LogLimiter::default(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.phase == "running"
    }

    /// Whether it was started and not stopped, also if it has failed.
    pub fn is_started(&self) -> bool {
        self.phase != "stopped"
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

    pub fn has_note(&self, note: &String) -> bool {
        self.notes.contains(note)
    }

    pub fn reconfigured(&mut self, config: &SourceConfig) {
        self.origin = Origin::Table(Box::new(config.clone()));
        self.notes.clear();
    }

    /// The configuration of a plug-in; `None` for another source.
    pub fn plugin_config(&self) -> Option<&PluginConfig> {
        match &self.origin {
            Origin::Plugin(config, _) => Some(config),
            _ => None,
        }
    }

    /// The state of a plug-in; `None` for another source.
    pub fn plugin_status(&self) -> Option<PluginStatus> {
        let Origin::Plugin(config, services) = &self.origin else { return None };
        Some(PluginStatus {
            name: self.name.clone(),
            library: config.library.display().to_string(),
            isolated: config.isolate,
            groups: self.groups.len(),
            sensors: self.groups.iter().map(|group| group.schema.len()).sum(),
            progress: services.progress.clone(),
        })
    }

    /// Whether it is a plug-in that does not run because its settings or its file were refused.
    pub fn is_refused(&self) -> bool {
        matches!(&self.origin, Origin::Plugin(_, services) if lock(&services.progress).state == "refused")
    }

    /// A plug-in that begins or has begun to run; `None` for another source and for a stopped plug-in.
    pub fn started_plugin(&self) -> Option<StartedPlugin> {
        match &self.origin {
            Origin::Plugin(_, services) if self.is_started() => {
                Some(StartedPlugin { name: self.name.clone(), progress: services.progress.clone() })
            }
            _ => None,
        }
    }

    /// Whether a table `[sources.<name>]` configures it.
    pub fn is_in_sources(&self) -> bool {
        matches!(self.origin, Origin::Table(_))
    }

    pub fn put_source(&mut self, source: Box<dyn Source>) {
        self.source = Some(source);
    }

    /// Builds the source from its configuration.
    pub fn build(&mut self, roots: &Roots) {
        let built = match &self.origin {
            Origin::Own => return,
            Origin::Table(config) => config.build(roots).map_err(|error| error.to_string()),
            Origin::Plugin(config, services) => {
                plugins::start(config, services.clone()).map_err(|error| error.to_string())
            }
        };
        match built {
            Ok(source) => self.source = Some(source),
            Err(reason) => {
                if let Origin::Plugin(_, services) = &self.origin {
                    services.counters.plugin_faults.fetch_add(1, Ordering::Relaxed);
                    lock(&services.progress).count_fault("refused", reason.clone());
                }
                self.note(reason);
            }
        }
    }

    /// Builds the source unless it is built. Whether it can run; otherwise its state is `failed`.
    pub fn prepare(&mut self, roots: &Roots) -> bool {
        if self.source.is_none() {
            self.build(roots);
        }
        self.phase = if self.source.is_some() { "running" } else { "failed" };
        // Its groups come at once, however often it was started before.
        self.rediscovery = Rediscovery::default();
        self.is_running()
    }

    /// Logs and keeps a note, once. Names of users' files can have any character: no control character gets into the log or onto a terminal.
    fn note(&mut self, text: String) {
        let text: String = text.chars().filter(|c| !c.is_control()).take(NOTE_CHARACTERS_MAX).collect();
        if !self.notes.contains(&text) && self.notes.len() < NOTES_MAX {
            // What a site has configured should work; a source that is on by default only names what the machine lacks.
            if matches!(self.origin, Origin::Plugin(..)) || PROGRAM_SOURCES.contains(&self.name.as_str()) {
                tracing::warn!("source {}: {text}", self.name);
            } else {
                tracing::info!("source {}: {text}", self.name);
            }
            self.notes.push(text);
        }
    }

    /// Takes the readers' requests for a rediscovery. Whether one is due, as it always is at a rescan.
    pub fn take_layout_changed(&mut self, rescan: bool) -> bool {
        let changed = self.groups.iter().filter(|group| group.stats.layout_changed.swap(false, Ordering::AcqRel));
        // Counted, not `any`: every flag has to be cleared.
        let has_news = self.source.as_ref().is_some_and(|source| source.has_news());
        let is_requested = changed.count() > 0 || has_news;
        self.rediscovery.is_due(is_requested, Instant::now()) || (rescan && self.rediscovery.take())
    }

    /// Whether a rediscovery waits.
    pub fn is_changing(&self) -> bool {
        self.rediscovery.is_waiting()
    }

    /// The shortest interval of its groups on the common thread, in ns.
    pub fn interval_min(&self) -> Option<u64> {
        let common = self.groups.iter().filter(|group| !group.blocking);
        common.map(|group| group.ticking.interval.ns()).min()
    }

    /// Logs a problem once, and its end.
    pub fn log_problems(&mut self) {
        for group in &self.groups {
            let at = self.failing.iter().position(|name| name == group.name());
            match (group.stats.problem.get(), at) {
                (Some(problem), None) => {
                    tracing::warn!(
                        "group {}: {problem}; its missing values are gaps until it can be read again",
                        group.name()
                    );
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

    pub fn stop_blocking(&mut self, timeout: Duration) {
        if !self.blocking.join(timeout) {
            tracing::warn!("source {}: a read hangs; its thread is abandoned", self.name);
        }
    }

    /// Discovers the groups and applies the difference; `reopen` exchanges the readers of unchanged groups too. Whether groups were added or
    /// removed. Groups that could not be discovered stay, with gaps until they can be read again.
    pub fn discover(&mut self, context: &mut DiscoveryContext<'_>, reopen: bool) -> bool {
        let Some((plans, mut kept)) = self.plan() else { return false };
        let unseen = kept.clone();
        let mut owners = self.owners(&plans, &unseen, context.registry);
        let mut changes = GroupChanges::default();
        for plan in plans.into_iter().filter(|plan| !unseen.contains(&plan.name)) {
            let name = plan.name.clone();
            if kept.contains(&name) {
                self.note(format!("offers the group {name} twice; the second is left out"));
                continue;
            }
            self.reconcile(plan, context, &mut owners, &mut changes, reopen);
            kept.push(name);
        }
        let removed = self.groups.extract_if(.., |group| !kept.iter().any(|name| name == group.name()));
        for group in removed {
            tracing::info!("group {} is removed", group.name());
            changes.remove(&group);
        }
        changes.apply(context.registry, context.fast, &mut self.blocking)
    }

    /// The groups that the source offers, and the names of running groups that stay because the source could not see them.
    fn plan(&mut self) -> Option<(Vec<GroupPlan>, Vec<String>)> {
        let mut notes = Vec::new();
        let source = self.source.as_mut()?;
        let had_descriptors = descriptors::are_left();
        let plans = source.discover(&mut |text| notes.push(text));
        let is_complete = had_descriptors && descriptors::are_left();
        let mut kept: Vec<String> = source.unseen().iter().map(|name| (*name).to_owned()).collect();
        if !is_complete {
            kept.extend(self.groups.iter().map(|group| group.name().to_owned()));
            notes.push(NO_DESCRIPTORS.to_owned());
            self.log_limiter.seldom("descriptors", || format!("source {}: {NO_DESCRIPTORS}", self.name));
        }
        if !kept.is_empty() {
            self.rediscovery.request();
        }
        notes.into_iter().for_each(|text| self.note(text));
        Some((plans, kept))
    }

    /// The sensors of all groups that stay as they are; empty if the plans change nothing.
    fn owners(&self, plans: &[GroupPlan], unseen: &[String], registry: &GroupRegistry) -> SensorOwners {
        let planned: HashMap<&str, &GroupPlan> = plans.iter().map(|plan| (plan.name.as_str(), plan)).collect();
        let is_planned =
            |group: &&Arc<Group>| planned.get(group.name()).is_some_and(|plan| plan.sensors == group.schema.sensors());
        if self.groups.iter().filter(is_planned).count() == planned.len() {
            return SensorOwners::default();
        }
        let own =
            self.groups.iter().filter(|group| unseen.iter().any(|name| name == group.name()) || is_planned(group));
        let live = registry.live();
        SensorOwners::of(live.iter().filter(|group| group.source != self.name).chain(own))
    }

    /// Collects the change from the running group of the plan's name to the planned one.
    fn reconcile(
        &mut self,
        plan: GroupPlan,
        context: &DiscoveryContext<'_>,
        owners: &mut SensorOwners,
        changes: &mut GroupChanges,
        reopen: bool,
    ) {
        let schema = match Schema::new(context.identity.prefix.clone(), plan.name.clone(), plan.sensors) {
            Ok(schema) => schema,
            Err(error) => return self.note(format!("left out: {error}")),
        };
        if plan.blocking
            && let Err(error) = self.blocking.ensure(context.counters)
        {
            return self.note(format!("cannot start a thread to read it: {error}"));
        }
        let interval =
            context.interval_overrides.get(&plan.name).copied().or(plan.timing.interval).unwrap_or(context.interval);
        let ticking = TickSchedule { interval, offset: plan.timing.offset, synchronous: plan.timing.synchronous };
        let at = self.groups.iter().position(|group| group.name() == plan.name);
        let old = at.map(|at| self.groups[at].clone());
        let has_same_schema = old.as_ref().is_some_and(|old| old.schema == schema);
        if !has_same_schema && let Err((sensor, group)) = owners.take(&schema) {
            return self.note(left_out(&schema, &sensor, &group));
        }
        let has_same_ticks = old.as_ref().is_some_and(|old| old.ticking == ticking);
        let stats = old.as_ref().filter(|old| old.blocking == plan.blocking).map(|old| old.stats.clone());
        let new = |schema: Schema| {
            let (agent, stats) = (&context.identity.name, stats.unwrap_or_default());
            let group = Group::new(&self.name, agent, schema, ticking, plan.blocking, context.send_interval, stats);
            Arc::new(group)
        };
        let group = match old {
            Some(old) if old.blocking == plan.blocking && has_same_schema && has_same_ticks => {
                if reopen {
                    changes.reopen(&old, plan.reader);
                }
                return;
            }
            Some(old) if old.blocking == plan.blocking && has_same_schema && !reopen => {
                let group = Arc::new(old.retimed(&context.identity.name, ticking, context.send_interval));
                changes.retime(&old, group.clone(), false);
                group
            }
            Some(old) if old.blocking == plan.blocking => {
                let group = new(schema);
                if !has_same_schema {
                    let (now, before) = (group.schema.len(), old.schema.len());
                    tracing::info!("group {} has {now} sensors now, {before} before", group.name());
                }
                changes.replace(&old, group.clone(), plan.reader, has_same_ticks);
                group
            }
            old => {
                // A group that moves between the common thread and the source's own begins again.
                if let Some(old) = &old {
                    changes.remove(old);
                }
                if let Some(other) = changes.collision(schema.group(), context.registry) {
                    let (name, owner) = (schema.group(), &other.source);
                    return self.note(format!("group {name} is left out: source {owner} has a group of this name"));
                }
                let group = new(schema);
                let sensors = group.schema.len();
                tracing::debug!("group {} has {sensors} sensors, every {}", group.name(), group.ticking.interval);
                changes.add(group.clone(), plan.reader, GroupStart::OnTick);
                group
            }
        };
        match at {
            Some(at) => self.groups[at] = group,
            None => self.groups.push(group),
        }
    }

    /// Gives a group another interval.
    pub fn retime(&mut self, name: &str, interval: Interval, context: &mut DiscoveryContext<'_>) {
        if let Some(place) = self.groups.iter_mut().find(|group| group.name() == name)
            && place.ticking.interval != interval
        {
            let ticking = TickSchedule { interval, ..place.ticking };
            let new = Arc::new(place.retimed(&context.identity.name, ticking, context.send_interval));
            let old = std::mem::replace(place, new.clone());
            let mut changes = GroupChanges::default();
            changes.retime(&old, new, false);
            changes.apply(context.registry, context.fast, &mut self.blocking);
        }
    }

    /// Ends the process of a plug-in, because the agent ends.
    pub fn end_plugin(&mut self) {
        if self.plugin_config().is_some() {
            self.source = None;
        }
    }

    pub fn stop(&mut self, context: &mut DiscoveryContext<'_>) {
        let mut changes = GroupChanges::default();
        for group in self.groups.drain(..) {
            changes.remove(&group);
        }
        changes.apply(context.registry, context.fast, &mut self.blocking);
        self.phase = "stopped";
        self.failing.clear();
        self.stop_blocking(STOP_TIMEOUT);
        if !matches!(self.origin, Origin::Own) {
            self.source = None;
            self.notes.clear();
        }
    }
}
