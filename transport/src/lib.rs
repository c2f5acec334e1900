//! What agent and server say to each other, and how it survives when one of them is away.
//!
//! - In: batches and schemas of [`wholegrain_model`]; bytes from sockets, files and PEM files.
//! - Out: the native [`payload`], MQTT packets ([`mqtt`]), the agent's connection ([`client`]), its queue on disk
//!   ([`spool`]), [`tls`] configurations and [`topics`]. `FORMAT.md` beside this crate gives every byte.
//! - Never: an async runtime, a thread of its own, a decision about what is sampled or stored. What arrives from a
//!   network or a disk is never trusted: no panic and no large allocation from a length that lies.

pub mod client;
pub mod mqtt;
pub mod payload;
pub mod spool;
pub mod tls;
pub mod topics;
