//! An agent with two servers: one is killed, stopped without a reset of its connections, slow, or comes back. Every sample is at one of the servers.
//!
//! Each server has a store of its own here: what both have was sent to both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

use wholegrain_testing::probe::{CounterSample, assert_unbroken, now_ns};
use wholegrain_testing::{Process, Site, free_port, program, wait_until};

const NAME: &str = "probe";

/// One of the two servers, by its files within the installation.
struct Server {
    folder: &'static str,
    client: &'static str,
    /// Where agents connect to.
    address: SocketAddr,
}

/// An installation with two servers of the same authority, and an agent of both.
struct Pair {
    site: Site,
    servers: [Server; 2],
}

impl Pair {
    /// The agent has a list of both servers, and these further settings in `[mqtt]`.
    fn new(settings: &str) -> Self {
        let second = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let urls = |servers: &[Server; 2]| {
            let urls = servers.each_ref().map(|server| format!("\"mqtts://{}\"", server.address)).join(", ");
            format!("urls = [{urls}]")
        };
        Self::with(Site::new(), second, urls, settings)
    }

    /// The second server is at `second`; `urls` returns the agent's setting.
    fn with(site: Site, second: SocketAddr, urls: impl Fn(&[Server; 2]) -> String, settings: &str) -> Self {
        let http_port = free_port();
        std::fs::create_dir(site.path("server2")).expect("a folder");
        for file in ["server.pem", "server.key", "passwords", "tokens", "server.toml"] {
            std::fs::copy(site.path("server").join(file), site.path("server2").join(file)).expect("a copy");
        }
        site.set("server2/server.toml", "mqtt", "tls_listen", &format!("\"{second}\""));
        site.set("server2/server.toml", "http", "listen", &format!("\"127.0.0.1:{http_port}\""));
        std::fs::copy(site.path("client.toml"), site.path("client2.toml")).expect("a copy");
        site.set("client2.toml", "", "url", &format!("\"https://127.0.0.1:{http_port}\""));
        let servers = [
            Server { folder: "server", client: "client.toml", address: ([127, 0, 0, 1], site.mqtt_port).into() },
            Server { folder: "server2", client: "client2.toml", address: second },
        ];
        let (certificate, key) = site.agent_certificate(NAME);
        let config = format!(
            "name = \"{NAME}\"\n[mqtt]\n{}\nca = {:?}\ncert = {certificate:?}\nkey = {key:?}\n\
             {settings}\n[spool]\ndir = \"spool\"\n[api]\nsocket = \"agent.sock\"\n\
             [sources.tester]\nsensors = 20\nshape = \"counter\"\namplitude = 1\ninterval = \"50ms\"\n",
            urls(&servers),
            site.path("ca.pem"),
        );
        std::fs::write(site.path("agent.toml"), config).expect("a writable folder");
        Self { site, servers }
    }

    fn start_agent(&self) -> Process {
        self.start_agent_by(Command::new(program("wholegrain-agent")))
    }

    fn start_agent_by(&self, mut command: Command) -> Process {
        Process::start(command.arg("--config").arg(self.site.path("agent.toml")), &self.site.path("agent.log"))
    }

    fn command(&self, index: usize, arguments: &[&str]) -> Command {
        let mut command = self.site.command(arguments);
        command.env("WHOLEGRAIN_CLIENT", self.site.path(self.servers[index].client));
        command
    }

    #[track_caller]
    fn start_server(&self, index: usize) -> Process {
        self.start_server_by(index, |_| ())
    }

    #[track_caller]
    fn start_server_by(&self, index: usize, change: impl FnOnce(&mut Command)) -> Process {
        let folder = self.servers[index].folder;
        let mut command = self.command(index, &["server", "--config"]);
        command.arg(self.site.path(folder).join("server.toml"));
        change(&mut command);
        let mut server = Process::start(&mut command, &self.site.path(&format!("{folder}.log")));
        wait_until("the server answers", || {
            assert!(server.runs(), "the server ended: {}", server.log());
            let output = self.command(index, &["sensors", "/no/sensor", "--format", "json"]).output().expect("a query");
            matches!(output.status.code(), Some(0 | 1))
        });
        server
    }

    fn status(&self) -> serde_json::Value {
        let mut command = self.site.command(&["ctl", "--socket"]);
        let output = command.arg(self.site.path("agent.sock")).args(["status", "--format", "json"]).output();
        serde_json::from_slice(&output.expect("ctl").stdout).unwrap_or_default()
    }

    /// The server to which the agent is connected.
    fn used(&self) -> Option<usize> {
        let status = self.status();
        let address = status["server"]["address"].as_str()?;
        self.servers.iter().position(|server| server.address.to_string() == address)
    }

