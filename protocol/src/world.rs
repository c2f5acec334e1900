//! The whole system in one value: servers, database, a snapshot, and the history that the invariants need.

use crate::batches::BatchSet;
use crate::database::{CutState, Database, RunId, RunState, SERVERS_MAX};
use crate::rules::{Acknowledgement, Fault, Rules};
use crate::server::{CUTS_MAX, Process, Server};
use crate::snapshot::SnapshotTask;

/// What is explored: sizes, and how often each disturbance may occur. Messages may be repeated, delayed and reordered without a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub servers: u8,
    /// How many of the servers have no run at the beginning, and may join.
    pub joins: u8,
    pub batches: u8,
    /// The batches that each deletion covers.
    pub cuts: Vec<BatchSet>,
    pub crashes: u8,
    /// How many of the crashes may lose the local store.
    pub losses: u8,
    pub fences: u8,
    /// How often a batch may be stored that another server, or an earlier run, stored before.
    pub repeats: u8,
    /// Whether snapshots are taken: any number, one at a time.
    pub snapshots: bool,
    /// Runs of each server, the first included.
    pub runs: u8,
    /// Servers that adopt at the same time.
    pub adopters: u8,
    /// Every step is one of its own. Without it, steps follow at once where a delay gives nothing that another order does not give as well:
    /// chunk rows and the begin of the commit after the begin of an upload; check and acknowledgement after an insert; acknowledgement
    /// after `received`.
    pub splits_steps: bool,
}

/// How often each disturbance may still occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remaining {
    pub crashes: u8,
    pub losses: u8,
    pub fences: u8,
    pub repeats: u8,
}

/// An invariant; the letters are those of `docs/protocol.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    AcknowledgedIsKept,
    CountsOnce,
    DeletedStaysDeleted,
    SnapshotIsStable,
    CompleteHasAll,
    NoLateAcknowledgement,
}

impl Invariant {
    pub const ALL: [Self; 6] = [
        Self::AcknowledgedIsKept,
        Self::CountsOnce,
        Self::DeletedStaysDeleted,
        Self::SnapshotIsStable,
        Self::CompleteHasAll,
        Self::NoLateAcknowledgement,
    ];
}

/// What happened, for the invariants only: no rule reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct History {
    /// Batches that reached a server.
    pub arrived: BatchSet,
    /// Batches that each server acknowledged, without those that it lost with its disk in the mode `journal`.
    pub acknowledged: [BatchSet; SERVERS_MAX],
    /// For each deletion: what each server had acknowledged when it began.
    pub before: [[BatchSet; SERVERS_MAX]; CUTS_MAX],
    /// Of deletions that returned: what may not be visible any more.
    pub deleted: BatchSet,
    /// Of deletions that returned: what had arrived before, and may be hidden.
    pub hideable: BatchSet,
    /// Servers whose run was fenced after a deletion returned: a snapshot that began between may still ask them.
    pub fenced_late: u8,
    /// One bit for each broken invariant that was found by an action.
    pub broken: u8,
}

impl History {
    pub fn acknowledged(&self) -> BatchSet {
        self.acknowledged.iter().fold(BatchSet::EMPTY, |all, one| all.with(*one))
    }

    pub fn break_invariant(&mut self, invariant: Invariant) {
        self.broken |= 1 << invariant as u8;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    pub servers: Vec<Server>,
    pub database: Database,
    /// For each deletion: the servers that its coordinator does not wait for any more, one bit each.
    pub waited: [u8; CUTS_MAX],
    pub snapshot: Option<SnapshotTask>,
    pub history: History,
    pub remaining: Remaining,
}

impl World {
    pub fn new(bounds: &Bounds) -> Self {
        let mut database = Database::default();
        let server = |name: u8| {
            if name < bounds.servers - bounds.joins {
                return Server::new(database.claim(name, RunState::Alive));
            }
            Server { process: Process::Down, ..Server::new(RunId { server: name, number: u8::MAX }) }
        };
        let servers = (0..bounds.servers).map(server).collect();
        Self {
            servers,
            database,
            waited: [0; CUTS_MAX],
            snapshot: None,
            history: History::default(),
            remaining: Remaining {
                crashes: bounds.crashes,
                losses: bounds.losses,
                fences: bounds.fences,
                repeats: bounds.repeats,
            },
        }
    }

