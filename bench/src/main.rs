//! Benchmarks of the whole system, one command each. They start the real programs on this machine, print ratios measured in
//! one run, since machines differ and are noisy, and write their results to `target/bench/<name>.json`.

mod bare;
mod bare_broker;
mod embedded;
mod generate_load;
mod installation;
mod jobs;
mod load;
mod mqtt_flood;
mod mqtt_topics;
mod power;
mod push_dcdb;
mod python;
mod recording;
mod report;

use clap::{Parser, Subcommand};
use python::PackageArguments;

/// Measures Wholegrain on this machine. Needs the release binaries beside it: `make bench` builds them and runs `all`.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Everything below, with the defaults (about half an hour).
    All,
    /// CPU of the agent for meminfo + vmstat + stat beside a bare loop that only reads the same files; memory; binary size.
    AgentCost(PackageArguments),
    /// 100,000 readings a second from one agent through QoS 1: CPU and memory of the agent.
    Throughput(PackageArguments),
    /// Time from the read on the node to the reading being visible in the server's live cache.
    Latency(PackageArguments),
    /// Bytes per stored reading of this machine's own /proc.
    Bytes(PackageArguments),
    /// Readings of many agents into the server: its CPU a reading with seal and merge, memory, and a check that each is stored once.
    ServerIngest(PackageArguments),
    /// One reading of 16 bytes a message, as DCDB's pushers send them: the server's CPU a message.
    DcdbMessages(PackageArguments),
    /// Ten thousand connections with a small batch a second each: CPU, memory a connection, latency.
    Connections(PackageArguments),
    /// 100,000 retained messages and 30,000 sessions that subscribe to a part of them, beside Mosquitto.
    MqttTopics(mqtt_topics::MqttTopicsOptions),
    /// Latency of others while one identity's connections send as fast as they can, or bare TCP connections arrive.
    MqttFlood(mqtt_flood::MqttFloodOptions),
    /// Lists of sensors, newest readings and searches for names over a million sensors (not in `all`).
    Lists(PackageArguments),
    /// How soon the answer to a query of one sensor over a day begins, while readings are taken in.
    RangeQuery(PackageArguments),
    /// Import of CSV, from the file to durable blocks: readings a second, beside DuckDB making Parquet of the same file.
    Import(PackageArguments),
    /// A thousand sensors over an hour as one series, and a month of one sensor in 1,000 points, on the embedded store beside DuckDB.
    QuerySpeed(PackageArguments),
    /// A virtual sensor over 512 sensors and a day at 1 s: computed, and then kept; beside DuckDB on the same files.
    Virtual(PackageArguments),
    /// From `kill -9` to serving again with 1 GiB of journal.
    Restart(PackageArguments),
    /// Sends messages as DCDB's pushers do: a part of `dcdb-messages`.
    #[command(hide = true)]
    PushDcdb(push_dcdb::PushDcdbOptions),
    /// Makes a store with the power of many nodes: a part of `query-speed` and `virtual`.
    #[command(hide = true)]
    MakePower(power::MakeOptions),
    /// Queries of a store without a server: a part of `query-speed` and `virtual`.
    #[command(hide = true)]
    QueryPower(power::QueryOptions),
    /// Simulated agents, driven by lines on standard input: a part of `server-ingest`, `connections`, `fan-in`, `restart` and `range-query`.
    #[command(hide = true)]
    GenerateLoad(generate_load::GenerateLoadOptions),
    /// Merges the days of a store that are over: a part of `server-ingest` and `beside`.
    #[command(hide = true)]
    MergeDays(embedded::StoreFolder),
    /// Fills a store with hours of readings: a part of `range-query`.
    #[command(hide = true)]
    Preload(embedded::PreloadOptions),
    /// Records what an agent sends: a part of `beside`.
    #[command(hide = true)]
    Record(recording::record::RecordOptions),
    /// Sends a recording: a part of `beside`.
    #[command(hide = true)]
    Replay(recording::replay::ReplayOptions),
    /// Fills a journal until it is killed: a part of `restart`.
    #[command(hide = true)]
    FillJournal(embedded::FillJournalOptions),
    /// CPU and ticks of the agent with all metrics of one job and of ten, beside a bare loop of the same reads.
    JobCost(PackageArguments),
    /// 200 concurrent jobs at 1 s: CPU, memory and descriptors of the agent.
    JobMany(PackageArguments),
    /// From the request for another interval to the first sample at it, over the agent's socket and through the server.
    JobReconfigure(PackageArguments),
    /// The overhead experiment: workloads x monitors x periods x repetitions, in random order, resumable; on one machine or a cluster.
    Experiment(PackageArguments),
    /// One workload of the experiment by itself.
    Workload(PackageArguments),
    /// One monitor of the experiment by itself, until it is stopped.
    Monitor(PackageArguments),
    /// CPU a metric and memory of every monitor at one period, on an otherwise idle machine.
    MonitorCost(PackageArguments),
    /// CPU and memory of the agent against its sensor rate, with a linear fit.
    SensorRate(PackageArguments),
    /// Cgroups of jobs, held until standard input ends: for monitors and benchmarks that read jobs.
    #[command(hide = true)]
    JobGroup(jobs::group::JobGroupOptions),
    /// The server beside VictoriaMetrics and Prometheus on the same recorded readings.
    Beside(PackageArguments),
    /// 15,000 connections from one load generator: CPU, memory an agent, each reading there once.
    FanIn(PackageArguments),
    /// The bare loop of `job-cost`: performs listed reads at each tick until it is killed.
    #[command(hide = true)]
    BareJobs(jobs::bare::BareJobsOptions),
    /// The bare loop itself: reads the three files at each tick until it is killed.
    #[command(hide = true)]
    Bare(bare::BareOptions),
    /// The yardstick of `server-ingest --bare`: reads publishes and acknowledges them until it is killed.
    #[command(hide = true)]
    BareBroker(bare_broker::BareBrokerOptions),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Benchmark::All => all(),
        Benchmark::AgentCost(arguments) => python::exec("agent", &["agent-cost"], &arguments),
        Benchmark::Throughput(arguments) => python::exec("agent", &["throughput"], &arguments),
        Benchmark::Latency(arguments) => python::exec("agent", &["latency"], &arguments),
        Benchmark::Bytes(arguments) => python::exec("agent", &["bytes"], &arguments),
        Benchmark::ServerIngest(arguments) => python::exec("ingest", &["server-ingest"], &arguments),
        Benchmark::DcdbMessages(arguments) => python::exec("ingest", &["dcdb-messages"], &arguments),
        Benchmark::Connections(arguments) => python::exec("ingest", &["connections"], &arguments),
        Benchmark::MqttTopics(options) => mqtt_topics::run(&options),
        Benchmark::MqttFlood(options) => mqtt_flood::run(&options),
        Benchmark::Lists(arguments) => python::exec("server", &["lists"], &arguments),
        Benchmark::RangeQuery(arguments) => python::exec("server", &["range-query"], &arguments),
        Benchmark::Import(arguments) => python::exec("server", &["import"], &arguments),
        Benchmark::QuerySpeed(arguments) => python::exec("query_speed", &["query-speed"], &arguments),
        Benchmark::Virtual(arguments) => python::exec("query_speed", &["virtual"], &arguments),
        Benchmark::Restart(arguments) => python::exec("server", &["restart"], &arguments),
        Benchmark::PushDcdb(options) => push_dcdb::run(&options),
        Benchmark::MakePower(options) => power::make(&options),
        Benchmark::QueryPower(options) => power::query(&options),
        Benchmark::GenerateLoad(options) => generate_load::run(&options),
        Benchmark::MergeDays(folder) => embedded::merge_days(&folder),
        Benchmark::Preload(options) => embedded::preload(&options),
        Benchmark::Record(options) => recording::record::run(&options),
        Benchmark::Replay(options) => recording::replay::run(&options),
        Benchmark::FillJournal(options) => embedded::fill_journal(&options),
        Benchmark::JobCost(arguments) => python::exec("jobs", &["job-cost"], &arguments),
        Benchmark::JobMany(arguments) => python::exec("jobs", &["job-many"], &arguments),
        Benchmark::JobReconfigure(arguments) => python::exec("jobs", &["job-reconfigure"], &arguments),
        Benchmark::Experiment(arguments) => python::exec("experiment", &[], &arguments),
        Benchmark::Workload(arguments) => python::exec("workloads", &[], &arguments),
        Benchmark::Monitor(arguments) => python::exec("monitors", &[], &arguments),
        Benchmark::MonitorCost(arguments) => python::exec("monitors.cost", &[], &arguments),
        Benchmark::SensorRate(arguments) => python::exec("sensor_rate", &[], &arguments),
        Benchmark::JobGroup(options) => jobs::group::run(&options),
        Benchmark::Beside(arguments) => python::exec("beside", &[], &arguments),
        Benchmark::FanIn(arguments) => python::exec("ingest", &["fan-in"], &arguments),
        Benchmark::BareJobs(options) => jobs::bare::run(&options),
        Benchmark::Bare(options) => bare::run(&options),
        Benchmark::BareBroker(options) => bare_broker::run(&options),
    }
}

