//! Removes from a world what no later step and no invariant can depend on, so that fewer worlds are distinct.
//!
//! Each rule here says why nothing depends on what it removes. It is used with the correct rules only: a fault may use what the rules do not.

use crate::batches::BatchSet;
use crate::database::{CommitRow, CutState, Database, RecordState, RunId, RunState, Upload};
use crate::rules::{Fault, Rules};
use crate::server::{Process, Server};
use crate::world::World;

/// The batch of a record that no scan can read any more.
const NO_BATCH: u8 = u8::MAX;

/// With these faults a batch that is known, checked or acknowledged is not what the rules make of it.
const KEEP_NUMBERS: [Fault; 3] = [Fault::NoCheckAfterInsert, Fault::AcknowledgeUnchecked, Fault::KeepAfterMissedCut];
/// With these faults a record matters after it was deleted, or after its run was adopted.
const KEEP_RECORDS: [Fault; 5] = [
    Fault::NoCheckAfterInsert,
    Fault::DeleteBeforeLow,
    Fault::ScanFromZero,
    Fault::ScanReadsLowOnce,
    Fault::AdoptIntoLocalStore,
];
/// With these faults the rows of an upload matter without its commit, or its stamp belongs to another upload too.
const KEEP_UPLOADS: [Fault; 4] =
    [Fault::VectorOfServer, Fault::StampWithoutRun, Fault::CommitBeforeRows, Fault::ReceivedBeforeCommit];

impl World {
    pub fn reduced(mut self, rules: &Rules) -> Self {
        let is_within = |faults: &[Fault]| rules.fault.is_some_and(|fault| faults.contains(&fault));
        let acknowledged = self.history.acknowledged();
        for server in self.servers.iter_mut().filter(|_| !is_within(&KEEP_NUMBERS)) {
            // `receive` asks `uploaded` first, and `uploaded` only grows until the process ends; after that `received` includes it.
            server.known = server.known.without(server.uploaded);
            // A second acknowledgement changes nothing.
            server.checked = server.checked.without(acknowledged);
        }
        for row in &mut self.database.cuts {
            if row.state == CutState::Done || (rules.is_quorum() && row.state == CutState::Active) {
                row.flushed = Default::default();
            }
            for (late, upto) in row.late_upto.iter_mut().zip(row.upto) {
                *late = late.filter(|late| Some(*late) > upto);
            }
        }
        let received = self.database.received;
        self.database.late_received = self.database.late_received.without(received);
        self.reduce_snapshot(rules);
        if !is_within(&KEEP_RECORDS) {
            self.reduce_records();
        }
        if !is_within(&KEEP_UPLOADS) {
            self.reduce_uploads();
        }
        self
    }

    /// What a vector that is read later includes, or what may be hidden, is not missing.
    fn reduce_snapshot(&mut self, rules: &Rules) {
        let (hideable, committed) = (self.hideable(), self.database.committed());
        let Some(snapshot) = &mut self.snapshot else { return };
        if rules.fault.is_some() {
            return;
        }
        snapshot.owed = snapshot.owed.without(hideable);
        if snapshot.vector.is_none() {
            snapshot.owed = snapshot.owed.without(committed);
        }
        if snapshot.is_incomplete {
            snapshot.owed = BatchSet::EMPTY;
        }
        if snapshot.is_decided() {
            self.snapshot = None;
        }
    }

    fn is_running(servers: &[Server], run: RunId) -> bool {
        let server = &servers[usize::from(run.server)];
        server.run == run && server.process != Process::Down
    }

    fn reduce_records(&mut self) {
        let Self { servers, database: Database { runs, records, .. }, .. } = self;
        for row in runs.iter_mut() {
            let is_read = |server: &Server| server.scan.is_some_and(|scan| scan.run == row.id && scan.low < row.low);
            if row.state == RunState::Adopted && !Self::is_running(servers, row.id) {
                // Nobody scans an adopted run again, and nobody deletes from it; a scan that is under way ends without an effect.
                records.retain(|record| record.run != row.id);
                row.low = 0;
            } else if !servers.iter().any(is_read) {
                // A scan that begins later begins at `low`.
                for record in records.iter_mut().filter(|record| record.run == row.id && record.n < row.low) {
                    record.state = RecordState::Deleted;
                    record.batch = NO_BATCH;
                }
            }
        }
    }

    fn reduce_uploads(&mut self) {
        let Self { servers, database, snapshot, .. } = self;
        let has_owner = |upload: &Upload| {
            let server = &servers[usize::from(upload.server)];
            server.process != Process::Down && server.upload.is_some_and(|task| task.stamp == upload.stamp)
        };
        if database.uploads.is_empty() {
            return;
        }
        // Rows without a commit stay invisible if no later upload of the same run is committed.
        let uploads = database.uploads.clone();
        let is_visible_later = |upload: &Upload| {
            let same_run = |other: &&Upload| other.server == upload.server && other.stamp.run == upload.stamp.run;
            let mut later = uploads.iter().filter(same_run).filter(|other| other.stamp >= upload.stamp);
            later.any(|other| other.commit != CommitRow::Absent)
                || Self::is_running(servers, RunId { server: upload.server, number: upload.stamp.run })
        };
        database.uploads.retain(|upload| is_visible_later(upload));
        if database.uploads.len() < 2 || snapshot.as_ref().is_some_and(|snapshot| snapshot.vector.is_some()) {
            return;
        }
        // Committed uploads of a server that all cuts treat alike are one: a later vector includes them, a later `upto` is not less.
        let cuts = &database.cuts;
        let is_alike = |one: &Upload, other: &Upload| {
            let same = |upto, stamp| Some(stamp) <= upto;
            one.server == other.server
                && cuts.iter().all(|cut| {
                    let place = usize::from(one.server);
                    cut.hides(one.server, one.stamp) == cut.hides(one.server, other.stamp)
                        && same(cut.upto[place], one.stamp) == same(cut.upto[place], other.stamp)
                        && same(cut.late_upto[place], one.stamp) == same(cut.late_upto[place], other.stamp)
                })
        };
        let is_finished = |upload: &Upload| {
            upload.commit == CommitRow::Committed && upload.applied == upload.content && !has_owner(upload)
        };
        let mut merged: Vec<Upload> = Vec::with_capacity(database.uploads.len());
        for upload in database.uploads.drain(..) {
            let earlier =
                merged.iter().position(|one| is_finished(one) && is_finished(&upload) && is_alike(one, &upload));
            let mut upload = upload;
            if let Some(place) = earlier {
                let one = merged.remove(place);
                upload.content = upload.content.with(one.content);
                upload.applied = upload.content;
            }
            merged.push(upload);
        }
        database.uploads = merged;
    }
}
