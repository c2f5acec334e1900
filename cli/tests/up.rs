//! `wholegrain up` with a real server and an agent that is a shell script; the test itself answers on the agent's socket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use wholegrain_testkit::{free_port, wait_until};

fn up(dir: &Path, agent_script: &str, ports: [u16; 2]) -> Command {
    let agent = dir.join("fake-agent");
    fs::write(&agent, format!("#!/bin/sh\n{agent_script}\n")).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
    command.current_dir(dir).env("HOME", dir).env_remove("WHOLEGRAIN_CLIENT").args(["up", "--agent", "./fake-agent"]);
    // The fake agent never sends anything that could be waited for.
    command.args(["--sensors-within", "100ms"]);
    command.args(["--mqtt-port", &ports[0].to_string(), "--http-port", &ports[1].to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Two ports that were free a moment ago.
fn free_ports() -> [u16; 2] {
    [(); 2].map(|()| free_port())
}

/// Answers on the agent's socket below `dir`.
fn answer_as_agent(dir: &Path) {
    let socket = dir.join("var/agent/agent.sock");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
}

fn interrupt(process: &Child) {
    // SAFETY: kill takes plain numbers; the process is our own child, not yet waited for.
    unsafe { libc::kill(process.id() as i32, libc::SIGINT) };
}

/// Reads what `process` says up to the line that begins so.
fn until(process: &mut Child, begin: &str) {
    let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    assert!(lines.into_iter().any(|line| line.starts_with(begin)), "no line {begin:?}");
}

#[test]
fn interrupted_while_the_agent_starts_it_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // Dies of SIGTERM, as every program does before it has set up its handling of signals; and never answers.
    let process = up(dir.path(), "touch started; exec sleep 600", free_ports()).spawn().unwrap();
    wait_until("the file started", || dir.path().join("started").exists());
    interrupt(&process);
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {said}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Stopped."));
}

#[test]
fn a_program_that_stops_badly_is_named() {
    let dir = tempfile::tempdir().unwrap();
    answer_as_agent(dir.path());
    let script = "trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let mut process = up(dir.path(), script, free_ports()).spawn().unwrap();
    until(&mut process, "Ctrl-C stops");
    interrupt(&process);
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the agent ended badly (exit status: 3)") && said.contains("agent.log"), "{said}");
}

#[test]
fn a_program_that_the_same_signal_ends_first_has_not_ended_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    answer_as_agent(dir.path());
    // Ends in order, as if it had got the signal too; and then we get ours.
    let script = "trap '' TERM; until [ -e end ]; do sleep 0.05; done; echo > over; exit 0";
    let mut process = up(dir.path(), script, free_ports()).spawn().unwrap();
    until(&mut process, "Ctrl-C stops");
    fs::write(dir.path().join("end"), "").unwrap();
    wait_until("the file over", || dir.path().join("over").exists());
    interrupt(&process);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{} {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn starts_both_says_what_to_type_and_stops_both() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'echo stopped; exit 0' TERM; echo started $1 $2; while :; do sleep 0.05; done";
    let mut tokens = Vec::new();
    for round in 0..2 {
        let ports = free_ports();
        answer_as_agent(dir.path());
        let mut process = up(dir.path(), script, ports).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("Ctrl-C stops")).collect();
        let said = said.join("\n");
        let begin = if round == 0 { "Made a new installation" } else { "Continuing with the data" };
        for part in [begin, "Running:", "query", "watch", "ctl status", &format!("https://localhost:{}", ports[1])] {
            assert!(said.contains(part), "no {part:?}: {said}");
        }
        assert!(!said.contains("--client"), "var/client.toml is found without: {said}");
        interrupt(&process);
        let rest: Vec<String> = lines.collect();
        assert!(process.wait().unwrap().success(), "{rest:?}");
        assert!(rest.iter().any(|line| line.starts_with("Stopped.")), "{rest:?}");
        let log = fs::read_to_string(dir.path().join("var/agent/agent.log")).unwrap();
        assert_eq!(log.matches("stopped").count(), round + 1, "{log}");
        assert!(log.contains("started --config var/agent/agent.toml"), "{log}");
        tokens.push(fs::read(dir.path().join("var/token")).unwrap());
    }
    assert_eq!(tokens[0], tokens[1], "the second start keeps what is there");
}

#[test]
fn an_agent_that_dies_is_reported_with_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let output = up(dir.path(), "echo cannot read my configuration; exit 7", free_ports()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    for part in ["the agent has ended by itself", "exit status: 7", "cannot read my configuration", "agent.log"] {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
}

#[test]
fn a_port_that_is_taken_is_named_with_the_option_to_change_it() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("localhost:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = up(dir.path(), "exit 0", [free_ports()[0], port]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    for part in [&format!("localhost:{port}"), "is taken", "--http-port"] {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
    assert_eq!(files(dir.path()), [], "nothing was made");
}

/// The configurations and secrets below `dir/var`, with their bytes.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let folders = ["var", "var/server", "var/agent"].map(|folder| dir.join(folder));
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let is_kept = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["toml", "new", "pem", "key"].contains(&&*extension) || ["token", "tokens", "passwords"].contains(&&*name)
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(is_kept).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_start_that_is_refused_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    answer_as_agent(dir.path());
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let ports = free_ports();
    let mut process = up(dir.path(), script, ports).spawn().unwrap();
    until(&mut process, "Ctrl-C stops");
    let before = files(dir.path());
    assert!(before.len() >= 9, "{:?}", before.iter().map(|(path, _)| path).collect::<Vec<_>>());
    let refused = |ports: [u16; 2], why: &str| {
        let output = up(dir.path(), script, ports).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        for ((path, old), (now, new)) in before.iter().zip(files(dir.path())) {
            assert!(*path == now && *old == new, "{} changed with the ports {ports:?}", path.display());
        }
        assert_eq!(before.len(), files(dir.path()).len());
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(why), "no {why:?}: {said}");
    };
    let [mqtt, http] = free_ports();
    for other in [[ports[0], http], [mqtt, ports[1]], [mqtt, http], ports] {
        refused(other, "a server runs here already: process ");
    }
    interrupt(&process);
    assert!(process.wait().unwrap().success());
    let taken = TcpListener::bind("localhost:0").unwrap();
    refused([mqtt, taken.local_addr().unwrap().port()], "is taken");
}
