//! /proc/net/dev and /proc/diskstats: one line for each device, with counters in columns (Documentation/admin-guide/iostats.rst,
//! Documentation/filesystems/proc.rst).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;
use wholegrain_model::pattern::Filter;

use crate::line_table::LineTable;
use crate::plan::{SensorPlan, Slot};
use crate::scan::{self, Cursor};

/// The second line of net/dev, which names the columns. It has not changed since Linux 2.1.
const NET_HEADER: &[u8] =
    b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed";

/// The columns of net/dev, named as in /sys/class/net/<device>/statistics unless the file has another sum.
const NET: [(&str, &str, &str); 16] = [
    ("rx_bytes", "By", "Bytes received."),
    ("rx_packets", "1", "Packets received."),
    ("rx_errors", "1", "Packets received with errors."),
    ("rx_dropped", "1", "Received packets dropped."),
    ("rx_fifo", "1", "Received packets lost as a buffer was full."),
    ("rx_frame", "1", "Received packets with framing errors."),
    ("rx_compressed", "1", "Compressed packets received."),
    ("multicast", "1", "Multicast packets received."),
    ("tx_bytes", "By", "Bytes sent."),
    ("tx_packets", "1", "Packets sent."),
    ("tx_errors", "1", "Packets not sent for an error."),
    ("tx_dropped", "1", "Packets to be sent dropped."),
    ("tx_fifo", "1", "Packets not sent as a buffer was full or empty."),
    ("collisions", "1", "Collisions."),
    ("tx_carrier", "1", "Packets not sent as the carrier was lost."),
    ("tx_compressed", "1", "Compressed packets sent."),
];

/// The columns of diskstats after the name. Sectors have 512 bytes on every device; times are in ms. Kernels before 4.18 have 11 columns,
/// kernels before 5.5 have 15.
const DISK: [(&str, &str, f64, &str); 17] = [
    ("reads", "1", 1.0, "Reads completed."),
    ("reads_merged", "1", 1.0, "Reads merged into others."),
    ("read_bytes", "By", 512.0, "Bytes read."),
    ("read_time", "s", 1e-3, "Time that reads took, summed over reads."),
    ("writes", "1", 1.0, "Writes completed."),
    ("writes_merged", "1", 1.0, "Writes merged into others."),
    ("write_bytes", "By", 512.0, "Bytes written."),
    ("write_time", "s", 1e-3, "Time that writes took, summed over writes."),
    ("in_flight", "1", 1.0, "Reads and writes begun and not completed now."),
    ("io_time", "s", 1e-3, "Time with at least one read or write begun."),
    ("weighted_io_time", "s", 1e-3, "Time times the reads and writes begun meanwhile."),
    ("discards", "1", 1.0, "Discards completed."),
    ("discards_merged", "1", 1.0, "Discards merged into others."),
    ("discard_bytes", "By", 512.0, "Bytes discarded."),
    ("discard_time", "s", 1e-3, "Time that discards took, summed over discards."),
    ("flushes", "1", 1.0, "Flushes completed."),
    ("flush_time", "s", 1e-3, "Time that flushes took, summed over flushes."),
];

/// Adds the sensors of net/dev, `net/dev/<device>/<counter>`. `devices` filters the device names as they are in the sensors' names.
pub fn plan_net(bytes: &[u8], devices: &Filter, plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    let mut known = false;
    for line in scan::lines(bytes) {
        let Some(colon) = line.iter().rposition(|byte| *byte == b':').filter(|_| known) else {
            known |= line == NET_HEADER;
            table.push(line, &[]);
            continue;
        };
        let folder = sanitize_level(&String::from_utf8_lossy(&line[..colon]));
        let slots: Vec<Slot> = if devices.keeps(&folder) {
            NET.map(|(name, unit, text)| plan.add(SensorDef::counter(format!("net/dev/{folder}/{name}"), unit, text)))
                .to_vec()
        } else {
            Vec::new()
        };
        table.push(&line[..colon + 1], &slots);
    }
    if !known {
        plan.report("net/dev: left out, as its columns are not the known ones".to_owned());
    }
    table
}

/// Adds the sensors of diskstats, `diskstats/<device>/<counter>`.
pub fn plan_disk(bytes: &[u8], devices: &Filter, plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let Some((key_len, device)) = disk_key(line) else {
            plan.report(format!("diskstats: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        };
        let columns = line[key_len..].split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count();
        let folder = sanitize_level(&device);
        let slots: Vec<Slot> = if devices.keeps(&folder) {
            DISK.iter().take(columns).map(|column| plan.add(disk_sensor(&folder, column))).collect()
        } else {
            Vec::new()
        };
        table.push(&line[..key_len], &slots);
    }
    table
}

fn disk_sensor(folder: &str, (name, unit, scale, text): &(&str, &str, f64, &str)) -> SensorDef {
    let path = format!("diskstats/{folder}/{name}");
    let sensor =
        if *name == "in_flight" { SensorDef::gauge(path, unit, text) } else { SensorDef::counter(path, unit, text) };
    sensor.scaled(*scale)
}

/// The length of a key such as ` 254       0 vda `, and the device in it.
fn disk_key(line: &[u8]) -> Option<(usize, String)> {
    let mut cursor = Cursor::new(line);
    cursor.skip_spaces().number()?;
    cursor.skip_spaces().number()?;
    let device = String::from_utf8_lossy(cursor.skip_spaces().word()?).into_owned();
    cursor.literal(b" ")?;
    Some((cursor.position(), device))
}
