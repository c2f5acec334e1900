//! The server's cost and bounds under batches of agents: sockets, journal, seal and merge included.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::{Process, Site, free_port, python, wait_until};

use crate::installation::{bytes_below, installation, metric, target, wait_until_idle};
use crate::load::agent::{Agent, ExpectedSums};
use crate::load::fleet::{Fleet, Pace, Totals};
use crate::load::{own_cpu_ns, wall_ns};
use crate::report::{aim, keep, line};
use crate::usage::{Memory, cpu_by_thread};

/// Sizes of the agents' groups, in turn.
pub const SENSORS: [usize; 6] = [250, 500, 1000, 2500, 5000, 10_000];
/// Without a given rate, the distance of samples is that of this rate, readings a second.
const RATE_MAX: f64 = 200e6;
/// A day is merged into one block before this age, ns.
const TWO_DAYS_NS: i64 = 2 * 86_400 * 1_000_000_000;
/// Windows in which the slowest stretch is searched, seconds.
const STRETCH_SECONDS: usize = 10;

#[derive(clap::Args, Clone)]
pub struct ServerIngestOptions {
    /// Length of the load, seconds. The figure that is aimed at is of 300.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Readings a second; 0 sends whenever a window has room.
    #[arg(long, default_value_t = 2e6)]
    rate: f64,
    /// Simulated agents, a connection each; their groups have 250, 500, 1,000, 2,500, 5,000 and 10,000 sensors, in turn.
    #[arg(long, default_value_t = 48)]
    agents: usize,
    /// Sensors of every agent's group instead.
    #[arg(long)]
    sensors: Option<usize>,
    /// Samples of a batch.
    #[arg(long, default_value_t = 10)]
    samples: usize,
    /// Batches of one agent that wait for their acknowledgement.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// The server's setting `seal_after`.
    #[arg(long, default_value = "60s")]
    seal_after: String,
    /// The server's setting `seal_bytes`.
    #[arg(long, default_value = "64MiB")]
    seal_bytes: String,
    /// The server's setting `commit_every`.
    #[arg(long, default_value = "5ms")]
    commit_every: String,
    /// The same load on a program that only reads publishes and acknowledges them: the cost of sockets alone.
    #[arg(long)]
    bare: bool,
}

impl ServerIngestOptions {
    /// The shortened version for `all`.
    pub fn short() -> Self {
        Self {
            seconds: 40,
            rate: 2e6,
            agents: 48,
            sensors: None,
            samples: 10,
            window: 64,
            seal_after: "10s".into(),
            seal_bytes: "64MiB".into(),
            commit_every: "5ms".into(),
            bare: false,
        }
    }
}

/// Agents with intervals such that all together make `rate` readings a second.
pub fn agents(count: usize, sizes: &[usize], samples: usize, rate: f64) -> anyhow::Result<Vec<Agent>> {
    let sizes = || (0..count).map(|index| sizes[index % sizes.len()]);
    let interval_ns = (sizes().sum::<usize>() as f64 * 1e9 / rate) as i64;
    sizes().enumerate().map(|(index, size)| Agent::new(format!("n{index:05}"), size, samples, interval_ns)).collect()
}

/// Whether the blocks hold exactly what the agents made, by DuckDB's sums; prints it.
pub fn check(site: &Site, agents: &[Agent]) -> anyhow::Result<serde_json::Value> {
    let text = python("sum_rows.py", &[&site.path("server/store")]);
    let mut found: BTreeMap<&str, ExpectedSums> = BTreeMap::new();
    for words in text.lines().map(|line| line.split(' ').collect::<Vec<_>>()) {
        let [name, numbers @ ..] = &words[..] else { continue };
        let numbers: Vec<i128> = numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
        let [rows, time_sum, int_sum, float_steps] = numbers[..] else { anyhow::bail!("sum_rows.py printed {text}") };
        found.insert(name, ExpectedSums { batches: 0, readings: rows as u64, time_sum, int_sum, float_steps });
    }
    let rows: u64 = found.values().map(|made| made.readings).sum();
    let made: u64 = agents.iter().map(|agent| agent.made.readings).sum();
    let differ = |agent: &&Agent| Some(&ExpectedSums { batches: 0, ..agent.made }) != found.get(agent.name.as_str());
    let differing = agents.iter().filter(differ).count();
    let verdict = if differing == 0 && rows == made { "each once: reached" } else { "each once: MISSED" };
    line(
        "readings in the blocks (DuckDB), of those acknowledged",
        format!("{:+}", rows as i128 - made as i128),
        verdict,
    );
    line("agents whose rows, times or values do not add up", differing, "0");
    Ok(json!({ "rows": rows, "made": made, "agents_that_differ": differing }))
}

