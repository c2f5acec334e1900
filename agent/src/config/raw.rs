//! The configuration as written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, LogLevel};
use wholegrain_sources::Roots;

use super::mqtt::SpoolConfig;
use super::server_url::ServerUrls;
use crate::cache::CacheConfig;
use crate::engine::cpu_placement::SamplerCpu;

/// The default send interval: 1 s.
pub const SEND_INTERVAL: Interval = Interval::from_s(1);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub name: Option<String>,
    pub prefix: Option<String>,
    #[serde(default = "rescan")]
    pub rescan: Interval,
    #[serde(default)]
    pub log_level: LogLevel,
    #[serde(default)]
    pub roots: Roots,
    #[serde(default)]
    pub defaults: RawDefaults,
    #[serde(default)]
    pub sampler: RawSampler,
    #[serde(default)]
    pub cache: CacheConfig,
    pub mqtt: Option<RawMqtt>,
    pub spool: Option<SpoolConfig>,
    #[serde(default)]
    pub api: RawApi,
    /// Read by the jobs' own module.
    pub jobs: Option<serde::de::IgnoredAny>,
    /// Read by the plug-ins' own module.
    #[serde(default)]
    #[expect(dead_code, reason = "named so that the key is known; its tables are read one by one")]
    plugins: BTreeMap<String, serde::de::IgnoredAny>,
    /// Read by the sources themselves.
    #[serde(default)]
    #[expect(dead_code, reason = "named so that the key is known; its tables are read one by one")]
    sources: BTreeMap<String, serde::de::IgnoredAny>,
}

fn rescan() -> Interval {
    Interval::from_s(60)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDefaults {
    pub interval: Interval,
}

impl Default for RawDefaults {
    fn default() -> Self {
        Self { interval: Interval::from_s(1) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSampler {
    pub cpu: SamplerCpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum MqttVersion {
    #[serde(rename = "3.1.1")]
    V311,
    #[default]
    #[serde(rename = "5")]
    V5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawSend {
    #[default]
    Continuous,
    Staggered,
    Burst,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMqtt {
    pub url: Option<String>,
    pub urls: Option<ServerUrls>,
    #[serde(default)]
    pub version: MqttVersion,
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    #[serde(default)]
    pub send: RawSend,
    #[serde(default = "send_interval")]
    pub send_interval: Interval,
    pub bursts_per_minute: Option<u32>,
    #[serde(default = "queue_bytes_max")]
    pub queue_bytes_max: ByteSize,
    #[serde(default = "keep_alive")]
    pub keep_alive: Interval,
    pub connect_timeout: Option<Interval>,
    #[serde(default = "answer_timeout")]
    pub answer_timeout: Interval,
    #[serde(default = "return_interval")]
    pub return_interval: Interval,
}

fn send_interval() -> Interval {
    SEND_INTERVAL
}

fn queue_bytes_max() -> ByteSize {
    ByteSize::mib(4)
}

fn keep_alive() -> Interval {
    Interval::from_s(30)
}

fn answer_timeout() -> Interval {
    Interval::from_s(3)
}

fn return_interval() -> Interval {
    Interval::from_s(300)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawApi {
    pub socket: Option<PathBuf>,
    pub listen: Option<String>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    pub tokens_file: Option<PathBuf>,
}
