//! VictoriaMetrics, single node, as Debian packages it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wholegrain_testing::{Process, free_port};

use super::http::Http;
use super::promql;
use super::recording::{Recording, Sums};
use super::remote_write;
use super::system::{About, Lane, SensorSelection, Span, Stored, System, span};
use crate::installation::bytes_below;

const PROGRAM: &str = "victoria-metrics";
/// How long a start or a merge may take.
const WAIT_MAX: Duration = Duration::from_secs(120);

pub struct Victoria {
    version: String,
    running: Option<RunningVictoria>,
}

struct RunningVictoria {
    process: Process,
    http: Http,
    data: PathBuf,
}

/// Waits until something is so; an error when it takes too long.
pub fn until(what: &str, mut condition: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let start = Instant::now();
    while !condition()? {
        ensure!(start.elapsed() < WAIT_MAX, "waited {} s in vain: {what}", WAIT_MAX.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The version that a program prints; the error names its package.
pub fn version(program: &str, argument: &str, package: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(argument).output();
    let output = output.with_context(|| format!("{program} is not there: install the package {package}"))?;
    let text = [output.stdout, output.stderr].concat();
    let version = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned();
    // Debian's build of VictoriaMetrics tells none.
    let packaged = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]).output();
    let packaged = packaged.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    Ok(if version.is_empty() { packaged } else { version })
}

impl Victoria {
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self { version: version(PROGRAM, "--version", "victoria-metrics")?, running: None })
    }

    fn running(&self) -> anyhow::Result<&RunningVictoria> {
        self.running.as_ref().context("VictoriaMetrics does not run")
    }
}

/// A metric of the server's own, all its label sets added up.
fn metric(http: &Http, name: &str) -> anyhow::Result<f64> {
    let text = String::from_utf8(http.get("/metrics", &[])?)?;
    let values = text.lines().filter(|line| line.starts_with(name));
    Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

impl System for Victoria {
    fn about(&self) -> About {
        About {
            system: "victoriametrics".into(),
            version: self.version.clone(),
            configured: "-retentionPeriod=100y -search.latencyOffset=0s -search.disableCache, else as packaged; written to by remote write \
                         (snappy), a request for each second of a node; asked at /api/v1/query and /api/v1/query_range"
                .into(),
            durable: "in memory for up to 5 s before it is written: a crash takes what came since",
            counted: "data/ and indexdb/ after force_flush and force_merge; not its caches",
        }
    }

    fn fresh(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.running = None;
        let (port, data) = (free_port(), dir.join("data"));
        let mut command = Command::new(PROGRAM);
        command
            .arg(format!("-storageDataPath={}", data.display()))
            .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
            .args(["-retentionPeriod=100y", "-search.latencyOffset=0s", "-search.disableCache"]);
        let mut process = Process::start(&mut command, &dir.join("log"));
        let http = Http::to(port);
        until("VictoriaMetrics answers", || {
            ensure!(process.runs(), "VictoriaMetrics ended: {}", process.log());
            Ok(http.get("/health", &[]).is_ok())
        })?;
        self.running = Some(RunningVictoria { process, http, data });
        Ok(())
    }

    fn prepare(&self, recording: &Recording) -> anyhow::Result<Lane> {
        remote_write::lane(recording, "/api/v1/write")
    }

    fn ingest(&mut self, lanes: &[Lane]) -> anyhow::Result<()> {
        self.running()?.http.send(lanes, &remote_write::HEADERS)
    }

    fn flush_and_merge(&mut self) -> anyhow::Result<()> {
        let running = self.running()?;
        running.http.get("/internal/force_flush", &[])?;
        let before = running.process.log().matches("has been successfully finished").count();
        running.http.get("/internal/force_merge", &[])?;
        until("VictoriaMetrics has merged", || {
            let done = running.process.log().matches("has been successfully finished").count() > before;
            Ok(done && metric(&running.http, "vm_active_merges")? == 0.0)
        })
    }

    fn cpu_ns(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.cpu_ns())
    }

    fn rss_kb(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.status_kb("VmRSS"))
    }

    fn stored(&self) -> anyhow::Result<Stored> {
        let data = &self.running()?.data;
        let bytes = ["data", "indexdb"].iter().map(|name| bytes_below(&data.join(name))).sum();
        Ok(Stored { bytes, all: bytes_below(data) })
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
