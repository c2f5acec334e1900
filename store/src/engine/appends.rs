//! Appending batches and readings, and following what is appended.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use bytes::Bytes;

use super::Store;
use crate::append::{AppendCallback, AppendOutcome};
use crate::error::StoreError;
use crate::head::live::LiveItem;
use crate::sensors::reading::Reading;

impl Store {
    /// Checks a batch and queues it. Calls `done` once: at once if the batch is refused or there is no room, else from the journal thread when the
    /// batch is durable or could not be written.
    pub fn append(&self, payload: Bytes, done: AppendCallback) {
        self.engine().appender.append(payload, done)
    }

    /// Whether [`Store::append`] would accept a batch now. Segments that were there at the opening do not count: senders do not wait for them to be
    /// sealed.
    pub fn append_room(&self) -> bool {
        self.engine().appender.append_room()
    }

    /// Appends a batch and waits for the outcome.
    pub fn append_blocking(&self, payload: Bytes) -> Result<AppendOutcome, StoreError> {
        let (sender, receiver) = sync_channel(1);
        self.append(payload, Box::new(move |result| drop(sender.send(result))));
        receiver.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// Queues readings of schemaless sensors. Calls `done` once: at once if they are refused or there is no room, else from the journal thread when
    /// they are durable or could not be written. A reading is identified by its sensor and time: if it is sent again it counts once, and the later
    /// value counts.
    pub fn append_readings(&self, source: &str, readings: Vec<Reading>, done: AppendCallback) {
        self.engine().appender.append_readings(source, readings, done)
    }

    /// Receives everything that becomes durable from now on, one item for each group commit. At most `bound` items wait for the receiver; further
    /// ones are dropped for it and counted.
    pub fn subscribe(&self, bound: usize) -> Receiver<Arc<[LiveItem]>> {
        self.engine().subscribers.subscribe(bound)
    }
}
