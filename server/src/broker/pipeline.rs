//! What becomes of one client's publishes, from arrival to acknowledgement. No I/O, no clock: events in, [`Effect`]s out.
//!
//! - Acknowledgements go out in the order of the publishes (MQTT 3.1.1, section 4.6), each after its batch or schema is
//!   durable.
//! - A schema is registered at once, whatever waits before it; a batch waits for the schemas that came before it.
//! - A batch whose schema the server lacks is parked and the schema asked for; when it comes, parked batches are stored in
//!   their order. One that is parked for [`Terms::schema_wait_max`] closes the connection.
//! - When the store is full or fails, batches are held and tried again, and [`Pipeline::can_read`] says to stop reading.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::{Properties, QoS, ReasonCode, Text};
use wholegrain_transport::payload;
use wholegrain_transport::topics::{self, Topic};

use super::log_limit::quoted;
use crate::interop::run::Run;
use crate::metrics::Metrics;
pub use effect::{Close, Effect, Incoming, RegisterError, Terms};

/// How long after a full queue of the store the first new try is made; it doubles with each further one.
pub const BUSY_RETRY: Duration = Duration::from_millis(5);
/// The longest wait after a full queue.
pub const BUSY_RETRY_MAX: Duration = Duration::from_millis(200);
/// How long after a failure of the store, such as a full disk, the next try is made.
pub const FAILED_RETRY: Duration = Duration::from_secs(1);
/// How many times the in-flight bounds may be filled while everything waits for a schema that is still to come.
pub const PARKED_FACTOR: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Readings that still come.
    Open,
    /// To be handed to the store.
    Waiting,
    /// With the store.
    Sent,
    /// A batch whose schema is not there, since when.
    Parked(Instant),
    /// To be acknowledged with this reason.
    Done(ReasonCode),
}

#[derive(Debug)]
enum Kind {
    Batch { hash: SchemaHash, readings: u64 },
    Schema,
    Answer,
    Job(Box<JobRecord>),
    Readings(Box<Run>),
    Other,
}

#[derive(Debug)]
struct Entry {
    incoming: Incoming,
    arrived: Instant,
    kind: Kind,
    state: State,
    /// Why it was refused; empty when it was not.
    why: String,
}

impl Incoming {
    /// What stands where there is no message.
    fn nothing() -> Self {
        let (topic, payload, properties) = (Text::default(), Bytes::new(), Properties::new());
        Self { topic, payload, qos: QoS::AtMostOnce, packet_id: None, retain: false, properties }
    }

    /// Only what its acknowledgement needs.
    pub fn emptied(self) -> Self {
        Self { topic: Text::default(), payload: Bytes::new(), properties: Properties::new(), ..self }
    }

    /// With a payload that points into no receive buffer.
    pub fn copied(self) -> Self {
        Self { payload: Bytes::copy_from_slice(&self.payload), ..self }
    }

    /// Whether it goes through the broker's hands later even if nobody subscribes.
    pub fn is_kept(&self) -> bool {
        self.retain || self.qos == QoS::ExactlyOnce
    }

    fn ack(&self, packet_id: u16, reason: ReasonCode, why: String) -> Effect {
        Effect::Ack { packet_id, qos: self.qos, reason, why }
    }

    /// Passing it on to subscribers.
    fn forward(&self, retain: bool) -> Effect {
        self.forward_as(retain, None)
    }

