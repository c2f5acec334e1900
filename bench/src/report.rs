//! Printing and keeping of results.

use std::path::Path;

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
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
