//! A snapshot: what a reader fixes, in which order, and what its answer contains.

use crate::batches::BatchSet;
use crate::database::Vector;
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
    pub vector: Option<Vector>,
    /// For the invariants: acknowledged before the snapshot began, and not found yet.
    pub owed: BatchSet,
    /// For the invariants: deleted before the snapshot began.
    pub forbidden: BatchSet,
    /// For the invariants: may not appear later, because they were not found yet.
    pub absent: BatchSet,
}

impl SnapshotTask {
    /// Whether a server's part is still open; servers that the reader did not find alive are not asked.
    pub fn is_open(&self, server: u8) -> bool {
        self.asked >> server & 1 == 0
    }

    pub fn mark_asked(&mut self, server: u8) {
        self.asked |= 1 << server;
    }

    /// Takes a part of the answer.
    pub fn find(&mut self, readings: BatchSet) {
        self.owed = self.owed.without(readings);
        self.absent = self.absent.without(readings);
    }

    /// Whether nothing is left to compare.
    pub fn is_decided(&self) -> bool {
        self.owed.is_empty() && self.forbidden.is_empty() && self.absent.is_empty()
    }
}
