//! What an action changes.

use crate::action::Action;
use crate::batches::BatchSet;
use crate::database::{CommitRow, CutRow, CutState, RecordState, RunId, RunState, SERVERS_MAX, Stamp, Upload};
use crate::rules::{Fault, Rules};
use crate::server::{CutProgress, JournalScan, Process, Reception, Server, UploadSource, UploadStep};
use crate::snapshot::SnapshotTask;
use crate::world::{Bounds, Invariant, World};

impl World {
    /// Performs an action that [`World::actions`] listed.
    pub fn perform(&mut self, action: Action, bounds: &Bounds, rules: &Rules) {
        match action {
            Action::Deliver { server, batch } => self.deliver(server, batch, rules),
            Action::InsertApplied { run, n } => {
                let records = self.database.records.iter_mut();
                let record = records.filter(|record| record.run == run && record.n == n);
                record.for_each(|record| record.state = RecordState::Present);
            }
            Action::CheckInserts { server } => self.check_inserts(server),
            Action::Acknowledge { server, batch } => {
                self.acknowledge(server, batch, rules);
                let run = self.server(server).run;
                let is_adopted = self.database.run(run).is_some_and(|row| row.state == RunState::Adopted);
                if is_adopted && self.lost(rules).contains(batch) {
                    self.history.break_invariant(Invariant::NoLateAcknowledgement);
                }
            }
            Action::RaiseLow { server, low } => {
                let run = self.server(server).run;
                self.database.run_mut(run).into_iter().for_each(|row| row.low = low);
            }
            Action::DeleteRecords { server, below } => {
                let run = self.server(server).run;
                let records = self.database.records.iter_mut().filter(|record| record.run == run && record.n < below);
                records.for_each(|record| record.state = RecordState::Deleted);
            }
            Action::Crash { server, loses_disk } => self.crash(server, loses_disk, rules),
            Action::NoticeFence { server } => self.stop(server, rules),
            Action::ClaimRun { server } => self.claim_run(server, bounds, rules),
            Action::ReadCuts { server } => self.read_cuts(server, rules),
            Action::Fence { run } => {
                self.remaining.fences -= 1;
                if !self.history.deleted.is_empty() {
                    self.history.fenced_late |= 1 << run.server;
                }
                self.database.run_mut(run).into_iter().for_each(|row| row.state = RunState::Fenced);
            }
            Action::BeginScan { server, run } => self.begin_scan(server, run, rules),
            Action::ScanRecord { server, sees_in_flight } => self.scan_record(server, sees_in_flight),
            Action::EndScan { server } => self.end_scan(server, rules),
            Action::BeginUpload { .. }
            | Action::RowApplied { .. }
            | Action::CommitApplied { .. }
            | Action::CheckUpload { .. }
            | Action::ReceivedApplied { .. }
            | Action::LateReceivedApplied => self.perform_upload(action, rules),
            Action::BeginSnapshot { reader, targets } => self.begin_snapshot(reader, targets, bounds, rules),
            Action::PinLocalPart { server } => self.pin_local_part(server),
            Action::ReadVector { sees_in_flight } => {
                let vector = self.database.vector(sees_in_flight, rules.has(Fault::VectorOfServer));
                self.snapshot.iter_mut().for_each(|snapshot| snapshot.vector = Some(vector.clone()));
                if !bounds.splits_steps {
                    self.finish_snapshot();
                }
            }
            Action::FinishSnapshot => self.finish_snapshot(),
            Action::BeginDeletion { .. }
            | Action::SeeCut { .. }
            | Action::ActivateCut { .. }
            | Action::CloseCut { .. }
            | Action::UptoApplied { .. }
            | Action::LateUptoApplied { .. } => self.perform_deletion(action, bounds, rules),
        }
        if !bounds.splits_steps {
            self.follow(action, rules);
        }
        self.mark_flushed();
        self.await_servers(rules);
    }

