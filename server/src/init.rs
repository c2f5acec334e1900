//! Creates the files of an installation: a local authority, certificates, a token and its hash, and three configurations.

mod cassandra;
mod system;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use wholegrain_model::batch::AGENT_BYTES_MAX;
use wholegrain_model::name;
use wholegrain_model::{SensorPath, Timestamp};
use wholegrain_store::path_owners::{check_above, check_directory, check_directory_owner};
use wholegrain_transport::host_name;

use crate::ServerConfig;
use crate::access::Role;
use crate::access::files::FileError;
use crate::access::tokens::{self, NewToken};
use crate::authority::check_hosts;
use crate::pki::{self, KeyPairFiles};

/// The longest common name that X.509 allows (RFC 5280, ub-common-name), in characters.
const COMMON_NAME_MAX: usize = 64;

pub use cassandra::init_cassandra;
pub use system::init_system;

/// Options of a new installation.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// The agent's name; `None` for the host's name.
    pub agent: Option<String>,
    /// Host or address that server.toml listens on.
    pub listen_host: String,
    /// Names and addresses under which agents and clients reach the server, besides this host's name and localhost.
    pub reached_as: Vec<String>,
    /// Port for MQTT over TLS.
    pub mqtt_port: u16,
    pub http_port: u16,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self {
            agent: None,
            listen_host: "localhost".to_owned(),
            reached_as: Vec::new(),
            mqtt_port: 8883,
            http_port: 8443,
        }
    }
}

/// Files that [`init`] found and wrote.
#[derive(Debug, Clone, Default)]
pub struct InitReport {
    pub created: Vec<PathBuf>,
    /// Existing files, left unchanged.
    pub kept: Vec<PathBuf>,
    /// Files of an earlier version that were updated.
    pub changed: Vec<PathBuf>,
    pub agent: String,
}

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("cannot {doing} {path}: {error}", path = path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    #[error("cannot make the certificate {path}: {error}", path = path.display())]
    Certificate { path: PathBuf, error: rcgen::Error },
    /// An invalid agent name.
    #[error("{0:?} cannot be an agent's name: {1}")]
    Name(String, String),
    /// A certificate without its key, or the reverse.
    #[error("{present} exists but {missing} does not; restore it, or remove {present} to have both created", present = present.display(), missing = missing.display())]
    Half { present: PathBuf, missing: PathBuf },
    /// There is no authority to sign with.
    #[error("there is no authority at {path}; name the directory of the installation with --dir, on the machine where `wholegrain init` or `wholegrain up` made it", path = path.display())]
    NoAuthority { path: PathBuf },
    /// An invalid server address.
    #[error("{0:?} is not an address; write host:port, such as monitor.example:8883 or [2001:db8::1]:8883")]
    Address(String),
    /// The file of tokens or of revoked certificates could not be changed.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot make a token: {0}")]
    Token(String),
    /// The request is refused; the text says why.
    #[error("{0}")]
    Refused(String),
}

/// Creates the missing files of an installation in `dir` and leaves existing ones unchanged. Private keys and the token are readable by their owner
/// only.
pub fn init(dir: &Path, options: &InitOptions) -> Result<InitReport, InitError> {
    let host = host_name();
    let agent = options.agent.clone().unwrap_or_else(|| host.clone());
    check_agent_name(&agent)?;
    check_hosts(&options.reached_as)?;
    let mut files = InstallationFiles { dir, report: InitReport { agent: agent.clone(), ..InitReport::default() } };
    check_above(dir).map_err(InitError::Refused)?;
    for sub in ["", "server", "server/store", "agent", "agent/spool"] {
        let path = dir.join(sub);
        check_directory_owner(&path).map_err(InitError::Refused)?;
        // Stored and spooled readings are private; certificates and the client configuration are readable by all users.
        let mode = if sub.is_empty() || sub == "agent" { 0o755 } else { 0o750 };
        let made = fs::DirBuilder::new().recursive(true).mode(mode).create(&path);
        made.map_err(io_error("create the directory", &path))?;
    }
    let authority = files.pair("ca.pem", "ca.key", || pki::new_authority(&host))?;
    files.pair("server/server.pem", "server/server.key", || pki::new_server(&authority, &host, &options.reached_as))?;
    files.pair("agent/agent.pem", "agent/agent.key", || pki::new_agent(&authority, &agent))?;
    files.token()?;
    files.text("server/passwords", 0o600, PASSWORDS)?;
    files.text("server/server.toml", 0o644, &server_toml(options))?;
    files.text(
        "agent/agent.toml",
        0o644,
        &agent_toml(&agent, &format!("/{agent}"), &format!("localhost:{}", options.mqtt_port), "../ca.pem", "agent"),
    )?;
    files.text("client.toml", 0o644, &client_toml(options))?;
    Ok(files.report)
}

