//! The resources that a job has used so far, read from its cgroups without the sources, so that a job that ends before its first sample has totals
//! too.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use wholegrain_sources::descriptors::{self, Descriptor, Quota};
use wholegrain_sources::job::JobCgroups;

use super::live::{JobKey, TotalsByMetric};

/// The most descriptors that stay open; further jobs' files are opened for each read.
pub const FILES_MAX: usize = 512;
/// At most this part of the jobs' descriptors.
const FILES_SHARE: usize = 4;
/// The longest file, in bytes: `io.stat` has a line for each device.
const FILE_BYTES_MAX: usize = 32 * 1024;

/// Parses a file into totals.
type TotalsParser = fn(&str, &mut TotalsByMetric);

/// The files of the unified hierarchy.
const V2: &[(&str, TotalsParser)] = &[
    ("cpu.stat", cpu_stat),
    ("memory.peak", memory_peak),
    ("memory.current", memory_peak),
    ("memory.events", memory_events),
    ("io.stat", io_stat),
    ("pids.peak", pids_peak),
    ("pids.current", pids_peak),
];

/// The files of version 1 hierarchies, by controller.
const V1: &[(&str, &str, TotalsParser)] = &[
    ("cpuacct", "cpuacct.usage", cpuacct_usage),
    // In clock ticks, for kernels without the two after it.
    ("cpuacct", "cpuacct.stat", cpuacct_stat),
    ("cpuacct", "cpuacct.usage_user", cpuacct_user),
    ("cpuacct", "cpuacct.usage_sys", cpuacct_sys),
    ("memory", "memory.max_usage_in_bytes", memory_peak),
    ("memory", "memory.oom_control", memory_events),
    ("blkio", "blkio.throttle.io_service_bytes_recursive", blkio_bytes),
    ("pids", "pids.current", pids_peak),
];

/// A job's directory, and its files with their parsers and indexes.
type OpenFiles = (JobCgroups, Vec<(File, TotalsParser)>, Vec<Descriptor>);

/// The open files of running jobs.
#[derive(Default)]
pub struct TotalsFiles {
    open: HashMap<JobKey, OpenFiles>,
    count: usize,
    buffer: Vec<u8>,
}

impl TotalsFiles {
    /// Reads the totals of a job; unreadable ones are left out. The error of a file that exists and could not be opened is returned too.
    pub fn read(&mut self, key: &JobKey, cgroups: &JobCgroups) -> (TotalsByMetric, Option<io::Error>) {
        let mut totals = TotalsByMetric::new();
        if let Some((known, files, _)) = self.open.get(key)
            && same_directories(known, cgroups)
        {
            for (file, parse) in files {
                parse_file(file, *parse, &mut self.buffer, &mut totals);
            }
            return (totals, None);
        }
        self.forget(key);
        let (files, error) = open(cgroups);
        for (file, parse) in &files {
            parse_file(file, *parse, &mut self.buffer, &mut totals);
        }
        // Files that could not be opened for lack of descriptors may be at the next read.
        let most = FILES_MAX.min(descriptors::bounds().0 / FILES_SHARE);
        if error.is_none() && !files.is_empty() && self.count + files.len() <= most {
            let quota = Quota::of(None);
            let taken: Vec<Descriptor> = files.iter().map_while(|_| quota.take()).collect();
            if taken.len() == files.len() {
                self.count += files.len();
                self.open.insert(key.clone(), (cgroups.clone(), files, taken));
            }
        }
        (totals, error)
    }

    /// Reads the totals of one directory without keeping its files open.
    pub fn read_directory(&mut self, cgroups: &JobCgroups, path: &Path) -> TotalsByMetric {
        let v1 = cgroups.v1.iter().filter(|(_, of)| *of == path).map(|(name, of)| (name.clone(), of.clone()));
        let v2 = cgroups.v2.clone().filter(|of| of == path);
        let mut totals = TotalsByMetric::new();
        for (file, parse) in open(&JobCgroups { v1: v1.collect(), v2, ..JobCgroups::default() }).0 {
            parse_file(&file, parse, &mut self.buffer, &mut totals);
        }
        totals
    }

    /// Closes the files of an ended job.
    pub fn forget(&mut self, key: &JobKey) {
        if let Some((_, files, _)) = self.open.remove(key) {
            self.count -= files.len();
        }
    }

    pub fn retain(&mut self, keep: impl Fn(&JobKey) -> bool) {
        self.open.retain(|key, _| keep(key));
        self.open.shrink_to(self.open.len() * 2);
        self.count = self.open.values().map(|(_, files, _)| files.len()).sum();
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }
}

fn same_directories(a: &JobCgroups, b: &JobCgroups) -> bool {
    (&a.v1, &a.v2) == (&b.v1, &b.v2)
}

fn open(cgroups: &JobCgroups) -> (Vec<(File, TotalsParser)>, Option<io::Error>) {
    let v1 = V1.iter().filter_map(|(controller, name, parse)| Some((cgroups.v1(controller)?.join(name), *parse)));
    let v2 = V2.iter().filter_map(|(name, parse)| Some((cgroups.v2.as_ref()?.join(name), *parse)));
    let all: Vec<(PathBuf, TotalsParser)> = v1.chain(v2).collect();
    let (mut files, mut problem) = (Vec::with_capacity(all.len()), None);
    for (path, parse) in all {
        match File::open(&path) {
            Ok(file) => files.push((file, parse)),
            // The controller does not exist here, or the job has ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(error) => {
                problem = Some(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
            }
        }
    }
    (files, problem)
}

