//! HTTPS: the authority, the exporter's certificate, and the client's.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use wholegrain_source_testkit::SampledSource;

use super::configure_in;
use super::stub::{StubAnswer, StubServer};

/// An authority that signs the certificates of a test.
struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// A certificate for a name, valid until the first day of a year.
    fn certificate(&self, name: &str, until: i32) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server with a certificate of this authority, which asks clients for one if `asks`.
    fn server(&self, name: &str, until: i32, asks: bool) -> StubServer {
        let (certificate, key) = self.certificate(name, until);
        self.server_with(&certificate, &key, asks)
    }

    fn server_with(&self, certificate: &rcgen::Certificate, key: &KeyPair, asks: bool) -> StubServer {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let builder = if asks { builder.with_client_cert_verifier(verifier) } else { builder.with_no_client_auth() };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap());
        let wrap = move |stream: TcpStream| {
            let connection = ServerConnection::new(config.clone()).ok()?;
            Some(Box::new(StreamOwned::new(connection, stream)) as Box<dyn super::stub::ReadWrite>)
        };
        StubServer::wrapped(StubAnswer::text("b 7\n"), Box::new(wrap))
    }
}

fn config(server: &StubServer, keys: &str) -> String {
    format!(
        "[plugins.scrape]\ninterval = \"40ms\"\ntimeout = \"10s\"\n[[plugins.scrape.device]]\nhosts = [\"127.0.0.1:{}\"]\npath = \"e\"\n\
         scheme = \"https\"\nca = \"ca.pem\"\n{keys}\n",
        server.port
    )
}

fn running(folder: &Path, server: &StubServer, keys: &str) -> SampledSource {
    SampledSource::of(configure_in(folder, &config(server, keys)).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn certificates_of_exporters_and_of_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let good = authority.server("127.0.0.1", 2100, false);
    let values = running(folder.path(), &good, "").answer("e", |_| true);
    assert_eq!(values["e/b"], Some(7.0));
    for (server, what) in [
        (authority.server("127.0.0.1", 2001, false), "TLS: its certificate has expired"),
        (authority.server("other.example", 2100, false), "TLS: its certificate is of another name"),
        (Authority::new().server("127.0.0.1", 2100, false), "TLS: its certificate is not of this authority"),
    ] {
        running(folder.path(), &server, "").wait_for_note(what);
    }
    // A certificate of an authority that the server shows as its own, and that is `ca` itself.
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = params.self_signed(&key).unwrap();
    std::fs::write(folder.path().join("ca.pem"), own.pem()).unwrap();
    let values = running(folder.path(), &authority.server_with(&own, &key, false), "").answer("e", |_| true);
    assert_eq!(values["e/b"], Some(7.0));
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let credentials = folder.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    let asking = authority.server("127.0.0.1", 2100, true);
    for (name, of) in [("known", &authority), ("unknown", &Authority::new())] {
        let (certificate, key) = of.certificate("agent", 2100);
        let text = format!("cert = '''\n{}'''\nkey = '''\n{}'''\n", certificate.pem(), key.serialize_pem());
        std::fs::write(credentials.join(name), text).unwrap();
        std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let values = running(folder.path(), &asking, "credentials = \"known\"").answer("e", |_| true);
    assert_eq!(values["e/b"], Some(7.0));
    for keys in ["", "credentials = \"unknown\""] {
        running(folder.path(), &asking, keys).wait_for_note("refuses the credentials");
    }
}
