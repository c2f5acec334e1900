//! An agent with several servers: two Mosquittos, each behind a connection that can be cut or hang.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;

use support::arrived::Arrived;
use support::{Agent, Broker, Line, Mode};
use wholegrain_agent::AgentHandles;
use wholegrain_agent::manager::ManagerCommand;
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, SchemaHash};
use wholegrain_testkit::{DEADLINE, wait_until};
use wholegrain_transport::client::Client;
use wholegrain_transport::payload::encode_batch;

fn config(lines: &[&Line], more: &str) -> String {
    let urls: Vec<String> = lines.iter().map(|line| format!("\"mqtt://127.0.0.1:{}\"", line.port)).collect();
    format!(
        "name = \"n1\"\nprefix = \"/lab/n1\"\n[defaults]\ninterval = \"10ms\"\n[sources.tester]\nsensors = 20\nshape = \"counter\"\n\
         [api]\nsocket = \"agent.sock\"\n[mqtt]\nurls = [{}]\nsend_interval = \"50ms\"\nreturn_interval = \"1s\"\n{more}",
        urls.join(", ")
    )
}

/// A broker behind a line, and what arrives there.
struct Server {
    line: Line,
    listener: Client,
    arrived: Arrived,
    broker: Broker,
}

impl Server {
    fn start() -> Self {
        let broker = Broker::start();
        let (line, listener) = (Line::to(broker.port, Mode::Through), broker.listener());
        Self { line, listener, arrived: Arrived::default(), broker }
    }

    /// Receives until `more` further batches have arrived.
    fn listen_for(&mut self, more: usize) {
        let goal = self.arrived.batches.len() + more;
        self.arrived.listen(&mut self.listener, "batches", |arrived| arrived.batches.len() >= goal);
    }

    /// Receives what has been published until now: a message of our own comes after it.
    fn listen_to_end(&mut self) {
        let marks = self.arrived.orphans;
        let mut client = self.broker.client("mark");
        client.publish("wholegrain/v1/batch/n1/mark", &mark(), true, false).unwrap();
        client.poll(DEADLINE).unwrap().expect("an acknowledgement");
        self.arrived.listen(&mut self.listener, "the mark", |arrived| arrived.orphans > marks);
    }

    fn numbers(&self, handles: &AgentHandles) -> BTreeSet<u64> {
        self.arrived.seqs(handles.identity.boot_ns).into_keys().collect()
    }

    fn is_at(&self, url: &str) -> bool {
        url.ends_with(&format!(":{}", self.line.port))
    }
}

/// A batch of a schema that is never announced.
fn mark() -> Vec<u8> {
    let header = BatchHeader { agent: "n1".into(), boot: 1, seq: 1, schema: SchemaHash([7; 16]), interval_ns: 0 };
    let columns = vec![Column { values: ColumnValues::Int(vec![1]), gaps: Gaps::default() }];
    encode_batch(&Batch { header, times: vec![1], columns })
}

/// Starts two servers and an agent; the agent's preferred server is the first.
fn start(dir: &Path, more: &str) -> (Agent, Server, Server) {
    let (a, b) = (Server::start(), Server::start());
    let agent = Agent::start(dir, &config(&[&a.line, &b.line], more));
    wait_until("a connection", || agent.handles.status.link().state == "connected");
    let url = agent.handles.status.link().url;
    if a.is_at(&url) { (agent, a, b) } else { (agent, b, a) }
}

fn place(handles: &AgentHandles) -> u64 {
    handles.counters.server_place.load(Ordering::Relaxed)
}

/// Ends the agent. Then every batch is at one of the servers, and only those up to `twice_max` may be at several.
#[track_caller]
fn stop_and_check(agent: Agent, servers: &mut [&mut Server], twice_max: u64) {
    let handles = agent.handles.clone();
    agent.stop();
    let last = handles.counters.batches.load(Ordering::Relaxed);
    let mut copies: BTreeMap<u64, usize> = (1..=last).map(|seq| (seq, 0)).collect();
    for server in servers {
        server.listen_to_end();
        server.numbers(&handles).into_iter().for_each(|seq| *copies.entry(seq).or_default() += 1);
    }
    let missing: Vec<u64> = copies.iter().filter(|(_, count)| **count == 0).map(|(seq, _)| *seq).collect();
    assert!(missing.is_empty(), "of {last} batches {missing:?} are at no server");
    let is_twice = |(seq, count): (&u64, &usize)| (*count > 1 && *seq > twice_max).then_some(*seq);
    let twice: Vec<u64> = copies.iter().filter_map(is_twice).collect();
    assert!(twice.is_empty(), "{twice:?} are at several servers; {twice_max} was the last before the loss");
    assert_eq!(handles.counters.dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn the_agent_goes_to_the_next_server_and_returns_to_the_preferred_one() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut first, mut second) = start(dir.path(), "");
    let handles = agent.handles.clone();
    assert_eq!(place(&handles), 1);
    first.listen_for(10);
    first.line.set(Mode::Cut);
    wait_until("the second server", || place(&handles) == 2);
    second.listen_for(10);
    first.listen_to_end();
    let before = first.numbers(&handles).into_iter().max().unwrap();
    let (_, status) = agent.ask("GET", "/v1/status");
    assert!(second.is_at(status["server"]["url"].as_str().unwrap()), "{status}");
    let reason = status["server"]["reason"].as_str().unwrap();
    assert!(reason.contains("number 2 of 2") && reason.contains(&first.line.port.to_string()), "{reason}");
    let states: Vec<_> = (0..2).map(|n| status["server"]["candidates"][n]["state"].as_str().unwrap()).collect();
    assert_eq!((states, status["server_changes"].as_u64()), (vec!["failed", "in use"], Some(1)));
    // Requests of the server in use are answered there.
    let hash = second.arrived.batches[0].2.header.schema;
    let announced = second.arrived.announced[&hash];
    let mut server = second.broker.client("server");
    server.publish("wholegrain/v1/need/n1", &hash.0, true, false).unwrap();
    server.flush().unwrap();
    let is_again = |arrived: &Arrived| arrived.announced[&hash] > announced;
    second.arrived.listen(&mut second.listener, "the schema again", is_again);
    first.line.set(Mode::Through);
    wait_until("the preferred server", || place(&handles) == 1);
    first.listen_for(10);
    assert_eq!(handles.counters.server_changes.load(Ordering::Relaxed), 2);
    assert_eq!(handles.status.link().reason.as_deref(), Some("the preferred one of 2"));
    stop_and_check(agent, &mut [&mut first, &mut second], before);
}

