//! The marks of one job: its names, their groups, and how many more there may be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wholegrain_model::schema::UNIT_BYTES_MAX;
use wholegrain_model::{JobRecord, Schema, SensorDef, Timestamp, name};

use super::bucket::TokenBucket;
use super::config::{MarksConfig, NAME_BYTES_MAX, NAMES_OF_ALL_MAX, NAMES_OF_USER_MAX, TIME_APART_NS_MAX};
use crate::counters::AgentCounters;
use crate::engine::Group;
use crate::engine::clock::Wake;
use crate::engine::schedule::ClockReading;
use crate::identity::AgentIdentity;
use crate::registry::GroupRegistry;
use crate::sync::lock;

/// When more samples of a name wait for the encoder than fill a batch, it is woken once for this many.
const ENCODE_EVERY: u64 = 32;
/// How many times a region may be open at once, over all processes of a job.
const DEPTH_MAX: i64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MarkKind<'a> {
    Begin,
    End,
    /// A value, `None` for NaN or infinity, and its unit if the mark has one.
    Value(Option<f64>, Option<&'a str>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark<'a> {
    /// The region or the value.
    pub name: &'a str,
    pub kind: MarkKind<'a>,
    /// The time of the event by the clock of the process.
    pub time: Option<i64>,
}

/// Why a mark was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// Over the rate, or the encoder is behind.
    #[error("{0}")]
    Dropped(String),
    #[error("{0}")]
    Refused(String),
    /// The job has ended.
    #[error("job {0} has ended")]
    Over(String),
}

/// Counts of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkCounts {
    pub taken: u64,
    /// Marks over the rate.
    pub dropped: u64,
    pub refused: u64,
}

/// What the marks of all jobs share.
#[derive(Debug)]
pub(super) struct MarksContext {
    config: Mutex<MarksConfig>,
    identity: Arc<AgentIdentity>,
    registry: Arc<GroupRegistry>,
    counters: Arc<AgentCounters>,
    encoder_wake: Arc<Wake>,
    /// A delayed mark waits to be written.
    is_pending: AtomicBool,
    names: Mutex<NameCounts>,
}

/// Names of regions and values in use.
#[derive(Debug, Default)]
struct NameCounts {
    all: usize,
    by_uid: HashMap<Option<u32>, usize>,
}

impl MarksContext {
    pub fn new(
        config: MarksConfig,
        identity: Arc<AgentIdentity>,
        registry: Arc<GroupRegistry>,
        counters: Arc<AgentCounters>,
        encoder_wake: Arc<Wake>,
    ) -> Self {
        let (config, is_pending, names) = (Mutex::new(config), AtomicBool::new(false), Mutex::default());
        Self { config, identity, registry, counters, encoder_wake, is_pending, names }
    }

    pub fn configure(&self, config: MarksConfig) {
        *lock(&self.config) = config;
    }

    fn config(&self) -> MarksConfig {
        *lock(&self.config)
    }

    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    pub fn take_pending(&self) -> bool {
        self.is_pending.swap(false, Ordering::AcqRel)
    }

    fn set_pending(&self) {
        self.is_pending.store(true, Ordering::Release);
    }

    /// Checks that the bounds of the user and of all allow one more name.
    fn check_room(&self, uid: Option<u32>) -> Result<(), MarkError> {
        let names = lock(&self.names);
        if names.all >= NAMES_OF_ALL_MAX {
            return Err(MarkError::Refused(format!(
                "the jobs of this node have {NAMES_OF_ALL_MAX} names; no more are allowed"
            )));
        }
        if names.by_uid.get(&uid).is_some_and(|count| *count >= NAMES_OF_USER_MAX) {
            return Err(MarkError::Refused(format!(
                "the jobs of this user have {NAMES_OF_USER_MAX} names; no more are allowed"
            )));
        }
        Ok(())
    }

    fn count_name(&self, uid: Option<u32>) {
        let mut names = lock(&self.names);
        names.all += 1;
        *names.by_uid.entry(uid).or_default() += 1;
    }

    fn release_names(&self, uid: Option<u32>, count: usize) {
        let mut names = lock(&self.names);
        names.all -= count;
        if let Some(of_user) = names.by_uid.get_mut(&uid) {
            *of_user -= count;
            if *of_user == 0 {
                names.by_uid.remove(&uid);
            }
        }
    }
}

