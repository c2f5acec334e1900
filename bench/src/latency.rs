//! From the read on the node to the server's live cache, seen by a client that watches.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::Context;
use serde_json::json;
use wholegrain_model::Timestamp;
use wholegrain_testing::Site;

use crate::agent_cost::{configure, start};
use crate::report::{keep, line, quantile};

#[derive(clap::Args)]
pub struct Options {
    /// Readings to look at.
    #[arg(long, default_value_t = 2000)]
    count: usize,
    /// Sampling interval, milliseconds.
    #[arg(long, default_value_t = 20)]
    interval_ms: u64,
    /// Sending interval, milliseconds: the oldest reading of a batch has waited so long.
    #[arg(long, default_value_t = 200)]
    send_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { count: 2000, interval_ms: 20, send_ms: 200 }
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "latency: sampled every {} ms, sent every {} ms, {} readings",
        options.interval_ms, options.send_ms, options.count
    );
    let site = Site::new();
    let _server = site.start_server();
    configure(&site, &format!("[sources.procfs]\ngroups = [\"loadavg\"]\ninterval = \"{}ms\"\n", options.interval_ms))?;
    site.set("probe.toml", "mqtt", "send_interval", &format!("\"{}ms\"", options.send_ms));
    let _agent = start(&site);
    let mut watch = site.command(&["watch", "/probe/loadavg/*", "--format", "json"]).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(watch.stdout.take().context("the output of watch")?).lines();
    let mut late_ms = Vec::new();
    for text in lines {
        let row: serde_json::Value = serde_json::from_str(&text?)?;
        let now = std::time::UNIX_EPOCH.elapsed()?.as_nanos() as i64;
        let time = Timestamp::parse(row["time"].as_str().unwrap_or_default(), Timestamp(now))?;
        late_ms.push((now - time.0) as f64 / 1e6);
        if late_ms.len() >= options.count {
            break;
        }
    }
    watch.kill()?;
    watch.wait()?;
    let beyond = |q| quantile(&late_ms, q) - options.send_ms as f64;
    line("median, ms", format!("{:.1}", quantile(&late_ms, 0.5)), "");
    line("99th percentile beyond the sending interval, ms", format!("{:.1}", beyond(0.99)), "at most 20");
    line("largest beyond the sending interval, ms", format!("{:.1}", beyond(1.0)), "");
    keep("latency", json!({ "interval_ms": options.interval_ms, "send_ms": options.send_ms, "late_ms": late_ms }))
}
