//! A real Apache Cassandra on this machine: nodes on loopback addresses, in a test's directory on its own ports.
//!
//! - Input: the number of nodes.
//! - Output: addresses for clients; nodes that are killed, stopped and started again with real signals.
//! - Never: a node left behind when the test process ends.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::{Process, checkout, free_port};

/// The longest time that a node may take to start; 5 s on a machine without other work.
const START_MAX: Duration = Duration::from_secs(240);

pub struct CassandraCluster {
    folder: tempfile::TempDir,
    nodes: Vec<CassandraNode>,
    port: u16,
    storage_port: u16,
}

/// One node; its process is absent while it is killed.
struct CassandraNode {
    address: String,
    jmx_port: u16,
    process: Mutex<Option<Process>>,
}

impl CassandraCluster {
    /// Starts this many nodes on 127.0.0.1, 127.0.0.2, … and waits until clients can connect to each.
    #[track_caller]
    pub fn start(nodes: u8) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = |number: u8| CassandraNode {
            address: format!("127.0.0.{number}"),
            jmx_port: free_port(),
            process: Mutex::new(None),
        };
        let nodes: Vec<CassandraNode> = (1..=nodes).map(node).collect();
        let cluster = Self { folder, nodes, port: free_port(), storage_port: free_port() };
        (0..cluster.nodes.len()).for_each(|node| cluster.spawn(node));
        (0..cluster.nodes.len()).for_each(|node| cluster.wait_for_clients(node));
        cluster
    }

    /// One node that the tests of this process share. It ends with the process.
    #[track_caller]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<CassandraCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(1))
    }

    /// `address:port` of each node.
    pub fn contact_points(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("{}:{}", node.address, self.port)).collect()
    }

    /// The port of clients, the same at all nodes.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of a node's data.
    pub fn dir(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("node{}", node + 1))
    }

    /// Ends a node with SIGKILL.
    pub fn kill(&self, node: usize) {
        if let Some(mut process) = self.process(node).take() {
            process.kill();
        }
    }

    /// Sends a signal to a node.
    pub fn signal(&self, node: usize, signal: i32) {
        if let Some(process) = self.process(node).as_ref() {
            process.signal(signal);
        }
    }

    /// Starts a killed node again and waits until clients can connect.
    #[track_caller]
    pub fn restart(&self, node: usize) {
        self.spawn(node);
        self.wait_for_clients(node);
    }

    /// Runs Cassandra's `nodetool` on a node; returns its output.
    #[track_caller]
    pub fn nodetool(&self, node: usize, arguments: &[&str]) -> String {
        let mut command = Command::new(checkout().join("demo/cassandra/nodetool"));
        command.args(["-p", &self.nodes[node].jmx_port.to_string()]).args(arguments);
        let output = command.output().expect("nodetool");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "nodetool {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// The processor time of all nodes until now, ns.
    pub fn cpu_ns(&self) -> u64 {
        let of = |node| self.process(node).as_ref().map_or(0, Process::cpu_ns);
        (0..self.nodes.len()).map(of).sum()
    }

    fn process(&self, node: usize) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.nodes[node].process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, at: usize) {
        let node = &self.nodes[at];
        let script = checkout().join("demo/cassandra/node");
        let dir = self.dir(at);
        // Every node is a seed: an empty cluster then needs no time to move data to a new node.
        let seeds: Vec<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        let mut command = Command::new(script);
        command
            .arg(&dir)
            .args([&node.address, &seeds.join(",")])
            .env("CQL_PORT", self.port.to_string())
            .env("STORAGE_PORT", self.storage_port.to_string())
            .env("JMX_PORT", node.jmx_port.to_string());
        // SAFETY: prctl with these arguments only sets an attribute of the new process.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let log = self.folder.path().join(format!("node{}.log", at + 1));
        *self.process(at) = Some(starter().start(command, log));
    }

    #[track_caller]
    fn wait_for_clients(&self, at: usize) {
        let address = format!("{}:{}", self.nodes[at].address, self.port);
        let deadline = Instant::now() + START_MAX;
        while std::net::TcpStream::connect(&address).is_err() {
            let mut process = self.process(at);
            let process = process.as_mut().expect("the node was started");
            assert!(process.runs(), "Cassandra ended: {}", process.log());
            assert!(Instant::now() < deadline, "Cassandra does not accept clients: {}", process.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A thread that starts processes and lives as long as this process: a child gets its signal when the thread that started it ends.
struct Starter(Mutex<std::sync::mpsc::Sender<StartRequest>>);

struct StartRequest {
    command: Command,
    log: PathBuf,
    answer: std::sync::mpsc::Sender<Process>,
}

fn starter() -> Arc<Starter> {
    static STARTER: OnceLock<Arc<Starter>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel::<StartRequest>();
        std::thread::spawn(move || {
            for mut request in receiver {
                let process = Process::start(&mut request.command, &request.log);
                request.answer.send(process).expect("the caller waits");
            }
        });
        Arc::new(Starter(Mutex::new(sender)))
    };
    STARTER.get_or_init(start).clone()
}

impl Starter {
    fn start(&self, command: Command, log: PathBuf) -> Process {
        let (answer, started) = channel();
        let request = StartRequest { command, log, answer };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(request).expect("the thread runs");
        started.recv().expect("a started process")
    }
}
