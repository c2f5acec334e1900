//! An attempt to connect: a thread that lives for the attempt, because the resolver, TCP and the handshake block.
//!
//! - In: the servers with their known addresses, and the failures of their candidates.
//! - Out: a connected client or the problem of each candidate, and the addresses that were looked up.
//! - Never: a lookup before the known addresses were tried when there is no connection; more than [`TRIES_MAX`] connections; another one after the attempt
//!   was dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use wholegrain_transport::client::{Client, ClientConfig};

use super::candidates::{AddressTable, Candidate, FailureTable};
use crate::waker::Waker;

/// The most candidates that one attempt tries.
pub const TRIES_MAX: usize = 16;
/// The stack of the thread: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// After 5 s of lookups no further name is looked up if the addresses of any are known.
const LOOKUPS_MAX: Duration = Duration::from_secs(5);
/// The connect timeout of an agent with one candidate: 10 s.
const CONNECT_TIMEOUT_SINGLE: Duration = Duration::from_secs(10);
/// The connect timeout of an agent with several: 3 s.
const CONNECT_TIMEOUT_SEVERAL: Duration = Duration::from_secs(3);
/// The most problems in the message about an attempt.
const PROBLEMS_SHOWN: usize = 4;

/// Which candidates are tried.
#[derive(Debug, Clone)]
pub enum ConnectGoal {
    /// All: there is no connection.
    Any,
    /// Those that precede the one in use; all if it is no candidate any more.
    Preferred { used: Candidate },
}

/// What an attempt needs. It owns everything, because it may outlive the link.
pub struct ConnectPlan {
    pub agent: String,
    pub goal: ConnectGoal,
    pub table: AddressTable,
    pub failures: FailureTable,
    /// How long a failed candidate comes after the others.
    pub recent: Duration,
    /// Without URL, address and connect timeout.
    pub client: ClientConfig,
    pub connect_timeout: Option<Duration>,
}

/// A client that the server has accepted.
pub struct ConnectedClient {
    pub client: Client,
    pub candidate: Candidate,
}

/// The result of an attempt.
pub struct ConnectOutcome {
    pub table: AddressTable,
    pub failures: FailureTable,
    pub connected: Option<ConnectedClient>,
    /// The problems, for the log; empty if nothing was tried.
    pub problem: String,
}

/// A running attempt. Dropping it cancels it.
pub struct ConnectAttempt {
    receiver: Receiver<ConnectOutcome>,
    cancelled: Arc<AtomicBool>,
}

