//! The questions in PromQL, as VictoriaMetrics and Prometheus both take them.

use anyhow::{Context, ensure};

use super::http::Http;
use super::recording::{Sum, Sums};
use super::remote_write::metric;
use super::system::{SensorSelection, Span};

const MS: i64 = 1_000_000;

/// Seconds with milliseconds, as times are written there. Their resolution is a millisecond.
fn seconds(ns: i64) -> String {
    format!("{:.3}", (ns / MS) as f64 / 1e3)
}

/// A range back from the millisecond of a span's end that has all of it, whether its beginning counts (Prometheus 2) or not
/// (VictoriaMetrics). Of both ends the milliseconds are taken, as the stores do: of their difference there may be one less.
fn range(span: Span) -> String {
    format!("{}ms", span.to.div_euclid(MS) - span.from.div_euclid(MS) + 1)
}

fn at_end(query: String, span: Span) -> [(&'static str, String); 2] {
    [("query", query), ("time", seconds(span.to))]
}

fn any_of(nodes: &[String]) -> String {
    nodes.join("|")
}

/// Every reading of a node, added up here by metric.
pub fn sums(http: &Http, node: &str, span: Span) -> anyhow::Result<Sums> {
    let query = format!("{{node=\"{node}\"}}[{}]", range(span));
    let data = http.data("/api/v1/query", &at_end(query, span))?;
    let mut sums = Sums::new();
    for series in data["result"].as_array().context("an answer without series")? {
        let name = series["metric"]["__name__"].as_str().context("a series without its name")?;
        let mut found = Sum::default();
        for value in series["values"].as_array().context("a series without values")? {
            found.count += 1;
            found.sum += value[1].as_str().context("a value that is no text")?.parse::<f64>()?;
        }
        ensure!(sums.insert(name.to_owned(), found).is_none(), "{name} is there twice");
    }
    Ok(sums)
}

pub fn one_sensor(http: &Http, node: &str, sensor: &str, span: Span) -> anyhow::Result<usize> {
    let query = format!("{}{{node=\"{node}\"}}[{}]", metric(sensor), range(span));
    let data = http.data("/api/v1/query", &at_end(query, span))?;
    Ok(data["result"][0]["values"].as_array().map_or(0, Vec::len))
}

/// The sum of the last values in each window.
pub fn windows(http: &Http, chosen: &SensorSelection, span: Span, window_s: u64) -> anyhow::Result<usize> {
    let (names, nodes) = (SensorSelection::expression(), any_of(&chosen.nodes));
    let query = format!("sum(last_over_time({{__name__=~\"{names}\",node=~\"{nodes}\"}}[{window_s}s]))");
    let window = window_s as i64 * 1_000_000_000;
    let first = span.from - span.from.rem_euclid(window) + window;
    let last = span.to - span.to.rem_euclid(window) + window;
    let parameters =
        [("query", query), ("start", seconds(first)), ("end", seconds(last)), ("step", format!("{window_s}s"))];
    let data = http.data("/api/v1/query_range", &parameters)?;
    Ok(data["result"][0]["values"].as_array().map_or(0, Vec::len))
}

/// One value of each sensor.
pub fn newest(http: &Http, nodes: &[String], span: Span) -> anyhow::Result<usize> {
    let query = format!("{{node=~\"{}\"}}", any_of(nodes));
    let data = http.data("/api/v1/query", &at_end(query, span))?;
    Ok(data["result"].as_array().map_or(0, Vec::len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_before_the_millisecond_of_the_first_reading() {
        for (from, to, expected) in [
            (5 * MS, 9 * MS, "5ms"),
            (5 * MS + 999_999, 9 * MS, "5ms"),
            (5 * MS, 9 * MS + 999_999, "5ms"),
            (7, 8, "1ms"),
        ] {
            assert_eq!(range(Span { from, to }), expected, "{from} to {to}");
        }
    }
}
