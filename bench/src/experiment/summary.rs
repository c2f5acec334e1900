//! What the runs of an experiment say, setting by setting.

use std::collections::BTreeMap;

use serde::Serialize;
use wholegrain_model::Interval;

use super::plan::Condition;
use super::records::{Failure, Part, Record};
use crate::statistics::{Ratio, Summary, holm, median};

/// The chance of one false "it makes a difference" in a whole experiment.
const SIGNIFICANCE: f64 = 0.05;

/// One setting. Times are of runs that count: not of the warm-up, not failed, and with a result that was verified.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub condition: Condition,
    /// Runs that count.
    pub runs: usize,
    /// Runs after the warm-up that do not.
    pub failed: usize,
    /// Mean time, s.
    pub mean_s: Option<f64>,
    /// The mean's 95 % interval.
    pub ci_low_s: Option<f64>,
    /// See `ci_low_s`.
    pub ci_high_s: Option<f64>,
    /// Median time, s.
    pub median_s: Option<f64>,
    /// Mean over the mean without a monitor, of the rounds that have both. 1 of that itself.
    pub ratio: Option<f64>,
    /// The ratio's 95 % interval, paired by round.
    pub ratio_low: Option<f64>,
    /// See `ratio_low`.
    pub ratio_high: Option<f64>,
    /// Median over the median without a monitor.
    pub median_ratio: Option<f64>,
    /// Whether the ratio differs from 1, all settings of the experiment considered.
    pub significant: Option<bool>,
    /// The chance of such a ratio without a difference, adjusted by Holm over the experiment.
    pub p_adjusted: Option<f64>,
    /// The monitor's CPU on a node, as a share of one core.
    pub node_cpu_share: Option<f64>,
    /// The same for one metric read once, us.
    pub us_per_metric: Option<f64>,
    /// The monitor's resident memory on a node, kB.
    pub rss_kb: Option<f64>,
}

/// All settings, in the order given.
pub fn rows(conditions: &[Condition], records: &[Record]) -> Vec<Row> {
    let counted: Vec<&Record> = records.iter().filter(|record| !record.warm_up).collect();
    let mut p_values = Vec::new();
    let mut rows: Vec<Row> = conditions.iter().map(|condition| row(condition, &counted, &mut p_values)).collect();
    let adjusted = holm(&p_values.iter().map(|(_, p)| *p).collect::<Vec<f64>>());
    for ((condition, _), p) in p_values.iter().zip(adjusted) {
        if let Some(row) = rows.iter_mut().find(|row| row.condition == *condition) {
            (row.p_adjusted, row.significant) = (Some(p), Some(p < SIGNIFICANCE));
        }
    }
    rows
}

/// Settings and runs with those of the parts that workloads tell the times of, as if each were a workload that was run by itself:
/// its runs have the numbers of the whole's.
pub fn divide(
    conditions: &[Condition],
    records: &[Record],
    parts: &[(String, Vec<String>)],
) -> (Vec<Condition>, Vec<Record>) {
    let (mut all_conditions, mut all_records) = (conditions.to_vec(), records.to_vec());
    for (whole, part) in parts.iter().flat_map(|(whole, parts)| parts.iter().map(move |part| (whole, part))) {
        let renamed = |condition: &Condition| Condition { workload: part.clone(), ..condition.clone() };
        all_conditions.extend(conditions.iter().filter(|condition| condition.workload == *whole).map(renamed));
        for record in records.iter().filter(|record| record.condition.workload == *whole) {
            let mut own = record.clone();
            own.condition = renamed(&record.condition);
            if let Some(outcome) = &mut own.outcome {
                match outcome.figures.get(&format!("{part}_s")) {
                    Some(seconds) => outcome.seconds = *seconds,
                    None if own.failure.is_none() => {
                        let reason = format!("{whole} told no time of {part}: its outcome has no figure {part}_s");
                        own.failure = Some(Failure { part: Part::Workload, reason });
                    }
                    None => {}
                }
                (outcome.workload, outcome.figures) = (part.clone(), BTreeMap::new());
                outcome.histogram.clear();
            }
            all_records.push(own);
        }
    }
    (all_conditions, all_records)
}

