//! The publishes of one client, from arrival to acknowledgement. No I/O, no clock: events in, [`PublishEffect`]s out.
//!
//! - Acknowledgements follow the order of the publishes (MQTT 3.1.1, 4.6), each after its batch or schema is durable.
//! - A schema is registered at once, even if earlier publishes wait; a batch waits for the schemas that came before it.
//! - A batch whose schema was refused on the same connection is refused for the same reason, so that the client's other batches go on.
//! - A batch with an unknown schema is parked and the schema requested; when it arrives, parked batches are stored in their order. A batch parked
//!   for [`ClientTerms::schema_wait_max`] closes the connection.
//! - When the store is full or fails, batches are kept and retried, and [`PublishPipeline::can_read`] stops reading.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::{Properties, QoS, ReasonCode, Text};
use wholegrain_transport::payload;
use wholegrain_transport::topics::{self, Topic};

use super::effect::{ClientTerms, CloseReason, IncomingPublish, PublishEffect, SchemaRegisterError};
use super::reading_run::ReadingRun;
use crate::log_limit::quoted;
use crate::metrics::Metrics;

/// The first retry after the store's queue was full; the pause doubles with each further one.
pub const BUSY_RETRY: Duration = Duration::from_millis(5);
/// The longest pause after a full queue.
pub const BUSY_RETRY_MAX: Duration = Duration::from_millis(200);
/// The pause after a failure of the store, such as a full disk.
pub const FAILED_RETRY: Duration = Duration::from_secs(1);
/// The factor on the in-flight limits while everything waits for missing schemas.
pub const PARKED_FACTOR: usize = 2;
/// The most refused schemas of one connection that are remembered, to refuse their batches at once.
pub const REFUSED_SCHEMAS_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq)]
enum PublishState {
    Open,
    /// Ready for the store.
    Waiting,
    Sent,
    /// Waits for its schema, since this time.
    Parked(Instant),
    /// To be acknowledged with this reason.
    Done(ReasonCode),
}

#[derive(Debug)]
enum PublishKind {
    Batch { hash: SchemaHash, readings: u64 },
    Schema,
    Response,
    Job(Box<JobRecord>),
    Readings(Box<ReadingRun>),
    Other,
}

#[derive(Debug)]
struct PublishEntry {
    incoming: IncomingPublish,
    arrived: Instant,
    kind: PublishKind,
    state: PublishState,
    /// The reason of a refusal; empty if not refused.
    why: String,
}

impl IncomingPublish {
    /// A placeholder without message.
    fn nothing() -> Self {
        let (topic, payload, properties) = (Text::default(), Bytes::new(), Properties::new());
        Self { topic, payload, qos: QoS::AtMostOnce, packet_id: None, retain: false, properties }
    }

    /// Keeps only the fields that its acknowledgement needs.
    pub fn emptied(self) -> Self {
        Self { topic: Text::default(), payload: Bytes::new(), properties: Properties::new(), ..self }
    }

    /// Copies the payload, so that it points into no receive buffer.
    pub fn copied(self) -> Self {
        Self { payload: Bytes::copy_from_slice(&self.payload), ..self }
    }

    /// Whether the broker needs it later even without subscribers.
    pub fn is_kept(&self) -> bool {
        self.retain || self.qos == QoS::ExactlyOnce
    }

    fn ack(&self, packet_id: u16, reason: ReasonCode, why: String) -> PublishEffect {
        PublishEffect::Ack { packet_id, qos: self.qos, reason, why }
    }

    /// The effect that sends it to subscribers.
    fn forward(&self, retain: bool) -> PublishEffect {
        self.forward_as(retain, None)
    }

    /// The same for a payload that is a schema in the store.
    fn forward_as(&self, retain: bool, schema: Option<SchemaHash>) -> PublishEffect {
        PublishEffect::Forward {
            schema,
            topic: self.topic.clone(),
            payload: self.payload.clone(),
            qos: self.qos,
            packet_id: self.packet_id,
            retain,
            properties: self.properties.clone(),
        }
    }
}

