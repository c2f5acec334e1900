//! Imports: readings of the past that come many at a time and become blocks at once, without the journal.
//!
//! - In: parts of imports, each with readings of many sensors in time order; an import has an id, its parts have numbers.
//! - Out: blocks that are durable, and visible, when the call returns; the parts of an import that are there.
//! - Never: half of a part; a part twice; a time refused for being old.
//!
//! Where a reading of the same sensor and time is there already, the import's counts, and of two imports the later one's. For that, what waits in the
//! journal of the same sensors and times is sealed first, and a block of an import stands after all blocks of the last sealed segment
//! ([`BlockRecord::import`](crate::block::record::BlockRecord)).

mod fit;
mod learn;
mod parts;

use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use wholegrain_model::{Column, ColumnValues, ValueType};

use crate::block::record::{BlockRecord, IMPORT_NUMBER_MAX};
use crate::catalogue::CatalogueChange;
use crate::publish::{FinishedBlock, publish, reconcile};
use crate::readings::{SchemalessSensor, check_source};
use crate::scan::TimeOrder;
use crate::seal::BlockDrafts;
use crate::sensors::HEARD_SENSORS;
use crate::stats::add;
use crate::store::Shared;
use crate::time::DAY_NS;
use crate::{SensorId, SensorInfo, Store, StoreError};

pub use parts::ImportState;
pub(crate) use parts::{ImportRecord, Imports};

/// The most readings of one part. They are in memory while it is written.
pub const IMPORT_ROWS_MAX: usize = 4 << 20;
/// The most bytes of an import's id.
const ID_BYTES_MAX: usize = 64;
/// A part of more days than this has blocks of single days only where each has [`DAY_ROWS_MIN`] readings on average: a few large files of
/// several days are better than very many small ones.
const DAYS_FEW: usize = 8;
/// Fewer readings a day are few: see [`DAYS_FEW`].
const DAY_ROWS_MIN: usize = 16_384;
/// Of an import of more sensors than this, results that are kept are forgotten by its times alone.
const CHANGED_SENSORS_MAX: usize = 4_096;
/// The most days with blocks of their own.
const DAYS_MAX: usize = 64;

/// Readings of one sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportSeries {
    /// The sensor, and what its raw values mean. Where the sensor is known, or a setting chooses it, the scale in force counts and the values are
    /// converted; another unit is refused.
    pub sensor: SchemalessSensor,
    /// Times in ns since the Unix epoch, each larger than the one before.
    pub times: Vec<i64>,
    /// A value or gap for each time.
    pub column: Column,
}

impl ImportSeries {
    /// Of readings in the order of their arrival: they are brought into time order, and where a time comes twice, the later one counts.
    pub fn in_order(sensor: SchemalessSensor, times: Vec<i64>, column: Column) -> Self {
        let order = TimeOrder::of(&times);
        Self { sensor, times: order.times(times), column: order.column(column) }
    }
}

/// What became of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// Whether it was there already; nothing was stored again.
    pub duplicate: bool,
    /// Readings stored, gaps counted too.
    pub readings: u64,
    /// Those of them that are older than they are kept: the next pass of retention hides or drops them.
    pub past_retention: u64,
}

impl Store {
    /// Stores a part of an import as blocks; durable and visible when it returns. The same part of the same import again is a duplicate, whatever is
    /// in it. `source` is who sends it. Blocks on the disk.
    pub fn import(
        &self,
        id: &str,
        part: u64,
        source: &str,
        mut series: Vec<ImportSeries>,
    ) -> Result<ImportReport, StoreError> {
        check_source(source)?;
        let rows = check(id, &mut series)?;
        let shared = self.shared();
        let _one_at_a_time = shared.importing.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.closing.load(Relaxed) {
            return Err(StoreError::Closed);
        }
        if reconcile(shared)?.imports.refuse_or_has(id, part)? {
            return Ok(ImportReport { duplicate: true, ..ImportReport::default() });
        }
        let ids = self.register(source, &mut series)?;
        if series.iter().zip(&ids).any(|(series, id)| waits(shared, *id, series)) {
            // What came before the import is to count less than it.
            self.seal()?;
        }
        let finished = write(shared, &series, rows)?;
        self.commit(id, part, rows as u64, finished, &series, &ids)?;
        let mut heard = shared.sensors.write().unwrap_or_else(PoisonError::into_inner);
        for (series, id) in series.iter().zip(&ids) {
            series.times.last().into_iter().for_each(|time| heard.newest_until(source, *id, *time));
        }
        drop(heard);
        crate::properties::keep_up(shared);
        let past_retention = past_retention(shared, &series);
        Ok(ImportReport { duplicate: false, readings: rows as u64, past_retention })
    }

    /// What is there of an import.
    pub fn import_state(&self, id: &str) -> Result<ImportState, StoreError> {
        Ok(reconcile(self.shared())?.imports.state(id))
    }

