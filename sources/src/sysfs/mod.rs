//! Numbers in /sys: sensors, clocks, energy, fabric counters, memory errors, and other files by a pattern of their paths.
//!
//! - In: `[sources.sysfs]` and the files below `roots.sys`.
//! - Out: a group for each preset with a device, named as the preset, and the group `sysfs` of the files by pattern.
//! - Never: a write; a read that may block on the sampling thread of other groups.

mod config;
mod format;
mod hwmon;
mod number_file;
mod presets;
mod processor;
mod rows;

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};

use self::config::SysfsConfig;
use self::format::{FileValue, ValueFormat};
use self::number_file::NumberFile;
use crate::file::{self, PolledFile};
use crate::glob;
use crate::options::{GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::scan;
use crate::source::{ConfigureContext, GroupPlan, Source, Timing};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "sysfs",
    summary: "numbers in /sys: hwmon, thermal, cpufreq, powercap (RAPL), fabrics, EDAC, NVMe, network interfaces, md, watchdogs, files by pattern",
    configure,
    jobs: None,
};

/// The group of the files by pattern.
const FILES_GROUP: &str = "sysfs";

/// The maximum length of a file of one value, with its newline.
const FILE_BYTES_MAX: usize = 1024;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Ok(Box::new(SysfsSource {
        config: SysfsConfig::read(section)?,
        root: context.roots.sys.clone(),
        offered: HashSet::new(),
    }))
}

struct SysfsSource {
    config: SysfsConfig,
    root: PathBuf,
    /// The files of the last discovery's sensors. A file that may be text held a number at its first discovery and is not read at later ones. A file
    /// that exists and cannot be opened at the moment stays. A file of a preset that knows its words is not a number for a pattern: each entry says
    /// whether the file may be text.
    offered: HashSet<(PathBuf, bool)>,
}

impl Source for SysfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let known = std::mem::take(&mut self.offered);
        let with_nvme = self.config.presets.iter().any(|(preset, _)| preset.name == presets::NVME);
        let mut discovery = SysfsDiscovery { common: &self.config.common, known, offered: &mut self.offered, report };
        let mut groups = Vec::new();
        for (preset, options) in &self.config.presets {
            let found = (preset.find)(&self.root, with_nvme);
            let timing = options.timing_or(&self.config.common, preset.interval);
            groups.extend(discovery.group(preset.name, preset.blocking, options, timing, found));
        }
        let files = self.config.files.iter().flat_map(|pattern| {
            let matches = glob::find(&self.root, &pattern.path).into_iter();
            matches.map(|found| NumberFile {
                may_be_text: true,
                ..NumberFile::new(found.path, pattern.sensor(&found.captures))
            })
        });
        let timing = NO_OPTIONS.timing(&self.config.common);
        groups.extend(discovery.group(FILES_GROUP, true, &NO_OPTIONS, timing, files.collect()));
        groups
    }
}

/// The state of one discovery.
struct SysfsDiscovery<'a> {
    common: &'a GroupOptions,
    known: HashSet<(PathBuf, bool)>,
    offered: &'a mut HashSet<(PathBuf, bool)>,
    report: &'a mut dyn FnMut(String),
}

impl SysfsDiscovery<'_> {
    fn group(
        &mut self,
        name: &'static str,
        blocking: bool,
        options: &GroupOptions,
        timing: Timing,
        found: Vec<NumberFile>,
    ) -> Option<GroupPlan> {
        let mut plan = SensorPlan::new(self.common, options, self.report);
        let mut files = Vec::new();
        for NumberFile { path, sensor, format, may_be_text } in found {
            if !plan.keeps(&sensor) {
                continue;
            }
            let place = (path, may_be_text);
            let (is_known, path) = (self.known.contains(&place), &place.0);
            let result = if may_be_text && !is_known { is_numeric(path) } else { is_readable(path) };
            match result {
                Err(Unusable { absent, reason }) if absent || !is_known => {
                    plan.report(format!("sysfs: {} is left out: {reason}", path.display()));
                }
                _ => {
                    if plan.add(sensor).is_some() {
                        files.push((PolledFile::new(path), format));
                    }
                    self.offered.insert(place);
                }
            }
        }
        let sensors = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: name.to_owned(),
            sensors,
            reader: Box::new(NumberReader { what: name, files }),
            timing,
            blocking,
        })
    }
}

/// Why a file has no sensor.
struct Unusable {
    /// The file does not exist or holds no number. False if it only cannot be opened.
    absent: bool,
    reason: String,
}

/// Checks that a file can be opened, without a read from its device.
fn is_readable(path: &Path) -> Result<(), Unusable> {
    File::open(path).map(drop).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; allow the agent to read it",
            _ => "",
        };
        Unusable { absent: file::is_absent(&error), reason: format!("{error}{hint}") }
    })
}

/// Checks that a file holds a number. A file that cannot be read now may hold a number later.
fn is_numeric(path: &Path) -> Result<(), Unusable> {
    is_readable(path)?;
    let no = |reason: &str| Err(Unusable { absent: true, reason: reason.to_owned() });
    if path.is_dir() {
        return no("it is a folder");
    }
    match file::read_file(path) {
        Ok(bytes) if scan::only_int(&bytes).is_none() => no("it holds no number"),
        _ => Ok(()),
    }
}

/// Reads files of one number each.
struct NumberReader {
    what: &'static str,
    files: Vec<(PolledFile, ValueFormat)>,
}

impl Reader for NumberReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let what = self.what;
        let mut reading = Reading::default();
        let mut buffer = [0; FILE_BYTES_MAX];
        for (index, (file, format)) in self.files.iter_mut().enumerate() {
            match file.read_once(&mut buffer).map(|length| format.value(&buffer[..length])) {
                Ok(FileValue::Number(value)) => row.set_int(index, value),
                Ok(FileValue::Garbage) => {
                    reading.problem.get_or_insert(ReadProblem::Garbage { what, line: 1 });
                }
                // The device has no value at the moment, which the gap shows.
                Ok(FileValue::Absent) | Err(libc::ENODATA | libc::EINVAL) => {}
                Err(errno) => {
                    reading.layout_changed |= matches!(errno, libc::ENOENT | libc::ENODEV | libc::ENXIO);
                    reading.problem.get_or_insert(ReadProblem::Os { what, errno });
                }
            }
        }
        reading
    }
}
