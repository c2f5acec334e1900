//! The marks of one job: its names, their groups, and how many more there may be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use wholegrain_model::schema::UNIT_BYTES_MAX;
use wholegrain_model::{JobRecord, Schema, SensorDef, Timestamp, name};

use super::bucket::TokenBucket;
use super::{MarkError, NAME_BYTES_MAX, TIME_APART_NS_MAX};
use crate::engine::Group;
use crate::engine::schedule::ClockReading;
use crate::state::{AgentState, lock};

/// Where more rows of a name wait for the encoder than make a batch, it is woken with each so many.
const ENCODE_EVERY: u64 = 32;
/// How deep a region may be nested in itself, over all processes of a job.
const DEPTH_MAX: i64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MarkKind<'a> {
    Begin,
    End,
    /// A value, `None` for one that is no number, and its unit where it is said.
    Value(Option<f64>, Option<&'a str>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark<'a> {
    /// Which region, or which value.
    pub name: &'a str,
    pub what: MarkKind<'a>,
    /// When, by the clock of the process, if it said so.
    pub time: Option<i64>,
}

/// Counts of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkCounts {
    pub taken: u64,
    /// Marks that were too many.
    pub dropped: u64,
    /// Marks that could not be.
    pub refused: u64,
}

/// The marks of one job.
#[derive(Debug)]
pub struct JobMarks {
    /// The id, for people.
    pub job: String,
    /// The level that its sensors are below.
    pub level: String,
    /// Whose job it is.
    pub uid: Option<u32>,
    /// How many names it has.
    pub(super) names: AtomicUsize,
    taken: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    inner: Mutex<MarkGroups>,
}

#[derive(Debug)]
struct MarkGroups {
    over: bool,
    /// `None` until the first mark.
    bucket: Option<TokenBucket>,
    /// By the name below the job, such as `region/solve`.
    names: HashMap<String, MarkGroup>,
}

/// A row that could not be written yet.
type MarkRow = (i64, Option<u64>);

#[derive(Debug)]
struct MarkGroup {
    group: Arc<Group>,
    depth: i64,
    /// The time of its last row.
    last: i64,
    /// The last row of those that were too many.
    pending: Option<MarkRow>,
}

impl MarkGroup {
    /// Writes a row; `None` for its value is a gap. Where the ring is full of what is not encoded, it is kept back.
    fn write(&mut self, (time, bits): MarkRow, state: &AgentState) -> Result<i64, ()> {
        let waiting = self.group.ring.head().saturating_sub(self.group.encoded.load(Ordering::Acquire));
        if waiting >= self.group.ring.capacity() as u64 {
            self.pending = Some((time, bits));
            return Err(());
        }
        if waiting >= self.group.batch_samples as u64 && waiting.is_multiple_of(ENCODE_EVERY) {
            state.encode_soon();
        }
        // Back only from an earlier pass of the clock to times that it has not gone over yet.
        let is_held = |time| state.counters.held_until(time).is_some();
        let may_go_back = time <= self.last && is_held(self.last) && !is_held(time);
        let time = if may_go_back { time } else { time.max(self.last.saturating_add(1)) };
        (self.last, self.pending) = (time, None);
        state.push_event(&self.group, time, &[bits.unwrap_or(0)], &[u64::from(bits.is_none())]);
        if bits.is_none() {
            self.group.stats.gaps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(time)
    }
}

impl JobMarks {
    pub(super) fn new(record: &JobRecord) -> Self {
        Self {
            job: record.job.clone(),
            level: record.level.clone(),
            uid: record.uid,
            names: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            inner: Mutex::new(MarkGroups { over: false, bucket: None, names: HashMap::new() }),
        }
    }

    pub fn counts(&self) -> MarkCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MarkCounts { taken: load(&self.taken), dropped: load(&self.dropped), refused: load(&self.refused) }
    }

