//! The load generator as a process: lines on standard input are its commands, each is answered by a line of JSON.
//!
//! `connect` opens all connections and announces the schemas; `run SECONDS` publishes; `drain` waits until everything is acknowledged; `close`
//! ends the connections, and `connect` opens them again for the same agents; `sums` are what each agent made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use wholegrain_transport::tls::{self, Identity};

use crate::load::agent::{Agent, ExpectedSums};
use crate::load::fleet::{Fleet, Pace, Target, Totals};
use crate::load::own_cpu_ns;
use crate::load::raise_open_files;

#[derive(clap::Args)]
pub struct GenerateLoadOptions {
    /// The server's port on the loopback addresses.
    #[arg(long)]
    port: u16,
    /// Simulated agents, a connection each.
    #[arg(long)]
    agents: usize,
    /// Sensors of the agents' groups, in turn.
    #[arg(long, value_delimiter = ',')]
    sensors: Vec<usize>,
    /// Samples of a batch.
    #[arg(long)]
    samples: usize,
    /// From sample to sample, ns.
    #[arg(long)]
    interval_ns: i64,
    /// Publishes of one agent that wait for their acknowledgement, at most.
    #[arg(long)]
    window: usize,
    /// Connections in the handshake at once.
    #[arg(long)]
    handshakes: usize,
    /// Sends batches as soon as the window has room, not by the clock.
    #[arg(long)]
    as_acknowledged: bool,
    /// The authority's certificate: with it connections use TLS.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// A folder with the certificate and the key of each agent.
    #[arg(long, requires = "ca")]
    certificates: Option<PathBuf>,
}

impl GenerateLoadOptions {
    fn agents(&self) -> anyhow::Result<Vec<Agent>> {
        let mut agents: Vec<Agent> = Vec::with_capacity(self.agents);
        for (index, &sensors) in self.sensors.iter().cycle().take(self.agents).enumerate() {
            let mut agent = Agent::new(format!("n{index:05}"), sensors, self.samples, self.interval_ns)?;
            if let Some(same) = agents.get(index % self.sensors.len()) {
                agent.share_sensors(same);
            }
            agents.push(agent);
        }
        Ok(agents)
    }

    fn target(&self) -> anyhow::Result<Target> {
        let mut target = Target::on_loopback(self.port);
        if let Some(ca) = &self.ca {
            let one = |at: usize, folder: &PathBuf| -> anyhow::Result<Arc<rustls::ClientConfig>> {
                let (cert, key) = (folder.join(format!("n{at:05}.pem")), folder.join(format!("n{at:05}.key")));
                Ok(tls::client_config(ca, Some(Identity { cert: &cert, key: &key }))?)
            };
            target.tls = match &self.certificates {
                Some(folder) => (0..self.agents).map(|at| one(at, folder)).collect::<Result<_, _>>()?,
                None => vec![tls::client_config(ca, None)?],
            };
        }
        Ok(target)
    }
}

fn print_totals(totals: &Totals, readings_each_second: &[u64]) {
    let answer = json!({
        "batches": totals.batches, "readings": totals.readings, "bytes": totals.bytes, "acks_ms": totals.acks.json(),
        "connects_ms": totals.connects.json(), "schemas_ms": totals.schemas.json(), "readings_each_second": readings_each_second,
        "cpu_ns": own_cpu_ns(),
    });
    println!("{answer}");
}

/// The sums by agent: batches, readings, times, integers, floats. They have more digits than a JSON value of `serde_json` has.
fn print_sums(agents: &[Agent]) -> anyhow::Result<()> {
    let numbers = |made: &ExpectedSums| {
        let ExpectedSums { batches, readings, time_sum, int_sum, float_steps } = *made;
        [i128::from(batches), i128::from(readings), time_sum, int_sum, float_steps]
    };
    let sums: BTreeMap<&str, _> = agents.iter().map(|agent| (agent.name.as_str(), numbers(&agent.made))).collect();
    println!("{}", serde_json::to_string(&sums)?);
    Ok(())
}

/// Runs commands until standard input ends.
pub fn run(options: &GenerateLoadOptions) -> anyhow::Result<()> {
    raise_open_files();
    let pace = if options.as_acknowledged { Pace::Window } else { Pace::Clock };
    let (mut agents, target) = (options.agents()?, options.target()?);
    let mut fleet: Option<Fleet> = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut seconds = Vec::new();
        match (line.split_once(' ').unwrap_or((&line, "")), &mut fleet) {
            (("connect", ""), None) => {
                fleet = Some(Fleet::connect(std::mem::take(&mut agents), &target, options.window, options.handshakes)?);
            }
            (("run", length), Some(fleet)) => {
                let length = length.parse().with_context(|| format!("`{line}`: a number of seconds is missing"))?;
                fleet.run(pace, Duration::from_secs_f64(length), |_, totals| seconds.push(totals.readings))?;
            }
            (("drain", ""), Some(fleet)) => fleet.drain()?,
            (("close", ""), Some(_)) => {
                let mut closed = fleet.take().context("no connections")?;
                print_totals(&std::mem::take(&mut closed.totals), &[]);
                agents = closed.into_agents();
                continue;
            }
            (("sums", ""), None) => {
                print_sums(&agents)?;
                continue;
            }
            _ => bail!("`{line}` is no command here: connect, run SECONDS, drain, close, sums in this order"),
        }
        if let Some(fleet) = &fleet {
            print_totals(&fleet.totals, &seconds);
        }
    }
    Ok(())
}
