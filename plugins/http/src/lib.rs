//! HTTP and HTTPS requests to devices, for plug-ins whose devices speak it.
//!
//! - In: an address, an authority, credentials; requests with a deadline.
//! - Out: the status, headers and body of an answer, or a [`DeviceProblem`].
//! - Never: an answer or a decompressed body without a bound; a secret in a message; a credential that follows a redirect to another host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::MultiGzDecoder;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::{Connector, RustlsConnector, TcpConnector};
use ureq::{AsSendBody, http};
use wholegrain_devices::{Credentials, DeviceProblem, SecretText};

mod body;
pub mod json;
mod names;
mod redirect;
mod sensor_room;
mod stream;
mod tls;
mod tree_room;

pub use body::{AnswerBody, NO_ROOM};
pub use json::JsonTree;
pub use sensor_room::SensorRoom;
pub use tree_room::{NODES_MAX, TREE_BYTES_MAX, TreeCost, TreeFault, TreeRoom};

use names::{ClientNames, NoThread};
use redirect::{is_same_origin, target};
use tls::CheckedTlsConnector;

/// The first bytes of gzip (RFC 1952, section 2.3.1). No text format begins with them.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The shortest time that a request is given.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// The keys of a file of credentials.
pub const CREDENTIAL_KEYS: [&str; 5] = ["user", "password", "token", "cert", "key"];
/// The largest value that `redirects` can have.
pub const REDIRECTS_MAX: u32 = 5;
/// The largest value that `body_bytes_max` can have: 256 MiB.
pub const BODY_BYTES_MAX: u64 = 256 << 20;

/// What the answers of a device may be like.
#[derive(Debug, Clone, Copy)]
pub struct AnswerBounds {
    /// The longest body, also after decompression.
    pub bytes_max: u64,
    /// How many redirects are followed. Credentials are sent to the scheme, host and port of the request only.
    pub redirects: u32,
    /// Whether the device's certificate is checked. Without it anybody on the way can read and change what is sent.
    pub checks_certificate: bool,
}

/// The client of one device. It connects with its first request and keeps the connection.
#[derive(Clone)]
pub struct DeviceClient {
    agent: ureq::Agent,
    /// The client for redirects to other hosts: without a certificate.
    stranger: ureq::Agent,
    /// The addresses of the device.
    names: ClientNames,
    /// Headers with secrets, which go to the device itself only.
    secrets: Vec<(String, String)>,
    bytes_max: u64,
    redirects: u32,
}

/// The status line and headers of an answer. Its body is in the caller's buffer.
#[derive(Debug)]
pub struct AnswerHead {
    pub status: u16,
    pub headers: http::HeaderMap,
}

impl AnswerHead {
    /// The value of a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// A request. A body makes it a request that sends JSON, unless `headers` has a `Content-Type`.
#[derive(Debug)]
pub struct DeviceRequest<'a> {
    pub method: &'static str,
    pub url: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a str>,
    /// Whether the client's user and password, or its token, are sent.
    pub authorized: bool,
}

impl<'a> DeviceRequest<'a> {
    /// A GET with the client's credentials.
    pub fn get(url: &'a str, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { method: "GET", url, headers, body: None, authorized: true }
    }
}

