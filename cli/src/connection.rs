//! The way to the server: `client.toml`, the one trusted authority, the token, HTTPS.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_model::config::Document;
use wholegrain_model::text::escaped;

use crate::failure::Failure;
use crate::shown;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server may take until an answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may pause within an answer; not for `watch`, where nothing may happen for hours.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a message waits for the name that was probably meant.
const SUGGESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server may take for work on everything it holds, such as deleting, until an answer begins.
const WORK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The most bytes read of an error's text.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// The header that says how many sensors the patterns chose.
const SENSORS_HEADER: &str = "x-wholegrain-sensors";
/// The header of what a reader of the answer must know, such as that a part could not be read; one for each.
const WARNING_HEADER: &str = "x-wholegrain-warning";
/// The header of what is left out of the answer on purpose.
const NOTE_HEADER: &str = "x-wholegrain-note";
/// Between the address and what the server says of what is not there.
const NOT_FOUND: &str = ": not found: ";
/// The most warnings that are shown.
const WARNINGS_MAX: usize = 8;

/// The option of those subcommands that ask somebody.
#[derive(Debug, Args)]
pub struct ClientOption {
    /// The client.toml that says where the server is [default: the first of ./var/client.toml,
    /// ~/.config/wholegrain/client.toml, /etc/wholegrain/client.toml] [env: WHOLEGRAIN_CLIENT]
    #[arg(long = "client", id = "asked_client", global = true, value_name = "FILE")]
    client: Option<PathBuf>,
}

impl ClientOption {
    /// What is named here, or else what was named before the subcommand or in the environment.
    pub fn or<'a>(&'a self, before: Option<&'a Path>) -> Option<&'a Path> {
        self.client.as_deref().or(before)
    }
}

/// `client.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    url: Option<String>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    agent_socket: Option<PathBuf>,
}

/// `client.toml` with its paths resolved.
#[derive(Debug)]
pub struct ClientConfig {
    /// The file it came from.
    pub file: PathBuf,
    /// The server.
    pub url: Option<String>,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
    /// Certificates of the authority that is trusted, the only one.
    pub ca: Option<PathBuf>,
    /// Socket of the agent on this machine.
    pub agent_socket: Option<PathBuf>,
}

impl ClientConfig {
    /// Reads the file named, or the first one that is there; `None` when there is none and none was named.
    pub fn find(named: Option<&Path>) -> Result<Option<Self>, Failure> {
        if let Some(path) = named {
            return Self::read(path).map(Some);
        }
        match places().into_iter().find(|path| path.exists()) {
            Some(path) if path.is_relative() => {
                check_owner(&path, "--client").and_then(|()| Self::read(&path)).map(Some)
            }
            Some(path) => Self::read(&path).map(Some),
            None => Ok(None),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::Failed(format!(
                "cannot read {}: {error}; name another file with --client, or make one with `wholegrain init`",
                path.display()
            ))
        })?;
        let file: ClientFile = Document::new(&path.display().to_string(), &text)
            .parse()
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let base = path.parent().unwrap_or(Path::new("."));
        let resolve = |path: Option<PathBuf>| path.map(|path| base.join(path));
        Ok(Self {
            file: path.to_owned(),
            url: file.url,
            token_file: resolve(file.token_file),
            ca: resolve(file.ca),
            agent_socket: resolve(file.agent_socket),
        })
    }
}

/// Refuses a file that was found and not named with `option`, and that another user could have written: it says where the token is sent
/// to, or which files are written.
pub fn check_owner(path: &Path, option: &str) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| Failure::Failed(format!("cannot read {shown}: {error}")))?;
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    if (metadata.uid() == user || metadata.uid() == 0) && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{shown} belongs to another user, or others can write it, so it is not used; name it with {option} {shown} if you trust it"
    )))
}

/// Where client.toml is looked for, in this order.
pub fn places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("var/client.toml")];
    if let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        places.push(PathBuf::from(home).join(".config/wholegrain/client.toml"));
    }
    places.push(PathBuf::from("/etc/wholegrain/client.toml"));
    places
}