    /// Registers those that are not known, and makes the values of all what their sensors' values are with the settings in force.
    fn register(&self, source: &str, series: &mut [ImportSeries]) -> Result<Vec<SensorId>, StoreError> {
        let settings = self.shared().sensors().settings();
        let (mut fresh, mut intervals) = (Vec::new(), Vec::new());
        for one in series.iter_mut() {
            let path = one.sensor.path.as_str();
            let known = self.sensor_id(path).and_then(|id| self.sensor(id));
            let interval_ns = learn::interval_ns(&one.times);
            let before = fresh.len();
            match known {
                Some(known) => {
                    fit::fit(one, &known)?;
                    if known.unit.is_empty() && !one.sensor.unit.is_empty() {
                        fresh.push(one.sensor.clone());
                    } else {
                        fresh.extend(self.changed(&known, interval_ns, one));
                    }
                }
                None => {
                    if let Some(set) = fit::as_set(&one.sensor, &settings) {
                        fit::fit(one, &set)?;
                    }
                    fresh.push(one.sensor.clone());
                }
            }
            intervals.extend((before..fresh.len()).map(|_| interval_ns));
        }
        if !fresh.is_empty() {
            self.register_with(source, &fresh, |at| intervals[at])?;
        }
        let number = |one: &ImportSeries| {
            let path = one.sensor.path.as_str();
            self.sensor_id(path).ok_or_else(|| StoreError::Sensor(format!("{path} could not be registered")))
        };
        series.iter().map(number).collect()
    }

    /// A sensor without a schema as it is to be known, when the readings of an import are further apart than those before, or floats where they
    /// were integers: as such all would be shown.
    fn changed(&self, known: &SensorInfo, interval_ns: u64, imported: &ImportSeries) -> Option<SchemalessSensor> {
        let sensors = self.shared().sensors();
        if !sensors.places(known.id).is_empty() {
            return None;
        }
        let SensorInfo { unit, kind, mut value_type, scale, description, .. } = sensors.sent(known.id)?;
        let widens = value_type == ValueType::Int && has_fractions(&imported.column);
        let learned_ns = sensors.learned_interval(known.id);
        let is_new = interval_ns > 0 && (learned_ns == 0 || interval_ns < learned_ns);
        if !widens && !is_new {
            return None;
        }
        if widens {
            value_type = ValueType::Float;
        }
        Some(SchemalessSensor { path: imported.sensor.path.clone(), unit, kind, value_type, scale, description })
    }

    fn commit(
        &self,
        id: &str,
        part: u64,
        rows: u64,
        mut finished: Vec<FinishedBlock>,
        series: &[ImportSeries],
        ids: &[SensorId],
    ) -> Result<(), StoreError> {
        let shared = self.shared();
        // No seal may end meanwhile: its blocks would count less than this, though they came later.
        let _no_seal = shared.sealing.lock().unwrap_or_else(PoisonError::into_inner);
        let commit_state = match reconcile(shared) {
            Ok(commit_state) => commit_state,
            Err(error) => {
                finished.iter().for_each(|block| block.discard(shared));
                return Err(error);
            }
        };
        let (known, forgotten) = commit_state.imports.with(id, part, rows);
        drop(commit_state);
        rank(shared, &mut finished);
        let mut last: HashMap<u32, i64> = HashMap::new();
        for (series, id) in series.iter().zip(ids) {
            last.extend(series.times.last().map(|time| (id.0, *time)));
        }
        let heard = {
            let sensors = shared.sensors();
            let chunks: BTreeSet<u32> = last.keys().map(|id| id / HEARD_SENSORS).collect();
            chunks.into_iter().map(|chunk| (chunk, sensors.newest_times_with(chunk, &last))).collect()
        };
        let change = CatalogueChange {
            heard,
            import: Some((id.to_owned(), known.clone())),
            forgotten_imports: forgotten.clone(),
            ..CatalogueChange::default()
        };
        let span = span(&finished);
        let named = Some(ids).filter(|ids| ids.len() <= CHANGED_SENSORS_MAX);
        let changed = || span.map_or(Ok(()), |(first, last)| shared.changed(first, last, named));
        // Before, so that no crash leaves a result made of what the import replaces; and after, for what was made meanwhile.
        if let Err(error) = changed() {
            finished.iter().for_each(|block| block.discard(shared));
            return Err(error);
        }
        publish(shared, &finished, &[], change)?;
        if let Err(error) = changed() {
            // On failure the invalidation stays pending and is applied before a cached result is used.
            tracing::warn!(%error, "kept results cannot be removed; tried again");
        }
        {
            let mut commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
            forgotten.iter().for_each(|id| commit_state.imports.forget(id));
            commit_state.imports.set(id, known);
        }
        add(&shared.counters.imported_parts, 1);
        add(&shared.counters.imported_readings, rows);
        Ok(())
    }
}

