//! Sensors of management controllers that speak IPMI: over the network (RMCP+, IPMI 2.0), and of this machine through the kernel's device.
//!
//! - In: `[plugins.ipmi]` with lists of devices; the replies of their controllers.
//! - Out: for each device the groups `sensors`, `power` (DCMI) and `sel` (counts of events); the group `ipmi` with counts of polls.
//! - Never: a command that changes a device; trust in a datagram; a message without integrity and encryption in a session; the whole event log
//!   again.
//!
//! `README.md` has the settings.

mod bmc;
mod catalogue;
mod config;
mod event_log;
mod inband;
mod lan;
pub mod message;
mod names;
mod record;
mod repository;
pub mod session;
mod source;
pub mod suite;

pub use source::SOURCE;

wholegrain_plugin::export!(SOURCE);
