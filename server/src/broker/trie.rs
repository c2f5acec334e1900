//! A trie of subscriptions by the levels of their filters: a publish connection_log only matching ones.

use std::collections::HashMap;

/// The most levels of a filter; the trie is walked recursively.
pub const LEVELS_MAX: usize = 128;

/// A table with this many times the capacity that it needs shrinks.
const ROOMY: usize = 8;

/// A level of filters. `T` is stored at the end of a filter.
#[derive(Debug)]
pub struct FilterTrie<T> {
    /// Boxed, because a table has more capacity than entries.
    children: HashMap<Box<str>, Box<FilterTrie<T>>>,
    /// `+` at the next level.
    plus: Option<Box<FilterTrie<T>>>,
    /// Filters that end here.
    here: T,
    /// Filters that end with `#` at the next level.
    rest: T,
}

impl<T: Default> Default for FilterTrie<T> {
    fn default() -> Self {
        Self { children: HashMap::new(), plus: None, here: T::default(), rest: T::default() }
    }
}

/// A value stored in a [`FilterTrie`].
pub trait TrieSlot: Default {
    fn is_empty(&self) -> bool;
}

impl<T: TrieSlot> FilterTrie<T> {
    /// The value of a filter, created if missing.
    pub fn place(&mut self, filter: &str) -> &mut T {
        let mut node = self;
        for level in filter.split('/') {
            match level {
                "#" => return &mut node.rest,
                "+" => node = node.plus.get_or_insert_default(),
                _ => {
                    node = node.children.entry(level.into()).or_default();
                }
            }
        }
        &mut node.here
    }

    /// The value of a filter, if any.
    pub fn get(&self, filter: &str) -> Option<&T> {
        let mut node = self;
        for level in filter.split('/') {
            match level {
                "#" => return Some(&node.rest),
                "+" => node = node.plus.as_deref()?,
                _ => node = node.children.get(level)?,
            }
        }
        Some(&node.here)
    }

    /// Changes the value of a filter, if any, and removes empty nodes.
    pub fn change<R>(&mut self, filter: &str, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (level, rest) = match filter.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (filter, None),
        };
        match level {
            "#" => Some(act(&mut self.rest)),
            "+" => {
                let node = self.plus.as_deref_mut()?;
                let result = node.change_rest(rest, act);
                if node.is_empty() {
                    self.plus = None;
                }
                result
            }
            _ => {
                let node = self.children.get_mut(level)?;
                let result = node.change_rest(rest, act);
                if node.is_empty() {
                    self.children.remove(level);
                    // Returns the memory of a burst of filters.
                    if self.children.is_empty() {
                        self.children = HashMap::new();
                    } else if self.children.capacity() > ROOMY * self.children.len() + ROOMY {
                        self.children.shrink_to_fit();
                    }
                }
                result
            }
        }
    }

    fn change_rest<R>(&mut self, rest: Option<&str>, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        match rest {
            Some(rest) => self.change(rest, act),
            None => Some(act(&mut self.here)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.children.is_empty() && self.plus.is_none() && self.here.is_empty() && self.rest.is_empty()
    }

    /// Calls `found` for each filter that matches `topic` (4.7).
    pub fn matches<'a>(&'a self, topic: &str, found: &mut impl FnMut(&'a T)) {
        // Wildcards at the beginning do not match topics that begin with `$` (4.7.2).
        self.walk(Some(topic), !topic.starts_with('$'), found);
    }

    fn walk<'a>(&'a self, topic: Option<&str>, wild: bool, found: &mut impl FnMut(&'a T)) {
        if wild && !self.rest.is_empty() {
            found(&self.rest);
        }
        let Some(topic) = topic else {
            if !self.here.is_empty() {
                found(&self.here);
            }
            return;
        };
        if self.children.is_empty() && self.plus.is_none() {
            return;
        }
        let (level, rest) = match topic.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (topic, None),
        };
        if let Some(node) = self.children.get(level) {
            node.walk(rest, true, found);
        }
        if let Some(node) = self.plus.as_deref().filter(|_| wild) {
            node.walk(rest, true, found);
        }
    }

    /// Calls `found` with each filter that can match topics whose first level is `first`.
    pub fn filters_below(&self, first: &str, found: &mut impl FnMut(&str, &T)) {
        let wild = !first.starts_with('$');
        if wild && !self.rest.is_empty() {
            found("#", &self.rest);
        }
        if let Some(node) = self.children.get(first) {
            node.each(&mut first.to_owned(), found);
        }
        if let Some(node) = self.plus.as_deref().filter(|_| wild) {
            node.each(&mut "+".to_owned(), found);
        }
    }

    fn each(&self, filter: &mut String, found: &mut impl FnMut(&str, &T)) {
        if !self.here.is_empty() {
            found(filter, &self.here);
        }
        let length = filter.len();
        if !self.rest.is_empty() {
            filter.push_str("/#");
            found(filter, &self.rest);
            filter.truncate(length);
        }
        let plus = self.plus.as_deref().map(|node| ("+", node));
        for (level, node) in self.children.iter().map(|(level, node)| (&**level, &**node)).chain(plus) {
            filter.push('/');
            filter.push_str(level);
            node.each(filter, found);
            filter.truncate(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_transport::mqtt::topic_matches;

    impl TrieSlot for Vec<usize> {
        fn is_empty(&self) -> bool {
            self.is_empty()
        }
    }

    const FILTERS: [&str; 16] = [
        "#", "+", "/", "a", "a/#", "a/+", "a/b", "a/b/#", "+/b", "+/+", "+/#", "/+", "a//b", "$SYS/#", "$SYS/+",
        "a/+/c",
    ];
    const TOPICS: [&str; 13] =
        ["a", "b", "/", "a/", "a/b", "a/b/c", "a/c", "/a", "a//b", "$SYS", "$SYS/x", "$SYS/x/y", "c/b"];

    #[test]
    fn lookups_match_the_definition() {
        let mut trie: FilterTrie<Vec<usize>> = FilterTrie::default();
        for (number, filter) in FILTERS.iter().enumerate() {
            trie.place(filter).push(number);
        }
        for topic in TOPICS {
            let mut found = Vec::new();
            trie.matches(topic, &mut |slot: &Vec<usize>| found.extend(slot.iter().map(|&number| FILTERS[number])));
            let mut expected: Vec<_> = FILTERS.into_iter().filter(|filter| topic_matches(filter, topic)).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{topic}");
        }
        let mut below = Vec::new();
        trie.filters_below("a", &mut |filter, _| below.push(filter.to_owned()));
        below.sort_unstable();
        let mut expected = ["#", "+", "+/#", "+/+", "+/b", "a", "a/#", "a/+", "a/+/c", "a/b", "a/b/#", "a//b"];
        expected.sort_unstable();
        assert_eq!(below, expected);
        for filter in FILTERS {
            assert!(trie.get(filter).is_some_and(|slot| slot.len() == 1), "{filter}");
            assert_eq!(trie.change(filter, |slot| slot.pop().is_some()), Some(true), "{filter}");
        }
        assert!(trie.is_empty() && trie.children.capacity() == 0, "nothing is left behind");
    }
}
