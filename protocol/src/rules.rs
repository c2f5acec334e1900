//! Which variant of the protocol is explored: the mode of acknowledgement, and at most one fault.

/// When a batch is acknowledged: the setting `ack` of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Acknowledgement {
    /// After the fsync of the server's own journal.
    Journal,
    /// After the record is at a quorum in the database and the run was alive after that.
    Quorum,
}

/// What a server does with its local store when it begins a run in the mode `quorum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recovery {
    /// Discards what is not uploaded: the journal in the database has every acknowledged batch.
    Discard,
    /// Goes on with it, unless it missed a cut, and knows only the batches whose readings it still has.
    Keep,
}

/// A rule that is broken on purpose. Each one must give a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `quorum`: acknowledges when the insert returned, without reading the server's row after it.
    NoCheckAfterInsert,
    /// The `commits` row is written before the chunk rows are at a quorum.
    CommitBeforeRows,
    /// A snapshot reads the newest stamps before it pins the local parts.
    VectorBeforeLocalPart,
    /// A deletion returns although a live server did not confirm and was not fenced.
    DeletionDoesNotWait,
    /// A server reports its part of a deletion as flushed before `received` says so.
    FlushedBeforeReceived,
    /// A server that comes back serves and uploads before it applied the cuts that it missed.
    UploadBeforeCuts,
    /// A scan of a fenced run's journal ends at the first missing record.
    ScanStopsAtFirstGap,
    /// A batch that is known but not yet checked is acknowledged when it is repeated.
    AcknowledgeUnchecked,
    /// `received` is written before the upload is committed.
    ReceivedBeforeCommit,
    /// A deletion writes `received` for batches that are only in the local store.
    ReceivedOfLocalStore,
    /// A deletion has one phase: a server confirms it without waiting until all servers wrote `received`.
    OnePhaseDeletion,
    /// A scan begins at record 0, although records at the beginning were deleted.
    ScanFromZero,
    /// A scan does not read the first record's number again when it ends.
    ScanReadsLowOnce,
    /// The row of a new run replaces the row of the run before: nobody scans that run's journal.
    NewRunReplacesRow,
    /// A snapshot counts a fenced run as finished before its journal was adopted.
    FencedCountsAsAdopted,
    /// A server answers from its local store without reading whether its run is alive.
    ReaderIgnoresFence,
    /// A server whose run was fenced goes on to write `received` for its upload.
    ReceivedWithoutCheck,
    /// `quorum`: a server that missed a cut goes on with what its local store has.
    KeepAfterMissedCut,
    /// A snapshot keeps one newest stamp for each server instead of one for each run.
    VectorOfServer,
    /// Stamps do not contain the run: after the loss of a disk a stamp is used twice.
    StampWithoutRun,
    /// A deletion does not wait until fenced runs are adopted.
    DeletionIgnoresFenced,
    /// A server decides what a cut hides before it reads `received` again.
    CloseBeforeReceived,
    /// A server removes deleted readings from its local store instead of uploading them: their numbers are in no `received`.
    CutLocalStore,
    /// A server raises the number of its first record after it deleted the records below.
    DeleteBeforeLow,
    /// A server appends what it adopts to its own local store and journal, instead of uploading it at once.
    AdoptIntoLocalStore,
}

impl Fault {
    pub const ALL: [Self; 25] = [
        Self::NoCheckAfterInsert,
        Self::CommitBeforeRows,
        Self::VectorBeforeLocalPart,
        Self::DeletionDoesNotWait,
        Self::FlushedBeforeReceived,
        Self::UploadBeforeCuts,
        Self::ScanStopsAtFirstGap,
        Self::AcknowledgeUnchecked,
        Self::ReceivedBeforeCommit,
        Self::ReceivedOfLocalStore,
        Self::OnePhaseDeletion,
        Self::ScanFromZero,
        Self::ScanReadsLowOnce,
        Self::NewRunReplacesRow,
        Self::FencedCountsAsAdopted,
        Self::ReaderIgnoresFence,
        Self::ReceivedWithoutCheck,
        Self::KeepAfterMissedCut,
        Self::VectorOfServer,
        Self::StampWithoutRun,
        Self::DeletionIgnoresFenced,
        Self::CloseBeforeReceived,
        Self::CutLocalStore,
        Self::DeleteBeforeLow,
        Self::AdoptIntoLocalStore,
    ];
}

/// The variant of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    pub acknowledgement: Acknowledgement,
    pub recovery: Recovery,
    /// Record n is begun only after record n - `window` returned; so many missing records in a row end a scan.
    pub window: u8,
    pub fault: Option<Fault>,
}

impl Rules {
    pub fn new(acknowledgement: Acknowledgement) -> Self {
        Self { acknowledgement, recovery: Recovery::Discard, window: 2, fault: None }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub fn is_quorum(&self) -> bool {
        self.acknowledgement == Acknowledgement::Quorum
    }

    /// Whether the local store is empty after the end of a run.
    pub fn discards(&self) -> bool {
        self.is_quorum() && self.recovery == Recovery::Discard && !self.has(Fault::KeepAfterMissedCut)
    }
}
