//! Certificates: readable, with their key, signed by the authority, not at their end, for the right names.

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

use super::Findings;

const CHECK: &str = "certificate";

/// What a certificate is for.
pub enum Use<'a> {
    /// A server's, reached under this name.
    Server(&'a str),
    /// An agent's of this name.
    Agent(&'a str),
}

/// Looks at a certificate with its key and, if it is known, the authority that others know it by.
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
            "give certificate and key of one pair, readable by the service's user",
        );
    }
    expiry(findings, &certificate);
    match purpose {
        Use::Agent(name) if certificate.common_name.as_deref() != Some(*name) => findings.fail(
            CHECK,
            format!(
                "{shown} is of {:?}, but the agent is called {name:?}",
                certificate.common_name.as_deref().unwrap_or_default()
            ),
            format!("set name in agent.toml, or make a certificate with `wholegrain ca agent {name}`"),
        ),
        _ => {}
    }
    if let Some(authority) = authority {
        let result = match purpose {
            Use::Server(name) => as_server(cert, authority, name),
            Use::Agent(_) => as_client(cert, authority),
        };
        chain(findings, &certificate, authority, result);
    }
}

/// Looks at an authority's certificate.
pub fn check_authority(findings: &mut Findings, file: &Path) {
    match CertificateFile::read(file) {
        Ok(certificate) => expiry(findings, &certificate),
        Err(error) => findings.fail(CHECK, error, "copy ca.pem from where `wholegrain init` made it"),
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
        findings.fail(CHECK, text, "make a new one; a running server takes it up by itself");
    } else if certificate.not_after - now <= EXPIRY_WARNING_S {
        let text = format!("{shown} expires in {days} days");
        findings.warn(CHECK, text, "make a new one; a running server takes it up by itself");
    } else {
        findings.ok(CHECK, format!("{shown} is good for another {days} days"));
    }
}

fn chain(findings: &mut Findings, certificate: &CertificateFile, authority: &Path, result: Result<(), Error>) {
    let (shown, authority) = (certificate.file.display(), authority.display());
    match result {
        Ok(()) => findings.ok(CHECK, format!("{shown} is signed by {authority}")),
        // Reported already.
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
            format!("{shown} is good for {}, not for the name of this host", certificate.names.join(", ")),
            "clients that call the server by this host's name refuse it; make one with all names",
        ),
        Err(error) => findings.fail(
            CHECK,
            format!("{shown} is not signed by {authority}: {error}"),
            "name the authority that signed it, or make a new certificate",
        ),
    }
}

fn roots(authority: &Path) -> Result<Arc<RootCertStore>, Error> {
    let general = |error: &dyn std::fmt::Display| Error::General(error.to_string());
    let mut roots = RootCertStore::empty();
    for cert in tls::read_certs("certificate authority", authority).map_err(|error| general(&error))? {
        roots.add(cert)?;
    }
    Ok(Arc::new(roots))
}

fn as_server(cert: &Path, authority: &Path, name: &str) -> Result<(), Error> {
    let general = |error: &dyn std::fmt::Display| Error::General(error.to_string());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority)?, tls::provider()).build();
    let verifier = verifier.map_err(|error| general(&error))?;
    let chain = tls::read_certs("certificate", cert).map_err(|error| general(&error))?;
    let name = ServerName::try_from(name.to_owned()).map_err(|error| general(&error))?;
    let Some((end, rest)) = chain.split_first() else { return Err(Error::General("no certificate".into())) };
    verifier.verify_server_cert(end, rest, &name, &[], UnixTime::now()).map(drop)
}

fn as_client(cert: &Path, authority: &Path) -> Result<(), Error> {
    let general = |error: &dyn std::fmt::Display| Error::General(error.to_string());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority)?, tls::provider()).build();
    let verifier = verifier.map_err(|error| general(&error))?;
    let chain = tls::read_certs("certificate", cert).map_err(|error| general(&error))?;
    let Some((end, rest)) = chain.split_first() else { return Err(Error::General("no certificate".into())) };
    verifier.verify_client_cert(end, rest, UnixTime::now()).map(drop)
}
