//! The sensors that patterns choose, in the order of their paths, without looking at those that a pattern leaps over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::Pattern;

use super::paths::{Paths, Walk};
use crate::SensorId;

/// Paths that are stepped over one by one before the place that a pattern leaps to is looked for.
const STEPS_MAX: usize = 4;

/// What one pattern chooses.
pub(super) struct Near<'a> {
    pattern: &'a Pattern,
    prefix: String,
    walk: Walk<'a>,
    /// Nothing before it is chosen.
    to: String,
}

impl<'a> Near<'a> {
    /// Those whose paths come after `after`.
    pub fn new(paths: &'a Paths, pattern: &'a Pattern, after: Option<&str>) -> Self {
        let prefix = pattern.literal_prefix();
        let walk = paths.walk(match after.filter(|after| *after >= prefix.as_str()) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix.as_str()),
        });
        Self { pattern, prefix, walk, to: String::new() }
    }

    fn next(&mut self) -> Option<(&str, SensorId)> {
        let mut steps = 0;
        let id = loop {
            if steps > STEPS_MAX {
                self.walk.leap(&self.to);
                steps = 0;
            }
            let (path, id) = self.walk.step()?;
            if path < self.to.as_str() {
                steps += 1;
            } else if !path.starts_with(&self.prefix) {
                return None;
            } else if self.pattern.matches(path) {
                break id;
            } else if self.pattern.skip(path, &mut self.to) {
                steps = 0;
            } else {
                return None;
            }
        };
        Some((self.walk.last(), id))
    }

    /// How many there are.
    pub fn count(mut self) -> u64 {
        let mut count = 0;
        while self.next().is_some() {
            count += 1;
        }
        count
    }
}

/// What any of some patterns choose, each once.
pub(super) struct Chosen<'a> {
    near: Vec<Near<'a>>,
    /// The next of each pattern, the first on top.
    heads: BinaryHeap<Reverse<(Arc<str>, usize, SensorId)>>,
}

impl<'a> Chosen<'a> {
    /// Those whose paths come after `after`.
    pub fn new(paths: &'a Paths, patterns: &'a [Pattern], after: Option<&str>) -> Self {
        let mut near: Vec<Near> = patterns.iter().map(|pattern| Near::new(paths, pattern, after)).collect();
        let head = |(at, near): (usize, &mut Near<'a>)| near.next().map(|(path, id)| Reverse((path.into(), at, id)));
        let heads = near.iter_mut().enumerate().filter_map(head).collect();
        Self { near, heads }
    }
}

impl Iterator for Chosen<'_> {
    type Item = (Arc<str>, SensorId);

    fn next(&mut self) -> Option<Self::Item> {
        let mut found: Option<Self::Item> = None;
        while let Some(mut head) = self.heads.peek_mut() {
            let Reverse((path, at, id)) = &*head;
            if found.as_ref().is_some_and(|(found, _)| found != path) {
                break;
            }
            let at = *at;
            found = Some((path.clone(), *id));
            match self.near[at].next() {
                Some((path, id)) => *head = Reverse((path.into(), at, id)),
                None => _ = PeekMut::pop(head),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Schema, SensorDef, SensorPath};

    use super::super::paths::order_of;
    use super::*;

    const NODES: [&str; 4] = ["n1", "n1-ib", "n10", "n2"];
    const GROUPS: [&str; 5] = ["cpu", "cpu-all", "mem", "net/eth0", "net/ib0/up"];
    /// So many that the last is leapt to from the first.
    const NAMES: [&str; 9] = ["Free", "Used", "Total", "a", "b", "c", "d", "e", "z"];

    /// All sensors, those of one node of each two together, and their paths in order.
    fn sensors() -> (Paths, Vec<(String, SensorId)>) {
        let (mut paths, mut plain) = (Paths::default(), Vec::new());
        for (number, node) in NODES.into_iter().enumerate() {
            let names: Vec<String> =
                GROUPS.iter().flat_map(|group| NAMES.map(|name| format!("{group}/{name}"))).collect();
            let first = plain.len() as u32;
            let of = |i: usize| (format!("/lab/{node}/{}", names[i]), SensorId(first + i as u32));
            plain.extend((0..names.len()).map(of));
            if number % 2 == 0 {
                let sensors = names.iter().map(|name| SensorDef::gauge(name, "1", "")).collect();
                let schema = Schema::new(SensorPath::new(format!("/lab/{node}")).unwrap(), "g", sensors).unwrap();
                paths.insert_family(first, schema.clone(), 0, order_of(&schema));
            } else {
                (0..names.len()).map(of).for_each(|(path, id)| paths.insert(path.into(), id));
            }
        }
        plain.sort();
        (paths, plain)
    }

    #[test]
    fn what_is_leapt_over_is_not_chosen() {
        let (paths, plain) = sensors();
        let sets: [&[&str]; 10] = [
            &["/lab/*/mem/z"],
            &["/lab/*/cpu/Free"],
            &["/lab/*/mem/*", "/lab/*/mem/F*", "/lab/n1*/mem/*"],
            &["/lab/*/net/*/T*", "/lab/n2/**"],
            &["/lab/*1*/cpu*/z", "/lab/*/*/Used", "/**/a"],
            &["/lab/n1/cpu/Free", "/lab/n1/cpu/Free"],
            &["/lab/*/none/*", "/other/*"],
            &["Free", "/lab/n1/**/z"],
            &["/lab/*", "/lab/*/net/eth0/*/x"],
            &["/**"],
        ];
        for set in sets {
            let patterns: Vec<Pattern> = set.iter().map(|text| Pattern::new(*text).unwrap()).collect();
            let afters = plain.iter().map(|(path, _)| Some(path.as_str()));
            for after in afters.chain([None, Some("/"), Some("/lab/n1"), Some("/z")]) {
                let chosen = Chosen::new(&paths, &patterns, after).map(|(path, id)| (path.to_string(), id));
                let chosen: Vec<(String, SensorId)> = chosen.collect();
                let all = plain.iter().filter(|(path, _)| after.is_none_or(|after| path.as_str() > after));
                let expected = all.filter(|(path, _)| patterns.iter().any(|pattern| pattern.matches(path)));
                let expected: Vec<(String, SensorId)> = expected.cloned().collect();
                assert_eq!(chosen, expected, "{set:?} after {after:?}");
                if after.is_none() && set.len() == 1 {
                    assert_eq!(Near::new(&paths, &patterns[0], None).count(), chosen.len() as u64);
                }
            }
        }
    }
}
