//! All definitions together: which refers to which, and in which order they can be computed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wholegrain_model::{Pattern, SensorPath, Unit};

use super::define;
use super::overlap::overlap;
use super::refused::{Refused, word};
use super::{Checked, Definition, each_reference, parse};

/// The most definitions; a template is one.
pub const DEFINITIONS_MAX: usize = 10_000;
/// The most virtual sensors that are computed one from the other.
pub const CHAIN_MAX: usize = 100;
/// The most pairs of definitions of which one refers to the other.
const PAIRS_MAX: usize = 1_000_000;
/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;
/// The shortest interval of a virtual sensor, in ns: that of the sampling.
const INTERVAL_NS_MIN: u64 = 1_000_000;

/// A definition in the book.
pub(super) struct Written {
    pub checked: Arc<Checked>,
    /// Its path; with wildcards for a template.
    pub path: Pattern,
    /// What it refers to, each once.
    pub references: Vec<Pattern>,
    /// Whether a sensor of a job may be among its operands, however indirectly.
    pub may_be_of_jobs: bool,
    /// How many are computed before it, one from the other.
    pub depth: usize,
}

impl Written {
    pub fn is_template(&self) -> bool {
        !self.path.is_literal()
    }
}

#[derive(Default)]
pub(super) struct Book {
    pub all: BTreeMap<String, Written>,
    /// Paths of the definitions, by the last level of theirs.
    by_name: HashMap<String, Vec<String>>,
    /// Each after all that it refers to.
    pub order: Vec<String>,
    /// Whether one of them is a template.
    pub has_templates: bool,
}

/// Reads a definition by itself.
pub(super) fn read(definition: Definition, number: u64) -> Result<Checked, Refused> {
    let path = definition.path.clone();
    read_one(definition, number).map_err(|refused| refused.of(&path))
}

fn read_one(definition: Definition, number: u64) -> Result<Checked, Refused> {
    let path = &definition.path;
    check_path(path)?;
    if definition.description.len() > DESCRIPTION_BYTES_MAX || definition.description.chars().any(char::is_control) {
        let message = format!("the description is one line of at most {DESCRIPTION_BYTES_MAX} bytes");
        return Err(Refused::whole(message));
    }
    for (name, length) in [("interval", definition.interval), ("bridge", definition.bridge)] {
        if let Some(length) = length.filter(|length| length.ns() < INTERVAL_NS_MIN) {
            return Err(Refused::whole(format!("{name} is {length}, 1ms at least is wanted")));
        }
    }
    let unit = Unit::parse(&definition.unit).map_err(|error| Refused::whole(error.to_string()))?;
    let expr = parse(&definition.expression, path)?;
    let (mut beside, mut any) = (false, false);
    let of_template = path.contains('*');
    let runs = path.split('/').any(|level| level == "**");
    each_reference(&expr, &mut |reference, _| {
        any = true;
        beside |= define::beside(&reference.text) && !(runs && reference.text.contains("**"));
    });
    if !any {
        return Err(Refused::whole("the expression refers to no sensor")
            .help("a sensor stands in angle brackets: <name> beside this one, </path/name> from the root"));
    }
    if of_template && !beside {
        return Err(Refused::whole("the path has wildcards, but the expression names no sensor beside it").help(
            "it makes one sensor for each place where its relative references are, such as <power> or <cpu/*/busy>",
        ));
    }
    Ok(Checked { definition, expr, unit, number })
}

