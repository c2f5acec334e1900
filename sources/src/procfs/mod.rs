//! The kernel's statistics in text files: memory, CPUs, load, network, disks, pressure, interrupts, NUMA, file systems.
//!
//! - In: `[sources.procfs]`, and the files below `roots.proc` and `roots.sys` that `groups.rs` lists.
//! - Out: one group for each file, or for files of one kind. The files stay open, and one `pread` reads most of them.
//! - Never: a made-up value, or the previous value, in place of one that could not be read.

mod config;
mod context;
mod counts;
mod devices;
mod file_systems;
mod groups;
mod loadavg;
mod meminfo;
mod network;
mod numa;
mod pairs;
mod parser;
mod slips;
mod stat;
mod sums;
mod vmstat;
mod words;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};

use self::config::ProcfsConfig;
use self::context::{FileRoot, PlanContext, ProcFile};
use self::groups::{GROUPS, ProcGroup};
use self::parser::ProcParser;
use self::slips::SlippingTimes;
use crate::file;
use crate::glob::{self, PathMatch};
use crate::options::GroupOptions;
use crate::plan::SensorPlan;
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Roots, Source};
use crate::source_type::SourceType;
use crate::text_file::TextFile;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "procfs",
    summary: "the kernel's statistics in text files: memory, CPUs, load, network, disks, pressure, interrupts, NUMA, XFS, ZFS",
    configure,
    jobs: None,
};

/// Ticks of CPU time in a second, if the system does not report them.
const USER_HZ_USUAL: u32 = 100;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    // SAFETY: sysconf only returns a number.
    let ticks_hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_hz = u32::try_from(ticks_hz).ok().filter(|hz| *hz > 0).unwrap_or(USER_HZ_USUAL);
    let (config, roots) = (ProcfsConfig::read(section)?, context.roots.clone());
    Ok(Box::new(ProcfsSource { config, roots, ticks_hz, unseen: Vec::new() }))
}

/// The files of a group that exist now, for a loop that reads them without parsing. Files that a pattern names are left out.
pub fn files(group: &str, roots: &Roots) -> Vec<PathBuf> {
    let files = GROUPS.iter().filter(|known| known.name == group).flat_map(|known| known.files);
    let paths = files.map(|file| match file.root {
        FileRoot::Proc => roots.proc.join(file.path),
        FileRoot::Sys => roots.sys.join(file.path),
    });
    paths.filter(|path| path.exists()).collect()
}

struct ProcfsSource {
    config: ProcfsConfig,
    roots: Roots,
    ticks_hz: u32,
    /// Groups whose files exist, perhaps, but could not be opened by the last discovery.
    unseen: Vec<&'static str>,
}

impl Source for ProcfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut unseen = Vec::new();
        let groups = self.config.groups.iter();
        let plans = groups.filter_map(|(group, options)| self.discover_group(group, options, &mut unseen, report));
        let plans = plans.collect();
        self.unseen = unseen;
        plans
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

impl ProcfsSource {
    fn discover_group(
        &self,
        group: &'static ProcGroup,
        options: &GroupOptions,
        unseen: &mut Vec<&'static str>,
        report: &mut dyn FnMut(String),
    ) -> Option<GroupPlan> {
        let mut plan = SensorPlan::new(&self.config.common, options, report);
        let mut reader = ProcReader { files: Vec::new() };
        for file in group.files {
            for PathMatch { path, captures } in self.places(file) {
                if reader.files.len() == FILES_MAX {
                    plan.report(format!("{}: left out, as a group has at most {FILES_MAX} files", path.display()));
                    break;
                }
                match file::read_file(&path) {
                    Ok(bytes) => {
                        let context = self.context(group, file, &captures);
                        let parser = (group.plan)(&context, &bytes, &mut plan);
                        reader.files.push(TextFile::new(file.path, &path, &bytes, parser));
                    }
                    Err(error) if !file.is_needed && file::is_absent(&error) => {}
                    Err(error) => {
                        plan.report(left_out(group, &path, &error));
                        if !file::is_absent(&error) {
                            unseen.push(group.name);
                            return None;
                        }
                    }
                }
            }
        }
        let sensors = plan.into_sensors();
        let reader: Box<dyn Reader> = match group.name {
            "stat" => Box::new(SlippingTimes::new(reader, &sensors, self.ticks_hz)),
            _ => Box::new(reader),
        };
        (!sensors.is_empty()).then(|| GroupPlan {
            name: group.name.to_owned(),
            sensors,
            reader,
            timing: options.timing_or(&self.config.common, group.interval),
            blocking: group.blocking,
        })
    }

    fn context<'a>(
        &'a self,
        group: &'static ProcGroup,
        file: &'static ProcFile,
        captures: &'a [String],
    ) -> PlanContext<'a> {
        let ProcfsConfig { devices, cpus, per_cpu, .. } = &self.config;
        PlanContext { group: group.name, file, captures, devices, cpus, per_cpu: *per_cpu, ticks_hz: self.ticks_hz }
    }

    /// The paths of a file.
    fn places(&self, file: &ProcFile) -> Vec<PathMatch> {
        let root = match file.root {
            FileRoot::Proc => &self.roots.proc,
            FileRoot::Sys => &self.roots.sys,
        };
        match file.path.contains('*') {
            true => glob::find(root, file.path),
            false => vec![PathMatch { path: root.join(file.path), captures: Vec::new() }],
        }
    }
}

/// The most files of a group: datasets of ZFS, of which a machine may have thousands.
const FILES_MAX: usize = 256;

fn left_out(group: &ProcGroup, path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        _ if group.name == "pressure" => " (a kernel without PSI, or one started without psi=1)",
        std::io::ErrorKind::PermissionDenied => "; allow the agent to read it",
        _ => "",
    };
    format!("procfs: {} is left out: {error}{hint}", path.display())
}

/// Reads the files of one group.
struct ProcReader {
    files: Vec<TextFile<ProcParser>>,
}

impl Reader for ProcReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut result = Reading::default();
        for file in &mut self.files {
            let reading = file.read(row, ProcParser::is_complete);
            result.layout_changed |= reading.layout_changed;
            result.problem = result.problem.or(reading.problem);
        }
        result
    }
}
