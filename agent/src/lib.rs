//! The daemon on the node: samples, caches, pushes, spools, answers.
//!
//! - In: a configuration, the sources' groups, requests over a Unix socket and HTTPS.
//! - Out: batches and schemas over MQTT, a spool on disk while the server is away, answers from memory.
//! - Never: an async runtime; a sample that waits for a network, a disk or a lock; a value in the place of one that could
//!   not be read; memory, disk or a queue without a bound.
//!
//! The life of a sample: [`engine`] reads it into its group's ring, [`encoder`] makes batches of the rings and puts them into the [`cache`] and the
//! [`send_queue`], [`sender`] brings them to the server. [`manager`] decides which groups there are, and changes them through [`reconcile`]; [`api`]
//! serves administrators, users and jobs. Each part gets handles of the others in its constructor; [`agent`] wires them.

pub mod agent;
pub mod api;
pub mod batch;
pub mod cache;
pub mod check;
pub mod config;
pub mod counters;
pub mod encoder;
pub mod engine;
pub mod heap;
pub mod identity;
pub mod jobs;
pub mod log;
mod log_limiter;
pub mod manager;
pub mod once;
pub mod plugins;
pub mod rate_limit;
pub mod readings;
pub mod reconcile;
pub mod rediscovery;
pub mod refusal;
pub mod registry;
pub mod selfstat;
pub mod send_queue;
pub mod sender;
pub mod service;
pub mod status;
mod sync;
pub mod waker;

pub use agent::{AgentHandles, Shutdown, run};
pub use config::Config;