impl ConnectAttempt {
    /// Starts the thread, which wakes `waker` at its end.
    pub fn start(plan: ConnectPlan, waker: Arc<Waker>) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let cancelled = Arc::new(AtomicBool::new(false));
        let theirs = cancelled.clone();
        std::thread::Builder::new().name("connect".into()).stack_size(STACK_BYTES).spawn(move || {
            let _ = sender.send(plan.run(&theirs));
            waker.wake();
        })?;
        Ok(Self { receiver, cancelled })
    }

    /// The outcome once it is there; an error if the thread has panicked.
    pub fn outcome(&self) -> Option<Result<ConnectOutcome, &'static str>> {
        match self.receiver.try_recv() {
            Ok(outcome) => Some(Ok(outcome)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the connecting thread ended")),
        }
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

impl ConnectPlan {
    fn run(mut self, cancelled: &AtomicBool) -> ConnectOutcome {
        let (mut problems, mut tried) = (Vec::new(), Vec::new());
        let is_connected = matches!(self.goal, ConnectGoal::Preferred { .. });
        let mut looked_up = false;
        if is_connected || self.table.candidates(&self.agent).is_empty() {
            self.look_up(&mut problems, cancelled);
            looked_up = true;
        }
        loop {
            let candidates = self.table.candidates(&self.agent);
            let is_single = candidates.len() == 1;
            for candidate in self.attempts(candidates) {
                if tried.len() == TRIES_MAX || cancelled.load(Ordering::Acquire) {
                    break;
                }
                if tried.contains(&candidate) {
                    continue;
                }
                match Client::connect(&self.client_config(&candidate, is_single)) {
                    Ok(client) => {
                        self.failures.succeeded(&candidate);
                        let connected = Some(ConnectedClient { client, candidate });
                        return self.outcome(connected, &problems);
                    }
                    Err(error) => {
                        let problem = error.to_string();
                        self.failures.failed(&candidate, &problem, Instant::now());
                        problems.push(problem);
                        tried.push(candidate);
                    }
                }
            }
            if looked_up || !self.table.has_names() || cancelled.load(Ordering::Acquire) {
                return self.outcome(None, &problems);
            }
            // None of the known addresses works: perhaps there are others by now.
            self.look_up(&mut problems, cancelled);
            looked_up = true;
        }
    }

    fn outcome(self, connected: Option<ConnectedClient>, problems: &[String]) -> ConnectOutcome {
        let mut problem = problems.iter().take(PROBLEMS_SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
        if problems.len() > PROBLEMS_SHOWN {
            problem += &format!("; and {} more", problems.len() - PROBLEMS_SHOWN);
        }
        let Self { agent, table, mut failures, .. } = self;
        failures.keep(&table.candidates(&agent));
        ConnectOutcome { table, failures, connected, problem }
    }

    fn attempts(&self, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        match &self.goal {
            ConnectGoal::Any => self.failures.attempts(candidates, self.recent, Instant::now()),
            ConnectGoal::Preferred { used } => {
                candidates.truncate(candidates.iter().position(|candidate| candidate == used).unwrap_or(usize::MAX));
                candidates
            }
        }
    }

    fn client_config(&self, candidate: &Candidate, is_single: bool) -> ClientConfig {
        let default = if is_single { CONNECT_TIMEOUT_SINGLE } else { CONNECT_TIMEOUT_SEVERAL };
        ClientConfig {
            url: candidate.url.clone(),
            address: Some(candidate.address),
            connect_timeout: self.connect_timeout.unwrap_or(default),
            ..self.client.clone()
        }
    }

    fn look_up(&mut self, problems: &mut Vec<String>, cancelled: &AtomicBool) {
        let start = Instant::now();
        for url in self.table.due() {
            let is_enough = start.elapsed() >= LOOKUPS_MAX && !self.table.candidates(&self.agent).is_empty();
            if is_enough || cancelled.load(Ordering::Acquire) {
                return;
            }
            // The resolver orders addresses differently for each caller: all are taken before the table keeps some.
            let result = url.address.look_up(usize::MAX);
            if let Err(why) = &result {
                problems.push(format!("cannot connect to MQTT server {}: {why}", url.text));
            } else if result.as_ref().is_ok_and(Vec::is_empty) {
                problems.push(format!("cannot connect to MQTT server {}: the name has no address", url.text));
            }
            self.table.found(&url, result.unwrap_or_default(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::config::ServerUrl;

    fn plan(urls: &[String], goal: ConnectGoal) -> ConnectPlan {
        let urls: Vec<ServerUrl> = urls.iter().map(|url| ServerUrl::parse(url).unwrap()).collect();
        ConnectPlan {
            agent: "n1".into(),
            goal,
            table: AddressTable::new(&urls, &AddressTable::default()),
            failures: FailureTable::default(),
            recent: Duration::from_secs(60),
            client: ClientConfig { client_id: "n1".into(), ..ClientConfig::default() },
            connect_timeout: None,
        }
    }

    /// A server that accepts `count` connections, and its URL.
    fn server(count: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("mqtt://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().take(count).flatten() {
                // CONNACK of MQTT 5: success, no properties.
                stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
                std::mem::forget(stream);
            }
        });
        url
    }

    /// A URL that refuses connections.
    fn refusing() -> String {
        format!("mqtt://127.0.0.1:{}", wholegrain_testkit::free_port())
    }

    #[test]
    fn candidates_are_tried_in_order_until_one_accepts() {
        let urls = [server(1), refusing(), refusing()];
        let plan = plan(&urls, ConnectGoal::Any);
        let candidates = plan.table.candidates("n1");
        let works = candidates.iter().position(|candidate| candidate.url == urls[0]).unwrap();
        let outcome = plan.run(&AtomicBool::new(false));
        assert_eq!(outcome.connected.unwrap().candidate, candidates[works]);
        for (index, candidate) in candidates.iter().enumerate() {
            assert_eq!(outcome.failures.problem(candidate).is_some(), index < works, "{index} of {works}");
        }
    }

    #[test]
    fn an_attempt_is_bounded_and_names_what_failed() {
        let urls: Vec<String> = (0..TRIES_MAX + 4).map(|_| refusing()).collect();
        let outcome = plan(&urls, ConnectGoal::Any).run(&AtomicBool::new(false));
        let failed = |candidate: &&Candidate| outcome.failures.problem(candidate).is_some();
        let candidates = outcome.table.candidates("n1");
        assert_eq!(candidates.iter().filter(failed).count(), TRIES_MAX);
        assert!(outcome.connected.is_none() && outcome.problem.ends_with("; and 12 more"), "{}", outcome.problem);
        assert!(outcome.problem.contains("refused"), "{}", outcome.problem);
        // The next attempt begins with those that were not tried.
        let attempts = outcome.failures.attempts(candidates, Duration::from_secs(3600), Instant::now());
        assert!(attempts[..4].iter().all(|candidate| outcome.failures.problem(candidate).is_none()));
    }

    #[test]
    fn only_preferred_candidates_are_tried_beside_a_connection() {
        let urls = [server(2), server(2)];
        let candidates = plan(&urls, ConnectGoal::Any).table.candidates("n1");
        let with = |used: &Candidate| {
            let plan = plan(&urls, ConnectGoal::Preferred { used: used.clone() });
            plan.run(&AtomicBool::new(false)).connected.map(|connected| connected.candidate)
        };
        assert_eq!(with(&candidates[1]), Some(candidates[0].clone()));
        assert_eq!(with(&candidates[0]), None, "the first is in use");
        let removed = Candidate { url: "mqtt://gone".into(), address: candidates[0].address };
        assert_eq!(with(&removed), Some(candidates[0].clone()), "the one in use is no candidate any more");
    }

    #[test]
    fn each_address_of_a_name_is_tried_and_a_cancelled_attempt_tries_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let urls = [format!("mqtt://localhost:{port}")];
        let cancelled = plan(&urls, ConnectGoal::Any).run(&AtomicBool::new(true));
        assert!(cancelled.connected.is_none() && cancelled.problem.is_empty());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
            std::mem::forget(stream);
        });
        let outcome = plan(&urls, ConnectGoal::Any).run(&AtomicBool::new(false));
        let connected = outcome.connected.unwrap();
        assert_eq!(connected.candidate.address, format!("127.0.0.1:{port}").parse().unwrap());
        assert_eq!(connected.client.peer(), connected.candidate.address);
    }

    #[test]
    fn a_name_that_is_unknown_is_named_and_hides_no_other_server() {
        let urls = ["mqtt://no-such-host.invalid".to_owned(), server(1)];
        let outcome = plan(&urls[..1], ConnectGoal::Any).run(&AtomicBool::new(false));
        assert!(outcome.connected.is_none() && outcome.problem.contains("cannot look up"), "{}", outcome.problem);
        let outcome = plan(&urls, ConnectGoal::Any).run(&AtomicBool::new(false));
        assert_eq!(outcome.connected.unwrap().candidate.url, urls[1]);
    }
}
