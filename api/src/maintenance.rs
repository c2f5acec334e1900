//! Long-running maintenance of the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::UtcTime;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MaintenanceKind {
    Compact,
    Verify,
    Repair,
}

impl MaintenanceKind {
    pub const ALL: [Self; 3] = [Self::Compact, Self::Verify, Self::Repair];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Verify => "verify",
            Self::Repair => "repair",
        }
    }

    pub const fn path(self) -> &'static str {
        match self {
            Self::Compact => crate::paths::COMPACT,
            Self::Verify => crate::paths::VERIFY,
            Self::Repair => crate::paths::REPAIR,
        }
    }
}

/// The progress or the result of a maintenance task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MaintenanceStatus {
    pub kind: MaintenanceKind,
    pub dry_run: bool,
    pub begun: UtcTime,
    pub by: String,
    pub running: bool,
    /// The bytes processed so far.
    pub done: u64,
    /// The number of bytes to process.
    pub total: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<UtcTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<MaintenanceResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The result of a task, by its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum MaintenanceResult {
    Compact(CompactResult),
    Verify(VerifyResult),
    Repair(RepairResult),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactResult {
    /// Blocks before and after.
    pub blocks: (u64, u64),
    /// Bytes of blocks and tiers before and after.
    pub bytes: (u64, u64),
    /// Whether it was cancelled.
    pub cut_short: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerifyResult {
    /// The number of damaged files.
    pub damaged: u64,
    /// Counts of files by kind.
    pub counts: BTreeMap<String, CheckedFileCount>,
    /// Damaged files and files with a note, at most 1000.
    pub files: Vec<CheckedFile>,
    /// The number of losses of the journal that nobody has acknowledged.
    pub lost: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckedFileCount {
    pub files: u64,
    pub bytes: u64,
    pub damaged: u64,
}

/// The check of one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckedFile {
    pub path: String,
    /// `catalogue`, `journal`, `block`, `tier` or `unknown`.
    pub kind: String,
    pub bytes: u64,
    /// Readings, windows or records.
    pub rows: u64,
    /// Empty if the file is intact.
    pub problems: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepairResult {
    /// The number of damaged files.
    pub damaged: u64,
    /// The number of readings and windows that are lost.
    pub lost: u64,
    /// At most 1000 of the damaged files.
    pub files: Vec<RepairedFile>,
}

/// The repair of one damaged file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepairedFile {
    pub path: String,
    /// `catalogue`, `journal`, `block`, `tier` or `unknown`.
    pub kind: String,
    pub problem: String,
    /// Readings or windows according to the catalogue.
    pub rows: u64,
    /// Readings or windows that are kept.
    pub kept: u64,
    /// The copy of the damaged file; null for a missing file and a dry run.
    pub damaged_copy: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
