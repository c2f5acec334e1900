//! /proc/meminfo: lines such as `MemFree:   24406048 kB` (proc_meminfo(5), Documentation/filesystems/proc.rst).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::line_table::LineTable;
use crate::plan::SensorPlan;
use crate::scan::{self, Cursor};

/// Adds the sensors `meminfo/<key>`.
pub fn plan(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let Some((key_len, sensor)) = sensor(line) else {
            plan.report(format!("meminfo: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        };
        let slot = plan.add(sensor);
        table.push(&line[..key_len], &[slot]);
    }
    table
}

/// The length of a line's key with its colon, and the sensor of its value.
pub fn sensor(line: &[u8]) -> Option<(usize, SensorDef)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8_lossy(&line[..colon]);
    let path = format!("meminfo/{}", sanitize_level(&name));
    let sensor = match is_kilobytes(&line[colon + 1..])? {
        true => SensorDef::gauge(path, "By", describe(&name)).scaled(1024.0),
        false => SensorDef::gauge(path, "1", describe(&name)),
    };
    Some((colon + 1, sensor))
}

/// Whether the value of a line is in units of 1024 bytes (true) or a number without a unit (false); `None` for other lines.
fn is_kilobytes(value: &[u8]) -> Option<bool> {
    let mut cursor = Cursor::new(value);
    cursor.skip_spaces().int()?;
    match cursor.rest() {
        b" kB" => Some(true),
        b"" => Some(false),
        _ => None,
    }
}

fn describe(name: &str) -> &'static str {
    match name {
        "MemTotal" => "Memory that the kernel can use.",
        "MemFree" => "Memory that nothing uses.",
        "MemAvailable" => "Memory that new programs could get without swapping, as the kernel estimates it.",
        "Buffers" => "Memory that holds blocks of disks.",
        "Cached" => "Memory that holds files, shared memory included.",
        "SwapCached" => "Memory that was swapped out and in again and is still in swap too.",
        "Active" => "Memory used lately and not reclaimed unless need be.",
        "Inactive" => "Memory not used lately, the first to be reclaimed.",
        "Unevictable" => "Memory that cannot be reclaimed.",
        "Mlocked" => "Memory locked by programs.",
        "SwapTotal" => "Swap space.",
        "SwapFree" => "Swap space that nothing uses.",
        "Dirty" => "Memory that waits to be written to disk.",
        "Writeback" => "Memory that is being written to disk.",
        "AnonPages" => "Memory of programs that belongs to no file.",
        "Mapped" => "Memory of files that programs have mapped.",
        "Shmem" => "Shared memory and tmpfs.",
        "Slab" => "Memory of the kernel's own objects.",
        "SReclaimable" => "The part of Slab that can be reclaimed.",
        "SUnreclaim" => "The part of Slab that cannot be reclaimed.",
        "KernelStack" => "Memory of the kernel's stacks.",
        "PageTables" => "Memory of page tables.",
        "CommitLimit" => "Memory that can be promised to programs when overcommitment is off.",
        "Committed_AS" => "Memory promised to programs.",
        "Percpu" => "Memory of the kernel's objects for each CPU.",
        "HardwareCorrupted" => "Memory left unused as its hardware is faulty.",
        "AnonHugePages" => "Memory of programs in transparent huge pages.",
        "HugePages_Total" => "Huge pages reserved.",
        "HugePages_Free" => "Reserved huge pages that nothing uses.",
        "HugePages_Rsvd" => "Huge pages promised and not yet taken.",
        "HugePages_Surp" => "Huge pages beyond the reserved ones.",
        "Hugepagesize" => "Size of a huge page.",
        "Hugetlb" => "Memory in huge pages of all sizes.",
        _ => "",
    }
}
