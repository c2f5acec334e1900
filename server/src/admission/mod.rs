//! Admission of connections: limits on those that are not yet authenticated and on those that are.
//!
//! - Input: a connection's address when it is accepted, its identity once it is proved. Output: a [`ConnectionPermit`], or a refusal.
//! - Never: an unauthenticated connection that blocks one that will authenticate. It has little time and gives way to others.
//!
//! A fixed limit for each address would lock out a login node or a proxy, whose users all share one address. So an address may use all permits while
//! no other needs one. If none is left, a connection of the address with the most connections is closed: from the most numerous stage of
//! [`HandshakeProgress`] among its connections one at random, or the oldest if that stage is the silent one. So a flood of silent connections
//! displaces silent ones, and an honest client at the same address is at risk only until its first bytes arrive; a flood of half-open handshakes
//! displaces those and not new connections.

pub mod hourly_quotas;
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

use crate::log_limit::LogLimit;
use crate::metrics::MetricsText;
use crate::net::{ReceivedInput, received_input};
pub(crate) use shares::{IdentityQuotas, QuotaPermit};

/// Log lines about refused connections in one window of the rate limit.
const LINES_MAX: u32 = 2;

/// Limits on open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionBounds {
    pub unproven_max: usize,
    /// Authenticated ones, except privileged ones.
    pub proven_max: usize,
    /// Authenticated connections of one identity.
    pub identity_max: usize,
    /// Connections of administrators, in addition to the others.
    pub privileged_max: usize,
}

/// Why an authenticated connection gets no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// The maximum number of connections is open.
    All(usize),
    /// The identity has its maximum number of connections.
    Identity(usize),
    /// The connection was closed already to make room.
    Displaced,
}

impl std::fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AdmissionError::All(most) => write!(f, "{most} connections are open, which is the maximum"),
            AdmissionError::Identity(most) => {
                write!(f, "{most} connections of this identity are open, which is the maximum")
            }
            AdmissionError::Displaced => f.write_str("the connection took too long to authenticate"),
        }
    }
}

/// The network of an address: of IPv6 the first 64 bits, which one host or site controls.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// Counts the connections of one kind of listener and decides whether more may start.
#[derive(Debug)]
pub(crate) struct ConnectionAdmission {
    protocol: &'static str,
    state: Mutex<AdmissionState>,
    chance: RandomState,
    /// Connections closed to make room for others before they were authenticated.
    displaced: AtomicU64,
    /// Connections that did not authenticate in time.
    late: AtomicU64,
    /// Connections refused after authentication.
    full: AtomicU64,
    log: LogLimit,
}

#[derive(Debug)]
struct AdmissionState {
    bounds: ConnectionBounds,
    next_id: u64,
    /// Unauthenticated connections by address and progress, in the order in which they reached that stage.
    unproven: HashMap<IpAddr, [Vec<UnprovenConnection>; STAGES]>,
    unproven_count: usize,
    proven: HashMap<Arc<str>, usize>,
    proven_count: usize,
    privileged_count: usize,
}

/// The progress of an unauthenticated connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HandshakeProgress {
    /// No bytes have arrived.
    Silent,
    /// Some bytes have arrived.
    Receiving,
    /// The TLS handshake is complete.
    Encrypted,
}

impl HandshakeProgress {
    /// The progress of a connection that was just accepted: its first bytes often arrive before its task runs. `None` if the client has closed it
    /// already, possibly before it was accepted: it displaces no other.
    pub fn of(stream: &TcpStream) -> Option<Self> {
        match received_input(stream) {
            ReceivedInput::Nothing => Some(Self::Silent),
            ReceivedInput::Bytes => Some(Self::Receiving),
            ReceivedInput::End => None,
        }
    }
}

/// The number of stages of [`HandshakeProgress`].
const STAGES: usize = HandshakeProgress::Encrypted as usize + 1;

#[derive(Debug, Clone)]
struct UnprovenConnection {
    id: u64,
    displaced: Arc<Notify>,
}

/// Whether a connection is authenticated, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionStanding {
    Unproven(HandshakeProgress),
    Proven(Arc<str>),
    Privileged,
}

/// A connection's permit, returned when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    admission: Arc<ConnectionAdmission>,
    source: IpAddr,
    own: Mutex<PermitState>,
}

/// The permit's own state; locked before the state of [`ConnectionAdmission`].
#[derive(Debug)]
struct PermitState {
    waiting: UnprovenConnection,
    standing: ConnectionStanding,
}

