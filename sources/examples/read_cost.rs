//! Measures the cost of a read of each group on the running machine, alternating with bare `pread`s of the same files into a buffer: `cargo run
//! --release -p wholegrain-sources --example read_cost -- [ROUNDS] [--write]`. `--write` writes `sources/fixtures/cost.txt` for `docs/sources.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_sources::{ConfigureContext, GroupPlan, Roots, Row, SOURCES, SourceType};

/// The groups whose sum is shown too.
const TOGETHER: [&str; 3] = ["meminfo", "vmstat", "stat"];
/// Files of /sys that every Linux machine has, beside every group.
const MORE_FILES: &str = r#"
[[sources.sysfs.files]]
path = "class/net/lo/statistics/*"
name = "{1}"
"#;
/// Reads between two readings of the clock, of a group whose read takes less than [`LONG_READ`].
const READS_A_ROUND: u32 = 100;
const LONG_READ: Duration = Duration::from_millis(1);

struct Group {
    plan: GroupPlan,
    values: Vec<u64>,
    gaps: Vec<u64>,
}

/// The cost of one group, in us a read.
struct Cost {
    source: &'static str,
    group: String,
    values: usize,
    parsed: f64,
    /// Whether the files are the machine's, or those of a recorded tree.
    is_real: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = arguments.iter().find_map(|text| text.parse().ok()).unwrap_or(300);
    println!("us a read: median of {rounds} rounds of {READS_A_ROUND} reads, bare and parsed in turns");
    println!("{:<28} {:>7} {:>8} {:>8} {:>8} {:>6}", "group", "values", "bare", "parsed", "parser", "ratio");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut costs: Vec<Cost> = Vec::new();
    let mut together = (0, 0.0, 0.0);
    for kind in SOURCES {
        for tree in [None, Some("recorded"), Some("handmade")] {
            let context = tree.map_or_else(ConfigureContext::default, |tree| of_tree(&fixtures.join(tree)));
            for mut group in groups(kind, &context) {
                let name = group.plan.name.clone();
                if costs.iter().any(|cost| cost.source == kind.name && cost.group == name) {
                    continue;
                }
                let shown = if tree.is_none() { name.clone() } else { format!("{name} (tree)") };
                let (values, bare, parsed) = measure(&shown, &mut group, rounds);
                if TOGETHER.contains(&name.as_str()) && tree.is_none() {
                    together = (together.0 + values, together.1 + bare, together.2 + parsed);
                }
                costs.push(Cost { source: kind.name, group: name, values, parsed, is_real: tree.is_none() });
            }
        }
    }
    print_line("meminfo, vmstat, stat", together);
    if arguments.iter().any(|argument| argument == "--write") {
        write_costs(&fixtures.join("cost.txt"), &costs);
    }
}

fn of_tree(tree: &Path) -> ConfigureContext {
    let roots = Roots { proc: tree.join("proc"), sys: tree.join("sys"), cgroup: tree.join("cgroup") };
    ConfigureContext { roots, config_dir: tree.to_owned() }
}

fn groups(kind: &SourceType, context: &ConfigureContext) -> Vec<Group> {
    let text = [include_str!("../fixtures/every-group.toml"), MORE_FILES].concat();
    let section = Document::new("every-group.toml", &text).root().child("sources").child(kind.name);
    let mut source = match (kind.configure)(&section, context) {
        Ok(source) => source,
        Err(error) => {
            println!("{}: {error}", kind.name);
            return Vec::new();
        }
    };
    let plans = source.discover(&mut |_| {}).into_iter();
    plans
        .map(|plan| {
            let count = plan.sensors.len();
            Group { plan, values: vec![0; count], gaps: vec![0; count.div_ceil(64)] }
        })
        .collect()
}

/// The open files of this process by descriptor.
fn open_files() -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, std::fs::read_link(entry.path()).ok()?)))
        .collect()
}

/// The number of values, and the medians of a bare read of the group's files and of a read by its reader, in us.
fn measure(name: &str, group: &mut Group, rounds: usize) -> (usize, f64, f64) {
    let before = open_files();
    let first = timed(1, || group.read());
    let new = open_files().into_iter().filter(|(number, path)| before.get(number) != Some(path));
    let files: Vec<File> = new.filter_map(|(_, path)| File::open(path).ok()).collect();
    let reads = if first > LONG_READ { 1 } else { READS_A_ROUND };
    let mut buffer = vec![0; 1 << 20];
    let (mut bare, mut parsed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare.push(timed(reads, || {
            for file in &files {
                // A device may have no value at the moment.
                let _ = black_box(file.read_at(&mut buffer, 0));
            }
        }));
        parsed.push(timed(reads, || group.read()));
    }
    let result = (group.values.len(), median_us(bare), median_us(parsed));
    print_line(name, result);
    result
}

fn print_line(name: &str, (values, bare, parsed): (usize, f64, f64)) {
    let ratio = if bare < 0.1 { "-".to_owned() } else { format!("{:.2}", parsed / bare) };
    println!("{name:<28} {values:>7} {bare:>8.2} {parsed:>8.2} {:>8.2} {ratio:>6}", parsed - bare);
}

fn write_costs(path: &Path, costs: &[Cost]) {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!("# Written by `read_cost --write` on Linux {}, {cpus} CPUs.\n", kernel.trim());
    text.push_str("# source, group, values, us a read, where: `machine` has these files, or a recorded `tree` does\n");
    for Cost { source, group, values, parsed, is_real } in costs {
        let place = if *is_real { "machine" } else { "tree" };
        let _ = writeln!(text, "{source} {group} {values} {parsed:.1} {place}");
    }
    match std::fs::write(path, text) {
        Ok(()) => println!("wrote {}", path.display()),
        Err(error) => println!("cannot write {}: {error}", path.display()),
    }
}

impl Group {
    fn read(&mut self) {
        let mut row = Row::new(&mut self.values, &mut self.gaps);
        black_box(self.plan.reader.read(&mut row));
        black_box(&self.values);
    }
}

fn timed(reads: u32, mut read: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..reads {
        read();
    }
    start.elapsed() / reads
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
