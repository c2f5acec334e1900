//! How much of something one identity may have at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what each identity has. Those that have nothing take no memory.
#[derive(Debug)]
pub(crate) struct Shares {
    most: AtomicUsize,
    counts: Mutex<HashMap<String, usize>>,
}

/// A part of what an identity may have. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    identity: String,
    count: usize,
}

impl Shares {
    /// Each identity may have so much.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), counts: Mutex::default() })
    }

    /// How much each may have.
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Another bound; who has more keeps it.
    pub fn set(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// One more for an identity, if it may.
    pub fn take(self: &Arc<Self>, identity: &str) -> Option<Share> {
        let mut share = Share { of: self.clone(), identity: identity.to_owned(), count: 0 };
        share.grow(1).then_some(share)
    }
}

impl Share {
    /// So much more; false when the identity may not have it.
    pub fn grow(&mut self, more: usize) -> bool {
        let mut counts = self.of.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let now = counts.get(&self.identity).copied().unwrap_or(0);
        if more > self.of.most().saturating_sub(now) {
            return false;
        }
        counts.insert(self.identity.clone(), now + more);
        self.count += more;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.identity) {
            *count -= self.count;
            if *count == 0 {
                counts.remove(&self.identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_has_so_much_and_others_theirs() {
        let shares = Shares::new(2);
        let held = [shares.take("a"), shares.take("a")];
        assert!(held.iter().all(Option::is_some) && shares.take("a").is_none());
        let mut other = shares.take("b").unwrap();
        assert!(!other.grow(2) && other.grow(1));
        drop((held, other));
        assert!(shares.counts.lock().unwrap().is_empty() && shares.take("a").is_some());
    }
}
