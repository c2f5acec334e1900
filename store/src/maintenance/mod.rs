//! Verify, repair, backup and statistics.

pub mod backup;
pub mod repair;
pub(crate) mod usage;
pub mod verify;
