//! An open connection: messages in flight, and which message is sent next.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_transport::client::{Client, ClientError, Event};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::spool::RecordId;
use wholegrain_transport::topics::Topic;

use super::context::SenderContext;
use super::holds::{SchemaHolds, announced, schema_of};
use super::records::OutgoingRecords;
use crate::batch::EncodedBatch;
use crate::engine::clock;
use crate::refusal::{RefusalPauses, is_final};
use crate::send_queue::SendQueue;
use crate::send_queue::spool::share_of;

/// Messages of the server's window that are reserved for schemas.
const SCHEMA_SLOTS: usize = 8;
/// The most bytes in flight: 1 MiB, or one larger message.
const FLIGHT_BYTES_MAX: usize = 1 << 20;
/// Schemas announced over one connection that are remembered: 16 bytes each.
const ANNOUNCED_MAX: usize = 16_384;
/// The most schemas that the server may request at once.
const REQUESTED_MAX: usize = 1024;
/// The most records of the spool that one turn skips because the server refuses their schemas.
const SKIPPED_MAX: usize = 1024;

/// A connection to the server, with what was sent and not answered.
pub(super) struct OpenConnection {
    pub client: Client,
    pub since: Instant,
    /// In the order in which they were sent.
    pub flight: VecDeque<InFlightMessage>,
    flight_bytes: usize,
    announced: HashSet<SchemaHash>,
    requested: VecDeque<Schema>,
    /// A schema that the server requested and that is not in memory.
    pub missing: Option<SchemaHash>,
    pauses: RefusalPauses,
    /// The next record of the spool is a schema that must be announced alone.
    drains_first: bool,
}

pub(super) struct InFlightMessage {
    packet: u16,
    at: Instant,
    sent: SentMessage,
}

enum SentMessage {
    /// With the name of its group.
    Schema(SchemaHash, String),
    Live(Arc<EncodedBatch>),
    /// A live batch that was copied to the disk while it was in flight.
    Copied(RecordId, usize),
    /// A record of the spool and its bytes; if it is a schema, its hash and group.
    Drained(RecordId, usize, Option<(SchemaHash, String)>),
    /// A job's record; the job table keeps it.
    Job(Box<JobRecord>, usize),
}

impl SentMessage {
    fn is_batch(&self) -> bool {
        !matches!(self, SentMessage::Schema(..) | SentMessage::Job(..) | SentMessage::Drained(_, _, Some(_)))
    }

    fn bytes(&self) -> usize {
        match self {
            SentMessage::Schema(..) => 0,
            SentMessage::Live(batch) => batch.payload.len(),
            SentMessage::Copied(_, bytes) | SentMessage::Drained(_, bytes, _) | SentMessage::Job(_, bytes) => *bytes,
        }
    }

    /// The schema that it announces, with its group.
    fn announced(&self) -> Option<(SchemaHash, &str)> {
        match self {
            SentMessage::Schema(hash, group) | SentMessage::Drained(_, _, Some((hash, group))) => Some((*hash, group)),
            _ => None,
        }
    }

    fn shown(&self) -> String {
        match self {
            SentMessage::Schema(hash, group) => format!("schema {hash} of group {group}"),
            SentMessage::Live(batch) => batch.topic.to_string(),
            SentMessage::Copied(..) | SentMessage::Drained(..) => "a batch of the spool".to_owned(),
            SentMessage::Job(record, _) => format!("the record of job {:?}", record.job),
        }
    }
}

