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

mod append;
pub mod backup;
mod block;
mod catalogue;
mod chunk;
mod clock;
mod computed;
mod config;
mod database;
mod delete;
pub mod disk;
mod embedded;
mod error;
mod expiry;
pub mod holes;
pub mod import;
mod jobs;
mod journal;
mod live;
mod live_columns;
mod log;
mod losses;
mod maintenance;
mod merge;
mod open;
mod overlap;
pub mod path_owners;
mod paths;
mod prefetch;
mod progress;
mod properties;
mod publish;
mod quarantine;
mod ranges;
mod read_store;
mod readings;
mod registration;
pub mod registry;
pub mod repair;
mod replay;
mod retention;
mod scan;
mod schemaless;
mod seal;
mod segment;
mod sensors;
mod settings;
mod snapshot;
mod stats;
mod store;
mod synced;
mod tiers;
mod time;
pub mod verify;
mod view;

pub use append::{AppendCallback, AppendOutcome};
pub use block::windows::{TierWindow, TierWindows, WindowColumns, WindowEdge, WindowEdges, WindowLines};
pub use chunk::Chunk;
pub use clock::Clock;
pub use computed::key::{CacheKey, PIECE_BYTES_MAX, SnapshotVersion};
pub use computed::{CachedResults, ResultCache};
pub use config::{RETENTION_RULES_MAX, RetentionRule, StoreConfig};
pub use delete::{DELETE_PATTERNS_MAX, Deletion, DeletionReport};
pub use error::StoreError;
pub use import::{IMPORT_ROWS_MAX, ImportReport, ImportSeries, ImportState};
pub use jobs::list::{JobFilter, JobList, JobRow, JobState};
pub use jobs::{JobAllocation, JobRun, JobSearchResult};
pub use live::{LiveBatch, LiveItem};
pub use losses::{LossRecord, loss_records};
pub use maintenance::{CancellableProgress, CompactionReport, SUBTREES_MAX, SubtreeUsage};
pub use read_store::{
    CHUNK_ROWS_MAX, ChunkIter, ReadSnapshot, ReadStore, Resolution, Scan, ScanPart, ScanPartIter, ScanRequest,
    SensorRange, SnapshotReader,
};
pub use readings::{LiveReadings, READINGS_MAX, Reading, SchemalessSensor};
pub use retention::rules::RuleInForce;
pub use sensors::info::{SensorId, SensorInfo};
pub use settings::{Property, PropertyOrigins, PropertySetting, SETTINGS_MAX, SensorSetting, SetReport};
pub use snapshot::Snapshot;
pub use stats::{OpenReport, StoreStats};
pub use store::Store;
pub use tiers::{TIERS_MAX, check_tiers};
