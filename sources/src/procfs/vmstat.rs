//! /proc/vmstat: lines such as `pgfault 9557478`. mm/vmstat.c lists the names. Most count events, some are current states.

use wholegrain_model::name::sanitize_level;
use wholegrain_model::{Kind, SensorDef};

use crate::line_table::LineTable;
use crate::plan::SensorPlan;

/// Counts of events whose names begin like those of states (`nr_`).
const EVENTS: [&str; 10] = [
    "nr_vmscan_write",
    "nr_vmscan_immediate_reclaim",
    "nr_dirtied",
    "nr_written",
    "nr_throttled_written",
    "nr_foll_pin_acquired",
    "nr_foll_pin_released",
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_tlb_local_flush_all",
];

/// States in units of transparent huge pages (vmstat_item_print_in_thp).
const IN_HUGE_PAGES: [&str; 5] = [
    "nr_anon_transparent_hugepages",
    "nr_file_hugepages",
    "nr_shmem_hugepages",
    "nr_shmem_pmdmapped",
    "nr_file_pmdmapped",
];

/// Adds the sensors `vmstat/<key>`.
pub fn plan(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    LineTable::of_names_and_integers("vmstat", bytes, plan, |name| Some(sensor(name)))
}

fn sensor(name: &str) -> SensorDef {
    let (unit, scale) = match name {
        // In units of 1024 bytes.
        "pgpgin" | "pgpgout" | "nr_kernel_stack" | "nr_shadow_call_stack" => ("By", 1024.0),
        _ if IN_HUGE_PAGES.contains(&name) => ("{hugepage}", 1.0),
        "nr_dirtied" | "nr_written" => ("{page}", 1.0),
        _ if kind(name) == Kind::Gauge && name != "workingset_nodes" => ("{page}", 1.0),
        _ => ("1", 1.0),
    };
    let path = format!("vmstat/{}", sanitize_level(name));
    SensorDef { kind: kind(name), ..SensorDef::gauge(path, unit, describe(name)).scaled(scale) }
}

fn kind(name: &str) -> Kind {
    let is_state = name == "workingset_nodes" || (name.starts_with("nr_") && !is_event(name));
    if is_state { Kind::Gauge } else { Kind::Counter }
}

fn is_event(name: &str) -> bool {
    EVENTS.contains(&name) || name == "nr_tlb_local_flush_one"
}

fn describe(name: &str) -> &'static str {
    match name {
        "nr_free_pages" => "Pages that nothing uses.",
        "nr_dirty" => "Pages that wait to be written to disk.",
        "nr_writeback" => "Pages that are being written to disk.",
        "nr_dirtied" => "Pages made dirty.",
        "nr_written" => "Pages written to disk.",
        "nr_mapped" => "Pages of files that programs have mapped.",
        "nr_anon_pages" => "Pages of programs that belong to no file.",
        "nr_file_pages" => "Pages that hold files.",
        "nr_shmem" => "Pages of shared memory and tmpfs.",
        "nr_kernel_stack" => "Memory of the kernel's stacks.",
        "numa_hit" => "Pages given from the node where they were wanted.",
        "numa_miss" => "Pages given from this node though another was wanted.",
        "numa_foreign" => "Pages wanted here and given from another node.",
        "numa_local" => "Pages given to a program from the node that it runs on.",
        "numa_other" => "Pages given to a program from another node than it runs on.",
        "pgpgin" => "Read from disks.",
        "pgpgout" => "Written to disks.",
        "pswpin" => "Pages swapped in.",
        "pswpout" => "Pages swapped out.",
        "pgfault" => "Page faults.",
        "pgmajfault" => "Page faults that needed a disk.",
        "pgfree" => "Pages freed.",
        "pgscan_kswapd" => "Pages scanned by the background reclaimer.",
        "pgscan_direct" => "Pages scanned by programs that had to reclaim memory themselves.",
        "pgsteal_kswapd" => "Pages reclaimed by the background reclaimer.",
        "pgsteal_direct" => "Pages reclaimed by programs that had to reclaim memory themselves.",
        "oom_kill" => "Processes killed for lack of memory.",
        "compact_stall" => "Times that a program had to compact memory itself.",
        "thp_fault_alloc" => "Transparent huge pages given at a page fault.",
        "thp_fault_fallback" => "Page faults for which there was no transparent huge page.",
        _ => "",
    }
}
