//! TLS to devices whose certificate is checked.
//!
//! ureq's own connector refuses a certificate of an authority that a server shows as its own, as most controllers make it (`openssl req -x509`). This one
//! accepts it if it is, byte for byte, a certificate of `ca`: its time, its name and the signature of the handshake are checked all the same.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme, StreamOwned,
};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// What webpki says of a valid certificate of an authority that a server shows as its own.
const IS_AUTHORITY: &str = "CaUsedAsEndEntity";

/// Wraps a connection in TLS, unless certificates are not checked: that is left to ureq's connector, which follows it.
#[derive(Debug)]
pub struct CheckedTlsConnector;

impl<In: Transport> Connector<In> for CheckedTlsConnector {
    type Out = Either<In, CheckedTlsTransport>;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        let tls = details.config.tls_config();
        if !details.needs_tls() || tls.disable_verification() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| Error::General("no name of a server".to_owned()))?;
        let mut connection = ClientConnection::new(Arc::new(client_config(tls)?), name)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        // What the connectors before this one have used is not given again.
        let mut timeout = details.timeout;
        if let (Duration::Exact(after), Instant::Exact(begin)) = (timeout.after, details.now) {
            timeout.after = Duration::Exact(after.saturating_sub(begin.elapsed()));
        }
        socket.set_timeout(timeout);
        connection.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        let stream = StreamOwned { conn: connection, sock: socket };
        Ok(Some(Either::B(CheckedTlsTransport { buffers, stream })))
    }
}

fn client_config(tls: &TlsConfig) -> Result<ClientConfig, Error> {
    let RootCerts::Specific(authority) = tls.root_certs() else {
        return Err(Error::General("no authority".to_owned()));
    };
    let provider = Arc::new(default_provider());
    let authority: Vec<_> = authority.iter().map(|one| CertificateDer::from(one.der()).into_owned()).collect();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authority.iter().cloned());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    // Without an authority no certificate is of it.
    let webpki = verifier.map_err(|_| CertificateError::UnknownIssuer)?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let verifier = Arc::new(DeviceVerifier { webpki, authority });
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match tls.client_cert() {
        Some(own) => {
            let chain = own.certs().iter().map(|one| CertificateDer::from(one.der()).into_owned()).collect();
            let key = PrivateKeyDer::try_from(own.private_key().der().to_vec())
                .map_err(|text| Error::General(text.to_owned()))?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    };
    // Each connection checks the certificate.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Checks as webpki does, and accepts the certificates of `ca` themselves.
#[derive(Debug)]
struct DeviceVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    authority: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for DeviceVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki checks the time before this: a certificate that has expired is another error.
            Err(Error::InvalidCertificate(CertificateError::Other(OtherError(error))))
                if error.to_string() == IS_AUTHORITY && self.authority.iter().any(|one| one == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// A connection with TLS.
pub struct CheckedTlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl std::fmt::Debug for CheckedTlsTransport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CheckedTlsTransport").finish_non_exhaustive()
    }
}

impl Transport for CheckedTlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
