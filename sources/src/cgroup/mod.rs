//! CPU time, memory, I/O, processes and pressure of a job, from its cgroup directories of version 1 and version 2, with one set of names.
//!
//! - In: `[sources.cgroup]` and the directories of a job ([`JobCgroups`]).
//! - Out: a metric set for each file, which stays open and is read with one `pread`. Each metric comes from one file only.
//! - Never: a name, unit or kind that depends on the version of the cgroup.

mod config;
mod files;
mod io;
mod metrics;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::name::sanitize_level;

use self::config::CgroupConfig;
use self::files::{CgroupFile, FILES, FileFormat};
use self::reader::{CgroupParser, JobDirectory, ReaderTemplate};
use crate::descriptors::Quota;
use crate::file;
use crate::job::{JobCgroups, JobSource, MetricSet};
use crate::line_table::LineTable;
use crate::options::{GroupOptions, NO_OPTIONS};
use crate::parse::ParserCapacity;
use crate::plan::SensorPlan;
use crate::pressure;
use crate::reader::Reader;
use crate::source::{ConfigureContext, NoGroups, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "cgroup",
    summary: "jobs' CPU time, memory, I/O, processes and pressure from their cgroups, version 1 and 2",
    configure,
    jobs: Some(configure_jobs),
};

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    section.parse::<CgroupConfig>().map(|_| Box::new(NoGroups) as Box<dyn Source>)
}

