//! A service of the test's own: resources in memory, and a hook that can answer anything.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// A request that arrived whole.
#[derive(Debug, Clone)]
pub struct ServiceRequest {
    pub method: String,
    pub path: String,
    /// With names in small letters.
    pub headers: HashMap<String, String>,
    pub body: String,
}

/// A connection, plain or with TLS.
pub trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

/// How a connection is wrapped, for TLS.
pub type Wrap = dyn Fn(TcpStream) -> Option<Box<dyn ReadWrite>> + Send + Sync;

/// Writes an answer as it likes.
pub type WriteReply = dyn FnOnce(&mut dyn ReadWrite) + Send;

/// What a service does with a request.
pub enum ServiceReply {
    /// Status, further headers, body.
    Page(u16, String, Vec<u8>),
    Raw(Vec<u8>),
    /// JSON that never ends.
    Endless,
    /// Nothing, with an open connection.
    Never,
    /// A page whose bytes come one in 20 ms.
    Slow(Vec<u8>),
    /// The bytes that a function writes.
    Written(Box<WriteReply>),
}

impl ServiceReply {
    pub fn json(status: u16, body: &Value) -> Self {
        Self::Page(status, String::new(), body.to_string().into_bytes())
    }
}

type Hook = dyn Fn(&ServiceRequest) -> Option<ServiceReply> + Send + Sync;

/// A service on a port of its own.
pub struct TestService {
    pub port: u16,
    shared: Arc<SharedService>,
}

#[derive(Default)]
struct SharedService {
    resources: Mutex<BTreeMap<String, Value>>,
    hook: Mutex<Option<Arc<Hook>>>,
    log: Mutex<Vec<ServiceRequest>>,
}

impl TestService {
    /// A service with one chassis that has a temperature: the group `b/chassis/1/thermal`.
    pub fn new() -> Self {
        Self::wrapped(Box::new(|stream| Some(Box::new(stream))))
    }

    pub fn wrapped(wrap: Box<Wrap>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<SharedService>::default();
        let (theirs, wrap) = (shared.clone(), Arc::<Wrap>::from(wrap));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, wrap) = (theirs.clone(), wrap.clone());
                std::thread::spawn(move || wrap(stream).map(|stream| serve(stream, &shared)));
            }
        });
        let service = Self { port, shared };
        service.put(
            "/redfish/v1",
            json!({ "Chassis": link("Chassis"), "Links": { "Sessions": link("SessionService/Sessions") } }),
        );
        service.put("/redfish/v1/Chassis", json!({ "Members": [link("Chassis/1")] }));
        service.put("/redfish/v1/Chassis/1", json!({ "Id": "1", "Thermal": link("Chassis/1/Thermal") }));
        service.put("/redfish/v1/Chassis/1/Thermal", temperature(json!(41)));
        service
    }

    pub fn put(&self, path: &str, mut value: Value) {
        value["@odata.id"] = json!(path);
        self.shared.resources.lock().unwrap().insert(path.to_owned(), value);
    }

    pub fn remove(&self, path: &str) {
        self.shared.resources.lock().unwrap().remove(path);
    }

    /// Sets what is asked before the resources.
    pub fn hook(&self, hook: impl Fn(&ServiceRequest) -> Option<ServiceReply> + Send + Sync + 'static) {
        *self.shared.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    pub fn unhook(&self) {
        *self.shared.hook.lock().unwrap() = None;
    }

    /// How many requests of this method and path came so far.
    pub fn count(&self, method: &str, path: &str) -> usize {
        let log = self.shared.log.lock().unwrap();
        log.iter().filter(|request| request.method == method && request.path == path).count()
    }

    pub fn requests(&self) -> Vec<ServiceRequest> {
        self.shared.log.lock().unwrap().clone()
    }
}

pub fn link(path: &str) -> Value {
    json!({ "@odata.id": format!("/redfish/v1/{path}") })
}

pub fn temperature(value: Value) -> Value {
    json!({ "Temperatures": [{ "MemberId": "0", "Name": "CPU", "ReadingCelsius": value }] })
}

fn serve(mut stream: Box<dyn ReadWrite>, shared: &SharedService) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let request = loop {
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&chunk[..count]),
            _ => return,
        }
        if let Some(request) = whole(&bytes) {
            break request;
        }
    };
    shared.log.lock().unwrap().push(request.clone());
    let hook = shared.hook.lock().unwrap().clone();
    let reply = hook.and_then(|hook| hook(&request)).unwrap_or_else(|| {
        let resources = shared.resources.lock().unwrap();
        match resources.get(request.path.trim_end_matches('/')) {
            Some(value) => ServiceReply::json(200, value),
            None => ServiceReply::json(404, &json!({ "error": {} })),
        }
    });
    let head = |status: u16, headers: &str, length: usize| {
        format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
    };
    // A client that has gone is what some tests want.
    let _ = match reply {
        ServiceReply::Page(status, headers, body) => {
            stream.write_all(head(status, &headers, body.len()).as_bytes()).and_then(|()| stream.write_all(&body))
        }
        ServiceReply::Raw(bytes) => stream.write_all(&bytes),
        ServiceReply::Endless => {
            stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n{\"a\":[0").and_then(|()| {
                loop {
                    stream.write_all(b",1,1,1,1,1,1,1")?;
                }
            })
        }
        ServiceReply::Never => {
            while stream.read(&mut chunk).is_ok_and(|count| count > 0) {}
            Ok(())
        }
        ServiceReply::Slow(body) => stream.write_all(head(200, "", body.len()).as_bytes()).and_then(|()| {
            body.iter().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(20));
                stream.write_all(&[*byte])
            })
        }),
        ServiceReply::Written(write) => {
            write(&mut *stream);
            Ok(())
        }
    };
    let _ = stream.flush();
}

fn whole(bytes: &[u8]) -> Option<ServiceRequest> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = text.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let body = bytes.get(end + 4..end + 4 + length)?;
    Some(ServiceRequest { method, path, headers, body: String::from_utf8_lossy(body).into_owned() })
}