/// The message when there is no client.toml.
pub fn nowhere() -> String {
    let looked: Vec<String> = places().iter().map(|path| path.display().to_string()).collect();
    format!(
        "no client.toml says where the server is; looked for {}. Start a server here with `make up` (or `wholegrain up`), or name \
         the file with --client FILE or in WHOLEGRAIN_CLIENT",
        looked.join(", ")
    )
}

/// A server (or an agent's HTTPS) that can be asked.
pub struct Connection {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
    /// What told us the address, for messages.
    origin: String,
    /// What to do when it cannot be reached.
    advice: &'static str,
}

/// An answer with status 200.
pub struct Answer {
    /// How many sensors the patterns chose, when the server says.
    pub sensors: Option<u64>,
    /// What the server warns of.
    pub warnings: Vec<String>,
    /// What the answer leaves out on purpose, such as readings that retention has dropped.
    pub notes: Vec<String>,
    /// The tier that answers wherever it can, and the width of the windows.
    pub tier: Option<String>,
    pub every: Option<String>,
    /// The server's clock, in seconds since the Unix epoch.
    pub date_s: Option<i64>,
    body: ureq::Body,
}

impl Connection {
    /// To the server of client.toml.
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

    /// To any address with the authority and the token of `config`.
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
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .build()
            .new_agent();
        Ok(Self { agent, url: url.trim_end_matches('/').to_owned(), token, origin, advice })
    }

    /// The address, for messages.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// GET; `endless` for streams in which nothing may happen for long.
    pub fn get(&self, path: &str, parameters: &[(&str, String)], endless: bool) -> Result<Answer, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in parameters {
            request = request.query(*name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let wait = if endless { None } else { Some(READ_TIMEOUT) };
        let response = request.config().timeout_per_read(wait).build().call();
        self.check(response.map_err(|error| self.unreachable(&error))?)
    }

    /// GET that ends after this time, answered or not.
    pub fn get_within(&self, path: &str, parameters: &[(&str, String)], timeout: Duration) -> Result<Answer, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in parameters {
            request = request.query(*name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = request.config().timeout_global(Some(timeout)).build().call();
        self.check(response.map_err(|error| self.unreachable(&error))?)
    }

    /// The name nearest to a pattern that chooses no sensor.
    pub fn nearest_name(&self, pattern: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Names {
            names: Vec<String>,
        }
        let answer = self.get_within("/api/v1/names", &[("near", pattern.to_owned())], SUGGESTION_TIMEOUT).ok()?;
        let names: Names = serde_json::from_slice(&answer.read(ERROR_BYTES_MAX).ok()?).ok()?;
        names.names.into_iter().next()
    }

    /// GET of one thing: that it is not there is no mistake of the request.
    pub fn find(&self, path: &str, parameters: &[(&str, String)]) -> Result<Answer, Failure> {
        self.get(path, parameters, false).map_err(not_there)
    }

    /// POST without a body.
    pub fn post(&self, path_and_query: &str) -> Result<Answer, Failure> {
        self.send(self.agent.post(format!("{}{path_and_query}", self.url)))
    }

    /// POST of any bytes.
    pub fn post_bytes(&self, path_and_query: &str, content_type: &str, body: &[u8]) -> Result<Answer, Failure> {
        let mut request = self.agent.post(format!("{}{path_and_query}", self.url));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.header("content-type", content_type);
        self.check(request.send(body).map_err(|error| self.unreachable(&error))?)
    }

    /// POST of a JSON value.
    pub fn post_json(&self, path_and_query: &str, body: &serde_json::Value) -> Result<Answer, Failure> {
        let mut request = self.agent.post(format!("{}{path_and_query}", self.url));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.header("content-type", "application/json");
        self.check(request.send(body.to_string()).map_err(|error| self.unreachable(&error))?)
    }

    /// PUT of a JSON value.
    pub fn put_json(
        &self,
        path: &str,
        parameters: &[(&str, String)],
        body: &serde_json::Value,
    ) -> Result<Answer, Failure> {
        let mut request = self.agent.put(format!("{}{path}", self.url));
        request = parameters.iter().fold(request, |request, (name, value)| request.query(*name, value));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.header("content-type", "application/json");
        self.check(request.send(body.to_string()).map_err(|error| self.unreachable(&error))?)
    }

    /// DELETE of what the parameters choose.
    pub fn delete_chosen(&self, path: &str, parameters: &[(&str, String)]) -> Result<Answer, Failure> {
        let request = self.agent.delete(format!("{}{path}", self.url));
        let mut request = parameters.iter().fold(request, |request, (name, value)| request.query(*name, value));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.check(request.call().map_err(|error| self.unreachable(&error))?)
    }

    /// Asks for something that may take long until an answer begins, with a body of text or JSON.
    pub fn work(&self, method: &str, path_and_query: &str, body: &str) -> Result<Answer, Failure> {
        let url = format!("{}{path_and_query}", self.url);
        let mut request = if method == "PUT" { self.agent.put(url) } else { self.agent.post(url) };
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
        let request = request.header("content-type", kind).config();
        let request = request.timeout_recv_response(Some(WORK_TIMEOUT)).timeout_per_read(Some(READ_TIMEOUT)).build();
        self.check(request.send(body).map_err(|error| self.unreachable(&error))?)
    }

    /// GET of what may take long until an answer begins.
    pub fn get_slowly(&self, path: &str, parameters: &[(&str, String)]) -> Result<Answer, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in parameters {
            request = request.query(*name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.config().timeout_recv_response(Some(WORK_TIMEOUT)).build();
        self.check(request.call().map_err(|error| self.unreachable(&error))?)
    }

    /// DELETE with parameters: that it is not there is no mistake of the request.
    pub fn delete_with(&self, path: &str, parameters: &[(&str, String)]) -> Result<Answer, Failure> {
        let mut request = self.agent.delete(format!("{}{path}", self.url));
        for (name, value) in parameters {
            request = request.query(*name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = self.check(request.call().map_err(|error| self.unreachable(&error))?);
        answer.map_err(not_there)
    }

    /// DELETE.
    pub fn delete(&self, path: &str) -> Result<Answer, Failure> {
        let mut request = self.agent.delete(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.check(request.call().map_err(|error| self.unreachable(&error))?)
    }

    /// PUT without a body.
    pub fn put(&self, path: &str, parameters: &[(&str, String)]) -> Result<Answer, Failure> {
        let request = self.agent.put(format!("{}{path}", self.url));
        self.send(parameters.iter().fold(request, |request, (name, value)| request.query(*name, value)))
    }

    fn send(&self, mut request: ureq::RequestBuilder<ureq::typestate::WithBody>) -> Result<Answer, Failure> {
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.check(request.send_empty().map_err(|error| self.unreachable(&error))?)
    }

    fn check(&self, response: ureq::http::Response<ureq::Body>) -> Result<Answer, Failure> {
        let status = response.status().as_u16();
        let sensors = response.headers().get(SENSORS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let remarks = |name| remarks(response.headers(), name);
        let (warnings, notes) = (remarks(WARNING_HEADER), remarks(NOTE_HEADER));
        let length = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.filter(|value| value.len() <= 32).map(str::to_owned)
        };
        let (tier, every) = (length("x-wholegrain-tier"), length("x-wholegrain-every"));
        let date_s = response.headers().get("date").and_then(|value| http_date(value.to_str().ok()?));
        let mut body = response.into_body();
        if (200..300).contains(&status) {
            return Ok(Answer { sensors, warnings, notes, tier, every, date_s, body });
        }
        let text = body.with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
        Err(refusal(status, &text, &self.url, &self.origin))
    }

    fn no_tls(&self) -> Failure {
        let Self { url, origin, .. } = self;
        Failure::Unreachable(format!(
            "what answers at {url} (from {origin}) does not speak TLS; is that the port of the server's HTTPS?"
        ))
    }

    /// What to say about an error before an answer.
    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let Self { url, origin, advice, .. } = self;
        match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                Failure::Usage(format!("{url:?} (from {origin}) is not an address: {error}; write https://host:port"))
            }
            ureq::Error::Rustls(rustls::Error::InvalidMessage(_)) => self.no_tls(),
            ureq::Error::Rustls(error) => Failure::Unreachable(format!(
                "cannot reach {url} (from {origin}): TLS: {error}; is the ca in {origin} the authority of this server?"
            )),
            // rustls' errors can come wrapped in an I/O error.
            ureq::Error::Io(io) if matches!(wrapped(io), Some(rustls::Error::InvalidMessage(_))) => self.no_tls(),
            ureq::Error::Io(io) if wrapped(io).is_some() => Failure::Unreachable(format!(
                "cannot reach {url} (from {origin}): TLS: {io}; is the ca in {origin} the authority of this server?"
            )),
            _ => Failure::Unreachable(format!("cannot reach {url} (from {origin}): {}; {advice}", reason(error))),
        }
    }
}

/// The error of rustls in an I/O error.
fn wrapped(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The warnings or notes of an answer's head, each one line.
fn remarks(headers: &ureq::http::HeaderMap, name: &str) -> Vec<String> {
    let line = |value: &ureq::http::HeaderValue| escaped(&String::from_utf8_lossy(value.as_bytes())).into_owned();
    headers.get_all(name).iter().take(WARNINGS_MAX).map(line).collect()
}

/// An error in words, without the library's own prefix.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the connection was closed before an answer".to_owned()
        }
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::HostNotFound => "no such host".to_owned(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        other => other.to_string(),
    }
}

/// What a request for one thing fails with: that the thing is not there is no mistake of the request.
pub fn not_there(failure: Failure) -> Failure {
    match failure {
        Failure::Usage(text) => match text.split_once(NOT_FOUND) {
            Some((_, said)) => Failure::NothingMatched(said.to_owned()),
            None => Failure::Usage(text),
        },
        other => other,
    }
}

/// What an answer with another status than 200 means.
pub fn refusal(status: u16, body: &str, url: &str, origin: &str) -> Failure {
    #[derive(Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let said = serde_json::from_str::<ErrorBody>(body).map(|body| body.error).unwrap_or_else(|_| {
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
        _ => Failure::Unreachable(format!("{url} failed: {said}; the server's log says more")),
    }
}

