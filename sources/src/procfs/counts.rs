//! Counts of the kernel: open files, interrupts, the scheduler, free blocks and objects of memory (Documentation/filesystems/proc.rst,
//! Documentation/scheduler/sched-stats.rst, slabinfo(5)).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::context::PlanContext;
use super::sums::{ColumnFormat, ColumnSums, RowSums, SumColumn, WRAPS_AT};
use super::words::{self, WordTable};
use crate::line_table::LineTable;
use crate::plan::{SensorPlan, Slot};
use crate::scan::{self, Cursor};

/// The versions of schedstat whose lines of CPUs have the known columns.
const SCHEDSTAT_VERSIONS: [&[u8]; 3] = [b"version 15", b"version 16", b"version 17"];
/// The columns of a CPU in schedstat, in ns from Linux 2.6.23 on.
const SCHEDSTAT: [(usize, &str, &str, f64, &str); 3] = [
    (6, "running", "s", 1e-9, "Time that threads ran."),
    (7, "waiting", "s", 1e-9, "Time that threads waited to run."),
    (8, "timeslices", "1", 1.0, "Times that a thread began to run."),
];

/// Adds the sensors of sys/fs/file-nr, `filefd/<name>`.
pub fn plan_file_nr(bytes: &[u8], plan: &mut SensorPlan<'_>) -> WordTable {
    words::plan(bytes, plan, |number| {
        let (name, text) = match number.index {
            0 => ("allocated", "Open files of all processes."),
            1 => ("unused", "Files allocated and not open."),
            2 => ("max", "The most files that all processes may open."),
            _ => return None,
        };
        Some(SensorDef::gauge(format!("filefd/{name}"), "1", text))
    })
}

/// Adds the sensors of schedstat, `schedstat/<name>`, and with `per_cpu` also `schedstat/<cpu>/<name>`.
pub fn plan_schedstat(context: &PlanContext<'_>, bytes: &[u8], plan: &mut SensorPlan<'_>) -> ColumnSums {
    let version = scan::lines(bytes).next().unwrap_or_default();
    let is_known = SCHEDSTAT_VERSIONS.contains(&version);
    if !is_known {
        plan.report(format!("schedstat: left out, as {:?} is not known", String::from_utf8_lossy(version)));
    }
    let columns = SCHEDSTAT.map(|(index, name, unit, scale, text)| SumColumn {
        index,
        sensor: SensorDef::counter(format!("schedstat/{name}"), unit, text).scaled(scale),
    });
    let format = ColumnFormat { header_lines: 1, prefix: b"cpu", radix: 10 };
    ColumnSums::plan(bytes, format, if is_known { &columns } else { &[] }, plan, |cpu, _| {
        context.samples_cpu(cpu).then(|| cpu.to_owned())
    })
}

/// Adds the sensors of a file with a line for each counter and a column for each CPU.
pub fn plan_rows(bytes: &[u8], sensor_of: fn(&str, &str) -> Option<SensorDef>, plan: &mut SensorPlan<'_>) -> RowSums {
    RowSums::plan(bytes, plan, sensor_of)
}

fn row(path: String, description: &str) -> SensorDef {
    SensorDef { wraps_at: Some(WRAPS_AT), ..SensorDef::counter(path, "1", description) }
}

/// A line of interrupts: `interrupts/<number or name>`, described by the device and the driver.
pub fn interrupt(name: &str, text: &str) -> Option<SensorDef> {
    Some(row(format!("interrupts/{}", sanitize_level(name)), text))
}

/// A line of softirqs: `softirqs/<name>`.
pub fn soft_interrupt(name: &str, _text: &str) -> Option<SensorDef> {
    Some(row(format!("softirqs/{}", sanitize_level(name)), "Soft interrupts of this kind served."))
}

/// The lines of interrupts that tell of the hardware's health: `mce/<name>`.
pub fn machine_check(name: &str, _text: &str) -> Option<SensorDef> {
    let (name, description) = match name {
        "MCE" => ("exceptions", "Machine check exceptions."),
        "MCP" => ("polls", "Searches for machine check events that caused no exception."),
        "THR" => ("threshold", "Interrupts for corrected errors beyond a threshold."),
        "DFR" => ("deferred", "Interrupts for errors that are not corrected and not yet used."),
        "TRM" => ("thermal_events", "Interrupts for a temperature limit of the processor."),
        _ => return None,
    };
    Some(row(format!("mce/{name}"), description))
}

/// Adds the sensors of buddyinfo, `buddyinfo/<node>/<zone>/order<n>`.
pub fn plan_buddyinfo(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let Some((key_len, node, zone)) = zone_of(line) else {
            plan.report(format!("buddyinfo: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        };
        let orders = line[key_len..].split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count();
        let slots: Vec<Slot> = (0..orders)
            .map(|order| {
                let text = format!("Free blocks of 2^{order} pages.");
                let path = format!("buddyinfo/{node}/{}/order{order}", sanitize_level(&zone));
                plan.add(SensorDef::gauge(path, "1", &text))
            })
            .collect();
        table.push(&line[..key_len], &slots);
    }
    table
}

/// The length of a key such as `Node 0, zone   Normal `, the node and the zone.
fn zone_of(line: &[u8]) -> Option<(usize, u64, String)> {
    let mut cursor = Cursor::new(line);
    cursor.literal(b"Node ")?;
    let node = cursor.number()?;
    cursor.literal(b", zone")?;
    let zone = String::from_utf8_lossy(cursor.skip_spaces().word()?).into_owned();
    cursor.literal(b" ")?;
    Some((cursor.position(), node, zone))
}

/// Adds the sensors of slabinfo, `slab/<cache>/<name>`.
pub fn plan_slab(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let mut cursor = Cursor::new(line);
        let name = cursor.word().map(|name| String::from_utf8_lossy(name).into_owned());
        let has_numbers = (0..3).all(|_| cursor.skip_spaces().int().is_some());
        let Some(name) = name.filter(|_| has_numbers) else {
            table.push(line, &[]);
            continue;
        };
        let folder = format!("slab/{}", sanitize_level(&name));
        let slots = [
            SensorDef::gauge(format!("{folder}/active"), "1", "Objects in use."),
            SensorDef::gauge(format!("{folder}/objects"), "1", "Objects allocated."),
            SensorDef::gauge(format!("{folder}/object_size"), "By", "Size of an object."),
        ]
        .map(|sensor| plan.add(sensor));
        table.push(&line[..=name.len().min(line.len() - 1)], &slots);
    }
    table
}
