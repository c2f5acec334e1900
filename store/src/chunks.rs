//! What a store of readings must be able to do, whichever it is: the seam between the queries and what lies on disk.
//!
//! - In: sensors, and chunks of their readings.
//! - Out: the sensors that patterns choose, their newest readings, and views of one moment ([`Chunks`]) that give chunks by sensor and time.
//! - Never: a reading twice, or one that was not put.

use std::path::PathBuf;

use wholegrain_model::{Pattern, SensorPath, Value};

use crate::{
    Chunk, Deletion, ImportSeries, LineScan, ScanPartIter, SchemalessSensor, SensorId, SensorInfo, Snapshot,
    SnapshotVersion, Store, StoreError,
};

/// The most readings of a chunk that a scan gives.
pub const CHUNK_ROWS_MAX: usize = 65_536;

/// The chunks of one sensor, in time order.
pub type ChunkIter = Box<dyn Iterator<Item = Result<Chunk, StoreError>> + Send>;

/// Readings that do not change while a query reads them: a store's at one moment, what is computed from them, or a test's.
pub trait Chunks: Send + Sync {
    /// The samples of `sensor` from `from` (within) to `to` (not within), in time order, each time once; no chunk is empty or larger than
    /// [`CHUNK_ROWS_MAX`].
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError>;

    /// Like [`Chunks::scan`], but adds no note about readings that retention dropped: for samples next to a range, and for sensors that
    /// [`Chunks::prepare_notes`] was called for.
    fn scan_beside(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        self.scan(sensor, from, to)
    }

    /// The part of a range in which there can be readings of `sensor` for this query: all of it, unless its time is restricted. Who answers a
    /// range takes this one in its place; operations still look at the samples next to it.
    fn range(&self, _sensor: &SensorInfo, from: i64, to: i64) -> (i64, i64) {
        (from, to)
    }

    /// What the windows of `every` ns (`None`: one over the range) of `sensor` are made of, when there is something better than its samples.
    fn scan_windows(
        &self,
        _sensor: &SensorInfo,
        _from: i64,
        _to: i64,
        _every: Option<i64>,
    ) -> Result<Option<ScanPartIter>, StoreError> {
        Ok(None)
    }

    /// The same for means over time: windows that know the lines between their values ([`crate::WindowLines`]) as readings up to `bound_ns` apart give
    /// them, readings where there are no such windows, and windows that do not know them where there is nothing else.
    fn scan_lines(
        &self,
        _sensor: &SensorInfo,
        _from: i64,
        _to: i64,
        _every: Option<i64>,
        _bound_ns: i64,
    ) -> Result<Option<LineScan>, StoreError> {
        Ok(None)
    }

    /// The resolution in ns of the tier that [`Chunks::scan_windows`] would use.
    fn tier(&self, _from: i64, _to: i64, _every: Option<i64>) -> Option<i64> {
        None
    }

    /// The resolutions of all tiers in ns, finest first.
    fn resolutions(&self) -> Vec<i64> {
        Vec::new()
    }

    /// Called before the scans: the caller will scan these sensors next, in this order, each once.
    fn prefetch(&self, _sensors: &[SensorInfo]) {}

    /// Called before the samples of these sensors are scanned. Afterwards [`Chunks::notes`] contains what is known to be missing of them.
    fn prepare_notes(&self, _sensors: &[SensorInfo], _from: i64, _to: i64) {}

    /// What a store's snapshot has seen, for those who keep what they make from it. A wrapper that changes or leaves out anything answers `None`.
    fn snapshot_version(&self) -> Option<SnapshotVersion> {
        None
    }

    /// The times that there may be readings at in `from <= time < to`, first and last, in order; between them there are none of any sensor.
    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        if from < to { vec![(from, to - 1)] } else { Vec::new() }
    }

    /// What is left out on purpose (retention), a sentence each, as far as it is known.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is missing from the answer in this range, a sentence each; may know of more when the scans are done.
    fn warnings(&self, _from: i64, _to: i64) -> Vec<String> {
        Vec::new()
    }
}

/// What became of a put, with all of its chunks.
pub use crate::append::AppendOutcome as Put;

/// What can be asked of readings, wherever they come from.
pub trait ReadStore: Send + Sync {
    /// Every sensor that one of the patterns chooses, sorted by path, each once.
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo>;

    /// The first `most` of them whose paths come after `after`: a part of a list that may be of any length.
    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        let mut sensors = self.sensors(patterns);
        sensors.retain(|sensor| after.is_none_or(|after| &*sensor.path > after));
        sensors.truncate(most);
        sensors
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>>;

