//! The index of virtual sensors: those defined by name, and those that templates make from existing sensors.
//!
//! A new sensor is looked up by the last level of its path: only sensors to whose name a template refers cost time, and each is looked up once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::Pattern;
use wholegrain_store::Store;

use super::define::beside;
use super::registry::DefinitionRegistry;
use super::{CheckedDefinition, INSTANCES_MAX, each_reference};

/// The store's sensors, by the last level of their paths.
#[derive(Default)]
pub(super) struct SensorNames {
    paths: Vec<Arc<str>>,
    by_name: HashMap<Box<str>, Vec<u32>>,
    /// [`Store::sensor_numbers`] at the last update.
    numbers: (usize, usize),
}

impl SensorNames {
    /// Adds new sensors of the store and returns the index of the first one.
    pub fn extend(&mut self, store: &Store) -> usize {
        let first = self.paths.len();
        // A sensor that is registered in between is added twice, which is harmless; none is missed.
        let (from, numbers) = (self.numbers.0, store.sensor_numbers());
        self.numbers = numbers;
        for path in store.sensor_paths_from(from) {
            let number = u32::try_from(self.paths.len()).unwrap_or(u32::MAX);
            let name = name_of(&path);
            match self.by_name.get_mut(name) {
                Some(of) => of.push(number),
                None => drop(self.by_name.insert(name.into(), vec![number])),
            }
            self.paths.push(path);
        }
        first
    }

    /// Whether the store has no new or removed sensors.
    pub fn are_up_to_date(&self, store: &Store) -> bool {
        self.numbers == store.sensor_numbers()
    }

    /// Whether the store has removed sensors since the last update.
    pub fn have_removed(&self, store: &Store) -> bool {
        let (next, held) = store.sensor_numbers();
        next.saturating_sub(held) != self.numbers.0 - self.numbers.1
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone)]
pub(super) struct IndexedSensor {
    pub definition: Arc<CheckedDefinition>,
    pub number: u32,
}

/// A reference of a template: a new sensor that it matches can complete a place.
struct TemplateTrigger {
    pattern: Pattern,
    template: usize,
    levels: TriggerLevels,
}

#[derive(Clone, Copy)]
enum TriggerLevels {
    /// The place has this number of levels.
    OfPlace(usize),
    /// The path of the sensor has this number of levels below the place.
    OfReference(usize),
}

/// A template with the relative references that each of its places must have.
struct Template {
    checked: Arc<CheckedDefinition>,
    name: String,
    path: Pattern,
    required: Vec<String>,
}

