//! Shutdown of a busy server: hundreds of connections, a live stream, a response that the client reads slowly, a slow disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_testing::{Process, Site, wait_until};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::topics::Topic;
use wholegrain_transport::{payload, tls};

const IDLE: usize = 600;
/// The duration of a disk sync, ms.
const SYNC_MS: u64 = 400;
/// The bound of the shutdown, doubled for busy machines.
const END_MAX: Duration = Duration::from_secs(10);
/// The time 2026-01-31T12:00:00Z in ns.
const NOON: i64 = 1_769_860_800_000_000_000;
const WIDE: usize = 2000;

/// Delays every sync by the milliseconds in a file, like an overloaded disk.
const SLOW_DISK: &str = "
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void rest(void) {
    char text[16] = {0};
    int file = open(getenv(\"SLOW_DISK_FILE\"), O_RDONLY);
    if (file < 0) return;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    long ms = atol(text);
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}
int fdatasync(int fd) { rest(); return syscall(SYS_fdatasync, fd); }
int fsync(int fd) { rest(); return syscall(SYS_fsync, fd); }
";

fn slow_disk(dir: &Path) -> std::path::PathBuf {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    std::fs::write(&source, SLOW_DISK).expect("a writable folder");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("cc").success(), "the slow disk was not compiled");
    library
}

fn server(site: &Site, more: &[(&str, &Path)]) -> Process {
    let mut command = site.command(&["server", "--config"]);
    command.arg(site.path("server/server.toml"));
    command.env("LD_PRELOAD", slow_disk(site.dir())).env("SLOW_DISK_FILE", site.path("slow"));
    command.envs(more.iter().copied());
    let mut server = Process::start(&mut command, &site.path("server.log"));
    wait_until("the server listens", || {
        assert!(server.runs(), "the server ended: {}", server.log());
        site.healthy()
    });
    server
}

/// Sends CONNECT of MQTT 3.1.1 without a password and waits for CONNACK.
fn connected(port: u16, id: usize) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let id = format!("idle{id:04}");
    let mut packet = vec![0x10, 12 + id.len() as u8, 0, 4];
    packet.extend(b"MQTT\x04\x02\x00\x00\x00");
    packet.push(id.len() as u8);
    packet.extend(id.as_bytes());
    stream.write_all(&packet).expect("CONNECT");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("CONNACK");
    assert_eq!(answer, [0x20, 2, 0, 0]);
    stream
}

fn schema(agent: &str, group: &str, sensors: usize) -> Schema {
    let prefix = SensorPath::new(format!("/{agent}")).expect("a prefix");
    let sensors = (0..sensors).map(|i| SensorDef::gauge(format!("{group}/s{i}"), "1", "")).collect();
    Schema::new(prefix, group, sensors).expect("a schema")
}

/// A batch of `samples` rows from `first` on, whose values are their numbers.
fn batch(agent: &str, seq: u64, schema: &Schema, first: i64, samples: i64) -> Vec<u8> {
    let column = || Column { values: ColumnValues::Int((first..first + samples).collect()), gaps: Gaps::default() };
    payload::encode_batch(&Batch {
        header: BatchHeader { agent: agent.into(), boot: 1, seq, schema: schema.hash(), interval_ns: 1_000_000 },
        times: (first..first + samples).map(|i| NOON + i * 1_000_000).collect(),
        columns: (0..schema.len()).map(|_| column()).collect(),
    })
}

struct Publisher {
    client: Client,
    agent: String,
    seq: u64,
}

impl Publisher {
    fn new(site: &Site, agent: &str) -> Self {
        let (cert, key) = site.agent_certificate(agent);
        let tls =
            tls::client_config(&site.path("ca.pem"), Some(tls::Identity { cert: &cert, key: &key })).expect("TLS");
        let url = format!("mqtts://localhost:{}", site.mqtt_port);
        let config = ClientConfig { url, client_id: agent.into(), tls: Some(tls), ..ClientConfig::default() };
        Self { client: Client::connect(&config).expect("a connection"), agent: agent.into(), seq: 0 }
    }

