//! How often a metric of a job is read and what is kept of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

/// What a rule says of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// It is not read.
    Off,
    /// It is read.
    On(Rate),
}

/// How often, and what is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// The interval between reads.
    pub interval: Interval,
    /// What is kept of them.
    pub mode: Mode,
}

/// What is kept of the reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// Every sample.
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

impl Setting {
    /// What comes of it where a metric cannot be read more often than every `interval_min`: a longer interval, and a window
    /// that is a multiple of it.
    pub fn at_most_every(self, interval_min: Interval) -> Self {
        match self {
            Setting::On(rate) if rate.interval < interval_min => {
                let mode = match rate.mode {
                    Mode::Raw => Mode::Raw,
                    Mode::Accumulate(accumulation) => {
                        let windows = accumulation.window.ns().div_ceil(interval_min.ns());
                        let window = Interval::from_ns(windows.saturating_mul(interval_min.ns()));
                        Mode::Accumulate(Accumulation { window, ..accumulation })
                    }
                };
                Setting::On(Rate { interval: interval_min, mode })
            }
            other => other,
        }
    }

    /// Whether a sensor that `asked` makes of a metric would stop or come less often: with no reading, with a longer interval, with windows
    /// in place of every sample or the other way round (they have other names), with longer windows or without one of its quantiles.
    pub fn is_less_than(&self, asked: &Self) -> bool {
        let (Setting::On(kept), Setting::On(asked)) = (self, asked) else {
            return matches!((self, asked), (Setting::Off, Setting::On(_)));
        };
        if kept.interval > asked.interval {
            return true;
        }
        match (&kept.mode, &asked.mode) {
            (Mode::Raw, Mode::Raw) => false,
            (Mode::Accumulate(_), Mode::Raw) | (Mode::Raw, Mode::Accumulate(_)) => true,
            (Mode::Accumulate(kept), Mode::Accumulate(asked)) => {
                kept.window > asked.window || asked.quantiles.iter().any(|quantile| !kept.quantiles.contains(quantile))
            }
        }
    }

    /// How often a second a metric is read that cannot be read more often than every `interval_min`.
    pub fn readings_per_second(&self, interval_min: Interval) -> f64 {
        match self {
            Setting::Off => 0.0,
            Setting::On(rate) => 1.0 / rate.interval.max(interval_min).seconds(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Off => f.write_str("off"),
            Setting::On(Rate { interval, mode: Mode::Raw }) => write!(f, "every {interval}"),
            Setting::On(Rate { interval, mode: Mode::Accumulate(Accumulation { window, quantiles }) }) => {
                write!(f, "every {interval} in windows of {window}")?;
                if quantiles.is_empty() { Ok(()) } else { write!(f, " with quantiles {quantiles:?}") }
            }
        }
    }
}
