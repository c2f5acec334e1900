//! All definitions: their references to one another, and the order in which they can be computed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wholegrain_model::{Pattern, SensorPath, Unit};

use super::define;
use super::definition_error::{DefinitionError, word};
use super::overlap::overlap;
use super::{CheckedDefinition, Definition, each_reference, parse};

/// The most definitions; a template is one.
pub const DEFINITIONS_MAX: usize = 10_000;
/// The longest chain of definitions that refer to each other.
pub const CHAIN_MAX: usize = 100;
/// The most pairs of definitions in which one refers to the other.
const PAIRS_MAX: usize = 1_000_000;
/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;
/// The shortest interval of a virtual sensor, in ns: the shortest sampling interval.
const INTERVAL_NS_MIN: u64 = 1_000_000;

/// A definition in the registry.
pub(super) struct RegisteredDefinition {
    pub checked: Arc<CheckedDefinition>,
    /// Its path; with wildcards for a template.
    pub path: Pattern,
    /// The distinct patterns of its references.
    pub references: Vec<Pattern>,
    /// Whether its operands, also indirect ones, can include a sensor of a job.
    pub may_be_of_jobs: bool,
    /// The length of the chain of definitions below it.
    pub depth: usize,
}

impl RegisteredDefinition {
    pub(crate) fn is_template(&self) -> bool {
        !self.path.is_literal()
    }
}

#[derive(Default)]
pub(super) struct DefinitionRegistry {
    pub all: BTreeMap<String, RegisteredDefinition>,
    /// Paths of definitions by their last level.
    by_name: HashMap<String, Vec<String>>,
    /// Paths of all definitions, each after those to which it refers.
    pub order: Vec<String>,
    pub has_templates: bool,
}

/// Parses and checks one definition, without the others.
pub(super) fn read(definition: Definition, number: u64) -> Result<CheckedDefinition, DefinitionError> {
    let path = definition.path.clone();
    read_one(definition, number).map_err(|refused| refused.of(&path))
}

fn read_one(definition: Definition, number: u64) -> Result<CheckedDefinition, DefinitionError> {
    let path = &definition.path;
    check_path(path)?;
    if definition.description.len() > DESCRIPTION_BYTES_MAX || definition.description.chars().any(char::is_control) {
        let message = format!("the description must be one line of at most {DESCRIPTION_BYTES_MAX} bytes");
        return Err(DefinitionError::whole(message));
    }
    for (name, length) in [("interval", definition.interval), ("bridge", definition.bridge)] {
        if let Some(length) = length.filter(|length| length.ns() < INTERVAL_NS_MIN) {
            return Err(DefinitionError::whole(format!("{name} is {length}; it must be at least 1ms")));
        }
    }
    let unit = Unit::parse(&definition.unit).map_err(|error| DefinitionError::whole(error.to_string()))?;
    let expr = parse(&definition.expression, path)?;
    let (mut beside, mut any) = (false, false);
    let of_template = path.contains('*');
    let runs = path.split('/').any(|level| level == "**");
    each_reference(&expr, &mut |reference, _| {
        any = true;
        beside |= define::beside(&reference.text) && !(runs && reference.text.contains("**"));
    });
    if !any {
        return Err(DefinitionError::whole("the expression does not refer to a sensor")
            .help("write sensors in angle brackets: <name> relative to this sensor's place, </path/name> absolute"));
    }
    if of_template && !beside {
        return Err(DefinitionError::whole("the path has wildcards, but the expression has no relative reference")
            .help(
                "a template makes one sensor at each place where its relative references exist, such as <power> or <cpu/*/busy>",
            ));
    }
    Ok(CheckedDefinition { definition, expr, unit, number })
}

fn check_path(path: &str) -> Result<(), DefinitionError> {
    let refuse = |error: String| DefinitionError::whole(error);
    if !path.contains('*') {
        return SensorPath::new(path).map(drop).map_err(|error| refuse(error.to_string()));
    }
    if !path.starts_with('/') {
        return Err(refuse(format!("the path {} must begin with `/`", word(path))));
    }
    Pattern::new(path).map_err(|error| refuse(error.to_string()))?;
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.contains('*') {
        return Err(refuse(format!(
            "the last level of {} is the sensor's name and cannot have a wildcard",
            word(path)
        )));
    }
    // With names in place of the wildcards it must be a valid path.
    let example = path.replace("**", "x").replace('*', "x");
    SensorPath::new(example).map(drop).map_err(|error| refuse(error.to_string()))
}

impl DefinitionRegistry {
    /// Orders the definitions. Fails on a cycle or a chain that is too long.
    pub fn of(definitions: Vec<Arc<CheckedDefinition>>) -> Result<Self, DefinitionError> {
        if definitions.len() > DEFINITIONS_MAX {
            let message =
                format!("there would be {} definitions, at most {DEFINITIONS_MAX} are allowed", definitions.len());
            return Err(
                DefinitionError::whole(message).help("a template defines the same sensor at many places: /lab/*/ipc")
            );
        }
        let mut registry = Self::default();
        for checked in definitions {
            let mut references: Vec<Pattern> = Vec::new();
            each_reference(&checked.expr, &mut |reference, _| {
                if !references.contains(&reference.pattern) {
                    references.push(reference.pattern.clone());
                }
            });
            let key = checked.definition.path.clone();
            let path =
                Pattern::new(key.as_str()).map_err(|error| DefinitionError::whole(error.to_string()).of(&key))?;
            let name = key.rsplit('/').next().unwrap_or_default().to_owned();
            registry.by_name.entry(name).or_default().push(key.clone());
            registry.has_templates |= !path.is_literal();
            registry
                .all
                .insert(key, RegisteredDefinition { checked, path, references, may_be_of_jobs: false, depth: 0 });
        }
        registry.put_in_order()?;
        Ok(registry)
    }

