//! Benchmarks of the whole system, one command each. They start the real programs on this machine, print ratios measured in
//! one run, since machines differ and are noisy, and write what they found to `target/bench/<name>.json`.

mod agent_cost;
mod bare;
mod bytes;
mod latency;
mod report;
mod throughput;

use clap::{Parser, Subcommand};

/// Measures Wholegrain on this machine. Needs the release binaries beside it: `make bench` builds them and runs `all`.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Everything below, with the defaults (about six minutes).
    All,
    /// CPU of the agent for meminfo + vmstat + stat beside a bare loop that only reads the same files; memory; binary size.
    AgentCost(agent_cost::Options),
    /// 100,000 readings a second from one agent through QoS 1: CPU and memory of the agent.
    Throughput(throughput::Options),
    /// Time from the read on the node to the reading being visible in the server's live cache.
    Latency(latency::Options),
    /// Bytes per stored reading of this machine's own /proc.
    Bytes(bytes::Options),
    /// The bare loop itself: reads the three files at each tick until it is killed.
    #[command(hide = true)]
    Bare(bare::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Benchmark::All => {
            agent_cost::run(&agent_cost::Options::default())?;
            throughput::run(&throughput::Options::default())?;
            latency::run(&latency::Options::default())?;
            bytes::run(&bytes::Options::default())
        }
        Benchmark::AgentCost(options) => agent_cost::run(&options),
        Benchmark::Throughput(options) => throughput::run(&options),
        Benchmark::Latency(options) => latency::run(&options),
        Benchmark::Bytes(options) => bytes::run(&options),
        Benchmark::Bare(options) => bare::run(&options),
    }
}
