//! Stored readings: retention, deletion, imports, losses, statistics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::UtcTime;

/// A retention rule to set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetRetention {
    pub pattern: String,
    /// How long readings are kept, such as 30d; or forever.
    pub keep: String,
    /// How long the tiers are kept, by the length of their windows; other tiers are kept as long as the readings.
    #[serde(default)]
    pub tiers: BTreeMap<String, String>,
}

/// The retention rules in their order of precedence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetentionList {
    pub rules: Vec<StatedRetention>,
    /// How long readings without a rule are kept.
    pub default: String,
}

/// A retention rule in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatedRetention {
    pub pattern: String,
    pub keep: String,
    pub tiers: BTreeMap<String, String>,
    pub source: RetentionSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<UtcTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RetentionSource {
    Set,
    Configuration,
}

/// A range of readings to delete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteReadings {
    pub patterns: Vec<String>,
    /// The start of the range, included; written as in a query.
    pub from: String,
    /// The end of the range, excluded.
    pub to: String,
}

/// Readings that were deleted, or would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeletedReadings {
    pub sensors: u64,
    /// As stored: a reading that is in two files counts twice.
    pub readings: u64,
    /// The approximate size in memory.
    pub bytes: u64,
    /// Windows of tiers that outlived their readings.
    pub windows: u64,
    pub files: u64,
    /// The first and the last time.
    pub times: Option<(UtcTime, UtcTime)>,
    /// Damaged files, which may hold more.
    pub unreadable: Vec<String>,
}

/// Statistics of stored readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreStatistics {
    pub subtrees: Vec<SubtreeStatistics>,
    pub store: StoreCounts,
}

/// The stored readings of one subtree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubtreeStatistics {
    pub path: String,
    pub sensors: u64,
    /// Sensors whose newest reading is at most ten of their intervals, or ten minutes, old.
    pub live: u64,
    /// Readings of the live sensors per second, by their intervals.
    pub per_s: f64,
    pub readings: u64,
    /// Bytes of blocks and tiers, approximately.
    pub bytes: u64,
    /// The first and the last time in blocks.
    pub times: Option<(UtcTime, UtcTime)>,
}

/// Counts of the whole store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreCounts {
    pub sensors: u64,
    pub schemas: u64,
    pub blocks: u64,
    pub block_bytes: u64,
    /// The number of readings in blocks.
    pub readings: u64,
    pub tiers: u64,
    pub tier_bytes: u64,
    pub journal_bytes: u64,
    /// The number of recorded job allocations.
    pub jobs: u64,
    /// Blocks that cannot be read.
    pub damaged: u64,
    /// Files that still hold deleted readings.
    pub waiting_to_be_rewritten: u64,
    /// Sensors that expired since the start.
    pub sensors_expired: u64,
    pub free_bytes: Option<u64>,
}

/// Acknowledged readings that the journal has lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LossList {
    pub lost: Vec<ReadingLoss>,
}

/// The loss of one segment of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadingLoss {
    pub id: String,
    /// The number of readings, gaps included; null if it is unknown.
    pub readings: Option<u64>,
    /// No lost reading is older.
    pub from: UtcTime,
    /// No lost reading is newer.
    pub to: UtcTime,
    /// The agents that sent them, as far as the damaged bytes show.
    pub agents: Vec<String>,
    /// Whether other agents may have sent some of them.
    pub others: bool,
    pub bytes: u64,
    pub segment: u64,
    pub found: UtcTime,
}

/// The losses to acknowledge: those with these ids, or all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeLosses {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// The stored parts of an import.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportState {
    pub id: String,
    pub readings: u64,
    /// Ranges of part numbers, both ends included.
    pub parts: Vec<(u64, u64)>,
}

/// A part of an import that is durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportedPart {
    /// The part was stored before.
    pub duplicate: bool,
    pub readings: u64,
    /// Readings among them that are older than their retention.
    pub past_retention: u64,
    pub sensors: u64,
}