/// A key of the configuration and what is wrong with it.
pub type KeyMistake = (&'static str, String);

impl DeviceClient {
    /// A client. `authority` has certificates in PEM, for https; `credentials` have `user` and `password`, or `token`; and `cert` and `key` in PEM.
    pub fn new(authority: &[u8], credentials: Option<&Credentials>, bounds: AnswerBounds) -> Result<Self, KeyMistake> {
        let secret = |key: &str| credentials.and_then(|credentials| credentials.get(key)).map(|text| text.expose());
        let authorization = match (secret("token"), secret("user"), secret("password")) {
            (Some(token), ..) => Some(format!("Bearer {token}")),
            (None, Some(user), Some(password)) => {
                Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
            }
            _ => None,
        };
        if authorization.as_ref().is_some_and(|text| check_header("Authorization", text).is_err()) {
            return Err(("credentials", "a token, user or password has characters that HTTP cannot carry".to_owned()));
        }
        let secrets = authorization.map(|text| ("Authorization".to_owned(), text)).into_iter().collect();
        let roots = Arc::new(certificates(authority).map_err(|error| ("ca", error))?);
        let tls = || {
            TlsConfig::builder()
                .root_certs(RootCerts::Specific(roots.clone()))
                .disable_verification(!bounds.checks_certificate)
                .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        };
        let names = ClientNames::default();
        // Redirects have names of their own: a device cannot fill the table of its own names.
        let (mut own, stranger) = (tls(), agent(tls().build(), ClientNames::default()));
        if let (Some(chain), Some(key)) = (secret("cert"), secret("key")) {
            let chain = certificates(chain.as_bytes()).map_err(|error| ("credentials", format!("`cert` {error}")))?;
            let key = PrivateKey::from_pem(key.as_bytes());
            let key = key.map_err(|_| ("credentials", "`key` is no private key in PEM".to_owned()))?;
            own = own.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        let AnswerBounds { bytes_max, redirects, .. } = bounds;
        Ok(Self { agent: agent(own.build(), names.clone()), stranger, names, secrets, bytes_max, redirects })
    }

    /// Adds a header whose value is secret: it is sent where the user and password are, and nowhere else.
    pub fn with_secret_header(mut self, name: &str, value: &SecretText) -> Result<Self, String> {
        check_header(name, "")?;
        // The message of a wrong value would show it.
        check_header(name, value.expose())
            .map_err(|_| format!("the secret of {name} has characters that HTTP cannot carry"))?;
        self.secrets.push((name.to_owned(), value.expose().to_owned()));
        Ok(self)
    }

    /// Sends a request and reads the whole answer into `body`, which is cleared first. Any status is an answer; see [`check_status`].
    pub fn call(
        &self,
        request: &DeviceRequest,
        deadline: Instant,
        body: &mut Vec<u8>,
    ) -> Result<AnswerHead, DeviceProblem> {
        let mut answer = AnswerBody::default();
        *body = Vec::new();
        let result = self.call_with_room(request, deadline, &mut answer);
        *body = answer.into_bytes();
        result
    }

    /// As [`DeviceClient::call`], for a body that has its room as long as it lives.
    pub fn call_with_room(
        &self,
        request: &DeviceRequest,
        deadline: Instant,
        body: &mut AnswerBody,
    ) -> Result<AnswerHead, DeviceProblem> {
        let mut url = request.url.to_owned();
        // A redirect of a POST becomes a GET without a body, unless its status says otherwise.
        let (mut method, mut text) = (request.method, request.body);
        for left in (0..=self.redirects).rev() {
            let is_own = is_same_origin(request.url, &url);
            let head = self.send(request, (method, &url, text), is_own, deadline, body)?;
            let location = head.header("location").filter(|_| (300..=399).contains(&head.status) && head.status != 304);
            let Some(location) = location.filter(|_| left > 0) else { return Ok(head) };
            let next =
                target(&url, location).ok_or(DeviceProblem::Refused("HTTP: a redirect to what is no address"))?;
            if url.starts_with("https:") && !next.starts_with("https:") {
                return Err(DeviceProblem::Refused("HTTP: a redirect from https to http"));
            }
            match head.status {
                307 | 308 if text.is_some() && !is_same_origin(request.url, &next) => {
                    return Err(DeviceProblem::Refused("HTTP: a redirect of a body to another host"));
                }
                307 | 308 => {}
                _ => (method, text) = ("GET", None),
            }
            url = next;
        }
        Err(DeviceProblem::Refused("HTTP: too many redirects"))
    }

    /// Sends one request. Only the device itself gets the secrets, the client's certificate and headers other than `Accept`.
    fn send(
        &self,
        request: &DeviceRequest,
        (method, url, text): (&str, &str, Option<&str>),
        is_own: bool,
        deadline: Instant,
        body: &mut AnswerBody,
    ) -> Result<AnswerHead, DeviceProblem> {
        *body = AnswerBody::default();
        let left = deadline.saturating_duration_since(Instant::now()).max(TIMEOUT_MIN);
        let mut build = http::Request::builder().method(method).uri(url);
        for (name, value) in request.headers.iter().filter(|(name, _)| is_own || name.eq_ignore_ascii_case("accept")) {
            build = build.header(*name, *value);
        }
        for (name, value) in self.secrets.iter().filter(|_| request.authorized && is_own) {
            build = build.header(name, value);
        }
        build = build.header("Accept-Encoding", "gzip");
        let has_type = request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if text.is_some() && !has_type {
            build = build.header("Content-Type", "application/json");
        }
        let agent = if is_own { &self.agent } else { &self.stranger };
        let response = match text {
            Some(text) => run(agent, build.body(text), left),
            None => run(agent, build.body(()), left),
        }
        .inspect_err(|_| self.names.forget())?;
        let head = AnswerHead { status: response.status().as_u16(), headers: response.headers().clone() };
        let read = |error: &std::io::Error| match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>())
        {
            Some(error) => problem(error),
            None => io_problem(error),
        };
        let answer = response.into_body();
        let lengths = (answer.content_length(), self.bytes_max);
        body.read(answer.into_reader(), lengths, deadline, read)?;
        self.check_length(body)?;
        if body.starts_with(&GZIP_MAGIC) {
            let packed = std::mem::take(body);
            let damaged = |_: &std::io::Error| DeviceProblem::Garbage("gzip that is damaged");
            body.read(MultiGzDecoder::new(&*packed), (None, self.bytes_max), deadline, damaged)?;
            self.check_length(body)?;
        }
        Ok(head)
    }

    fn check_length(&self, body: &[u8]) -> Result<(), DeviceProblem> {
        let is_long = body.len() as u64 > self.bytes_max;
        if is_long { Err(DeviceProblem::Garbage("more than body_bytes_max")) } else { Ok(()) }
    }
}

fn agent(tls: TlsConfig, names: ClientNames) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        // Redirects are followed here, as only the device itself may have the secrets.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("wholegrain/", env!("CARGO_PKG_VERSION")))
        .build();
    let connector = ().chain(TcpConnector::default()).chain(CheckedTlsConnector).chain(RustlsConnector::default());
    ureq::Agent::with_parts(config, connector, names)
}

