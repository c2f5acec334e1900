//! The wire formats between agent and server, the agent's MQTT client, and its spool for the time without a connection.
//!
//! - In: batches and schemas of [`wholegrain_model`]; bytes from sockets, files and PEM files.
//! - Out: the native [`payload`], MQTT packets ([`mqtt`]), the agent's connection ([`client`]), its queue on disk
//!   ([`spool`]), [`tls`] configurations and [`topics`]. `FORMAT.md` beside this crate specifies every byte.
//! - Never: an async runtime, a thread of its own, a decision about sampling or storage. Input from a network or a disk is not trusted: it
//!   causes no panic, and a false length causes no large allocation.

pub mod client;
mod host;
pub mod mqtt;
pub mod payload;
pub mod spool;
pub mod tls;
pub mod topics;

pub use host::host_name;
