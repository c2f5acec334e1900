//! Retained messages on their way to one client: which subscriptions still have some to send, and how far each is.
//!
//! They do not wait in the client's queue, where there would not be room for them: its task looks up the next few when it can write, so a client
//! gets all of them as fast as it reads, and one that does not read costs nothing. They go before the messages that came after the
//! subscription, so that each topic's come in their order.
//!
//! What is published after the subscription reaches it as any message does and is left out here. A subscription that is renewed begins anew.

use std::collections::VecDeque;
use std::time::Instant;

use wholegrain_transport::mqtt::{QoS, Text};

use super::retained::{Kept, Scanned};
use super::session::Session;
use super::subscriptions::Options;

/// What a client's task does next.
#[derive(Debug)]
pub enum Turn {
    /// Look for more that this filter matches, behind this topic.
    LookUp(Box<str>, Option<Text>),
    /// Send this one, and then say so.
    Send(Kept, Options, QoS),
    /// Wait until the client has acknowledged something: what it has in the queue came later.
    Wait,
    /// Send what is in the queue.
    Queue,
}

/// One subscription's part.
#[derive(Debug)]
pub struct Replay {
    filter: Box<str>,
    options: Options,
    /// Messages with this number and later ones came after the subscription.
    until: u64,
    after: Option<Text>,
}

impl Replay {
    /// From the beginning.
    pub fn new(filter: &str, options: Options, until: u64) -> Self {
        Self { filter: filter.into(), options, until, after: None }
    }
}

/// Those of one client, one after the other. At most one for each of its subscriptions.
#[derive(Debug, Default)]
pub struct Replays {
    waiting: VecDeque<Replay>,
    /// What was looked up for the first one.
    found: VecDeque<Kept>,
    /// Whether the first one has nothing more to look up.
    is_at_end: bool,
}

impl Replays {
    /// Adds one; one of the same filter is begun anew.
    pub fn start(&mut self, replay: Replay) {
        self.stop(&replay.filter);
        self.waiting.push_back(replay);
    }

    /// Takes one away.
    pub fn stop(&mut self, filter: &str) {
        if self.waiting.front().is_some_and(|first| &*first.filter == filter) {
            self.end_first();
        } else {
            self.waiting.retain(|replay| &*replay.filter != filter);
        }
    }

    /// The client is gone: what is of QoS 0 does not wait for it.
    pub fn detach(&mut self) {
        if self.waiting.front().is_some_and(|first| first.options.qos == QoS::AtMostOnce) {
            self.end_first();
        }
        self.waiting.retain(|replay| replay.options.qos != QoS::AtMostOnce);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn end_first(&mut self) {
        self.waiting.pop_front();
        self.found.clear();
        self.is_at_end = false;
    }

    /// What is next for the client that has the session.
    pub fn turn(&self, session: &Session) -> Turn {
        let Some(first) = self.waiting.front().filter(|_| !session.sends_again()) else { return Turn::Queue };
        let Some(kept) = self.found.front() else { return Turn::LookUp(first.filter.clone(), first.after.clone()) };
        let qos = kept.qos().min(first.options.qos);
        if session.takes_retained(qos) { Turn::Send(kept.clone(), first.options, qos) } else { Turn::Wait }
    }

    /// That was sent, or need not be.
    pub fn sent(&mut self) {
        self.found.pop_front();
        if self.found.is_empty() && self.is_at_end {
            self.end_first();
        }
    }

    /// What was found of what was looked up.
    pub fn found(&mut self, scanned: Scanned, now: Instant) {
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
