//! Certificate files: their content, and TLS of a listener that reloads when its files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use wholegrain_transport::tls::{self, ClientCerts, Identity, TlsError};

use crate::pki;

/// The server warns of certificates that end within this time, in seconds: 30 days.
pub const EXPIRY_WARNING_S: i64 = 30 * 86_400;

/// The content of a certificate file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    /// The file it was read from.
    pub file: PathBuf,
    /// The serial number in hexadecimal, as `openssl x509 -serial` prints it.
    pub serial: String,
    /// Start of validity, seconds since the Unix epoch.
    pub not_before: i64,
    /// End of validity, seconds since the Unix epoch.
    pub not_after: i64,
    /// The subject's common name: an agent's name or a server's host.
    pub common_name: Option<String>,
    /// Subject alternative names: host names and addresses.
    pub names: Vec<String>,
}

impl CertificateFile {
    /// Reads the first certificate of a PEM file.
    pub fn read(file: &Path) -> Result<Self, String> {
        let certs = tls::read_certs("certificate", file).map_err(|error| error.to_string())?;
        let der = certs.first().map(|cert| cert.as_ref()).unwrap_or_default();
        let (_, x509) = x509_parser::parse_x509_certificate(der)
            .map_err(|error| format!("{}: not an X.509 certificate: {error}; write a new one", file.display()))?;
        Ok(Self {
            file: file.to_owned(),
            serial: serial(x509.raw_serial()),
            not_before: x509.validity().not_before.timestamp(),
            not_after: x509.validity().not_after.timestamp(),
            common_name: x509
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .map(str::to_owned),
            names: pki::names_of(&x509),
        })
    }

    /// Whole days until the end of validity; negative after it.
    pub fn days_left(&self, now_s: i64) -> i64 {
        (self.not_after - now_s).div_euclid(86_400)
    }
}

fn serial(bytes: &[u8]) -> String {
    // A leading zero only marks the number as positive (X.690, 8.3).
    let bytes = bytes.strip_prefix(&[0]).filter(|rest| !rest.is_empty()).unwrap_or(bytes);
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The files behind one listener's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The section of the configuration, for messages.
    pub section: &'static str,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<(PathBuf, ClientCerts)>,
}

impl TlsFiles {
    pub fn load(&self) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        let client_ca = self.client_ca.as_ref().map(|(ca, certs)| (ca.as_path(), *certs));
        tls::server_config(Identity { cert: &self.cert, key: &self.key }, client_ca)
    }

    /// A hash of all files' contents; timestamps do not count.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for file in [Some(&self.cert), Some(&self.key), self.client_ca.as_ref().map(|(ca, _)| ca)].into_iter().flatten()
        {
            match std::fs::read(file) {
                Ok(bytes) => {
                    hasher.update((bytes.len() as u64).to_le_bytes());
                    hasher.update(bytes);
                }
                // No file can have this length, so a missing file differs from an empty one.
                Err(_) => hasher.update(u64::MAX.to_le_bytes()),
            }
        }
        hasher.finalize().into()
    }
}

/// The TLS configuration of a listener. Existing connections keep theirs; new ones get the current one.
#[derive(Clone)]
pub(crate) struct ReloadableTls(Arc<TlsShared>);

struct TlsShared {
    acceptor: RwLock<TlsAcceptor>,
    loaded: Mutex<LoadedTls>,
}

struct LoadedTls {
    files: TlsFiles,
    fingerprint: [u8; 32],
    /// The fingerprint of changed files that cannot be used; each such change is reported once.
    wrong: Option<[u8; 32]>,
}

/// The result of a check for changed files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TlsCheck {
    Same,
    /// The files changed and are in use now.
    Changed,
    /// The files changed but cannot be used; the previous ones stay in use. Reported once for the same content.
    Wrong(String),
}

