//! The whole system with a real Slurm: the server's data of a job agrees with the kernel's counters.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use wholegrain_testing::cgroups::MOUNT;
use wholegrain_testing::jobs::{JobSite, instant};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::slurm::{PARTITION, Slurm};
use wholegrain_testing::{DEADLINE, checkout, open_to_all, wait_until};

/// The interval of all metrics except those of processes.
const INTERVAL_NS: i64 = 200_000_000;
const RULES: &str = "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"200ms\"\n\
                     [[jobs.rule]]\nmetrics = [\"tasks/**\"]\nevery = \"1s\"\n";
const SOURCES: &str = "[sources.cgroup]\n[sources.perf]\n[sources.tasks]\n";
/// Users of every machine: nobody, and root.
const NOBODY: u32 = 65_534;
const ROOT: u32 = 0;
/// Uses some seconds of CPU time, independent of other load.
const BURN: &str = "for ((i = 0; i < 400000; i++)); do :; done";

/// Reads a file repeatedly until it is removed, and returns its last content.
struct Watcher(JoinHandle<Option<String>>);

impl Watcher {
    /// Watches a file that will appear.
    fn start(file: PathBuf) -> Self {
        let begun = Instant::now();
        Self(std::thread::spawn(move || {
            let mut last = None;
            while begun.elapsed() < DEADLINE {
                match std::fs::read_to_string(&file) {
                    Ok(text) => last = Some(text),
                    Err(_) if last.is_some() => return last,
                    Err(_) => {}
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            None
        }))
    }

    /// The last number in the file, after its removal.
    fn last(self) -> Option<f64> {
        self.0.join().expect("the watcher")?.trim().parse().ok()
    }
}

/// Slurm with the hooks, a server and an agent.
struct Cluster {
    slurm: Slurm,
    site: JobSite,
}

impl Cluster {
    /// `None`, with the reason printed, if it cannot run here.
    fn start() -> Option<Self> {
        if let Some(why) = Slurm::missing() {
            println!("NOT TESTED: {why}");
            return None;
        }
        let site = JobSite::new(Path::new(MOUNT));
        site.configure(RULES, SOURCES);
        let hooks = site.site.path("slurm-hooks");
        std::fs::create_dir(&hooks).expect("a folder");
        open_to_all(&hooks);
        let settings = ["prolog", "epilog"].map(|kind| {
            let script = hooks.join(kind);
            let hook = checkout().join(format!("packaging/hooks/slurm-{kind}"));
            let names = hooks.join("name-").display().to_string();
            let env = format!("WHOLEGRAIN_HOOKS='{}'", site.hooks().display());
            let keep = format!("printf %s \"$SLURM_JOB_NAME\" >'{names}'$SLURM_JOB_ID");
            let text = format!("#!/bin/sh\n{keep}\n{env} exec '{}' \"$@\"\n", hook.display());
            std::fs::write(&script, text).expect("a script");
            open_to_all(&script);
            let key = if kind == "prolog" { "Prolog" } else { "Epilog" };
            format!("{key}={}", script.display())
        });
        let slurm = Slurm::start(&settings.join("\n"));
        Some(Self { slurm, site })
    }

    /// Watches the kernel's counter of a job from its submission on.
    fn watch(&self, uid: u32, job: &str) -> Watcher {
        Watcher::start(self.slurm.cgroup("cpuacct", uid, job).join("cpuacct.usage"))
    }

    /// A job's name, if this Slurm passes it to the prolog: 22.05 does not, which is printed.
    fn name_in_prolog(&self, job: &str) -> Value {
        let file = self.site.site.path(&format!("slurm-hooks/name-{job}"));
        let name = std::fs::read_to_string(file).expect("the prolog ran");
        if name.is_empty() {
            println!("NOT TESTED: this Slurm does not tell its prolog the names of jobs");
            return Value::Null;
        }
        name.into()
    }

    /// The server's record of an ended job.
    #[track_caller]
    fn ended(&self, job: &str) -> Value {
        wait_until(&format!("the end of job {job} at the server"), || {
            self.site.record(job).is_some_and(|record| record["to"].is_string())
        });
        self.site.record(job).expect("it was there")
    }
}

#[test]
fn cpu_seconds_agree_with_the_kernels_own_count() {
    let Some(cluster) = Cluster::start() else { return };
    let mut server = cluster.site.site.start_server();
    let mut agent = cluster.site.start();
    let script = format!("srun --ntasks=1 bash -c '{BURN}'; {BURN}");
    let asked = now_ns();
    let options = ["--job-name=burns", "--ntasks=1", "--mem=100"];
    let burning = cluster.slurm.submit(NOBODY, &options, &script);
    let memory = "python3 -c \"import time; kept = bytearray(200 << 20); time.sleep(3)\"";
    let fills = cluster.slurm.submit(ROOT, &["--job-name=fills", "--ntasks=1", "--mem=400"], memory);
    let (watch, watch_fills) = (cluster.watch(NOBODY, &burning), cluster.watch(ROOT, &fills));
    wait_until("both are seen", || [&burning, &fills].iter().all(|id| cluster.site.job(id).is_some()));
    println!("metrics: {}", cluster.site.metrics(&burning).len());
    let record = cluster.ended(&burning);
    let kernel = watch.last().expect("the kernel's count") / 1e9;
    let readings = cluster.site.stored(&burning, "cpu/usage");
    let (last_time, last) = readings.iter().rev().find_map(|(t, v)| Some((*t, (*v)?))).expect("a reading");
    let total = record["totals"]["cpu/usage"].as_f64().expect("a total");
    let to = instant(&record["to"]).expect("an end");
    println!("kernel {kernel:.4} s, last stored {last:.4} s, total {total:.4} s, {} readings", readings.len());
    // A job of one task uses one core, and at most two with its prolog and epilog: this much can follow the last reading. The record's total is read
    // when the end is noticed.
    let interval = INTERVAL_NS as f64 / 1e9;
    assert!(kernel > 0.5, "it burnt: {kernel}");
    assert!(last <= kernel + 1e-6 && kernel - last <= 2.0 * interval, "stored {last}, the kernel's own {kernel}");
    // Totals are at least as late as the last sample.
    let late = 2.0 * interval;
    assert!(total >= last - 1e-6 && total <= kernel + 1e-6, "total {total}, sampled {last}, the kernel's own {kernel}");
    // The job ends when its last directory is removed; the directory of CPU time is removed earlier.
    println!("last reading {} ms before the end", (to - last_time) / 1_000_000);
    let from = instant(&record["from"]).expect("a beginning");
    assert!(asked < from && from < to && to < now_ns(), "{asked} {from} {to}");
    let facts = ["job", "manager", "uid", "user", "node", "name", "partition"].map(|key| record[key].clone());
    let nobody = Value::from("nobody");
    assert_eq!(
        facts,
        [
            Value::from(burning.as_str()),
            "slurm".into(),
            NOBODY.into(),
            nobody,
            "node1".into(),
            cluster.name_in_prolog(&burning),
            PARTITION.into()
        ]
    );
    let steps: Vec<&str> =
        record["steps"].as_array().expect("steps").iter().filter_map(|s| s["name"].as_str()).collect();
    assert!(steps.contains(&"step_batch") && steps.contains(&"step_0"), "{steps:?}");
    let record = cluster.ended(&fills);
    let kernel = watch_fills.last().expect("the kernel's count") / 1e9;
    let total = record["totals"]["cpu/usage"].as_f64().expect("a total");
    assert!((kernel - total).abs() <= late, "total {total}, the kernel's own {kernel}");
    let most = cluster.site.stored(&fills, "memory/usage").iter().filter_map(|(_, v)| *v).fold(0.0, f64::max);
    assert!(most > 200e6 && most < 400e6, "its memory: {most} bytes");
    // As text, and for one user only.
    let listed = cluster.site.site.answer(&["jobs", "--user", "nobody"]);
    assert!(listed.contains(&burning) && !listed.contains(&format!("{fills} ")), "{listed}");
    let shown = cluster.site.site.answer(&["jobs", "show", &burning]);
    println!("{shown}");
    assert!(["nobody", PARTITION, "step_0"].iter().all(|part| shown.contains(part)), "{shown}");
    let state = cluster.slurm.node_state();
    assert!(!state.contains("DRAIN"), "the hooks hold the node up: {state}");
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_job_shorter_than_the_interval_leaves_start_end_and_totals() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.site.configure("[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"1h\"\n", SOURCES);
    let mut server = cluster.site.site.start_server();
    let mut agent = cluster.site.start();
    let job = cluster.slurm.submit(
        NOBODY,
        &["--job-name=short"],
        "for i in {1..100000}; do :; done; head -c 157000000 /dev/zero >/dev/null",
    );
    let watch = cluster.watch(NOBODY, &job);
    let record = cluster.ended(&job);
    let kernel = watch.last().expect("the kernel's count") / 1e9;
    let total = record["totals"]["cpu/usage"].as_f64().expect("a total of CPU time");
    println!("kernel {kernel:.4} s, total {total:.4} s");
    // Totals are read at each change of the job's cgroups, at the latest when they are removed.
    assert!(total > 0.0 && total <= kernel + 1e-6, "total {total}, the kernel's own {kernel}");
    let (from, to) = (instant(&record["from"]), instant(&record["to"]));
    assert!(from.is_some() && from < to, "{record}");
    assert_eq!((&record["name"], &record["end_unseen"]), (&cluster.name_in_prolog(&job), &Value::from(false)));
    // Read when the job was found, and then at its end.
    let written = || cluster.site.record(&job)?["totals"]["tasks/io/write_chars"].as_f64();
    let why = || cluster.site.record(&job)?["tasks_missing"].as_str().map(str::to_owned);
    wait_until("what its processes wrote, or why that is not known", || written().is_some() || why().is_some());
    match written() {
        Some(written) => assert!((156e6..200e6).contains(&written), "{written}"),
        None => println!("NOT TESTED: what was written up to the end: {:?}", why()),
    }
    assert!(agent.stop().success() && server.stop().success());
}