impl Answer {
    /// The body as a stream.
    pub fn into_reader(self) -> impl std::io::Read + Send + 'static {
        self.body.into_with_config().limit(u64::MAX).reader()
    }

    /// The whole body, up to `bytes_max`.
    pub fn read(mut self, bytes_max: u64) -> Result<Vec<u8>, Failure> {
        self.body
            .with_config()
            .limit(bytes_max)
            .read_to_vec()
            .map_err(|error| Failure::Unreachable(format!("the answer broke off: {}", reason(&error))))
    }
}

/// An HTTP date (RFC 9110, 5.6.7), such as `Sun, 06 Nov 1994 08:49:37 GMT`, in seconds since the Unix epoch.
fn http_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = fields[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let parsed = wholegrain_model::Timestamp::parse(&format!("{year}-{month:02}-{day}T{time}Z"), shown::now());
    Some(parsed.ok()?.0.div_euclid(1_000_000_000))
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::Failed(format!("cannot read the token {}: {error}; may you read it?", path.display()))
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
    fn paths_count_from_the_file_and_mistakes_name_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.toml");
        fs::write(&path, "url = \"https://h:1\"\ntoken_file = \"token\"\nca = \"/abs/ca.pem\"\n").unwrap();
        let config = ClientConfig::find(Some(&path)).unwrap().unwrap();
        assert_eq!(config.token_file, Some(dir.path().join("token")));
        assert_eq!(config.ca, Some(PathBuf::from("/abs/ca.pem")));
        fs::write(&path, "url = \"https://h:1\"\ntokn_file = \"token\"\n").unwrap();
        let Err(Failure::Usage(text)) = ClientConfig::find(Some(&path)) else { panic!() };
        assert!(text.contains("client.toml:2:1") && text.contains("did you mean `token_file`?"), "{text}");
        assert!(matches!(ClientConfig::find(Some(&dir.path().join("none.toml"))), Err(Failure::Failed(_))));
    }

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
        assert_eq!(
            code(500, "oops\nmore"),
            (3, "https://h:1 failed: status 500: oops; the server's log says more".into())
        );
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
