//! Runs of readings in the pipeline: gathered while messages of one read are taken, then named, stored, and answered one by one.

use std::time::Instant;

use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::ReasonCode;

use super::{BUSY_RETRY, BUSY_RETRY_MAX, Close, Effect, Entry, FAILED_RETRY, Incoming, Kind, Pipeline, State};
use crate::broker::log_limit::quoted;
use crate::interop::dcdb::Announced;
use crate::interop::run::{Named, Run};

impl Pipeline {
    /// Adds a message to the run that is open, or opens one; `put` adds its readings.
    pub fn gather(
        &mut self,
        incoming: Incoming,
        now: Instant,
        effects: &mut Vec<Effect>,
        put: impl FnOnce(&mut Run, Incoming),
    ) {
        self.gathered += usize::from(incoming.packet_id.is_some());
        if let Some(Entry { kind: Kind::Readings(run), state: State::Open, .. }) = self.entries.back_mut() {
            let before = run.readings.len();
            put(run, incoming);
            // What is exact is found out when the run is closed.
            self.bytes += (run.readings.len() - before) * size_of::<wholegrain_store::Reading>();
            if run.is_full() {
                self.close_run(now, effects);
            }
            return;
        }
        let mut run = Box::<Run>::default();
        put(&mut run, incoming);
        let full = run.is_full();
        self.open_run(run, now);
        if full {
            self.close_run(now, effects);
        }
    }

    /// Takes an announcement: what follows waits for it where names matter.
    pub fn announce(&mut self, incoming: Incoming, announced: Announced, now: Instant, effects: &mut Vec<Effect>) {
        self.close_run(now, effects);
        self.gathered += usize::from(incoming.packet_id.is_some());
        self.open_run(Box::new(Run::announcement(incoming, announced)), now);
        self.close_run(now, effects);
    }

    fn open_run(&mut self, run: Box<Run>, now: Instant) {
        self.runs += 1;
        self.bytes += run.readings.len() * size_of::<wholegrain_store::Reading>();
        let incoming = Incoming::nothing();
        self.entries.push_back(Entry {
            incoming,
            arrived: now,
            kind: Kind::Readings(run),
            state: State::Open,
            why: String::new(),
        });
    }

    /// Hands the open run on, if there is one: nothing more was read that could join it.
    pub fn close_run(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Some(Entry { kind: Kind::Readings(run), state: state @ State::Open, .. }) = self.entries.back_mut() else {
            return;
        };
        *state = State::Waiting;
        let (bytes, messages) = (run.bytes(), run.messages.len());
        // Until now only the readings were counted.
        self.bytes += bytes - run.readings.len() * size_of::<wholegrain_store::Reading>();
        run.counted_bytes = bytes;
        self.metrics.publishes.add(messages as u64);
        self.metrics.in_flight.add(messages as i64);
        self.metrics.in_flight_bytes.add(bytes as i64);
        self.pump(now, effects);
    }

    /// The answers to [`Effect::Name`].
    pub fn named(
        &mut self,
        ticket: u64,
        result: Result<Vec<Named>, StoreError>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Entry { kind: Kind::Readings(run), state, .. }) = Self::at(&mut self.entries, self.first, ticket)
        else {
            return;
        };
        match result {
            Ok(named) => {
                run.named(named);
                *state = if run.readings.is_empty() { State::Done(ReasonCode::SUCCESS) } else { State::Waiting };
                let refusals: Vec<_> = run
                    .refused()
                    .iter()
                    .map(|(at, (code, why))| (*code, format!("{}: {why}", quoted(&run.messages[*at].topic))))
                    .collect();
                self.metrics.refused.add(refusals.len() as u64);
                for (code, why) in refusals {
                    if !self.terms.reasons {
                        return effects.push(Effect::Close(Close::new(code, why)));
                    }
                    effects.push(Effect::Refused(why));
                }
            }
            Err(_) => {
                *state = State::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// The store answered [`Effect::AppendReadings`].
    pub(super) fn readings_appended(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Entry { kind: Kind::Readings(run), state, .. }) = Self::at(&mut self.entries, self.first, ticket)
        else {
            return;
        };
        match result {
            Ok(_) => {
                *state = State::Done(ReasonCode::SUCCESS);
                self.retry_after = BUSY_RETRY;
                self.metrics.loose_readings.add(run.readings.len() as u64);
                let kept = run.messages.iter().filter(|message| !message.topic.is_empty());
                effects.extend(kept.map(|message| message.forward(message.retain)));
            }
            Err(StoreError::Busy) => {
                *state = State::Waiting;
                self.retry(now, self.retry_after);
                self.retry_after = (self.retry_after * 2).min(BUSY_RETRY_MAX);
            }
            Err(error @ (StoreError::Payload(_) | StoreError::Sensor(_))) => {
                *state = State::Done(ReasonCode::SUCCESS);
                let (code, why) = (ReasonCode::PAYLOAD_FORMAT_INVALID, format!("readings: {error}"));
                run.refuse(code, &why);
                self.metrics.refused.add(run.messages.len() as u64);
                if !self.terms.reasons {
                    return effects.push(Effect::Close(Close::new(code, why)));
                }
                effects.push(Effect::Refused(why));
            }
            Err(_) => {
                *state = State::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// Answers the messages of a run that is done and no longer among the entries.
    pub(super) fn answer_run(&mut self, run: Run, arrived: Instant, now: Instant, effects: &mut Vec<Effect>) {
        let messages = run.messages.len();
        self.runs -= 1;
        self.bytes -= run.counted_bytes;
        self.metrics.in_flight_bytes.add(-(run.counted_bytes as i64));
        self.metrics.in_flight.add(-(messages as i64));
        let mut acks = 0;
        for (message, refusal) in run.into_answers() {
            let Some(packet_id) = message.packet_id else { continue };
            self.gathered -= 1;
            acks += u64::from(refusal.is_none());
            let (reason, why) = refusal.unwrap_or((ReasonCode::SUCCESS, String::new()));
            effects.push(message.ack(packet_id, reason, why));
        }
        self.metrics.acks.add(acks);
        self.metrics.ack_seconds.observe_many(now.saturating_duration_since(arrived), acks);
    }

    /// Whether readings are being gathered.
    pub fn is_gathering(&self) -> bool {
        matches!(self.entries.back(), Some(Entry { state: State::Open, .. }))
    }

    /// Whether the sensors of some readings are being found out, after which they go to the store.
    pub fn is_naming(&self) -> bool {
        let naming = |entry: &Entry| match &entry.kind {
            Kind::Readings(run) => run.is_unnamed() && entry.is_active(),
            _ => false,
        };
        self.entries.iter().any(naming)
    }

    /// Takes runs out of the gauges when the connection is over.
    pub(super) fn forget_runs(&mut self) {
        for entry in &self.entries {
            if let (Kind::Readings(run), false) = (&entry.kind, entry.state == State::Open) {
                // One is taken off for the entry itself.
                self.metrics.in_flight.add(1 - run.messages.len() as i64);
            }
        }
        let open = self.entries.back().filter(|entry| entry.state == State::Open);
        if let Some(Entry { kind: Kind::Readings(run), .. }) = open {
            self.metrics.in_flight.add(1);
            self.bytes -= run.readings.len() * size_of::<wholegrain_store::Reading>();
        }
    }

    fn at(entries: &mut std::collections::VecDeque<Entry>, first: u64, ticket: u64) -> Option<&mut Entry> {
        ticket.checked_sub(first).and_then(|at| entries.get_mut(at as usize))
    }
}