    /// The coordinators of deletions see what they wait for. A server counts from the first time on; the second phase ends at once, because
    /// a deletion that returns later promises less.
    fn await_servers(&mut self, rules: &Rules) {
        for cut in 0..self.database.cuts.len() {
            let row = self.database.cuts[cut];
            for server in 0..self.servers.len() as u8 {
                let is_ready = match row.state {
                    CutState::Pending => self.is_flushed(&row, server, rules),
                    CutState::Active => self.is_confirmed(&row, server, rules),
                    CutState::Done => false,
                };
                self.waited[cut] |= u8::from(is_ready) << server;
            }
            if row.state == CutState::Active && self.has_all_servers(cut) {
                self.return_deletion(cut);
            }
        }
    }

    /// Steps that may follow at once; see [`Bounds::splits_steps`].
    fn follow(&mut self, action: Action, rules: &Rules) {
        match action {
            Action::BeginUpload { server } | Action::EndScan { server } => {
                let task = self.server(server).upload.filter(|task| task.step == UploadStep::Rows);
                let changes_order = rules.has(Fault::CommitBeforeRows) || rules.has(Fault::ReceivedBeforeCommit);
                for batch in task.iter().filter(|_| !changes_order).flat_map(|task| task.content.iter()) {
                    let stamp = task.map_or(Stamp { run: 0, counter: 0 }, |task| task.stamp);
                    self.perform_upload(Action::RowApplied { server, stamp, batch }, rules);
                }
            }
            Action::InsertApplied { run, .. } => {
                let server = self.server(run.server);
                if server.is_serving() && server.run == run && self.database.is_alive(run) {
                    self.check_inserts(run.server);
                    let checked = self.server(run.server).checked;
                    checked.iter().for_each(|batch| self.acknowledge(run.server, batch, rules));
                }
            }
            Action::ReceivedApplied { server } if rules.is_quorum() => {
                let uploaded = self.server(server).uploaded;
                uploaded.iter().for_each(|batch| self.acknowledge(server, batch, rules));
            }
            _ => {}
        }
    }

    pub(crate) fn server(&self, server: u8) -> &Server {
        &self.servers[usize::from(server)]
    }

    pub(crate) fn server_mut(&mut self, server: u8) -> &mut Server {
        &mut self.servers[usize::from(server)]
    }

    fn deliver(&mut self, server: u8, batch: u8, rules: &Rules) {
        let is_repeated = self.history.arrived.contains(batch);
        self.history.arrived = self.history.arrived.with(BatchSet::of([batch]));
        match self.server(server).receive(batch, rules) {
            Reception::Acknowledge => self.acknowledge(server, batch, rules),
            Reception::Wait => {}
            Reception::Append => {
                self.remaining.repeats -= u8::from(is_repeated);
                self.server_mut(server).append(batch);
                if rules.is_quorum() {
                    let run = self.server(server).run;
                    self.database.begin_record(run, batch);
                } else {
                    self.acknowledge(server, batch, rules);
                }
            }
        }
    }

    /// The caller has seen that the run is alive.
    fn check_inserts(&mut self, server: u8) {
        let records = self.database.records_of(self.server(server).run);
        let returned = records.filter(|record| record.state == RecordState::Present).map(|record| record.batch);
        let returned = BatchSet::of(returned);
        let server = self.server_mut(server);
        server.checked = server.checked.with(returned);
    }

    fn crash(&mut self, server: u8, loses_disk: bool, rules: &Rules) {
        self.remaining.crashes -= 1;
        self.stop(server, rules);
        if !loses_disk {
            return;
        }
        self.remaining.losses -= 1;
        self.server_mut(server).lose_disk();
        if !rules.is_quorum() {
            let place = usize::from(server);
            let received = self.database.received;
            self.history.acknowledged[place] = self.history.acknowledged[place].common(received);
            for (cut, before) in self.database.cuts.iter().zip(&mut self.history.before) {
                if cut.flushed[place] == 0 {
                    before[place] = BatchSet::EMPTY;
                }
            }
        }
    }

