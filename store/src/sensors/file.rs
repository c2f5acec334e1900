//! `sensors.csv` beside the blocks: unit, kind and scale of every sensor, for readers of the blocks without the server. It is a copy of the
//! catalogue's content, written again as a whole when a seal finds new definitions; with millions of sensors not at each seal.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_model::{Kind, Pattern, ValueType};

use crate::StoreError;
use crate::disk::Disk;
use crate::sensors::SensorIndex;
use crate::sensors::info::SensorInfo;

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "sensors.csv";
/// Its name while it is being written.
const TEMPORARY: &str = "sensors.csv.new";
/// The first line of `sensors.csv`.
const HEAD: &str = "sensor,unit,kind,type,scale,wraps_at,interval_ns,description\n";
/// Sensors that are read at a time, and bytes that are written at a time.
const PART_SENSORS: usize = 4096;
const WRITE_BYTES: usize = 1 << 20;

/// If writing takes longer than [`SHORT`], the file is not written again for [`RESTS`] times as long, so that it takes a hundredth of the time.
const SHORT: Duration = Duration::from_millis(100);
const RESTS: u32 = 99;

/// The file, and when it was last written.
pub(crate) struct SensorFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    sensors: Arc<SensorIndex>,
    /// The number of definitions when it was last written.
    written: AtomicU64,
    /// It is not written again before this.
    rest_until: Mutex<Option<Instant>>,
}

impl SensorFile {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, sensors: Arc<SensorIndex>) -> Self {
        Self { disk, dir, sensors, written: AtomicU64::new(0), rest_until: Mutex::new(None) }
    }

    /// Writes the file if definitions have changed and the pause after the last write is over. A failed write is only logged.
    pub(crate) fn keep_up(&self) {
        let rest = *self.rest_until.lock().unwrap_or_else(PoisonError::into_inner);
        if rest.is_none_or(|until| Instant::now() >= until) {
            self.bring_up();
        }
    }

    /// Writes the file now if definitions changed.
    pub(crate) fn bring_up(&self) {
        let definitions = self.sensors.read().definitions();
        if self.written.swap(definitions, Relaxed) == definitions {
            return;
        }
        let began = Instant::now();
        if let Err(error) = self.write() {
            self.written.store(0, Relaxed);
            tracing::warn!("store: {error}; it is tried again after the next seal");
        }
        let now = Instant::now();
        let rest = rest_after(now - began).map(|rest| now + rest);
        *self.rest_until.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }

    fn write(&self) -> Result<(), StoreError> {
        let (path, temporary) = (self.dir.join(FILE), self.dir.join(TEMPORARY));
        let io = |error| StoreError::io("writing", &temporary, error);
        let file = self.disk.create(&temporary).map_err(io)?;
        let mut text = String::from(HEAD);
        let (mut at, mut last) = (0, None);
        let all = Pattern::new("/**").map_or_else(|_| Vec::new(), |pattern| vec![pattern]);
        // A part at a time: millions of sensors must not be in memory at once, nor block registrations.
        loop {
            let part = self.sensors.read().select_after(&all, last.as_deref(), PART_SENSORS);
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
        self.disk.rename(&temporary, &path).map_err(|error| StoreError::io("renaming", &temporary, error))?;
        self.disk.sync_dir(&self.dir).map_err(|error| StoreError::io("syncing", &self.dir, error))
    }
}

/// The pause after a write that took this long.
fn rest_after(took: Duration) -> Option<Duration> {
    (took > SHORT).then(|| took * RESTS)
}

/// Writes one line. Paths need no quotes, because characters that would need them are not allowed.
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
    use crate::disk::RealDisk;

    #[test]
    fn what_takes_long_is_not_done_often() {
        assert_eq!(rest_after(Duration::from_millis(99)), None);
        assert_eq!(rest_after(Duration::from_secs(6)), Some(Duration::from_secs(594)));
        let dir = tempfile::tempdir().unwrap();
        let sensors = Arc::new(SensorIndex::default());
        let file = SensorFile::new(Arc::new(RealDisk), dir.path().to_owned(), sensors.clone());
        let has = |name: &str| std::fs::read_to_string(dir.path().join(FILE)).is_ok_and(|text| text.contains(name));
        let register = |name: &str| {
            let defs = vec![SensorDef::gauge(name, "1", "")];
            let schema = Schema::new(SensorPath::new("/n1").unwrap(), name, defs).unwrap();
            let mut index = sensors.write();
            let registration = index.plan_schema(&mut index.plan(), &schema).unwrap();
            index.register(registration);
        };
        register("first");
        file.keep_up();
        assert!(has("/n1/first"));
        register("second");
        *file.rest_until.lock().unwrap() = Some(Instant::now() + Duration::from_secs(3600));
        file.keep_up();
        assert!(!has("/n1/second"));
        *file.rest_until.lock().unwrap() = Some(Instant::now());
        file.keep_up();
        assert!(has("/n1/second"));
    }
}
