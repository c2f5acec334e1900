//! Many agents at once, from one thread.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use wholegrain_transport::mqtt::Version;

use super::agent::Agent;
use super::latencies::Latencies;
use super::link::{Link, ServerPacket};
use super::poll::Poller;
use super::wall_ns;

/// How long the server may acknowledge nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Batches made between two looks at the sockets.
const BATCHES_AT_ONCE: usize = 32;
/// An agent that sends as fast as it can leaves ticks out when it is so far behind the clock, ns.
const BEHIND_MAX_NS: i64 = 1_000_000_000;

/// Loopback addresses that connections take in turn.
const LOOPBACK_ADDRESSES: u8 = 4;

/// Where the server is, and how to speak to it.
pub struct Target {
    /// Its addresses, which connections take in turn: each gives ephemeral ports of its own.
    pub addresses: Vec<SocketAddr>,
    /// TLS: one configuration for all, or one for each agent; none without TLS.
    pub tls: Vec<Arc<rustls::ClientConfig>>,
}

impl Target {
    /// A port on loopback addresses, without TLS.
    pub fn on_loopback(port: u16) -> Self {
        let addresses = (1..=LOOPBACK_ADDRESSES).map(|last| ([127, 0, 0, last], port).into()).collect();
        Self { addresses, tls: Vec::new() }
    }
}

/// When batches are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At the time of their last sample. A late agent sends later: no batch is left out.
    Clock,
    /// As soon as the window has room; ticks are left out to stay near the clock.
    Window,
}

/// Totals of the acknowledged batches.
#[derive(Default)]
pub struct Totals {
    pub batches: u64,
    pub readings: u64,
    /// Bytes of payload sent.
    pub bytes: u64,
    /// From sending a batch to its acknowledgement.
    pub acks: Latencies,
    /// From opening a connection to CONNACK.
    pub connects: Latencies,
    /// From announcing a schema to its acknowledgement.
    pub schemas: Latencies,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting(Instant),
    Announcing(u16, Instant),
    Ready,
}

struct Member {
    link: Link,
    agent: Agent,
    state: State,
    window: usize,
    sent: VecDeque<(u16, Instant)>,
    /// It has a batch to send and no room in its window.
    held: bool,
    wants_room: bool,
}

pub struct Fleet {
    members: Vec<Member>,
    poller: Poller,
    ready: Vec<usize>,
    window_max: usize,
    heard: Instant,
    /// The acknowledged batches so far.
    pub totals: Totals,
}

impl Fleet {
    /// Connects agents, at most `at_once` in the handshake at a time, and announces their schemas. At most `window_max`
    /// publishes of each wait for acknowledgement, fewer when the server limits them.
    pub fn connect(agents: Vec<Agent>, target: &Target, window_max: usize, at_once: usize) -> anyhow::Result<Self> {
        let mut fleet = Self {
            members: Vec::with_capacity(agents.len()),
            poller: Poller::new()?,
            ready: Vec::new(),
            window_max,
            heard: Instant::now(),
            totals: Totals::default(),
        };
        let count = agents.len();
        let mut agents = agents.into_iter().enumerate();
        while (fleet.totals.schemas.count() as usize) < count {
            while fleet.members.len() < fleet.totals.schemas.count() as usize + at_once {
                let Some((index, agent)) = agents.next() else { break };
                fleet.open(index, agent, target)?;
            }
            fleet.turn(Duration::from_secs(1))?;
        }
        Ok(fleet)
    }

    fn open(&mut self, index: usize, agent: Agent, target: &Target) -> anyhow::Result<()> {
        let tls = target.tls.get(index % target.tls.len().max(1)).cloned();
        let since = Instant::now();
        let address = target.addresses[index % target.addresses.len()];
        let link = Link::open(address, tls, Version::V5, &agent.name)?;
        self.poller.add(&link, index)?;
        let window = self.window_max;
        let state = State::Greeting(since);
        let sent = VecDeque::new();
        self.members.push(Member { link, agent, state, window, sent, held: false, wants_room: false });
        self.flush(index)
    }

    fn flush(&mut self, index: usize) -> anyhow::Result<()> {
        let member = &mut self.members[index];
        let left = member.link.flush()?;
        if left != member.wants_room {
            member.wants_room = left;
            self.poller.want_room(&member.link, index, left)?;
        }
        Ok(())
    }

    /// Waits for the sockets and reads them.
    fn turn(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &index in &ready {
            self.take(index)?;
            self.flush(index)?;
        }
        let now = Instant::now();
        if !ready.is_empty() {
            self.heard = now;
        }
        self.ready = ready;
        let waits = || self.members.iter().any(|m| m.state != State::Ready || !m.sent.is_empty());
        ensure!(now < self.heard + SILENCE_MAX || !waits(), "the server has said nothing for {SILENCE_MAX:?}");
        Ok(())
    }

