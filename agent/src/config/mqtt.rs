//! `[mqtt]` and `[spool]`, checked.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_transport::client::Address;
use wholegrain_transport::mqtt::Version;
use wholegrain_transport::tls;

use super::raw;
use super::secret::read_secret;

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

/// The server, and how batches are sent to it.
#[derive(Clone)]
pub struct MqttConfig {
    /// The form is `mqtt://host:port` or `mqtts://host:port`.
    pub url: String,
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
    /// The longest time for connecting.
    pub connect_timeout: Interval,
}

impl std::fmt::Debug for MqttConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MqttConfig").field("url", &self.url).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl PartialEq for MqttConfig {
    fn eq(&self, other: &Self) -> bool {
        let key = |c: &Self| {
            (
                (c.url.clone(), c.version, c.user.clone(), c.password.clone(), c.tls_files.clone(), c.tls_print),
                (c.mode, c.send_interval, c.queue_bytes_max, c.keep_alive, c.connect_timeout),
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

/// Whether the URL requires TLS. Parsed as by the client, so that an accepted URL can be connected to.
fn check_url(url: &str) -> Result<bool, String> {
    let address = Address::parse(url).map_err(|why| format!("url = {url:?}: {why}"))?;
    Ok(address.tls)
}

pub(super) fn check(section: &Section, raw: raw::RawMqtt, dir: &Path) -> Result<MqttConfig, ConfigError> {
    let tls_wanted = check_url(&raw.url).map_err(|why| section.error("url", why))?;
    let tls_files = tls_files(section, &raw, tls_wanted, dir)?;
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
    for (key, interval) in [("keep_alive", raw.keep_alive), ("connect_timeout", raw.connect_timeout)] {
        if !(1..=65_535).contains(&(interval.ns() / 1_000_000_000)) {
            return Err(section.error(key, format!("{key} is {interval}; use 1s to 18h")));
        }
    }
    let mode = send_mode(section, &raw)?;
    Ok(MqttConfig {
        url: raw.url,
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

fn tls_files(section: &Section, raw: &raw::RawMqtt, wanted: bool, dir: &Path) -> Result<Option<TlsFiles>, ConfigError> {
    let files = [("ca", &raw.ca), ("cert", &raw.cert), ("key", &raw.key)];
    if !wanted {
        return match files.into_iter().find(|(_, path)| path.is_some()) {
            Some((key, _)) => {
                Err(section.error(key, format!("{key} is for TLS, but url begins with mqtt://; write mqtts://")))
            }
            None => Ok(None),
        };
    }
    let Some(ca) = &raw.ca else {
        return Err(section
            .error("url", "mqtts needs `ca`, the PEM file of the authority that signed the server's certificate"));
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
            match (super::check_url(url), expected) {
                (Ok(tls), Ok(wanted)) => assert_eq!(tls, wanted, "{url}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (have, wanted) => panic!("{url}: {have:?}, {wanted:?} wanted"),
            }
        }
    }
}
