//! A blocking MQTT client for one thread: the agent's sender.
//!
//! - In: batches to publish, filters to subscribe to; a descriptor that wakes it.
//! - Out: packets on a TCP or TLS connection, as many in one system call as are buffered; [`Event`]s.
//! - Never: a thread, an unbounded wait or buffer, a reconnect of its own: after an error the caller makes a new one, and
//!   publishes again what was not acknowledged.

mod link;
mod session;
mod url;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use session::Client;
pub use url::Url as Address;

use crate::mqtt::{CodecError, ReasonCode, Text, Version};

/// How many unacknowledged messages a 3.1.1 server, which cannot say it, is taken to bear.
pub const RECEIVE_MAX_V311: u16 = 64;

/// The bytes that may wait to be sent before [`Client::publish`] itself waits for the network.
pub const SEND_BUFFER_BYTES_MAX: usize = 1 << 20;
/// How many of a name's addresses are tried.
pub const ADDRESSES_MAX: usize = 8;

/// How to reach the server.
#[derive(Clone)]
pub struct ClientConfig {
    /// `mqtt://host:port` or `mqtts://host:port`; without a port 1883 and 8883.
    pub url: String,
    pub version: Version,
    /// The client's name at the server.
    pub client_id: String,
    pub user: Option<String>,
    /// Password; only beside a user name.
    pub password: Option<String>,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The longest silence; 0 for no bound.
    pub keep_alive: Duration,
    /// For TCP on all addresses of the host, TLS and CONNACK together. The name look-up has the system's own bounds.
    pub connect_timeout: Duration,
    /// How long the server may take nothing while there is something to be sent.
    pub send_timeout: Duration,
    /// The largest packet taken.
    pub packet_bytes_max: usize,
}

impl fmt::Debug for ClientConfig {
    /// Without the password, which must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("url", &self.url)
            .field("version", &self.version)
            .field("client_id", &self.client_id)
            .field("user", &self.user)
            .field("tls", &self.tls.is_some())
            .field("keep_alive", &self.keep_alive)
            .finish_non_exhaustive()
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            url: "mqtt://localhost:1883".into(),
            version: Version::V5,
            client_id: String::new(),
            user: None,
            password: None,
            tls: None,
            keep_alive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            packet_bytes_max: 1 << 20,
        }
    }
}

/// Why the client could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration cannot be used.
    #[error("MQTT server {url:?}: {problem}")]
    Config {
        url: String,
        /// What is wrong and what to do.
        problem: String,
    },
    #[error("cannot connect to MQTT server {url}: {problem}")]
    Connect {
        url: String,
        /// What each address said.
        problem: String,
    },
    /// The server said no.
    #[error("MQTT server {url} refused the connection: {reason}{}{}", if text.is_empty() { "" } else { ": " }, text)]
    Refused {
        url: String,
        reason: ReasonCode,
        /// In the server's words.
        text: String,
    },
    /// The server ended the connection.
    #[error("MQTT server {peer} ended the connection: {problem}")]
    Closed {
        peer: SocketAddr,
        /// What it said, if anything.
        problem: String,
    },
    #[error("connection to MQTT server {peer}: {error}")]
    Io {
        peer: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The server did not answer in time.
    #[error("MQTT server {peer} did not {what} within {after:?}")]
    Timeout {
        peer: SocketAddr,
        /// What it did not do.
        what: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The server's bytes or the caller's packet break the protocol.
    #[error("MQTT server {peer}: {error}")]
    Codec { peer: SocketAddr, error: CodecError },
    /// As many messages are in flight as the server takes: wait for an acknowledgement. The connection is sound.
    #[error("{0} messages are in flight already, as many as the server takes")]
    WindowFull(u16),
    /// The message is larger than the server takes. The connection is sound.
    #[error("message of {bytes} bytes, the server takes {max}; raise its packet limit or send smaller batches")]
    TooLarge { bytes: usize, max: usize },
}

/// What the server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message published with QoS 1 is the server's now, unless `reason` is an error.
    Acked {
        packet_id: u16,
        /// Success, or why it was refused.
        reason: ReasonCode,
    },
    /// A subscription was answered.
    Subscribed {
        packet_id: u16,
        /// The granted quality of service, or why it was refused.
        reason: ReasonCode,
    },
    /// A message of a subscription; already acknowledged.
    Message {
        topic: Text,
        payload: Bytes,
        /// Whether it was retained at the server.
        retain: bool,
    },
}