impl OpenConnection {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            since: Instant::now(),
            flight: VecDeque::new(),
            flight_bytes: 0,
            announced: HashSet::new(),
            requested: VecDeque::new(),
            missing: None,
            pauses: RefusalPauses::default(),
            drains_first: false,
        }
    }

    /// Whether nothing is in flight and a pause after a refusal lasts.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.flight.is_empty() && !self.pauses.left(now).is_zero()
    }

    /// The time until the next action is due.
    pub fn due_in(&self, queue: &SendQueue, ack_timeout: Duration) -> Option<Duration> {
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
    pub fn check(&self, ack_timeout: Duration) -> Result<(), String> {
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
        self.flight.iter().filter(|flight| !matches!(flight.sent, SentMessage::Schema(..))).count()
    }

    fn has_room(&self, in_flight: usize) -> bool {
        in_flight < self.window() && (self.flight_bytes < FLIGHT_BYTES_MAX || in_flight == 0)
    }

    /// Sends as much as there is room for: requested schemas, live batches, then the spool's share.
    pub fn send(
        &mut self,
        agent: &str,
        queue: &mut SendQueue,
        records: &mut OutgoingRecords,
        holds: &SchemaHolds,
    ) -> Result<(), ClientError> {
        let now = Instant::now();
        queue.release_held(|batch| holds.is_held(batch.schema.hash(), now));
        if let Some(disk) = &mut queue.disk {
            // What was skipped may be sent now: a hold has ended since.
            disk.needs_rewind |= disk.has_skipped && !holds.is_any_held(now);
        }
        let filled = self.fill(agent, queue, records, holds);
        self.flush(filled)
    }

    /// Sends only what the server needs in order to answer the messages in flight, because this agent leaves it.
    pub fn finish(&mut self, agent: &str, holds: &SchemaHolds) -> Result<(), ClientError> {
        let announced = if self.awaits_suspect(holds) { Ok(()) } else { self.announce_requested(agent, holds) };
        self.flush(announced)
    }

    fn flush(&mut self, filled: Result<(), ClientError>) -> Result<(), ClientError> {
        match filled {
            // The server's window was full: an acknowledgement makes room.
            Ok(()) | Err(ClientError::WindowFull(_)) => self.client.flush(),
            Err(error) => Err(error),
        }
    }

    fn announce_requested(&mut self, agent: &str, holds: &SchemaHolds) -> Result<(), ClientError> {
        while let Some(schema) = self.requested.front().cloned() {
            // A refused one is announced when its time comes.
            if !holds.is_held(schema.hash(), Instant::now()) {
                self.announce(agent, &schema)?;
            }
            self.requested.pop_front();
        }
        Ok(())
    }

    /// Sends responses to the server's commands. They are lost with the connection: the server then reports that no response came.
    pub fn respond(&mut self, context: &SenderContext) -> Result<(), ClientError> {
        let agent = &context.identity.name;
        while let Some(response) = context.control.next_response() {
            self.client.publish(&Topic::Response { agent }.to_string(), &response, false, false)?;
        }
        Ok(())
    }

    /// New schemas in flight with their groups, and whether the only message in flight is one.
    pub fn unanswered(&self) -> (Vec<(SchemaHash, String)>, bool) {
        let schemas = self.flight.iter().filter_map(|flight| flight.sent.announced());
        (schemas.map(|(hash, group)| (hash, group.to_owned())).collect(), self.flight.len() == 1)
    }

    /// Whether a schema that is announced alone has no answer yet.
    fn awaits_suspect(&self, holds: &SchemaHolds) -> bool {
        self.flight.iter().filter_map(|flight| flight.sent.announced()).any(|(hash, _)| holds.is_suspect(hash))
    }

    fn fill(
        &mut self,
        agent: &str,
        queue: &mut SendQueue,
        records: &mut OutgoingRecords,
        holds: &SchemaHolds,
    ) -> Result<(), ClientError> {
        if self.awaits_suspect(holds) {
            return Ok(());
        }
        if std::mem::take(&mut self.drains_first) {
            // A schema of the spool is announced alone: live batches wait until everything in flight is answered.
            if !self.flight.is_empty() {
                self.drains_first = true;
                return Ok(());
            }
            self.drain(queue, 0, holds)?;
            if self.awaits_suspect(holds) {
                return Ok(());
            }
        }
        self.announce_requested(agent, holds)?;
        if !self.pauses.left(Instant::now()).is_zero() {
            return self.send_records(agent, queue, records);
        }
        let mut in_flight = self.batches_in_flight();
        while self.has_room(in_flight) {
            let Some(batch) = queue.front().cloned() else { break };
            let hash = batch.schema.hash();
            if holds.is_held(hash, Instant::now()) {
                queue.hold_front();
                continue;
            }
            if !self.announced.contains(&hash) {
                if holds.is_suspect(hash) {
                    if self.flight.is_empty() {
                        self.announce(agent, &batch.schema)?;
                    }
                    return Ok(());
                }
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
        self.drain(queue, self.batches_in_flight(), holds)
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
    fn drain(&mut self, queue: &mut SendQueue, mut in_flight: usize, holds: &SchemaHolds) -> Result<(), ClientError> {
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
        let (mut too_large, mut skipped) = (Vec::new(), 0);
        let mut result = Ok(());
        while drained < share && self.has_room(in_flight) && disk.allowance.is_left(Instant::now()) {
            let Some(record) = disk.next_record() else { break };
            let announced = announced(&record);
            let retained = announced.is_some();
            if holds.is_any() && schema_of(&record).is_some_and(|hash| holds.is_held(hash, Instant::now())) {
                disk.has_skipped = true;
                skipped += 1;
                if skipped == SKIPPED_MAX {
                    break;
                }
                continue;
            }
            let is_suspect = announced.as_ref().is_some_and(|(hash, _)| holds.is_suspect(*hash));
            if is_suspect && !self.flight.is_empty() {
                self.drains_first = true;
                disk.stash(record);
                break;
            }
            match self.client.publish(&record.topic, &record.payload, true, retained) {
                Ok(packet) => {
                    disk.allowance.spend(record.payload.len());
                    self.put_in_flight(packet, SentMessage::Drained(record.id, record.payload.len(), announced));
                    (drained, in_flight) = (drained + 1, in_flight + 1);
                    if is_suspect {
                        break;
                    }
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
        self.put_in_flight(packet, SentMessage::Schema(schema.hash(), schema.group().to_owned()));
        Ok(())
    }

    fn put_in_flight(&mut self, packet: u16, sent: SentMessage) {
        self.flight_bytes += sent.bytes();
        self.flight.push_back(InFlightMessage { packet, at: Instant::now(), sent });
    }

    /// Copies batches to the disk that are in flight for too long, or whose memory newer batches need.
    pub fn copy_old(&mut self, queue: &mut SendQueue, queue_bytes_max: u64) {
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

    pub fn take(
        &mut self,
        event: Event,
        context: &SenderContext,
        queue: &mut SendQueue,
        records: &mut OutgoingRecords,
        holds: &mut SchemaHolds,
    ) {
        match event {
            Event::Acked { packet_id, reason } => {
                self.acknowledged(packet_id, reason, context, (queue, records, holds));
            }
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
        (queue, records, holds): (&mut SendQueue, &mut OutgoingRecords, &mut SchemaHolds),
    ) {
        let Some(at) = self.flight.iter().position(|flight| flight.packet == packet) else { return };
        let Some(InFlightMessage { sent, .. }) = self.flight.remove(at) else { return };
        self.flight_bytes -= sent.bytes();
        let refused = reason.is_error();
        let again = refused && !is_final(reason);
        if again && sent.announced().is_some() {
            // Its group is named once, when it is held.
            context.counters.deferred.fetch_add(1, Ordering::Relaxed);
        } else if refused {
            queue.count_refused(&sent.shown(), reason);
        } else if sent.is_batch() {
            context.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
            self.pauses.accepted();
        }
        let now = Instant::now();
        match sent.announced() {
            Some((hash, group)) if again => holds.refused(hash, group, &reason.to_string(), now),
            Some((hash, _)) if !refused => holds.accepted(hash),
            _ => {}
        }
        // Batches of a refused schema wait for it; the others are sent without a pause.
        if again && !matches!(sent, SentMessage::Job(..)) && !(reason == ReasonCode::QUOTA_EXCEEDED && holds.is_any()) {
            self.pauses.refused(now);
        }
        match sent {
            SentMessage::Job(..) if again => records.retry_later(Instant::now()),
            SentMessage::Job(record, _) if refused => records.refused(*record),
            SentMessage::Job(record, _) => records.accepted(&record),
            SentMessage::Schema(hash, _) => {
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
    pub fn give_back(&mut self, queue: &mut SendQueue) {
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
