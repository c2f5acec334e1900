//! Certificates of an installation after `init`: lists and renews them, and revokes those of agents.

use std::fs;
use std::path::{Path, PathBuf};

use wholegrain_store::path_owners::check_directory;
use wholegrain_transport::host_name;

use crate::access::files;
use crate::access::revoked::{self, Revocation};
use crate::init::{InitError, authority, check_agent_name, io_error};
use crate::pki;
pub use crate::pki::CertificateInfo;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    pub path: PathBuf,
    pub info: CertificateInfo,
    /// Whether the server refuses it.
    pub revoked: bool,
}

/// Where revoked certificates and keys of agents are moved, relative to the installation's directory.
const REVOKED_DIR: &str = "agents/revoked";

/// The certificates of a PEM file, marked as revoked according to `revoked_file`.
pub fn show(path: &Path, revoked_file: Option<&Path>) -> Result<Vec<IssuedCertificate>, InitError> {
    let text = fs::read_to_string(path).map_err(io_error("read", path))?;
    let refuse = |reason| InitError::Refused(format!("{} {reason}; name a PEM file with one", path.display()));
    let infos = pki::certificates(&text).map_err(refuse)?;
    let mut shown = Vec::new();
    for info in infos {
        let revoked = match revoked_file {
            Some(file) => revoked::has(file, &info.name, &info.serial)?,
            None => false,
        };
        shown.push(IssuedCertificate { path: path.to_owned(), info, revoked });
    }
    Ok(shown)
}

