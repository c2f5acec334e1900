//! The virtual sensors over a store, kept up to date with its registry and its sensors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use serde::Serialize;
use wholegrain_model::{Kind, Pattern, ValueType};
use wholegrain_store::registry::RegistryEntry;
use wholegrain_store::{SensorId, SensorInfo, Store, StoreError};

use super::change::{ChangeReport, DefinitionChange, plan};
use super::definition_error::DefinitionError;
use super::index::{IndexedSensor, InstanceIndex, SensorNames};
use super::registry::{DefinitionRegistry, read};
use super::{
    CheckedDefinition, Definition, KIND, MissingOperands, OPERANDS_MAX, SensorLookup, VirtualSensor, absolute,
    each_reference, eval,
};

/// The most operands of one reference that determine the interval and the newest time of a virtual sensor.
const OPERANDS_SEARCHED_MAX: usize = 100;

/// Why a change of definitions failed.
#[derive(Debug, thiserror::Error)]
pub enum VirtualError {
    /// The definitions are invalid; one error for each problem.
    #[error("{}", .0.iter().map(DefinitionError::to_string).collect::<Vec<_>>().join("\n\n"))]
    Refused(Vec<DefinitionError>),
    /// The store could not be changed or read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A definition with its author, time and number of sensors.
#[derive(Debug, Clone, Serialize)]
pub struct ListedDefinition {
    #[serde(flatten)]
    pub definition: Definition,
    /// The number of its sensors.
    pub sensors: usize,
    /// The number of the change that set it.
    pub number: u64,
    /// Time of the change, ns since the Unix epoch.
    pub at: i64,
    pub who: String,
    /// Whether its operands can include sensors of jobs.
    #[serde(skip)]
    pub may_be_of_jobs: bool,
}

/// The definitions and their sensors, as of a generation of the store's registry.
#[derive(Default)]
struct VirtualsState {
    /// The registry's generation; 0 before the first update.
    generation: u64,
    /// Keys and numbers of the registry's entries.
    entries: Vec<(String, u64)>,
    definitions: Arc<DefinitionRegistry>,
    names: SensorNames,
    index: InstanceIndex,
}

/// The virtual sensors over a store. Thread-safe.
pub struct VirtualSensors {
    store: Store,
    state: RwLock<VirtualsState>,
    /// Serializes changes of definitions.
    changing: Mutex<()>,
}

/// Interval and newest time of a virtual sensor, derived from its operands.
#[derive(Clone, Copy, Default)]
struct ResultTimes {
    interval_ns: u64,
    last: Option<i64>,
}

impl VirtualSensors {
    /// Uses the definitions in a store's registry.
    pub fn new(store: Store) -> Self {
        Self { store, state: RwLock::default(), changing: Mutex::new(()) }
    }

    /// The state, updated if the store has changed.
    fn fresh(&self) -> RwLockReadGuard<'_, VirtualsState> {
        {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if self.is_current(&state) {
                return state;
            }
        }
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if !self.is_current(&state) {
                self.update(&mut state);
            }
        }
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_current(&self, state: &VirtualsState) -> bool {
        state.generation == self.store.registry().generation()
            && (!state.definitions.has_templates || state.names.are_up_to_date(&self.store))
    }

    fn update(&self, state: &mut VirtualsState) {
        let generation = self.store.registry().generation();
        let gone = state.names.have_removed(&self.store);
        if gone {
            state.names.clear();
        }
        let first = if state.definitions.has_templates { state.names.extend(&self.store) } else { 0 };
        if state.generation == generation && !gone {
            return state.index.extend(&state.names, first, &self.store);
        }
        state.generation = generation;
        let entries = self.store.registry().all(KIND);
        let keys: Vec<(String, u64)> = entries.iter().map(|entry| (entry.key.clone(), entry.number)).collect();
        if keys == state.entries && !gone {
            return state.index.extend(&state.names, first, &self.store);
        }
        match DefinitionRegistry::of(self.checked(entries, &state.definitions)) {
            Ok(definitions) => state.definitions = Arc::new(definitions),
            Err(refused) => tracing::error!("virtual sensors: the definitions in the registry are invalid: {refused}"),
        }
        state.entries = keys;
        if state.definitions.has_templates {
            state.names.extend(&self.store);
        }
        state.index = InstanceIndex::of(&state.definitions, &state.names, &self.store);
        if state.index.omitted > 0 {
            let (count, omitted) = (state.index.len(), state.index.omitted);
            tracing::warn!("virtual sensors: {omitted} are omitted beyond the first {count}; narrow the templates");
        }
    }

