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

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{Column, ColumnValues, ValueType};

use crate::block::draft::{DraftDirectory, FinishedBlock};
use crate::block::drafts::BlockDrafts;
use crate::block::record::{BlockRecord, IMPORT_NUMBER_MAX};
use crate::catalogue::CatalogueChange;
use crate::catalogue::imports::ImportState;
use crate::compaction::seal::Sealer;
use crate::computed::ResultFiles;
use crate::config::StoreConfig;
use crate::files::FileSet;
use crate::registration::Registration;
use crate::retention_policy::PolicyInForce;
use crate::scan::TimeOrder;
use crate::sensors::file::SensorFile;
use crate::sensors::reading::{SchemalessSensor, check_source};
use crate::sensors::{NEWEST_TIMES_SENSORS, SensorIndex};
use crate::stats::{Counters, add};
use crate::time::DAY_NS;
use crate::work::WorkSignal;
use crate::{SensorId, SensorInfo, StoreError};

/// The most readings of one part. They are in memory while it is written.
pub const IMPORT_ROWS_MAX: usize = 4 << 20;
/// The most bytes of an import's id.
const ID_BYTES_MAX: usize = 64;
/// A part of more days than this is written as blocks of single days only if each has [`DAY_ROWS_MIN`] readings on average: a few large files of
/// several days are better than very many small ones.
const DAYS_FEW: usize = 8;
const DAY_ROWS_MIN: usize = 16_384;
/// Above this number of sensors, an import invalidates cached results by its times alone.
const CHANGED_SENSORS_MAX: usize = 4_096;
/// The most days with blocks of their own.
const DAYS_MAX: usize = 64;

/// Readings of one sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportSeries {
    /// The sensor, and what its raw values mean. If the sensor is known, or a setting matches it, the scale in force counts and the values are
    /// converted; another unit is refused.
    pub sensor: SchemalessSensor,
    /// Times in ns since the Unix epoch, each larger than the one before.
    pub times: Vec<i64>,
    /// A value or gap for each time.
    pub column: Column,
}

impl ImportSeries {
    /// Sorts readings, given in the order of arrival, by time. If a time occurs twice, the later reading counts.
    pub fn in_order(sensor: SchemalessSensor, times: Vec<i64>, column: Column) -> Self {
        let order = TimeOrder::of(&times);
        Self { sensor, times: order.times(times), column: order.column(column) }
    }
}

/// The outcome of an import's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// Whether the part was stored before; then nothing was stored again.
    pub duplicate: bool,
    /// Readings stored, including gaps.
    pub readings: u64,
    /// Readings of these that are out of their retention: the next pass hides or drops them.
    pub past_retention: u64,
}

/// Stores imports as blocks, one part at a time.
pub(crate) struct Importer {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub sensors: Arc<SensorIndex>,
    pub registration: Arc<Registration>,
    pub sealer: Arc<Sealer>,
    pub policy: Arc<PolicyInForce>,
    pub results: Arc<ResultFiles>,
    pub sensor_file: Arc<SensorFile>,
    pub counters: Arc<Counters>,
    pub work: Arc<WorkSignal>,
    /// Held while the blocks of a part are written.
    pub lock: Mutex<()>,
}

impl Importer {
    pub(crate) fn import(
        &self,
        id: &str,
        part: u64,
        source: &str,
        mut series: Vec<ImportSeries>,
    ) -> Result<ImportReport, StoreError> {
        check_source(source)?;
        let rows = check(id, &mut series)?;
        let _one_at_a_time = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.work.is_closing() {
            return Err(StoreError::Closed);
        }
        if self.files.reconcile()?.imports.refuse_or_has(id, part)? {
            return Ok(ImportReport { duplicate: true, ..ImportReport::default() });
        }
        let ids = self.register(source, &mut series)?;
        if series.iter().zip(&ids).any(|(series, id)| self.waits(*id, series)) {
            // What arrived before the import must count less than it.
            self.sealer.seal_all()?;
        }
        let finished = self.write(&series, rows)?;
        self.commit(id, part, rows as u64, finished, &series, &ids)?;
        let mut known = self.sensors.write();
        for (series, id) in series.iter().zip(&ids) {
            series.times.last().into_iter().for_each(|time| known.newest_until(source, *id, *time));
        }
        drop(known);
        self.sensor_file.keep_up();
        let past_retention = self.past_retention(&series);
        Ok(ImportReport { duplicate: false, readings: rows as u64, past_retention })
    }

    pub(crate) fn import_state(&self, id: &str) -> Result<ImportState, StoreError> {
        Ok(self.files.reconcile()?.imports.state(id))
    }

    /// Registers unknown sensors, and converts all values to the scales in force.
    fn register(&self, source: &str, series: &mut [ImportSeries]) -> Result<Vec<SensorId>, StoreError> {
        let settings = self.sensors.read().settings();
        let (mut fresh, mut intervals) = (Vec::new(), Vec::new());
        for one in series.iter_mut() {
            let path = one.sensor.path.as_str();
            let known = self.sensors.read().info_by_path(path);
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
            self.registration.register_with(source, &fresh, |at| intervals[at])?;
        }
        let number = |one: &ImportSeries| {
            let path = one.sensor.path.as_str();
            self.sensors.read().id(path).ok_or_else(|| StoreError::Sensor(format!("{path} could not be registered")))
        };
        series.iter().map(number).collect()
    }

