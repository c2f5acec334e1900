//! How many connections there may be, and whose: those that have proved nothing yet, and those that have.
//!
//! - In: a connection's address when it is accepted, its identity once that is proved. Out: a [`Place`], or none.
//! - Never: a connection that proved nothing in the way of one that will. It has little time and gives way to others.
//!
//! A fixed bound for each address would lock out a login node or a proxy, behind which all users have one address. So an address
//! may take all places there are while nobody else wants one. When they are full, a connection of the address that has the most
//! of them is closed: of its connections that have come equally far ([`Progress`]), the most numerous, one chosen by chance, but of the silent ones the oldest. So who opens bare connections
//! closes bare ones, and an honest client that shares the address needs its luck only until its first bytes are here; who fills the places with
//! connections that stop half-way closes those, and not the ones that have just come.

mod shares;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::broker::log_limit::LogLimit;
use crate::metrics::Text;
use crate::net::{Arrived, arrived};
pub(crate) use shares::{Share, Shares};

/// Lines about connections turned away in one window of the log's limit.
const LINES_MAX: u32 = 2;

/// How many connections may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Those that have proved nothing.
    pub unproven_max: usize,
    /// Those that have proved who they are, without the privileged ones.
    pub proven_max: usize,
    /// The same of one identity.
    pub identity_max: usize,
    /// Those of administrators, for whom there is room beyond the others.
    pub privileged_max: usize,
}

/// Why there is no place for somebody who proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// As many connections as may be are open.
    All(usize),
    /// This identity has as many as it may.
    Identity(usize),
    /// The connection has been closed already to make room.
    Displaced,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Full::All(most) => write!(f, "{most} connections are open, which is the most"),
            Full::Identity(most) => {
                write!(f, "{most} connections of this identity are open, which is the most it may have")
            }
            Full::Displaced => f.write_str("the connection took too long to prove whose it is"),
        }
    }
}

/// One network's address: of IPv6 the first 64 bits, which is what one host or site has to choose from.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// Counts the connections of one kind of listener.
#[derive(Debug)]
pub(crate) struct Gate {
    protocol: &'static str,
    state: Mutex<State>,
    chance: RandomState,
    /// Connections closed because others wanted the place of one that had proved nothing.
    displaced: AtomicU64,
    /// Connections closed because they proved nothing in time.
    late: AtomicU64,
    /// Connections refused after they proved who they are.
    full: AtomicU64,
    log: LogLimit,
}

#[derive(Debug)]
struct State {
    bounds: Bounds,
    next_id: u64,
    /// Of each address the connections that have proved nothing, by their progress, in the order in which they came so far.
    unproven: HashMap<IpAddr, [Vec<Waiting>; STAGES]>,
    unproven_count: usize,
    proven: HashMap<Arc<str>, usize>,
    proven_count: usize,
    privileged_count: usize,
}

/// How far a connection has come that has proved nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// Nothing of it has come.
    Silent,
    /// Some bytes have come.
    Heard,
    /// Its TLS handshake is over.
    Encrypted,
}

impl Progress {
    /// Of a connection that was just accepted: its first bytes are often here before its task runs. `None` when the client has closed it already,
    /// which it may have done while it waited to be accepted: it costs nobody a place.
    pub fn of(stream: &TcpStream) -> Option<Self> {
        match arrived(stream) {
            Arrived::Nothing => Some(Self::Silent),
            Arrived::Bytes => Some(Self::Heard),
            Arrived::End => None,
        }
    }
}

/// How many of [`Progress`] there are.
const STAGES: usize = Progress::Encrypted as usize + 1;

#[derive(Debug, Clone)]
struct Waiting {
    id: u64,
    displaced: Arc<Notify>,
}

/// What a connection has proved.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Unproven(Progress),
    Proven(Arc<str>),
    Privileged,
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    source: IpAddr,
    own: Mutex<Own>,
}

/// What is a place's own; locked before the gate's state.
#[derive(Debug)]
struct Own {
    waiting: Waiting,
    standing: Standing,
}

impl Gate {
    /// Nobody is there yet. `protocol` is what log and metrics call it, such as `https`.
    pub fn new(protocol: &'static str, bounds: Bounds) -> Arc<Self> {
        let state = State {
            bounds,
            next_id: 0,
            unproven: HashMap::new(),
            unproven_count: 0,
            proven: HashMap::new(),
            proven_count: 0,
            privileged_count: 0,
        };
        Arc::new(Self {
            protocol,
            state: Mutex::new(state),
            chance: RandomState::new(),
            displaced: AtomicU64::new(0),
            late: AtomicU64::new(0),
            full: AtomicU64::new(0),
            log: LogLimit::new(LINES_MAX),
        })
    }

    /// Other bounds from now on. Connections that are open stay.
    pub fn set_bounds(&self, bounds: Bounds) {
        self.state().bounds = bounds;
    }

