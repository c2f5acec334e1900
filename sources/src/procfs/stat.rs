//! /proc/stat: CPU times, and counts since boot (proc_stat(5), Documentation/filesystems/proc.rst section 1.7).

use wholegrain_model::SensorDef;
use wholegrain_model::pattern::Filter;

use crate::line_table::LineTable;
use crate::plan::{SensorPlan, Slot};
use crate::scan;

/// The columns of a `cpu` line. Older kernels have fewer.
const TIMES: [(&str, &str); 10] = [
    ("user", "Time in user mode, guests included."),
    ("nice", "Time in user mode with low priority, guests included."),
    ("system", "Time in the kernel."),
    ("idle", "Time with nothing to do."),
    ("iowait", "Time with nothing to do while disk I/O was pending; not exact."),
    ("irq", "Time in interrupts."),
    ("softirq", "Time in soft interrupts."),
    ("steal", "Time that the hypervisor gave to others."),
    ("guest", "Time in guests."),
    ("guest_nice", "Time in guests with low priority."),
];

/// Adds the sensors `cpu/<time>` (the sum of all CPUs), `cpu/<number>/<time>` and `stat/<counter>`. `ticks_hz` is the number of ticks of CPU
/// time in a second (USER_HZ).
pub fn plan(bytes: &[u8], cpus: &Filter, ticks_hz: u32, plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let text = String::from_utf8_lossy(line);
        let mut words = text.split(' ');
        let key = words.next().unwrap_or_default();
        let key_bytes = line.get(..key.len() + 1).unwrap_or(line);
        let columns = words.filter(|word| !word.is_empty()).count();
        if let Some(cpu) = key.strip_prefix("cpu") {
            table.push(key_bytes, &times(cpu, columns, cpus, ticks_hz, plan));
        } else {
            let slot = count(key).and_then(|sensor| plan.add(sensor));
            table.push(key_bytes, &[slot]);
        }
    }
    table
}

fn times(cpu: &str, columns: usize, cpus: &Filter, ticks_hz: u32, plan: &mut SensorPlan<'_>) -> Vec<Slot> {
    let folder = if cpu.is_empty() { String::new() } else { format!("{cpu}/") };
    if !cpu.is_empty() && (!cpus.keeps(cpu) || cpu.parse::<u32>().is_err()) {
        return Vec::new();
    }
    let names = TIMES.iter().take(columns);
    names
        .map(|(name, description)| {
            plan.add(
                SensorDef::counter(format!("cpu/{folder}{name}"), "s", description).scaled(1.0 / f64::from(ticks_hz)),
            )
        })
        .collect()
}

/// The sensor of a line with one sampled number. In `intr` and `softirq` it is the first, which is the total.
fn count(key: &str) -> Option<SensorDef> {
    let sensor = match key {
        "intr" => SensorDef::counter("stat/intr", "1", "Interrupts served."),
        "ctxt" => SensorDef::counter("stat/ctxt", "1", "Context switches."),
        "processes" => SensorDef::counter("stat/processes", "1", "Processes and threads started."),
        "procs_running" => SensorDef::gauge("stat/procs_running", "1", "Threads that run or could run now."),
        "procs_blocked" => SensorDef::gauge("stat/procs_blocked", "1", "Threads that wait for a disk now."),
        "softirq" => SensorDef::counter("stat/softirq", "1", "Soft interrupts served."),
        _ => return None,
    };
    Some(sensor)
}