    /// Parses the registry's entries; reuses the definitions in `before`.
    fn checked(&self, entries: Vec<RegistryEntry>, before: &DefinitionRegistry) -> Vec<Arc<CheckedDefinition>> {
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            let known = before.all.get(&entry.key).map(|registered| &registered.checked);
            if let Some(known) = known.filter(|known| known.number == entry.number) {
                all.push(known.clone());
                continue;
            }
            let definition = serde_json::from_value::<Definition>(entry.value.unwrap_or_default());
            let checked = definition
                .map_err(|error| error.to_string())
                .and_then(|definition| read(definition, entry.number).map_err(|refused| refused.to_string()));
            match checked {
                Ok(checked) => all.push(Arc::new(checked)),
                Err(error) => tracing::error!("virtual sensors: the definition of {} is omitted: {error}", entry.key),
            }
        }
        all
    }

    /// The virtual sensors that match at least one pattern, sorted by path.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.sensors_until(patterns, &|| false)
    }

    /// As [`Self::sensors`]; stops early, with an incomplete list, once `is_over` returns true.
    pub fn sensors_until(&self, patterns: &[Pattern], is_over: &dyn Fn() -> bool) -> Vec<SensorInfo> {
        self.sensors_between(patterns, None, None, usize::MAX, is_over)
    }

    /// As [`Self::sensors_until`], for each pattern the first `most` with `after < path <= to`. Only their properties are computed, because the operands of
    /// a sensor can be anywhere among millions.
    pub fn sensors_between(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        to: Option<&str>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<SensorInfo> {
        let state = self.fresh();
        let mut memo = HashMap::new();
        let mut found: Vec<SensorInfo> = Vec::new();
        if state.index.len() == 0 {
            return found;
        }
        let is_between = |path: &str| after.is_none_or(|after| path > after) && to.is_none_or(|to| path <= to);
        for pattern in patterns {
            if is_over() {
                break;
            }
            let selected = state.index.select(pattern).filter(|(path, _)| is_between(path)).take(most);
            let selected = selected.take_while(|_| !is_over());
            found.extend(selected.map(|(path, instance)| self.info(&state, path, instance, &mut memo)));
        }
        if patterns.len() > 1 {
            found.sort_by(|a, b| a.path.cmp(&b.path));
            found.dedup_by(|a, b| a.path == b.path);
        }
        found
    }

    /// The first `most` virtual sensors that a pattern selects.
    fn sensors_most(&self, pattern: &Pattern, most: usize) -> Vec<SensorInfo> {
        let state = self.fresh();
        let mut memo = HashMap::new();
        let selected = state.index.select(pattern).take(most);
        selected.map(|(path, instance)| self.info(&state, path, instance, &mut memo)).collect()
    }

    fn info(
        &self,
        state: &VirtualsState,
        path: &Arc<str>,
        instance: &IndexedSensor,
        memo: &mut HashMap<u32, ResultTimes>,
    ) -> SensorInfo {
        let times = self.times(state, path, instance, memo);
        let definition = &instance.definition.definition;
        SensorInfo {
            id: SensorId(SensorId::COMPUTED | instance.number),
            path: path.clone(),
            unit: definition.unit.clone(),
            kind: Kind::Gauge,
            value_type: ValueType::Float,
            scale: 1.0,
            wraps_at: None,
            description: definition.description.clone(),
            interval_ns: times.interval_ns,
            last_time: times.last,
            agent: "".into(),
        }
    }

    /// Derives interval and newest time from the operands. The recursion is as deep as the chain of definitions, which is bounded.
    fn times(
        &self,
        state: &VirtualsState,
        path: &str,
        instance: &IndexedSensor,
        memo: &mut HashMap<u32, ResultTimes>,
    ) -> ResultTimes {
        if let Some(known) = memo.get(&instance.number) {
            return *known;
        }
        let definition = &instance.definition.definition;
        let (mut interval_ns, mut oldest, mut newest, mut all) = (u64::MAX, i64::MAX, None, true);
        let mut take = |times: ResultTimes| {
            if times.interval_ns > 0 {
                interval_ns = interval_ns.min(times.interval_ns);
            }
            all &= times.last.is_some();
            oldest = oldest.min(times.last.unwrap_or(i64::MAX));
            newest = newest.max(times.last);
        };
        let measured = |info: SensorInfo| ResultTimes { interval_ns: info.interval_ns, last: info.last_time };
        each_reference(&instance.definition.expr, &mut |reference, _| {
            let Ok(pattern) = absolute(path, &reference.text) else { return };
            if pattern.is_literal() {
                if let Some(info) = self.measured(pattern.as_str()) {
                    take(measured(info));
                } else if let Some((path, instance)) = state.index.get(pattern.as_str()) {
                    take(self.times(state, path, instance, memo));
                }
                return;
            }
            self.store.sensors_most(&pattern, OPERANDS_SEARCHED_MAX).into_iter().for_each(|info| take(measured(info)));
            for (path, instance) in state.index.select(&pattern).take(OPERANDS_SEARCHED_MAX) {
                take(self.times(state, path, instance, memo));
            }
        });
        let shortest = Some(interval_ns).filter(|ns| *ns < u64::MAX);
        let interval_ns = eval::interval_ns(definition.interval, shortest.into_iter());
        // With `missing = "skip"` one operand is enough.
        let last = match definition.missing {
            MissingOperands::Gap => all.then_some(oldest).filter(|last| *last < i64::MAX),
            MissingOperands::Skip => newest,
        };
        let grid = i64::try_from(interval_ns).unwrap_or(i64::MAX);
        let last = last.map(|last| if grid > 0 { last - last.rem_euclid(grid) } else { last });
        memo.insert(instance.number, ResultTimes { interval_ns, last });
        ResultTimes { interval_ns, last }
    }

    fn measured(&self, path: &str) -> Option<SensorInfo> {
        self.store.sensor_id(path).and_then(|id| self.store.sensor(id))
    }

    /// Removes sensors with operands that a user may not see.
    pub fn retain_seen(&self, user: &str, sensors: &mut Vec<SensorInfo>) {
        let state = self.fresh();
        let mut memo = HashMap::new();
        sensors.retain(|sensor| match state.index.get(&sensor.path) {
            Some((path, instance)) if sensor.id.is_computed() => self.sees(&state, user, path, instance, &mut memo),
            _ => self.store.sees(user, &sensor.path),
        });
    }

    fn sees(
        &self,
        state: &VirtualsState,
        user: &str,
        path: &str,
        instance: &IndexedSensor,
        memo: &mut HashMap<u32, bool>,
    ) -> bool {
        if let Some(known) = memo.get(&instance.number) {
            return *known;
        }
        let mut sees = self.store.sees(user, path);
        let registered = state.definitions.all.get(&instance.definition.definition.path);
        if sees && registered.is_none_or(|registered| registered.may_be_of_jobs) {
            each_reference(&instance.definition.expr, &mut |reference, _| {
                if !sees {
                    return;
                }
                let Ok(pattern) = absolute(path, &reference.text) else {
                    sees = false;
                    return;
                };
                let measured = self.store.sensors_most(&pattern, OPERANDS_MAX + 1);
                sees = measured.len() <= OPERANDS_MAX && measured.iter().all(|info| self.store.sees(user, &info.path));
                sees = sees
                    && state
                        .index
                        .select(&pattern)
                        .all(|(path, instance)| self.sees(state, user, path, instance, memo));
            });
        }
        memo.insert(instance.number, sees);
        sees
    }

    /// Validates a change and returns its effect, without applying it.
    pub fn check(&self, change: DefinitionChange) -> Result<ChangeReport, VirtualError> {
        let state = self.ready();
        plan(&state.definitions, change, &state.names, &self.store)
            .map(|planned| planned.changed)
            .map_err(VirtualError::Refused)
    }

    /// Applies a change completely or not at all. It is durable on return.
    pub fn change(&self, change: DefinitionChange, who: &str, at: i64) -> Result<ChangeReport, VirtualError> {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = {
            let state = self.ready();
            plan(&state.definitions, change, &state.names, &self.store).map_err(VirtualError::Refused)?
        };
        if planned.changed.is_nothing() {
            return Ok(planned.changed);
        }
        let removed = planned.changed.removed.iter().map(|path| (path.clone(), None));
        let set = planned.set.iter().map(|definition| (definition.path.clone(), serde_json::to_value(definition).ok()));
        self.store.registry().change(KIND, removed.chain(set).collect(), who, at)?;
        Ok(planned.changed)
    }

    /// The up-to-date state with the names of all sensors, also if there is no template yet.
    fn ready(&self) -> RwLockReadGuard<'_, VirtualsState> {
        drop(self.fresh());
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.names.have_removed(&self.store) {
                self.update(&mut state);
            }
            let first = state.names.extend(&self.store);
            let VirtualsState { names, index, .. } = &mut *state;
            index.extend(names, first, &self.store);
        }
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All definitions, sorted by path.
    pub fn list(&self) -> Vec<ListedDefinition> {
        let entries = self.store.registry().all(KIND);
        let state = self.fresh();
        let counts = state.index.counts();
        let listed = |entry: RegistryEntry| {
            let registered = state.definitions.all.get(&entry.key)?;
            Some(ListedDefinition {
                definition: registered.checked.definition.clone(),
                sensors: counts.get(entry.key.as_str()).copied().unwrap_or(0),
                number: entry.number,
                at: entry.at,
                who: entry.who,
                may_be_of_jobs: registered.may_be_of_jobs,
            })
        };
        let mut all: Vec<ListedDefinition> = entries.into_iter().filter_map(listed).collect();
        all.sort_by(|a, b| a.definition.path.cmp(&b.definition.path));
        all
    }

    /// All changes, or those of one path, the latest last.
    pub fn history(&self, path: Option<&str>, most: usize) -> Result<Vec<RegistryEntry>, StoreError> {
        self.store.registry().history(KIND, path, most)
    }
}