/// The certificates of the installation in `dir`: those of the authority, the server and the agents, and the revoked ones of agents.
pub fn list(dir: &Path, revoked_file: Option<&Path>) -> Result<Vec<IssuedCertificate>, InitError> {
    let ca = dir.join("ca.pem");
    if !ca.exists() {
        return Err(InitError::NoAuthority { path: ca });
    }
    let mut paths = vec![ca, dir.join("server/server.pem"), dir.join("agent/agent.pem")];
    for folder in ["agents", REVOKED_DIR] {
        let mut agents: Vec<PathBuf> = match fs::read_dir(dir.join(folder)) {
            Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        agents.retain(|path| path.extension().is_some_and(|extension| extension == "pem"));
        agents.sort();
        paths.extend(agents);
    }
    let mut all = Vec::new();
    for path in paths.into_iter().filter(|path| path.exists()) {
        all.extend(show(&path, revoked_file)?);
    }
    Ok(all)
}

/// Makes a new certificate for the server's key and returns its path. It is valid for this host, localhost, `others` and, unless `only` is set, the
/// names of the old one.
pub fn renew_server(dir: &Path, others: &[String], only: bool) -> Result<PathBuf, InitError> {
    check_hosts(others)?;
    for written in [dir.to_owned(), dir.join("server")] {
        check_directory(&written).map_err(InitError::Refused)?;
    }
    let authority = authority(dir)?;
    let (cert, key) = (dir.join("server/server.pem"), dir.join("server/server.key"));
    let secret = fs::read_to_string(&key).map_err(io_error("read", &key))?;
    let mut names = match fs::read_to_string(&cert) {
        Ok(pem) if !only => pki::alternative_names(&pem),
        _ => Vec::new(),
    };
    names.extend_from_slice(others);
    let pair = pki::renewed_server(&authority, &host_name(), &names, &secret)
        .map_err(|error| InitError::Certificate { path: cert.clone(), error })?;
    files::replace_public(&cert, &pair.cert)?;
    Ok(cert)
}

/// Checks names for a server's certificate: host names and addresses.
pub(crate) fn check_hosts(names: &[String]) -> Result<(), InitError> {
    match names.iter().find(|name| !is_host(name)) {
        Some(wrong) => Err(InitError::Refused(format!(
            "{wrong:?} is neither a host's name nor an address; a name has letters, digits, `-`, `.` and no blanks"
        ))),
        None => Ok(()),
    }
}

fn is_host(text: &str) -> bool {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._*".contains(c));
    is_name || text.parse::<std::net::IpAddr>().is_ok()
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevokeReport {
    /// Serial numbers that count no longer.
    pub serials: Vec<String>,
    /// Whether every certificate of the name is refused, later ones included.
    pub all: bool,
    /// Files that were moved away, so that the agent can get a new certificate.
    pub moved: Vec<PathBuf>,
}

/// Revokes the certificates of agent `name` in `dir`; with `all` every certificate of that name, wherever it is. The server that reads
/// `revoked_file` refuses them within seconds.
pub fn revoke(dir: &Path, revoked_file: &Path, name: &str, all: bool) -> Result<RevokeReport, InitError> {
    check_agent_name(name)?;
    check_directory(dir).map_err(InitError::Refused)?;
    let mut report = RevokeReport { all, ..RevokeReport::default() };
    let mine = |certificate: &IssuedCertificate| certificate.info.name == name && !certificate.info.is_authority;
    let found: Vec<IssuedCertificate> = match list(dir, None) {
        // Those in this directory are revoked already.
        Ok(found) => {
            found.into_iter().filter(mine).filter(|one| !one.path.starts_with(dir.join(REVOKED_DIR))).collect()
        }
        Err(InitError::NoAuthority { .. }) if all => Vec::new(),
        Err(error) => return Err(error),
    };
    if found.is_empty() && !all {
        return Err(InitError::Refused(format!(
            "no certificate of agent {name:?} is in {}; with --all every certificate of that name is revoked, wherever it is",
            dir.display()
        )));
    }
    for IssuedCertificate { info, .. } in &found {
        revoked::revoke(revoked_file, &Revocation::Serial(info.serial.clone(), name.to_owned()))?;
        report.serials.push(info.serial.clone());
    }
    if all {
        revoked::revoke(revoked_file, &Revocation::Name(name.to_owned()))?;
    }
    for IssuedCertificate { path, info, .. } in found.iter().filter(|found| found.path.starts_with(dir.join("agents")))
    {
        let old = dir.join(REVOKED_DIR);
        fs::create_dir_all(&old).map_err(io_error("create the directory", &old))?;
        for path in [path.clone(), path.with_extension("key")].into_iter().filter(|path| path.exists()) {
            let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            let to = old.join(format!("{name}-{}.{extension}", info.serial));
            fs::rename(&path, &to).map_err(io_error("move away", &path))?;
            report.moved.push(to);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{InitOptions, init, issue_agent_certificate};

    #[test]
    fn certificates_are_listed_renewed_and_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(matches!(list(dir, None), Err(InitError::NoAuthority { .. })));
        init(dir, &InitOptions { agent: Some("n1".to_owned()), ..InitOptions::default() }).unwrap();
        issue_agent_certificate(dir, "n2").unwrap();
        let revoked_file = dir.join("server/revoked");
        let names = |revoked: bool| -> Vec<String> {
            let all = list(dir, Some(&revoked_file)).unwrap();
            all.into_iter().filter(|found| found.revoked == revoked).map(|found| found.info.name).collect()
        };
        assert_eq!(names(false)[2..], ["n1", "n2"]);
        let key = fs::read(dir.join("server/server.key")).unwrap();
        let before = show(&dir.join("server/server.pem"), None).unwrap().remove(0).info;
        renew_server(dir, &["monitor.example".to_owned()], false).unwrap();
        renew_server(dir, &["10.1.2.3".to_owned()], false).unwrap();
        let after = show(&dir.join("server/server.pem"), None).unwrap().remove(0).info;
        assert!(after.names.contains(&"monitor.example".to_owned()) && after.names.contains(&"10.1.2.3".to_owned()));
        assert!(after.until >= before.until && fs::read(dir.join("server/server.key")).unwrap() == key);
        renew_server(dir, &[], true).unwrap();
        assert!(!show(&dir.join("server/server.pem"), None).unwrap()[0].info.names.contains(&"10.1.2.3".to_owned()));

        let report = revoke(dir, &revoked_file, "n2", false).unwrap();
        assert_eq!((report.serials.len(), report.moved.len(), report.all), (1, 2, false));
        assert!(show(&report.moved[0], Some(&revoked_file)).unwrap()[0].revoked);
        assert!(issue_agent_certificate(dir, "n2").unwrap().0.exists(), "a new one can be made");
        assert_eq!(names(true), ["n2"], "it is listed as revoked beside the new one");
        let again = revoke(dir, &revoked_file, "n2", false).unwrap();
        assert_eq!(again.serials.len(), 1, "only the new one is revoked; the archived one was revoked before");
        assert_eq!(names(true), ["n2", "n2"]);
        revoke(dir, &revoked_file, "n1", false).unwrap();
        assert_eq!(names(true), ["n1", "n2", "n2"]);
        let path = dir.join("server/server.pem");
        let old = show(&path, None).unwrap().remove(0).info;
        revoke(dir, &revoked_file, &old.name, false).unwrap();
        assert!(show(&path, Some(&revoked_file)).unwrap()[0].revoked);
        renew_server(dir, &[], false).unwrap();
        let new = show(&path, Some(&revoked_file)).unwrap().remove(0);
        assert!(!new.revoked && new.info.serial != old.serial, "the new certificate has the revoked number: {new:?}");
        let error = revoke(dir, &revoked_file, "n9", false).unwrap_err().to_string();
        assert!(error.contains("\"n9\"") && error.contains("--all"), "{error}");
        assert!(revoke(dir, &revoked_file, "n9", true).unwrap().all);
    }
}
