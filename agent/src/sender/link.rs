//! The connection to one of the servers: connects, sends, and returns unacknowledged messages to the queue when the connection ends.
//!
//! After the loss of a server the next candidate in the agent's order is tried at once; when all have failed, after a pause. Beside a connection to
//! another server than the preferred one, the agent tries that one from time to time, and changes to it when everything in flight is acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::SchemaHash;
use wholegrain_transport::client::ClientConfig;
use wholegrain_transport::mqtt::Version;
use wholegrain_transport::topics::Topic;

use super::attempt::{ConnectAttempt, ConnectGoal, ConnectOutcome, ConnectPlan, ConnectedClient, TRIES_MAX};
use super::candidates::{AddressTable, Candidate, FailureTable};
use super::connection::OpenConnection;
use super::context::SenderContext;
use super::holds::SchemaHolds;
use super::records::OutgoingRecords;
use super::returning::ReturnSchedule;
use super::send_schedule::spread;
use crate::config::MqttConfig;
use crate::engine::clock;
use crate::send_queue::SendQueue;
use crate::status::CandidateStatus;

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
/// How long a change to a preferred server waits for the acknowledgements of what is in flight: 5 s; then the agent stays until the next attempt.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// A failed candidate comes after the others for as many return intervals: each of them tries the preferred ones again.
const FAILED_INTERVALS: u32 = 2;

/// The connection, or the attempt to make one.
pub struct ServerLink {
    context: SenderContext,
    config: Arc<MqttConfig>,
    phase: LinkPhase,
    table: AddressTable,
    failures: FailureTable,
    /// The candidate of the present connection or of the last one.
    used: Option<Candidate>,
    /// How many times in a row all candidates have failed.
    failed_rounds: u32,
    /// Connections that were lost in a row without one that lasted.
    lost: usize,
    /// Returns in a row that did not last.
    vain_returns: u32,
    jitter: u64,
    connected_before: bool,
    records: OutgoingRecords,
    holds: SchemaHolds,
    /// [`ACK_TIMEOUT`], shorter in tests.
    pub(super) ack_timeout: Duration,
}

enum LinkPhase {
    Waiting(Instant),
    Connecting(ConnectAttempt),
    Connected(Box<ServerInUse>),
}

/// A connection, and the change to a preferred server.
struct ServerInUse {
    connection: OpenConnection,
    /// When the preferred servers are tried; `None` if there are none.
    return_at: Option<Instant>,
    /// The attempt, and then the client that waits for the end of what is in flight.
    returning: Option<ReturnPhase>,
    /// Whether the agent has left a working server for this one.
    is_return: bool,
}

enum ReturnPhase {
    Trying(ConnectAttempt),
    /// It waits until this time.
    Finishing(Box<ConnectedClient>, Instant),
}

impl ServerLink {
    /// Without a connection; the first attempt is due at once.
    pub fn new(context: SenderContext, config: Arc<MqttConfig>) -> Self {
        let jitter = (spread(&context.identity.name) ^ context.identity.boot_ns) | 1;
        let phase = LinkPhase::Waiting(Instant::now());
        let records = OutgoingRecords::new(context.records.clone(), context.waker.clone());
        let link = Self {
            table: AddressTable::new(&config.servers, &AddressTable::default()),
            context,
            config,
            phase,
            failures: FailureTable::default(),
            used: None,
            failed_rounds: 0,
            lost: 0,
            vain_returns: 0,
            jitter,
            connected_before: false,
            records,
            holds: SchemaHolds::default(),
            ack_timeout: ACK_TIMEOUT,
        };
        link.publish_status("off", None);
        link
    }

    /// Whether a pause after a failure or a refusal lasts.
    pub fn is_waiting(&self) -> bool {
        let now = Instant::now();
        match &self.phase {
            LinkPhase::Waiting(until) => *until > now,
            LinkPhase::Connecting(_) => false,
            LinkPhase::Connected(server) => server.connection.is_pausing(now),
        }
    }

