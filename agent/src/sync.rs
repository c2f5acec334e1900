//! A mutex that outlives a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A value whose holder panicked is still used: the values guarded here are replaced as a whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