/// The merge of the days that the store does when they are over, done now by the store's own code in this process, whose CPU
/// is counted: ns.
fn merge_days(site: &Site) -> anyhow::Result<u64> {
    let before = own_cpu_ns();
    let config = StoreConfig { background: false, ..StoreConfig::new(site.path("server/store")) };
    let (store, _) = Store::open(config).context("opening the store for its merge")?;
    store.maintain(wall_ns() + TWO_DAYS_NS)?;
    store.close()?;
    Ok(own_cpu_ns() - before)
}

/// Results of one run.
struct IngestMeasurements {
    totals: Totals,
    /// Acknowledged at the end of each second.
    seconds: Vec<u64>,
    memory: Memory,
    length_s: f64,
    server_ns: u64,
    sealed_ns: u64,
    idle_after_s: f64,
    own_ns: u64,
    threads: BTreeMap<String, f64>,
    merges: f64,
    agents: Vec<Agent>,
}

fn load(
    options: &ServerIngestOptions,
    site: &Site,
    mut fleet: Fleet,
    server: &Process,
) -> anyhow::Result<IngestMeasurements> {
    let pace = if options.rate > 0.0 { Pace::Clock } else { Pace::Window };
    let (mut memory, mut seconds) = (Memory::default(), Vec::new());
    let (server_before, own_before) = (server.cpu_ns(), own_cpu_ns());
    let start = std::time::Instant::now();
    fleet.run(pace, Duration::from_secs(options.seconds), |elapsed, totals| {
        memory.look(elapsed.as_secs_f64(), server);
        seconds.push(totals.readings);
    })?;
    fleet.drain()?;
    let length_s = start.elapsed().as_secs_f64();
    let (server_ns, own_ns) = (server.cpu_ns() - server_before, own_cpu_ns() - own_before);
    let totals = std::mem::take(&mut fleet.totals);
    let agents = fleet.into_agents();
    let idle_after_s = wait_until_idle(site, server)?;
    let sealed_ns = server.cpu_ns() - server_before;
    let (threads, merges) = (cpu_by_thread(server.id()), metric(site, "store_merges_total")?);
    Ok(IngestMeasurements {
        totals,
        seconds,
        memory,
        length_s,
        server_ns,
        sealed_ns,
        idle_after_s,
        own_ns,
        threads,
        merges,
        agents,
    })
}

/// Readings a second of the slowest stretch.
fn slowest(seconds: &[u64]) -> f64 {
    let window = STRETCH_SECONDS.min(seconds.len().saturating_sub(1)).max(1);
    let rates = seconds.windows(window + 1).map(|w| (w[window] - w[0]) as f64 / window as f64);
    rates.fold(f64::INFINITY, f64::min)
}

pub fn run(options: &ServerIngestOptions) -> anyhow::Result<()> {
    let rate = if options.rate > 0.0 { options.rate } else { RATE_MAX };
    let sizes = options.sensors.map_or(SENSORS.to_vec(), |sensors| vec![sensors]);
    let agents = agents(options.agents, &sizes, options.samples, rate)?;
    let sensors: usize = agents.iter().map(|agent| agent.sensors).sum();
    let pace = if options.rate > 0.0 { format!("{rate:.0} readings/s") } else { "as fast as acknowledged".into() };
    println!(
        "server-ingest: {} agents, {sensors} sensors, batches of {} samples, {pace}, {} s, then until sealed and merged",
        options.agents, options.samples, options.seconds
    );
    if options.bare {
        return run_bare(options, agents);
    }
    let (seal_after, seal_bytes) = (format!("{:?}", options.seal_after), format!("{:?}", options.seal_bytes));
    let commit_every = format!("{:?}", options.commit_every);
    let (site, target) = installation(&[
        ("store", "seal_after", &seal_after),
        ("store", "seal_bytes", &seal_bytes),
        ("store", "commit_every", &commit_every),
    ]);
    let mut server = site.start_server();
    let fleet = Fleet::connect(agents, &target, options.window, 16)?;
    let measured = load(options, &site, fleet, &server)?;
    let open = site_bytes(&site);
    anyhow::ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    let day_ns = merge_days(&site)?;
    let disk = bytes_below(&site.path("server/store/blocks"));
    tell(options, &measured, day_ns, disk)?;
    let checked = check(&site, &measured.agents)?;
    let IngestMeasurements { totals, memory, threads, .. } = &measured;
    let readings = totals.readings as f64;
    let name = if options.rate > 0.0 { "server-ingest" } else { "server-ingest-window" };
    keep(
        name,
        json!({
            "agents": options.agents, "sensors": sensors, "samples": options.samples, "rate_wanted": options.rate,
            "seconds": options.seconds, "readings": totals.readings, "batches": totals.batches,
            "readings_per_s": readings / measured.length_s, "readings_per_s_slowest": slowest(&measured.seconds),
            "ns_per_reading_acknowledged": measured.server_ns as f64 / readings,
            "ns_per_reading_sealed": measured.sealed_ns as f64 / readings, "ns_per_reading_day": day_ns as f64 / readings,
            "generator_ns_per_reading": measured.own_ns as f64 / readings, "merges": measured.merges,
            "payload_bytes_per_reading": totals.bytes as f64 / readings, "bytes_per_reading": disk as f64 / readings,
            "bytes_before_day_merge": open, "memory": memory.json(), "acks_ms": totals.acks.json(), "cpu_by_thread": threads,
            "checked": checked,
        }),
    )
}