    /// Ends a process. Its writes in flight may still be applied.
    fn stop(&mut self, server: u8, rules: &Rules) {
        self.leave_upload(server);
        let newest = self.newest_stamp(server, rules);
        let cuts = self.server(server).cuts;
        for (row, progress) in self.database.cuts.iter_mut().zip(cuts) {
            if progress == CutProgress::Closed {
                let late = &mut row.late_upto[usize::from(server)];
                *late = (*late).max(Some(newest));
            }
        }
        self.server_mut(server).stop(rules);
    }

    /// The write of `received` can be in flight when an upload ends early.
    fn leave_upload(&mut self, server: u8) {
        if let Some(task) = self.server(server).upload.filter(|task| task.step == UploadStep::Received) {
            self.database.late_received = self.database.late_received.with(task.content);
        }
    }

    fn claim_run(&mut self, server: u8, bounds: &Bounds, rules: &Rules) {
        let keeps_journal = rules.is_quorum() && !rules.has(Fault::NewRunReplacesRow);
        let before = if keeps_journal { RunState::Fenced } else { RunState::Adopted };
        let run = self.database.claim(server, before);
        let received = self.database.received;
        self.history.fenced_late &= !(1 << server);
        let server = self.server_mut(server);
        server.run = run;
        server.uploaded = received;
        server.process = if bounds.cuts.is_empty() { Process::Serving } else { Process::Claimed };
    }

    fn read_cuts(&mut self, server: u8, rules: &Rules) {
        let (rows, received) = (self.database.cuts.clone(), self.database.received);
        let place = usize::from(server);
        let server = self.server_mut(server);
        server.uploaded = server.uploaded.with(received);
        let (mut has_missed, mut missed) = (false, BatchSet::EMPTY);
        for (row, progress) in rows.iter().zip(&mut server.cuts) {
            *progress = match (row.upto[place], row.state) {
                (Some(_), _) => CutProgress::Confirmed,
                (None, CutState::Pending) => CutProgress::Unseen,
                (None, CutState::Active | CutState::Done) => CutProgress::Flushed,
            };
            if *progress == CutProgress::Flushed {
                has_missed = true;
                missed = missed.with(row.covered);
            }
        }
        // Mode `journal`: what a fenced server received is treated as received before the deletion; it cannot know.
        let hidden = if rules.is_quorum() { BatchSet::EMPTY } else { server.local().common(missed) };
        if has_missed && rules.is_quorum() && !rules.has(Fault::KeepAfterMissedCut) {
            // All that it acknowledged before is adopted by then; what it did not acknowledge may have arrived after the deletion.
            server.lose_disk();
        }
        let is_returning = has_missed && !rules.has(Fault::UploadBeforeCuts);
        server.process = if is_returning { Process::Returning } else { Process::Serving };
        self.history.hideable = self.history.hideable.with(hidden);
    }

    fn begin_scan(&mut self, server: u8, run: RunId, rules: &Rules) {
        let received = self.database.received;
        let scan = self.database.run(run).map(|row| JournalScan::new(row, rules));
        let server = self.server_mut(server);
        server.uploaded = server.uploaded.with(received);
        server.scan = scan;
    }

    fn scan_record(&mut self, server: u8, sees_in_flight: bool) {
        let Some(scan) = self.server(server).scan else { return };
        let record = self.database.record(scan.run, scan.next).map(|record| (record.batch, record.state));
        self.server_mut(server).scan.iter_mut().for_each(|scan| scan.read(record, sees_in_flight));
    }

    fn end_scan(&mut self, server: u8, rules: &Rules) {
        let Some(scan) = self.server_mut(server).scan.take() else { return };
        let Some(row) = self.database.run(scan.run).copied() else { return };
        let reads_low_again = !rules.has(Fault::ScanReadsLowOnce) && !rules.has(Fault::ScanFromZero);
        if row.low > scan.low && reads_low_again {
            self.server_mut(server).scan = Some(JournalScan::new(&row, rules));
            return;
        }
        let content = scan.found.without(self.server(server).uploaded);
        if rules.has(Fault::AdoptIntoLocalStore) && row.state == RunState::Fenced {
            self.append_adopted(server, scan, content);
            return;
        }
        if row.state == RunState::Fenced && content.is_empty() {
            self.mark_adopted(scan.run);
        } else if row.state == RunState::Fenced {
            self.begin_upload(server, UploadSource::Journal(scan.run), content, rules);
        }
    }

