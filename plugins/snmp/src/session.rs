//! Messages to and from one agent, in the version that its credentials ask for.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use wholegrain_devices::SecretText;

use crate::ber::BerError;
use crate::message::{self, PduAnswer, PduRequest};
use crate::usm::{UsmMessage, UsmSession, UsmUser};

/// Who we are for an agent.
#[derive(Clone)]
pub enum SnmpIdentity {
    /// Version 1 (0) or 2c (1), with a community.
    Community { version: u8, community: SecretText },
    /// Version 3 with a user.
    User(Arc<UsmUser>),
}

/// Numbers and reads the messages of one agent.
pub struct SnmpSession {
    kind: SessionKind,
    /// The number of the last request. It begins at random, so that nobody off the path can answer.
    id: i32,
}

enum SessionKind {
    Community { version: u8, community: SecretText },
    User(Box<UsmSession>),
}

/// A message that fits the last request.
#[derive(Debug, PartialEq)]
pub enum SnmpReply {
    Answer(PduAnswer),
    /// The request is to be sent again: the agent's engine is known now.
    SendAgain,
    /// The agent refuses the credentials.
    Refused(&'static str),
}

impl SnmpSession {
    /// A session with an agent that has not been asked yet.
    pub fn new(identity: &SnmpIdentity) -> Self {
        let random = RandomState::new();
        let kind = match identity {
            SnmpIdentity::Community { version, community } => {
                SessionKind::Community { version: *version, community: community.clone() }
            }
            SnmpIdentity::User(user) => {
                SessionKind::User(Box::new(UsmSession::new(user.clone(), random.hash_one("salt"))))
            }
        };
        Self { kind, id: (random.hash_one("request") & 0x3fff_ffff) as i32 }
    }

    /// Whether the agent knows GETBULK.
    pub fn has_bulk(&self) -> bool {
        !matches!(self.kind, SessionKind::Community { version: 0, .. })
    }

    /// How often the agent was started, if its version says so.
    pub fn boots(&self) -> Option<i64> {
        match &self.kind {
            SessionKind::Community { .. } => None,
            SessionKind::User(session) => session.boots(),
        }
    }

    /// Forgets what the agent said about itself.
    pub fn reset(&mut self) {
        if let SessionKind::User(session) = &mut self.kind {
            session.reset();
        }
    }

    /// Appends a message with a request of a new number; the number of `request` is ignored.
    pub fn put_request(&mut self, out: &mut Vec<u8>, request: &PduRequest<'_>, now_ns: i64) {
        self.id = if self.id == i32::MAX { 1 } else { self.id + 1 };
        let request = PduRequest { id: self.id, ..*request };
        match &mut self.kind {
            SessionKind::Community { version, community } => {
                message::put_community_message(out, *version, community.expose().as_bytes(), &request);
            }
            SessionKind::User(session) => session.put_message(out, self.id, &request, now_ns),
        }
    }

    /// Reads a datagram. An error means that it is not the answer to the last request.
    pub fn read(&mut self, bytes: &[u8], now_ns: i64) -> Result<SnmpReply, BerError> {
        let answer = match &mut self.kind {
            SessionKind::Community { version, community } => {
                message::read_community_message(bytes, *version, community.expose().as_bytes())?
            }
            SessionKind::User(session) => match session.read_message(bytes, self.id, now_ns)? {
                UsmMessage::Answer(answer) => answer,
                UsmMessage::Synchronised => return Ok(SnmpReply::SendAgain),
                UsmMessage::Refused(why) => return Ok(SnmpReply::Refused(why)),
            },
        };
        if answer.id != i64::from(self.id) || answer.kind != message::RESPONSE {
            return Err(BerError("another number of the request"));
        }
        Ok(SnmpReply::Answer(answer))
    }
}
