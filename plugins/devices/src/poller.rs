//! One thread that polls many devices through non-blocking sockets, with many polls in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use crate::answers::{DeviceProblem, system_time};
use crate::notes::{GroupProblems, PollCounts};
use crate::protocol::{DeviceTransport, PollTurn, PolledDevice};
use crate::resolver::Resolver;
use crate::schedule::{PollInstant, PollKey, PollSchedule};

/// The longest answer: the largest datagram, and the most bytes of a connection that wait to be consumed.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The longest poll: 60 s, also if the device answers each request in time.
pub const POLL_NS_MAX: u64 = 60_000_000_000;
/// The most datagrams of one poll that are not the awaited answer.
const STRAYS_MAX: u32 = 64;
/// The most events that one wake-up handles.
const EVENTS: usize = 256;
/// The token of the waker.
const WAKER: Token = Token(usize::MAX);
/// The longest wait without an event: 10 s.
const WAIT_NS_MAX: u64 = 10_000_000_000;

/// A running poll thread. It ends when this is dropped.
pub struct Poller {
    thread: Option<JoinHandle<()>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    counts: Arc<PollCounts>,
}

impl Poller {
    /// Starts a thread with this name that polls the devices, at most `in_flight` at a time.
    pub fn start(name: &str, devices: Vec<PolledDevice>, in_flight: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(PollCounts::default()));
        let mut run = PollLoop::new(poll, devices, in_flight, &waker, counts.clone());
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run.run(&theirs))?;
        Ok(Self { thread: Some(thread), waker, stop, counts })
    }

    /// What the thread has done so far.
    pub fn counts(&self) -> &Arc<PollCounts> {
        &self.counts
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread never waits for longer than WAIT_NS_MAX, also without this.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum DeviceSocket {
    Udp(UdpSocket),
    Tcp { stream: TcpStream, is_connected: bool },
}

/// A poll of a device.
struct ActivePoll {
    key: PollKey,
    began_ns: u64,
    deadline_ns: u64,
    /// How often the present request may still be sent again, and each new one.
    retries: u32,
    retries_of_request: u32,
    strays: u32,
    /// The last request, to send it again; for a connection, what is still to be written.
    out: Vec<u8>,
    /// Whether `begin` of the protocol was called.
    has_begun: bool,
}

struct DeviceRun {
    device: PolledDevice,
    address: Option<SocketAddr>,
    is_resolving: bool,
    socket: Option<DeviceSocket>,
    /// Bytes of a connection that the protocol has not consumed.
    input: Vec<u8>,
    poll: Option<ActivePoll>,
    /// The problem of the last poll of each group.
    problems: GroupProblems,
}

/// What a protocol is called for.
enum PollEvent<'a> {
    Begin,
    Bytes(&'a [u8]),
    Again,
}

struct PollLoop {
    poll: Poll,
    devices: Vec<DeviceRun>,
    schedule: PollSchedule,
    /// Deadlines of requests. Entries of requests that are answered stay until they are due.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    resolver: Resolver,
    counts: Arc<PollCounts>,
    start: Instant,
    buffer: Box<[u8]>,
}

impl PollLoop {
    fn new(
        poll: Poll,
        devices: Vec<PolledDevice>,
        in_flight: usize,
        waker: &Arc<Waker>,
        counts: Arc<PollCounts>,
    ) -> Self {
        let mut schedule = PollSchedule::new(in_flight);
        let now = PollInstant { mono_ns: 0, wall_ns: system_time() };
        let run = |device: PolledDevice| {
            schedule.add(&device.path, device.groups.iter().map(|group| group.ticks).collect(), now);
            let problems = GroupProblems::new(device.groups.len());
            let (address, socket, poll) = (None, None, None);
            DeviceRun { device, address, is_resolving: false, socket, input: Vec::new(), poll, problems }
        };
        Self {
            devices: devices.into_iter().map(run).collect(),
            poll,
            schedule,
            timers: BinaryHeap::new(),
            resolver: Resolver::new(waker.clone()),
            counts,
            start: Instant::now(),
            buffer: vec![0; ANSWER_BYTES_MAX].into(),
        }
    }

    fn now(&self) -> PollInstant {
        let mono_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        PollInstant { mono_ns, wall_ns: system_time() }
    }

    fn run(&mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(EVENTS);
        while !stop.load(Ordering::Acquire) {
            let now = self.now();
            self.expire(now);
            while let Some(key) = self.schedule.take(now) {
                self.begin(key, now);
            }
            let timer = self.timers.peek().map(|Reverse((at, _))| *at);
            // A poll that is due but has no room waits for the end of another one, which is an event or a timer.
            let due = self.schedule.next_due_ns().filter(|due| *due > now.mono_ns);
            let next = timer.into_iter().chain(due).min().unwrap_or(u64::MAX);
            let wait = next.saturating_sub(now.mono_ns).min(WAIT_NS_MAX);
            match self.poll.poll(&mut events, Some(Duration::from_nanos(wait))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                _ => {}
            }
            for event in &events {
                match event.token() {
                    WAKER => self.take_addresses(),
                    Token(device) => self.ready(device),
                }
            }
        }
        for run in &mut self.devices {
            let mut last = Vec::new();
            run.device.protocol.stopped(&mut last);
            send_reply(run.socket.as_ref(), &last);
        }
    }

    /// Begins a poll that the schedule gave.
    fn begin(&mut self, key: PollKey, now: PollInstant) {
        PollCounts::add(&self.counts.polls);
        let run = &mut self.devices[key.device];
        // A device that did not answer the last time is sent one request and no more.
        let retries = if self.schedule.is_failing(key.device) { 0 } else { run.device.retries };
        let deadline_ns = now.mono_ns + run.device.timeout_ns;
        let (began_ns, strays) = (now.mono_ns, 0);
        let (retries_of_request, out, has_begun) = (retries, Vec::new(), false);
        run.poll = Some(ActivePoll { key, began_ns, deadline_ns, retries, retries_of_request, strays, out, has_begun });
        self.timers.push(Reverse((deadline_ns, key.device)));
        if run.address.is_none() && !run.is_resolving {
            let port = run.device.host.port.unwrap_or(run.device.port);
            run.address = self.resolver.resolve(key.device, &run.device.host.name, port);
            run.is_resolving = run.address.is_none();
        }
        self.connect(key.device);
    }

    /// Takes what the resolver found.
    fn take_addresses(&mut self) {
        while let Some((device, address)) = self.resolver.answer() {
            self.devices[device].is_resolving = false;
            self.devices[device].address = address;
            match address {
                Some(_) => self.connect(device),
                None => self.end(device, Err(DeviceProblem::Unresolved)),
            }
        }
    }

    /// Opens the socket of a device whose address is known, and begins the exchange as soon as it is connected.
    fn connect(&mut self, device: usize) {
        let run = &mut self.devices[device];
        let (Some(address), Some(_)) = (run.address, &run.poll) else { return };
        if run.socket.is_none() {
            match open(run.device.transport, address, self.poll.registry(), Token(device)) {
                Ok(socket) => run.socket = Some(socket),
                Err(error) => return self.end(device, Err(network(&error))),
            }
        }
        if !matches!(run.socket, Some(DeviceSocket::Tcp { is_connected: false, .. })) {
            self.call(device, PollEvent::Begin);
        }
    }

    /// Calls the protocol, then sends or ends what it decided. Returns the bytes that it consumed.
    fn call(&mut self, device: usize, event: PollEvent<'_>) -> usize {
        let now = self.now();
        let run = &mut self.devices[device];
        let Some(poll) = &mut run.poll else { return 0 };
        let slot = run.device.groups[poll.key.group].slot.clone();
        let mut turn = PollTurn::new(&mut poll.out, &slot, now.wall_ns);
        let mut consumed = 0;
        let is_answer = matches!(event, PollEvent::Bytes(_));
        match event {
            PollEvent::Begin if poll.has_begun => return 0,
            PollEvent::Begin => {
                poll.has_begun = true;
                run.device.protocol.begin(poll.key.group, &mut turn);
            }
            PollEvent::Bytes(bytes) => consumed = run.device.protocol.receive(bytes, &mut turn).min(bytes.len()),
            PollEvent::Again => {
                turn.sends = true;
                run.device.protocol.again(&mut turn);
            }
        }
        let (sends, end, is_accepted) = (turn.sends, turn.end, turn.is_accepted);
        let reply = std::mem::take(&mut turn.reply);
        send_reply(run.socket.as_ref(), &reply);
        if let Some(end) = end {
            self.end(device, end);
        } else if sends {
            if now.mono_ns - poll.began_ns > POLL_NS_MAX {
                self.end(device, Err(DeviceProblem::Silent));
                return consumed;
            }
            poll.strays = 0;
            if is_answer {
                poll.retries = poll.retries_of_request;
            }
            poll.deadline_ns = now.mono_ns + run.device.timeout_ns;
            self.timers.push(Reverse((poll.deadline_ns, device)));
            if let Err(error) = write(run) {
                self.end(device, Err(network(&error)));
            }
        } else if is_accepted {
            // It is neither the answer nor something that nobody asked for.
        } else if consumed == 0 || !matches!(run.socket, Some(DeviceSocket::Tcp { .. })) {
            PollCounts::add(&self.counts.strays);
            poll.strays += 1;
            if poll.strays > STRAYS_MAX {
                self.end(device, Err(DeviceProblem::Garbage("many messages that were not asked for")));
            }
        }
        consumed
    }

    /// Handles an event of a device's socket.
    fn ready(&mut self, device: usize) {
        match &mut self.devices[device].socket {
            Some(DeviceSocket::Udp(_)) => self.receive_datagrams(device),
            Some(DeviceSocket::Tcp { stream, is_connected }) => {
                if !*is_connected {
                    match stream.take_error().and_then(|error| error.map_or_else(|| stream.peer_addr(), Err)) {
                        Ok(_) => *is_connected = true,
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                        Err(error) => return self.end(device, Err(network(&error))),
                    }
                    // A Modbus or REST request is one small write: it shall not wait for another one.
                    let _ = stream.set_nodelay(true);
                    self.call(device, PollEvent::Begin);
                }
                self.exchange(device);
            }
            None => {}
        }
    }

    fn receive_datagrams(&mut self, device: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut left = STRAYS_MAX * 4;
        while let Some(DeviceSocket::Udp(socket)) = &self.devices[device].socket {
            match socket.recv(&mut buffer) {
                Ok(length) if self.devices[device].poll.is_some() => {
                    self.call(device, PollEvent::Bytes(&buffer[..length]));
                }
                Ok(length) => {
                    let now = self.now().wall_ns;
                    let (run, mut reply) = (&mut self.devices[device], Vec::new());
                    run.device.protocol.unsolicited(&buffer[..length], now, &mut reply);
                    send_reply(run.socket.as_ref(), &reply);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.end(device, Err(network(&error)));
                    break;
                }
            }
            left -= 1;
            if left == 0 {
                // Others have their turn; the socket stays ready by being opened again at the next poll.
                self.close(device);
            }
        }
        self.buffer = buffer;
    }

    /// Writes and reads a connection until it would block.
    fn exchange(&mut self, device: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = write(&mut self.devices[device]).and_then(|()| self.read_stream(device, &mut buffer));
        self.buffer = buffer;
        if let Err(error) = result {
            self.close(device);
            self.end(device, Err(network(&error)));
        }
    }

    fn read_stream(&mut self, device: usize, buffer: &mut [u8]) -> io::Result<()> {
        while let Some(DeviceSocket::Tcp { stream, .. }) = &mut self.devices[device].socket {
            let length = match stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let run = &mut self.devices[device];
            if run.input.len() + length > ANSWER_BYTES_MAX {
                self.close(device);
                self.end(device, Err(DeviceProblem::Garbage("an answer longer than 64 KiB")));
                return Ok(());
            }
            run.input.extend_from_slice(&buffer[..length]);
            let mut input = std::mem::take(&mut run.input);
            let mut consumed = 0;
            while consumed < input.len() && self.devices[device].poll.is_some() {
                match self.call(device, PollEvent::Bytes(&input[consumed..])) {
                    0 => break,
                    more => consumed += more,
                }
            }
            input.drain(..consumed);
            let run = &mut self.devices[device];
            // Nobody asked for what comes between two polls.
            if run.socket.is_some() && run.poll.is_some() {
                run.input = input;
            }
        }
        Ok(())
    }

    /// Sends again, or ends, what has no answer in time.
    fn expire(&mut self, now: PollInstant) {
        while let Some(Reverse((at, device))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now.mono_ns)
        {
            self.timers.pop();
            let run = &mut self.devices[device];
            let Some(poll) = run.poll.as_mut().filter(|poll| poll.deadline_ns <= at) else { continue };
            PollCounts::add(&self.counts.timeouts);
            let is_datagram = run.device.transport != DeviceTransport::Tcp;
            if poll.retries > 0 && is_datagram && poll.has_begun {
                poll.retries -= 1;
                self.call(device, PollEvent::Again);
            } else {
                let is_resolving = run.is_resolving;
                self.end(device, Err(if is_resolving { DeviceProblem::Unresolved } else { DeviceProblem::Silent }));
            }
        }
    }

    fn close(&mut self, device: usize) {
        let run = &mut self.devices[device];
        match run.socket.take() {
            Some(DeviceSocket::Udp(mut socket)) => drop(self.poll.registry().deregister(&mut socket)),
            Some(DeviceSocket::Tcp { mut stream, .. }) => drop(self.poll.registry().deregister(&mut stream)),
            None => return,
        }
        run.input.clear();
        if run.device.transport != DeviceTransport::Udp {
            run.device.protocol.disconnected();
        }
    }

    /// Ends the poll of a device and plans the next one.
    fn end(&mut self, device: usize, result: Result<(), DeviceProblem>) {
        let now = self.now();
        let Some(poll) = self.devices[device].poll.take() else {
            if result.is_err() {
                self.close(device);
            }
            return;
        };
        let problem = result.err();
        let has_answered = matches!(problem, None | Some(DeviceProblem::Refused(_)));
        if !has_answered || self.devices[device].device.transport == DeviceTransport::Udp {
            self.close(device);
        }
        let run = &mut self.devices[device];
        match problem {
            None => PollCounts::add(&self.counts.answers),
            Some(problem @ (DeviceProblem::Refused(_) | DeviceProblem::Garbage(_))) => {
                run.device.groups[poll.key.group].slot.fail(problem);
            }
            Some(problem) => run.device.groups.iter().for_each(|group| group.slot.fail(problem)),
        }
        if !has_answered {
            // The name may have another address by now.
            run.address = None;
            run.device.protocol.disconnected();
        }
        run.problems.end(poll.key.group, problem, &self.counts, &run.device.path, &run.device.host.text);
        self.schedule.done(poll.key, problem, now);
    }
}

/// Sends a datagram that is not the request of a poll. One that is lost is sent again after the device has repeated its message.
fn send_reply(socket: Option<&DeviceSocket>, reply: &[u8]) {
    if let (Some(DeviceSocket::Udp(socket)), false) = (socket, reply.is_empty()) {
        let _ = socket.send(reply);
    }
}

/// Sends the request: a datagram as a whole, to a connection as much as it takes now.
fn write(run: &mut DeviceRun) -> io::Result<()> {
    let (Some(socket), Some(poll)) = (&mut run.socket, &mut run.poll) else { return Ok(()) };
    match socket {
        // A full send buffer is a lost datagram, which is sent again.
        DeviceSocket::Udp(socket) => match socket.send(&poll.out) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        },
        DeviceSocket::Tcp { is_connected: false, .. } => Ok(()),
        DeviceSocket::Tcp { stream, .. } => {
            while !poll.out.is_empty() {
                match stream.write(&poll.out) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(length) => drop(poll.out.drain(..length)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }
    }
}

fn open(
    transport: DeviceTransport,
    address: SocketAddr,
    registry: &Registry,
    token: Token,
) -> io::Result<DeviceSocket> {
    if transport == DeviceTransport::Tcp {
        let mut stream = TcpStream::connect(address)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        return Ok(DeviceSocket::Tcp { stream, is_connected: false });
    }
    let own = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let mut socket = UdpSocket::bind(own)?;
    // The kernel drops datagrams from other addresses.
    socket.connect(address)?;
    registry.register(&mut socket, token, Interest::READABLE)?;
    Ok(DeviceSocket::Udp(socket))
}

fn network(error: &io::Error) -> DeviceProblem {
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::ConnectionReset => libc::ECONNRESET,
        _ => libc::EIO,
    });
    DeviceProblem::Network(errno)
}