/// Each benchmark with its defaults, whatever became of those before it.
fn all() -> anyhow::Result<()> {
    type Run = fn() -> anyhow::Result<()>;
    let benchmarks: [(&str, Run); 17] = [
        ("agent-cost", || python::run("agent", &["agent-cost"])),
        ("throughput", || python::run("agent", &["throughput"])),
        ("latency", || python::run("agent", &["latency"])),
        ("bytes", || python::run("agent", &["bytes"])),
        ("server-ingest", || python::run("ingest", &["server-ingest", "--seconds", "40", "--seal-after", "10s"])),
        ("dcdb-messages", || python::run("ingest", &["dcdb-messages", "--seconds", "5"])),
        ("connections", || python::run("ingest", &["connections", "--seconds", "15", "--security", "plain,tls"])),
        ("mqtt-topics", || mqtt_topics::run(&mqtt_topics::MqttTopicsOptions::short())),
        ("mqtt-flood", || mqtt_flood::run(&mqtt_flood::MqttFloodOptions::default())),
        ("range-query", || python::run("server", &["range-query"])),
        ("import", || python::run("server", &["import"])),
        ("query-speed", || python::run("query_speed", &["query-speed"])),
        ("virtual", || python::run("query_speed", &["virtual"])),
        ("restart", || python::run("server", &["restart"])),
        ("job-cost", || python::run("jobs", &["job-cost"])),
        ("job-many", || python::run("jobs", &["job-many"])),
        ("job-reconfigure", || python::run("jobs", &["job-reconfigure"])),
    ];
    let count = benchmarks.len();
    let mut failed = Vec::new();
    for (at, (name, run)) in benchmarks.into_iter().enumerate() {
        println!("{name} ({} of {count})", at + 1);
        // The harness panics when something does not come; that is this benchmark's end, not the others'.
        let ended = std::panic::catch_unwind(run).unwrap_or_else(|_| Err(anyhow::anyhow!("see above")));
        if let Err(error) = ended {
            eprintln!("{name} FAILED: {error:#}");
            failed.push(name);
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}; the others have left their figures", failed.join(", "));
    Ok(())
}
