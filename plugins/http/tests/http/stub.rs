//! A server that answers as a test says, over HTTP or with TLS around it. Tests of other crates include this file.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest request that is kept.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What a server does with a request.
#[derive(Clone)]
#[allow(dead_code)]
pub enum StubAnswer {
    /// Status, further headers, body; the connection stays open.
    Page(u16, &'static str, Vec<u8>),
    /// The bytes, without HTTP around them, after which the connection ends.
    Raw(Vec<u8>),
    /// The bytes, without HTTP around them; the connection stays open.
    Open(Vec<u8>),
    /// A body that never ends.
    Endless,
    /// Nothing, with an open connection.
    Never,
    /// A page whose bytes come one in 50 ms.
    Slow(Vec<u8>),
}

impl StubAnswer {
    /// A page with status 200.
    pub fn text(body: &str) -> Self {
        Self::Page(200, "", body.as_bytes().to_vec())
    }
}

/// What a server was asked for.
#[derive(Default)]
struct StubLog {
    requests: usize,
    connections: usize,
    /// Head and body of the last request.
    last: String,
}

/// The answers of a server: `*` is for all addresses without one of their own.
type Answers = Arc<Mutex<HashMap<String, StubAnswer>>>;

/// A server on a port of its own.
pub struct StubServer {
    pub port: u16,
    answers: Answers,
    log: Arc<Mutex<StubLog>>,
}

/// How a connection is wrapped, for TLS.
pub type Wrap = dyn Fn(TcpStream) -> Option<Box<dyn ReadWrite>> + Send + Sync;

/// A connection, plain or with TLS.
pub trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

#[allow(dead_code)]
impl StubServer {
    pub fn new(answer: StubAnswer) -> Self {
        Self::wrapped("127.0.0.1", answer, Box::new(|stream| Some(Box::new(stream))))
    }

    /// A server on an address of loopback.
    pub fn at(address: &str, answer: StubAnswer) -> Self {
        Self::wrapped(address, answer, Box::new(|stream| Some(Box::new(stream))))
    }

    pub fn wrapped(address: &str, answer: StubAnswer, wrap: Box<Wrap>) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Answers::default();
        answers.lock().unwrap().insert("*".to_owned(), answer);
        let server = Self { port, answers, log: Arc::default() };
        let (answers, log) = (server.answers.clone(), server.log.clone());
        let wrap: Arc<Wrap> = wrap.into();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, log, wrap) = (answers.clone(), log.clone(), wrap.clone());
                log.lock().unwrap().connections += 1;
                std::thread::spawn(move || {
                    if let Some(mut stream) = wrap(stream) {
                        while serve(&mut *stream, &answers, &log).is_some() {}
                    }
                });
            }
        });
        server
    }

    /// Sets the answer for all addresses without one of their own.
    pub fn set(&self, answer: StubAnswer) {
        self.set_at("*", answer);
    }

    /// Sets the answer for one address.
    pub fn set_at(&self, uri: &str, answer: StubAnswer) {
        self.answers.lock().unwrap().insert(uri.to_owned(), answer);
    }

    pub fn requests(&self) -> usize {
        self.log.lock().unwrap().requests
    }

    pub fn connections(&self) -> usize {
        self.log.lock().unwrap().connections
    }

    /// Head and body of the last request.
    pub fn last(&self) -> String {
        self.log.lock().unwrap().last.clone()
    }
}

/// Answers one request. `None` once the connection is at its end.
fn serve(stream: &mut dyn ReadWrite, answers: &Answers, log: &Mutex<StubLog>) -> Option<()> {
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if request.len() >= end + 4 + length || request.len() > REQUEST_BYTES_MAX {
                break;
            }
        }
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => request.extend_from_slice(&chunk[..count]),
            _ => return None,
        }
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let uri = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = {
        let answers = answers.lock().unwrap();
        answers.get(&uri).or_else(|| answers.get("*")).cloned()?
    };
    {
        let mut log = log.lock().unwrap();
        log.requests += 1;
        log.last = text;
    }
    let page = |status: u16, headers: &str, length: usize| {
        format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n").into_bytes()
    };
    match answer {
        StubAnswer::Page(status @ (204 | 304), headers, _) => {
            stream.write_all(format!("HTTP/1.1 {status} X\r\n{headers}\r\n").as_bytes()).ok()?;
        }
        StubAnswer::Page(status, headers, body) => {
            // One write, so that no answer is cut in the middle.
            let mut bytes = page(status, headers, body.len());
            bytes.extend_from_slice(&body);
            stream.write_all(&bytes).ok()?;
        }
        StubAnswer::Raw(bytes) => {
            let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
            return None;
        }
        StubAnswer::Open(bytes) => stream.write_all(&bytes).ok()?,
        StubAnswer::Endless => {
            stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n").ok()?;
            loop {
                stream.write_all(b"          ").ok()?;
            }
        }
        StubAnswer::Never => {
            while stream.read(&mut chunk).is_ok_and(|count| count > 0) {}
            return None;
        }
        StubAnswer::Slow(body) => {
            stream.write_all(&page(200, "", body.len())).ok()?;
            for byte in body {
                std::thread::sleep(Duration::from_millis(50));
                stream.write_all(&[byte]).and_then(|()| stream.flush()).ok()?;
            }
        }
    }
    stream.flush().ok()
}
