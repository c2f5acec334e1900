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
    waiting: VecDeque<JobEvent>,
    waker: Arc<Waker>,
}

impl EventSender {
    /// Both ends; `waker` wakes the receiver.
    pub fn new(waker: Arc<Waker>) -> (Self, Receiver<JobEvent>) {
        let (to, from) = sync_channel(EVENTS_MAX);
        (Self { to, waiting: VecDeque::new(), waker }, from)
    }

    /// Whether events wait for room in the channel.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends waiting events, then these.
    pub fn send(&mut self, events: Vec<JobEvent>) {
        events.into_iter().for_each(|event| self.queue(event));
        let mut sent = false;
        while let Some(event) = self.waiting.pop_front() {
            match self.to.try_send(event) {
                Ok(()) => sent = true,
                Err(TrySendError::Full(event)) => {
                    self.waiting.push_front(event);
                    break;
                }
                // The receiver no longer exists.
                Err(TrySendError::Disconnected(_)) => self.waiting.clear(),
            }
        }
        if sent {
            self.waker.wake();
        }
    }

    fn queue(&mut self, event: JobEvent) {
        let level = &job(&event).record.level;
        let Some(at) = self.waiting.iter().rposition(|waiting| job(waiting).record.level == *level) else {
            self.waiting.push_back(event);
            return;
        };
        let joined = match (&self.waiting[at], &event) {
            (JobEvent::Began(_), JobEvent::Changed(job)) => JobEvent::Began(job.clone()),
            (JobEvent::Changed(_), JobEvent::Changed(_)) => event,
            // The job began and ended before the receiver took an event: its record reports it.
            (JobEvent::Began(_), JobEvent::Ended(_)) if self.waiting.len() >= EVENTS_MAX => {
                self.waiting.remove(at);
                return;
            }
            _ => {
                self.waiting.push_back(event);
                return;
            }
        };
        self.waiting[at] = joined;
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
        let (mut event_sender, events) = EventSender::new(Arc::new(Waker::new().unwrap()));
        let running: Vec<JobEvent> = (0..EVENTS_MAX as u64).map(|n| JobEvent::Began(of(n, 1))).collect();
        event_sender.send(running);
        assert!(!event_sender.is_full());
        // A known job has one last change and an end, however often it changed.
        for revision in 2..100 {
            event_sender.send(vec![JobEvent::Changed(of(0, revision))]);
        }
        event_sender.send(vec![JobEvent::Ended(of(0, 100))]);
        for n in 10_000..20_000 {
            event_sender.send(vec![JobEvent::Began(of(n, 1)), JobEvent::Changed(of(n, 2)), JobEvent::Ended(of(n, 3))]);
        }
        assert!(event_sender.waiting.len() <= EVENTS_MAX + 3, "{}", event_sender.waiting.len());
        let mut taken = Vec::new();
        while event_sender.is_full() || taken.len() < EVENTS_MAX + 2 {
            taken.extend(events.try_iter());
            event_sender.send(Vec::new());
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
