//! `[api]`, checked.

use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_transport::tls;

use super::raw::RawApi;
use super::secret::read_secret;

/// The administrator's socket and HTTPS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiConfig {
    pub socket: Option<PathBuf>,
    pub https: Option<HttpsConfig>,
}

/// HTTPS with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsConfig {
    pub listen: std::net::SocketAddr,
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The bearer token of administrators.
    pub token: Option<String>,
    /// The file of tokens with roles.
    pub tokens_file: Option<PathBuf>,
}

pub(super) fn check(section: &Section, raw: RawApi, dir: &Path) -> Result<ApiConfig, ConfigError> {
    let socket = raw.socket.map(|path| dir.join(path));
    let Some(listen) = raw.listen else {
        if let Some((key, _)) =
            [("cert", &raw.cert), ("key", &raw.key), ("token_file", &raw.token_file), ("tokens_file", &raw.tokens_file)]
                .into_iter()
                .find(|(_, path)| path.is_some())
        {
            return Err(
                section.error(key, format!("{key} is for HTTPS, which needs `listen` too, such as \"0.0.0.0:8444\""))
            );
        }
        return Ok(ApiConfig { socket, https: None });
    };
    let address = listen.parse().map_err(|_| {
        section.error("listen", format!("{listen:?} is not an address with a port, such as 0.0.0.0:8444 or [::]:8444"))
    })?;
    let required = |key: &str, path: Option<PathBuf>| {
        path.map(|path| dir.join(path)).ok_or_else(|| {
            section.error(
                "listen",
                format!("HTTPS needs `cert`, `key` and `token_file` or `tokens_file`; {key} is missing"),
            )
        })
    };
    let (cert, key) = (required("cert", raw.cert)?, required("key", raw.key)?);
    let identity = tls::Identity { cert: &cert, key: &key };
    tls::server_config(identity, None).map_err(|error| section.error("cert", error.to_string()))?;
    let tokens_file = raw.tokens_file.map(|path| dir.join(path));
    let token = match raw.token_file {
        None if tokens_file.is_some() => None,
        path => Some(read_secret(section, "token_file", &required("token_file", path)?)?),
    };
    Ok(ApiConfig { socket, https: Some(HttpsConfig { listen: address, cert, key, token, tokens_file }) })
}
