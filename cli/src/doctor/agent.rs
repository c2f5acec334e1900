//! Checks of an agent: its configuration, the files that it names, the connection to its server, its process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::config::Document;
use wholegrain_transport::client::{Client, ClientConfig};
use wholegrain_transport::tls::{self, Identity};

use super::certificates::{self, Use};
use super::findings::Findings;
use super::{files, machine};
use crate::socket;

/// How long connecting to the server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings that are checked here; the agent itself checks the whole file.
#[derive(Deserialize, Default)]
#[serde(default)]
struct AgentFile {
    name: Option<String>,
    mqtt: Option<Mqtt>,
    spool: Option<Spool>,
    api: Api,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Mqtt {
    url: Option<String>,
    /// Several servers in place of `url`.
    urls: Vec<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

impl Mqtt {
    fn urls(&self) -> impl Iterator<Item = &String> {
        self.url.iter().chain(&self.urls)
    }
}

#[derive(Deserialize)]
struct Spool {
    dir: PathBuf,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Api {
    socket: Option<PathBuf>,
    token_file: Option<PathBuf>,
    tokens_file: Option<PathBuf>,
}

/// Checks the agent of a configuration.
pub fn check(findings: &mut Findings, file: &Path) {
    const CHECK: &str = "configuration";
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            return findings.fail(
                CHECK,
                format!("cannot read {}: {error}", file.display()),
                "name it with --agent FILE",
            );
        }
    };
    let config: AgentFile = match Document::new(&file.display().to_string(), &text).parse() {
        Ok(config) => config,
        Err(error) => return findings.fail(CHECK, error.to_string(), "change that line"),
    };
    if !checked_by_itself(findings, file) {
        return;
    }
    let base = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = config.name.clone().unwrap_or_else(wholegrain_transport::host_name);
    if let Some(token) = &config.api.token_file {
        files::secret(findings, "token_file", &base.join(token));
    }
    if let Some(tokens) = &config.api.tokens_file {
        files::secret(findings, "tokens_file", &base.join(tokens));
    }
    if let Some(spool) = &config.spool {
        machine::disk(findings, "spool", &base.join(&spool.dir));
    }
    match &config.mqtt {
        Some(mqtt) => server(findings, mqtt, base, &name),
        None => {
            findings.warn("connection", "the agent sends nothing: it has no [mqtt]", "add it, with the server's url")
        }
    }
    if let Some(socket) = &config.api.socket {
        running(findings, &base.join(socket));
    }
}

/// Lets the agent's program check its configuration. Returns false if it is wrong.
fn checked_by_itself(findings: &mut Findings, file: &Path) -> bool {
    const CHECK: &str = "configuration";
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name("wholegrain-agent"));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| "wholegrain-agent".into());
    match Command::new(&program).arg("--config").arg(file).args(["--check", "--log-level", "error"]).output() {
        Ok(output) if output.status.success() => {
            findings.ok(CHECK, format!("{} is valid", file.display()));
            true
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default().trim_start_matches("wholegrain-agent: ").to_owned();
            findings.fail(CHECK, said, "change that line; packaging/agent.toml shows every setting");
            false
        }
        Err(error) => {
            let text = format!("{} cannot be started to check {}: {error}", program.display(), file.display());
            findings.warn(CHECK, text, "install wholegrain-agent; the other checks follow");
            true
        }
    }
}

fn server(findings: &mut Findings, mqtt: &Mqtt, base: &Path, name: &str) {
    const CHECK: &str = "connection";
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| base.join(path));
    let (ca, cert, key) = (path(&mqtt.ca), path(&mqtt.cert), path(&mqtt.key));
    if let Some(ca) = &ca {
        certificates::check_authority(findings, ca);
    }
    if let (Some(cert), Some(key)) = (&cert, &key) {
        certificates::check(findings, cert, key, ca.as_deref(), &Use::Agent(name));
        files::secret(findings, "private key", key);
    }
    let mut password = None;
    if let Some(file) = path(&mqtt.password_file) {
        files::secret(findings, "password_file", &file);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        password = text.lines().next().map(|line| line.trim_end().to_owned());
    }
    let identity = cert.as_deref().zip(key.as_deref()).map(|(cert, key)| Identity { cert, key });
    let tls = match &ca {
        Some(ca) if mqtt.urls().any(|url| url.starts_with("mqtts:")) => match tls::client_config(ca, identity) {
            Ok(tls) => Some(tls),
            Err(error) => return findings.fail(CHECK, error.to_string(), "see the certificates above"),
        },
        _ => None,
    };
    let config = ClientConfig {
        // The agent's own session must continue, so this client has another id.
        client_id: format!("{name}-doctor"),
        user: mqtt.user.clone(),
        password,
        tls,
        connect_timeout: CONNECT_TIMEOUT,
        ..ClientConfig::default()
    };
    for url in mqtt.urls() {
        match Client::connect(&ClientConfig { url: url.clone(), ..config.clone() }) {
            Ok(_) => findings.ok(CHECK, format!("{url} accepts {name}")),
            Err(error) => findings.fail(
                CHECK,
                format!("{url}: {error}"),
                "does the server run, is its name in its certificate, does it know this agent? see its log",
            ),
        }
    }
}

/// The checked part of the agent's status.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    jobs: JobLoad,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobLoad {
    waiting: u64,
    skipped: u64,
    directories_skipped: u64,
    descriptors_refused: u64,
}

/// Warns if jobs exceed the bounds of the agent.
fn of_jobs(findings: &mut Findings, jobs: &JobLoad) {
    let kinds = [
        (jobs.waiting, "jobs are not sampled, because other jobs use all sensors or files that jobs may have"),
        (jobs.skipped, "directories of jobs are skipped, because there are too many jobs"),
        (jobs.directories_skipped, "directories are skipped, because their users have too many"),
        (jobs.descriptors_refused, "files of jobs were not opened, because jobs have too many open files"),
    ];
    for (count, what) in kinds.into_iter().filter(|(count, _)| *count > 0) {
        findings.warn(
            "jobs",
            format!("{count} {what}"),
            "`wholegrain ctl jobs` lists the jobs; raise [jobs.bounds] if necessary",
        );
    }
}

fn running(findings: &mut Findings, path: &Path) {
    const CHECK: &str = "agent";
    match socket::send(path, "GET", "/v1/status", None) {
        Ok((200, body)) => {
            findings.ok(CHECK, format!("it runs and responds at {}", path.display()));
            let status: Status = serde_json::from_slice(&body).unwrap_or_default();
            of_jobs(findings, &status.jobs);
        }
        Ok((status, _)) => {
            findings.warn(CHECK, format!("{} responds with status {status}", path.display()), "restart the agent");
        }
        Err(error) => findings.warn(
            CHECK,
            format!("no response at {}: {error}", path.display()),
            "systemctl start wholegrain-agent, and run this as root",
        ),
    }
}
