//! A server on free ports in a directory of its own, and clients for tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SchemaHash, SensorDef, SensorPath};
use wholegrain_server::access::passwords::hash_password;
use wholegrain_server::{BoundAddresses, InitOptions, ServerConfig, init, issue_agent_certificate, run};
pub use wholegrain_testkit::{DEADLINE, wait_for, wait_until};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::mqtt::{ReasonCode, Version};
use wholegrain_transport::{payload, tls};

/// The password of the user `n1`.
pub const PASSWORD: &str = "correct horse";
pub const VERSIONS: [Version; 2] = [Version::V311, Version::V5];

const GRANTS: &str = "[[mqtt.acl]]\nidentity = \"*\"\nsubscribe = [\"#\"]\n\
     publish = [\"site/#\", \"a/#\", \"b/#\", \"s/#\", \"t/#\", \"test/#\", \"elsewhere\"]\n";

pub struct TestServer {
    pub dir: tempfile::TempDir,
    pub addresses: BoundAddresses,
    pub token: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    http: ureq::Agent,
}

/// An answer of the API.
pub struct HttpResponse {
    pub status: u16,
    pub content_type: String,
    pub sensors: Option<String>,
    pub body: Vec<u8>,
}

impl HttpResponse {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

impl TestServer {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// With more lines in `[mqtt]`, before its users. Every client may subscribe to everything and publish on some shared topics.
    pub fn start_with(mqtt: &str) -> Self {
        Self::start_strict(&format!("{mqtt}\n{GRANTS}"))
    }

    /// The same without any grants but those in `mqtt`.
    pub fn start_strict(mqtt: &str) -> Self {
        Self::start_whole("", mqtt, "")
    }

    /// As a client of other brokers: with these tables at the end of the file.
    pub fn start_remote(remotes: &str) -> Self {
        Self::start_whole("", "", remotes)
    }

    /// With more lines at the beginning of the file.
    pub fn start_with_root(root: &str) -> Self {
        Self::start_whole(root, "", "")
    }

    /// With more lines in `[http]`.
    pub fn start_with_http(http: &str) -> Self {
        Self::start_parts("", http, GRANTS, "")
    }

    fn start_whole(root: &str, mqtt: &str, end: &str) -> Self {
        Self::start_parts(root, "", mqtt, end)
    }

    fn start_parts(root: &str, http: &str, mqtt: &str, end: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &InitOptions { agent: Some("n1".to_owned()), ..InitOptions::default() }).unwrap();
        issue_agent_certificate(dir.path(), "n2").unwrap();
        let text = format!(
            "{root}data = \".\"\n[http]\nlisten = \"127.0.0.1:0\"\ntokens_file = \"tokens\"\n{http}\n\
             [mqtt]\nlisten = \"127.0.0.1:0\"\ntls_listen = \"127.0.0.1:0\"\nclient_ca = \"../ca.pem\"\n{mqtt}\n\
             [[mqtt.users]]\nname = \"n1\"\npassword_hash = \"{}\"\n{end}",
            hash()
        );
        std::fs::write(dir.path().join("server/server.toml"), text).unwrap();
        Self::in_dir(dir)
    }

