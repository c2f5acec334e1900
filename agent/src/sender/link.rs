//! The connection to the server: connects, sends, and returns unacknowledged messages to the queue when the connection ends.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_transport::client::{Client, ClientConfig, ClientError, Event};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::spool::RecordId;
use wholegrain_transport::topics::Topic;

use super::context::SenderContext;
use super::records::OutgoingRecords;
use super::send_schedule::spread;
use crate::batch::EncodedBatch;
use crate::config::MqttConfig;
use crate::engine::clock;
use crate::refusal::{RefusalPauses, is_final};
use crate::send_queue::SendQueue;
use crate::send_queue::spool::share_of;

/// The stack of the thread that connects: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// The first pause after a failure: 500 ms; it doubles with each further failure.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// The longest pause: 30 s.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// After a connection that lasted 5 s, the next pause is the shortest again.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// Messages of the server's window that are reserved for schemas.
const SCHEMA_SLOTS: usize = 8;
/// The most bytes in flight: 1 MiB, or one larger message.
const FLIGHT_BYTES_MAX: usize = 1 << 20;
/// How long a message may stay without an acknowledgement before it is sent again over another connection: 60 s. A server that cannot store for now
/// acknowledges nothing, and must not be asked again all the time.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// Schemas announced over one connection that are remembered: 16 bytes each.
const ANNOUNCED_MAX: usize = 16_384;
/// The most schemas that the server may request at once.
const REQUESTED_MAX: usize = 1024;
/// The longest time in which the server reads nothing: 10 s.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection, or the attempt to make one.
pub struct ServerLink {
    context: SenderContext,
    config: Arc<MqttConfig>,
    phase: LinkPhase,
    failures: u32,
    jitter: u64,
    connected_before: bool,
    records: OutgoingRecords,
    /// [`ACK_TIMEOUT`], shorter in tests.
    pub(super) ack_timeout: Duration,
}

enum LinkPhase {
    Waiting(Instant),
    Connecting(Receiver<Result<Client, ClientError>>),
    Connected(Box<OpenConnection>),
}

struct OpenConnection {
    client: Client,
    since: Instant,
    /// In the order in which they were sent.
    flight: VecDeque<InFlightMessage>,
    flight_bytes: usize,
    announced: HashSet<SchemaHash>,
    requested: VecDeque<Schema>,
    /// A schema that the server requested and that is not in memory.
    missing: Option<SchemaHash>,
    pauses: RefusalPauses,
}

struct InFlightMessage {
    packet: u16,
    at: Instant,
    sent: SentMessage,
}

enum SentMessage {
    Schema(SchemaHash),
    Live(Arc<EncodedBatch>),
    /// A live batch that was copied to the disk while it was in flight.
    Copied(RecordId, usize),
    /// A record of the spool, its bytes, and whether it is a batch.
    Drained(RecordId, usize, bool),
    /// A job's record; the job table keeps it.
    Job(Box<JobRecord>, usize),
}

impl SentMessage {
    fn is_batch(&self) -> bool {
        !matches!(self, SentMessage::Schema(_) | SentMessage::Job(..) | SentMessage::Drained(_, _, false))
    }

    fn bytes(&self) -> usize {
        match self {
            SentMessage::Schema(_) => 0,
            SentMessage::Live(batch) => batch.payload.len(),
            SentMessage::Copied(_, bytes) | SentMessage::Drained(_, bytes, _) | SentMessage::Job(_, bytes) => *bytes,
        }
    }

    fn shown(&self) -> String {
        match self {
            SentMessage::Schema(hash) => format!("schema {hash}"),
            SentMessage::Live(batch) => batch.topic.to_string(),
            SentMessage::Copied(..) | SentMessage::Drained(..) => "a batch of the spool".to_owned(),
            SentMessage::Job(record, _) => format!("the record of job {:?}", record.job),
        }
    }
}

