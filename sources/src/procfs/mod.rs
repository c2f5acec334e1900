//! The kernel's own statistics in /proc: memory, CPUs, load, network, disks, pressure.
//!
//! - In: `[sources.procfs]` and the files below `roots.proc` that are listed in `config.rs`.
//! - Out: one group a file, each file kept open and read with one `pread`, most with no more system calls than that.
//! - Never: a value made up for one that could not be read, or one from the read before.

mod config;
mod devices;
mod loadavg;
mod meminfo;
mod pairs;
mod stat;
mod vmstat;

#[cfg(test)]
mod tests;

use std::path::Path;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use self::config::{Config, Group};
use self::loadavg::LoadTable;
use self::pairs::PairTable;
use crate::file::{self, KeptFile};
use crate::kept::{Fill, Kept, Parse, Room};
use crate::options::GroupOptions;
use crate::plan::Plan;
use crate::pressure::{self, PressureTable};
use crate::table::{LineTable, Parsed};
use crate::{ConfigureContext, GroupPlan, ReadProblem, Reader, Reading, Row, Source, SourceType};

/// The line in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "procfs",
    summary: "the kernel's statistics in /proc: memory, CPUs, load, network, disks, pressure",
    configure,
    jobs: None,
};

/// Ticks a second of CPU times, where the system does not say.
const USER_HZ_USUAL: u32 = 100;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    // SAFETY: sysconf only looks up a number.
    let ticks_hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_hz = u32::try_from(ticks_hz).ok().filter(|hz| *hz > 0).unwrap_or(USER_HZ_USUAL);
    Ok(Box::new(Procfs {
        config: Config::read(section)?,
        root: context.roots.proc.clone(),
        ticks_hz,
        unseen: Vec::new(),
    }))
}

struct Procfs {
    config: Config,
    root: std::path::PathBuf,
    ticks_hz: u32,
    /// Groups whose files could not be opened at the last look, though they may be there.
    unseen: Vec<&'static str>,
}

impl Source for Procfs {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut unseen = Vec::new();
        let groups = self.config.groups.iter();
        let found = groups.filter_map(|(group, options)| self.discover_group(*group, options, &mut unseen, report));
        let found = found.collect();
        self.unseen = unseen;
        found
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

impl Procfs {
    fn discover_group(
        &self,
        group: Group,
        options: &GroupOptions,
        unseen: &mut Vec<&'static str>,
        report: &mut dyn FnMut(String),
    ) -> Option<GroupPlan> {
        let mut plan = Plan::new(&self.config.common, options, report);
        let mut parts = Vec::new();
        for &what in files(group) {
            let path = self.root.join(what);
            match file::read_file(&path) {
                Ok(bytes) => {
                    let parser = self.parser(group, what, &bytes, &mut plan);
                    let buffer = vec![0; room(bytes.len())];
                    let kept = Kept::new(&parser, Room::of(&parser, &bytes));
                    parts.push(Part { what, file: KeptFile::new(&path), buffer, parser, kept });
                }
                Err(error) => {
                    plan.report(absent(group, &path, &error));
                    if !file::is_absent(&error) {
                        unseen.push(group.name());
                        return None;
                    }
                }
            }
        }
        let sensors: Vec<SensorDef> = plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: group.name().to_owned(),
            sensors,
            reader: Box::new(ProcReader { parts }),
            timing: options.timing(&self.config.common),
            blocking: false,
        })
    }

    fn parser(&self, group: Group, what: &'static str, bytes: &[u8], plan: &mut Plan<'_>) -> Parser {
        let Config { devices, cpus, .. } = &self.config;
        match group {
            Group::Meminfo => Parser::OneRecord(meminfo::plan(bytes, plan)),
            Group::Vmstat => Parser::KnownLast(vmstat::plan(bytes, plan)),
            Group::Stat => Parser::OneRecord(stat::plan(bytes, cpus, self.ticks_hz, plan)),
            Group::Loadavg => Parser::Load(loadavg::plan(plan)),
            Group::NetDev => Parser::UnknownLast(devices::plan_net(bytes, devices, plan)),
            Group::Diskstats => Parser::UnknownLast(devices::plan_disk(bytes, devices, plan)),
            Group::NetSnmp | Group::NetNetstat => Parser::Pairs(pairs::plan(group.name(), bytes, plan)),
            Group::Pressure => Parser::Pressure(pressure::plan(what.trim_start_matches("pressure/"), bytes, plan)),
        }
    }
}

