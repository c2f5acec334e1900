//! The exchange with the devices of one connection: what to send when, and what an answer means. No I/O.
//!
//! A line is a TCP connection, or a serial line. Its units are the devices behind it. [`ModbusLine::begin`] starts the poll of a unit; the poll ends with
//! [`LineEvent::Values`] or [`LineEvent::Failed`]. Times are arguments. The owner performs each [`LineStep`], and reports what happened:
//! [`ModbusLine::connected`], [`ModbusLine::closed`], [`ModbusLine::received`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wholegrain_devices::DeviceProblem;

use crate::block::{Block, Point, blocks, sorted};
use crate::frame::{FrameScan, ModbusAnswer, ReadRequest, Refusal, exception_name, scan_rtu, scan_tcp};
use crate::value::RegisterValue;

/// The pause after a connection that could not be opened, or that brought nothing: polls in this time fail at once.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// A single value that the device refused is requested again in each this many polls.
const REFUSED_POLLS: u32 = 20;
/// The most bytes without a frame that a serial line over TCP may bring during one request.
const GARBAGE_BYTES_MAX: usize = 4096;
/// The most frames in a row that a peer may send without a request.
const STRAYS_MAX: u32 = 64;
const NO_MODBUS: DeviceProblem = DeviceProblem::Garbage("bytes that are no Modbus");

/// How frames are delimited, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Modbus TCP: answers have the number of their request.
    Tcp,
    /// Frames of a serial line over TCP: a late answer could be taken for that of another request, so a timeout ends the connection.
    RtuOverTcp,
    /// A serial line: after a timeout nothing is sent until a late answer has had its time.
    Serial,
}

/// The settings of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineSettings {
    pub framing: Framing,
    /// The longest time to an answer, or to a connection.
    pub timeout: Duration,
    /// The most requests without an answer at a time. Without numbers in frames it is 1.
    pub in_flight: usize,
    /// The least time between two requests.
    pub pause: Duration,
    /// How often a request is sent again to a unit that answered its previous poll.
    pub retries: u32,
}

/// What is read from a unit.
#[derive(Debug, Clone)]
pub struct UnitSettings {
    pub unit: u8,
    pub points: Vec<Point>,
    /// The most unused registers that are read to save a request.
    pub gap: u16,
    /// The most registers of one request.
    pub registers_max: u16,
}

/// What the owner of a line has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum LineStep {
    /// Open the connection, and report `connected` or `closed`.
    Connect,
    Send(Vec<u8>),
    /// Close the connection. No report is expected.
    Close,
    /// Nothing until this time or until bytes arrive.
    Wait(Option<Instant>),
}

/// The end of a poll.
#[derive(Debug, Clone, PartialEq)]
pub enum LineEvent {
    /// A value or gap for each point, and the wall time in ns of the last answer.
    Values { unit: usize, taken_at: i64, values: Vec<Option<RegisterValue>> },
    /// There are no values.
    Failed { unit: usize, problem: DeviceProblem },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineState {
    /// After a failure: when the next attempt may be, and the problem until then.
    Closed {
        retry: Option<(Instant, DeviceProblem)>,
    },
    Connecting {
        deadline: Instant,
    },
    Open {
        has_answered: bool,
    },
}

/// A request without an answer.
#[derive(Debug)]
struct Flight {
    unit: usize,
    block: usize,
    request: ReadRequest,
    transaction: u16,
    deadline: Instant,
    attempt: u32,
    /// Bytes that came since, and belong to no frame.
    garbage: usize,
}

/// A block with what is known of it.
#[derive(Debug)]
struct PolledBlock {
    block: Block,
    /// Polls without a request, after the device refused it.
    skip: u32,
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct UnitPoll {
    settings: UnitSettings,
    order: Vec<usize>,
    blocks: Vec<PolledBlock>,
    is_polling: bool,
    /// Whether a request is sent again if there is no answer.
    may_repeat: bool,
    /// Blocks that this poll has not yet requested, and how often it did.
    queue: VecDeque<(usize, u32)>,
    flights: usize,
    values: Vec<Option<RegisterValue>>,
    /// The time of the last answer with data.
    taken_at: Option<i64>,
    /// Whether this poll began again after the peer closed an idle connection.
    is_second_attempt: bool,
}

/// The state of one connection and of the units behind it.
#[derive(Debug)]
pub struct ModbusLine {
    settings: LineSettings,
    units: Vec<UnitPoll>,
    connection: LineState,
    close_due: bool,
    flights: Vec<Flight>,
    input: Vec<u8>,
    transaction: u16,
    /// The unit that is served next: none waits for all others.
    turn: usize,
    send_at: Option<Instant>,
    /// Frames in a row that came too late, twice, or to no request.
    strays: u32,
    /// Such frames that the owner has not counted yet.
    uncounted_strays: u32,
    events: VecDeque<LineEvent>,
}

impl ModbusLine {
    /// A line that is not open yet.
    pub fn new(settings: LineSettings, units: Vec<UnitSettings>) -> Self {
        let units = units.into_iter().map(UnitPoll::new).collect();
        Self {
            settings,
            units,
            connection: LineState::Closed { retry: None },
            close_due: false,
            flights: Vec::new(),
            input: Vec::new(),
            transaction: 0,
            turn: 0,
            send_at: None,
            strays: 0,
            uncounted_strays: 0,
            events: VecDeque::new(),
        }
    }

