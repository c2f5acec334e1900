//! Measures the cost of a read of each file of a job, alternating with bare `pread`s of the same files, on a real job of one process:
//! `cargo run --release -p wholegrain-sources --example job_read_cost [ROUNDS]`, as root. Files that the kernel lacks are read from the recorded
//! tree, where only the parser's time is meaningful. Then measures the cost of a read of the processes.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_sources::job::{JobCgroups, MetricSet};
use wholegrain_sources::{Reader, Roots, Row, SOURCES};

const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "blkio", "pids"];
/// Reads between two readings of the clock.
const READS_A_ROUND: u32 = 100;
/// The numbers of processes of the job in the measurements.
const PROCESSES: [usize; 3] = [1, 16, 128];

/// Directories of a job, removed when dropped.
struct Job {
    cgroups: JobCgroups,
    children: Vec<Child>,
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200);
    let mut job = Job::new();
    job.add(1);
    println!("us a read: median of {rounds} rounds of {READS_A_ROUND} reads, bare and parsed in turns");
    println!("{:<44} {:>6} {:>7} {:>7} {:>7} {:>6}", "file", "values", "bare", "parsed", "parser", "ratio");
    let roots = Roots::default();
    let mut all = Vec::new();
    for set in metric_sets("cgroup", &roots, &job.cgroups) {
        let path = job.file(&set.name);
        all.push((path.clone(), set.sensors.len(), open(&set)));
        measure(&set.name, vec![(path, set.sensors.len(), open(&set))], rounds);
    }
    measure("all of the job's files", all, rounds);
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/handmade");
    let recorded = tree.join("cgroup/system.slice/slurmstepd.scope/job_4711");
    let cgroups = JobCgroups { v2: Some(recorded.clone()), ..JobCgroups::default() };
    println!("recorded files (the kernel makes nothing here: the time of the parser is what counts)");
    for set in metric_sets("cgroup", &Roots { sys: tree.join("sys"), ..roots.clone() }, &cgroups) {
        let path = recorded.join(&set.name);
        measure(&set.name, vec![(path, set.sensors.len(), open(&set))], rounds);
    }
    for count in PROCESSES {
        job.add(count - job.children.len());
        for (name, config) in [("taskstats", ""), ("/proc", "[sources.tasks]\ntaskstats = false\n")] {
            look(name, count, &job.cgroups, config, rounds / 10 + 1);
        }
    }
}

fn metric_sets(source: &str, roots: &Roots, cgroups: &JobCgroups) -> Vec<MetricSet> {
    metric_sets_with(source, "", roots, cgroups)
}

fn metric_sets_with(source: &str, config: &str, roots: &Roots, cgroups: &JobCgroups) -> Vec<MetricSet> {
    let section = Document::new("example.toml", config).root().child("sources").child(source);
    let source = SOURCES.iter().find(|one| one.name == source).expect("a source of that name");
    let configure = source.jobs.expect("a source of jobs");
    let mut source = configure(&section, &roots.clone().into()).expect("the configuration is right");
    source.metric_sets(cgroups, &mut |text| eprintln!("{text}"))
}

fn open(set: &MetricSet) -> Box<dyn Reader> {
    (set.open)(&(0..set.sensors.len() as u32).map(Some).collect::<Vec<_>>())
}

fn measure(name: &str, mut readers: Vec<(PathBuf, usize, Box<dyn Reader>)>, rounds: usize) {
    let values: usize = readers.iter().map(|reader| reader.1).sum();
    let files: Vec<File> =
        readers.iter().map(|reader| File::open(&reader.0).expect("a file that discovery found opens")).collect();
    let mut buffer = vec![0; 16 << 10];
    let (mut slots, mut gaps) = (vec![0; 256], vec![0; 4]);
    let (mut bare, mut parsed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare.push(timed(READS_A_ROUND, || {
            for file in &files {
                black_box(file.read_at(&mut buffer, 0).expect("a file that discovery found reads"));
            }
        }));
        parsed.push(timed(READS_A_ROUND, || {
            for (_, values, reader) in &mut readers {
                let mut row = Row::new(&mut slots[..*values], &mut gaps[..values.div_ceil(64)]);
                assert_eq!(reader.read(&mut row), Default::default(), "reading {name}");
            }
            black_box(&slots);
        }));
    }
    let (bare, parsed) = (median_us(bare), median_us(parsed));
    println!("{name:<44} {values:>6} {bare:>7.2} {parsed:>7.2} {:>7.2} {:>6.2}", parsed - bare, parsed / bare);
}

fn look(name: &str, processes: usize, cgroups: &JobCgroups, config: &str, rounds: usize) {
    let sets = metric_sets_with("tasks", config, &Roots::default(), cgroups);
    let set = sets.first().expect("the set of the processes");
    let mut reader = open(set);
    let count = set.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(timed(10, || {
            let reading = reader.read(&mut Row::new(&mut values, &mut gaps));
            assert_eq!(reading, Default::default());
        }));
    }
    println!("tasks by {name:<9} {processes:>4} processes: {:>8.1} us a read", median_us(times));
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

impl Job {
    fn new() -> Self {
        let (root, name) = (Path::new("/sys/fs/cgroup"), format!("wgcost_{}", std::process::id()));
        let mut cgroups = JobCgroups { level: name.clone(), ..JobCgroups::default() };
        let make = |path: PathBuf| fs::create_dir(&path).ok().map(|()| path);
        for controller in CONTROLLERS.into_iter().filter(|controller| root.join(controller).is_dir()) {
            cgroups.v1.extend(make(root.join(controller).join(&name)).map(|path| (controller.to_owned(), path)));
        }
        let unified = [root.join("unified"), root.to_owned()];
        let unified = unified.into_iter().find(|path| path.join("cgroup.controllers").is_file());
        cgroups.v2 = unified.and_then(|path| make(path.join(&name)));
        Self { cgroups, children: Vec::new() }
    }

    fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.cgroups.v1.values().chain(&self.cgroups.v2)
    }

    /// The file of a metric set. Files of version 1 begin with the name of their controller.
    fn file(&self, set: &str) -> PathBuf {
        let Some(name) = set.strip_prefix("v1/") else { return self.cgroups.v2.clone().unwrap_or_default().join(set) };
        let controller = name.split('.').next().unwrap_or_default();
        self.cgroups.v1(controller).unwrap_or(Path::new("/")).join(name)
    }

    fn add(&mut self, processes: usize) {
        for _ in 0..processes {
            let child = Command::new("sleep").arg("600").spawn().expect("the program `sleep`");
            for directory in self.directories() {
                fs::write(directory.join("cgroup.procs"), child.id().to_string()).expect("a process moves (as root)");
            }
            self.children.push(child);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        for directory in self.directories() {
            let until = Instant::now() + Duration::from_secs(5);
            while fs::remove_dir(directory).is_err() && Instant::now() < until {}
        }
    }
}
