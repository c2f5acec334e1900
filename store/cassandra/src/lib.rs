//! Apache Cassandra as the store of many servers.
//!
//! - In: sealed blocks of the server's local store ([`wholegrain_store::Store`]); deletions; schemas and sensors.
//! - Out: readings in chunks that all servers can read; a [`wholegrain_store::ReadStore`] of local store and chunks together.
//! - Never: a reading that is in neither; a chunk that counts before its upload is complete; a block that is released before.
//!
//! The local store receives, acknowledges and seals. [`upload`] writes each sealed block as chunks (`encode`, `body`, `layout`); a row in the table
//! of commits completes it, and then the block is released. `view` has what all servers share about the chunks; `snapshot` and `slices` read them
//! (`extents` says which partitions there are); `catalogue` exchanges schemas and sensors, `settings` what users set; `member` knows the
//! servers; `joining` waits until Cassandra answers, `shared` and `deletion` do what needs it; `stamps` orders it; `migrations` makes the tables. `store/CASSANDRA.md` describes every
//! table and every byte.

mod body;
mod catalogue;
mod config;
mod deletion;
mod encode;
mod extents;
mod joining;
mod layout;
mod member;
mod migrations;
mod newest;
mod session;
mod settings;
mod shared;
mod slices;
mod snapshot;
mod stamps;
mod store;
mod upload;
mod view;

pub use config::{CassandraConfig, ConsistencyLevel, KeyspaceOptions, check_keyspace};
pub use store::{CassandraStore, UploadStats, create};
