//! One exporter: its page becomes sensors and values.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_device_http::{AnswerBody, NO_ROOM, SensorRoom};
use wholegrain_devices::{AnswerSlot, BlockingProtocol, DeviceProblem, NewNames, system_time};
use wholegrain_model::SensorDef;
use wholegrain_model::pattern::Filter;
use wholegrain_sources::Row;
use wholegrain_sources::exposition::{
    Dialect, ExpositionRead, SensorNaming, SeriesBounds, SeriesCatalogue, SeriesTable,
};

use crate::fetch::Fetcher;
use crate::settings::{ScrapePlan, TargetPlan};

/// A value whose own time is older is a gap, unless `stale_after` says otherwise: 5 min, as Prometheus has it.
const STALE_NS: u64 = 300_000_000_000;
/// A series that was in none of so many layouts is forgotten.
const FORGET_AFTER: u32 = 20;
/// The first pause after the series were learned: 1 s. It doubles while new ones come soon after it.
const LEARN_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: 5 min. After it the series are learned again if some did not fit.
const LEARN_PAUSE_MAX: Duration = Duration::from_secs(300);
/// The most notes that wait for the next discovery.
const NOTES_MAX: usize = 100;
/// The part of `memory_bytes_max` that the sensors of all exporters may take: 96 MiB of 256 MiB.
const ROOM_EIGHTHS: usize = 3;
/// The most notes about lines of one page. The others are counted.
const LINE_NOTES_MAX: usize = 3;

/// What is wrong with a page of HTML.
const WEB_PAGE: &str = "a web page, not metrics: check `uri`";

/// Notes for the administrator, from the threads of the pool.
#[derive(Debug, Default)]
pub struct ScrapeNotes(Mutex<Vec<String>>);

impl ScrapeNotes {
    fn add(&self, text: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX && !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Hands the notes since the last call to `report`.
    pub fn report(&self, report: &mut dyn FnMut(String)) {
        let notes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        notes.into_iter().for_each(report);
    }
}

/// Polls one exporter and keeps what it knows of its series.
pub struct ScrapeTarget {
    path: String,
    fetcher: Fetcher,
    metrics: Filter,
    stale_ns: u64,
    catalogue: SeriesCatalogue,
    notes: Arc<ScrapeNotes>,
    table: Option<SeriesTable>,
    /// The sensors of series; the own ones follow.
    sensors: usize,
    learned: Option<(Instant, Duration)>,
    room: SensorRoom,
    new_names: NewNames,
    /// The notes of the last time: each is made once.
    learn_notes: Vec<String>,
    row: ScratchRow,
    /// Whether the last page had a line that is no sample, and a series twice.
    faults: (bool, bool),
}

#[derive(Default)]
struct ScratchRow {
    values: Vec<u64>,
    gaps: Vec<u64>,
    answer: Vec<Option<u64>>,
}

impl ScrapeTarget {
    /// An exporter that was not polled yet.
    pub fn new(target: &TargetPlan, plan: &ScrapePlan, notes: Arc<ScrapeNotes>) -> Self {
        let naming = SensorNaming { prefix: target.path.clone(), ..plan.naming.clone() };
        Self {
            path: target.path.clone(),
            fetcher: target.fetcher.clone(),
            metrics: plan.metrics.clone(),
            stale_ns: target.timing.stale_after.map_or(STALE_NS, |age| age.ns()),
            catalogue: SeriesCatalogue::new(naming, target.series_max, FORGET_AFTER),
            notes,
            table: None,
            sensors: 0,
            learned: None,
            room: SensorRoom::new(ROOM_EIGHTHS),
            new_names: NewNames::new(target.series_max),
            learn_notes: Vec::new(),
            row: ScratchRow::default(),
            faults: (false, false),
        }
    }

    /// The three sensors about the scrape itself.
    fn own_sensors(&self) -> [SensorDef; 3] {
        let name = |name: &str| format!("{}/scrape/{name}", self.path);
        [
            SensorDef::gauge(name("duration"), "s", "Time from the request to the end of the answer.").float(),
            SensorDef::gauge(name("series"), "1", "Series of the answer with a value."),
            SensorDef::gauge(
                name("left_out"),
                "1",
                "Series that were left out: beyond series_max or the bounds of memory, or too many new ones.",
            ),
        ]
    }

