//! CPU microseconds per metric and resident memory of each monitor on an otherwise idle machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use wholegrain_model::Interval;

use crate::monitors::{self, Ready, Used};
use crate::report::{keep, measure_for, median};

const EXAMPLES: &str = "\
Examples:
  wholegrain-bench monitor-cost --seconds 20 --rounds 3
  wholegrain-bench monitor-cost --interval 1s --interval 10ms --monitors bare:reads,wholegrain:same,collectd:same";

/// About how long a monitor takes to start and to stop, s; only what is said beforehand follows from it.
const START_S: f64 = 5.0;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Sampling period; may be given several times.
    #[arg(long, default_values_t = [Interval::from_s(1)])]
    interval: Vec<Interval>,
    /// Which, as `monitor list` names them, with one configuration each (`wholegrain:same`) or all; every one when left out.
    #[arg(long, value_delimiter = ',')]
    monitors: Vec<String>,
    /// How long each is measured in each round, seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How often each has its turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// A line of `monitor run`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Ready(Ready),
    Used(Used),
}

/// Which monitor, with which configuration, at which period.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    interval_ns: u64,
    place: usize,
    monitor: &'static str,
    configuration: &'static str,
}

/// One turn of one case, in the units of the report.
#[derive(Debug, Clone, PartialEq)]
struct Turn {
    version: String,
    metrics: u64,
    cpu_share: f64,
    server_cpu_share: f64,
    /// CPU us for each value read; none for a tick that reads nothing.
    us_per_metric: Option<f64>,
    rss_kb: u64,
    pss_kb: u64,
    /// The part of its ticks that it did not make, where it tells.
    missed: Option<f64>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut left_out = Vec::new();
    let cases = cases(options, &mut left_out)?;
    let turns = cases.len() * options.rounds;
    let about_s = turns as f64 * (options.seconds + START_S);
    eprintln!(
        "{turns} turns of {} s and what starting takes: about {:.0} min",
        options.seconds,
        (about_s / 60.0).ceil()
    );
    let mut seen: BTreeMap<Case, Vec<Turn>> = BTreeMap::new();
    let mut failed: Vec<Case> = Vec::new();
    for round in 1..=options.rounds {
        for (place, case) in cases.iter().enumerate() {
            if failed.contains(case) {
                continue;
            }
            eprintln!(
                "  {}/{turns}  round {round}: {} {} {}",
                (round - 1) * cases.len() + place + 1,
                case.monitor,
                case.configuration,
                Interval::from_ns(case.interval_ns)
            );
            match turn(case, options.seconds) {
                Ok(turn) => seen.entry(case.clone()).or_default().push(turn),
                Err(error) => {
                    eprintln!("  left out: {error:#}");
                    left_out.push(left(case, format!("{error:#}")));
                    failed.push(case.clone());
                }
            }
        }
    }
    let rows: Vec<Value> = seen.iter().map(|(case, turns)| row(case, turns)).collect();
    print(&rows, &left_out);
    keep(
        "monitor-cost",
        json!({ "seconds": options.seconds, "rounds": options.rounds, "rows": rows, "left_out": left_out }),
    )
}

/// What is to be measured, period by period; what cannot be goes to `left_out` with the reason.
fn cases(options: &Options, left_out: &mut Vec<Value>) -> anyhow::Result<Vec<Case>> {
    for wanted in &options.monitors {
        let (name, configuration) = wanted.split_once(':').unwrap_or((wanted, ""));
        let there = monitors::find(name)?.configurations();
        let known = configuration.is_empty() || there.contains(&configuration);
        ensure!(known, "{name} has no configuration {configuration}; there are {}", there.join(", "));
    }
    let wanted = |monitor: &str, configuration: &str| {
        let full = format!("{monitor}:{configuration}");
        options.monitors.is_empty() || options.monitors.iter().any(|wanted| *wanted == full || *wanted == monitor)
    };
    let mut cases = Vec::new();
    for interval in &options.interval {
        for (place, monitor) in monitors::all().into_iter().enumerate() {
            for configuration in monitor.configurations().iter().filter(|c| wanted(monitor.name(), c)) {
                let case = Case { interval_ns: interval.ns(), place, monitor: monitor.name(), configuration };
                let shortest = monitor.shortest_interval();
                if let Err(error) = monitor.version() {
                    left_out.push(left(&case, format!("{error:#}")));
                } else if interval.duration() < shortest {
                    left_out.push(left(&case, format!("its shortest period is {shortest:?}")));
                } else {
                    cases.push(case);
                }
            }
        }
    }
    Ok(cases)
}