impl ServerLink {
    /// Without a connection; the first attempt is due at once.
    pub fn new(context: SenderContext, config: Arc<MqttConfig>) -> Self {
        let jitter = (spread(&context.identity.name) ^ context.identity.boot_ns) | 1;
        let phase = LinkPhase::Waiting(Instant::now());
        let records = OutgoingRecords::new(context.records.clone(), context.waker.clone());
        Self { context, config, phase, failures: 0, jitter, connected_before: false, records, ack_timeout: ACK_TIMEOUT }
    }

    /// Whether a pause after a failure or a refusal lasts.
    pub fn is_waiting(&self) -> bool {
        let now = Instant::now();
        match &self.phase {
            LinkPhase::Waiting(until) => *until > now,
            LinkPhase::Connecting(_) => false,
            LinkPhase::Connected(connection) => connection.flight.is_empty() && !connection.pauses.left(now).is_zero(),
        }
    }

    /// The number of messages in flight.
    pub fn in_flight(&self) -> usize {
        if let LinkPhase::Connected(connection) = &self.phase { connection.flight.len() } else { 0 }
    }

    /// Whether a job's record could be sent now.
    pub fn has_records(&self) -> bool {
        self.records.is_waiting(Instant::now())
    }

    /// The time until the next action is due.
    pub fn due_in(&self, queue: &SendQueue) -> Option<Duration> {
        match &self.phase {
            LinkPhase::Waiting(until) => Some(until.saturating_duration_since(Instant::now())),
            LinkPhase::Connecting(_) => None,
            LinkPhase::Connected(connection) => {
                let records = self.records.due_in(Instant::now());
                [connection.due_in(queue, self.ack_timeout), records].into_iter().flatten().min()
            }
        }
    }

    /// Does everything that is possible without waiting.
    pub fn turn(&mut self, queue: &mut SendQueue) {
        match &self.phase {
            LinkPhase::Waiting(until) if *until <= Instant::now() => self.connect(),
            LinkPhase::Waiting(_) => {}
            LinkPhase::Connecting(result) => match result.try_recv() {
                Ok(Ok(client)) => self.connected(client),
                Ok(Err(error)) => self.failed(&error.to_string(), queue),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.failed("the connecting thread ended", queue),
            },
            LinkPhase::Connected(_) => {}
        }
        if let LinkPhase::Connected(connection) = &mut self.phase {
            let result = connection
                .respond(&self.context)
                .and_then(|()| connection.send(&self.context.identity.name, queue, &mut self.records));
            let result = result.map_err(|error| error.to_string());
            connection.copy_old(queue, self.config.queue_bytes_max.0);
            let in_flight = connection.flight.len();
            let result = result.and_then(|()| connection.check(self.ack_timeout));
            let missing = connection.missing.take();
            self.context.status.change_link(|status| status.in_flight = in_flight);
            if let Some(hash) = missing {
                self.find_missing_schema(hash, queue);
            } else if let Err(why) = result {
                self.failed(&why, queue);
            }
        }
    }

    /// Handles a request for a schema that is not in memory: it may be in the spool behind the batches that need it. If it is lost, these batches can
    /// never be read, and the server would wait for it for ever with everything behind them.
    fn find_missing_schema(&mut self, hash: SchemaHash, queue: &mut SendQueue) {
        self.failed(&format!("the server asks for schema {hash}, which is not in memory"), queue);
        match queue.disk.as_mut().and_then(|disk| disk.find_schema(hash)) {
            Some(schema) => queue.remember(&schema),
            None => queue.log_lost_schema(hash),
        }
    }

    /// Waits for the server, the encoder or the timeout, and handles the server's messages.
    pub fn wait(&mut self, queue: &mut SendQueue, timeout: Duration) {
        let waker = &self.context.waker;
        let LinkPhase::Connected(connection) = &mut self.phase else {
            waker.wait(timeout);
            return;
        };
        let mut event = connection.client.poll_or_wake(timeout, waker.fd());
        waker.reset();
        loop {
            match event {
                Ok(Some(event)) => connection.take(event, &self.context, queue, &mut self.records),
                Ok(None) => return,
                Err(error) => {
                    self.failed(&error.to_string(), queue);
                    return;
                }
            }
            event = connection.client.poll(Duration::ZERO);
        }
    }

