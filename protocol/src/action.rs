//! What can happen next in a world.

use crate::batches::BatchSet;
use crate::database::{CommitRow, CutRow, CutState, RecordState, RunId, RunState, Stamp};
use crate::rules::{Fault, Rules};
use crate::server::{CutProgress, Process, Reception, Server, UploadSource, UploadStep};
use crate::world::{Bounds, World};

/// One step of one part of the system. A pause is a server that takes no step; a timeout, a repetition and a delay of a
/// message are `Deliver` at another time or another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Deliver { server: u8, batch: u8 },
    InsertApplied { run: RunId, n: u8 },
    CheckInserts { server: u8 },
    Acknowledge { server: u8, batch: u8 },
    BeginUpload { server: u8 },
    RowApplied { server: u8, stamp: Stamp, batch: u8 },
    CommitApplied { server: u8, stamp: Stamp },
    CheckUpload { server: u8 },
    ReceivedApplied { server: u8 },
    LateReceivedApplied,
    RaiseLow { server: u8, low: u8 },
    DeleteRecords { server: u8, below: u8 },
    Crash { server: u8, loses_disk: bool },
    NoticeFence { server: u8 },
    ClaimRun { server: u8 },
    ReadCuts { server: u8 },
    Fence { run: RunId },
    BeginScan { server: u8, run: RunId },
    ScanRecord { server: u8, sees_in_flight: bool },
    EndScan { server: u8 },
    BeginDeletion { cut: usize },
    SeeCut { server: u8, cut: usize },
    ActivateCut { cut: usize },
    CloseCut { server: u8, cut: usize },
    UptoApplied { server: u8, cut: usize },
    LateUptoApplied { server: u8, cut: usize },
    BeginSnapshot { reader: u8, targets: BatchSet },
    PinLocalPart { server: u8 },
    ReadVector { sees_in_flight: bool },
    FinishSnapshot,
}

impl World {
    /// Everything that can happen in this world.
    pub fn actions(&self, bounds: &Bounds, rules: &Rules, actions: &mut Vec<Action>) {
        for server in &self.servers {
            self.disturbances(server, bounds, rules, actions);
            if server.is_serving() {
                self.adoption_steps(server, bounds, rules, actions);
                self.reception(server, bounds, rules, actions);
                self.journal_steps(server, rules, actions);
                self.scan_steps(server, rules, actions);
            }
            if server.process != Process::Down {
                self.upload_steps(server, rules, actions);
                self.cut_steps(server, rules, actions);
            }
        }
        self.database_steps(rules, actions);
        self.deletion_steps(bounds, actions);
        self.snapshot_steps(bounds, rules, actions);
    }

    fn disturbances(&self, server: &Server, bounds: &Bounds, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        if server.process == Process::Down {
            if self.database.runs_of(name).count() < usize::from(bounds.runs) {
                actions.push(Action::ClaimRun { server: name });
            }
            return;
        }
        if self.remaining.crashes > 0 {
            actions.push(Action::Crash { server: name, loses_disk: false });
            if self.remaining.losses > 0 && !rules.discards() {
                actions.push(Action::Crash { server: name, loses_disk: true });
            }
        }
        if server.process == Process::Claimed {
            actions.push(Action::ReadCuts { server: name });
        }
        if !self.database.is_alive(server.run) {
            actions.push(Action::NoticeFence { server: name });
        }
    }

    fn reception(&self, server: &Server, bounds: &Bounds, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        let is_new = |batch: u8| !self.has_acknowledged(name, batch, rules);
        for batch in 0..bounds.batches {
            let is_useful = match server.receive(batch, rules) {
                Reception::Acknowledge => is_new(batch),
                Reception::Wait => false,
                Reception::Append => {
                    let has_room = !rules.is_quorum() || self.has_room_in_window(server.run, rules);
                    has_room && (self.remaining.repeats > 0 || !self.history.arrived.contains(batch))
                }
            };
            if is_useful {
                actions.push(Action::Deliver { server: name, batch });
            }
        }
        if rules.has(Fault::NoCheckAfterInsert) {
            let present = self.database.records_of(server.run).filter(|record| record.state == RecordState::Present);
            let batches = present.map(|record| record.batch).filter(|batch| is_new(*batch));
            actions.extend(batches.map(|batch| Action::Acknowledge { server: name, batch }));
        } else {
            let batches = server.checked.iter().filter(|batch| is_new(*batch));
            actions.extend(batches.map(|batch| Action::Acknowledge { server: name, batch }));
        }
    }

    /// Record n is begun only after record n - window returned.
    fn has_room_in_window(&self, run: RunId, rules: &Rules) -> bool {
        let n = self.database.records_of(run).count() as u8;
        let before = n.checked_sub(rules.window).and_then(|n| self.database.record(run, n));
        before.is_none_or(|record| record.state != RecordState::InFlight)
    }

