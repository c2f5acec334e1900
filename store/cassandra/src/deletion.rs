//! Deletions: each is a row for all servers, and a row of each server that has applied it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wholegrain_model::Pattern;
use wholegrain_store::{Deletion, DeletionReport, ReadSnapshot, ScanRequest, SensorRange, StoreError};

use crate::shared::Shared;
use crate::slices::wait;
use crate::view::{Cut, SharedView, read_cuts};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    /// Applies a deletion to the local store, and writes that this server has done so.
    pub fn apply_cut(self: &Arc<Self>, cut: &Cut) -> Result<(), StoreError> {
        let (_, stamp) = self.apply_here(cut)?;
        self.confirm(&cut.id, stamp)
    }

    /// Applies a deletion to the local store, once: what has arrived since then is new. Returns the stamp up to which uploads can have its readings.
    fn apply_here(self: &Arc<Self>, cut: &Cut) -> Result<(DeletionReport, i64), StoreError> {
        let _uploading = self.uploading();
        let mut view = self.lock_view();
        if let Some(stamp) = view.applied(&cut.id, self.member.number) {
            return Ok((DeletionReport::default(), stamp));
        }
        let deletion = Deletion { patterns: cut.patterns.clone(), from: cut.from, to: cut.to };
        let report = self.local.delete(&deletion)?;
        let stamp = self.stamps.next();
        let mut next = SharedView::clone(&view);
        let mut applied = cut.clone();
        applied.upto.insert(self.member.number, stamp);
        next.merge(SharedView { cuts: vec![applied], ..SharedView::default() });
        *view = Arc::new(next);
        Ok((report, stamp))
    }

    fn confirm(self: &Arc<Self>, id: &str, stamp: i64) -> Result<(), StoreError> {
        let (session, number, id) = (self.session.clone(), self.member.number, id.to_owned());
        wait(&self.handle, async move {
            let insert = "INSERT INTO $.cuts (k, id, server, stamp) VALUES (0, ?, ?, ?)";
            session.write_once("confirming a deletion", insert, (id.as_str(), number, stamp)).await
        })
    }

    /// The readings of a range here and in Cassandra, each once. `local` are those of the local store, with its files.
    pub fn count(self: &Arc<Self>, deletion: &Deletion, local: DeletionReport) -> Result<DeletionReport, StoreError> {
        let snapshot = self.snapshot();
        let sensors = self.local.sensors(&deletion.patterns);
        let (from, to) = (deletion.from, deletion.to);
        let reader = snapshot.open(&mut sensors.iter().map(|sensor| SensorRange { sensor, from, to }))?;
        let mut report = DeletionReport { sensors: 0, readings: 0, times: None, ..local };
        for sensor in &sensors {
            let before = report.readings;
            for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
                let chunk = chunk?;
                report.readings += chunk.times.len() as u64;
                if let (Some(first), Some(last)) = (chunk.times.first(), chunk.times.last()) {
                    let (from, to) = report.times.unwrap_or((*first, *last));
                    report.times = Some((from.min(*first), to.max(*last)));
                }
            }
            report.sensors += u64::from(report.readings > before);
        }
        Ok(report)
    }

    pub fn delete(self: &Arc<Self>, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        let counted = self.count(deletion, self.local.would_delete(deletion)?)?;
        let id = format!("{:020}-{}", self.stamps.next(), self.member.number);
        let (patterns, from, to) = (deletion.patterns.clone(), deletion.from, deletion.to);
        let cut = Cut { id, patterns, from, to, upto: Default::default() };
        let end = Instant::now() + self.session.deletion_timeout();
        until(end, || self.write_cut(&cut)).map_err(|error| match error {
            // The row may have been written all the same.
            StoreError::RemoteUnavailable { doing, reason } => StoreError::RemoteUnavailable {
                doing,
                reason: format!("{reason}; it may still come into force: repeat the deletion when Cassandra answers"),
            },
            error => error,
        })?;
        let (report, stamp) = self.apply_here(&cut)?;
        let report = DeletionReport { files: report.files, unreadable: report.unreadable, ..counted };
        until(end, || self.confirm(&cut.id, stamp)).and_then(|()| self.wait_for_servers(&cut.id, end))?;
        Ok(report)
    }

    fn write_cut(self: &Arc<Self>, cut: &Cut) -> Result<(), StoreError> {
        let (session, cut) = (self.session.clone(), cut.clone());
        wait(&self.handle, async move {
            let patterns: Vec<&str> = cut.patterns.iter().map(Pattern::as_str).collect();
            let insert = "INSERT INTO $.cuts (k, id, server, patterns, from_time, to_time) VALUES (0, ?, 0, ?, ?, ?)";
            session.write_once("writing a deletion", insert, (cut.id.as_str(), patterns, cut.from, cut.to)).await
        })
    }

    /// Waits until every live server has applied a deletion.
    fn wait_for_servers(self: &Arc<Self>, id: &str, end: Instant) -> Result<(), StoreError> {
        loop {
            let missing = until(end, || {
                let (shared, id) = (self.clone(), id.to_owned());
                wait(&self.handle, async move { shared.unconfirmed(&id).await })
            })?;
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                let reason = format!(
                    "in force here and in Cassandra; not confirmed by {}: there it is in force as soon as it answers again",
                    missing.join(", ")
                );
                return Err(StoreError::RemoteUnavailable { doing: "deleting at all servers", reason });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The names of the live servers that have not applied a deletion.
    async fn unconfirmed(&self, id: &str) -> Result<Vec<String>, StoreError> {
        let servers = self.member.alive(&self.session, &|beat| self.stamps.raise(beat)).await?;
        if servers.is_empty() {
            return Ok(Vec::new());
        }
        let cuts = read_cuts(&self.session).await?;
        let upto = cuts.into_iter().find(|cut| cut.id == id).map(|cut| cut.upto).unwrap_or_default();
        Ok(servers.into_iter().filter(|(number, _)| !upto.contains_key(number)).map(|(_, name)| name).collect())
    }
}

/// Repeats what Cassandra could not do, until it is done or the time is over.
fn until<T>(end: Instant, attempt: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    loop {
        match attempt() {
            Err(StoreError::RemoteUnavailable { .. }) if Instant::now() < end => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}
