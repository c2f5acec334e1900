//! The interface between queries and a store of readings.
//!
//! - In: patterns of sensors; for one sensor and a range, a [`ScanRequest`].
//! - Out: the sensors and their newest readings ([`ReadStore`]); a snapshot ([`ReadSnapshot`]) whose reader answers each request with a stream of parts
//!   ([`Scan`]); sentences about missing data.
//! - Never: a reading twice, or one that was not stored.
//!
//! `testing/src/conformance/` checks an implementation.

use std::sync::Arc;

use wholegrain_model::{Pattern, Value};

use crate::block::windows::TierWindows;
use crate::chunk::Chunk;
use crate::computed::key::SnapshotVersion;
use crate::error::StoreError;
use crate::sensors::info::{SensorId, SensorInfo};

/// The most readings of one chunk of a scan.
pub const CHUNK_ROWS_MAX: usize = 65_536;

/// The chunks of one sensor, in time order.
pub type ChunkIter = Box<dyn Iterator<Item = Result<Chunk, StoreError>> + Send>;

/// The parts of one scan, in time order.
pub type ScanPartIter = Box<dyn Iterator<Item = Result<ScanPart, StoreError>> + Send>;

/// What queries need of a store. All calls may come from any thread.
pub trait ReadStore: Send + Sync {
    /// Every sensor that matches one of the patterns, sorted by path, each once.
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo>;

    /// The first `most` of these sensors whose paths come after `after`, for lists in pages.
    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        let mut sensors = self.sensors(patterns);
        sensors.retain(|sensor| after.is_none_or(|after| &*sensor.path > after));
        sensors.truncate(most);
        sensors
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>>;

    /// A view of every acknowledged reading that later writes do not change.
    fn snapshot(&self) -> Box<dyn ReadSnapshot>;
}

/// Readings that do not change while a query reads them: those of a store, computed from it, or of a test.
pub trait ReadSnapshot: Send + Sync {
    /// A reader that has prepared scans of these sensors and ranges, one each in this order. It answers other scans too, without the preparation.
    fn open(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError>;

    /// The resolutions of all tiers in ns, finest first.
    fn resolutions(&self) -> Vec<i64> {
        Vec::new()
    }

    /// The resolution in ns of the tier that most scans of windows of `every` ns (`None`: one window over the range) use in this range.
    fn tier(&self, _from: i64, _to: i64, _every: Option<i64>) -> Option<i64> {
        None
    }

    /// Identifies the state of the store, for results that are cached. `None` where a wrapper changes or omits readings.
    fn version(&self) -> Option<SnapshotVersion> {
        None
    }

    /// The times within `from <= time < to` that can have readings, first and last, in order. No sensor has a reading between two spans.
    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        if from < to { vec![(from, to - 1)] } else { Vec::new() }
    }

    /// What retention has removed of the readings in these ranges, one sentence each.
    fn removed(&self, _ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Vec<String> {
        Vec::new()
    }

    /// What the scans so far left out because of retention, one sentence each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is known to be lost or unreadable in this range, one sentence each. Scans can find more.
    fn warnings(&self, _from: i64, _to: i64) -> Vec<String> {
        Vec::new()
    }
}

/// Scans one snapshot, from any number of threads.
pub trait SnapshotReader: Send + Sync {
    /// The samples of one sensor in time order, each time once. No chunk is empty or larger than [`CHUNK_ROWS_MAX`].
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError>;
}

/// A sensor and the times `from <= time < to`.
#[derive(Debug, Clone, Copy)]
pub struct SensorRange<'a> {
    pub sensor: &'a SensorInfo,
    pub from: i64,
    pub to: i64,
}

/// What one scan reads.
#[derive(Debug, Clone, Copy)]
pub struct ScanRequest<'a> {
    pub sensor: &'a SensorInfo,
    /// The range is `from <= time < to`.
    pub from: i64,
    pub to: i64,
    pub resolution: Resolution,
    /// Whether the caller searches values next to the range that it answers. Then the scan adds no note, and readings do not replace missing windows.
    pub neighbours: bool,
}

/// What the parts of a scan consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    Readings,
    /// Windows of a tier that divide `every` ns (`None`: one window over the range), and readings where there are no such windows.
    Windows {
        every: Option<i64>,
    },
    /// For means over time: windows with the lines between their values ([`crate::WindowLines`]) as readings up to `max_gap_ns` apart give them, readings
    /// where there are no such windows, and windows without lines where the readings are gone.
    Lines {
        every: Option<i64>,
        max_gap_ns: i64,
    },
}

impl<'a> ScanRequest<'a> {
    /// Requests the readings of a range.
    pub fn readings(sensor: &'a SensorInfo, from: i64, to: i64) -> Self {
        Self { sensor, from, to, resolution: Resolution::Readings, neighbours: false }
    }

    /// Requests values next to a range.
    pub fn neighbours(sensor: &'a SensorInfo, from: i64, to: i64) -> Self {
        Self { neighbours: true, ..Self::readings(sensor, from, to) }
    }

    /// Requests the same range with a resolution.
    pub fn at(self, resolution: Resolution) -> Self {
        Self { resolution, ..self }
    }

    /// Whether the scan is empty if there are no windows.
    pub fn needs_windows(&self) -> bool {
        self.neighbours && self.resolution != Resolution::Readings
    }
}

/// A part of a [`Scan`].
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and both hold thousands of rows elsewhere")]
pub enum ScanPart {
    Readings(Chunk),
    /// Windows of which all readings are within the range, though the first may begin before it.
    Windows(TierWindows),
}

/// The answer to a [`ScanRequest`].
pub struct Scan {
    pub parts: ScanPartIter,
    /// The requested range without windows at its ends that it cuts and whose readings are gone. The parts contain nothing of those.
    pub range: (i64, i64),
    /// The resolution of the windows in ns; `None` where the parts are readings only.
    pub resolution: Option<i64>,
}

impl Scan {
    /// A scan that consists of readings.
    pub fn of_chunks<I>(request: &ScanRequest<'_>, chunks: I) -> Self
    where
        I: Iterator<Item = Result<Chunk, StoreError>> + Send + 'static,
    {
        let parts = Box::new(chunks.map(|chunk| chunk.map(ScanPart::Readings)));
        Self { parts, range: (request.from, request.to), resolution: None }
    }

    /// An answer without any part.
    pub fn empty(request: &ScanRequest<'_>) -> Self {
        Self { parts: Box::new(std::iter::empty()), range: (request.from, request.to), resolution: None }
    }

    /// The chunks of a scan of [`Resolution::Readings`]. Windows in it are an error.
    pub fn chunks(self) -> impl Iterator<Item = Result<Chunk, StoreError>> + Send {
        self.parts.map(|part| match part? {
            ScanPart::Readings(chunk) => Ok(chunk),
            ScanPart::Windows(_) => Err(StoreError::Sensor("a scan of readings gave windows".to_owned())),
        })
    }
}