    fn in_dir(dir: tempfile::TempDir) -> Self {
        let mut config = ServerConfig::load(&dir.path().join("server/server.toml")).unwrap();
        // The tests' readings are of days of their own, wherever the clock stands.
        (config.store.past_max, config.store.future_max) = (None, None);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            run(config, |addresses| ready.send(*addresses).unwrap(), async { drop(stopped.await) })
        });
        let Ok(addresses) = is_ready.recv_timeout(DEADLINE) else {
            panic!("the server did not start: {:?}", thread.join())
        };
        let token = std::fs::read_to_string(dir.path().join("token")).unwrap().trim().to_owned();
        let http = http_agent(&dir.path().join("ca.pem"));
        Self { dir, addresses, token, stop: Some(stop), thread: Some(thread), http }
    }

    /// Stops it in order and starts it again on the same directory.
    pub fn restart(mut self) -> Self {
        self.stop();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        Self::in_dir(dir)
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server panicked").expect("the server failed");
        }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.addresses.http.unwrap().port())
    }

    /// GET with the token.
    pub fn get(&self, path: &str) -> HttpResponse {
        self.get_as(path, Some(&format!("Bearer {}", self.token)))
    }

    pub fn get_as(&self, path: &str, authorization: Option<&str>) -> HttpResponse {
        Self::answer(self.response(path, authorization))
    }

    /// Another method than GET, with the token and without a body.
    pub fn send(&self, method: &str, path: &str) -> HttpResponse {
        self.send_as(method, path, Some(&format!("Bearer {}", self.token)))
    }

    pub fn send_as(&self, method: &str, path: &str, authorization: Option<&str>) -> HttpResponse {
        let mut request = match method {
            "PUT" => self.http.put(self.url(path)),
            _ => self.http.post(self.url(path)),
        };
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        Self::answer(request.send_empty().unwrap())
    }

    /// A request with a token and a body of JSON (empty for none).
    pub fn json(&self, method: &str, path: &str, body: &str, token: &str) -> HttpResponse {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(self.url(path))
            .header("authorization", format!("Bearer {token}"))
            .body(body.to_owned())
            .unwrap();
        let agent = &self.http;
        Self::answer(agent.run(agent.configure_request(request).allow_non_standard_methods(true).build()).unwrap())
    }

    /// Another method than GET, with a body.
    pub fn send_body(&self, method: &str, path: &str, body: &str, token: &str) -> HttpResponse {
        let authorization = format!("Bearer {token}");
        let response = match method {
            "DELETE" => self.http.delete(self.url(path)).header("authorization", authorization).call(),
            "PUT" => self.http.put(self.url(path)).header("authorization", authorization).send(body),
            _ => self.http.post(self.url(path)).header("authorization", authorization).send(body),
        };
        Self::answer(response.unwrap())
    }

    fn answer(mut response: ureq::http::Response<ureq::Body>) -> HttpResponse {
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        HttpResponse {
            status: response.status().as_u16(),
            content_type: header("content-type").unwrap_or_default(),
            sensors: header("x-wholegrain-sensors"),
            body: response.body_mut().read_to_vec().unwrap(),
        }
    }

    pub fn response(&self, path: &str, authorization: Option<&str>) -> ureq::http::Response<ureq::Body> {
        self.response_with(path, authorization, &[])
    }

    /// GET with more headers.
    pub fn response_with(
        &self,
        path: &str,
        authorization: Option<&str>,
        headers: &[(&str, &str)],
    ) -> ureq::http::Response<ureq::Body> {
        let mut request = self.http.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        request.call().unwrap()
    }

    /// POST with the token: the status and the answer's body.
    pub fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.post_as(path, body, &self.token)
    }

    pub fn post_as(&self, path: &str, body: &str, token: &str) -> (u16, String) {
        let request = self.http.post(self.url(path)).header("authorization", format!("Bearer {token}"));
        let mut response = request.send(body).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// POST of bytes with more headers: the status, the answer's headers and its body.
    pub fn post_bytes(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        token: &str,
    ) -> (u16, ureq::http::HeaderMap, Vec<u8>) {
        let mut request = self.http.post(self.url(path)).header("authorization", format!("Bearer {token}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = request.send(body).unwrap();
        let body = response.body_mut().read_to_vec().unwrap();
        (response.status().as_u16(), response.headers().clone(), body)
    }

    /// The newest value of each sensor that a pattern chooses, as `path=value`, and its time.
    pub fn newest(&self, pattern: &str) -> Vec<(String, String)> {
        let answer = self.get(&format!("/api/v1/newest?pattern={}", pattern.replace('%', "%25")));
        let readings = answer.json()["readings"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).clone();
        let one = |r: &serde_json::Value| {
            (format!("{}={}", r["path"].as_str().unwrap(), r["value"]), r["time"].as_str().unwrap().to_owned())
        };
        readings.iter().map(one).collect()
    }

    /// One of the server's own metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let answer = self.get("/metrics");
        let line = answer.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
    }

    /// Lets the connection of n1 in with its password, over TCP.
    pub fn plain(&self, version: Version) -> ClientConfig {
        ClientConfig {
            url: format!("mqtt://127.0.0.1:{}", self.addresses.mqtt.unwrap().port()),
            version,
            client_id: "n1".to_owned(),
            user: Some("n1".to_owned()),
            password: Some(PASSWORD.to_owned()),
            ..ClientConfig::default()
        }
    }

    /// Mutual TLS with a certificate: n1's, or n2's.
    pub fn mutual(&self, version: Version, agent: &str) -> ClientConfig {
        let (cert, key) = match agent {
            "n1" => (self.path("agent/agent.pem"), self.path("agent/agent.key")),
            other => (self.path(&format!("agents/{other}.pem")), self.path(&format!("agents/{other}.key"))),
        };
        let identity = tls::Identity { cert: &cert, key: &key };
        ClientConfig {
            url: format!("mqtts://localhost:{}", self.addresses.mqtt_tls.unwrap().port()),
            version,
            client_id: agent.to_owned(),
            tls: Some(tls::client_config(&self.path("ca.pem"), Some(identity)).unwrap()),
            ..ClientConfig::default()
        }
    }

    /// A publisher that checks that its messages are acknowledged.
    pub fn agent(&self, config: &ClientConfig) -> TestAgent {
        TestAgent::new(config)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// The hash of [`PASSWORD`].
pub fn hash() -> &'static str {
    static HASH: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| hash_password(PASSWORD).unwrap());
    &HASH
}

fn http_agent(ca: &Path) -> ureq::Agent {
    use ureq::tls::{Certificate, RootCerts, TlsConfig};
    let ca = Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
    let tls = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(vec![ca]))).build();
    ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .build()
        .new_agent()
}

