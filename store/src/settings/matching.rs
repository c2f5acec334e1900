//! Finds the settings that match a path: a tree over the levels of the patterns, so that ten thousand cost about as much as a few.

use std::collections::HashMap;

use wholegrain_model::pattern::glob;

/// A tree of patterns with numbers.
#[derive(Debug)]
pub(super) struct PatternTree {
    nodes: Vec<PatternNode>,
}

#[derive(Debug, Default)]
struct PatternNode {
    exact: HashMap<Box<str>, usize>,
    globs: Vec<(Box<str>, usize)>,
    /// The node after a `**`, which matches any number of levels.
    any: Option<usize>,
    is_any: bool,
    /// The patterns that end here.
    ends: Vec<u32>,
}

impl Default for PatternTree {
    fn default() -> Self {
        Self { nodes: vec![PatternNode::default()] }
    }
}

impl PatternTree {
    /// Adds a valid pattern; a relative one matches at any depth.
    pub fn insert(&mut self, pattern: &str, number: u32) {
        let (relative, body) = pattern.strip_prefix('/').map_or((true, pattern), |body| (false, body));
        let mut at = if relative { self.any(0) } else { 0 };
        for level in body.split('/') {
            at = match level {
                "**" if self.nodes[at].is_any => at,
                "**" => self.any(at),
                _ if level.contains('*') => self.glob(at, level),
                _ => self.exact(at, level),
            };
        }
        self.nodes[at].ends.push(number);
    }

    fn add(&mut self, node: PatternNode) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn any(&mut self, at: usize) -> usize {
        if let Some(known) = self.nodes[at].any {
            return known;
        }
        let node = self.add(PatternNode { is_any: true, ..PatternNode::default() });
        self.nodes[at].any = Some(node);
        node
    }

    fn exact(&mut self, at: usize, level: &str) -> usize {
        if let Some(known) = self.nodes[at].exact.get(level) {
            return *known;
        }
        let node = self.add(PatternNode::default());
        self.nodes[at].exact.insert(level.into(), node);
        node
    }

    fn glob(&mut self, at: usize, level: &str) -> usize {
        if let Some((_, known)) = self.nodes[at].globs.iter().find(|(text, _)| **text == *level) {
            return *known;
        }
        let node = self.add(PatternNode::default());
        self.nodes[at].globs.push((level.into(), node));
        node
    }

    /// Calls `found` with the number of every pattern that matches `path`, in no order, each at least once.
    pub fn matches(&self, path: &str, mut found: impl FnMut(u32)) {
        let (mut here, mut next) = (Vec::with_capacity(8), Vec::with_capacity(8));
        self.enter(0, &mut here);
        for level in path.strip_prefix('/').unwrap_or(path).split('/') {
            next.clear();
            for &at in &here {
                let node = &self.nodes[at];
                if node.is_any {
                    self.enter(at, &mut next);
                }
                if let Some(to) = node.exact.get(level) {
                    self.enter(*to, &mut next);
                }
                for (_, to) in node.globs.iter().filter(|(text, _)| glob(text, level)) {
                    self.enter(*to, &mut next);
                }
            }
            std::mem::swap(&mut here, &mut next);
            if here.is_empty() {
                return;
            }
        }
        here.iter().flat_map(|at| &self.nodes[*at].ends).for_each(|number| found(*number));
    }

    /// A node, and the nodes after its `**`, which may match no level.
    fn enter(&self, at: usize, into: &mut Vec<usize>) {
        let mut at = Some(at);
        while let Some(node) = at.filter(|node| !into.contains(node)) {
            into.push(node);
            at = self.nodes[node].any;
        }
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Pattern;
    use wholegrain_testkit::Random;

    use super::*;

    #[test]
    fn the_tree_finds_what_the_patterns_find_one_by_one() {
        let mut random = Random::seeded_or(7);
        let levels = ["a", "b", "ab", "a*", "*b", "*", "**", "**", "aab", "*a*"];
        let names = ["a", "b", "ab", "aab", "c", "ba"];
        let mut several = 0;
        for _ in 0..300 {
            let texts: Vec<String> = (0..20)
                .map(|_| {
                    let levels: Vec<&str> =
                        (0..1 + random.below(4)).map(|_| levels[random.index(levels.len())]).collect();
                    format!("{}{}", if random.below(3) == 0 { "" } else { "/" }, levels.join("/"))
                })
                .collect();
            let patterns: Vec<Pattern> = texts.iter().map(|text| Pattern::new(text.as_str()).unwrap()).collect();
            let mut tree = PatternTree::default();
            (0..).zip(&texts).for_each(|(number, text)| tree.insert(text, number));
            for _ in 0..20 {
                let path: String =
                    (0..1 + random.below(5)).map(|_| format!("/{}", names[random.index(names.len())])).collect();
                let mut found = Vec::new();
                tree.matches(&path, |number| found.push(number));
                found.sort_unstable();
                found.dedup();
                let expected: Vec<u32> =
                    (0..).zip(&patterns).filter(|(_, pattern)| pattern.matches(&path)).map(|(at, _)| at).collect();
                several += usize::from(expected.len() > 1);
                assert_eq!(found, expected, "{path} of {texts:?}");
            }
        }
        assert!(several > 1000, "{several}");
    }
}
