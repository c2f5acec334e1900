//! Ownership of sensors: a prefix belongs to the agent whose schema came first, with all paths below it except those that another agent owned before.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::SensorPath;

/// The end of the path down to the level `name` if it precedes any wildcard: the subtree that belongs to a client of this name.
pub(super) fn home<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut end = 0;
    for level in path.split('/') {
        if matches!(level, "+" | "#") {
            return None;
        }
        end += level.len();
        if level == name && !name.is_empty() {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// Prefixes and their owners. A path belongs to the owner of the longest prefix of it.
#[derive(Debug, Default)]
pub(super) struct PrefixOwners {
    /// At most one for each schema of the store.
    by_prefix: BTreeMap<String, Arc<str>>,
}

/// A prefix that another agent owns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnedPrefix {
    pub prefix: String,
    pub owner: Arc<str>,
}

impl PrefixOwners {
    /// The owner of the longest prefix of `path`, if it is not `identity`. Allocates only for a result.
    pub fn around(&self, identity: &str, path: &str) -> Option<OwnedPrefix> {
        let ends = [path.len()].into_iter().chain(path.rmatch_indices('/').map(|(at, _)| at));
        let (end, owner) = ends.filter_map(|end| Some((end, self.by_prefix.get(&path[..end])?))).next()?;
        (**owner != *identity).then(|| OwnedPrefix { prefix: path[..end].to_owned(), owner: owner.clone() })
    }

    /// Another owner of a prefix below `path`, if there is one.
    pub fn below(&self, identity: &str, path: &str) -> Option<OwnedPrefix> {
        let (prefix, owner) = self.others_below(identity, path).next()?;
        Some(OwnedPrefix { prefix: prefix.clone(), owner: owner.clone() })
    }

    fn others_below<'a>(&'a self, identity: &'a str, path: &str) -> impl Iterator<Item = (&'a String, &'a Arc<str>)> {
        let from = format!("{path}/");
        self.by_prefix
            .range::<str, _>((Bound::Included(from.as_str()), Bound::Unbounded))
            .take_while(move |(prefix, _)| prefix.starts_with(&from))
            .filter(move |(_, owner)| ***owner != *identity)
    }

    /// The agent whose prefixes below `prefix` keep `identity` from owning it. There is none if `identity` is a level of `prefix` and one agent
    /// alone owns prefixes below, with its name below that level: otherwise an agent could block another one's own prefix by a prefix below it that
    /// ends in its own name. A prefix with several owners below it is shared and cannot be owned.
    pub fn obstacle(&self, identity: &str, prefix: &str) -> Option<OwnedPrefix> {
        let first = self.below(identity, prefix)?;
        let own_name_first = home(prefix, identity)
            .is_some_and(|own| home(&first.prefix, &first.owner).is_some_and(|other| own.len() < other.len()));
        let is_alone = self.others_below(identity, prefix).all(|(_, owner)| *owner == first.owner);
        (!own_name_first || !is_alone).then_some(first)
    }

    /// Makes `identity` the owner of `prefix`, unless it or a longer path around it has an owner, or there is an [obstacle](Self::obstacle) below
    /// it.
    pub fn claim(&mut self, identity: &str, prefix: &SensorPath) {
        let path = prefix.as_str();
        let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        if !ends.any(|end| self.by_prefix.contains_key(&path[..end])) && self.obstacle(identity, path).is_none() {
            self.by_prefix.insert(path.to_owned(), identity.into());
        }
    }

    pub fn len(&self) -> usize {
        self.by_prefix.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_agent_owns_a_prefix() {
        let path = |text: &str| SensorPath::new(text).unwrap();
        let mut owners = PrefixOwners::default();
        owners.claim("n1", &path("/site/n1"));
        owners.claim("n2", &path("/site/n1"));
        owners.claim("n1", &path("/site/n1/gpu"));
        assert_eq!(owners.len(), 1, "one's own subtree needs no further entry");
        let n1 = |prefix: &str| Some(OwnedPrefix { prefix: prefix.to_owned(), owner: "n1".into() });
        assert_eq!(owners.around("n2", "/site/n1"), n1("/site/n1"));
        assert_eq!(owners.around("n2", "/site/n1/cpu/0"), n1("/site/n1"));
        assert_eq!(owners.around("n2", "/site/n11"), None);
        assert_eq!(owners.around("n1", "/site/n1/cpu/0"), None);
        assert_eq!(owners.below("n2", "/site"), n1("/site/n1"));
        assert_eq!(owners.below("n1", "/site"), None);
        assert_eq!(owners.below("n2", "/site/n1"), None);
        assert_eq!(owners.below("n2", "/si"), None);
        // A grant around prefixes of others takes nothing from their owners.
        owners.claim("hall", &path("/site"));
        assert_eq!(owners.around("n1", "/site/n1/x"), None);
        assert_eq!(owners.around("n3", "/site/n3"), None);
    }

    #[test]
    fn an_agent_below_does_not_block_a_prefix_with_an_earlier_name() {
        let path = |text: &str| SensorPath::new(text).unwrap();
        let mut owners = PrefixOwners::default();
        owners.claim("itself", &path("/new/itself"));
        owners.claim("itself", &path("/new/x/itself"));
        assert_eq!(owners.obstacle("new", "/new"), None);
        let itself = Some(OwnedPrefix { prefix: "/new/itself".to_owned(), owner: "itself".into() });
        assert_eq!(owners.obstacle("granted", "/new"), itself, "its name is no level of the prefix");
        owners.claim("new", &path("/new"));
        assert_eq!(owners.around("new", "/new/cpu/0"), None);
        assert_eq!(owners.around("itself", "/new/cpu/itself").unwrap().prefix, "/new");
        assert_eq!(owners.around("itself", "/new/itself/a"), None, "it keeps its prefix");
        assert_eq!(owners.around("new", "/new/itself/a"), itself);
        // An agent whose name comes first in the path owns everything below it.
        owners.claim("a", &path("/a/b/x"));
        assert_eq!(owners.obstacle("b", "/a/b").unwrap().prefix, "/a/b/x");
        // A prefix with several owners below it belongs to none of them, nor to an agent of its name.
        owners.claim("n1", &path("/site/n1"));
        assert_eq!(owners.obstacle("site", "/site"), None);
        owners.claim("n2", &path("/site/n2"));
        assert_eq!(owners.obstacle("site", "/site").unwrap().prefix, "/site/n1");
    }
}
