//! A server: what it receives, stores, uploads, adopts and cuts. No I/O: the caller reads and writes the database.

use crate::batches::BatchSet;
use crate::database::{RecordState, RunId, RunRow, SERVERS_MAX, Stamp};
use crate::rules::{Fault, Rules};

/// The most deletions of one run of the model.
pub const CUTS_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    Down,
    /// It has claimed a run and did not read the cuts yet.
    Claimed,
    /// It applies the cuts that it missed. It receives, uploads and answers nothing.
    Returning,
    Serving,
}

/// How far a server is with one deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutProgress {
    Unseen,
    /// These batches are not yet uploaded.
    Flushing(BatchSet),
    /// The database has the mark that the local store was flushed.
    Flushed,
    /// These batches arrived before the server read `received` again. They are not yet uploaded.
    Closing(BatchSet),
    /// They are uploaded, the write of `upto` is in flight.
    Closed,
    Confirmed,
}

/// What a server uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UploadSource {
    /// The oldest sealed block of the local store.
    Block,
    /// The records of a fenced run.
    Journal(RunId),
}

/// The step of an upload that is in flight or comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UploadStep {
    Rows,
    Commit,
    /// Reads whether the own run is alive.
    Check,
    Received,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadTask {
    pub source: UploadSource,
    pub stamp: Stamp,
    pub content: BatchSet,
    pub step: UploadStep,
}

/// The scan of a fenced run's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalScan {
    pub run: RunId,
    pub low: u8,
    pub next: u8,
    pub missing: u8,
    pub found: BatchSet,
}

/// What a server does with a batch that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    Acknowledge,
    /// It is known and waits for its check.
    Wait,
    /// Append it, and in the mode `quorum` insert its record.
    Append,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    pub process: Process,
    pub run: RunId,
    /// Local store: readings that are not in the block that is uploaded.
    pub head: BatchSet,
    /// Local store: the numbers that it received.
    pub known: BatchSet,
    /// `received` as this server read it last, and its own uploads: in committed uploads for certain.
    pub uploaded: BatchSet,
    /// Batches whose insert returned before a check that found the run alive.
    pub checked: BatchSet,
    pub upload: Option<UploadTask>,
    pub scan: Option<JournalScan>,
    pub cuts: [CutProgress; CUTS_MAX],
}

impl Server {
    pub fn new(run: RunId) -> Self {
        Self {
            process: Process::Serving,
            run,
            head: BatchSet::EMPTY,
            known: BatchSet::EMPTY,
            uploaded: BatchSet::EMPTY,
            checked: BatchSet::EMPTY,
            upload: None,
            scan: None,
            cuts: [CutProgress::Unseen; CUTS_MAX],
        }
    }

    pub fn is_serving(&self) -> bool {
        self.process == Process::Serving
    }

    /// The readings of the local store: head and the block that is uploaded.
    pub fn local(&self) -> BatchSet {
        match self.upload {
            Some(UploadTask { source: UploadSource::Block, content, .. }) => self.head.with(content),
            _ => self.head,
        }
    }

    /// Rule 1. In the mode `journal` a known batch is on disk; in the mode `quorum` only `uploaded` is certain.
    pub fn receive(&self, batch: u8, rules: &Rules) -> Reception {
        if self.uploaded.contains(batch) || (self.known.contains(batch) && !rules.is_quorum()) {
            Reception::Acknowledge
        } else if self.known.contains(batch) {
            let is_early = rules.has(Fault::AcknowledgeUnchecked);
            if is_early { Reception::Acknowledge } else { Reception::Wait }
        } else {
            Reception::Append
        }
    }

    pub fn append(&mut self, batch: u8) {
        self.head = self.head.with(BatchSet::of([batch]));
        self.known = self.known.with(BatchSet::of([batch]));
    }

    /// Whether the server may begin an upload: not between the end of a cut's flush and its `upto`.
    pub fn may_upload(&self) -> bool {
        let is_up = self.is_serving() || self.process == Process::Returning;
        is_up && self.upload.is_none() && !self.cuts.contains(&CutProgress::Closed)
    }

    pub fn begin_upload(&mut self, source: UploadSource, stamp: Stamp, content: BatchSet) {
        if source == UploadSource::Block {
            self.head = self.head.without(content);
        }
        self.upload = Some(UploadTask { source, stamp, content, step: UploadStep::Rows });
    }

    /// The upload is in `received`: its batches leave the local store.
    pub fn end_upload(&mut self) -> Option<UploadSource> {
        let task = self.upload.take()?;
        self.uploaded = self.uploaded.with(task.content);
        Some(task.source)
    }

    /// The end of the process: what was in memory is lost, the local store stays unless the rules discard it.
    pub fn stop(&mut self, rules: &Rules) {
        let (head, known) = (self.local(), self.known);
        *self = Self::new(self.run);
        self.process = Process::Down;
        if !rules.discards() {
            self.head = head;
            self.known = if rules.is_quorum() { head } else { known };
        }
    }

    /// The local store is lost or replaced by an empty one.
    pub fn lose_disk(&mut self) {
        self.head = BatchSet::EMPTY;
        self.known = BatchSet::EMPTY;
    }

    /// Takes out of a flush what has left the local store; true if the flush has just ended.
    pub fn flush_progress(&mut self, cut: usize) -> bool {
        let local = self.local();
        let (CutProgress::Flushing(open) | CutProgress::Closing(open)) = &mut self.cuts[cut] else { return false };
        *open = open.common(local);
        open.is_empty()
    }
}

impl JournalScan {
    pub fn new(row: &RunRow, rules: &Rules) -> Self {
        let low = if rules.has(Fault::ScanFromZero) { 0 } else { row.low };
        Self { run: row.id, low, next: low, missing: 0, found: BatchSet::EMPTY }
    }

    /// Takes the answer to the read of record `next`.
    pub fn read(&mut self, record: Option<(u8, RecordState)>, sees_in_flight: bool) {
        self.next += 1;
        let batch = record.and_then(|(batch, state)| match state {
            RecordState::Present => Some(batch),
            RecordState::InFlight => sees_in_flight.then_some(batch),
            RecordState::Deleted => None,
        });
        match batch {
            Some(batch) => {
                self.found = self.found.with(BatchSet::of([batch]));
                self.missing = 0;
            }
            None => self.missing += 1,
        }
    }

    pub fn is_at_end(&self, rules: &Rules) -> bool {
        let bound = if rules.has(Fault::ScanStopsAtFirstGap) { 1 } else { rules.window };
        self.missing >= bound
    }
}

/// Runs of all servers as a snapshot reads them: the number of the alive run plus one; 0: none.
pub type AliveRuns = [u8; SERVERS_MAX];
