//! Records the messages of an agent: the agent itself samples this machine, and this program replaces its server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::BytesMut;
use wholegrain_testing::{Process, program};
use wholegrain_transport::mqtt::{self, Ack, ConnAck, Packet, Properties, ReasonCode, SubAck, Version};

use super::recording::{create, put_message};
use super::work::Work;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
const PACKET_BYTES_MAX: usize = 32 << 20;
/// How long the agent may take to connect, and to say something.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Options of a recording.
pub struct RecordingOptions {
    pub seconds: f64,
    /// From sample to sample, ms.
    pub interval_ms: u64,
    /// Whether programs compute, write and talk meanwhile, so that values move.
    pub busy: bool,
}

/// Records into a file.
pub fn record(file: &Path, options: &RecordingOptions) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listening for the agent")?;
    let config = dir.path().join("agent.toml");
    let text = format!(
        "name = \"node\"\n[defaults]\ninterval = \"{}ms\"\n[mqtt]\nurl = \"mqtt://{}\"\n[api]\nsocket = \"{}\"\n[sources.procfs]\n[sources.sysfs]\n",
        options.interval_ms,
        listener.local_addr()?,
        dir.path().join("agent.sock").display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program("wholegrain-agent"));
    let mut agent = Process::start(command.arg("--config").arg(&config), &dir.path().join("agent.log"));
    let _work = options.busy.then(|| Work::start(dir.path())).transpose()?;
    let mut standin = Standin { stream: accept(&listener, &mut agent)?, input: BytesMut::new(), version: None };
    let part = file.with_extension("part");
    let mut out = create(&part)?;
    standin.capture(Instant::now() + Duration::from_secs_f64(options.seconds), &mut out)?;
    ensure!(agent.runs(), "the agent ended: {}", agent.log());
    agent.signal(libc::SIGTERM);
    // Its last messages while it stops.
    standin.capture(Instant::now() + SILENCE_MAX, &mut out)?;
    agent.wait();
    out.flush()?;
    std::fs::rename(&part, file)?;
    Ok(())
}

fn accept(listener: &TcpListener, agent: &mut Process) -> anyhow::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("waiting for the agent"),
        }
        ensure!(agent.runs() && start.elapsed() < SILENCE_MAX, "the agent did not connect: {}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The agent's server, as far as it needs one.
struct Standin {
    stream: TcpStream,
    input: BytesMut,
    version: Option<Version>,
}

impl Standin {
    /// Acknowledges everything until a time, or until the other side has gone; gives each publish.
    fn capture(&mut self, until: Instant, out: &mut impl Write) -> anyhow::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            while let Some(packet) = mqtt::decode(&mut self.input, self.version, PACKET_BYTES_MAX)? {
                self.take(packet, out)?;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading from the agent"),
            }
        }
    }

    fn take(&mut self, packet: Packet, out: &mut impl Write) -> anyhow::Result<()> {
        let properties = Properties::new();
        let answer = match packet {
            Packet::Connect(connect) => {
                self.version = Some(connect.version);
                Packet::ConnAck(ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties })
            }
            Packet::Publish(publish) => {
                put_message(publish.topic.as_str(), &publish.payload, out)?;
                let Some(id) = publish.packet_id else { return Ok(()) };
                Packet::PubAck(Ack::success(id))
            }
            Packet::Subscribe(subscribe) => {
                let reasons = vec![ReasonCode::GRANTED_QOS_1; subscribe.filters.len()];
                Packet::SubAck(SubAck { packet_id: subscribe.packet_id, reasons, properties })
            }
            Packet::PingReq => Packet::PingResp,
            _ => return Ok(()),
        };
        let mut output = BytesMut::new();
        mqtt::encode(&answer, self.version.unwrap_or(Version::V5), &mut output)?;
        Ok(self.stream.write_all(&output)?)
    }
}
