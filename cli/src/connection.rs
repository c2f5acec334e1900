//! Requests to the server over HTTPS, with the token and the trusted authority of `client.toml`.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_api::{ErrorResponse, NameList, paths};
use wholegrain_model::text::escaped;

use crate::client_file::{ClientConfig, nowhere};
use crate::failure::Failure;
use crate::remarks::Remarks;
use crate::socket::encoded;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server may take before a response begins.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may pause within a response; not for `watch`, which can be silent for hours.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an error message waits for a similar name.
const SUGGESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server may take before the response to a request about all stored readings, such as a deletion, begins.
const SLOW_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The largest response that is read into memory, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 30;
/// The most bytes of an error's text.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// The header with the number of sensors that match.
const SENSORS_HEADER: &str = "x-wholegrain-sensors";
/// The header of a warning, for example of readings that could not be read.
const WARNING_HEADER: &str = "x-wholegrain-warning";
/// The header of a note about readings that are left out on purpose.
const NOTE_HEADER: &str = "x-wholegrain-note";
/// Separates the address and the server's message about a missing thing.
const NOT_FOUND: &str = ": not found: ";
/// The most warnings that are shown.
const WARNINGS_MAX: usize = 8;

/// A server, or an agent's HTTPS.
pub struct Connection {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
    /// The source of the address, for messages.
    origin: String,
    /// The advice if it cannot be reached.
    advice: &'static str,
}

/// A request that is being built.
#[derive(Clone)]
pub struct Request<'a> {
    connection: &'a Connection,
    method: &'static str,
    url: String,
    /// The content type and the body.
    body: Option<(&'static str, Cow<'a, [u8]>)>,
    limits: TimeLimits,
}

#[derive(Clone)]
struct TimeLimits {
    /// Until the response begins.
    response: Duration,
    /// Between two pieces of the response.
    read: Option<Duration>,
    /// Until the end of the response.
    all: Option<Duration>,
}

impl<'a> Request<'a> {
    pub fn query(mut self, name: &str, value: impl Display) -> Self {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        self.url.push_str(&format!("{separator}{}={}", encoded(name), encoded(&value.to_string())));
        self
    }

    pub fn queries(self, parameters: &[(&str, String)]) -> Self {
        parameters.iter().fold(self, |request, (name, value)| request.query(name, value))
    }

    /// A parameter of one name for each value.
    pub fn each<T: Display>(self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        values.into_iter().fold(self, |request, value| request.query(name, value))
    }

    /// The body, as JSON.
    pub fn json(self, body: &impl Serialize) -> Self {
        // The types of requests have no maps whose keys are not texts, so this cannot fail.
        self.body("application/json", serde_json::to_vec(body).unwrap_or_default())
    }

    pub fn body(mut self, content_type: &'static str, body: impl Into<Cow<'a, [u8]>>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    /// Lets the server pause within the response without limit, for streams.
    pub fn endless(mut self) -> Self {
        self.limits.read = None;
        self
    }

    /// Gives the server 30 minutes before the response begins, for work on all stored readings.
    pub fn slow(mut self) -> Self {
        self.limits.response = SLOW_RESPONSE_TIMEOUT;
        self
    }

    /// Limits the time for the whole response.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.limits.all = Some(timeout);
        self
    }

    pub fn send(self) -> Result<Response, Failure> {
        let Self { connection, method, url, body, limits } = self;
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        if let Some(token) = &connection.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = &body {
            request = request.header("content-type", *content_type);
        }
        let response = match (&body, method) {
            (None, "GET" | "DELETE") => request.body(()).map(|request| connection.run(request, limits)),
            (None, _) => request.body(&[][..]).map(|request| connection.run(request, limits)),
            (Some((_, body)), _) => request.body(&body[..]).map(|request| connection.run(request, limits)),
        };
        let response = response.unwrap_or_else(|error| Err(ureq::Error::Http(error)));
        connection.check(response.map_err(|error| connection.unreachable(&error))?)
    }

    /// As [`Self::send`], for a request of one thing by its name: a missing thing is [`Failure::NothingMatched`].
    pub fn find(self) -> Result<Response, Failure> {
        self.send().map_err(not_there)
    }

