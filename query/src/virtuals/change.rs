//! Validates a change of the definitions as a whole before any of it is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::suggest::nearest;
use wholegrain_model::{Kind, Pattern};
use wholegrain_store::Store;

use super::check::{KnownSensors, OperandInfo, check};
use super::definition_error::DefinitionError;
use super::index::{InstanceIndex, SensorNames};
use super::registry::{DefinitionRegistry, RegisteredDefinition, read};
use super::{CheckedDefinition, Definition, INSTANCES_MAX, OPERANDS_MAX};
use crate::nearest::nearest_pattern;

/// The most levels that are searched for the nearest name.
const LEVELS_SEARCHED: usize = 10_000;
/// The most places that are searched for a level below a wildcard.
const PLACES_SEARCHED: usize = 100;
/// The most names in one message.
const NAMES_SHOWN: usize = 8;

/// A requested change of definitions.
#[derive(Debug, Clone, Default)]
pub struct DefinitionChange {
    /// New definitions; each replaces the one with the same path.
    pub define: Vec<Definition>,
    /// Paths of definitions to remove.
    pub remove: Vec<String>,
    /// Also removes definitions to which others refer.
    pub force: bool,
}

/// The effect of a change.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChangeReport {
    /// Paths of new definitions.
    pub added: Vec<String>,
    /// Paths of definitions that were replaced.
    pub changed: Vec<String>,
    /// Paths of removed definitions.
    pub removed: Vec<String>,
    /// The number of given definitions that equal the existing ones.
    pub unchanged: usize,
    /// Numbers of sensors of the new and changed definitions, by path.
    pub sensors: BTreeMap<String, usize>,
    /// Notes about valid definitions that may be mistakes.
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
        registry.all.iter().map(|(path, registered)| (path.clone(), registered.checked.clone())).collect();
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
            refused.push(DefinitionError::whole("the change defines it twice").of(&path));
            continue;
        }
        let before = registry.all.get(&path).map(|registered| &registered.checked.definition);
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
    let check = ChangeCheck { registry, new: &new, index: &index, store, touched: &touched, forced: change.force };
    changed.warnings = check.check_all(&changed)?;
    let counts = index.counts();
    changed.sensors = touched.iter().map(|path| ((*path).to_owned(), counts.get(path).copied().unwrap_or(0))).collect();
    Ok(PlannedChange { changed, set })
}

fn unknown(registry: &DefinitionRegistry, path: &str) -> DefinitionError {
    let refused = DefinitionError::whole("this definition does not exist").of(path);
    match nearest(path, registry.all.keys().map(String::as_str)) {
        Some(near) => refused.help(format!("did you mean {near}?")),
        None => refused.help("`wholegrain config virtual list` lists them"),
    }
}

/// The validation of a change.
struct ChangeCheck<'a> {
    registry: &'a DefinitionRegistry,
    new: &'a DefinitionRegistry,
    index: &'a InstanceIndex,
    store: &'a Store,
    touched: &'a [&'a str],
    forced: bool,
}