/// The yardstick under the same load.
fn run_bare(options: &ServerIngestOptions, agents: Vec<Agent>) -> anyhow::Result<()> {
    let (folder, port) = (tempfile::tempdir()?, free_port());
    let mut command = Command::new(std::env::current_exe().context("this program's path")?);
    let command = command.args(["bare-broker", "--port", &port.to_string()]);
    let mut process = Process::start(command, &folder.path().join("log"));
    wait_until("the yardstick listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut fleet = Fleet::connect(agents, &target(port), options.window, 16)?;
    let before = process.cpu_ns();
    let pace = if options.rate > 0.0 { Pace::Clock } else { Pace::Window };
    fleet.run(pace, Duration::from_secs(options.seconds), |_, _| {})?;
    fleet.drain()?;
    let used = (process.cpu_ns() - before) as f64;
    process.kill();
    let Totals { batches, readings, .. } = fleet.totals;
    line("batches acknowledged", batches, "");
    line("yardstick, us of CPU a batch", format!("{:.1}", used / 1e3 / batches as f64), "");
    line("yardstick, ns of CPU a reading", format!("{:.1}", used / readings as f64), "");
    let name = "server-ingest-bare";
    keep(name, json!({ "batches": batches, "readings": readings, "ns_per_reading": used / readings as f64 }))
}

fn site_bytes(site: &Site) -> u64 {
    bytes_below(&site.path("server/store/blocks"))
}

fn tell(options: &ServerIngestOptions, measured: &IngestMeasurements, day_ns: u64, disk: u64) -> anyhow::Result<()> {
    let IngestMeasurements { totals, length_s, .. } = measured;
    let readings = totals.readings as f64;
    let each = |ns: u64| ns as f64 / readings;
    line("batches acknowledged", totals.batches, "");
    aim(
        "readings a second, acknowledged",
        readings / length_s,
        0,
        crate::report::Aim::AtLeast(2e6 * 0.99, "2,000,000"),
    );
    if measured.seconds.len() > STRETCH_SECONDS {
        line(&format!("the same in the slowest {STRETCH_SECONDS} s"), format!("{:.0}", slowest(&measured.seconds)), "");
    }
    line("server, ns of CPU a reading until acknowledged", format!("{:.1}", each(measured.server_ns)), "");
    line("  with all sealed, and merged as in service", format!("{:.1}", each(measured.sealed_ns)), "");
    let all = each(measured.sealed_ns + day_ns);
    aim("  and with the merge of the days that are over", all, 1, crate::report::Aim::AtMost(250.0, "250, goal 100"));
    line("sealed and merged after the last reading, s", format!("{:.0}", measured.idle_after_s), "");
    line("generator, ns of CPU a reading", format!("{:.1}", each(measured.own_ns)), "");
    let cores = (measured.server_ns + measured.own_ns) as f64 / 1e9 / length_s;
    line("cores used by server and generator", format!("{cores:.2}"), "");
    for (name, seconds) in measured.threads.iter().filter(|(_, seconds)| **seconds > 0.05) {
        line(&format!("  threads {name:?}, s of CPU"), format!("{seconds:.1}"), "");
    }
    let [p50, p99] = [0.5, 0.99].map(|q| totals.acks.quantile_ms(q));
    let text = format!("{p50:.1} {p99:.1} {:.0}", totals.acks.max_ms());
    line("from sending to PUBACK: median, 99th percentile, largest, ms", text, "");
    measured.memory.tell();
    line("bytes of payload a reading", format!("{:.3}", totals.bytes as f64 / readings), "");
    line("bytes of Parquet a reading", format!("{:.3}", disk as f64 / readings), "");
    line("merges in service", format!("{:.0}", measured.merges), "");
    if options.rate > 0.0 && readings < 0.99 * options.rate * options.seconds as f64 {
        line(
            "the rate was not reached: the last reading came late by, s",
            format!("{:.1}", length_s - options.seconds as f64),
            "",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_stretch_is_found() {
        let mut acknowledged: Vec<u64> = (0..60).map(|second| second * 100).collect();
        acknowledged.iter_mut().skip(30).for_each(|readings| *readings -= 500);
        assert_eq!(slowest(&acknowledged), 50.0);
        assert_eq!(slowest(&[0, 70]), 70.0);
    }

    #[test]
    fn agents_share_the_rate() {
        let agents = agents(12, &SENSORS, 10, 2e6).unwrap();
        let rate: f64 = agents.iter().map(|a| a.batch_readings() as f64 * 1e9 / a.period_ns() as f64).sum();
        assert!((rate - 2e6).abs() < 1.0, "{rate}");
    }
}