    fn journal_steps(&self, server: &Server, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        let returned = |state: RecordState| state != RecordState::InFlight;
        let mut present = self.database.records_of(server.run).filter(|record| record.state == RecordState::Present);
        let is_unchecked = |batch| !server.checked.contains(batch) && !self.has_acknowledged(name, batch, rules);
        if present.any(|record| is_unchecked(record.batch)) && self.database.is_alive(server.run) {
            actions.push(Action::CheckInserts { server: name });
        }
        let Some(row) = self.database.run(server.run).filter(|_| rules.is_quorum()) else { return };
        let is_needless = |n: &u8| {
            let record = self.database.record(server.run, *n);
            record.is_some_and(|record| returned(record.state) && !server.local().contains(record.batch))
        };
        let needless = (row.low..).take_while(is_needless).count() as u8 + row.low;
        let deletes = |below: u8| {
            let mut records = self.database.records_of(server.run);
            let is_left = records.any(|record| record.n < below && record.state == RecordState::Present);
            is_left.then_some(Action::DeleteRecords { server: name, below })
        };
        if rules.has(Fault::DeleteBeforeLow) {
            actions.extend(deletes(needless));
        } else {
            actions.extend((needless > row.low).then_some(Action::RaiseLow { server: name, low: needless }));
            actions.extend(deletes(row.low));
        }
    }

    fn adoption_steps(&self, server: &Server, bounds: &Bounds, rules: &Rules, actions: &mut Vec<Action>) {
        let is_adopting = |server: &&Server| {
            let is_uploading = server.upload.is_some_and(|task| matches!(task.source, UploadSource::Journal(_)));
            server.scan.is_some() || is_uploading
        };
        let adopters = self.servers.iter().filter(is_adopting).count();
        if rules.is_quorum() && !is_adopting(&server) && adopters < usize::from(bounds.adopters) {
            let fenced = self.database.runs.iter().filter(|row| row.state == RunState::Fenced);
            let others = fenced.filter(|row| row.id != server.run);
            let name = server.run.server;
            actions.extend(others.map(|row| Action::BeginScan { server: name, run: row.id }));
        }
    }

    fn scan_steps(&self, server: &Server, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        let Some(scan) = &server.scan else { return };
        // Nothing is behind the last record: the reads that find nothing there make no difference.
        let records = self.database.records_of(scan.run).count() as u8;
        if scan.is_at_end(rules) || scan.next >= records {
            if server.may_upload() {
                actions.push(Action::EndScan { server: name });
            }
            return;
        }
        actions.push(Action::ScanRecord { server: name, sees_in_flight: false });
        let record = self.database.record(scan.run, scan.next);
        if record.is_some_and(|record| record.state == RecordState::InFlight) {
            actions.push(Action::ScanRecord { server: name, sees_in_flight: true });
        }
    }

    fn upload_steps(&self, server: &Server, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        match server.upload.map(|task| task.step) {
            None if server.may_upload() && !server.head.is_empty() => {
                actions.push(Action::BeginUpload { server: name })
            }
            Some(UploadStep::Check) if self.database.is_alive(server.run) || rules.has(Fault::ReceivedWithoutCheck) => {
                actions.push(Action::CheckUpload { server: name });
            }
            Some(UploadStep::Received) => actions.push(Action::ReceivedApplied { server: name }),
            _ => {}
        }
    }

    fn cut_steps(&self, server: &Server, rules: &Rules, actions: &mut Vec<Action>) {
        let name = server.run.server;
        for (cut, row) in self.database.cuts.iter().enumerate() {
            match server.cuts[cut] {
                CutProgress::Unseen if server.is_serving() => actions.push(Action::SeeCut { server: name, cut }),
                CutProgress::Flushed
                    if server.process != Process::Claimed
                        && (row.state != CutState::Pending || rules.has(Fault::OnePhaseDeletion)) =>
                {
                    actions.push(Action::CloseCut { server: name, cut });
                }
                CutProgress::Closed => actions.push(Action::UptoApplied { server: name, cut }),
                _ => {}
            }
        }
    }

    /// Plain writes in flight are applied, also after their server crashed.
    fn database_steps(&self, rules: &Rules, actions: &mut Vec<Action>) {
        let in_flight = self.database.records.iter().filter(|record| record.state == RecordState::InFlight);
        actions.extend(in_flight.map(|record| Action::InsertApplied { run: record.run, n: record.n }));
        for upload in &self.database.uploads {
            let (server, stamp) = (upload.server, upload.stamp);
            let open = upload.content.without(upload.applied);
            let is_first = upload.commit == CommitRow::InFlight && rules.has(Fault::CommitBeforeRows);
            if !is_first {
                actions.extend(open.iter().map(|batch| Action::RowApplied { server, stamp, batch }));
            }
            if upload.commit == CommitRow::InFlight {
                actions.push(Action::CommitApplied { server, stamp });
            }
        }
        if !self.database.late_received.is_within(self.database.received) {
            actions.push(Action::LateReceivedApplied);
        }
        for (cut, row) in self.database.cuts.iter().enumerate() {
            let late = (0..self.servers.len()).filter(|server| row.late_upto[*server] > row.upto[*server]);
            actions.extend(late.map(|server| Action::LateUptoApplied { server: server as u8, cut }));
        }
        if self.remaining.fences > 0 {
            let alive = self.database.runs.iter().filter(|row| row.state == RunState::Alive);
            actions.extend(alive.map(|row| Action::Fence { run: row.id }));
        }
    }