    /// The new definition of a schemaless sensor, if the imported readings are closer together than before, or floats where they were integers.
    fn changed(&self, known: &SensorInfo, interval_ns: u64, imported: &ImportSeries) -> Option<SchemalessSensor> {
        let sensors = self.sensors.read();
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
        // No seal may complete meanwhile: its blocks would count less than this import, though they arrived later.
        let _no_seal = self.sealer.lock();
        let (known, dropped) = self.files.reconcile()?.imports.with(id, part, rows);
        self.rank(&mut finished);
        let mut last: HashMap<u32, i64> = HashMap::new();
        for (series, id) in series.iter().zip(ids) {
            last.extend(series.times.last().map(|time| (id.0, *time)));
        }
        let newest_times = {
            let sensors = self.sensors.read();
            let chunks: BTreeSet<u32> = last.keys().map(|id| id / NEWEST_TIMES_SENSORS).collect();
            chunks.into_iter().map(|chunk| (chunk, sensors.newest_times_with(chunk, &last))).collect()
        };
        let change = CatalogueChange {
            newest_times,
            import: Some((id.to_owned(), known.clone())),
            dropped_imports: dropped.clone(),
            ..CatalogueChange::default()
        };
        let span = span(&finished);
        let named = Some(ids).filter(|ids| ids.len() <= CHANGED_SENSORS_MAX);
        // Before the commit, so that no crash leaves a result computed from replaced readings; and after it, for results computed meanwhile.
        if let Some((first, last)) = span {
            self.results.changed(first, last, named)?;
        }
        self.files.publish(&finished, &[], change)?;
        if let Some((first, last)) = span {
            self.results.changed_after_commit(first, last, named);
        }
        {
            let mut commit_state = self.files.commit_state();
            dropped.iter().for_each(|id| commit_state.imports.remove(id));
            commit_state.imports.set(id, known);
        }
        add(&self.counters.imported_parts, 1);
        add(&self.counters.imported_readings, rows);
        Ok(())
    }
}

/// Whether some values are no integers.
fn has_fractions(column: &Column) -> bool {
    let ColumnValues::Float(values) = &column.values else { return false };
    values.iter().enumerate().any(|(row, value)| value.fract() != 0.0 && !column.gaps.is_gap(row))
}

/// Sorts the series by path and checks them; returns the number of readings.
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
            return refuse("the number of values is not the number of times");
        }
        if !one.times.is_sorted_by(|a, b| a < b) {
            return refuse("each time must be after the one before");
        }
    }
    if let Some(twice) = series.windows(2).find(|pair| pair[0].sensor.path == pair[1].sensor.path) {
        return Err(StoreError::Payload(format!("{} occurs twice; join its readings", twice[0].sensor.path)));
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

impl Importer {
    /// Whether readings of these times are in the journal and in no block.
    fn waits(&self, id: SensorId, series: &ImportSeries) -> bool {
        let (Some(first), Some(last)) = (series.times.first(), series.times.last()) else { return false };
        let to = last.saturating_add(1);
        let view = self.files.view();
        let places: Vec<_> = {
            let sensors = self.sensors.read();
            sensors.places(id).iter().map(|place| sensors.schema_at(place.schema).hash()).collect()
        };
        view.closed.iter().chain([&view.open]).any(|segment| {
            places.iter().any(|hash| !segment.batches(hash, u64::MAX, *first, to).is_empty())
                || segment.readings(id, u64::MAX).is_some_and(|chain| !chain.readings(*first, to).is_empty())
        })
    }

    /// Writes the blocks under temporary names.
    fn write(&self, series: &[ImportSeries], rows: usize) -> Result<Vec<FinishedBlock>, StoreError> {
        let first = series.iter().filter_map(|one| one.times.first()).min();
        let last = series.iter().filter_map(|one| one.times.last()).max();
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        let days = usize::try_from(last.div_euclid(DAY_NS) - first.div_euclid(DAY_NS)).unwrap_or(usize::MAX - 1) + 1;
        let alone = days <= DAYS_FEW || rows / days >= DAY_ROWS_MIN;
        let mut drafts =
            BlockDrafts::new(&self.drafts, self.config.seal_zstd_level, 0, if alone { DAYS_MAX } else { 0 });
        for one in series {
            drafts.push(one.sensor.path.as_str(), &one.times, &one.column)?;
        }
        drafts.finish()
    }

    /// Gives the blocks their rank: after all existing blocks, before what is not sealed.
    fn rank(&self, finished: &mut [FinishedBlock]) {
        let view = self.files.view();
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
    fn past_retention(&self, series: &[ImportSeries]) -> u64 {
        let policy = self.policy.get();
        if policy.is_empty() {
            return 0;
        }
        let now = self.config.clock.now();
        let out = |one: &ImportSeries| {
            let cut = policy.raw_cut(policy.rule_of(one.sensor.path.as_str()), now);
            one.times.partition_point(|time| *time < cut) as u64
        };
        series.iter().map(out).sum()
    }
}
