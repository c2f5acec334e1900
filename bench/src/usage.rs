//! The use of a process in the kernel's account, and its growth.

use std::collections::BTreeMap;

use wholegrain_testing::Process;

use crate::report::{line, quantile};

/// Memory counts as flat when it grows by less than this part of its mean over the last two thirds of a run.
const FLAT_PART: f64 = 0.1;

/// Resident memory, second by second.
#[derive(Default)]
pub struct Memory {
    /// Pairs of seconds and MB.
    samples: Vec<(f64, f64)>,
}

impl Memory {
    pub fn look(&mut self, seconds: f64, process: &Process) {
        self.samples.push((seconds, process.status_kb("VmRSS") as f64 / 1e3));
    }

    pub fn max_mb(&self) -> f64 {
        self.samples.iter().map(|(_, mb)| *mb).fold(0.0, f64::max)
    }

    /// The last two thirds: before, caches and queues fill.
    fn after_warm_up(&self) -> &[(f64, f64)] {
        &self.samples[self.samples.len() / 3..]
    }

    /// Growth in MB a minute over the last two thirds of the run: the slope of the line that fits best.
    pub fn slope_mb_per_min(&self) -> f64 {
        let after_warm_up = self.after_warm_up();
        let count = after_warm_up.len() as f64;
        let (x, y) =
            after_warm_up.iter().fold((0.0, 0.0), |(x, y), sample| (x + sample.0 / count, y + sample.1 / count));
        let (mut above, mut below) = (0.0, 0.0);
        for (second, mb) in after_warm_up {
            above += (second - x) * (mb - y);
            below += (second - x) * (second - x);
        }
        if below == 0.0 { 0.0 } else { 60.0 * above / below }
    }

    /// Whether the growth in the last two thirds is small compared with the size.
    pub fn is_flat(&self) -> bool {
        let after_warm_up = self.after_warm_up();
        let minutes =
            after_warm_up.last().zip(after_warm_up.first()).map_or(0.0, |(last, first)| (last.0 - first.0) / 60.0);
        let values: Vec<f64> = after_warm_up.iter().map(|(_, mb)| *mb).collect();
        self.slope_mb_per_min() * minutes <= FLAT_PART * quantile(&values, 0.5)
    }

    pub fn tell(&self) {
        line("server's resident memory, largest, MB", format!("{:.0}", self.max_mb()), "");
        let verdict = if self.is_flat() { "flat: reached" } else { "flat: missed" };
        line("its growth over the last two thirds, MB/min", format!("{:+.1}", self.slope_mb_per_min()), verdict);
    }

    /// For the file of results: MB at each second.
    pub fn json(&self) -> serde_json::Value {
        let each: Vec<f64> = self.samples.iter().map(|(_, mb)| *mb).collect();
        serde_json::json!({ "max_mb": self.max_mb(), "slope_mb_per_min": self.slope_mb_per_min(), "flat": self.is_flat(),
                            "mb_each_second": each })
    }
}

/// Processor time of a process's threads by their names, s. Threads that have ended are not there.
pub fn cpu_by_thread(pid: u32) -> BTreeMap<String, f64> {
    // SAFETY: sysconf takes a number and gives a number back.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let mut used = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { continue };
        // utime and stime are fields 14 and 15; `rest` begins with field 3.
        let fields: Vec<f64> = rest.split_whitespace().skip(11).take(2).filter_map(|f| f.parse().ok()).collect();
        *used.entry(name.to_owned()).or_default() += fields.iter().sum::<f64>() / ticks;
    }
    used
}

/// Lets this process open as many files as it may.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write one rlimit, which `limit` is.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(mb: impl Fn(f64) -> f64) -> Memory {
        Memory { samples: (0..300).map(|second| (f64::from(second), mb(f64::from(second)))).collect() }
    }

    #[test]
    fn growth_is_seen_and_a_warm_start_forgiven() {
        let flat = memory(|second| if second < 60.0 { second } else { 100.0 + (second % 7.0) });
        assert!(flat.is_flat() && flat.slope_mb_per_min().abs() < 1.0, "{}", flat.slope_mb_per_min());
        assert_eq!(flat.max_mb(), 106.0);
        let grows = memory(|second| 100.0 + second / 2.0);
        assert!((grows.slope_mb_per_min() - 30.0).abs() < 0.01);
        assert!(!grows.is_flat());
        assert!(Memory::default().is_flat());
    }
}
