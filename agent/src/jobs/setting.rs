//! The setting of a metric of a job: interval and accumulation.

use std::fmt;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

/// The setting that a rule gives a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricSetting {
    /// The metric is not read.
    Off,
    On(SamplingRate),
}

#[derive(Debug, Clone, PartialEq)]
pub struct SamplingRate {
    pub interval: Interval,
    pub mode: SampleMode,
}

/// The part of the samples that is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleMode {
    Raw,
    /// Aggregates of each window.
    Accumulate(Accumulation),
}

/// The aggregates of a window: minimum, maximum, mean, last value, count and quantiles. For a counter, of the rate per second between samples; its
/// last value stays the counter's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accumulation {
    /// The window, aligned to its multiples on the wall clock.
    pub window: Interval,
    /// Quantiles between 0 and 1, ascending.
    #[serde(default)]
    pub quantiles: Vec<f64>,
}

impl MetricSetting {
    /// The setting for a metric that cannot be read more often than every `interval_min`: a longer interval, and a window that is a multiple of it.
    pub fn at_most_every(self, interval_min: Interval) -> Self {
        match self {
            MetricSetting::On(rate) if rate.interval < interval_min => {
                let mode = match rate.mode {
                    SampleMode::Raw => SampleMode::Raw,
                    SampleMode::Accumulate(accumulation) => {
                        let windows = accumulation.window.ns().div_ceil(interval_min.ns());
                        let window = Interval::from_ns(windows.saturating_mul(interval_min.ns()));
                        SampleMode::Accumulate(Accumulation { window, ..accumulation })
                    }
                };
                MetricSetting::On(SamplingRate { interval: interval_min, mode })
            }
            other => other,
        }
    }

    /// Whether a sensor with the setting `asked` would stop or have fewer readings with this one: no readings, a longer interval, windows instead of
    /// samples or the reverse (they have other names), longer windows, or one quantile less.
    pub fn is_less_than(&self, asked: &Self) -> bool {
        let (MetricSetting::On(kept), MetricSetting::On(asked)) = (self, asked) else {
            return matches!((self, asked), (MetricSetting::Off, MetricSetting::On(_)));
        };
        if kept.interval > asked.interval {
            return true;
        }
        match (&kept.mode, &asked.mode) {
            (SampleMode::Raw, SampleMode::Raw) => false,
            (SampleMode::Accumulate(_), SampleMode::Raw) | (SampleMode::Raw, SampleMode::Accumulate(_)) => true,
            (SampleMode::Accumulate(kept), SampleMode::Accumulate(asked)) => {
                kept.window > asked.window || asked.quantiles.iter().any(|quantile| !kept.quantiles.contains(quantile))
            }
        }
    }

    /// Readings per second of a metric that cannot be read more often than every `interval_min`.
    pub fn readings_per_second(&self, interval_min: Interval) -> f64 {
        match self {
            MetricSetting::Off => 0.0,
            MetricSetting::On(rate) => 1.0 / rate.interval.max(interval_min).seconds(),
        }
    }
}

impl fmt::Display for MetricSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricSetting::Off => f.write_str("off"),
            MetricSetting::On(SamplingRate { interval, mode: SampleMode::Raw }) => write!(f, "every {interval}"),
            MetricSetting::On(SamplingRate {
                interval,
                mode: SampleMode::Accumulate(Accumulation { window, quantiles }),
            }) => {
                write!(f, "every {interval} in windows of {window}")?;
                if quantiles.is_empty() { Ok(()) } else { write!(f, " with quantiles {quantiles:?}") }
            }
        }
    }
}