/// Signs a certificate for another agent with the authority in `dir` and returns the paths of `agents/<name>.pem` and `.key`. Existing files stay
/// unchanged.
pub fn issue_agent_certificate(dir: &Path, name: &str) -> Result<(PathBuf, PathBuf), InitError> {
    let mut files = InstallationFiles { dir, report: InitReport::default() };
    files.agent_pair(name)?;
    Ok((dir.join(format!("agents/{name}.pem")), dir.join(format!("agents/{name}.key"))))
}

/// Options of another agent.
#[derive(Debug, Clone, Default)]
pub struct AgentOptions {
    /// One level of a sensor path; the certificate's common name.
    pub name: String,
    /// The prefix of its sensors; `None` for `/<name>`.
    pub prefix: Option<SensorPath>,
    /// `host:port` of the server as the agent sees it; `None` for this host and the port of server.toml.
    pub server: Option<String>,
}

/// The files that [`add_agent`] created, and remarks for an administrator.
#[derive(Debug, Clone, Default)]
pub struct AgentReport {
    /// New files, and existing ones that stay unchanged.
    pub files: InitReport,
    /// The files to copy into one directory of the node: authority, certificate, key, configuration.
    pub to_copy: [PathBuf; 4],
    /// The server's address in the agent's configuration.
    pub server: String,
    /// The names in the server's certificate, if the server's address is not one of them.
    pub certificate_names: Option<Vec<String>>,
    /// The server's listening address, if other machines cannot reach it.
    pub listens_only_here: Option<String>,
    /// Whether the server accepts the prefix from this agent only if `[mqtt.prefixes]` lists it.
    pub prefix_must_be_listed: bool,
}

/// Creates `agents/<name>.{pem,key,toml}` below `dir`: a certificate for another agent and a configuration to copy to its node. Existing files stay
/// unchanged.
pub fn add_agent(dir: &Path, options: &AgentOptions) -> Result<AgentReport, InitError> {
    let name = options.name.as_str();
    let mut files = InstallationFiles { dir, report: InitReport { agent: name.to_owned(), ..InitReport::default() } };
    // Only if the server is on this machine; elsewhere the authority is enough.
    let config = ["server/server.toml", "server.toml"].iter().find_map(|file| ServerConfig::load(&dir.join(file)).ok());
    let listens = config.as_ref().and_then(|config| config.mqtt.tls_listen.clone());
    let port = listens.as_deref().and_then(port_of).unwrap_or(InitOptions::default().mqtt_port);
    let server = match &options.server {
        None => format!("{}:{port}", host_name()),
        Some(given) => checked_address(given, port)?,
    };
    files.agent_pair(name)?;
    let prefix = match &options.prefix {
        Some(prefix) => prefix.as_str().to_owned(),
        None => format!("/{name}"),
    };
    let toml = format!("agents/{name}.toml");
    files.text(&toml, 0o644, &agent_toml(name, &prefix, &server, "ca.pem", name))?;
    let certificate = config.and_then(|config| fs::read_to_string(config.mqtt.cert).ok());
    let names = certificate.map(|pem| pki::alternative_names(&pem));
    let host = host_of(&server).to_lowercase();
    Ok(AgentReport {
        to_copy: [
            dir.join("ca.pem"),
            dir.join(format!("agents/{name}.pem")),
            dir.join(format!("agents/{name}.key")),
            dir.join(&toml),
        ],
        certificate_names: names.filter(|names| !names.iter().any(|name| name.to_lowercase() == host)),
        listens_only_here: listens.filter(|address| is_loopback(host_of(address))),
        prefix_must_be_listed: !prefix.split('/').any(|level| level == name),
        server,
        files: files.report,
    })
}

