//! Prometheus' remote read: a Prometheus that is given this server's address answers PromQL over what is stored here.
//!
//! - In: read requests (snappy-packed protobuf), sensors and their readings.
//! - Out: series with labels made of the sensors' paths; samples in one message, or streamed as XOR-packed chunks.
//! - Never: a sample that was not measured (a gap is a stale marker, which is Prometheus' word for "no value any more"); an answer beyond its bounds; a
//!   sensor that the bearer may not see.
//!
//! `wire.rs` is the messages, `labels.rs` makes labels of paths, `matchers.rs` chooses series, `hints.rs` says which samples a query can do without,
//! `samples.rs` makes samples of readings, `xor.rs` packs them. The route is `http/prometheus.rs`. docs/prometheus.md is for those who use it.

pub(crate) mod hints;
pub(crate) mod labels;
pub(crate) mod matchers;
pub(crate) mod samples;
pub(crate) mod wire;
pub(crate) mod xor;

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};

use labels::{LevelMapping, MAPPINGS_MAX};

/// The longest `lookback`.
const LOOKBACK_MAX: Interval = Interval::from_s(86_400);
/// The most that `series_max` can be.
const SERIES_LIMIT: usize = 1_000_000;
/// The most that `samples_max` can be; 50 million is what Prometheus itself loads for one query unless told otherwise.
const SAMPLES_LIMIT: usize = 50_000_000;

/// `[prometheus]`, checked.
#[derive(Debug, Clone)]
pub struct PrometheusConfig {
    /// How paths become labels, in the order in which they are tried.
    pub mappings: Vec<LevelMapping>,
    /// What Prometheus is told with `--query.lookback-delta`.
    pub lookback: Interval,
    /// The most series of one query.
    pub series_max: usize,
    /// The most samples of one answer that is not streamed.
    pub samples_max: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPrometheus {
    levels: Vec<String>,
    lookback: Interval,
    series_max: usize,
    samples_max: usize,
}

impl Default for RawPrometheus {
    fn default() -> Self {
        Self { levels: Vec::new(), lookback: Interval::from_s(300), series_max: 10_000, samples_max: 5_000_000 }
    }
}

impl RawPrometheus {
    /// Checks it; `section` is `[prometheus]`, for messages.
    pub(crate) fn check(self, section: &Section) -> Result<PrometheusConfig, ConfigError> {
        if self.levels.len() > MAPPINGS_MAX {
            let message = format!("has {} patterns; at most {MAPPINGS_MAX} are taken", self.levels.len());
            return Err(section.error("levels", message));
        }
        let mappings: Result<Vec<LevelMapping>, String> =
            self.levels.iter().map(|text| LevelMapping::new(text)).collect();
        if self.lookback.ns() == 0 || self.lookback > LOOKBACK_MAX {
            return Err(section.error("lookback", format!("is {}; set 1ms to {LOOKBACK_MAX}", self.lookback)));
        }
        for (key, value, most) in
            [("series_max", self.series_max, SERIES_LIMIT), ("samples_max", self.samples_max, SAMPLES_LIMIT)]
        {
            if !(1..=most).contains(&value) {
                return Err(section.error(key, format!("is {value}; set 1 to {most}")));
            }
        }
        Ok(PrometheusConfig {
            mappings: mappings.map_err(|why| section.error("levels", why))?,
            lookback: self.lookback,
            series_max: self.series_max,
            samples_max: self.samples_max,
        })
    }
}
