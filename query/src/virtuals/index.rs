//! The virtual sensors there are: those defined by name, and those that templates make of the sensors there are.
//!
//! A sensor that is new is looked up by the last level of its path, so that it costs time only where a template refers to a sensor of that
//! name; nothing is looked at twice. What is kept for each sensor of the store is its number under its name.

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
    /// What [`Store::sensor_numbers`] was when they were taken.
    numbers: (usize, usize),
}

impl SensorNames {
    /// Takes what is new in the store; the index of the first that is.
    pub fn extend(&mut self, store: &Store) -> usize {
        let first = self.paths.len();
        // Sensors that come in between are taken in twice, which does no harm, and not missed.
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

    /// Whether they are all there are now.
    pub fn are_current(&self, store: &Store) -> bool {
        self.numbers == store.sensor_numbers()
    }

    /// Whether some of them have been forgotten since.
    pub fn have_gone(&self, store: &Store) -> bool {
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
    /// Its number among those made.
    pub number: u32,
}

/// A reference of a template whose sensors can be new places for it.
struct TemplateTrigger {
    pattern: Pattern,
    template: usize,
    /// The levels of the place, when they are always as many; else how many the reference has.
    levels: TriggerLevels,
}

#[derive(Clone, Copy)]
enum TriggerLevels {
    OfPlace(usize),
    OfReference(usize),
}

/// A template, and what must be beside each of its sensors.
struct Template {
    checked: Arc<CheckedDefinition>,
    name: String,
    path: Pattern,
    wanted: Vec<String>,
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
    /// Sensors that were not made because there are [`INSTANCES_MAX`].
    pub left_out: u64,
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl InstanceIndex {
    /// What a registry makes of the sensors there are.
    pub fn of(registry: &DefinitionRegistry, names: &SensorNames, store: &Store) -> Self {
        let mut index = Self::default();
        for written in registry.all.values() {
            if written.is_template() {
                index.add_template(&written.checked, &written.path);
            } else {
                index.insert(written.path.as_str().into(), &written.checked);
            }
        }
        // Virtual sensors can be what a template refers to: those made so far, then each as it is made.
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

    /// Takes the sensors from number `first` on, which are new.
    pub fn extend(&mut self, names: &SensorNames, first: usize, store: &Store) {
        for path in &names.paths[first..] {
            // What is measured now is not computed any more.
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
        let mut wanted: Vec<String> = Vec::new();
        each_reference(&checked.expr, &mut |reference, _| {
            if !beside(&reference.text) || wanted.contains(&reference.text) {
                return;
            }
            wanted.push(reference.text.clone());
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
        self.templates.push(Template { checked: checked.clone(), name: name.to_owned(), path: path.clone(), wanted });
    }

    /// Makes the sensor of a template at the place where `path` is, if everything else is there too; its path when it is new.
    fn try_place(&mut self, trigger: usize, path: &str, store: &Store) -> Option<Arc<str>> {
        let TemplateTrigger { template, levels, .. } = self.triggers[trigger];
        let template = &self.templates[template];
        let place = place_of(path, levels)?;
        let own = format!("{place}/{}", template.name);
        if self.by_path.contains_key(own.as_str()) || !template.path.matches(&own) || store.sensor_id(&own).is_some() {
            return None;
        }
        if !template.wanted.iter().all(|wanted| self.is_there(&format!("{place}/{wanted}"), store)) {
            return None;
        }
        let (own, checked): (Arc<str>, _) = (own.into(), template.checked.clone());
        self.insert(own.clone(), &checked).then_some(own)
    }

    fn is_there(&self, path: &str, store: &Store) -> bool {
        if !path.contains('*') {
            return store.sensor_id(path).is_some() || self.by_path.contains_key(path);
        }
        let Ok(pattern) = Pattern::new(path) else { return false };
        self.select(&pattern).next().is_some() || !store.sensors_most(&pattern, 1).is_empty()
    }

    fn insert(&mut self, path: Arc<str>, definition: &Arc<CheckedDefinition>) -> bool {
        if self.by_path.len() >= INSTANCES_MAX {
            self.left_out += 1;
            return false;
        }
        self.by_path.insert(path, IndexedSensor { definition: definition.clone(), number: self.next });
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Those that a pattern chooses, sorted by path.
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

    /// How many sensors each definition makes, by the definition's path.
    pub fn counts(&self) -> HashMap<&str, usize> {
        let mut counts = HashMap::new();
        self.by_path
            .values()
            .for_each(|made| *counts.entry(made.definition.definition.path.as_str()).or_default() += 1);
        counts
    }

    /// The names of the levels below a place, for suggestions.
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

/// The place of a template's sensor, of which `path` is an operand.
fn place_of(path: &str, levels: TriggerLevels) -> Option<&str> {
    let slashes = path.match_indices('/').map(|(at, _)| at);
    match levels {
        // The slash after the place's last level.
        TriggerLevels::OfPlace(levels) => slashes.clone().nth(levels).map(|at| &path[..at]),
        TriggerLevels::OfReference(levels) => slashes.rev().nth(levels - 1).map(|at| &path[..at]),
    }
}