    /// The fault: the batches become the adopter's own, and the run counts as adopted when its check would allow to acknowledge them.
    fn append_adopted(&mut self, server: u8, scan: JournalScan, content: BatchSet) {
        let run = self.server(server).run;
        let own = BatchSet::of(self.database.records_of(run).map(|record| record.batch));
        let present = self.database.records_of(run).filter(|record| record.state == RecordState::Present);
        let present = BatchSet::of(present.map(|record| record.batch));
        if content.is_within(present) && self.database.is_alive(run) {
            self.mark_adopted(scan.run);
            return;
        }
        for batch in content.without(own).iter() {
            self.server_mut(server).append(batch);
            self.database.begin_record(run, batch);
        }
        self.server_mut(server).scan = Some(scan);
    }

    fn mark_adopted(&mut self, run: RunId) {
        let rows = self.database.run_mut(run).into_iter().filter(|row| row.state == RunState::Fenced);
        rows.for_each(|row| row.state = RunState::Adopted);
    }

    fn perform_upload(&mut self, action: Action, rules: &Rules) {
        match action {
            Action::BeginUpload { server } => {
                let content = self.server(server).head;
                self.begin_upload(server, UploadSource::Block, content, rules);
            }
            Action::RowApplied { server, stamp, batch } => {
                let Some(upload) = self.database.upload_mut(server, stamp) else { return };
                upload.applied = upload.applied.with(BatchSet::of([batch]));
                if upload.applied == upload.content {
                    let next = if rules.has(Fault::CommitBeforeRows) {
                        UploadStep::Check
                    } else if rules.has(Fault::ReceivedBeforeCommit) {
                        UploadStep::Received
                    } else {
                        UploadStep::Commit
                    };
                    self.advance_upload(server, stamp, UploadStep::Rows, next);
                }
            }
            Action::CommitApplied { server, stamp } => {
                if let Some(upload) = self.database.upload_mut(server, stamp) {
                    upload.commit = CommitRow::Committed;
                }
                if rules.has(Fault::ReceivedBeforeCommit) {
                    self.end_upload(server, Some(stamp));
                } else {
                    self.advance_upload(server, stamp, UploadStep::Commit, UploadStep::Check);
                }
            }
            Action::CheckUpload { server } => {
                let task = self.server_mut(server).upload.iter_mut();
                task.for_each(|task| task.step = UploadStep::Received);
            }
            Action::ReceivedApplied { server } => {
                let Some(task) = self.server(server).upload else { return };
                self.database.received = self.database.received.with(task.content);
                if rules.has(Fault::ReceivedBeforeCommit) {
                    self.advance_upload(server, task.stamp, UploadStep::Received, UploadStep::Commit);
                } else {
                    self.end_upload(server, None);
                }
            }
            Action::LateReceivedApplied => {
                self.database.received = self.database.received.with(self.database.late_received);
                self.database.late_received = BatchSet::EMPTY;
            }
            _ => {}
        }
    }

    fn begin_upload(&mut self, server: u8, source: UploadSource, content: BatchSet, rules: &Rules) {
        let run = self.server(server).run;
        let stamp = if rules.has(Fault::StampWithoutRun) {
            let committed = |upload: &&Upload| upload.server == server && upload.commit == CommitRow::Committed;
            let newest = self.database.uploads.iter().filter(committed).map(|upload| upload.stamp.counter).max();
            Stamp { run: 0, counter: newest.unwrap_or(0) + 1 }
        } else {
            Stamp { run: run.number, counter: self.database.newest_counter(run) + 1 }
        };
        if !self.database.begin_upload(server, stamp, content) {
            self.history.break_invariant(Invariant::CountsOnce);
            return;
        }
        self.server_mut(server).begin_upload(source, stamp, content);
        if rules.has(Fault::CommitBeforeRows) {
            self.database.upload_mut(server, stamp).into_iter().for_each(|upload| upload.commit = CommitRow::InFlight);
        }
    }