    fn connect(&mut self) {
        let config = ClientConfig {
            url: self.config.url.clone(),
            version: self.config.version,
            client_id: self.context.identity.name.clone(),
            user: self.config.user.clone(),
            password: self.config.password.clone(),
            tls: self.config.tls.clone(),
            keep_alive: self.config.keep_alive.duration(),
            connect_timeout: self.config.connect_timeout.duration(),
            send_timeout: SEND_TIMEOUT,
            ..ClientConfig::default()
        };
        let (sender, receiver) = sync_channel(1);
        let waker = self.context.waker.clone();
        let spawned = std::thread::Builder::new().name("connect".into()).stack_size(STACK_BYTES).spawn(move || {
            let _ = sender.send(Client::connect(&config));
            waker.wake();
        });
        match spawned {
            Ok(_) => {
                self.phase = LinkPhase::Connecting(receiver);
                self.context.status.change_link(|status| status.state = "connecting");
            }
            Err(error) => self.pause(&format!("cannot start a thread to connect: {error}")),
        }
    }

    fn connected(&mut self, mut client: Client) {
        let agent = &self.context.identity.name;
        let topics = [Topic::Need { agent }.to_string(), Topic::Control { agent }.to_string()];
        if let Some(error) = topics.iter().find_map(|topic| client.subscribe(topic).err()) {
            self.pause(&error.to_string());
            return;
        }
        tracing::info!("connected to {} ({})", self.config.url, client.peer());
        if self.connected_before {
            self.context.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        self.connected_before = true;
        self.context.status.change_link(|status| {
            status.state = "connected";
            status.last_error = None;
        });
        self.phase = LinkPhase::Connected(Box::new(OpenConnection {
            client,
            since: Instant::now(),
            flight: VecDeque::new(),
            flight_bytes: 0,
            announced: HashSet::new(),
            requested: VecDeque::new(),
            missing: None,
            pauses: RefusalPauses::default(),
        }));
    }

    /// The connection ended or failed: everything in flight is unsent again.
    fn failed(&mut self, why: &str, queue: &mut SendQueue) {
        self.records.note_change();
        if let LinkPhase::Connected(connection) = &mut self.phase {
            if connection.since.elapsed() >= GOOD_AFTER {
                self.failures = 0;
            }
            connection.give_back(queue);
        }
        self.pause(why);
    }

    fn pause(&mut self, why: &str) {
        let longest = BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        // Between half of the pause and all of it, so that many agents do not reconnect in step.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let pause = longest / 2 + longest.mul_f64((self.jitter >> 11) as f64 / (1u64 << 53) as f64 / 2.0);
        if self.failures == 0 {
            tracing::warn!("{why}; sampling goes on, connecting again");
        } else {
            tracing::debug!("{why}; connecting again in {pause:?}");
        }
        self.failures = self.failures.saturating_add(1);
        self.phase = LinkPhase::Waiting(Instant::now() + pause);
        self.context.status.change_link(|status| {
            status.state = "waiting";
            status.last_error = Some(why.to_owned());
            status.in_flight = 0;
        });
    }

    /// Applies other settings: disconnects; the next attempt is due at once.
    pub fn reconfigure(&mut self, config: Arc<MqttConfig>, queue: &mut SendQueue) {
        self.close(queue);
        self.config = config;
        self.failures = 0;
    }

    pub fn close(&mut self, queue: &mut SendQueue) {
        let phase = std::mem::replace(&mut self.phase, LinkPhase::Waiting(Instant::now()));
        self.records.note_change();
        if let LinkPhase::Connected(mut connection) = phase {
            connection.give_back(queue);
            if let Err(error) = connection.client.disconnect() {
                tracing::debug!("{error}");
            }
        }
        self.context.status.change_link(|status| {
            status.state = "off";
            status.in_flight = 0;
        });
    }
}

impl OpenConnection {
    /// The time until the next action is due.
    fn due_in(&self, queue: &SendQueue, ack_timeout: Duration) -> Option<Duration> {
        let now = Instant::now();
        let answer = self.flight.front().map(|oldest| (oldest.at + ack_timeout).saturating_duration_since(now));
        let pause = Some(self.pauses.left(now)).filter(|left| !left.is_zero());
        let disk = queue.disk.as_ref().and_then(|disk| {
            // With a bounded rate of draining: soon enough for the next record.
            let draining = disk.config.drain_bytes_per_second.is_some() && !disk.spool.is_empty();
            let copying = self.flight.iter().any(|flight| matches!(flight.sent, SentMessage::Live(_)));
            (draining || copying).then(|| Duration::from_millis(if draining { 50 } else { 1000 }))
        });
        [answer, pause, disk].into_iter().flatten().min()
    }

