//! A model of the database that the servers share: rows changed by conditional updates, and plain rows whose writes may take effect late.
//!
//! A plain write is in flight until the model applies it. It can stay in flight after its server crashed, and then be applied at any later
//! time or never. A read sees what was applied; where a read could see a write in flight as well, the caller decides.

use crate::batches::BatchSet;

/// The most servers of one run of the model.
pub const SERVERS_MAX: usize = 4;

/// One start of a server. Runs of a server are numbered by conditional updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub server: u8,
    pub number: u8,
}

/// The state of a run in the table `servers`, changed by conditional updates only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunState {
    Alive,
    /// It acknowledges nothing more. Its journal may have batches that are nowhere else.
    Fenced,
    /// All that it acknowledged is in committed uploads, or in the local store of a later run.
    Adopted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunRow {
    pub id: RunId,
    pub state: RunState,
    /// The first record of its journal that may not be deleted.
    pub low: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordState {
    InFlight,
    Present,
    Deleted,
}

/// A record of the table `journal`. The model has one batch in each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalRecord {
    pub run: RunId,
    pub n: u8,
    pub batch: u8,
    pub state: RecordState,
}

/// Orders the uploads of a server: the run, then a counter in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub run: u8,
    pub counter: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommitRow {
    Absent,
    InFlight,
    Committed,
}

/// The rows of one upload in `chunks`, and its row in `commits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upload {
    pub server: u8,
    pub stamp: Stamp,
    pub content: BatchSet,
    /// The chunk rows that are at a quorum; the others may be applied later or never.
    pub applied: BatchSet,
    pub commit: CommitRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutState {
    /// Servers flush their local stores.
    Pending,
    /// All that was received before is in `received`; servers apply the cut.
    Active,
    /// The deletion has returned.
    Done,
}

/// A deletion as the servers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CutRow {
    pub covered: BatchSet,
    pub state: CutState,
    /// The run of each server that flushed its local store for this cut, plus one; 0: none.
    pub flushed: [u8; SERVERS_MAX],
    /// The newest stamp of each server that this cut hides; none: all of them.
    pub upto: [Option<Stamp>; SERVERS_MAX],
    /// Writes of `upto` whose server crashed while they were in flight.
    pub late_upto: [Option<Stamp>; SERVERS_MAX],
}

impl CutRow {
    pub fn new(covered: BatchSet) -> Self {
        Self {
            covered,
            state: CutState::Pending,
            flushed: [0; SERVERS_MAX],
            upto: [None; SERVERS_MAX],
            late_upto: [None; SERVERS_MAX],
        }
    }

    pub fn hides(&self, server: u8, stamp: Stamp) -> bool {
        self.upto[usize::from(server)].is_none_or(|upto| stamp <= upto)
    }
}

/// The newest committed stamps, as a snapshot keeps them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vector {
    newest: Vec<(u8, Stamp)>,
    /// The runs of a server are one: a fault.
    is_of_servers: bool,
}

impl Vector {
    pub(crate) fn exchange_servers(&mut self) {
        self.newest.iter_mut().for_each(|(server, _)| *server = 1 - *server);
        self.newest.sort_unstable();
    }

