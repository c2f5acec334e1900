//! The outcome of an append, and the callback that receives it.

use crate::StoreError;

/// The outcome of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is on disk now.
    Stored,
    /// It was on disk already, and was not stored again.
    Duplicate,
    /// Its times are further from the clock than [`crate::StoreConfig::past_max`] and [`crate::StoreConfig::future_max`] allow: it is in the quarantine,
    /// and counted. Of several readings, at least one was quarantined.
    Quarantined,
}

/// Called once with the outcome, from the journal thread: it must be quick.
pub type AppendCallback = Box<dyn FnOnce(Result<AppendOutcome, StoreError>) + Send>;
