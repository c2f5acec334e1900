//! The yardsticks: a tick and nothing else, and a tick with only the reads of the same files as our configuration `same`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::{Folder, Monitor, Parts, Role, Running};
use crate::bare::{Counts, FILES};

/// See the module.
pub struct Bare;

/// Times in a line of /proc/stat for one CPU, or for all.
const CPU_TIMES: u64 = 10;
/// A line that is no measurement: when the system was started.
const NO_VALUE: &str = "btime";

impl Monitor for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["tick", "reads"]
    }

    fn version(&self) -> anyhow::Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_micros(50)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        let folder = Folder::new(dir, role)?;
        let mut parts = Parts::new();
        if !folder.has_node() {
            return Ok(Box::new(Loop { parts, counts: None, metrics: 0, configured: String::new() }));
        }
        let counts = folder.node("counts")?;
        // Those of an earlier loop in the same folder.
        let _ = std::fs::remove_file(&counts);
        let tick_only = configuration == "tick";
        let mut command = Command::new(std::env::current_exe().context("this program's path")?);
        command.arg("bare").arg("--interval-ms").arg((interval.as_nanos() as f64 / 1e6).to_string());
        command.arg("--counts").arg(&counts);
        if tick_only {
            command.arg("--tick-only");
        }
        let configured = format!("{command:?}");
        parts.start("bare loop", false, &mut command, &folder.node("log")?)?;
        parts.wait_until("the bare loop ticks", || Counts::read(&counts).is_some_and(|(made, _)| made > 0))?;
        let metrics = if tick_only { 0 } else { values()? };
        Ok(Box::new(Loop { parts, counts: Some(counts), metrics, configured }))
    }
}

struct Loop {
    parts: Parts,
    counts: Option<PathBuf>,
    metrics: u64,
    configured: String,
}

impl Running for Loop {
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
        Counts::read(self.counts.as_deref()?)
    }

    fn stop(mut self: Box<Self>) {
        self.parts.stop();
    }
}

/// Values in the files that are read: a number a line; of a CPU's line all; of the interrupts' lines their sums alone.
fn values() -> anyhow::Result<u64> {
    let mut count = 0;
    for file in FILES {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        let lines = text.lines().filter(|line| !line.starts_with(NO_VALUE));
        count += lines.map(|line| if line.starts_with("cpu") { CPU_TIMES } else { 1 }).sum::<u64>();
    }
    Ok(count)
}