    fn announce(&mut self, schema: &Schema) {
        let topic = Topic::Schema { agent: &self.agent, group: schema.group() }.to_string();
        self.client.publish(&topic, &schema.encode(), true, true).expect("a schema");
        assert!(self.acked(), "the schema was not acknowledged");
    }

    /// Sends one batch and waits for the acknowledgement; false if the connection ended before.
    fn send(&mut self, schema: &Schema, first: i64, samples: i64) -> bool {
        self.seq += 1;
        let topic = Topic::Batch { agent: &self.agent, group: schema.group() }.to_string();
        let payload = batch(&self.agent, self.seq, schema, first, samples);
        self.client.publish(&topic, &payload, true, false).is_ok() && self.acked()
    }

    fn acked(&mut self) -> bool {
        loop {
            match self.client.poll(Duration::from_secs(60)) {
                Ok(Some(Event::Acked { reason, .. })) => return !reason.is_error(),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
    }
}

/// Sends batches of one row, each after the acknowledgement of the one before, until the server ends; returns their number.
fn publish_until_the_end(mut publisher: Publisher, schema: &Schema, going: &AtomicBool) -> i64 {
    let mut acknowledged = 0;
    while publisher.send(schema, acknowledged, 1) {
        acknowledged += 1;
        if acknowledged == 2 {
            going.store(true, Ordering::Release);
        }
    }
    acknowledged
}

/// Reads a response of tens of megabytes at one kilobyte a second.
fn slow_reader(site: &Site) -> Child {
    let token = std::fs::read_to_string(site.path("token")).expect("a token");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--globoff", "--limit-rate", "1000", "--cacert"]).arg(site.path("ca.pem"));
    curl.args(["--header", &format!("Authorization: Bearer {}", token.trim())]);
    let url = format!("https://localhost:{}/api/v1/query?pattern=wide/*&from=2026-01-31&to=2026-02-01", site.http_port);
    curl.arg(url).stdout(Stdio::null()).spawn().expect("curl")
}

#[test]
fn after_sigterm_everything_acknowledged_is_soon_on_disk() {
    let site = Site::new();
    let plain = wholegrain_testing::free_port();
    site.set("server/server.toml", "mqtt", "listen", &format!("\"127.0.0.1:{plain}\""));
    site.set("server/server.toml", "mqtt", "anonymous", "true");
    // The readings have a fixed date, independent of the clock.
    site.set("server/server.toml", "store", "past_max", "\"36500d\"");
    let manager = UnixDatagram::bind(site.path("notify")).expect("a socket");
    let mut server = server(&site, &[("NOTIFY_SOCKET", &site.path("notify"))]);

    let mut wide = Publisher::new(&site, "wide");
    let wide_schema = schema("wide", "wide", WIDE);
    wide.announce(&wide_schema);
    assert!(wide.send(&wide_schema, 0, 256), "the wide batch was not acknowledged");
    let idle: Vec<TcpStream> = (0..IDLE).map(|id| connected(plain, id)).collect();
    let mut watcher =
        site.command(&["watch", "/**"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("watch");
    let mut reader = slow_reader(&site);
    wait_until("a watcher and an answer under way", || {
        site.metric("wholegrain_server_watchers") == Some(1.0)
            && site.metric("wholegrain_server_queries_running") == Some(1.0)
    });

    let tick_schema = schema("tick", "tick", 1);
    let mut tick = Publisher::new(&site, "tick");
    tick.announce(&tick_schema);
    std::fs::write(site.path("slow"), SYNC_MS.to_string()).expect("a writable folder");
    let going = AtomicBool::new(false);
    let (acknowledged, took) = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| publish_until_the_end(tick, &tick_schema, &going));
        wait_until("acknowledgements", || going.load(Ordering::Acquire));
        assert_eq!(site.metric("wholegrain_server_queries_running"), Some(1.0), "the answer still runs");
        let start = Instant::now();
        let status = server.stop();
        assert_eq!(status.code(), Some(0), "{}", server.log());
        (publishing.join().expect("the publisher"), start.elapsed())
    });
    println!("the end took {} ms with syncs of {SYNC_MS} ms; {acknowledged} batches acknowledged", took.as_millis());
    assert!(took < END_MAX, "{took:?}");
    assert!(server.log().contains("stopped; everything acknowledged is on disk"), "{}", server.log());
    assert_eq!(notifications(&manager), "READY=1\nSTOPPING=1\n");
    drop(idle);
    let _ = (reader.kill(), reader.wait(), watcher.wait());

    let mut again = site.start_server();
    let rows =
        site.answer(&["query", "/tick/tick/s0", "--from", "2026-01-31", "--to", "2026-02-01", "--format", "csv"]);
    let stored = rows.lines().count() as i64 - 1;
    assert!(stored >= acknowledged, "{stored} of {acknowledged} acknowledged readings are there");
    again.stop();
}

/// A disk that hangs does not delay the shutdown: the batches that wait for it were not acknowledged.
#[test]
fn a_disk_that_hangs_does_not_delay_the_shutdown() {
    let site = Site::new();
    let mut server = server(&site, &[]);
    let mut tick = Publisher::new(&site, "tick");
    let schema = schema("tick", "tick", 1);
    tick.announce(&schema);
    std::fs::write(site.path("slow"), "60000").expect("a writable folder");
    let topic = Topic::Batch { agent: "tick", group: "tick" }.to_string();
    tick.client.publish(&topic, &batch("tick", 1, &schema, 0, 1), true, false).expect("a batch");
    // No event arrives; the loop sends published messages meanwhile.
    let _ = tick.client.poll(Duration::from_millis(100));
    wait_until("a batch waits", || site.metric("wholegrain_server_in_flight") == Some(1.0));
    let start = Instant::now();
    let status = server.stop();
    assert!(start.elapsed() < END_MAX, "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(server.log().contains("without waiting longer for the disk"), "{}", server.log());
    assert!(!tick.acked(), "acknowledged, and the disk never said so");
}

/// The notifications to the service manager until now, without keep-alives.
fn notifications(manager: &UnixDatagram) -> String {
    manager.set_nonblocking(true).expect("a socket");
    let (mut all, mut buffer) = (String::new(), [0; 4096]);
    while let Ok(count) = manager.recv(&mut buffer) {
        all.push_str(&String::from_utf8_lossy(&buffer[..count]));
        all.push('\n');
    }
    all.lines().filter(|line| !line.is_empty() && *line != "WATCHDOG=1").map(|line| format!("{line}\n")).collect()
}

#[test]
fn sighup_reloads_and_notifies_the_service_manager() {
    let site = Site::new();
    let manager = UnixDatagram::bind(site.path("notify")).expect("a socket");
    let mut command = site.command(&["server", "--config"]);
    command
        .arg(site.path("server/server.toml"))
        .env("NOTIFY_SOCKET", site.path("notify"))
        .env("WATCHDOG_USEC", "300000");
    let mut server = Process::start(&mut command, &site.path("server.log"));
    manager.set_read_timeout(Some(wholegrain_testing::DEADLINE)).expect("a socket");
    let mut seen = String::new();
    let mut wait_for = |what: &str, times: usize| {
        let mut buffer = [0; 4096];
        while seen.matches(what).count() < times {
            let count = manager.recv(&mut buffer).unwrap_or_else(|e| panic!("{what} did not come: {e}; {seen}"));
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
            seen.push('\n');
        }
    };
    wait_for("READY=1", 1);
    wait_for("WATCHDOG=1", 3);
    site.set("server/server.toml", "", "log", "\"debug\"");
    server.signal(libc::SIGHUP);
    wait_for("RELOADING=1", 1);
    wait_for("READY=1", 2);
    assert!(server.log().contains("reloaded: log"), "{}", server.log());
    site.set("server/server.toml", "", "logg", "\"debug\"");
    server.signal(libc::SIGHUP);
    wait_for("READY=1", 3);
    assert!(server.log().contains("server.toml:1:1: unknown key `logg`"), "{}", server.log());
    assert_eq!(site.answer(&["server", "log"]), "level debug\n");
    let said = site.answer(&["server", "log", "warn", "--for", "1h"]);
    assert!(said.starts_with("level warn until ") && said.ends_with(", configured debug\n"), "{said}");
    let output = site.run(&["server", "reload"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("server.toml:1:1: unknown key `logg`"), "{error}");
    assert!(server.runs());
    assert_eq!(server.stop().code(), Some(0));
}