    /// Starts the poll of a unit that has none. `may_repeat` says whether a request is sent again without an answer: for units that answered their
    /// previous poll. Others would delay their neighbours.
    pub fn begin(&mut self, unit: usize, may_repeat: bool, now: Instant) {
        if let LineState::Closed { retry: Some((at, problem)) } = self.connection
            && at > now
        {
            return self.events.push_back(LineEvent::Failed { unit, problem });
        }
        let poll = &mut self.units[unit];
        poll.may_repeat = may_repeat;
        poll.is_second_attempt = false;
        poll.begin();
        self.finish_if_complete(unit);
    }

    /// What the device refuses at present: a line for each range of registers.
    pub fn refusals(&self, unit: usize) -> impl Iterator<Item = String> {
        self.units[unit].blocks.iter().filter_map(PolledBlock::message)
    }

    /// What happened since the last call.
    pub fn event(&mut self) -> Option<LineEvent> {
        self.events.pop_front()
    }

    /// How many frames answered nothing since the last call.
    pub fn take_strays(&mut self) -> u32 {
        std::mem::take(&mut self.uncounted_strays)
    }

    /// What to do now. Call it until it says to wait.
    pub fn step(&mut self, now: Instant) -> LineStep {
        self.expire(now);
        if std::mem::take(&mut self.close_due) {
            return LineStep::Close;
        }
        let has_work = self.units.iter().any(|unit| unit.is_polling);
        match self.connection {
            LineState::Closed { retry } if has_work && retry.is_none_or(|(at, _)| at <= now) => {
                self.connection = LineState::Connecting { deadline: now + self.settings.timeout };
                LineStep::Connect
            }
            LineState::Open { .. } => match self.send(now) {
                Some(bytes) => LineStep::Send(bytes),
                None => LineStep::Wait(self.wake_at(now)),
            },
            _ => LineStep::Wait(self.wake_at(now)),
        }
    }

    /// The owner opened the connection.
    pub fn connected(&mut self) {
        self.connection = LineState::Open { has_answered: false };
        self.input.clear();
    }

    /// The connection could not be opened, or ended.
    pub fn closed(&mut self, now: Instant, problem: DeviceProblem) {
        let had_answered = self.connection == LineState::Open { has_answered: true };
        self.flights.clear();
        self.input.clear();
        if had_answered {
            // Devices close connections that were idle: the next poll opens another. One that was begun is begun again, once.
            self.connection = LineState::Closed { retry: None };
            for index in 0..self.units.len() {
                let unit = &mut self.units[index];
                unit.flights = 0;
                if unit.is_polling && !unit.is_second_attempt {
                    unit.begin();
                    unit.is_second_attempt = true;
                } else if unit.is_polling {
                    self.fail(index, problem);
                }
            }
            return;
        }
        self.connection_failed(now, problem);
    }

    /// Bytes arrived. `wall_ns` is the present time since the epoch.
    pub fn received(&mut self, now: Instant, wall_ns: i64, bytes: &[u8]) {
        if !matches!(self.connection, LineState::Open { .. }) || self.close_due {
            return;
        }
        if self.flights.is_empty() && self.settings.framing != Framing::Tcp {
            // A late or a second answer: without a request it has no meaning.
            return self.stray(now);
        }
        self.input.extend_from_slice(bytes);
        while self.next_frame(now, wall_ns) {}
    }