    /// A place for a connection that has proved nothing and has come so far; `None` when there is none for it. It may cost another connection its
    /// place: one of the address that has the most of them.
    pub fn enter(self: &Arc<Self>, address: IpAddr, progress: Progress) -> Option<Place> {
        let source = source(address);
        let own = Own { waiting: self.wait(source, progress)?, standing: Standing::Unproven(progress) };
        Some(Place { gate: self.clone(), source, own: Mutex::new(own) })
    }

    /// One more that has proved nothing, unless it is the one that closes for the others.
    fn wait(&self, source: IpAddr, progress: Progress) -> Option<Waiting> {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let waiting = Waiting { id, displaced: Arc::default() };
        state.unproven.entry(source).or_default()[progress as usize].push(waiting.clone());
        state.unproven_count += 1;
        let mut victim = None;
        if state.unproven_count > state.bounds.unproven_max {
            victim = state.displace(|of| (self.chance.hash_one((id, of)) % of.max(1) as u64) as usize);
        }
        let (count, most) = (state.unproven_count, state.bounds.unproven_max);
        drop(state);
        if let Some((loser, from, of)) = victim {
            self.displaced.fetch_add(1, Relaxed);
            self.log.warn(format_args!(
                "{}: {count} connections that have not shown who they are, which is the most ({most}); one of {of} from {from} was closed",
                self.protocol
            ));
            if loser.id == id {
                return None;
            }
            loser.displaced.notify_one();
        }
        Some(waiting)
    }

    /// How many connections there are: those that proved nothing, and all.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.unproven_count, state.unproven_count + state.proven_count + state.privileged_count)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections of one address.
fn count(all: &[Vec<Waiting>; STAGES]) -> usize {
    all.iter().map(Vec::len).sum()
}

impl State {
    /// Takes a connection of the address that has the most out, of those of its connections that have come equally far and are the most: of the silent
    /// ones the oldest. `choose` gives a number below the one it is given. Also where it came from, and how many from there there were.
    fn displace(&mut self, choose: impl Fn(usize) -> usize) -> Option<(Waiting, IpAddr, usize)> {
        let most = self.unproven.values().map(count).max()?;
        let heaviest: Vec<IpAddr> =
            self.unproven.iter().filter(|(_, all)| count(all) == most).map(|(source, _)| *source).collect();
        let source = *heaviest.get(choose(heaviest.len()))?;
        let all = self.unproven.get_mut(&source)?;
        // Of equals the one that has come least far.
        let (progress, stage) = all.iter_mut().enumerate().rev().max_by_key(|(_, stage)| stage.len())?;
        // Who has said nothing for the longest is the least likely to; who has just come has its bytes on the way.
        let at = if progress == Progress::Silent as usize { 0 } else { choose(stage.len()) };
        let loser = stage.remove(at);
        self.gone(source);
        Some((loser, source, most))
    }

    /// Takes a connection out that has proved nothing; `None` when it is not there any more.
    fn leave_unproven(&mut self, source: IpAddr, id: u64, progress: Progress) -> Option<Waiting> {
        let stage = &mut self.unproven.get_mut(&source)?[progress as usize];
        let at = stage.iter().position(|waiting| waiting.id == id)?;
        let waiting = stage.remove(at);
        self.gone(source);
        Some(waiting)
    }

    /// One of an address was taken out.
    fn gone(&mut self, source: IpAddr) {
        self.unproven_count -= 1;
        if self.unproven.get(&source).is_some_and(|all| count(all) == 0) {
            self.unproven.remove(&source);
        }
    }

    fn leave_proven(&mut self, identity: &Arc<str>) {
        self.proven_count -= 1;
        if let Some(count) = self.proven.get_mut(identity) {
            *count -= 1;
            if *count == 0 {
                self.proven.remove(identity);
            }
        }
    }

    fn free(&mut self, standing: &Standing, source: IpAddr, id: u64) {
        match standing {
            Standing::Unproven(progress) => drop(self.leave_unproven(source, id, *progress)),
            Standing::Proven(identity) => self.leave_proven(identity),
            Standing::Privileged => self.privileged_count -= 1,
        }
    }

    /// Whether one more of this identity may be there.
    fn room(&self, identity: &str, privileged: bool) -> Result<(), Full> {
        let Bounds { proven_max, identity_max, privileged_max, .. } = self.bounds;
        if privileged {
            // Administrators have the others' room too.
            let free = self.privileged_count < privileged_max || self.proven_count + self.privileged_count < proven_max;
            return if free { Ok(()) } else { Err(Full::All(proven_max)) };
        }
        if self.proven_count >= proven_max {
            return Err(Full::All(proven_max));
        }
        if self.proven.get(identity).is_some_and(|count| *count >= identity_max) {
            return Err(Full::Identity(identity_max));
        }
        Ok(())
    }
}

impl Place {
    /// The connection has shown whose it is. It may be said again, also of another identity; then the place is that one's.
    pub fn prove(&self, identity: &str, privileged: bool) -> Result<(), Full> {
        let mut own = self.own();
        match &own.standing {
            Standing::Proven(known) if !privileged && **known == *identity => return Ok(()),
            Standing::Privileged if privileged => return Ok(()),
            _ => {}
        }
        let mut state = self.gate.state();
        if let Err(full) = state.room(identity, privileged) {
            drop(state);
            self.gate.full.fetch_add(1, Relaxed);
            self.gate.log.warn(format_args!(
                "{}: a connection of {} from {} was refused: {full}",
                self.gate.protocol,
                crate::broker::log_limit::quoted(identity),
                self.source
            ));
            return Err(full);
        }
        match &own.standing {
            Standing::Unproven(progress) => {
                state.leave_unproven(self.source, own.waiting.id, *progress).ok_or(Full::Displaced)?;
            }
            proven => state.free(proven, self.source, own.waiting.id),
        }
        own.standing = if privileged {
            state.privileged_count += 1;
            Standing::Privileged
        } else {
            let identity: Arc<str> = identity.into();
            *state.proven.entry(identity.clone()).or_default() += 1;
            state.proven_count += 1;
            Standing::Proven(identity)
        };
        Ok(())
    }