impl PublishEntry {
    fn is_active(&self) -> bool {
        matches!(self.state, PublishState::Open | PublishState::Waiting | PublishState::Sent)
    }
}

/// The unacknowledged publishes of one client.
#[derive(Debug)]
pub struct PublishPipeline {
    terms: ClientTerms,
    /// A copy of the identity in `terms`, for tasks that outlive a borrow.
    identity: Arc<str>,
    metrics: Arc<Metrics>,
    entries: VecDeque<PublishEntry>,
    /// Ticket of the first entry.
    first: u64,
    bytes: usize,
    /// The number of runs of readings, and of messages in them that need an acknowledgement.
    runs: usize,
    gathered: usize,
    retry_at: Option<Instant>,
    retry_after: Duration,
    stopped: bool,
    /// Schemas that this client announced and that were refused, with the reason.
    refused_schemas: HashMap<SchemaHash, (ReasonCode, String)>,
}

impl PublishPipeline {
    pub fn new(terms: ClientTerms, metrics: Arc<Metrics>) -> Self {
        Self {
            identity: terms.identity.as_str().into(),
            terms,
            metrics,
            entries: VecDeque::new(),
            first: 0,
            bytes: 0,
            runs: 0,
            gathered: 0,
            retry_at: None,
            retry_after: BUSY_RETRY,
            stopped: false,
            refused_schemas: HashMap::new(),
        }
    }

    /// The authenticated name of the client.
    pub fn identity(&self) -> &str {
        &self.terms.identity
    }

    /// Whether the client learns the reason of a refusal (MQTT 5).
    pub fn has_reasons(&self) -> bool {
        self.terms.reasons
    }

    /// A shared copy of the identity.
    pub fn identity_shared(&self) -> Arc<str> {
        self.identity.clone()
    }

    /// Whether more may be read from the client now. If everything waits for schemas, reading goes on, because the schemas arrive on the same
    /// connection.
    pub fn can_read(&self) -> bool {
        (self.is_within(1) && self.has_share())
            || (self.is_within(PARKED_FACTOR) && !self.entries.iter().any(PublishEntry::is_active))
    }

    /// Each client may have something in flight; more only while all clients together are within their limit. A client with nothing in flight is
    /// never stopped, and one with something is woken by its acknowledgement: no client waits for another.
    fn has_share(&self) -> bool {
        self.bytes == 0 || self.metrics.in_flight_bytes.get() < self.terms.inflight_total_bytes_max as i64
    }

    fn is_within(&self, factor: usize) -> bool {
        self.len() < factor * self.terms.inflight_max && self.bytes < factor * self.terms.inflight_bytes_max
    }

    /// The number of unacknowledged publishes.
    pub fn len(&self) -> usize {
        self.entries.len() - self.runs + self.gathered
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the store has not yet answered an effect of this client.
    pub fn awaits_store(&self) -> bool {
        self.entries.iter().any(|entry| entry.state == PublishState::Sent)
    }

    /// Schemas that batches wait for, each once.
    pub fn needed(&self) -> Vec<SchemaHash> {
        let mut hashes = Vec::new();
        for entry in &self.entries {
            if let (PublishKind::Batch { hash, .. }, PublishState::Parked(_)) = (&entry.kind, entry.state)
                && !hashes.contains(hash)
            {
                hashes.push(*hash);
            }
        }
        hashes
    }

    /// Sends nothing more to the store: the server shuts down.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn publish(&mut self, incoming: IncomingPublish, now: Instant, effects: &mut Vec<PublishEffect>) {
        self.close_run(now, effects);
        self.metrics.publishes.inc();
        if !self.is_within(PARKED_FACTOR) {
            let why = format!("{} publishes wait for a schema; send schemas before batches", self.entries.len());
            effects.push(PublishEffect::Close(CloseReason::new(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, why)));
            return;
        }
        match self.classify(&incoming) {
            Ok(kind) => self.take(incoming, kind, now, effects),
            Err((code, why)) => self.deny(incoming, code, &why, now, effects),
        }
    }

