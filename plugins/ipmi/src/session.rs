//! One RMCP+ session with a management controller (IPMI 2.0, 13.15 to 13.28). No I/O: datagrams in, datagrams out.

use wholegrain_devices::SecretText;

use crate::message::{CLOSE_SESSION, IpmiCommand, put_command};
use crate::suite::{CipherSuite, SessionKeys, random};

/// The most bytes of a user's name, and of a password or key.
pub const USER_BYTES_MAX: usize = 16;
pub const PASSWORD_BYTES_MAX: usize = 20;
/// The largest payload that is taken: far above the largest reply.
const PAYLOAD_BYTES_MAX: usize = 1024;
/// RMCP of version 1.0, no acknowledgement, class IPMI.
const RMCP: [u8; 4] = [0x06, 0x00, 0xff, 0x07];
/// The authentication type that means RMCP+.
const RMCP_PLUS: u8 = 0x06;
const PAYLOAD_IPMI: u8 = 0x00;
const PAYLOAD_OPEN: u8 = 0x10;
const PAYLOAD_OPENED: u8 = 0x11;
const PAYLOAD_RAKP1: u8 = 0x12;
const PAYLOAD_RAKP2: u8 = 0x13;
const PAYLOAD_RAKP3: u8 = 0x14;
const PAYLOAD_RAKP4: u8 = 0x15;
/// The bits of an encrypted and authenticated payload.
const PROTECTED: u8 = 0xc0;
/// In a role: the user is found by name alone.
const NAME_ONLY: u8 = 0x10;
/// How far behind the newest sequence number a message may be.
const WINDOW: u32 = 32;
/// The status of RAKP 3 with which we end an exchange: invalid integrity check value.
const INVALID_CHECK: u8 = 0x0f;
/// So many codes in a row that do not match the credentials mean that these are wrong. Fewer can be damaged messages.
const BAD_CODES_MAX: u32 = 3;

/// Who we are for a controller.
pub struct LanIdentity {
    pub user: Vec<u8>,
    pub password: SecretText,
    /// The key of the controller, if it has one besides the passwords.
    pub kg: Option<SecretText>,
    /// The number of the privilege level: 2 user, 3 operator, 4 administrator.
    pub level: u8,
    /// The suites to try, the best first.
    pub suites: Vec<CipherSuite>,
}

impl LanIdentity {
    fn kg(&self) -> &[u8] {
        self.kg.as_ref().map_or(self.password.expose().as_bytes(), |kg| kg.expose().as_bytes())
    }
}

/// Why the controller opens no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRefusal {
    /// User, password or key are wrong.
    Credentials,
    /// All its sessions are in use.
    NoneFree,
    /// It answered a repeated message with another random number, so that the proofs do not match.
    Late,
    Level,
    Suite,
    Other(u8),
}

/// What a datagram was.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A step towards a session; the next message is in the output.
    Continue,
    Open,
    /// The payload of a message in the session.
    Message(Vec<u8>),
    /// Not opened. What is in the output, if anything, is a last message to the controller.
    Refused(SessionRefusal),
}

/// The datagram is not the awaited one: damaged, late, twice, or of somebody else.
#[derive(Debug, PartialEq, Eq)]
pub struct StrayDatagram;

/// The exchange that opens a session.
struct Handshake {
    suite: usize,
    tag: u8,
    console: u32,
    managed: u32,
    console_random: [u8; 16],
    managed_random: [u8; 16],
    /// The identity of the controller.
    guid: [u8; 16],
    awaited: u8,
    /// RAKP 1 was sent more than once.
    is_repeated: bool,
}

/// A session that is open.
#[derive(Clone)]
struct OpenSession {
    console: u32,
    managed: u32,
    keys: SessionKeys,
    sent: u32,
    /// The newest sequence number that was received, and which of those before it were.
    received: u32,
    earlier: u32,
}

/// The session with one controller, whether open or not.
#[derive(Default)]
pub struct LanSession {
    handshake: Option<Handshake>,
    open: Option<OpenSession>,
    /// A session that we lost but the controller may still have.
    lost: Option<OpenSession>,
    /// The first suite of the identity that the controller has, once it is known.
    suite: usize,
    /// Codes in a row that do not match the credentials.
    bad_codes: u32,
}

