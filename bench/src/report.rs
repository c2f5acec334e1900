//! Printing and keeping of results.

use std::path::Path;

/// The median, of an even number of values the mean of the middle two; 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2])
}

/// The value below which the share `q` of the values lies; 0 of nothing.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * q).round() as usize).copied().unwrap_or(0.0)
}

/// Prints one figure with its aim.
pub fn line(what: &str, value: impl std::fmt::Display, aim: &str) {
    println!("  {what:<58} {value:>12}   {aim}");
}

/// What a figure is measured against, and how that is written.
#[derive(Debug, Clone, Copy)]
pub enum Aim<'a> {
    /// Reached at or below it.
    AtMost(f64, &'a str),
    /// Reached at or above it.
    AtLeast(f64, &'a str),
}

/// Prints one figure with its aim and whether it is reached; says so too.
pub fn aim(what: &str, value: f64, digits: usize, aim: Aim) -> bool {
    let (reached, text) = match aim {
        Aim::AtMost(most, text) => (value <= most, format!("at most {text}")),
        Aim::AtLeast(least, text) => (value >= least, format!("at least {text}")),
    };
    let verdict = if reached { "reached" } else { "MISSED" };
    line(what, format!("{value:.digits$}"), &format!("{text}: {verdict}"));
    reached
}

/// Keeps the figures in `target/bench/<name>.json`, with the machine in general terms.
pub fn keep(name: &str, mut figures: serde_json::Value) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kb =
        memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    figures["machine"] = serde_json::json!({ "cores": cores, "memory_gib": memory_kb >> 20 });
    let dir = Path::new("target/bench");
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join(format!("{name}.json")), serde_json::to_string_pretty(&figures)? + "\n")?;
    Ok(())
}

/// Waits out a measuring window: the one place where time itself is what is wanted.
pub fn measure_for(seconds: f64) {
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| quantile(&values, q)), [1.0, 51.0, 100.0, 101.0]);
        assert_eq!((median(&[]), median(&[7.0]), median(&[1.0, 2.0])), (0.0, 7.0, 1.5));
    }

    #[test]
    fn an_aim_is_reached_on_its_side() {
        assert!(aim("low", 1.0, 0, Aim::AtMost(1.0, "1")) && !aim("high", 1.1, 1, Aim::AtMost(1.0, "1")));
        assert!(aim("high", 2.0, 0, Aim::AtLeast(1.0, "1")) && !aim("low", 0.9, 1, Aim::AtLeast(1.0, "1")));
    }
}