#[test]
fn a_server_that_hangs_is_left_and_what_it_did_not_answer_goes_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut first, mut second) = start(dir.path(), "answer_timeout = \"1s\"\nconnect_timeout = \"1s\"\n");
    let handles = agent.handles.clone();
    first.listen_for(10);
    first.line.set(Mode::Hang);
    wait_until("the second server", || place(&handles) == 2);
    // The bytes that hang may arrive later, all of them sent before the loss.
    let before = handles.counters.batches.load(Ordering::Relaxed);
    second.listen_for(10);
    let (reason, missed) = (handles.status.link().reason.unwrap(), handles.counters.missed.load(Ordering::Relaxed));
    assert!(reason.contains("did not answer"), "{reason}");
    // Attempts to return last for a second each, because the first server accepts TCP and does not answer.
    second.listen_for(30);
    assert_eq!((place(&handles), handles.counters.server_changes.load(Ordering::Relaxed)), (2, 1));
    let group = handles.registry.find("tester").unwrap();
    let samples = group.stats.samples.load(Ordering::Relaxed);
    assert!(samples > 10 * missed, "sampling goes on: {samples} samples, {missed} ticks missed");
    assert_eq!(handles.counters.overruns.load(Ordering::Relaxed), 0);
    first.line.set(Mode::Cut);
    first.line.set(Mode::Through);
    wait_until("the preferred server", || place(&handles) == 1);
    stop_and_check(agent, &mut [&mut first, &mut second], before);
}

#[test]
fn a_reload_applies_another_list_without_loss_and_keeps_a_server_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, mut first, mut second) = start(dir.path(), "");
    let handles = agent.handles.clone();
    let mut third = Server::start();
    first.listen_for(10);
    let reload = |lines: &[&Line]| {
        std::fs::write(dir.path().join("agent.toml"), config(lines, "answer_timeout = \"1s\"\n")).unwrap();
        agent.manager_handle.execute(ManagerCommand::Reload).unwrap();
    };
    // Without the second server nothing changes.
    reload(&[&first.line]);
    wait_until("one candidate", || handles.status.link().reason.is_none());
    first.listen_for(10);
    assert_eq!(handles.counters.reconnects.load(Ordering::Relaxed), 0, "the connection stays");
    // A wrong list changes nothing either.
    reload_refused(&agent, dir.path());
    // With the second server the same connection is left when the first one hangs.
    reload(&[&second.line, &first.line]);
    wait_until("two candidates", || handles.status.link().candidates.len() == 2);
    assert_eq!(handles.counters.reconnects.load(Ordering::Relaxed), 0, "the connection stays");
    first.line.set(Mode::Hang);
    wait_until("the second server", || second.is_at(&handles.status.link().url));
    let before = handles.counters.batches.load(Ordering::Relaxed);
    second.listen_for(10);
    // Nothing is twice because of a list without the server in use.
    reload(&[&third.line]);
    wait_until("the third server", || third.is_at(&handles.status.link().url));
    third.listen_for(10);
    first.line.set(Mode::Through);
    assert_eq!(handles.counters.server_changes.load(Ordering::Relaxed), 2);
    stop_and_check(agent, &mut [&mut first, &mut second, &mut third], before);
}

fn reload_refused(agent: &Agent, dir: &Path) {
    std::fs::write(dir.join("agent.toml"), "name = \"n1\"\n[mqtt]\nurls = []\n").unwrap();
    let error = agent.manager_handle.execute(ManagerCommand::Reload).unwrap_err().to_string();
    assert!(error.contains("agent.toml:3:8: urls is empty"), "{error}");
}