    /// The same, of a payload that is a schema which the store has.
    fn forward_as(&self, retain: bool, schema: Option<SchemaHash>) -> Effect {
        Effect::Forward {
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

impl Entry {
    fn is_active(&self) -> bool {
        matches!(self.state, State::Open | State::Waiting | State::Sent)
    }
}

/// One client's publishes that are not yet acknowledged.
#[derive(Debug)]
pub struct Pipeline {
    terms: Terms,
    /// The same as in `terms`, for tasks that outlive a borrow.
    identity: Arc<str>,
    metrics: Arc<Metrics>,
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    bytes: usize,
    /// How many entries are runs of readings, and how many messages to be acknowledged are in them.
    runs: usize,
    gathered: usize,
    retry_at: Option<Instant>,
    retry_after: Duration,
    stopped: bool,
}

impl Pipeline {
    /// Of a client that just connected.
    pub fn new(terms: Terms, metrics: Arc<Metrics>) -> Self {
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
        }
    }

    /// The name that the client proved.
    pub fn identity(&self) -> &str {
        &self.terms.identity
    }

    /// The same, to be kept.
    pub fn identity_shared(&self) -> Arc<str> {
        self.identity.clone()
    }

    /// Whether more may be read from the client now. Everything that waits for a schema to come does not stop reading,
    /// for the schema comes the same way.
    pub fn can_read(&self) -> bool {
        (self.is_within(1) && self.has_share())
            || (self.is_within(PARKED_FACTOR) && !self.entries.iter().any(Entry::is_active))
    }

    /// Each client may have something in flight; more only while all of them together stay within their bound. Who has
    /// nothing is never stopped, and who has something hears of it when it is acknowledged: nobody waits for another.
    fn has_share(&self) -> bool {
        self.bytes == 0 || self.metrics.in_flight_bytes.get() < self.terms.inflight_total_bytes_max as i64
    }

    fn is_within(&self, factor: usize) -> bool {
        self.len() < factor * self.terms.inflight_max && self.bytes < factor * self.terms.inflight_bytes_max
    }

    /// The number of publishes not yet acknowledged.
    pub fn len(&self) -> usize {
        self.entries.len() - self.runs + self.gathered
    }

    /// Whether everything is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the store has something of this client that it has not answered.
    pub fn awaits_store(&self) -> bool {
        self.entries.iter().any(|entry| entry.state == State::Sent)
    }

    /// Schemas that batches wait for, each once.
    pub fn needed(&self) -> Vec<SchemaHash> {
        let mut hashes = Vec::new();
        for entry in &self.entries {
            if let (Kind::Batch { hash, .. }, State::Parked(_)) = (&entry.kind, entry.state)
                && !hashes.contains(hash)
            {
                hashes.push(*hash);
            }
        }
        hashes
    }

    /// Hands nothing more to the store: the server is going down.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Takes a publish.
    pub fn publish(&mut self, incoming: Incoming, now: Instant, effects: &mut Vec<Effect>) {
        self.close_run(now, effects);
        self.metrics.publishes.inc();
        if !self.is_within(PARKED_FACTOR) {
            let why =
                format!("{} publishes wait for a schema and more were sent; schemas go first", self.entries.len());
            effects.push(Effect::Close(Close::new(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, why)));
            return;
        }
        match self.classify(&incoming) {
            Ok(kind) => self.take(incoming, kind, now, effects),
            Err((code, why)) => self.deny(incoming, code, &why, now, effects),
        }
    }

    /// Takes a publish that is not for this client to make, and why.
    pub fn deny(&mut self, incoming: Incoming, code: ReasonCode, why: &str, now: Instant, effects: &mut Vec<Effect>) {
        self.metrics.refused.inc();
        if job::is_one(&incoming.topic) {
            self.metrics.job_records_refused.inc();
        }
        let why = format!("{}: {why}", quoted(&incoming.topic));
        // 3.1.1 can only acknowledge or close. What is no reading and means nothing here is acknowledged and let fall.
        let harmless = incoming.topic.starts_with('$') || job::is_one(&incoming.topic);
        if !self.terms.reasons && !harmless {
            effects.push(Effect::Close(Close::new(code, why)));
            return;
        }
        effects.push(Effect::Refused(why.clone()));
        let code = if self.terms.reasons { code } else { ReasonCode::SUCCESS };
        self.push(Entry { incoming, arrived: now, kind: Kind::Other, state: State::Done(code), why });
        self.acknowledge(now, effects);
    }

    /// Takes a QoS 2 publish that was taken before: it is acknowledged again, in its turn, and nothing else.
    pub fn repeat(&mut self, incoming: Incoming, now: Instant, effects: &mut Vec<Effect>) {
        let (kind, state, why) = (Kind::Other, State::Done(ReasonCode::SUCCESS), String::new());
        self.push(Entry { incoming: Incoming { payload: Bytes::new(), ..incoming }, arrived: now, kind, state, why });
        self.acknowledge(now, effects);
    }

    /// How many QoS 1 publishes are not yet acknowledged.
    pub fn at_least_once(&self) -> usize {
        let messages = |entry: &Entry| match &entry.kind {
            Kind::Readings(run) => run.messages.iter().filter(|message| message.qos == QoS::AtLeastOnce).count(),
            _ => usize::from(entry.incoming.qos == QoS::AtLeastOnce),
        };
        self.entries.iter().map(messages).sum()
    }

    /// What a publish is, or the reason to refuse it.
    fn classify(&self, incoming: &Incoming) -> Result<Kind, (ReasonCode, String)> {
        let topic = incoming.topic.as_str();
        let own = |agent: &str| {
            let why = || format!("{:?} may publish as itself only, not as {agent:?}", self.terms.identity);
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
                Ok(Kind::Batch { hash, readings: (span.samples * span.sensors) as u64 })
            }
            Some(Topic::Schema { agent, .. }) => own(agent).map(|()| Kind::Schema),
            Some(Topic::Need { .. } | Topic::Control { .. }) => {
                Err((ReasonCode::NOT_AUTHORIZED, "only the server publishes there".to_owned()))
            }
            Some(Topic::Answer { agent }) => own(agent).map(|()| Kind::Answer),
            Some(Topic::Job { agent }) => {
                own(agent)?;
                job::read(agent, &incoming.payload).map(|record| Kind::Job(Box::new(record)))
            }
            None if topic.starts_with(topics::ROOT) || topic.starts_with('$') => {
                Err((ReasonCode::TOPIC_NAME_INVALID, "not a topic that means anything here".to_owned()))
            }
            None => Ok(Kind::Other),
        }
    }

    fn take(&mut self, incoming: Incoming, kind: Kind, now: Instant, effects: &mut Vec<Effect>) {
        let state = match kind {
            Kind::Other => {
                effects.push(incoming.forward(incoming.retain));
                State::Done(ReasonCode::SUCCESS)
            }
            Kind::Answer => {
                if let Some(Topic::Answer { agent }) = Topic::parse(incoming.topic.as_str()) {
                    effects.push(Effect::Answered { agent: agent.to_owned(), payload: incoming.payload.clone() });
                }
                State::Done(ReasonCode::SUCCESS)
            }
            _ => State::Waiting,
        };
        self.push(Entry { incoming, arrived: now, kind, state, why: String::new() });
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    fn push(&mut self, entry: Entry) {
        self.bytes += entry.incoming.payload.len();
        self.metrics.in_flight_bytes.add(entry.incoming.payload.len() as i64);
        self.metrics.in_flight.add(1);
        self.entries.push_back(entry);
    }

    /// The store answered [`Effect::Append`].
    pub fn appended(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = ticket.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        let (hash, readings) = match entry.kind {
            Kind::Batch { hash, readings } => (hash, readings),
            Kind::Readings(_) => return self.readings_appended(ticket, result, now, effects),
            Kind::Job(_) => return self.job_put(ticket, result, now, effects),
            _ => return,
        };
        match result {
            Ok(appended) => {
                entry.state = State::Done(ReasonCode::SUCCESS);
                self.retry_after = BUSY_RETRY;
                if appended == AppendOutcome::Stored {
                    effects.push(entry.incoming.forward(false));
                }
                let bytes = entry.incoming.payload.len();
                self.count(appended, readings, bytes);
            }
            Err(StoreError::UnknownSchema(_)) => {
                entry.state = State::Parked(now);
                self.metrics.parked.inc();
                self.metrics.waiting_for_schema.add(1);
                if self.parked_with(hash) == 1 {
                    effects.push(Effect::Need(vec![hash]));
                }
            }
            Err(StoreError::Busy) => {
                entry.state = State::Waiting;
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
            // Disk full, an error of the disk, a store that is being closed: the agent keeps its data, for nothing is acknowledged.
            Err(_) => {
                entry.state = State::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// The batch of [`Effect::Append`], or the record of [`Effect::PutJob`], is not for this client to publish: it is of sensors elsewhere, or too much.
    pub fn denied(&mut self, ticket: u64, code: ReasonCode, why: String, now: Instant, effects: &mut Vec<Effect>) {
        if ticket >= self.first && ticket - self.first < self.entries.len() as u64 {
            if let Kind::Job(_) = self.entries[(ticket - self.first) as usize].kind {
                self.metrics.job_records_refused.inc();
            }
            self.refuse(ticket, code, why, now, effects);
        }
    }

    /// A schema of [`Effect::Register`] is durable, or not.
    pub fn registered(
        &mut self,
        ticket: u64,
        result: Result<Schema, RegisterError>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = ticket.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        match result {
            Ok(schema) => {
                entry.state = State::Done(ReasonCode::SUCCESS);
                let hash = schema.hash();
                effects.push(entry.incoming.forward_as(true, Some(hash)));
                self.metrics.schemas.inc();
                self.unpark(|wanted| *wanted == hash);
            }
            Err(RegisterError::Refused(code, why)) => return self.refuse(ticket, code, why, now, effects),
            Err(RegisterError::Store(_)) => {
                entry.state = State::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    /// Schemas became known by another connection.
    pub fn schemas_changed(&mut self, known: impl Fn(&SchemaHash) -> bool, now: Instant, effects: &mut Vec<Effect>) {
        self.unpark(known);
        self.pump(now, effects);
    }

    /// Whether any batch waits for its schema.
    pub fn has_parked(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.state, State::Parked(_)))
    }

    /// When [`Pipeline::tick`] is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        let parked = self.entries.iter().filter_map(|entry| match entry.state {
            State::Parked(since) => Some(since + self.terms.schema_wait_max),
            _ => None,
        });
        parked.chain(self.retry_at).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.terms.relay {
            self.give_up(now, effects);
        }
        for entry in &self.entries {
            if let (State::Parked(since), Kind::Batch { hash, .. }) = (entry.state, &entry.kind)
                && now >= since + self.terms.schema_wait_max
            {
                let wait_s = self.terms.schema_wait_max.as_secs_f32();
                let why =
                    format!("{}: the schema {hash} did not come within {wait_s} s", quoted(&entry.incoming.topic));
                effects.push(Effect::Close(Close::new(ReasonCode::IMPLEMENTATION_ERROR, why)));
                return;
            }
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            self.pump(now, effects);
        }
    }

    /// A broker would send a batch whose schema does not come again and again, and everything behind it would wait: it is
    /// refused, which is counted and logged.
    fn give_up(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let wait = self.terms.schema_wait_max;
        while let Some(at) = self.entries.iter().position(|entry| match entry.state {
            State::Parked(since) => now >= since + wait,
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

    fn refuse(&mut self, ticket: u64, code: ReasonCode, why: String, now: Instant, effects: &mut Vec<Effect>) {
        let entry = &mut self.entries[(ticket - self.first) as usize];
        entry.state = State::Done(code);
        let why = format!("{}: {why}", quoted(&entry.incoming.topic));
        self.metrics.refused.inc();
        if !self.terms.reasons && !matches!(entry.kind, Kind::Job(_)) {
            effects.push(Effect::Close(Close::new(code, why)));
            return;
        }
        if !self.terms.reasons {
            entry.state = State::Done(ReasonCode::SUCCESS);
        }
        entry.why = why.clone();
        effects.push(Effect::Refused(why));
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }

    fn parked_with(&self, hash: SchemaHash) -> usize {
        let is = |entry: &&Entry| matches!((&entry.kind, entry.state), (Kind::Batch { hash: h, .. }, State::Parked(_)) if *h == hash);
        self.entries.iter().filter(is).count()
    }

    fn unpark(&mut self, known: impl Fn(&SchemaHash) -> bool) {
        for entry in &mut self.entries {
            if let (Kind::Batch { hash, .. }, State::Parked(_)) = (&entry.kind, entry.state)
                && known(hash)
            {
                entry.state = State::Waiting;
                self.metrics.waiting_for_schema.add(-1);
            }
        }
    }

    /// Hands to the store what waits and may go, front to back.
    fn pump(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.stopped || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let (mut behind_schema, mut behind_announcement) = (false, false);
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let ticket = self.first + at as u64;
            let payload = || entry.incoming.payload.clone();
            match (&entry.kind, entry.state) {
                (Kind::Schema, State::Waiting) => {
                    effects.push(Effect::Register { ticket, payload: payload() });
                    behind_schema = true;
                }
                (Kind::Schema, State::Sent) => {
                    behind_schema = true;
                    continue;
                }
                (Kind::Readings(run), State::Waiting) => match run.names() {
                    None => effects.push(Effect::AppendReadings { ticket, readings: run.readings.clone() }),
                    Some(_) if behind_announcement => continue,
                    Some(names) => {
                        behind_announcement = run.is_announcement();
                        effects.push(Effect::Name { ticket, names });
                    }
                },
                (Kind::Readings(run), State::Sent) => {
                    behind_announcement |= run.is_announcement();
                    continue;
                }
                (Kind::Job(record), State::Waiting) => {
                    let (record, bytes) = (record.clone(), entry.incoming.payload.len());
                    effects.push(Effect::PutJob { ticket, record, bytes });
                }
                (Kind::Batch { hash, .. }, State::Waiting) if !behind_schema => {
                    effects.push(Effect::Append { ticket, schema: *hash, payload: payload() })
                }
                _ => continue,
            }
            entry.state = State::Sent;
        }
    }

    /// Acknowledges from the front what is done.
    fn acknowledge(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(Entry { state: State::Done(code), .. }) = self.entries.front() {
            let reason = *code;
            let Some(entry) = self.entries.pop_front() else { return };
            self.first += 1;
            if let Kind::Readings(run) = entry.kind {
                self.answer_run(*run, entry.arrived, now, effects);
                continue;
            }
            self.bytes -= entry.incoming.payload.len();
            self.metrics.in_flight_bytes.add(-(entry.incoming.payload.len() as i64));
            self.metrics.in_flight.add(-1);
            let Some(packet_id) = entry.incoming.packet_id else { continue };
            let qos = entry.incoming.qos;
            effects.push(Effect::Ack { packet_id, qos, reason, why: entry.why });
            if reason == ReasonCode::SUCCESS {
                self.metrics.acks.inc();
                self.metrics.ack_seconds.observe(now.saturating_duration_since(entry.arrived));
            }
        }
        if self.entries.is_empty() {
            // Room for publishes is not kept by ten thousand clients that have none in flight.
            self.entries = VecDeque::new();
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.unpark(|_| true);
        self.forget_runs();
        self.metrics.in_flight.add(-(self.entries.len() as i64));
        self.metrics.in_flight_bytes.add(-(self.bytes as i64));
    }
}

mod effect;
mod job;
mod readings;
#[cfg(test)]
mod tests;
