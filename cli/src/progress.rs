//! Progress bars on standard error. Without a terminal they show nothing.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work shows no bar.
const SHOW_AFTER: Duration = Duration::from_millis(500);
/// Steps of the bar of a query.
const STEPS: f64 = 1000.0;

/// A bar that appears when the work takes long.
pub struct DelayedBar {
    bar: Option<ProgressBar>,
    begun: Instant,
    template: &'static str,
}

impl DelayedBar {
    pub fn new(total: u64, template: &'static str) -> Self {
        let bar = || ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        Self { bar: std::io::stderr().is_terminal().then(bar), begun: Instant::now(), template }
    }

    pub fn set(&self, position: u64, message: impl FnOnce() -> String) {
        let Some(bar) = &self.bar else { return };
        if bar.is_hidden() && self.begun.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            ProgressStyle::with_template(self.template).into_iter().for_each(|style| bar.set_style(style));
        }
        bar.set_position(position);
        bar.set_message(message());
    }

    pub fn finish(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// Runs work that reports how many of how many bytes are done.
pub fn with_byte_bar<T>(work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(0));
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {elapsed}");
    bar.iter().zip(style).for_each(|(bar, style)| bar.set_style(style));
    let result = work(&mut |done, total| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.iter().for_each(ProgressBar::finish_and_clear);
    result
}

/// The progress of one query: by sensors, and within a sensor by time.
pub struct QueryProgress {
    bar: Option<DelayedBar>,
    sensors: f64,
    range: (i64, i64),
    rows: u64,
}

impl QueryProgress {
    /// For a query of this number of sensors. Shows nothing if the rows go to a terminal.
    pub fn new(rows_on_terminal: bool, sensors: Option<u64>, range: (i64, i64)) -> Self {
        let bar = || DelayedBar::new(STEPS as u64, "{wide_bar} {percent:>3}%  {msg}  {elapsed}");
        let sensors = sensors.unwrap_or(1).max(1) as f64;
        Self { bar: (!rows_on_terminal).then(bar), sensors, range, rows: 0 }
    }

    /// Counts rows. `last` is the number of the sensor and the time of the last one.
    pub fn step(&mut self, rows: usize, last: Option<(usize, i64)>) {
        self.rows += rows as u64;
        if let (Some(bar), Some((sensor, time))) = (&self.bar, last) {
            let done = fraction(sensor, time, self.sensors, self.range);
            bar.set((done * STEPS) as u64, || format!("{} rows", self.rows));
        }
    }

    pub fn finish(&self) {
        self.bar.iter().for_each(DelayedBar::finish);
    }
}

/// The part of the work that is done if the last row was of this sensor and time.
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
