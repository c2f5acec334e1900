//! The server under load: its installation, and waiting until it is idle.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wholegrain_testing::{Process, Site, free_port};

use crate::load::fleet::Target;
use crate::report::measure_for;

/// Loopback addresses that connections take in turn.
const ADDRESSES: u8 = 4;
/// The server is idle when it uses less than [`IDLE_CPU`] of a core for this time: its merger runs every ten
/// seconds.
const IDLE_SECONDS: f64 = 12.0;
const IDLE_CPU: f64 = 0.05;
/// Timeout after the last reading.
const BUSY_MAX: Duration = Duration::from_secs(900);

/// An installation without authentication, without TLS and with it, and its plain port. Each setting is
/// table, key and value of server.toml.
pub fn installation(settings: &[(&str, &str, &str)]) -> (Site, Target) {
    let site = Site::new();
    let port = free_port();
    let file = "server/server.toml";
    site.set(file, "mqtt", "listen", &format!("\"0.0.0.0:{port}\""));
    site.set(file, "mqtt", "tls_listen", &format!("\"0.0.0.0:{}\"", site.mqtt_port));
    site.set(file, "mqtt", "anonymous", "true");
    for (table, key, value) in settings {
        site.set(file, table, key, value);
    }
    (site, target(port))
}

/// A port on this machine without TLS.
pub fn target(port: u16) -> Target {
    Target { addresses: (1..=ADDRESSES).map(|last| ([127, 0, 0, last], port).into()).collect(), tls: Vec::new() }
}

/// A metric of the server; an error when it does not answer.
pub fn metric(site: &Site, name: &str) -> anyhow::Result<f64> {
    site.metric(&format!("wholegrain_server_{name} ")).with_context(|| format!("the server does not tell {name}"))
}

/// Waits until everything is sealed and the server idle; how long it took, s.
pub fn wait_until_idle(site: &Site, server: &Process) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut used = server.cpu_ns();
    loop {
        measure_for(IDLE_SECONDS);
        let now = server.cpu_ns();
        let cpu = (now - used) as f64 / 1e9 / IDLE_SECONDS;
        used = now;
        if cpu < IDLE_CPU && metric(site, "journal_bytes")? == 0.0 {
            return Ok(start.elapsed().as_secs_f64());
        }
        ensure!(
            start.elapsed() < BUSY_MAX,
            "the server was still busy {} s after the last reading",
            BUSY_MAX.as_secs()
        );
    }
}

/// Bytes of all files below a folder.
pub fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { bytes_below(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) }).sum()
}