    /// Takes a mark; the time that it is stored with.
    pub fn take(&self, event: Mark<'_>, state: &AgentState, now: ClockReading) -> Result<i64, MarkError> {
        let result = self.try_take(event, state, now);
        let counters = &state.counters;
        match &result {
            Ok(_) => self.count(&self.taken, &counters.marks),
            Err(MarkError::Dropped(_)) => self.count(&self.dropped, &counters.marks_dropped),
            // Counted by who asked, together with what was refused before it came here.
            Err(MarkError::Refused(_) | MarkError::Over(_)) => {}
        }
        result
    }

    /// Counts a mark that could not be.
    pub fn count_refused(&self, state: &AgentState) {
        self.count(&self.refused, &state.counters.marks_refused);
    }

    fn count(&self, own: &AtomicU64, of_all: &AtomicU64) {
        own.fetch_add(1, Ordering::Relaxed);
        of_all.fetch_add(1, Ordering::Relaxed);
    }

    fn try_take(&self, event: Mark<'_>, state: &AgentState, now: ClockReading) -> Result<i64, MarkError> {
        let config = state.marks.config();
        if !config.enabled {
            return Err(MarkError::Refused(
                "marks are switched off here: `enabled` in [jobs.marks] of the agent".into(),
            ));
        }
        let mut inner = lock(&self.inner);
        if inner.over {
            return Err(MarkError::Over(self.job.clone()));
        }
        let MarkGroups { bucket, names, .. } = &mut *inner;
        let full = match event.what {
            MarkKind::Value(..) => format!("app/{}", event.name),
            _ => format!("region/{}", event.name),
        };
        if !names.contains_key(&full) {
            let name = self.new_name(&full, event, names.len(), state)?;
            names.insert(full.clone(), name);
            self.names.store(names.len(), Ordering::Relaxed);
        }
        let Some(name) = names.get_mut(&full) else { return Err(MarkError::Over(self.job.clone())) };
        let bits = name.bits_after(event)?;
        // What the process says is taken where it can be true; a mark that was held up long has the time of its arrival.
        let said = event.time.filter(|time| time.abs_diff(now.real) <= TIME_APART_NS_MAX.unsigned_abs());
        let row = (said.unwrap_or(now.real), bits);
        let (rate, burst) = (config.per_second, f64::from(config.burst));
        let bucket = bucket.get_or_insert_with(|| TokenBucket::full(burst, now.mono));
        let dropped = |why: String| {
            state.marks.is_pending.store(true, Ordering::Release);
            Err(MarkError::Dropped(why))
        };
        if let Some(until) = state.counters.held_until(row.0) {
            name.pending = Some(row);
            let until = Timestamp(until);
            return dropped(format!("the clock was stepped back; nothing is stored until it has passed {until}"));
        }
        if !bucket.take(rate, burst, now.mono) {
            name.pending = Some(row);
            return dropped(format!("over {rate} marks a second of job {}; send fewer", self.job));
        }
        match name.write(row, state) {
            Ok(time) => Ok(time),
            Err(()) => dropped("the marks before it are still to be encoded; send fewer".into()),
        }
    }

    /// Makes the group of a name that is new.
    fn new_name(&self, full: &str, event: Mark<'_>, names: usize, state: &AgentState) -> Result<MarkGroup, MarkError> {
        let refused = |why: String| MarkError::Refused(why);
        check_name(event.name)?;
        let config = state.marks.config();
        if names >= config.names_max {
            return Err(refused(format!(
                "job {} has {names} names of regions and values, which is all it may have; use one of them",
                self.job
            )));
        }
        state.marks.is_room(self.uid)?;
        let path = format!("job/{}/{full}", self.level);
        let sensor = match event.what {
            MarkKind::End => return Err(refused(format!("region {:?} is not open; begin it before", event.name))),
            MarkKind::Begin => SensorDef::gauge(path.clone(), "1", "How often a region of the job's code is open."),
            MarkKind::Value(_, unit) => {
                let unit = unit.unwrap_or("1");
                check_unit(unit)?;
                SensorDef::gauge(path.clone(), unit, "A value that the job gave.").float()
            }
        };
        let schema =
            Schema::new(state.prefix.clone(), path, vec![sensor]).map_err(|error| refused(error.to_string()))?;
        let group = state.add_event_group("marks", schema).map_err(|taken| {
            refused(format!("{full} would be the group {}, which is there already; use another name", taken.name()))
        })?;
        Ok(MarkGroup { group, depth: 0, last: i64::MIN, pending: None })
    }

