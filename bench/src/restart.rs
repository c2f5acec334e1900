//! From `kill -9` to serving again, with a large journal that is not sealed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::json;
use wholegrain_model::size::ByteSize;
use wholegrain_store::{AppendOutcome, Store, StoreConfig, StoreError};
use wholegrain_testing::{Process, Site};
use wholegrain_transport::mqtt::Version;

use crate::installation::{bytes_below, installation, metric};
use crate::load::agent::Agent;
use crate::load::fleet::{Fleet, Pace};
use crate::load::link::{Link, ServerPacket};
use crate::load::wall_ns;
use crate::report::{Aim, aim, keep, line, measure_for};
use crate::server_ingest::{SENSORS, agents};

/// Agents whose batches fill the journal.
const AGENTS: usize = 48;
/// Batches of each agent that are encoded once and sent in turn.
const TEMPLATES: usize = 20;
/// Batches that wait for the disk at once.
const WINDOW: usize = 64;
/// Age of the journal's first batch, ns.
const AGO_NS: i64 = 3600 * 1_000_000_000;
/// Aim for the start, s.
const START_SECONDS_MAX: f64 = 5.0;
/// How often the starting server is asked.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How long it may take to seal everything.
const SEALED_WITHIN: Duration = Duration::from_secs(600);

#[derive(clap::Args, Clone)]
pub struct RestartOptions {
    /// Bytes of the journal.
    #[arg(long, default_value_t = 1 << 30)]
    bytes: u64,
}

impl Default for RestartOptions {
    fn default() -> Self {
        Self { bytes: 1 << 30 }
    }
}

#[derive(clap::Args)]
pub struct FillOptions {
    /// The folder of the store.
    #[arg(long)]
    dir: PathBuf,
    /// Payload that is to be durable before `full` is printed; then it continues until it is killed.
    #[arg(long)]
    bytes: u64,
}

/// Takes one answer of the store off the queue.
fn take(answers: &Receiver<Result<AppendOutcome, StoreError>>) -> anyhow::Result<()> {
    ensure!(answers.recv()?? == AppendOutcome::Stored, "a batch was not stored");
    Ok(())
}

