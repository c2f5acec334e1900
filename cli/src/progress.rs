//! A progress bar on standard error for work that takes long, when nobody's rows scroll past it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows nothing.
const SHOW_AFTER: Duration = Duration::from_millis(500);
/// Steps of the bar.
const STEPS: f64 = 1000.0;

/// The progress of one query: by sensors, and within a sensor by time.
pub struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    sensors: f64,
    range: (i64, i64),
    rows: u64,
}

impl Progress {
    /// For a query over so many sensors; shows nothing when the rows themselves go to a terminal.
    pub fn new(rows_on_terminal: bool, sensors: Option<u64>, range: (i64, i64)) -> Self {
        let wanted = !rows_on_terminal && std::io::stderr().is_terminal();
        Self {
            bar: wanted.then(|| ProgressBar::with_draw_target(Some(STEPS as u64), ProgressDrawTarget::hidden())),
            begun: Instant::now(),
            sensors: sensors.unwrap_or(1).max(1) as f64,
            range,
            rows: 0,
        }
    }

    /// After so many more rows, the last of them of this sensor and time.
    pub fn step(&mut self, rows: usize, last: Option<(usize, i64)>) {
        self.rows += rows as u64;
        let Some(bar) = &self.bar else { return };
        if bar.is_hidden() && self.begun.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg}  {elapsed}") {
                bar.set_style(style);
            }
        }
        if let Some((sensor, time)) = last {
            bar.set_position((fraction(sensor, time, self.sensors, self.range) * STEPS) as u64);
        }
        bar.set_message(format!("{} rows", self.rows));
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How much of the work is done when the last row was of this sensor and time.
fn fraction(sensor: usize, time: i64, sensors: f64, (from, to): (i64, i64)) -> f64 {
    let length = (i128::from(to) - i128::from(from)).max(1) as f64;
    let within = ((i128::from(time) - i128::from(from)) as f64 / length).clamp(0.0, 1.0);
    ((sensor as f64 + within) / sensors).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions() {
        assert_eq!(fraction(0, 50, 1.0, (0, 100)), 0.5);
        assert_eq!(fraction(1, 0, 2.0, (0, 100)), 0.5);
        assert_eq!(fraction(1, 100, 2.0, (0, 100)), 1.0);
        assert_eq!(fraction(0, -5, 1.0, (0, 0)), 0.0);
        assert_eq!(fraction(9, 0, 2.0, (i64::MIN, i64::MAX)), 1.0);
    }
}
