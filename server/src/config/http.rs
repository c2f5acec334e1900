//! `[http]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;

use crate::admission::ConnectionBounds;
use crate::certificates::TlsFiles;
use crate::settings::{LIMIT_TIME, listen, settings};

/// Default address of HTTPS.
pub const HTTP_LISTEN: &str = "[::]:8443";

/// Connections reserved for administrators beyond `http.connections_max`.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// The smallest `queries_memory_max`, in bytes.
const QUERIES_MEMORY_MIN: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// `host:port` for HTTPS; `None` when off.
    pub listen: Option<String>,
    /// Certificate chain of the server, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Hashes of bearer tokens.
    pub tokens_file: PathBuf,
    /// Maximum number of queries at a time; more are answered with 503.
    pub queries_max: usize,
    /// Maximum number of authenticated connections.
    pub connections_max: usize,
    /// Maximum number of connections for each token; administrators are exempt.
    pub connections_per_token_max: usize,
    /// Maximum number of unauthenticated connections.
    pub unauthenticated_max: usize,
    /// How long a connection may remain unauthenticated.
    pub unauthenticated_time_max: Duration,
    /// Maximum number of live streams for each token; administrators are exempt.
    pub watches_per_token_max: usize,
    /// Maximum number of queries for each token; administrators are exempt.
    pub queries_per_token_max: usize,
    /// Maximum memory of all queries together, in bytes; above it queries are answered with 503.
    pub queries_memory_max: u64,
    /// Origins allowed by CORS.
    pub cors_origins: Vec<String>,
}

impl HttpConfig {
    /// The limits on connections.
    pub(crate) fn bounds(&self) -> ConnectionBounds {
        ConnectionBounds {
            unproven_max: self.unauthenticated_max,
            proven_max: self.connections_max,
            identity_max: self.connections_per_token_max,
            privileged_max: ADMIN_CONNECTIONS_MAX,
        }
    }

    /// The files of the listener.
    pub(crate) fn tls_files(&self) -> TlsFiles {
        TlsFiles { section: "http", cert: self.cert.clone(), key: self.key.clone(), client_ca: None }
    }
}

settings! {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub(crate) struct RawHttp {
        listen: Option<String> = restart,
        cert: Option<PathBuf> = reload,
        key: Option<PathBuf> = reload,
        pub tokens_file: Option<PathBuf> = reload,
        queries_max: usize = reload,
        connections_max: usize = reload,
        connections_per_token_max: usize = reload,
        unauthenticated_max: usize = reload,
        unauthenticated_time: Interval = restart,
        watches_per_token_max: usize = reload,
        queries_per_token_max: usize = reload,
        queries_memory_max: ByteSize = reload,
        cors_origins: Vec<String> = restart,
    }
}

impl Default for RawHttp {
    fn default() -> Self {
        Self {
            listen: None,
            cert: None,
            key: None,
            tokens_file: None,
            queries_max: 16,
            connections_max: 1024,
            connections_per_token_max: 256,
            unauthenticated_max: 256,
            unauthenticated_time: Interval::from_s(10),
            watches_per_token_max: 32,
            queries_per_token_max: 8,
            queries_memory_max: ByteSize::mib(2048),
            cors_origins: Vec::new(),
        }
    }
}

impl RawHttp {
    /// Checks the section; relative paths are relative to `base`.
    pub(crate) fn check(self, section: &Section, base: &Path) -> Result<HttpConfig, ConfigError> {
        for (key, value) in [
            ("queries_max", self.queries_max),
            ("connections_max", self.connections_max),
            ("connections_per_token_max", self.connections_per_token_max),
            ("unauthenticated_max", self.unauthenticated_max),
            ("watches_per_token_max", self.watches_per_token_max),
            ("queries_per_token_max", self.queries_per_token_max),
        ] {
            if value == 0 {
                return Err(section.error(key, "is 0; write at least 1"));
            }
        }
        if self.queries_memory_max.0 < QUERIES_MEMORY_MIN {
            return Err(section.error("queries_memory_max", "is below 16MiB, which small queries need"));
        }
        if let Some(wrong) = self.cors_origins.iter().find_map(|origin| wrong_origin(origin)) {
            return Err(section.error("cors_origins", wrong));
        }
        if !(LIMIT_TIME.0..=LIMIT_TIME.1).contains(&self.unauthenticated_time) {
            let message = format!("is {}; write {} to {}", self.unauthenticated_time, LIMIT_TIME.0, LIMIT_TIME.1);
            return Err(section.error("unauthenticated_time", message));
        }
        Ok(HttpConfig {
            listen: listen(section, "listen", self.listen, Some(HTTP_LISTEN))?,
            cert: base.join(self.cert.unwrap_or_else(|| "server.pem".into())),
            key: base.join(self.key.unwrap_or_else(|| "server.key".into())),
            tokens_file: base.join(self.tokens_file.unwrap_or_else(|| "tokens".into())),
            queries_max: self.queries_max,
            connections_max: self.connections_max,
            connections_per_token_max: self.connections_per_token_max,
            unauthenticated_max: self.unauthenticated_max,
            unauthenticated_time_max: self.unauthenticated_time.duration(),
            watches_per_token_max: self.watches_per_token_max,
            queries_per_token_max: self.queries_per_token_max,
            queries_memory_max: self.queries_memory_max.0,
            cors_origins: self.cors_origins,
        })
    }
}

/// The error in an origin of `cors_origins`, if there is one.
fn wrong_origin(origin: &str) -> Option<String> {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let is_host = |host: &str| !host.is_empty() && host.is_ascii() && !host.contains(['/', '*', ' ', '@', '?', '#']);
    (!host.is_some_and(is_host)).then(|| {
        format!("{origin:?} is no origin; write scheme and host, such as \"https://grafana.example\" or \"http://localhost:3000\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        for (origin, good) in [
            ("https://grafana.example", true),
            ("http://localhost:3000", true),
            ("*", false),
            ("https://*.example", false),
            ("https://grafana.example/", false),
            ("grafana.example", false),
            ("null", false),
        ] {
            assert_eq!(wrong_origin(origin).is_none(), good, "{origin}");
        }
    }
}