    /// Whether it has been shown whose the connection is.
    pub fn is_proven(&self) -> bool {
        !matches!(self.own().standing, Standing::Unproven(_))
    }

    /// Waits until the first bytes of the connection are here; false when it should close: the client has, or others wanted its place, or nothing has
    /// come until then.
    ///
    /// A connection that lost its place before anybody had looked at the bytes that it has sent gets another one, for which one that has said nothing goes.
    pub async fn heard(&self, stream: &TcpStream, until: Instant) -> bool {
        let mut byte = [0];
        tokio::select! {
            biased;
            bytes = stream.peek(&mut byte) => bytes.is_ok_and(|bytes| bytes > 0) && self.hear(),
            () = self.over(until) => Instant::now() < until && arrived(stream) == Arrived::Bytes && self.hear(),
        }
    }

    /// The connection was heard from; false when it has no place.
    fn hear(&self) -> bool {
        let mut own = self.own();
        if own.advance(&mut self.gate.state(), self.source, Progress::Heard) {
            return true;
        }
        // Who has lost its place to others that had said something too stays out.
        if own.standing != Standing::Unproven(Progress::Silent) {
            return false;
        }
        let Some(waiting) = self.gate.wait(self.source, Progress::Heard) else { return false };
        // It has not been closed.
        self.gate.displaced.fetch_sub(1, Relaxed);
        *own = Own { waiting, standing: Standing::Unproven(Progress::Heard) };
        true
    }

    /// The connection has come so far. Nothing changes for one that has proved whose it is, or was displaced.
    pub fn advance(&self, to: Progress) {
        self.own().advance(&mut self.gate.state(), self.source, to);
    }

    /// Is ready when the connection should close for another one, or because it has proved nothing at `until`.
    pub async fn over(&self, until: Instant) {
        let displaced = self.own().waiting.displaced.clone();
        tokio::select! {
            () = displaced.notified() => return,
            () = tokio::time::sleep_until(until.into()) => {}
        }
        if self.is_proven() {
            std::future::pending().await
        }
        self.gate.late.fetch_add(1, Relaxed);
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Own {
    /// Counts with those that have come so far; whether it has a place.
    fn advance(&mut self, state: &mut State, source: IpAddr, to: Progress) -> bool {
        let Standing::Unproven(progress) = &mut self.standing else { return true };
        if to <= *progress {
            let all = state.unproven.get(&source);
            return all.is_some_and(|all| all[*progress as usize].iter().any(|waiting| waiting.id == self.waiting.id));
        }
        let Some(waiting) = state.leave_unproven(source, self.waiting.id, *progress) else { return false };
        state.unproven.entry(source).or_default()[to as usize].push(waiting);
        state.unproven_count += 1;
        *progress = to;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Own { waiting, standing } = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.gate.state.lock().unwrap_or_else(PoisonError::into_inner).free(standing, self.source, waiting.id);
    }
}

/// Writes the metrics of all gates.
pub(crate) fn render(gates: &[&Gate], text: &mut Text) {
    type Of = fn(&Gate) -> u64;
    let metrics: [(&str, &str, &str, Of); 4] = [
        ("connections_unproven", "Connections now that have not shown who they are.", "gauge", |gate| {
            gate.counts().0 as u64
        }),
        (
            "connections_displaced_total",
            "Connections closed, before they had shown who they are, because others came.",
            "counter",
            |gate| gate.displaced.load(Relaxed),
        ),
        (
            "connections_late_total",
            "Connections closed because they did not show in time who they are.",
            "counter",
            |gate| gate.late.load(Relaxed),
        ),
        (
            "connections_full_total",
            "Connections refused because all places, or all of their identity, were taken.",
            "counter",
            |gate| gate.full.load(Relaxed),
        ),
    ];
    for (name, help, kind, value) in metrics {
        text.head(name, help, kind);
        for gate in gates {
            text.line(name, &format!("{{protocol=\"{}\"}}", gate.protocol), value(gate));
        }
    }
}

#[cfg(test)]
mod tests;
