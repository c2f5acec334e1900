//! A management controller of the tests' own, with its side of RMCP+ written from the specification. `ipmitool` is the witness that it is one. It can
//! do everything wrong.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wholegrain_plugin_ipmi::suite::{CipherSuite, SessionKeys};

pub const USER: &str = "monitor";
pub const PASSWORD: &str = "hidden-word";

/// A session of the server's side.
pub struct ServerSession {
    suite: CipherSuite,
    console: u32,
    console_random: Vec<u8>,
    managed_random: Vec<u8>,
    user: Vec<u8>,
    keys: Option<SessionKeys>,
    sent: u32,
}

/// What a handler is asked: network function, command, data.
pub type Asked<'a> = (u8, u8, &'a [u8]);
/// Completion code and data.
pub type Answered = (u8, Vec<u8>);
type Handler = Box<dyn FnMut(&mut Model, Asked<'_>) -> Option<Answered> + Send>;
type Sender = Box<dyn FnMut(&UdpSocket, SocketAddr, Vec<u8>, bool) + Send>;

/// The controller's content and its counts.
pub struct Model {
    pub suites: Vec<CipherSuite>,
    pub password: Vec<u8>,
    pub kg: Option<Vec<u8>>,
    pub level_max: u8,
    pub sessions_max: usize,
    pub records: Vec<Vec<u8>>,
    pub readings: HashMap<u8, Vec<u8>>,
    pub log: Vec<[u8; 16]>,
    pub log_times: (u32, u32),
    /// How often each command was executed, and each message of an exchange received.
    pub counts: HashMap<(u8, u8), usize>,
    pub opens: usize,
    pub handshakes: usize,
    pub closes: usize,
    pub reservation: u16,
    pub sessions: HashMap<u32, ServerSession>,
    pub next_session: u32,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            suites: vec![CipherSuite::Sha256, CipherSuite::Sha1],
            password: PASSWORD.into(),
            kg: None,
            level_max: 4,
            sessions_max: 8,
            records: Vec::new(),
            readings: HashMap::new(),
            log: Vec::new(),
            log_times: (1_700_000_000, 1_600_000_000),
            counts: HashMap::new(),
            opens: 0,
            handshakes: 0,
            closes: 0,
            reservation: 1,
            sessions: HashMap::new(),
            next_session: 0x1000,
        }
    }
}

/// A full record of a sensor with thresholds: y = x, degrees Celsius.
pub fn full_record(id: u16, number: u8, name: &str) -> Vec<u8> {
    let mut record = vec![0; 48];
    record[..2].copy_from_slice(&id.to_le_bytes());
    (record[2], record[3], record[4]) = (0x51, 1, (43 + name.len()) as u8);
    (record[5], record[7], record[8], record[9]) = (0x20, number, 3, 1);
    (record[12], record[13], record[21], record[24]) = (1, 1, 1, 1);
    record[47] = 0xc0 | name.len() as u8;
    record.extend_from_slice(name.as_bytes());
    record
}

/// An entry of the log about a sensor: asserted, or not.
pub fn log_entry(id: u16, time: u32, number: u8, is_asserted: bool) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[..2].copy_from_slice(&id.to_le_bytes());
    entry[2] = 2;
    entry[3..7].copy_from_slice(&time.to_le_bytes());
    (entry[7], entry[9], entry[10], entry[11]) = (0x20, 4, 1, number);
    entry[12] = if is_asserted { 1 } else { 0x81 };
    entry
}

impl Model {
    /// A controller with this many sensors `T1`, `T2`, …, whose readings are their numbers.
    pub fn with_sensors(count: u8) -> Self {
        let mut model = Self::default();
        for number in 1..=count {
            model.records.push(full_record(u16::from(number), number, &format!("T{number}")));
            model.readings.insert(number, vec![number, 0xc0, 0x00]);
        }
        model
    }

    pub fn count(&self, net_fn: u8, command: u8) -> usize {
        self.counts.get(&(net_fn, command)).copied().unwrap_or(0)
    }

