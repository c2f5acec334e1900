//! HTTPS: the authority, the device's certificate, and the client's.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use wholegrain_device_http::{AnswerBounds, DeviceClient};
use wholegrain_devices::{Credentials, DeviceProblem};

use super::stub::{ReadWrite, StubAnswer, StubServer};
use super::{BOUNDS, get};

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
            Some(Box::new(StreamOwned::new(connection, stream)) as Box<dyn ReadWrite>)
        };
        StubServer::wrapped("127.0.0.1", StubAnswer::text("secure"), Box::new(wrap))
    }
}

fn url(server: &StubServer) -> String {
    format!("https://127.0.0.1:{}/", server.port)
}

#[test]
fn certificates_of_devices() {
    let authority = Authority::new();
    let client = DeviceClient::new(authority.pem.as_bytes(), None, BOUNDS).unwrap();
    let good = authority.server("127.0.0.1", 2100, false);
    (0..5).for_each(|_| assert_eq!(get(&client, &url(&good)).unwrap().1, "secure"));
    assert_eq!(good.connections(), 1, "one handshake");
    let (stranger, expired) =
        (Authority::new().server("127.0.0.1", 2100, false), authority.server("127.0.0.1", 2001, false));
    for (server, what) in [
        (&expired, "TLS: its certificate has expired"),
        (&authority.server("other.example", 2100, false), "TLS: its certificate is of another name"),
        (&stranger, "TLS: its certificate is not of this authority"),
    ] {
        assert_eq!(get(&client, &url(server)).unwrap_err(), DeviceProblem::Refused(what));
        assert_eq!(server.requests(), 0, "no request was sent to it");
    }
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("https://{}/", plain.local_addr().unwrap());
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = plain.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n");
        stream
    });
    assert_eq!(get(&client, &at).unwrap_err(), DeviceProblem::Garbage("not TLS"));
    drop(answer.join());
    let unchecked = AnswerBounds { checks_certificate: false, ..BOUNDS };
    let client = DeviceClient::new(b"", None, unchecked).unwrap();
    assert_eq!(get(&client, &url(&stranger)).unwrap().1, "secure");
    for pem in [&b"nothing"[..], b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n"] {
        let wrong = DeviceClient::new(pem, None, BOUNDS).err().map(|(key, _)| key);
        assert!(wrong.is_none_or(|key| key == "ca"));
    }
}

#[test]
fn certificates_of_the_client() {
    let authority = Authority::new();
    let asking = authority.server("127.0.0.1", 2100, true);
    let client = |of: Option<&Authority>| {
        let credentials = of.map(|of| {
            let (certificate, key) = of.certificate("agent", 2100);
            Credentials::of("c", &[("cert", &certificate.pem()), ("key", &key.serialize_pem())])
        });
        DeviceClient::new(authority.pem.as_bytes(), credentials.as_ref(), BOUNDS).unwrap()
    };
    assert_eq!(get(&client(Some(&authority)), &url(&asking)).unwrap().1, "secure");
    for client in [client(None), client(Some(&Authority::new()))] {
        assert_eq!(get(&client, &url(&asking)).unwrap_err(), DeviceProblem::Credentials);
    }
    let wrong = Credentials::of("c", &[("cert", "no PEM"), ("key", "s3cret")]);
    let (key, message) = DeviceClient::new(authority.pem.as_bytes(), Some(&wrong), BOUNDS).err().unwrap();
    assert!(key == "credentials" && !message.contains("s3cret"), "{message}");
}

#[test]
fn a_redirect_does_not_leave_tls() {
    let authority = Authority::new();
    let (secure, plain) = (authority.server("127.0.0.1", 2100, false), StubServer::new(StubAnswer::text("plain")));
    let answer = format!("HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:{}/\r\nContent-Length: 0\r\n\r\n", plain.port);
    secure.set(StubAnswer::Open(answer.into_bytes()));
    let client = DeviceClient::new(authority.pem.as_bytes(), None, AnswerBounds { redirects: 3, ..BOUNDS }).unwrap();
    let problem = get(&client, &url(&secure)).unwrap_err();
    assert_eq!((problem, plain.requests()), (DeviceProblem::Refused("HTTP: a redirect from https to http"), 0));
}
