//! Retained messages on their way to one client: the subscriptions with messages left to send, and their progress.
//!
//! They do not wait in the client's queue, which has no room for all of them: the client's task looks up the next few when it can write. So a client
//! gets them as fast as it reads, and one that does not read costs nothing. They precede the messages published after the subscription, so that the
//! order within each topic is right.
//!
//! Messages published after the subscription are delivered normally and left out here. A renewed subscription starts again.

use std::collections::VecDeque;
use std::time::Instant;

use wholegrain_transport::mqtt::{QoS, Text};

use super::message::SubscriptionOptions;
use super::retained::{RetainedMessage, ScanResult};
use super::session::Session;

/// The next step of a client's task.
#[derive(Debug)]
pub enum SendStep {
    /// Look up more matches of this filter, after this topic.
    LookUp(Box<str>, Option<Text>),
    /// Send this message, then call `sent`.
    Send(RetainedMessage, SubscriptionOptions, QoS),
    /// Wait until the client acknowledges something: the messages in the queue are newer.
    Wait,
    /// Send from the queue.
    Queue,
}

#[derive(Debug)]
pub struct RetainedReplay {
    filter: Box<str>,
    options: SubscriptionOptions,
    /// Messages with this number and later ones came after the subscription.
    until: u64,
    after: Option<Text>,
}

impl RetainedReplay {
    pub fn new(filter: &str, options: SubscriptionOptions, until: u64) -> Self {
        Self { filter: filter.into(), options, until, after: None }
    }
}

/// The replays of one client, one after the other; at most one for each subscription.
#[derive(Debug, Default)]
pub struct RetainedReplays {
    waiting: VecDeque<RetainedReplay>,
    /// Messages found for the first replay.
    found: VecDeque<RetainedMessage>,
    /// Whether the first replay has nothing more to look up.
    is_at_end: bool,
}

impl RetainedReplays {
    /// Adds a replay; one of the same filter starts again.
    pub fn start(&mut self, replay: RetainedReplay) {
        self.stop(&replay.filter);
        self.waiting.push_back(replay);
    }

    pub fn stop(&mut self, filter: &str) {
        if self.waiting.front().is_some_and(|first| &*first.filter == filter) {
            self.end_first();
        } else {
            self.waiting.retain(|replay| &*replay.filter != filter);
        }
    }

    /// The client disconnected: QoS 0 messages do not wait for it.
    pub fn detach(&mut self) {
        if self.waiting.front().is_some_and(|first| first.options.qos == QoS::AtMostOnce) {
            self.end_first();
        }
        self.waiting.retain(|replay| replay.options.qos != QoS::AtMostOnce);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn end_first(&mut self) {
        self.waiting.pop_front();
        self.found.clear();
        self.is_at_end = false;
    }

    /// The next step for the connected client.
    pub fn next_step(&self, session: &Session) -> SendStep {
        let Some(first) = self.waiting.front().filter(|_| !session.sends_again()) else { return SendStep::Queue };
        let Some(kept) = self.found.front() else { return SendStep::LookUp(first.filter.clone(), first.after.clone()) };
        let qos = kept.qos().min(first.options.qos);
        if session.takes_retained(qos) { SendStep::Send(kept.clone(), first.options, qos) } else { SendStep::Wait }
    }

    /// The message was sent or is not needed.
    pub fn sent(&mut self) {
        self.found.pop_front();
        if self.found.is_empty() && self.is_at_end {
            self.end_first();
        }
    }

    /// Adds the results of a lookup.
    pub fn found(&mut self, scanned: ScanResult, now: Instant) {
        let Some(first) = self.waiting.front_mut() else { return };
        let until = first.until;
        self.found.extend(scanned.found.into_iter().filter(|kept| kept.number() < until && !kept.is_expired(now)));
        self.is_at_end = scanned.more_after.is_none();
        first.after = scanned.more_after;
        if self.found.is_empty() && self.is_at_end {
            self.end_first();
        }
    }
}