/// Fills a journal that nobody seals, with the store's own code, until it is killed: a server of its own accord stops taking
/// batches long before so much is unsealed. Prints how many readings were durable when the journal was full.
pub fn fill(options: &FillOptions) -> anyhow::Result<()> {
    let config = StoreConfig {
        background: false,
        live_bytes_max: ByteSize(options.bytes * 4),
        ..StoreConfig::new(&options.dir)
    };
    let (store, _) = Store::open(config)?;
    let mut agents = agents(AGENTS, &SENSORS, 10, 20e6)?;
    let start = wall_ns() - AGO_NS;
    for agent in &mut agents {
        store.register_schema(agent.schema())?;
        agent.go_to(start);
        agent.prebuild(TEMPLATES);
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

/// Waits until CONNECT is answered.
fn connected(address: SocketAddr) -> Option<()> {
    let mut link = Link::open(address, None, Version::V5, "restarted").ok()?;
    let (deadline, mut is_in) = (Instant::now() + Duration::from_secs(10), false);
    while !is_in && Instant::now() < deadline {
        link.flush().ok()?;
        link.receive(|heard| {
            is_in |= matches!(heard, ServerPacket::Connected(_));
            Ok(())
        })
        .ok()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    is_in.then_some(())
}

/// Makes the journal; gives back how many readings were acknowledged at least.
fn crash(site: &Site, options: &RestartOptions) -> anyhow::Result<u64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("fill-journal").arg("--dir").arg(site.path("server/store"));
    let mut filler = Process::start(command.args(["--bytes", &options.bytes.to_string()]), &site.path("fill.log"));
    let start = Instant::now();
    let acknowledged = loop {
        measure_for(0.1);
        if let Some(text) = filler.log().strip_prefix("full ") {
            break text.trim().parse()?;
        }
        ensure!(filler.runs() && start.elapsed() < SEALED_WITHIN, "the journal was not filled: {}", filler.log());
    };
    // In the midst of it: the last record is torn as likely as not.
    filler.kill();
    Ok(acknowledged)
}

pub fn run(options: &RestartOptions) -> anyhow::Result<()> {
    println!("restart: kill -9 with {} MiB of journal that is not sealed", options.bytes >> 20);
    let (site, target) = installation(&[]);
    let acknowledged = crash(&site, options)?;
    let journal = bytes_below(&site.path("server/store/journal"));
    let start = Instant::now();
    let mut command = site.command(&["server", "--config"]);
    let mut server = Process::start(command.arg(site.path("server/server.toml")), &site.path("server.log"));
    let since = || start.elapsed().as_secs_f64();
    let runs = |server: &mut Process| {
        ensure!(server.runs() && start.elapsed() < SEALED_WITHIN, "the server does not start: {}", server.log());
        std::thread::sleep(ASK_EVERY);
        Ok(())
    };
    while connected(target.addresses[0]).is_none() {
        runs(&mut server)?;
    }
    let connected_s = since();
    while site.api("/healthz").is_none() {
        runs(&mut server)?;
    }
    let healthy_s = since();
    let (cpu_s, rss_mb) = (server.cpu_ns() as f64 / 1e9, server.status_kb("VmHWM") as f64 / 1e3);
    let agent = Agent::new("restarted".to_owned(), 250, 10, 1_000_000)?;
    let mut fleet = Fleet::connect(vec![agent], &target, 1, 1)?;
    fleet.run(Pace::Clock, Duration::from_millis(50), |_, _| {})?;
    fleet.drain()?;
    let stored_s = since();
    let new: u64 = fleet.agents().map(|agent| agent.made.readings).sum();
    wait_until_sealed(&site)?;
    let sealed_s = since();
    let rows = metric(&site, "store_block_rows")? as u64;
    let rss_sealed_mb = server.status_kb("VmHWM") as f64 / 1e3;
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());

    line("journal, MB", format!("{:.0}", journal as f64 / 1e6), "");
    line("readings acknowledged in it, at least", acknowledged, "");
    aim("to an accepted CONNECT, s", connected_s, 2, Aim::AtMost(START_SECONDS_MAX, "5"));
    aim("to a healthy /healthz, s", healthy_s, 2, Aim::AtMost(START_SECONDS_MAX, "5"));
    aim("to the first acknowledged batch of a new agent, s", stored_s, 2, Aim::AtMost(START_SECONDS_MAX, "5"));
    line("CPU of the start, s", format!("{cpu_s:.2}"), "");
    line("resident memory then, largest, MB", format!("{rss_mb:.0}"), "");
    line("to a journal that is all sealed, s", format!("{sealed_s:.1}"), "");
    line("resident memory until then, largest, MB", format!("{rss_sealed_mb:.0}"), "");
    // Batches that were written and not yet acknowledged may or may not be there.
    let verdict = if rows >= acknowledged + new { "nothing lost: reached" } else { "nothing lost: MISSED" };
    line("rows in the blocks beyond those acknowledged", rows as i128 - (acknowledged + new) as i128, verdict);
    keep(
        "restart",
        json!({ "journal_bytes": journal, "acknowledged": acknowledged, "connected_s": connected_s, "healthy_s": healthy_s,
                "stored_s": stored_s, "sealed_s": sealed_s, "cpu_s": cpu_s, "rss_mb": rss_mb, "rss_sealed_mb": rss_sealed_mb,
                "rows": rows }),
    )
}

fn wait_until_sealed(site: &Site) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let bytes = metric(site, "journal_bytes").context("the server does not answer while it seals")?;
        if bytes == 0.0 {
            return Ok(());
        }
        ensure!(start.elapsed() < SEALED_WITHIN, "{bytes} bytes of journal are not sealed yet");
        measure_for(0.2);
    }
}
