//! `[prometheus]`.

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};

use super::labels::{LevelMapping, MAPPINGS_MAX};

/// The upper bound of `lookback`.
const LOOKBACK_MAX: Interval = Interval::from_s(86_400);
/// The upper bound of `series_max`.
const SERIES_LIMIT: usize = 1_000_000;
/// The upper bound of `samples_max`: the default limit of Prometheus for one query.
const SAMPLES_LIMIT: usize = 50_000_000;

/// The checked section `[prometheus]`.
#[derive(Debug, Clone)]
pub struct PrometheusConfig {
    /// Mappings of paths to labels; the first that matches is used.
    pub mappings: Vec<LevelMapping>,
    /// The value of Prometheus' `--query.lookback-delta`.
    pub lookback: Interval,
    /// The most series of one query.
    pub series_max: usize,
    /// The most samples of one response that is not streamed.
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
    /// Checks the settings; `section` locates errors in the file.
    pub(crate) fn check(self, section: &Section) -> Result<PrometheusConfig, ConfigError> {
        if self.levels.len() > MAPPINGS_MAX {
            let message = format!("has {} patterns; at most {MAPPINGS_MAX} are allowed", self.levels.len());
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