    /// Every acknowledged reading of this moment.
    fn snapshot(&self) -> Box<dyn Chunks>;
}

/// A store of readings. Whoever implements it runs the conformance suite (`testing/src/conformance/`), which says in code what stands here in words.
///
/// All calls may come from any thread, at the same time. Sensors are numbered by the store: a number means the same sensor as long as the store has it.
pub trait ChunkStore: ReadStore {
    /// Makes sensors known, or gives them other properties; durable when it returns. `source` says who sends them. Their numbers, in their order.
    fn define(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError>;

    /// Takes chunks of readings, one for each sensor, all or nothing; durable when it returns, and in every snapshot taken later. Times rise strictly
    /// within a chunk. Where there is a reading of the same sensor and time already, the new one takes its place.
    ///
    /// `source` and `number` name the put: the same name again is [`Put::Duplicate`] and changes nothing, whatever comes with it, also after readings
    /// of it were deleted and after the store was opened again. A caller that got no answer can therefore repeat the call.
    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<Put, StoreError>;

    /// Deletes the readings of the sensors that one of the patterns chooses with `from <= time < to`; durable when it returns, and in no snapshot taken
    /// later. The sensors stay, and take new readings of those times.
    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError>;
}

impl ReadStore for Store {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        Store::sensors(self, patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        Store::sensors_after(self, patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        Store::newest(self, ids)
    }

    fn snapshot(&self) -> Box<dyn Chunks> {
        Box::new(Store::snapshot(self))
    }
}

impl ChunkStore for Store {
    fn define(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.register_sensors(source, sensors)
    }

    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<Put, StoreError> {
        let series = chunks.iter().map(|(id, chunk)| {
            let unknown = || StoreError::Sensor(format!("there is no sensor of the number {}", id.0));
            let info = self.sensor(*id).ok_or_else(unknown)?;
            Ok(ImportSeries { sensor: schemaless(info)?, times: chunk.times.clone(), column: chunk.column.clone() })
        });
        let series = series.collect::<Result<Vec<_>, StoreError>>()?;
        let done = self.import(source, number, source, series)?;
        Ok(if done.duplicate { Put::Duplicate } else { Put::Stored })
    }

    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError> {
        Store::delete(self, &Deletion { patterns: patterns.to_vec(), from, to }).map(drop)
    }
}

/// The definition that registers the same sensor again without changing its values.
fn schemaless(info: SensorInfo) -> Result<SchemalessSensor, StoreError> {
    let path = SensorPath::new(&*info.path).map_err(|error| StoreError::Sensor(error.to_string()))?;
    let SensorInfo { unit, kind, value_type, scale, description, .. } = info;
    Ok(SchemalessSensor { path, unit, kind, value_type, scale, description })
}

impl Chunks for Snapshot {
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Snapshot::scan(self, sensor.id, from, to)
    }

    fn scan_beside(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        self.scan_shown(sensor.id, from, to)
    }

    fn scan_windows(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
    ) -> Result<Option<ScanPartIter>, StoreError> {
        Snapshot::scan_windows(self, sensor.id, from, to, every)
    }

    fn scan_lines(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
        bound_ns: i64,
    ) -> Result<Option<LineScan>, StoreError> {
        Snapshot::scan_lines(self, sensor.id, from, to, every, bound_ns)
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.tier_for(from, to, every)
    }

    fn resolutions(&self) -> Vec<i64> {
        Snapshot::resolutions(self)
    }

    fn prefetch(&self, sensors: &[SensorInfo]) {
        let ids: Vec<SensorId> = sensors.iter().map(|sensor| sensor.id).collect();
        Snapshot::expect(self, &ids);
    }

    fn prepare_notes(&self, sensors: &[SensorInfo], from: i64, to: i64) {
        sensors.iter().for_each(|sensor| Snapshot::prepare_notes(self, &sensor.path, from, to));
    }

    fn snapshot_version(&self) -> Option<SnapshotVersion> {
        Some(Snapshot::version(self))
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        Snapshot::spans(self, from, to)
    }

    fn notes(&self) -> Vec<String> {
        Snapshot::notes(self)
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        let damaged = self.damaged_blocks(from, to);
        let warning = |block: &PathBuf| format!("{} cannot be read; its readings are missing here", block.display());
        damaged.iter().map(warning).chain(self.lost(from, to)).collect()
    }
}
