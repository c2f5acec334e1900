//! The monitors of others that are too large for `testing/prepare`: Performance Co-Pilot, Netdata, LIKWID, Rezolus. Each test runs
//! when `bench/prepare` has installed its peer and the machine allows it, and otherwise prints on standard error that it did not.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wholegrain_testing::wait_until;

/// How long a peer samples in these tests.
const WINDOW: Duration = Duration::from_secs(6);
/// The variable by which whatever a test has started is found again.
const MARK: &str = "WHOLEGRAIN_PEERS_TEST";

/// The version of a peer, or none and a word on standard error.
fn there(name: &str) -> Option<String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_wholegrain-bench")).args(["monitor", "list", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["monitor"] == name);
    let row = row.unwrap_or_else(|| panic!("`monitor list` has no {name}: {rows}"));
    let version = row["version"].as_str().map(str::to_owned);
    if version.is_none() {
        let reason = row["missing"].as_str().unwrap();
        assert!(!reason.is_empty());
        eprintln!("not tested: {reason}");
    }
    version
}

/// A peer that runs until it is dropped or stopped.
struct Peer {
    process: Child,
    lines: BufReader<ChildStdout>,
    mark: String,
    errors: PathBuf,
}

impl Peer {
    /// Starts one and waits until it is ready.
    fn start(name: &str, configuration: &str, interval: &str, role: &str, dir: &Path) -> (Self, Value) {
        let mark = format!("{}-{name}-{configuration}-{role}", std::process::id());
        let errors = dir.join(format!("errors-{role}"));
        let mut process = Command::new(env!("CARGO_BIN_EXE_wholegrain-bench"))
            .args([
                "monitor",
                "run",
                name,
                "--configuration",
                configuration,
                "--interval",
                interval,
                "--role",
                role,
                "--dir",
            ])
            .arg(dir)
            .env(MARK, &mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut peer = Self { process, lines, mark, errors };
        let ready = peer.line();
        assert_eq!(
            (ready["ready"]["monitor"].as_str(), ready["ready"]["host"].is_string()),
            (Some(name), true),
            "{ready}"
        );
        (peer, ready["ready"].clone())
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}: {}", self.messages()))
    }

    fn messages(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Ends it by the end of its standard input; nothing of it may be left.
    fn stop(mut self) -> Value {
        drop(self.process.stdin.take());
        let used = self.line();
        assert!(self.process.wait().unwrap().success(), "{}", self.messages());
        assert!(!self.messages().contains("is killed"), "it did not end when it was stopped: {}", self.messages());
        wait_until("all of its processes are gone", || marked(&self.mark).is_empty());
        used["used"].clone()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its children die with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The processes with a mark in their environment.
fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let environ = |dir: &Path| std::fs::read(dir.join("environ")).unwrap_or_default();
    let found =
        entries.filter(|entry| environ(&entry.path()).split(|byte| *byte == 0).any(|variable| variable == wanted));
    found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Starts a peer on this machine with both parts, and checks its reports; returns the number of its values.
fn check(name: &str, configuration: &str, node: &[&str], server: &[&str]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (peer, ready) = Peer::start(name, configuration, "1s", "both", dir.path());
    eprintln!("{name} {configuration}: {} values", ready["metrics"]);
    assert!(ready["metrics"].as_u64().unwrap() > 0, "{ready}");
    assert!(ready["configured"].as_str().unwrap().contains(&dir.path().display().to_string()), "{ready}");
    assert!(!marked(&peer.mark).is_empty(), "a mark that finds nothing proves nothing");
    std::thread::sleep(WINDOW);
    let used = peer.stop();
    let of = |server: bool| -> Vec<&str> {
        let processes = used["processes"].as_array().unwrap().iter().filter(|process| process["server"] == server);
        processes.map(|process| process["name"].as_str().unwrap()).collect()
    };
    assert_eq!((of(false), of(true)), (node.to_vec(), server.to_vec()), "{used}");
    for process in used["processes"].as_array().unwrap() {
        let figure = |name: &str| process[name].as_u64().unwrap();
        assert!(figure("cpu_ns") > 0 && figure("rss_kb") > 500 && figure("pss_kb") <= figure("rss_kb"), "{used}");
    }
    // One sample a period: a loaded machine loses some, none makes more than there are periods.
    let periods = used["window_ns"].as_u64().unwrap() / 1_000_000_000;
    let samples = used["samples"].as_u64().unwrap();
    assert!(samples >= periods / 2 && samples <= periods + 2, "{samples} samples in {periods} s: {used}");
    ready["metrics"].as_u64().unwrap()
}

/// Starts the server's part and the node's by themselves, as on a cluster, in one folder.
fn check_apart(name: &str, configuration: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (server, ready) = Peer::start(name, configuration, "1s", "server", dir.path());
    assert_eq!(ready["metrics"], 0, "{ready}");
    let (node, ready) = Peer::start(name, configuration, "1s", "node", dir.path());
    assert!(ready["metrics"].as_u64().unwrap() > 0, "{ready}");
    let used = [node.stop(), server.stop()];
    for (used, of_server) in used.iter().zip([false, true]) {
        let processes = used["processes"].as_array().unwrap();
        assert!(!processes.is_empty() && processes.iter().all(|process| process["server"] == of_server), "{used}");
    }
}

#[test]
fn performance_co_pilot() {
    let Some(version) = there("pcp") else { return };
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
    let same = check("pcp", "same", &["pmcd"], &["pmlogger"]);
    let all = check("pcp", "default", &["pmcd"], &["pmlogger"]);
    assert!(all > same, "{all} values of all agents, {same} of three files");
    check_apart("pcp", "same");
}

#[test]
fn netdata() {
    let Some(version) = there("netdata") else { return };
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
    let same = check("netdata", "same", &["netdata"], &["netdata parent"]);
    let proc = check("netdata", "proc", &["netdata"], &["netdata parent"]);
    let all = check("netdata", "default", &["netdata"], &["netdata parent"]);
    assert!(
        all > proc && proc > same,
        "{all} values of all plugins, {proc} of the one of /proc, {same} of three files"
    );
    check_apart("netdata", "same");
}

#[test]
fn rezolus() {
    let Some(version) = there("rezolus") else { return };
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
    let same = check("rezolus", "same", &["rezolus"], &["rezolus record"]);
    let all = check("rezolus", "default", &["rezolus"], &["rezolus record"]);
    assert!(all > same, "{all} values of all samplers, {same} of three");
    check_apart("rezolus", "same");
}

#[test]
fn likwid() {
    if there("likwid").is_some() {
        check("likwid", "clock", &["likwid-perfctr"], &[]);
    }
}

/// A monitor that is killed leaves nothing: its children die with it.
#[test]
fn a_killed_monitor_takes_its_processes_along() {
    if there("pcp").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut peer, _) = Peer::start("pcp", "same", "1s", "both", dir.path());
    assert!(marked(&peer.mark).len() > 2);
    peer.process.kill().unwrap();
    peer.process.wait().unwrap();
    wait_until("all of its processes are gone", || marked(&peer.mark).is_empty());
}

#[test]
fn what_cannot_be_had_is_tried_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("bench/prepare-peers");
    std::fs::create_dir_all(script.parent().unwrap()).unwrap();
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/prepare-peers"), &script).unwrap();
    // Commands that get nothing, before those of the machine; a peer that is installed there is not looked for.
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