/// The authority's certificate and key.
pub(crate) fn authority(dir: &Path) -> Result<KeyPairFiles, InitError> {
    let read = |file: &str| {
        let path = dir.join(file);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(InitError::NoAuthority { path }),
            result => result.map_err(io_error("read the authority's", &path)),
        }
    };
    Ok(KeyPairFiles { cert: read("ca.pem")?, key: read("ca.key")? })
}

fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Checks an address and adds the port if it has none.
fn checked_address(given: &str, port: u16) -> Result<String, InitError> {
    let refuse = || Err(InitError::Address(given.to_owned()));
    let bracketed = given.starts_with('[');
    let address = match given.rsplit_once(':') {
        Some((_, end)) if !bracketed || !end.ends_with(']') => {
            if end.parse::<u16>().is_err() {
                return refuse();
            }
            given.to_owned()
        }
        _ => format!("{given}:{port}"),
    };
    let host = host_of(&address);
    let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if (bracketed && is_address) || (!bracketed && is_name) { Ok(address) } else { refuse() }
}

pub(crate) fn check_agent_name(name: &str) -> Result<(), InitError> {
    let refuse = |reason: String| Err(InitError::Name(name.to_owned(), reason));
    if let Err(error) = name::check_relative(name) {
        return refuse(error.to_string());
    }
    if name.contains('/') || name.len() > AGENT_BYTES_MAX {
        return refuse(format!("write one level of at most {AGENT_BYTES_MAX} bytes without `/`"));
    }
    if name.chars().count() > COMMON_NAME_MAX {
        return refuse(format!(
            "a certificate's common name has at most {COMMON_NAME_MAX} characters; choose a shorter name"
        ));
    }
    Ok(())
}

pub(crate) fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> InitError + 'a {
    move |error| InitError::Io { doing, path: path.to_owned(), error }
}

struct InstallationFiles<'a> {
    dir: &'a Path,
    report: InitReport,
}

impl InstallationFiles<'_> {
    /// Writes a file unless it exists. A crash leaves no file or the whole file.
    fn text(&mut self, name: &str, mode: u32, text: &str) -> Result<(), InitError> {
        let path = self.dir.join(name);
        if path.exists() {
            self.report.kept.push(path);
            return Ok(());
        }
        self.write(name, mode, text)?;
        self.report.created.push(path);
        Ok(())
    }

    /// Writes a file; replaces an existing one.
    fn write(&mut self, name: &str, mode: u32, text: &str) -> Result<(), InitError> {
        let path = self.dir.join(name);
        let temporary = self.dir.join(format!("{name}.new"));
        let mut options = fs::OpenOptions::new();
        // Always a new file, so that root follows no symbolic link of another user.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error("remove", &temporary)(error));
            }
            _ => {}
        }
        options.write(true).create_new(true).mode(mode);
        let mut file = options.open(&temporary).map_err(io_error("write", &temporary))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io_error("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(io_error("write", &path))
    }

    /// The client's admin token, and its hash for the server. Adds the hash if the token is new or the file of hashes does not exist.
    fn token(&mut self) -> Result<(), InitError> {
        let hashes = self.dir.join("server/tokens");
        let (new, now) = new_token();
        let path = self.dir.join("token");
        if !path.exists() {
            let there = hashes.exists();
            let (token, _) = tokens::create(&hashes, &new, now)?;
            if there { &mut self.report.changed } else { &mut self.report.created }.push(hashes);
            return self.text("token", 0o600, &format!("{token}\n"));
        }
        if !hashes.exists() {
            let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
            let entry = tokens::entry_of(text.trim(), &new, now).map_err(InitError::Token)?;
            self.text("server/tokens", 0o600, &tokens::line(&entry))?;
        } else {
            self.report.kept.push(hashes);
        }
        self.report.kept.push(path);
        Ok(())
    }

    /// `agents/<name>.pem` and `.key`, signed by the installation's authority.
    fn agent_pair(&mut self, name: &str) -> Result<(), InitError> {
        check_agent_name(name)?;
        let authority = authority(self.dir)?;
        let agents = self.dir.join("agents");
        check_directory(self.dir).and_then(|()| check_directory_owner(&agents)).map_err(InitError::Refused)?;
        fs::create_dir_all(&agents).map_err(io_error("create the directory", &agents))?;
        let (cert, key) = (format!("agents/{name}.pem"), format!("agents/{name}.key"));
        self.pair(&cert, &key, || pki::new_agent(&authority, name)).map(drop)
    }

    /// A certificate and its key, created if neither exists.
    fn pair(
        &mut self,
        cert: &str,
        key: &str,
        make: impl FnOnce() -> Result<KeyPairFiles, rcgen::Error>,
    ) -> Result<KeyPairFiles, InitError> {
        let (cert_path, key_path) = (self.dir.join(cert), self.dir.join(key));
        match (cert_path.exists(), key_path.exists()) {
            (false, false) => {
                let pair = make().map_err(|error| InitError::Certificate { path: cert_path, error })?;
                self.text(key, 0o600, &pair.key)?;
                self.text(cert, 0o644, &pair.cert)?;
                Ok(pair)
            }
            (true, true) => {
                let pair = KeyPairFiles {
                    cert: fs::read_to_string(&cert_path).map_err(io_error("read", &cert_path))?,
                    key: fs::read_to_string(&key_path).map_err(io_error("read", &key_path))?,
                };
                self.report.kept.extend([cert_path, key_path]);
                Ok(pair)
            }
            (true, false) => Err(InitError::Half { present: cert_path, missing: key_path }),
            (false, true) => Err(InitError::Half { present: key_path, missing: cert_path }),
        }
    }
}

