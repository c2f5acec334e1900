//! Measured and virtual sensors behind one interface.

use std::sync::Arc;

use wholegrain_model::{Pattern, Value};
use wholegrain_store::{ReadSnapshot, ReadStore, ScanRequest, SensorId, SensorInfo, SensorRange, Store, StoreError};

use crate::virtuals::eval::ComputedSnapshot;
use crate::virtuals::{VirtualSensors, merged};

/// The search for the newest value of a virtual sensor covers this many of its intervals before the newest time of its operands …
const NEWEST_INTERVALS: i64 = 10;
/// … and at least this long, ns.
const NEWEST_NS_MIN: i64 = 60_000_000_000;

/// A store and the virtual sensors over it. Thread-safe; clones share their state.
#[derive(Clone)]
pub struct Space {
    store: Store,
    /// The readings of the store, and of what it has handed over.
    readings: Arc<dyn ReadStore>,
    virtuals: Arc<VirtualSensors>,
}

impl Space {
    /// Uses the sensors of a store and the definitions in its registry.
    pub fn new(store: Store) -> Self {
        let readings = Arc::new(store.clone());
        Self::over(store, readings)
    }

    /// The same if the store hands over its sealed readings: `readings` has them and those of the store.
    pub fn over(store: Store, readings: Arc<dyn ReadStore>) -> Self {
        Self { virtuals: Arc::new(VirtualSensors::new(store.clone())), store, readings }
    }

    /// The store of the measured sensors.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The virtual sensors and their definitions.
    pub fn virtuals(&self) -> &VirtualSensors {
        &self.virtuals
    }

    /// The measured and virtual sensors that match at least one pattern, sorted by path. A measured sensor hides a virtual one of the same path.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        merged(self.store.sensors(patterns), self.virtuals.sensors(patterns))
    }

    /// As [`Self::sensors`], but only the first `most` whose paths come after `after`: a page of a long list.
    pub fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.sensors_after_until(patterns, after, most, &|| false)
    }

    /// As [`Self::sensors_after`]; stops early, with an incomplete list, once `is_over` returns true.
    pub fn sensors_after_until(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<SensorInfo> {
        let measured = self.store.sensors_after_until(patterns, after, most, is_over);
        let last = measured.last().filter(|_| measured.len() == most).map(|sensor| sensor.path.clone());
        let computed = self.virtuals.sensors_between(patterns, after, last.as_deref(), most, is_over);
        let mut sensors = merged(measured, computed);
        sensors.truncate(most);
        sensors
    }

    /// Removes sensors that a user may not see: those of other users' jobs, and sensors computed from them.
    pub fn retain_seen(&self, user: &str, sensors: &mut Vec<SensorInfo>) {
        if sensors.iter().any(|sensor| sensor.id.is_computed()) {
            self.virtuals.retain_seen(user, sensors);
        } else {
            self.store.retain_seen(user, sensors);
        }
    }

    /// A snapshot of all readings that also computes the virtual ones among `sensors`.
    pub fn snapshot_for(&self, sensors: &[SensorInfo]) -> Box<dyn ReadSnapshot> {
        match sensors.iter().any(|sensor| sensor.id.is_computed()) {
            true => ReadStore::snapshot(self),
            false => self.readings.snapshot(),
        }
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    pub fn newest(&self, sensors: &[SensorInfo]) -> Vec<Option<(i64, Option<Value>)>> {
        let ids: Vec<SensorId> = sensors.iter().map(|sensor| sensor.id).collect();
        let mut newest = self.readings.newest(&ids);
        let mut snapshot = None;
        for (sensor, newest) in sensors.iter().zip(&mut newest).filter(|(sensor, _)| sensor.id.is_computed()) {
            let snapshot = snapshot.get_or_insert_with(|| ReadStore::snapshot(self));
            let found = newest_computed(snapshot.as_ref(), sensor);
            *newest = found.unwrap_or_else(|error| {
                tracing::warn!("cannot compute {}: {error}", sensor.path);
                None
            });
        }
        newest
    }
}

fn newest_computed(
    snapshot: &dyn ReadSnapshot,
    sensor: &SensorInfo,
) -> Result<Option<(i64, Option<Value>)>, StoreError> {
    let Some(last) = sensor.last_time else { return Ok(None) };
    let interval = i64::try_from(sensor.interval_ns).unwrap_or(i64::MAX);
    let back = interval.saturating_mul(NEWEST_INTERVALS).max(NEWEST_NS_MIN);
    let (from, to) = (last.saturating_sub(back), last.saturating_add(interval.max(1)));
    let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to }))?;
    let mut newest = None;
    for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
        let chunk = chunk?;
        if let Some(time) = chunk.times.last() {
            newest = Some((*time, chunk.column.get(chunk.times.len() - 1)));
        }
    }
    Ok(newest)
}

