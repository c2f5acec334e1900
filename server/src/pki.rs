//! The local certificate authority of an installation, and names in certificates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};

use wholegrain_model::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::x509::X509Name;

use crate::access::tokens;

const DAY: Duration = Duration::from_secs(86_400);
/// Validity of the authority.
const CA_VALID: Duration = Duration::from_secs(86_400 * 3650);
/// Validity of certificates that it signs.
const CERTIFICATE_VALID: Duration = Duration::from_secs(86_400 * 1825);
/// Length of a random serial number: enough to avoid duplicates.
const SERIAL_BYTES: usize = 16;

/// A certificate and its private key, both PEM.
pub(crate) struct KeyPairFiles {
    pub cert: String,
    pub key: String,
}

/// A new authority: ECDSA P-256, self-signed; it may sign certificates of servers and clients but no other authorities.
pub(crate) fn new_authority(host: &str) -> Result<KeyPairFiles, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(&format!("Wholegrain local authority of {host}"), CA_VALID)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(KeyPairFiles { cert: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// A server certificate for `host`, `others` (names or addresses), `localhost` and the loopback addresses.
pub(crate) fn new_server(
    authority: &KeyPairFiles,
    host: &str,
    others: &[String],
) -> Result<KeyPairFiles, rcgen::Error> {
    server_of(authority, host, others, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// A server certificate for an existing key.
pub(crate) fn renewed_server(
    authority: &KeyPairFiles,
    host: &str,
    others: &[String],
    key: &str,
) -> Result<KeyPairFiles, rcgen::Error> {
    server_of(authority, host, others, KeyPair::from_pem(key)?)
}

fn server_of(
    authority: &KeyPairFiles,
    host: &str,
    others: &[String],
    key: KeyPair,
) -> Result<KeyPairFiles, rcgen::Error> {
    let mut params = params(host, CERTIFICATE_VALID)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for name in ["localhost", host].into_iter().chain(others.iter().map(String::as_str)) {
        let name = match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.try_into()?),
        };
        if !params.subject_alt_names.contains(&name) {
            params.subject_alt_names.push(name);
        }
    }
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(SanType::IpAddress) {
        if !params.subject_alt_names.contains(&address) {
            params.subject_alt_names.push(address);
        }
    }
    sign(authority, params, &key)
}

/// A client certificate whose common name is the agent's name.
pub(crate) fn new_agent(authority: &KeyPairFiles, name: &str) -> Result<KeyPairFiles, rcgen::Error> {
    let mut params = params(name, CERTIFICATE_VALID)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // Also for servers: the agent serves its own HTTPS API with it.
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    if let Ok(dns) = name.try_into() {
        params.subject_alt_names.push(SanType::DnsName(dns));
    }
    sign(authority, params, &KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

fn params(common_name: &str, valid: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = SystemTime::now();
    // One day in the past, for clocks that are behind.
    params.not_before = (now - DAY).into();
    params.not_after = (now + valid).into();
    Ok(params)
}

fn sign(authority: &KeyPairFiles, mut params: CertificateParams, key: &KeyPair) -> Result<KeyPairFiles, rcgen::Error> {
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // rcgen derives the serial number from the key: a new certificate for the same key would have that of the old one, which may be revoked.
    let mut serial = tokens::random::<SERIAL_BYTES>().map_err(|_| rcgen::Error::RingUnspecified)?;
    // Positive, and without a leading zero (RFC 5280, 4.1.2.2).
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let issuer = Issuer::from_ca_cert_pem(&authority.cert, KeyPair::from_pem(&authority.key)?)?;
    Ok(KeyPairFiles { cert: params.signed_by(key, &issuer)?.pem(), key: key.serialize_pem() })
}

/// The subject alternative names of a PEM certificate; empty if it cannot be read.
pub(crate) fn alternative_names(pem: &str) -> Vec<String> {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return Vec::new() };
    let Ok(certificate) = pem.parse_x509() else { return Vec::new() };
    names_of(&certificate)
}

/// The subject alternative names of a certificate.
pub(crate) fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(bytes) => Some(IpAddr::from(bytes).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

/// The name and number in a peer's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// The subject's common name.
    pub name: String,
    /// The serial number in hexadecimal.
    pub serial: String,
}

/// Reads a DER certificate; `None` if it has no common name.
pub(crate) fn peer_certificate(der: &[u8]) -> Option<PeerCertificate> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(PeerCertificate { name, serial: serial(&certificate) })
}

fn serial(certificate: &X509Certificate<'_>) -> String {
    certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Details of a certificate for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    pub name: String,
    pub issuer: String,
    /// The serial number in hexadecimal.
    pub serial: String,
    pub from: Timestamp,
    pub until: Timestamp,
    pub names: Vec<String>,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
}

/// Reads every certificate of a PEM file.
pub fn certificates(pem: &str) -> Result<Vec<CertificateInfo>, String> {
    let mut found = Vec::new();
    for block in x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()) {
        let block = block.map_err(|error| format!("is not PEM: {error}"))?;
        if block.label != "CERTIFICATE" {
            continue;
        }
        let certificate =
            block.parse_x509().map_err(|error| format!("holds a certificate that cannot be read: {error}"))?;
        let name = |name: &X509Name<'_>| {
            name.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned()
        };
        let time = |seconds: i64| Timestamp(seconds.saturating_mul(1_000_000_000));
        found.push(CertificateInfo {
            name: name(certificate.subject()),
            issuer: name(certificate.issuer()),
            serial: serial(&certificate),
            from: time(certificate.validity().not_before.timestamp()),
            until: time(certificate.validity().not_after.timestamp()),
            names: names_of(&certificate),
            is_authority: certificate.is_ca(),
        });
    }
    if found.is_empty() { Err("holds no certificate".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_certificate_has_its_names() {
        let authority = new_authority("h").unwrap();
        let others = ["monitor.site.example", "10.0.0.1", "h", "::1"].map(str::to_owned);
        let pair = new_server(&authority, "h", &others).unwrap();
        assert_eq!(
            alternative_names(&pair.cert),
            ["localhost", "h", "monitor.site.example", "10.0.0.1", "::1", "127.0.0.1"]
        );
        assert!(alternative_names("no certificate").is_empty());
        assert!(new_server(&authority, "h", &["not a näme".to_owned()]).is_err());
    }

    #[test]
    fn an_agents_certificate_carries_its_name() {
        let authority = new_authority("h").unwrap();
        let pair = new_agent(&authority, "node_42").unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pair.cert.as_bytes()).unwrap();
        let shown = peer_certificate(&pem.contents).unwrap();
        assert_eq!(shown.name, "node_42");
        assert_eq!(super::peer_certificate(b"not a certificate"), None);
        let read = certificates(&pair.cert).unwrap().remove(0);
        assert_eq!((&read.name, &read.serial), (&shown.name, &shown.serial));
        assert_eq!((read.issuer.as_str(), read.is_authority), ("Wholegrain local authority of h", false));
        assert!(read.from < read.until && certificates(&authority.cert).unwrap()[0].is_authority);
        assert!(certificates(&pair.key).is_err());
    }
}
