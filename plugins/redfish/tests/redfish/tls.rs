//! HTTPS: the authority, certificates that are wrong, and `insecure`.

use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use wholegrain_source_testkit::SampledSource;

use super::configure_in;
use super::hostile::config;
use super::service::{ReadWrite, TestService};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A service with a certificate for a name, valid until the first day of a year.
    fn service(&self, name: &str, until: i32) -> TestService {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        service_with(certificate, &key)
    }
}

/// A certificate as `openssl req -x509` makes it: of an authority, signed by itself, shown as that of the service.
fn self_signed(name: &str, until: i32) -> (String, TestService) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), service_with(certificate.der().clone(), &key))
}

fn service_with(certificate: CertificateDer<'static>, key: &KeyPair) -> TestService {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let server = Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
    TestService::wrapped(Box::new(move |stream: TcpStream| {
        let connection = ServerConnection::new(server.clone()).ok()?;
        Some(Box::new(StreamOwned::new(connection, stream)) as Box<dyn ReadWrite>)
    }))
}

#[test]
fn certificates_are_checked_unless_the_configuration_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let running = |service: &TestService, keys: &str| {
        let text = config(service.port, keys).replace("scheme = \"http\"\n", "");
        SampledSource::of(configure_in(folder.path(), &text).unwrap_or_else(|error| panic!("{error}")))
    };
    let cpu =
        |running: &mut SampledSource| running.answer("b/chassis/1/thermal", |_| true)["b/chassis/1/temperature/CPU"];
    let good = authority.service("127.0.0.1", 2100);
    assert_eq!(cpu(&mut running(&good, "ca = \"ca.pem\"")), Some(41.0));
    let expired = authority.service("127.0.0.1", 2001);
    for (service, what) in [
        (&expired, "TLS: its certificate has expired"),
        (&authority.service("other.example", 2100), "TLS: its certificate is of another name"),
        (&Authority::new().service("127.0.0.1", 2100), "TLS: its certificate is not of this authority"),
    ] {
        running(service, "ca = \"ca.pem\"").wait_for_note(what);
        assert!(service.requests().is_empty(), "nothing is sent to it");
    }
    let (pem, own) = self_signed("127.0.0.1", 2100);
    std::fs::write(folder.path().join("own.pem"), pem).unwrap();
    assert_eq!(cpu(&mut running(&own, "ca = \"own.pem\"")), Some(41.0));
    for (name, until, is_in_ca, what) in [
        ("127.0.0.1", 2001, true, "TLS: its certificate has expired"),
        ("other.example", 2100, true, "TLS: its certificate is of another name"),
        ("127.0.0.1", 2100, false, "TLS: its certificate is not of this authority"),
    ] {
        let (pem, service) = self_signed(name, until);
        std::fs::write(folder.path().join("other.pem"), pem).unwrap();
        let file = if is_in_ca { "other.pem" } else { "own.pem" };
        running(&service, &format!("ca = \"{file}\"")).wait_for_note(what);
        assert!(service.requests().is_empty(), "nothing is sent to it");
    }
    let mut insecure = running(&expired, "insecure = true");
    assert_eq!(cpu(&mut insecure), Some(41.0));
    insecure.wait_for_note("b has insecure = true: anybody on the way can read the password; write ca = ");
}