    /// Requests pages until there are `limit` items. Returns the items, and whether there are more. `split` takes a page apart: its items, and
    /// the parameter `after` of the next page.
    pub fn pages<P: DeserializeOwned, T>(
        self,
        page_max: u64,
        limit: u64,
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<(Vec<T>, bool), Failure> {
        let (mut all, mut next) = (Vec::new(), None::<String>);
        loop {
            let request = self.clone().query("limit", page_max.min(limit - all.len() as u64)).each("after", &next);
            let (items, after) = split(request.find()?.json()?);
            all.extend(items);
            next = after;
            if next.is_none() || all.len() as u64 >= limit {
                return Ok((all, next.is_some()));
            }
        }
    }
}

/// A response with a status of success.
pub struct Response {
    /// The number of sensors that match, if the server sends it.
    pub sensors: Option<u64>,
    /// The warnings and notes of the headers.
    pub remarks: Remarks,
    /// The tier that is read where possible, and the width of the windows.
    pub tier: Option<String>,
    pub every: Option<String>,
    /// The server's clock, in seconds since the Unix epoch.
    pub date_s: Option<i64>,
    url: String,
    body: ureq::Body,
}

impl Connection {
    /// A connection to the server of client.toml.
    pub fn open(named: Option<&Path>) -> Result<Self, Failure> {
        let Some(config) = ClientConfig::find(named)? else { return Err(Failure::Unreachable(nowhere())) };
        let Some(url) = &config.url else {
            return Err(Failure::Usage(format!(
                "{} has no url; add url = \"https://host:8443\"",
                config.file.display()
            )));
        };
        let advice = "is the server running? Start it with `make up`, or `wholegrain server --config FILE`";
        Self::to(url, &config, advice)
    }

    /// A connection to any address with the authority and the token of `config`.
    pub fn to(url: &str, config: &ClientConfig, advice: &'static str) -> Result<Self, Failure> {
        let origin = config.file.display().to_string();
        if !url.starts_with("https://") {
            return Err(Failure::Usage(format!("{url:?} (from {origin}) is not an address; write https://host:port")));
        }
        let Some(ca) = &config.ca else {
            return Err(Failure::Usage(format!("{origin} has no ca; add ca = \"ca.pem\", the server's authority")));
        };
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(read_authority(ca)?)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("wholegrain/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .build()
            .new_agent();
        Ok(Self { agent, url: url.trim_end_matches('/').to_owned(), token, origin, advice })
    }

    /// The address, for messages.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn get(&self, path: impl Into<String>) -> Request<'_> {
        self.request("GET", path.into())
    }

    pub fn post(&self, path: impl Into<String>) -> Request<'_> {
        self.request("POST", path.into())
    }

    pub fn put(&self, path: impl Into<String>) -> Request<'_> {
        self.request("PUT", path.into())
    }

    pub fn delete(&self, path: impl Into<String>) -> Request<'_> {
        self.request("DELETE", path.into())
    }

    fn request(&self, method: &'static str, path: String) -> Request<'_> {
        let limits = TimeLimits { response: RESPONSE_TIMEOUT, read: Some(READ_TIMEOUT), all: None };
        Request { connection: self, method, url: format!("{}{path}", self.url), body: None, limits }
    }

    /// The name of a sensor that is most similar to the pattern.
    pub fn nearest_name(&self, pattern: &str) -> Option<String> {
        let request = self.get(paths::NAMES).query("near", pattern).within(SUGGESTION_TIMEOUT);
        let list: NameList = request.send().ok()?.json().ok()?;
        list.names.into_iter().next()
    }

    fn run(
        &self,
        request: ureq::http::Request<impl ureq::AsSendBody>,
        limits: TimeLimits,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self
            .agent
            .configure_request(request)
            .timeout_recv_response(Some(limits.response))
            .timeout_per_read(limits.read)
            .timeout_global(limits.all)
            .build();
        self.agent.run(request)
    }

    fn check(&self, response: ureq::http::Response<ureq::Body>) -> Result<Response, Failure> {
        let status = response.status().as_u16();
        let sensors = response.headers().get(SENSORS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let remarks = |name| remarks(response.headers(), name).into_iter().collect();
        let remarks = Remarks { warnings: remarks(WARNING_HEADER), notes: remarks(NOTE_HEADER) };
        let length = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.filter(|value| value.len() <= 32).map(str::to_owned)
        };
        let (tier, every) = (length("x-wholegrain-tier"), length("x-wholegrain-every"));
        let date_s = response.headers().get("date").and_then(|value| http_date(value.to_str().ok()?));
        let mut body = response.into_body();
        if (200..300).contains(&status) {
            return Ok(Response { sensors, remarks, tier, every, date_s, url: self.url.clone(), body });
        }
        let text = body.with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
        Err(refusal(status, &text, &self.url, &self.origin))
    }

    /// The message for an error before a response.
    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let Self { url, origin, advice, .. } = self;
        if let ureq::Error::BadUri(_) | ureq::Error::Http(_) = error {
            return Failure::Usage(format!(
                "{url:?} (from {origin}) is not an address: {error}; write https://host:port"
            ));
        }
        Failure::Unreachable(match tls_error(error) {
            Some(rustls::Error::InvalidMessage(_)) => {
                format!(
                    "the program at {url} (from {origin}) does not speak TLS; is this the port of the server's HTTPS?"
                )
            }
            Some(error) => format!(
                "cannot reach {url} (from {origin}): TLS: {error}; is the ca in {origin} the authority of this server?"
            ),
            None => format!("cannot reach {url} (from {origin}): {}; {advice}", reason(error)),
        })
    }
}

/// The error of rustls, which may be wrapped in an I/O error.
fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// The warnings or notes in a response's headers, each one line.
fn remarks(headers: &ureq::http::HeaderMap, name: &str) -> Vec<String> {
    let line = |value: &ureq::http::HeaderValue| escaped(&String::from_utf8_lossy(value.as_bytes())).into_owned();
    headers.get_all(name).iter().take(WARNINGS_MAX).map(line).collect()
}