    /// Batches that a deletion may have hidden: those that arrived before it returned.
    pub fn hideable(&self) -> BatchSet {
        let open = self.database.cuts.iter().filter(|cut| cut.state != CutState::Done);
        let open = open.fold(BatchSet::EMPTY, |all, cut| all.with(cut.covered));
        self.history.hideable.with(open.common(self.history.arrived))
    }

    /// Acknowledged batches that are neither visible for ever nor certain to become visible, and that no deletion covers.
    pub fn lost(&self, rules: &Rules) -> BatchSet {
        let committed = self.database.committed();
        let hideable = self.hideable();
        match rules.acknowledgement {
            Acknowledgement::Quorum => {
                let journalled = self.database.journalled().without(self.database.received);
                self.history.acknowledged().without(hideable).without(committed).without(journalled)
            }
            Acknowledgement::Journal => {
                let lost = self.servers.iter().zip(&self.history.acknowledged).map(|(server, acknowledged)| {
                    acknowledged.without(hideable).without(committed).without(server.local())
                });
                lost.fold(BatchSet::EMPTY, BatchSet::with)
            }
        }
    }

    /// Deleted readings that a snapshot which began after the deletion can show.
    pub fn shown_again(&self, rules: &Rules) -> BatchSet {
        if self.history.deleted.is_empty() {
            return BatchSet::EMPTY;
        }
        let vector = self.database.vector(true, rules.has(Fault::VectorOfServer));
        let (now, later) = self.database.visible(&vector);
        let may_answer = |server: &&Server| {
            let is_fenced_late = self.history.fenced_late >> server.run.server & 1 == 1;
            let is_asked = self.database.is_alive(server.run) || is_fenced_late || rules.has(Fault::ReaderIgnoresFence);
            server.is_serving() && is_asked
        };
        let local = self.servers.iter().filter(may_answer).fold(BatchSet::EMPTY, |all, one| all.with(one.local()));
        now.with(later).with(local).common(self.history.deleted)
    }

    pub fn holds(&self, invariant: Invariant, rules: &Rules) -> bool {
        let is_kept = match invariant {
            Invariant::AcknowledgedIsKept => self.lost(rules).is_empty(),
            Invariant::DeletedStaysDeleted => self.shown_again(rules).is_empty(),
            _ => true,
        };
        is_kept && self.history.broken >> invariant as u8 & 1 == 0
    }

    fn order_key(&self, server: u8) -> impl Ord {
        let own = &self.servers[usize::from(server)];
        let runs = self.database.runs_of(server).map(|row| row.state).max();
        let is_reader = self.snapshot.as_ref().is_some_and(|snapshot| snapshot.reader == server);
        let sizes = [own.head, own.known, own.uploaded, own.checked].map(|set| set.iter().count());
        let uploads = self.database.uploads.iter().filter(|upload| upload.server == server).count();
        let records = self.database.records.iter().filter(|record| record.run.server == server).count();
        (
            own.run.number,
            own.process,
            runs,
            is_reader,
            sizes,
            uploads,
            records,
            self.waited.map(|bits| bits >> server & 1),
        )
    }

    /// The same world up to the names of servers and of batches that the same deletions cover: fewer states to explore.
    pub fn canonical(mut self, bounds: &Bounds) -> Self {
        if self.servers.len() == 2 && self.order_key(1) < self.order_key(0) {
            self.exchange_servers();
        }
        // Neighbours only, like the passes of a bubble sort: any of these worlds may stand for the others.
        for pass in 1..bounds.batches {
            for one in (pass..bounds.batches).rev() {
                let is_alike = bounds.cuts.iter().all(|cut| cut.contains(one) == cut.contains(one - 1));
                if is_alike && self.comes_first(one, one - 1) {
                    self.exchange_batches(one, one - 1);
                }
            }
        }
        self
    }
}
