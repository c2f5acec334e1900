//! Presets that are tables: a pattern of files below /sys, and the sensor of each.
//!
//! Sources: Documentation/ABI/testing/sysfs-class-net, Documentation/networking/bonding.rst, Documentation/admin-guide/md.rst,
//! Documentation/ABI/testing/sysfs-class-watchdog, Documentation/admin-guide/RAS and drivers/edac/edac_mc_sysfs.c.

use std::path::Path;

use wholegrain_model::{Kind, SensorDef};

use super::format::ValueFormat;
use super::number_file::{NumberFile, filled_template};
use crate::{glob, states};

/// A pattern of files with one value each.
pub struct FileRow {
    /// Below /sys; `*` matches within a level.
    path: &'static str,
    /// `{1}`, `{2}`, … stand for what each `*` matched.
    name: &'static str,
    unit: &'static str,
    scale: f64,
    kind: Kind,
    format: ValueFormat,
    description: &'static str,
}

const fn number(path: &'static str, name: &'static str, unit: &'static str, description: &'static str) -> FileRow {
    FileRow { path, name, unit, scale: 1.0, kind: Kind::Gauge, format: ValueFormat::Int, description }
}

const fn count(path: &'static str, name: &'static str, description: &'static str) -> FileRow {
    FileRow { kind: Kind::Counter, ..number(path, name, "1", description) }
}

const fn state(
    path: &'static str,
    name: &'static str,
    words: &'static [&'static str],
    description: &'static str,
) -> FileRow {
    FileRow { format: ValueFormat::State(words), ..number(path, name, "1", description) }
}