fn parse_file(file: &File, parse: TotalsParser, buffer: &mut Vec<u8>, totals: &mut TotalsByMetric) {
    buffer.resize(FILE_BYTES_MAX, 0);
    // A removed cgroup gives ENODEV.
    if let Ok(length) = file.read_at(buffer, 0)
        && let Ok(text) = std::str::from_utf8(&buffer[..length])
    {
        parse(text, totals);
    }
}

fn number(text: &str) -> Option<f64> {
    // `max` and other words are no numbers.
    text.trim().parse::<u64>().ok().map(|value| value as f64)
}

/// The greater of two files' values: neither file counted while it did not exist.
fn put(totals: &mut TotalsByMetric, name: &'static str, value: Option<f64>) {
    if let Some(value) = value {
        let old = totals.entry(name).or_insert(value);
        *old = old.max(value);
    }
}

fn keyed<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}

fn cpu_stat(text: &str, totals: &mut TotalsByMetric) {
    for (key, name) in [("usage_usec", "cpu/usage"), ("user_usec", "cpu/user"), ("system_usec", "cpu/system")] {
        put(totals, name, keyed(text, key).and_then(number).map(|us| us / 1e6));
    }
}

fn cpuacct_usage(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "cpu/usage", number(text).map(|ns| ns / 1e9));
}

fn cpuacct_user(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "cpu/user", number(text).map(|ns| ns / 1e9));
}

fn cpuacct_sys(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "cpu/system", number(text).map(|ns| ns / 1e9));
}

fn cpuacct_stat(text: &str, totals: &mut TotalsByMetric) {
    // SAFETY: queries a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    put(totals, "cpu/user", keyed(text, "user").and_then(number).map(|count| count / ticks));
    put(totals, "cpu/system", keyed(text, "system").and_then(number).map(|count| count / ticks));
}

fn memory_peak(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "memory/peak", number(text));
}

fn pids_peak(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "pids/peak", number(text));
}

fn memory_events(text: &str, totals: &mut TotalsByMetric) {
    put(totals, "memory/events/oom_kill", keyed(text, "oom_kill").and_then(number));
}

/// `8:0 rbytes=1 wbytes=2 rios=3 …`, a line for each device.
fn io_stat(text: &str, totals: &mut TotalsByMetric) {
    let sum = |key: &str| {
        let fields = text.split_whitespace().filter_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        fields.filter_map(number).fold(0.0, |sum, value| sum + value)
    };
    put(totals, "io/read_bytes", Some(sum("rbytes")));
    put(totals, "io/write_bytes", Some(sum("wbytes")));
}

/// `8:0 Read 1`, lines for each device and kind, and `Total 2` at the end.
fn blkio_bytes(text: &str, totals: &mut TotalsByMetric) {
    let sum = |kind: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(' ')?.1.strip_prefix(kind)?.strip_prefix(' '));
        lines.filter_map(number).fold(0.0, |sum, value| sum + value)
    };
    put(totals, "io/read_bytes", Some(sum("Read")));
    put(totals, "io/write_bytes", Some(sum("Write")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(parse: TotalsParser, text: &str, expected: &[(&'static str, f64)]) {
        let mut totals = TotalsByMetric::new();
        parse(text, &mut totals);
        assert_eq!(totals, expected.iter().copied().collect(), "{text}");
    }

    #[test]
    fn what_the_kernel_writes() {
        check(
            cpu_stat,
            "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 0\n",
            &[("cpu/usage", 1.5), ("cpu/user", 1.0), ("cpu/system", 0.5)],
        );
        check(cpuacct_usage, "2500000000\n", &[("cpu/usage", 2.5)]);
        check(cpuacct_stat, "user 150\nsystem 50\n", &[("cpu/user", 1.5), ("cpu/system", 0.5)]);
        check(memory_peak, "4096\n", &[("memory/peak", 4096.0)]);
        check(memory_peak, "max\n", &[]);
        check(
            memory_events,
            "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
            &[("memory/events/oom_kill", 2.0)],
        );
        check(memory_events, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", &[("memory/events/oom_kill", 1.0)]);
        check(
            io_stat,
            "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2\n",
            &[("io/read_bytes", 11.0), ("io/write_bytes", 22.0)],
        );
        check(
            blkio_bytes,
            "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\n8:16 Read 5\nTotal 35\n",
            &[("io/read_bytes", 15.0), ("io/write_bytes", 20.0)],
        );
        check(cpu_stat, "", &[]);
        let mut totals = TotalsByMetric::new();
        io_stat("", &mut totals);
        assert!(totals.values().all(|total| total.is_sign_positive()), "no -0: {totals:?}");
    }

    #[test]
    fn descriptors_are_bounded_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cpu.stat", "memory.peak", "memory.current"] {
            std::fs::write(dir.path().join(name), "7\n").unwrap();
        }
        let cgroups = JobCgroups { v2: Some(dir.path().to_owned()), ..JobCgroups::default() };
        let key = |n: usize| JobKey {
            manager: "m".into(),
            instance: "".into(),
            job: n.to_string().into(),
            ..JobKey::default()
        };
        let mut files = TotalsFiles::default();
        for n in 0..FILES_MAX {
            assert_eq!(files.read(&key(n), &cgroups).0["memory/peak"], 7.0);
        }
        assert_eq!(files.count(), FILES_MAX / 3 * 3);
        (0..FILES_MAX).for_each(|n| files.forget(&key(n)));
        assert_eq!((files.count(), files.open.len()), (0, 0));
    }
}