    /// Learns the series of a page and publishes its sensors.
    fn learn(&mut self, body: &[u8], dialect: Dialect, slot: &AnswerSlot, now: Instant) {
        let own = self.own_sensors();
        let prefix = self.path.len() + 1;
        let keeps = |sensor: &SensorDef| {
            let name = sensor.name.get(prefix..).unwrap_or_default();
            self.metrics.keeps(name) && own.iter().all(|own| own.name != sensor.name)
        };
        let mut notes = Vec::new();
        let (catalogue, new_max) = (&mut self.catalogue, self.new_names.left(now));
        let (table, mut sensors) = self.room.learn(|bytes_max| {
            let sensor_bytes =
                |sensor: &SensorDef| SensorRoom::cost(sensor.name.len() + sensor.unit.len() + sensor.description.len());
            catalogue.set_bounds(SeriesBounds { bytes_max, sensor_bytes, new_max, notes_max: LINE_NOTES_MAX });
            let learned = catalogue.learn(body, dialect, &keeps, &mut |note| notes.push(note));
            (learned, catalogue.bytes())
        });
        self.new_names.take(self.catalogue.new_series(), now);
        for note in notes.iter().filter(|note| !self.learn_notes.contains(note)) {
            self.notes.add(format!("{}: {note}", self.path));
        }
        self.learn_notes = notes;
        if sensors.is_empty() {
            // Garbage, or a page without metrics: the next one may be better.
            self.learned = self.catalogue.is_full().then_some((now, LEARN_PAUSE_MIN));
            return;
        }
        self.sensors = sensors.len();
        sensors.extend(own);
        self.row.values = vec![0; self.sensors];
        self.row.gaps = vec![0; self.sensors.div_ceil(64)];
        self.table = Some(table);
        let pause = match self.learned {
            Some((at, pause)) if now < at + pause * 2 => (pause * 2).min(LEARN_PAUSE_MAX),
            _ => LEARN_PAUSE_MIN,
        };
        self.learned = Some((now, pause));
        slot.set_sensors(sensors);
    }

    fn read(&mut self, body: &[u8], oldest: i64) -> ExpositionRead {
        let Some(table) = &mut self.table else { return ExpositionRead::default() };
        let mut row = Row::new(&mut self.row.values, &mut self.row.gaps);
        let read = table.read(body, Some(oldest), &mut row);
        let values = (0..self.sensors).map(|index| row.int(index).map(|bits| bits as u64));
        self.row.answer.clear();
        self.row.answer.extend(values);
        read
    }

    /// Notes lines that are no samples and series that are there twice, once until a page has none.
    fn note_faults(&mut self, read: &ExpositionRead) {
        let path = &self.path;
        if let Some(line) = read.first_bad.filter(|_| !self.faults.0) {
            self.notes.add(format!("{path}: line {line} is no sample, and {} more lines", read.bad - 1));
        }
        if let Some(line) = read.first_duplicate.filter(|_| !self.faults.1) {
            self.notes.add(format!("{path}: line {line} has a series that was there before: its sensor is a gap"));
        }
        self.faults = (read.bad > 0, read.duplicates > 0);
    }
}

impl BlockingProtocol for ScrapeTarget {
    fn poll(&mut self, _group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        let begin = Instant::now();
        let mut body = AnswerBody::default();
        let dialect = self.fetcher.fetch(deadline, &mut body)?;
        let (now, taken_at, duration) = (Instant::now(), system_time(), begin.elapsed());
        if begins_as_html(&body) {
            return Err(DeviceProblem::Refused(WEB_PAGE));
        }
        if !SeriesTable::is_whole(&body, dialect) {
            return Err(DeviceProblem::Garbage("an exposition that has no end"));
        }
        let must_learn = self.table.as_ref().is_none_or(|table| table.dialect() != dialect);
        // Without room for any series, another try at each poll would only delay others.
        let waits = self.table.is_none() && self.catalogue.is_full();
        if must_learn && !(waits && self.learned.is_some_and(|(at, _)| now < at + LEARN_PAUSE_MAX)) {
            self.learn(&body, dialect, slot, now);
        }
        let oldest = taken_at.saturating_sub(i64::try_from(self.stale_ns).unwrap_or(i64::MAX));
        let mut read = self.read(&body, oldest);
        let is_full = self.catalogue.is_full();
        let pause = if is_full { LEARN_PAUSE_MAX } else { self.learned.map_or(Duration::ZERO, |(_, pause)| pause) };
        if (read.unknown > 0 || is_full) && self.learned.is_none_or(|(at, _)| now >= at + pause) {
            self.learn(&body, dialect, slot, now);
            read = self.read(&body, oldest);
        }
        self.note_faults(&read);
        if self.table.is_none() && self.catalogue.is_full() {
            return Err(DeviceProblem::Refused(NO_ROOM));
        }
        if self.table.is_none() || (read.values == 0 && read.bad > 0) {
            return Err(DeviceProblem::Garbage("no exposition"));
        }
        let own = [duration.as_secs_f64().to_bits(), u64::from(read.values), self.catalogue.left_out() as u64];
        self.row.answer.extend(own.map(Some));
        slot.publish(taken_at, &self.row.answer);
        Ok(())
    }
}

/// Whether a page is one for people: an exporter's start page, or one for logging in.
fn begins_as_html(body: &[u8]) -> bool {
    let text = body.trim_ascii_start();
    let begins = |begin: &str| text.get(..begin.len()).is_some_and(|text| text.eq_ignore_ascii_case(begin.as_bytes()));
    begins("<!doctype html") || begins("<html")
}