/// A new token for the command on this machine.
fn new_token() -> (NewToken, Timestamp) {
    let now = Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64));
    (NewToken { name: "wholegrain command".to_owned(), role: Role::Admin, expires: None }, now)
}

/// A password file without users.
const PASSWORDS: &str = "# Users with passwords, one name:hash a line; `wholegrain auth user add NAME` adds one.\n";

fn server_toml(options: &InitOptions) -> String {
    let InitOptions { listen_host, mqtt_port, http_port, .. } = options;
    format!(
        r#"# Written by `wholegrain init`; change it as you like. packaging/server.toml shows every setting.
# Only this machine is listened to. For agents on others: tls_listen = "[::]:{mqtt_port}".
data = "."

[mqtt]
tls_listen = "{listen_host}:{mqtt_port}"
cert = "server.pem"
key = "server.key"
client_ca = "../ca.pem"
# Users with passwords, changed by `wholegrain auth user`.
password_file = "passwords"

[http]
listen = "{listen_host}:{http_port}"
cert = "server.pem"
key = "server.key"
# Hashes of bearer tokens, changed by `wholegrain auth token`.
tokens_file = "tokens"
"#
    )
}

/// An agent's configuration; `cert` is the file name of certificate and key without extension.
fn agent_toml(agent: &str, prefix: &str, server: &str, ca: &str, cert: &str) -> String {
    format!(
        r#"# Written by `wholegrain`; change it as you like. Relative paths are relative to this file; packaging/agent.toml shows every setting.
# wholegrain-agent --config FILE --check says what it means.
name = "{agent}"
prefix = "{prefix}"

[defaults]
interval = "1s"

[mqtt]
url = "mqtts://{server}"
ca = "{ca}"
cert = "{cert}.pem"
key = "{cert}.key"

[spool]
dir = "spool"

[api]
socket = "agent.sock"

[jobs]
dir = "jobs"
socket = "jobs.sock"

[sources.procfs]

[sources.sysfs]

[sources.timex]

[sources.inventory]

[sources.cgroup]

[sources.perf]

[sources.tasks]
"#
    )
}

