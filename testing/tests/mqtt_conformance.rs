//! Runs the suite `testing/mqtt` against the server's broker and, to verify the suite, against Mosquitto.

use std::path::Path;
use std::process::{Command, Output};

use wholegrain_testing::{Process, Site, checkout, free_port, wait_until};

/// Runs the suite against a broker on loopback and prints its output.
fn ask(port: u16, arguments: &[&str]) -> Output {
    let interpreter = checkout().join(".venv/bin/python");
    assert!(interpreter.exists(), "{} is missing: `make prepare` installs it", interpreter.display());
    let script = checkout().join("testing/mqtt/run.py");
    let output = Command::new(interpreter)
        .arg(script)
        .args(["--port", &port.to_string(), "--times"])
        .args(arguments)
        .output()
        .expect("the suite runs");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    output
}

#[track_caller]
fn all_passed(output: Output) {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failures: Vec<&str> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && failures.is_empty(), "{}\n{errors}", failures.join("\n"));
    let count = said.lines().last().and_then(|line| line.split(' ').next()?.parse::<usize>().ok());
    assert!(count.is_some_and(|count| count > 200), "tests got lost: {:?}", said.lines().last());
}

#[test]
fn our_broker_conforms_to_3_1_1_and_5() {
    let site = Site::new();
    let port = free_port();
    site.set("server/server.toml", "mqtt", "listen", &format!("\"127.0.0.1:{port}\""));
    site.set("server/server.toml", "mqtt", "anonymous", "true");
    let mut server = site.start_server();
    // A client without a name may not subscribe there.
    let output = ask(port, &["--denied", "$CONTROL/#"]);
    assert!(server.runs(), "the server ended: {}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    all_passed(output);
}

#[test]
fn mosquitto_passes_the_suite() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let port = free_port();
    let mut mosquitto = start_mosquitto(folder.path(), port);
    let output = ask(port, &["--known", "mosquitto"]);
    assert!(mosquitto.runs(), "mosquitto ended: {}", mosquitto.log());
    all_passed(output);
}

fn start_mosquitto(folder: &Path, port: u16) -> Process {
    let file = folder.join("mosquitto.conf");
    let text = format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 2000\n");
    std::fs::write(&file, text).expect("mosquitto's configuration");
    let program = ["/usr/sbin/mosquitto", "/usr/bin/mosquitto"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(program.unwrap_or("mosquitto"));
    let mut mosquitto = Process::start(command.arg("-c").arg(&file), &folder.join("mosquitto.log"));
    wait_until("mosquitto listens", || {
        assert!(mosquitto.runs(), "mosquitto ended: {}", mosquitto.log());
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    mosquitto
}
