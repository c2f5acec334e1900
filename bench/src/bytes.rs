//! Bytes per stored reading of this machine's own /proc, through the whole system: agent, server, sealed and merged blocks.

use std::path::Path;

use serde_json::json;
use wholegrain_testing::{Site, wait_until};

use crate::agent_cost::{configure, start};
use crate::report::{keep, line, measure_for};

#[derive(clap::Args)]
pub struct Options {
    /// Seconds of /proc to record.
    #[arg(long, default_value_t = 120.0)]
    seconds: f64,
    /// Sampling interval, milliseconds. Shorter than 1000 makes a longer recording in less time, of values that change less.
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 120.0, interval_ms: 1000 }
    }
}

fn parquet_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| if e.path().is_dir() { parquet_bytes(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) })
        .sum()
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    println!("bytes: every /proc group at {} ms for {} s, sealed once", options.interval_ms, options.seconds);
    let site = Site::new();
    // One block of the whole recording, as the merge makes it.
    site.set("server/server.toml", "store", "seal_after", &format!("\"{}s\"", options.seconds as u64 + 3600));
    let mut server = site.start_server();
    configure(&site, &format!("[sources.procfs]\ninterval = \"{}ms\"\n", options.interval_ms))?;
    let mut agent = start(&site);
    measure_for(options.seconds);
    agent.stop();
    server.stop();
    site.set("server/server.toml", "store", "seal_after", "\"100ms\"");
    let mut server = site.start_server();
    wait_until("the journal is sealed", || site.metric("wholegrain_server_journal_bytes ") == Some(0.0));
    server.stop();
    let bytes = parquet_bytes(&site.path("server/store/blocks"));
    let counts = wholegrain_testing::python("count_rows.py", &[&site.path("server/store")]);
    let rows: f64 = counts.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    line("readings stored", format!("{rows:.0}"), "");
    line("bytes of Parquet a reading", format!("{:.3}", bytes as f64 / rows), "at most 0.5");
    keep(
        "bytes",
        json!({ "seconds": options.seconds, "interval_ms": options.interval_ms, "readings": rows, "bytes": bytes, "bytes_per_reading": bytes as f64 / rows }),
    )
}