    /// Checks that the oldest message in flight is not too old. Later ones may have been acknowledged: this one keeps its place in the server's
    /// window, and prevents draining of the spool.
    fn check(&self, ack_timeout: Duration) -> Result<(), String> {
        match self.flight.front() {
            Some(oldest) if oldest.at.elapsed() >= ack_timeout => {
                Err(format!("{} has not answered a message for {ack_timeout:?}", self.client.peer()))
            }
            _ => Ok(()),
        }
    }

    /// The most batches in flight.
    fn window(&self) -> usize {
        let all = usize::from(self.client.receive_max());
        all.saturating_sub(SCHEMA_SLOTS).max(all / 2).max(1)
    }

    fn batches_in_flight(&self) -> usize {
        self.flight.iter().filter(|flight| !matches!(flight.sent, SentMessage::Schema(_))).count()
    }

    fn has_room(&self, in_flight: usize) -> bool {
        in_flight < self.window() && (self.flight_bytes < FLIGHT_BYTES_MAX || in_flight == 0)
    }

    /// Sends as much as there is room for: requested schemas, live batches, then the spool's share.
    fn send(&mut self, agent: &str, queue: &mut SendQueue, records: &mut OutgoingRecords) -> Result<(), ClientError> {
        match self.fill(agent, queue, records) {
            // The server's window was full: an acknowledgement makes room.
            Ok(()) | Err(ClientError::WindowFull(_)) => self.client.flush(),
            Err(error) => Err(error),
        }
    }

    /// Sends responses to the server's commands. They are lost with the connection: the server then reports that no response came.
    fn respond(&mut self, context: &SenderContext) -> Result<(), ClientError> {
        let agent = &context.identity.name;
        while let Some(response) = context.control.next_response() {
            self.client.publish(&Topic::Response { agent }.to_string(), &response, false, false)?;
        }
        Ok(())
    }

    fn fill(&mut self, agent: &str, queue: &mut SendQueue, records: &mut OutgoingRecords) -> Result<(), ClientError> {
        while let Some(schema) = self.requested.front().cloned() {
            self.announce(agent, &schema)?;
            self.requested.pop_front();
        }
        if !self.pauses.left(Instant::now()).is_zero() {
            return self.send_records(agent, queue, records);
        }
        let mut in_flight = self.batches_in_flight();
        while self.has_room(in_flight) {
            let Some(batch) = queue.front().cloned() else { break };
            if !self.announced.contains(&batch.schema.hash()) {
                self.announce(agent, &batch.schema)?;
            }
            let packet = match self.client.publish(&batch.topic, &batch.payload, true, false) {
                Err(ClientError::TooLarge { bytes, max }) => {
                    queue.take_front();
                    queue.remove_in_flight(&batch);
                    queue.count_too_large(&batch.topic, bytes, max);
                    continue;
                }
                result => result?,
            };
            queue.take_front();
            self.put_in_flight(packet, SentMessage::Live(batch));
            in_flight += 1;
        }
        self.send_records(agent, queue, records)?;
        self.drain(queue, self.batches_in_flight())
    }

