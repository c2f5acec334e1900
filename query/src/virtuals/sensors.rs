//! The virtual sensors over a store, kept up to date with its registry and its sensors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use serde::Serialize;
use wholegrain_model::{Interval, Kind, Pattern, ValueType};
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

/// Operands of one reference that are looked at for the interval and the newest time of a virtual sensor.
const LOOKED_AT_MAX: usize = 100;

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

/// A definition with its origin and the number of its sensors.
#[derive(Debug, Clone, Serialize)]
pub struct ListedDefinition {
    #[serde(flatten)]
    pub definition: Definition,
    /// How many sensors it makes.
    pub sensors: usize,
    /// Number of the change that set it.
    pub number: u64,
    /// Time of the change, ns since the Unix epoch.
    pub at: i64,
    pub who: String,
    /// Whether sensors of jobs may be among its operands.
    #[serde(skip)]
    pub may_be_of_jobs: bool,
}

/// The state of the store's registry at its last reading.
#[derive(Default)]
struct VirtualsState {
    /// Of the registry; nothing has been read at 0.
    generation: u64,
    /// Keys and numbers of the entries.
    entries: Vec<(String, u64)>,
    definitions: Arc<DefinitionRegistry>,
    names: SensorNames,
    index: InstanceIndex,
}

/// The virtual sensors over a store. Thread-safe.
pub struct VirtualSensors {
    store: Store,
    state: RwLock<VirtualsState>,
    /// Held while definitions are changed.
    changing: Mutex<()>,
}

/// Interval and newest time of a virtual sensor, derived from its operands.
#[derive(Clone, Copy, Default)]
struct ResultTimes {
    interval_ns: u64,
    last: Option<i64>,
}

impl VirtualSensors {
    /// The virtual sensors that a store's registry defines.
    pub fn new(store: Store) -> Self {
        Self { store, state: RwLock::default(), changing: Mutex::new(()) }
    }

