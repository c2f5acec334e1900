//! The machine: what it is, in general terms; and whether it is quiet.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The machine as a report has it: no names, no paths.
pub fn description(hosts: usize) -> Value {
    let cpu = read("/proc/cpuinfo");
    let of_cpu = |key: &str| {
        let line = cpu.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let memory_kb = read("/proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<f64>().ok());
    let system = "/sys/devices/system";
    let first = |path: &str| Some(read(path).trim().to_owned()).filter(|text| !text.is_empty());
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "model": of_cpu("model name").map(|name| general(&name)),
        "architecture": std::env::consts::ARCH,
        "memory_gib": memory_kb.map(|kb| (kb / f64::from(1 << 20) * 10.0).round() / 10.0),
        "kernel": read("/proc/sys/kernel/osrelease").split('-').next().map(str::trim),
        "distribution": distribution(),
        "mpi": first_line("mpirun", "--version"),
        "compiler": first_line("mpicc", "--version").or_else(|| first_line("cc", "--version")),
        "virtualised": of_cpu("flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        "clock_source": first(&format!("{system}/clocksource/clocksource0/current_clocksource")),
        "governor": first(&format!("{system}/cpu/cpu0/cpufreq/scaling_governor")),
        "cgroup_versions": cgroup_versions(&read("/proc/self/mounts")),
        "hosts": hosts,
    })
}

/// A processor's name without marks of trade.
fn general(name: &str) -> String {
    let plain =
        ["(R)", "(TM)", "(tm)", " CPU", " Processor"].iter().fold(name.to_owned(), |n, mark| n.replace(mark, ""));
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn distribution() -> Option<String> {
    let text = read("/etc/os-release");
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Which versions of cgroups are mounted.
fn cgroup_versions(mounts: &str) -> Vec<u8> {
    let kinds: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    [("cgroup", 1), ("cgroup2", 2)]
        .iter()
        .filter(|(kind, _)| kinds.contains(kind))
        .map(|(_, version)| *version)
        .collect()
}

fn first_line(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What all processes but this one have used of the processors so far.
pub struct Load {
    at: Instant,
    processes: BTreeMap<i32, u64>,
    /// The kernel's sum of everything that runs, in ticks of 10 ms; other containers of this machine are in it.
    busy_ticks: u64,
}

/// Ticks of the kernel's sum that say nothing: it is counted when the clock ticks, for whoever runs then.
const TICKS_IN_DOUBT: u64 = 2;
/// How long one of them is.
const TICK: Duration = Duration::from_millis(10);

impl Load {
    /// Now.
    pub fn now() -> Self {
        let own = std::process::id() as i32;
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let processes = pids.filter(|pid| *pid != own).filter_map(|pid| Some((pid, cpu_ns(pid)?))).collect();
        let stat = read("/proc/stat");
        let numbers: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .map_while(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq: all but idle and iowait.
        let busy_ticks =
            numbers.iter().take(7).enumerate().filter(|(at, _)| ![3, 4].contains(at)).map(|(_, n)| n).sum();
        Self { at: Instant::now(), processes, busy_ticks }
    }

    /// What others have used since, in percent of one core: of the processes that can be seen, to the nanosecond; or by the
    /// kernel's coarser sum where that is beyond doubt more.
    pub fn percent_since(&self, before: &Load) -> f64 {
        let window = self.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let used =
            self.processes.iter().map(|(pid, ns)| ns.saturating_sub(before.processes.get(pid).copied().unwrap_or(*ns)));
        let seen = used.sum::<u64>() as f64 / 1e9;
        let ticks = self.busy_ticks.saturating_sub(before.busy_ticks).saturating_sub(TICKS_IN_DOUBT);
        seen.max(ticks as f64 * TICK.as_secs_f64()) / window * 100.0
    }
}

/// Processor time of a process, all of its threads.
fn cpu_ns(pid: i32) -> Option<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both out-pointers are to live variables of the right type.
    let failed =
        unsafe { libc::clock_getcpuclockid(pid, &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0 };
    (!failed).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_told_in_general_terms() {
        assert_eq!(general("Intel(R) Xeon(R) Processor @ 2.10GHz"), "Intel Xeon @ 2.10GHz");
        assert_eq!(cgroup_versions("a /a cgroup2 rw 0 0\nb /b tmpfs rw 0 0\n"), [2]);
        assert_eq!(cgroup_versions("a /a cgroup2 rw 0 0\nb /b cgroup rw,cpu 0 0\n"), [1, 2]);
        let machine = description(1);
        assert!(machine["cores"].as_u64() > Some(0) && machine["memory_gib"].as_f64() > Some(0.0), "{machine}");
        let host = read("/proc/sys/kernel/hostname");
        assert!(!machine.to_string().contains(host.trim()), "{machine} names the machine");
    }

    #[test]
    fn what_another_process_uses_is_seen() {
        let before = Load::now();
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let begun = Instant::now();
        // Its own processor time, not the clock's, ends the wait: the machine may be busy.
        while cpu_ns(child.id() as i32).unwrap_or(0) < 100_000_000 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let middle = Load::now();
        while cpu_ns(child.id() as i32).unwrap_or(0) < 200_000_000 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = Load::now();
        child.kill().unwrap();
        child.wait().unwrap();
        let at_least = 0.1 / after.at.duration_since(middle.at).as_secs_f64() * 100.0;
        let seen = after.percent_since(&middle);
        assert!(seen >= at_least * 0.9, "{seen} % of a core, less than {at_least} %");
        // One that began within the window has not been seen before: only the kernel's sum has it.
        assert!(middle.percent_since(&before) > 0.0);
    }
}
