//! The thread that serves all connections in turns, so that none delays the others.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use super::budget::RequestBudgets;
use super::limits::{CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, LINE_BYTES_MAX};
use super::poll::{Poll, PollInterest};
use super::session::{LineSession, RequestProgress};
use crate::api::context::ApiContext;
use crate::engine::clock;
use crate::jobs::CallerIdentity;
use crate::waker::Waker;

/// The most requests of one turn.
const TURN_LINES: usize = 64;
/// A turn starts no further request after 500 µs.
const TURN_NS: i64 = 500_000;
/// Bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// No further request of a connection is executed while this many bytes of responses wait to be sent: 64 KiB.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// A connection that takes no responses for 10 s is closed.
const STALL_NS_MAX: i64 = 10_000_000_000;
/// A request that has to wait is tried again after 10 ms.
const LATER_NS: i64 = 10_000_000;
/// How often delayed marks and stalled connections are checked: 100 ms.
const CHECK_NS: i64 = 100_000_000;
const WAKER: u64 = u64::MAX;

struct LineConnection {
    stream: UnixStream,
    session: LineSession,
    uid: Option<u32>,
    input: Vec<u8>,
    /// Bytes of `input` that are processed.
    done: usize,
    output: Vec<u8>,
    sent: usize,
    /// The peer has closed its sending side.
    ended: bool,
    interest: PollInterest,
    /// Waits for its turn.
    queued: bool,
    /// Not served until then, monotonic.
    paused_until: Option<i64>,
    /// Takes no responses since then, monotonic.
    stalled_since: Option<i64>,
}

/// The next step of a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextTurn {
    Wait(PollInterest),
    Again,
    Pause(i64),
    Close,
}

pub struct LineServer {
    context: Arc<ApiContext>,
    new: Receiver<(UnixStream, CallerIdentity)>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    poll: Poll,
    connections: Vec<Option<Box<LineConnection>>>,
    ready: VecDeque<usize>,
    paused: usize,
    budgets: RequestBudgets,
    scratch: Box<[u8; READ_BYTES]>,
    next_check: i64,
}

impl LineServer {
    pub fn new(
        context: Arc<ApiContext>,
        new: Receiver<(UnixStream, CallerIdentity)>,
        waker: Arc<Waker>,
        stop: Arc<AtomicBool>,
    ) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.change(&waker.fd(), WAKER, PollInterest::Nothing, PollInterest::Read)?;
        Ok(Self {
            context,
            new,
            waker,
            stop,
            poll,
            connections: Vec::new(),
            ready: VecDeque::new(),
            paused: 0,
            budgets: RequestBudgets::default(),
            scratch: Box::new([0; READ_BYTES]),
            next_check: 0,
        })
    }

    /// Serves until `stop` is set. Regions that connections have opened stay open then, because the processes still run.
    pub fn run(mut self) {
        loop {
            self.wait();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            while let Ok((stream, who)) = self.new.try_recv() {
                self.accept(stream, who);
            }
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front() {
                    self.turn(index);
                }
            }
            let now = clock::mono();
            if self.paused > 0 {
                self.resume(now);
            }
            if now >= self.next_check {
                self.check_timeouts(now);
            }
        }
    }

    fn wait(&mut self) {
        let timeout_ms = if !self.ready.is_empty() {
            0
        } else if self.paused > 0 {
            (LATER_NS / 1_000_000) as i32
        } else if self.context.marks.is_pending()
            || self.connections.iter().flatten().any(|c| c.stalled_since.is_some())
        {
            (CHECK_NS / 1_000_000) as i32
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

    /// Adds a connection unless there are too many.
    fn accept(&mut self, mut stream: UnixStream, who: CallerIdentity) {
        let of_user = self.connections.iter().flatten().filter(|other| other.uid == who.uid).count();
        let all = self.connections.iter().flatten().count();
        let is_admin = who.role == crate::jobs::Role::Admin;
        if all >= CONNECTIONS_MAX
            || (of_user >= CONNECTIONS_OF_USER_MAX && !is_admin)
            || stream.set_nonblocking(true).is_err()
        {
            self.context.counters.api_refused.fetch_add(1, Ordering::Relaxed);
            let _ = writeln!(stream, "error {of_user} connections of this user and {all} in all; close some");
            return;
        }
        let begin = clock::now();
        let uid = who.uid;
        let mut session = LineSession::new(who);
        session.begin(&self.context, begin);
        let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if self.poll.change(&stream, index as u64, PollInterest::Nothing, PollInterest::Read).is_err() {
            return;
        }
        let connection = LineConnection {
            stream,
            session,
            uid,
            input: Vec::new(),
            done: 0,
            output: Vec::new(),
            sent: 0,
            ended: false,
            interest: PollInterest::Read,
            queued: false,
            paused_until: None,
            stalled_since: None,
        };
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(Box::new(connection));
        self.spend(uid, begin.mono);
    }

    /// Counts the time since `begin` for a user. Returns how long the user has to wait, ns.
    fn spend(&mut self, uid: Option<u32>, begin: i64) -> Option<i64> {
        let now = clock::mono();
        self.budgets.spend(uid, now - begin, now)
    }

    fn turn(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        connection.queued = false;
        if connection.paused_until.is_some() {
            return;
        }
        let begin = clock::mono();
        let uid = connection.uid;
        let mut next = connection.turn(&self.context, &mut self.scratch[..], begin);
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
                connection.paused_until = Some(begin.saturating_add(ns));
                self.paused += 1;
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
        self.paused -= usize::from(connection.paused_until.is_some());
        let begin = clock::now();
        connection.session.close_regions(begin);
        self.spend(connection.uid, begin.mono);
    }

    /// Queues connections whose pause is over.
    fn resume(&mut self, now: i64) {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && connection.paused_until.is_some_and(|until| until <= now)
            {
                connection.paused_until = None;
                self.paused -= 1;
                if !std::mem::replace(&mut connection.queued, true) {
                    self.ready.push_back(index);
                }
            }
        }
    }

    fn check_timeouts(&mut self, now: i64) {
        self.next_check = now + CHECK_NS;
        self.context.marks.flush(clock::now());
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
    /// Sends waiting responses, reads, and executes some requests.
    fn turn(&mut self, context: &ApiContext, scratch: &mut [u8], begin: i64) -> NextTurn {
        if let Some(next) = self.flush(begin) {
            return next;
        }
        if !self.ended && self.line().is_none() {
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
            if self.session.line(line, context, clock::now(), &mut self.output) == RequestProgress::Later {
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
            // Bytes after the last newline are an incomplete request.
            None if self.ended => NextTurn::Close,
            None => NextTurn::Wait(PollInterest::Read),
        }
    }

    fn too_long(&mut self) -> NextTurn {
        let _ = writeln!(self.output, "error a request of over {LINE_BYTES_MAX} bytes; the connection is closed");
        let _ = self.stream.write(&self.output[self.sent..]);
        NextTurn::Close
    }

    /// The length of the next request with its newline.
    fn line(&self) -> Option<usize> {
        self.input[self.done..].iter().position(|byte| *byte == b'\n').map(|at| at + 1)
    }

    /// Sends. Returns the connection's next step if not everything can be sent now.
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
