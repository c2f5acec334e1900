//! The embedded store of readings: what it has acknowledged is stored once, survives crashes, and can be read by anyone.
//!
//! - In: schemas ([`Store::register_schema`]) and batches in the native payload ([`Store::append`]); schemaless sensors
//!   ([`Store::register_sensors`]) and their readings ([`Store::append_readings`]).
//! - Out: an answer to each batch after it is on disk; the sensors; [`Snapshot`]s that give the readings of a sensor in time order; live
//!   batches and readings for subscribers; Parquet files that any reader opens without this program.
//! - Never: an acknowledgement before the fsync; a reading twice; a half-written block that a reader could see; a refusal to open because a
//!   crash tore the end of the journal.
//!
//! A batch goes through these components: [`Store::append`] checks it and queues it (`wal/`); the journal thread writes all queued batches with
//! one write and one fsync, shows them to readers (`head/`) and answers; the sealer writes whole journal segments as Parquet blocks (`block/`,
//! `compaction/`); the compactor merges small blocks into large ones and downsamples them into tiers (`downsample/`); retention drops what is too
//! old (`retention/`). The file set (`files/`) commits every change of the blocks to the catalogue (`catalogue/`) and makes it visible.
//! `engine/` wires the components and owns the threads. `FORMAT.md` describes every byte.
//!
//! `testing/tests/layers.rs` lists the layers: a component takes in its constructor what it needs, and imports nothing from a higher layer.

mod append;
mod block;
mod catalogue;
mod chunk;
mod clock;
mod compaction;
mod computed;
mod config;
mod database;
mod deletes;
pub mod disk;
mod downsample;
mod embedded;
mod engine;
mod error;
mod expiry;
mod files;
mod head;
pub mod holes;
mod imports;
mod jobs;
mod losses;
mod maintenance;
pub mod path_owners;
mod paths;
mod progress;
mod ranges;
mod read_store;
mod registration;
pub mod registry;
mod retention;
mod retention_policy;
mod scan;
mod sealed;
mod segment;
mod sensors;
mod settings;
mod snapshot;
mod stats;
mod time;
mod wal;
mod work;

pub use maintenance::{backup, verify};

/// Repair of damaged files.
pub mod repair {
    pub use crate::engine::repair::repair;
    pub use crate::maintenance::repair::{RebuildReport, RepairReport, RepairedFile};
}

pub use append::{AppendCallback, AppendOutcome};
pub use block::windows::{TierWindow, TierWindows, WindowColumns, WindowEdge, WindowEdges, WindowLines};
pub use catalogue::imports::ImportState;
pub use chunk::Chunk;
pub use clock::Clock;
pub use compaction::CompactionReport;
pub use computed::key::{CacheKey, PIECE_BYTES_MAX, SnapshotVersion};
pub use computed::{CachedResults, ResultCache};
pub use config::{RETENTION_RULES_MAX, RetentionRule, StoreConfig, TIERS_MAX, check_tiers};
pub use deletes::{DELETE_PATTERNS_MAX, Deletion, DeletionReport};
pub use engine::Store;
pub use error::StoreError;
pub use head::live::{LiveBatch, LiveItem};
pub use head::readings::LiveReadings;
pub use imports::{IMPORT_ROWS_MAX, ImportReport, ImportSeries};
pub use jobs::list::{JobFilter, JobList, JobRow, JobState};
pub use jobs::{JobAllocation, JobRun, JobSearchResult};
pub use losses::{LossRecord, loss_records};
pub use maintenance::usage::{SUBTREES_MAX, SubtreeUsage};
pub use progress::CancellableProgress;
pub use read_store::{
    CHUNK_ROWS_MAX, ChunkIter, ReadSnapshot, ReadStore, Resolution, Scan, ScanPart, ScanPartIter, ScanRequest,
    SensorRange, SnapshotReader,
};
pub use retention::rules::RuleInForce;
pub use scan::{ChunkSource, MergeInput, MergedChunks};
pub use sealed::{SealedBlock, SealedReader};
pub use sensors::info::{SensorId, SensorInfo};
pub use sensors::reading::{GAP, GAP_BITS, READINGS_MAX, Reading, SchemalessSensor};
pub use settings::{Property, PropertyOrigins, PropertySetting, SETTINGS_MAX, SensorSetting, SetReport};
pub use snapshot::Snapshot;
pub use stats::{OpenReport, StoreStats};
