//! `sensors.csv` beside the blocks: unit, kind and scale of every sensor, for those who read the blocks without the server. The
//! catalogue is what counts; this is a copy of it, written again when a seal finds that there are new definitions: all of it, so of millions of
//! sensors not at each seal.

use std::fmt::Write as _;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use wholegrain_model::{Kind, Pattern, ValueType};

use crate::StoreError;
use crate::sensors::info::SensorInfo;
use crate::store::Shared;

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "sensors.csv";
/// Its name while it is being written.
const TEMPORARY: &str = "sensors.csv.new";
/// The first line of `sensors.csv`.
const HEAD: &str = "sensor,unit,kind,type,scale,wraps_at,interval_ns,description\n";
/// Sensors that are looked up at a time, and bytes that are written at a time.
const PART_SENSORS: usize = 4096;
const WRITE_BYTES: usize = 1 << 20;

/// Where writing it takes longer than this, it is not written again for so many times as long: a hundredth of the time goes into it.
const SHORT: Duration = Duration::from_millis(100);
const RESTS: u32 = 99;

/// Writes the file if definitions have come since it was last written, and that was long enough ago. A failed write is logged and
/// harms nothing else.
pub(crate) fn keep_up(shared: &Shared) {
    let rest = *shared.properties_rest.lock().unwrap_or_else(PoisonError::into_inner);
    if rest.is_none_or(|until| Instant::now() >= until) {
        bring_up(shared);
    }
}

/// Writes the file now if definitions changed.
pub(crate) fn bring_up(shared: &Shared) {
    let definitions = shared.sensors().definitions();
    if shared.properties_written.swap(definitions, Relaxed) == definitions {
        return;
    }
    let began = Instant::now();
    if let Err(error) = write(shared) {
        shared.properties_written.store(0, Relaxed);
        tracing::warn!("store: {error}; it is tried again after the next seal");
    }
    let now = Instant::now();
    let rest = rest_after(now - began).map(|rest| now + rest);
    *shared.properties_rest.lock().unwrap_or_else(PoisonError::into_inner) = rest;
}

/// How long it is not written after writing took so long.
fn rest_after(took: Duration) -> Option<Duration> {
    (took > SHORT).then(|| took * RESTS)
}

fn write(shared: &Shared) -> Result<(), StoreError> {
    let (path, temporary) = (shared.config.dir.join(FILE), shared.config.dir.join(TEMPORARY));
    let io = |error| StoreError::io("writing", &temporary, error);
    let file = shared.disk.create(&temporary).map_err(io)?;
    let mut text = String::from(HEAD);
    let (mut at, mut last) = (0, None);
    let all = Pattern::new("/**").map_or_else(|_| Vec::new(), |pattern| vec![pattern]);
    // A part at a time: millions of sensors are neither in memory at once, nor is what comes in held up until they are written.
    loop {
        let part = shared.sensors().select_after(&all, last.as_deref(), PART_SENSORS);
        part.iter().for_each(|sensor| put(sensor, &mut text));
        last = part.last().map(|sensor| sensor.path.clone());
        if text.len() >= WRITE_BYTES || last.is_none() {
            file.write_at(at, text.as_bytes()).map_err(io)?;
            at += text.len() as u64;
            text.clear();
        }
        if last.is_none() {
            break;
        }
    }
    file.sync().map_err(io)?;
    shared.disk.rename(&temporary, &path).map_err(|error| StoreError::io("renaming", &temporary, error))?;
    shared.disk.sync_dir(&shared.config.dir).map_err(|error| StoreError::io("syncing", &shared.config.dir, error))
}

/// Its line. Names need no quotes: what would is not allowed in them.
fn put(sensor: &SensorInfo, text: &mut String) {
    let kind = match sensor.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    let value_type = match sensor.value_type {
        ValueType::Int => "int",
        ValueType::Float => "float",
    };
    let wraps_at = sensor.wraps_at.map(|at| at.to_string()).unwrap_or_default();
    let (unit, description) = (quoted(&sensor.unit), quoted(&sensor.description));
    let (path, scale, interval_ns) = (&sensor.path, sensor.scale, sensor.interval_ns);
    let _ = writeln!(text, "{path},{unit},{kind},{value_type},{scale},{wraps_at},{interval_ns},{description}");
}

/// A text field as RFC 4180 has it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Schema, SensorDef, SensorPath};

    use super::*;
    use crate::{Store, StoreConfig};

    #[test]
    fn what_takes_long_is_not_done_often() {
        assert_eq!(rest_after(Duration::from_millis(99)), None);
        assert_eq!(rest_after(Duration::from_secs(6)), Some(Duration::from_secs(594)));
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { background: false, ..StoreConfig::new(dir.path()) };
        let (store, _) = Store::open(config).unwrap();
        let shared = store.shared();
        let has = |name: &str| std::fs::read_to_string(dir.path().join(FILE)).is_ok_and(|text| text.contains(name));
        let register = |name: &str| {
            let sensors = vec![SensorDef::gauge(name, "1", "")];
            store.register_schema(&Schema::new(SensorPath::new("/n1").unwrap(), name, sensors).unwrap()).unwrap();
        };
        register("first");
        keep_up(shared);
        assert!(has("/n1/first"));
        register("second");
        *shared.properties_rest.lock().unwrap() = Some(Instant::now() + Duration::from_secs(3600));
        keep_up(shared);
        assert!(!has("/n1/second"));
        *shared.properties_rest.lock().unwrap() = Some(Instant::now());
        keep_up(shared);
        assert!(has("/n1/second"));
    }
}