    /// The first in the agent's order.
    fn preferred(&self) -> usize {
        let status = self.status();
        let address = status["server"]["candidates"][0]["address"].as_str().expect("several candidates");
        self.servers.iter().position(|server| server.address.to_string() == address).expect("one of the two")
    }

    /// The samples of one sensor that a running server has.
    fn stored(&self, index: usize) -> BTreeMap<i64, i64> {
        let sensor = format!("/{NAME}/tester/0");
        let arguments = ["query", &sensor, "--from", "-1h", "--format", "json", "--limit", "5000000"];
        let output = self.command(index, &arguments).output().expect("a query");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines"));
        let time = |value: &serde_json::Value| {
            let zero = wholegrain_model::Timestamp(0);
            wholegrain_model::Timestamp::parse(value.as_str().expect("a time"), zero).expect("RFC 3339").0
        };
        rows.map(|row| (time(&row["time"]), row["value"].as_i64().expect("no gaps"))).collect()
    }

    fn has_later_than(&self, index: usize, time: i64) -> bool {
        self.stored(index).last_key_value().is_some_and(|(last, _)| *last > time)
    }

    /// Ends the agent, and panics unless both servers together have every sample from the first on. Returns how many both have.
    #[track_caller]
    fn stop_and_check(&self, mut agent: Process) -> usize {
        let last = now_ns();
        wait_until("everything until now", || {
            let status = self.status();
            let waits = status["queue_bytes"].as_u64().unwrap_or(1) + status["spool_bytes"].as_u64().unwrap_or(1);
            waits < 100_000 && [0, 1].iter().any(|index| self.has_later_than(*index, last))
        });
        let status = self.status();
        assert_eq!((status["dropped_batches"].as_u64(), status["overruns"].as_u64()), (Some(0), Some(0)));
        assert!(agent.stop().success());
        let (first, second) = (self.stored(0), self.stored(1));
        let twice = first.keys().filter(|time| second.contains_key(time)).count();
        let all: Vec<CounterSample> = first.into_iter().chain(second).collect::<BTreeMap<_, _>>().into_iter().collect();
        assert_unbroken(&all);
        assert_eq!(all.first().map(|(_, value)| *value), Some(0), "from the first sample on");
        twice
    }
}

#[test]
fn a_killed_server_loses_nothing_and_the_other_one_gets_the_rest() {
    let pair = Pair::new("return_interval = \"1s\"");
    let mut servers = [0, 1].map(|index| pair.start_server(index));
    let agent = pair.start_agent();
    for round in 0..4 {
        let (before, mut used) = (now_ns(), 0);
        wait_until("readings at the server in use", || {
            let now = pair.used();
            used = now.unwrap_or(used);
            now.is_some() && pair.has_later_than(used, before)
        });
        servers[used].kill();
        let killed = now_ns();
        println!("round {round}: killed server {used}");
        wait_until("readings at the other server", || pair.has_later_than(1 - used, killed));
        servers[used] = pair.start_server(used);
        // In other rounds the next kill may come before, after or during the return.
        if round % 2 == 0 {
            let preferred = pair.preferred();
            wait_until("the preferred server", || pair.used() == Some(preferred));
        }
    }
    pair.stop_and_check(agent);
    assert!(servers.iter_mut().all(|server| server.stop().success()));
}

#[test]
fn a_server_that_stops_without_a_reset_is_left_and_returned_to_when_it_answers() {
    let times = "return_interval = \"1s\"\nanswer_timeout = \"1s\"\nconnect_timeout = \"1s\"\nkeep_alive = \"10min\"";
    let pair = Pair::new(times);
    let mut servers = [0, 1].map(|index| pair.start_server(index));
    let agent = pair.start_agent();
    wait_until("a connection", || pair.used().is_some());
    let preferred = pair.preferred();
    wait_until("readings", || pair.used() == Some(preferred) && pair.has_later_than(preferred, 0));
    // Its kernel still acknowledges what it receives, and accepts connections.
    servers[preferred].signal(libc::SIGSTOP);
    let stopped = now_ns();
    wait_until("readings at the other server", || pair.has_later_than(1 - preferred, stopped));
    let status = pair.status();
    assert!(status["server"]["reason"].as_str().is_some_and(|why| why.contains("number 2 of 2")), "{status}");
    assert!(agent.log().contains("did not answer a ping within"), "{}", agent.log());
    let later = now_ns();
    wait_until("more readings there, beside attempts to return", || pair.has_later_than(1 - preferred, later));
    servers[preferred].signal(libc::SIGCONT);
    let again = now_ns();
    wait_until("readings at the preferred server", || pair.has_later_than(preferred, again));
    pair.stop_and_check(agent);
    assert!(servers.iter_mut().all(|server| server.stop().success()));
}

