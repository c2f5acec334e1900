//! CPU, ticks, memory and size of the agent with meminfo + vmstat + stat, beside the bare loop of the same reads.

use std::process::Command;

use anyhow::Context;
use serde_json::json;
use wholegrain_testing::{Process, Site, program, wait_until};

use crate::report::{keep, line, measure_for, median};

#[derive(clap::Args)]
pub struct Options {
    /// Length of each measuring window, seconds.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Windows of each of the two, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Ticks to measure at, milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    interval_ms: Vec<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 8.0, rounds: 5, interval_ms: vec![1, 10] }
    }
}

/// The agent's configuration for the comparison: the same three files, pushed through QoS 1 over TLS to a real server.
pub fn configure(site: &Site, sources: &str) -> anyhow::Result<()> {
    let (certificate, key) = site.agent_certificate("probe");
    let text = format!(
        "name = \"probe\"\n[mqtt]\nurl = \"mqtts://localhost:{}\"\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n\
         [spool]\ndir = \"{}\"\n[api]\nsocket = \"{}\"\n{sources}",
        site.mqtt_port,
        site.path("ca.pem").display(),
        certificate.display(),
        key.display(),
        site.path("probe-spool").display(),
        site.path("probe.sock").display(),
    );
    std::fs::write(site.path("probe.toml"), text).context("writing the agent's configuration")
}

/// Starts the configured agent and waits until it is connected.
pub fn start(site: &Site) -> Process {
    let mut command = Command::new(program("wholegrain-agent"));
    let agent = Process::start(command.arg("--config").arg(site.path("probe.toml")), &site.path("probe.log"));
    wait_until("the agent's first readings on the server", || {
        site.run(&["query", "/probe/**", "--from", "-1m", "--limit", "1"]).status.code() == Some(0)
    });
    agent
}

/// The agent's own status over its socket.
pub fn status(site: &Site) -> serde_json::Value {
    let output =
        site.command(&["ctl", "--socket"]).arg(site.path("probe.sock")).args(["status", "--format", "json"]).output();
    output.ok().and_then(|o| serde_json::from_slice(&o.stdout).ok()).unwrap_or_default()
}

struct Window {
    us_per_tick: f64,
    made: f64,
    rss_kb: u64,
}

fn bare(options: &Options, interval_ms: u64, site: &Site) -> Window {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    let mut process =
        Process::start(command.args(["bare", "--interval-ms", &interval_ms.to_string()]), &site.path("bare.log"));
    measure_for(1.0);
    let before = process.cpu_ns();
    measure_for(options.seconds);
    let used = process.cpu_ns() - before;
    let rss_kb = process.status_kb("VmRSS");
    process.kill();
    let log = process.log();
    let last: Vec<f64> =
        log.lines().last().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    let made = if let [made, missed] = last[..] { made / (made + missed) } else { 0.0 };
    Window { us_per_tick: used as f64 / 1e3 / (options.seconds * 1e3 / interval_ms as f64), made, rss_kb }
}

fn agent(options: &Options, interval_ms: u64, site: &Site) -> Window {
    let mut process = start(site);
    measure_for(1.0);
    let count = |field: &str| status(site)[field].as_f64().unwrap_or(0.0);
    let (missed, samples) = (count("missed_ticks"), count("samples"));
    let before = process.cpu_ns();
    measure_for(options.seconds);
    let used = process.cpu_ns() - before;
    let (missed, samples) = (count("missed_ticks") - missed, count("samples") - samples);
    let rss_kb = process.status_kb("VmRSS");
    process.stop();
    Window {
        us_per_tick: used as f64 / 1e3 / (options.seconds * 1e3 / interval_ms as f64),
        made: samples / (samples + missed).max(1.0),
        rss_kb,
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "agent: meminfo + vmstat + stat, beside a bare loop of the same reads ({} x {} s each)",
        options.rounds, options.seconds
    );
    let site = Site::new();
    let server = site.start_server();
    let mut figures = json!({});
    for &interval_ms in &options.interval_ms {
        let sources =
            format!("[sources.procfs]\ngroups = [\"meminfo\", \"vmstat\", \"stat\"]\ninterval = \"{interval_ms}ms\"\n");
        configure(&site, &sources)?;
        let pairs: Vec<(Window, Window)> = (0..options.rounds)
            .map(|_| (bare(options, interval_ms, &site), agent(options, interval_ms, &site)))
            .collect();
        let of = |f: &dyn Fn(&(Window, Window)) -> f64| pairs.iter().map(f).collect::<Vec<f64>>();
        let ratios = of(&|(bare, agent)| agent.us_per_tick / bare.us_per_tick);
        let bare_us = median(&of(&|(bare, _)| bare.us_per_tick));
        let agent_us = median(&of(&|(_, agent)| agent.us_per_tick));
        let made = median(&of(&|(_, agent)| agent.made));
        let bare_made = median(&of(&|(bare, _)| bare.made));
        let rss_kb = pairs.iter().map(|(_, agent)| agent.rss_kb).max().unwrap_or(0);
        println!(" at {interval_ms} ms");
        line("bare loop, us of CPU a tick", format!("{bare_us:.1}"), "");
        line("agent, us of CPU a tick", format!("{agent_us:.1}"), "");
        line("ratio, median of pairs", format!("{:.2}", median(&ratios)), "at most 1.5, goal 1.25");
        line("ticks made by the bare loop, %", format!("{:.3}", bare_made * 100.0), "");
        line("ticks made by the agent, %", format!("{:.3}", made * 100.0), "at least 99.9");
        line("resident memory, MB", format!("{:.1}", rss_kb as f64 / 1e3), "at most 8, goal 5");
        figures[format!("{interval_ms}ms")] = json!({ "bare_us": bare_us, "agent_us": agent_us, "ratios": ratios, "ticks_made": made, "bare_ticks_made": bare_made, "rss_kb": rss_kb });
    }
    let size = std::fs::metadata(program("wholegrain-agent"))?.len();
    line("binary, MB", format!("{:.2}", size as f64 / 1e6), "at most 8, goal 4");
    figures["binary_bytes"] = json!(size);
    drop(server);
    keep("agent-cost", figures)
}