impl LanSession {
    /// Whether commands can be sent.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Begins to open a session: appends the first message.
    pub fn begin(&mut self, identity: &LanIdentity, out: &mut Vec<u8>) {
        let [tag] = random();
        // 0 is no number of a session.
        let console = u32::from_le_bytes(random()) | 1;
        let zero = [0; 16];
        let handshake = Handshake {
            suite: self.suite,
            tag,
            console,
            managed: 0,
            console_random: random(),
            managed_random: zero,
            guid: zero,
            awaited: PAYLOAD_OPENED,
            is_repeated: false,
        };
        self.open = None;
        let suite = identity.suites[handshake.suite.min(identity.suites.len() - 1)];
        let mut payload = vec![tag, identity.level, 0, 0];
        payload.extend_from_slice(&console.to_le_bytes());
        for (kind, algorithm) in suite.algorithms().into_iter().enumerate() {
            payload.extend_from_slice(&[kind as u8, 0, 0, 8, algorithm, 0, 0, 0]);
        }
        put_plain(out, PAYLOAD_OPEN, &payload);
        self.handshake = Some(handshake);
    }

    /// The last message of the exchange is sent again as it was.
    pub fn repeat(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.is_repeated |= handshake.awaited == PAYLOAD_RAKP2;
        }
    }

    /// Forgets the session, which the controller may still have.
    pub fn lose(&mut self) {
        self.handshake = None;
        if let Some(open) = self.open.take() {
            self.lost = Some(open);
        }
    }

    /// Appends a message that closes a lost session, once.
    pub fn put_close_lost(&mut self, out: &mut Vec<u8>) {
        if let Some(mut lost) = self.lost.take() {
            lost.put_close(out);
        }
    }

    /// Closes the session: appends the message. Nobody waits for its answer.
    pub fn put_close(&mut self, out: &mut Vec<u8>) {
        self.handshake = None;
        if let Some(mut open) = self.open.take() {
            open.put_close(out);
        }
    }

    /// Appends a protected message with a command of this number. Nothing without an open session.
    pub fn put_command(&mut self, out: &mut Vec<u8>, command: &IpmiCommand, number: u8) {
        if let Some(open) = &mut self.open {
            open.put_command(out, command, number);
        }
    }

    /// Takes a datagram. In an exchange, `out` gets the next message.
    pub fn receive(
        &mut self,
        identity: &LanIdentity,
        datagram: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<SessionEvent, StrayDatagram> {
        let rest = datagram.strip_prefix(&RMCP).ok_or(StrayDatagram)?;
        if rest.first() != Some(&RMCP_PLUS) {
            return Err(StrayDatagram);
        }
        if let Some(open) = &mut self.open {
            return open.receive(rest).map(SessionEvent::Message);
        }
        let payload = plain_payload(rest, self.handshake.as_ref().ok_or(StrayDatagram)?.awaited)?;
        let handshake = self.handshake.as_mut().ok_or(StrayDatagram)?;
        if payload.len() < 2 || payload[0] != handshake.tag {
            return Err(StrayDatagram);
        }
        let is_last_suite = handshake.suite + 1 >= identity.suites.len();
        // With an error, a controller may leave out all that follows, as ipmi_sim does, or fill it with zeros.
        if payload[1] != 0 {
            return match refusal(payload[1]) {
                SessionRefusal::Suite if handshake.awaited == PAYLOAD_OPENED && !is_last_suite => {
                    self.suite = handshake.suite + 1;
                    self.begin(identity, out);
                    Ok(SessionEvent::Continue)
                }
                other => {
                    let is_late = handshake.is_late() && other == SessionRefusal::Credentials;
                    // A controller with other firmware may have the best suite by then.
                    (self.handshake, self.suite) = (None, 0);
                    Ok(SessionEvent::Refused(if is_late { SessionRefusal::Late } else { other }))
                }
            };
        }
        if number(payload, 4)? != handshake.console {
            return Err(StrayDatagram);
        }
        match handshake.awaited {
            PAYLOAD_OPENED => handshake.take_opened(identity, payload, out),
            PAYLOAD_RAKP2 => {
                if handshake.take_rakp2(identity, payload, out)? {
                    return Ok(SessionEvent::Continue);
                }
                let rakp3 = handshake.refusing_rakp3();
                let refused = self.bad_code()?;
                // The controller frees what it has reserved for the session.
                put_plain(out, PAYLOAD_RAKP3, &rakp3);
                Ok(refused)
            }
            _ => match handshake.take_rakp4(identity, payload)? {
                Some(open) => {
                    (self.open, self.lost) = (Some(open), None);
                    (self.handshake, self.bad_codes) = (None, 0);
                    Ok(SessionEvent::Open)
                }
                None if handshake.is_late() => {
                    self.handshake = None;
                    Ok(SessionEvent::Refused(SessionRefusal::Late))
                }
                None => self.bad_code(),
            },
        }
    }

    /// A code does not match the credentials. The controller refuses nothing, and nothing of the password is sent: the first ones count as damaged.
    fn bad_code(&mut self) -> Result<SessionEvent, StrayDatagram> {
        self.bad_codes += 1;
        if self.bad_codes < BAD_CODES_MAX {
            return Err(StrayDatagram);
        }
        (self.handshake, self.bad_codes) = (None, 0);
        Ok(SessionEvent::Refused(SessionRefusal::Credentials))
    }
}