fn row(condition: &Condition, counted: &[&Record], p_values: &mut Vec<(Condition, f64)>) -> Row {
    let of = |wanted: &Condition| -> Vec<&Record> {
        counted.iter().copied().filter(|record| record.condition == *wanted).collect()
    };
    let own = of(condition);
    let good: Vec<&Record> = own.iter().copied().filter(|record| record.seconds().is_some()).collect();
    let seconds: Vec<f64> = good.iter().filter_map(|record| record.seconds()).collect();
    let summary = Summary::of(&seconds);
    let interval = summary.interval();
    let without = of(&condition.without());
    let bare_seconds: Vec<f64> = without.iter().filter_map(|record| record.seconds()).collect();
    let middle = median(&seconds);
    let mut row = Row {
        condition: condition.clone(),
        runs: seconds.len(),
        failed: own.len() - seconds.len(),
        mean_s: (!seconds.is_empty()).then_some(summary.mean),
        ci_low_s: interval.map(|(low, _)| low),
        ci_high_s: interval.map(|(_, high)| high),
        median_s: middle,
        ratio: None,
        ratio_low: None,
        ratio_high: None,
        median_ratio: middle.zip(median(&bare_seconds)).map(|(own, bare)| own / bare),
        significant: None,
        p_adjusted: None,
        node_cpu_share: None,
        us_per_metric: None,
        rss_kb: None,
    };
    if condition.is_without() {
        row.ratio = row.mean_s.map(|_| 1.0);
        return row;
    }
    if let Some(ratio) = Ratio::of(&pairs(&without, &good)) {
        row.ratio = Some(ratio.mean);
        (row.ratio_low, row.ratio_high) = ratio.interval.unzip();
        p_values.extend(ratio.p.map(|p| (condition.clone(), p)));
    }
    cost(&mut row, &good);
    row
}

/// The time without a monitor (the mean, where a round has several) and with it, of each round that has both.
fn pairs(without: &[&Record], with: &[&Record]) -> Vec<(f64, f64)> {
    let by_round = |records: &[&Record]| -> BTreeMap<usize, f64> {
        let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (round, seconds) in records.iter().filter_map(|record| Some((record.round, record.seconds()?))) {
            rounds.entry(round).or_default().push(seconds);
        }
        rounds.into_iter().map(|(round, seconds)| (round, Summary::of(&seconds).mean)).collect()
    };
    let without = by_round(without);
    by_round(with).into_iter().filter_map(|(round, seconds)| Some((*without.get(&round)?, seconds))).collect()
}

/// What the monitor used in its good runs.
fn cost(row: &mut Row, good: &[&Record]) {
    let used: Vec<_> = good.iter().filter_map(|record| Some((record.usage.as_ref()?, record.seen.as_ref()?))).collect();
    let Some(interval_ns) = row.condition.interval_ns.filter(|_| !used.is_empty()) else { return };
    let mean = |of: &dyn Fn(usize) -> f64| (0..used.len()).map(of).sum::<f64>() / used.len() as f64;
    row.node_cpu_share = Some(mean(&|at| used[at].0.node_cpu_ns as f64 / used[at].0.window_ns.max(1) as f64));
    row.rss_kb = Some(mean(&|at| used[at].0.rss_kb as f64));
    // Reads that were due: a monitor that misses some is not to be taken for a dear one, nor for a cheap one unsaid.
    let due = |at: usize| used[at].1.metrics as f64 * used[at].0.window_ns as f64 / interval_ns as f64;
    let (cpu_us, due) = (mean(&|at| used[at].0.node_cpu_ns as f64 / 1e3), mean(&due));
    row.us_per_metric = (due > 0.0).then(|| cpu_us / due);
}

/// The table for people.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "  workload             monitor                    period    runs    mean s   95 % interval          ratio   95 % interval      adjusted p   CPU %    RSS MB\n",
    );
    for row in rows {
        let condition = &row.condition;
        let number = |value: Option<f64>, width: usize, digits: usize| {
            value.map_or(format!("{:>width$}", "-"), |value| format!("{value:>width$.digits$}"))
        };
        let hosts = if condition.hosts > 1 { format!(" on {}", condition.hosts) } else { String::new() };
        let workload = format!("{} {} x{}{hosts}", condition.workload, condition.size, condition.ranks);
        let monitor = format!("{} {}", condition.monitor, condition.configuration);
        let period = condition.interval_ns.map_or(String::new(), |ns| Interval::from_ns(ns).to_string());
        let failed = if row.failed > 0 { format!(" ({} failed)", row.failed) } else { String::new() };
        text += &format!(
            "  {workload:<20} {monitor:<26} {period:<7} {:>6} {} {} to {} {} {} to {} {}{} {} {}{failed}\n",
            row.runs,
            number(row.mean_s, 9, 3),
            number(row.ci_low_s, 9, 3),
            number(row.ci_high_s, 8, 3),
            number(row.ratio, 8, 4),
            number(row.ratio_low, 8, 4),
            number(row.ratio_high, 7, 4),
            number(row.p_adjusted, 9, 4),
            if row.significant == Some(true) { " *" } else { "  " },
            number(row.node_cpu_share.map(|share| share * 100.0), 8, 3),
            number(row.rss_kb.map(|kb| kb / 1024.0), 8, 1),
        );
    }
    text
}
