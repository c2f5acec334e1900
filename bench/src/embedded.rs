//! Work on a store without a server, in a process whose CPU is counted: parts of benchmarks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, ensure};
use bytes::Bytes;
use wholegrain_model::size::ByteSize;
use wholegrain_store::{AppendOutcome, Store, StoreConfig, StoreError};

use crate::load::agent::Agent;
use crate::load::{own_cpu_ns, wall_ns};

const SECOND_NS: i64 = 1_000_000_000;
/// A day is merged into one block before this age, ns.
const TWO_DAYS_NS: i64 = 2 * 86_400 * SECOND_NS;
/// Sizes of the groups of the agents whose batches fill a journal, and how many agents have each.
const SENSORS: [usize; 6] = [250, 500, 1000, 2500, 5000, 10_000];
const AGENTS_EACH: usize = 8;
/// Samples of their batches, and from sample to sample, ns.
const SAMPLES: usize = 10;
const INTERVAL_NS: i64 = 7_700_000;
/// Batches of each agent that are encoded once and sent in turn.
const TEMPLATES: usize = 20;
/// Batches that wait for the disk at once.
const WINDOW: usize = 64;
/// Age of the journal's first batch, ns.
const AGO_NS: i64 = 3600 * SECOND_NS;
/// Samples of a preloaded batch, which are those of one seal.
const MINUTE: usize = 60;

#[derive(clap::Args)]
pub struct StoreFolder {
    /// The folder of the store.
    #[arg(long)]
    dir: PathBuf,
}

#[derive(clap::Args)]
pub struct FillJournalOptions {
    #[command(flatten)]
    store: StoreFolder,
    /// Payload that is to be durable before `full` is printed; then it continues until it is killed.
    #[arg(long)]
    bytes: u64,
}

#[derive(clap::Args)]
pub struct PreloadOptions {
    #[command(flatten)]
    store: StoreFolder,
    /// Agents that share the sensors.
    #[arg(long)]
    nodes: usize,
    /// Sensors of all of them, at 1 s.
    #[arg(long)]
    sensors: usize,
    /// Hours of readings, up to now.
    #[arg(long)]
    hours: i64,
}

fn open(dir: &Path) -> anyhow::Result<Store> {
    let config = StoreConfig { background: false, ..StoreConfig::new(dir) };
    Ok(Store::open(config).with_context(|| format!("opening the store in {}", dir.display()))?.0)
}

/// Merges the days as the store does when they are over; prints the CPU time of that, ns.
pub fn merge_days(folder: &StoreFolder) -> anyhow::Result<()> {
    let before = own_cpu_ns();
    let store = open(&folder.dir)?;
    store.maintain(wall_ns() + TWO_DAYS_NS)?;
    store.close()?;
    println!("{}", own_cpu_ns() - before);
    Ok(())
}

/// Fills the store as a server would: a seal a minute, merges when they are due. Prints the first time, ns.
pub fn preload(options: &PreloadOptions) -> anyhow::Result<()> {
    let store = open(&options.store.dir)?;
    let minutes = options.hours * 60;
    let start = (wall_ns() / SECOND_NS - minutes * 60 - 5) * SECOND_NS;
    let mut nodes = Vec::new();
    for node in 0..options.nodes {
        let mut agent = Agent::new(format!("day{node}"), options.sensors / options.nodes, MINUTE, SECOND_NS)?;
        store.register_schema(agent.schema())?;
        agent.go_to(start);
        nodes.push(agent);
    }
    for minute in 1..=minutes {
        for agent in &mut nodes {
            agent.make();
            store.append_blocking(agent.message().1.to_vec().into())?;
        }
        store.seal()?;
        store.maintain(start + minute * 60 * SECOND_NS)?;
    }
    store.close()?;
    println!("{start}");
    Ok(())
}

/// Takes one answer of the store off the queue.
fn take(answers: &Receiver<Result<AppendOutcome, StoreError>>) -> anyhow::Result<()> {
    ensure!(answers.recv()?? == AppendOutcome::Stored, "a batch was not stored");
    Ok(())
}

/// Fills a journal that nobody seals until it is killed: a server stops taking batches long before so much is unsealed. Prints how many
/// readings were durable when the journal was full.
pub fn fill_journal(options: &FillJournalOptions) -> anyhow::Result<()> {
    let config = StoreConfig {
        background: false,
        live_bytes_max: ByteSize(options.bytes * 4),
        ..StoreConfig::new(&options.store.dir)
    };
    let (store, _) = Store::open(config)?;
    let mut agents = Vec::new();
    for (index, sensors) in SENSORS.into_iter().cycle().take(AGENTS_EACH * SENSORS.len()).enumerate() {
        let mut agent = Agent::new(format!("filled{index:02}"), sensors, SAMPLES, INTERVAL_NS)?;
        store.register_schema(agent.schema())?;
        agent.go_to(wall_ns() - AGO_NS);
        agent.prebuild(TEMPLATES);
        agents.push(agent);
    }
    let (sender, answers) = sync_channel(WINDOW);
    let (mut waiting, mut bytes, mut readings, mut announced) = (0, 0, 0, false);
    loop {
        for agent in &mut agents {
            agent.make();
            let payload = Bytes::copy_from_slice(agent.message().1);
            bytes += payload.len() as u64;
            readings += agent.batch_readings();
            let sender = sender.clone();
            store.append(payload, Box::new(move |result| drop(sender.send(result))));
            waiting += 1;
            if waiting == WINDOW {
                take(&answers)?;
                waiting -= 1;
            }
        }
        if bytes >= options.bytes && !announced {
            (0..std::mem::take(&mut waiting)).try_for_each(|_| take(&answers))?;
            println!("full {readings}");
            announced = true;
        }
    }
}
