//! A server that answers as a test says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a server does with a request.
#[derive(Clone)]
pub enum StubAnswer {
    /// Status, further headers, body.
    Page(u16, &'static str, Vec<u8>),
    /// The bytes, without HTTP around them.
    Raw(Vec<u8>),
    /// A page of `a 1` lines that never ends.
    Endless,
    /// Nothing, with an open connection.
    Never,
    /// A page whose bytes come one in 50 ms.
    Slow(Vec<u8>),
}

impl StubAnswer {
    /// A page in Prometheus text.
    pub fn text(body: &str) -> Self {
        Self::Page(200, "Content-Type: text/plain; version=0.0.4\r\n", body.as_bytes().to_vec())
    }
}

/// A server on a port of its own.
pub struct StubServer {
    pub port: u16,
    answer: Arc<Mutex<StubAnswer>>,
    requests: Arc<AtomicUsize>,
    /// The head of the last request.
    head: Arc<Mutex<String>>,
}

/// How a connection is wrapped, for TLS.
pub type Wrap = dyn Fn(TcpStream) -> Option<Box<dyn ReadWrite>> + Send + Sync;

/// A connection, plain or with TLS.
pub trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

impl StubServer {
    pub fn new(answer: StubAnswer) -> Self {
        Self::wrapped(answer, Box::new(|stream| Some(Box::new(stream))))
    }

    pub fn wrapped(answer: StubAnswer, wrap: Box<Wrap>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server =
            Self { port, answer: Arc::new(Mutex::new(answer)), requests: Arc::default(), head: Arc::default() };
        let (answer, requests, head) = (server.answer.clone(), server.requests.clone(), server.head.clone());
        let wrap: Arc<Wrap> = wrap.into();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, requests, head, wrap) = (answer.clone(), requests.clone(), head.clone(), wrap.clone());
                std::thread::spawn(move || {
                    if let Some(stream) = wrap(stream) {
                        serve(stream, &answer, &requests, &head);
                    }
                });
            }
        });
        server
    }

    pub fn set(&self, answer: StubAnswer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn head(&self) -> String {
        self.head.lock().unwrap().clone()
    }
}

fn serve(mut stream: Box<dyn ReadWrite>, answer: &Mutex<StubAnswer>, requests: &AtomicUsize, head: &Mutex<String>) {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => request.extend_from_slice(&chunk[..count]),
            _ => return,
        }
    }
    requests.fetch_add(1, Ordering::Relaxed);
    *head.lock().unwrap() = String::from_utf8_lossy(&request).into_owned();
    let answer = answer.lock().unwrap().clone();
    let page = |status: u16, headers: &str, length: usize| {
        format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    // A client that has gone is what some tests want.
    let _ = match answer {
        StubAnswer::Page(status, headers, body) => {
            stream.write_all(page(status, headers, body.len()).as_bytes()).and_then(|()| stream.write_all(&body))
        }
        StubAnswer::Raw(bytes) => stream.write_all(&bytes),
        StubAnswer::Endless => {
            let head = "HTTP/1.1 200 X\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).and_then(|()| {
                loop {
                    stream.write_all(b"a 1\n")?;
                }
            })
        }
        StubAnswer::Never => {
            while stream.read(&mut chunk).is_ok_and(|count| count > 0) {}
            Ok(())
        }
        StubAnswer::Slow(body) => stream.write_all(page(200, "", body.len()).as_bytes()).and_then(|()| {
            body.iter().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(50));
                stream.write_all(&[*byte])
            })
        }),
    };
    let _ = stream.flush();
}
