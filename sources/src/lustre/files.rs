//! The files of the statistics, and the names of their devices.

use wholegrain_model::name::sanitize_level;

use super::lnet::TableKind;
use super::stats::NumberKind;

/// The groups of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LustreGroup {
    /// The mounts of a client.
    Llite,
    /// The connections of a client to object storage targets.
    Osc,
    /// The connections of a client to metadata targets.
    Mdc,
    /// The object storage targets and the services of a server.
    Ost,
    /// The metadata targets and the services of a server.
    Mdt,
    /// Histograms of the I/O of a server's targets.
    Brw,
    /// The jobs on a server's targets.
    Jobs,
    /// The network of a client or a server.
    Lnet,
}

impl LustreGroup {
    /// The group's name in the agent.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llite => "lustre/llite",
            Self::Osc => "lustre/osc",
            Self::Mdc => "lustre/mdc",
            Self::Ost => "lustre/ost",
            Self::Mdt => "lustre/mdt",
            Self::Brw => "lustre/brw",
            Self::Jobs => "lustre/jobs",
            Self::Lnet => "lustre/lnet",
        }
    }
}

/// The format of a file.
#[derive(Debug, Clone, Copy)]
pub enum FileFormat {
    /// Lines with a name, samples and a sum. The text comes after the folder of the device.
    Stats(&'static str),
    Number(NumberKind),
    Brw,
    Jobs,
    LnetStats,
    LnetTable(TableKind),
}

/// A file of statistics: its path below one of the folders, with `*` for the device.
#[derive(Debug)]
pub struct LustreFile {
    pub group: LustreGroup,
    pub path: &'static str,
    pub format: FileFormat,
}

const fn file(group: LustreGroup, path: &'static str, format: FileFormat) -> LustreFile {
    LustreFile { group, path, format }
}

const fn stats(group: LustreGroup, path: &'static str) -> LustreFile {
    file(group, path, FileFormat::Stats(""))
}

const fn number(group: LustreGroup, path: &'static str, kind: NumberKind) -> LustreFile {
    file(group, path, FileFormat::Number(kind))
}

/// All files. In those with two `*` the last one is the device.
pub const FILES: &[LustreFile] = &[
    stats(LustreGroup::Llite, "llite/*/stats"),
    file(LustreGroup::Llite, "llite/*/read_ahead_stats", FileFormat::Stats("/read_ahead")),
    number(LustreGroup::Llite, "llite/*/kbytestotal", NumberKind::Size),
    number(LustreGroup::Llite, "llite/*/kbytesfree", NumberKind::Free),
    number(LustreGroup::Llite, "llite/*/kbytesavail", NumberKind::Available),
    number(LustreGroup::Llite, "llite/*/filestotal", NumberKind::Files),
    number(LustreGroup::Llite, "llite/*/filesfree", NumberKind::FilesFree),
    stats(LustreGroup::Osc, "osc/*/stats"),
    stats(LustreGroup::Mdc, "mdc/*/stats"),
    file(LustreGroup::Mdc, "mdc/*/md_stats", FileFormat::Stats("/metadata")),
    stats(LustreGroup::Ost, "obdfilter/*/stats"),
    number(LustreGroup::Ost, "obdfilter/*/kbytestotal", NumberKind::Size),
    number(LustreGroup::Ost, "obdfilter/*/kbytesfree", NumberKind::Free),
    number(LustreGroup::Ost, "obdfilter/*/kbytesavail", NumberKind::Available),
    number(LustreGroup::Ost, "obdfilter/*/filestotal", NumberKind::Files),
    number(LustreGroup::Ost, "obdfilter/*/filesfree", NumberKind::FilesFree),
    number(LustreGroup::Ost, "obdfilter/*/num_exports", NumberKind::Exports),
    file(LustreGroup::Ost, "ost/OSS/*/stats", FileFormat::Stats("")),
    stats(LustreGroup::Mdt, "mdt/*/md_stats"),
    number(LustreGroup::Mdt, "mdt/*/num_exports", NumberKind::Exports),
    file(LustreGroup::Mdt, "mds/MDS/*/stats", FileFormat::Stats("")),
    file(LustreGroup::Brw, "obdfilter/*/brw_stats", FileFormat::Brw),
    file(LustreGroup::Brw, "osd-ldiskfs/*/brw_stats", FileFormat::Brw),
    file(LustreGroup::Brw, "osd-zfs/*/brw_stats", FileFormat::Brw),
    file(LustreGroup::Jobs, "obdfilter/*/job_stats", FileFormat::Jobs),
    file(LustreGroup::Jobs, "mdt/*/job_stats", FileFormat::Jobs),
    file(LustreGroup::Lnet, "lnet/stats", FileFormat::LnetStats),
    file(LustreGroup::Lnet, "lnet/nis", FileFormat::LnetTable(TableKind::Interfaces)),
    file(LustreGroup::Lnet, "lnet/peers", FileFormat::LnetTable(TableKind::Peers)),
];

/// The levels of devices in sensor names. A client's device ends in the address of its mount (`scratch-OST0001-osc-ffff9c5e00aa0000`), which
/// differs after each mount and is left out, unless two devices differ only there.
pub fn device_names<'d>(devices: impl Iterator<Item = &'d str>) -> Vec<String> {
    let devices: Vec<&str> = devices.collect();
    let count = |short: &str| devices.iter().filter(|device| short_name(device) == short).count();
    let names = devices.iter().map(|device| if count(short_name(device)) == 1 { short_name(device) } else { device });
    names.map(|name| if name.is_empty() { String::new() } else { sanitize_level(name) }).collect()
}

fn short_name(device: &str) -> &str {
    let Some((name, address)) = device.rsplit_once('-') else { return device };
    if address.len() < 8 || !address.chars().all(|c| c.is_ascii_hexdigit()) {
        return device;
    }
    ["-osc", "-mdc", "-clilov"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let check = |devices: &[&str], expected: &[&str]| {
            assert_eq!(device_names(devices.iter().copied()), expected);
        };
        check(&["scratch-ffff9c5e00aa0000"], &["scratch"]);
        check(
            &["scratch-OST0001-osc-ffff9c5e00aa0000", "x-MDT0000-mdc-ffff9c5e00aa0000"],
            &["scratch-OST0001", "x-MDT0000"],
        );
        check(&["a-ffff9c5e00aa0000", "a-ffff9c5e00bb0000"], &["a-ffff9c5e00aa0000", "a-ffff9c5e00bb0000"]);
        check(
            &["scratch-OST0000", "scratch-OST0001-osc-MDT0000", ""],
            &["scratch-OST0000", "scratch-OST0001-osc-MDT0000", ""],
        );
    }
}
