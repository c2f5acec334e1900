//! Every monitor that is installed, started and stopped as an experiment does it: it reports metrics, leaves no process and no file outside its folder,
//! and one that ends while it is measured is an error. A monitor that is not installed is named on standard error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use wholegrain_testing::wait_until;

/// Folders of the peers' packages, below each of [`PLACES`].
const OTHERS: [&str; 8] = ["collectd", "prometheus", "ganglia", "pcp", "netdata", "likwid", "rezolus", "wholegrain"];
const PLACES: [&str; 5] = ["/var/lib", "/var/log", "/var/cache", "/run", "/etc"];
/// The period that every monitor accepts.
const INTERVAL: &str = "1s";
/// How long a peer samples.
const WINDOW: Duration = Duration::from_secs(6);

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

/// The version of a monitor; `None`, and the reason on standard error, if it is not installed.
fn version(name: &str) -> Option<String> {
    let rows = list();
    let row = rows.iter().find(|row| row["monitor"] == name).unwrap_or_else(|| panic!("`monitor list` has no {name}"));
    if let Some(reason) = row["missing"].as_str() {
        eprintln!("{name} is not tested: {reason}");
    }
    row["version"].as_str().map(str::to_owned)
}

/// `monitor run` with a home and temporary files below a folder, which are its defaults for files.
struct Run {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
    /// Removed at the end.
    _temporary: Option<tempfile::TempDir>,
}

impl Run {
    fn start(name: &str, configuration: &str) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut run = Self::start_in(temporary.path(), &temporary.path().join("files"), name, configuration, "both");
        run._temporary = Some(temporary);
        run
    }

    /// One part of a monitor, with its files in `dir`.
    fn start_in(folder: &Path, dir: &Path, name: &str, configuration: &str, role: &str) -> Self {
        for dir in ["home", "temporary"] {
            std::fs::create_dir_all(folder.join(dir)).unwrap();
        }
        let mut command = bench(&["monitor", "run", name, "--configuration", configuration]);
        command.args(["--interval", INTERVAL, "--role", role, "--dir"]).arg(dir).current_dir(folder.join("home"));
        command.env("HOME", folder.join("home")).env("TMPDIR", folder.join("temporary"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, folder: folder.to_owned(), _temporary: None }
    }

    /// Ends it by the end of its standard input; its use. No process may be left, and none may have to be killed.
    fn stop(mut self) -> Value {
        drop(self.child.stdin.take());
        let used = self.line("used");
        let errors = self.errors();
        assert!(self.child.wait().unwrap().success() && !errors.contains("is killed"), "{errors}");
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes are left");
        used
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
        let mark = self.folder.to_str().unwrap().as_bytes().to_vec();
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
        let dirs = ["home", "temporary"].map(|dir| self.folder.join(dir));
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
            if version(name).is_none() {
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
    for (name, configuration) in [("bare", "tick"), ("collectd", "same")] {
        if version(name).is_none() {
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
fn the_processes_of_a_killed_monitor_end_with_it() {
    for (name, configuration, least) in [("bare", "tick", 1), ("pcp", "same", 2)] {
        if version(name).is_none() {
            continue;
        }
        let mut run = Run::start(name, configuration);
        run.line("ready");
        assert!(run.processes().len() >= least, "{:?}", run.processes());
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        wait_until("all of its processes are gone", || run.processes().is_empty());
    }
}

/// A peer with each of these configurations, which report more and more values; the names of its processes on the node and of the server's part.
fn check_peer(name: &str, configurations: &[&str], node: &[&str], server: &[&str]) {
    let Some(version) = version(name) else { return };
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
    let mut values = 0;
    for configuration in configurations {
        let mut run = Run::start(name, configuration);
        let ready = run.line("ready");
        let more = ready["metrics"].as_u64().unwrap();
        assert!(more > values, "{name} {configuration}: {more} values, {values} with less");
        values = more;
        assert!(ready["configured"].as_str().unwrap().contains(run.folder.to_str().unwrap()), "{ready}");
        std::thread::sleep(WINDOW);
        let used = run.stop();
        let processes = used["processes"].as_array().unwrap();
        let of = |server: bool| -> Vec<&str> {
            let part = processes.iter().filter(|process| process["server"] == server);
            part.map(|process| process["name"].as_str().unwrap()).collect()
        };
        assert_eq!((of(false), of(true)), (node.to_vec(), server.to_vec()), "{used}");
        for process in processes {
            let figure = |name: &str| process[name].as_u64().unwrap();
            assert!(figure("cpu_ns") > 0 && figure("rss_kb") > 500 && figure("pss_kb") <= figure("rss_kb"), "{used}");
        }
        // One sample a period: a loaded machine loses some, none makes more than there are periods.
        let periods = used["window_ns"].as_u64().unwrap() / 1_000_000_000;
        let samples = used["samples"].as_u64().unwrap();
        assert!(samples >= periods / 2 && samples <= periods + 2, "{samples} samples in {periods} s: {used}");
    }
    if !server.is_empty() {
        check_parts(name, configurations[0]);
    }
}

/// The server's part and the node's by themselves, as on a cluster, with their files in one folder.
fn check_parts(name: &str, configuration: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [of_server, of_node] = ["server", "node"].map(|role| folder.path().join(role));
    let shared = folder.path().join("files");
    let mut server = Run::start_in(&of_server, &shared, name, configuration, "server");
    assert_eq!(server.line("ready")["metrics"], 0);
    let mut node = Run::start_in(&of_node, &shared, name, configuration, "node");
    assert!(node.line("ready")["metrics"].as_u64() > Some(0));
    for (used, is_server) in [(node.stop(), false), (server.stop(), true)] {
        let processes = used["processes"].as_array().unwrap();
        assert!(!processes.is_empty() && processes.iter().all(|process| process["server"] == is_server), "{used}");
    }
}

#[test]
fn performance_co_pilot() {
    check_peer("pcp", &["same", "default"], &["pmcd"], &["pmlogger"]);
}

#[test]
fn netdata() {
    check_peer("netdata", &["same", "proc", "default"], &["netdata"], &["netdata parent"]);
}

#[test]
fn rezolus() {
    check_peer("rezolus", &["same", "default"], &["rezolus"], &["rezolus record"]);
}

#[test]
fn likwid() {
    check_peer("likwid", &["clock"], &["likwid-perfctr"], &[]);
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

#[test]
fn peers_that_cannot_be_installed_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("bench/prepare-peers");
    std::fs::create_dir_all(script.parent().unwrap()).unwrap();
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/prepare-peers"), &script).unwrap();
    // Installers that fail; a peer that is installed on this machine is not looked for.
    let path = dir.path().join("bin");
    std::fs::create_dir(&path).unwrap();
    for name in ["cargo", "apt-get"] {
        let command = path.join(name);
        std::fs::write(&command, "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(&script).env("PATH", format!("{}:/usr/bin:/bin", path.display())).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let peers = [("Performance Co-Pilot", "/etc/pcp.conf"), ("Rezolus", "/usr/bin/rezolus")];
    for (name, _) in peers.iter().filter(|(_, there)| !Path::new(there).exists()) {
        assert!(said.contains(&format!("its comparison is left out: {name}")), "{name}: {said}");
    }
}
