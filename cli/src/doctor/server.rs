//! Checks of a server: its configuration, the files that it names, its process.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use wholegrain_api::paths;
use wholegrain_server::ServerConfig;
use wholegrain_server::loss_records;

use super::certificates::{self, Use};
use super::findings::Findings;
use super::{files, machine};
use crate::client_file::ClientConfig;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::values::now;

/// The most losses that are listed.
const LOST_SHOWN_MAX: usize = 10;

/// Checks the server of a configuration.
pub fn check(findings: &mut Findings, file: &Path, client: Option<&Path>) {
    let config = match ServerConfig::load(file) {
        Ok(config) => config,
        Err(error) => {
            return findings.fail(
                "configuration",
                error.to_string(),
                "change that line; packaging/server.toml shows every setting",
            );
        }
    };
    findings.ok("configuration", format!("{} is valid", file.display()));
    secrets(findings, &config);
    let pid = data(findings, &config);
    machine::open_files(findings, config.mqtt.limits.connections_max, pid);
    for (setting, address) in [
        ("mqtt.tls_listen", &config.mqtt.tls_listen),
        ("mqtt.listen", &config.mqtt.listen),
        ("http.listen", &config.http.listen),
    ] {
        if let Some(address) = address {
            machine::port(findings, setting, address, pid.is_some());
        }
    }
    if config.mqtt.listen.as_ref().is_some_and(|address| !is_loopback(address)) {
        let text = "mqtt.listen accepts passwords and readings without TLS from other machines";
        findings.warn("configuration", text, "use tls_listen, or listen on 127.0.0.1 only");
    }
    connection(findings, client, pid.is_some());
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn secrets(findings: &mut Findings, config: &ServerConfig) {
    let (mqtt, http) = (&config.mqtt, &config.http);
    let host = wholegrain_transport::host_name();
    let mut pairs = Vec::new();
    if mqtt.tls_listen.is_some() {
        pairs.push((&mqtt.cert, &mqtt.key));
    }
    if http.listen.is_some() {
        pairs.push((&http.cert, &http.key));
    }
    pairs.dedup();
    for (cert, key) in pairs {
        certificates::check(findings, cert, key, mqtt.client_ca.as_deref(), &Use::Server(&host));
        files::secret(findings, "private key", key);
    }
    if let Some(ca) = &mqtt.client_ca {
        certificates::check_authority(findings, ca);
    }
    if http.listen.is_some() {
        files::secret(findings, "tokens_file", &http.tokens_file);
    }
    if let Some(passwords) = &mqtt.password_file {
        files::secret(findings, "password_file", passwords);
    }
}

/// Checks the data directory and its disk. Returns the process that uses it; 0 if its number is unknown.
fn data(findings: &mut Findings, config: &ServerConfig) -> Option<u32> {
    machine::disk(findings, "data", &config.data);
    lost(findings, config);
    files::closed(findings, "store", &config.store.dir);
    let lock = config.store.dir.join("lock");
    let file = File::open(&lock).ok()?;
    // SAFETY: the descriptor belongs to `file`, which lives past the call; closing it gives the lock back.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0 {
        findings.ok("data", format!("{} is not in use; no server runs on it", config.store.dir.display()));
        return None;
    }
    let pid = fs::read_to_string(&lock).ok().and_then(|text| text.trim().parse().ok());
    findings.ok(
        "data",
        format!("a server runs on it, process {}", pid.map_or("unknown".to_owned(), |pid: u32| pid.to_string())),
    );
    pid.or(Some(0))
}

/// Reports losses of the journal that nobody has acknowledged.
fn lost(findings: &mut Findings, config: &ServerConfig) {
    match loss_records(&config.store.dir) {
        Ok(lost) => {
            for lost in lost.iter().take(LOST_SHOWN_MAX) {
                let advice = "find the cause of the damage, then `wholegrain config lost --acknowledge ID`";
                findings.fail("data", format!("{}: {}", lost.id, lost.sentence()), advice);
            }
        }
        Err(error) => {
            findings.warn("data", error.to_string(), "run doctor as the user that the service runs as, or as root")
        }
    }
}

fn connection(findings: &mut Findings, client: Option<&Path>, runs: bool) {
    const CHECK: &str = "connection";
    match ClientConfig::find(client) {
        Ok(Some(_)) => {}
        Ok(None) => {
            return findings.warn(
                CHECK,
                "found no client.toml with the server's address",
                "name one with --client FILE",
            );
        }
        Err(failure) => {
            return findings.fail(CHECK, text(&failure), "correct this file, or name another with --client FILE");
        }
    }
    let connection = match Connection::open(client) {
        Ok(connection) => connection,
        Err(failure) => {
            return findings.fail(CHECK, text(&failure), "correct client.toml or the file that the message names");
        }
    };
    match connection.get(paths::HEALTHZ).send() {
        Ok(response) => {
            if let Some(date_s) = response.date_s {
                machine::skew(findings, now().0 / 1_000_000_000 - date_s);
            }
        }
        Err(failure) if runs => {
            return findings.fail(CHECK, text(&failure), "see the server's log (journalctl -u wholegrain-server)");
        }
        Err(failure) => {
            return findings.warn(CHECK, text(&failure), "no server runs here: systemctl start wholegrain-server");
        }
    }
    match connection.get(paths::SENSORS).query("pattern", "/doctor-matches-nothing").send() {
        Ok(_) => findings.ok(CHECK, format!("{} responds and accepts the token", connection.url())),
        Err(failure) => {
            findings.fail(
                CHECK,
                text(&failure),
                "`wholegrain auth token create` makes a token; write it into token_file",
            );
        }
    }
}

fn text(failure: &Failure) -> String {
    failure.report().1.unwrap_or_default().to_owned()
}
