//! `sensors.csv` beside the blocks: unit, kind and scale of every sensor, for those who read the blocks without the server. The
//! catalogue is what counts; this is a copy of it, made anew when a seal finds that there are new definitions.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use wholegrain_model::{Kind, Pattern, ValueType};

use crate::StoreError;
use crate::sensors::SensorInfo;
use crate::store::Shared;

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "sensors.csv";
/// Its name while it is being written.
const TEMPORARY: &str = "sensors.csv.new";

/// Writes the file if definitions have come since it was last written. That it cannot be written is told and harms nothing else.
pub(crate) fn keep_up(shared: &Shared) {
    let definitions = shared.sensors().definitions();
    if shared.properties_written.swap(definitions, Relaxed) == definitions {
        return;
    }
    if let Err(error) = write(shared) {
        shared.properties_written.store(0, Relaxed);
        tracing::warn!("store: {error}; it is tried again after the next seal");
    }
}

fn write(shared: &Shared) -> Result<(), StoreError> {
    let (path, temporary) = (shared.config.dir.join(FILE), shared.config.dir.join(TEMPORARY));
    let all = Pattern::new("/**").map(|pattern| shared.sensors().select(&[pattern])).unwrap_or_default();
    let io = |error| StoreError::io("writing", &temporary, error);
    let file = shared.disk.create(&temporary).map_err(io)?;
    file.write_at(0, text(&all).as_bytes()).map_err(io)?;
    file.sync().map_err(io)?;
    shared.disk.rename(&temporary, &path).map_err(|error| StoreError::io("renaming", &temporary, error))?;
    shared.disk.sync_dir(&shared.config.dir).map_err(|error| StoreError::io("syncing", &shared.config.dir, error))
}

/// One line each, with a head. Names need no quotes: what would is not allowed in them.
fn text(sensors: &[SensorInfo]) -> String {
    let mut text = String::from("sensor,unit,kind,type,scale,wraps_at,interval_ns,description\n");
    for sensor in sensors {
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
    text
}

/// A text field as RFC 4180 has it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
