//! Worlds that differ only in the names of servers and batches behave alike: one of them is explored.

use crate::batches::BatchSet;
use crate::database::RunId;
use crate::server::{CutProgress, Server, UploadSource};
use crate::world::World;

impl World {
    fn for_each_set(&mut self, f: &mut impl FnMut(&mut BatchSet)) {
        for server in &mut self.servers {
            server_sets(server, f);
        }
        for upload in &mut self.database.uploads {
            f(&mut upload.content);
            f(&mut upload.applied);
        }
        f(&mut self.database.received);
        f(&mut self.database.late_received);
        if let Some(snapshot) = &mut self.snapshot {
            f(&mut snapshot.absent);
            f(&mut snapshot.owed);
            f(&mut snapshot.forbidden);
        }
        f(&mut self.history.arrived);
        self.history.acknowledged.iter_mut().for_each(&mut *f);
        self.history.before.iter_mut().flatten().for_each(&mut *f);
        f(&mut self.history.deleted);
        f(&mut self.history.hideable);
    }

    /// Two bits for each place where batches can be: which of the two is there.
    pub(crate) fn comes_first(&mut self, one: u8, other: u8) -> bool {
        let mut order = std::cmp::Ordering::Equal;
        self.for_each_set(&mut |set| {
            order = order.then(set.contains(other).cmp(&set.contains(one)));
        });
        for record in &self.database.records {
            order = order.then((record.batch == other).cmp(&(record.batch == one)));
        }
        order.is_lt()
    }

    pub(crate) fn exchange_batches(&mut self, one: u8, other: u8) {
        self.for_each_set(&mut |set| *set = set.exchanged(one, other));
        for record in &mut self.database.records {
            record.batch = match record.batch {
                batch if batch == one => other,
                batch if batch == other => one,
                batch => batch,
            };
        }
    }

    /// Exchanges the names of servers 0 and 1.
    pub(crate) fn exchange_servers(&mut self) {
        let rename = |id: &mut RunId| id.server = 1 - id.server;
        self.servers.swap(0, 1);
        for server in &mut self.servers {
            rename(&mut server.run);
            if let Some(scan) = &mut server.scan {
                rename(&mut scan.run);
            }
            if let Some(task) = &mut server.upload
                && let UploadSource::Journal(run) = &mut task.source
            {
                rename(run);
            }
        }
        self.database.runs.iter_mut().for_each(|row| rename(&mut row.id));
        self.database.runs.sort_unstable();
        self.database.records.iter_mut().for_each(|record| rename(&mut record.run));
        self.database.records.sort_unstable();
        self.database.uploads.iter_mut().for_each(|upload| upload.server = 1 - upload.server);
        self.database.uploads.sort_unstable();
        for cut in &mut self.database.cuts {
            cut.flushed.swap(0, 1);
            cut.upto.swap(0, 1);
            cut.late_upto.swap(0, 1);
        }
        let exchanged = |bits: u8| bits >> 1 & 1 | (bits & 1) << 1;
        self.waited.iter_mut().for_each(|bits| *bits = exchanged(*bits));
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.reader = 1 - snapshot.reader;
            snapshot.alive.swap(0, 1);
            snapshot.asked = exchanged(snapshot.asked);
            if let Some(vector) = &mut snapshot.vector {
                vector.exchange_servers();
            }
        }
        self.history.acknowledged.swap(0, 1);
        self.history.fenced_late = exchanged(self.history.fenced_late);
        self.history.before.iter_mut().for_each(|before| before.swap(0, 1));
    }
}

fn server_sets(server: &mut Server, f: &mut impl FnMut(&mut BatchSet)) {
    f(&mut server.head);
    f(&mut server.known);
    f(&mut server.uploaded);
    f(&mut server.checked);
    if let Some(task) = &mut server.upload {
        f(&mut task.content);
    }
    if let Some(scan) = &mut server.scan {
        f(&mut scan.found);
    }
    for progress in &mut server.cuts {
        if let CutProgress::Flushing(open) | CutProgress::Closing(open) = progress {
            f(open);
        }
    }
}
