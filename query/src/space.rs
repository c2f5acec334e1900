//! Everything that can be asked in one place: the sensors that are measured and those that are computed from them.

use std::sync::Arc;

use wholegrain_model::{Pattern, Value};
use wholegrain_store::{Chunks, ReadStore, SensorId, SensorInfo, Store};

use crate::virtuals::eval::Computed;
use crate::virtuals::{Virtuals, merged};

/// How far before the newest time of its operands the newest value of a virtual sensor is looked for: so many of its intervals …
const NEWEST_INTERVALS: i64 = 10;
/// … and at least so long, ns.
const NEWEST_NS_MIN: i64 = 60_000_000_000;

/// A store and the virtual sensors over it. All calls may come from any thread; clones are the same space.
#[derive(Clone)]
pub struct Space {
    store: Store,
    virtuals: Arc<Virtuals>,
}

impl Space {
    /// Of the sensors of a store and the definitions in its registry.
    pub fn new(store: Store) -> Self {
        Self { virtuals: Arc::new(Virtuals::new(store.clone())), store }
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The virtual sensors and their definitions.
    pub fn virtuals(&self) -> &Virtuals {
        &self.virtuals
    }

    /// Every sensor, measured or virtual, that one of the patterns chooses, sorted by path, each once. A measured one stands before a
    /// virtual one of the same path.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        merged(self.store.sensors(patterns), self.virtuals.sensors(patterns))
    }

    /// The first `most` of them whose paths come after `after`: a part of a list that may be of any length.
    pub fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        let mut computed = self.virtuals.sensors(patterns);
        computed.retain(|sensor| after.is_none_or(|after| &*sensor.path > after));
        let mut sensors = merged(self.store.sensors_after(patterns, after, most), computed);
        sensors.truncate(most);
        sensors
    }

    /// Takes out the sensors that a user may not see: those of other people's jobs, and what is computed from those.
    pub fn retain_seen(&self, user: &str, sensors: &mut Vec<SensorInfo>) {
        if sensors.iter().any(|sensor| sensor.id.is_computed()) {
            self.virtuals.retain_seen(user, sensors);
        } else {
            self.store.retain_seen(user, sensors);
        }
    }

    /// All readings of this moment, and what `sensors` among them that are virtual are computed to.
    pub fn chunks(&self, sensors: &[SensorInfo]) -> Box<dyn Chunks> {
        let snapshot = Box::new(self.store.snapshot());
        if !sensors.iter().any(|sensor| sensor.id.is_computed()) {
            return snapshot;
        }
        Box::new(Computed::new(snapshot, self.virtuals.clone(), self.store.derived()))
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    pub fn newest(&self, sensors: &[SensorInfo]) -> Vec<Option<(i64, Option<Value>)>> {
        let ids: Vec<SensorId> = sensors.iter().map(|sensor| sensor.id).collect();
        let mut newest = self.store.newest(&ids);
        let mut chunks = None;
        for (sensor, newest) in sensors.iter().zip(&mut newest).filter(|(sensor, _)| sensor.id.is_computed()) {
            let chunks = chunks.get_or_insert_with(|| self.chunks(std::slice::from_ref(sensor)));
            *newest = newest_computed(chunks.as_ref(), sensor);
        }
        newest
    }
}

fn newest_computed(chunks: &dyn Chunks, sensor: &SensorInfo) -> Option<(i64, Option<Value>)> {
    let last = sensor.last_time?;
    let interval = i64::try_from(sensor.interval_ns).unwrap_or(i64::MAX);
    let back = interval.saturating_mul(NEWEST_INTERVALS).max(NEWEST_NS_MIN);
    let scanned = chunks.scan(sensor, last.saturating_sub(back), last.saturating_add(interval.max(1)));
    let mut newest = None;
    for chunk in scanned.inspect_err(|error| tracing::warn!("computing {}: {error}", sensor.path)).ok()? {
        let Ok(chunk) = chunk.inspect_err(|error| tracing::warn!("computing {}: {error}", sensor.path)) else { break };
        if let Some(time) = chunk.times.last() {
            newest = Some((*time, chunk.column.get(chunk.times.len() - 1)));
        }
    }
    newest
}

impl ReadStore for Space {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        Space::sensors(self, patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        Space::sensors_after(self, patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        self.store.newest(ids)
    }

    fn snapshot(&self) -> Box<dyn Chunks> {
        Box::new(Computed::new(Box::new(self.store.snapshot()), self.virtuals.clone(), self.store.derived()))
    }
}
