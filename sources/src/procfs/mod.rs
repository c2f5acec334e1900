//! The kernel's statistics in /proc: memory, CPUs, load, network, disks, pressure.
//!
//! - In: `[sources.procfs]`, and the files below `roots.proc` that `config.rs` lists.
//! - Out: one group for each file. The file stays open, and one `pread` reads most of them.
//! - Never: a made-up value, or the previous value, in place of one that could not be read.

mod config;
mod devices;
mod loadavg;
mod meminfo;
mod pairs;
mod stat;
mod vmstat;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};

use self::config::{ProcGroup, ProcfsConfig};
use self::loadavg::LoadTable;
use self::pairs::PairTable;
use crate::file;
use crate::line_table::LineTable;
use crate::options::GroupOptions;
use crate::parse::{ParseOutcome, TextParser, ValueSink};
use crate::plan::SensorPlan;
use crate::pressure::{self, PressureTable};
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;
use crate::text_file::TextFile;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "procfs",
    summary: "the kernel's statistics in /proc: memory, CPUs, load, network, disks, pressure",
    configure,
    jobs: None,
};

/// Ticks of CPU time in a second, if the system does not report them.
const USER_HZ_USUAL: u32 = 100;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    // SAFETY: sysconf only returns a number.
    let ticks_hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_hz = u32::try_from(ticks_hz).ok().filter(|hz| *hz > 0).unwrap_or(USER_HZ_USUAL);
    let (config, root) = (ProcfsConfig::read(section)?, context.roots.proc.clone());
    Ok(Box::new(ProcfsSource { config, root, ticks_hz, unseen: Vec::new() }))
}

struct ProcfsSource {
    config: ProcfsConfig,
    root: PathBuf,
    ticks_hz: u32,
    /// Groups whose files exist, perhaps, but could not be opened by the last discovery.
    unseen: Vec<&'static str>,
}

impl Source for ProcfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut unseen = Vec::new();
        let groups = self.config.groups.iter();
        let plans = groups.filter_map(|(group, options)| self.discover_group(*group, options, &mut unseen, report));
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
        group: ProcGroup,
        options: &GroupOptions,
        unseen: &mut Vec<&'static str>,
        report: &mut dyn FnMut(String),
    ) -> Option<GroupPlan> {
        let mut plan = SensorPlan::new(&self.config.common, options, report);
        let mut reader = ProcReader { files: Vec::new() };
        for &file in files(group) {
            let path = self.root.join(file);
            match file::read_file(&path) {
                Ok(bytes) => {
                    let parser = self.parser(group, file, &bytes, &mut plan);
                    reader.files.push(TextFile::new(file, &path, &bytes, parser));
                }
                Err(error) => {
                    plan.report(left_out(group, &path, &error));
                    if !file::is_absent(&error) {
                        unseen.push(group.name());
                        return None;
                    }
                }
            }
        }
        let sensors = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: group.name().to_owned(),
            sensors,
            reader: Box::new(reader),
            timing: options.timing(&self.config.common),
            blocking: false,
        })
    }

    fn parser(&self, group: ProcGroup, file: &'static str, bytes: &[u8], plan: &mut SensorPlan<'_>) -> ProcParser {
        let ProcfsConfig { devices, cpus, .. } = &self.config;
        match group {
            ProcGroup::Meminfo => ProcParser::OneRecord(meminfo::plan(bytes, plan)),
            ProcGroup::Vmstat => ProcParser::KnownLast(vmstat::plan(bytes, plan)),
            ProcGroup::Stat => ProcParser::OneRecord(stat::plan(bytes, cpus, self.ticks_hz, plan)),
            ProcGroup::Loadavg => ProcParser::Load(loadavg::plan(plan)),
            ProcGroup::NetDev => ProcParser::UnknownLast(devices::plan_net(bytes, devices, plan)),
            ProcGroup::Diskstats => ProcParser::UnknownLast(devices::plan_disk(bytes, devices, plan)),
            ProcGroup::NetSnmp | ProcGroup::NetNetstat => ProcParser::Pairs(pairs::plan(group.name(), bytes, plan)),
            ProcGroup::Pressure => {
                ProcParser::Pressure(pressure::plan(file.trim_start_matches("pressure/"), bytes, plan))
            }
        }
    }
}

/// The files of a group below /proc.
fn files(group: ProcGroup) -> &'static [&'static str] {
    match group {
        ProcGroup::Meminfo => &["meminfo"],
        ProcGroup::Vmstat => &["vmstat"],
        ProcGroup::Stat => &["stat"],
        ProcGroup::Loadavg => &["loadavg"],
        ProcGroup::NetDev => &["net/dev"],
        ProcGroup::NetSnmp => &["net/snmp"],
        ProcGroup::NetNetstat => &["net/netstat"],
        ProcGroup::Diskstats => &["diskstats"],
        ProcGroup::Pressure => &["pressure/cpu", "pressure/memory", "pressure/io"],
    }
}

fn left_out(group: ProcGroup, path: &Path, error: &std::io::Error) -> String {
    let hint = if group == ProcGroup::Pressure { " (a kernel without PSI, or one started without psi=1)" } else { "" };
    format!("procfs: {} is left out: {error}{hint}", path.display())
}

/// A file that comes in several reads is complete when one read gave at most so many bytes. The first read gives as many lines as fit
/// into a page or into the buffer (`seq_read_iter` in fs/seq_file.c). Lines of devices have up to 450 bytes, so one more line would have
/// fitted.
const COMPLETE_BYTES_MAX: usize = 4096 - 512;

/// The parser of a file, and how the end of the file is recognized. A read that gives nothing would show it too, but is one more system
/// call.
enum ProcParser {
    /// One read gives the whole file.
    OneRecord(LineTable),
    /// Several reads give the file. Its lines do not change while the kernel runs: the last one shows the end.
    KnownLast(LineTable),
    /// Several reads give the file. A new device may come at the end.
    UnknownLast(LineTable),
    Pairs(PairTable),
    Load(LoadTable),
    Pressure(PressureTable),
}

impl ProcParser {
    fn is_complete(&self, bytes: &[u8]) -> bool {
        match self {
            Self::KnownLast(table) => table.ends_with_last_line(bytes),
            Self::UnknownLast(_) => bytes.len() <= COMPLETE_BYTES_MAX,
            Self::OneRecord(_) | Self::Pairs(_) | Self::Load(_) | Self::Pressure(_) => true,
        }
    }
}

impl TextParser for ProcParser {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        match self {
            Self::OneRecord(table) | Self::KnownLast(table) | Self::UnknownLast(table) => table.parse(bytes, sink),
            Self::Pairs(table) => table.parse(bytes, sink),
            Self::Load(table) => table.parse(bytes, sink),
            Self::Pressure(table) => table.parse(bytes, sink),
        }
    }

    fn slots(&self) -> Vec<u32> {
        match self {
            Self::OneRecord(table) | Self::KnownLast(table) | Self::UnknownLast(table) => table.slots(),
            Self::Pairs(table) => table.slots(),
            Self::Load(table) => table.slots(),
            Self::Pressure(table) => table.slots(),
        }
    }
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
