//! Measures the cost of a read of each group on the running machine, alternating with bare `pread`s of the same files into a buffer: `cargo run
//! --release -p wholegrain-sources --example read_cost [ROUNDS]`.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_sources::{ConfigureContext, GroupPlan, Row, SOURCES};

/// The groups of the sum, then the other groups.
const TOGETHER: [&str; 3] = ["meminfo", "vmstat", "stat"];
const OTHERS: [&str; 5] = ["loadavg", "net/dev", "net/snmp", "net/netstat", "diskstats"];
/// Files of /sys that every Linux machine has.
const STATISTICS: &str = "/sys/class/net/lo/statistics";
const CONFIG: &str = r#"
[[sources.sysfs.files]]
path = "class/net/lo/statistics/*"
name = "{1}"
[sources.tester]
sensors = 10000
"#;
/// Reads between two readings of the clock.
const READS_A_ROUND: u32 = 100;

struct Group {
    plan: GroupPlan,
    values: Vec<u64>,
    gaps: Vec<u64>,
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(300);
    println!("us a read: median of {rounds} rounds of {READS_A_ROUND} reads, bare and parsed in turns");
    println!("{:<24} {:>7} {:>8} {:>8} {:>8} {:>6}", "group", "values", "bare", "parsed", "parser", "ratio");
    let mut procfs = groups("procfs");
    let mut sum = (0, 0.0, 0.0);
    for name in TOGETHER {
        let (values, bare, parsed) = measure(name, &mut procfs, &[Path::new("/proc").join(name)], rounds);
        sum = (sum.0 + values, sum.1 + bare, sum.2 + parsed);
    }
    print_line("these three together", sum);
    for name in OTHERS {
        measure(name, &mut procfs, &[Path::new("/proc").join(name)], rounds);
    }
    let files: Vec<PathBuf> =
        std::fs::read_dir(STATISTICS).map_or(Vec::new(), |files| files.flatten().map(|file| file.path()).collect());
    measure("sysfs", &mut groups("sysfs"), &files, rounds);
    measure("tester", &mut groups("tester"), &[], rounds);
}

/// The number of values, and the medians of a bare read and of a read by the group's reader, in us.
fn measure(name: &str, groups: &mut [Group], paths: &[PathBuf], rounds: usize) -> (usize, f64, f64) {
    let Some(group) = groups.iter_mut().find(|group| group.plan.name == name) else {
        println!("{name:<24} is not on this machine");
        return (0, 0.0, 0.0);
    };
    let files: Vec<File> =
        paths.iter().map(|path| File::open(path).expect("a file that discovery found opens")).collect();
    let mut buffer = vec![0; 1 << 20];
    let (mut bare, mut parsed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare.push(timed(|| {
            for file in &files {
                black_box(file.read_at(&mut buffer, 0).expect("a file that discovery found reads"));
            }
        }));
        parsed.push(timed(|| group.read()));
    }
    let result = (group.values.len(), median_us(bare), median_us(parsed));
    print_line(name, result);
    result
}

fn print_line(name: &str, (values, bare, parsed): (usize, f64, f64)) {
    let ratio = if bare < 0.1 { "-".to_owned() } else { format!("{:.2}", parsed / bare) };
    println!("{name:<24} {values:>7} {bare:>8.2} {parsed:>8.2} {:>8.2} {ratio:>6}", parsed - bare);
}

fn groups(name: &str) -> Vec<Group> {
    let section = Document::new("example.toml", CONFIG).root().child("sources").child(name);
    let source = SOURCES.iter().find(|source| source.name == name).expect("a source of that name");
    let mut source = (source.configure)(&section, &ConfigureContext::default()).expect("the configuration is right");
    let plans = source.discover(&mut |text| eprintln!("{text}")).into_iter();
    plans
        .map(|plan| {
            let count = plan.sensors.len();
            Group { plan, values: vec![0; count], gaps: vec![0; count.div_ceil(64)] }
        })
        .collect()
}

impl Group {
    fn read(&mut self) {
        let mut row = Row::new(&mut self.values, &mut self.gaps);
        let reading = self.plan.reader.read(&mut row);
        assert_eq!(reading, Default::default(), "reading {}", self.plan.name);
        black_box(&self.values);
    }
}

fn timed(mut read: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..READS_A_ROUND {
        read();
    }
    start.elapsed() / READS_A_ROUND
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