/// The marks of one job.
#[derive(Debug)]
pub struct JobMarks {
    context: Arc<MarksContext>,
    job: String,
    /// The level above its sensors.
    level: String,
    uid: Option<u32>,
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

/// Time and bits of a sample; no bits for a gap.
type MarkRow = (i64, Option<u64>);

#[derive(Debug)]
struct MarkGroup {
    group: Arc<Group>,
    depth: i64,
    /// The time of its last sample.
    last: i64,
    /// The last mark over the rate.
    pending: Option<MarkRow>,
}

impl MarkGroup {
    /// Writes a sample and returns its time. Delays it if the ring is full of samples that are not encoded.
    fn write(&mut self, (time, bits): MarkRow, context: &MarksContext) -> Result<i64, ()> {
        let waiting = self.group.ring.head().saturating_sub(self.group.encoded.load(Ordering::Acquire));
        if waiting >= self.group.ring.capacity() as u64 {
            self.pending = Some((time, bits));
            return Err(());
        }
        if waiting >= self.group.batch_samples as u64 && waiting.is_multiple_of(ENCODE_EVERY) {
            context.encoder_wake.wake();
        }
        // Times go forward, except that after the clock was stepped back a time may be used that no sample has yet.
        let is_held = |time| context.counters.held_until(time).is_some();
        let may_go_back = time <= self.last && is_held(self.last) && !is_held(time);
        let time = if may_go_back { time } else { time.max(self.last.saturating_add(1)) };
        (self.last, self.pending) = (time, None);
        let fits = self.group.push_event(time, &[bits.unwrap_or(0)], &[u64::from(bits.is_none())]);
        let count = if fits { &context.counters.samples } else { &context.counters.missed };
        count.fetch_add(1, Ordering::Relaxed);
        if bits.is_none() {
            self.group.stats.gaps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(time)
    }
}

impl JobMarks {
    pub(super) fn new(record: &JobRecord, context: Arc<MarksContext>) -> Self {
        Self {
            context,
            job: record.job.clone(),
            level: record.level.clone(),
            uid: record.uid,
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

    /// Stores a mark and returns the time of its sample.
    pub fn take(&self, event: Mark<'_>, now: ClockReading) -> Result<i64, MarkError> {
        let result = self.try_take(event, now);
        let counters = &self.context.counters;
        match &result {
            Ok(_) => self.count(&self.taken, &counters.marks),
            Err(MarkError::Dropped(_)) => self.count(&self.dropped, &counters.marks_dropped),
            // The session counts these, together with the requests that it refuses itself.
            Err(MarkError::Refused(_) | MarkError::Over(_)) => {}
        }
        result
    }

    /// Counts an invalid mark.
    pub fn count_refused(&self) {
        self.count(&self.refused, &self.context.counters.marks_refused);
    }

    fn count(&self, own: &AtomicU64, of_all: &AtomicU64) {
        own.fetch_add(1, Ordering::Relaxed);
        of_all.fetch_add(1, Ordering::Relaxed);
    }

    fn try_take(&self, event: Mark<'_>, now: ClockReading) -> Result<i64, MarkError> {
        let config = self.context.config();
        if !config.enabled {
            return Err(MarkError::Refused(
                "marks are disabled: `enabled` in [jobs.marks] of the agent's configuration".into(),
            ));
        }
        let mut inner = lock(&self.inner);
        if inner.over {
            return Err(MarkError::Over(self.job.clone()));
        }
        let MarkGroups { bucket, names, .. } = &mut *inner;
        let full = match event.kind {
            MarkKind::Value(..) => format!("app/{}", event.name),
            _ => format!("region/{}", event.name),
        };
        if !names.contains_key(&full) {
            let name = self.new_name(&full, event, names.len())?;
            names.insert(full.clone(), name);
            self.context.count_name(self.uid);
        }
        let Some(name) = names.get_mut(&full) else { return Err(MarkError::Over(self.job.clone())) };
        let bits = name.bits_after(event)?;
        // The process's time is used if it is close to the agent's; otherwise the time of arrival.
        let time = event.time.filter(|time| time.abs_diff(now.real) <= TIME_APART_NS_MAX.unsigned_abs());
        let row = (time.unwrap_or(now.real), bits);
        let (rate, burst) = (config.per_second, f64::from(config.burst));
        let bucket = bucket.get_or_insert_with(|| TokenBucket::full(burst, now.mono));
        let dropped = |why: String| {
            self.context.set_pending();
            Err(MarkError::Dropped(why))
        };
        if let Some(until) = self.context.counters.held_until(row.0) {
            name.pending = Some(row);
            let until = Timestamp(until);
            return dropped(format!("the clock was stepped back; nothing is stored until {until}"));
        }
        if !bucket.take(rate, burst, now.mono) {
            name.pending = Some(row);
            return dropped(format!("over {rate} marks a second of job {}; send fewer", self.job));
        }
        match name.write(row, &self.context) {
            Ok(time) => Ok(time),
            Err(()) => dropped("earlier marks are not encoded yet; send fewer".into()),
        }
    }

    /// Creates the group of a new name.
    fn new_name(&self, full: &str, event: Mark<'_>, names: usize) -> Result<MarkGroup, MarkError> {
        let refused = |why: String| MarkError::Refused(why);
        check_name(event.name)?;
        if names >= self.context.config().names_max {
            return Err(refused(format!(
                "job {} has {names} names of regions and values; no more are allowed: use one of them",
                self.job
            )));
        }
        self.context.check_room(self.uid)?;
        let path = format!("job/{}/{full}", self.level);
        let sensor = match event.kind {
            MarkKind::End => return Err(refused(format!("region {:?} is not open; begin it first", event.name))),
            MarkKind::Begin => {
                SensorDef::gauge(path.clone(), "1", "How many times a region of the job's code is open.")
            }
            MarkKind::Value(_, unit) => {
                let unit = unit.unwrap_or("1");
                check_unit(unit)?;
                SensorDef::gauge(path.clone(), unit, "A value that the job reported.").float()
            }
        };
        let identity = &self.context.identity;
        let schema =
            Schema::new(identity.prefix.clone(), path, vec![sensor]).map_err(|error| refused(error.to_string()))?;
        let group = Arc::new(Group::of_events("marks", &identity.name, schema));
        self.context.registry.add_new(group.clone()).map_err(|taken| {
            refused(format!("{full} would be the group {}, which exists already; use another name", taken.name()))
        })?;
        Ok(MarkGroup { group, depth: 0, last: i64::MIN, pending: None })
    }

    /// Closes a region `times` times, because the connection that opened it has ended.
    pub fn close(&self, region: &str, times: i64, now: ClockReading) {
        let mut inner = lock(&self.inner);
        if inner.over {
            return;
        }
        if let Some(name) = inner.names.get_mut(&format!("region/{region}"))
            && name.depth > 0
        {
            name.depth = (name.depth - times).max(0);
            match name.write((now.real, Some(name.depth as u64)), &self.context) {
                Ok(_) => self.count(&self.taken, &self.context.counters.marks),
                Err(()) => self.context.set_pending(),
            }
        }
    }

    /// Writes delayed marks as far as there is room.
    pub(super) fn flush(&self, now: ClockReading) {
        let config = self.context.config();
        let counters = &self.context.counters;
        let (rate, burst) = (config.per_second, f64::from(config.burst));
        let mut inner = lock(&self.inner);
        let MarkGroups { bucket, names, over } = &mut *inner;
        for name in names.values_mut().filter(|_| !*over) {
            let Some((time, bits)) = name.pending else { continue };
            if counters.held_until(now.real).is_some() {
                self.context.set_pending();
                continue;
            }
            // A mark at a time that was sampled before the clock step gets the first time after it.
            let row = (counters.held_until(time).map_or(time, |_| now.real), bits);
            let is_room = bucket.as_mut().is_none_or(|bucket| bucket.take(rate, burst, now.mono));
            if is_room && name.write(row, &self.context).is_ok() {
                self.count(&self.taken, &counters.marks);
            } else {
                self.context.set_pending();
            }
        }
    }

    /// Ends the marks of an ended job: writes delayed marks, closes open regions and retires the groups.
    pub(super) fn end(&self, now: ClockReading) {
        let mut inner = lock(&self.inner);
        inner.over = true;
        self.context.release_names(self.uid, inner.names.len());
        for (_, mut name) in inner.names.drain() {
            let mut row = name.pending.take();
            if name.depth > 0 {
                row = Some((now.real, Some(0)));
            }
            if row.is_some_and(|row| name.write(row, &self.context).is_ok()) {
                self.count(&self.taken, &self.context.counters.marks);
            }
            name.group.sealed.store(true, Ordering::Release);
            self.context.registry.retire(name.group.id);
        }
        self.context.encoder_wake.wake();
    }
}

impl MarkGroup {
    /// The sensor's bits after the event. The depth follows every event, also one that is over the rate.
    fn bits_after(&mut self, event: Mark<'_>) -> Result<Option<u64>, MarkError> {
        match event.kind {
            MarkKind::Begin if self.depth >= DEPTH_MAX => {
                Err(MarkError::Refused(format!("region {:?} is open {DEPTH_MAX} times; end it", event.name)))
            }
            MarkKind::End if self.depth == 0 => {
                Err(MarkError::Refused(format!("region {:?} is not open; begin it first", event.name)))
            }
            MarkKind::Begin | MarkKind::End => {
                self.depth += if event.kind == MarkKind::Begin { 1 } else { -1 };
                Ok(Some(self.depth as u64))
            }
            MarkKind::Value(value, unit) => {
                let known = &self.group.schema.sensors()[0].unit;
                if let Some(unit) = unit.filter(|unit| unit != known) {
                    return Err(MarkError::Refused(format!(
                        "value {:?} has the unit {known:?}; use another name for the unit {unit:?}",
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
        let why = format!("a name of {} bytes; at most {NAME_BYTES_MAX} are allowed", text.len());
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
    use std::time::Instant;

    use wholegrain_model::SensorPath;

    use super::*;
    use crate::engine::passes::ClockPasses;
    use crate::engine::ring::RowCopy;

    const S: i64 = 1_000_000_000;

    struct Bench {
        context: Arc<MarksContext>,
        marks: JobMarks,
        mono: i64,
    }

    impl Bench {
        /// A value at a time of the wall clock: whether it was stored.
        fn mark(&mut self, real: i64, value: f64) -> bool {
            self.mono += S;
            let event = Mark { name: "x", kind: MarkKind::Value(Some(value), None), time: None };
            self.marks.take(event, ClockReading { real, mono: self.mono }).is_ok()
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
        let identity = AgentIdentity {
            name: "n1".to_owned(),
            prefix: SensorPath::new("/n1").unwrap(),
            boot_ns: 1,
            started: Instant::now(),
        };
        let (registry, counters) = (Arc::default(), Arc::default());
        let context = MarksContext::new(MarksConfig::default(), Arc::new(identity), registry, counters, Arc::default());
        let context = Arc::new(context);
        let record = JobRecord { job: "1".into(), level: "1".into(), ..JobRecord::default() };
        let mut bench = Bench { marks: JobMarks::new(&record, context.clone()), context, mono: 0 };
        assert!(bench.mark(100 * S, 1.0) && bench.mark(107 * S, 2.0));
        // Stepped back, and the sampler has not noticed yet.
        assert!(bench.mark(98 * S, 3.0));
        let mut passes = ClockPasses::new(90 * S);
        passes.stepped(108 * S, 98 * S);
        bench.context.counters.note_step(-10 * S, passes);
        assert!(!bench.mark(101 * S, 4.0) && !bench.mark(102 * S, 5.0));
        bench.marks.flush(ClockReading { real: 103 * S, mono: bench.mono });
        assert!(bench.context.is_pending());
        // The last of those is stored when the clock has passed them.
        bench.marks.flush(ClockReading { real: 109 * S, mono: bench.mono });
        assert!(bench.mark(110 * S, 6.0));
        let mut expected = vec![(100 * S, 1.0), (107 * S, 2.0), (107 * S + 1, 3.0), (109 * S, 5.0), (110 * S, 6.0)];
        assert_eq!(bench.rows(), expected);
        // Further back than the process has ever sampled: these times are free.
        passes.stepped(111 * S, 20 * S);
        bench.context.counters.note_step(-91 * S, passes);
        assert!(bench.mark(21 * S, 7.0) && bench.mark(22 * S, 8.0));
        expected.extend([(21 * S, 7.0), (22 * S, 8.0)]);
        assert_eq!(bench.rows(), expected);
        assert_eq!(bench.marks.counts().dropped, 2);
    }
}
