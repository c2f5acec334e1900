//! The server beside other stores on the same recorded readings: VictoriaMetrics and Prometheus.
//!
//! - In: readings recorded from this machine's /proc, or a folder of such.
//! - Out: `target/bench/beside.json`.
//! - Never: a figure of another system with settings that its own documents advise against, unsaid; a reading that was not taken.
//!
//! `recording.rs` is the data, `system.rs` the interface of a system, with a file for each. README.md describes the comparison.

mod http;
mod own;
mod prometheus;
mod promql;
mod record;
mod recording;
mod remote_write;
mod system;
mod victoria;
mod work;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use self::recording::{Recording, Sums};
use self::system::{SensorSelection, Span, System};
use crate::load::wall_ns;
use crate::report::{keep, line, median};

/// The file of a recording within its folder.
const FILE: &str = "sent.bin";
/// Copies end this time before now: no system accepts readings of the future.
const BEFORE_NOW_NS: i64 = 5_000_000_000;
/// Length of a recording with `--full`.
const FULL_SECONDS: f64 = 3600.0;
const FULL_INTERVAL_MS: u64 = 1000;
/// Questions of each kind before those that count.
const WARM_UP: usize = 5;
/// Relative tolerance of sums: systems add up floats in orders of their own.
const SUM_TOLERANCE: f64 = 1e-9;

#[derive(clap::Args, Clone)]
pub struct BesideOptions {
    /// A recording; made there when the folder has none. A temporary one without it.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Length of the recording, seconds.
    #[arg(long, default_value_t = 60.0)]
    record_seconds: f64,
    /// Sampling interval of the recording, ms.
    #[arg(long, default_value_t = 100)]
    record_interval_ms: u64,
    /// Records an hour at 1 s.
    #[arg(long)]
    full: bool,
    /// Records the machine as it is, where else this program computes, writes and talks meanwhile.
    #[arg(long)]
    quiet: bool,
    /// Nodes that the readings are sent as when ingest and questions are measured; bytes are of one.
    #[arg(long, default_value_t = 9)]
    nodes: usize,
    /// Questions of each kind; the median counts.
    #[arg(long, default_value_t = 20)]
    questions: usize,
    /// Windows of the sum, s.
    #[arg(long, default_value_t = 10)]
    window_s: u64,
    /// The systems to compare.
    #[arg(long, value_delimiter = ',', default_values_t = ["wholegrain".to_owned(), "wholegrain-singles".into(), "victoriametrics".into(), "prometheus".into()])]
    systems: Vec<String>,
}

fn find(name: &str) -> anyhow::Result<Box<dyn System>> {
    Ok(match name {
        "wholegrain" => Box::new(own::Own::new(false)),
        "wholegrain-singles" => Box::new(own::Own::new(true)),
        "victoriametrics" => Box::new(victoria::Victoria::find()?),
        "prometheus" => Box::new(prometheus::Prometheus::find()?),
        other => anyhow::bail!(
            "unknown system {other:?}; known are wholegrain, wholegrain-singles, victoriametrics, prometheus"
        ),
    })
}

/// Figures of one system, in the file's form.
struct Rows<'a> {
    system: &'a str,
    rows: Vec<Value>,
}

impl Rows<'_> {
    fn add(&mut self, what: &str, value: f64, unit: &str) {
        line(&format!("{}, {}", what.replace('_', " "), unit), format!("{value:.2}"), "");
        self.rows.push(json!({ "system": self.system, "what": what, "value": value, "unit": unit }));
    }
}

fn whole(recordings: &[Recording]) -> Span {
    let spans: Vec<(i64, i64)> = recordings.iter().map(Recording::span).collect();
    Span {
        from: spans.iter().map(|span| span.0).min().unwrap_or(0),
        to: spans.iter().map(|span| span.1).max().unwrap_or(0),
    }
}

