//! The thread that serves all connections: what each has sent is answered in turns, so that none holds up the others.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use super::budget::RequestBudgets;
use super::poll::{Poll, PollInterest};
use super::{CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, LINE_BYTES_MAX, LineSession, RequestProgress};
use crate::engine::clock;
use crate::jobs::CallerIdentity;
use crate::state::AgentState;
use crate::waker::Waker;

/// The most requests of one turn.
const TURN_LINES: usize = 64;
/// A turn begins no further request after 500 µs.
const TURN_NS: i64 = 500_000;
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// While so much of its answers waits to be taken, a connection is answered no further request: 64 KiB.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// How long a connection may leave its answers before it is closed: 10 s.
const STALL_NS_MAX: i64 = 10_000_000_000;
/// How soon a request that has to wait is looked at again: 10 ms.
const LATER_NS: i64 = 10_000_000;
/// How often is looked for marks that were kept back, and for connections that leave their answers: 100 ms.
const LOOK_NS: i64 = 100_000_000;
const WAKER: u64 = u64::MAX;

struct LineConnection {
    stream: UnixStream,
    talk: LineSession,
    uid: Option<u32>,
    input: Vec<u8>,
    /// Bytes of `input` that are dealt with.
    done: usize,
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    /// The peer sends no more.
    ended: bool,
    interest: PollInterest,
    /// Is in the queue of those that have their turn.
    queued: bool,
    /// Left alone until then, monotonic.
    held_until: Option<i64>,
    /// Has not taken its answers since then, monotonic.
    stalled_since: Option<i64>,
}

/// What is to become of a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextTurn {
    Wait(PollInterest),
    Again,
    Pause(i64),
    Close,
}

pub struct LineServer {
    state: Arc<AgentState>,
    new: Receiver<(UnixStream, CallerIdentity)>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    poll: Poll,
    connections: Vec<Option<Box<LineConnection>>>,
    ready: VecDeque<usize>,
    held: usize,
    budgets: RequestBudgets,
    scratch: Box<[u8; READ_BYTES]>,
    next_look: i64,
}

impl LineServer {
    pub fn new(
        state: Arc<AgentState>,
        new: Receiver<(UnixStream, CallerIdentity)>,
        waker: Arc<Waker>,
        stop: Arc<AtomicBool>,
    ) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.change(&waker.fd(), WAKER, PollInterest::Nothing, PollInterest::Read)?;
        Ok(Self {
            state,
            new,
            waker,
            stop,
            poll,
            connections: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            budgets: RequestBudgets::default(),
            scratch: Box::new([0; READ_BYTES]),
            next_look: 0,
        })
    }

    /// Serves until `stop` is set. Regions that connections have begun stay open then, because the processes still run.
    pub fn run(mut self) {
        loop {
            self.wait();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            while let Ok((stream, who)) = self.new.try_recv() {
                self.welcome(stream, who);
            }
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front() {
                    self.turn(index);
                }
            }
            let now = clock::mono();
            if self.held > 0 {
                self.release(now);
            }
            if now >= self.next_look {
                self.look(now);
            }
        }
    }

    fn wait(&mut self) {
        let timeout_ms = if !self.ready.is_empty() {
            0
        } else if self.held > 0 {
            (LATER_NS / 1_000_000) as i32
        } else if self.state.marks.is_pending() || self.connections.iter().flatten().any(|c| c.stalled_since.is_some())
        {
            (LOOK_NS / 1_000_000) as i32
        } else {
            -1
        };
        let (connections, ready, waker) = (&mut self.connections, &mut self.ready, &self.waker);
        for token in self.poll.wait(timeout_ms) {
            if token == WAKER {
                waker.reset();
            } else if let Some(Some(connection)) = connections.get_mut(token as usize)
                && !std::mem::replace(&mut connection.queued, true)
            {
                ready.push_back(token as usize);
            }
        }
    }

    /// A connection more, if there may be one.
    fn welcome(&mut self, mut stream: UnixStream, who: CallerIdentity) {
        let of_user = self.connections.iter().flatten().filter(|other| other.uid == who.uid).count();
        let all = self.connections.iter().flatten().count();
        let is_admin = who.role == crate::jobs::Role::Admin;
        if all >= CONNECTIONS_MAX
            || (of_user >= CONNECTIONS_OF_USER_MAX && !is_admin)
            || stream.set_nonblocking(true).is_err()
        {
            self.state.counters.api_refused.fetch_add(1, Ordering::Relaxed);
            let _ = writeln!(stream, "error {of_user} connections of this user and {all} in all; close some");
            return;
        }
        let begin = clock::now();
        let uid = who.uid;
        let mut talk = LineSession::new(who);
        talk.begin(&self.state, begin);
        let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if self.poll.change(&stream, index as u64, PollInterest::Nothing, PollInterest::Read).is_err() {
            return;
        }
        let connection = LineConnection {
            stream,
            talk,
            uid,
            input: Vec::new(),
            done: 0,
            output: Vec::new(),
            sent: 0,
            ended: false,
            interest: PollInterest::Read,
            queued: false,
            held_until: None,
            stalled_since: None,
        };
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(Box::new(connection));
        self.spend(uid, begin.mono);
    }

    /// Counts the time since `begin` for a user; how long they have to wait for it, ns.
    fn spend(&mut self, uid: Option<u32>, begin: i64) -> Option<i64> {
        let now = clock::mono();
        self.budgets.spend(uid, now - begin, now)
    }

    fn turn(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        connection.queued = false;
        if connection.held_until.is_some() {
            return;
        }
        let begin = clock::mono();
        let uid = connection.uid;
        let mut next = connection.turn(&self.state, &mut self.scratch[..], begin);
        if let Some(wait) = self.spend(uid, begin)
            && next != NextTurn::Close
        {
            next = NextTurn::Pause(wait.max(LATER_NS));
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let interest = match next {
            NextTurn::Wait(interest) => interest,
            NextTurn::Again => {
                connection.queued = true;
                self.ready.push_back(index);
                connection.interest
            }
            NextTurn::Pause(ns) => {
                connection.held_until = Some(begin.saturating_add(ns));
                self.held += 1;
                PollInterest::Nothing
            }
            NextTurn::Close => return self.close(index),
        };
        let before = std::mem::replace(&mut connection.interest, interest);
        if self.poll.change(&connection.stream, index as u64, before, interest).is_err() {
            self.close(index);
        }
    }

    fn close(&mut self, index: usize) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        self.held -= usize::from(connection.held_until.is_some());
        let begin = clock::now();
        connection.talk.gone(&self.state, begin);
        self.spend(connection.uid, begin.mono);
    }

    /// Gives those whose time has come their turn.
    fn release(&mut self, now: i64) {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && connection.held_until.is_some_and(|until| until <= now)
            {
                connection.held_until = None;
                self.held -= 1;
                if !std::mem::replace(&mut connection.queued, true) {
                    self.ready.push_back(index);
                }
            }
        }
    }

    /// What is looked at now and then.
    fn look(&mut self, now: i64) {
        self.next_look = now + LOOK_NS;
        self.state.marks.flush(&self.state, clock::now());
        let stalled =
            |connection: &LineConnection| connection.stalled_since.is_some_and(|since| now - since > STALL_NS_MAX);
        let stalled: Vec<usize> = (0..self.connections.len())
            .filter(|index| self.connections[*index].as_deref().is_some_and(stalled))
            .collect();
        stalled.into_iter().for_each(|index| self.close(index));
        self.budgets.tidy(now);
    }
}