    pub fn includes(&self, upload: &Upload) -> bool {
        self.newest.iter().any(|(server, newest)| {
            *server == upload.server
                && (self.is_of_servers || newest.run == upload.stamp.run)
                && upload.stamp <= *newest
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Database {
    /// The runs of all servers, sorted by id.
    pub runs: Vec<RunRow>,
    /// Sorted by run and number.
    pub records: Vec<JournalRecord>,
    /// Sorted by server and stamp.
    pub uploads: Vec<Upload>,
    /// The union of `received` over servers.
    pub received: BatchSet,
    /// Writes of `received` whose server crashed while they were in flight.
    pub late_received: BatchSet,
    pub cuts: Vec<CutRow>,
}

impl Database {
    pub fn run(&self, id: RunId) -> Option<&RunRow> {
        self.runs.iter().find(|row| row.id == id)
    }

    pub fn run_mut(&mut self, id: RunId) -> Option<&mut RunRow> {
        self.runs.iter_mut().find(|row| row.id == id)
    }

    pub fn is_alive(&self, id: RunId) -> bool {
        self.run(id).is_some_and(|row| row.state == RunState::Alive)
    }

    pub fn runs_of(&self, server: u8) -> impl Iterator<Item = &RunRow> {
        self.runs.iter().filter(move |row| row.id.server == server)
    }

    /// Inserts the next run of a server, and gives the run before another state in the same conditional update.
    pub fn claim(&mut self, server: u8, before: RunState) -> RunId {
        for row in self.runs.iter_mut().filter(|row| row.id.server == server) {
            row.state = row.state.max(before);
        }
        let number = self.runs_of(server).count() as u8;
        let id = RunId { server, number };
        self.runs.push(RunRow { id, state: RunState::Alive, low: 0 });
        self.runs.sort_unstable();
        id
    }

    pub fn records_of(&self, run: RunId) -> impl Iterator<Item = &JournalRecord> {
        self.records.iter().filter(move |record| record.run == run)
    }

    pub fn record(&self, run: RunId, n: u8) -> Option<&JournalRecord> {
        self.records.iter().find(|record| record.run == run && record.n == n)
    }

    /// Begins the insert of the next record of a run.
    pub fn begin_record(&mut self, run: RunId, batch: u8) {
        let n = self.records_of(run).count() as u8;
        self.records.push(JournalRecord { run, n, batch, state: RecordState::InFlight });
        self.records.sort_unstable();
    }

    /// Begins an upload; false if another upload has this key with other readings.
    pub fn begin_upload(&mut self, server: u8, stamp: Stamp, content: BatchSet) -> bool {
        let upload = Upload { server, stamp, content, applied: BatchSet::EMPTY, commit: CommitRow::Absent };
        match self.uploads.binary_search_by_key(&(server, stamp), |upload| (upload.server, upload.stamp)) {
            Ok(_) => false,
            Err(place) => {
                self.uploads.insert(place, upload);
                true
            }
        }
    }

    pub fn upload(&self, server: u8, stamp: Stamp) -> Option<&Upload> {
        self.uploads.iter().find(|upload| upload.server == server && upload.stamp == stamp)
    }

    pub fn upload_mut(&mut self, server: u8, stamp: Stamp) -> Option<&mut Upload> {
        self.uploads.iter_mut().find(|upload| upload.server == server && upload.stamp == stamp)
    }

    /// The newest counter that a run used in a stamp.
    pub fn newest_counter(&self, run: RunId) -> u8 {
        let of_run = self.uploads.iter().filter(|upload| upload.server == run.server && upload.stamp.run == run.number);
        of_run.map(|upload| upload.stamp.counter).max().unwrap_or(0)
    }

    /// The newest committed stamps; a read can see commits in flight.
    pub fn vector(&self, sees_in_flight: bool, is_of_servers: bool) -> Vector {
        let is_seen = |upload: &&Upload| match upload.commit {
            CommitRow::Absent => false,
            CommitRow::InFlight => sees_in_flight,
            CommitRow::Committed => true,
        };
        let mut newest: Vec<(u8, Stamp)> = Vec::new();
        for upload in self.uploads.iter().filter(is_seen) {
            let same = |(server, stamp): &&mut (u8, Stamp)| {
                *server == upload.server && (is_of_servers || stamp.run == upload.stamp.run)
            };
            match newest.iter_mut().find(same) {
                Some((_, stamp)) => *stamp = upload.stamp.max(*stamp),
                None => newest.push((upload.server, upload.stamp)),
            }
        }
        Vector { newest, is_of_servers }
    }

    /// The batches of an upload that no cut hides.
    pub fn shown(&self, upload: &Upload) -> BatchSet {
        Self::shown_with(&self.cuts, upload)
    }

    fn shown_with(cuts: &[CutRow], upload: &Upload) -> BatchSet {
        let cuts = cuts.iter().filter(|cut| cut.hides(upload.server, upload.stamp));
        cuts.fold(upload.content, |shown, cut| shown.without(cut.covered))
    }

    /// Readings in chunk rows that a snapshot shows, and those that rows in flight could add to it later.
    pub fn visible(&self, vector: &Vector) -> (BatchSet, BatchSet) {
        self.visible_with(vector, &self.cuts)
    }

    /// The same with cuts that were read earlier.
    pub fn visible_with(&self, vector: &Vector, cuts: &[CutRow]) -> (BatchSet, BatchSet) {
        let included = self.uploads.iter().filter(|upload| vector.includes(upload));
        included.fold((BatchSet::EMPTY, BatchSet::EMPTY), |(now, later), upload| {
            let shown = Self::shown_with(cuts, upload);
            (now.with(shown.common(upload.applied)), later.with(shown))
        })
    }

    /// Readings that every later snapshot shows from chunk rows alone.
    pub fn committed(&self) -> BatchSet {
        let committed = self.uploads.iter().filter(|upload| upload.commit == CommitRow::Committed);
        committed.fold(BatchSet::EMPTY, |all, upload| all.with(self.shown(upload).common(upload.applied)))
    }

    /// Batches in records that a scan of a run that is not adopted can find.
    pub fn journalled(&self) -> BatchSet {
        let is_found = |record: &&JournalRecord| {
            record.state == RecordState::Present
                && self.run(record.run).is_some_and(|row| row.state != RunState::Adopted && record.n >= row.low)
        };
        BatchSet::of(self.records.iter().filter(is_found).map(|record| record.batch))
    }
}
