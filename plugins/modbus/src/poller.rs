//! The thread that polls all lines: it performs the steps of each [`ModbusLine`] on sockets and serial lines that never block.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use wholegrain_devices::schedule::{PollInstant, PollKey, PollSchedule};
use wholegrain_devices::{AnswerSlot, DeviceGroup, DeviceProblem, PollCounts, Resolver, system_time};

use crate::line::{LineEvent, LineStep, ModbusLine};
use crate::settings::{LinePlace, ModbusPlan};
use crate::value::RegisterValue;

/// The most events that one wake-up handles.
const EVENTS: usize = 256;
/// The bytes that a line may bring before the others have their turn.
const TURN_BYTES_MAX: usize = 16 << 10;
/// The most refused ranges of one device that are kept for the administrator.
const REFUSALS_MAX: usize = 20;
/// The token of the waker.
const WAKER: Token = Token(usize::MAX);
/// The longest wait without an event: 10 s.
const WAIT_NS_MAX: u64 = 10_000_000_000;

/// What each device refuses at present, shared with the source.
pub type Refusals = Arc<Mutex<Vec<Vec<String>>>>;

/// The running thread. It ends when this is dropped.
pub struct LinePoller {
    thread: Option<JoinHandle<()>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    counts: Arc<PollCounts>,
    refusals: Refusals,
}

impl LinePoller {
    /// Starts the thread. `groups` are those of the plan's devices.
    pub fn start(plan: &ModbusPlan, groups: &[DeviceGroup]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(PollCounts::default()));
        let refusals: Refusals = Arc::new(Mutex::new(vec![Vec::new(); plan.devices.len()]));
        let mut run = LineLoop::new(poll, plan, groups, &waker, counts.clone(), refusals.clone());
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name("modbus".to_owned()).spawn(move || run.run(&theirs))?;
        Ok(Self { thread: Some(thread), waker, stop, counts, refusals })
    }

    /// What the thread has done so far.
    pub fn counts(&self) -> &Arc<PollCounts> {
        &self.counts
    }

    /// What each device refuses at present.
    pub fn refusals(&self) -> Vec<Vec<String>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LinePoller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread never waits for longer than WAIT_NS_MAX, also without this.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum LineStream {
    Tcp { stream: TcpStream, is_connected: bool },
    Serial(File),
}

struct LineRun {
    line: ModbusLine,
    place: LinePlace,
    /// The device of each unit.
    devices: Vec<usize>,
    address: Option<SocketAddr>,
    is_resolving: bool,
    /// Whether the line asked for a connection and has none yet.
    is_opening: bool,
    stream: Option<LineStream>,
    /// What is still to be written.
    out: VecDeque<u8>,
}

struct DeviceRun {
    path: String,
    host: String,
    line: usize,
    unit: usize,
    slot: Arc<AnswerSlot>,
    problem: Option<DeviceProblem>,
}

struct LineLoop {
    poll: Poll,
    lines: Vec<LineRun>,
    devices: Vec<DeviceRun>,
    schedule: PollSchedule,
    /// When a line has to be looked at. Entries that were overtaken stay until they are due.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Lines that had more to read than their turn allows.
    unread: BTreeSet<usize>,
    resolver: Resolver,
    counts: Arc<PollCounts>,
    refusals: Refusals,
    start: Instant,
    buffer: Box<[u8]>,
}

impl LineLoop {
    fn new(
        poll: Poll,
        plan: &ModbusPlan,
        groups: &[DeviceGroup],
        waker: &Arc<Waker>,
        counts: Arc<PollCounts>,
        refusals: Refusals,
    ) -> Self {
        // The lines bound what is in flight: a poll that waits for its line takes nothing from others.
        let mut schedule = PollSchedule::new(plan.devices.len());
        let now = PollInstant { mono_ns: 0, wall_ns: system_time() };
        let mut devices: Vec<DeviceRun> = Vec::new();
        for (device, group) in plan.devices.iter().zip(groups) {
            schedule.add(&device.path, vec![group.ticks()], now);
            let (path, host, slot) = (device.path.clone(), device.host.clone(), group.slot.clone());
            devices.push(DeviceRun { path, host, line: 0, unit: 0, slot, problem: None });
        }
        let mut lines = Vec::new();
        for (number, line) in plan.lines.iter().enumerate() {
            for (unit, device) in line.devices.iter().enumerate() {
                (devices[*device].line, devices[*device].unit) = (number, unit);
            }
            let units = line.devices.iter().map(|device| plan.devices[*device].unit.clone()).collect();
            lines.push(LineRun {
                line: ModbusLine::new(line.settings, units),
                place: line.place.clone(),
                devices: line.devices.clone(),
                address: None,
                is_resolving: false,
                is_opening: false,
                stream: None,
                out: VecDeque::new(),
            });
        }
        Self {
            resolver: Resolver::new(waker.clone()),
            timers: BinaryHeap::new(),
            unread: BTreeSet::new(),
            start: Instant::now(),
            buffer: vec![0; TURN_BYTES_MAX].into(),
            poll,
            lines,
            devices,
            schedule,
            counts,
            refusals,
        }
    }

