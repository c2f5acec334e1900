//! A job's own files: CPU time, memory, I/O, processes and pressure from the directories that the kernel keeps for it, of
//! version 1 and version 2, under one set of names.
//!
//! - In: `[sources.cgroup]` and where a job is ([`JobPlace`]).
//! - Out: a part for each file, kept open and read with one `pread`; each metric from one file only.
//! - Never: a metric that is called by another name, or has another unit or kind, for the version that it comes from.

mod config;
mod files;
mod io;
mod reader;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::name::sanitize_level;
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, SensorDef};

use self::config::Config;
use self::files::{FILES, File, Format};
use self::reader::{Directory, Parser, Template};
use crate::descriptors::Quota;
use crate::file;
use crate::job::{JobPart, JobPlace, JobSource};
use crate::kept::Room;
use crate::options::GroupOptions;
use crate::plan::{Plan, Slot};
use crate::source::NoGroups;
use crate::table::LineTable;
use crate::{ConfigureContext, Reader, Source, SourceType};
use crate::{pressure, scan};

/// The line in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "cgroup",
    summary: "jobs' CPU time, memory, I/O, processes and pressure from their cgroups, version 1 and 2",
    configure,
    jobs: Some(configure_jobs),
};

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Config::read(section).map(|_| Box::new(NoGroups) as Box<dyn Source>)
}

