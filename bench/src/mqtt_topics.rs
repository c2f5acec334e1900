//! Retained messages and subscribing sessions in great number, ours beside Mosquitto on the same machine in one run.
//!
//! 1. Retained messages from a few publishers.
//! 2. Sessions that connect, subscribe to the subtree of one parent among a hundred thousand topics, and receive its retained messages.
//! 3. One subscriber of everything.
//! 4. One client that subscribes to filters that match nothing, in 20 packets of 60, and the latency of others meanwhile.
//! 5. All sessions end, all retained messages are removed, and our server returns memory to the system.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use serde_json::json;
use wholegrain_testing::{Process, free_port, wait_until};

use crate::installation::installation;
use crate::load::client::{Client, put};
use crate::load::fleet::Target;
use crate::load::latencies::Latencies;
use crate::load::raise_open_files;
use crate::report::{aim, keep, line};

/// Publishers, each with its part of the retained messages.
const PUBLISHERS: usize = 20;
/// Threads that open sessions.
const THREADS: usize = 8;
/// Bytes of each retained message.
const PAYLOAD_BYTES: usize = 64;
/// Retained messages below each parent topic.
const MESSAGES_PER_PARENT: usize = 4;
/// How long the memory is observed at the end; the server returns free memory every minute.
const MEMORY_RETURN_TIME: Duration = Duration::from_secs(75);
/// How long others are watched after the filters that match nothing.
const WATCH_TIME: Duration = Duration::from_secs(3);

#[derive(clap::Args, Clone)]
pub struct MqttTopicsOptions {
    /// Number of retained messages.
    #[arg(long, default_value_t = 100_000)]
    retained: usize,
    /// Sessions, all at once. Twice as many open files must be allowed.
    #[arg(long, default_value_t = 30_000)]
    sessions: usize,
    /// Subscribe with a wildcard in the middle of the filter instead of at its end.
    #[arg(long)]
    middle: bool,
}

impl MqttTopicsOptions {
    /// The shortened version for `all`.
    pub fn short() -> Self {
        Self { retained: 100_000, sessions: 10_000, middle: false }
    }

    /// The topic of a retained message.
    fn topic(&self, number: usize) -> String {
        let node = number / MESSAGES_PER_PARENT;
        format!("site/rack{:03}/node{node:06}/state{}", node / 64, number % MESSAGES_PER_PARENT)
    }

    /// The filter of one session.
    fn filter(&self, session: usize) -> String {
        let node = session % (self.retained / MESSAGES_PER_PARENT).max(1);
        if self.middle {
            format!("site/+/node{node:06}/+")
        } else {
            format!("site/rack{:03}/node{node:06}/#", node / 64)
        }
    }
}

/// Times of one broker, s.
struct BrokerTimes {
    retain_s: f64,
    sessions_s: f64,
    sessions: Latencies,
    everything_s: f64,
    connect_s: f64,
    publish_s: f64,
}

/// Publishes a retained message on each topic; an empty payload removes the retained messages.
fn retain(options: &MqttTopicsOptions, address: SocketAddr, payload: &[u8]) -> anyhow::Result<()> {
    let payload = Bytes::copy_from_slice(payload);
    for publisher in 0..PUBLISHERS {
        let mut client = Client::connect(address, &format!("publisher{publisher}"), None)?;
        let mut output = BytesMut::new();
        for number in (publisher..options.retained).step_by(PUBLISHERS) {
            put(&mut output, &options.topic(number), &payload, None, true)?;
        }
        client.write(&output)?;
        // Acknowledged after everything before it was taken.
        client.publish("mark")?;
    }
    Ok(())
}

/// All sessions, which stay; how long each took from connecting to its last retained message.
fn subscribe(options: &MqttTopicsOptions, addresses: &[SocketAddr]) -> anyhow::Result<(Vec<Client>, Latencies)> {
    let part = |thread: usize| -> anyhow::Result<(Vec<Client>, Vec<Duration>)> {
        let mut clients = Vec::new();
        let mut took = Vec::new();
        for session in (thread..options.sessions).step_by(THREADS) {
            let begin = Instant::now();
            let mut client = Client::connect(addresses[session % addresses.len()], &format!("session{session}"), None)?;
            client.subscribe(&[options.filter(session)], MESSAGES_PER_PARENT)?;
            took.push(begin.elapsed());
            clients.push(client);
        }
        Ok((clients, took))
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of sessions")).collect()
    });
    let (mut clients, mut latencies) = (Vec::new(), Latencies::default());
    for result in parts {
        let (more, took) = result?;
        clients.extend(more);
        took.into_iter().for_each(|took| latencies.record(took));
    }
    Ok((clients, latencies))
}

/// The slowest CONNACK and the slowest PUBACK of others after filters that match nothing, s.
fn disturb(address: SocketAddr) -> anyhow::Result<(f64, f64)> {
    let mut attacker = Client::connect(address, "attacker", None)?;
    let mut other = Client::connect(address, "other", None)?;
    for packet in 0..20 {
        let filters: Vec<String> = (0..60).map(|i| format!("+/+/+/none{}", packet * 60 + i)).collect();
        attacker.subscribe(&filters, 0)?;
    }
    let (begin, mut connect_s, mut publish_s) = (Instant::now(), 0f64, 0f64);
    while begin.elapsed() < WATCH_TIME {
        let start = Instant::now();
        Client::connect(address, "new", None)?;
        connect_s = connect_s.max(start.elapsed().as_secs_f64());
        let start = Instant::now();
        other.publish("nobody")?;
        publish_s = publish_s.max(start.elapsed().as_secs_f64());
    }
    Ok((connect_s, publish_s))
}