    /// The sessions that are open.
    pub fn open_sessions(&self) -> usize {
        self.sessions.values().filter(|session| session.keys.is_some()).count()
    }

    /// Forgets all sessions, as after a restart.
    pub fn forget_sessions(&mut self) {
        self.sessions.clear();
    }

    /// Executes a command as a controller does.
    pub fn execute(&mut self, (net_fn, command, data): Asked<'_>) -> Answered {
        let two = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        match (net_fn, command) {
            (0x06, 0x01) => (0, vec![0x20, 0x01, 0x09, 0x08, 0x02, 0x0f, 0, 0, 0, 0, 0]),
            (0x06, 0x3b) => {
                if data[0] <= self.level_max {
                    (0, vec![data[0]])
                } else {
                    (0x81, Vec::new())
                }
            }
            (0x0a, 0x20) => {
                let mut info = vec![0x51];
                info.extend_from_slice(&(self.records.len() as u16).to_le_bytes());
                info.extend_from_slice(&[0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0x02]);
                (0, info)
            }
            (0x0a, 0x22) => {
                self.reservation += 1;
                (0, self.reservation.to_le_bytes().to_vec())
            }
            (0x0a, 0x23) => {
                if two(0) != self.reservation {
                    return (0xc5, Vec::new());
                }
                let at = if two(2) == 0 { Some(0) } else { self.place(two(2)) };
                let Some(record) = at.and_then(|at| self.records.get(at)) else { return (0xcb, Vec::new()) };
                let next = self
                    .records
                    .get(at.unwrap() + 1)
                    .map_or(0xffff, |record| u16::from_le_bytes([record[0], record[1]]));
                let begin = usize::from(data[4]).min(record.len());
                let end = (begin + usize::from(data[5])).min(record.len());
                (0, [&next.to_le_bytes()[..], &record[begin..end]].concat())
            }
            (0x04, 0x2d) => self.readings.get(&data[0]).map_or((0xcb, Vec::new()), |reading| (0, reading.clone())),
            (0x0a, 0x40) => {
                let mut info = vec![0x51];
                info.extend_from_slice(&(self.log.len() as u16).to_le_bytes());
                info.extend_from_slice(&[0x00, 0x10]);
                info.extend_from_slice(&self.log_times.0.to_le_bytes());
                info.extend_from_slice(&self.log_times.1.to_le_bytes());
                info.push(2);
                (0, info)
            }
            (0x0a, 0x43) => {
                let number = |entry: &[u8; 16]| u16::from_le_bytes([entry[0], entry[1]]);
                let at = match two(2) {
                    0 => (!self.log.is_empty()).then_some(0),
                    0xffff => self.log.len().checked_sub(1),
                    id => self.log.iter().position(|entry| number(entry) == id),
                };
                let Some(at) = at else { return (0xcb, Vec::new()) };
                let next = self.log.get(at + 1).map_or(0xffff, number);
                (0, [&next.to_le_bytes()[..], &self.log[at]].concat())
            }
            // A power reading of 250 W, 100 to 400 W, mean 200 W, over 60 s.
            (0x2c, 0x02) => (0, vec![0xdc, 250, 0, 100, 0, 0x90, 1, 200, 0, 0, 0, 0, 0x60, 0x60, 0xea, 0, 0, 0x40]),
            _ => (0xc1, Vec::new()),
        }
    }

    fn place(&self, id: u16) -> Option<usize> {
        self.records.iter().position(|record| record[..2] == id.to_le_bytes())
    }

    /// The answers to a datagram, each with whether it is of an open session.
    fn answer(&mut self, datagram: &[u8], handler: &mut Handler) -> Option<(Vec<u8>, bool)> {
        let rest = datagram.strip_prefix(&[6, 0, 0xff, 7])?;
        match rest[1] {
            _ if rest[0] == 0 => channel_capabilities(rest).map(|answer| (answer, false)),
            0x10 => Some((self.open(&rest[12..]), false)),
            0x12 => self.rakp2(&rest[12..]).map(|answer| (answer, false)),
            0x14 => self.rakp4(&rest[12..]).map(|answer| (answer, false)),
            0xc0 => self.message(rest, handler).map(|answer| (answer, true)),
            _ => None,
        }
    }