impl ConnectionAdmission {
    /// No connections yet. `protocol` is the name in log lines and metrics, such as `https`.
    pub fn new(protocol: &'static str, bounds: ConnectionBounds) -> Arc<Self> {
        let state = AdmissionState {
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

    /// Changes the limits. Open connections stay.
    pub fn set_bounds(&self, bounds: ConnectionBounds) {
        self.state().bounds = bounds;
    }

    /// A permit for an unauthenticated connection with this progress, or `None`. Another connection may lose its permit: one of the address with the
    /// most.
    pub fn enter(self: &Arc<Self>, address: IpAddr, progress: HandshakeProgress) -> Option<ConnectionPermit> {
        let source = source(address);
        let own =
            PermitState { waiting: self.wait(source, progress)?, standing: ConnectionStanding::Unproven(progress) };
        Some(ConnectionPermit { admission: self.clone(), source, own: Mutex::new(own) })
    }

    /// Registers an unauthenticated connection, unless it is the one to be closed.
    fn wait(&self, source: IpAddr, progress: HandshakeProgress) -> Option<UnprovenConnection> {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let waiting = UnprovenConnection { id, displaced: Arc::default() };
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
                "{}: {count} unauthenticated connections, which is the maximum ({most}); closed one of {of} from {from}",
                self.protocol
            ));
            if loser.id == id {
                return None;
            }
            loser.displaced.notify_one();
        }
        Some(waiting)
    }

    /// The number of unauthenticated connections, and of all.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.unproven_count, state.unproven_count + state.proven_count + state.privileged_count)
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(all: &[Vec<UnprovenConnection>; STAGES]) -> usize {
    all.iter().map(Vec::len).sum()
}

impl AdmissionState {
    /// Removes a connection of the address with the most, from the most numerous of its stages; of silent ones the oldest. `choose` returns an index
    /// below its argument. Also returns the address, and the number of its connections.
    fn displace(&mut self, choose: impl Fn(usize) -> usize) -> Option<(UnprovenConnection, IpAddr, usize)> {
        let most = self.unproven.values().map(count).max()?;
        let heaviest: Vec<IpAddr> =
            self.unproven.iter().filter(|(_, all)| count(all) == most).map(|(source, _)| *source).collect();
        let source = *heaviest.get(choose(heaviest.len()))?;
        let all = self.unproven.get_mut(&source)?;
        // Among equally numerous stages the earliest.
        let (progress, stage) = all.iter_mut().enumerate().rev().max_by_key(|(_, stage)| stage.len())?;
        // The connection that has been silent for the longest is the least likely to send; the newest has its bytes on the way.
        let at = if progress == HandshakeProgress::Silent as usize { 0 } else { choose(stage.len()) };
        let loser = stage.remove(at);
        self.gone(source);
        Some((loser, source, most))
    }

    /// Removes an unauthenticated connection; `None` if it is not registered any more.
    fn leave_unproven(&mut self, source: IpAddr, id: u64, progress: HandshakeProgress) -> Option<UnprovenConnection> {
        let stage = &mut self.unproven.get_mut(&source)?[progress as usize];
        let at = stage.iter().position(|waiting| waiting.id == id)?;
        let waiting = stage.remove(at);
        self.gone(source);
        Some(waiting)
    }

    /// A connection of an address was removed.
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

    fn free(&mut self, standing: &ConnectionStanding, source: IpAddr, id: u64) {
        match standing {
            ConnectionStanding::Unproven(progress) => drop(self.leave_unproven(source, id, *progress)),
            ConnectionStanding::Proven(identity) => self.leave_proven(identity),
            ConnectionStanding::Privileged => self.privileged_count -= 1,
        }
    }

    /// Whether another connection of this identity is allowed.
    fn room(&self, identity: &str, privileged: bool) -> Result<(), AdmissionError> {
        let ConnectionBounds { proven_max, identity_max, privileged_max, .. } = self.bounds;
        if privileged {
            // Administrators may also use the others' permits.
            let free = self.privileged_count < privileged_max || self.proven_count + self.privileged_count < proven_max;
            return if free { Ok(()) } else { Err(AdmissionError::All(proven_max)) };
        }
        if self.proven_count >= proven_max {
            return Err(AdmissionError::All(proven_max));
        }
        if self.proven.get(identity).is_some_and(|count| *count >= identity_max) {
            return Err(AdmissionError::Identity(identity_max));
        }
        Ok(())
    }
}