    /// A connection has gone that had opened a region so often: it is closed as often, as far as it still is open.
    pub fn close(&self, region: &str, times: i64, state: &AgentState, now: ClockReading) {
        let mut inner = lock(&self.inner);
        if inner.over {
            return;
        }
        if let Some(name) = inner.names.get_mut(&format!("region/{region}"))
            && name.depth > 0
        {
            name.depth = (name.depth - times).max(0);
            match name.write((now.real, Some(name.depth as u64)), state) {
                Ok(_) => self.count(&self.taken, &state.counters.marks),
                Err(()) => state.marks.is_pending.store(true, Ordering::Release),
            }
        }
    }

    /// Writes what was kept back as far as there is room.
    pub(super) fn flush(&self, state: &AgentState, now: ClockReading) {
        let config = state.marks.config();
        let (rate, burst) = (config.per_second, f64::from(config.burst));
        let mut inner = lock(&self.inner);
        let MarkGroups { bucket, names, over } = &mut *inner;
        for name in names.values_mut().filter(|_| !*over) {
            let Some((time, bits)) = name.pending else { continue };
            if state.counters.held_until(now.real).is_some() {
                state.marks.is_pending.store(true, Ordering::Release);
                continue;
            }
            // One of a time that was gone over before is of the first moment after it.
            let row = (state.counters.held_until(time).map_or(time, |_| now.real), bits);
            let is_room = bucket.as_mut().is_none_or(|bucket| bucket.take(rate, burst, now.mono));
            if is_room && name.write(row, state).is_ok() {
                self.count(&self.taken, &state.counters.marks);
            } else {
                state.marks.is_pending.store(true, Ordering::Release);
            }
        }
    }

    /// The job is over: what was kept back is written, open regions are closed, the groups are given to be drained.
    pub(super) fn end(&self, state: &AgentState, now: ClockReading) {
        let mut inner = lock(&self.inner);
        inner.over = true;
        for (_, mut name) in inner.names.drain() {
            let mut row = name.pending.take();
            if name.depth > 0 {
                row = Some((now.real, Some(0)));
            }
            if row.is_some_and(|row| name.write(row, state).is_ok()) {
                self.count(&self.taken, &state.counters.marks);
            }
            state.remove_event_group(&name.group);
        }
        self.names.store(0, Ordering::Relaxed);
        state.encode_soon();
    }
}

impl MarkGroup {
    /// What the sensor shows after the event. The depth follows every event, also those that are then too many for a row.
    fn bits_after(&mut self, event: Mark<'_>) -> Result<Option<u64>, MarkError> {
        match event.what {
            MarkKind::Begin if self.depth >= DEPTH_MAX => {
                Err(MarkError::Refused(format!("region {:?} is open {DEPTH_MAX} times; end it", event.name)))
            }
            MarkKind::End if self.depth == 0 => {
                Err(MarkError::Refused(format!("region {:?} is not open; begin it before", event.name)))
            }
            MarkKind::Begin | MarkKind::End => {
                self.depth += if event.what == MarkKind::Begin { 1 } else { -1 };
                Ok(Some(self.depth as u64))
            }
            MarkKind::Value(value, unit) => {
                let known = &self.group.schema.sensors()[0].unit;
                if let Some(unit) = unit.filter(|unit| unit != known) {
                    return Err(MarkError::Refused(format!(
                        "value {:?} has had the unit {known:?} since its first; {unit:?} would make it another: use another name",
                        event.name
                    )));
                }
                Ok(value.map(f64::to_bits))
            }
        }
    }
}

