//! `wholegrain ctl` with a real agent: every subcommand over the Unix socket, the same over HTTPS with a token, and the effect of changes on the
//! server's readings.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wholegrain_testing::{Process, Site, free_port, program, wait_until};

/// The interval of the counter that must not have a hole, ms.
const INTERVAL_MS: i64 = 10;

/// An installation with an agent that samples a counter, which increases by one with each sample, and /proc/meminfo.
struct Controlled {
    site: Site,
    https_port: u16,
    certificate: String,
}

impl Controlled {
    fn new() -> Self {
        let site = Site::new();
        let (certificate, key) = site.agent_certificate("probe");
        let certificate = format!("cert = \"{}\"\nkey = \"{}\"", certificate.display(), key.display());
        let controlled = Self { site, https_port: free_port(), certificate };
        controlled.configure("1s", "");
        // `ctl` finds the agent by client.toml, as for a user.
        let socket = format!("\"{}\"", controlled.site.path("probe.sock").display());
        controlled.site.set("client.toml", "", "agent_socket", &socket);
        controlled
    }

    /// Writes the agent's configuration: /proc/meminfo with this interval, and further lines.
    fn configure(&self, meminfo: &str, more: &str) {
        let Self { site, https_port, certificate } = self;
        let path = |name: &str| site.path(name).display().to_string();
        let config = format!(
            r#"name = "probe"
[mqtt]
url = "mqtts://localhost:{port}"
ca = "{ca}"
{certificate}
send_interval = "100ms"
[api]
socket = "{socket}"
listen = "127.0.0.1:{https_port}"
cert = "{server}"
key = "{server_key}"
token_file = "{token}"
[sources.tester]
sensors = 2
shape = "counter"
amplitude = 1
interval = "{INTERVAL_MS}ms"
[sources.procfs]
groups = ["meminfo"]
interval = "{meminfo}"
{more}
"#,
            port = site.mqtt_port,
            ca = path("ca.pem"),
            socket = path("probe.sock"),
            server = path("server/server.pem"),
            server_key = path("server/server.key"),
            token = path("token"),
        );
        std::fs::write(site.path("probe.toml"), config).expect("a writable folder");
    }

    fn start(&self) -> Process {
        let mut command = Command::new(program("wholegrain-agent"));
        let agent =
            Process::start(command.arg("--config").arg(self.site.path("probe.toml")), &self.site.path("probe.log"));
        wait_until("the agent answers", || self.site.run(&["ctl", "status"]).status.success());
        agent
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        self.site.run(&[&["ctl"], arguments].concat())
    }

