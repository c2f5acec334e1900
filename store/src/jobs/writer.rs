//! The thread that writes records: all queued ones in one transaction, so that fifteen thousand agents that start one job cost a few fsyncs.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use wholegrain_model::JobRecord;

use super::Jobs;
use super::table::name;
use crate::StoreError;
use crate::append::{AppendCallback, AppendOutcome};
use crate::stats::add;

/// Bytes of queued records, 64 MiB; above it [`StoreError::Busy`].
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of one transaction: 8 MiB, or one call's.
const COMMIT_BYTES_MAX: usize = 8 << 20;

struct QueuedJobRecords {
    records: Vec<(JobRecord, Vec<u8>)>,
    bytes: usize,
    done: AppendCallback,
}

#[derive(Default)]
struct JobQueueContent {
    waiting: std::collections::VecDeque<QueuedJobRecords>,
    bytes: usize,
    closed: bool,
}

/// The queue of the thread.
#[derive(Default)]
pub(crate) struct JobQueue {
    inner: Mutex<JobQueueContent>,
    bell: Condvar,
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, JobQueueContent> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues one call's records, or answers it at once.
    pub(super) fn push(&self, records: Vec<(JobRecord, Vec<u8>)>, done: AppendCallback) {
        let bytes = records.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let mut inner = self.lock();
        let refusal = match () {
            () if inner.closed => StoreError::Closed,
            () if inner.bytes + bytes > QUEUE_BYTES_MAX && !inner.waiting.is_empty() => StoreError::Busy,
            () => {
                inner.bytes += bytes;
                inner.waiting.push_back(QueuedJobRecords { records, bytes, done });
                drop(inner);
                return self.bell.notify_one();
            }
        };
        drop(inner);
        done(Err(refusal));
    }

    /// Refuses further records; the queued ones are still written.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_all();
    }

    /// Takes the calls of the next transaction; none if the queue is closed and empty.
    fn take(&self) -> Vec<QueuedJobRecords> {
        let waits = |inner: &mut JobQueueContent| inner.waiting.is_empty() && !inner.closed;
        let mut inner = self.bell.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = inner.waiting.front()
            && (taken.is_empty() || bytes + next.bytes <= COMMIT_BYTES_MAX)
        {
            bytes += next.bytes;
            inner.bytes -= next.bytes;
            taken.extend(inner.waiting.pop_front());
        }
        taken
    }
}

impl Jobs {
    /// Writes until the queue is closed and empty.
    pub(crate) fn run(&self) {
        loop {
            let calls = self.queue.take();
            if calls.is_empty() {
                return;
            }
            self.commit(calls);
        }
    }

    fn commit(&self, calls: Vec<QueuedJobRecords>) {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut fresh, mut news) = (HashMap::new(), Vec::with_capacity(calls.len()));
        {
            let index = self.index();
            for call in &calls {
                let mut any = false;
                for (record, bytes) in &call.records {
                    let name = name(record);
                    let here = fresh
                        .get(&name)
                        .map(|(record, _): &(&JobRecord, &Vec<u8>)| (record.revision, record.to.is_some()));
                    let is_news = here
                        .or_else(|| index.revision(record))
                        .is_none_or(|(revision, ended)| record.revision > revision || (record.to.is_some() && !ended));
                    if is_news {
                        fresh.insert(name, (record, bytes));
                        any = true;
                    }
                }
                news.push(any);
            }
        }
        let put = fresh.iter().map(|(name, (_, bytes))| (name.clone(), bytes.as_slice()));
        let written = if fresh.is_empty() { Ok(()) } else { self.table.write(put, std::iter::empty()) };
        if written.is_ok() && !fresh.is_empty() {
            let mut index = self.index_mut();
            let seen = fresh.values().fold(false, |seen, (record, _)| index.put(record) | seen);
            if seen {
                self.generation.fetch_add(1, Relaxed);
            }
            add(&self.counters.job_records, fresh.len() as u64);
            add(&self.counters.job_commits, 1);
        }
        drop(writing);
        drop(fresh);
        for (call, any) in calls.into_iter().zip(news) {
            // A repeat within this transaction fails with it.
            (call.done)(match &written {
                Ok(()) if any => Ok(AppendOutcome::Stored),
                Ok(()) => Ok(AppendOutcome::Duplicate),
                Err(error) => Err(error.clone()),
            });
        }
    }
}
