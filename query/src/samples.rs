//! Where readings come from, one sensor at a time.

use std::path::PathBuf;

use wholegrain_model::Value;
use wholegrain_store::{Chunk, Part, PartIter, SensorId, SensorInfo, Snapshot, StoreError, Windows};

use crate::QueryError;
use crate::batches::Row;
use crate::windows::Piece;

/// The chunks of one sensor, in time order.
pub type ChunkIter = Box<dyn Iterator<Item = Result<Chunk, StoreError>> + Send>;

/// Readings that do not change while a query reads them: the store's snapshot, or a test's.
pub trait Chunks: Send {
    /// The samples of `sensor` from `from` (within) to `to` (not within), in time order, each time once.
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError>;

    /// What the windows of `every` ns (`None`: one over the range) of `sensor` are made of, when there is something better than its samples.
    fn scan_windows(
        &self,
        _sensor: &SensorInfo,
        _from: i64,
        _to: i64,
        _every: Option<i64>,
    ) -> Result<Option<PartIter>, StoreError> {
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

    /// Told before the scans: these will be scanned next, in this order, each once.
    fn expect(&self, _sensors: &[SensorInfo]) {}

    /// Told before samples of these are scanned for their own sake: what of them is known to be gone is to be in the notes then.
    fn foresee(&self, _sensors: &[SensorInfo], _from: i64, _to: i64) {}

    /// What is left out on purpose (retention), a sentence each, as far as it is known.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is missing from the answer in this range, a sentence each; may know of more when the scans are done.
    fn warnings(&self, _from: i64, _to: i64) -> Vec<String> {
        Vec::new()
    }
}

impl Chunks for Snapshot {
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Snapshot::scan(self, sensor.id, from, to)
    }

    fn scan_windows(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
    ) -> Result<Option<PartIter>, StoreError> {
        Snapshot::scan_windows(self, sensor.id, from, to, every)
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.tier_for(from, to, every)
    }

    fn resolutions(&self) -> Vec<i64> {
        Snapshot::resolutions(self)
    }

    fn expect(&self, sensors: &[SensorInfo]) {
        let ids: Vec<SensorId> = sensors.iter().map(|sensor| sensor.id).collect();
        Snapshot::expect(self, &ids);
    }

    fn foresee(&self, sensors: &[SensorInfo], from: i64, to: i64) {
        sensors.iter().for_each(|sensor| Snapshot::foresee(self, &sensor.path, from, to));
    }

    fn notes(&self) -> Vec<String> {
        Snapshot::notes(self)
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        let damaged = self.damaged_blocks(from, to);
        let warning = |block: &PathBuf| format!("{} cannot be read; its readings are missing here", block.display());
        damaged.iter().map(warning).collect()
    }
}

/// One sensor's samples, one by one; a gap is `None`.
pub(crate) struct Samples {
    chunks: ChunkIter,
    chunk: Option<Chunk>,
    at: usize,
}

impl Samples {
    pub(crate) fn new(chunks: ChunkIter) -> Self {
        Self { chunks, chunk: None, at: 0 }
    }
}

impl Iterator for Samples {
    type Item = Result<(i64, Option<Value>), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = &self.chunk
                && let Some(time) = chunk.times.get(self.at)
            {
                let value = chunk.column.get(self.at);
                self.at += 1;
                return Some(Ok((*time, value)));
            }
            match self.chunks.next()? {
                Ok(chunk) => (self.chunk, self.at) = (Some(chunk), 0),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

/// The parts of one sensor's windows, one by one.
pub(crate) struct Pieces {
    parts: PartIter,
    part: Option<Part>,
    at: usize,
}

impl Pieces {
    pub(crate) fn new(parts: PartIter) -> Self {
        Self { parts, part: None, at: 0 }
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            self.at += 1;
            match &self.part {
                Some(Part::Readings(chunk)) if at < chunk.times.len() => {
                    return Some(Ok(Piece::Row(Row { time: chunk.times[at], value: chunk.column.get(at) })));
                }
                Some(Part::Windows(windows)) if at < Windows::len(windows) => {
                    return Some(Ok(Piece::Window(windows.get(at))));
                }
                _ => match self.parts.next()? {
                    Ok(part) => (self.part, self.at) = (Some(part), 0),
                    Err(error) => return Some(Err(error.into())),
                },
            }
        }
    }
}
