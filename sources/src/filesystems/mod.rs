//! Size, free space and inodes of mounted file systems.
//!
//! - In: `[sources.filesystems]`, /proc/self/mountinfo, and `statvfs` of each mount point.
//! - Out: the group `filesystems`, with the sensors `filesystems/<mount point>/<quantity>`.
//! - Never: a `statvfs` on the thread that reads, as a network file system may answer after minutes or never.

mod config;
mod mounts;
mod stat_threads;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use self::config::FilesystemsKeys;
use self::mounts::{Mount, parse_mounts};
pub(crate) use self::mounts::{mount_level, unescape};
use self::stat_threads::{Answer, MountSlot, SpaceNumbers, StatFunction, StatThreads, statvfs};
use crate::file;
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "filesystems",
    summary: "size, free space and inodes of mounted file systems; one that hangs delays no other",
    configure,
    jobs: None,
};

const GROUP: &str = "filesystems";

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys) = options::read(section)?;
    Ok(Box::new(FilesystemsSource::new(options, keys, context.roots.proc.join("self/mountinfo"), Box::new(statvfs))))
}

struct FilesystemsSource {
    options: GroupOptions,
    keys: FilesystemsKeys,
    mountinfo: PathBuf,
    threads: Arc<StatThreads>,
    /// The mounts of the last discovery, which keep their state: one that hangs is not called a second time.
    slots: BTreeMap<Mount, Arc<MountSlot>>,
    unseen: Vec<&'static str>,
}

impl FilesystemsSource {
    fn new(options: GroupOptions, keys: FilesystemsKeys, mountinfo: PathBuf, stat: StatFunction) -> Self {
        let threads = Arc::new(StatThreads::new(stat, keys.threads_max, keys.timeout));
        Self { options, keys, mountinfo, threads, slots: BTreeMap::new(), unseen: Vec::new() }
    }

    /// The mounts that the settings keep, by mount point.
    fn mounts(&mut self, report: &mut dyn FnMut(String)) -> Vec<Mount> {
        self.unseen.clear();
        let bytes = match file::read_file(&self.mountinfo) {
            Ok(bytes) => bytes,
            Err(error) => {
                report(format!("filesystems: cannot read {}: {error}", self.mountinfo.display()));
                if !file::is_absent(&error) {
                    self.unseen.push(GROUP);
                }
                return Vec::new();
            }
        };
        let mut mounts = parse_mounts(&bytes);
        mounts.retain(|mount| self.keys.keeps(mount));
        let max = self.keys.mounts_max;
        if mounts.len() > max {
            let left_out = mounts.len() - max;
            report(format!("filesystems: {left_out} mounts are left out, as mounts_max is {max}; filter some"));
            mounts.truncate(max);
        }
        mounts
    }
}

impl Source for FilesystemsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mounts = self.mounts(report);
        if !self.unseen.is_empty() {
            return Vec::new();
        }
        let mut old = std::mem::take(&mut self.slots);
        for mount in mounts {
            let slot = old.remove(&mount).unwrap_or_else(|| Arc::new(MountSlot::new(&self.keys.root, &mount)));
            if let Some(problem) = slot.problem() {
                report(format!("filesystems: {}: {problem}", String::from_utf8_lossy(&mount.point)));
            }
            self.slots.insert(mount, slot);
        }
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let mounts = self.slots.iter().map(|(mount, slot)| MountSensors::plan(mount, slot, &mut plan)).collect();
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let reader = Box::new(FilesystemsReader { threads: self.threads.clone(), mounts });
        let timing = self.options.timing(&NO_OPTIONS);
        vec![GroupPlan { name: GROUP.to_owned(), sensors, reader, timing, blocking: true }]
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// The sensors of a mount.
struct MountSensors {
    slot: Arc<MountSlot>,
    size: Slot,
    free: Slot,
    available: Slot,
    files: Slot,
    files_free: Slot,
    readonly: Slot,
    answers: Slot,
    /// The problem of the previous read, so that a new one asks for a discovery, which names it.
    known_problem: Option<Answer>,
}

impl MountSensors {
    fn plan(mount: &Mount, slot: &Arc<MountSlot>, plan: &mut SensorPlan<'_>) -> Self {
        let folder = mount_level(&mount.point);
        let about = format!("{} on {}", mount.kind, String::from_utf8_lossy(&mount.point));
        let about: String = about.chars().take(200).collect();
        let mut add = |name: &str, unit: &str, text: &str| {
            plan.add_once(SensorDef::gauge(format!("filesystems/{folder}/{name}"), unit, &format!("{text} ({about}).")))
        };
        Self {
            slot: slot.clone(),
            size: add("size", "By", "Size of the file system"),
            free: add("free", "By", "Free space"),
            available: add("available", "By", "Free space that users other than root can take"),
            files: add("files", "1", "Inodes"),
            files_free: add("files_free", "1", "Free inodes"),
            readonly: add("readonly", "1", "1 if mounted read-only, otherwise 0"),
            answers: add("answers", "1", "1 if the file system answered in time, otherwise 0"),
            known_problem: None,
        }
    }

    /// Fills the sensors; whether there is a new problem.
    fn fill(&mut self, answer: Answer, row: &mut Row<'_>) -> bool {
        let mut set = |slot: Slot, value: Option<i64>| {
            if let Some((slot, value)) = slot.zip(value) {
                row.set_int(slot as usize, value);
            }
        };
        set(self.answers, Some(i64::from(matches!(answer, Answer::Numbers(_)))));
        if let Answer::Numbers(numbers) = answer {
            let SpaceNumbers { block, blocks, free, available, files, files_free, readonly } = numbers;
            // No blocks: a FUSE file system that root may not look at, or one without a size. No files: inodes are made as needed.
            let bytes = |count: u64| i64::try_from(count.checked_mul(block)?).ok().filter(|_| blocks > 0);
            let inodes = |count: u64| i64::try_from(count).ok().filter(|_| files > 0);
            set(self.size, bytes(blocks));
            set(self.free, bytes(free));
            set(self.available, bytes(available));
            set(self.files, inodes(files));
            set(self.files_free, inodes(files_free));
            set(self.readonly, Some(i64::from(readonly)));
        }
        let problem = Some(answer).filter(|answer| !matches!(answer, Answer::Numbers(_)));
        let is_new = problem.is_some() && problem != self.known_problem;
        self.known_problem = problem;
        is_new
    }
}

struct FilesystemsReader {
    threads: Arc<StatThreads>,
    mounts: Vec<MountSensors>,
}

impl Reader for FilesystemsReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        self.threads.call(self.mounts.iter().map(|mount| &mount.slot));
        let mut reading = Reading::COMPLETE;
        for mount in &mut self.mounts {
            let answer = mount.slot.answer();
            reading.layout_changed |= mount.fill(answer, row);
            let errno = match answer {
                Answer::Numbers(_) => continue,
                Answer::Error(errno) => errno,
                Answer::Late => libc::ETIMEDOUT,
            };
            reading.problem.get_or_insert(ReadProblem::Os { what: GROUP, errno });
        }
        reading
    }
}