impl ConnectionPermit {
    /// The connection is authenticated. A later call may name another identity; the permit then counts for that one.
    pub fn prove(&self, identity: &str, privileged: bool) -> Result<(), AdmissionError> {
        let mut own = self.own();
        match &own.standing {
            ConnectionStanding::Proven(known) if !privileged && **known == *identity => return Ok(()),
            ConnectionStanding::Privileged if privileged => return Ok(()),
            _ => {}
        }
        let mut state = self.admission.state();
        if let Err(full) = state.room(identity, privileged) {
            drop(state);
            self.admission.full.fetch_add(1, Relaxed);
            self.admission.log.warn(format_args!(
                "{}: a connection of {} from {} was refused: {full}",
                self.admission.protocol,
                crate::log_limit::quoted(identity),
                self.source
            ));
            return Err(full);
        }
        match &own.standing {
            ConnectionStanding::Unproven(progress) => {
                state.leave_unproven(self.source, own.waiting.id, *progress).ok_or(AdmissionError::Displaced)?;
            }
            proven => state.free(proven, self.source, own.waiting.id),
        }
        own.standing = if privileged {
            state.privileged_count += 1;
            ConnectionStanding::Privileged
        } else {
            let identity: Arc<str> = identity.into();
            *state.proven.entry(identity.clone()).or_default() += 1;
            state.proven_count += 1;
            ConnectionStanding::Proven(identity)
        };
        Ok(())
    }

    pub fn is_proven(&self) -> bool {
        !matches!(self.own().standing, ConnectionStanding::Unproven(_))
    }

    /// Waits for the first bytes of the connection; false if it should close: the client closed it, another one displaced it, or `until` has passed.
    ///
    /// A connection that was displaced although its first bytes had arrived gets a new permit, and a silent connection loses its one.
    pub async fn heard(&self, stream: &TcpStream, until: Instant) -> bool {
        let mut byte = [0];
        tokio::select! {
            biased;
            bytes = stream.peek(&mut byte) => bytes.is_ok_and(|bytes| bytes > 0) && self.hear(),
            () = self.over(until) => Instant::now() < until && received_input(stream) == ReceivedInput::Bytes && self.hear(),
        }
    }

    /// Records that bytes have arrived; false if the connection has no permit.
    fn hear(&self) -> bool {
        let mut own = self.own();
        if own.advance(&mut self.admission.state(), self.source, HandshakeProgress::Receiving) {
            return true;
        }
        // A connection that was displaced after its bytes were seen stays out.
        if own.standing != ConnectionStanding::Unproven(HandshakeProgress::Silent) {
            return false;
        }
        let Some(waiting) = self.admission.wait(self.source, HandshakeProgress::Receiving) else { return false };
        // It has not been closed.
        self.admission.displaced.fetch_sub(1, Relaxed);
        *own = PermitState { waiting, standing: ConnectionStanding::Unproven(HandshakeProgress::Receiving) };
        true
    }

    /// Advances the progress. Nothing changes for an authenticated or displaced connection.
    pub fn advance(&self, to: HandshakeProgress) {
        self.own().advance(&mut self.admission.state(), self.source, to);
    }

    /// Completes when the connection should close: it was displaced, or is not authenticated at `until`.
    pub async fn over(&self, until: Instant) {
        let displaced = self.own().waiting.displaced.clone();
        tokio::select! {
            () = displaced.notified() => return,
            () = tokio::time::sleep_until(until.into()) => {}
        }
        if self.is_proven() {
            std::future::pending().await
        }
        self.admission.late.fetch_add(1, Relaxed);
    }

    fn own(&self) -> MutexGuard<'_, PermitState> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitState {
    /// Moves the connection to a later stage; returns whether it has a permit.
    fn advance(&mut self, state: &mut AdmissionState, source: IpAddr, to: HandshakeProgress) -> bool {
        let ConnectionStanding::Unproven(progress) = &mut self.standing else { return true };
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

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let PermitState { waiting, standing } = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.admission.state.lock().unwrap_or_else(PoisonError::into_inner).free(standing, self.source, waiting.id);
    }
}

/// Writes the metrics of all listeners.
pub(crate) fn render(listeners: &[&ConnectionAdmission], text: &mut MetricsText) {
    type Of = fn(&ConnectionAdmission) -> u64;
    let metrics: [(&str, &str, &str, Of); 4] = [
        ("connections_unproven", "Current unauthenticated connections.", "gauge", |admission| {
            admission.counts().0 as u64
        }),
        (
            "connections_displaced_total",
            "Connections closed before authentication to make room for others.",
            "counter",
            |admission| admission.displaced.load(Relaxed),
        ),
        (
            "connections_late_total",
            "Connections closed because they did not authenticate in time.",
            "counter",
            |admission| admission.late.load(Relaxed),
        ),
        (
            "connections_full_total",
            "Authenticated connections refused because a limit was reached.",
            "counter",
            |admission| admission.full.load(Relaxed),
        ),
    ];
    for (name, help, kind, value) in metrics {
        text.head(name, help, kind);
        for admission in listeners {
            text.line(name, &format!("{{protocol=\"{}\"}}", admission.protocol), value(admission));
        }
    }
}

#[cfg(test)]
mod tests;
