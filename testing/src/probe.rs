//! An agent that samples counters which increase by one with each sample: values show lost and duplicate samples.

use std::path::Path;
use std::process::Command;

use crate::{Process, Site, program};

/// The interval of a probe, ms.
pub const INTERVAL_MS: i64 = 10;
/// The number of its sensors.
pub const SENSORS: usize = 500;

/// One such agent of an installation.
pub struct Probe<'a> {
    site: &'a Site,
    name: String,
}

/// A time, ns since the Unix epoch, and the counter's value.
pub type CounterSample = (i64, i64);

impl<'a> Probe<'a> {
    /// `spool` is the spool directory relative to the installation's; `queue` the bound of the send queue in memory.
    pub fn new(site: &'a Site, name: &str, spool: &str, queue: &str) -> Self {
        let (certificate, key) = site.agent_certificate(name);
        let config = format!(
            r#"
name = "{name}"
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
sensors = {SENSORS}
shape = "counter"
amplitude = 1
interval = "{INTERVAL_MS}ms"
"#,
            port = site.mqtt_port,
            ca = site.path("ca.pem").display(),
            certificate = certificate.display(),
            key = key.display(),
            socket = site.path(&format!("{name}.sock")).display(),
        );
        std::fs::write(site.path(&format!("{name}.toml")), config).expect("a writable folder");
        Self { site, name: name.to_owned() }
    }

    pub fn start(&self) -> Process {
        self.start_by(&mut Command::new(program("wholegrain-agent")))
    }

    /// Starts the agent with its own file system of `bytes` bytes (as in `mount -o size`) on the installation's directory `full`.
    pub fn start_on_small_disk(&self, bytes: &str, full: &str) -> Process {
        let agent = program("wholegrain-agent");
        let mut command = self.site.on_small_disk(bytes, full, &agent);
        self.start_by(&mut command)
    }

    fn start_by(&self, command: &mut Command) -> Process {
        let config = self.site.path(&format!("{}.toml", self.name));
        let command = command.arg("--config").arg(config);
        Process::start(command, &self.site.path(&format!("{}.log", self.name)))
    }

    /// The stored times and values of one counter; empty if there are none.
    pub fn stored(&self) -> Vec<CounterSample> {
        let sensor = format!("/{}/tester/0", self.name);
        let output = self.site.run(&["query", &sensor, "--from", "-1h", "--format", "json", "--limit", "5000000"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines"));
        let rows: Vec<_> = rows.collect();
        let Some(first) = rows.first().map(|row| row["sensor"].clone()) else { return Vec::new() };
        rows.iter()
            .filter(|row| row["sensor"] == first)
            .map(|row| (time(&row["time"]), row["value"].as_i64().expect("no gaps")))
            .collect()
    }

    /// Whether a reading after `time` is stored.
    pub fn has_later_than(&self, time: i64) -> bool {
        self.stored().last().is_some_and(|(last, _)| *last > time)
    }

    /// The agent's status with numbers such as `dropped_batches`; null without a response.
    pub fn status(&self) -> serde_json::Value {
        let socket = self.site.path(&format!("{}.sock", self.name));
        let mut command = self.site.command(&["ctl", "--socket"]);
        let output = command.arg(socket).args(["status", "--format", "json"]).output().expect("ctl");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }
}

fn time(text: &serde_json::Value) -> i64 {
    let text = text.as_str().expect("a time");
    wholegrain_model::Timestamp::parse(text, wholegrain_model::Timestamp(0)).expect("RFC 3339").0
}

/// Panics unless values and times increase, values by one: no loss, no duplicate, in order.
#[track_caller]
pub fn assert_unbroken(rows: &[CounterSample]) {
    for pair in rows.windows(2) {
        assert!(pair[1].0 > pair[0].0 && pair[1].1 == pair[0].1 + 1, "{:?} follows {:?}", pair[1], pair[0]);
    }
}

/// Nanoseconds since the Unix epoch.
pub fn now_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as i64
}

/// The size of the files directly in a directory; 0 if it does not exist.
pub fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum()
}
