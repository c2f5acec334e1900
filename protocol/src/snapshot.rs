//! A snapshot: what a reader fixes, in which order, and what its answer contains.

use crate::batches::BatchSet;
use crate::database::{SERVERS_MAX, Vector};
use crate::server::AliveRuns;

/// A snapshot in progress. The reader has read the rows of all runs; it pins local parts, then reads the vector, then the cuts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotTask {
    pub reader: u8,
    pub alive: AliveRuns,
    /// A fenced run was not adopted, or a server did not answer.
    pub is_incomplete: bool,
    /// Servers that answered or were marked, one bit each.
    pub asked: u8,
    pub pinned: BatchSet,
    pub vector: Option<Vector>,
    /// For the invariants: acknowledged before the snapshot began.
    pub owed: BatchSet,
    /// For the invariants: deleted before the snapshot began.
    pub forbidden: BatchSet,
}

/// What a finished snapshot shows, and what chunk rows in flight could add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAnswer {
    pub shown: BatchSet,
    pub later: BatchSet,
    pub is_incomplete: bool,
}

impl SnapshotTask {
    /// Whether a server's part is still open; servers that the reader did not find alive are not asked.
    pub fn is_open(&self, server: u8) -> bool {
        self.asked >> server & 1 == 0
    }

    pub fn mark_asked(&mut self, server: u8) {
        self.asked |= 1 << server;
    }

    pub fn has_all_parts(&self, servers: usize) -> bool {
        (0..servers.min(SERVERS_MAX) as u8).all(|server| !self.is_open(server))
    }
}
