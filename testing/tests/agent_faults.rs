//! The agent when things go wrong around it: no server for longer than its memory holds, SIGKILL, no room for its spool.

use std::path::Path;
use std::process::Command;

use wholegrain_testing::{Process, Site, program, wait_until};

/// Sampling interval of the probe, ms.
const INTERVAL_MS: i64 = 10;

/// An agent that samples a counter which rises by one with every sample: a lost or doubled sample shows in the values.
struct Probe {
    site: Site,
}

impl Probe {
    /// `spool` is the folder for what nobody takes, `queue` the bound of the memory before it.
    fn new(spool: &str, queue: &str) -> Self {
        let site = Site::new();
        let (certificate, key) = site.agent_certificate("probe");
        let config = format!(
            r#"
name = "probe"
[mqtt]
url = "mqtts://localhost:{port}"
ca = "{ca}"
cert = "{certificate}"
key = "{key}"
send_interval = "100ms"
queue_bytes_max = "{queue}"
[spool]
dir = "{spool}"
after = "500ms"
flush_every = "200ms"
[api]
socket = "{socket}"
[sources.tester]
sensors = 500
shape = "counter"
amplitude = 1
interval = "{INTERVAL_MS}ms"
"#,
            port = site.mqtt_port,
            ca = site.path("ca.pem").display(),
            certificate = certificate.display(),
            key = key.display(),
            socket = site.path("probe.sock").display(),
        );
        std::fs::write(site.path("probe.toml"), config).expect("a writable folder");
        Self { site }
    }

    fn start(&self) -> Process {
        let mut command = Command::new(program("wholegrain-agent"));
        Process::start(command.arg("--config").arg(self.site.path("probe.toml")), &self.site.path("probe.log"))
    }

    /// Times (ns) and values of one of the counters, as the server has them; empty while it has none.
    fn stored(&self) -> Vec<(i64, i64)> {
        let output =
            self.site.run(&["query", "/probe/tester/0", "--from", "-1h", "--format", "json", "--limit", "5000000"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines"));
        let rows: Vec<_> = rows.collect();
        let Some(first) = rows.first().map(|row| row["sensor"].clone()) else { return Vec::new() };
        rows.iter()
            .filter(|row| row["sensor"] == first)
            .map(|row| (time(&row["time"]), row["value"].as_i64().expect("no gaps")))
            .collect()
    }

    /// A number of the agent's own status, such as `dropped_batches`.
    fn status(&self) -> serde_json::Value {
        let socket = self.site.path("probe.sock");
        let output = self
            .site
            .command(&["ctl", "--socket"])
            .arg(socket)
            .args(["status", "--format", "json"])
            .output()
            .expect("ctl");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }
}

fn time(text: &serde_json::Value) -> i64 {
    let text = text.as_str().expect("a time");
    wholegrain_model::Timestamp::parse(text, wholegrain_model::Timestamp(0)).expect("RFC 3339").0
}

/// Whether the values rise by one from row to row and the times rise too: nothing lost, nothing doubled, in order.
#[track_caller]
fn assert_unbroken(rows: &[(i64, i64)]) {
    for pair in rows.windows(2) {
        assert!(pair[1].0 > pair[0].0 && pair[1].1 == pair[0].1 + 1, "{:?} follows {:?}", pair[1], pair[0]);
    }
}

fn now_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as i64
}

fn spool_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum()
}

#[test]
fn a_server_away_for_longer_than_memory_gets_everything_in_order() {
    // 64 KiB hold far less than what is sampled while the server is away.
    let probe = Probe::new("probe-spool", "64KiB");
    let mut server = probe.site.start_server();
    let mut agent = probe.start();
    wait_until("first readings", || !probe.stored().is_empty());
    server.kill();
    let left = now_ns();
    wait_until("the spool holds more than the memory", || spool_bytes(&probe.site.path("probe-spool")) > 128 << 10);
    let mut server = probe.site.start_server();
    let back = now_ns();
    // Live readings must not wait for the spool; then the hole must close.
    wait_until("live readings", || probe.stored().last().is_some_and(|(time, _)| *time > back));
    wait_until("the hole closes", || {
        let rows = probe.stored();
        rows.iter().filter(|(time, _)| (left..back).contains(time)).count() as i64
            >= (back - left) / (INTERVAL_MS * 1_000_000) / 2
            && rows.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1)
    });
    let rows = probe.stored();
    assert_unbroken(&rows);
    assert!(rows.first().is_some_and(|(time, _)| *time < left) && rows.last().is_some_and(|(time, _)| *time > back));
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn an_agent_killed_loses_at_most_what_the_spool_had_not_written() {
    let probe = Probe::new("probe-spool", "4MiB");
    let mut server = probe.site.start_server();
    let mut agent = probe.start();
    wait_until("first readings", || !probe.stored().is_empty());
    server.kill();
    wait_until("the spool is written", || spool_bytes(&probe.site.path("probe-spool")) > 64 << 10);
    agent.kill();
    let killed = now_ns();
    let mut server = probe.site.start_server();
    let mut agent = probe.start();
    wait_until("readings of the new agent", || probe.stored().last().is_some_and(|(time, _)| *time > killed));
    // A new process counts from the start: everything before its first value is the old one's.
    let old = |rows: &[(i64, i64)]| rows.iter().copied().filter(|(time, _)| *time < killed).collect::<Vec<_>>();
    // send_interval + spool.after + spool.flush_every are 0.8 s; the rest is for a machine that is busy.
    let bound_ns = 3_000_000_000;
    wait_until("the spool arrives", || old(&probe.stored()).last().is_some_and(|(time, _)| killed - time < bound_ns));
    assert_unbroken(&old(&probe.stored()));
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_full_disk_under_the_spool_drops_and_counts_and_harms_nothing_else() {
    let probe = Probe::new("full", "64KiB");
    std::fs::create_dir_all(probe.site.path("full")).expect("a folder to mount on");
    let script = format!(
        "mount -t tmpfs -o size=128k none '{full}' && exec '{agent}' --config '{config}'",
        full = probe.site.path("full").display(),
        agent = program("wholegrain-agent").display(),
        config = probe.site.path("probe.toml").display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &script]);
    let mut agent = Process::start(&mut command, &probe.site.path("probe.log"));
    wait_until("drops are counted", || {
        assert!(agent.runs(), "the agent ended: {}", agent.log());
        probe.status()["dropped_batches"].as_u64().is_some_and(|count| count > 10)
    });
    let log = agent.log();
    assert!(log.contains("no space left"), "the log names the cause: {log}");
    assert!(log.lines().count() < 200, "at a bounded rate: {} lines", log.lines().count());
    // Sampling goes on, and when a server comes it gets what was kept and all that is new.
    let mut server = probe.site.start_server();
    let back = now_ns();
    wait_until("live readings", || probe.stored().last().is_some_and(|(time, _)| *time > back));
    let live: Vec<_> = probe.stored().into_iter().filter(|(time, _)| *time > back).collect();
    assert_unbroken(&live);
    assert!(agent.stop().success() && server.stop().success());
}
