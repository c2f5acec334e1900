//! The MQTT broker: versions 3.1.1 and 5, over TCP and TLS.
//!
//! - Input: connections. Output: batches and schemas in the store, acknowledgements, messages to subscribers.
//! - Never: an acknowledgement before the store has made the data durable; an agent under another's name.
//!
//! A connection is a task (`connection/`) around a [`crate::ingest::PublishPipeline`], which decides on publishes and does no I/O. [`subscriptions`]
//! distributes messages; [`crate::access`] authenticates and authorizes clients.
//!
//! A session outlives its connection: [`session`] is the state machine of one, without I/O, [`sessions`] the registry, `housekeeping.rs` the task
//! that ends sessions and publishes wills in time.
//!
//! Limitations: sessions are in memory and do not survive a restart, after which CONNACK says so; the same holds for retained messages except
//! schemas, which agents announce again. There is no extended authentication (AUTH), no response information and no server redirection. QoS 0
//! messages are not queued for disconnected clients. MQTT 3.1 (protocol level 3) is refused.

mod aliases;
pub mod config;
mod connect;
mod connection;
mod fairness;
mod housekeeping;
mod listener;
pub mod message;
mod rate;
pub mod replay;
pub mod retained;
mod rights;
pub mod session;
pub mod sessions;
mod shared;
pub mod signals;
pub mod subscriptions;
mod trie;
mod wire;

pub(crate) use shared::Broker;