fn check_name(text: &str) -> Result<(), MarkError> {
    if text.len() > NAME_BYTES_MAX {
        let why = format!("a name of {} bytes; {NAME_BYTES_MAX} are the most: use a shorter one", text.len());
        return Err(MarkError::Refused(why));
    }
    name::check_relative(text).map_err(|error| MarkError::Refused(error.to_string()))
}

fn check_unit(unit: &str) -> Result<(), MarkError> {
    if (1..=UNIT_BYTES_MAX).contains(&unit.len()) && unit.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let why = format!("unit {unit:?}: use 1 to {UNIT_BYTES_MAX} visible ASCII characters, such as s, By, J or 1");
    Err(MarkError::Refused(why))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engine::passes::ClockPasses;
    use crate::engine::ring::RowCopy;

    const S: i64 = 1_000_000_000;

    struct Bench {
        state: AgentState,
        marks: JobMarks,
        mono: i64,
    }

    impl Bench {
        /// A value at a time of the wall clock: whether it was stored.
        fn mark(&mut self, real: i64, value: f64) -> bool {
            self.mono += S;
            let event = Mark { name: "x", what: MarkKind::Value(Some(value), None), time: None };
            self.marks.take(event, &self.state, ClockReading { real, mono: self.mono }).is_ok()
        }

        fn rows(&self) -> Vec<(i64, f64)> {
            let inner = lock(&self.marks.inner);
            let ring = &inner.names["app/x"].group.ring;
            let mut row = RowCopy::default();
            let mut rows = Vec::new();
            for at in 0..ring.head() {
                assert!(ring.copy(at, &mut row));
                rows.push((row.time, f64::from_bits(row.values[0])));
            }
            rows
        }
    }

    #[test]
    fn marks_do_not_go_over_a_time_twice() {
        let config = crate::Config::parse(Path::new("agent.toml"), "name = \"n1\"\n", Path::new(".")).unwrap();
        let state = AgentState::new(&config).unwrap();
        let record = JobRecord { job: "1".into(), level: "1".into(), ..JobRecord::default() };
        let mut bench = Bench { state, marks: JobMarks::new(&record), mono: 0 };
        assert!(bench.mark(100 * S, 1.0) && bench.mark(107 * S, 2.0));
        // Stepped back, and the sampler has not noticed yet.
        assert!(bench.mark(98 * S, 3.0));
        let mut passes = ClockPasses::new(90 * S);
        passes.stepped(108 * S, 98 * S);
        bench.state.counters.note_step(-10 * S, passes);
        assert!(!bench.mark(101 * S, 4.0) && !bench.mark(102 * S, 5.0));
        bench.marks.flush(&bench.state, ClockReading { real: 103 * S, mono: bench.mono });
        assert!(bench.state.marks.is_pending());
        // The last of those is stored when the clock has passed them.
        bench.marks.flush(&bench.state, ClockReading { real: 109 * S, mono: bench.mono });
        assert!(bench.mark(110 * S, 6.0));
        let mut expected = vec![(100 * S, 1.0), (107 * S, 2.0), (107 * S + 1, 3.0), (109 * S, 5.0), (110 * S, 6.0)];
        assert_eq!(bench.rows(), expected);
        // Further back than the process has ever sampled: these times are free.
        passes.stepped(111 * S, 20 * S);
        bench.state.counters.note_step(-91 * S, passes);
        assert!(bench.mark(21 * S, 7.0) && bench.mark(22 * S, 8.0));
        expected.extend([(21 * S, 7.0), (22 * S, 8.0)]);
        assert_eq!(bench.rows(), expected);
        assert_eq!(bench.marks.counts().dropped, 2);
    }
}