impl Handshake {
    /// Whether RAKP 4 can be of another random number than that of the RAKP 2 that was taken.
    fn is_late(&self) -> bool {
        self.is_repeated && self.awaited == PAYLOAD_RAKP4
    }

    /// A RAKP 3 that ends the exchange.
    fn refusing_rakp3(&self) -> Vec<u8> {
        let mut rakp3 = vec![self.tag, INVALID_CHECK, 0, 0];
        rakp3.extend_from_slice(&self.managed.to_le_bytes());
        rakp3
    }

    fn suite(&self, identity: &LanIdentity) -> CipherSuite {
        identity.suites[self.suite.min(identity.suites.len() - 1)]
    }

    /// Role, length of the name, name: the end of most hashed texts.
    fn user(identity: &LanIdentity) -> Vec<u8> {
        let mut text = vec![NAME_ONLY | identity.level, identity.user.len() as u8];
        text.extend_from_slice(&identity.user);
        text
    }

    /// The answer to the request to open a session: the controller's number, and the algorithms.
    fn take_opened(
        &mut self,
        identity: &LanIdentity,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<SessionEvent, StrayDatagram> {
        self.managed = number(payload, 8)?;
        let algorithms = [16, 24, 32].map(|at| payload.get(at).copied());
        if self.managed == 0 || algorithms != self.suite(identity).algorithms().map(Some) {
            return Err(StrayDatagram);
        }
        let mut rakp1 = vec![self.tag, 0, 0, 0];
        rakp1.extend_from_slice(&self.managed.to_le_bytes());
        rakp1.extend_from_slice(&self.console_random);
        rakp1.extend_from_slice(&[NAME_ONLY | identity.level, 0, 0, identity.user.len() as u8]);
        rakp1.extend_from_slice(&identity.user);
        put_plain(out, PAYLOAD_RAKP1, &rakp1);
        self.awaited = PAYLOAD_RAKP2;
        Ok(SessionEvent::Continue)
    }

    /// The controller's random number and its proof that it knows the password. `false`: the proof does not match.
    fn take_rakp2(&mut self, identity: &LanIdentity, payload: &[u8], out: &mut Vec<u8>) -> Result<bool, StrayDatagram> {
        let suite = self.suite(identity);
        if payload.len() != 40 + suite.code_bytes() {
            return Err(StrayDatagram);
        }
        self.managed_random.copy_from_slice(&payload[8..24]);
        self.guid.copy_from_slice(&payload[24..40]);
        let (console, managed) = (self.console.to_le_bytes(), self.managed.to_le_bytes());
        let (key, user) = (identity.password.expose().as_bytes(), Self::user(identity));
        let parts: [&[u8]; 6] = [&console, &managed, &self.console_random, &self.managed_random, &self.guid, &user];
        if !suite.verify(key, &parts, &payload[40..]) {
            return Ok(false);
        }
        let mut rakp3 = vec![self.tag, 0, 0, 0];
        rakp3.extend_from_slice(&managed);
        rakp3.extend_from_slice(&suite.hmac(key, &[&self.managed_random, &console, &user]));
        put_plain(out, PAYLOAD_RAKP3, &rakp3);
        self.awaited = PAYLOAD_RAKP4;
        Ok(true)
    }

    /// The controller's proof that it derived the same keys. `None`: it has another key.
    fn take_rakp4(&self, identity: &LanIdentity, payload: &[u8]) -> Result<Option<OpenSession>, StrayDatagram> {
        let suite = self.suite(identity);
        if payload.len() != 8 + suite.integrity_bytes() {
            return Err(StrayDatagram);
        }
        let user = Self::user(identity);
        let sik = suite.hmac(identity.kg(), &[&self.console_random, &self.managed_random, &user]);
        let parts: [&[u8]; 3] = [&self.console_random, &self.managed.to_le_bytes(), &self.guid];
        if !suite.verify(&sik, &parts, &payload[8..]) {
            return Ok(None);
        }
        let keys = SessionKeys::derive(suite, &sik);
        let (console, managed) = (self.console, self.managed);
        Ok(Some(OpenSession { console, managed, keys, sent: 0, received: 0, earlier: 0 }))
    }
}

impl OpenSession {
    fn put_command(&mut self, out: &mut Vec<u8>, command: &IpmiCommand, number: u8) {
        // 0 is the number of messages outside a session.
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        let mut frame = Vec::new();
        put_command(&mut frame, command, number);
        out.extend_from_slice(&RMCP);
        let begin = out.len();
        out.extend_from_slice(&[RMCP_PLUS, PROTECTED | PAYLOAD_IPMI]);
        out.extend_from_slice(&self.managed.to_le_bytes());
        out.extend_from_slice(&self.sent.to_le_bytes());
        let mut payload = Vec::new();
        self.keys.put_encrypted(&mut payload, &frame);
        out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        out.extend_from_slice(&payload);
        let padding = (4 - (out.len() - begin + 2) % 4) % 4;
        out.extend(std::iter::repeat_n(0xff, padding));
        out.extend_from_slice(&[padding as u8, RMCP[3]]);
        let code = self.keys.sign(&out[begin..]);
        out.extend_from_slice(&code);
    }

