//! `[mqtt]` and `[spool]`, checked.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_transport::mqtt::Version;
use wholegrain_transport::tls;

use super::raw;
use super::secret::read_secret;
use super::server_url::ServerUrl;

/// The shortest send interval: 1 ms.
const SEND_INTERVAL_NS_MIN: u64 = 1_000_000;
/// The longest send interval: 1 h.
const SEND_INTERVAL_NS_MAX: u64 = 3_600_000_000_000;
/// The smallest queue, so that a few large batches fit: 64 KiB.
const QUEUE_BYTES_MIN: u64 = 64 << 10;
/// The smallest spool: 1 MiB.
const SPOOL_BYTES_MIN: u64 = 1 << 20;
/// The most bursts a minute.
const BURSTS_PER_MINUTE_MAX: u32 = 600;

/// When batches are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    Continuous,
    /// Once in each send interval, at an instant that depends on the agent's name.
    Staggered,
    /// At a fixed rate, on the wall clock.
    Burst {
        per_minute: u32,
    },
}

/// The servers, and how batches are sent to the one in use.
#[derive(Clone)]
pub struct MqttConfig {
    /// At least one; all with TLS or all without.
    pub servers: Vec<ServerUrl>,
    pub version: Version,
    /// For a server with passwords.
    pub user: Option<String>,
    pub password: Option<String>,
    /// Only for `mqtts` URLs.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Files of the TLS configuration: authority, certificate and key.
    pub tls_files: Option<(PathBuf, Option<(PathBuf, PathBuf)>)>,
    /// A hash of those files' contents, so that a reload applies a renewed certificate.
    pub tls_print: u64,
    pub mode: SendMode,
    pub send_interval: Interval,
    /// The bound of unsent and unacknowledged batches in memory.
    pub queue_bytes_max: ByteSize,
    /// The MQTT keep-alive interval.
    pub keep_alive: Interval,
    /// The longest time for connecting to one address; `None`: it depends on whether there are others.
    pub connect_timeout: Option<Interval>,
    /// With several addresses: how long a server may send nothing while messages or a ping are unanswered.
    pub answer_timeout: Interval,
    /// How often an agent looks whether it can return to a server that it prefers, and looks up the servers' names.
    pub return_interval: Interval,
}

impl MqttConfig {
    /// The servers as a text for people.
    pub fn shown(&self) -> String {
        self.servers.iter().map(|server| server.text.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub fn uses_tls(&self) -> bool {
        self.servers.iter().any(|server| server.address.tls)
    }

    /// Whether another configuration differs at most in the list of servers and the choice among them, so that a connection can stay.
    pub fn is_same_connection(&self, other: &Self) -> bool {
        let Self { servers, answer_timeout, return_interval, .. } = self.clone();
        let theirs = Self { servers, answer_timeout, return_interval, ..other.clone() };
        self.uses_tls() == other.uses_tls() && *self == theirs
    }
}

impl std::fmt::Debug for MqttConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MqttConfig").field("urls", &self.shown()).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl PartialEq for MqttConfig {
    fn eq(&self, other: &Self) -> bool {
        let key = |c: &Self| {
            (
                (c.servers.clone(), c.version, c.user.clone(), c.password.clone(), c.tls_files.clone(), c.tls_print),
                (c.mode, c.send_interval, c.queue_bytes_max, c.keep_alive),
                (c.connect_timeout, c.answer_timeout, c.return_interval),
            )
        };
        key(self) == key(other)
    }
}

/// The queue on disk.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpoolConfig {
    /// A directory for this agent only.
    pub dir: PathBuf,
    #[serde(default = "spool_bytes_max")]
    pub bytes_max: ByteSize,
    /// Batches that are unsent or unacknowledged for longer go to the disk.
    #[serde(default = "after")]
    pub after: Interval,
    /// How often the spool is synced.
    #[serde(default = "flush_every")]
    pub flush_every: Interval,
    /// The most bytes that are drained in a second.
    pub drain_bytes_per_second: Option<ByteSize>,
    /// The fraction of the server's window for draining beside live batches, above 0, at most 1.
    #[serde(default = "drain_share")]
    pub drain_share: f64,
}

fn spool_bytes_max() -> ByteSize {
    ByteSize::mib(256)
}

fn after() -> Interval {
    Interval::from_s(5)
}

fn flush_every() -> Interval {
    Interval::from_s(1)
}

