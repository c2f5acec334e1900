//! Bounds of the line protocol.

/// The longest request with its newline, in bytes.
pub const LINE_BYTES_MAX: usize = 4096;
pub const CONNECTIONS_MAX: usize = 1024;
/// The most connections of one user: a process on each core of a large node.
pub const CONNECTIONS_OF_USER_MAX: usize = 512;
/// The most selections of one connection.
pub const HANDLES_MAX: usize = 16;
/// The most sensors of one response or one selection.
pub const SENSORS_MAX: usize = 1024;
/// The fraction of one processor for the requests of one user; beyond it they wait.
pub const USER_SHARE: f64 = 0.05;
/// The time that a user may take at once: 100 ms.
pub const USER_BURST_NS: i64 = 100_000_000;