impl LineConnection {
    /// Sends what is to be sent, reads what there is, answers some of it.
    fn turn(&mut self, state: &AgentState, scratch: &mut [u8], begin: i64) -> NextTurn {
        if let Some(next) = self.flush(begin) {
            return next;
        }
        if !self.ended && !self.has_line() {
            match self.stream.read(scratch) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.input.drain(..self.done);
                    self.done = 0;
                    self.input.extend_from_slice(&scratch[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return NextTurn::Wait(PollInterest::Read),
                Err(error) if error.kind() == ErrorKind::Interrupted => return NextTurn::Again,
                Err(_) => return NextTurn::Close,
            }
        }
        let mut lines = 0;
        while let Some(length) = self.line() {
            if lines == TURN_LINES || self.output.len() >= OUTPUT_BYTES_MAX || clock::mono() - begin > TURN_NS {
                return self.flush(begin).unwrap_or(NextTurn::Again);
            }
            if length > LINE_BYTES_MAX {
                return self.too_long();
            }
            let line = &self.input[self.done..self.done + length - 1];
            if self.talk.line(line, state, clock::now(), &mut self.output) == RequestProgress::Later {
                return self.flush(begin).filter(|next| *next == NextTurn::Close).unwrap_or(NextTurn::Pause(LATER_NS));
            }
            self.done += length;
            lines += 1;
        }
        if self.input.len() - self.done >= LINE_BYTES_MAX {
            return self.too_long();
        }
        if self.done == self.input.len() {
            self.input.clear();
            self.input.shrink_to(LINE_BYTES_MAX);
            self.done = 0;
        }
        match self.flush(begin) {
            Some(next) => next,
            // What stands after the last new line was cut off on its way.
            None if self.ended => NextTurn::Close,
            None => NextTurn::Wait(PollInterest::Read),
        }
    }

    fn too_long(&mut self) -> NextTurn {
        let _ = writeln!(self.output, "error a request of over {LINE_BYTES_MAX} bytes; the connection is closed");
        let _ = self.stream.write(&self.output[self.sent..]);
        NextTurn::Close
    }

    /// The length of the next request with its new line.
    fn line(&self) -> Option<usize> {
        self.input[self.done..].iter().position(|byte| *byte == b'\n').map(|at| at + 1)
    }

    fn has_line(&self) -> bool {
        self.line().is_some()
    }

    /// Sends; what is to become of the connection when not all can be sent now.
    fn flush(&mut self, now: i64) -> Option<NextTurn> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count @ 1..) => {
                    self.sent += count;
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stalled_since.get_or_insert(now);
                    return Some(NextTurn::Wait(PollInterest::Write));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return Some(NextTurn::Close),
            }
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT_BYTES_MAX);
        self.sent = 0;
        None
    }
}
