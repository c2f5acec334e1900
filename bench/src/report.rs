//! Printing and keeping of results.

use std::path::Path;

use serde_json::{Value, json};
use wholegrain_model::Timestamp;

use crate::load::wall_ns;

/// Words in the names of figures that are their units.
const UNITS: [&str; 9] = ["ns", "us", "ms", "s", "bytes", "kb", "mb", "mib", "percent"];

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

/// Prints one figure with its largest allowed value.
pub fn aim(what: &str, value: f64, digits: usize, at_most: f64, text: &str) {
    let verdict = if value <= at_most { "reached" } else { "MISSED" };
    line(what, format!("{value:.digits$}"), &format!("at most {text}: {verdict}"));
}

/// Writes the results to `target/bench/<name>.json`: figures in the form that all benchmarks share, with date, command and machine, and the
/// details of this benchmark.
pub fn keep(name: &str, mut results: Value) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    collect("", &results, &mut figures);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kb =
        memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let words: Vec<String> = std::env::args().skip(1).collect();
    results["benchmark"] = json!(name);
    results["date"] = json!(Timestamp(wall_ns()).to_string());
    results["command"] = json!(format!("wholegrain-bench {}", words.join(" ")));
    results["machine"] = json!({ "cores": cores, "memory_gib": memory_kb >> 20 });
    results["figures"] = json!(figures);
    let dir = Path::new("target/bench");
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join(format!("{name}.json")), serde_json::to_string_pretty(&results)? + "\n")?;
    Ok(())
}

/// One figure for each number in the results and for each list of measurements, which has its median and its range. A name is the path to it.
fn collect(path: &str, value: &Value, figures: &mut Vec<Value>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(members) => members.iter().for_each(|(name, member)| collect(&below(name), member, figures)),
        Value::Array(members) => {
            let each: Vec<f64> = members.iter().filter_map(Value::as_f64).collect();
            if each.len() == members.len() {
                return add(path, &each, figures);
            }
            for (at, member) in members.iter().enumerate() {
                let label = member.as_object().and_then(|row| row.values().find_map(Value::as_str));
                collect(&below(&label.map_or(at.to_string(), str::to_owned)), member, figures);
            }
        }
        _ => add(path, &value.as_f64().into_iter().collect::<Vec<_>>(), figures),
    }
}

fn add(path: &str, each: &[f64], figures: &mut Vec<Value>) {
    if !each.is_empty() {
        let word = path.rsplit('.').next().unwrap_or(path).split('_').find(|word| UNITS.contains(word));
        let spread = [quantile(each, 0.0), quantile(each, 1.0)];
        figures.push(json!({ "name": path, "value": median(each), "unit": word.unwrap_or(""), "spread": spread }));
    }
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
    fn every_number_becomes_a_figure_by_its_path() {
        let results = json!({ "10ms": { "agent_us": 2.5, "ratios": [3.0, 1.0, 2.0] }, "runs": [{ "security": "tls", "rss_kb": 7 }], "text": "x" });
        let mut figures = Vec::new();
        collect("", &results, &mut figures);
        let figure = |name: &str, value: f64, unit: &str, spread: [f64; 2]| json!({ "name": name, "value": value, "unit": unit, "spread": spread });
        let expected = [
            figure("10ms.agent_us", 2.5, "us", [2.5, 2.5]),
            figure("10ms.ratios", 2.0, "", [1.0, 3.0]),
            figure("runs.tls.rss_kb", 7.0, "kb", [7.0, 7.0]),
        ];
        assert_eq!(figures, expected);
    }
}
