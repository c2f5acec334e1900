//! How long agents that lose their server are without an acknowledgement: many senders in this process, and two servers with TLS and fsync. One server is
//! killed (or stopped, so that its kernel still answers), and comes back. Each agent sends a batch of 10 sensors a second.
//!
//! `cargo build --release -p wholegrain && cargo run --release -p wholegrain-agent --example fail_over -- [AGENTS] [kill|stop]`

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use wholegrain_agent::batch::EncodedBatch;
use wholegrain_agent::engine::clock;
use wholegrain_agent::sender::SenderThread;
use wholegrain_agent::{AgentHandles, Config};
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_testkit::free_port;
use wholegrain_transport::payload::encode_batch;
use wholegrain_transport::topics::Topic;

const SENSORS: usize = 10;
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// How often agents look for the preferred server.
const RETURN_INTERVAL_S: u64 = 20;
const DEADLINE: Duration = Duration::from_secs(120);

/// An installation with two servers, in a directory that is removed at the end.
struct Servers {
    dir: tempfile::TempDir,
    program: PathBuf,
    ports: [u16; 2],
    children: [Option<Child>; 2],
}

const FOLDERS: [&str; 2] = ["server", "server2"];

impl Servers {
    fn start() -> anyhow::Result<Self> {
        // The example is in a folder of the one with the programs.
        let own = std::env::current_exe()?;
        let program = own.ancestors().nth(2).context("a folder of programs")?.join("wholegrain");
        ensure!(program.is_file(), "{} is missing; build it in the same profile", program.display());
        let dir = tempfile::tempdir()?;
        let (ports, http) = ([free_port(), free_port()], [free_port(), free_port()]);
        let status = Command::new(&program)
            .args(["init", "--mqtt-port", &ports[0].to_string(), "--http-port", &http[0].to_string()])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(status.success(), "wholegrain init failed");
        let [first, second] = FOLDERS.map(|folder| dir.path().join(folder));
        std::fs::create_dir(&second)?;
        for file in ["server.pem", "server.key", "passwords", "tokens"] {
            std::fs::copy(first.join(file), second.join(file))?;
        }
        let mut config = std::fs::read_to_string(first.join("server.toml"))?;
        for (old, new) in [(ports[0], ports[1]), (http[0], http[1])] {
            config = config.replace(&format!(":{old}\""), &format!(":{new}\""));
        }
        std::fs::write(second.join("server.toml"), config)?;
        let mut servers = Self { dir, program, ports, children: [None, None] };
        servers.run(0)?;
        servers.run(1)?;
        Ok(servers)
    }

