//! Bounds of connections and requests.

use std::time::Duration;

/// The most connections at a time to the administrator's socket.
pub const CONNECTIONS_MAX: usize = 16;
/// The most HTTPS connections of callers with a token; one caller gets half of them.
pub const HTTPS_CONNECTIONS_MAX: usize = 32;
/// HTTPS connections reserved for administrators.
pub const HTTPS_RESERVED: usize = 4;
/// The most HTTPS connections of callers without a valid token so far; one machine gets half of them.
pub const UNAUTHENTICATED_MAX: usize = 32;
/// The most connections to the users' socket; one user gets half of them, and fewer when there are others.
pub const USERS_CONNECTIONS_MAX: usize = 256;
/// The stack of a connection's thread: 256 KiB, for TLS and JSON.
pub(super) const STACK_BYTES: usize = 256 << 10;
/// The most requests of one connection.
pub(super) const REQUESTS_MAX: usize = 1000;
/// The longest time for receiving a request: 20 s.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest time for sending a response: 60 s.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed accept: 10 ms.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Requests of one user in a minute over all connections: they take processor time that is not accounted to the user's jobs. The line protocol serves
/// programs that need more.
pub const REQUESTS_PER_MINUTE: u32 = 600;
/// Logged refusals in a minute, of one caller and of all.
pub(super) const REFUSALS_PER_MINUTE: (u32, u32) = (10, 60);
