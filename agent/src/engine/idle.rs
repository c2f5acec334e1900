//! CPU idle times, from `/proc/stat`.

use std::path::PathBuf;

/// The numbers of a CPU's line that make up its time: user, nice, system, idle, iowait, irq, softirq, steal. The later numbers are included in these.
const TIMES: usize = 8;
/// Idle, and idle while a process waits for a device.
const IDLE: std::ops::Range<usize> = 3..5;

/// A CPU's time since the machine started, in the kernel's ticks (USER_HZ, 10 ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    cpu: usize,
    idle: u64,
    all: u64,
}

/// Measures idle times between two calls.
#[derive(Debug)]
pub struct IdleCpus {
    path: PathBuf,
    last: Vec<CpuTimes>,
}

impl IdleCpus {
    /// Reads the file at this path; nothing is measured yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), last: Vec::new() }
    }

    /// For each CPU, in the order of numbers, the fraction of the time since the last call that it was idle. CPUs without a measurement are left out:
    /// at the first call, without the file, or after they were offline.
    pub fn measure(&mut self) -> Vec<(usize, f64)> {
        let now = std::fs::read(&self.path).map(|text| parse(&text)).unwrap_or_default();
        let before = std::mem::replace(&mut self.last, now);
        let of = |now: &CpuTimes| {
            let then = before.iter().find(|then| then.cpu == now.cpu)?;
            let all = now.all.checked_sub(then.all).filter(|all| *all > 0)?;
            // Some kernels decrease the time that waited for a device.
            Some((now.cpu, (now.idle.saturating_sub(then.idle) as f64 / all as f64).min(1.0)))
        };
        self.last.iter().filter_map(of).collect()
    }
}

/// The lines of single CPUs; other lines are skipped.
fn parse(text: &[u8]) -> Vec<CpuTimes> {
    let text = String::from_utf8_lossy(text);
    let of = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = words.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
        let times: Vec<u64> = words.take(TIMES).map_while(|word| word.parse().ok()).collect();
        Some(CpuTimes { cpu, idle: times.get(IDLE)?.iter().sum(), all: times.iter().sum() })
    };
    text.lines().take_while(|line| line.starts_with("cpu")).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_was_idle_between_two_looks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        let mut idle = IdleCpus::new(&path);
        assert_eq!(idle.measure(), [], "no file");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu2 5 5 5 50 5 5 5 5 7 7\nintr 1 cpu3\n");
        assert_eq!(idle.measure(), [], "the first measurement");
        // CPU 2 was idle for 10 of 40 ticks, CPU 1 is new, and for CPU 0 no time has passed.
        write("cpu  0 0 0 0\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu1 1 1 1 1 1 1 1 1\ncpu2 15 5 25 56 9 5 5 5 99 7\n");
        assert_eq!(idle.measure(), [(2, 0.25)]);
        write("cpu0 10 0 10 120 0 0 0 0\ncpu1 1 1 11 1 1 1 1 1\ncpu2 1\n");
        assert_eq!(idle.measure(), [(0, 1.0), (1, 0.0)]);
        write("");
        assert_eq!(idle.measure(), []);
    }

    #[test]
    fn this_machines_account_is_understood() {
        let parsed = parse(&std::fs::read("/proc/stat").unwrap());
        assert!(
            !parsed.is_empty() && parsed.iter().all(|times| times.all > 0 && times.idle <= times.all),
            "{parsed:?}"
        );
    }
}
