//! Runs of readings in the pipeline: gathered while the messages of one read are processed, then resolved, stored, and answered one by one.

use std::time::Instant;

use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::ReasonCode;

use super::{
    BUSY_RETRY, BUSY_RETRY_MAX, CloseReason, FAILED_RETRY, IncomingPublish, PublishEffect, PublishEntry, PublishKind,
    PublishPipeline, PublishState,
};
use crate::ingest::reading_run::ReadingRun;
use crate::interop::dcdb::SensorAnnouncement;
use crate::interop::resolution::SensorResolution;
use crate::log_limit::quoted;

impl PublishPipeline {
    /// Adds a message to the open run, or opens one; `put` adds its readings.
    pub fn gather(
        &mut self,
        incoming: IncomingPublish,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
        put: impl FnOnce(&mut ReadingRun, IncomingPublish),
    ) {
        self.gathered += usize::from(incoming.packet_id.is_some());
        if let Some(PublishEntry { kind: PublishKind::Readings(run), state: PublishState::Open, .. }) =
            self.entries.back_mut()
        {
            let before = run.readings.len();
            put(run, incoming);
            // The exact size is known when the run is closed.
            self.bytes += (run.readings.len() - before) * size_of::<wholegrain_store::Reading>();
            if run.is_full() {
                self.close_run(now, effects);
            }
            return;
        }
        let mut run = Box::<ReadingRun>::default();
        put(&mut run, incoming);
        let full = run.is_full();
        self.open_run(run, now);
        if full {
            self.close_run(now, effects);
        }
    }

    /// Adds an announcement; later publishes wait for it where names matter.
    pub fn announce(
        &mut self,
        incoming: IncomingPublish,
        announced: SensorAnnouncement,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        self.close_run(now, effects);
        self.gathered += usize::from(incoming.packet_id.is_some());
        self.open_run(Box::new(ReadingRun::announcement(incoming, announced)), now);
        self.close_run(now, effects);
    }

    fn open_run(&mut self, run: Box<ReadingRun>, now: Instant) {
        self.runs += 1;
        self.bytes += run.readings.len() * size_of::<wholegrain_store::Reading>();
        let incoming = IncomingPublish::nothing();
        self.entries.push_back(PublishEntry {
            incoming,
            arrived: now,
            kind: PublishKind::Readings(run),
            state: PublishState::Open,
            why: String::new(),
        });
    }

    /// Ends the open run, if there is one: the socket has no more bytes now.
    pub fn close_run(&mut self, now: Instant, effects: &mut Vec<PublishEffect>) {
        let Some(PublishEntry { kind: PublishKind::Readings(run), state: state @ PublishState::Open, .. }) =
            self.entries.back_mut()
        else {
            return;
        };
        *state = PublishState::Waiting;
        let (bytes, messages) = (run.bytes(), run.messages.len());
        // Until now only the readings were counted.
        self.bytes += bytes - run.readings.len() * size_of::<wholegrain_store::Reading>();
        run.counted_bytes = bytes;
        self.metrics.publishes.add(messages as u64);
        self.metrics.in_flight.add(messages as i64);
        self.metrics.in_flight_bytes.add(bytes as i64);
        self.pump(now, effects);
    }

