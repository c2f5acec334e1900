//! What identifies a cached result.

use crate::SensorId;

/// The most bytes of one piece.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// Identifies the state that a snapshot shows: a result computed from the snapshot can be cached if nothing has changed since.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotVersion {
    pub(crate) commits: u64,
    pub(crate) changes: u64,
    pub(crate) retained_at: i64,
}

/// Identifies cached results: the definition and the operands that they are computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey {
    /// A hash of everything except the readings that decides about the values.
    pub key: [u8; 16],
    /// The sensors whose readings are used, sorted.
    pub operands: Vec<SensorId>,
    /// Length of a piece, ns; piece `n` covers `n * piece_ns <= time < (n + 1) * piece_ns`.
    pub piece_ns: i64,
    /// Readings up to this long before a piece are used, ns.
    pub back_ns: i64,
    /// Readings up to this long after a piece are used, ns.
    pub ahead_ns: i64,
}

impl CacheKey {
    /// First and last time of the readings that a piece depends on.
    pub(crate) fn span(&self, number: i64) -> (i64, i64) {
        let start = number.saturating_mul(self.piece_ns);
        let end = start.saturating_add(self.piece_ns);
        (start.saturating_sub(self.back_ns), end.saturating_add(self.ahead_ns))
    }
}
