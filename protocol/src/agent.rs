//! An agent: which batches it sends where, and what it keeps until they are acknowledged.

use crate::batches::BatchSet;

/// Rule 7. A batch is sent again, at the same or another server, until it is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// Batches that were not sent yet.
    waiting: BatchSet,
    unacknowledged: BatchSet,
    /// The most batches that are unacknowledged at a time.
    window: usize,
    pub server: u8,
}

impl Agent {
    pub fn new(batches: BatchSet, window: usize, server: u8) -> Self {
        Self { waiting: batches, unacknowledged: BatchSet::EMPTY, window, server }
    }

    /// The next batch that has not been sent, if the window has room.
    pub fn send_next(&mut self) -> Option<u8> {
        let batch = self.waiting.iter().next().filter(|_| self.unacknowledged.iter().count() < self.window)?;
        self.waiting = self.waiting.without(BatchSet::of([batch]));
        self.unacknowledged = self.unacknowledged.with(BatchSet::of([batch]));
        Some(batch)
    }

    /// A timeout or a lost connection: all unacknowledged batches go to a server again.
    pub fn send_again(&mut self, server: u8) -> BatchSet {
        self.server = server;
        self.unacknowledged
    }

    pub fn acknowledged(&mut self, batch: u8) {
        self.unacknowledged = self.unacknowledged.without(BatchSet::of([batch]));
    }

    /// A crash: what was not acknowledged is lost, the next boot goes on with new batches.
    pub fn crash(&mut self) {
        self.unacknowledged = BatchSet::EMPTY;
    }

    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.unacknowledged.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_bounds_what_is_unacknowledged_and_a_crash_loses_only_that() {
        let mut agent = Agent::new(BatchSet::of(0..4), 2, 0);
        assert_eq!([agent.send_next(), agent.send_next(), agent.send_next()], [Some(0), Some(1), None]);
        agent.acknowledged(0);
        assert_eq!(agent.send_next(), Some(2));
        assert_eq!(agent.send_again(1), BatchSet::of([1, 2]));
        agent.crash();
        assert_eq!((agent.send_next(), agent.is_done()), (Some(3), false));
        agent.acknowledged(3);
        assert!(agent.is_done());
    }
}
