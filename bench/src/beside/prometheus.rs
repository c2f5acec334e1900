//! Prometheus, as Debian packages it, by its receiver of remote writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use wholegrain_testing::{Process, free_port};

use super::http::Http;
use super::promql;
use super::recording::{Recording, Sums};
use super::remote_write;
use super::system::{About, Lane, SensorSelection, Span, Stored, System, span};
use super::victoria::{until, version};
use crate::installation::bytes_below;

const PROGRAM: &str = "prometheus";

pub struct Prometheus {
    version: String,
    running: Option<RunningPrometheus>,
}

struct RunningPrometheus {
    process: Process,
    http: Http,
    data: PathBuf,
    /// The block that [`System::flush_and_merge`] had made.
    block: Option<PathBuf>,
}

impl Prometheus {
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self { version: version(PROGRAM, "--version", "prometheus")?, running: None })
    }

    fn running(&self) -> anyhow::Result<&RunningPrometheus> {
        self.running.as_ref().context("Prometheus does not run")
    }
}

impl System for Prometheus {
    fn about(&self) -> About {
        About {
            system: "prometheus".into(),
            version: self.version.clone(),
            configured: "--web.enable-remote-write-receiver --web.enable-admin-api --storage.tsdb.retention.time=100y, nothing scraped; written \
                         to by remote write (snappy), a request for each second of a node; asked at /api/v1/query and /api/v1/query_range"
                .into(),
            durable: "in its log without fsync: a crash of the program takes nothing, one of the machine what the kernel had not written",
            counted: "the block (chunks, index) that a snapshot makes of the head, as compaction does after two hours; not its log",
        }
    }

    fn fresh(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.running = None;
        let (port, data, config) = (free_port(), dir.join("data"), dir.join("prometheus.yml"));
        std::fs::write(&config, "scrape_configs: []\n")?;
        let mut command = Command::new(PROGRAM);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args([
                "--web.enable-remote-write-receiver",
                "--web.enable-admin-api",
                "--storage.tsdb.retention.time=100y",
            ]);
        let mut process = Process::start(&mut command, &dir.join("log"));
        let http = Http::to(port);
        until("Prometheus is ready", || {
            ensure!(process.runs(), "Prometheus ended: {}", process.log());
            Ok(http.get("/-/ready", &[]).is_ok())
        })?;
        self.running = Some(RunningPrometheus { process, http, data, block: None });
        Ok(())
    }

    fn prepare(&self, recording: &Recording) -> anyhow::Result<Lane> {
        remote_write::lane(recording, "/api/v1/write")
    }

    fn ingest(&mut self, lanes: &[Lane]) -> anyhow::Result<()> {
        self.running()?.http.send(lanes, &remote_write::HEADERS)
    }

    fn flush_and_merge(&mut self) -> anyhow::Result<()> {
        let running = self.running.as_mut().context("Prometheus does not run")?;
        let answer = running.http.post("/api/v1/admin/tsdb/snapshot", &[], &[])?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        let name = answer["data"]["name"].as_str().with_context(|| format!("no snapshot was made: {answer}"))?;
        running.block = Some(running.data.join("snapshots").join(name));
        Ok(())
    }

    fn cpu_ns(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.cpu_ns())
    }

    fn rss_kb(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.status_kb("VmRSS"))
    }

    fn stored(&self) -> anyhow::Result<Stored> {
        let running = self.running()?;
        let block = running.block.as_ref().context("no snapshot was made")?;
        Ok(Stored { bytes: bytes_below(block), all: bytes_below(&running.data) })
    }

    fn sums(&mut self, recording: &Recording) -> anyhow::Result<Sums> {
        promql::sums(&self.running()?.http, &recording.node, span(recording))
    }

    fn one_sensor(&mut self, node: &str, sensor: &str, span: Span) -> anyhow::Result<usize> {
        promql::one_sensor(&self.running()?.http, node, sensor, span)
    }

    fn windows(&mut self, chosen: &SensorSelection, span: Span, window_s: u64) -> anyhow::Result<usize> {
        promql::windows(&self.running()?.http, chosen, span, window_s)
    }

    fn newest(&mut self, chosen: &SensorSelection, span: Span) -> anyhow::Result<usize> {
        promql::newest(&self.running()?.http, &chosen.nodes, span)
    }
}