/// Delays every sync by the milliseconds in a file, as an overloaded disk does.
const SLOW_DISK: &str = "
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fdatasync(int fd) {
    char text[16] = {0};
    int file = open(getenv(\"SLOW_DISK_FILE\"), O_RDONLY);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) usleep(atol(text) * 1000);
        close(file);
    }
    return syscall(SYS_fdatasync, fd);
}
";

impl Pair {
    /// Starts a server whose disk [`Pair::slow_down`] makes slow.
    fn start_server_on_slow_disk(&self, index: usize) -> Process {
        let (source, library) = (self.site.path("slow.c"), self.site.path("slow.so"));
        if !library.exists() {
            std::fs::write(&source, SLOW_DISK).expect("a writable folder");
            let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
            assert!(status.expect("cc").success(), "the slow disk was not compiled");
        }
        self.start_server_by(index, |command| {
            command.env("LD_PRELOAD", &library).env("SLOW_DISK_FILE", self.site.path("slow"));
        })
    }

    /// Sets how long each sync takes on the slow disks, ms.
    fn slow_down(&self, sync_ms: u64) {
        std::fs::write(self.site.path("slow.new"), sync_ms.to_string()).expect("a writable folder");
        std::fs::rename(self.site.path("slow.new"), self.site.path("slow")).expect("another file");
    }
}

#[test]
fn a_preferred_server_that_comes_back_gets_the_agent_and_no_batch_twice() {
    let pair = Pair::new("return_interval = \"1s\"");
    let agent = pair.start_agent();
    wait_until("the agent's order", || pair.status()["server"]["candidates"].is_array());
    let preferred = pair.preferred();
    // With slow syncs some batches are in flight at every moment.
    let mut other = pair.start_server_on_slow_disk(1 - preferred);
    pair.slow_down(900);
    wait_until("readings", || pair.has_later_than(1 - preferred, 0));
    let mut server = pair.start_server(preferred);
    let now = now_ns();
    wait_until("readings at the preferred server", || pair.has_later_than(preferred, now));
    pair.slow_down(0);
    assert_eq!(pair.status()["server_changes"], 1);
    assert_eq!(pair.stop_and_check(agent), 0, "samples at both servers");
    assert!(server.stop().success() && other.stop().success());
}

#[test]
fn a_server_that_only_stores_slowly_keeps_its_agents() {
    let pair = Pair::new("answer_timeout = \"2s\"");
    let mut servers = [0, 1].map(|index| pair.start_server_on_slow_disk(index));
    let agent = pair.start_agent();
    wait_until("a connection", || pair.used().is_some());
    let used = pair.used();
    pair.slow_down(5000);
    let acknowledged = || pair.status()["acknowledged"].as_u64().unwrap_or(0);
    for _ in 0..3 {
        let before = acknowledged();
        wait_until("further acknowledgements", || acknowledged() > before);
    }
    let status = pair.status();
    assert_eq!((pair.used(), status["reconnects"].as_u64()), (used, Some(0)), "{status}");
    drop(agent);
    servers.iter_mut().for_each(Process::kill);
}

#[test]
fn each_address_of_a_name_is_a_server_of_its_own() {
    let site = Site::new();
    let (port, second) = (site.mqtt_port, SocketAddr::from(([127, 0, 0, 2], site.mqtt_port)));
    // The certificate of both is for this name.
    let url = |_: &[Server; 2]| format!("url = \"mqtts://localhost:{port}\"");
    let pair = Pair::with(site, second, url, "return_interval = \"1s\"");
    let hosts = pair.site.path("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n127.0.0.2 localhost\n").expect("a writable folder");
    let mut servers = [0, 1].map(|index| pair.start_server(index));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]);
    command.arg(&hosts).arg(program("wholegrain-agent"));
    let agent = pair.start_agent_by(command);
    wait_until("a connection", || pair.used().is_some());
    let preferred = pair.preferred();
    wait_until("readings", || pair.used() == Some(preferred) && pair.has_later_than(preferred, 0));
    servers[preferred].kill();
    let killed = now_ns();
    wait_until("readings at the other address", || pair.has_later_than(1 - preferred, killed));
    // The name has only the address of the lost server now: the agent leaves the other one, although it works, once this one is back.
    std::fs::write(&hosts, format!("{} localhost\n", pair.servers[preferred].address.ip())).expect("a writable file");
    servers[preferred] = pair.start_server(preferred);
    wait_until("the address that is left", || pair.used() == Some(preferred));
    wait_until("a single candidate", || pair.status()["server"]["candidates"].is_null());
    pair.stop_and_check(agent);
    assert!(servers.iter_mut().all(|server| server.stop().success()));
}
