//! The files of a job's directories, and the metrics of their keys.
//!
//! Sources: Documentation/admin-guide/cgroup-v2.rst, Documentation/admin-guide/cgroup-v1/{cpuacct,memory,blkio-controller,
//! pids}.rst, Documentation/scheduler/sched-bwc.rst.

use wholegrain_model::SensorDef;

use super::io::IoLayout;
use super::metrics::{below, sensor};

/// A file in the directories of jobs.
pub struct CgroupFile {
    /// The controller of version 1; `None` for the unified hierarchy.
    pub controller: Option<&'static str>,
    /// The name of the file in messages: in version 1 with `v1/` before it.
    pub what: &'static str,
    pub format: FileFormat,
    /// The feature of the kernel that adds the file, if the file may be missing and no other file has its metrics.
    pub needs: Option<&'static str>,
}

/// The format of a file.
#[derive(Clone, Copy)]
pub enum FileFormat {
    /// One number, with its metric and scale.
    Number(&'static str, f64),
    /// One number of nanoseconds, which the sensor gives in microseconds. A metric has one scale in both versions, as the directories of a job in the
    /// two versions come and go independently, and readings are stored in the scale of their sensor.
    Nanoseconds(&'static str),
    /// Lines of a key and a number, with the metric of each key.
    Keys(fn(&str) -> Option<SensorDef>),
    /// Pressure stall information of a resource.
    Pressure(&'static str),
    /// Counters of block devices.
    Io(IoLayout),
}

impl CgroupFile {
    /// The name of the file in its directory.
    pub fn name(&self) -> &'static str {
        self.what.strip_prefix("v1/").unwrap_or(self.what)
    }
}

/// All files. Of several files with the same metric the preferred one is first: controllers of version 1, then the unified hierarchy.
#[rustfmt::skip]
pub const FILES: &[CgroupFile] = &[
    v1("cpuacct", "v1/cpuacct.usage", FileFormat::Nanoseconds("cpu/usage"), None),
    v1("cpuacct", "v1/cpuacct.usage_user", FileFormat::Nanoseconds("cpu/user"), None),
    v1("cpuacct", "v1/cpuacct.usage_sys", FileFormat::Nanoseconds("cpu/system"), None),
    v1("cpuacct", "v1/cpuacct.stat", FileFormat::Keys(cpuacct_stat), None),
    v1("cpu", "v1/cpu.stat", FileFormat::Keys(cpu_v1), None),
    v1("memory", "v1/memory.usage_in_bytes", FileFormat::Number("memory/usage", 1.0), None),
    v1("memory", "v1/memory.max_usage_in_bytes", FileFormat::Number("memory/peak", 1.0), None),
    v1("memory", "v1/memory.stat", FileFormat::Keys(memory_v1), None),
    v1("memory", "v1/memory.failcnt", FileFormat::Number("memory/events/max", 1.0), None),
    v1("memory", "v1/memory.oom_control", FileFormat::Keys(oom_control), None),
    v1("memory", "v1/memory.memsw.usage_in_bytes", FileFormat::Number("memory/memsw", 1.0), Some("swapaccount=1")),
    v1("memory", "v1/memory.memsw.max_usage_in_bytes", FileFormat::Number("memory/memsw_peak", 1.0), Some("swapaccount=1")),
    v1("memory", "v1/memory.memsw.failcnt", FileFormat::Number("memory/memsw_failures", 1.0), Some("swapaccount=1")),
    v1("memory", "v1/memory.kmem.usage_in_bytes", FileFormat::Number("memory/kernel", 1.0), Some("CONFIG_MEMCG_KMEM")),
    v1("memory", "v1/memory.kmem.max_usage_in_bytes", FileFormat::Number("memory/kernel_peak", 1.0), Some("CONFIG_MEMCG_KMEM")),
    v1("memory", "v1/memory.kmem.failcnt", FileFormat::Number("memory/kernel_failures", 1.0), Some("CONFIG_MEMCG_KMEM")),
    v1("memory", "v1/memory.kmem.tcp.usage_in_bytes", FileFormat::Number("memory/sock", 1.0), Some("CONFIG_MEMCG_KMEM")),
    v1("blkio", "v1/blkio.throttle.io_service_bytes_recursive", FileFormat::Io(IoLayout::Bytes), None),
    v1("blkio", "v1/blkio.throttle.io_serviced_recursive", FileFormat::Io(IoLayout::Operations), None),
    v1("blkio", "v1/blkio.throttle.io_service_bytes", FileFormat::Io(IoLayout::Bytes), None),
    v1("blkio", "v1/blkio.throttle.io_serviced", FileFormat::Io(IoLayout::Operations), None),
    v1("pids", "v1/pids.current", FileFormat::Number("pids/current", 1.0), None),
    v1("pids", "v1/pids.peak", FileFormat::Number("pids/peak", 1.0), Some("Linux 6.1")),
    v1("pids", "v1/pids.events", FileFormat::Keys(pids_events), None),
    v2("cpu.stat", FileFormat::Keys(cpu_v2), None),
    v2("memory.current", FileFormat::Number("memory/usage", 1.0), None),
    v2("memory.peak", FileFormat::Number("memory/peak", 1.0), Some("Linux 5.19")),
    v2("memory.stat", FileFormat::Keys(memory_v2), None),
    v2("memory.events", FileFormat::Keys(memory_events), None),
    v2("memory.swap.current", FileFormat::Number("memory/swap", 1.0), Some("CONFIG_SWAP")),
    v2("memory.swap.peak", FileFormat::Number("memory/swap_peak", 1.0), Some("Linux 6.5")),
    v2("memory.swap.events", FileFormat::Keys(swap_events), Some("CONFIG_SWAP")),
    v2("io.stat", FileFormat::Io(IoLayout::Unified), None),
    v2("pids.current", FileFormat::Number("pids/current", 1.0), None),
    v2("pids.peak", FileFormat::Number("pids/peak", 1.0), Some("Linux 6.1")),
    v2("pids.events", FileFormat::Keys(pids_events), None),
    v2("cpu.pressure", FileFormat::Pressure("cpu"), Some("PSI: CONFIG_PSI, and psi=1 where it is off by default")),
    v2("memory.pressure", FileFormat::Pressure("memory"), Some("PSI: CONFIG_PSI, and psi=1 where it is off by default")),
    v2("io.pressure", FileFormat::Pressure("io"), Some("PSI: CONFIG_PSI, and psi=1 where it is off by default")),
];

const fn v1(
    controller: &'static str,
    what: &'static str,
    format: FileFormat,
    needs: Option<&'static str>,
) -> CgroupFile {
    CgroupFile { controller: Some(controller), what, format, needs }
}

const fn v2(what: &'static str, format: FileFormat, needs: Option<&'static str>) -> CgroupFile {
    CgroupFile { controller: None, what, format, needs }
}

/// Only for kernels without `usage_user` and `usage_sys`, as this file counts ticks.
fn cpuacct_stat(key: &str) -> Option<SensorDef> {
    // SAFETY: sysconf only returns a number.
    let ticks_hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_s = if ticks_hz > 0 { 1.0 / ticks_hz as f64 } else { 0.01 };
    match key {
        "user" | "system" => Some(sensor(&below("cpu", key), tick_s)),
        _ => None,
    }
}

fn cpu_v1(key: &str) -> Option<SensorDef> {
    Some(match key {
        "throttled_time" => sensor("cpu/throttled_time", 1e-9),
        "burst_time" => sensor("cpu/burst_time", 1e-9),
        _ => cpu_count(key),
    })
}

fn cpu_v2(key: &str) -> Option<SensorDef> {
    Some(match key.strip_suffix("_usec") {
        Some("throttled") => sensor("cpu/throttled_time", 1e-6),
        Some("burst") => sensor("cpu/burst_time", 1e-6),
        Some("core_sched.force_idle") => sensor("cpu/force_idle", 1e-6),
        Some(time) => sensor(&below("cpu", time), 1e-6),
        None => cpu_count(key),
    })
}

fn cpu_count(key: &str) -> SensorDef {
    match key {
        "nr_periods" => sensor("cpu/periods", 1.0),
        "nr_throttled" => sensor("cpu/throttled_periods", 1.0),
        "nr_bursts" => sensor("cpu/bursts", 1.0),
        _ => sensor(&below("cpu", key), 1.0),
    }
}

fn memory_v2(key: &str) -> Option<SensorDef> {
    Some(sensor(&below("memory", key), 1.0))
}

/// Keys that begin with `total_` count the job with all directories below it. The others count only processes in the directory itself and are left
/// out.
fn memory_v1(key: &str) -> Option<SensorDef> {
    let name = match key {
        "hierarchical_memory_limit" => "limit",
        "hierarchical_memsw_limit" => "memsw_limit",
        _ => match key.strip_prefix("total_")? {
            "cache" => "file",
            "rss" => "anon",
            "rss_huge" => "anon_thp",
            "mapped_file" => "file_mapped",
            "dirty" => "file_dirty",
            "writeback" => "file_writeback",
            key => key,
        },
    };
    memory_v2(name)
}

fn memory_events(key: &str) -> Option<SensorDef> {
    Some(sensor(&below("memory/events", key), 1.0))
}

fn swap_events(key: &str) -> Option<SensorDef> {
    Some(sensor(&below("memory/swap_events", key), 1.0))
}

fn oom_control(key: &str) -> Option<SensorDef> {
    match key {
        "oom_kill" => memory_events(key),
        "under_oom" => memory_v2(key),
        _ => None,
    }
}

fn pids_events(key: &str) -> Option<SensorDef> {
    Some(sensor(&below("pids/events", key), 1.0))
}
