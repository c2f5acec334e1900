//! What a protocol implements for the poller: a state machine of one device, without I/O.

use std::sync::Arc;

use crate::answers::{AnswerSlot, DeviceProblem};
use crate::hosts::DeviceHost;
use crate::schedule::GroupTicks;

/// How a device is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceTransport {
    /// Datagrams. A socket lives as long as a poll, so that late answers to an earlier poll reach nobody, and its port cannot be guessed.
    Udp,
    /// Datagrams through a socket that stays open between polls, for devices that send by themselves.
    UdpKept,
    /// A connection that stays open between polls until the device or a fault closes it.
    Tcp,
}

/// A group of a device, for the poller.
pub struct PolledGroup {
    pub ticks: GroupTicks,
    pub slot: Arc<AnswerSlot>,
}

/// A device, for the poller.
pub struct PolledDevice {
    /// The path below the agent's prefix, for messages and for the place in the spread.
    pub path: String,
    pub host: DeviceHost,
    /// The port for a host without one.
    pub port: u16,
    pub transport: DeviceTransport,
    /// How long an answer to one request is awaited.
    pub timeout_ns: u64,
    /// How often a datagram is sent again.
    pub retries: u32,
    pub groups: Vec<PolledGroup>,
    pub protocol: Box<dyn DeviceProtocol>,
}

/// The protocol of one device: bytes in, bytes out. It never waits, and it trusts nothing that it receives.
pub trait DeviceProtocol: Send {
    /// Begins a poll of `group`: sends the first request by [`PollTurn::send`], or ends the poll.
    fn begin(&mut self, group: usize, turn: &mut PollTurn<'_>);

    /// Takes what the device sent during a poll: one datagram, or all bytes of a connection that were not consumed yet. Returns the number of bytes
    /// consumed (of a datagram, all are). It sends the next request, ends the poll, or does neither if the bytes are not the awaited answer.
    fn receive(&mut self, bytes: &[u8], turn: &mut PollTurn<'_>) -> usize;

    /// Changes the request before it is sent again, such as a number of the message. By default, the same bytes are sent.
    fn again(&mut self, _turn: &mut PollTurn<'_>) {}

    /// Takes a datagram that came outside a poll, through [`DeviceTransport::UdpKept`]. `now_ns` is the wall-clock time.
    /// What it writes to `reply` is sent to the device.
    fn unsolicited(&mut self, _bytes: &[u8], _now_ns: i64, _reply: &mut Vec<u8>) {}

    /// The connection was closed, or a poll ended without an answer: the next poll begins from the start.
    fn disconnected(&mut self) {}

    /// The poller ends. What this writes to `out` is sent once through the socket of a device with datagrams, if it is open: the end of a session.
    fn stopped(&mut self, _out: &mut Vec<u8>) {}
}

/// What a protocol can do while it handles an event of a poll.
pub struct PollTurn<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) sends: bool,
    pub(crate) end: Option<Result<(), DeviceProblem>>,
    pub(crate) reply: Vec<u8>,
    pub(crate) is_accepted: bool,
    slot: &'a AnswerSlot,
    now_ns: i64,
}

impl<'a> PollTurn<'a> {
    /// A turn of a poll whose answer goes to `slot`, at the wall-clock time `now_ns`. `out` receives the request. Tests of a protocol use it without
    /// a poller.
    pub fn new(out: &'a mut Vec<u8>, slot: &'a AnswerSlot, now_ns: i64) -> Self {
        Self { out, sends: false, end: None, reply: Vec::new(), is_accepted: false, slot, now_ns }
    }

    /// Sends a request: `write` appends it to an empty buffer. The timeout begins again.
    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.clear();
        write(self.out);
        self.sends = true;
    }

    /// Sends a datagram besides the request: the acknowledgement of a message that the device sent by itself. The request stays as it is.
    pub fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.reply.clear();
        write(&mut self.reply);
    }

    /// The message was of use, though it is not the awaited answer.
    pub fn accept(&mut self) {
        self.is_accepted = true;
    }

    /// The slot of the polled group.
    pub fn slot(&self) -> &AnswerSlot {
        self.slot
    }

    /// The wall-clock time of the event, in ns since the epoch: the time of the answer.
    pub fn now_ns(&self) -> i64 {
        self.now_ns
    }

    /// Ends the poll with an answer, which the protocol has stored in the slot.
    pub fn finish(&mut self) {
        self.end = Some(Ok(()));
    }

    /// Ends the poll without an answer.
    pub fn fail(&mut self, problem: DeviceProblem) {
        self.end = Some(Err(problem));
    }

    /// Whether and how the poll has ended.
    pub fn ended(&self) -> Option<Result<(), DeviceProblem>> {
        self.end
    }
}