    /// The number of messages in flight.
    pub fn in_flight(&self) -> usize {
        if let LinkPhase::Connected(server) = &self.phase { server.connection.flight.len() } else { 0 }
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
            LinkPhase::Connected(server) => {
                let now = Instant::now();
                let (records, held) = (self.records.due_in(now), self.holds.due_in(now));
                let returning = server.returning_due().map(|due| due.saturating_duration_since(now));
                let connection = server.connection.due_in(queue, self.ack_timeout);
                [connection, records, held, returning].into_iter().flatten().min()
            }
        }
    }

    /// Does everything that is possible without waiting.
    pub fn turn(&mut self, queue: &mut SendQueue) {
        match &self.phase {
            LinkPhase::Waiting(until) if *until <= Instant::now() => self.connect(),
            LinkPhase::Waiting(_) => {}
            LinkPhase::Connecting(attempt) => match attempt.outcome() {
                Some(Ok(outcome)) => self.attempted(outcome),
                Some(Err(why)) => self.pause(why),
                None => {}
            },
            LinkPhase::Connected(_) => self.turn_return(queue),
        }
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        let (connection, name) = (&mut server.connection, &self.context.identity.name);
        let is_leaving = matches!(server.returning, Some(ReturnPhase::Finishing(..)));
        let result = connection.respond(&self.context).and_then(|()| match is_leaving {
            true => connection.finish(name, &self.holds),
            false => connection.send(name, queue, &mut self.records, &self.holds),
        });
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
                self.lost_server(&why, queue);
            }
        }
    }

    /// Tries the preferred servers when it is time, and changes to one that accepts once nothing is in flight.
    fn turn_return(&mut self, queue: &mut SendQueue) {
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        let now = Instant::now();
        match &server.returning {
            None if server.return_at.is_some_and(|at| at <= now) => self.try_return(),
            Some(ReturnPhase::Trying(attempt)) => {
                let Some(outcome) = attempt.outcome() else { return };
                self.tried_return(outcome.ok(), now);
            }
            _ => {}
        }
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        let Some(ReturnPhase::Finishing(next, until)) = &server.returning else { return };
        let (url, address) = (&next.candidate.url, next.candidate.address);
        if server.connection.flight.is_empty() {
            tracing::info!("returning to {url} ({address}): it accepts connections");
            self.change_server(queue);
        } else if *until <= now {
            tracing::info!("not returning to {url} ({address}) yet: messages are in flight for {FINISH_TIMEOUT:?}");
            server.returning = None;
        }
    }

    fn tried_return(&mut self, outcome: Option<ConnectOutcome>, now: Instant) {
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        server.returning = None;
        if let Some(outcome) = outcome {
            (self.table, self.failures) = (outcome.table, outcome.failures);
            match outcome.connected {
                Some(next) => server.returning = Some(ReturnPhase::Finishing(Box::new(next), now + FINISH_TIMEOUT)),
                None => tracing::debug!("stays with its server: {}", outcome.problem),
            }
        }
        self.follow_candidates();
        self.publish_status("connected", None);
    }

    fn try_return(&mut self) {
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        let Some(used) = self.used.clone() else { return };
        let plan = plan(&self.context, &self.config, &self.table, &self.failures, ConnectGoal::Preferred { used });
        match ConnectAttempt::start(plan, self.context.waker.clone()) {
            Ok(attempt) => (server.returning, server.return_at) = (Some(ReturnPhase::Trying(attempt)), None),
            Err(error) => {
                tracing::debug!("cannot start a thread to connect: {error}");
                self.follow_candidates();
            }
        }
    }

    /// Sets what depends on the candidates: when a silent server is left, and the time of the next attempt to return, if there is a preferred server or a
    /// name whose addresses may change.
    fn follow_candidates(&mut self) {
        let candidates = self.table.candidates(&self.context.identity.name);
        let LinkPhase::Connected(server) = &mut self.phase else { return };
        // With one candidate there is nothing better than to wait for it.
        let answer_timeout = (candidates.len() > 1).then(|| self.config.answer_timeout.duration());
        server.connection.client.set_answer_timeout(answer_timeout);
        let schedule = ReturnSchedule::new(self.config.return_interval.duration(), &self.context.identity.name);
        let is_preferred = candidates.first() == self.used.as_ref();
        server.return_at = (!is_preferred || self.table.has_names())
            .then(|| Instant::now() + schedule.next_in(clock::real(), self.vain_returns));
    }

    /// Leaves the server, which has answered everything, for the one that waits.
    fn change_server(&mut self, queue: &mut SendQueue) {
        let phase = std::mem::replace(&mut self.phase, LinkPhase::Waiting(Instant::now()));
        let LinkPhase::Connected(mut server) = phase else { return };
        server.connection.give_back(queue);
        if let Err(error) = server.connection.client.disconnect() {
            tracing::debug!("{error}");
        }
        match server.returning {
            Some(ReturnPhase::Finishing(client, _)) => self.connected(*client, true),
            _ => self.connect(),
        }
    }

    /// Handles a request for a schema that is not in memory: it may be in the spool behind the batches that need it. If it is lost, these batches can
    /// never be read, and the server would wait for it for ever with everything behind them.
    fn find_missing_schema(&mut self, hash: SchemaHash, queue: &mut SendQueue) {
        // Not its fault: it is connected to again.
        self.end_connection(queue);
        self.pause(&format!("the server asks for schema {hash}, which is not in memory"));
        match queue.disk.as_mut().and_then(|disk| disk.find_schema(hash)) {
            Some(schema) => queue.remember(&schema),
            None => queue.log_lost_schema(hash),
        }
    }

    /// Waits for the server, the encoder or the timeout, and handles the server's messages.
    pub fn wait(&mut self, queue: &mut SendQueue, timeout: Duration) {
        let waker = &self.context.waker;
        let LinkPhase::Connected(server) = &mut self.phase else {
            waker.wait(timeout);
            return;
        };
        let connection = &mut server.connection;
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

    /// Starts an attempt with all candidates.
    fn connect(&mut self) {
        let plan = plan(&self.context, &self.config, &self.table, &self.failures, ConnectGoal::Any);
        match ConnectAttempt::start(plan, self.context.waker.clone()) {
            Ok(attempt) => {
                self.phase = LinkPhase::Connecting(attempt);
                self.publish_status("connecting", None);
            }
            Err(error) => self.pause(&format!("cannot start a thread to connect: {error}")),
        }
    }

    fn attempted(&mut self, outcome: ConnectOutcome) {
        (self.table, self.failures) = (outcome.table, outcome.failures);
        match outcome.connected {
            Some(client) => self.connected(client, false),
            None => self.pause(&outcome.problem),
        }
    }

    fn connected(&mut self, connected: ConnectedClient, is_return: bool) {
        let ConnectedClient { mut client, candidate } = connected;
        let agent = &self.context.identity.name;
        let topics = [Topic::Need { agent }.to_string(), Topic::Control { agent }.to_string()];
        if let Some(error) = topics.iter().find_map(|topic| client.subscribe(topic).err()) {
            self.pause(&error.to_string());
            return;
        }
        if self.connected_before {
            self.context.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        if self.used.as_ref().is_some_and(|used| *used != candidate) {
            self.context.counters.server_changes.fetch_add(1, Ordering::Relaxed);
            self.holds.try_again(Instant::now());
        }
        self.connected_before = true;
        self.used = Some(candidate);
        let connection = OpenConnection::new(client);
        self.phase =
            LinkPhase::Connected(Box::new(ServerInUse { connection, return_at: None, returning: None, is_return }));
        self.follow_candidates();
        self.publish_status("connected", None);
        let status = self.context.status.link();
        let reason = status.reason.map_or(String::new(), |reason| format!(": {reason}"));
        tracing::info!("connected to {} ({}){reason}", status.url, status.address.unwrap_or_default());
    }

    /// The server closed the connection. With MQTT 3.1.1 that is its only way to refuse a message. A server that only gives no answer refuses nothing.
    fn closed_by_server(&mut self, why: &str, queue: &mut SendQueue) {
        if let (LinkPhase::Connected(server), Version::V311) = (&self.phase, self.config.version) {
            let (schemas, is_alone) = server.connection.unanswered();
            if self.holds.unanswered(&schemas, is_alone, Instant::now()) {
                // The server works, and the group that it refuses waits on its own: the other groups must not wait longer for each refused one.
                self.failed_rounds = self.failed_rounds.min(1);
                self.end_connection(queue);
                self.pause(why);
                return;
            }
        }
        self.lost_server(why, queue);
    }

    /// Everything in flight is unsent again.
    fn end_connection(&mut self, queue: &mut SendQueue) -> Option<Box<ServerInUse>> {
        self.records.note_change();
        let phase = std::mem::replace(&mut self.phase, LinkPhase::Waiting(Instant::now()));
        let LinkPhase::Connected(mut server) = phase else { return None };
        server.connection.give_back(queue);
        if server.connection.since.elapsed() >= GOOD_AFTER {
            (self.failed_rounds, self.lost) = (0, 0);
        }
        Some(server)
    }

    /// The connection is lost: the next candidate is tried at once, unless all were lost in a row.
    fn lost_server(&mut self, why: &str, queue: &mut SendQueue) {
        let Some(mut server) = self.end_connection(queue) else { return self.pause(why) };
        let lasted = server.connection.since.elapsed();
        if lasted >= self.config.return_interval.duration() {
            self.vain_returns = 0;
        } else if server.is_return {
            self.vain_returns = self.vain_returns.saturating_add(1);
        }
        if let Some(used) = &self.used {
            self.failures.failed(used, why, Instant::now());
        }
        self.lost += 1;
        let candidates = self.table.candidates(&self.context.identity.name).len();
        if let Some(client) = server.take_accepted() {
            // Perhaps it is the same server at another address, which allows one connection of an agent.
            tracing::info!("{why}; another connection is ready");
            self.connected(client, true);
        } else if self.lost < candidates.min(TRIES_MAX) {
            tracing::warn!("{why}; sampling goes on, connecting to another server");
            self.connect();
        } else {
            self.lost = 0;
            self.pause(why);
        }
    }

    fn pause(&mut self, why: &str) {
        let longest = BACKOFF_MIN.saturating_mul(1 << self.failed_rounds.min(10)).min(BACKOFF_MAX);
        // Between half of the pause and all of it, so that many agents do not reconnect in step.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let pause = longest / 2 + longest.mul_f64((self.jitter >> 11) as f64 / (1u64 << 53) as f64 / 2.0);
        if self.failed_rounds == 0 {
            tracing::warn!("{why}; sampling goes on, connecting again");
        } else {
            tracing::debug!("{why}; connecting again in {pause:?}");
        }
        self.failed_rounds = self.failed_rounds.saturating_add(1);
        self.phase = LinkPhase::Waiting(Instant::now() + pause);
        self.publish_status("waiting", Some(why));
    }

    /// Applies other settings. If only the list of servers differs, the connection stays until the agent has one that it prefers; else it disconnects,
    /// and the next attempt is due at once.
    pub fn reconfigure(&mut self, config: Arc<MqttConfig>, queue: &mut SendQueue) {
        self.table = AddressTable::new(&config.servers, &self.table);
        let can_stay = self.config.is_same_connection(&config);
        self.config = config;
        (self.failed_rounds, self.lost, self.vain_returns) = (0, 0, 0);
        match &mut self.phase {
            LinkPhase::Connected(server) if can_stay => {
                server.returning = None;
                self.follow_candidates();
                let (LinkPhase::Connected(server), Some(used)) = (&mut self.phase, &self.used) else { return };
                if !self.config.servers.iter().any(|server| server.text == used.url) {
                    tracing::info!("{} is no longer configured: changing to another server", used.url);
                    server.return_at = Some(Instant::now());
                }
                self.publish_status("connected", None);
            }
            _ => {
                // They may have failed because of the settings of before.
                self.failures = FailureTable::default();
                self.close(queue);
            }
        }
    }

    pub fn close(&mut self, queue: &mut SendQueue) {
        let phase = std::mem::replace(&mut self.phase, LinkPhase::Waiting(Instant::now()));
        self.records.note_change();
        if let LinkPhase::Connected(mut server) = phase {
            server.connection.give_back(queue);
            if let Err(error) = server.connection.client.disconnect() {
                tracing::debug!("{error}");
            }
        }
        self.publish_status("off", None);
    }

    /// Publishes the state, the server in use and the reason; `problem` is that of an attempt.
    fn publish_status(&self, state: &'static str, problem: Option<&str>) {
        let candidates = self.table.candidates(&self.context.identity.name);
        let used = self.used.as_ref().filter(|_| state == "connected");
        let place =
            used.map_or(0, |used| candidates.iter().position(|c| c == used).map_or(candidates.len(), |at| at) + 1);
        self.context.counters.server_place.store(place as u64, Ordering::Relaxed);
        let several = candidates.len() > 1 || used.is_some_and(|used| !candidates.contains(used));
        let views = candidates.iter().filter(|_| several).map(|candidate| {
            let problem = self.failures.problem(candidate).map(str::to_owned);
            let state = match &problem {
                _ if used == Some(candidate) => "in use",
                Some(_) => "failed",
                None => "ready",
            };
            let (url, address) = (candidate.url.clone(), candidate.address.to_string());
            CandidateStatus { url, address, state, problem }
        });
        let views = views.collect();
        let reason = used.filter(|_| several).map(|_| self.reason(place, &candidates));
        self.context.status.change_link(|status| {
            status.url = used.map_or_else(|| self.config.shown(), |used| used.url.clone());
            status.address = used.map(|used| used.address.to_string());
            (status.reason, status.candidates) = (reason, views);
            match (state, problem) {
                ("connected", _) => status.last_error = None,
                (_, Some(problem)) => status.last_error = Some(problem.to_owned()),
                _ => {}
            }
            if state != "connected" {
                status.in_flight = 0;
            }
            status.state = state;
        });
    }

    /// Why the server at a place of the agent's order is in use.
    fn reason(&self, place: usize, candidates: &[Candidate]) -> String {
        let count = candidates.len();
        match (place, candidates.first()) {
            (1, _) => format!("the preferred one of {count}"),
            (place, Some(first)) if place <= count => {
                let (url, address) = (&first.url, first.address);
                let why =
                    self.failures.problem(first).unwrap_or("the agent returns to it at the end of a return interval");
                format!("number {place} of {count} in this agent's order; the first is {url} ({address}): {why}")
            }
            _ => {
                "it is no longer among the configured servers; the agent leaves it when another one accepts".to_owned()
            }
        }
    }
}

impl ServerInUse {
    /// The client of a preferred server that has accepted, if there is one.
    fn take_accepted(&mut self) -> Option<ConnectedClient> {
        match self.returning.take()? {
            ReturnPhase::Trying(attempt) => attempt.outcome()?.ok()?.connected,
            ReturnPhase::Finishing(client, _) => Some(*client),
        }
    }

    /// When the change to a preferred server has to be looked at.
    fn returning_due(&self) -> Option<Instant> {
        match &self.returning {
            None => self.return_at,
            // Its thread wakes this one.
            Some(ReturnPhase::Trying(_)) => None,
            Some(ReturnPhase::Finishing(_, until)) => Some(*until),
        }
    }
}

fn plan(
    context: &SenderContext,
    config: &MqttConfig,
    table: &AddressTable,
    failures: &FailureTable,
    goal: ConnectGoal,
) -> ConnectPlan {
    let client = ClientConfig {
        version: config.version,
        client_id: context.identity.name.clone(),
        user: config.user.clone(),
        password: config.password.clone(),
        tls: config.tls.clone(),
        keep_alive: config.keep_alive.duration(),
        send_timeout: SEND_TIMEOUT,
        ..ClientConfig::default()
    };
    ConnectPlan {
        agent: context.identity.name.clone(),
        goal,
        table: table.clone(),
        failures: failures.clone(),
        recent: config.return_interval.duration() * FAILED_INTERVALS,
        client,
        connect_timeout: config.connect_timeout.map(|timeout| timeout.duration()),
    }
}
