//! The local certificate authority of a fresh installation, and reading names out of certificates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};

use x509_parser::extensions::GeneralName;

const DAY: Duration = Duration::from_secs(86_400);
/// How long the authority is valid.
const CA_VALID: Duration = Duration::from_secs(86_400 * 3650);
/// How long a certificate signed by it is valid.
const CERTIFICATE_VALID: Duration = Duration::from_secs(86_400 * 1825);

/// A certificate and its private key, both PEM.
pub(crate) struct Pair {
    pub cert: String,
    pub key: String,
}

/// A new authority: ECDSA P-256, self-signed, may sign certificates of servers and clients but no further authorities.
pub(crate) fn new_authority(host: &str) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(&format!("Wholegrain local authority of {host}"), CA_VALID)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(Pair { cert: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// A certificate for the server under `host`, `others` (names or addresses), `localhost` and the loopback addresses.
pub(crate) fn new_server(authority: &Pair, host: &str, others: &[String]) -> Result<Pair, rcgen::Error> {
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
    sign(authority, params)
}

/// A client certificate whose common name is the agent's name.
pub(crate) fn new_agent(authority: &Pair, name: &str) -> Result<Pair, rcgen::Error> {
    let mut params = params(name, CERTIFICATE_VALID)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // Also a server's: the agent answers its own API over HTTPS with it.
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    if let Ok(dns) = name.try_into() {
        params.subject_alt_names.push(SanType::DnsName(dns));
    }
    sign(authority, params)
}

fn params(common_name: &str, valid: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = SystemTime::now();
    // A day back, for clocks that are behind ours.
    params.not_before = (now - DAY).into();
    params.not_after = (now + valid).into();
    Ok(params)
}

fn sign(authority: &Pair, mut params: CertificateParams) -> Result<Pair, rcgen::Error> {
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let issuer = Issuer::from_ca_cert_pem(&authority.cert, KeyPair::from_pem(&authority.key)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok(Pair { cert: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
}

/// The names and addresses that a PEM certificate is good for; none when it cannot be read.
pub(crate) fn alternative_names(pem: &str) -> Vec<String> {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return Vec::new() };
    let Ok(certificate) = pem.parse_x509() else { return Vec::new() };
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

/// The common name of a DER certificate's subject.
pub(crate) fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_certificate_says_where_it_is() {
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
        assert_eq!(common_name(&pem.contents).as_deref(), Some("node_42"));
        assert_eq!(common_name(b"not a certificate"), None);
    }
}