fn measure(options: &MqttTopicsOptions, addresses: &[SocketAddr]) -> anyhow::Result<BrokerTimes> {
    let start = Instant::now();
    retain(options, addresses[0], &[b'x'; PAYLOAD_BYTES])?;
    let retain_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let (clients, sessions) = subscribe(options, addresses)?;
    let sessions_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    Client::connect(addresses[0], "everything", None)?.subscribe(&["site/#".to_owned()], options.retained)?;
    let everything_s = start.elapsed().as_secs_f64();
    let (connect_s, publish_s) = disturb(addresses[0])?;
    drop(clients);
    Ok(BrokerTimes { retain_s, sessions_s, sessions, everything_s, connect_s, publish_s })
}

/// Resident, anonymous and proportional memory, kB.
fn memory_kb(server: &Process) -> [u64; 3] {
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", server.id())).unwrap_or_default();
    let proportional =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok());
    [server.status_kb("VmRSS"), server.status_kb("RssAnon"), proportional.unwrap_or(0)]
}

fn mosquitto(folder: &Path, port: u16) -> Process {
    let file = folder.join("mosquitto.conf");
    let text = format!(
        "listener {port} 0.0.0.0\nallow_anonymous true\nmax_queued_messages 0\nset_tcp_nodelay true\nlog_type error\n"
    );
    std::fs::write(&file, text).expect("mosquitto's configuration");
    let program = ["/usr/sbin/mosquitto", "/usr/bin/mosquitto"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(program.unwrap_or("mosquitto"));
    let mosquitto = Process::start(command.arg("-c").arg(&file), &folder.join("mosquitto.log"));
    wait_until("mosquitto listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    mosquitto
}

pub fn run(options: &MqttTopicsOptions) -> anyhow::Result<()> {
    raise_open_files();
    let MqttTopicsOptions { retained, sessions, .. } = options;
    println!("mqtt-topics: {retained} retained messages, {sessions} sessions, filters as {}", options.filter(0));
    let folder = tempfile::tempdir()?;
    let port = free_port();
    let mut other = mosquitto(folder.path(), port);
    let theirs = measure(options, &Target::on_loopback(port).addresses).context("mosquitto")?;
    other.stop();
    let (site, plain) = installation(&[("mqtt.limits", "connections_max", &(sessions + 100).to_string())]);
    let mut server = site.start_server();
    let before = memory_kb(&server);
    let ours = measure(options, &plain.addresses).context("ours")?;
    let full = memory_kb(&server);
    let peak_kb = server.status_kb("VmHWM");
    retain(options, plain.addresses[0], b"")?;
    let begin = Instant::now();
    let mut after = memory_kb(&server);
    while begin.elapsed() < MEMORY_RETURN_TIME {
        std::thread::sleep(Duration::from_secs(1));
        let now = memory_kb(&server);
        after = std::array::from_fn(|kind| after[kind].min(now[kind]));
    }
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    let mut figures = json!({ "retained": retained, "sessions": sessions, "middle": options.middle, "peak_kb": peak_kb,
            "before_kb": before, "full_kb": full, "after_kb": after });
    for (what, key, own, beside) in [
        ("retaining all, s", "retain_s", ours.retain_s, theirs.retain_s),
        ("all sessions, s", "sessions_s", ours.sessions_s, theirs.sessions_s),
        ("one subscriber of everything, s", "everything_s", ours.everything_s, theirs.everything_s),
    ] {
        line(what, format!("{own:.2}"), &format!("Mosquitto {beside:.2}"));
        aim("  of Mosquitto's time", own / beside, 2, 1.0, "1");
        figures[key] = json!({ "ours": own, "mosquitto": beside });
    }
    for (name, measured) in [("ours", &ours), ("Mosquitto", &theirs)] {
        let [p50, p99] = [0.5, 0.99].map(|q| measured.sessions.quantile_ms(q));
        line(&format!("a session, {name}: median and 99th percentile, ms"), format!("{p50:.2} {p99:.2}"), "");
        let BrokerTimes { connect_s, publish_s, .. } = measured;
        line(
            &format!("beside filters that match nothing, {name}: CONNACK, PUBACK at most, s"),
            format!("{connect_s:.3} {publish_s:.3}"),
            "",
        );
        figures[name] =
            json!({ "sessions_ms": measured.sessions.json(), "connect_s": connect_s, "publish_s": publish_s });
    }
    for (when, [resident, anonymous, proportional]) in [
        ("before", before),
        ("when the sessions have just gone", full),
        ("after sessions and messages were removed", after),
    ] {
        let [resident, anonymous, proportional] = [resident, anonymous, proportional].map(|kb| kb as f64 / 1e3);
        let text = format!("{resident:.0} {anonymous:.0} {proportional:.0}");
        line(&format!("our memory {when}: resident, anonymous, proportional, MB"), text, "");
    }
    line("resident at its peak, MB", format!("{:.0}", peak_kb as f64 / 1e3), "");
    keep("mqtt-topics", figures)
}
