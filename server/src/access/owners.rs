//! Whose sensors are whose: a prefix belongs to the agent whose schema was there first, with everything below it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::SensorPath;

/// Prefixes and their owners. Where two lie within each other they have the same owner.
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
        let from = format!("{path}/");
        let mut below = self
            .by_prefix
            .range::<str, _>((Bound::Included(from.as_str()), Bound::Unbounded))
            .take_while(|(prefix, _)| prefix.starts_with(&from));
        let (prefix, owner) = below.find(|(_, owner)| ***owner != *identity)?;
        Some(Taken { prefix: prefix.clone(), owner: owner.clone() })
    }

    /// Notes that `prefix` is `identity`'s unless it, something around it or something below it is somebody's already.
    pub fn claim(&mut self, identity: &str, prefix: &SensorPath) {
        let path = prefix.as_str();
        let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        if !ends.any(|end| self.by_prefix.contains_key(&path[..end])) && self.below(identity, path).is_none() {
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
}