    /// Starts a server and waits until it accepts connections.
    fn run(&mut self, index: usize) -> anyhow::Result<()> {
        let folder = self.dir.path().join(FOLDERS[index]);
        let log = std::fs::File::create(folder.join("log"))?;
        let mut command = Command::new(&self.program);
        command.args(["server", "--config"]).arg(folder.join("server.toml")).stderr(log).stdout(Stdio::null());
        self.children[index] = Some(command.spawn()?);
        let begin = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.ports[index])).is_err() {
            ensure!(begin.elapsed() < DEADLINE, "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn signal(&self, index: usize, signal: i32) {
        if let Some(child) = &self.children[index] {
            // SAFETY: the child was not waited for, so that its number still refers to it.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.children[index].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..2).for_each(|index| self.kill(index));
    }
}

/// An agent's sender without its samplers.
struct BareAgent {
    handles: AgentHandles,
    sender: SenderThread,
    schema: Schema,
    topic: Arc<str>,
    seq: AtomicU64,
}

impl BareAgent {
    fn start(name: &str, servers: &Servers, issuer: &Issuer<'_, KeyPair>) -> anyhow::Result<Self> {
        let (dir, key) = (servers.dir.path(), KeyPair::generate()?);
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        std::fs::write(dir.join(format!("{name}.pem")), params.signed_by(&key, issuer)?.pem())?;
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
        let urls = servers.ports.map(|port| format!("\"mqtts://127.0.0.1:{port}\"")).join(", ");
        let text = format!(
            "name = \"{name}\"\n[mqtt]\nurls = [{urls}]\nca = \"ca.pem\"\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n\
             return_interval = \"{RETURN_INTERVAL_S}s\"\n"
        );
        let config = Config::parse(Path::new("agent.toml"), &text, dir)?;
        let handles = AgentHandles::new(&config)?;
        let mqtt = config.mqtt.context("[mqtt]")?;
        let sender = SenderThread::start(handles.sender(), handles.send_queue(), mqtt, None)?;
        let sensors = (0..SENSORS).map(|index| SensorDef::counter(format!("load/{index}"), "1", "")).collect();
        let schema = Schema::new(SensorPath::new(format!("/{name}"))?, "load", sensors)?;
        let topic = Topic::Batch { agent: name, group: "load" }.to_string().into();
        Ok(Self { handles, sender, schema, topic, seq: AtomicU64::new(0) })
    }

    fn send(&self) {
        let (seq, time) = (self.seq.fetch_add(1, Ordering::Relaxed) + 1, clock::real());
        let header = BatchHeader {
            agent: self.handles.identity.name.clone(),
            boot: self.handles.identity.boot_ns,
            seq,
            schema: self.schema.hash(),
            interval_ns: BATCH_EVERY.as_nanos() as u64,
        };
        let column = || Column { values: ColumnValues::Int(vec![seq as i64]), gaps: Gaps::default() };
        let columns = (0..SENSORS).map(|_| column()).collect();
        let batch = EncodedBatch {
            payload: encode_batch(&Batch { header, times: vec![time], columns }).into(),
            schema: self.schema.clone(),
            topic: self.topic.clone(),
            seq,
            first: time,
            last: time,
            samples: 1,
            made_mono: clock::mono(),
        };
        self.handles.queue.push(&mut vec![Arc::new(batch)], true);
    }

    fn place(&self) -> u64 {
        self.handles.counters.server_place.load(Ordering::Relaxed)
    }

    fn acknowledged(&self) -> u64 {
        self.handles.counters.acknowledged.load(Ordering::Relaxed)
    }
}

/// Lets each agent send once a second, all of them spread over it, until `stop`.
fn feed(agents: &[BareAgent], stop: &AtomicBool) {
    let begin = Instant::now();
    let offset = |sent: usize| BATCH_EVERY.mul_f64(sent as f64 / agents.len() as f64);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        while offset(sent) <= begin.elapsed() {
            agents[sent % agents.len()].send();
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for something of each agent; returns the time since `begin` at which it came.
fn times(
    agents: &[&BareAgent],
    begin: Instant,
    mut is_done: impl FnMut(usize) -> bool,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = vec![None; agents.len()];
    while times.iter().any(Option::is_none) {
        for (index, time) in times.iter_mut().enumerate().filter(|(_, time)| time.is_none()) {
            *time = is_done(index).then(|| begin.elapsed());
        }
        ensure!(begin.elapsed() < DEADLINE, "{} agents wait in vain", times.iter().filter(|t| t.is_none()).count());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut times: Vec<Duration> = times.into_iter().flatten().collect();
    times.sort_unstable();
    Ok(times)
}

fn print(what: &str, times: &[Duration]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64();
    let [median, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(at);
    println!("{what:<56}{median:>7.2} s{p95:>7.2} s{p99:>7.2} s{max:>7.2} s");
}

fn measure(agents: &[BareAgent], servers: &mut Servers, is_kill: bool) -> anyhow::Result<()> {
    let all: Vec<&BareAgent> = agents.iter().collect();
    let begin = Instant::now();
    println!("{:<56}{:>9}{:>9}{:>9}{:>9}", "", "median", "95 %", "99 %", "max");
    print(
        "from the start to the first acknowledged batch",
        &times(&all, begin, |index| agents[index].acknowledged() > 0)?,
    );
    let first = format!(":{}", servers.ports[0]);
    let at_first = |agent: &BareAgent| agent.handles.status.link().url.ends_with(&first);
    let affected: Vec<&BareAgent> = agents.iter().filter(|agent| at_first(agent)).collect();
    println!("{} agents at the first server, {} at the second", affected.len(), agents.len() - affected.len());
    // So that no agent is still within the first seconds of its connection.
    std::thread::sleep(Duration::from_secs(6));
    let lost = Instant::now();
    if is_kill {
        servers.kill(0)
    } else {
        servers.signal(0, libc::SIGSTOP)
    }
    let mut before = vec![None; affected.len()];
    let elsewhere = times(&affected, lost, |index| {
        let agent = affected[index];
        match before[index] {
            None if agent.handles.counters.server_changes.load(Ordering::Relaxed) > 0 => {
                before[index] = Some(agent.acknowledged());
                false
            }
            None => false,
            Some(before) => agent.acknowledged() > before,
        }
    })?;
    print("from the loss to the next acknowledged batch elsewhere", &elsewhere);
    let back = Instant::now();
    if is_kill {
        servers.run(0)?
    } else {
        servers.signal(0, libc::SIGCONT)
    }
    print(
        "from the return of the server to that of an agent",
        &times(&affected, back, |index| affected[index].place() == 1)?,
    );
    std::thread::sleep(Duration::from_secs(2));
    let sum = |counter: fn(&BareAgent) -> u64| agents.iter().map(counter).sum::<u64>();
    let dropped = sum(|agent| agent.handles.counters.dropped.load(Ordering::Relaxed));
    let changes = sum(|agent| agent.handles.counters.server_changes.load(Ordering::Relaxed));
    println!("{changes} changes of the server, {dropped} batches dropped");
    Ok(())
}

fn run() -> anyhow::Result<()> {
    wholegrain_agent::agent::raise_open_files();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count: usize = arguments.first().map_or(Ok(1000), |count| count.parse()).context("the number of agents")?;
    let is_kill = arguments.get(1).is_none_or(|mode| mode != "stop");
    let mut servers = Servers::start()?;
    let read = |file: &str| std::fs::read_to_string(servers.dir.path().join(file));
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem")?, KeyPair::from_pem(&read("ca.key")?)?)?;
    let start = |index: usize| BareAgent::start(&format!("node{index:04}"), &servers, &issuer);
    let agents = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| feed(&agents, &stop));
        let result = measure(&agents, &mut servers, is_kill);
        stop.store(true, Ordering::Relaxed);
        result
    });
    agents.into_iter().for_each(|agent| agent.sender.finish());
    result
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fail_over: {error:#}");
            ExitCode::FAILURE
        }
    }
}
