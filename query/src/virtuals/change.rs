//! Validates a change of the definitions as a whole before any of it is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::pattern::glob;
use wholegrain_model::suggest::nearest;
use wholegrain_model::{Kind, Pattern};
use wholegrain_store::Store;

use super::check::{KnownSensors, OperandInfo, check};
use super::definition_error::DefinitionError;
use super::index::{InstanceIndex, SensorNames};
use super::registry::{DefinitionRegistry, RegisteredDefinition, read};
use super::{CheckedDefinition, Definition, INSTANCES_MAX, OPERANDS_MAX};

/// The levels looked at for the name nearest to a wrong one.
const LEVELS_LOOKED_AT: usize = 10_000;
/// The places at which a level below a wildcard is looked for.
const PLACES_LOOKED_AT: usize = 100;
/// The most names in one message.
const NAMES_SHOWN: usize = 8;

/// A requested change of the definitions.
#[derive(Debug, Clone, Default)]
pub struct DefinitionChange {
    /// New definitions; they replace those of the same path.
    pub define: Vec<Definition>,
    /// Paths of definitions to remove.
    pub remove: Vec<String>,
    /// Removes definitions even if others refer to them.
    pub force: bool,
}

/// The effect of a change, applied or only checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChangeReport {
    /// Paths of new definitions.
    pub added: Vec<String>,
    /// Paths of definitions that were replaced.
    pub changed: Vec<String>,
    /// Paths of removed definitions.
    pub removed: Vec<String>,
    /// How many definitions did not change.
    pub unchanged: usize,
    /// How many sensors the definitions named here make, by path.
    pub sensors: BTreeMap<String, usize>,
    /// What is valid but may be a mistake.
    pub warnings: Vec<String>,
}