impl ChangeCheck<'_> {
    /// Returns the warnings, or all errors.
    fn check_all(&self, changed: &ChangeReport) -> Result<Vec<String>, Vec<DefinitionError>> {
        let mut refused = Vec::new();
        if !self.forced {
            refused.extend(changed.removed.iter().filter_map(|path| self.check_removal(path)));
        }
        if self.index.omitted > 0 {
            let count = INSTANCES_MAX as u64 + self.index.omitted;
            let message =
                format!("there would be at least {count} virtual sensors, at most {INSTANCES_MAX} are allowed");
            return Err(vec![
                DefinitionError::whole(message)
                    .of(self.touched.first().unwrap_or(&""))
                    .help("narrow the template's path"),
            ]);
        }
        // Definitions that refer to a changed one, directly or not, are checked again.
        let mut again: BTreeSet<&str> = self.touched.iter().copied().collect();
        let mut warnings = Vec::new();
        for path in &self.new.order {
            let registered = &self.new.all[path.as_str()];
            let is_touched = again.contains(path.as_str());
            let depends = || {
                let mut operands = registered.references.iter().flat_map(|reference| self.new.makers_of(reference));
                operands.any(|operand| again.contains(operand.checked.definition.path.as_str()))
            };
            if !is_touched && (again.is_empty() || !depends()) {
                continue;
            }
            let own = self.touched.contains(&path.as_str());
            again.insert(path.as_str());
            match self.check_one(registered, own) {
                Ok(found) if own => warnings.extend(found),
                Ok(_) => {}
                Err(error) if own => refused.push(error),
                Err(error) => {
                    let because = self.touched.join(", ");
                    refused.push(error.help(format!("it refers to the changed {because}")));
                }
            }
        }
        if refused.is_empty() { Ok(warnings) } else { Err(refused) }
    }

    /// The error if other definitions refer to a removed one.
    fn check_removal(&self, path: &str) -> Option<DefinitionError> {
        let gone = &self.registry.all.get(path)?.path;
        let mut users = self.new.referrers(gone);
        if users.is_empty() {
            return None;
        }
        let more = users.len().saturating_sub(NAMES_SHOWN);
        users.truncate(NAMES_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(
            DefinitionError::whole(format!("other definitions refer to it: {}{more}", users.join(", ")))
                .of(path)
                .help("remove them too, or force the removal: then they have gaps where it is missing"),
        )
    }

    fn check_one(&self, registered: &RegisteredDefinition, own: bool) -> Result<Vec<String>, DefinitionError> {
        let definition = &registered.checked.definition;
        let path = definition.path.as_str();
        let in_it = |refused: DefinitionError| refused.of(path);
        if own {
            self.place(registered).map_err(in_it)?;
        }
        let warnings = check(definition, &registered.checked.unit, &registered.checked.expr, self).map_err(in_it)?;
        if own
            && registered.is_template()
            && !self.index.select(&registered.path).any(|(_, instance)| instance.definition.definition.path == path)
        {
            let message = "the template makes no sensor: no place has all sensors to which it refers";
            return Err(in_it(DefinitionError::whole(message).help("`wholegrain sensors` lists the sensors")));
        }
        Ok(warnings.into_iter().map(|warning| format!("{path}: {warning}")).collect())
    }

    /// Checks that no other sensor has the path.
    fn place(&self, registered: &RegisteredDefinition) -> Result<(), DefinitionError> {
        let path = registered.checked.definition.path.as_str();
        if !registered.is_template() {
            let measured = self.store.sensor_id(path).and_then(|id| self.store.sensor(id));
            return measured.map_or(Ok(()), |info| {
                let by = if info.agent.is_empty() { String::new() } else { format!(", by {}", info.agent) };
                Err(DefinitionError::whole(format!("a measured sensor has this path{by}")).help("choose another path"))
            });
        }
        let other = self
            .new
            .makers_of(&registered.path)
            .into_iter()
            .find(|other| other.is_template() && other.checked.definition.path != path);
        other.map_or(Ok(()), |other| {
            let other = &other.checked.definition.path;
            let message = format!("the template {other} would make sensors with the same paths");
            Err(DefinitionError::whole(message)
                .help("a definition of one sensor, without wildcards, takes precedence over a template and is allowed"))
        })
    }
}

impl KnownSensors for ChangeCheck<'_> {
    fn selected(&self, pattern: &Pattern) -> Vec<OperandInfo> {
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
        operands.extend(
            self.index.select(pattern).take(room).map(|(path, instance)| computed(path.clone(), &instance.definition)),
        );
        // Templates without sensors can make some later: their units must match too.
        if !operands.is_empty() {
            let templates = self.new.makers_of(pattern).into_iter().filter(|registered| registered.is_template());
            operands.extend(templates.map(|registered| computed(registered.path.as_str().into(), &registered.checked)));
            operands.truncate(OPERANDS_MAX + 1);
        }
        operands
    }

    fn nearest(&self, pattern: &Pattern) -> Option<String> {
        nearest_pattern(pattern.as_str(), PLACES_SEARCHED, |place, places| {
            let mut levels = self.store.levels_below(place, LEVELS_SEARCHED / places);
            levels.extend(self.index.levels_below(place, LEVELS_SEARCHED / places));
            levels
        })
    }
}
