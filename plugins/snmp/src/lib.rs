//! Sensors of devices that speak SNMP, in the versions 1, 2c and 3.
//!
//! - In: `[plugins.snmp]` with lists of devices; the answers of their agents over UDP.
//! - Out: a group for each group of each device, with the sensors that its agent has; the group `snmp` with counts of polls.
//! - Never: a write to a device; trust in a datagram; a value that an agent did not send.
//!
//! `README.md` has the settings.

pub mod ber;
mod config;
pub mod exchange;
mod layout;
pub mod message;
mod names;
pub mod session;
mod source;
mod spec;
mod usm;

pub use source::SOURCE;

wholegrain_plugin::export!(SOURCE);