    /// Sends a few job records, after the live batches.
    fn send_records(
        &mut self,
        agent: &str,
        queue: &mut SendQueue,
        records: &mut OutgoingRecords,
    ) -> Result<(), ClientError> {
        let under_way: Vec<&JobRecord> = self
            .flight
            .iter()
            .filter_map(|flight| if let SentMessage::Job(record, _) = &flight.sent { Some(&**record) } else { None })
            .collect();
        let next = records.next(&under_way, Instant::now());
        if next.is_empty() {
            return Ok(());
        }
        let topic = Topic::Job { agent }.to_string();
        for record in next {
            if !self.has_room(self.batches_in_flight()) {
                break;
            }
            // Names and numbers only: serialization cannot fail.
            let payload = serde_json::to_vec(&record).unwrap_or_default();
            match self.client.publish(&topic, &payload, true, false) {
                Err(ClientError::TooLarge { bytes, max }) => {
                    queue.count_too_large(&topic, bytes, max);
                    records.refused(record);
                }
                packet => self.put_in_flight(packet?, SentMessage::Job(Box::new(record), payload.len())),
            }
        }
        Ok(())
    }

    /// Sends the spool's share of the window. Not while batches in flight were copied to the disk: they would be sent twice.
    fn drain(&mut self, queue: &mut SendQueue, mut in_flight: usize) -> Result<(), ClientError> {
        let Some(disk) = &mut queue.disk else { return Ok(()) };
        if self.flight.iter().any(|flight| matches!(flight.sent, SentMessage::Copied(..))) {
            return Ok(());
        }
        let share = share_of(self.window(), disk.config.drain_share);
        let mut drained = self.flight.iter().filter(|flight| matches!(flight.sent, SentMessage::Drained(..))).count();
        if disk.needs_rewind {
            // The spool returns all unconfirmed records again, so that none of them may be in flight.
            if drained > 0 {
                return Ok(());
            }
            disk.rewind();
        }
        let mut too_large = Vec::new();
        let mut result = Ok(());
        while drained < share && self.has_room(in_flight) && disk.allowance.is_left(Instant::now()) {
            let Some(record) = disk.next_record() else { break };
            let retained = matches!(Topic::parse(&record.topic), Some(Topic::Schema { .. }));
            match self.client.publish(&record.topic, &record.payload, true, retained) {
                Ok(packet) => {
                    disk.allowance.spend(record.payload.len());
                    self.put_in_flight(packet, SentMessage::Drained(record.id, record.payload.len(), !retained));
                    (drained, in_flight) = (drained + 1, in_flight + 1);
                }
                Err(ClientError::TooLarge { bytes, max }) => {
                    disk.confirm(record.id);
                    too_large.push((record.topic, bytes, max));
                }
                Err(error) => {
                    disk.stash(record);
                    result = Err(error);
                    break;
                }
            }
        }
        for (topic, bytes, max) in too_large {
            queue.count_too_large(&topic, bytes, max);
        }
        result
    }

    fn announce(&mut self, agent: &str, schema: &Schema) -> Result<(), ClientError> {
        let topic = Topic::Schema { agent, group: schema.group() }.to_string();
        let packet = self.client.publish(&topic, &schema.encode(), true, true)?;
        // Most are of ended jobs; schemas of running groups are announced once more.
        if self.announced.len() >= ANNOUNCED_MAX {
            self.announced.clear();
        }
        self.announced.insert(schema.hash());
        self.put_in_flight(packet, SentMessage::Schema(schema.hash()));
        Ok(())
    }

    fn put_in_flight(&mut self, packet: u16, sent: SentMessage) {
        self.flight_bytes += sent.bytes();
        self.flight.push_back(InFlightMessage { packet, at: Instant::now(), sent });
    }

