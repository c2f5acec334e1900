//! The outcome of an append, and the callback that receives it.

use crate::StoreError;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is on disk now.
    Stored,
    /// It was on disk already, and was not stored again.
    Duplicate,
    /// Its times are further from the clock than [`StoreConfig::past_max`] and [`StoreConfig::future_max`] allow: it is on disk under `aside/`,
    /// counted, and not among the readings. Of several readings at least one was.
    Quarantined,
}

/// Called once with a batch's fate, from the journal thread: it must be quick.
pub type AppendCallback = Box<dyn FnOnce(Result<AppendOutcome, StoreError>) + Send>;
