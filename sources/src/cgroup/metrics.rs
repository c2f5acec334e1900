//! The metrics of a job, with the same names in both versions of the hierarchy.

use wholegrain_model::Kind::{self, Counter, Gauge};
use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

/// Name below the job, unit of the scaled value, kind, description.
type Metric = (&'static str, &'static str, Kind, &'static str);

/// The known metrics. Names below `memory/` are the keys of version 2's memory.stat if it has this key.
#[rustfmt::skip]
const METRICS: &[Metric] = &[
    ("cpu/usage", "s", Counter, "CPU time."),
    ("cpu/user", "s", Counter, "CPU time in user mode."),
    ("cpu/system", "s", Counter, "CPU time in the kernel."),
    ("cpu/nice", "s", Counter, "CPU time in user mode at low priority; part of the time in user mode."),
    ("cpu/force_idle", "s", Counter, "Time that CPUs had to idle as no task could share the core (core scheduling)."),
    ("cpu/periods", "1", Counter, "Enforcement intervals of the CPU bandwidth limit that have passed."),
    ("cpu/throttled_periods", "1", Counter, "Intervals in which the job used up its CPU bandwidth and was stopped."),
    ("cpu/throttled_time", "s", Counter, "Time that the job was stopped for its CPU bandwidth, summed over CPUs."),
    ("cpu/bursts", "1", Counter, "Intervals in which the job ran on CPU bandwidth saved before."),
    ("cpu/burst_time", "s", Counter, "CPU time taken beyond the bandwidth of the interval."),
    ("memory/usage", "By", Gauge, "Memory charged to the job, page cache and kernel memory included."),
    ("memory/peak", "By", Gauge, "The most memory that was charged to the job."),
    ("memory/swap", "By", Gauge, "Memory in swap."),
    ("memory/swap_peak", "By", Gauge, "The most memory that was in swap."),
    ("memory/memsw", "By", Gauge, "Memory and swap together."),
    ("memory/memsw_peak", "By", Gauge, "The most memory and swap together."),
    ("memory/memsw_failures", "1", Counter, "Times that the limit of memory and swap together was hit."),
    ("memory/limit", "By", Gauge, "The lowest memory limit of the job and of the cgroups above it; 9.2e18 means none."),
    ("memory/memsw_limit", "By", Gauge, "The lowest limit of memory and swap of the job and of the cgroups above it; 9.2e18 means none."),
    ("memory/under_oom", "1", Gauge, "1 while the job is out of memory and waits."),
    ("memory/anon", "By", Gauge, "Memory of programs that belongs to no file: heaps, stacks, anonymous maps."),
    ("memory/file", "By", Gauge, "Page cache, shared memory and tmpfs included."),
    ("memory/kernel", "By", Gauge, "Memory of the kernel's for the job."),
    ("memory/kernel_peak", "By", Gauge, "The most memory of the kernel's for the job."),
    ("memory/kernel_failures", "1", Counter, "Times that the limit of kernel memory was hit."),
    ("memory/kernel_stack", "By", Gauge, "Kernel stacks."),
    ("memory/pagetables", "By", Gauge, "Page tables."),
    ("memory/sec_pagetables", "By", Gauge, "Page tables of virtual machines and devices."),
    ("memory/percpu", "By", Gauge, "Per-CPU data of the kernel."),
    ("memory/sock", "By", Gauge, "Network buffers."),
    ("memory/vmalloc", "By", Gauge, "Memory that the kernel mapped piecewise."),
    ("memory/shmem", "By", Gauge, "Shared memory and tmpfs."),
    ("memory/zswap", "By", Gauge, "Memory that compressed swap takes."),
    ("memory/zswapped", "By", Gauge, "Memory that was swapped into compressed swap, before compression."),
    ("memory/file_mapped", "By", Gauge, "Page cache mapped into programs."),
    ("memory/file_dirty", "By", Gauge, "Page cache that waits to be written to disk."),
    ("memory/file_writeback", "By", Gauge, "Page cache that is being written to disk."),
    ("memory/swapcached", "By", Gauge, "Swapped memory that is in memory too."),
    ("memory/anon_thp", "By", Gauge, "Anonymous memory in transparent huge pages."),
    ("memory/file_thp", "By", Gauge, "Page cache in transparent huge pages."),
    ("memory/shmem_thp", "By", Gauge, "Shared memory in transparent huge pages."),
    ("memory/inactive_anon", "By", Gauge, "Anonymous memory not used lately."),
    ("memory/active_anon", "By", Gauge, "Anonymous memory used lately."),
    ("memory/inactive_file", "By", Gauge, "Page cache not used lately."),
    ("memory/active_file", "By", Gauge, "Page cache used lately."),
    ("memory/unevictable", "By", Gauge, "Memory that cannot be reclaimed, such as locked memory."),
    ("memory/slab", "By", Gauge, "Data structures of the kernel."),
    ("memory/slab_reclaimable", "By", Gauge, "Data structures of the kernel that can be reclaimed, such as cached names of files."),
    ("memory/slab_unreclaimable", "By", Gauge, "Data structures of the kernel that cannot be reclaimed."),
    ("memory/hugetlb", "By", Gauge, "Memory of hugetlbfs."),
    ("memory/workingset_refault_anon", "1", Counter, "Anonymous pages that came back soon after they were reclaimed."),
    ("memory/workingset_refault_file", "1", Counter, "Pages of files that came back soon after they were reclaimed."),
    ("memory/workingset_activate_anon", "1", Counter, "Anonymous pages that came back and were made active at once."),
    ("memory/workingset_activate_file", "1", Counter, "Pages of files that came back and were made active at once."),
    ("memory/workingset_restore_anon", "1", Counter, "Anonymous pages that came back and had been active before."),
    ("memory/workingset_restore_file", "1", Counter, "Pages of files that came back and had been active before."),
    ("memory/workingset_nodereclaim", "1", Counter, "Times that the record of reclaimed pages was itself reclaimed."),
    ("memory/pgpgin", "1", Counter, "Pages charged to the job."),
    ("memory/pgpgout", "1", Counter, "Pages no longer charged to the job."),
    ("memory/pgfault", "1", Counter, "Page faults."),
    ("memory/pgmajfault", "1", Counter, "Page faults that needed a disk."),
    ("memory/pswpin", "1", Counter, "Pages swapped in."),
    ("memory/pswpout", "1", Counter, "Pages swapped out."),
    ("memory/pgscan", "1", Counter, "Pages scanned by reclaim."),
    ("memory/pgsteal", "1", Counter, "Pages reclaimed."),
    ("memory/pgscan_kswapd", "1", Counter, "Pages scanned by the background reclaimer."),
    ("memory/pgscan_direct", "1", Counter, "Pages scanned by programs that had to reclaim memory themselves."),
    ("memory/pgscan_khugepaged", "1", Counter, "Pages scanned while huge pages were assembled."),
    ("memory/pgscan_proactive", "1", Counter, "Pages scanned by reclaim on request."),
    ("memory/pgsteal_kswapd", "1", Counter, "Pages reclaimed by the background reclaimer."),
    ("memory/pgsteal_direct", "1", Counter, "Pages reclaimed by programs that had to reclaim memory themselves."),
    ("memory/pgsteal_khugepaged", "1", Counter, "Pages reclaimed while huge pages were assembled."),
    ("memory/pgsteal_proactive", "1", Counter, "Pages reclaimed on request."),
    ("memory/pgrefill", "1", Counter, "Active pages scanned to make some inactive."),
    ("memory/pgactivate", "1", Counter, "Pages made active."),
    ("memory/pgdeactivate", "1", Counter, "Pages made inactive."),
    ("memory/pglazyfree", "1", Counter, "Pages that programs gave up for when memory gets short."),
    ("memory/pglazyfreed", "1", Counter, "Pages given up before that were taken."),
    ("memory/pgdemote_kswapd", "1", Counter, "Pages moved to slower memory by the background reclaimer."),
    ("memory/pgdemote_direct", "1", Counter, "Pages moved to slower memory by programs that had to reclaim memory."),
    ("memory/pgdemote_khugepaged", "1", Counter, "Pages moved to slower memory while huge pages were assembled."),
    ("memory/pgdemote_proactive", "1", Counter, "Pages moved to slower memory by reclaim on request."),
    ("memory/pgpromote_success", "1", Counter, "Pages moved to faster memory."),
    ("memory/swpin_zero", "1", Counter, "Pages of zeros swapped in without I/O."),
    ("memory/swpout_zero", "1", Counter, "Pages of zeros swapped out without I/O."),
    ("memory/zswpin", "1", Counter, "Pages swapped in from compressed swap."),
    ("memory/zswpout", "1", Counter, "Pages swapped out into compressed swap."),
    ("memory/zswpwb", "1", Counter, "Pages moved from compressed swap to disk."),
    ("memory/thp_fault_alloc", "1", Counter, "Transparent huge pages given at a page fault."),
    ("memory/thp_collapse_alloc", "1", Counter, "Transparent huge pages assembled from small ones."),
    ("memory/thp_swpout", "1", Counter, "Transparent huge pages swapped out whole."),
    ("memory/thp_swpout_fallback", "1", Counter, "Transparent huge pages split to be swapped out."),
    ("memory/numa_pages_migrated", "1", Counter, "Pages moved to another NUMA node by balancing."),
    ("memory/numa_pte_updates", "1", Counter, "Page table entries that balancing marked."),
    ("memory/numa_hint_faults", "1", Counter, "Page faults on marked entries."),
    ("memory/numa_task_migrated", "1", Counter, "Tasks moved to another NUMA node by balancing."),
    ("memory/numa_task_swapped", "1", Counter, "Tasks that changed NUMA nodes with another."),
    ("memory/events/low", "1", Counter, "Times that memory was reclaimed though usage was below the low boundary."),
    ("memory/events/high", "1", Counter, "Times that programs had to reclaim as usage was over the high boundary."),
    ("memory/events/max", "1", Counter, "Times that usage was about to go over the limit."),
    ("memory/events/oom", "1", Counter, "Times that the limit was hit and an allocation was about to fail."),
    ("memory/events/oom_kill", "1", Counter, "Processes killed for lack of memory."),
    ("memory/events/oom_group_kill", "1", Counter, "Times that the whole group was killed for lack of memory."),
    ("memory/events/sock_throttled", "1", Counter, "Times that sockets were slowed down for lack of memory."),
    ("memory/swap_events/high", "1", Counter, "Times that swap was over the high boundary."),
    ("memory/swap_events/max", "1", Counter, "Times that swap was about to go over the limit and the allocation failed."),
    ("memory/swap_events/fail", "1", Counter, "Times that swap could not be had, for the limit or as there was none."),
    ("io/read_bytes", "By", Counter, "Read from block devices, all of them together."),
    ("io/write_bytes", "By", Counter, "Written to block devices, all of them together."),
    ("io/reads", "1", Counter, "Reads of block devices, all of them together."),
    ("io/writes", "1", Counter, "Writes to block devices, all of them together."),
    ("io/discard_bytes", "By", Counter, "Discarded on block devices, all of them together."),
    ("io/discards", "1", Counter, "Discards on block devices, all of them together."),
    ("pids/current", "1", Gauge, "Processes and threads."),
    ("pids/peak", "1", Gauge, "The most processes and threads."),
    ("pids/events/max", "1", Counter, "Forks that failed as the limit of processes and threads was hit."),
];

/// Beginnings of keys of memory.stat that count events. All other keys are gauges in bytes.
const COUNTED: [&str; 9] = ["workingset_", "pg", "pswp", "swp", "zswpin", "zswpout", "zswpwb", "thp_", "numa_"];

/// The sensor of the metric `name`, with a scale to its unit. Unit and kind of an unknown metric are guessed from its parent.
pub fn sensor(name: &str, scale: f64) -> SensorDef {
    let known = METRICS.iter().find(|(known, ..)| *known == name);
    let (unit, kind, text) = known.map_or_else(|| guess(name, scale), |&(_, unit, kind, text)| (unit, kind, text));
    SensorDef { kind, ..SensorDef::gauge(name, unit, text) }.scaled(scale)
}

fn guess(name: &str, scale: f64) -> (&'static str, Kind, &'static str) {
    match name.split_once('/') {
        Some(("memory", key)) if !key.contains('/') && !COUNTED.iter().any(|start| key.starts_with(start)) => {
            ("By", Gauge, "")
        }
        // Only times have a scale.
        _ if scale != 1.0 => ("s", Counter, ""),
        _ => ("1", Counter, ""),
    }
}

/// The name of a metric from a key of the kernel.
pub fn below(parent: &str, key: &str) -> String {
    format!("{parent}/{}", sanitize_level(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_unique_and_has_a_description() {
        for (index, (name, unit, _, text)) in METRICS.iter().enumerate() {
            assert!(METRICS[..index].iter().all(|(other, ..)| other != name), "{name} twice");
            assert!(text.ends_with('.') && ["s", "By", "1"].contains(unit), "{name}");
        }
    }

    #[test]
    fn unknown_metrics_are_guessed() {
        let check = |name: &str, scale, expected: (&str, Kind)| {
            let sensor = sensor(name, scale);
            assert_eq!((sensor.unit.as_str(), sensor.kind), expected, "{name}");
        };
        check("memory/brand_new", 1.0, ("By", Gauge));
        check("memory/pgbrandnew", 1.0, ("1", Counter));
        check("memory/zswap_brand_new", 1.0, ("By", Gauge));
        check("memory/events/brand_new", 1.0, ("1", Counter));
        check("cpu/brand_new", 1e-6, ("s", Counter));
        check("cpu/nr_brand_new", 1.0, ("1", Counter));
    }
}
