//! Watched virtual sensors: computed as readings of their operands arrive.
//!
//! Each is computed at most once in its interval and at most once in [`TICK`], on a blocking thread, from the time that was last sent. A time
//! without a value waits a while for late operands and is then sent as a gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use wholegrain_model::Pattern;
use wholegrain_query::Space;
use wholegrain_store::{ReadSnapshot, ReadStore, ScanRequest, SensorInfo, SensorRange, StoreError};

use super::clock::now;
use super::format::{json_text, reading};
use super::read::RequestGuard;

/// The interval of computations.
const TICK: Duration = Duration::from_secs(1);
/// The interval of the search for new virtual sensors.
const LOOK: Duration = Duration::from_secs(10);
/// The most virtual sensors that one client watches, in the order of paths.
pub(super) const COMPUTED_MAX: usize = 10_000;
/// A time without a value is a gap after this many intervals …
const LATE_INTERVALS: i64 = 3;
/// … and at least this long, ns.
const LATE_NS_MIN: i64 = 5_000_000_000;
/// The oldest time computed, as a multiple of the same delay.
const BACK_TIMES: i64 = 4;

/// The virtual sensors of one watcher.
pub(super) struct ComputedWatch {
    /// `None` while a thread is working.
    work: Option<ComputedWatchTask>,
    running: Option<JoinHandle<(ComputedWatchTask, Bytes, u64)>>,
    ticks: tokio::time::Interval,
    /// Ends the work when the watcher is dropped.
    _over: RequestGuard,
}

struct ComputedWatchTask {
    space: Space,
    patterns: Vec<Pattern>,
    only_user: Option<String>,
    sensors: Vec<ComputedSubscription>,
    looked: Instant,
    is_over: Arc<AtomicBool>,
}

struct ComputedSubscription {
    info: SensorInfo,
    name: String,
    /// The end of the times sent, ns since the Unix epoch.
    sent: i64,
    due: Instant,
}

impl ComputedWatch {
    /// Watches the virtual sensors among `sensors`, and later ones that match.
    pub fn new(space: Space, patterns: Vec<Pattern>, only_user: Option<String>, sensors: Vec<SensorInfo>) -> Self {
        let over = RequestGuard::default();
        let is_over = over.flag();
        let mut work =
            ComputedWatchTask { space, patterns, only_user, sensors: Vec::new(), looked: Instant::now(), is_over };
        work.take(sensors);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { work: Some(work), running: None, ticks, _over: over }
    }

    /// The next lines, and their number. Safe to cancel.
    pub async fn next(&mut self) -> (Bytes, u64) {
        loop {
            if self.running.is_none() {
                self.ticks.tick().await;
                match self.work.take() {
                    Some(work) => self.running = Some(tokio::task::spawn_blocking(|| work.step())),
                    None => std::future::pending().await,
                }
            }
            let Some(running) = &mut self.running else { continue };
            let done = running.await;
            self.running = None;
            match done {
                Ok((work, lines, count)) => {
                    self.work = Some(work);
                    if count > 0 {
                        return (lines, count);
                    }
                }
                Err(error) => tracing::error!("watch: computing virtual sensors failed: {error}"),
            }
        }
    }
}

impl ComputedWatchTask {
    /// Updates the selection; sensors that are watched already continue.
    fn take(&mut self, sensors: Vec<SensorInfo>) {
        let mut before: std::collections::HashMap<_, _> =
            self.sensors.drain(..).map(|watched| (watched.info.path.clone(), watched)).collect();
        let (now, at) = (Instant::now(), now().0);
        let computed = sensors.into_iter().filter(|info| info.id.is_computed()).take(COMPUTED_MAX);
        self.sensors = computed
            .map(|info| match before.remove(&info.path) {
                Some(watched) => ComputedSubscription { info, ..watched },
                None => ComputedSubscription { name: json_text(&info.path), sent: at, due: now, info },
            })
            .collect();
        self.looked = now;
    }

    fn step(mut self) -> (Self, Bytes, u64) {
        if self.looked.elapsed() >= LOOK {
            let mut sensors = self.space.virtuals().sensors_until(&self.patterns, &|| self.is_over.load(Relaxed));
            if let Some(user) = &self.only_user {
                self.space.retain_seen(user, &mut sensors);
            }
            self.take(sensors);
        }
        let (mut out, mut count) = (Vec::new(), 0);
        let mut snapshot = None;
        let started = Instant::now();
        for watched in self.sensors.iter_mut().filter(|watched| watched.due <= started) {
            if self.is_over.load(Relaxed) {
                break;
            }
            let snapshot = snapshot.get_or_insert_with(|| self.space.snapshot());
            let computed = watched.compute(snapshot.as_ref(), &mut out, &mut count);
            if let Err(error) = computed {
                tracing::warn!("watch: computing {}: {error}", watched.info.path);
            }
        }
        (self, out.into(), count)
    }
}

impl ComputedSubscription {
    /// Writes new values and counts them.
    fn compute(&mut self, snapshot: &dyn ReadSnapshot, out: &mut Vec<u8>, count: &mut u64) -> Result<(), StoreError> {
        let interval = i64::try_from(self.info.interval_ns).unwrap_or(i64::MAX);
        self.due = Instant::now() + Duration::from_nanos(self.info.interval_ns).max(TICK / 2);
        let now = now().0;
        let late = interval.saturating_mul(LATE_INTERVALS).max(LATE_NS_MIN);
        self.sent = self.sent.max(now.saturating_sub(late.saturating_mul(BACK_TIMES)));
        let (sensor, from, to) = (&self.info, self.sent + 1, now.saturating_add(1));
        let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to }))?;
        for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
            let chunk = chunk?;
            for (at, &time) in chunk.times.iter().enumerate() {
                let value = chunk.column.get(at);
                if value.is_none() && time > now.saturating_sub(late) {
                    return Ok(());
                }
                // Writing into memory cannot fail.
                let _ = reading(&self.name, time, value, out);
                self.sent = time;
                *count += 1;
            }
        }
        Ok(())
    }
}