    /// Takes a frame from the input; whether there was one.
    fn next_frame(&mut self, now: Instant, wall_ns: i64) -> bool {
        let input = std::mem::take(&mut self.input);
        let scan = match (self.settings.framing, self.flights.first()) {
            (Framing::Tcp, _) => scan_tcp(&input),
            (_, Some(flight)) => scan_rtu(&input, &flight.request),
            (_, None) => FrameScan::Incomplete { discard: input.len() },
        };
        let (used, is_frame) = match scan {
            FrameScan::Frame { answer, used } => {
                self.answered(now, wall_ns, &answer);
                (used, true)
            }
            FrameScan::Incomplete { discard } => {
                self.garbage(now, discard);
                (discard, false)
            }
            FrameScan::Broken => {
                self.break_off(now, NO_MODBUS);
                return false;
            }
        };
        self.input = input;
        self.input.drain(..used);
        is_frame && !self.close_due
    }

    /// Counts a frame that answers nothing. A peer that sends many is given up.
    fn stray(&mut self, now: Instant) {
        self.strays += 1;
        self.uncounted_strays += 1;
        if self.strays > STRAYS_MAX && self.settings.framing != Framing::Serial {
            self.break_off(now, DeviceProblem::Garbage("many answers that nobody asked for"));
        }
    }

    /// Counts bytes without a frame against the request that waits.
    fn garbage(&mut self, now: Instant, bytes: usize) {
        let Some(flight) = self.flights.first_mut() else { return };
        flight.garbage += bytes;
        if flight.garbage > GARBAGE_BYTES_MAX && self.settings.framing == Framing::RtuOverTcp {
            self.break_off(now, NO_MODBUS);
        }
    }

    fn answered(&mut self, now: Instant, wall_ns: i64, answer: &ModbusAnswer<'_>) {
        let is_match = |flight: &Flight| answer.transaction.is_none_or(|t| t == flight.transaction);
        let Some(at) = self.flights.iter().position(is_match) else {
            return self.stray(now);
        };
        let flight = self.flights.remove(at);
        self.strays = 0;
        self.connection = LineState::Open { has_answered: true };
        let index = flight.unit;
        let unit = &mut self.units[index];
        unit.flights -= 1;
        match flight.request.data(answer) {
            Ok(data) => unit.take(flight.block, data, wall_ns),
            // The gateway answers for the unit: that is no answer of the unit.
            Err(Refusal::Exception(10 | 11)) => return self.fail(index, DeviceProblem::Silent),
            Err(refusal) => unit.refused(flight.block, refusal),
        }
        self.finish_if_complete(index);
    }

    fn finish_if_complete(&mut self, index: usize) {
        let unit = &mut self.units[index];
        if !unit.is_polling || unit.flights > 0 || !unit.queue.is_empty() {
            return;
        }
        unit.is_polling = false;
        let event = match unit.taken_at {
            Some(taken_at) => LineEvent::Values { unit: index, taken_at, values: unit.values.clone() },
            None => LineEvent::Failed { unit: index, problem: unit.refusal() },
        };
        self.events.push_back(event);
    }

    /// Ends the poll of a unit without values.
    fn fail(&mut self, index: usize, problem: DeviceProblem) {
        let unit = &mut self.units[index];
        unit.queue.clear();
        unit.is_polling = false;
        unit.flights = 0;
        self.events.push_back(LineEvent::Failed { unit: index, problem });
        // Answers to what else was sent belong to no poll.
        self.flights.retain(|flight| flight.unit != index);
    }

    /// Closes a connection of which nothing right can come.
    fn break_off(&mut self, now: Instant, problem: DeviceProblem) {
        self.close_due = true;
        self.strays = 0;
        self.input.clear();
        self.flights.clear();
        self.connection_failed(now, problem);
    }