impl ReloadableTls {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let fingerprint = files.fingerprint();
        let acceptor = RwLock::new(TlsAcceptor::from(files.load()?));
        Ok(Self(Arc::new(TlsShared { acceptor, loaded: Mutex::new(LoadedTls { files, fingerprint, wrong: None }) })))
    }

    /// Starts the handshake of a new connection.
    pub fn accept(&self, stream: TcpStream) -> tokio_rustls::Accept<TcpStream> {
        self.0.acceptor.read().unwrap_or_else(PoisonError::into_inner).accept(stream)
    }

    /// Uses `files` from now on; returns whether they differ from the previous ones.
    pub fn replace(&self, files: TlsFiles, fingerprint: [u8; 32], config: Arc<rustls::ServerConfig>) -> bool {
        let mut loaded = self.loaded();
        let changed = loaded.files != files || loaded.fingerprint != fingerprint;
        if changed {
            // Replaces the session cache too: no client resumes a session that a removed authority had admitted.
            *self.0.acceptor.write().unwrap_or_else(PoisonError::into_inner) = TlsAcceptor::from(config);
        }
        *loaded = LoadedTls { files, fingerprint, wrong: None };
        changed
    }

    /// Reloads the files if they have changed.
    pub fn look(&self) -> TlsCheck {
        let (files, known, wrong) = {
            let loaded = self.loaded();
            (loaded.files.clone(), loaded.fingerprint, loaded.wrong)
        };
        let fingerprint = files.fingerprint();
        if fingerprint == known || Some(fingerprint) == wrong {
            return TlsCheck::Same;
        }
        match files.load() {
            Ok(config) => {
                self.replace(files, fingerprint, config);
                TlsCheck::Changed
            }
            Err(error) => {
                self.loaded().wrong = Some(fingerprint);
                TlsCheck::Wrong(error.to_string())
            }
        }
    }

    /// The files in use.
    pub fn files(&self) -> TlsFiles {
        self.loaded().files.clone()
    }

    fn loaded(&self) -> std::sync::MutexGuard<'_, LoadedTls> {
        self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_come_into_force_and_halves_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let authority = pki::new_authority("h").unwrap();
        let write = |cert: bool, key: bool| {
            let pair = pki::new_server(&authority, "h", &[]).unwrap();
            if cert {
                std::fs::write(path("c"), &pair.cert).unwrap();
            }
            if key {
                std::fs::write(path("k"), &pair.key).unwrap();
            }
        };
        write(true, true);
        let files = TlsFiles { section: "mqtt", cert: path("c"), key: path("k"), client_ca: None };
        let tls = ReloadableTls::load(files).unwrap();
        assert_eq!(tls.look(), TlsCheck::Same);
        let serial = CertificateFile::read(&path("c")).unwrap().serial;
        write(true, false);
        assert_ne!(CertificateFile::read(&path("c")).unwrap().serial, serial);
        let TlsCheck::Wrong(error) = tls.look() else { panic!("half a pair was taken") };
        assert!(error.contains("cannot be used together"), "{error}");
        assert_eq!(tls.look(), TlsCheck::Same, "said once");
        write(true, true);
        assert_eq!((tls.look(), tls.look()), (TlsCheck::Changed, TlsCheck::Same));
        std::fs::remove_file(path("k")).unwrap();
        assert!(matches!(tls.look(), TlsCheck::Wrong(error) if error.contains("No such file")));
    }

    #[test]
    fn a_certificate_has_its_end_of_validity() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c");
        let authority = pki::new_authority("h").unwrap();
        std::fs::write(&file, pki::new_server(&authority, "h", &[]).unwrap().cert).unwrap();
        let certificate = CertificateFile::read(&file).unwrap();
        assert_eq!(certificate.names, ["localhost", "h", "127.0.0.1", "::1"]);
        assert_eq!(certificate.days_left(certificate.not_after - 86_400), 1);
        assert_eq!(certificate.days_left(certificate.not_after + 1), -1);
        std::fs::write(&file, "x").unwrap();
        assert!(CertificateFile::read(&file).unwrap_err().contains("holds no certificate"));
    }
}
