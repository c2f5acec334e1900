//! Counters of the burst buffer, which its daemon keeps in a file.
//!
//! - In: `[sources.burst]` and its file, with lines such as `staged_bytes 734003200`.
//! - Out: the group `burst`, one sensor for each line.
//! - Never: a sensor with a guessed unit: lines with unknown names are left out.

use std::path::PathBuf;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use crate::line_file::LineFileSource;
use crate::options::{self, GroupOptions};
use crate::source::{ConfigureContext, Source};
use crate::source_type::SourceType;

/// The entry in `SOURCES`.
pub const SOURCE: SourceType = SourceType {
    name: "burst",
    summary: "counters of the burst buffer, from its daemon's file",
    configure,
    jobs: None,
};

/// The keys of `[sources.burst]` besides interval, offset, synchronous and metrics.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BurstKeys {
    #[serde(default = "default_file")]
    file: PathBuf,
}

fn default_file() -> PathBuf {
    "/run/burst/counters".into()
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, BurstKeys) = options::read(section)?;
    Ok(Box::new(LineFileSource::new(SOURCE.name, context.resolve(&keys.file), options, sensor)))
}

/// The sensor of a line, by the line's name.
fn sensor(name: &str) -> Option<SensorDef> {
    let path = format!("burst/{name}");
    Some(match name {
        "staged_bytes" => SensorDef::counter(path, "By", "Bytes copied into the burst buffer."),
        "staged_files" => SensorDef::counter(path, "1", "Files copied into the burst buffer."),
        "busy_ms" => SensorDef::counter("burst/busy", "s", "Time with at least one copy in progress.").scaled(1e-3),
        "queue_length" => SensorDef::gauge(path, "1", "Copies that wait."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
