//! What a million allocations of jobs cost: memory, opening, listing, writing. `cargo run --release -p wholegrain-store --example million_jobs [HOW MANY]`

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use wholegrain_model::JobRecord;
use wholegrain_store::{JobFilter, JobState, Store, StoreConfig};

/// Unless the command line says otherwise.
const ALLOCATIONS: usize = 1_000_000;
/// Nodes of a job: many have one, some have a thousand.
const NODES: [usize; 8] = [1, 1, 1, 1, 2, 4, 16, 1000];
const CALL: usize = 1000;
const S: i64 = 1_000_000_000;
/// Names of totals beside the two that are listed, so that a record has the size of a real one.
const TOTALS: usize = 40;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn record(job: usize, node: usize) -> JobRecord {
    let from = 1_700_000_000 * S + job as i64 * S + node as i64 * 1000;
    let mut record = JobRecord {
        job: format!("{}", 4_000_000 + job),
        level: format!("{}", 4_000_000 + job),
        manager: "slurm".to_owned(),
        node: format!("node{node:05}"),
        prefix: format!("/site/rack{:03}/node{node:05}", node / 72),
        uid: Some(1000 + job as u32 % 500),
        user: Some(format!("user{}", job % 500)),
        cpus: Some("0-95".to_owned()),
        from,
        to: Some(from + 3600 * S).filter(|_| !job.is_multiple_of(1000)),
        name: Some(format!("case-{}", job % 20_000)),
        account: Some(format!("project{}", job % 80)),
        partition: Some("standard".to_owned()),
        revision: 3,
        ..JobRecord::default()
    };
    record.totals = (0..TOTALS).map(|total| (format!("memory/of_kind_{total}"), (job * total) as f64 * 1.25)).collect();
    record.totals.insert("cpu/usage".to_owned(), 1234.5);
    record.totals.insert("memory/peak".to_owned(), 1e9);
    record
}

fn open(dir: &Path) -> Store {
    Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) }).expect("the store opens").0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, dir] = arguments.as_slice()
        && what == "open"
    {
        return measure(Path::new(dir));
    }
    let allocations = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(ALLOCATIONS);
    let dir = std::env::temp_dir().join(format!("million-jobs-{}", std::process::id()));
    fill(&dir, allocations);
    // In a process of its own: what the filling freed is not given back at once.
    let exe = std::env::current_exe().expect("this program");
    let status = Command::new(exe).arg("open").arg(&dir).status();
    let _ = std::fs::remove_dir_all(&dir);
    assert!(status.is_ok_and(|status| status.success()));
}

fn fill(dir: &Path, allocations: usize) {
    let store = open(dir);
    let (mut jobs, mut count, mut call) = (0, 0, Vec::new());
    let start = Instant::now();
    while count < allocations {
        for node in 0..NODES[jobs % NODES.len()].min(allocations - count) {
            call.push(record(jobs, (jobs * 7 + node) % 15_000));
            count += 1;
            if call.len() == CALL || count == allocations {
                let (sender, receiver) = sync_channel(1);
                store.put_jobs(std::mem::take(&mut call), Box::new(move |result| drop(sender.send(result))));
                receiver.recv().expect("an answer").expect("stored");
            }
        }
        jobs += 1;
    }
    let bytes = std::fs::metadata(dir.join("jobs.redb")).map_or(0, |metadata| metadata.len());
    println!(
        "{count} allocations of {jobs} jobs written in {:.1?}; {:.0} bytes each on disk",
        start.elapsed(),
        bytes as f64 / count as f64
    );
}

fn measure(dir: &Path) {
    let before = resident_bytes();
    let start = Instant::now();
    let store = open(dir);
    println!(
        "opened in {:.1?}; {:.0} bytes of memory each",
        start.elapsed(),
        (resident_bytes() - before) as f64 / store.stats().allocations as f64
    );
    for (what, filter) in [
        ("newest 100", JobFilter::default()),
        ("newest 100 of a user", JobFilter { user: Some("user7".to_owned()), ..JobFilter::default() }),
        ("100 that run", JobFilter { state: Some(JobState::Running), ..JobFilter::default() }),
        ("on a node", JobFilter { node: Some("node00042".to_owned()), ..JobFilter::default() }),
        ("of a name that nobody has", JobFilter { name: Some("x*".to_owned()), ..JobFilter::default() }),
    ] {
        let start = Instant::now();
        let list = store.jobs(&JobFilter { limit: 100, ..filter });
        println!("{what}: {} jobs in {:.2?}", list.rows.len(), start.elapsed());
    }
    let start = Instant::now();
    let found = store.find_job("4000007", None, None).expect("a job of a thousand nodes");
    let mut nodes = 0;
    let read = store.job_records(&found, |_| {
        nodes += 1;
        Ok(())
    });
    println!("all {nodes} records of one job in {:.2?}, {read:?}", start.elapsed());
    let start = Instant::now();
    let seen = (0..100_000)
        .filter(|n| store.sees("user7", &format!("/site/rack000/node{:05}/job/4000007/cpu/usage", n % 72)))
        .count();
    println!("{seen} of 100,000 sensors seen, {:.2?} in all", start.elapsed());
}