fn configure_jobs(section: &Section, context: &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError> {
    let config = Config::read(section)?;
    let (devices, blkio) = (context.roots.sys.join("dev/block"), context.roots.cgroup.join("blkio"));
    Ok(Box::new(Cgroup { config, devices, blkio, seen: HashMap::new() }))
}

struct Cgroup {
    config: Config,
    /// Where version 1 counts the block devices of the whole machine.
    blkio: PathBuf,
    /// Where block devices' numbers lead to their names.
    devices: PathBuf,
    /// What each file held when one was last read: what its lines are, should it not be possible to read it when a job begins.
    seen: HashMap<&'static str, Vec<u8>>,
}

impl JobSource for Cgroup {
    fn parts(&mut self, place: &JobPlace, report: &mut dyn FnMut(String)) -> Vec<JobPart> {
        let mut taken = HashSet::new();
        let mut parts = Vec::new();
        let quota = Quota::of(place.uid);
        for file in FILES {
            let path = match file.controller {
                Some(controller) => place.v1(controller),
                None => place.v2.as_deref(),
            };
            let Some(directory) = path.and_then(Directory::at) else { continue };
            parts.extend(self.part(file, directory, &quota, &mut taken, report));
        }
        self.tell_of_missing_controllers(place, report);
        parts
    }

    /// Everything that is kept for a job is kept by its readers.
    fn forget(&mut self, _place: &JobPlace) {}
}

impl Cgroup {
    fn part(
        &mut self,
        file: &File,
        directory: Directory,
        quota: &Quota,
        taken: &mut HashSet<String>,
        report: &mut dyn FnMut(String),
    ) -> Option<JobPart> {
        if matches!(file.format, Format::Number(metric, _) | Format::Nanoseconds(metric) if taken.contains(metric)) {
            return None;
        }
        if file.controller == Some("blkio") && self.counts_nothing(file) {
            report(
                "cgroup: the blkio controller counts nothing on this machine (newer kernels count only once a throttle is \
                 set); jobs' io/* are left out, and tasks/io/* tells what the source tasks can count"
                    .to_owned(),
            );
            return None;
        }
        let path = directory.file(file.name());
        let bytes = self.content(file, &path, &directory, report)?;
        let mut offer = Offer { plan: Plan::new(&self.config.options, &NO_OPTIONS, report), taken };
        let parser = self.parser(file, &bytes, &mut offer);
        let sensors = offer.plan.into_sensors();
        if sensors.is_empty() {
            return None;
        }
        let room = Room::of(&parser, &bytes);
        let template = Arc::new(Template { what: file.what, directory, path, parser, room, quota: quota.clone() });
        Some(JobPart {
            name: file.what.to_owned(),
            sensors,
            interval_min: Interval::from_ns(SAMPLING_INTERVAL_NS_MIN),
            blocking: false,
            open: Box::new(move |slots| Box::new(template.reader(slots)) as Box<dyn Reader>),
        })
    }

    /// What the file holds now; what such a file held for another job when it cannot be read at this moment (no descriptor
    /// left, no memory), as the reader tries again. `None` when there is no such file.
    fn content(
        &mut self,
        file: &File,
        path: &Path,
        directory: &Directory,
        report: &mut dyn FnMut(String),
    ) -> Option<Vec<u8>> {
        let error = match file::read_file(path) {
            Ok(bytes) => {
                if !matches!(file.format, Format::Io(_)) {
                    self.seen.insert(file.what, bytes.clone());
                }
                return Some(bytes);
            }
            Err(error) => error,
        };
        let errno = error.raw_os_error().unwrap_or_default();
        match (errno, file.format) {
            // Empty, as there was no I/O yet.
            (libc::ENODATA, Format::Io(_)) => return Some(Vec::new()),
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, Format::Io(_)) => return Some(Vec::new()),
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, Format::Number(..) | Format::Nanoseconds(_)) => {
                return Some(b"0\n".to_vec());
            }
            (libc::EMFILE | libc::ENFILE | libc::ENOMEM, _) => {
                if let Some(seen) = self.seen.get(file.what) {
                    return Some(seen.clone());
                }
            }
            // Another file tells the same, or the controller is not enabled.
            (libc::ENOENT, _) if file.needs.is_none() || !is_controlled(file, directory) => return None,
            _ => {}
        }
        if !directory.is_gone() {
            let hint = file.needs.map_or(String::new(), |needs| format!(" (needs {needs})"));
            report(format!("cgroup: {} of jobs is left out: {error}{hint}", file.what));
        }
        None
    }

    fn parser(&self, file: &File, bytes: &[u8], offer: &mut Offer) -> Parser {
        match file.format {
            Format::Number(metric, scale) => Parser::Number(offer.add(vocabulary::sensor(metric, scale)), 1),
            Format::Nanoseconds(metric) => Parser::Number(offer.add(vocabulary::sensor(metric, 1e-6)), 1000),
            Format::Keys(metric_of) => Parser::Lines(keys(file.what, bytes, metric_of, offer)),
            Format::Pressure(resource) => Parser::Pressure(pressure::plan(resource, bytes, &mut offer.plan)),
            Format::Io(layout) => {
                let name = |number: &str| self.device_name(number);
                Parser::Io(io::plan(layout, bytes, self.config.per_device.then_some(&name), offer))
            }
        }
    }

    /// Whether version 1 shows no device even for the whole machine, so that a job's zeros mean nothing.
    fn counts_nothing(&self, file: &File) -> bool {
        let whole = file::read_file(&self.blkio.join(file.name()));
        whole.is_ok_and(|bytes| !bytes.contains(&b':'))
    }

    /// The name of a block device by its number, such as `vda` for `254:0`; the number when it has no name.
    fn device_name(&self, number: &str) -> String {
        let target = std::fs::read_link(self.devices.join(number)).ok();
        let name = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        sanitize_level(name.as_deref().unwrap_or(number))
    }

    /// Says of a job that is only in the unified hierarchy which controllers are not enabled there.
    fn tell_of_missing_controllers(&self, place: &JobPlace, report: &mut dyn FnMut(String)) {
        let Some(directory) = place.v2.as_deref().filter(|_| place.v1.is_empty()) else { return };
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

/// Whether the directory has what the file's controller always gives, if it needs a controller.
fn is_controlled(file: &File, directory: &Directory) -> bool {
    let always = match (file.controller, file.name().split_once('.')) {
        (None, Some((_, "pressure"))) | (Some(_), _) => return true,
        (None, Some(("memory", _))) => "memory.current",
        (None, Some(("pids", _))) => "pids.current",
        (None, _) => return true,
    };
    directory.file(always).exists()
}

/// A part has no keys of its own beside the source's.
static NO_OPTIONS: GroupOptions = GroupOptions {
    interval: None,
    offset: None,
    synchronous: None,
    metrics: Filter { include: Vec::new(), exclude: Vec::new() },
};

/// What lines of a key and a number are.
fn keys(what: &str, bytes: &[u8], metric_of: fn(&str) -> Option<SensorDef>, offer: &mut Offer) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let space = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let is_value = scan::int_at(line, space + 1).is_some_and(|(_, end)| end == line.len());
        if space == 0 || !is_value {
            offer.report(format!("cgroup: {what}: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        }
        let slot = metric_of(&String::from_utf8_lossy(&line[..space])).and_then(|sensor| offer.add(sensor));
        table.push(&line[..space + 1], &[slot]);
    }
    table
}

/// The sensors of one part as they are found, without those that another part of the job has.
pub struct Offer<'a, 'b> {
    plan: Plan<'a>,
    taken: &'b mut HashSet<String>,
}

impl Offer<'_, '_> {
    /// Takes a sensor and says where its value goes.
    fn add(&mut self, sensor: SensorDef) -> Slot {
        if self.taken.contains(&sensor.name) {
            return None;
        }
        let name = sensor.name.clone();
        let slot = self.plan.add(sensor);
        if slot.is_some() {
            self.taken.insert(name);
        }
        slot
    }

    /// Tells people something.
    fn report(&mut self, text: String) {
        self.plan.report(text);
    }

    /// What `plan` makes of an empty offer, with its sensors.
    #[cfg(test)]
    fn testing<T>(plan: impl FnOnce(&mut Offer) -> T) -> (Vec<SensorDef>, T) {
        let mut taken = HashSet::new();
        let mut report = |_| {};
        let mut offer = Offer { plan: Plan::new(&NO_OPTIONS, &NO_OPTIONS, &mut report), taken: &mut taken };
        let made = plan(&mut offer);
        (offer.plan.into_sensors(), made)
    }
}
