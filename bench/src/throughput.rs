//! Many readings from one agent: 10,000 tester sensors at 100 ms.

use serde_json::json;
use wholegrain_testing::Site;

use crate::agent_cost::{configure, start, status};
use crate::report::{keep, line, measure_for};

#[derive(clap::Args)]
pub struct Options {
    /// Length of the measuring window, seconds.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Number of sensors.
    #[arg(long, default_value_t = 10_000)]
    sensors: u64,
    /// Sampling interval, milliseconds.
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Shape of the values: counter, noise, sine, ramp or constant.
    #[arg(long, default_value = "noise")]
    shape: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 30.0, sensors: 10_000, interval_ms: 100, shape: "noise".into() }
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let rate = options.sensors as f64 * 1e3 / options.interval_ms as f64;
    println!(
        "agent: {} tester sensors ({}) at {} ms, {rate:.0} readings a second",
        options.sensors, options.shape, options.interval_ms
    );
    let site = Site::new();
    let server = site.start_server();
    let sources = format!(
        "[cache]\nduration = \"10s\"\nbytes_max = \"64MiB\"\n[sources.tester]\nsensors = {}\nshape = \"{}\"\ninterval = \"{}ms\"\n",
        options.sensors, options.shape, options.interval_ms
    );
    configure(&site, &sources)?;
    let mut agent = start(&site);
    // The cache of 10 s must be full before its memory is measured.
    measure_for(12.0);
    let (agent_before, server_before) = (agent.cpu_ns(), server.cpu_ns());
    measure_for(options.seconds);
    let agent_cpu = (agent.cpu_ns() - agent_before) as f64 / 1e9 / options.seconds;
    let server_cpu = (server.cpu_ns() - server_before) as f64 / 1e9 / options.seconds;
    let (rss_kb, server_rss_kb) = (agent.status_kb("VmRSS"), server.status_kb("VmRSS"));
    let state = status(&site);
    agent.stop();
    line("agent, % of one core", format!("{:.2}", agent_cpu * 100.0), "at most 3");
    line("agent, resident memory, MB", format!("{:.1}", rss_kb as f64 / 1e3), "at most 60");
    line("missed ticks and dropped batches", format!("{} {}", state["missed_ticks"], state["dropped_batches"]), "0 0");
    line("server, ns of CPU a reading", format!("{:.0}", server_cpu * 1e9 / rate), "");
    line("server, resident memory, MB", format!("{:.1}", server_rss_kb as f64 / 1e3), "");
    keep(
        "throughput",
        json!({ "readings_per_s": rate, "agent_cpu": agent_cpu, "agent_rss_kb": rss_kb, "server_ns_per_reading": server_cpu * 1e9 / rate,
                "server_rss_kb": server_rss_kb, "status": state }),
    )
}
