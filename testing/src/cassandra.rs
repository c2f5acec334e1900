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

use crate::{Process, checkout, free_port, wait_until};

/// The longest time that a node may take to start; 5 s on a machine without other work.
const START_MAX: Duration = Duration::from_secs(240);

/// How nodes differ from those of [`CassandraCluster::start`].
#[derive(Default)]
pub struct CassandraOptions {
    /// Environment variables of the script `demo/cassandra/node`.
    pub environment: Vec<(&'static str, String)>,
    /// The last node has its directory on a memory file system of this size, as in `mount -o size`.
    pub small_disk: Option<&'static str>,
}

pub struct CassandraCluster {
    folder: tempfile::TempDir,
    options: CassandraOptions,
    /// A process whose mounts the last node shares, so that its files outlive it.
    small_disk: Option<Process>,
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
        Self::start_with(nodes, CassandraOptions::default())
    }

    /// The same with other options.
    #[track_caller]
    pub fn start_with(nodes: u8, options: CassandraOptions) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = |number: u8| CassandraNode {
            address: format!("127.0.0.{number}"),
            jmx_port: free_port(),
            process: Mutex::new(None),
        };
        let nodes: Vec<CassandraNode> = (1..=nodes).map(node).collect();
        let (port, storage_port) = (free_port(), free_port());
        let mut cluster = Self { folder, options, small_disk: None, nodes, port, storage_port };
        cluster.small_disk = cluster.options.small_disk.map(|size| cluster.mount(size));
        // One after the other: on a loaded machine, several that start at once take longer than the wait.
        (0..cluster.nodes.len()).for_each(|node| cluster.restart(&[node]));
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

    /// The directory of the data of the node with a small disk, as this process sees it.
    pub fn small_disk(&self) -> PathBuf {
        let holder = self.small_disk.as_ref().expect("a node with a small disk");
        holder.sees(&self.dir(self.nodes.len() - 1))
    }

    /// The output of a node until now.
    pub fn log(&self, node: usize) -> String {
        self.process(node).as_ref().map(Process::log).unwrap_or_default()
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

    /// Starts killed nodes again and waits until clients can connect.
    #[track_caller]
    pub fn restart(&self, nodes: &[usize]) {
        nodes.iter().for_each(|node| self.spawn(*node));
        nodes.iter().for_each(|node| self.wait_for_clients(*node));
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
        let mut command = match &self.small_disk {
            Some(holder) if at == self.nodes.len() - 1 => {
                let mut command = Command::new("nsenter");
                let target = holder.id().to_string();
                command.args(["--preserve-credentials", "--user", "--mount", "--target", &target]).arg(script);
                command
            }
            _ => Command::new(script),
        };
        command
            .arg(&dir)
            .args([&node.address, &seeds.join(",")])
            .env("CQL_PORT", self.port.to_string())
            .env("STORAGE_PORT", self.storage_port.to_string())
            .env("JMX_PORT", node.jmx_port.to_string())
            .envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        ends_with_this_process(&mut command);
        let log = self.folder.path().join(format!("node{}.log", at + 1));
        *self.process(at) = Some(starter().start(command, log));
    }

    /// Starts a process with a memory file system on the directory of the last node.
    fn mount(&self, size: &str) -> Process {
        let (dir, ready) = (self.dir(self.nodes.len() - 1), self.folder.path().join("mounted"));
        std::fs::create_dir_all(&dir).expect("a mount point");
        let script = format!("mount -t tmpfs -o size={size} none \"$0\" && touch \"$1\" && exec sleep infinity");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script]).args([&dir, &ready]);
        ends_with_this_process(&mut command);
        let mut process = starter().start(command, self.folder.path().join("mount.log"));
        wait_until("the file system is mounted", || {
            assert!(process.runs(), "mounting: {}", process.log());
            ready.exists()
        });
        process
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

/// The process gets SIGKILL when the thread that started it ends.
fn ends_with_this_process(command: &mut Command) {
    // SAFETY: prctl with these arguments only sets an attribute of the new process.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
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
