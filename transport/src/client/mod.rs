//! A blocking MQTT client for one thread: the agent's sender.
//!
//! - In: messages to publish, filters to subscribe to, a descriptor that wakes it.
//! - Out: packets on a TCP or TLS connection, all buffered ones with one system call; [`Event`]s.
//! - Never: a thread, an unbounded wait or buffer, a reconnect: after an error the caller connects again and publishes unacknowledged messages
//!   again.

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

/// The assumed Receive Maximum of a 3.1.1 server, which cannot report one.
pub const RECEIVE_MAX_V311: u16 = 64;

/// The most buffered bytes; beyond it [`Client::publish`] waits for the network.
pub const SEND_BUFFER_BYTES_MAX: usize = 1 << 20;
/// The most addresses of a name that are tried.
pub const ADDRESSES_MAX: usize = 8;

/// The address of the server, and the settings of the connection.
#[derive(Clone)]
pub struct ClientConfig {
    /// `mqtt://host:port` or `mqtts://host:port`; without a port 1883 and 8883.
    pub url: String,
    /// The address to connect to in place of those of the URL's host. TLS still verifies the name in the URL.
    pub address: Option<SocketAddr>,
    pub version: Version,
    /// The client's name at the server.
    pub client_id: String,
    pub user: Option<String>,
    /// Password; only beside a user name.
    pub password: Option<String>,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The keep-alive interval; 0 for none.
    pub keep_alive: Duration,
    /// The timeout for TCP on all addresses of the host, TLS and CONNACK together. The resolver has the system's own timeouts.
    pub connect_timeout: Duration,
    /// The longest time in which the server takes none of the buffered bytes.
    pub send_timeout: Duration,
    /// How long a server may send nothing while messages or a ping are unanswered; after a third of it the client pings. A server that cannot store for
    /// now answers pings. `None`: only the keep-alive interval counts.
    pub answer_timeout: Option<Duration>,
    /// The largest packet that is accepted.
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
            address: None,
            version: Version::V5,
            client_id: String::new(),
            user: None,
            password: None,
            tls: None,
            keep_alive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            answer_timeout: None,
            packet_bytes_max: 1 << 20,
        }
    }
}

/// Why the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration cannot be used.
    #[error("MQTT server {url:?}: {problem}")]
    Config {
        url: String,
        /// The problem and its remedy.
        problem: String,
    },
    #[error("cannot connect to MQTT server {url}: {problem}")]
    Connect {
        url: String,
        /// The error of each address.
        problem: String,
    },
    /// The server refused the connection.
    #[error("MQTT server {url} refused the connection: {reason}{}{}", if text.is_empty() { "" } else { ": " }, text)]
    Refused {
        url: String,
        reason: ReasonCode,
        /// The server's reason string.
        text: String,
    },
    /// The server ended the connection.
    #[error("MQTT server {peer} ended the connection: {problem}")]
    Closed {
        peer: SocketAddr,
        /// The server's reason, if it gave one.
        problem: String,
    },
    #[error("connection to MQTT server {peer}: {error}")]
    Io {
        peer: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The server did not respond in time.
    #[error("MQTT server {peer} did not {what} within {after:?}")]
    Timeout {
        peer: SocketAddr,
        /// The expected action of the server.
        what: &'static str,
        /// The timeout that has passed.
        after: Duration,
    },
    /// The server's bytes or the caller's packet break the protocol.
    #[error("MQTT server {peer}: {error}")]
    Codec { peer: SocketAddr, error: CodecError },
    /// The server's window is full: wait for an acknowledgement. The connection is usable.
    #[error("{0} messages are in flight already, as many as the server takes")]
    WindowFull(u16),
    /// The message is larger than the server accepts. The connection is usable.
    #[error("message of {bytes} bytes, the server takes {max}; raise its packet limit or send smaller batches")]
    TooLarge { bytes: usize, max: usize },
}

/// An event from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The server acknowledged a QoS 1 message; it has accepted the message unless `reason` is an error.
    Acked {
        packet_id: u16,
        /// Success, or the reason of the refusal.
        reason: ReasonCode,
    },
    /// The server has granted or refused a subscription.
    Subscribed {
        packet_id: u16,
        /// The granted QoS, or the reason of the refusal.
        reason: ReasonCode,
    },
    /// A message of a subscription; already acknowledged.
    Message {
        topic: Text,
        payload: Bytes,
        /// Whether the server had retained it.
        retain: bool,
    },
}
