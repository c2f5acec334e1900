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
/// The longest chain of virtual sensors that refer to one another.
pub const CHAIN_MAX: usize = 100;
/// The most pairs of definitions of which one refers to the other.
const PAIRS_MAX: usize = 1_000_000;
/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;
/// The shortest interval of a virtual sensor, in ns: that of the sampling.
const INTERVAL_NS_MIN: u64 = 1_000_000;

/// A definition in the registry.
pub(super) struct RegisteredDefinition {
    pub checked: Arc<CheckedDefinition>,
    /// Its path; with wildcards for a template.
    pub path: Pattern,
    /// Its references, each once.
    pub references: Vec<Pattern>,
    /// Whether a sensor of a job may be among its operands, however indirectly.
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
    /// Paths of the definitions, by the last level of theirs.
    by_name: HashMap<String, Vec<String>>,
    /// Paths, each after those that it refers to.
    pub order: Vec<String>,
    /// Whether one of them is a template.
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
        let message = format!("the description is one line of at most {DESCRIPTION_BYTES_MAX} bytes");
        return Err(DefinitionError::whole(message));
    }
    for (name, length) in [("interval", definition.interval), ("bridge", definition.bridge)] {
        if let Some(length) = length.filter(|length| length.ns() < INTERVAL_NS_MIN) {
            return Err(DefinitionError::whole(format!("{name} is {length}, at least 1ms is required")));
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
        return Err(DefinitionError::whole("the expression refers to no sensor")
            .help("a sensor stands in angle brackets: <name> beside this one, </path/name> from the root"));
    }
    if of_template && !beside {
        return Err(DefinitionError::whole("the path has wildcards, but the expression names no sensor beside it")
            .help(
                "it makes one sensor for each place where its relative references are, such as <power> or <cpu/*/busy>",
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
        return Err(refuse(format!("the last level of {} has a wildcard; it is the sensor's name", word(path))));
    }
    // With something in place of the wildcards it must be a path.
    let example = path.replace("**", "x").replace('*', "x");
    SensorPath::new(example).map(drop).map_err(|error| refuse(error.to_string()))
}

impl DefinitionRegistry {
    /// Orders these definitions; refuses a cycle or too long a chain.
    pub fn of(definitions: Vec<Arc<CheckedDefinition>>) -> Result<Self, DefinitionError> {
        if definitions.len() > DEFINITIONS_MAX {
            let message = format!(
                "there would be {} virtual sensors and templates, at most {DEFINITIONS_MAX} are kept",
                definitions.len()
            );
            return Err(
                DefinitionError::whole(message).help("one template defines the same for many places: /lab/*/ipc")
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

    /// The definitions that may make a sensor which a pattern selects.
    pub fn making(&self, pattern: &Pattern) -> Vec<&RegisteredDefinition> {
        let name = pattern.as_str().rsplit('/').next().unwrap_or_default();
        let meets = |path: &String| self.all.get(path).filter(|written| overlap(pattern, &written.path));
        if name.contains('*') {
            return self.all.keys().filter_map(meets).collect();
        }
        self.by_name.get(name).into_iter().flatten().filter_map(meets).collect()
    }

    /// The definitions that directly refer to sensors of this path.
    pub fn needing(&self, path: &Pattern) -> Vec<&str> {
        let refers =
            |written: &&RegisteredDefinition| written.references.iter().any(|reference| overlap(reference, path));
        self.all.values().filter(refers).map(|written| written.checked.definition.path.as_str()).collect()
    }

    /// Sorts definitions topologically, without recursion.
    fn put_in_order(&mut self) -> Result<(), DefinitionError> {
        let keys: Vec<&str> = self.all.keys().map(String::as_str).collect();
        let number: HashMap<&str, usize> = keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
        let (mut needs, mut pairs): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
        for written in self.all.values() {
            let mut of: BTreeSet<usize> = BTreeSet::new();
            for reference in &written.references {
                of.extend(self.making(reference).iter().map(|made| number[made.checked.definition.path.as_str()]));
            }
            pairs += of.len();
            needs.push(of.into_iter().collect());
            if pairs > PAIRS_MAX {
                let message =
                    format!("virtual sensors refer to one another in more than {PAIRS_MAX} pairs of definitions");
                return Err(DefinitionError::whole(message).help("choose fewer of them by wildcards"));
            }
        }
        let order = sorted(&needs).map_err(|cycle| self.cycle(&cycle, &keys))?;
        let (mut depth, mut of_jobs) = (vec![0usize; keys.len()], vec![false; keys.len()]);
        for &at in &order {
            depth[at] = needs[at].iter().map(|of| depth[*of] + 1).max().unwrap_or(0);
            if depth[at] >= CHAIN_MAX {
                let message = format!("more than {CHAIN_MAX} virtual sensors would be computed one from the other");
                return Err(DefinitionError::whole(message).of(keys[at]));
            }
            let written = &self.all[keys[at]];
            of_jobs[at] = needs[at].iter().any(|of| of_jobs[*of]) || written.references.iter().any(may_be_of_jobs);
        }
        self.order = order.iter().map(|at| keys[*at].to_owned()).collect();
        for (at, written) in self.all.values_mut().enumerate() {
            (written.depth, written.may_be_of_jobs) = (depth[at], of_jobs[at]);
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
            "the sensor would be among its own operands"
        } else {
            "the sensors would be computed from one another"
        };
        let refused = match &place {
            Some((_, span)) => DefinitionError::at(text, *span, message),
            None => DefinitionError::whole(message),
        };
        let wild = place.is_some_and(|(text, _)| text.contains('*'));
        let refused = refused.of(names[0]).help(format!("the cycle: {}", names.join(" → ")));
        if wild {
            refused.help("a wildcard chooses virtual sensors too; choose what is measured only")
        } else {
            refused
        }
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
        // The way from the start, and how many of each one's needs have been looked at.
        let mut way: Vec<(usize, usize)> = Vec::new();
        if state[start] == VisitState::New {
            state[start] = VisitState::Open;
            way.push((start, 0));
        }
        while let Some((at, looked)) = way.last_mut() {
            let Some(&need) = needs[*at].get(*looked) else {
                state[*at] = VisitState::Done;
                order.push(*at);
                way.pop();
                continue;
            };
            *looked += 1;
            match state[need] {
                VisitState::Done => {}
                VisitState::New => {
                    state[need] = VisitState::Open;
                    way.push((need, 0));
                }
                VisitState::Open => {
                    let from = way.iter().position(|(at, _)| *at == need).unwrap_or(0);
                    return Err(way[from..].iter().map(|(at, _)| *at).collect());
                }
            }
        }
    }
    Ok(order)
}
