//! Lustre: clients, servers, the jobs on servers, and the network (LNet).
//!
//! - In: `[sources.lustre]`, and the statistics below /proc/fs/lustre, /sys/fs/lustre and /sys/kernel/debug/lustre, of whichever version.
//! - Out: the groups `lustre/llite`, `lustre/osc`, `lustre/mdc`, `lustre/ost`, `lustre/mdt`, `lustre/brw`, `lustre/jobs` and `lustre/lnet`.
//! - Never: sensors without a bound. Users choose the names of jobs, and each client is a peer of a server.

mod brw;
mod config;
mod files;
mod jobs;
mod lnet;
mod objects;
mod stats;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};

use self::brw::BrwStats;
use self::config::LustreConfig;
use self::files::{FILES, FileFormat, LustreFile, LustreGroup};
use self::jobs::JobStats;
use self::lnet::{LnetStats, LnetTable};
use self::objects::BoundedObjects;
use self::stats::{OneNumber, SampleStats};
use crate::glob::{self, PathMatch};
use crate::keyed::{KeyedFormat, KeyedGroup};
use crate::plan::SensorPlan;
use crate::source::{ConfigureContext, GroupPlan, Roots, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType =
    SourceType { name: "lustre", summary: "Lustre: clients, servers, jobs on servers, LNet", configure, jobs: None };

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Ok(Box::new(LustreSource {
        config: LustreConfig::read(section)?,
        roots: context.roots.clone(),
        known: BTreeMap::new(),
        unseen: Vec::new(),
    }))
}

struct LustreSource {
    config: LustreConfig,
    roots: Roots,
    /// The jobs and peers of each file that had sensors after the last discovery. They keep them before others get any.
    known: BTreeMap<PathBuf, BTreeSet<Vec<u8>>>,
    unseen: Vec<&'static str>,
}

impl Source for LustreSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let Self { config, roots, known, unseen } = self;
        unseen.clear();
        let previous = std::mem::take(known);
        let mut plans = Vec::new();
        for (group, options) in &config.groups {
            let plan = SensorPlan::new(&config.common, options, report);
            let mut files = KeyedGroup::new(group.name(), plan);
            for file in FILES.iter().filter(|file| file.group == *group) {
                for (device, path) in find(roots, file) {
                    let folder = format!("{}/{device}", group.name());
                    let folder = if device.is_empty() { group.name().to_owned() } else { folder };
                    let old = previous.get(&path);
                    let mut objects = None;
                    files.add_with(file.path, &path, |text| {
                        let format = format_of(file, folder, text, config, old);
                        objects = format.objects;
                        format.format
                    });
                    known.extend(objects.map(|objects| (path, objects)));
                }
            }
            plans.extend(files.into_plan(options.timing(&config.common), true, unseen));
        }
        plans
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// A format, and the jobs or peers that have sensors in it.
struct FormatWithObjects {
    format: Box<dyn KeyedFormat>,
    objects: Option<BTreeSet<Vec<u8>>>,
}

fn format_of(
    file: &LustreFile,
    folder: String,
    text: &[u8],
    config: &LustreConfig,
    old: Option<&BTreeSet<Vec<u8>>>,
) -> FormatWithObjects {
    let plain = |format: Box<dyn KeyedFormat>| FormatWithObjects { format, objects: None };
    let bounded = |ids: Vec<&[u8]>, filter, max| BoundedObjects::new(ids, filter, max, old);
    match file.format {
        FileFormat::Stats(prefix) => plain(Box::new(SampleStats { folder: format!("{folder}{prefix}") })),
        FileFormat::Number(number) => plain(Box::new(OneNumber { folder, number })),
        FileFormat::Brw => plain(Box::new(BrwStats { folder })),
        FileFormat::LnetStats => plain(Box::new(LnetStats)),
        FileFormat::Jobs => {
            let jobs = bounded(jobs::ids(text), &config.job_ids, config.jobs_max);
            let objects = Some(jobs.known().clone());
            FormatWithObjects { format: Box::new(JobStats { folder, jobs }), objects }
        }
        FileFormat::LnetTable(table) => {
            let peers = bounded(lnet::nids(text), &config.peers, config.peers_max);
            let objects = Some(peers.known().clone());
            FormatWithObjects { format: Box::new(LnetTable { table, nids: peers }), objects }
        }
    }
}

/// The devices of a file with their names in sensors, and its paths. Of a file that is in two places the first one counts.
fn find(roots: &Roots, file: &LustreFile) -> Vec<(String, PathBuf)> {
    let places: &[(&Path, &str)] = if file.group == LustreGroup::Lnet {
        &[(&roots.sys, "kernel/debug"), (&roots.proc, "sys")]
    } else {
        &[(&roots.sys, "kernel/debug/lustre"), (&roots.proc, "fs/lustre"), (&roots.sys, "fs/lustre")]
    };
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (root, folder) in places {
        for PathMatch { path, captures } in glob::find(root, &format!("{folder}/{}", file.path)) {
            let device = captures.last().cloned().unwrap_or_default();
            found.entry(device).or_insert(path);
        }
    }
    let names = files::device_names(found.keys().map(String::as_str));
    names.into_iter().zip(found.into_values()).collect()
}