fn drain_share() -> f64 {
    0.5
}

/// The servers, and the key that names them.
fn servers(section: &Section, raw: &mut raw::RawMqtt) -> Result<(Vec<ServerUrl>, &'static str), ConfigError> {
    match (&raw.url, raw.urls.take()) {
        (Some(url), None) => match ServerUrl::parse(url) {
            Ok(server) => Ok((vec![server], "url")),
            Err(why) => Err(section.error("url", format!("url = {url:?}: {why}"))),
        },
        (None, Some(urls)) => Ok((urls.0, "urls")),
        (Some(_), Some(_)) => {
            Err(section.error("urls", "url and urls exclude each other; write all servers into urls and remove url"))
        }
        (None, None) => Err(section.error("url", "[mqtt] needs `url`, the server, or `urls`, a list of servers")),
    }
}

pub(super) fn check(section: &Section, mut raw: raw::RawMqtt, dir: &Path) -> Result<MqttConfig, ConfigError> {
    let (servers, servers_key) = servers(section, &mut raw)?;
    let uses_tls = servers.iter().any(|server| server.address.tls);
    let tls_files = tls_files(section, &raw, uses_tls.then_some(servers_key), dir)?;
    let tls = match &tls_files {
        Some((ca, pair)) => Some(
            tls::client_config(ca, pair.as_ref().map(|(cert, key)| tls::Identity { cert, key }))
                .map_err(|error| section.error("ca", error.to_string()))?,
        ),
        None => None,
    };
    let password = match &raw.password_file {
        Some(path) => Some(read_secret(section, "password_file", &dir.join(path))?),
        None => None,
    };
    if password.is_some() && raw.user.is_none() {
        return Err(section.error("password_file", "a password needs `user` too"));
    }
    if !(SEND_INTERVAL_NS_MIN..=SEND_INTERVAL_NS_MAX).contains(&raw.send_interval.ns()) {
        return Err(section.error("send_interval", format!("send_interval is {}; use 1ms to 1h", raw.send_interval)));
    }
    if raw.queue_bytes_max.0 < QUEUE_BYTES_MIN {
        return Err(
            section.error("queue_bytes_max", format!("queue_bytes_max is {}; 64KiB is the least", raw.queue_bytes_max))
        );
    }
    let times = [
        ("keep_alive", Some(raw.keep_alive)),
        ("connect_timeout", raw.connect_timeout),
        ("answer_timeout", Some(raw.answer_timeout)),
        ("return_interval", Some(raw.return_interval)),
    ];
    for (key, interval) in times.into_iter().filter_map(|(key, interval)| Some((key, interval?))) {
        if !(1..=65_535).contains(&(interval.ns() / 1_000_000_000)) {
            return Err(section.error(key, format!("{key} is {interval}; use 1s to 18h")));
        }
    }
    let mode = send_mode(section, &raw)?;
    Ok(MqttConfig {
        servers,
        version: match raw.version {
            raw::MqttVersion::V311 => Version::V311,
            raw::MqttVersion::V5 => Version::V5,
        },
        user: raw.user,
        password,
        tls,
        tls_print: tls_files.as_ref().map_or(0, print),
        tls_files,
        mode,
        send_interval: raw.send_interval,
        queue_bytes_max: raw.queue_bytes_max,
        keep_alive: raw.keep_alive,
        connect_timeout: raw.connect_timeout,
        answer_timeout: raw.answer_timeout,
        return_interval: raw.return_interval,
    })
}

type TlsFiles = (PathBuf, Option<(PathBuf, PathBuf)>);

/// A hash of the files' contents. Unreadable files were refused before.
fn print((ca, pair): &TlsFiles) -> u64 {
    let files = [Some(ca), pair.as_ref().map(|(cert, _)| cert), pair.as_ref().map(|(_, key)| key)];
    let mut hasher = DefaultHasher::new();
    files.into_iter().flatten().for_each(|file| std::fs::read(file).unwrap_or_default().hash(&mut hasher));
    hasher.finish()
}