/// A group's files below /proc.
fn files(group: Group) -> &'static [&'static str] {
    match group {
        Group::Meminfo => &["meminfo"],
        Group::Vmstat => &["vmstat"],
        Group::Stat => &["stat"],
        Group::Loadavg => &["loadavg"],
        Group::NetDev => &["net/dev"],
        Group::NetSnmp => &["net/snmp"],
        Group::NetNetstat => &["net/netstat"],
        Group::Diskstats => &["diskstats"],
        Group::Pressure => &["pressure/cpu", "pressure/memory", "pressure/io"],
    }
}

fn absent(group: Group, path: &Path, error: &std::io::Error) -> String {
    let hint = if group == Group::Pressure { " (a kernel without PSI, or one started without psi=1)" } else { "" };
    format!("procfs: {} is left out: {error}{hint}", path.display())
}

/// The size of a buffer for a file that had this size: so much larger that counters which grow do not fill it.
fn room(length: usize) -> usize {
    (length + length / 2 + 1024).next_multiple_of(4096)
}

/// What comes in pieces is all when so many bytes of it have come: 3584. The kernel's first piece of such a file is as many lines
/// as fit into a page or what was asked for (`seq_read_iter` in fs/seq_file.c), and one more would have: lines of
/// devices have up to 450 bytes.
const WHOLE_BYTES_MAX: usize = 4096 - 512;

/// How a file is parsed, and how its end is known. Reading until nothing comes would tell it too, at the price of one more
/// system call.
enum Parser {
    /// Comes whole with one read.
    OneRecord(LineTable),
    /// Comes in pieces; its lines stay the same while the kernel runs, so that the last one tells the end.
    KnownLast(LineTable),
    /// Comes in pieces; a new device may come at the end.
    UnknownLast(LineTable),
    Pairs(PairTable),
    Load(LoadTable),
    Pressure(PressureTable),
}

impl Parser {
    fn is_whole(&self, bytes: &[u8]) -> bool {
        match self {
            Self::KnownLast(table) => table.ends_with_last_line(bytes),
            Self::UnknownLast(_) => bytes.len() <= WHOLE_BYTES_MAX,
            Self::OneRecord(_) | Self::Pairs(_) | Self::Load(_) | Self::Pressure(_) => true,
        }
    }
}

impl Parse for Parser {
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
        match self {
            Self::OneRecord(table) | Self::KnownLast(table) | Self::UnknownLast(table) => table.parse(bytes, fill),
            Self::Pairs(table) => table.parse(bytes, fill),
            Self::Load(table) => table.parse(bytes, fill),
            Self::Pressure(table) => table.parse(bytes, fill),
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

struct Part {
    what: &'static str,
    file: KeptFile,
    buffer: Vec<u8>,
    parser: Parser,
    kept: Kept,
}

impl Part {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let Self { what, file, buffer, parser, kept } = self;
        match file.read_whole(buffer, |bytes| parser.is_whole(bytes)) {
            Ok(length) => kept.parse(parser, &buffer[..length], row).reading(what),
            Err(errno) => Reading { problem: Some(ReadProblem::Os { what, errno }), ..Reading::default() },
        }
    }
}

/// Reads the files of one group.
struct ProcReader {
    parts: Vec<Part>,
}

impl Reader for ProcReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut whole = Reading::default();
        for part in &mut self.parts {
            let reading = part.read(row);
            whole.layout_changed |= reading.layout_changed;
            whole.problem = whole.problem.or(reading.problem);
        }
        whole
    }
}