fn run<S: AsSendBody>(
    agent: &ureq::Agent,
    request: Result<http::Request<S>, http::Error>,
    timeout: Duration,
) -> Result<http::Response<ureq::Body>, DeviceProblem> {
    let request = request.map_err(|_| DeviceProblem::Refused("HTTP: the request cannot be written"))?;
    let request = agent.configure_request(request).timeout_global(Some(timeout)).build();
    agent.run(request).map_err(|error| problem(&error))
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let items = parse_pem(pem).map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Ok(Some(certificate)),
        Ok(_) => Ok(None),
        Err(_) => Err("is no PEM".to_owned()),
    });
    let certificates: Vec<_> = items.filter_map(Result::transpose).collect::<Result<_, _>>()?;
    if certificates.is_empty() && !pem.is_empty() {
        Err("has no certificate in PEM".to_owned())
    } else {
        Ok(certificates)
    }
}

/// Any status but 200 as a problem.
pub fn check_status(status: u16) -> Result<(), DeviceProblem> {
    match status {
        200 => Ok(()),
        204 => Err(DeviceProblem::Refused("HTTP 204: an answer without a body")),
        304 => Err(DeviceProblem::Refused("HTTP 304: not modified, though nobody asked for that")),
        401 | 403 | 407 => Err(DeviceProblem::Credentials),
        300..=399 => Err(DeviceProblem::Refused("HTTP: a redirect, which `redirects` can allow")),
        404 => Err(DeviceProblem::Refused("HTTP 404: there is no such page")),
        429 => Err(DeviceProblem::Refused("HTTP 429: too many requests")),
        500..=599 => Err(DeviceProblem::Refused("HTTP 5xx: an error of the device")),
        _ => Err(DeviceProblem::Refused("HTTP: a status other than 200")),
    }
}