    /// Adds a publish that this client may not make, with the reason.
    pub fn deny(
        &mut self,
        incoming: IncomingPublish,
        code: ReasonCode,
        why: &str,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        self.metrics.refused.inc();
        if job::is_one(&incoming.topic) {
            self.metrics.job_records_refused.inc();
        }
        let why = format!("{}: {why}", quoted(&incoming.topic));
        // MQTT 3.1.1 can only acknowledge or close. A message that is not a reading and has no meaning for the server is acknowledged and discarded.
        let harmless = incoming.topic.starts_with('$') || job::is_one(&incoming.topic);
        if !self.terms.reasons && !harmless {
            effects.push(PublishEffect::Close(CloseReason::new(code, why)));
            return;
        }
        effects.push(PublishEffect::Refused(why.clone()));
        let code = if self.terms.reasons { code } else { ReasonCode::SUCCESS };
        self.push(PublishEntry {
            incoming,
            arrived: now,
            kind: PublishKind::Other,
            state: PublishState::Done(code),
            why,
        });
        self.acknowledge(now, effects);
    }

    /// Adds a QoS 2 publish that was accepted before: it is only acknowledged again, in its turn.
    pub fn repeat(&mut self, incoming: IncomingPublish, now: Instant, effects: &mut Vec<PublishEffect>) {
        let (kind, state, why) = (PublishKind::Other, PublishState::Done(ReasonCode::SUCCESS), String::new());
        self.push(PublishEntry {
            incoming: IncomingPublish { payload: Bytes::new(), ..incoming },
            arrived: now,
            kind,
            state,
            why,
        });
        self.acknowledge(now, effects);
    }

    /// The number of unacknowledged QoS 1 publishes.
    pub fn at_least_once(&self) -> usize {
        let messages = |entry: &PublishEntry| match &entry.kind {
            PublishKind::Readings(run) => run.messages.iter().filter(|message| message.qos == QoS::AtLeastOnce).count(),
            _ => usize::from(entry.incoming.qos == QoS::AtLeastOnce),
        };
        self.entries.iter().map(messages).sum()
    }

    /// The kind of a publish, or the reason to refuse it.
    fn classify(&self, incoming: &IncomingPublish) -> Result<PublishKind, (ReasonCode, String)> {
        let topic = incoming.topic.as_str();
        let own = |agent: &str| {
            let why = || format!("{:?} may publish under its own name only, not as {agent:?}", self.terms.identity);
            if self.terms.relay || agent == self.terms.identity {
                Ok(())
            } else {
                Err((ReasonCode::NOT_AUTHORIZED, why()))
            }
        };
        match Topic::parse(topic) {
            Some(Topic::Batch { agent, .. }) => {
                own(agent)?;
                let (sender, hash, span) = payload::read_origin(&incoming.payload)
                    .map_err(|error| (ReasonCode::PAYLOAD_FORMAT_INVALID, format!("not a batch: {error}")))?;
                own(sender)?;
                if sender != agent {
                    let why = format!("the batch is of {sender:?}, its topic of {agent:?}");
                    return Err((ReasonCode::NOT_AUTHORIZED, why));
                }
                Ok(PublishKind::Batch { hash, readings: (span.samples * span.sensors) as u64 })
            }
            Some(Topic::Schema { agent, .. }) => own(agent).map(|()| PublishKind::Schema),
            Some(Topic::Need { .. } | Topic::Control { .. }) => {
                Err((ReasonCode::NOT_AUTHORIZED, "only the server publishes there".to_owned()))
            }
            Some(Topic::Response { agent }) => own(agent).map(|()| PublishKind::Response),
            Some(Topic::Job { agent }) => {
                own(agent)?;
                job::read(agent, &incoming.payload).map(|record| PublishKind::Job(Box::new(record)))
            }
            None if topic.starts_with(topics::ROOT) || topic.starts_with('$') => {
                Err((ReasonCode::TOPIC_NAME_INVALID, "the server has no such native topic".to_owned()))
            }
            None => Ok(PublishKind::Other),
        }
    }