    /// A write returned: its server goes on if it still waits for it.
    fn advance_upload(&mut self, server: u8, stamp: Stamp, from: UploadStep, to: UploadStep) {
        let task = self.server_mut(server).upload.as_mut();
        let Some(task) = task.filter(|task| task.stamp == stamp && task.step == from) else { return };
        task.step = to;
        if to == UploadStep::Commit {
            self.database.upload_mut(server, stamp).into_iter().for_each(|upload| upload.commit = CommitRow::InFlight);
        }
    }

    fn end_upload(&mut self, server: u8, stamp: Option<Stamp>) {
        let is_open = |server: &Server| server.upload.is_some_and(|task| stamp.is_none_or(|stamp| task.stamp == stamp));
        if !is_open(self.server(server)) {
            return;
        }
        if let Some(UploadSource::Journal(run)) = self.server_mut(server).end_upload() {
            self.mark_adopted(run);
        }
    }

    fn newest_stamp(&self, server: u8, rules: &Rules) -> Stamp {
        let run = self.server(server).run;
        let run = if rules.has(Fault::StampWithoutRun) { RunId { server, number: 0 } } else { run };
        Stamp { run: run.number, counter: self.database.newest_counter(run) }
    }

    fn perform_deletion(&mut self, action: Action, bounds: &Bounds, rules: &Rules) {
        match action {
            Action::BeginDeletion { cut } => {
                self.database.cuts.push(CutRow::new(bounds.cuts[cut]));
                self.history.before[cut] = self.history.acknowledged;
            }
            Action::SeeCut { server, cut } => self.see_cut(server, cut, rules),
            Action::ActivateCut { cut } => {
                self.waited[cut] = 0;
                let row = &mut self.database.cuts[cut];
                row.state = CutState::Active;
                for (before, flushed) in self.history.before[cut].iter_mut().zip(row.flushed) {
                    // In the mode `journal` a deletion does not know what a fenced server acknowledged.
                    if !rules.is_quorum() && flushed == 0 {
                        *before = BatchSet::EMPTY;
                    }
                }
            }
            Action::CloseCut { server, cut } => self.close_cut(server, cut, rules),
            Action::UptoApplied { server, cut } => {
                let newest = self.newest_stamp(server, rules);
                let upto = &mut self.database.cuts[cut].upto[usize::from(server)];
                *upto = (*upto).max(Some(newest));
                let received = self.database.received;
                let server = self.server_mut(server);
                server.cuts[cut] = CutProgress::Confirmed;
                if rules.has(Fault::CloseBeforeReceived) {
                    server.uploaded = server.uploaded.with(received);
                }
                let is_open =
                    |progress: &CutProgress| !matches!(progress, CutProgress::Unseen | CutProgress::Confirmed);
                if server.process == Process::Returning && !server.cuts.iter().any(is_open) {
                    server.process = Process::Serving;
                }
            }
            Action::LateUptoApplied { server, cut } => {
                let row = &mut self.database.cuts[cut];
                let place = usize::from(server);
                row.upto[place] = row.upto[place].max(row.late_upto[place].take());
            }
            _ => {}
        }
    }

    fn see_cut(&mut self, server: u8, cut: usize, rules: &Rules) {
        let known = self.server(server).known;
        let seen = self.server_mut(server);
        seen.cuts[cut] = CutProgress::Flushing(seen.local());
        if rules.has(Fault::ReceivedOfLocalStore) {
            self.database.received = self.database.received.with(known);
        }
        if rules.has(Fault::ReceivedOfLocalStore) || rules.has(Fault::FlushedBeforeReceived) {
            self.server_mut(server).cuts[cut] = CutProgress::Flushing(BatchSet::EMPTY);
        }
    }

    /// The mark of the first phase, and the write of `upto`, follow the last upload of what was in the local store.
    fn mark_flushed(&mut self) {
        for cut in 0..self.database.cuts.len() {
            for server in self.servers.iter_mut() {
                if !server.flush_progress(cut) {
                    continue;
                }
                if matches!(server.cuts[cut], CutProgress::Closing(_)) {
                    server.cuts[cut] = CutProgress::Closed;
                } else {
                    server.cuts[cut] = CutProgress::Flushed;
                    self.database.cuts[cut].flushed[usize::from(server.run.server)] = server.run.number + 1;
                }
            }
        }
    }

