//! A controller on the network: its session, and its polls in that session. The protocol of the poller; no I/O.

use std::sync::Arc;

use wholegrain_devices::{DeviceProblem, DeviceProtocol, PollTurn};

use crate::bmc::{BmcPolls, BmcStep};
use crate::message::{IpmiCommand, SET_PRIVILEGE_LEVEL, completion, read_reply};
use crate::session::{LanIdentity, LanSession, SessionEvent, SessionRefusal};

/// A session that was not used for this long is replaced: controllers close theirs after 60 s.
pub const IDLE_NS_MAX: i64 = 50_000_000_000;
/// The pauses after a controller has opened no session: 10 s, doubling to 5 min.
const PAUSE_NS_MIN: i64 = 10_000_000_000;
const PAUSE_NS_MAX: i64 = 300_000_000_000;
/// The privilege level that a session has from its begin.
const LEVEL_USER: u8 = 2;

/// How sessions with a controller are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionUse {
    /// Whether the session stays open between polls.
    pub is_kept: bool,
    /// How often a request is sent again.
    pub retries: u32,
}

/// A command whose reply is awaited.
struct AwaitedReply {
    command: IpmiCommand,
    number: u8,
    /// How often it was sent again.
    repeats: u32,
    /// Whether it sets the privilege level.
    is_level: bool,
}

/// Pauses after refused sessions.
#[derive(Default)]
struct SessionPause {
    refusals: u32,
    until_ns: i64,
    problem: Option<DeviceProblem>,
}

/// The protocol of one controller.
pub struct LanBmc {
    identity: Arc<LanIdentity>,
    session: LanSession,
    sessions: SessionUse,
    bmc: BmcPolls,
    group: usize,
    awaited: Option<AwaitedReply>,
    number: u8,
    /// When the controller answered last in the session.
    answered_ns: i64,
    /// Whether the present poll uses a session of an earlier one, in which the controller has not answered yet.
    is_doubtful: bool,
    pause: SessionPause,
}

impl LanBmc {
    /// A controller that has not been asked yet.
    pub fn new(identity: Arc<LanIdentity>, sessions: SessionUse, bmc: BmcPolls) -> Self {
        Self {
            identity,
            session: LanSession::default(),
            sessions,
            bmc,
            group: 0,
            awaited: None,
            number: 0,
            answered_ns: 0,
            is_doubtful: false,
            pause: SessionPause::default(),
        }
    }

    /// Sends the first message of a new session; a lost one is closed first, for controllers that have few.
    fn open(&mut self, turn: &mut PollTurn<'_>) {
        (self.awaited, self.is_doubtful) = (None, false);
        self.session.lose();
        let mut close = Vec::new();
        self.session.put_close_lost(&mut close);
        if !close.is_empty() {
            turn.reply(|out| out.extend_from_slice(&close));
        }
        let (session, identity) = (&mut self.session, &self.identity);
        turn.send(|out| session.begin(identity, out));
    }

    fn command(&mut self, command: IpmiCommand, is_level: bool, turn: &mut PollTurn<'_>) {
        self.number = (self.number + 1) & 0x3f;
        let number = self.number;
        let session = &mut self.session;
        turn.send(|out| session.put_command(out, &command, number));
        self.awaited = Some(AwaitedReply { command, number, repeats: 0, is_level });
    }

    fn step(&mut self, step: BmcStep, turn: &mut PollTurn<'_>) {
        let end = match step {
            BmcStep::Command(command) => return self.command(command, false, turn),
            BmcStep::Finished => Ok(()),
            BmcStep::Failed(problem) => Err(problem),
        };
        self.awaited = None;
        if !self.sessions.is_kept {
            let session = &mut self.session;
            // Nobody waits for the answer, and the socket is closed after this.
            turn.reply(|out| session.put_close(out));
        }
        match end {
            Ok(()) => turn.finish(),
            Err(problem) => turn.fail(problem),
        }
    }

    /// Asks what the poll is for, in the open session.
    fn poll(&mut self, turn: &mut PollTurn<'_>) {
        let step = self.bmc.begin(self.group, turn.slot(), turn.now_ns());
        self.step(step, turn);
    }

    fn opened(&mut self, turn: &mut PollTurn<'_>) {
        self.pause = SessionPause::default();
        if self.identity.level > LEVEL_USER {
            let command = IpmiCommand::new(SET_PRIVILEGE_LEVEL, [self.identity.level]);
            self.command(command, true, turn);
        } else {
            self.poll(turn);
        }
    }

