//! The embedded store: what is acknowledged is here, once, and anyone can read it.
//!
//! - In: schemas ([`Store::register_schema`]) and batches in the native payload ([`Store::append`]); sensors without a schema
//!   ([`Store::register_sensors`]) and their readings ([`Store::append_readings`]).
//! - Out: an answer to each batch after it is on disk; the sensors known; [`Snapshot`]s that give the readings of a sensor in
//!   time order; live batches and readings for subscribers; Parquet files that any reader opens without this program.
//! - Never: an acknowledgement before the fsync; a reading twice; a block half written that a reader could see; a refusal to
//!   open because a crash tore the end of the journal.
//!
//! The life of a batch: [`Store::append`] checks it and puts it into a bounded queue; the journal thread writes all that waits with one
//! write and one fsync (`journal.rs`), shows it to readers (`live.rs`) and answers; a sealer turns whole journal segments into
//! Parquet blocks (`seal.rs`, `block/`); a merger makes large blocks of small ones (`merge.rs`) and downsampled tiers of them (`tiers/`);
//! retention drops what is too old (`retention/`). The catalogue (`catalogue.rs`) says which blocks count. `FORMAT.md` describes every byte.

mod ahead;
mod aside;
mod block;
mod catalogue;
mod clock;
mod config;
mod database;
pub mod disk;
mod error;
mod jobs;
mod journal;
mod live;
mod log;
mod loose;
mod merge;
mod open;
mod properties;
mod publish;
mod ranges;
mod readings;
mod replay;
mod retention;
mod scan;
mod seal;
mod segment;
mod sensors;
mod snapshot;
mod stats;
mod store;
mod tiers;
pub mod verify;

pub use clock::Clock;
pub use config::StoreConfig;
pub use error::StoreError;
pub use jobs::list::{JobFilter, JobList, JobRow, JobState};
pub use jobs::{JobAllocation, JobFound, JobRun};
pub use live::LiveBatch;
pub use readings::{LiveItem, LiveReadings, LooseSensor, READINGS_MAX, Reading};
pub use retention::policy::{RETENTION_RULES_MAX, RetentionRule};
pub use sensors::{SensorId, SensorInfo};
pub use snapshot::{Chunk, Snapshot};
pub use stats::{OpenReport, StoreStats};
pub use store::{Appended, Done, Store};
pub use tiers::scan::PartIter;
pub use tiers::{Part, Rows, TIERS_MAX, Window, Windows, check_tiers};
