//! Sends a recording to a server: by MQTT as agents do, or by remote write.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use wholegrain_transport::client::{Client, ClientConfig, Event};

use super::{Recording, remote_write};
use crate::load::wall_ns;

/// Publishes of one connection that wait for their acknowledgement; the server's default is as many.
const WINDOW: usize = 64;
/// How long the server may acknowledge nothing.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The readings end this time before now: no system accepts readings of the future.
const BEFORE_NOW_NS: i64 = 5_000_000_000;

#[derive(clap::Args)]
pub struct ReplayOptions {
    /// The file of the recording.
    #[arg(long)]
    file: PathBuf,
    /// Where to send: `mqtt://host:port`, or the URL of remote write.
    #[arg(long)]
    to: String,
    /// The nodes whose readings these are, each with a connection and a thread.
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<String>,
    /// Batches of one sample.
    #[arg(long)]
    singles: bool,
}

/// A message, made before anything is measured. Remote write has no topic.
type Message = (String, Vec<u8>);

/// Prints what is to be sent, and sends it when a line comes on standard input; prints `sent` when all of it is acknowledged.
pub fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let (recording, left_out) = Recording::load(&options.file)?.one_per_millisecond();
    // By whole seconds: readings stay where they are within one.
    let by_ns = (wall_ns() - BEFORE_NOW_NS - recording.span().1).div_euclid(1_000_000_000) * 1_000_000_000;
    let is_mqtt = options.to.starts_with("mqtt://");
    let mut lanes: Vec<(&str, Vec<Message>)> = Vec::new();
    for node in &options.nodes {
        let moved = recording.moved(node, by_ns)?;
        let messages = match (is_mqtt, options.singles) {
            (true, true) => moved.singles().messages(),
            (true, false) => moved.messages(),
            (false, _) => remote_write::messages(&moved)?,
        };
        lanes.push((node, messages));
    }
    let (from, to) = recording.span();
    let about = json!({ "readings": recording.readings(), "readings_left_out": left_out, "from_ns": from + by_ns, "to_ns": to + by_ns,
                        "sums": recording.sums() });
    println!("{about}");
    if std::io::stdin().read_line(&mut String::new())? == 0 {
        return Ok(());
    }
    std::thread::scope(|scope| {
        let send = |lane: &(&str, Vec<Message>)| {
            if is_mqtt { publish(&options.to, lane.0, &lane.1) } else { post(&options.to, &lane.1) }
        };
        let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || send(lane))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a sender panicked")))
    })?;
    println!("sent");
    Ok(())
}

fn publish(url: &str, node: &str, messages: &[Message]) -> anyhow::Result<()> {
    let config = ClientConfig { url: url.to_owned(), client_id: node.to_owned(), ..ClientConfig::default() };
    let mut client = Client::connect(&config)?;
    let window = WINDOW.min(client.receive_max().into());
    let mut messages = messages.iter().peekable();
    while messages.peek().is_some() || client.in_flight() > 0 {
        while client.in_flight() < window
            && let Some((topic, payload)) = messages.next()
        {
            client.publish(topic, payload, true, false)?;
        }
        client.flush()?;
        let event = client.poll(SILENCE_MAX)?.context("the server acknowledges nothing")?;
        if let Event::Acked { reason, .. } = event {
            ensure!(!reason.is_error(), "{node}: a publish was refused: {reason:?}");
        }
    }
    Ok(client.disconnect()?)
}

fn post(url: &str, messages: &[Message]) -> anyhow::Result<()> {
    let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(SILENCE_MAX));
    let agent = config.build().new_agent();
    for (_, body) in messages {
        let request =
            remote_write::HEADERS.iter().fold(agent.post(url), |request, (name, value)| request.header(*name, *value));
        let mut answer = request.send(&body[..]).with_context(|| format!("sending to {url}"))?;
        answer.body_mut().read_to_vec()?;
    }
    Ok(())
}
