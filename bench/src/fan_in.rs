//! Fan-in: very many agents at once, each with a batch of one sample now and then, from one load generator over loopback.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use crate::installation::{installation, metric, wait_until_idle};
use crate::load::agent::Agent;
use crate::load::fleet::{Fleet, Pace};
use crate::load::own_cpu_ns;
use crate::report::{Aim, aim, keep, line, measure_for};
use crate::server_ingest::check;
use crate::usage::{Memory, raise_open_files};

/// Connections in the handshake at once.
const HANDSHAKES: usize = 64;
/// Publishes of one agent that wait for their acknowledgement, at most.
const WINDOW: usize = 8;
/// Aim for the server's CPU, cores.
const CORES_MAX: f64 = 0.25;
/// Aim for the memory of a connected agent, kB.
const AGENT_KB_MAX: f64 = 20.0;
/// Until sensors that are new have been sealed once: `seal_after` is a minute.
const FIRST_SEAL: Duration = Duration::from_secs(80);
/// Pause after the start of the server, and after the connections, before memory is measured.
const REST_SECONDS: f64 = 5.0;

#[derive(clap::Args, Clone)]
pub struct FanInOptions {
    /// Agents, a connection each; as many open files and a few more are needed for each of two processes.
    #[arg(long, default_value_t = 15_000)]
    agents: usize,
    /// Sensors of each, in one group.
    #[arg(long, default_value_t = 467)]
    metrics: usize,
    /// From sample to sample, each a batch of its own.
    #[arg(long, default_value = "20s", value_parser = wholegrain_model::Interval::parse)]
    interval: wholegrain_model::Interval,
    /// Length of the load, seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
}

impl Default for FanInOptions {
    fn default() -> Self {
        Self { agents: 15_000, metrics: 467, interval: wholegrain_model::Interval::from_s(20), seconds: 120 }
    }
}

pub fn run(options: &FanInOptions) -> anyhow::Result<()> {
    raise_open_files();
    let (count, seconds) = (options.agents as f64, options.seconds as f64);
    println!(
        "fan-in: {} agents with {} metrics every {} for {} s, quality of service 1, without TLS",
        options.agents, options.metrics, options.interval, options.seconds
    );
    let (site, target) = installation(&[("mqtt.limits", "connections_max", &(options.agents + 100).to_string())]);
    let interval_ns = i64::try_from(options.interval.ns())?;
    let named = |index| Agent::new(format!("n{index:05}"), options.metrics, 1, interval_ns);
    let agents = (0..options.agents).map(named).collect::<Result<Vec<Agent>, _>>()?;
    // Their sensors become known once, before anything is measured.
    let mut server = site.start_server();
    let agents = Fleet::connect(agents, &target, WINDOW, HANDSHAKES)?.into_agents();
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    let mut server = site.start_server();
    measure_for(REST_SECONDS);
    let alone_kb = server.status_kb("VmRSS") as f64;
    let start = Instant::now();
    let mut fleet = Fleet::connect(agents, &target, WINDOW, HANDSHAKES)?;
    let connect_s = start.elapsed().as_secs_f64();
    measure_for(REST_SECONDS);
    let idle_kb = server.status_kb("VmRSS") as f64;
    // The first seal of new sensors writes their list, once.
    eprintln!("fan-in: {count} agents are connected; the first seal is not measured");
    fleet.run(Pace::Clock, FIRST_SEAL, |_, _| {})?;
    let earlier = fleet.totals.readings;
    let mut memory = Memory::default();
    let (before, own_before) = (server.cpu_ns(), own_cpu_ns());
    fleet.run(Pace::Clock, Duration::from_secs(options.seconds), |elapsed, _| {
        memory.look(elapsed.as_secs_f64(), &server)
    })?;
    let (used_ns, own_ns) = (server.cpu_ns() - before, own_cpu_ns() - own_before);
    let live_kb = metric(&site, "store_live_bytes")? / 1e3;
    fleet.drain()?;
    let totals = std::mem::take(&mut fleet.totals);
    let per_reading = used_ns as f64 / (totals.readings - earlier) as f64;
    let agents = fleet.into_agents();
    wait_until_idle(&site, &server)?;
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    let cores = used_ns as f64 / 1e9 / seconds;
    let (idle, busy) = ((idle_kb - alone_kb) / count, (memory.max_mb() * 1e3 - alone_kb) / count);
    aim("server, cores", cores, 3, Aim::AtMost(CORES_MAX, "0.25"));
    line("  ns of CPU a reading", format!("{per_reading:.1}"), "");
    line("generator, cores", format!("{:.3}", own_ns as f64 / 1e9 / seconds), "");
    line("server's resident memory without connections, MB", format!("{:.0}", alone_kb / 1e3), "");
    aim("  kB more an agent, connected", idle, 1, Aim::AtMost(AGENT_KB_MAX, "20"));
    line("  kB more an agent at the largest, unsealed readings included", format!("{busy:.1}"), "");
    line("connecting all, s", format!("{connect_s:.1}"), "");
    line("batches acknowledged", totals.batches, "");
    let [p50, p99] = [0.5, 0.99].map(|q| totals.acks.quantile_ms(q));
    line(
        "from sending to PUBACK: median, 99th percentile, largest, ms",
        format!("{p50:.1} {p99:.1} {:.0}", totals.acks.max_ms()),
        "",
    );
    let checked = check(&site, &agents)?;
    let made: u64 = agents.iter().map(|agent| agent.made.batches).sum();
    let figures = json!({
        "agents": options.agents, "metrics": options.metrics, "interval_ns": interval_ns, "seconds": options.seconds, "cores": cores,
        "ns_per_reading": per_reading, "generator_cores": own_ns as f64 / 1e9 / seconds,
        "alone_kb": alone_kb, "idle_kb_per_agent": idle, "busy_kb_per_agent": busy, "live_kb": live_kb, "connect_s": connect_s,
        "batches_made": made, "batches_acknowledged": totals.batches, "readings": totals.readings, "acks_ms": totals.acks.json(),
        "memory": memory.json(), "checked": checked,
    });
    keep("fan-in", figures)?;
    ensure!(made == totals.batches, "{made} batches were made, {} acknowledged", totals.batches);
    Ok(())
}