    fn deletion_steps(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.database.cuts.len() < bounds.cuts.len() {
            actions.push(Action::BeginDeletion { cut: self.database.cuts.len() });
        }
        for (cut, row) in self.database.cuts.iter().enumerate() {
            if row.state == CutState::Pending && self.has_all_servers(cut) {
                actions.push(Action::ActivateCut { cut });
            }
        }
    }

    pub(crate) fn has_all_servers(&self, cut: usize) -> bool {
        self.waited[cut].count_ones() as usize == self.servers.len()
    }

    /// First phase: whatever the server's runs received before the deletion is in `received`.
    pub(crate) fn is_flushed(&self, cut: &CutRow, server: u8, rules: &Rules) -> bool {
        self.database.runs_of(server).all(|row| match row.state {
            RunState::Alive => {
                cut.flushed[usize::from(server)] == row.id.number + 1 || rules.has(Fault::DeletionDoesNotWait)
            }
            RunState::Fenced => !rules.is_quorum() || rules.has(Fault::DeletionIgnoresFenced),
            RunState::Adopted => true,
        })
    }

    /// Second phase: the server's local store is without the deleted readings, or it is fenced and applies the cut before it serves.
    pub(crate) fn is_confirmed(&self, cut: &CutRow, server: u8, rules: &Rules) -> bool {
        let has_upto = cut.upto[usize::from(server)].is_some() || rules.has(Fault::DeletionDoesNotWait);
        has_upto || self.database.runs_of(server).all(|row| row.state != RunState::Alive)
    }

    fn snapshot_steps(&self, bounds: &Bounds, rules: &Rules, actions: &mut Vec<Action>) {
        let Some(snapshot) = &self.snapshot else {
            if bounds.snapshots {
                let may_answer = |server: &&Server| {
                    let is_alive = self.database.is_alive(server.run) || rules.has(Fault::ReaderIgnoresFence);
                    server.is_serving() && is_alive
                };
                // Whether a deleted reading is shown is seen in each world; whether an owed one is missing only in the course of a snapshot.
                let committed = if rules.fault.is_none() { self.database.committed() } else { BatchSet::EMPTY };
                let owed = self.history.acknowledged().without(self.hideable()).without(committed);
                let targets = if bounds.splits_steps { self.history.arrived } else { owed };
                for server in self.servers.iter().filter(may_answer) {
                    let reader = server.run.server;
                    let begin = |batch| Action::BeginSnapshot { reader, targets: BatchSet::of([batch]) };
                    actions.extend(targets.iter().map(begin));
                }
            }
            return;
        };
        // The reader's own part first, then the others in the order of their names.
        let others = (0..self.servers.len() as u8).filter(|server| *server != snapshot.reader);
        let mut all = std::iter::once(snapshot.reader).chain(others);
        match (all.find(|server| snapshot.is_open(*server)), &snapshot.vector) {
            (Some(server), _) => actions.push(Action::PinLocalPart { server }),
            (None, Some(_)) => actions.push(Action::FinishSnapshot),
            (None, None) => {
                actions.push(Action::ReadVector { sees_in_flight: false });
                if self.database.uploads.iter().any(|upload| upload.commit == CommitRow::InFlight) {
                    actions.push(Action::ReadVector { sees_in_flight: true });
                }
            }
        }
    }

    /// Whether a further acknowledgement would change nothing.
    pub(crate) fn has_acknowledged(&self, server: u8, batch: u8, rules: &Rules) -> bool {
        self.history.acknowledged[self.acknowledger(server, rules)].contains(batch)
    }

    /// The place of an acknowledgement in the history: in the mode `quorum` it does not matter whose it was.
    pub(crate) fn acknowledger(&self, server: u8, rules: &Rules) -> usize {
        if rules.is_quorum() { crate::database::SERVERS_MAX - 1 } else { usize::from(server) }
    }

    pub(crate) fn acknowledge(&mut self, server: u8, batch: u8, rules: &Rules) {
        let place = self.acknowledger(server, rules);
        let acknowledged = &mut self.history.acknowledged[place];
        *acknowledged = acknowledged.with(BatchSet::of([batch]));
    }
}
