//! Finds sensors by pattern and level, and gives the properties of a sensor.

use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use wholegrain_model::Pattern;

use super::matching::{MatchingSensors, PatternMatches};
use super::{Combinations, NONE, SchemalessEntry, Sensors, UNKNOWN};
use crate::settings::{AppliedSettings, Settings};
use crate::{SensorId, SensorInfo};

/// How many paths [`Sensors::select_part`] visits, for all patterns together: some 10 ms of work in a release build.
const LOOKED_MAX: usize = 1 << 16;

impl Sensors {
    /// Every sensor that one of the patterns chooses, sorted by path, each once.
    pub fn select(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.chosen(patterns, None).filter_map(|(path, id)| self.info_of(id, path)).collect()
    }

    /// The first `most` of them whose paths come after `after`.
    pub fn select_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.chosen(patterns, after).filter_map(|(path, id)| self.info_of(id, path)).take(most).collect()
    }

    /// Some of the first `most` matches after `after`, and the path to continue after; `None` if these are all. The number of visited paths is
    /// bounded, so that the lock is not held long.
    pub fn select_part(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        most: usize,
    ) -> (Vec<SensorInfo>, Option<Arc<str>>) {
        let mut chosen = MatchingSensors::new(&self.paths, patterns, after, LOOKED_MAX / patterns.len().max(1));
        let part: Vec<SensorInfo> =
            chosen.by_ref().filter_map(|(path, id)| self.info_of(id, path)).take(most).collect();
        let next = chosen.limit().filter(|_| part.len() < most);
        (part, next)
    }

    /// The sensors that one of the patterns chooses, sorted by path, each once.
    fn chosen<'a>(&'a self, patterns: &'a [Pattern], after: Option<&str>) -> MatchingSensors<'a> {
        MatchingSensors::new(&self.paths, patterns, after, usize::MAX)
    }

    /// How many sensors the pattern chooses.
    pub fn count(&self, pattern: &Pattern) -> u64 {
        PatternMatches::new(&self.paths, pattern, None, usize::MAX).count()
    }

    /// The number of the next sensor, which rises with each new one, and the number of sensors, which falls when some expire.
    pub fn numbers(&self) -> (usize, usize) {
        (self.next as usize, self.count)
    }

    /// The paths of the sensors from this number on, in the order of numbers.
    pub fn paths_from(&self, number: usize) -> Vec<Arc<str>> {
        let Ok(number) = u32::try_from(number) else { return Vec::new() };
        let families = self.paths.families_from(number).flat_map(|family| family.first..family.first + family.len());
        let mut numbers: Vec<u32> = families.filter(|id| *id >= number).collect();
        let singles = self.entries.iter_from(number as usize).map(|(at, _)| at as u32);
        numbers.extend(singles);
        // Two sorted runs; a family's sensor with an entry is in both.
        numbers.sort();
        numbers.dedup();
        numbers.into_iter().filter_map(|id| self.path(SensorId(id))).collect()
    }

    /// The names of the levels directly below `place` (`/lab`, or empty for the root), each once, at most `most`. The scan skips what is below
    /// them.
    pub fn levels_below(&self, place: &str, most: usize) -> Vec<String> {
        let prefix = format!("{place}/");
        let mut levels: Vec<String> = Vec::new();
        let mut from = prefix.clone();
        while levels.len() < most {
            let mut walk = self.paths.walk(Bound::Included(from.as_str()));
            let Some(rest) = walk.step().and_then(|(path, _)| path.strip_prefix(prefix.as_str())) else { break };
            let level = rest.split('/').next().unwrap_or_default().to_owned();
            // `0` follows `/` in ASCII; a sensor with nothing below it is passed by the smallest step.
            let next = format!("{prefix}{level}{}", if level.len() < rest.len() { '0' } else { '\0' });
            if levels.last().is_none_or(|last| *last != level) {
                levels.push(level);
            }
            from = next;
        }
        levels
    }

    /// The sensor with this path, as users have set it.
    pub fn info_by_path(&self, path: &str) -> Option<SensorInfo> {
        self.info(self.id(path)?)
    }

    /// A sensor as users have set it.
    pub fn info(&self, id: SensorId) -> Option<SensorInfo> {
        self.info_of(id, self.path(id)?)
    }

    fn info_of(&self, id: SensorId, path: Arc<str>) -> Option<SensorInfo> {
        let mut info = self.sent_of(id, path)?;
        if let Some(held) = self.held(id) {
            self.settings.apply(&held, &mut info);
        }
        Some(info)
    }

    /// Puts other settings in force.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = Arc::new(settings);
        self.held = RwLock::default();
        self.entries.values_mut().for_each(|entry| *entry.held.get_mut() = UNKNOWN);
        self.paths.families_mut().for_each(|family| drop(family.held.take()));
        self.settings_changes += 1;
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.clone()
    }

    pub(crate) fn settings_changes(&self) -> u64 {
        self.settings_changes
    }

    /// The settings that apply to a sensor, looked up once.
    pub fn held(&self, id: SensorId) -> Option<AppliedSettings> {
        if self.settings.is_empty() {
            return None;
        }
        match self.entries.get(id.0 as usize) {
            Some(entry) => self.held_at(&entry.held, || entry.path.clone()),
            None => {
                let (family, column) = self.paths.family(id)?;
                let unknown = || (0..family.len()).map(|_| AtomicU32::new(UNKNOWN)).collect();
                let held = family.held.get_or_init(unknown).get(column as usize)?;
                self.held_at(held, || family.schema.path(column as usize).into())
            }
        }
    }

    fn held_at(&self, held: &AtomicU32, path: impl FnOnce() -> Arc<str>) -> Option<AppliedSettings> {
        match held.load(Relaxed) {
            NONE => None,
            UNKNOWN => {
                let found = self.settings.held(&path());
                held.store(found.map_or(NONE, |held| self.combination(held)), Relaxed);
                found
            }
            at => self.held.read().unwrap_or_else(PoisonError::into_inner).all.get(at as usize).copied(),
        }
    }

    fn combination(&self, held: AppliedSettings) -> u32 {
        let mut known = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let Combinations { all, by_held } = &mut *known;
        *by_held.entry(held).or_insert_with(|| {
            all.push(held);
            all.len() as u32 - 1
        })
    }

    /// A sensor as its sender defines it.
    pub fn sent(&self, id: SensorId) -> Option<SensorInfo> {
        self.sent_of(id, self.path(id)?)
    }

    fn sent_of(&self, id: SensorId, path: Arc<str>) -> Option<SensorInfo> {
        let schemaless =
            self.entries.get(id.0 as usize).and_then(|entry| self.schemaless.get(entry.schemaless as usize));
        let places = self.places(id);
        let Some(place) = places.last() else { return self.schemaless_info(id, path, schemaless?) };
        let def = &self.schemas[place.schema as usize].sensors()[place.column as usize];
        let states = places.iter().filter_map(|place| self.groups.get(&self.schemas[place.schema as usize].hash()));
        let newest = states.max_by_key(|state| state.last_time);
        Some(SensorInfo {
            id,
            path,
            unit: def.unit.clone(),
            kind: def.kind,
            value_type: def.value_type,
            scale: def.scale,
            wraps_at: def.wraps_at,
            description: def.description.clone(),
            interval_ns: newest.map_or(0, |state| state.interval_ns),
            last_time: newest.map(|state| state.last_time).max(schemaless.and_then(SchemalessEntry::time)),
            agent: newest.map_or_else(|| "".into(), |state| state.agent.clone()),
        })
    }

    fn schemaless_info(&self, id: SensorId, path: Arc<str>, schemaless: &SchemalessEntry) -> Option<SensorInfo> {
        let properties = self.properties.get(schemaless.properties as usize)?;
        Some(SensorInfo {
            id,
            path,
            unit: properties.unit.clone(),
            kind: properties.kind,
            value_type: properties.value_type,
            scale: properties.scale,
            wraps_at: None,
            description: properties.description.clone(),
            interval_ns: properties.interval_ns,
            last_time: schemaless.time(),
            agent: self.sources[schemaless.source as usize].clone(),
        })
    }
}