fn check_path(path: &str) -> Result<(), Refused> {
    let refuse = |error: String| Refused::whole(error);
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

impl Book {
    /// Of these definitions; refused when they make a cycle or too long a chain.
    pub fn of(definitions: Vec<Arc<Checked>>) -> Result<Self, Refused> {
        if definitions.len() > DEFINITIONS_MAX {
            let message = format!(
                "there would be {} virtual sensors and templates, at most {DEFINITIONS_MAX} are kept",
                definitions.len()
            );
            return Err(Refused::whole(message).help("one template defines the same for many places: /lab/*/ipc"));
        }
        let mut book = Self::default();
        for checked in definitions {
            let mut references: Vec<Pattern> = Vec::new();
            each_reference(&checked.expr, &mut |reference, _| {
                if !references.contains(&reference.pattern) {
                    references.push(reference.pattern.clone());
                }
            });
            let key = checked.definition.path.clone();
            let path = Pattern::new(key.as_str()).map_err(|error| Refused::whole(error.to_string()).of(&key))?;
            let name = key.rsplit('/').next().unwrap_or_default().to_owned();
            book.by_name.entry(name).or_default().push(key.clone());
            book.has_templates |= !path.is_literal();
            book.all.insert(key, Written { checked, path, references, may_be_of_jobs: false, depth: 0 });
        }
        book.put_in_order()?;
        Ok(book)
    }

    /// The definitions that may make a sensor which a pattern chooses.
    pub fn making(&self, pattern: &Pattern) -> Vec<&Written> {
        let name = pattern.as_str().rsplit('/').next().unwrap_or_default();
        let meets = |path: &String| self.all.get(path).filter(|written| overlap(pattern, &written.path));
        if name.contains('*') {
            return self.all.keys().filter_map(meets).collect();
        }
        self.by_name.get(name).into_iter().flatten().filter_map(meets).collect()
    }

    /// The definitions that refer to what this one makes, directly.
    pub fn needing(&self, path: &Pattern) -> Vec<&str> {
        let refers = |written: &&Written| written.references.iter().any(|reference| overlap(reference, path));
        self.all.values().filter(refers).map(|written| written.checked.definition.path.as_str()).collect()
    }

    /// Puts each after what it refers to; without recursion, whatever the definitions are.
    fn put_in_order(&mut self) -> Result<(), Refused> {
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
                return Err(Refused::whole(message).help("choose fewer of them by wildcards"));
            }
        }
        let order = sorted(&needs).map_err(|cycle| self.cycle(&cycle, &keys))?;
        let (mut depth, mut of_jobs) = (vec![0usize; keys.len()], vec![false; keys.len()]);
        for &at in &order {
            depth[at] = needs[at].iter().map(|of| depth[*of] + 1).max().unwrap_or(0);
            if depth[at] >= CHAIN_MAX {
                let message = format!("more than {CHAIN_MAX} virtual sensors would be computed one from the other");
                return Err(Refused::whole(message).of(keys[at]));
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

    /// Says of a cycle who refers to whom, marked where the first one does.
    fn cycle(&self, cycle: &[usize], keys: &[&str]) -> Refused {
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
            Some((_, span)) => Refused::at(text, *span, message),
            None => Refused::whole(message),
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

/// Whether a pattern may choose what is of a job.
fn may_be_of_jobs(pattern: &Pattern) -> bool {
    Pattern::new("/**/job/**").is_ok_and(|jobs| overlap(pattern, &jobs))
}

/// Each after all it needs, or a cycle.
fn sorted(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut state = vec![State::New; needs.len()];
    let mut order = Vec::with_capacity(needs.len());
    for start in 0..needs.len() {
        // The way from the start, and how many of each one's needs have been looked at.
        let mut way: Vec<(usize, usize)> = Vec::new();
        if state[start] == State::New {
            state[start] = State::Open;
            way.push((start, 0));
        }
        while let Some((at, looked)) = way.last_mut() {
            let Some(&need) = needs[*at].get(*looked) else {
                state[*at] = State::Done;
                order.push(*at);
                way.pop();
                continue;
            };
            *looked += 1;
            match state[need] {
                State::Done => {}
                State::New => {
                    state[need] = State::Open;
                    way.push((need, 0));
                }
                State::Open => {
                    let from = way.iter().position(|(at, _)| *at == need).unwrap_or(0);
                    return Err(way[from..].iter().map(|(at, _)| *at).collect());
                }
            }
        }
    }
    Ok(order)
}