    /// The definitions that can make a sensor that a pattern selects.
    pub fn makers_of(&self, pattern: &Pattern) -> Vec<&RegisteredDefinition> {
        let name = pattern.as_str().rsplit('/').next().unwrap_or_default();
        let meets = |path: &String| self.all.get(path).filter(|registered| overlap(pattern, &registered.path));
        if name.contains('*') {
            return self.all.keys().filter_map(meets).collect();
        }
        self.by_name.get(name).into_iter().flatten().filter_map(meets).collect()
    }

    /// The definitions that directly refer to sensors of a path.
    pub fn referrers(&self, path: &Pattern) -> Vec<&str> {
        let refers =
            |registered: &&RegisteredDefinition| registered.references.iter().any(|reference| overlap(reference, path));
        self.all.values().filter(refers).map(|registered| registered.checked.definition.path.as_str()).collect()
    }

    /// Sorts definitions topologically, without recursion.
    fn put_in_order(&mut self) -> Result<(), DefinitionError> {
        let keys: Vec<&str> = self.all.keys().map(String::as_str).collect();
        let number: HashMap<&str, usize> = keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
        let (mut needs, mut pairs): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
        for registered in self.all.values() {
            let mut of: BTreeSet<usize> = BTreeSet::new();
            for reference in &registered.references {
                of.extend(
                    self.makers_of(reference).iter().map(|instance| number[instance.checked.definition.path.as_str()]),
                );
            }
            pairs += of.len();
            needs.push(of.into_iter().collect());
            if pairs > PAIRS_MAX {
                let message = format!("more than {PAIRS_MAX} pairs of definitions refer to each other");
                return Err(DefinitionError::whole(message).help("select fewer sensors by wildcards"));
            }
        }
        let order = sorted(&needs).map_err(|cycle| self.cycle(&cycle, &keys))?;
        let (mut depth, mut of_jobs) = (vec![0usize; keys.len()], vec![false; keys.len()]);
        for &at in &order {
            depth[at] = needs[at].iter().map(|of| depth[*of] + 1).max().unwrap_or(0);
            if depth[at] >= CHAIN_MAX {
                let message = format!("the definition is the end of a chain of more than {CHAIN_MAX} virtual sensors");
                return Err(DefinitionError::whole(message).of(keys[at]));
            }
            let registered = &self.all[keys[at]];
            of_jobs[at] = needs[at].iter().any(|of| of_jobs[*of]) || registered.references.iter().any(may_be_of_jobs);
        }
        self.order = order.iter().map(|at| keys[*at].to_owned()).collect();
        for (at, registered) in self.all.values_mut().enumerate() {
            (registered.depth, registered.may_be_of_jobs) = (depth[at], of_jobs[at]);
        }
        Ok(())
    }

    /// The error for a cycle, marked at the first reference.
    fn cycle(&self, cycle: &[usize], keys: &[&str]) -> DefinitionError {
        let names: Vec<&str> = cycle.iter().chain(cycle.first()).map(|at| keys[*at]).collect();
        let first = &self.all[names[0]];
        let next = &self.all[names[1]].path;
        let mut place = None;
        each_reference(&first.checked.expr, &mut |reference, expr| {
            if place.is_none() && overlap(&reference.pattern, next) {
                place = Some((reference.text.clone(), expr.span));
            }
        });
        let text = first.checked.definition.expression.as_str();
        let by_itself = names.len() == 2;
        let message = if by_itself {
            "the sensor would be its own operand"
        } else {
            "the sensors would be operands of each other"
        };
        let refused = match &place {
            Some((_, span)) => DefinitionError::at(text, *span, message),
            None => DefinitionError::whole(message),
        };
        let wild = place.is_some_and(|(text, _)| text.contains('*'));
        let refused = refused.of(names[0]).help(format!("the cycle: {}", names.join(" → ")));
        if wild { refused.help("a wildcard also selects virtual sensors; select measured ones only") } else { refused }
    }
}

/// Whether a pattern may select a sensor of a job.
fn may_be_of_jobs(pattern: &Pattern) -> bool {
    Pattern::new("/**/job/**").is_ok_and(|jobs| overlap(pattern, &jobs))
}

/// A topological order, or a cycle.
fn sorted(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        New,
        Open,
        Done,
    }
    let mut state = vec![VisitState::New; needs.len()];
    let mut order = Vec::with_capacity(needs.len());
    for start in 0..needs.len() {
        // The path from the start, with the number of operands visited at each step.
        let mut path: Vec<(usize, usize)> = Vec::new();
        if state[start] == VisitState::New {
            state[start] = VisitState::Open;
            path.push((start, 0));
        }
        while let Some((at, visited)) = path.last_mut() {
            let Some(&need) = needs[*at].get(*visited) else {
                state[*at] = VisitState::Done;
                order.push(*at);
                path.pop();
                continue;
            };
            *visited += 1;
            match state[need] {
                VisitState::Done => {}
                VisitState::New => {
                    state[need] = VisitState::Open;
                    path.push((need, 0));
                }
                VisitState::Open => {
                    let from = path.iter().position(|(at, _)| *at == need).unwrap_or(0);
                    return Err(path[from..].iter().map(|(at, _)| *at).collect());
                }
            }
        }
    }
    Ok(order)
}