    fn run(&mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(EVENTS);
        while !stop.load(Ordering::Acquire) {
            self.begin_due();
            self.expire();
            let wait = if self.unread.is_empty() { self.wait() } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => std::thread::sleep(Duration::from_millis(10)),
                _ => {}
            }
            for line in std::mem::take(&mut self.unread) {
                self.ready(line);
            }
            for event in &events {
                match event.token() {
                    WAKER => self.take_addresses(),
                    Token(line) => self.ready(line),
                }
            }
        }
    }

    fn instant(&self, now: Instant) -> PollInstant {
        let mono_ns = u64::try_from(now.duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        PollInstant { mono_ns, wall_ns: system_time() }
    }

    /// How long nothing has to be done.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let mono_ns = self.instant(now).mono_ns;
        let timer = self.timers.peek().map(|Reverse((at, _))| at.saturating_duration_since(now));
        let due = self.schedule.next_due_ns().map(|due| Duration::from_nanos(due.saturating_sub(mono_ns)));
        timer.into_iter().chain(due).min().unwrap_or(Duration::MAX).min(Duration::from_nanos(WAIT_NS_MAX))
    }

    fn begin_due(&mut self) {
        let now = Instant::now();
        let mut changed = BTreeSet::new();
        while let Some(key) = self.schedule.take(self.instant(now)) {
            self.counts.polls.fetch_add(1, Ordering::Relaxed);
            let DeviceRun { line, unit, .. } = self.devices[key.device];
            let may_repeat = !self.schedule.is_failing(key.device);
            self.lines[line].line.begin(unit, may_repeat, now);
            changed.insert(line);
        }
        changed.into_iter().for_each(|line| self.drive(line));
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((_, line))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            self.drive(line);
        }
    }

    /// Performs the steps of a line until it waits, and stores what they brought.
    fn drive(&mut self, number: usize) {
        loop {
            let now = Instant::now();
            let run = &mut self.lines[number];
            match run.line.step(now) {
                LineStep::Connect => {
                    run.is_opening = true;
                    self.open(number);
                }
                LineStep::Send(bytes) => {
                    run.out.extend(bytes);
                    if let Err(error) = run.write() {
                        self.lost(number, network(&error));
                    }
                }
                LineStep::Close => run.close(self.poll.registry()),
                LineStep::Wait(at) => {
                    self.timers.extend(at.map(|at| Reverse((at, number))));
                    break;
                }
            }
        }
        let strays = self.lines[number].line.take_strays();
        self.counts.strays.fetch_add(strays.into(), Ordering::Relaxed);
        while let Some(event) = self.lines[number].line.event() {
            self.end(number, event);
        }
    }

    /// Opens the connection of a line, if its address is known.
    fn open(&mut self, number: usize) {
        let run = &mut self.lines[number];
        let opened = match &run.place {
            LinePlace::Serial(serial) => serial.open().and_then(|file| {
                let fd = file.as_raw_fd();
                self.poll.registry().register(
                    &mut SourceFd(&fd),
                    Token(number),
                    Interest::READABLE | Interest::WRITABLE,
                )?;
                run.is_opening = false;
                run.line.connected();
                Ok(LineStream::Serial(file))
            }),
            LinePlace::Tcp { host, port } => {
                if run.address.is_none() && !run.is_resolving {
                    run.address = self.resolver.resolve(number, &host.name, *port);
                    run.is_resolving = run.address.is_none();
                }
                let Some(address) = run.address else { return };
                TcpStream::connect(address).and_then(|mut stream| {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    self.poll.registry().register(&mut stream, Token(number), interest)?;
                    Ok(LineStream::Tcp { stream, is_connected: false })
                })
            }
        };
        match opened {
            Ok(stream) => run.stream = Some(stream),
            Err(error) => self.lost(number, network(&error)),
        }
    }

    /// Takes what the resolver found.
    fn take_addresses(&mut self) {
        while let Some((number, address)) = self.resolver.answer() {
            let run = &mut self.lines[number];
            (run.is_resolving, run.address) = (false, address);
            match address {
                _ if !run.is_opening => {}
                Some(_) => self.open(number),
                None => self.lost(number, DeviceProblem::Unresolved),
            }
            self.drive(number);
        }
    }

    /// Closes the connection of a line and reports to it why.
    fn lost(&mut self, number: usize, problem: DeviceProblem) {
        let run = &mut self.lines[number];
        run.close(self.poll.registry());
        // The name may have another address by now.
        run.address = None;
        run.line.closed(Instant::now(), problem);
    }

    /// Handles an event of a line's socket.
    fn ready(&mut self, number: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        match self.exchange(number, &mut buffer) {
            Ok(true) => drop(self.unread.insert(number)),
            Ok(false) => {}
            Err(error) => self.lost(number, network(&error)),
        }
        self.buffer = buffer;
        self.drive(number);
    }

    /// Writes and reads; whether there is more to read.
    fn exchange(&mut self, number: usize, buffer: &mut [u8]) -> io::Result<bool> {
        let run = &mut self.lines[number];
        if let Some(LineStream::Tcp { stream, is_connected: is_connected @ false }) = &mut run.stream {
            match stream.take_error()?.map_or_else(|| stream.peer_addr(), Err) {
                Ok(_) => *is_connected = true,
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(error),
            }
            // A request is one small write: it must not wait for the answer to the one before.
            let _ = stream.set_nodelay(true);
            run.is_opening = false;
            run.line.connected();
        }
        run.write()?;
        let mut left = TURN_BYTES_MAX;
        while left > 0 {
            let read = match &mut run.stream {
                Some(LineStream::Tcp { stream, .. }) => stream.read(&mut buffer[..left]),
                Some(LineStream::Serial(file)) => file.read(&mut buffer[..left]),
                None => return Ok(false),
            };
            match read {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(length) => {
                    left -= length;
                    run.line.received(Instant::now(), system_time(), &buffer[..length]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Stores the result of a poll and plans the next one.
    fn end(&mut self, number: usize, event: LineEvent) {
        let run = &self.lines[number];
        let (unit, problem) = match event {
            LineEvent::Values { unit, taken_at, values } => {
                let bits: Vec<Option<u64>> = values.into_iter().map(|value| value.map(bits)).collect();
                self.devices[run.devices[unit]].slot.publish(taken_at, &bits);
                (unit, None)
            }
            LineEvent::Failed { unit, problem } => (unit, Some(problem)),
        };
        let number = run.devices[unit];
        let refusals: Vec<String> = run.line.refusals(unit).take(REFUSALS_MAX).collect();
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)[number] = refusals;
        let device = &mut self.devices[number];
        match problem {
            None => drop(self.counts.answers.fetch_add(1, Ordering::Relaxed)),
            Some(problem) => device.slot.fail(problem),
        }
        if problem == Some(DeviceProblem::Silent) {
            self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        match (device.problem, problem) {
            (None, Some(_)) => drop(self.counts.failing.fetch_add(1, Ordering::Relaxed)),
            (Some(_), None) => drop(self.counts.failing.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        if let Some(problem) = problem.filter(|_| problem != device.problem) {
            self.counts.note(&device.path, &device.host, problem);
        }
        device.problem = problem;
        let now = self.instant(Instant::now());
        self.schedule.done(PollKey { device: number, group: 0 }, problem, now);
    }
}

impl LineRun {
    fn close(&mut self, registry: &Registry) {
        self.is_opening = false;
        self.out.clear();
        match self.stream.take() {
            Some(LineStream::Tcp { mut stream, .. }) => drop(registry.deregister(&mut stream)),
            Some(LineStream::Serial(file)) => drop(registry.deregister(&mut SourceFd(&file.as_raw_fd()))),
            None => {}
        }
    }

    /// Writes as much as the line takes now.
    fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            let (bytes, _) = self.out.as_slices();
            let written = match &mut self.stream {
                Some(LineStream::Tcp { stream, is_connected: true }) => stream.write(bytes),
                Some(LineStream::Serial(file)) => file.write(bytes),
                _ => return Ok(()),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => drop(self.out.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The 64 bits of a value in a row.
fn bits(value: RegisterValue) -> u64 {
    match value {
        RegisterValue::Int(value) => value as u64,
        RegisterValue::Float(value) => value.to_bits(),
    }
}

fn network(error: &io::Error) -> DeviceProblem {
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        ErrorKind::ConnectionReset => libc::ECONNRESET,
        _ => libc::EIO,
    });
    DeviceProblem::Network(errno)
}
