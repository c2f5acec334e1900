//! The head: readings that are only in the journal and in memory.

pub(crate) mod columns;
pub(crate) mod live;
pub(crate) mod log;
pub(crate) mod overlap;
pub(crate) mod readings;