impl FileRow {
    const fn scaled(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    const fn format(self, format: ValueFormat) -> Self {
        Self { format, ..self }
    }
}

/// The existing files of the rows.
pub fn find(sys: &Path, rows: &[FileRow]) -> Vec<NumberFile> {
    let mut all = Vec::new();
    for row in rows {
        for found in glob::find(sys, row.path) {
            let name = filled_template(row.name, &found.captures);
            let sensor = SensorDef { kind: row.kind, ..SensorDef::gauge(name, row.unit, row.description) };
            let sensor = match row.format {
                ValueFormat::State(words) => states::described(sensor, words),
                _ => sensor.scaled(row.scale),
            };
            all.push(NumberFile { format: row.format, ..NumberFile::new(found.path, sensor) });
        }
    }
    all
}

/// Memory controllers, their modules or ranks, and their rows and channels of chips.
pub const EDAC: &[FileRow] = &[
    count("devices/system/edac/mc/mc*/ce_count", "edac/mc{1}/ce_count", "Memory errors corrected."),
    count("devices/system/edac/mc/mc*/ue_count", "edac/mc{1}/ue_count", "Memory errors that could not be corrected."),
    count(
        "devices/system/edac/mc/mc*/ce_noinfo_count",
        "edac/mc{1}/ce_noinfo_count",
        "Memory errors corrected, module unknown.",
    ),
    count(
        "devices/system/edac/mc/mc*/ue_noinfo_count",
        "edac/mc{1}/ue_noinfo_count",
        "Memory errors that could not be corrected, module unknown.",
    ),
    count(
        "devices/system/edac/mc/mc*/dimm*/dimm_ce_count",
        "edac/mc{1}/dimm{2}/ce_count",
        "Memory errors corrected in this module.",
    ),
    count(
        "devices/system/edac/mc/mc*/dimm*/dimm_ue_count",
        "edac/mc{1}/dimm{2}/ue_count",
        "Memory errors that could not be corrected in this module.",
    ),
    count(
        "devices/system/edac/mc/mc*/rank*/dimm_ce_count",
        "edac/mc{1}/rank{2}/ce_count",
        "Memory errors corrected in this rank.",
    ),
    count(
        "devices/system/edac/mc/mc*/rank*/dimm_ue_count",
        "edac/mc{1}/rank{2}/ue_count",
        "Memory errors that could not be corrected in this rank.",
    ),
    count(
        "devices/system/edac/mc/mc*/csrow*/ce_count",
        "edac/mc{1}/csrow{2}/ce_count",
        "Memory errors corrected in this row of chips.",
    ),
    count(
        "devices/system/edac/mc/mc*/csrow*/ue_count",
        "edac/mc{1}/csrow{2}/ue_count",
        "Memory errors that could not be corrected in this row of chips.",
    ),
    count(
        "devices/system/edac/mc/mc*/csrow*/ch*_ce_count",
        "edac/mc{1}/csrow{2}/ch{3}_ce_count",
        "Memory errors corrected in this channel of the row.",
    ),
];

/// RFC 2863 and `operstates` in net/core/net-sysfs.c.
const OPERATIONAL: &[&str] = &["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];

/// Network interfaces. Speed, duplex and carrier have no value while the interface is down.
pub const NETCLASS: &[FileRow] = &[
    state("class/net/*/operstate", "netclass/{1}/state", OPERATIONAL, "State."),
    number("class/net/*/carrier", "netclass/{1}/carrier", "1", "Whether there is a link."),
    count("class/net/*/carrier_changes", "netclass/{1}/carrier_changes", "Times that the link went up or down."),
    number("class/net/*/speed", "netclass/{1}/speed", "bit/s", "Speed of the link.")
        .scaled(1e6)
        .format(ValueFormat::NotNegative),
    state("class/net/*/duplex", "netclass/{1}/duplex", &["half", "full", "unknown"], "Directions at a time."),
    number("class/net/*/mtu", "netclass/{1}/mtu", "By", "The longest packet."),
    number("class/net/*/tx_queue_len", "netclass/{1}/tx_queue_len", "1", "The most packets that wait to be sent."),
];

const LINK: &[&str] = &["down", "up", "going down", "going back"];

/// Bonded interfaces and their parts.
pub const BONDING: &[FileRow] = &[
    number("class/net/*/bonding/slaves", "bonding/{1}/interfaces", "1", "Interfaces that are parts of this one.")
        .format(ValueFormat::WordCount),
    state("class/net/*/bonding/mii_status", "bonding/{1}/link", LINK, "Link."),
    number(
        "class/net/*/bonding/ad_num_ports",
        "bonding/{1}/active_ports",
        "1",
        "Ports in the active aggregate (802.3ad).",
    ),
    state("class/net/*/bonding_slave/mii_status", "bonding/part/{1}/link", LINK, "Link of a part."),
    state("class/net/*/bonding_slave/state", "bonding/part/{1}/state", &["active", "backup"], "Use of a part."),
    count("class/net/*/bonding_slave/link_failure_count", "bonding/part/{1}/link_failures", "Failures of the link."),
];

const ARRAY: &[&str] = &[
    "clear",
    "inactive",
    "suspended",
    "readonly",
    "read-auto",
    "clean",
    "active",
    "write-pending",
    "active-idle",
    "broken",
];
const SYNC: &[&str] = &["idle", "resync", "recover", "check", "repair", "reshape", "frozen"];

/// Arrays of disks (md).
pub const MD: &[FileRow] = &[
    state("block/md*/md/array_state", "md/md{1}/state", ARRAY, "State of the array."),
    number("block/md*/md/raid_disks", "md/md{1}/disks", "1", "Disks of a complete array.").format(ValueFormat::First),
    number("block/md*/md/degraded", "md/md{1}/degraded", "1", "Disks that are missing."),
    state("block/md*/md/sync_action", "md/md{1}/sync_action", SYNC, "What is done to the redundancy."),
    number(
        "block/md*/md/sync_completed",
        "md/md{1}/sync_completed",
        "By",
        "How far it is; a gap while nothing is done.",
    )
    .scaled(512.0)
    .format(ValueFormat::First),
    number("block/md*/md/sync_speed", "md/md{1}/sync_speed", "By/s", "How fast it is; a gap while nothing is done.")
        .scaled(1024.0)
        .format(ValueFormat::First),
    number("block/md*/md/mismatch_cnt", "md/md{1}/mismatch", "By", "What the last check found to differ.")
        .scaled(512.0),
    count("block/md*/md/dev-*/errors", "md/md{1}/{2}/errors", "Read errors of the disk that were corrected."),
];

/// Watchdog timers, of hardware and of software.
pub const WATCHDOG: &[FileRow] = &[
    state("class/watchdog/watchdog*/state", "watchdog/{1}/state", &["inactive", "active"], "State of the timer."),
    number(
        "class/watchdog/watchdog*/timeout",
        "watchdog/{1}/timeout",
        "s",
        "Time without a sign of life until a restart.",
    ),
    number("class/watchdog/watchdog*/timeleft", "watchdog/{1}/timeleft", "s", "Time left until a restart."),
    number("class/watchdog/watchdog*/bootstatus", "watchdog/{1}/bootstatus", "1", "Flags of the last restart (WDIOF)."),
    number("class/watchdog/watchdog*/nowayout", "watchdog/{1}/nowayout", "1", "Whether it cannot be stopped."),
];