    /// Returns the output as JSON.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.site.answer(&[&["ctl", "--format", "json"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the exit code and standard error.
    fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.ctl(arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn interval_ns(&self, group: &str) -> Option<u64> {
        let groups = self.json(&["groups"]);
        groups["groups"].as_array()?.iter().find(|row| row["group"] == group)?["interval_ns"].as_u64()
    }

    fn source_state(&self, source: &str) -> String {
        let sources = self.json(&["sources"]);
        let rows = sources["sources"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["source"] == source).expect("the source");
        row["state"].as_str().expect("a state").to_owned()
    }

    /// The stored values of the counter, in order of time.
    fn stored(&self) -> Vec<i64> {
        self.column("/probe/tester/0", "value").iter().map(|value| value.as_i64().expect("no gap")).collect()
    }

    fn column(&self, sensor: &str, name: &str) -> Vec<Value> {
        let output = self.site.run(&["query", sensor, "--from", "-1h", "--format", "json", "--limit", "5000000"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON lines")[name].clone()).collect()
    }
}

#[track_caller]
fn assert_unbroken(values: &[i64]) {
    for pair in values.windows(2) {
        assert_eq!(pair[1], pair[0] + 1, "a reading is missing or doubled: {} follows {}", pair[1], pair[0]);
    }
}

#[test]
fn every_subcommand_works_over_the_socket() {
    let site = Controlled::new();
    let mut agent = site.start();
    wait_until("a reading", || site.json(&["newest", "tester/0"])["readings"][0]["value"].is_number());
    let status = site.json(&["status"]);
    assert_eq!((&status["name"], &status["prefix"]), (&"probe".into(), &"/probe".into()));
    assert_eq!(site.source_state("tester"), "running");
    assert_eq!(site.interval_ns("tester"), Some(10_000_000));
    let sensors = site.json(&["sensors", "tester/*"]);
    assert_eq!(sensors["sensors"].as_array().map(Vec::len), Some(2));
    let newest = || site.json(&["newest", "/probe/tester/0"])["readings"][0]["value"].as_i64();
    let first = newest();
    wait_until("a newer reading", || newest() > first);
    let average = &site.json(&["average", "tester/0", "--window", "1h"])["averages"][0];
    assert!(average["count"].as_i64() > Some(0) && average["unit"] == "1", "{average}");
    let history = site.json(&["history", "tester/0", "--from", "-1h"]);
    let values: Vec<i64> =
        history["readings"].as_array().expect("a list").iter().filter_map(|row| row["value"].as_i64()).collect();
    assert!(!values.is_empty());
    assert_unbroken(&values);
    wait_until("a reading of meminfo", || site.json(&["newest", "MemTotal"])["readings"][0]["value"].is_number());
    // Each text output is a table with its subject.
    for (arguments, part) in [
        (&["status"][..], "probe"),
        (&["sources"], "tester"),
        (&["groups"], "10ms"),
        (&["sensors"], "/probe/meminfo/MemFree"),
        (&["newest", "MemTotal"], "By"),
        (&["average", "MemTotal", "--window", "1h"], "MEAN"),
        (&["history", "MemTotal", "--from", "-1h"], "VALUE"),
        (&["interval", "meminfo", "50ms"], "50ms"),
        (&["stop", "procfs"], "stopped source procfs"),
        (&["start", "procfs"], "started source procfs"),
        (&["reload"], "loaded"),
    ] {
        let text = site.site.answer(&[&["ctl"], arguments].concat());
        assert!(text.contains(part), "ctl {arguments:?}: {text}");
    }
    let (code, error) = site.refused(&["newest", "no/such"]);
    assert!(code == Some(1) && error.contains("ctl sensors"), "{code:?} {error}");
    assert!(agent.stop().success());
    let (code, error) = site.refused(&["status"]);
    assert!(code == Some(3) && error.contains("is it running"), "{code:?} {error}");
}

#[test]
fn commands_change_only_the_sources_that_they_name() {
    let site = Controlled::new();
    let mut agent = site.start();
    assert_eq!(
        site.json(&["interval", "meminfo", "20ms"])["done"].as_str().map(|text| text.contains("20ms")),
        Some(true)
    );
    assert_eq!((site.interval_ns("meminfo"), site.interval_ns("tester")), (Some(20_000_000), Some(10_000_000)));
    let (code, error) = site.refused(&["interval", "meminfo", "0.5ms"]);
    assert!(code == Some(2) && error.contains("500us is too short; the shortest is 1ms"), "{code:?} {error}");
    assert_eq!(site.interval_ns("meminfo"), Some(20_000_000), "a refused order changes nothing");
    let (code, error) = site.refused(&["interval", "memnfo", "1s"]);
    assert!(code == Some(2) && error.contains("did you mean \"meminfo\"?"), "{code:?} {error}");
    let (code, error) = site.refused(&["stop", "procf"]);
    assert!(code == Some(2) && error.contains("did you mean \"procfs\"?"), "{code:?} {error}");
    site.json(&["stop", "procfs"]);
    assert_eq!((site.source_state("procfs"), site.interval_ns("meminfo")), ("stopped".into(), None));
    site.json(&["start", "procfs"]);
    assert_eq!((site.source_state("procfs"), site.interval_ns("meminfo")), ("running".into(), Some(20_000_000)));
    site.json(&["reload"]);
    assert_eq!(site.interval_ns("meminfo"), Some(1_000_000_000), "a reload ends what people asked for meanwhile");
    assert!(agent.stop().success());
}

#[test]
fn a_reload_leaves_no_hole_and_an_invalid_file_changes_nothing() {
    let site = Controlled::new();
    let mut server = site.site.start_server();
    let mut agent = site.start();
    wait_until("first readings at the server", || !site.stored().is_empty());
    let file = site.site.path("probe.toml");
    for round in 0..6 {
        let interval = if round % 2 == 0 { "20ms" } else { "50ms" };
        site.configure(interval, "");
        let answer = site.json(&["reload"]);
        assert!(answer["done"].as_str().is_some_and(|text| text.contains("probe.toml")), "{answer}");
        let wanted = if round % 2 == 0 { 20_000_000 } else { 50_000_000 };
        assert_eq!((site.interval_ns("meminfo"), site.interval_ns("tester")), (Some(wanted), Some(10_000_000)));
        let before = site.stored().len();
        wait_until("readings after the reload", || site.stored().len() > before + 10);
    }
    site.configure("50ms", "intervall = \"1s\"");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let line = text.lines().position(|line| line.starts_with("intervall")).expect("the line") + 1;
    let (code, error) = site.refused(&["reload"]);
    let place = format!("{}:{line}:", file.display());
    assert!(
        code == Some(2) && error.contains(&place) && error.contains("did you mean `interval`?"),
        "{code:?} {error}"
    );
    assert_eq!((site.interval_ns("meminfo"), site.source_state("tester")), (Some(50_000_000), "running".into()));
    let before = site.stored().len();
    wait_until("readings after the refusal", || site.stored().len() > before + 10);
    let values = site.stored();
    // The counter counts reads: it restarts when its reader is replaced, and has a hole where a reading is lost.
    assert_unbroken(&values);
    assert_eq!(values.first(), Some(&0), "from the first reading on");
    let times = site.column("/probe/meminfo/MemTotal", "time");
    assert!(times.len() > 10, "the group whose interval changed came too: {}", times.len());
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn https_requires_the_token() {
    let site = Controlled::new();
    let mut agent = site.start();
    let url = format!("https://localhost:{}", site.https_port);
    assert_eq!(site.json(&["--url", &url, "status"])["name"], "probe");
    let newest = || site.json(&["--url", &url, "newest", "tester/0"])["readings"][0]["value"].is_number();
    wait_until("a reading", newest);
    let history = site.json(&["--url", &url, "history", "tester/0", "--from", "-1h"]);
    assert!(history["readings"].as_array().is_some_and(|rows| !rows.is_empty()), "{history}");
    site.json(&["--url", &url, "interval", "meminfo", "70ms"]);
    assert_eq!(site.interval_ns("meminfo"), Some(70_000_000));
    let wrong = client_with(&site.site, "wrong.toml", "ca.pem", "not-the-token");
    let (code, error) = ask(&site.site, &wrong, &url);
    assert!(code == Some(2) && error.contains("send a token") && error.contains("token_file"), "{code:?} {error}");
    // The CA of another installation did not sign this certificate.
    let other = Site::new();
    std::fs::copy(other.path("ca.pem"), site.site.path("other-ca.pem")).expect("a copy");
    let token = std::fs::read_to_string(site.site.path("token")).expect("the token");
    let distrusting = client_with(&site.site, "distrusting.toml", "other-ca.pem", token.trim());
    let (code, error) = ask(&site.site, &distrusting, &url);
    assert!(code == Some(3) && error.contains("TLS"), "{code:?} {error}");
    let (code, error) = site.refused(&["--url", &url.replace("https", "http"), "status"]);
    assert!(code == Some(2) && error.contains("https://"), "{code:?} {error}");
    assert!(site.site.answer(&["ctl", "--help"]).contains("or is refused"), "the exit codes are documented");
    assert!(agent.stop().success());
    let (code, error) = site.refused(&["--url", &url, "status"]);
    assert!(code == Some(3) && error.contains("is the agent running"), "{code:?} {error}");
}

/// Writes a client.toml with this CA and this token; returns its path.
fn client_with(site: &Site, name: &str, ca: &str, token: &str) -> std::path::PathBuf {
    std::fs::write(site.path(&format!("{name}.token")), token).expect("a writable folder");
    std::fs::write(site.path(name), format!("ca = \"{ca}\"\ntoken_file = \"{name}.token\"\n"))
        .expect("a writable folder");
    site.path(name)
}

fn ask(site: &Site, client: &Path, url: &str) -> (Option<i32>, String) {
    let mut command = site.command(&["ctl", "--url", url, "status"]);
    let output = command.env("WHOLEGRAIN_CLIENT", client).output().expect("ctl");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
