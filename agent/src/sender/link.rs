//! The connection to the server: connects, sends, and returns unacknowledged messages to the queue when the connection ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use wholegrain_model::SchemaHash;
use wholegrain_transport::client::{Client, ClientConfig, ClientError};
use wholegrain_transport::mqtt::Version;
use wholegrain_transport::topics::Topic;

use super::connection::OpenConnection;
use super::context::SenderContext;
use super::holds::SchemaHolds;
use super::records::OutgoingRecords;
use super::send_schedule::spread;
use crate::config::MqttConfig;
use crate::send_queue::SendQueue;

/// The stack of the thread that connects: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// The first pause after a failure: 500 ms; it doubles with each further failure.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// The longest pause: 30 s.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// After a connection that lasted 5 s, the next pause is the shortest again.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// How long a message may stay without an acknowledgement before it is sent again over another connection: 60 s. A server that cannot store for now
/// acknowledges nothing, and must not be asked again all the time.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
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
    holds: SchemaHolds,
    /// [`ACK_TIMEOUT`], shorter in tests.
    pub(super) ack_timeout: Duration,
}

enum LinkPhase {
    Waiting(Instant),
    Connecting(Receiver<Result<Client, ClientError>>),
    Connected(Box<OpenConnection>),
}

impl ServerLink {
    /// Without a connection; the first attempt is due at once.
    pub fn new(context: SenderContext, config: Arc<MqttConfig>) -> Self {
        let jitter = (spread(&context.identity.name) ^ context.identity.boot_ns) | 1;
        let phase = LinkPhase::Waiting(Instant::now());
        let records = OutgoingRecords::new(context.records.clone(), context.waker.clone());
        Self {
            context,
            config,
            phase,
            failures: 0,
            jitter,
            connected_before: false,
            records,
            holds: SchemaHolds::default(),
            ack_timeout: ACK_TIMEOUT,
        }
    }

    /// Whether a pause after a failure or a refusal lasts.
    pub fn is_waiting(&self) -> bool {
        let now = Instant::now();
        match &self.phase {
            LinkPhase::Waiting(until) => *until > now,
            LinkPhase::Connecting(_) => false,
            LinkPhase::Connected(connection) => connection.is_pausing(now),
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
                let now = Instant::now();
                let (records, held) = (self.records.due_in(now), self.holds.due_in(now));
                [connection.due_in(queue, self.ack_timeout), records, held].into_iter().flatten().min()
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
                .and_then(|()| connection.send(&self.context.identity.name, queue, &mut self.records, &self.holds));
            let is_closed = result.is_err();
            let result = result.map_err(|error| error.to_string());
            connection.copy_old(queue, self.config.queue_bytes_max.0);
            let in_flight = connection.flight.len();
            let result = result.and_then(|()| connection.check(self.ack_timeout));
            let missing = connection.missing.take();
            self.context.status.change_link(|status| status.in_flight = in_flight);
            if let Some(hash) = missing {
                self.find_missing_schema(hash, queue);
            } else if let Err(why) = result {
                if is_closed {
                    self.closed_by_server(&why, queue);
                } else {
                    self.failed(&why, queue);
                }
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
                Ok(Some(event)) => {
                    connection.take(event, &self.context, queue, &mut self.records, &mut self.holds);
                }
                Ok(None) => return,
                Err(error) => {
                    self.closed_by_server(&error.to_string(), queue);
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
        self.phase = LinkPhase::Connected(Box::new(OpenConnection::new(client)));
    }

    /// The server closed the connection. With MQTT 3.1.1 that is its only way to refuse a message. A server that only gives no answer refuses nothing.
    fn closed_by_server(&mut self, why: &str, queue: &mut SendQueue) {
        if let (LinkPhase::Connected(connection), Version::V311) = (&self.phase, self.config.version) {
            let (schemas, is_alone) = connection.unanswered();
            if self.holds.unanswered(&schemas, is_alone, Instant::now()) {
                // The server works, and the group that it refuses waits on its own: the other groups must not wait longer for each refused one.
                self.failures = self.failures.min(1);
            }
        }
        self.failed(why, queue);
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
