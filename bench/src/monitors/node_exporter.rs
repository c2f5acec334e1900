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
use super::{Folder, Monitor, Parts, Role, Running, exposition, folder, parts, program};

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
        let folder = Folder::new(dir, role)?;
        let mut scraped = Scraped {
            parts: Parts::new(),
            server: None,
            interval,
            start: Instant::now(),
            metrics: 0,
            configured: String::new(),
        };
        let target = if role == Role::Both { format!("127.0.0.1:{}", free_port()) } else { String::new() };
        if folder.has_server() {
            scraped.start_server(&folder, &target)?;
        }
        if folder.has_node() {
            let target = if role == Role::Both { target } else { format!("{}:{}", folder::host(), free_port()) };
            scraped.start_exporter(&folder, configuration, target)?;
        }
        Ok(Box::new(scraped))
    }
}

struct Scraped {
    parts: Parts,
    /// The server, and what it calls this node.
    server: Option<(Address, String)>,
    interval: Duration,
    start: Instant,
    metrics: u64,
    configured: String,
}

impl Scraped {
    /// Starts Prometheus: for `target`, or for whatever nodes put into the shared folder.
    fn start_server(&mut self, folder: &Folder, target: &str) -> anyhow::Result<()> {
        let address = folder.announce(&[("http", free_port())])?;
        let targets = folder.shared("targets");
        std::fs::create_dir_all(&targets).with_context(|| format!("making {}", targets.display()))?;
        let found = if target.is_empty() {
            format!("file_sd_configs: [{{files: [\"{}/*.json\"], refresh_interval: 1s}}]", targets.display())
        } else {
            format!("static_configs: [{{targets: [\"{target}\"]}}]")
        };
        let text = format!(
            "global:\n  scrape_interval: {}ms\nscrape_configs:\n  - job_name: node\n    {found}\n",
            self.interval.as_millis()
        );
        let config = folder.server("prometheus.yml")?;
        self.configured += &folder.write(&config, &text)?;
        let mut command = Command::new(program::installed(SERVER.0, SERVER.1)?);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.server("data")?.display()));
        command.arg(format!("--web.listen-address={}:{}", folder.listen(), address.port("http")?));
        self.configured += &format!("{command:?}\n");
        self.parts.start("prometheus", true, &mut command, &folder.server("prometheus.log")?)?;
        let url = format!("http://{}:{}/-/ready", address.host, address.port("http")?);
        self.parts.wait_until("Prometheus answers", || exposition::get(&url).is_ok())
    }

    fn start_exporter(&mut self, folder: &Folder, configuration: &str, target: String) -> anyhow::Result<()> {
        let mut command = Command::new(program::installed(EXPORTER.0, EXPORTER.1)?);
        command.args(SAME).arg(format!("--web.listen-address={target}"));
        if configuration == "default" {
            command.args(FURTHER);
        }
        self.configured += &format!("{command:?}\n");
        self.parts.start("node_exporter", false, &mut command, &folder.node("node_exporter.log")?)?;
        let url = format!("http://{target}/metrics");
        let mut text = String::new();
        self.parts.wait_until("node_exporter answers", || {
            text = exposition::get(&url).unwrap_or_default();
            !text.is_empty()
        })?;
        let own: u64 = OWN.iter().map(|own| text.lines().filter(|line| line.starts_with(own)).count() as u64).sum();
        self.metrics = exposition::samples(&text) - own;
        let targets = folder.shared("targets").join(format!("{}.json", folder::host()));
        let found = serde_json::json!([{ "targets": [target] }]);
        std::fs::write(&targets, found.to_string()).with_context(|| format!("writing {}", targets.display()))?;
        self.start = Instant::now();
        let server = (folder.address()?, target);
        self.parts.wait_until("Prometheus has scraped the node within a period", || {
            scrapes(&server.0, &server.1).is_some_and(|count| count > 0)
        })?;
        self.server = Some(server);
        Ok(())
    }
}

/// Scrapes of a node that succeeded, as Prometheus has stored it.
fn scrapes(server: &Address, node: &str) -> Option<u64> {
    // sum_over_time(up{instance="…"}[1h])
    let query = format!("sum_over_time(up%7Binstance%3D%22{node}%22%7D%5B1h%5D)");
    let url = format!("http://{}:{}/api/v1/query?query={query}", server.host, server.port("http").ok()?);
    let answer: serde_json::Value = serde_json::from_str(&exposition::get(&url).ok()?).ok()?;
    answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

impl Running for Scraped {
    fn metrics(&self) -> u64 {
        self.metrics
    }

    fn configured(&self) -> String {
        self.configured.clone()
    }

    fn processes(&self) -> Vec<(String, u32, bool)> {
        self.parts.list()
    }

    fn ticks(&self) -> Option<(u64, u64)> {
        let (server, node) = self.server.as_ref()?;
        Some(parts::ticks(scrapes(server, node)?, self.start, self.interval))
    }

    fn stop(mut self: Box<Self>) {
        self.parts.stop();
    }
}