impl SensorLookup for VirtualSensors {
    fn sensors(&self, pattern: &Pattern) -> Vec<SensorInfo> {
        let mut found = self.store.sensors_most(pattern, OPERANDS_MAX + 1);
        let virtuals = self.sensors_most(pattern, OPERANDS_MAX + 1);
        if !virtuals.is_empty() {
            found = merged(found, virtuals);
            found.truncate(OPERANDS_MAX + 1);
        }
        found
    }

    fn instance(&self, sensor: &SensorInfo) -> Option<Arc<VirtualSensor>> {
        if !sensor.id.is_computed() {
            return None;
        }
        let state = self.fresh();
        let (path, instance) = state.index.get(&sensor.path)?;
        let info = self.info(&state, path, instance, &mut HashMap::new());
        Some(Arc::new(VirtualSensor { info, definition: instance.definition.clone() }))
    }
}

/// Merges two lists by path. A measured sensor hides a virtual one of the same path.
pub(crate) fn merged(measured: Vec<SensorInfo>, computed: Vec<SensorInfo>) -> Vec<SensorInfo> {
    if computed.is_empty() {
        return measured;
    }
    let mut all = measured;
    all.extend(computed);
    // The sort is stable: a measured sensor stays before a virtual one.
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all.dedup_by(|later, first| later.path == first.path);
    all
}
