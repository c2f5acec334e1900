//! How often a metric of a job is read and what is kept of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

/// What a rule says of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricSetting {
    /// It is not read.
    Off,
    On(SamplingRate),
}

/// How often, and what is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingRate {
    /// The interval between reads.
    pub interval: Interval,
    /// What is kept of them.
    pub mode: SampleMode,
}

/// What is kept of the reads.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleMode {
    Raw,
    /// What each window comes to.
    Accumulate(Accumulation),
}

/// What is made of the samples of a window: the least, the greatest, the mean, the last, how many, and quantiles. Of a counter
/// the rate per second between samples is taken; its last value stays the counter's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accumulation {
    /// The window; on wall-clock multiples of itself.
    pub window: Interval,
    /// Quantiles between 0 and 1, ascending.
    #[serde(default)]
    pub quantiles: Vec<f64>,
}

impl MetricSetting {
    /// What comes of it where a metric cannot be read more often than every `interval_min`: a longer interval, and a window
    /// that is a multiple of it.
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

    /// Whether a sensor that `asked` makes of a metric would stop or come less often: with no reading, with a longer interval, with windows
    /// in place of every sample or the other way round (they have other names), with longer windows or without one of its quantiles.
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

    /// How often a second a metric is read that cannot be read more often than every `interval_min`.
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
