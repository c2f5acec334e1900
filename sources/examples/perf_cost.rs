//! Measures the cost of a read of the default software events by the source's reader, alternating with a bare loop of read(2) over groups of the
//! same events, for the node and for a job; then the cost of the kernel in several situations: `cargo run --release -p wholegrain-sources
//! --example perf_cost [CGROUP]`, as root. The cgroup, by default the root of the unified hierarchy, represents a job.

use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_sources::job::JobCgroups;
use wholegrain_sources::{ConfigureContext, Reader, Row, SOURCES};

/// The kernel's numbers of the events of [`CONFIG`].
const SOFTWARE: [u64; 6] = [1, 3, 4, 2, 5, 6];
const NAMES: &str =
    "[\"task-clock\", \"context-switches\", \"cpu-migrations\", \"page-faults\", \"minor-faults\", \"major-faults\"]";
const ROUNDS: usize = 300;
/// Reads between two readings of the clock.
const READS_A_ROUND: u32 = 100;
/// The words of a read: number of events, time enabled, time running, and a count and an id for each event.
const WORDS: usize = 3 + 2 * SOFTWARE.len();

/// The 64 bytes of `struct perf_event_attr` in version 0.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read_format: u64,
    rest: [u64; 3],
}

fn main() {
    let cgroup = std::env::args().nth(1).map_or_else(unified, |path| Some(PathBuf::from(path)));
    println!(
        "us a read of {} software events on each CPU: medians of {ROUNDS} rounds of {READS_A_ROUND}, in turns",
        SOFTWARE.len()
    );
    println!("{:<6} {:>5} {:>8} {:>8} {:>8} {:>6}", "scope", "CPUs", "bare", "reader", "more", "ratio");
    measure("node", None, node_reader());
    match &cgroup {
        Some(cgroup) => measure("job", Some(cgroup), job_reader(cgroup)),
        None => println!("no unified hierarchy is mounted: name a cgroup of the controller perf_event"),
    }
    // The kernel interrupts a CPU to get the counts of the program that runs there.
    run_on_first_cpu();
    println!("us a bare read of one CPU's group, from the first CPU");
    let one = |what: &str, cgroup: Option<&Path>, cpu: usize| {
        if let Some(leader) = bare(cgroup).get(cpu) {
            let times = (0..ROUNDS).map(|_| timed(|| bare_read(*leader))).collect();
            println!("{what:<48} {:>8.2}", median_us(times));
        }
    };
    one("the first CPU", None, 0);
    one("the second CPU", None, 1);
    if let Some(empty) = cgroup.map(|cgroup| cgroup.join(format!("perf-cost-{}", std::process::id())))
        && std::fs::create_dir(&empty).is_ok()
    {
        one("the second CPU, of a job that is not running there", Some(&empty), 1);
        std::fs::remove_dir(&empty).expect("an empty cgroup can be removed");
    }
}

fn run_on_first_cpu() {
    // SAFETY: `cpu_set_t` is plain bits, for which zero is a value; it outlives the call.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&cpus), &cpus), 0);
    }
}

fn bare_read(leader: i32) {
    let mut words = [0u64; WORDS];
    // SAFETY: `words` is writable for as many bytes as are asked for.
    let count = unsafe { libc::read(leader, words.as_mut_ptr().cast(), size_of_val(&words)) };
    assert_eq!(count as usize, size_of_val(&words));
    black_box(&words);
}

fn unified() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

fn measure(scope: &str, cgroup: Option<&Path>, (mut reader, sensors): (Box<dyn Reader>, usize)) {
    let leaders = bare(cgroup);
    let (mut values, mut gaps) = (vec![0; sensors], vec![0; sensors.div_ceil(64)]);
    let (mut alone, mut parsed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(timed(|| leaders.iter().for_each(|leader| bare_read(*leader))));
        parsed.push(timed(|| {
            let reading = reader.read(&mut Row::new(&mut values, &mut gaps));
            assert_eq!(reading, Default::default());
            black_box(&values);
        }));
    }
    let (alone, parsed) = (median_us(alone), median_us(parsed));
    let more = parsed - alone;
    println!("{scope:<6} {:>5} {alone:>8.2} {parsed:>8.2} {more:>8.2} {:>6.2}", leaders.len(), parsed / alone);
}

/// The leaders of groups of the same events, one on each online CPU.
fn bare(cgroup: Option<&Path>) -> Vec<i32> {
    let directory = cgroup.map(|path| std::fs::File::open(path).expect("the cgroup's directory opens"));
    let (target, flags) = directory.as_ref().map_or((-1, 0u64), |directory| (directory.as_raw_fd(), 4));
    // SAFETY: sysconf only looks up a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let on_cpu = |cpu: i64| {
        let mut leader = -1;
        for config in SOFTWARE {
            let attr = Attr { kind: 1, size: 64, config, read_format: 15, ..Attr::default() };
            // SAFETY: `attr` is laid out as the kernel's structure of the size that it names, and outlives the call.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    std::ptr::from_ref(&attr),
                    i64::from(target),
                    cpu,
                    i64::from(leader),
                    flags,
                )
            };
            assert!(fd >= 0, "perf_event_open: {}", std::io::Error::last_os_error());
            if leader < 0 {
                leader = fd as i32;
            }
        }
        leader
    };
    (0..cpus).map(on_cpu).collect()
}

fn node_reader() -> (Box<dyn Reader>, usize) {
    let section = Document::new("example.toml", &format!("[sources.perf]\nnode_events = {NAMES}\n"))
        .root()
        .child("sources")
        .child("perf");
    let kind = SOURCES.iter().find(|source| source.name == "perf").expect("the source perf");
    let mut source = (kind.configure)(&section, &ConfigureContext::default()).expect("the configuration is right");
    let plan = source.discover(&mut |text| eprintln!("{text}")).pop().expect("the node's group");
    (plan.reader, plan.sensors.len())
}

fn job_reader(cgroup: &Path) -> (Box<dyn Reader>, usize) {
    let section = Document::new("example.toml", &format!("[sources.perf]\nevents = {NAMES}\n"))
        .root()
        .child("sources")
        .child("perf");
    let kind = SOURCES.iter().find(|source| source.name == "perf").expect("the source perf");
    let make = kind.jobs.expect("it has a job scope");
    let mut source = make(&section, &ConfigureContext::default()).expect("the configuration is right");
    let cgroups = JobCgroups { level: "job".to_owned(), v2: Some(cgroup.to_owned()), ..JobCgroups::default() };
    let set = source.metric_sets(&cgroups, &mut |text| eprintln!("{text}")).pop().expect("a set of a job");
    let slots: Vec<Option<u32>> = (0..set.sensors.len() as u32).map(Some).collect();
    ((set.open)(&slots), slots.len())
}

fn timed(mut read: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..READS_A_ROUND).for_each(|_| read());
    start.elapsed() / READS_A_ROUND
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