/// The files of TLS; `servers_key` is the key of the servers if these use it.
fn tls_files(
    section: &Section,
    raw: &raw::RawMqtt,
    servers_key: Option<&str>,
    dir: &Path,
) -> Result<Option<TlsFiles>, ConfigError> {
    let files = [("ca", &raw.ca), ("cert", &raw.cert), ("key", &raw.key)];
    let Some(servers_key) = servers_key else {
        let begin = if raw.url.is_some() { "url begins" } else { "urls begin" };
        return match files.into_iter().find(|(_, path)| path.is_some()) {
            Some((key, _)) => {
                Err(section.error(key, format!("{key} is for TLS, but {begin} with mqtt://; write mqtts://")))
            }
            None => Ok(None),
        };
    };
    let Some(ca) = &raw.ca else {
        return Err(section.error(
            servers_key,
            "mqtts needs `ca`, the PEM file of the authority that signed the server's certificate",
        ));
    };
    for (key, path) in files {
        if let Some(path) = path
            && let Err(error) = std::fs::File::open(dir.join(path))
        {
            return Err(section.error(key, format!("cannot read {}: {error}", dir.join(path).display())));
        }
    }
    let pair = match (&raw.cert, &raw.key) {
        (Some(cert), Some(key)) => Some((dir.join(cert), dir.join(key))),
        (None, None) => None,
        (Some(_), None) => return Err(section.error("cert", "a certificate needs `key` too, the PEM file of its key")),
        (None, Some(_)) => return Err(section.error("key", "a key needs `cert` too, the PEM file of its certificate")),
    };
    Ok(Some((dir.join(ca), pair)))
}

fn send_mode(section: &Section, raw: &raw::RawMqtt) -> Result<SendMode, ConfigError> {
    match (raw.send, raw.bursts_per_minute) {
        (raw::RawSend::Burst, Some(per_minute)) if (1..=BURSTS_PER_MINUTE_MAX).contains(&per_minute) => {
            Ok(SendMode::Burst { per_minute })
        }
        (raw::RawSend::Burst, Some(per_minute)) => Err(section.error(
            "bursts_per_minute",
            format!("bursts_per_minute is {per_minute}; use 1 to {BURSTS_PER_MINUTE_MAX}"),
        )),
        (raw::RawSend::Burst, None) => {
            Err(section.error("send", "send = \"burst\" needs `bursts_per_minute`, such as 2"))
        }
        (_, Some(_)) => Err(section.error("bursts_per_minute", "bursts_per_minute is for send = \"burst\"")),
        (raw::RawSend::Continuous, None) => Ok(SendMode::Continuous),
        (raw::RawSend::Staggered, None) => Ok(SendMode::Staggered),
    }
}

pub(super) fn check_spool(section: &Section, raw: SpoolConfig, dir: &Path) -> Result<SpoolConfig, ConfigError> {
    if raw.bytes_max.0 < SPOOL_BYTES_MIN {
        return Err(section.error("bytes_max", format!("bytes_max is {}; 1MiB is the least", raw.bytes_max)));
    }
    if !(raw.drain_share > 0.0 && raw.drain_share <= 1.0) {
        return Err(
            section.error("drain_share", format!("drain_share is {}; use more than 0 and at most 1", raw.drain_share))
        );
    }
    if raw.flush_every.ns() == 0 {
        return Err(section.error("flush_every", "flush_every must not be 0"));
    }
    if raw.drain_bytes_per_second.is_some_and(|rate| rate.0 == 0) {
        return Err(
            section.error("drain_bytes_per_second", "drain_bytes_per_second must not be 0; leave it out for no limit")
        );
    }
    Ok(SpoolConfig { dir: dir.join(raw.dir), ..raw })
}

#[cfg(test)]
mod tests {
    #[test]
    fn urls() {
        for (url, expected) in [
            ("mqtt://h:1883", Ok(false)),
            ("mqtts://h.example", Ok(true)),
            ("mqtt://[::1]:1883", Ok(false)),
            ("mqtts://[::1]", Ok(true)),
            ("h:1883", Err("write mqtt://host:port")),
            ("http://h", Err("write mqtt://host:port")),
            ("mqtt://", Err("the host is missing")),
            ("mqtt://h:99999", Err("is not a port")),
            ("mqtt://fe80::1", Err("an IPv6 address in brackets")),
            ("mqtt://u@h", Err("by their own keys")),
        ] {
            match (super::ServerUrl::parse(url), expected) {
                (Ok(server), Ok(wanted)) => assert_eq!(server.address.tls, wanted, "{url}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (have, wanted) => panic!("{url}: {have:?}, {wanted:?} wanted"),
            }
        }
    }
}
