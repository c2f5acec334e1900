//! One page over HTTP or HTTPS, with bounds on time and bytes.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::MultiGzDecoder;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use wholegrain_devices::{Credentials, DeviceProblem};
use wholegrain_sources::exposition::Dialect;

/// What an exporter is asked for, the best first.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
/// The first bytes of gzip (RFC 1952, section 2.3.1). No exposition begins with them.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The shortest time that a request is given.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// The client of one exporter.
#[derive(Clone)]
pub struct Fetcher {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
    bytes_max: u64,
}

/// A key of the configuration and what is wrong with it.
type SettingError = (&'static str, String);

impl Fetcher {
    /// A client that connects with its first request. `authority` has certificates in PEM, for https.
    pub fn new(
        url: String,
        authority: &[u8],
        credentials: Option<&Credentials>,
        bytes_max: u64,
        redirects: u32,
    ) -> Result<Self, SettingError> {
        let secret = |key: &str| credentials.and_then(|credentials| credentials.get(key)).map(|text| text.expose());
        let authorization = match (secret("token"), secret("user"), secret("password")) {
            (Some(token), ..) => Some(format!("Bearer {token}")),
            (None, Some(user), Some(password)) => {
                Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
            }
            _ => None,
        };
        if authorization.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
            return Err(("credentials", "a token, user or password has control characters".to_owned()));
        }
        let mut tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(certificates(authority).map_err(|error| ("ca", error))?)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        if let (Some(chain), Some(key)) = (secret("cert"), secret("key")) {
            let chain = certificates(chain.as_bytes()).map_err(|error| ("credentials", error))?;
            let key = PrivateKey::from_pem(key.as_bytes());
            let key = key.map_err(|_| ("credentials", "`key` is no private key in PEM".to_owned()))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        if let Err(error) = url.parse::<ureq::http::Uri>() {
            return Err(("url", format!("{url:?} is no address: {error}")));
        }
        let agent = ureq::Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(redirects)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("wholegrain/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self { agent, url, authorization, bytes_max })
    }

    /// Gets the page into `body`, which is cleared first. Gives its language.
    pub fn fetch(&self, deadline: Instant, body: &mut Vec<u8>) -> Result<Dialect, DeviceProblem> {
        body.clear();
        let left = deadline.saturating_duration_since(Instant::now()).max(TIMEOUT_MIN);
        let mut request = self.agent.get(&self.url).header("Accept", ACCEPT).header("Accept-Encoding", "gzip");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let response = request.config().timeout_global(Some(left)).build().call().map_err(|error| problem(&error))?;
        check_status(response.status().as_u16())?;
        let media_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let is_open = media_type.is_some_and(|text| text.trim_start().starts_with("application/openmetrics-text"));
        self.read(response.into_body().into_reader(), body)?;
        if body.starts_with(&GZIP_MAGIC) {
            let packed = std::mem::take(body);
            let mut decoder = MultiGzDecoder::new(packed.as_slice()).take(self.bytes_max + 1);
            let result = decoder.read_to_end(body);
            result.map_err(|_| DeviceProblem::Garbage("gzip that is damaged"))?;
            self.check_length(body)?;
        }
        Ok(if is_open { Dialect::OpenMetrics } else { Dialect::Text })
    }

    fn read(&self, reader: impl Read, body: &mut Vec<u8>) -> Result<(), DeviceProblem> {
        reader.take(self.bytes_max + 1).read_to_end(body).map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
                Some(error) => problem(error),
                None => io_problem(&error),
            }
        })?;
        self.check_length(body)
    }

    fn check_length(&self, body: &[u8]) -> Result<(), DeviceProblem> {
        let is_long = body.len() as u64 > self.bytes_max;
        if is_long { Err(DeviceProblem::Garbage("more than body_bytes_max")) } else { Ok(()) }
    }
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

fn check_status(status: u16) -> Result<(), DeviceProblem> {
    match status {
        200 => Ok(()),
        401 | 403 | 407 => Err(DeviceProblem::Credentials),
        300..=399 => Err(DeviceProblem::Refused("HTTP: a redirect, which `redirects` can allow")),
        404 => Err(DeviceProblem::Refused("HTTP 404: there is no such page")),
        429 => Err(DeviceProblem::Refused("HTTP 429: too many requests")),
        500..=599 => Err(DeviceProblem::Refused("HTTP 5xx: an error of the exporter")),
        _ => Err(DeviceProblem::Refused("HTTP: a status other than 200")),
    }
}

fn problem(error: &ureq::Error) -> DeviceProblem {
    match error {
        ureq::Error::Timeout(_) => DeviceProblem::Silent,
        ureq::Error::HostNotFound => DeviceProblem::Unresolved,
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