    fn take(&mut self, index: usize) -> anyhow::Result<()> {
        let Member { link, agent, state, window, sent, .. } = &mut self.members[index];
        let (totals, window_max) = (&mut self.totals, self.window_max);
        let now = Instant::now();
        let mut announce = false;
        link.receive(|heard| {
            match (heard, *state) {
                (ServerPacket::Connected(receive_max), State::Greeting(since)) => {
                    *window = window_max.min(receive_max.into());
                    totals.connects.record(now - since);
                    announce = true;
                }
                (ServerPacket::Acked(id), State::Announcing(expected, since)) if id == expected => {
                    totals.schemas.record(now - since);
                    *state = State::Ready;
                }
                (ServerPacket::Acked(id), State::Ready) => match sent.pop_front() {
                    Some((expected, since)) if expected == id => {
                        totals.batches += 1;
                        totals.readings += agent.batch_readings();
                        totals.acks.record(now - since);
                    }
                    other => bail!("acknowledgement of {id} where {other:?} was next"),
                },
                (ServerPacket::Other, _) => {}
                (heard, state) => bail!("{heard:?} while {state:?}"),
            }
            Ok(())
        })
        .map_err(|error| error.context(format!("agent {}", agent.name)))?;
        if announce {
            let id = link.publish(&agent.schema_topic, &agent.schema().encode(), true)?;
            *state = State::Announcing(id, now);
        }
        Ok(())
    }

    /// Makes an agent's next batch and sends it, if its window has room.
    fn send(&mut self, index: usize, now: Instant) -> anyhow::Result<bool> {
        let member = &mut self.members[index];
        member.held = member.sent.len() >= member.window;
        if member.held {
            return Ok(false);
        }
        member.agent.make();
        let (topic, payload) = member.agent.message();
        self.totals.bytes += payload.len() as u64;
        let id = member.link.publish(topic, payload, false)?;
        member.sent.push_back((id, now));
        self.flush(index)?;
        Ok(true)
    }

    /// Sends for `length`. `each_second` is called once a second with the time since the start.
    pub fn run(
        &mut self,
        pace: Pace,
        length: Duration,
        mut each_second: impl FnMut(Duration, &Totals),
    ) -> anyhow::Result<()> {
        let (start, start_wall) = (Instant::now(), wall_ns());
        let mut due = BinaryHeap::new();
        let count = self.members.len();
        for (index, Member { agent, held, .. }) in self.members.iter_mut().enumerate() {
            *held = false;
            let phase = agent.period_ns() * (index as i64 + 1) / count as i64;
            agent.go_to(start_wall + phase - agent.period_ns());
            let first = if pace == Pace::Clock { phase } else { 0 };
            due.push(Reverse((start + Duration::from_nanos(first as u64), index)));
        }
        self.heard = start;
        let mut second = 1;
        loop {
            let now = Instant::now();
            if now >= start + Duration::from_secs(second) {
                each_second(now - start, &self.totals);
                second += 1;
            }
            if now >= start + length {
                return Ok(());
            }
            for _ in 0..BATCHES_AT_ONCE {
                let Some(&Reverse((at, index))) = due.peek().filter(|next| next.0.0 <= now) else { break };
                due.pop();
                if self.send(index, now)? {
                    let wall = start_wall + (now - start).as_nanos() as i64;
                    due.push(Reverse((self.next_due(pace, index, at, now, wall), index)));
                }
            }
            let until = due.peek().map_or(start + length, |next| next.0.0).min(start + Duration::from_secs(second));
            self.turn(until.saturating_duration_since(Instant::now()))?;
            for at in 0..self.ready.len() {
                let index = self.ready[at];
                let member = &mut self.members[index];
                if std::mem::take(&mut member.held) {
                    // Late by now: it goes first, and keeps its place on the clock.
                    let end = member.agent.next_end() - start_wall;
                    let at = if pace == Pace::Clock { Duration::from_nanos(end.max(0) as u64) } else { now - start };
                    due.push(Reverse(((start + at).min(now), index)));
                }
            }
        }
    }

    fn next_due(&mut self, pace: Pace, index: usize, at: Instant, now: Instant, wall: i64) -> Instant {
        let agent = &mut self.members[index].agent;
        if pace == Pace::Clock {
            return at + Duration::from_nanos(agent.period_ns() as u64);
        }
        if wall - agent.next_end() > BEHIND_MAX_NS {
            agent.go_to(wall - agent.period_ns());
        }
        now + Duration::from_nanos((agent.next_end() - wall).max(0) as u64)
    }

    /// Waits until everything is acknowledged.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        while self.members.iter().any(|member| !member.sent.is_empty()) {
            self.turn(Duration::from_secs(1))?;
        }
        Ok(())
    }

    /// Ends the connections and gives the agents back.
    pub fn into_agents(self) -> Vec<Agent> {
        self.members.into_iter().map(|member| member.agent).collect()
    }
}