impl ReadStore for Space {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        Space::sensors(self, patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        Space::sensors_after(self, patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        self.readings.newest(ids)
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        let (snapshot, cache) = (self.readings.snapshot(), self.store.result_cache());
        Box::new(ComputedSnapshot::new(snapshot, self.virtuals.clone(), cache))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use wholegrain_model::{Kind, SensorPath, ValueType};
    use wholegrain_store::{SchemalessSensor, StoreConfig};

    use super::*;
    use crate::virtuals::{Definition, DefinitionChange};

    /// A sensor without a schema.
    pub(crate) fn sensor(path: &str) -> SchemalessSensor {
        SchemalessSensor {
            path: SensorPath::new(path).unwrap(),
            unit: "W".into(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            description: String::new(),
        }
    }

    /// A pattern without matches searches all sensors, in parts: between them other threads can add sensors, and the client can disconnect.
    #[test]
    fn a_long_search_for_sensors_runs_in_parts_and_stops_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap();
        let measured: Vec<SchemalessSensor> = (0..3_000).map(|at| sensor(&format!("/m/n{at:04}"))).collect();
        store.register_sensors("test", &measured).unwrap();
        let space = Space::new(store);
        let pattern = |at: usize| Pattern::new(format!("/**/none{at}")).unwrap();
        let mut patterns: Vec<Pattern> = (0..255).map(pattern).collect();
        patterns.push(Pattern::new("/m/n2999").unwrap());
        let asked = std::cell::Cell::new(0);
        let search = |most: usize| {
            asked.set(0);
            let is_over = || {
                asked.set(asked.get() + 1);
                asked.get() > most
            };
            space.sensors_after_until(&patterns, None, 10, &is_over).len()
        };
        assert_eq!(search(usize::MAX), 1);
        let parts = asked.get();
        assert!(parts > 5, "{parts} parts");
        assert_eq!((search(2), asked.get()), (0, 3));
    }

    #[test]
    fn pages_of_measured_and_virtual_sensors_join_to_the_whole_list() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap();
        let measured: Vec<SchemalessSensor> = (0..20).map(|at| sensor(&format!("/m/n{at:02}/power"))).collect();
        store.register_sensors("test", &measured).unwrap();
        let space = Space::new(store);
        // Virtual sensors before, between and after the measured ones, and several at the end.
        let paths = ["/a/x", "/m/n03/double", "/m/n19/zero", "/z/1", "/z/2", "/z/3"];
        let define = paths.map(|path| Definition {
            path: path.to_owned(),
            expression: "sum(</**/power>)".to_owned(),
            unit: "W".to_owned(),
            ..Definition::default()
        });
        space
            .virtuals()
            .change(DefinitionChange { define: define.to_vec(), ..DefinitionChange::default() }, "test", 1)
            .unwrap();
        let patterns = [Pattern::new("/m/**").unwrap(), Pattern::new("/**").unwrap()];
        let all: Vec<Arc<str>> = space.sensors(&patterns).into_iter().map(|sensor| sensor.path).collect();
        assert_eq!(all.len(), 26);
        for most in 1..=30 {
            let mut paged: Vec<Arc<str>> = Vec::new();
            loop {
                let page = space.sensors_after(&patterns, paged.last().map(|path| &**path), most);
                paged.extend(page.iter().map(|sensor| sensor.path.clone()));
                if page.len() < most {
                    break;
                }
            }
            assert_eq!(paged, all, "pages of {most}");
        }
        assert_eq!(space.virtuals().sensors_until(&patterns, &|| false).len(), 6);
        assert!(space.virtuals().sensors_until(&patterns, &|| true).is_empty());
    }
}
