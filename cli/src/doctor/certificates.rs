//! Checks of certificates: key, authority, validity, names.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, Error};
use wholegrain_server::certificates::{CertificateFile, EXPIRY_WARNING_S};
use wholegrain_transport::tls::{self, Identity};

use super::findings::Findings;

const CHECK: &str = "certificate";

/// The use of a certificate.
pub enum Use<'a> {
    /// For the server of this name.
    Server(&'a str),
    /// For the agent of this name.
    Agent(&'a str),
}

/// Checks a certificate with its key and, if given, the authority that peers trust.
pub fn check(findings: &mut Findings, cert: &Path, key: &Path, authority: Option<&Path>, purpose: &Use) {
    let certificate = match CertificateFile::read(cert) {
        Ok(certificate) => certificate,
        Err(error) => return findings.fail(CHECK, error, "make one with `wholegrain ca`, or name another file"),
    };
    let shown = cert.display();
    if let Err(error) = tls::server_config(Identity { cert, key }, None) {
        return findings.fail(
            CHECK,
            error.to_string(),
            "name a certificate and its key, which the service's user can read",
        );
    }
    expiry(findings, &certificate);
    match purpose {
        Use::Agent(name) if certificate.common_name.as_deref() != Some(*name) => findings.fail(
            CHECK,
            format!(
                "{shown} is for {:?}, but the agent's name is {name:?}",
                certificate.common_name.as_deref().unwrap_or_default()
            ),
            format!("set name in agent.toml, or make a certificate with `wholegrain ca agent {name}`"),
        ),
        _ => {}
    }
    if let Some(authority) = authority {
        report_chain(findings, &certificate, authority, verify(cert, authority, purpose));
    }
}

/// Checks the certificate of an authority.
pub fn check_authority(findings: &mut Findings, file: &Path) {
    match CertificateFile::read(file) {
        Ok(certificate) => expiry(findings, &certificate),
        Err(error) => findings.fail(CHECK, error, "copy ca.pem from the machine of `wholegrain init`"),
    }
}

fn expiry(findings: &mut Findings, certificate: &CertificateFile) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let (shown, days) = (certificate.file.display(), certificate.days_left(now));
    if now < certificate.not_before {
        let text = format!("{shown} is not valid yet, for another {} s", certificate.not_before - now);
        findings.fail(CHECK, text, "set the clock, or wait");
    } else if now > certificate.not_after {
        let text = format!("{shown} has expired {} days ago", -days);
        findings.fail(CHECK, text, "make a new one; a running server loads it by itself");
    } else if certificate.not_after - now <= EXPIRY_WARNING_S {
        let text = format!("{shown} expires in {days} days");
        findings.warn(CHECK, text, "make a new one; a running server loads it by itself");
    } else {
        findings.ok(CHECK, format!("{shown} is valid for another {days} days"));
    }
}

fn report_chain(findings: &mut Findings, certificate: &CertificateFile, authority: &Path, result: Result<(), Error>) {
    let (shown, authority) = (certificate.file.display(), authority.display());
    match result {
        Ok(()) => findings.ok(CHECK, format!("{shown} is signed by {authority}")),
        // The check of the expiry has reported it.
        Err(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => {}
        Err(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => findings.warn(
            CHECK,
            format!("{shown} is valid for {}, not for the name of this host", certificate.names.join(", ")),
            "clients that use this host's name refuse it; make one with all names",
        ),
        Err(error) => findings.fail(
            CHECK,
            format!("{shown} is not signed by {authority}: {error}"),
            "name the authority that signed it, or make a new certificate",
        ),
    }
}

fn roots(authority: &Path) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for cert in tls::read_certs("certificate authority", authority).map_err(general)? {
        roots.add(cert)?;
    }
    Ok(Arc::new(roots))
}

fn verify(cert: &Path, authority: &Path, purpose: &Use) -> Result<(), Error> {
    let chain = tls::read_certs("certificate", cert).map_err(general)?;
    let Some((end, rest)) = chain.split_first() else { return Err(general("no certificate")) };
    let (roots, now) = (roots(authority)?, UnixTime::now());
    match purpose {
        Use::Server(name) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, tls::provider()).build();
            let name = ServerName::try_from((*name).to_owned()).map_err(general)?;
            verifier.map_err(general)?.verify_server_cert(end, rest, &name, &[], now).map(drop)
        }
        Use::Agent(_) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, tls::provider()).build();
            verifier.map_err(general)?.verify_client_cert(end, rest, now).map(drop)
        }
    }
}

fn general(error: impl std::fmt::Display) -> Error {
    Error::General(error.to_string())
}
