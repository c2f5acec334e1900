//! The daemon on the node: samples, caches, pushes, spools, answers.
//!
//! - In: a configuration, the sources' groups, requests over a Unix socket and HTTPS.
//! - Out: batches and schemas over MQTT, a spool on disk while the server is away, answers from memory.
//! - Never: an async runtime; a sample that waits for a network, a disk or a lock; a value in the place of one that could
//!   not be read; memory, disk or a queue without a bound.
//!
//! The life of a sample: [`engine`] reads it into its group's ring, [`encoder`] makes a batch of what a ring holds and puts it
//! into the [`cache`] and the [`outbox`], [`sender`] brings it to the server. [`manager`] decides which groups there are, [`api`]
//! answers people.

pub mod agent;
pub mod api;
pub mod cache;
pub mod check;
pub mod config;
pub mod counters;
pub mod encoder;
pub mod engine;
pub mod heap;
pub mod jobs;
pub mod log;
pub mod manager;
pub mod once;
pub mod outbox;
pub mod selfstat;
pub mod sender;
pub mod service;
pub mod state;
pub mod waker;

pub use agent::{Shutdown, run};
pub use config::Config;