    /// Copies batches to the disk that are in flight for too long, or whose memory newer batches need.
    fn copy_old(&mut self, queue: &mut SendQueue, queue_bytes_max: u64) {
        let Some(age_max) = queue.age_max(Duration::ZERO) else { return };
        let now = clock::mono();
        for InFlightMessage { sent, .. } in &mut self.flight {
            let SentMessage::Live(batch) = sent else { continue };
            let too_old = now - batch.made_mono > age_max.as_nanos() as i64;
            if !too_old && !queue.is_over(queue_bytes_max) {
                break;
            }
            let Some(id) = queue.copy_to_disk(batch) else { break };
            queue.remove_in_flight(batch);
            *sent = SentMessage::Copied(id, batch.payload.len());
        }
    }

    fn take(&mut self, event: Event, context: &SenderContext, queue: &mut SendQueue, records: &mut OutgoingRecords) {
        match event {
            Event::Acked { packet_id, reason } => self.acknowledged(packet_id, reason, context, queue, records),
            Event::Subscribed { reason, .. } => {
                if reason.is_error() {
                    tracing::warn!("the server refused a subscription, for requests of schemas or commands: {reason}");
                }
            }
            Event::Message { topic, payload, .. }
                if matches!(Topic::parse(topic.as_str()), Some(Topic::Control { .. })) =>
            {
                context.control.take(payload);
            }
            Event::Message { payload, .. } => {
                for hash in payload.chunks_exact(16).take(REQUESTED_MAX) {
                    let hash = SchemaHash(std::array::from_fn(|index| hash[index]));
                    self.request(hash, queue);
                }
            }
        }
    }

    fn request(&mut self, hash: SchemaHash, queue: &mut SendQueue) {
        match queue.schema(hash) {
            Some(schema) if self.requested.len() < REQUESTED_MAX && !self.requested.contains(&schema) => {
                self.requested.push_back(schema);
            }
            Some(_) => {}
            // Only batches of the spool can need a schema that is not in memory.
            None if self.flight.iter().any(|flight| matches!(flight.sent, SentMessage::Drained(..))) => {
                self.missing = Some(hash)
            }
            None => queue.log_lost_schema(hash),
        }
    }

    fn acknowledged(
        &mut self,
        packet: u16,
        reason: ReasonCode,
        context: &SenderContext,
        queue: &mut SendQueue,
        records: &mut OutgoingRecords,
    ) {
        let Some(at) = self.flight.iter().position(|flight| flight.packet == packet) else { return };
        let Some(InFlightMessage { sent, .. }) = self.flight.remove(at) else { return };
        self.flight_bytes -= sent.bytes();
        let refused = reason.is_error();
        let again = refused && !is_final(reason);
        if refused {
            queue.count_refused(&sent.shown(), reason);
        } else if sent.is_batch() {
            context.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
            self.pauses.accepted();
        }
        if again && !matches!(sent, SentMessage::Job(..)) {
            self.pauses.refused(Instant::now());
        }
        match sent {
            SentMessage::Job(..) if again => records.retry_later(Instant::now()),
            SentMessage::Job(record, _) if refused => records.refused(*record),
            SentMessage::Job(record, _) => records.accepted(&record),
            SentMessage::Schema(hash) => {
                if refused {
                    self.announced.remove(&hash);
                }
            }
            SentMessage::Live(batch) if again => queue.put_back(batch),
            SentMessage::Live(batch) => queue.remove_in_flight(&batch),
            SentMessage::Copied(id, _) => {
                // Refused for now: it is in the spool and will be drained.
                if let (Some(disk), false) = (&mut queue.disk, again) {
                    disk.acknowledge(id);
                }
            }
            SentMessage::Drained(id, ..) => match &mut queue.disk {
                Some(disk) if again => disk.needs_rewind = true,
                Some(disk) => disk.confirm(id),
                None => {}
            },
        }
    }

    /// Returns everything in flight to the queue.
    fn give_back(&mut self, queue: &mut SendQueue) {
        while let Some(InFlightMessage { sent, .. }) = self.flight.pop_back() {
            if let SentMessage::Live(batch) = sent {
                queue.put_back(batch);
            }
        }
        self.flight_bytes = 0;
        if let Some(disk) = &mut queue.disk {
            disk.rewind();
        }
    }
}
