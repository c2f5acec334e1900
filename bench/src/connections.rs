//! Ten thousand agents at once, each with a small batch a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use wholegrain_testing::{Process, Site, wait_until};
use wholegrain_transport::tls::{self, Identity};

use crate::installation::{installation, metric, wait_until_idle};
use crate::load::agent::Agent;
use crate::load::fleet::{Fleet, Pace, Target, Totals};
use crate::load::own_cpu_ns;
use crate::report::{Aim, aim, keep, line, measure_for};
use crate::server_ingest::check;
use crate::usage::{Memory, raise_open_files};

/// Connections in the handshake at once.
const HANDSHAKES: usize = 64;
/// Publishes of one agent that wait for their acknowledgement, at most.
const WINDOW: usize = 64;
/// Aim for the memory of a connection, kB.
const CONNECTION_KB_MAX: f64 = 20.0;
/// Pause after the start of the server, and after the connections, before memory is measured.
const REST_SECONDS: f64 = 5.0;

/// How clients are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// No TLS; the server takes them at their word.
    Plain,
    /// TLS; the server takes them at their word.
    Tls,
    /// TLS, each with a certificate of its own.
    Certificates,
}

/// Two sites, a command each.
const EXAMPLES: &str = "Examples:
  ten thousand nodes with 250 metrics each second, each sample sent as it is taken (2.5 million readings a second):
    wholegrain-bench connections --connections 10000 --sensors 250 --security plain --seconds 20
  fifteen thousand nodes with 467 metrics every 20 s, over TLS (350,000 readings a second, 7 million sensors):
    wholegrain-bench connections --connections 15000 --sensors 467 --interval-ms 20000 --security tls --seconds 60
Connections are opened from this process: 200 more open files than connections must be allowed.";

#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct ConnectionsOptions {
    /// Number of connected agents.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Length of the load, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Sensors of each batch.
    #[arg(long, default_value_t = 20)]
    sensors: usize,
    /// Samples of each batch.
    #[arg(long, default_value_t = 1)]
    samples: usize,
    /// From sample to sample, ms.
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// How clients connect; each of these in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Security::Plain, Security::Tls, Security::Certificates])]
    security: Vec<Security>,
    /// The server's setting `seal_after`.
    #[arg(long, default_value = "10s")]
    seal_after: String,
    /// The server's setting `seal_bytes`.
    #[arg(long, default_value = "64MiB")]
    seal_bytes: String,
}

impl ConnectionsOptions {
    /// The shortened version for `all`.
    pub fn short() -> Self {
        let security = vec![Security::Plain, Security::Tls];
        Self {
            connections: 10_000,
            seconds: 15,
            sensors: 20,
            samples: 1,
            interval_ms: 1000,
            security,
            seal_after: "10s".into(),
            seal_bytes: "64MiB".into(),
        }
    }
}

/// Where and how to connect.
fn reach(security: Security, site: &Site, plain: Target, agents: &[Agent]) -> anyhow::Result<Target> {
    let addresses = plain.addresses.iter().map(|address| (address.ip(), site.mqtt_port).into()).collect();
    let ca = site.path("ca.pem");
    let tls: Vec<Arc<rustls::ClientConfig>> = match security {
        Security::Plain => return Ok(plain),
        Security::Tls => vec![tls::client_config(&ca, None)?],
        Security::Certificates => {
            let one = |agent: &Agent| {
                let (cert, key) = site.agent_certificate(&agent.name);
                tls::client_config(&ca, Some(Identity { cert: &cert, key: &key }))
            };
            agents.iter().map(one).collect::<Result<_, _>>()?
        }
    };
    Ok(Target { addresses, tls })
}

fn rss_kb(server: &Process) -> f64 {
    server.status_kb("VmRSS") as f64
}