/// A client of the broker with its sequence numbers.
pub struct TestAgent {
    pub client: Client,
    pub name: String,
    /// Start of its process: a redelivered batch has the same.
    pub boot: u64,
    seq: u64,
}

impl TestAgent {
    pub fn new(config: &ClientConfig) -> Self {
        let client = Client::connect(config).unwrap_or_else(|e| panic!("{}: {e}", config.url));
        static BOOT: AtomicU64 = AtomicU64::new(1);
        Self { client, name: config.client_id.clone(), boot: BOOT.fetch_add(1, Ordering::Relaxed), seq: 0 }
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8]) -> u16 {
        self.client.publish(topic, payload, true, false).unwrap()
    }

    pub fn schema(&mut self, schema: &Schema) -> u16 {
        self.publish(&format!("wholegrain/v1/schema/{}/{}", self.name, schema.group()), &schema.encode())
    }

    /// A batch of one sensor and these samples.
    pub fn batch(&mut self, schema: &Schema, samples: &[(i64, i64)]) -> u16 {
        self.seq += 1;
        let payload = batch(&self.name, self.boot, self.seq, schema, samples);
        self.publish(&format!("wholegrain/v1/batch/{}/{}", self.name, schema.group()), &payload)
    }

    #[track_caller]
    pub fn event(&mut self) -> Event {
        self.client.poll(DEADLINE).unwrap().expect("no event in time")
    }

    /// Waits for acknowledgements of these, in this order.
    #[track_caller]
    pub fn acked(&mut self, ids: &[u16]) {
        for id in ids {
            assert_eq!(self.event(), Event::Acked { packet_id: *id, reason: ReasonCode::SUCCESS });
        }
    }
}

/// One gauge sensor in bytes, scale 1024.
pub fn schema(agent: &str, group: &str, sensor: &str) -> Schema {
    let prefix = SensorPath::new(format!("/site/{agent}")).unwrap();
    Schema::new(prefix, group, vec![SensorDef::gauge(sensor, "By", "A test's sensor.").scaled(1024.0)]).unwrap()
}

pub fn batch(agent: &str, boot: u64, seq: u64, schema: &Schema, samples: &[(i64, i64)]) -> Vec<u8> {
    let header = BatchHeader { agent: agent.to_owned(), boot, seq, schema: schema.hash(), interval_ns: 1_000_000_000 };
    let column =
        Column { values: ColumnValues::Int(samples.iter().map(|(_, value)| *value).collect()), gaps: Gaps::default() };
    payload::encode_batch(&Batch {
        header,
        times: samples.iter().map(|(time, _)| *time).collect(),
        columns: vec![column],
    })
}

/// Schema hashes of a `need` message.
pub fn needed(payload: &[u8]) -> Vec<SchemaHash> {
    payload.chunks(16).map(|chunk| SchemaHash(chunk.try_into().unwrap())).collect()
}

/// 2026-01-31T12:00:00Z, in ns.
/// The time now, ns since the Unix epoch.
pub fn now_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

pub const NOON: i64 = 1_769_860_800_000_000_000;
pub const SECOND: i64 = 1_000_000_000;