fn client_toml(options: &InitOptions) -> String {
    let port = options.http_port;
    format!(
        r#"# Where the `wholegrain` command finds the server and the agent. Relative paths are relative to this file.
url = "https://localhost:{port}"
token_file = "token"
ca = "ca.pem"
agent_socket = "agent/agent.sock"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn options() -> InitOptions {
        InitOptions { agent: Some("node-1".to_owned()), mqtt_port: 18883, http_port: 18443, ..InitOptions::default() }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nothing_is_made_in_a_directory_of_another_user() {
        // SAFETY: the call has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("NOT TESTED: only root can give a directory to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &options()).unwrap();
        for sub in ["", "server", "agent/spool"] {
            let path = dir.path().join(sub);
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let error = init(dir.path(), &options()).unwrap_err().to_string();
            assert!(error.contains("belongs to another user (uid 65534)"), "{sub}: {error}");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        init(dir.path(), &options()).unwrap();
        let above = dir.path().join("above");
        fs::create_dir(&above).unwrap();
        std::os::unix::fs::chown(&above, Some(65_534), None).unwrap();
        let made = [init(&above.join("var"), &options()), init_system(&above.join("etc"), &options())];
        for error in made.map(|made| made.unwrap_err().to_string()) {
            assert!(error.contains("above, which contains ") && error.contains("(uid 65534)"), "{error}");
        }
        assert_eq!(fs::read_dir(&above).unwrap().count(), 0);
    }

    #[test]
    fn a_fresh_installation_is_whole_and_keeps_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let report = init(dir.path(), &options()).unwrap();
        assert_eq!((report.agent.as_str(), report.kept.len()), ("node-1", 0));
        for (file, expected) in [
            ("ca.key", 0o600),
            ("server/server.key", 0o600),
            ("agent/agent.key", 0o600),
            ("token", 0o600),
            ("server/tokens", 0o600),
            ("server/passwords", 0o600),
            ("ca.pem", 0o644),
            ("server/server.pem", 0o644),
            ("agent/agent.pem", 0o644),
            ("server/server.toml", 0o644),
            ("agent/agent.toml", 0o644),
            ("client.toml", 0o644),
        ] {
            let path = dir.path().join(file);
            assert!(report.created.contains(&path), "{file}");
            assert_eq!(mode(&path) & !0o022, expected & !0o022, "{file}");
        }
        let config = ServerConfig::load(&dir.path().join("server/server.toml")).unwrap();
        assert_eq!(config.mqtt.tls_listen.as_deref(), Some("localhost:18883"));
        assert!(
            config.http.tokens_file.exists() && config.mqtt.client_ca.unwrap().exists() && config.store.dir.is_dir()
        );
        let token = fs::read_to_string(dir.path().join("token")).unwrap();
        let hashes = fs::read_to_string(dir.path().join("server/tokens")).unwrap();
        assert!(token.trim().len() >= tokens::TOKEN_BYTES && !hashes.contains(token.trim()));
        assert_eq!(tokens::list(&config.http.tokens_file).unwrap()[0].role, Role::Admin);
        for file in ["agent/agent.toml", "client.toml"] {
            toml::from_str::<toml::Table>(&fs::read_to_string(dir.path().join(file)).unwrap()).unwrap();
        }
    }

    #[test]
    fn existing_files_are_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let first = init(dir.path(), &options()).unwrap();
        fs::write(dir.path().join("server/server.toml"), "# mine\n").unwrap();
        fs::remove_file(dir.path().join("client.toml")).unwrap();
        let before: Vec<_> = first.created.iter().map(|path| fs::read(path).ok()).collect();
        let second = init(dir.path(), &options()).unwrap();
        assert_eq!(second.created, [dir.path().join("client.toml")]);
        assert_eq!(second.kept.len() + 1, first.created.len());
        for (path, before) in first.created.iter().zip(before) {
            assert!(before.is_none() || before == fs::read(path).ok(), "{}", path.display());
        }
    }

    #[test]
    fn a_lost_file_of_tokens_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &options()).unwrap();
        let path = |file: &str| dir.path().join(file);
        let token = fs::read_to_string(path("token")).unwrap();
        fs::remove_file(path("server/tokens")).unwrap();
        let report = init(dir.path(), &options()).unwrap();
        assert_eq!((report.created, report.changed), (vec![path("server/tokens")], vec![]));
        assert_eq!(fs::read_to_string(path("token")).unwrap(), token);
        let entry = tokens::list(&path("server/tokens")).unwrap().remove(0);
        let new = NewToken { name: String::new(), role: Role::Admin, expires: None };
        assert_eq!(tokens::entry_of(token.trim(), &new, Timestamp(0)).unwrap().sha256, entry.sha256);
        assert!(ServerConfig::load(&path("server/server.toml")).unwrap().http.tokens_file.ends_with("server/tokens"));
        // A lost token is replaced, and the server knows the new one.
        fs::remove_file(path("token")).unwrap();
        let report = init(dir.path(), &options()).unwrap();
        assert_eq!((report.created, report.changed), (vec![path("token")], vec![path("server/tokens")]));
        assert_eq!(tokens::list(&path("server/tokens")).unwrap().len(), 2);
    }

    #[test]
    fn one_more_agent_gets_certificate_and_configuration_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let added = |name: &str, prefix: Option<&str>, server: Option<&str>| {
            let prefix = prefix.map(|prefix| SensorPath::new(prefix).unwrap());
            let options = AgentOptions { name: name.to_owned(), prefix, server: server.map(str::to_owned) };
            add_agent(dir.path(), &options)
        };
        let error = added("n7", None, None).unwrap_err();
        assert!(matches!(error, InitError::NoAuthority { .. }) && error.to_string().contains("--dir"), "{error}");
        init(dir.path(), &InitOptions { reached_as: vec!["monitor.example".to_owned()], ..options() }).unwrap();
        let report = added("n7", Some("/lab/rack1/n7"), Some("Monitor.example:8883")).unwrap();
        assert_eq!(report.files.created.len(), 3);
        assert_eq!((&report.certificate_names, report.prefix_must_be_listed), (&None, false));
        assert_eq!(report.listens_only_here.as_deref(), Some("localhost:18883"));
        assert!(report.to_copy.iter().all(|path| path.is_file()));
        assert_eq!(mode(&report.to_copy[2]), 0o600);
        let text = fs::read_to_string(&report.to_copy[3]).unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!((table["name"].as_str(), table["prefix"].as_str()), (Some("n7"), Some("/lab/rack1/n7")));
        assert_eq!(table["mqtt"]["url"].as_str(), Some("mqtts://Monitor.example:8883"));
        assert_eq!((table["mqtt"]["ca"].as_str(), table["mqtt"]["cert"].as_str()), (Some("ca.pem"), Some("n7.pem")));
        let again = added("n7", None, None).unwrap();
        assert_eq!((again.files.created.len(), again.files.kept.len()), (0, 3));
        assert_eq!(fs::read_to_string(&report.to_copy[3]).unwrap(), text);
        let other = added("n8", Some("/lab/rack1"), Some("10.0.0.9")).unwrap();
        assert_eq!((other.server.as_str(), other.prefix_must_be_listed), ("10.0.0.9:18883", true));
        assert!(other.certificate_names.unwrap().contains(&"monitor.example".to_owned()));
    }

    #[test]
    fn addresses_of_the_server() {
        for (given, expected) in [
            ("h", Some("h:1")),
            ("h.example:5", Some("h.example:5")),
            ("10.0.0.1", Some("10.0.0.1:1")),
            ("[::1]", Some("[::1]:1")),
            ("[2001:db8::1]:5", Some("[2001:db8::1]:5")),
            ("::1", None),
            ("h:x", None),
            (":5", None),
            ("", None),
            ("mqtts://h:5", None),
            ("h\"\n:5", None),
        ] {
            assert_eq!(checked_address(given, 1).ok().as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn half_a_pair_and_bad_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &options()).unwrap();
        let (cert, key) = issue_agent_certificate(dir.path(), "node-2").unwrap();
        assert_eq!(mode(&key), 0o600);
        let before = fs::read(&cert).unwrap();
        assert_eq!(issue_agent_certificate(dir.path(), "node-2").unwrap().0, cert);
        assert_eq!(fs::read(&cert).unwrap(), before);
        fs::remove_file(&key).unwrap();
        let error = issue_agent_certificate(dir.path(), "node-2").unwrap_err().to_string();
        assert!(error.contains("node-2.key does not; restore it"), "{error}");
        let hosts = InitOptions { reached_as: vec!["good.example".to_owned(), "a b".to_owned()], ..options() };
        let fresh = dir.path().join("fresh");
        for error in [init(&fresh, &hosts).unwrap_err(), init_system(&fresh, &hosts).unwrap_err()] {
            assert!(error.to_string().contains("\"a b\"") && !fresh.exists(), "{error}");
        }
        for name in ["", "a/b", "..", "a b", "a#", &"x".repeat(65)] {
            assert!(matches!(issue_agent_certificate(dir.path(), name), Err(InitError::Name(..))), "{name}");
        }
    }
}