/// How many sensors' readings are not exactly those that were sent.
fn differing(wanted: &Sums, found: &Sums) -> usize {
    let same = |name: &str, sum: &recording::Sum| {
        found.get(name).or_else(|| found.get(&remote_write::metric(name))).is_some_and(|other| {
            sum.count == other.count && (sum.sum - other.sum).abs() <= SUM_TOLERANCE * sum.sum.abs()
        })
    };
    let lacking = wanted.iter().filter(|(name, sum)| !same(name, sum)).count();
    lacking + found.len().saturating_sub(wanted.len())
}

/// Whether a system has each reading of a recording once, and no other.
fn check(system: &mut dyn System, recording: &Recording) -> anyhow::Result<()> {
    let found = system.sums(recording)?;
    let (wanted, name) = (recording.sums(), system.about().system);
    let differ = differing(&wanted, &found);
    let (count, all) = (found.values().map(|sum| sum.count).sum::<u64>(), recording.readings());
    ensure!(
        differ == 0,
        "{name}: {differ} of {} sensors differ; {count} readings are there, {all} were sent",
        wanted.len()
    );
    Ok(())
}

/// The recording as that of several nodes, ending now.
fn as_nodes(recording: &Recording, names: impl Iterator<Item = String>) -> anyhow::Result<Vec<Recording>> {
    // By whole seconds, so that readings stay where they were within one.
    let by_ns = (wall_ns() - BEFORE_NOW_NS - recording.span().1).div_euclid(1_000_000_000) * 1_000_000_000;
    names.map(|name| recording.moved(&name, by_ns)).collect()
}

