//! One identity with many connections that send as fast as they can, and what others wait meanwhile: an answer of HTTPS, and CONNECT with one
//! acknowledged PUBLISH of another identity.
//!
//! The flood has the lowest priority for processor time, so that what is measured is the server's order and not the machine's: an attacker has processors of
//! its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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

/// What the two users prove who they are with.
const PASSWORD: &str = "bench";
/// Retained messages that the filter of the flood of SUBSCRIBE matches.
const RETAINED: usize = 8000;
/// Packets in one write.
const PACKETS: usize = 200;
/// Between two measurements.
const PAUSE: Duration = Duration::from_millis(20);
/// A measurement that has no answer after so long counts with it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(clap::Args, Clone)]
pub struct Options {
    /// Connections of the identity that floods.
    #[arg(long, default_value_t = 60)]
    connections: usize,
    /// Length of each flood, seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Default for Options {
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

/// Writes `bytes` again and again on each of the connections and takes what comes, until told to stop; how many bytes came.
fn flood(streams: &mut [TcpStream], bytes: &[u8], stop: &AtomicBool) -> anyhow::Result<u64> {
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

/// Measures until `end`, at least once.
fn probe(end: Instant, mut once: impl FnMut() -> anyhow::Result<()>) -> Latencies {
    let mut latencies = Latencies::default();
    loop {
        let begin = Instant::now();
        latencies.record(if once().is_ok() { begin.elapsed() } else { begin.elapsed().max(ANSWER_TIME_MAX) });
        if Instant::now() >= end {
            return latencies;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The probes of HTTPS and of MQTT while a flood of these bytes runs (or none), and how many bytes it was answered with.
fn measure(site: &Site, address: SocketAddr, options: &Options, bytes: &[u8]) -> anyhow::Result<([Latencies; 2], u64)> {
    let authority = Certificate::from_pem(&std::fs::read(site.path("ca.pem"))?)?;
    let roots = RootCerts::Specific(Arc::new(vec![authority]));
    let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build();
    let timeout = Some(ANSWER_TIME_MAX);
    let http = ureq::Agent::config_builder().tls_config(tls).proxy(None).timeout_global(timeout).build().new_agent();
    let url = format!("https://localhost:{}/healthz", site.http_port);
    let count = if bytes.is_empty() { 0 } else { options.connections };
    let mut streams = Vec::new();
    for number in 0..count {
        let stream = Client::connect(address, &format!("flood{number}"), Some(("flood", PASSWORD)))?.into_stream();
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let probes = std::thread::scope(|scope| {
        let flooding = (!streams.is_empty()).then(|| scope.spawn(|| flood(&mut streams, bytes, &stop)));
        let end = Instant::now() + Duration::from_secs(options.seconds);
        let https = scope.spawn(move || probe(end, || Ok(http.get(&url).call().map(drop)?)));
        let mqtt = scope.spawn(move || {
            probe(end, || Client::connect(address, "other", Some(("other", PASSWORD)))?.publish("other/x"))
        });
        let probes = [https, mqtt].map(|thread| thread.join().expect("a probe"));
        stop.store(true, Relaxed);
        if let Some(flooding) = flooding {
            came.store(flooding.join().expect("the flood")?, Relaxed);
        }
        anyhow::Ok(probes)
    })?;
    Ok((probes, came.into_inner()))
}

/// The floods: what each connection writes again and again.
fn floods() -> anyhow::Result<[(&'static str, Vec<u8>); 4]> {
    let (mut pings, mut subscribes, mut publishes) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    for number in 0..PACKETS {
        mqtt::encode(&mqtt::Packet::PingReq, Version::V311, &mut pings)?;
        if number == 0 {
            mqtt::encode(&subscribing(&["flood/#".to_owned()]), Version::V311, &mut subscribes)?;
        }
        put(&mut publishes, "flood/live", &Bytes::from_static(&[b'x'; 16]), None, false)?;
    }
    Ok([
        ("nothing", Vec::new()),
        ("PINGREQ", pings.into()),
        ("SUBSCRIBE", subscribes.into()),
        ("PUBLISH", publishes.into()),
    ])
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let Options { connections, seconds } = options;
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
    for (what, bytes) in floods()? {
        let received = metric(&site, "received_bytes_total")?;
        let ([https, mqtt], came) = measure(&site, address, options, &bytes)?;
        let received = metric(&site, "received_bytes_total")? - received;
        line(&format!("{what}: MB taken, MB answered"), format!("{:.1} {:.1}", received / 1e6, came as f64 / 1e6), "");
        for (name, latencies) in [("/healthz", &https), ("CONNECT and PUBLISH", &mqtt)] {
            let [p50, p99] = [0.5, 0.99].map(|q| latencies.quantile_ms(q));
            let text = format!("{p50:.1} {p99:.1} {:.1}", latencies.max_ms());
            line(&format!("  {name}: median, 99th percentile, longest, ms"), text, "");
        }
        figures[what] = json!({ "received_bytes": received, "answered_bytes": came, "healthz_ms": https.json(), "mqtt_ms": mqtt.json() });
    }
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    keep("mqtt-flood", figures)
}
