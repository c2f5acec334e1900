//! Sends events to the manager's thread, bounded and without waiting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::events::{Job, JobEvent};
use crate::waker::Waker;

/// The most events that wait in the channel.
const EVENTS_MAX: usize = 1024;

/// The sending end. Events that do not fit into the channel are kept and merged by job, so that there are never more than two of a job: its begin or
/// last change, and its end.
pub struct EventSender {
    to: SyncSender<JobEvent>,
    held: VecDeque<JobEvent>,
    waker: Arc<Waker>,
}

impl EventSender {
    /// Both ends; `waker` wakes the receiver.
    pub fn new(waker: Arc<Waker>) -> (Self, Receiver<JobEvent>) {
        let (to, from) = sync_channel(EVENTS_MAX);
        (Self { to, held: VecDeque::new(), waker }, from)
    }

    /// Whether events wait for room in the channel.
    pub fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sends waiting events, then these.
    pub fn send(&mut self, events: Vec<JobEvent>) {
        events.into_iter().for_each(|event| self.hold(event));
        let mut sent = false;
        while let Some(event) = self.held.pop_front() {
            match self.to.try_send(event) {
                Ok(()) => sent = true,
                Err(TrySendError::Full(event)) => {
                    self.held.push_front(event);
                    break;
                }
                // The receiver no longer exists.
                Err(TrySendError::Disconnected(_)) => self.held.clear(),
            }
        }
        if sent {
            self.waker.wake();
        }
    }

    fn hold(&mut self, event: JobEvent) {
        let level = &job(&event).record.level;
        let Some(at) = self.held.iter().rposition(|held| job(held).record.level == *level) else {
            self.held.push_back(event);
            return;
        };
        let joined = match (&self.held[at], &event) {
            (JobEvent::Began(_), JobEvent::Changed(job)) => JobEvent::Began(job.clone()),
            (JobEvent::Changed(_), JobEvent::Changed(_)) => event,
            // The job began and ended before the receiver took an event: its record reports it.
            (JobEvent::Began(_), JobEvent::Ended(_)) if self.held.len() >= EVENTS_MAX => {
                self.held.remove(at);
                return;
            }
            _ => {
                self.held.push_back(event);
                return;
            }
        };
        self.held[at] = joined;
    }
}

fn job(event: &JobEvent) -> &Arc<Job> {
    match event {
        JobEvent::Began(job) | JobEvent::Changed(job) | JobEvent::Ended(job) => job,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::JobRecord;
    use wholegrain_sources::job::JobCgroups;

    fn of(n: u64, revision: u64) -> Arc<Job> {
        let record = JobRecord { level: n.to_string(), revision, ..JobRecord::default() };
        Arc::new(Job { record, cgroups: JobCgroups::default(), has_processes: true })
    }

    #[test]
    fn a_manager_that_takes_nothing_costs_a_bounded_memory_and_misses_no_end() {
        let (mut outlet, events) = EventSender::new(Arc::new(Waker::new().unwrap()));
        let running: Vec<JobEvent> = (0..EVENTS_MAX as u64).map(|n| JobEvent::Began(of(n, 1))).collect();
        outlet.send(running);
        assert!(!outlet.is_full());
        // A known job has one last change and an end, however often it changed.
        for revision in 2..100 {
            outlet.send(vec![JobEvent::Changed(of(0, revision))]);
        }
        outlet.send(vec![JobEvent::Ended(of(0, 100))]);
        for n in 10_000..20_000 {
            outlet.send(vec![JobEvent::Began(of(n, 1)), JobEvent::Changed(of(n, 2)), JobEvent::Ended(of(n, 3))]);
        }
        assert!(outlet.held.len() <= EVENTS_MAX + 3, "{}", outlet.held.len());
        let mut taken = Vec::new();
        while outlet.is_full() || taken.len() < EVENTS_MAX + 2 {
            taken.extend(events.try_iter());
            outlet.send(Vec::new());
        }
        taken.extend(events.try_iter());
        let revisions: Vec<u64> = taken
            .iter()
            .skip(EVENTS_MAX)
            .filter(|event| job(event).record.level == "0")
            .map(|event| job(event).record.revision)
            .collect();
        assert_eq!(revisions, [99, 100]);
    }
}