fn problem(error: &ureq::Error) -> DeviceProblem {
    match error {
        ureq::Error::Timeout(_) => DeviceProblem::Silent,
        ureq::Error::HostNotFound => DeviceProblem::Unresolved,
        ureq::Error::Other(error) if error.is::<NoThread>() => DeviceProblem::NoThread,
        ureq::Error::Rustls(error) => tls_problem(error),
        ureq::Error::Io(error) => io_problem(error),
        ureq::Error::TooManyRedirects => DeviceProblem::Refused("HTTP: too many redirects"),
        _ => DeviceProblem::Garbage("not HTTP"),
    }
}

fn io_problem(error: &std::io::Error) -> DeviceProblem {
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return tls_problem(error);
    }
    // The standard library has no kind of its own for a name that the resolver does not know.
    if error.raw_os_error().is_none() && error.to_string().starts_with("failed to lookup address") {
        return DeviceProblem::Unresolved;
    }
    match (error.kind(), error.raw_os_error()) {
        (std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock, _) => DeviceProblem::Silent,
        (_, Some(errno)) => DeviceProblem::Network(errno),
        _ => DeviceProblem::Garbage("an answer that ends too early"),
    }
}

fn tls_problem(error: &rustls::Error) -> DeviceProblem {
    match error {
        rustls::Error::InvalidCertificate(
            rustls::CertificateError::Expired | rustls::CertificateError::ExpiredContext { .. },
        ) => DeviceProblem::Refused("TLS: its certificate has expired"),
        rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
        ) => DeviceProblem::Refused("TLS: its certificate is of another name"),
        rustls::Error::InvalidCertificate(_) => DeviceProblem::Refused("TLS: its certificate is not of this authority"),
        rustls::Error::AlertReceived(_) => DeviceProblem::Credentials,
        _ => DeviceProblem::Garbage("not TLS"),
    }
}

/// Checks the keys of credentials for [`DeviceClient::new`]. `is_https` says whether a certificate of this client can be sent.
pub fn check_credentials(credentials: Option<&Credentials>, is_https: bool) -> Result<(), String> {
    check_credentials_with(credentials, is_https, &[])
}

/// As [`check_credentials`], for credentials with `more` keys, such as those for [`DeviceClient::with_secret_header`].
pub fn check_credentials_with(credentials: Option<&Credentials>, is_https: bool, more: &[&str]) -> Result<(), String> {
    let Some(credentials) = credentials else { return Ok(()) };
    let known: Vec<&str> = CREDENTIAL_KEYS.iter().chain(more).copied().collect();
    credentials.check_keys(&known)?;
    let has = |key: &str| credentials.get(key).is_some();
    if has("token") && has("user") {
        return Err(format!("the credentials {:?} have a token and a user; one of them is sent", credentials.name()));
    }
    for (one, other) in [("user", "password"), ("password", "user"), ("cert", "key"), ("key", "cert")] {
        if has(one) {
            credentials.require(other)?;
        }
    }
    if has("cert") && !is_https {
        return Err(format!("the credentials {:?} have a certificate, which only https sends", credentials.name()));
    }
    Ok(())
}

/// Refuses a text that is no address.
pub fn check_url(url: &str) -> Result<(), String> {
    url.parse::<http::Uri>().map(drop).map_err(|error| format!("{url:?} is no address: {error}"))
}

/// Refuses a header that a request cannot have, and those that this crate writes itself.
pub fn check_header(name: &str, value: &str) -> Result<(), String> {
    const OWN: [&str; 8] =
        ["accept-encoding", "connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"];
    if OWN.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(format!("the header {name} is written by the client itself"));
    }
    http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no name of a header"))?;
    http::HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name} has characters that HTTP cannot carry"))?;
    Ok(())
}