fn left(case: &Case, reason: String) -> Value {
    json!({ "monitor": case.monitor, "configuration": case.configuration, "interval_ns": case.interval_ns, "reason": reason })
}

/// Ends a monitor when it goes out of scope: its standard input ends with it.
struct MonitorGuard(Child);

impl Drop for MonitorGuard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn turn(case: &Case, seconds: f64) -> anyhow::Result<Turn> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let interval = Interval::from_ns(case.interval_ns).to_string();
    let mut command = Command::new(std::env::current_exe().context("this program's path")?);
    command.args(["monitor", "run", case.monitor, "--configuration", case.configuration, "--interval", &interval]);
    // Of an error the text is wanted, not where in this program it was made.
    command.env("RUST_BACKTRACE", "0");
    command.arg("--dir").arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut held = MonitorGuard(command.spawn().context("starting the monitor")?);
    let output = held.0.stdout.take().context("the monitor's output")?;
    let mut lines = BufReader::new(output).lines();
    let mut errors = held.0.stderr.take().context("the monitor's errors")?;
    let mut next = || -> anyhow::Result<Line> {
        let Some(line) = lines.next() else {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut errors, &mut text).context("the monitor's errors")?;
            anyhow::bail!("{}", text.trim());
        };
        let line = line.context("the monitor's output")?;
        serde_json::from_str(&line).with_context(|| format!("not a line of a monitor: {line}"))
    };
    let Line::Ready(ready) = next()? else { anyhow::bail!("it told what it used before it was ready") };
    measure_for(seconds);
    drop(held.0.stdin.take());
    let Line::Used(used) = next()? else { anyhow::bail!("it became ready a second time") };
    Ok(figures(&ready, &used))
}

fn figures(ready: &Ready, used: &Used) -> Turn {
    let sum = |server: bool, field: fn(&monitors::ProcessUsed) -> u64| -> u64 {
        used.processes.iter().filter(|process| process.server == server).map(field).sum()
    };
    let window = used.window_ns.max(1) as f64;
    let cpu_ns = sum(false, |process| process.cpu_ns) as f64;
    let missed = used.samples.zip(used.missed).map(|(made, missed)| missed as f64 / (made + missed).max(1) as f64);
    // A tick that was not made cost nothing: it is not among those that the cost is divided by.
    let ticks = window / ready.interval_ns.max(1) as f64 * (1.0 - missed.unwrap_or(0.0));
    let values = ticks * ready.metrics as f64;
    Turn {
        version: ready.version.clone(),
        metrics: ready.metrics,
        cpu_share: cpu_ns / window,
        server_cpu_share: sum(true, |process| process.cpu_ns) as f64 / window,
        us_per_metric: (values > 0.0).then(|| cpu_ns / 1e3 / values),
        rss_kb: sum(false, |process| process.rss_kb),
        pss_kb: sum(false, |process| process.pss_kb),
        missed,
    }
}