/// The text of an error, without the library's prefix.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the connection was closed before a response".to_owned()
        }
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::HostNotFound => "no such host".to_owned(),
        ureq::Error::Timeout(_) => "no response in time".to_owned(),
        other => other.to_string(),
    }
}

/// Maps the status 404 to [`Failure::NothingMatched`].
fn not_there(failure: Failure) -> Failure {
    match failure {
        Failure::Usage(text) => match text.split_once(NOT_FOUND) {
            Some((_, said)) => Failure::NothingMatched(said.to_owned()),
            None => Failure::Usage(text),
        },
        other => other,
    }
}

/// The failure for a response with an error status.
pub fn refusal(status: u16, body: &str, url: &str, origin: &str) -> Failure {
    let said = serde_json::from_str::<ErrorResponse>(body).map(|body| body.error).unwrap_or_else(|_| {
        let line = body.lines().next().unwrap_or_default();
        if line.is_empty() { format!("status {status}") } else { format!("status {status}: {line}") }
    });
    match status {
        401 | 403 => {
            Failure::Usage(format!("{url} refuses the request: {said}; is token_file in {origin} the server's token?"))
        }
        404 => Failure::Usage(format!("{url}{NOT_FOUND}{said}")),
        400..500 => Failure::Usage(said),
        503 => Failure::Unreachable(format!("{url} is too busy: {said}; try again in a moment")),
        _ => Failure::Unreachable(format!("{url} failed: {said}; see the server's log")),
    }
}

impl Response {
    /// The address of the server, for messages.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The body as a stream.
    pub fn into_reader(self) -> impl std::io::Read + Send + 'static {
        self.body.into_with_config().limit(u64::MAX).reader()
    }

    /// The whole body, read from JSON.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, Failure> {
        let url = self.url.clone();
        serde_json::from_slice(&self.read()?).map_err(|error| {
            Failure::Unreachable(format!("cannot read the response of {url}: {error}; is it a server of this version?"))
        })
    }

    /// The whole body, up to 1 GiB.
    pub fn read(mut self) -> Result<Vec<u8>, Failure> {
        self.body
            .with_config()
            .limit(RESPONSE_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| Failure::Unreachable(format!("the response broke off: {}", reason(&error))))
    }
}

/// An HTTP date (RFC 9110, 5.6.7), such as `Sun, 06 Nov 1994 08:49:37 GMT`, in seconds since the Unix epoch.
fn http_date(text: &str) -> Option<i64> {
    Some(jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?.as_second())
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::Failed(format!("cannot read the token {}: {error}; do you have permission?", path.display()))
    })?;
    let token = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    match token {
        Some(token) if token.bytes().all(|b| b.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(Failure::Usage(format!("{} holds no token: expected one line of printable ASCII", path.display()))),
    }
}

fn read_authority(path: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let shown = path.display();
    let pem = fs::read(path).map_err(|error| {
        Failure::Failed(format!("cannot read the authority {shown}: {error}; copy ca.pem from the server"))
    })?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::Usage(format!("{shown} is not a PEM file of certificates: {error}")))?;
    if certificates.is_empty() {
        return Err(Failure::Usage(format!("{shown} holds no certificate")));
    }
    Ok(certificates.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_servers() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn warnings_are_lines_and_few() {
        let mut headers = ureq::http::HeaderMap::new();
        assert!(remarks(&headers, WARNING_HEADER).is_empty());
        headers
            .append("X-Wholegrain-Warning", ureq::http::HeaderValue::from_bytes("bl\u{f6}ck\ta".as_bytes()).unwrap());
        for i in 0..20 {
            headers.append(WARNING_HEADER, i.into());
        }
        let shown = remarks(&headers, WARNING_HEADER);
        assert_eq!((shown.len(), shown[0].as_str(), shown[1].as_str()), (WARNINGS_MAX, "bl\u{f6}ck\\u{9}a", "0"));
    }

    #[test]
    fn statuses_become_exit_codes() {
        let code = |status, body| {
            let failure = refusal(status, body, "https://h:1", "client.toml");
            let (code, text) = failure.report();
            (code, text.unwrap().to_owned())
        };
        assert_eq!(code(400, r#"{"error":"every must be longer"}"#), (2, "every must be longer".into()));
        assert_eq!(code(401, "").0, 2);
        assert!(code(401, "").1.contains("token_file in client.toml"));
        assert_eq!(code(503, r#"{"error":"16 queries run"}"#).0, 3);
        assert_eq!(code(500, "oops\nmore"), (3, "https://h:1 failed: status 500: oops; see the server's log".into()));
    }

    #[test]
    fn tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for (text, expected) in
            [("abc\n", Some("abc")), ("# mine\n\n x \n", Some("x")), ("", None), ("a b", None), ("ä", None)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(read_token(&path).ok().as_deref(), expected, "{text:?}");
        }
    }
}
