//! PEM files into TLS configurations, for 1.2 and 1.3, with the provider named here and no process-wide default.
//!
//! - In: paths of PEM files.
//! - Out: `rustls` configurations.
//! - Never: a connection; a check that is left out because a file is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The largest PEM file read, in bytes: a bundle of all public authorities has 250 kB.
pub const PEM_BYTES_MAX: u64 = 4 << 20;

/// Why a TLS configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {what} {}: {error}; give the path of a PEM file that this user may read", path.display())]
    Read {
        /// The purpose of the file.
        what: &'static str,
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The content of a file is invalid.
    #[error("{what} {}: {problem}", path.display())]
    Content {
        /// The purpose of the file.
        what: &'static str,
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// Certificate, key and authorities do not match.
    #[error("TLS set-up: {0}")]
    Setup(String),
}

/// A certificate (followed by those of its issuers up to the authority) and its private key, as PEM files.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    pub cert: &'a Path,
    /// The private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: &'a Path,
}

/// Whether clients must present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCerts {
    /// A client certificate must be valid; a client without one is authenticated by other means.
    Optional,
    /// A client without a certificate is refused.
    Required,
}

/// The cryptography provider of all connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads all certificates of a PEM file; at least one.
pub fn read_certs(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = |problem: String| TlsError::Content { what, path: path.to_owned(), problem };
    let pem = read(what, path)?;
    let certs = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| content(format!("is not PEM: {error}; write the file again")))?;
    if certs.is_empty() {
        return Err(content("holds no certificate; expected one that begins with -----BEGIN CERTIFICATE-----".into()));
    }
    Ok(certs)
}

/// Reads the first private key of a PEM file.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let what = "private key";
    let pem = read(what, path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        let problem = match error {
            rustls::pki_types::pem::Error::NoItemsFound => {
                "holds no private key; expected an unencrypted one that begins with -----BEGIN PRIVATE KEY-----".into()
            }
            other => format!("is not PEM: {other}; write the file again"),
        };
        TlsError::Content { what, path: path.to_owned(), problem }
    })
}

/// For a client that trusts only the authorities in the file `ca`, with or without its own certificate.
pub fn client_config(ca: &Path, identity: Option<Identity<'_>>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?
        .with_root_certificates(roots(ca)?);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certs = read_certs("client certificate", identity.cert)?;
            let key = read_key(identity.key)?;
            builder.with_client_auth_cert(certs, key).map_err(|error| mismatch(&identity, &error))?
        }
    };
    Ok(Arc::new(config))
}

/// For a server; with `client_ca`, clients present certificates of these authorities.
pub fn server_config(
    identity: Identity<'_>,
    client_ca: Option<(&Path, ClientCerts)>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some((ca, certs)) => builder.with_client_cert_verifier(verifier(ca, certs)?),
    };
    let certs = read_certs("server certificate", identity.cert)?;
    let key = read_key(identity.key)?;
    let config = builder.with_single_cert(certs, key).map_err(|error| mismatch(&identity, &error))?;
    Ok(Arc::new(config))
}

fn verifier(ca: &Path, certs: ClientCerts) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider());
    let builder = match certs {
        ClientCerts::Optional => builder.allow_unauthenticated(),
        ClientCerts::Required => builder,
    };
    builder.build().map_err(|error| TlsError::Setup(format!("authorities of {}: {error}", ca.display())))
}

fn roots(ca: &Path) -> Result<RootCertStore, TlsError> {
    let what = "certificate authority";
    let mut roots = RootCertStore::empty();
    for cert in read_certs(what, ca)? {
        roots.add(cert).map_err(|error| {
            let problem = format!("holds a certificate that cannot be an authority: {error}");
            TlsError::Content { what, path: ca.to_owned(), problem }
        })?;
    }
    Ok(roots)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let error = |error| TlsError::Read { what, path: path.to_owned(), error };
    let bytes = fs::metadata(path).map_err(error)?.len();
    if bytes > PEM_BYTES_MAX {
        let problem = format!("has {bytes} bytes, at most {PEM_BYTES_MAX} are read; this is not a PEM file of ours");
        return Err(TlsError::Content { what, path: path.to_owned(), problem });
    }
    fs::read(path).map_err(error)
}

fn mismatch(identity: &Identity<'_>, error: &rustls::Error) -> TlsError {
    TlsError::Setup(format!(
        "certificate {} and private key {} cannot be used together: {error}; give the key that the certificate was made for",
        identity.cert.display(),
        identity.key.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pems {
        dir: tempfile::TempDir,
    }

    impl Pems {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["one", "two"] {
                let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
                fs::write(dir.path().join(format!("{name}.pem")), made.cert.pem()).unwrap();
                fs::write(dir.path().join(format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
            }
            fs::write(dir.path().join("text"), "hello\n").unwrap();
            fs::write(dir.path().join("broken"), "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n")
                .unwrap();
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
    }

    #[test]
    fn good_files_make_configurations() {
        let pems = Pems::new();
        let (cert, key) = (&pems.path("one.pem"), &pems.path("one.key"));
        client_config(cert, None).unwrap();
        client_config(cert, Some(Identity { cert, key })).unwrap();
        server_config(Identity { cert, key }, None).unwrap();
        for certs in [ClientCerts::Optional, ClientCerts::Required] {
            let config = server_config(Identity { cert, key }, Some((cert, certs))).unwrap();
            assert!(config.alpn_protocols.is_empty());
        }
    }

    #[test]
    fn errors_name_the_file_and_what_to_do() {
        let pems = Pems::new();
        let check = |cert: &str, key: &str, parts: [&str; 2]| {
            let (cert, key) = (&pems.path(cert), &pems.path(key));
            let error = server_config(Identity { cert, key }, None).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
        };
        check("absent", "one.key", ["absent", "No such file"]);
        check("text", "one.key", ["text", "holds no certificate"]);
        check("broken", "one.key", ["broken", "is not PEM"]);
        check("one.pem", "one.pem", ["one.pem", "holds no private key"]);
        check("one.pem", "two.key", ["two.key", "cannot be used together"]);
    }
}