/// Announces every schema once, so that later only connections are measured and not the memory of new sensors. The time
/// it took, s.
fn introduce(site: &Site, agents: Vec<Agent>, target: &Target) -> anyhow::Result<(Vec<Agent>, Totals, f64)> {
    let mut server = site.start_server();
    let start = Instant::now();
    let mut fleet = Fleet::connect(agents, target, WINDOW, HANDSHAKES)?;
    let took_s = start.elapsed().as_secs_f64();
    let totals = std::mem::take(&mut fleet.totals);
    let agents = fleet.into_agents();
    wait_until("the connections are gone", || site.metric("wholegrain_server_connections ") == Some(0.0));
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    Ok((agents, totals, took_s))
}

/// Results of one run.
struct ConnectionMeasurements {
    first: Totals,
    first_s: f64,
    connect_s: f64,
    connect_ns: u64,
    alone_kb: f64,
    idle_kb: f64,
    busy_kb: f64,
    live_bytes: f64,
    used_ns: u64,
    sealed_ns: u64,
    own_ns: u64,
    totals: Totals,
    memory: Memory,
}

fn one(options: &ConnectionsOptions, security: Security) -> anyhow::Result<serde_json::Value> {
    let quoted = |text: &str| format!("{text:?}");
    let (site, plain) = installation(&[
        ("store", "seal_after", &quoted(&options.seal_after)),
        ("store", "seal_bytes", &quoted(&options.seal_bytes)),
        ("mqtt.limits", "connections_max", &(options.connections + 100).to_string()),
    ]);
    let interval_ns = (options.interval_ms * 1_000_000) as i64;
    let named = |index| Agent::new(format!("n{index:05}"), options.sensors, options.samples, interval_ns);
    let mut agents = (0..options.connections).map(named).collect::<Result<Vec<Agent>, _>>()?;
    if let [first, others @ ..] = &mut agents[..] {
        others.iter_mut().for_each(|agent| agent.share_sensors(first));
    }
    let target = reach(security, &site, plain, &agents)?;
    let (measured, agents) = load(options, &site, &target, agents)?;
    println!(" {} connections, {}", options.connections, serde_json::to_string(&security).context("a name")?);
    tell(options, &measured);
    let checked = check(&site, &agents)?;
    let ConnectionMeasurements { first, totals, memory, .. } = &measured;
    let (count, readings) = (options.connections as f64, totals.readings as f64);
    let kb = |kb: f64| (kb - measured.alone_kb) / count;
    Ok(
        json!({ "security": security, "connections": options.connections, "seconds": options.seconds, "sensors": options.sensors,
               "samples": options.samples, "interval_ms": options.interval_ms, "first_connect_s": measured.first_s,
               "first_schemas_ms": first.schemas.json(), "connect_s": measured.connect_s,
               "connect_us": measured.connect_ns as f64 / 1e3 / count, "connects_ms": totals.connects.json(),
               "alone_kb": measured.alone_kb, "idle_kb_per_connection": kb(measured.idle_kb),
               "busy_kb_per_connection": kb(measured.busy_kb), "live_bytes": measured.live_bytes,
               "cores": measured.used_ns as f64 / 1e9 / options.seconds as f64,
               "ns_per_reading_acknowledged": measured.used_ns as f64 / readings,
               "ns_per_reading_sealed": measured.sealed_ns as f64 / readings,
               "batches": totals.batches, "readings": totals.readings, "acks_ms": totals.acks.json(),
               "memory": memory.json(), "checked": checked }),
    )
}