    /// The state as of now.
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
            && (!state.definitions.has_templates || state.names.are_current(&self.store))
    }

    fn update(&self, state: &mut VirtualsState) {
        let generation = self.store.registry().generation();
        let gone = state.names.have_gone(&self.store);
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
            Err(refused) => tracing::error!("virtual sensors: what the registry holds is refused: {refused}"),
        }
        state.entries = keys;
        if state.definitions.has_templates {
            state.names.extend(&self.store);
        }
        state.index = InstanceIndex::of(&state.definitions, &state.names, &self.store);
        if state.index.left_out > 0 {
            let (count, left_out) = (state.index.len(), state.index.left_out);
            tracing::warn!("virtual sensors: {left_out} are left out, {count} are made; narrow the templates");
        }
    }

    /// The registry's entries as definitions; what `before` has already is taken from there.
    fn checked(&self, entries: Vec<RegistryEntry>, before: &DefinitionRegistry) -> Vec<Arc<CheckedDefinition>> {
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            let known = before.all.get(&entry.key).map(|written| &written.checked);
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
                Err(error) => tracing::error!("virtual sensors: the definition of {} is left out: {error}", entry.key),
            }
        }
        all
    }

    /// Those that one of the patterns chooses and that are not measured, sorted by path.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.sensors_until(patterns, &|| false)
    }

    /// The same, or others when nobody waits for them any more, which is asked now and then.
    pub fn sensors_until(&self, patterns: &[Pattern], is_over: &dyn Fn() -> bool) -> Vec<SensorInfo> {
        self.sensors_between(patterns, None, None, usize::MAX, is_over)
    }

    /// The first `most` of them for each pattern whose paths come after `after` and not after `to`; others when `is_over`, which is asked now and then.
    /// What is known of the others is not looked for: the operands of each may be anywhere among millions of sensors.
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
            let chosen = state.index.select(pattern).filter(|(path, _)| is_between(path)).take(most);
            let chosen = chosen.take_while(|_| !is_over());
            found.extend(chosen.map(|(path, made)| self.info(&state, path, made, &mut memo)));
        }
        if patterns.len() > 1 {
            found.sort_by(|a, b| a.path.cmp(&b.path));
            found.dedup_by(|a, b| a.path == b.path);
        }
        found
    }

    /// The first of them that a pattern chooses, at most so many.
    fn sensors_most(&self, pattern: &Pattern, most: usize) -> Vec<SensorInfo> {
        let state = self.fresh();
        let mut memo = HashMap::new();
        let chosen = state.index.select(pattern).take(most);
        chosen.map(|(path, made)| self.info(&state, path, made, &mut memo)).collect()
    }

    fn info(
        &self,
        state: &VirtualsState,
        path: &Arc<str>,
        made: &IndexedSensor,
        memo: &mut HashMap<u32, ResultTimes>,
    ) -> SensorInfo {
        let times = self.times(state, path, made, memo);
        let definition = &made.definition.definition;
        SensorInfo {
            id: SensorId(SensorId::COMPUTED | made.number),
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

    /// From the operands; as deep as virtual sensors refer to others, which is bounded.
    fn times(
        &self,
        state: &VirtualsState,
        path: &str,
        made: &IndexedSensor,
        memo: &mut HashMap<u32, ResultTimes>,
    ) -> ResultTimes {
        if let Some(known) = memo.get(&made.number) {
            return *known;
        }
        let definition = &made.definition.definition;
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
        each_reference(&made.definition.expr, &mut |reference, _| {
            let Ok(pattern) = absolute(path, &reference.text) else { return };
            if pattern.is_literal() {
                if let Some(info) = self.measured(pattern.as_str()) {
                    take(measured(info));
                } else if let Some((path, made)) = state.index.get(pattern.as_str()) {
                    take(self.times(state, path, made, memo));
                }
                return;
            }
            self.store.sensors_most(&pattern, LOOKED_AT_MAX).into_iter().for_each(|info| take(measured(info)));
            for (path, made) in state.index.select(&pattern).take(LOOKED_AT_MAX) {
                take(self.times(state, path, made, memo));
            }
        });
        let shortest = Some(interval_ns).filter(|ns| *ns < u64::MAX);
        let interval_ns = eval::interval_ns(definition.interval, shortest.into_iter());
        // Where something may be missing, what the others have counts.
        let last = match definition.missing {
            MissingOperands::Gap => all.then_some(oldest).filter(|last| *last < i64::MAX),
            MissingOperands::Skip => newest,
        };
        let grid = i64::try_from(interval_ns).unwrap_or(i64::MAX);
        let last = last.map(|last| if grid > 0 { last - last.rem_euclid(grid) } else { last });
        memo.insert(made.number, ResultTimes { interval_ns, last });
        ResultTimes { interval_ns, last }
    }

    fn measured(&self, path: &str) -> Option<SensorInfo> {
        self.store.sensor_id(path).and_then(|id| self.store.sensor(id))
    }

    /// Takes out the sensors of which a user may not see all that they are computed from.
    pub fn retain_seen(&self, user: &str, sensors: &mut Vec<SensorInfo>) {
        let state = self.fresh();
        let mut memo = HashMap::new();
        sensors.retain(|sensor| match state.index.get(&sensor.path) {
            Some((path, made)) if sensor.id.is_computed() => self.sees(&state, user, path, made, &mut memo),
            _ => self.store.sees(user, &sensor.path),
        });
    }

    fn sees(
        &self,
        state: &VirtualsState,
        user: &str,
        path: &str,
        made: &IndexedSensor,
        memo: &mut HashMap<u32, bool>,
    ) -> bool {
        if let Some(known) = memo.get(&made.number) {
            return *known;
        }
        let mut sees = self.store.sees(user, path);
        let written = state.definitions.all.get(&made.definition.definition.path);
        if sees && written.is_none_or(|written| written.may_be_of_jobs) {
            each_reference(&made.definition.expr, &mut |reference, _| {
                if !sees {
                    return;
                }
                let Ok(pattern) = absolute(path, &reference.text) else {
                    sees = false;
                    return;
                };
                let measured = self.store.sensors_most(&pattern, OPERANDS_MAX + 1);
                sees = measured.len() <= OPERANDS_MAX && measured.iter().all(|info| self.store.sees(user, &info.path));
                sees =
                    sees && state.index.select(&pattern).all(|(path, made)| self.sees(state, user, path, made, memo));
            });
        }
        memo.insert(made.number, sees);
        sees
    }

    /// Whether a change would be taken, and what it would do.
    pub fn check(&self, change: DefinitionChange) -> Result<ChangeReport, VirtualError> {
        let state = self.ready();
        plan(&state.definitions, change, &state.names, &self.store)
            .map(|planned| planned.changed)
            .map_err(VirtualError::Refused)
    }

    /// Changes definitions, all or nothing; durable when it returns.
    pub fn change(&self, change: DefinitionChange, who: &str, at: i64) -> Result<ChangeReport, VirtualError> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The state with all sensors' names looked at, also when there is no template yet.
    fn ready(&self) -> RwLockReadGuard<'_, VirtualsState> {
        drop(self.fresh());
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.names.have_gone(&self.store) {
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
            let written = state.definitions.all.get(&entry.key)?;
            Some(ListedDefinition {
                definition: written.checked.definition.clone(),
                sensors: counts.get(entry.key.as_str()).copied().unwrap_or(0),
                number: entry.number,
                at: entry.at,
                who: entry.who,
                may_be_of_jobs: written.may_be_of_jobs,
            })
        };
        let mut all: Vec<ListedDefinition> = entries.into_iter().filter_map(listed).collect();
        all.sort_by(|a, b| a.definition.path.cmp(&b.definition.path));
        all
    }

    /// What was ever defined and removed, the latest last.
    pub fn history(&self, path: Option<&str>, most: usize) -> Result<Vec<RegistryEntry>, StoreError> {
        self.store.registry().history(KIND, path, most)
    }

    /// The grid of a virtual sensor, when it is known.
    pub fn interval(&self, sensor: &SensorInfo) -> Option<Interval> {
        (sensor.interval_ns > 0).then(|| Interval::from_ns(sensor.interval_ns))
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
        let (path, made) = state.index.get(&sensor.path)?;
        let info = self.info(&state, path, made, &mut HashMap::new());
        Some(Arc::new(VirtualSensor { info, definition: made.definition.clone() }))
    }
}

/// Both sorted by path; of one path the measured one.
pub(crate) fn merged(measured: Vec<SensorInfo>, computed: Vec<SensorInfo>) -> Vec<SensorInfo> {
    if computed.is_empty() {
        return measured;
    }
    let mut all = measured;
    all.extend(computed);
    // Stable: a measured one stands before a computed one.
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all.dedup_by(|later, first| later.path == first.path);
    all
}
