//! Whose sensors are whose: a prefix belongs to the agent whose schema was there first, with everything below it but what
//! belonged to one other agent before.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::SensorPath;

use super::home;

/// Prefixes and their owners. A path belongs to the owner of the closest prefix around it.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// At most one for each schema of the store.
    by_prefix: BTreeMap<String, Arc<str>>,
}

/// A prefix that somebody else has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub prefix: String,
    pub owner: Arc<str>,
}

impl Owners {
    /// The owner of what lies at `path` or closest around it, if it is not `identity`. Allocates only for the answer.
    pub fn around(&self, identity: &str, path: &str) -> Option<Taken> {
        let ends = [path.len()].into_iter().chain(path.rmatch_indices('/').map(|(at, _)| at));
        let (end, owner) = ends.filter_map(|end| Some((end, self.by_prefix.get(&path[..end])?))).next()?;
        (**owner != *identity).then(|| Taken { prefix: path[..end].to_owned(), owner: owner.clone() })
    }

    /// Somebody other than `identity` who owns something below `path`.
    pub fn below(&self, identity: &str, path: &str) -> Option<Taken> {
        let (prefix, owner) = self.others_below(identity, path).next()?;
        Some(Taken { prefix: prefix.clone(), owner: owner.clone() })
    }

    fn others_below<'a>(&'a self, identity: &'a str, path: &str) -> impl Iterator<Item = (&'a String, &'a Arc<str>)> {
        let from = format!("{path}/");
        self.by_prefix
            .range::<str, _>((Bound::Included(from.as_str()), Bound::Unbounded))
            .take_while(move |(prefix, _)| prefix.starts_with(&from))
            .filter(move |(_, owner)| ***owner != *identity)
    }

    /// The agent that keeps `identity` from owning `prefix` because of what it has below: none where `identity` is a level of `prefix` and all that others
    /// have below is of one agent, whose name stands below that level. Otherwise an agent could keep another one out of its own prefix, by a
    /// prefix below it that ends in its own name. Where two or more have something below, it is a place of many, which is no one's.
    pub fn obstacle(&self, identity: &str, prefix: &str) -> Option<Taken> {
        let first = self.below(identity, prefix)?;
        let own_name_first = home(prefix, identity)
            .is_some_and(|own| home(&first.prefix, &first.owner).is_some_and(|other| own.len() < other.len()));
        let is_alone = self.others_below(identity, prefix).all(|(_, owner)| *owner == first.owner);
        (!own_name_first || !is_alone).then_some(first)
    }

    /// Notes that `prefix` is `identity`'s unless it or something around it is somebody's already, or there is an [obstacle](Self::obstacle) below it.
    pub fn claim(&mut self, identity: &str, prefix: &SensorPath) {
        let path = prefix.as_str();
        let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        if !ends.any(|end| self.by_prefix.contains_key(&path[..end])) && self.obstacle(identity, path).is_none() {
            self.by_prefix.insert(path.to_owned(), identity.into());
        }
    }

    /// The number of prefixes.
    pub fn len(&self) -> usize {
        self.by_prefix.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_has_it() {
        let path = |text: &str| SensorPath::new(text).unwrap();
        let mut owners = Owners::default();
        owners.claim("n1", &path("/site/n1"));
        owners.claim("n2", &path("/site/n1"));
        owners.claim("n1", &path("/site/n1/gpu"));
        assert_eq!(owners.len(), 1, "one's own subtree needs no further entry");
        let n1 = |prefix: &str| Some(Taken { prefix: prefix.to_owned(), owner: "n1".into() });
        assert_eq!(owners.around("n2", "/site/n1"), n1("/site/n1"));
        assert_eq!(owners.around("n2", "/site/n1/cpu/0"), n1("/site/n1"));
        assert_eq!(owners.around("n2", "/site/n11"), None);
        assert_eq!(owners.around("n1", "/site/n1/cpu/0"), None);
        assert_eq!(owners.below("n2", "/site"), n1("/site/n1"));
        assert_eq!(owners.below("n1", "/site"), None);
        assert_eq!(owners.below("n2", "/site/n1"), None);
        assert_eq!(owners.below("n2", "/si"), None);
        // Who was granted to publish around what others have takes nothing from them.
        owners.claim("hall", &path("/site"));
        assert_eq!(owners.around("n1", "/site/n1/x"), None);
        assert_eq!(owners.around("n3", "/site/n3"), None);
    }

    #[test]
    fn one_agent_below_keeps_nobody_out_whose_name_comes_first() {
        let path = |text: &str| SensorPath::new(text).unwrap();
        let mut owners = Owners::default();
        owners.claim("itself", &path("/new/itself"));
        owners.claim("itself", &path("/new/x/itself"));
        assert_eq!(owners.obstacle("new", "/new"), None);
        let itself = Some(Taken { prefix: "/new/itself".to_owned(), owner: "itself".into() });
        assert_eq!(owners.obstacle("granted", "/new"), itself, "its name is no level of the prefix");
        owners.claim("new", &path("/new"));
        assert_eq!(owners.around("new", "/new/cpu/0"), None);
        assert_eq!(owners.around("itself", "/new/cpu/itself").unwrap().prefix, "/new");
        assert_eq!(owners.around("itself", "/new/itself/a"), None, "it keeps what it had");
        assert_eq!(owners.around("new", "/new/itself/a"), itself);
        // Somebody whose name comes first in the path has its parts for itself.
        owners.claim("a", &path("/a/b/x"));
        assert_eq!(owners.obstacle("b", "/a/b").unwrap().prefix, "/a/b/x");
        // A place of many belongs to none of them, and to nobody who is called like it.
        owners.claim("n1", &path("/site/n1"));
        assert_eq!(owners.obstacle("site", "/site"), None);
        owners.claim("n2", &path("/site/n2"));
        assert_eq!(owners.obstacle("site", "/site").unwrap().prefix, "/site/n1");
    }
}