    fn open(&mut self, request: &[u8]) -> Vec<u8> {
        self.opens += 1;
        let algorithms = [request[12], request[20], request[28]];
        let suite = self.suites.iter().find(|suite| suite.algorithms() == algorithms).copied();
        let mut answer = vec![request[0], 0, request[1], 0];
        answer.extend_from_slice(&request[4..8]);
        match suite {
            None => answer[1] = 0x11,
            Some(_) if self.open_sessions() >= self.sessions_max => answer[1] = 0x01,
            Some(suite) => {
                self.next_session += 1;
                let console = u32::from_le_bytes(request[4..8].try_into().unwrap());
                let (random, user) = (Vec::new(), Vec::new());
                let (console_random, managed_random) = (random.clone(), random);
                let session =
                    ServerSession { suite, console, console_random, managed_random, user, keys: None, sent: 0 };
                self.sessions.insert(self.next_session, session);
                answer.extend_from_slice(&self.next_session.to_le_bytes());
                answer.extend_from_slice(&request[8..32]);
            }
        }
        plain(0x11, &answer)
    }

    fn rakp2(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.handshakes += 1;
        let managed = request[4..8].to_vec();
        let session = self.sessions.get_mut(&u32::from_le_bytes(managed.clone().try_into().unwrap()))?;
        session.console_random = request[8..24].to_vec();
        // A repeated message has another random number, too.
        let random = request[8].wrapping_add(self.handshakes as u8);
        session.managed_random = (0..16).map(|byte: u8| (byte * 3).wrapping_add(random)).collect();
        session.user = [&request[24..25], &request[27..]].concat();
        let mut answer = vec![request[0], 0, 0, 0];
        answer.extend_from_slice(&session.console.to_le_bytes());
        if session.user[2..] != *USER.as_bytes() {
            answer[1] = 0x0d;
        } else if session.user[0] & 15 > self.level_max {
            answer[1] = 0x0a;
        } else {
            answer.extend_from_slice(&session.managed_random);
            answer.extend_from_slice(&[7; 16]);
            let console = session.console.to_le_bytes();
            let (random, own) = (&session.console_random, &session.managed_random);
            let parts: [&[u8]; 6] = [&console, &managed, random, own, &[7; 16], &session.user];
            answer.extend(session.suite.hmac(&self.password, &parts));
        }
        Some(plain(0x13, &answer))
    }

    fn rakp4(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let managed = u32::from_le_bytes(request[4..8].try_into().unwrap());
        if request[1] != 0 {
            self.sessions.remove(&managed);
            return None;
        }
        let session = self.sessions.get_mut(&managed)?;
        let mut answer = vec![request[0], 0, 0, 0];
        answer.extend_from_slice(&session.console.to_le_bytes());
        let proof: [&[u8]; 3] = [&session.managed_random, &session.console.to_le_bytes(), &session.user];
        if !session.suite.verify(&self.password, &proof, &request[8..]) {
            answer[1] = 0x0f;
            return Some(plain(0x15, &answer));
        }
        let key = self.kg.as_ref().unwrap_or(&self.password);
        let sik = session.suite.hmac(key, &[&session.console_random, &session.managed_random, &session.user]);
        let mut check = session.suite.hmac(&sik, &[&session.console_random, &request[4..8], &[7; 16]]);
        check.truncate(session.suite.integrity_bytes());
        answer.extend(check);
        session.keys = Some(SessionKeys::derive(session.suite, &sik));
        Some(plain(0x15, &answer))
    }

