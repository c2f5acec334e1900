//! Numbers in /sys: sensors, clocks, energy, fabric counters, memory errors, and any other file by the pattern of its path.
//!
//! - In: `[sources.sysfs]` and the files below `roots.sys`.
//! - Out: a group for each preset that finds something, named as the preset, and the group `sysfs` for the files by pattern.
//! - Never: a write; a read of a device on a sampling thread that others share, when it may take long.

mod config;
mod glob;
mod hwmon;
mod presets;

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};

use self::config::SysfsConfig;
use self::presets::Found;
use crate::file::{self, PolledFile};
use crate::options::GroupOptions;
use crate::plan::SensorPlan;
use crate::scan;
use crate::{ConfigureContext, GroupPlan, ReadProblem, Reader, Reading, Row, Source, SourceType};

/// The line in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "sysfs",
    summary: "numbers in /sys: hwmon, thermal, cpufreq, powercap (RAPL), InfiniBand, Omni-Path, EDAC, NVMe, files by pattern",
    configure,
    jobs: None,
};

/// The group of the files by pattern.
const FILES_GROUP: &str = "sysfs";

/// The longest file of one number, in bytes, with its newline.
const NUMBER_BYTES_MAX: usize = 64;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Ok(Box::new(Sysfs {
        config: SysfsConfig::read(section)?,
        root: context.roots.sys.clone(),
        offered: HashSet::new(),
    }))
}

struct Sysfs {
    config: SysfsConfig,
    root: PathBuf,
    /// The files of the last look's sensors. Doubtful ones held a number when they were first seen and are not read at every rescan;
    /// one that cannot be opened now, though it is there, stays.
    offered: HashSet<PathBuf>,
}

impl Source for Sysfs {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let known = std::mem::take(&mut self.offered);
        let with_nvme = self.config.presets.iter().any(|(preset, _)| *preset == presets::Preset::Nvme);
        let mut scan = Scan { common: &self.config.common, known, offered: &mut self.offered, report };
        let mut groups = Vec::new();
        for (preset, options) in &self.config.presets {
            let found = preset.find(&self.root, with_nvme);
            groups.extend(scan.group(preset.name(), preset.blocking(), options, found));
        }
        let files = self.config.files.iter().flat_map(|pattern| {
            let matches = glob::find(&self.root, &pattern.path).into_iter();
            matches.map(|found| Found { doubtful: true, ..Found::new(found.path, pattern.sensor(&found.stars)) })
        });
        groups.extend(scan.group(FILES_GROUP, true, &GroupOptions::default(), files.collect()));
        groups
    }
}

/// One discovery.
struct Scan<'a> {
    common: &'a GroupOptions,
    known: HashSet<PathBuf>,
    offered: &'a mut HashSet<PathBuf>,
    report: &'a mut dyn FnMut(String),
}

impl Scan<'_> {
    fn group(
        &mut self,
        name: &'static str,
        blocking: bool,
        options: &GroupOptions,
        found: Vec<Found>,
    ) -> Option<GroupPlan> {
        let mut plan = SensorPlan::new(self.common, options, self.report);
        let mut files = Vec::new();
        for Found { path, sensor, doubtful } in found {
            if !plan.keeps(&sensor) {
                continue;
            }
            let is_known = self.known.contains(&path);
            let result = if doubtful && !is_known { is_numeric(&path) } else { is_readable(&path) };
            match result {
                Err(Refused { absent, reason }) if absent || !is_known => {
                    plan.report(format!("sysfs: {} is left out: {reason}", path.display()));
                }
                _ => {
                    if plan.add(sensor).is_some() {
                        files.push(PolledFile::new(&path));
                    }
                    self.offered.insert(path);
                }
            }
        }
        let sensors = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: name.to_owned(),
            sensors,
            reader: Box::new(NumberReader { what: name, files }),
            timing: options.timing(self.common),
            blocking,
        })
    }
}

/// Why a file is no sensor.
struct Refused {
    /// There is no such file, or no number in it: not only one that cannot be opened.
    absent: bool,
    reason: String,
}

/// Whether a file can be opened, which asks nothing of its device.
fn is_readable(path: &Path) -> Result<(), Refused> {
    File::open(path).map(drop).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; the agent needs to be allowed to read it",
            _ => "",
        };
        Refused { absent: file::is_absent(&error), reason: format!("{error}{hint}") }
    })
}

/// Whether a file holds a number. One that cannot be read now may well hold one later.
fn is_numeric(path: &Path) -> Result<(), Refused> {
    is_readable(path)?;
    let no = |reason: &str| Err(Refused { absent: true, reason: reason.to_owned() });
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
    /// In the order of the sensors.
    files: Vec<PolledFile>,
}

impl Reader for NumberReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let what = self.what;
        let mut reading = Reading::default();
        let mut buffer = [0; NUMBER_BYTES_MAX];
        for (index, file) in self.files.iter_mut().enumerate() {
            match file.read_once(&mut buffer).map(|length| scan::only_int(&buffer[..length])) {
                Ok(Some(value)) => row.set_int(index, value),
                Ok(None) => {
                    reading.problem.get_or_insert(ReadProblem::Garbage { what, line: 1 });
                }
                // The device says that it has no value now: the gap tells that.
                Err(libc::ENODATA) => {}
                Err(errno) => {
                    reading.layout_changed |= matches!(errno, libc::ENOENT | libc::ENODEV | libc::ENXIO);
                    reading.problem.get_or_insert(ReadProblem::Os { what, errno });
                }
            }
        }
        reading
    }
}
