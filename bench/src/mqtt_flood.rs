//! One identity with many connections that send as fast as they can, and the latency of others meanwhile: a response of HTTPS, and CONNECT with one
//! acknowledged PUBLISH of another identity. The last flood opens TCP connections to the HTTPS port as fast as they are accepted, and sends nothing on
//! them; it comes from the address of the others.
//!
//! The flood has the lowest priority for processor time, so that the server's scheduling is measured and not the machine's: an attacker has processors of
//! its own.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use serde_json::json;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_testing::{Process, Site};
use wholegrain_transport::mqtt::{self, Version};
use wholegrain_transport::tls;

use crate::installation::{installation, metric};
use crate::load::client::{Client, put, subscribing};
use crate::load::latencies::Latencies;
use crate::report::{keep, line};

/// The password of both users.
const PASSWORD: &str = "bench";
/// Retained messages that the filter of the flood of SUBSCRIBE matches.
const RETAINED: usize = 8000;
/// Packets in one write.
const PACKETS: usize = 200;
/// The same of packets with topics of 64 kB.
const LONG_PACKETS: usize = 16;
/// Pause between two measurements.
const PAUSE: Duration = Duration::from_millis(20);
/// Timeout of a measurement.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// How long one of the bare connections may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);
/// How many bare connections are open at once.
const BARE: usize = 4096;

#[derive(clap::Args, Clone)]
pub struct MqttFloodOptions {
    /// Connections of the identity that floods.
    #[arg(long, default_value_t = 60)]
    connections: usize,
    /// Length of each flood, seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Default for MqttFloodOptions {
    fn default() -> Self {
        Self { connections: 60, seconds: 10 }
    }
}

fn add_user(site: &Site, name: &str) -> anyhow::Result<()> {
    let config = site.path("server/server.toml");
    let mut command = site.command(&["auth", "user", "add", name, "--server-config"]);
    let mut process = command.arg(config).stdin(Stdio::piped()).spawn()?;
    process.stdin.take().context("its input")?.write_all(format!("{PASSWORD}\n").as_bytes())?;
    ensure!(process.wait()?.success(), "cannot add the user {name}");
    Ok(())
}