    fn message(&mut self, bytes: &[u8], handler: &mut Handler) -> Option<Vec<u8>> {
        let id = u32::from_le_bytes(bytes[2..6].try_into().unwrap());
        let session = self.sessions.get(&id)?;
        let keys = session.keys.clone()?;
        let signed = bytes.len() - session.suite.integrity_bytes();
        assert!(keys.is_signed(&bytes[..signed], &bytes[signed..]), "the plug-in signs what it sends");
        let length = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
        let frame = keys.decrypt(&bytes[12..12 + length]).unwrap();
        let (net_fn, command, data) = (frame[1] >> 2, frame[5], frame[6..frame.len() - 1].to_vec());
        *self.counts.entry((net_fn, command)).or_default() += 1;
        let (completion, data) = match (net_fn, command) {
            (0x06, 0x3c) => (0, Vec::new()),
            _ => match handler(self, (net_fn, command, &data)) {
                Some(answer) => answer,
                None => self.execute((net_fn, command, &data)),
            },
        };
        let mut reply = vec![frame[3], (net_fn | 1) << 2 | (frame[4] & 3)];
        reply.push(sum(&reply));
        reply.extend_from_slice(&[0x20, frame[4], command, completion]);
        reply.extend(data);
        reply.push(sum(&reply[3..]));
        let session = self.sessions.get_mut(&id)?;
        session.sent += 1;
        let answer = protect(&keys, session.console, session.sent, &reply);
        if (net_fn, command) == (0x06, 0x3c) {
            self.closes += 1;
            self.sessions.remove(&id);
        }
        Some(answer)
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

fn plain(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![6, 0, 0xff, 7, 6, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// A protected message to a console.
pub fn protect(keys: &SessionKeys, console: u32, sequence: u32, frame: &[u8]) -> Vec<u8> {
    let mut out = vec![6, 0, 0xff, 7, 6, 0xc0];
    out.extend_from_slice(&console.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    let mut payload = Vec::new();
    keys.put_encrypted(&mut payload, frame);
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend(payload);
    let padding = (4 - (out.len() - 4 + 2) % 4) % 4;
    out.extend(std::iter::repeat_n(0xff, padding));
    out.extend_from_slice(&[padding as u8, 7]);
    let code = keys.sign(&out[4..]);
    out.extend(code);
    out
}

/// The answer to Get Channel Authentication Capabilities outside a session, which ipmitool asks for first.
fn channel_capabilities(rest: &[u8]) -> Option<Vec<u8>> {
    let frame = rest.get(10..)?;
    let mut reply = vec![frame[3], (frame[1] >> 2 | 1) << 2];
    reply.push(sum(&reply));
    reply.extend_from_slice(&[0x20, frame[4], frame[5], 0, 1, 0x80, 0x04, 0x03, 0, 0, 0, 0]);
    reply.push(sum(&reply[3..]));
    let mut out = vec![6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, reply.len() as u8];
    out.extend(reply);
    Some(out)
}

/// A running controller on an address of its own. It ends when this is dropped.
pub struct StandIn {
    pub port: u16,
    model: Arc<Mutex<Model>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl StandIn {
    /// A controller that does everything right.
    pub fn start(model: Model) -> Self {
        Self::with(model, |_, _| None, |socket, to, bytes, _| drop(socket.send_to(&bytes, to)))
    }

    /// A controller of which `handler` answers commands (`None`: as usual), and `sender` sends the answers.
    pub fn with(
        model: Model,
        handler: impl FnMut(&mut Model, Asked<'_>) -> Option<Answered> + Send + 'static,
        sender: impl FnMut(&UdpSocket, SocketAddr, Vec<u8>, bool) + Send + 'static,
    ) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (model, stop) = (Arc::new(Mutex::new(model)), Arc::new(AtomicBool::new(false)));
        let (of_thread, stopped) = (model.clone(), stop.clone());
        let (mut handler, mut sender): (Handler, Sender) = (Box::new(handler), Box::new(sender));
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !stopped.load(Ordering::Acquire) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let answer = of_thread.lock().unwrap().answer(&buffer[..length], &mut handler);
                if let Some((answer, is_session)) = answer {
                    sender(&socket, from, answer, is_session);
                }
            }
        });
        Self { port, model, stop, thread: Some(thread) }
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let result = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(result, Some(Ok(()))), "the stand-in failed");
        }
    }
}