fn load(
    options: &ConnectionsOptions,
    site: &Site,
    target: &Target,
    agents: Vec<Agent>,
) -> anyhow::Result<(ConnectionMeasurements, Vec<Agent>)> {
    let (agents, first, first_s) = introduce(site, agents, target)?;
    let mut server = site.start_server();
    measure_for(REST_SECONDS);
    let alone_kb = rss_kb(&server);
    let (before, start) = (server.cpu_ns(), Instant::now());
    let mut fleet = Fleet::connect(agents, target, WINDOW, HANDSHAKES)?;
    let (connect_s, connect_ns) = (start.elapsed().as_secs_f64(), server.cpu_ns() - before);
    measure_for(REST_SECONDS);
    let idle_kb = rss_kb(&server);

    let mut memory = Memory::default();
    let (before, own_before) = (server.cpu_ns(), own_cpu_ns());
    fleet.run(Pace::Clock, Duration::from_secs(options.seconds), |elapsed, _| {
        memory.look(elapsed.as_secs_f64(), &server);
    })?;
    let (used_ns, own_ns) = (server.cpu_ns() - before, own_cpu_ns() - own_before);
    let (busy_kb, live_bytes) = (rss_kb(&server), metric(site, "store_live_bytes")?);
    fleet.drain()?;
    let totals = std::mem::take(&mut fleet.totals);
    let agents = fleet.into_agents();
    wait_until_idle(site, &server)?;
    let sealed_ns = server.cpu_ns() - before;
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    let measured = ConnectionMeasurements {
        first,
        first_s,
        connect_s,
        connect_ns,
        alone_kb,
        idle_kb,
        busy_kb,
        live_bytes,
        used_ns,
        sealed_ns,
        own_ns,
        totals,
        memory,
    };
    Ok((measured, agents))
}

fn tell(options: &ConnectionsOptions, measured: &ConnectionMeasurements) {
    let ConnectionMeasurements {
        first,
        first_s,
        connect_s,
        connect_ns,
        alone_kb,
        idle_kb,
        busy_kb,
        live_bytes,
        totals,
        ..
    } = measured;
    let (count, seconds) = (options.connections as f64, options.seconds as f64);
    let (idle, busy) = ((idle_kb - alone_kb) / count, (busy_kb - alone_kb) / count);
    line("first connection of all with new schemas, s", format!("{first_s:.1}"), "");
    line("  to CONNACK, 99th percentile, ms", format!("{:.1}", first.connects.quantile_ms(0.99)), "");
    line("connecting all again, s", format!("{connect_s:.1}"), "");
    line(
        "  server's CPU, us a connection with its known schema",
        format!("{:.0}", *connect_ns as f64 / 1e3 / count),
        "",
    );
    line("  to CONNACK, median, ms", format!("{:.2}", totals.connects.quantile_ms(0.5)), "");
    line("  to CONNACK, 99th percentile, ms", format!("{:.2}", totals.connects.quantile_ms(0.99)), "");
    line("server's resident memory without connections, MB", format!("{:.0}", alone_kb / 1e3), "");
    aim("  kB more a connection, idle", idle, 1, Aim::AtMost(CONNECTION_KB_MAX, "20"));
    aim("  kB more a connection, publishing", busy, 1, Aim::AtMost(CONNECTION_KB_MAX, "20"));
    line("    of that the payload that is not sealed yet, kB", format!("{:.1}", live_bytes / 1e3 / count), "");
    line("readings acknowledged a second", format!("{:.0}", totals.readings as f64 / seconds), "");
    line("server, cores", format!("{:.3}", measured.used_ns as f64 / 1e9 / seconds), "");
    line("  us of CPU a batch", format!("{:.1}", measured.used_ns as f64 / 1e3 / totals.batches as f64), "");
    let each = |ns: u64| format!("{:.1}", ns as f64 / totals.readings as f64);
    line("  ns of CPU a reading, until acknowledged", each(measured.used_ns), "");
    line("  ns of CPU a reading, with all sealed", each(measured.sealed_ns), "");
    line("generator, cores", format!("{:.3}", measured.own_ns as f64 / 1e9 / seconds), "");
    let [p50, p99] = [0.5, 0.99].map(|q| totals.acks.quantile_ms(q));
    let text = format!("{p50:.1} {p99:.1} {:.0}", totals.acks.max_ms());
    line("from sending to PUBACK: median, 99th percentile, largest, ms", text, "");
}

pub fn run(options: &ConnectionsOptions) -> anyhow::Result<()> {
    raise_open_files();
    println!(
        "connections: {} with {} sensors every {} ms for {} s, quality of service 1",
        options.connections, options.sensors, options.interval_ms, options.seconds
    );
    let runs = options.security.iter().map(|&security| one(options, security)).collect::<Result<Vec<_>, _>>()?;
    keep("connections", json!({ "runs": runs }))
}