    fn connection_failed(&mut self, now: Instant, problem: DeviceProblem) {
        self.connection = LineState::Closed { retry: Some((now + RECONNECT_PAUSE, problem)) };
        for index in 0..self.units.len() {
            if self.units[index].is_polling {
                self.fail(index, problem);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        if let LineState::Connecting { deadline } = self.connection
            && deadline <= now
        {
            self.close_due = true;
            self.connection_failed(now, DeviceProblem::Silent);
        }
        while let Some(at) = self.flights.iter().position(|flight| flight.deadline <= now) {
            let flight = self.flights.remove(at);
            let unit = &mut self.units[flight.unit];
            if unit.may_repeat && flight.attempt < self.settings.retries {
                unit.flights -= 1;
                unit.queue.push_front((flight.block, flight.attempt + 1));
            } else {
                self.fail(flight.unit, DeviceProblem::Silent);
            }
            match self.settings.framing {
                Framing::Tcp => {}
                Framing::Serial => self.send_at = Some(now + self.settings.timeout),
                Framing::RtuOverTcp => {
                    // Not a fault of the connection: the next unit gets a fresh one at once.
                    self.close_due = true;
                    self.input.clear();
                    self.connection = LineState::Closed { retry: None };
                }
            }
        }
    }

    /// The next request, if one may be sent.
    fn send(&mut self, now: Instant) -> Option<Vec<u8>> {
        let in_flight = if self.settings.framing == Framing::Tcp { self.settings.in_flight } else { 1 };
        if self.flights.len() >= in_flight || self.send_at.is_some_and(|at| at > now) {
            return None;
        }
        let count = self.units.len();
        let index = (0..count).map(|n| (self.turn + n) % count).find(|n| !self.units[*n].queue.is_empty())?;
        self.turn = (index + 1) % count;
        let unit = &mut self.units[index];
        let (block, attempt) = unit.queue.pop_front()?;
        unit.flights += 1;
        let request = unit.blocks[block].block.request(unit.settings.unit);
        if self.settings.framing != Framing::Tcp {
            // What came before the request cannot be its answer.
            self.input.clear();
        }
        self.transaction = self.transaction.wrapping_add(1);
        let (transaction, deadline) = (self.transaction, now + self.settings.timeout);
        self.flights.push(Flight { unit: index, block, request, transaction, deadline, attempt, garbage: 0 });
        self.send_at = Some(now + self.settings.pause);
        Some(match self.settings.framing {
            Framing::Tcp => request.tcp(transaction),
            Framing::RtuOverTcp | Framing::Serial => request.rtu(),
        })
    }

    /// When [`ModbusLine::step`] has something to do without any report.
    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let flights = self.flights.iter().map(|flight| flight.deadline);
        let connection = match self.connection {
            LineState::Closed { retry } => retry.map(|(at, _)| at),
            LineState::Connecting { deadline } => Some(deadline),
            LineState::Open { .. } => self.send_at,
        };
        flights.chain(connection.filter(|at| *at > now)).min()
    }
}

impl UnitPoll {
    fn new(settings: UnitSettings) -> Self {
        let order = sorted(&settings.points);
        let blocks = blocks(&settings.points, &order, settings.gap, settings.registers_max);
        Self {
            blocks: blocks.into_iter().map(PolledBlock::new).collect(),
            order,
            is_polling: false,
            may_repeat: false,
            queue: VecDeque::new(),
            flights: 0,
            values: vec![None; settings.points.len()],
            taken_at: None,
            is_second_attempt: false,
            settings,
        }
    }

    fn begin(&mut self) {
        self.is_polling = true;
        self.flights = 0;
        self.taken_at = None;
        self.values.fill(None);
        self.queue.clear();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            match block.skip.checked_sub(1) {
                Some(left) => block.skip = left,
                None => self.queue.push_back((index, 0)),
            }
        }
    }

    fn take(&mut self, block: usize, data: &[u8], wall_ns: i64) {
        let polled = &mut self.blocks[block];
        polled.refusal = None;
        self.taken_at = Some(wall_ns);
        for at in polled.block.points.clone() {
            let index = self.order[at];
            self.values[index] = polled.block.value(&self.settings.points[index], data);
        }
    }

    /// The device refused a block: it is divided until only the values that it refuses are left.
    fn refused(&mut self, index: usize, refusal: Refusal) {
        let (points, order) = (&self.settings.points, &self.order);
        let polled = &mut self.blocks[index];
        if !matches!(refusal, Refusal::Exception(2 | 3)) {
            polled.refusal = Some(refusal);
        } else if let Some([low, high]) = polled.block.halves(points, order) {
            polled.block = low;
            self.blocks.push(PolledBlock::new(high));
            self.queue.extend([(index, 0), (self.blocks.len() - 1, 0)]);
        } else {
            polled.skip = REFUSED_POLLS;
            polled.refusal = Some(refusal);
        }
    }

    /// Why no block gave data.
    fn refusal(&self) -> DeviceProblem {
        match self.blocks.iter().find_map(|polled| polled.refusal) {
            Some(Refusal::Exception(code)) => DeviceProblem::Refused(exception_name(code)),
            Some(_) => DeviceProblem::Garbage("answers to other requests"),
            None => DeviceProblem::Silent,
        }
    }
}

impl PolledBlock {
    fn new(block: Block) -> Self {
        Self { block, skip: 0, refusal: None }
    }

    fn message(&self) -> Option<String> {
        let Block { table, address, count, .. } = &self.block;
        let refusal = self.refusal?;
        let range = if *count == 1 { address.to_string() } else { format!("{address} to {}", address + (count - 1)) };
        Some(format!("{} {range}: {refusal}; its values are gaps", table.name()))
    }
}

#[cfg(test)]
mod tests;
