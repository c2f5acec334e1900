//! `[store]`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_store::StoreConfig;

use super::cassandra::{CassandraSettings, RawCassandra};
use super::retention;

/// Default of the oldest time, relative to the server's clock, that a reading may have before it is quarantined.
const PAST_MAX: Interval = Interval::from_s(30 * 86_400);
/// The same for times ahead of the clock.
const FUTURE_MAX: Interval = Interval::from_s(86_400);
/// Minimum, maximum and default of the time between group commits.
const COMMIT_EVERY: (Interval, Interval, Interval) =
    (Interval::from_ns(10_000), Interval::from_ms(100), Interval::from_ms(5));
/// Default of the time after which a sensor without stored readings and without new ones is removed.
const SENSORS_AGE: Interval = Interval::from_s(86_400);
/// Defaults of the age and size at which the journal is sealed if the readings go to Cassandra: longer chunks take less space there.
const SEAL_AFTER_CASSANDRA: Interval = Interval::from_s(300);
const SEAL_BYTES_CASSANDRA: ByteSize = ByteSize::mib(256);
pub const STORE_TIME_MIN: Interval = Interval::from_ms(100);
/// Where sealed readings are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoreKind {
    #[default]
    Embedded,
    Cassandra,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawStore {
    kind: StoreKind,
    cassandra: Option<RawCassandra>,
    seal_after: Option<Interval>,
    seal_bytes: Option<ByteSize>,
    commit_every: Option<Interval>,
    live: Option<Interval>,
    past_max: Option<Interval>,
    future_max: Option<Interval>,
    retention_age: Option<Interval>,
    retention_bytes: Option<ByteSize>,
    result_cache_bytes: Option<ByteSize>,
    jobs_age: Option<Interval>,
    sensors_age: Option<Interval>,
    tiers: Option<Vec<Interval>>,
    #[serde(default, deserialize_with = "retention::rules")]
    retention: Vec<retention::RawRetention>,
}

impl RawStore {
    /// Takes the section of Cassandra and checks it; `None` if the store is embedded. Relative paths are below `base`.
    pub(super) fn check_cassandra(
        &mut self,
        section: &Section,
        base: &Path,
    ) -> Result<Option<CassandraSettings>, ConfigError> {
        match (self.kind, self.cassandra.take()) {
            (StoreKind::Embedded, None) => Ok(None),
            (StoreKind::Embedded, Some(_)) => {
                Err(section.error("cassandra", "is of a store in Cassandra; write kind = \"cassandra\" in [store]"))
            }
            (StoreKind::Cassandra, _) if self.retention_bytes.is_some() => Err(section.error(
                "retention_bytes",
                "bounds an embedded store; in Cassandra, readings are removed by their age: retention_age and [[store.retention]]",
            )),
            (StoreKind::Cassandra, raw) => {
                raw.unwrap_or_default().check(&section.child("cassandra"), base).map(Some)
            }
        }
    }

    /// Checks the section; the store is in `dir`.
    pub(super) fn check(self, section: &Section, dir: PathBuf) -> Result<StoreConfig, ConfigError> {
        let mut config = StoreConfig { dir, ..StoreConfig::default() };
        if self.kind == StoreKind::Cassandra {
            config.hands_over = true;
            config.seal_after = SEAL_AFTER_CASSANDRA;
            config.seal_bytes = SEAL_BYTES_CASSANDRA;
        }
        for (key, value) in [
            ("seal_after", self.seal_after),
            ("live", self.live),
            ("past_max", self.past_max),
            ("future_max", self.future_max),
            ("retention_age", self.retention_age),
            ("jobs_age", self.jobs_age),
            ("sensors_age", self.sensors_age),
        ] {
            if value.is_some_and(|v| v < STORE_TIME_MIN) {
                return Err(
                    section.error(key, "is shorter than 100ms; write a length of time such as \"60s\" or \"30d\"")
                );
            }
        }
        if let Some(value) = self.seal_after {
            config.seal_after = value;
        }
        if let Some(value) = self.seal_bytes {
            config.seal_bytes = value;
        }
        if let Some(value) = self.live {
            config.live = value;
        }
        let commit_every = self.commit_every.unwrap_or(COMMIT_EVERY.2);
        if !(COMMIT_EVERY.0..=COMMIT_EVERY.1).contains(&commit_every) {
            let message = format!("is {commit_every}; write {} to {}", COMMIT_EVERY.0, COMMIT_EVERY.1);
            return Err(section.error("commit_every", message));
        }
        config.commit_every = commit_every.duration();
        config.past_max = Some(self.past_max.unwrap_or(PAST_MAX));
        config.future_max = Some(self.future_max.unwrap_or(FUTURE_MAX));
        config.retention_age = self.retention_age;
        config.jobs_age = self.jobs_age;
        config.sensors_age = Some(self.sensors_age.unwrap_or(SENSORS_AGE));
        config.retention_bytes = self.retention_bytes;
        config.result_cache_bytes = self.result_cache_bytes.unwrap_or(config.result_cache_bytes);
        retention::apply(&mut config, self.tiers, self.retention, section)?;
        Ok(config)
    }
}
