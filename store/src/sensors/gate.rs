//! Keeps appends and the expiry of sensors apart.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lock that the journal holds while it writes a group, so that no sensor of the group expires meanwhile.
#[derive(Default)]
pub(crate) struct ExpiryGate {
    lock: RwLock<()>,
    failed: AtomicBool,
    unresolved: AtomicBool,
}

impl ExpiryGate {
    /// No sensor expires while the guard is held.
    pub fn append(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal writes nothing while the guard is held.
    pub fn expire(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transaction of an expiry failed; it may still have committed.
    pub fn fail(&self) {
        self.failed.store(true, Relaxed);
        self.unresolved.store(true, Relaxed);
    }

    /// The catalogue was read again: which sensors exist is known.
    pub fn resolve(&self) {
        self.unresolved.store(false, Relaxed);
    }

    /// Whether an expiry ever failed. Sensors that are known in memory may then be missing after the catalogue was opened again.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Whether it is unknown which sensors exist: nothing may be appended.
    pub fn is_unresolved(&self) -> bool {
        self.unresolved.load(Relaxed)
    }
}