/// The lowest priority for this thread.
fn be_nice() {
    // SAFETY: takes numbers only; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

/// Writes `bytes` again and again on each of the connections and reads the responses, until `stop` is set; the number of bytes read.
fn send(streams: &mut [TcpStream], bytes: &[u8], stop: &AtomicBool) -> anyhow::Result<u64> {
    be_nice();
    let mut written = vec![0; streams.len()];
    let (mut buffer, mut came) = (vec![0; 256 << 10], 0);
    while !stop.load(Relaxed) {
        let mut idle = true;
        for (stream, written) in streams.iter_mut().zip(&mut written) {
            match stream.write(&bytes[*written..]) {
                Ok(count) => (*written, idle) = ((*written + count) % bytes.len(), false),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the flood was cut off"),
            }
            match stream.read(&mut buffer) {
                Ok(0) => anyhow::bail!("a connection of the flood was closed"),
                Ok(count) => (came, idle) = (came + count as u64, false),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the flood was cut off"),
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(came)
}

/// Opens connections to the HTTPS port until `stop` is set, and keeps the newest of them; how many there were.
fn churn(address: SocketAddr, keep: usize, stop: &AtomicBool) -> u64 {
    be_nice();
    let (mut kept, mut count) = (VecDeque::new(), 0);
    while !stop.load(Relaxed) {
        if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
            kept.push_back(stream);
            count += 1;
        }
        if kept.len() > keep {
            kept.pop_front();
        }
    }
    count
}

/// Measurements of a client outside the flood.
#[derive(Default)]
struct Probed {
    latencies: Latencies,
    failed: u64,
}

/// Measures until `end`, at least once.
fn probe(end: Instant, mut once: impl FnMut() -> anyhow::Result<()>) -> Probed {
    let mut probed = Probed::default();
    loop {
        let begin = Instant::now();
        match once() {
            Ok(()) => probed.latencies.record(begin.elapsed()),
            Err(_) => probed.failed += 1,
        }
        if Instant::now() >= end {
            return probed;
        }
        std::thread::sleep(PAUSE);
    }
}

/// A kind of flood.
enum Flood {
    Nothing,
    /// Each connection writes these bytes again and again.
    Packets(Vec<u8>),
    /// TCP connections to HTTPS.
    Bare,
}

/// The probes of HTTPS and of MQTT while a flood runs, and how many bytes it was answered with or connections it made.
fn measure(
    site: &Site,
    mqtt: SocketAddr,
    options: &MqttFloodOptions,
    flood: &Flood,
) -> anyhow::Result<([Probed; 2], u64)> {
    let authority = Certificate::from_pem(&std::fs::read(site.path("ca.pem"))?)?;
    let roots = RootCerts::Specific(Arc::new(vec![authority]));
    let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build();
    let timeout = Some(ANSWER_TIME_MAX);
    let http = ureq::Agent::config_builder().tls_config(tls).proxy(None).timeout_global(timeout).build().new_agent();
    let url = format!("https://localhost:{}/healthz", site.http_port);
    let mut streams = Vec::new();
    for number in 0..if let Flood::Packets(_) = flood { options.connections } else { 0 } {
        let stream = Client::connect(mqtt, &format!("flood{number}"), Some(("flood", PASSWORD)))?.into_stream();
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    let stop = AtomicBool::new(false);
    let https = SocketAddr::new(mqtt.ip(), site.http_port);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| match flood {
            Flood::Nothing => Ok(0),
            Flood::Packets(bytes) => send(&mut streams, bytes, &stop),
            Flood::Bare => Ok(churn(https, BARE, &stop)),
        });
        let end = Instant::now() + Duration::from_secs(options.seconds);
        let asks = scope.spawn(move || probe(end, || Ok(http.get(&url).call().map(drop)?)));
        let publishes = scope.spawn(move || {
            probe(end, || Client::connect(mqtt, "other", Some(("other", PASSWORD)))?.publish("other/x"))
        });
        let probed = [asks, publishes].map(|thread| thread.join().expect("a probe"));
        stop.store(true, Relaxed);
        Ok((probed, flooding.join().expect("the flood")?))
    })
}

fn floods() -> anyhow::Result<[(&'static str, Flood); 6]> {
    let [mut pings, mut subscribes, mut publishes, mut topics] = [(); 4].map(|()| BytesMut::new());
    // The longest topic that a packet can have, of as many levels as there can be.
    let topic = "flood/".to_owned() + &"x/".repeat((usize::from(u16::MAX) - "flood/".len()) / 2);
    for _ in 0..LONG_PACKETS {
        put(&mut topics, &topic, &Bytes::from_static(b"x"), None, false)?;
    }
    for _ in 0..PACKETS {
        mqtt::encode(&mqtt::Packet::PingReq, Version::V311, &mut pings)?;
        put(&mut publishes, "flood/live", &Bytes::from_static(&[b'x'; 16]), None, false)?;
    }
    mqtt::encode(&subscribing(&["flood/#".to_owned()]), Version::V311, &mut subscribes)?;
    Ok([
        ("nothing", Flood::Nothing),
        ("PINGREQ", Flood::Packets(pings.into())),
        ("SUBSCRIBE", Flood::Packets(subscribes.into())),
        ("PUBLISH", Flood::Packets(publishes.into())),
        ("PUBLISH to topics of 64 kB", Flood::Packets(topics.into())),
        ("bare TCP to HTTPS", Flood::Bare),
    ])
}

pub fn run(options: &MqttFloodOptions) -> anyhow::Result<()> {
    let MqttFloodOptions { connections, seconds } = options;
    println!("mqtt-flood: {connections} connections of one identity, {seconds} s each");
    let (site, plain) = installation(&[]);
    let config = site.path("server/server.toml");
    let rules = "\n[[mqtt.acl]]\nidentity = \"*\"\nsubscribe = [\"#\"]\npublish = [\"flood/#\", \"other/#\"]\n";
    std::fs::write(&config, std::fs::read_to_string(&config)? + rules)?;
    for name in ["flood", "other"] {
        add_user(&site, name)?;
    }
    let mut server: Process = site.start_server();
    let address = plain.addresses[0];
    let mut publisher = Client::connect(address, "retains", Some(("flood", PASSWORD)))?;
    let mut output = BytesMut::new();
    for number in 0..RETAINED {
        put(&mut output, &format!("flood/retained/{number}"), &Bytes::from_static(&[b'x'; 16]), None, true)?;
    }
    publisher.write(&output)?;
    publisher.publish("flood/mark")?;
    let mut figures = json!({ "connections": connections, "seconds": seconds });
    for (what, flood) in floods()? {
        let received = metric(&site, "received_bytes_total")?;
        let ([https, mqtt], done) = measure(&site, address, options, &flood)?;
        let received = metric(&site, "received_bytes_total")? - received;
        let (of, text) = match flood {
            Flood::Bare => ("connections", done.to_string()),
            _ => ("MB taken, MB answered", format!("{:.1} {:.1}", received / 1e6, done as f64 / 1e6)),
        };
        line(&format!("{what}: {of}"), text, "");
        for (name, Probed { latencies, failed }) in [("/healthz", &https), ("CONNECT and PUBLISH", &mqtt)] {
            let [p50, p99] = [0.5, 0.99].map(|q| latencies.quantile_ms(q));
            let count = latencies.count();
            let text = format!("{p50:.1} {p99:.1} {:.1}", latencies.max_ms());
            line(
                &format!("  {name}: median, 99th percentile, longest, ms"),
                text,
                &format!("{count}, {failed} failed"),
            );
        }
        figures[what] = json!({ "received_bytes": received, "done": done,
            "healthz_ms": https.latencies.json(), "healthz_failed": https.failed,
            "mqtt_ms": mqtt.latencies.json(), "mqtt_failed": mqtt.failed });
    }
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    keep("mqtt-flood", figures)
}
