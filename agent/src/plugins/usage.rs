//! Whether a plug-in keeps to its bounds of CPU time, memory and processes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use wholegrain_model::size::ByteSize;

use super::config::PluginConfig;
use super::process_tree;

/// The time over which CPU time is averaged: 10 s.
const WINDOW: Duration = Duration::from_secs(10);

/// Looks at the processes of a plug-in from time to time.
pub(super) struct UsageWatch {
    cpu_percent_max: u32,
    memory_bytes_max: u64,
    /// With the first process.
    processes_max: usize,
    since: Instant,
    ticks: u64,
}

impl UsageWatch {
    /// Begins to count now.
    pub fn new(config: &PluginConfig, is_script: bool) -> Self {
        Self {
            cpu_percent_max: config.cpu_percent_max,
            memory_bytes_max: config.memory_bytes_max.0,
            processes_max: 1 + usize::from(is_script) + config.processes_max as usize,
            since: Instant::now(),
            ticks: 0,
        }
    }

    /// The bound that the processes below `supervisor` exceed.
    pub fn exceeded(&mut self, supervisor: u32) -> Option<String> {
        let processes = process_tree::below(supervisor);
        if processes.len() > self.processes_max {
            return Some(format!("it has {} processes; at most {}", processes.len(), self.processes_max));
        }
        // The supervisor has the CPU time of processes that ended without a parent.
        let (mut ticks, mut pages) = (process_tree::usage(supervisor).map_or(0, |(ticks, _)| ticks), 0);
        let mut files = HashSet::new();
        let in_files: u64 = processes.iter().map(|pid| process_tree::file_bytes(*pid, &mut files)).sum();
        for (cpu, memory) in processes.iter().filter_map(|pid| process_tree::usage(*pid)) {
            ticks += cpu;
            pages += memory;
        }
        // SAFETY: constants of the system.
        let (per_second, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
        let bytes = pages * page as u64 + in_files;
        if bytes > self.memory_bytes_max {
            return Some(format!("it uses {} of memory; at most {}", ByteSize(bytes), ByteSize(self.memory_bytes_max)));
        }
        let elapsed = self.since.elapsed();
        if elapsed < WINDOW {
            return None;
        }
        let used = ticks.saturating_sub(self.ticks) as f64 / per_second as f64;
        let percent = used / elapsed.as_secs_f64() * 100.0;
        (self.since, self.ticks) = (Instant::now(), ticks);
        (percent > f64::from(self.cpu_percent_max)).then(|| {
            format!("it used {percent:.0} % of a CPU for {} s; at most {} %", elapsed.as_secs(), self.cpu_percent_max)
        })
    }
}
