//! The server: receives data from agents, stores it, and answers queries.
//!
//! - In: MQTT connections (TCP and TLS) from agents, HTTPS requests from clients, a configuration file.
//! - Out: acknowledgements, messages to subscribers, responses in JSON, CSV and Arrow, metrics.
//! - Never: an acknowledgement before the data is on stable storage; a dropped reading under load; a bad client that affects others.
//!
//! `ingest/` takes publishes to the store (its [`ingest::pipeline`] does no I/O), `broker/` implements MQTT, `http/` the HTTP API, `access/`
//! authorization, `admission/` limits on connections, `control/` commands to agents, `interop/` formats of other systems, `remote/` the client of
//! other brokers. [`init`] creates the files of an installation, [`config`] reads `server.toml`, `reload` reads it again. The crates `store` and
//! `query` store and query.

pub mod access;
mod admission;
pub mod authority;
pub mod broker;
pub mod certificates;
pub mod config;
pub mod control;
pub mod http;
pub mod ingest;
pub mod init;
pub mod interop;
pub mod jobs;
mod lifetime;
mod live_feed;
mod live_text;
pub mod log;
pub mod log_limit;
mod memory;
pub mod metrics;
mod net;
mod permits;
mod pki;
pub mod prometheus;
mod protobuf;
mod reload;
mod remote;
mod serve;
mod service_manager;
mod settings;
mod text_topics;
mod token_permits;

pub use config::{SecurityFiles, ServerConfig};
pub use init::{
    AgentOptions, AgentReport, InitOptions, InitReport, add_agent, init, init_cassandra, init_system,
    issue_agent_certificate,
};
pub use serve::{BoundAddresses, run, run_until_signal};
/// The command line checks a store's files with these.
pub use wholegrain_store::{backup, loss_records, path_owners, repair, verify};