    /// The results of [`PublishEffect::Name`].
    pub fn named(
        &mut self,
        ticket: u64,
        result: Result<Vec<SensorResolution>, StoreError>,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        let Some(PublishEntry { kind: PublishKind::Readings(run), state, .. }) =
            Self::at(&mut self.entries, self.first, ticket)
        else {
            return;
        };
        match result {
            Ok(named) => {
                run.named(named);
                *state = if run.readings.is_empty() {
                    PublishState::Done(ReasonCode::SUCCESS)
                } else {
                    PublishState::Waiting
                };
                let refusals: Vec<_> = run
                    .refused()
                    .iter()
                    .map(|(at, (code, why))| {
                        let why = format!("{}: {why}", quoted(&run.messages[*at].topic));
                        (*code, why, run.is_of_device(*at))
                    })
                    .collect();
                self.metrics.refused.add(refusals.len() as u64);
                for (code, why, is_of_device) in refusals {
                    if !self.terms.reasons && !is_of_device {
                        return effects.push(PublishEffect::Close(CloseReason::new(code, why)));
                    }
                    effects.push(PublishEffect::Refused(why));
                }
            }
            Err(_) => {
                *state = PublishState::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// The store answered [`PublishEffect::AppendReadings`].
    pub(super) fn readings_appended(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        let Some(PublishEntry { kind: PublishKind::Readings(run), state, .. }) =
            Self::at(&mut self.entries, self.first, ticket)
        else {
            return;
        };
        match result {
            Ok(_) => {
                *state = PublishState::Done(ReasonCode::SUCCESS);
                self.retry_after = BUSY_RETRY;
                self.metrics.schemaless_readings.add(run.readings.len() as u64);
                let kept = run.messages.iter().filter(|message| !message.topic.is_empty());
                effects.extend(kept.map(|message| message.forward(message.retain)));
            }
            Err(StoreError::Busy) => {
                *state = PublishState::Waiting;
                self.retry(now, self.retry_after);
                self.retry_after = (self.retry_after * 2).min(BUSY_RETRY_MAX);
            }
            Err(error @ (StoreError::Payload(_) | StoreError::Sensor(_))) => {
                *state = PublishState::Done(ReasonCode::SUCCESS);
                let (code, why) = (ReasonCode::PAYLOAD_FORMAT_INVALID, format!("readings: {error}"));
                run.refuse(code, &why);
                self.metrics.refused.add(run.messages.len() as u64);
                if !self.terms.reasons {
                    return effects.push(PublishEffect::Close(CloseReason::new(code, why)));
                }
                effects.push(PublishEffect::Refused(why));
            }
            Err(_) => {
                *state = PublishState::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// Answers the messages of a finished run that is no longer among the entries.
    pub(super) fn answer_run(
        &mut self,
        run: ReadingRun,
        arrived: Instant,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
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
            // Only a device's refusal gets here without reason codes: it is acknowledged, and was logged.
            let refusal = refusal.filter(|_| self.terms.reasons);
            let (reason, why) = refusal.unwrap_or((ReasonCode::SUCCESS, String::new()));
            effects.push(message.ack(packet_id, reason, why));
        }
        self.metrics.acks.add(acks);
        self.metrics.ack_seconds.observe_many(now.saturating_duration_since(arrived), acks);
    }

    pub fn is_gathering(&self) -> bool {
        matches!(self.entries.back(), Some(PublishEntry { state: PublishState::Open, .. }))
    }

    /// Whether sensors of some readings are being resolved before the readings are stored.
    pub fn is_naming(&self) -> bool {
        let naming = |entry: &PublishEntry| match &entry.kind {
            PublishKind::Readings(run) => run.is_unnamed() && entry.is_active(),
            _ => false,
        };
        self.entries.iter().any(naming)
    }

    /// Removes runs from the gauges when the connection is over.
    pub(super) fn forget_runs(&mut self) {
        for entry in &self.entries {
            if let (PublishKind::Readings(run), false) = (&entry.kind, entry.state == PublishState::Open) {
                // The entry itself counts one.
                self.metrics.in_flight.add(1 - run.messages.len() as i64);
            }
        }
        let open = self.entries.back().filter(|entry| entry.state == PublishState::Open);
        if let Some(PublishEntry { kind: PublishKind::Readings(run), .. }) = open {
            self.metrics.in_flight.add(1);
            self.bytes -= run.readings.len() * size_of::<wholegrain_store::Reading>();
        }
    }

    fn at(
        entries: &mut std::collections::VecDeque<PublishEntry>,
        first: u64,
        ticket: u64,
    ) -> Option<&mut PublishEntry> {
        ticket.checked_sub(first).and_then(|at| entries.get_mut(at as usize))
    }
}
