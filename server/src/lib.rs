//! The server: takes what agents publish, keeps it, and answers for it.
//!
//! - In: MQTT connections (TCP and TLS) from agents, HTTPS requests from clients, a configuration file.
//! - Out: acknowledgements of what is durable, live messages to subscribers, answers as JSON, CSV and Arrow, own metrics.
//! - Never: an acknowledgement of what is not yet durable; a reading dropped to keep up; a bad client that disturbs a good one.
//!
//! `broker/` speaks MQTT (its [`broker::pipeline`] does no I/O), `http/` speaks HTTP, `access/` says who may do what, `admission/`
//! how many connections there may be, [`init`]
//! makes the files of a fresh installation, [`config`] reads `server.toml`, `reload` reads it again. Storing and querying are the crates `store` and `query`.

pub mod access;
mod adjust;
mod admission;
pub mod authority;
pub mod broker;
pub mod certificates;
pub mod config;
pub mod control;
pub mod http;
pub mod init;
pub mod interop;
pub mod jobs;
mod live;
pub mod log;
mod memory;
pub mod metrics;
mod net;
mod pki;
pub mod prometheus;
mod reload;
mod retention;
mod serve;
mod service;

pub use config::{SecurityFiles, ServerConfig};
pub use init::{
    AgentOptions, AgentReport, InitOptions, InitReport, add_agent, init, init_system, issue_agent_certificate,
};
pub use serve::{Addresses, run, run_until_signal};
/// Checking a store's files, for the command line.
pub use wholegrain_store::{backup, loss_records, path_owners, repair, verify};
