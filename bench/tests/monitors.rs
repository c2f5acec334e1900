//! Every monitor that is installed, started and stopped as an experiment does it: it tells metrics, leaves no process and no file
//! outside its folder, and one that ends while it is measured is an error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;
use wholegrain_testing::wait_until;

/// Folders of the peers' packages, below each of [`PLACES`].
const OTHERS: [&str; 8] = ["collectd", "prometheus", "ganglia", "pcp", "netdata", "likwid", "rezolus", "wholegrain"];
const PLACES: [&str; 5] = ["/var/lib", "/var/log", "/var/cache", "/run", "/etc"];
/// The period that every monitor takes.
const INTERVAL: &str = "1s";

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain-bench"));
    command.args(arguments).env("RUST_BACKTRACE", "0");
    command
}

fn list() -> Vec<Value> {
    let output = bench(&["monitor", "list", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    rows.as_array().expect("an array").clone()
}

/// `monitor run` in a folder of its own, which is also where it would put files by default.
struct Run {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
}

impl Run {
    fn start(name: &str, configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for dir in ["home", "temporary"] {
            std::fs::create_dir(folder.path().join(dir)).unwrap();
        }
        let arguments = ["monitor", "run", name, "--configuration", configuration, "--interval", INTERVAL, "--dir"];
        let mut command = bench(&arguments);
        command.arg(folder.path().join("files")).current_dir(folder.path().join("home"));
        command.env("HOME", folder.path().join("home")).env("TMPDIR", folder.path().join("temporary"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, folder }
    }

    /// The next line's object below `key`.
    fn line(&mut self, key: &str) -> Value {
        let Some(line) = self.lines.next() else {
            panic!("no line `{key}`: {}", self.errors());
        };
        let line: Value = serde_json::from_str(&line.unwrap()).expect("a line of JSON");
        assert!(line[key].is_object(), "no `{key}` in {line}");
        line[key].clone()
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Processes of the monitor: those with its folder among their arguments or in their environment.
    fn processes(&self) -> Vec<u32> {
        let mark = self.folder.path().to_str().unwrap().as_bytes().to_vec();
        let ids = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |id: &u32| {
            ["cmdline", "environ"].iter().any(|file| {
                let text = std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
                text.windows(mark.len()).any(|part| part == mark)
            })
        };
        ids.filter(|id| *id != self.child.id()).filter(ours).collect()
    }

    /// Files in the folders that were not given to it.
    fn left_elsewhere(&self) -> Vec<PathBuf> {
        let dirs = ["home", "temporary"].map(|dir| self.folder.path().join(dir));
        dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path())).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The files of installed packages, with their times of change.
fn installed_files() -> BTreeMap<PathBuf, SystemTime> {
    fn add(dir: &Path, found: &mut BTreeMap<PathBuf, SystemTime>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if let Ok(data) = entry.metadata() {
                found.insert(entry.path(), data.modified().unwrap());
                if data.is_dir() {
                    add(&entry.path(), found);
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    for place in PLACES {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        for entry in entries.filter(|e| OTHERS.iter().any(|name| e.file_name().to_string_lossy().starts_with(name))) {
            add(&entry.path(), &mut found);
        }
    }
    found
}

/// From start to end of one monitor with one configuration.
fn whole_life(name: &str, configuration: &str) {
    let mut run = Run::start(name, configuration);
    let ready = run.line("ready");
    assert_eq!((&ready["monitor"], &ready["configuration"]), (&name.into(), &configuration.into()));
    let metrics = ready["metrics"].as_u64().unwrap();
    assert_eq!(metrics > 0, configuration != "tick", "{name} {configuration} takes {metrics} metrics");
    assert!(!ready["version"].as_str().unwrap().is_empty() && !ready["configured"].as_str().unwrap().is_empty());
    assert!(!run.processes().is_empty(), "{name} runs");
    drop(run.child.stdin.take());
    let used = run.line("used");
    let processes = used["processes"].as_array().unwrap();
    assert!(processes.iter().any(|process| process["server"] == false), "{name} has a part on the node: {used}");
    for process in processes {
        assert!(process["rss_kb"].as_u64() > Some(0) && process["pss_kb"].as_u64() > Some(0), "{name}: {process}");
    }
    assert!(used["window_ns"].as_u64() > Some(0));
    assert!(run.child.wait().unwrap().success());
    assert_eq!(run.processes(), Vec::<u32>::new(), "{name} {configuration} left processes");
    assert_eq!(run.left_elsewhere(), Vec::<PathBuf>::new(), "{name} {configuration} left files elsewhere");
    eprintln!("{name} {configuration}: {metrics} metrics");
}

#[test]
fn the_list_says_what_there_is_and_what_to_install() {
    let rows = list();
    let names: Vec<&str> = rows.iter().map(|row| row["monitor"].as_str().unwrap()).collect();
    for name in ["bare", "wholegrain", "collectd", "node_exporter", "ganglia"] {
        assert_eq!(names.iter().filter(|there| **there == name).count(), 1, "{name} in {names:?}");
    }
    for row in &rows {
        assert!(!row["configurations"].as_array().unwrap().is_empty(), "{row}");
        assert!(row["shortest_interval_ns"].as_u64() > Some(0), "{row}");
        assert!(row["version"].is_string() != row["missing"].is_string(), "{row}");
        if let Some(why) = row["missing"].as_str() {
            assert!(!why.is_empty(), "{row}");
        }
    }
}

#[test]
fn a_monitor_is_whole_and_gone_afterwards() {
    let before = installed_files();
    let rows = list();
    std::thread::scope(|scope| {
        for row in &rows {
            let name = row["monitor"].as_str().unwrap();
            if row["version"].is_null() {
                eprintln!("{name} is not tested: {}", row["missing"].as_str().unwrap());
                continue;
            }
            let configurations = row["configurations"].as_array().unwrap();
            // In turn: one monitor's configurations may want the same socket of the kernel's. Different monitors side by side.
            scope.spawn(move || {
                for configuration in configurations.iter().filter_map(Value::as_str) {
                    let job = configuration.starts_with("job");
                    match wholegrain_testing::cgroups::Cgroups::missing().filter(|_| job) {
                        Some(why) => eprintln!("{name} {configuration} is not tested: {why}"),
                        None => whole_life(name, configuration),
                    }
                }
            });
        }
    });
    let after = installed_files();
    let changed: Vec<_> = after.iter().filter(|(path, time)| before.get(*path) != Some(time)).collect();
    assert!(changed.is_empty(), "files of installed packages have changed: {changed:?}");
}

#[test]
fn a_monitor_that_ends_while_it_is_measured_is_an_error() {
    let installed = |row: &Value| row["version"].is_string().then(|| row["monitor"].as_str().unwrap().to_owned());
    let there: Vec<String> = list().iter().filter_map(installed).collect();
    for (name, configuration) in [("bare", "tick"), ("collectd", "same")] {
        if !there.iter().any(|monitor| monitor == name) {
            eprintln!("{name} is not tested: it is not installed");
            continue;
        }
        let mut run = Run::start(name, configuration);
        run.line("ready");
        let victim = *run.processes().last().expect("a process");
        // SAFETY: a process of this test's own, which nobody has waited for.
        unsafe { libc::kill(victim as libc::pid_t, libc::SIGKILL) };
        assert!(run.lines.next().is_none(), "{name}: a result of a monitor that was killed");
        let errors = run.errors();
        assert!(errors.contains("ended while it was measured"), "{name}: {errors}");
        assert!(!run.child.wait().unwrap().success());
        assert_eq!(run.processes(), Vec::<u32>::new(), "{name} left processes");
    }
}

#[test]
fn a_monitor_does_not_outlive_who_started_it() {
    let mut run = Run::start("bare", "tick");
    run.line("ready");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    wait_until("the bare loop is gone", || run.processes().is_empty());
}

#[test]
fn what_cannot_be_run_is_refused_with_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for (arguments, expected) in [
        (&["none-such"][..], "there are bare, wholegrain"),
        (&["bare", "--configuration", "x"], "there are tick, reads"),
        (&["ganglia", "--interval", "100ms"], "its shortest"),
        (&["bare", "--interval", "5"], "write a number with"),
        (&["collectd", "--role", "node"], "--role server"),
    ] {
        let output = bench(&["monitor", "run", "--dir", dir]).args(arguments).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{arguments:?}: {errors}");
    }
}

#[test]
fn the_cost_table_has_what_reports_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bench(&["monitor-cost", "--interval", "10ms", "--seconds", "0.5", "--rounds", "2"]);
    command.args(["--monitors", "bare:tick,bare:reads,ganglia:same"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let kept = std::fs::read(folder.path().join("target/bench/monitor-cost.json")).unwrap();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    let rows = kept["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{kept}");
    let row = rows.iter().find(|row| row["configuration"] == "reads").expect("bare reads");
    for field in ["interval_ns", "metrics", "cpu_share", "us_per_metric", "rss_kb", "pss_kb", "server_cpu_share"] {
        assert!(row[field].is_number(), "{field} in {row}");
    }
    assert!(row["cpu_share"].as_f64() > Some(0.0) && row["us_per_metric"].as_f64() > Some(0.0), "{row}");
    let left = kept["left_out"].as_array().unwrap();
    assert_eq!((left.len(), &left[0]["monitor"]), (1, &"ganglia".into()), "{kept}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("reads") && table.contains("left out: ganglia same 10ms"), "{table}");
}
