//! Prometheus' node_exporter, scraped by a Prometheus server at the asked period.
//!
//! A scrape has to end within its period, or it is dropped whole: the period itself can be told down to 1 ms, but one scrape takes
//! a few milliseconds.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use wholegrain_testing::free_port;

use super::folder::Address;
use super::{Folder, Monitor, Role, Running, Started, exposition, folder, program, started};

const EXPORTER: (&str, &str) = ("prometheus-node-exporter", "prometheus-node-exporter");
const SERVER: (&str, &str) = ("prometheus", "prometheus");
/// The values of meminfo, vmstat and stat.
const SAME: &[&str] = &[
    "--collector.disable-defaults",
    "--web.disable-exporter-metrics",
    "--collector.meminfo",
    "--collector.vmstat",
    "--collector.vmstat.fields=.*",
    "--collector.stat",
    "--collector.cpu",
    "--no-collector.cpu.guest",
];
/// What else our agent reads of /proc when it is told nothing.
const FURTHER: &[&str] = &[
    "--collector.loadavg",
    "--collector.netdev",
    "--collector.netdev.device-exclude=^$",
    "--collector.netstat",
    "--collector.netstat.fields=^(Ip|Tcp|Udp|TcpExt|IpExt)_.*$",
    "--collector.diskstats",
    "--collector.diskstats.device-exclude=^(ram|loop)[0-9]+$",
    "--collector.pressure",
];
/// What it tells about itself begins so.
const OWN: [&str; 2] = ["node_scrape_collector_", "promhttp_"];

/// See the module.
pub struct NodeExporter;

impl Monitor for NodeExporter {
    fn name(&self) -> &'static str {
        "node_exporter"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let exporter = program::version(&program::installed(EXPORTER.0, EXPORTER.1)?, &["--version"])?;
        let server = program::version(&program::installed(SERVER.0, SERVER.1)?, &["--version"])?;
        Ok(format!("{exporter}, scraped by Prometheus {server}"))
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_millis(10)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        // Where both are on one machine, the server knows the exporter before it is there.
        let host = if role == Role::Both { "127.0.0.1".to_owned() } else { folder::host() };
        let target = format!("{host}:{}", free_port());
        let known = (role == Role::Both).then_some(target.as_str());
        let server = |started: &mut Started, folder: &Folder| serve(started, folder, known, interval);
        started::both(role, interval, dir, server, |started, folder| export(started, folder, configuration, &target))
    }
}

/// Starts Prometheus: for a known target, or for whatever nodes put into the shared folder.
fn serve(started: &mut Started, folder: &Folder, target: Option<&str>, interval: Duration) -> anyhow::Result<()> {
    let address = folder.announce(&[("http", free_port())])?;
    let targets = folder.shared("targets");
    std::fs::create_dir_all(&targets).with_context(|| format!("making {}", targets.display()))?;
    let found = match target {
        None => format!("file_sd_configs: [{{files: [\"{}/*.json\"], refresh_interval: 1s}}]", targets.display()),
        Some(target) => format!("static_configs: [{{targets: [\"{target}\"]}}]"),
    };
    let text = format!(
        "global:\n  scrape_interval: {}ms\nscrape_configs:\n  - job_name: node\n    {found}\n",
        interval.as_millis()
    );
    let config = folder.server("prometheus.yml")?;
    started.configured += &folder.write(&config, &text)?;
    let mut command = Command::new(program::installed(SERVER.0, SERVER.1)?);
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.server("data")?.display()));
    command.arg(format!("--web.listen-address={}:{}", folder.listen(), address.port("http")?));
    started.run("prometheus", true, &mut command, &folder.server("prometheus.log")?)?;
    let url = format!("http://{}:{}/-/ready", address.host, address.port("http")?);
    started.parts.wait_until("Prometheus answers", || exposition::get(&url).is_ok())
}

fn export(started: &mut Started, folder: &Folder, configuration: &str, target: &str) -> anyhow::Result<()> {
    let mut command = Command::new(program::installed(EXPORTER.0, EXPORTER.1)?);
    command.args(SAME).arg(format!("--web.listen-address={target}"));
    if configuration == "default" {
        command.args(FURTHER);
    }
    started.run("node_exporter", false, &mut command, &folder.node("node_exporter.log")?)?;
    let url = format!("http://{target}/metrics");
    let mut text = String::new();
    started.parts.wait_until("node_exporter answers", || {
        text = exposition::get(&url).unwrap_or_default();
        !text.is_empty()
    })?;
    let own: u64 = OWN.iter().map(|own| text.lines().filter(|line| line.starts_with(own)).count() as u64).sum();
    started.metrics = exposition::samples(&text) - own;
    let targets = folder.shared("targets").join(format!("{}.json", folder::node()));
    let found = serde_json::json!([{ "targets": [target] }]);
    std::fs::write(&targets, found.to_string()).with_context(|| format!("writing {}", targets.display()))?;
    let since = Instant::now();
    let (server, node) = (folder.address()?, target.to_owned());
    started.parts.wait_until("Prometheus has scraped the node within a period", || {
        scrapes(&server, &node).is_some_and(|count| count > 0)
    })?;
    started.counts(since, move || scrapes(&server, &node));
    Ok(())
}

/// Scrapes of a node that succeeded, as Prometheus has stored it.
fn scrapes(server: &Address, node: &str) -> Option<u64> {
    // sum_over_time(up{instance="…"}[1h])
    let query = format!("sum_over_time(up%7Binstance%3D%22{node}%22%7D%5B1h%5D)");
    let url = format!("http://{}:{}/api/v1/query?query={query}", server.host, server.port("http").ok()?);
    let answer: serde_json::Value = serde_json::from_str(&exposition::get(&url).ok()?).ok()?;
    answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}