    /// Second phase: what is in the local store now is uploaded, and the cut hides it.
    fn close_cut(&mut self, server: u8, cut: usize, rules: &Rules) {
        let (covered, received) = (self.database.cuts[cut].covered, self.database.received);
        let changed = self.server_mut(server);
        if !rules.has(Fault::CloseBeforeReceived) {
            changed.uploaded = changed.uploaded.with(received);
        }
        if rules.has(Fault::CutLocalStore) {
            changed.head = changed.local().without(covered);
            changed.upload = None;
        }
        let local = changed.local();
        changed.cuts[cut] = CutProgress::Closing(if rules.has(Fault::CutLocalStore) { BatchSet::EMPTY } else { local });
    }

    fn return_deletion(&mut self, cut: usize) {
        self.waited[cut] = 0;
        let row = &mut self.database.cuts[cut];
        row.state = CutState::Done;
        let before = self.history.before[cut].iter().fold(BatchSet::EMPTY, |all, one| all.with(*one));
        self.history.deleted = self.history.deleted.with(before.common(row.covered));
        self.history.hideable = self.history.hideable.with(self.history.arrived.common(row.covered));
        self.history.before[cut] = [BatchSet::EMPTY; SERVERS_MAX];
    }

    fn begin_snapshot(&mut self, reader: u8, targets: BatchSet, bounds: &Bounds, rules: &Rules) {
        let mut snapshot = SnapshotTask {
            reader,
            alive: [0; SERVERS_MAX],
            is_incomplete: false,
            asked: 0,
            vector: None,
            owed: self.history.acknowledged().common(targets),
            forbidden: self.history.deleted.common(targets),
            absent: if bounds.splits_steps { targets } else { BatchSet::EMPTY },
        };
        for row in &self.database.runs {
            match row.state {
                RunState::Alive => snapshot.alive[usize::from(row.id.server)] = row.id.number + 1,
                RunState::Fenced => snapshot.is_incomplete |= !rules.has(Fault::FencedCountsAsAdopted),
                RunState::Adopted => {}
            }
        }
        if rules.has(Fault::ReaderIgnoresFence) {
            snapshot.alive[usize::from(reader)] = self.server(reader).run.number + 1;
        }
        for server in 0..self.servers.len() as u8 {
            if snapshot.alive[usize::from(server)] == 0 {
                snapshot.mark_asked(server);
            }
        }
        if rules.has(Fault::VectorBeforeLocalPart) {
            snapshot.vector = Some(self.database.vector(false, false));
        }
        self.snapshot = Some(snapshot);
    }

    fn pin_local_part(&mut self, server: u8) {
        let asked = &self.servers[usize::from(server)];
        let Some(snapshot) = &mut self.snapshot else { return };
        snapshot.mark_asked(server);
        if asked.is_serving() && snapshot.alive[usize::from(server)] == asked.run.number + 1 {
            snapshot.find(asked.local());
            if !asked.local().common(snapshot.forbidden).is_empty() {
                self.history.break_invariant(Invariant::DeletedStaysDeleted);
            }
        } else {
            snapshot.is_incomplete = true;
        }
    }

    /// Reads the cuts, and compares the answer with what is owed.
    fn finish_snapshot(&mut self) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        let Some(vector) = &snapshot.vector else { return };
        let (now, later) = self.database.visible(vector);
        snapshot.find(now);
        if !snapshot.is_incomplete && !snapshot.owed.is_within(self.hideable()) {
            self.history.break_invariant(Invariant::CompleteHasAll);
        }
        if !later.common(snapshot.absent).is_empty() {
            self.history.break_invariant(Invariant::SnapshotIsStable);
        }
        if !now.with(later).common(snapshot.forbidden).is_empty() {
            self.history.break_invariant(Invariant::DeletedStaysDeleted);
        }
    }
}
