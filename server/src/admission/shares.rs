//! Quotas: how much of something one identity may use at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the use of each identity. Identities without use take no memory.
#[derive(Debug)]
pub(crate) struct IdentityQuotas {
    most: AtomicUsize,
    counts: Mutex<HashMap<String, usize>>,
}

/// A part of an identity's quota, returned when dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    of: Arc<IdentityQuotas>,
    identity: String,
    count: usize,
}

impl IdentityQuotas {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), counts: Mutex::default() })
    }

    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Changes the quota; identities above it keep what they have.
    pub fn set(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Takes one unit of an identity's quota, if one is left.
    pub fn take(self: &Arc<Self>, identity: &str) -> Option<QuotaPermit> {
        let mut share = QuotaPermit { of: self.clone(), identity: identity.to_owned(), count: 0 };
        share.grow(1).then_some(share)
    }
}

impl QuotaPermit {
    /// Takes `more` units; false if the quota does not allow it.
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

impl QuotaPermit {
    /// Returns what is above `count` units.
    pub fn shrink_to(&mut self, count: usize) {
        let less = self.count.saturating_sub(count);
        let mut counts = self.of.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = counts.get_mut(&self.identity) {
            *all -= less;
            self.count -= less;
        }
    }
}

impl Drop for QuotaPermit {
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
        let shares = IdentityQuotas::new(2);
        let held = [shares.take("a"), shares.take("a")];
        assert!(held.iter().all(Option::is_some) && shares.take("a").is_none());
        let mut other = shares.take("b").unwrap();
        assert!(!other.grow(2) && other.grow(1));
        other.shrink_to(1);
        assert!(other.grow(1) && !other.grow(1));
        drop((held, other));
        assert!(shares.counts.lock().unwrap().is_empty() && shares.take("a").is_some());
    }
}
