//! What identifies a cached result.

use crate::SensorId;
use crate::store::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// The most bytes of one piece.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// What a snapshot has seen, so that what is made from it can be kept as long as nothing came in between.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotVersion {
    pub(crate) commits: u64,
    pub(crate) changes: u64,
    pub(crate) retained_at: i64,
}

/// What a kept result is made by and from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey {
    /// A hash of everything that decides about the values beside the readings.
    pub key: [u8; 16],
    /// The sensors whose readings it is made from, sorted.
    pub operands: Vec<SensorId>,
    /// Length of a piece, ns; the piece `n` is of `n * piece_ns <= time < (n + 1) * piece_ns`.
    pub piece_ns: i64,
    /// So far before a piece's start there may be readings that it is made from, ns.
    pub back_ns: i64,
    /// So far behind its end, ns.
    pub ahead_ns: i64,
}

impl CacheKey {
    /// First and last time of the readings that a piece is made from.
    pub(crate) fn span(&self, number: i64) -> (i64, i64) {
        let start = number.saturating_mul(self.piece_ns);
        let end = start.saturating_add(self.piece_ns);
        (start.saturating_sub(self.back_ns), end.saturating_add(self.ahead_ns))
    }
}

impl SnapshotVersion {
    /// What can be seen now at least. To be taken before the view that it is to stand for.
    pub(crate) fn now(shared: &Shared) -> Self {
        let changes = shared.kept.changes.load(std::sync::atomic::Ordering::SeqCst);
        Self { commits: shared.kept.noted.commits(), changes, retained_at: shared.retained_at.load(Relaxed) }
    }
}