    fn refused(&mut self, refusal: SessionRefusal, turn: &mut PollTurn<'_>) {
        let problem = match refusal {
            // The poller has its own, longer pause for this.
            SessionRefusal::Credentials => return turn.fail(DeviceProblem::Credentials),
            SessionRefusal::Late => "it answers too late to open a session; see `timeout`",
            SessionRefusal::NoneFree => "all its sessions are in use",
            SessionRefusal::Level => "the user may not have this privilege level; see `privilege`",
            SessionRefusal::Suite => "it has none of the cipher suites; see `cipher_suites`",
            SessionRefusal::Other(_) => "it opens no session",
        };
        let pause = &mut self.pause;
        let length = (PAUSE_NS_MIN << pause.refusals.min(10)).min(PAUSE_NS_MAX);
        pause.refusals += 1;
        pause.until_ns = turn.now_ns().saturating_add(length);
        pause.problem = Some(DeviceProblem::Refused(problem));
        turn.fail(DeviceProblem::Refused(problem));
    }

    /// Takes the reply in a message of the session. `false`: it is not the awaited one.
    fn take_reply(&mut self, payload: &[u8], turn: &mut PollTurn<'_>) -> bool {
        let Some(awaited) = &self.awaited else { return false };
        let Some(reply) = read_reply(payload, &awaited.command, awaited.number) else { return false };
        let is_level = awaited.is_level;
        self.awaited = None;
        (self.is_doubtful, self.answered_ns) = (false, turn.now_ns());
        if is_level {
            if reply.completion == completion::OK {
                self.poll(turn);
            } else {
                let session = &mut self.session;
                turn.reply(|out| session.put_close(out));
                self.refused(SessionRefusal::Level, turn);
            }
            return true;
        }
        let step = self.bmc.take(reply, turn.slot(), turn.now_ns());
        self.step(step, turn);
        true
    }
}

impl DeviceProtocol for LanBmc {
    fn begin(&mut self, group: usize, turn: &mut PollTurn<'_>) {
        self.group = group;
        let now_ns = turn.now_ns();
        // A clock that was set back does not make a pause longer.
        let is_paused = (1..=PAUSE_NS_MAX).contains(&self.pause.until_ns.saturating_sub(now_ns));
        if let Some(problem) = self.pause.problem.filter(|_| is_paused) {
            return turn.fail(problem);
        }
        let is_fresh = (0..IDLE_NS_MAX).contains(&now_ns.saturating_sub(self.answered_ns));
        self.is_doubtful = self.session.is_open() && is_fresh;
        if self.is_doubtful { self.poll(turn) } else { self.open(turn) }
    }

    fn receive(&mut self, bytes: &[u8], turn: &mut PollTurn<'_>) -> usize {
        let mut out = Vec::new();
        match self.session.receive(&self.identity, bytes, &mut out) {
            Err(_) => return 0,
            Ok(SessionEvent::Continue) => turn.send(|request| request.extend_from_slice(&out)),
            Ok(SessionEvent::Open) => self.opened(turn),
            Ok(SessionEvent::Message(payload)) => {
                if !self.take_reply(&payload, turn) {
                    return 0;
                }
            }
            Ok(SessionEvent::Refused(refusal)) => {
                turn.reply(|reply| reply.extend_from_slice(&out));
                self.refused(refusal, turn);
            }
        }
        bytes.len()
    }

    fn again(&mut self, turn: &mut PollTurn<'_>) {
        // The messages of an exchange that opens a session are sent as they were.
        let Some(awaited) = &mut self.awaited else { return self.session.repeat() };
        awaited.repeats += 1;
        if awaited.repeats >= self.sessions.retries {
            // The last try is another one: a session that the controller has forgotten, or a sensor for which it never answers.
            if self.is_doubtful {
                self.bmc.interrupted(true);
                return self.open(turn);
            }
            if let Some(step) = self.bmc.skip(turn.slot(), turn.now_ns()) {
                return self.step(step, turn);
            }
        }
        // A controller drops a sequence number that it has received, so that the request needs a new one.
        if let Some(AwaitedReply { command, number, .. }) = &self.awaited {
            let session = &mut self.session;
            turn.send(|out| session.put_command(out, command, *number));
        }
    }

    fn disconnected(&mut self) {
        self.awaited = None;
        self.session.lose();
        self.bmc.interrupted(true);
    }

    fn stopped(&mut self, out: &mut Vec<u8>) {
        self.session.put_close(out);
    }
}
