//! What the plug-in costs: `cargo run -p wholegrain-plugin-ebpf --example cost [SECONDS]`, as root.
//!
//! Each program's calls and time in the kernel (`kernel.bpf_stats_enabled`, set for that time), and the CPU time of one read of all groups.

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_plugin_ebpf::SOURCE;
use wholegrain_sources::{ConfigureContext, GroupPlan, Row};

/// Switches the kernel's statistics of programs on.
const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Reads between two measurements of CPU time.
const READS: u32 = 200;

/// The CPU time of this process in ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the kernel counts of a program.
struct ProgramRuns {
    name: String,
    runs: u64,
    ns: u64,
}

/// The programs of the plug-in that are loaded on this machine.
fn programs() -> Result<Vec<ProgramRuns>, Box<dyn Error>> {
    let mut all = Vec::new();
    for program in aya::programs::loaded_programs() {
        let program = program?;
        let name = program.name_as_str().unwrap_or_default().to_owned();
        if !name.starts_with("on_") {
            continue;
        }
        let descriptor = program.fd()?;
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
        let number = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
            line.and_then(|line| line.parse().ok()).unwrap_or(0)
        };
        all.push(ProgramRuns { name, runs: number("run_cnt"), ns: number("run_time_ns") });
    }
    Ok(all)
}

fn read_all(groups: &mut [GroupPlan], show: bool) {
    for group in groups {
        let count = group.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        group.reader.read(&mut row);
        for (index, sensor) in group.sensors.iter().enumerate().filter(|_| show) {
            if let Some(value) = row.int(index).filter(|value| *value > 0) {
                println!("{} {} {}", sensor.name, value as f64 * sensor.scale, sensor.unit);
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let document = Document::new("cost", "[plugins.ebpf]\n");
    let section = document.root().child("plugins").child("ebpf");
    let begin = Instant::now();
    let mut source = (SOURCE.configure)(&section, &ConfigureContext::default())?;
    let mut groups = source.discover(&mut |text| eprintln!("{text}"));
    println!("load: {:.0} ms, {:.0} ms of CPU", begin.elapsed().as_secs_f64() * 1e3, cpu_ns() as f64 / 1e6);
    let cpu = cpu_ns();
    for _ in 0..READS {
        read_all(&mut groups, false);
    }
    println!("read: {:.1} us of CPU for {} groups", (cpu_ns() - cpu) as f64 / 1e3 / f64::from(READS), groups.len());
    let was = std::fs::read_to_string(STATS)?;
    std::fs::write(STATS, "1")?;
    let (before, begin) = (programs()?, Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let (after, elapsed) = (programs()?, begin.elapsed().as_secs_f64());
    std::fs::write(STATS, was.trim())?;
    for (after, before) in after.iter().zip(&before) {
        let (name, runs, ns) = (&after.name, after.runs - before.runs, after.ns - before.ns);
        println!(
            "{name}: {:.0} runs/s, {:.0} ns a run, {:.4} % of a core",
            runs as f64 / elapsed,
            ns as f64 / runs.max(1) as f64,
            ns as f64 / elapsed / 1e7
        );
    }
    read_all(&mut groups, true);
    Ok(())
}