    fn put_close(&mut self, out: &mut Vec<u8>) {
        let command = IpmiCommand::new(CLOSE_SESSION, self.managed.to_le_bytes());
        self.put_command(out, &command, 0x3f);
    }

    /// The payload of a message with these keys that was not received before.
    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<u8>, StrayDatagram> {
        if bytes.get(1) != Some(&(PROTECTED | PAYLOAD_IPMI)) || number(bytes, 2)? != self.console {
            return Err(StrayDatagram);
        }
        let sequence = number(bytes, 6)?;
        let length = bytes.get(10..12).map(|length| usize::from(u16::from_le_bytes([length[0], length[1]])));
        let end = length.filter(|length| *length <= PAYLOAD_BYTES_MAX).ok_or(StrayDatagram)? + 12;
        let signed = bytes.len().checked_sub(self.keys.suite.integrity_bytes()).ok_or(StrayDatagram)?;
        // Padding, its length, and the next header stand between the payload and the code.
        if end + 2 > signed || signed - end > 5 || !self.keys.is_signed(&bytes[..signed], &bytes[signed..]) {
            return Err(StrayDatagram);
        }
        if !self.take_sequence(sequence) {
            return Err(StrayDatagram);
        }
        self.keys.decrypt(&bytes[12..end]).ok_or(StrayDatagram)
    }

    /// Whether a message with this sequence number is new.
    fn take_sequence(&mut self, sequence: u32) -> bool {
        let ahead = sequence.wrapping_sub(self.received);
        let behind = self.received.wrapping_sub(sequence);
        if sequence == 0 || ahead == 0 {
            return false;
        }
        // The first message decides where the numbers begin.
        if ahead < 1 << 31 || self.received == 0 {
            self.earlier = match ahead.checked_sub(1).map(|last| (last, self.earlier.checked_shl(ahead))) {
                Some((last, earlier)) if last < WINDOW => earlier.unwrap_or(0) | 1 << last,
                _ => 0,
            };
            self.received = sequence;
            return true;
        }
        if behind > WINDOW {
            return false;
        }
        let bit = 1 << (behind - 1);
        let is_new = self.earlier & bit == 0;
        self.earlier |= bit;
        is_new
    }
}

/// Appends a message outside a session.
fn put_plain(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.extend_from_slice(&RMCP);
    out.extend_from_slice(&[RMCP_PLUS, kind, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The payload of a message of this kind outside a session.
fn plain_payload(bytes: &[u8], kind: u8) -> Result<&[u8], StrayDatagram> {
    if bytes.get(1) != Some(&kind) {
        return Err(StrayDatagram);
    }
    let length = bytes.get(10..12).ok_or(StrayDatagram)?;
    let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
    if length > PAYLOAD_BYTES_MAX {
        return Err(StrayDatagram);
    }
    bytes.get(12..12 + length).ok_or(StrayDatagram)
}

fn number(bytes: &[u8], at: usize) -> Result<u32, StrayDatagram> {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_le_bytes).ok_or(StrayDatagram)
}

/// The meaning of a status (table 13-15).
fn refusal(status: u8) -> SessionRefusal {
    match status {
        0x01 | 0x0b => SessionRefusal::NoneFree,
        0x04..=0x07 | 0x10 | 0x11 => SessionRefusal::Suite,
        0x09 | 0x0a => SessionRefusal::Level,
        0x0c | 0x0d | 0x0f => SessionRefusal::Credentials,
        other => SessionRefusal::Other(other),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