/// Medians over the rounds.
fn row(case: &Case, turns: &[Turn]) -> Value {
    let of = |field: &dyn Fn(&Turn) -> Option<f64>| {
        let values: Vec<f64> = turns.iter().filter_map(field).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    json!({
        "monitor": case.monitor,
        "configuration": case.configuration,
        "version": turns.first().map(|turn| turn.version.as_str()),
        "interval_ns": case.interval_ns,
        "metrics": of(&|turn| Some(turn.metrics as f64)).map(|count| count as u64),
        "cpu_share": of(&|turn| Some(turn.cpu_share)),
        "us_per_metric": of(&|turn| turn.us_per_metric),
        "rss_kb": of(&|turn| Some(turn.rss_kb as f64)),
        "pss_kb": of(&|turn| Some(turn.pss_kb as f64)),
        "server_cpu_share": of(&|turn| Some(turn.server_cpu_share)),
        "missed_share": of(&|turn| turn.missed),
        "each_cpu_share": turns.iter().map(|turn| turn.cpu_share).collect::<Vec<_>>(),
    })
}

fn print(rows: &[Value], left_out: &[Value]) {
    println!(
        "{:<14} {:<9} {:>6} {:>8} {:>9} {:>10} {:>8} {:>8} {:>9} {:>9}  version",
        "monitor",
        "config.",
        "period",
        "metrics",
        "CPU, %",
        "us/metric",
        "RSS, MB",
        "PSS, MB",
        "missed, %",
        "server, %"
    );
    for row in rows {
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        let number = |field: &str, scale: f64, digits: usize| {
            row[field].as_f64().map_or("-".to_owned(), |value| format!("{:.digits$}", value * scale))
        };
        println!(
            "{:<14} {:<9} {:>6} {:>8} {:>9} {:>10} {:>8} {:>8} {:>9} {:>9}  {}",
            text("monitor"),
            text("configuration"),
            Interval::from_ns(row["interval_ns"].as_u64().unwrap_or(0)).to_string(),
            number("metrics", 1.0, 0),
            number("cpu_share", 100.0, 3),
            number("us_per_metric", 1.0, 3),
            number("rss_kb", 1e-3, 1),
            number("pss_kb", 1e-3, 1),
            number("missed_share", 100.0, 2),
            number("server_cpu_share", 100.0, 2),
            text("version")
        );
    }
    for row in left_out {
        let [monitor, configuration, reason] =
            ["monitor", "configuration", "reason"].map(|f| row[f].as_str().unwrap_or_default());
        let interval = Interval::from_ns(row["interval_ns"].as_u64().unwrap_or(0));
        println!("left out: {monitor} {configuration} {interval}: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitors::ProcessUsed;

    #[test]
    fn a_metric_costs_what_the_node_used_over_the_ticks_that_were_made() {
        let ready = Ready {
            monitor: "m".into(),
            configuration: "same".into(),
            version: "1".into(),
            interval_ns: 10_000_000,
            metrics: 100,
            host: "h".into(),
            configured: String::new(),
            job: Vec::new(),
        };
        let process =
            |server, cpu_ns, rss_kb| ProcessUsed { name: "p".into(), server, cpu_ns, rss_kb, pss_kb: rss_kb / 2 };
        let processes =
            vec![process(false, 30_000_000, 10), process(false, 20_000_000, 20), process(true, 1_000_000, 99)];
        let mut used = Used { window_ns: 1_000_000_000, processes, samples: Some(50), missed: Some(50) };
        let turn = figures(&ready, &used);
        // 50 ms for 50 ticks of 100 values.
        assert_eq!(turn.us_per_metric, Some(10.0));
        assert_eq!((turn.cpu_share, turn.server_cpu_share, turn.missed), (0.05, 0.001, Some(0.5)));
        assert_eq!((turn.rss_kb, turn.pss_kb), (30, 15));
        (used.samples, used.missed) = (None, None);
        assert_eq!(figures(&ready, &used).us_per_metric, Some(5.0));
        let nothing = Ready { metrics: 0, ..ready };
        assert_eq!(figures(&nothing, &used).us_per_metric, None);
    }
}
