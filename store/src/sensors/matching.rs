//! Finds the sensors that match patterns, in the order of their paths, by a skip scan: paths that cannot match are not visited.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::Pattern;

use super::paths::{PathIndex, PathWalk};
use crate::SensorId;

/// Paths that are visited one by one before the scan seeks the next path that can match.
const STEPS_MAX: usize = 4;

/// The result of a step.
enum PatternStep {
    Match(SensorId),
    /// The limit of visited paths is reached; the walk's last path is the last visited one.
    Stopped,
    End,
}

/// The matches of one pattern.
pub(super) struct PatternMatches<'a> {
    pattern: &'a Pattern,
    prefix: String,
    walk: PathWalk<'a>,
    /// No path before this one can match; empty if the next path can.
    to: String,
    /// How many more paths may be visited.
    left: usize,
}

impl<'a> PatternMatches<'a> {
    /// The matches after the path `after`. At most `left` paths are visited.
    pub fn new(paths: &'a PathIndex, pattern: &'a Pattern, after: Option<&str>, left: usize) -> Self {
        let prefix = pattern.literal_prefix();
        let walk = paths.walk(match after.filter(|after| *after >= prefix.as_str()) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix.as_str()),
        });
        Self { pattern, prefix, walk, to: String::new(), left }
    }

    fn next(&mut self) -> PatternStep {
        let mut steps = 0;
        loop {
            if self.left == 0 {
                return PatternStep::Stopped;
            }
            self.left -= 1;
            if steps > STEPS_MAX {
                self.walk.skip_to(&self.to);
                steps = 0;
            }
            let Some((path, id)) = self.walk.step() else { return PatternStep::End };
            if path < self.to.as_str() {
                steps += 1;
            } else if !path.starts_with(&self.prefix) {
                return PatternStep::End;
            } else if self.pattern.matches(path) {
                return PatternStep::Match(id);
            } else if self.pattern.skip(path, &mut self.to) {
                steps = 0;
            } else {
                return PatternStep::End;
            }
        }
    }

    /// How many there are.
    pub fn count(mut self) -> u64 {
        let mut count = 0;
        while let PatternStep::Match(_) = self.next() {
            count += 1;
        }
        count
    }
}

/// The matches of several patterns, each once.
pub(super) struct MatchingSensors<'a> {
    near: Vec<PatternMatches<'a>>,
    /// The next match of each pattern, the first on top.
    next_matches: BinaryHeap<Reverse<(Arc<str>, usize, SensorId)>>,
    /// The path up to which everything was visited, if that is not the end.
    limit: Option<Arc<str>>,
}

impl<'a> MatchingSensors<'a> {
    /// The matches after the path `after`. At most `each` paths, but at least one, are visited for each pattern.
    pub fn new(paths: &'a PathIndex, patterns: &'a [Pattern], after: Option<&str>, each: usize) -> Self {
        let near = patterns.iter().map(|pattern| PatternMatches::new(paths, pattern, after, each.max(1))).collect();
        let mut chosen = Self { near, next_matches: BinaryHeap::with_capacity(patterns.len()), limit: None };
        for at in 0..patterns.len() {
            let head = chosen.look(at);
            chosen.next_matches.extend(head.map(Reverse));
        }
        chosen
    }

    fn look(&mut self, at: usize) -> Option<(Arc<str>, usize, SensorId)> {
        let near = &mut self.near[at];
        match near.next() {
            PatternStep::Match(id) => Some((near.walk.last().into(), at, id)),
            PatternStep::Stopped => {
                let last = near.walk.last();
                if self.limit.as_deref().is_none_or(|limit| last < limit) {
                    self.limit = Some(last.into());
                }
                None
            }
            PatternStep::End => None,
        }
    }

    /// The path to continue after, once all matches were returned; `None` if the scan reached the end.
    pub fn limit(self) -> Option<Arc<str>> {
        self.limit
    }
}

impl Iterator for MatchingSensors<'_> {
    type Item = (Arc<str>, SensorId);

    fn next(&mut self) -> Option<Self::Item> {
        let mut found: Option<Self::Item> = None;
        while let Some(Reverse((path, at, id))) = self.next_matches.peek() {
            if found.as_ref().is_some_and(|(found, _)| found != path)
                || self.limit.as_ref().is_some_and(|limit| path > limit)
            {
                break;
            }
            let at = *at;
            found = Some((path.clone(), *id));
            let next = self.look(at);
            let Some(mut head) = self.next_matches.peek_mut() else { break };
            match next {
                Some(next) => *head = Reverse(next),
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
    /// More than `STEPS_MAX`, so that the scan skips from the first to the last.
    const NAMES: [&str; 9] = ["Free", "Used", "Total", "a", "b", "c", "d", "e", "z"];

    /// The index, in which every second node is a family, and all paths with their ids, sorted.
    fn sensors() -> (PathIndex, Vec<(String, SensorId)>) {
        let (mut paths, mut plain) = (PathIndex::default(), Vec::new());
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
    fn a_skip_scan_finds_all_matches() {
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
                let text = |(path, id): (Arc<str>, SensorId)| (path.to_string(), id);
                let chosen: Vec<(String, SensorId)> =
                    MatchingSensors::new(&paths, &patterns, after, usize::MAX).map(text).collect();
                let all = plain.iter().filter(|(path, _)| after.is_none_or(|after| path.as_str() > after));
                let expected = all.filter(|(path, _)| patterns.iter().any(|pattern| pattern.matches(path)));
                let expected: Vec<(String, SensorId)> = expected.cloned().collect();
                assert_eq!(chosen, expected, "{set:?} after {after:?}");
                for each in [1, 2, 7, 50] {
                    let (mut parts, mut next) = (Vec::new(), after.map(Arc::<str>::from));
                    loop {
                        let mut part = MatchingSensors::new(&paths, &patterns, next.as_deref(), each);
                        parts.extend(part.by_ref().map(text));
                        let Some(limit) = part.limit() else { break };
                        assert!(next.is_none_or(|next| limit > next), "{set:?}: the limit does not advance");
                        next = Some(limit);
                    }
                    assert_eq!(parts, expected, "{set:?} after {after:?} in parts of {each}");
                }
                if after.is_none() && set.len() == 1 {
                    assert_eq!(
                        PatternMatches::new(&paths, &patterns[0], None, usize::MAX).count(),
                        chosen.len() as u64
                    );
                }
            }
        }
    }
}