#[derive(Default)]
pub(super) struct InstanceIndex {
    by_path: BTreeMap<Arc<str>, IndexedSensor>,
    templates: Vec<Template>,
    triggers: Vec<TemplateTrigger>,
    by_name: HashMap<String, Vec<usize>>,
    /// Triggers whose last level has a wildcard.
    anywhere: Vec<usize>,
    next: u32,
    /// The number of sensors beyond [`INSTANCES_MAX`].
    pub omitted: u64,
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl InstanceIndex {
    /// Builds the index of a registry's definitions over the existing sensors.
    pub fn of(registry: &DefinitionRegistry, names: &SensorNames, store: &Store) -> Self {
        let mut index = Self::default();
        for registered in registry.all.values() {
            if registered.is_template() {
                index.add_template(&registered.checked, &registered.path);
            } else {
                index.insert(registered.path.as_str().into(), &registered.checked);
            }
        }
        // Templates can refer to virtual sensors: each is looked up when it is added.
        let mut todo: Vec<Arc<str>> = index.by_path.keys().cloned().collect();
        for at in 0..index.triggers.len() {
            let trigger = &index.triggers[at];
            let name = name_of(trigger.pattern.as_str());
            let found: Vec<Arc<str>> = if name.contains('*') {
                names.paths.iter().filter(|path| trigger.pattern.matches(path)).cloned().collect()
            } else {
                let of = names.by_name.get(name).map_or(&[][..], Vec::as_slice).iter();
                of.map(|number| &names.paths[*number as usize])
                    .filter(|path| trigger.pattern.matches(path))
                    .cloned()
                    .collect()
            };
            for path in found {
                todo.extend(index.try_place(at, &path, store));
            }
        }
        index.follow(todo, store);
        index
    }

    /// Adds the new sensors from number `first` on.
    pub fn extend(&mut self, names: &SensorNames, first: usize, store: &Store) {
        for path in &names.paths[first..] {
            // A measured sensor replaces a virtual one.
            self.by_path.remove(path);
            self.follow(vec![path.clone()], store);
        }
    }

    fn follow(&mut self, mut todo: Vec<Arc<str>>, store: &Store) {
        while let Some(path) = todo.pop() {
            let named = self.by_name.get(name_of(&path)).into_iter().flatten().chain(&self.anywhere);
            let met: Vec<usize> = named.copied().filter(|at| self.triggers[*at].pattern.matches(&path)).collect();
            for at in met {
                todo.extend(self.try_place(at, &path, store));
            }
        }
    }

    fn add_template(&mut self, checked: &Arc<CheckedDefinition>, path: &Pattern) {
        let (place, name) = path.as_str().rsplit_once('/').unwrap_or_default();
        let template = self.templates.len();
        let place_levels = place.split('/').skip(1).count();
        let runs = place.split('/').any(|level| level == "**");
        let mut required: Vec<String> = Vec::new();
        each_reference(&checked.expr, &mut |reference, _| {
            if !beside(&reference.text) || required.contains(&reference.text) {
                return;
            }
            required.push(reference.text.clone());
            let levels = if !runs {
                TriggerLevels::OfPlace(place_levels)
            } else if !reference.text.contains("**") {
                TriggerLevels::OfReference(reference.text.split('/').count())
            } else {
                return;
            };
            let at = self.triggers.len();
            self.triggers.push(TemplateTrigger { pattern: reference.pattern.clone(), template, levels });
            let last = name_of(&reference.text);
            if last.contains('*') {
                self.anywhere.push(at);
            } else {
                self.by_name.entry(last.to_owned()).or_default().push(at);
            }
        });
        self.templates.push(Template { checked: checked.clone(), name: name.to_owned(), path: path.clone(), required });
    }

    /// Adds the sensor of a template at the place of `path`, if all its references exist. Returns its path if it is new.
    fn try_place(&mut self, trigger: usize, path: &str, store: &Store) -> Option<Arc<str>> {
        let TemplateTrigger { template, levels, .. } = self.triggers[trigger];
        let template = &self.templates[template];
        let place = place_of(path, levels)?;
        let own = format!("{place}/{}", template.name);
        if self.by_path.contains_key(own.as_str()) || !template.path.matches(&own) || store.sensor_id(&own).is_some() {
            return None;
        }
        if !template.required.iter().all(|required| self.exists(&format!("{place}/{required}"), store)) {
            return None;
        }
        let (own, checked): (Arc<str>, _) = (own.into(), template.checked.clone());
        self.insert(own.clone(), &checked).then_some(own)
    }

    fn exists(&self, path: &str, store: &Store) -> bool {
        if !path.contains('*') {
            return store.sensor_id(path).is_some() || self.by_path.contains_key(path);
        }
        let Ok(pattern) = Pattern::new(path) else { return false };
        self.select(&pattern).next().is_some() || !store.sensors_most(&pattern, 1).is_empty()
    }

    fn insert(&mut self, path: Arc<str>, definition: &Arc<CheckedDefinition>) -> bool {
        if self.by_path.len() >= INSTANCES_MAX {
            self.omitted += 1;
            return false;
        }
        self.by_path.insert(path, IndexedSensor { definition: definition.clone(), number: self.next });
        self.next = self.next.wrapping_add(1);
        true
    }

    /// The virtual sensors that a pattern selects, sorted by path.
    pub fn select<'a>(&'a self, pattern: &'a Pattern) -> impl Iterator<Item = (&'a Arc<str>, &'a IndexedSensor)> {
        let prefix = pattern.literal_prefix();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below = self.by_path.range::<str, _>(from);
        below.take_while(move |(path, _)| path.starts_with(&prefix)).filter(|(path, _)| pattern.matches(path))
    }

    pub(crate) fn get(&self, path: &str) -> Option<(&Arc<str>, &IndexedSensor)> {
        self.by_path.get_key_value(path)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// The number of sensors of each definition, by its path.
    pub fn counts(&self) -> HashMap<&str, usize> {
        let mut counts = HashMap::new();
        self.by_path
            .values()
            .for_each(|instance| *counts.entry(instance.definition.definition.path.as_str()).or_default() += 1);
        counts
    }

    /// The names of levels directly below a place, from its first `most` sensors.
    pub fn levels_below(&self, place: &str, most: usize) -> Vec<String> {
        let prefix = format!("{place}/");
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below =
            self.by_path.range::<str, _>(from).take(most).map_while(|(path, _)| path.strip_prefix(prefix.as_str()));
        let mut levels: Vec<String> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        levels.dedup();
        levels
    }
}

/// The place at which the sensor `path` is an operand.
fn place_of(path: &str, levels: TriggerLevels) -> Option<&str> {
    let slashes = path.match_indices('/').map(|(at, _)| at);
    match levels {
        // The slash after the place's last level.
        TriggerLevels::OfPlace(levels) => slashes.clone().nth(levels).map(|at| &path[..at]),
        TriggerLevels::OfReference(levels) => slashes.rev().nth(levels - 1).map(|at| &path[..at]),
    }
}