impl ChangeReport {
    /// Whether the change has no effect.
    pub fn is_nothing(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

/// A change that passed validation.
pub(super) struct PlannedChange {
    pub changed: ChangeReport,
    pub set: Vec<Definition>,
}

/// Validates a change of the definitions.
pub(super) fn plan(
    registry: &DefinitionRegistry,
    change: DefinitionChange,
    names: &SensorNames,
    store: &Store,
) -> Result<PlannedChange, Vec<DefinitionError>> {
    let mut changed = ChangeReport::default();
    let mut after: BTreeMap<String, Arc<CheckedDefinition>> =
        registry.all.iter().map(|(path, written)| (path.clone(), written.checked.clone())).collect();
    let (mut refused, mut set, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in change.remove {
        match after.remove(&path) {
            Some(_) => changed.removed.push(path),
            None => refused.push(unknown(registry, &path)),
        }
    }
    for definition in change.define {
        let path = definition.path.clone();
        if !seen.insert(path.clone()) {
            refused.push(DefinitionError::whole("it is defined twice in one change").of(&path));
            continue;
        }
        let before = registry.all.get(&path).map(|written| &written.checked.definition);
        if before == Some(&definition) && after.contains_key(&path) {
            changed.unchanged += 1;
            continue;
        }
        match read(definition.clone(), 0) {
            Ok(checked) => drop(after.insert(path.clone(), Arc::new(checked))),
            Err(error) => refused.push(error),
        }
        changed.removed.retain(|removed| *removed != path);
        if before.is_some() {
            changed.changed.push(path)
        } else {
            changed.added.push(path)
        }
        set.push(definition);
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let new = DefinitionRegistry::of(after.into_values().collect()).map_err(|refused| vec![refused])?;
    let index = InstanceIndex::of(&new, names, store);
    let touched: Vec<&str> = changed.added.iter().chain(&changed.changed).map(String::as_str).collect();
    let look = ChangeCheck { registry, new: &new, index: &index, store, touched: &touched, forced: change.force };
    let warnings = look.at_all(&changed)?;
    changed.warnings = warnings;
    let counts = index.counts();
    changed.sensors = touched.iter().map(|path| ((*path).to_owned(), counts.get(path).copied().unwrap_or(0))).collect();
    Ok(PlannedChange { changed, set })
}

fn unknown(registry: &DefinitionRegistry, path: &str) -> DefinitionError {
    let refused = DefinitionError::whole("there is no such definition").of(path);
    match nearest(path, registry.all.keys().map(String::as_str)) {
        Some(near) => refused.help(format!("did you mean {near}?")),
        None => refused.help("`wholegrain config virtual list` lists them"),
    }
}

/// A change that is looked at.
struct ChangeCheck<'a> {
    registry: &'a DefinitionRegistry,
    new: &'a DefinitionRegistry,
    index: &'a InstanceIndex,
    store: &'a Store,
    touched: &'a [&'a str],
    forced: bool,
}

impl ChangeCheck<'_> {
    /// Everything there is against it; the warnings, if nothing is.
    fn at_all(&self, changed: &ChangeReport) -> Result<Vec<String>, Vec<DefinitionError>> {
        let mut refused = Vec::new();
        if !self.forced {
            refused.extend(changed.removed.iter().filter_map(|path| self.needed(path)));
        }
        if self.index.left_out > 0 {
            let count = INSTANCES_MAX as u64 + self.index.left_out;
            let message = format!("there would be at least {count} virtual sensors, at most {INSTANCES_MAX} are made");
            return Err(vec![
                DefinitionError::whole(message)
                    .of(self.touched.first().unwrap_or(&""))
                    .help("narrow the template's path"),
            ]);
        }
        // What refers to something that changes is looked at again, and so on.
        let mut again: BTreeSet<&str> = self.touched.iter().copied().collect();
        let mut warnings = Vec::new();
        for path in &self.new.order {
            let written = &self.new.all[path.as_str()];
            let is_touched = again.contains(path.as_str());
            let depends = || {
                let made = |reference| self.new.making(reference).into_iter();
                let mut made = written.references.iter().flat_map(made);
                made.any(|made| again.contains(made.checked.definition.path.as_str()))
            };
            if !is_touched && (again.is_empty() || !depends()) {
                continue;
            }
            let own = self.touched.contains(&path.as_str());
            again.insert(path.as_str());
            match self.at_one(written, own) {
                Ok(found) if own => warnings.extend(found),
                Ok(_) => {}
                Err(error) if own => refused.push(error),
                Err(error) => {
                    let because = self.touched.join(", ");
                    refused.push(error.help(format!("it refers to what is changed: {because}")));
                }
            }
        }
        if refused.is_empty() { Ok(warnings) } else { Err(refused) }
    }

    /// Who needs a sensor that goes.
    fn needed(&self, path: &str) -> Option<DefinitionError> {
        let gone = &self.registry.all.get(path)?.path;
        let mut users = self.new.needing(gone);
        if users.is_empty() {
            return None;
        }
        let more = users.len().saturating_sub(NAMES_SHOWN);
        users.truncate(NAMES_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(
            DefinitionError::whole(format!("others are computed from it: {}{more}", users.join(", ")))
                .of(path)
                .help("remove those too, or force it: they have gaps then where it is missing"),
        )
    }

    fn at_one(&self, written: &RegisteredDefinition, own: bool) -> Result<Vec<String>, DefinitionError> {
        let definition = &written.checked.definition;
        let path = definition.path.as_str();
        let in_it = |refused: DefinitionError| refused.of(path);
        if own {
            self.place(written).map_err(in_it)?;
        }
        let warnings = check(definition, &written.checked.unit, &written.checked.expr, self).map_err(in_it)?;
        if own
            && written.is_template()
            && !self.index.select(&written.path).any(|(_, made)| made.definition.definition.path == path)
        {
            let message = "the template makes no sensor: there is no place where all that it refers to is there";
            return Err(in_it(DefinitionError::whole(message).help("`wholegrain sensors` lists what there is")));
        }
        Ok(warnings.into_iter().map(|warning| format!("{path}: {warning}")).collect())
    }

    /// Checks that no other sensor has the path.
    fn place(&self, written: &RegisteredDefinition) -> Result<(), DefinitionError> {
        let path = written.checked.definition.path.as_str();
        if !written.is_template() {
            let measured = self.store.sensor_id(path).and_then(|id| self.store.sensor(id));
            return measured.map_or(Ok(()), |info| {
                let by = if info.agent.is_empty() { String::new() } else { format!(", by {}", info.agent) };
                Err(DefinitionError::whole(format!("there is a sensor of this path that is measured{by}"))
                    .help("choose another path"))
            });
        }
        let other = self
            .new
            .making(&written.path)
            .into_iter()
            .find(|other| other.is_template() && other.checked.definition.path != path);
        other.map_or(Ok(()), |other| {
            let other = &other.checked.definition.path;
            let message = format!("the template {other} would make sensors of the same paths");
            Err(DefinitionError::whole(message)
                .help("one sensor's own definition, without wildcards, may stand beside a template"))
        })
    }

    /// The path with its first unknown level replaced by the nearest known one. Below a wildcard only the first places are searched.
    fn near(&self, path: &str) -> Option<String> {
        let levels: Vec<&str> = path.split('/').skip(1).collect();
        let mut places = vec![String::new()];
        for (at, level) in levels.iter().enumerate() {
            let below = |place: &String| {
                let mut there = self.store.levels_below(place, LEVELS_LOOKED_AT / places.len());
                there.extend(self.index.levels_below(place, LEVELS_LOOKED_AT / places.len()));
                there.into_iter().map(|level| (place.clone(), level)).collect::<Vec<_>>()
            };
            let there: Vec<(String, String)> = places.iter().flat_map(below).collect();
            let fits = |known: &str| if level.contains('*') { glob(level, known) } else { known == *level };
            let next = there.iter().filter(|(_, known)| fits(known)).map(|(place, known)| format!("{place}/{known}"));
            let next: Vec<String> = next.take(PLACES_LOOKED_AT).collect();
            if next.is_empty() {
                let near = nearest(level, there.iter().map(|(_, known)| known.as_str()))?;
                let mut meant: Vec<&str> = levels.clone();
                meant[at] = near;
                return Some(format!("/{}", meant.join("/")));
            }
            places = next;
        }
        None
    }
}

impl KnownSensors for ChangeCheck<'_> {
    fn chosen(&self, pattern: &Pattern) -> Vec<OperandInfo> {
        let measured = self.store.sensors_most(pattern, OPERANDS_MAX + 1);
        let mut operands: Vec<OperandInfo> = measured
            .into_iter()
            .map(|info| OperandInfo { path: info.path, unit: info.unit, kind: info.kind })
            .collect();
        let room = (OPERANDS_MAX + 1).saturating_sub(operands.len());
        let computed = |path: Arc<str>, checked: &CheckedDefinition| OperandInfo {
            path,
            unit: checked.definition.unit.clone(),
            kind: Kind::Gauge,
        };
        operands
            .extend(self.index.select(pattern).take(room).map(|(path, made)| computed(path.clone(), &made.definition)));
        // Definitions that make none now may do so later: their units must fit too.
        if !operands.is_empty() {
            let made = self.new.making(pattern).into_iter().filter(|written| written.is_template());
            operands.extend(made.map(|written| computed(written.path.as_str().into(), &written.checked)));
            operands.truncate(OPERANDS_MAX + 1);
        }
        operands
    }

    fn nearest(&self, pattern: &Pattern) -> Option<String> {
        self.near(pattern.as_str())
    }
}