    fn take(&mut self, incoming: IncomingPublish, kind: PublishKind, now: Instant, effects: &mut Vec<PublishEffect>) {
        let state = match kind {
            PublishKind::Other => {
                effects.push(incoming.forward(incoming.retain));
                PublishState::Done(ReasonCode::SUCCESS)
            }
            PublishKind::Response => {
                if let Some(Topic::Response { agent }) = Topic::parse(incoming.topic.as_str()) {
                    effects
                        .push(PublishEffect::Answered { agent: agent.to_owned(), payload: incoming.payload.clone() });
                }
                PublishState::Done(ReasonCode::SUCCESS)
            }
            _ => PublishState::Waiting,
        };
        self.push(PublishEntry { incoming, arrived: now, kind, state, why: String::new() });
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    fn push(&mut self, entry: PublishEntry) {
        self.bytes += entry.incoming.payload.len();
        self.metrics.in_flight_bytes.add(entry.incoming.payload.len() as i64);
        self.metrics.in_flight.add(1);
        self.entries.push_back(entry);
    }

    /// The store answered [`PublishEffect::Append`].
    pub fn appended(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        let Some(entry) = ticket.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        let (hash, readings) = match entry.kind {
            PublishKind::Batch { hash, readings } => (hash, readings),
            PublishKind::Readings(_) => return self.readings_appended(ticket, result, now, effects),
            PublishKind::Job(_) => return self.job_put(ticket, result, now, effects),
            _ => return,
        };
        match result {
            Ok(appended) => {
                entry.state = PublishState::Done(ReasonCode::SUCCESS);
                self.retry_after = BUSY_RETRY;
                if appended == AppendOutcome::Stored {
                    effects.push(entry.incoming.forward(false));
                }
                let bytes = entry.incoming.payload.len();
                self.count(appended, readings, bytes);
            }
            Err(StoreError::UnknownSchema(_)) if self.refused_schemas.contains_key(&hash) => {
                let (code, why) = self.refused_schemas[&hash].clone();
                return self.refuse(ticket, code, format!("its schema was refused: {why}"), now, effects);
            }
            Err(StoreError::UnknownSchema(_)) => {
                entry.state = PublishState::Parked(now);
                self.metrics.parked.inc();
                self.metrics.waiting_for_schema.add(1);
                if self.parked_with(hash) == 1 {
                    effects.push(PublishEffect::Need(vec![hash]));
                }
            }
            Err(StoreError::Busy) => {
                entry.state = PublishState::Waiting;
                self.retry(now, self.retry_after);
                self.retry_after = (self.retry_after * 2).min(BUSY_RETRY_MAX);
            }
            Err(StoreError::Payload(error)) => {
                return self.refuse(
                    ticket,
                    ReasonCode::PAYLOAD_FORMAT_INVALID,
                    format!("not a batch: {error}"),
                    now,
                    effects,
                );
            }
            // A full disk, a disk error, a store that is being closed: the agent keeps its data because nothing is acknowledged.
            Err(_) => {
                entry.state = PublishState::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// The client may not publish the batch of [`PublishEffect::Append`] or the record of [`PublishEffect::PutJob`]: it is of other sensors, or too
    /// large.
    pub fn denied(
        &mut self,
        ticket: u64,
        code: ReasonCode,
        why: String,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        if ticket >= self.first && ticket - self.first < self.entries.len() as u64 {
            if let PublishKind::Job(_) = self.entries[(ticket - self.first) as usize].kind {
                self.metrics.job_records_refused.inc();
            }
            self.refuse(ticket, code, why, now, effects);
        }
    }

    /// The result of [`PublishEffect::Register`].
    pub fn registered(
        &mut self,
        ticket: u64,
        result: Result<Schema, SchemaRegisterError>,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        let Some(entry) = ticket.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        match result {
            Ok(schema) => {
                entry.state = PublishState::Done(ReasonCode::SUCCESS);
                let hash = schema.hash();
                self.refused_schemas.remove(&hash);
                effects.push(entry.incoming.forward_as(true, Some(hash)));
                self.metrics.schemas.inc();
                self.unpark(|wanted| *wanted == hash);
            }
            Err(SchemaRegisterError::Refused(code, why)) => {
                // Batches that wait for it would hold back the acknowledgements of all batches behind them.
                let hash = SchemaHash::of(&entry.incoming.payload);
                if self.refused_schemas.len() >= REFUSED_SCHEMAS_MAX {
                    self.refused_schemas.clear();
                }
                self.refused_schemas.insert(hash, (code, why.clone()));
                self.unpark(|wanted| *wanted == hash);
                return self.refuse(ticket, code, why, now, effects);
            }
            Err(SchemaRegisterError::Store(_)) => {
                entry.state = PublishState::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// Another connection made schemas known.
    pub fn schemas_changed(
        &mut self,
        known: impl Fn(&SchemaHash) -> bool,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        self.unpark(known);
        self.pump(now, effects);
    }

    pub fn has_parked(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.state, PublishState::Parked(_)))
    }

    /// When [`PublishPipeline::tick`] must be called.
    pub fn deadline(&self) -> Option<Instant> {
        let parked = self.entries.iter().filter_map(|entry| match entry.state {
            PublishState::Parked(since) => Some(since + self.terms.schema_wait_max),
            _ => None,
        });
        parked.chain(self.retry_at).min()
    }

    pub fn tick(&mut self, now: Instant, effects: &mut Vec<PublishEffect>) {
        if self.terms.relay {
            self.give_up(now, effects);
        }
        for entry in &self.entries {
            if let (PublishState::Parked(since), PublishKind::Batch { hash, .. }) = (entry.state, &entry.kind)
                && now >= since + self.terms.schema_wait_max
            {
                let wait_s = self.terms.schema_wait_max.as_secs_f32();
                let why =
                    format!("{}: the schema {hash} did not come within {wait_s} s", quoted(&entry.incoming.topic));
                effects.push(PublishEffect::Close(CloseReason::new(ReasonCode::IMPLEMENTATION_ERROR, why)));
                return;
            }
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            self.pump(now, effects);
        }
    }

    /// A remote broker would send a batch with a missing schema again and again and block everything behind it: the batch is refused, counted and
    /// logged.
    fn give_up(&mut self, now: Instant, effects: &mut Vec<PublishEffect>) {
        let wait = self.terms.schema_wait_max;
        while let Some(at) = self.entries.iter().position(|entry| match entry.state {
            PublishState::Parked(since) => now >= since + wait,
            _ => false,
        }) {
            self.metrics.waiting_for_schema.add(-1);
            let why = format!("its schema did not come within {} s", wait.as_secs_f32());
            self.refuse(self.first + at as u64, ReasonCode::IMPLEMENTATION_ERROR, why, now, effects);
        }
    }

    fn count(&self, appended: AppendOutcome, readings: u64, bytes: usize) {
        match appended {
            AppendOutcome::Duplicate => return self.metrics.duplicates.inc(),
            // The store counts it.
            AppendOutcome::Quarantined => return,
            AppendOutcome::Stored => {}
        }
        self.metrics.batches.inc();
        self.metrics.readings.add(readings);
        self.metrics.batch_bytes.add(bytes as u64);
    }

    fn retry(&mut self, now: Instant, after: Duration) {
        self.metrics.store_retries.inc();
        let at = now + after;
        self.retry_at = Some(self.retry_at.map_or(at, |earlier| earlier.max(at)));
    }

    fn refuse(&mut self, ticket: u64, code: ReasonCode, why: String, now: Instant, effects: &mut Vec<PublishEffect>) {
        let entry = &mut self.entries[(ticket - self.first) as usize];
        entry.state = PublishState::Done(code);
        let why = format!("{}: {why}", quoted(&entry.incoming.topic));
        self.metrics.refused.inc();
        if !self.terms.reasons && !matches!(entry.kind, PublishKind::Job(_)) {
            effects.push(PublishEffect::Close(CloseReason::new(code, why)));
            return;
        }
        if !self.terms.reasons {
            entry.state = PublishState::Done(ReasonCode::SUCCESS);
        }
        entry.why = why.clone();
        effects.push(PublishEffect::Refused(why));
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    fn parked_with(&self, hash: SchemaHash) -> usize {
        let is = |entry: &&PublishEntry| matches!((&entry.kind, entry.state), (PublishKind::Batch { hash: h, .. }, PublishState::Parked(_)) if *h == hash);
        self.entries.iter().filter(is).count()
    }

    fn unpark(&mut self, known: impl Fn(&SchemaHash) -> bool) {
        for entry in &mut self.entries {
            if let (PublishKind::Batch { hash, .. }, PublishState::Parked(_)) = (&entry.kind, entry.state)
                && known(hash)
            {
                entry.state = PublishState::Waiting;
                self.metrics.waiting_for_schema.add(-1);
            }
        }
    }

    /// Sends waiting entries to the store, front to back.
    fn pump(&mut self, now: Instant, effects: &mut Vec<PublishEffect>) {
        if self.stopped || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let (mut behind_schema, mut behind_announcement) = (false, false);
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let ticket = self.first + at as u64;
            let payload = || entry.incoming.payload.clone();
            match (&entry.kind, entry.state) {
                (PublishKind::Schema, PublishState::Waiting) => {
                    effects.push(PublishEffect::Register { ticket, payload: payload() });
                    behind_schema = true;
                }
                (PublishKind::Schema, PublishState::Sent) => {
                    behind_schema = true;
                    continue;
                }
                (PublishKind::Readings(run), PublishState::Waiting) => match run.names() {
                    None => effects.push(PublishEffect::AppendReadings { ticket, readings: run.readings.clone() }),
                    Some(_) if behind_announcement => continue,
                    Some(names) => {
                        behind_announcement = run.is_announcement();
                        effects.push(PublishEffect::Name { ticket, names });
                    }
                },
                (PublishKind::Readings(run), PublishState::Sent) => {
                    behind_announcement |= run.is_announcement();
                    continue;
                }
                (PublishKind::Job(record), PublishState::Waiting) => {
                    let (record, bytes) = (record.clone(), entry.incoming.payload.len());
                    effects.push(PublishEffect::PutJob { ticket, record, bytes });
                }
                (PublishKind::Batch { hash, .. }, PublishState::Waiting) if !behind_schema => {
                    effects.push(PublishEffect::Append { ticket, schema: *hash, payload: payload() })
                }
                _ => continue,
            }
            entry.state = PublishState::Sent;
        }
    }

    /// Acknowledges finished entries from the front.
    fn acknowledge(&mut self, now: Instant, effects: &mut Vec<PublishEffect>) {
        while let Some(PublishEntry { state: PublishState::Done(code), .. }) = self.entries.front() {
            let reason = *code;
            let Some(entry) = self.entries.pop_front() else { return };
            self.first += 1;
            if let PublishKind::Readings(run) = entry.kind {
                self.answer_run(*run, entry.arrived, now, effects);
                continue;
            }
            self.bytes -= entry.incoming.payload.len();
            self.metrics.in_flight_bytes.add(-(entry.incoming.payload.len() as i64));
            self.metrics.in_flight.add(-1);
            let Some(packet_id) = entry.incoming.packet_id else { continue };
            let qos = entry.incoming.qos;
            effects.push(PublishEffect::Ack { packet_id, qos, reason, why: entry.why });
            if reason == ReasonCode::SUCCESS {
                self.metrics.acks.inc();
                self.metrics.ack_seconds.observe(now.saturating_duration_since(entry.arrived));
            }
        }
        if self.entries.is_empty() {
            // Ten thousand clients with nothing in flight must not keep the memory.
            self.entries = VecDeque::new();
        }
    }
}

impl Drop for PublishPipeline {
    fn drop(&mut self) {
        self.unpark(|_| true);
        self.forget_runs();
        self.metrics.in_flight.add(-(self.entries.len() as i64));
        self.metrics.in_flight_bytes.add(-(self.bytes as i64));
    }
}

mod job;
mod readings;
#[cfg(test)]
mod tests;