/// Whether there are values that are no integers.
fn has_fractions(column: &Column) -> bool {
    let ColumnValues::Float(values) = &column.values else { return false };
    values.iter().enumerate().any(|(row, value)| value.fract() != 0.0 && !column.gaps.is_gap(row))
}

/// Sorts by path and refuses what is no part; returns the number of readings.
fn check(id: &str, series: &mut Vec<ImportSeries>) -> Result<usize, StoreError> {
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = format!("an import's id has 1 to {ID_BYTES_MAX} printable characters of ASCII without spaces");
        return Err(StoreError::Payload(reason));
    }
    series.retain(|one| !one.times.is_empty());
    series.sort_by(|a, b| a.sensor.path.as_str().cmp(b.sensor.path.as_str()));
    for one in series.iter() {
        one.sensor.check()?;
        let refuse = |why: &str| Err(StoreError::Payload(format!("readings of {}: {why}", one.sensor.path)));
        if one.times.len() != one.column.len() {
            return refuse("there are not as many values as times");
        }
        if !one.times.is_sorted_by(|a, b| a < b) {
            return refuse("each time must be after the one before");
        }
    }
    if let Some(twice) = series.windows(2).find(|pair| pair[0].sensor.path == pair[1].sensor.path) {
        return Err(StoreError::Payload(format!("{} is there twice; join its readings", twice[0].sensor.path)));
    }
    let rows = series.iter().map(|one| one.times.len()).sum();
    if rows > IMPORT_ROWS_MAX {
        let reason = format!("a part of {rows} readings, at most {IMPORT_ROWS_MAX} are allowed; make more parts");
        return Err(StoreError::Payload(reason));
    }
    Ok(rows)
}

/// The first and the last time of the blocks.
fn span(finished: &[FinishedBlock]) -> Option<(i64, i64)> {
    let spans = finished.iter().map(|block| (block.record.first_time, block.record.last_time));
    spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Whether readings of these times are in the journal and in no block yet.
fn waits(shared: &Shared, id: SensorId, series: &ImportSeries) -> bool {
    let (Some(first), Some(last)) = (series.times.first(), series.times.last()) else { return false };
    let to = last.saturating_add(1);
    let view = shared.view();
    let places: Vec<_> = {
        let sensors = shared.sensors();
        sensors.places(id).iter().map(|place| sensors.schema_at(place.schema).hash()).collect()
    };
    view.closed.iter().chain([&view.open]).any(|segment| {
        places.iter().any(|hash| !segment.batches(hash, u64::MAX, *first, to).is_empty())
            || segment.readings(id, u64::MAX).is_some_and(|chain| !chain.readings(*first, to).is_empty())
    })
}

/// Writes the blocks under temporary names.
fn write(shared: &Shared, series: &[ImportSeries], rows: usize) -> Result<Vec<FinishedBlock>, StoreError> {
    let first = series.iter().filter_map(|one| one.times.first()).min();
    let last = series.iter().filter_map(|one| one.times.last()).max();
    let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
    let days = usize::try_from(last.div_euclid(DAY_NS) - first.div_euclid(DAY_NS)).unwrap_or(usize::MAX - 1) + 1;
    let alone = days <= DAYS_FEW || rows / days >= DAY_ROWS_MIN;
    let mut drafts = BlockDrafts::new(shared, 0, if alone { DAYS_MAX } else { 0 });
    for one in series {
        if let Err(error) = drafts.push(one.sensor.path.as_str(), &one.times, &one.column) {
            drafts.discard();
            return Err(error);
        }
    }
    drafts.finish()
}

/// Gives the blocks their place: after all blocks that there are, before what is not sealed.
fn rank(shared: &Shared, finished: &mut [FinishedBlock]) {
    let view = shared.view();
    let next = view.closed.first().unwrap_or(&view.open).number;
    let through = next.saturating_sub(1);
    let of_same = |record: &BlockRecord| (record.last_segment == through).then_some(record.import);
    let latest = view.blocks.iter().filter_map(|block| of_same(&block.record)).max().unwrap_or(0);
    for block in finished {
        (block.record.first_segment, block.record.last_segment) = (through, through);
        block.record.import = latest.saturating_add(1).min(IMPORT_NUMBER_MAX);
    }
}

/// How many of the readings are out of their retention now.
fn past_retention(shared: &Shared, series: &[ImportSeries]) -> u64 {
    let policy = shared.policy();
    if policy.is_empty() {
        return 0;
    }
    let now = shared.config.clock.now();
    let out = |one: &ImportSeries| {
        let cut = policy.raw_cut(policy.rule_of(one.sensor.path.as_str()), now);
        one.times.partition_point(|time| *time < cut) as u64
    };
    series.iter().map(out).sum()
}
