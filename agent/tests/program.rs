//! The program on the command line: exit codes, output, and shutdown.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use wholegrain_testkit::wait_until;

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain-agent"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = agent(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn config(dir: &Path, more: &str) -> String {
    let file = dir.join("agent.toml");
    let text = format!(
        "name = \"n1\"\n[sources.tester]\nsensors = 2\nshape = \"constant\"\nvalue = 42\ninterval = \"100ms\"\n[api]\nsocket = \"agent.sock\"\n{more}"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn check_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "[mqtt]\nurl = \"mqtt://h\"\n");
    let (code, out, _) = run(&["--config", &file, "--check"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("agent n1 at /n1, to mqtt://h\n") && out.contains("wholegrain/v1/batch/n1/tester"), "{out}");
    let (code, out, _) = run(&["--config", &file, "--check", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["groups"][0]["readings_per_second"]), (Some(0), &20.0.into()));
    assert!(report["bytes_per_second"].as_f64() > Some(1.0));
    let (code, out, _) = run(&["--config", &file, "--once"]);
    assert!(code == Some(0) && out.starts_with("/n1/tester/0") && out.contains("  42 1\n"), "{out}");
    let (_, out, _) = run(&["--config", &file, "--once", "--format", "json"]);
    let once: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&once["readings"][1]["path"], &once["readings"][1]["value"]), (&"/n1/tester/1".into(), &42.into()));
}

#[test]
fn a_plugin_that_cannot_run_fails_the_check_and_a_second_owner_of_a_sensor_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let second = "[sources.textfile]\ndir = \"texts\"\nprefix = \"tester\"\n";
    fs::create_dir(dir.path().join("texts")).unwrap();
    fs::write(dir.path().join("texts/copy.txt"), "0 7\n").unwrap();
    let (code, out, _) = run(&["--config", &config(dir.path(), second), "--check"]);
    let note = "note: group tester is left out: group textfile/copy has its sensor tester/0 already\n";
    assert!(code == Some(0) && out.contains(note), "{code:?} {out}");
    let missing = "[plugins.absent]\nlibrary = \"/nonexistent/absent.so\"\n";
    for how in ["--check", "--once"] {
        let (code, out, error) = run(&["--config", &config(dir.path(), missing), how]);
        let named = if how == "--check" { &out } else { &error };
        assert!(code == Some(1) && error.contains("cannot run: ") && named.contains("absent.so"), "{code:?} {error}");
        assert!(out.contains("tester"), "the other groups are shown: {out}");
    }
}

#[test]
fn wrong_arguments_and_configurations_end_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "[mqqt]\nurl = \"mqtt://h\"\n");
    let (code, out, error) = run(&["--config", &file, "--check"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(error, format!("wholegrain-agent: {file}:9:2: unknown key `mqqt`; did you mean `mqtt`?\n"));
    assert_eq!(run(&["--config", "/nonexistent"]).0, Some(2));
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["--config", &file, "--check", "--once"]).0, Some(2));
    let (code, out, _) = run(&["--help"]);
    assert!(code == Some(0) && out.contains("Examples:") && out.contains("Exit codes:"));
}

#[test]
fn sigterm_ends_it_in_peace() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = agent(&["--config", &config(dir.path(), "")]).stderr(Stdio::null()).spawn().unwrap();
    let socket = dir.path().join("agent.sock");
    wait_until("the socket", || socket.exists());
    // SAFETY: sends a signal to a child of this process that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let mut status = None;
    wait_until("the end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    assert!(!socket.exists());
}

/// The notifications that a program has sent to the service manager so far.
fn received(manager: &UnixDatagram, all: &mut String) -> String {
    let mut buffer = [0; 4096];
    while let Ok(count) = manager.recv(&mut buffer) {
        all.push_str(&String::from_utf8_lossy(&buffer[..count]));
        all.push('\n');
    }
    all.clone()
}

#[test]
fn the_service_manager_is_notified_and_a_hangup_reloads() {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut all = String::new();
    let log = fs::File::create(dir.path().join("log")).unwrap();
    let file = config(dir.path(), "");
    let mut command = agent(&["--config", &file]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "200000").stderr(log);
    let mut child = command.spawn().unwrap();
    wait_until("READY", || received(&manager, &mut all).starts_with("READY=1"));
    wait_until("WATCHDOG", || received(&manager, &mut all).matches("WATCHDOG=1").count() > 2);
    let hang_up = || {
        // SAFETY: sends a signal to a child of this process that has not been waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGHUP) };
    };
    let said = || fs::read_to_string(dir.path().join("log")).unwrap();
    fs::write(
        &file,
        fs::read_to_string(&file).unwrap().replace("name = \"n1\"", "name = \"n1\"\nlog_level = \"debug\""),
    )
    .unwrap();
    hang_up();
    wait_until("RELOADING", || received(&manager, &mut all).contains("RELOADING=1"));
    wait_until("the reload", || said().contains("loaded "));
    fs::write(&file, "nam = \"n1\"\n").unwrap();
    hang_up();
    wait_until("the mistake", || said().contains("agent.toml:1:1: unknown key `nam`"));
    // SAFETY: as above.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(received(&manager, &mut all).trim_end().ends_with("STOPPING=1"), "{all}");
}

#[test]
fn what_cannot_start_ends_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "");
    fs::write(dir.path().join("agent.sock"), "not a socket").unwrap();
    let (code, _, error) = run(&["--config", &file]);
    assert!(code == Some(1) && error.contains("exists and is not a socket"), "{error}");
    assert_eq!(
        fs::read_to_string(dir.path().join("agent.sock")).unwrap(),
        "not a socket",
        "a file that is not ours stays"
    );
}

#[test]
fn it_may_open_as_many_files_as_the_system_lets_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "");
    let program = env!("CARGO_BIN_EXE_wholegrain-agent");
    let script = format!("ulimit -Sn 64; exec '{program}' --config '{file}'");
    let mut child = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    let socket = dir.path().join("agent.sock");
    wait_until("the socket", || socket.exists());
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let (soft, hard) = (line.split_whitespace().next(), line.split_whitespace().nth(1));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(soft == hard && soft != Some("64"), "{line}");
}

/// Processes that use all CPU time until dropped.
struct Burners(Vec<Child>);

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn where_all_cpus_work_the_sampler_is_on_each_in_its_turn() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        println!("skipped: there is one CPU");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "");
    let text = fs::read_to_string(&file).unwrap().replace("100ms", "1ms");
    fs::write(&file, text).unwrap();
    let burn = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let _burners = Burners((0..cpus).map(|_| burn()).collect());
    let agent = agent(&["--config", &file]).stderr(Stdio::null()).spawn().unwrap();
    let tasks = format!("/proc/{}/task", agent.id());
    let _agent = Burners(vec![agent]);
    let mut seen = BTreeSet::new();
    wait_until("the sampler on two CPUs, one after the other", || {
        for task in fs::read_dir(&tasks).into_iter().flatten().flatten() {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            if of("Name:") == Some("sampler") {
                seen.extend(of("Cpus_allowed_list:").and_then(|list| list.parse::<usize>().ok()));
            }
        }
        seen.len() >= 2
    });
}