fn configure_jobs(section: &Section, context: &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError> {
    let config: CgroupConfig = section.parse()?;
    let (devices, blkio) = (context.roots.sys.join("dev/block"), context.roots.cgroup.join("blkio"));
    Ok(Box::new(CgroupSource { options: config.options(), config, devices, blkio, last_contents: HashMap::new() }))
}

struct CgroupSource {
    config: CgroupConfig,
    options: GroupOptions,
    /// The directory in which version 1 counts the block devices of the whole machine.
    blkio: PathBuf,
    /// The directory with a link to each block device by its number.
    devices: PathBuf,
    /// The last content of each file, of any job. It stands in for the file of a new job that cannot be read at the moment.
    last_contents: HashMap<&'static str, Vec<u8>>,
}

impl JobSource for CgroupSource {
    fn metric_sets(&mut self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) -> Vec<MetricSet> {
        let mut taken = HashSet::new();
        let mut sets = Vec::new();
        let quota = Quota::of(cgroups.uid);
        for file in FILES {
            let path = match file.controller {
                Some(controller) => cgroups.v1(controller),
                None => cgroups.v2.as_deref(),
            };
            let Some(directory) = path.and_then(JobDirectory::at) else { continue };
            sets.extend(self.set(file, directory, &quota, &mut taken, report));
        }
        self.report_missing_controllers(cgroups, report);
        sets
    }

    /// The readers of a job hold all of its state.
    fn forget(&mut self, _place: &JobCgroups) {}
}

impl CgroupSource {
    fn set(
        &mut self,
        file: &CgroupFile,
        directory: JobDirectory,
        quota: &Quota,
        taken: &mut HashSet<String>,
        report: &mut dyn FnMut(String),
    ) -> Option<MetricSet> {
        if matches!(file.format, FileFormat::Number(metric, _) | FileFormat::Nanoseconds(metric) if taken.contains(metric))
        {
            return None;
        }
        if file.controller == Some("blkio") && self.counts_nothing(file) {
            report(
                "cgroup: the blkio controller counts nothing on this machine (newer kernels count only once a throttle is \
                 set); jobs' io/* are left out; the source tasks counts tasks/io/*"
                    .to_owned(),
            );
            return None;
        }
        let path = directory.file(file.name());
        let bytes = self.content(file, &path, &directory, report)?;
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report).without_duplicates_of(taken);
        let parser = self.parser(file, &bytes, &mut plan);
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return None;
        }
        let capacity = ParserCapacity::of(&parser, &bytes);
        let template =
            Arc::new(ReaderTemplate { what: file.what, directory, path, parser, capacity, quota: quota.clone() });
        Some(MetricSet {
            name: file.what.to_owned(),
            sensors,
            interval_min: Interval::from_ns(SAMPLING_INTERVAL_NS_MIN),
            blocking: false,
            open: Box::new(move |slots| Box::new(template.reader(slots)) as Box<dyn Reader>),
        })
    }

    /// The content of the file. When it cannot be read at the moment (no descriptor left, no memory), the content of the same file of
    /// another job, as the reader will try again. `None` when the file does not exist.
    fn content(
        &mut self,
        file: &CgroupFile,
        path: &Path,
        directory: &JobDirectory,
        report: &mut dyn FnMut(String),
    ) -> Option<Vec<u8>> {
        let error = match file::read_file(path) {
            Ok(bytes) => {
                if !matches!(file.format, FileFormat::Io(_)) {
                    self.last_contents.insert(file.what, bytes.clone());
                }
                return Some(bytes);
            }
            Err(error) => error,
        };
        let errno = error.raw_os_error().unwrap_or_default();
        match (errno, file.format) {
            // The file is empty before the first I/O.
            (libc::ENODATA, FileFormat::Io(_)) => return Some(Vec::new()),
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, FileFormat::Io(_)) => return Some(Vec::new()),
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, FileFormat::Number(..) | FileFormat::Nanoseconds(_)) => {
                return Some(b"0\n".to_vec());
            }
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, _) => {
                if let Some(content) = self.last_contents.get(file.what) {
                    return Some(content.clone());
                }
            }
            // Another file has the same metrics, or the controller is not enabled.
            (libc::ENOENT, _) if file.needs.is_none() || !is_controlled(file, directory) => return None,
            _ => {}
        }
        if !directory.is_gone() {
            let hint = file.needs.map_or(String::new(), |needs| format!(" (needs {needs})"));
            report(format!("cgroup: {} of jobs is left out: {error}{hint}", file.what));
        }
        None
    }

    fn parser(&self, file: &CgroupFile, bytes: &[u8], plan: &mut SensorPlan<'_>) -> CgroupParser {
        match file.format {
            FileFormat::Number(metric, scale) => CgroupParser::Number(plan.add(metrics::sensor(metric, scale)), 1),
            FileFormat::Nanoseconds(metric) => CgroupParser::Number(plan.add(metrics::sensor(metric, 1e-6)), 1000),
            FileFormat::Keys(metric_of) => CgroupParser::Lines(LineTable::of_names_and_integers(
                &format!("cgroup: {}", file.what),
                bytes,
                plan,
                metric_of,
            )),
            FileFormat::Pressure(resource) => CgroupParser::Pressure(pressure::plan(resource, bytes, plan)),
            FileFormat::Io(layout) => {
                let name = |number: &str| self.device_name(number);
                CgroupParser::Io(io::plan(layout, bytes, self.config.per_device.then_some(&name), plan))
            }
        }
    }

    /// Whether version 1 shows no device even for the whole machine. The zeros of a job then mean nothing.
    fn counts_nothing(&self, file: &CgroupFile) -> bool {
        let whole = file::read_file(&self.blkio.join(file.name()));
        whole.is_ok_and(|bytes| !bytes.contains(&b':'))
    }

    /// The name of a block device by its number, such as `vda` for `254:0`; the number when it has no name.
    fn device_name(&self, number: &str) -> String {
        let target = std::fs::read_link(self.devices.join(number)).ok();
        let name = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        sanitize_level(name.as_deref().unwrap_or(number))
    }

    /// Reports the controllers that are not enabled for a job that is in the unified hierarchy only.
    fn report_missing_controllers(&self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) {
        let Some(directory) = cgroups.v2.as_deref().filter(|_| cgroups.v1.is_empty()) else { return };
        let Ok(enabled) = std::fs::read_to_string(directory.join("cgroup.controllers")) else { return };
        let missing = ["cpu", "memory", "io", "pids"].into_iter();
        let missing: Vec<&str> = missing.filter(|name| !enabled.split_whitespace().any(|is| is == *name)).collect();
        if !missing.is_empty() {
            report(format!(
                "cgroup: the controllers {} are not enabled where jobs are in the unified hierarchy; their metrics are left \
                 out (enable them in cgroup.subtree_control above the jobs, or in the resource manager)",
                missing.join(", ")
            ));
        }
    }
}

/// Whether the controller of the file is enabled in the directory, if the file needs one.
fn is_controlled(file: &CgroupFile, directory: &JobDirectory) -> bool {
    let always_there = match (file.controller, file.name().split_once('.')) {
        (None, Some((_, "pressure"))) | (Some(_), _) => return true,
        (None, Some(("memory", _))) => "memory.current",
        (None, Some(("pids", _))) => "pids.current",
        (None, _) => return true,
    };
    directory.file(always_there).exists()
}
