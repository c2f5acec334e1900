//! Helpers of the tests of the whole agent: an agent in this process, a broker, and a connection between them that can fail.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod arrived;
pub mod script;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown as End, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_agent::manager::ManagerHandle;
use wholegrain_agent::{AgentHandles, Config, Shutdown};
use wholegrain_testkit::{DEADLINE, free_port, wait_until};
use wholegrain_transport::client::{Client, ClientConfig, Event};

/// An agent that runs in this process.
pub struct Agent {
    pub handles: AgentHandles,
    pub manager_handle: ManagerHandle,
    pub dir: PathBuf,
    shutdown: Arc<Shutdown>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Agent {
    /// Starts an agent with its configuration in `dir`.
    pub fn start(dir: &Path, text: &str) -> Self {
        let file = dir.join("agent.toml");
        fs::write(&file, text).unwrap();
        let config = Config::load(&file).unwrap_or_else(|error| panic!("{error}"));
        let shutdown = Arc::new(Shutdown::new().unwrap());
        let (sender, receiver) = mpsc::channel();
        let theirs = shutdown.clone();
        let thread = std::thread::spawn(move || {
            wholegrain_agent::run(config, &theirs, |handles, manager_handle| {
                sender.send((handles.clone(), manager_handle.clone())).unwrap()
            })
        });
        match receiver.recv_timeout(DEADLINE) {
            Ok((handles, manager_handle)) => Self { handles, manager_handle, dir: dir.to_owned(), shutdown, thread },
            Err(_) => panic!("the agent did not start: {:?}", thread.join()),
        }
    }

    /// Ends the agent as SIGTERM does.
    pub fn stop(self) {
        self.shutdown.request();
        self.thread.join().unwrap().unwrap();
    }

    /// Sends a request to the API on the socket `agent.sock`.
    pub fn ask(&self, method: &str, target: &str) -> (u16, serde_json::Value) {
        let mut stream = UnixStream::connect(self.dir.join("agent.sock")).unwrap();
        write!(stream, "{method} {target} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        parse_answer(&answer)
    }
}

/// The status and the JSON of a response, with its chunks joined.
pub fn parse_answer(answer: &[u8]) -> (u16, serde_json::Value) {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(answer).unwrap() else { panic!("the answer is cut off") };
    let chunked = head.headers.iter().any(|header| header.name == "transfer-encoding");
    let mut rest = &answer[length..];
    let mut body = Vec::new();
    if chunked {
        while let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(rest) {
            body.extend_from_slice(&rest[start..start + size as usize]);
            rest = &rest[start + size as usize + 2..];
            if size == 0 {
                break;
            }
        }
    } else {
        body.extend_from_slice(rest);
    }
    (
        head.code.unwrap(),
        serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&body))),
    )
}

/// A Mosquitto for one test.
pub struct Broker {
    pub port: u16,
    /// The second port of [`Broker::start_with`].
    pub second_port: u16,
    child: Child,
    dir: tempfile::TempDir,
}

impl Broker {
    pub fn start() -> Self {
        Self::start_with(|_| String::new())
    }

    /// Starts a broker with a second listener: `lines` returns its settings and may write files into the given folder. Tries other ports if one is
    /// taken.
    pub fn start_with(lines: impl Fn(&Path) -> String) -> Self {
        for _ in 0..5 {
            let (port, second_port, dir) = (free_port(), free_port(), tempfile::tempdir().unwrap());
            let config = dir.path().join("mosquitto.conf");
            let second = match lines(dir.path()) {
                lines if lines.is_empty() => String::new(),
                lines => format!("listener {second_port} 127.0.0.1\n{lines}\n"),
            };
            // Mosquitto's own user could not read the folder.
            let user = if second.is_empty() { "" } else { "user root\n" };
            let text = format!(
                "{user}per_listener_settings true\npersistence false\nmax_queued_messages 100000\nmax_inflight_messages 100\n\
                 log_type error\nlistener {port} 127.0.0.1\nallow_anonymous true\n{second}"
            );
            fs::write(&config, text).unwrap();
            let program = if Path::new("/usr/sbin/mosquitto").exists() { "/usr/sbin/mosquitto" } else { "mosquitto" };
            let mut command = Command::new(program);
            command.arg("-c").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().expect("mosquitto is installed (Debian package mosquitto)");
            // From here on, dropping it stops the process.
            let mut broker = Self { port, second_port, child, dir };
            let deadline = Instant::now() + DEADLINE;
            while Instant::now() < deadline && broker.child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", if second.is_empty() { port } else { second_port })).is_ok() {
                    return broker;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("mosquitto does not start");
    }

    /// The folder with the broker's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A client of the broker.
    pub fn client(&self, name: &str) -> Client {
        let url = format!("mqtt://127.0.0.1:{}", self.port);
        let config = ClientConfig { url, client_id: name.into(), ..ClientConfig::default() };
        // A Mosquitto that has just started sometimes resets one of its first connections.
        let deadline = Instant::now() + DEADLINE;
        loop {
            match Client::connect(&config) {
                Ok(client) => return client,
                Err(error) if Instant::now() > deadline => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// A client that is subscribed to all topics of Wholegrain.
    pub fn listener(&self) -> Client {
        let mut client = self.client("listener");
        client.subscribe("wholegrain/v1/#").unwrap();
        wait_until("the subscription", || {
            matches!(client.poll(Duration::from_millis(100)).unwrap(), Some(Event::Subscribed { .. }))
        });
        client
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The behaviour of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Existing and new connections are closed at once.
    Cut,
    /// Connections are accepted, and nothing is read.
    Hang,
    Through,
}

/// A connection to the broker that can be cut or hang.
pub struct Line {
    pub port: u16,
    mode: Arc<AtomicU8>,
}

impl Line {
    /// A proxy to `to` in this mode.
    pub fn to(to: u16, mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(AtomicU8::new(mode as u8));
        let its_mode = mode.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mode = its_mode.clone();
                std::thread::spawn(move || carry(stream, to, &mode));
            }
        });
        Self { port, mode }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

/// One connection: copies bytes both ways as long as the mode stays the same.
fn carry(stream: TcpStream, to: u16, mode: &Arc<AtomicU8>) {
    let at_first = mode.load(Ordering::SeqCst);
    if at_first == Mode::Cut as u8 {
        return;
    }
    let other = (at_first == Mode::Through as u8)
        .then(|| TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], to))).ok())
        .flatten();
    if let Some(other) = &other {
        for (mut from, mut into) in [
            (stream.try_clone().unwrap(), other.try_clone().unwrap()),
            (other.try_clone().unwrap(), stream.try_clone().unwrap()),
        ] {
            let mode = mode.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 16384];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    // A hanging connection loses nothing: sent messages stay unacknowledged.
                    while mode.load(Ordering::SeqCst) == Mode::Hang as u8 {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    if mode.load(Ordering::SeqCst) == Mode::Cut as u8 || into.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = from.shutdown(End::Both);
                let _ = into.shutdown(End::Both);
            });
        }
    }
    while mode.load(Ordering::SeqCst) != Mode::Cut as u8 {
        let hangs = mode.load(Ordering::SeqCst) == Mode::Hang as u8;
        if other.is_none() && !hangs {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = stream.shutdown(End::Both);
    if let Some(other) = other {
        let _ = other.shutdown(End::Both);
    }
}