fn timed(questions: usize, mut ask: impl FnMut() -> anyhow::Result<usize>) -> anyhow::Result<(f64, usize)> {
    let (mut times, mut came) = (Vec::new(), 0);
    for round in 0..WARM_UP + questions {
        let start = Instant::now();
        came = ask()?;
        if round >= WARM_UP {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok((median(&times), came))
}

/// Bytes of one node's readings, each of which must be there.
fn bytes(system: &mut dyn System, recording: &Recording, dir: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    let one = as_nodes(recording, std::iter::once("n0".to_owned()))?;
    std::fs::create_dir_all(dir)?;
    system.fresh(dir)?;
    let lanes = [system.prepare(&one[0])?];
    system.ingest(&lanes)?;
    system.flush_and_merge()?;
    check(system, &one[0])?;
    let (stored, readings) = (system.stored()?, one[0].readings() as f64);
    rows.add("bytes_per_reading", stored.bytes as f64 / readings, "B");
    rows.add("bytes_per_reading_all_files", stored.all as f64 / readings, "B");
    Ok(())
}

/// Ingest and questions of many nodes.
fn load(
    system: &mut dyn System,
    recording: &Recording,
    dir: &Path,
    options: &BesideOptions,
    rows: &mut Rows,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    system.fresh(dir)?;
    let nodes = as_nodes(recording, (1..=options.nodes).map(|number| format!("n{number}")))?;
    let lanes = nodes.iter().map(|node| system.prepare(node)).collect::<anyhow::Result<Vec<_>>>()?;
    let readings = lanes.iter().map(|lane| lane.readings).sum::<u64>() as f64;
    let (before, start) = (system.cpu_ns(), Instant::now());
    system.ingest(&lanes)?;
    let (acknowledged_ns, wall_s) = (system.cpu_ns() - before, start.elapsed().as_secs_f64());
    rows.add("rss_mb", system.rss_kb() as f64 / 1e3, "MB");
    let before = system.cpu_ns();
    system.flush_and_merge()?;
    let (acknowledged_ns, merged_ns) =
        (acknowledged_ns as f64 / readings, (system.cpu_ns() - before) as f64 / readings);
    rows.add("ingest_cpu_ns_per_reading", acknowledged_ns + merged_ns, "ns");
    rows.add("ingest_cpu_ns_per_reading_acknowledged", acknowledged_ns, "ns");
    rows.add("ingest_wall_readings_per_s", readings / wall_s, "1/s");
    drop(lanes);
    let span = whole(&nodes);
    let last = nodes.last().context("there is no node: --nodes is at least 1")?;
    check(system, last)?;
    let sums = last.sums();
    let sensor =
        sums.keys().find(|name| name.as_str() == "meminfo/MemFree").or(sums.keys().next()).context("no sensor")?;
    let chosen = SensorSelection::new(nodes.iter().map(|node| node.node.clone()).collect(), sums.keys());
    let (ms, came) = timed(options.questions, || system.one_sensor(&last.node, sensor, span))?;
    ensure!(came as u64 == sums[sensor].count, "{came} readings of {sensor} came, {} are there", sums[sensor].count);
    rows.add("query_one_sensor_ms", ms, "ms");
    let (ms, came) = timed(options.questions, || system.windows(&chosen, span, options.window_s))?;
    let windows = ((span.to - span.from) / 1_000_000_000) as u64 / options.window_s;
    ensure!((windows as usize..=windows as usize + 2).contains(&came), "{came} windows came, {windows} are there");
    rows.add("query_thousand_sensors_ms", ms, "ms");
    let (ms, came) = timed(options.questions, || system.newest(&chosen, span))?;
    let wanted = sums.len() * nodes.len();
    ensure!(came == wanted, "{came} newest values came, {wanted} sensors are there");
    rows.add("query_newest_ms", ms, "ms");
    rows.add("query_thousand_sensors_count", (chosen.summed.len() * nodes.len()) as f64, "1");
    rows.add("query_newest_count", wanted as f64, "1");
    Ok(())
}

fn one(name: &str, recording: &Recording, options: &BesideOptions) -> anyhow::Result<(Value, Vec<Value>)> {
    let mut system = find(name)?;
    let about = system.about();
    println!(" {} {}", about.system, about.version);
    let dir = tempfile::tempdir()?;
    let mut rows = Rows { system: &about.system, rows: Vec::new() };
    bytes(&mut *system, recording, &dir.path().join("one"), &mut rows)?;
    load(&mut *system, recording, &dir.path().join("many"), options, &mut rows)?;
    Ok((serde_json::to_value(&about)?, rows.rows))
}

/// The recording of the options, made if it is not there.
fn data(options: &BesideOptions) -> anyhow::Result<Recording> {
    let temporary = tempfile::tempdir()?;
    let dir = options.data.as_deref().unwrap_or(temporary.path());
    let file = dir.join(FILE);
    if !file.exists() {
        let (seconds, interval_ms) = if options.full {
            (FULL_SECONDS, FULL_INTERVAL_MS)
        } else {
            (options.record_seconds, options.record_interval_ms)
        };
        println!("recording this machine at {interval_ms} ms for {seconds:.0} s");
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        record::record(&file, &record::RecordingOptions { seconds, interval_ms, busy: !options.quiet })?;
    }
    Recording::load(&file)
}

pub fn run(options: &BesideOptions) -> anyhow::Result<()> {
    let (recording, left_out_readings) = data(options)?.apart();
    let (from, to) = recording.span();
    let seconds = (to - from) as f64 / 1e9;
    println!("beside: {} readings of {} sensors in {seconds:.0} s", recording.readings(), recording.sensors());
    if left_out_readings > 0 {
        println!("  {left_out_readings} more, taken within a millisecond of the one before, are given to no system");
    }
    let (mut systems, mut rows, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for name in &options.systems {
        // The harness panics when something does not come; that is this system's end, not the others'.
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(name, &recording, options)));
        match found.unwrap_or_else(|_| Err(anyhow::anyhow!("it did not do what was waited for; see above"))) {
            Ok((about, found)) => {
                systems.push(about);
                rows.extend(found);
            }
            Err(error) => {
                eprintln!("{name} is left out: {error:#}");
                left_out.push(json!({ "system": name, "reason": format!("{error:#}") }));
            }
        }
    }
    keep(
        "beside",
        json!({ "systems": systems, "rows": rows, "left_out": left_out,
                "data": { "readings": recording.readings(), "readings_left_out": left_out_readings, "sensors": recording.sensors(),
                          "seconds": seconds, "nodes": options.nodes, "window_s": options.window_s } }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system stores a recording and responds with the same sums; a loss is found.
    fn takes_in(name: &str) {
        let mut system = match find(name) {
            Ok(system) => system,
            Err(error) => return eprintln!("not tested: {error:#}"),
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        record::record(&file, &record::RecordingOptions { seconds: 3.0, interval_ms: 100, busy: true }).unwrap();
        let mut recording = Recording::load(&file).unwrap();
        let mut pairs = 0;
        for times in recording.parts.iter_mut().map(|part| &mut part.batch.times).filter(|times| times.len() > 1) {
            // As if the first sample had been so late that the second was due: a nanosecond apart, in one millisecond.
            (times[0], times[1], pairs) = (times[1], times[1] + 1, pairs + 1);
        }
        let (recording, left_out) = recording.apart();
        assert!(pairs > 0 && left_out > 0, "{pairs} pairs, {left_out} readings left out");
        assert!(recording.readings() > 5000, "{} readings were recorded", recording.readings());
        let nodes = as_nodes(&recording, ["whole", "cut"].map(str::to_owned).into_iter()).unwrap();
        let store = dir.path().join("store");
        std::fs::create_dir_all(&store).unwrap();
        system.fresh(&store).unwrap();
        let mut lanes: Vec<_> = nodes.iter().map(|node| system.prepare(node).unwrap()).collect();
        let last = lanes[1].requests.len() - 1;
        lanes[1].requests.remove(last);
        system.ingest(&lanes).unwrap();
        system.flush_and_merge().unwrap();
        check(&mut *system, &nodes[0]).unwrap();
        let seen = check(&mut *system, &nodes[1]).unwrap_err().to_string();
        assert!(seen.contains("differ"), "{seen}");
        assert!(system.cpu_ns() > 0 && system.rss_kb() > 0 && system.stored().unwrap().bytes > 0);
        let (span, sums) = (whole(&nodes), nodes[0].sums());
        let count = system.one_sensor("whole", "meminfo/MemFree", span).unwrap();
        assert_eq!(count as u64, sums["meminfo/MemFree"].count);
        let chosen = SensorSelection::new(vec!["whole".into()], sums.keys());
        assert!(chosen.summed.len() > 20, "{} counters are added up", chosen.summed.len());
        assert!((3..=5).contains(&system.windows(&chosen, span, 1).unwrap()));
    }

    #[test]
    fn wholegrain_takes_in() {
        takes_in("wholegrain");
        takes_in("wholegrain-singles");
    }

    #[test]
    fn victoriametrics_takes_in() {
        takes_in("victoriametrics");
    }

    #[test]
    fn prometheus_takes_in() {
        takes_in("prometheus");
    }

    #[test]
    fn sums_that_differ_are_counted() {
        let sum = |count, sum| recording::Sum { count, sum };
        let wanted = Sums::from([("a/b".into(), sum(2, 1e15)), ("c".into(), sum(1, 5.0))]);
        let same = Sums::from([("a_b".into(), sum(2, 1e15 + 1e5)), ("c".into(), sum(1, 5.0))]);
        assert_eq!(differing(&wanted, &same), 0);
        for (wrong, count) in [
            (Sums::from([("a/b".into(), sum(1, 1e15)), ("c".into(), sum(1, 5.0))]), 1),
            (Sums::from([("a/b".into(), sum(2, 1e15)), ("c".into(), sum(1, 5.1))]), 1),
            (Sums::new(), 2),
            (same.clone().into_iter().chain([("d".to_owned(), sum(1, 1.0))]).collect(), 1),
        ] {
            assert_eq!(differing(&wanted, &wrong), count, "{wrong:?}");
        }
    }
}
