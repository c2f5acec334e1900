//! A virtual sensor over the power of 512 nodes, 24 h at 1 s: the first query, which computes it, and the same query again, which finds it kept. Beside
//! DuckDB adding up the same files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use serde_json::{Value, json};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::virtuals::{Definition, DefinitionChange, MissingOperands};
use wholegrain_query::{Query, Space, run_on};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

use crate::report::{Aim, aim, keep, line, median, quantile};

const SECOND: i64 = 1_000_000_000;
/// Start of a day, s since the Unix epoch.
const START_S: i64 = 20_000 * 86_400;
/// Nodes of one group.
const RACK_NODES: usize = 32;
/// Samples of one batch.
const BATCH_S: i64 = 600;
const PATH: &str = "/lab/power";
/// Aim for the first query, s.
const FIRST_S_MAX: f64 = 3.0;
/// Aim for the same query again, ms.
const AGAIN_MS_MAX: f64 = 100.0;

#[derive(clap::Args, Clone)]
pub struct VirtualOptions {
    /// Nodes whose power is added up.
    #[arg(long, default_value_t = 512)]
    nodes: usize,
    /// Hours at 1 s.
    #[arg(long, default_value_t = 24)]
    hours: i64,
    /// First queries, each after an opening of the store with nothing kept.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The same query again after each of them.
    #[arg(long, default_value_t = 10)]
    again: usize,
    /// Only the first of two nodes' batches has a gap in 1,000 readings; none without it.
    #[arg(long)]
    gaps: bool,
    /// Where to make the data and leave it, to be used again; a temporary folder without it.
    #[arg(long)]
    keep_in: Option<PathBuf>,
    /// The Python that has DuckDB; without it there is no ratio.
    #[arg(long, default_value = ".venv/bin/python")]
    python: PathBuf,
}

impl Default for VirtualOptions {
    fn default() -> Self {
        let python = ".venv/bin/python".into();
        Self { nodes: 512, hours: 24, runs: 5, again: 10, gaps: false, keep_in: None, python }
    }
}

/// Readings as power meters would give them, through the store: journal, seal each hour, and the merge of a day that is over.
fn make(dir: &Path, options: &VirtualOptions) -> anyhow::Result<()> {
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?;
    let mut schemas = Vec::new();
    for rack in 0..options.nodes.div_ceil(RACK_NODES) {
        let nodes = RACK_NODES.min(options.nodes - rack * RACK_NODES);
        let define = |at: usize| SensorDef::gauge(format!("n{at:02}/power"), "W", "").float();
        let prefix = SensorPath::new(format!("/lab/rack{rack:02}"))?;
        schemas.push(Schema::new(prefix, "power", (0..nodes).map(define).collect())?);
    }
    schemas.iter().try_for_each(|schema| store.register_schema(schema))?;
    let mut state = 1u64;
    let mut levels: Vec<f64> = (0..options.nodes).map(|at| 200.0 + (at % 170) as f64).collect();
    let mut seq = 0;
    for second in (0..options.hours * 3600).step_by(BATCH_S as usize) {
        let times: Vec<i64> = (second..second + BATCH_S).map(|second| (START_S + second) * SECOND).collect();
        let mut node = 0;
        for (rack, schema) in schemas.iter().enumerate() {
            let mut columns = Vec::new();
            for _ in 0..schema.len() {
                let mut gaps = Gaps::default();
                let mut values = Vec::with_capacity(times.len());
                for at in 0..times.len() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    levels[node] = (levels[node] + (((state >> 40) % 65) as f64 - 32.0) / 8.0).clamp(80.0, 700.0);
                    let gap = options.gaps && node % 2 == 0 && (state >> 20).is_multiple_of(1000);
                    if gap {
                        gaps.set(at, times.len());
                    }
                    values.push(if gap { 0.0 } else { levels[node] });
                }
                columns.push(Column { values: ColumnValues::Float(values), gaps });
                node += 1;
            }
            seq += 1;
            let agent = format!("rack{rack}");
            let header = BatchHeader { agent, boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
            store.append_blocking(encode_batch(&Batch { header, times: times.clone(), columns }).into())?;
        }
        if (second + BATCH_S) % 3600 == 0 {
            store.seal()?;
            store.maintain((START_S + second + BATCH_S) * SECOND)?;
        }
    }
    // A newer reading, so that the last hour is complete too.
    let later = START_S + options.hours * 3600 + 600;
    for (rack, schema) in schemas.iter().enumerate() {
        let columns = (0..schema.len())
            .map(|_| Column { values: ColumnValues::Float(vec![100.0]), gaps: Gaps::default() })
            .collect();
        let header = BatchHeader {
            agent: format!("rack{rack}"),
            boot: 1,
            seq: seq + 1 + rack as u64,
            schema: schema.hash(),
            interval_ns: SECOND as u64,
        };
        store.append_blocking(encode_batch(&Batch { header, times: vec![later * SECOND], columns }).into())?;
    }
    store.seal()?;
    store.maintain((START_S + 3 * 86_400) * SECOND)?;
    store.close()?;
    Ok(())
}

fn query(options: &VirtualOptions) -> anyhow::Result<Query> {
    Ok(Query {
        patterns: vec![Pattern::new(PATH)?],
        from: Timestamp(START_S * SECOND),
        to: Timestamp((START_S + options.hours * 3600) * SECOND),
        every: None,
        points: None,
        agg: None,
        op: None,
        across: None,
        unit: None,
        limit: None,
    })
}

/// Milliseconds, rows and the sum of all values.
fn ask(space: &Space, query: &Query) -> anyhow::Result<(f64, u64, f64)> {
    let start = Instant::now();
    let sensors = space.sensors(&query.patterns);
    let batches: Vec<_> = run_on(space.snapshot_for(&sensors), sensors, query)?.batches.collect::<Result<_, _>>()?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let sum = batches.iter().flat_map(|batch| batch.column(2).as_primitive::<Float64Type>().iter().flatten()).sum();
    Ok((ms, rows, sum))
}

/// Opens the store with nothing kept and the sensor defined.
fn open(dir: &Path) -> anyhow::Result<Space> {
    let derived = dir.join("results");
    if derived.exists() {
        std::fs::remove_dir_all(&derived).with_context(|| format!("removing {}", derived.display()))?;
    }
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?;
    let space = Space::new(store);
    let definition = Definition {
        path: PATH.to_owned(),
        expression: "sum(</lab/*/*/power>)".to_owned(),
        unit: "kW".to_owned(),
        description: String::new(),
        interval: None,
        bridge: None,
        missing: MissingOperands::Gap,
    };
    let change = DefinitionChange { define: vec![definition], ..DefinitionChange::default() };
    space.virtuals().change(change, "bench", 0).map_err(|error| anyhow::anyhow!("defining {PATH}: {error:?}"))?;
    Ok(space)
}

/// Peak of this process's memory since it was last reset, MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// Answers with the milliseconds of each run, the rows and the sum.
const SCRIPT: &str = "
import duckdb, json, sys, time
sql, threads, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = duckdb.connect()
for setting in (f'threads = {threads}', 'enable_progress_bar = false'):
    db.execute('SET ' + setting)
times = []
for _ in range(runs):
    start = time.perf_counter()
    table = db.execute(sql).fetch_arrow_table()
    times.append((time.perf_counter() - start) * 1e3)
print(json.dumps({'ms': times, 'rows': table.num_rows, 'sum': float(sum(v for v in table.column(1).to_pylist() if v is not None))}))
";

fn duckdb(dir: &Path, options: &VirtualOptions, threads: usize) -> anyhow::Result<Value> {
    let (from, to) = (START_S * 1_000_000, (START_S + options.hours * 3600) * 1_000_000);
    let sql = format!(
        "SELECT time, sum(value) / 1000 FROM read_parquet('{}/blocks/**/*.parquet') \
         WHERE epoch_us(time) >= {from} AND epoch_us(time) < {to} GROUP BY time ORDER BY time",
        dir.display()
    );
    let output = Command::new(&options.python)
        .args(["-c", SCRIPT, &sql, &threads.to_string(), &options.runs.to_string()])
        .output()
        .with_context(|| format!("starting {}", options.python.display()))?;
    ensure!(output.status.success(), "DuckDB: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

pub fn run(options: &VirtualOptions) -> anyhow::Result<()> {
    println!("virtual: the sum of {} sensors over {} h at 1 s", options.nodes, options.hours);
    let temporary = tempfile::tempdir()?;
    let dir = options.keep_in.clone().unwrap_or_else(|| temporary.path().join("store"));
    if !dir.exists() {
        let (part, start) = (dir.with_extension("part"), Instant::now());
        let _ = std::fs::remove_dir_all(&part);
        make(&part, options)?;
        std::fs::rename(&part, &dir)?;
        line("making the data, s", format!("{:.0}", start.elapsed().as_secs_f64()), "");
    }
    let query = query(options)?;
    let (mut first, mut again, mut answer) = (Vec::new(), Vec::new(), (0, 0.0));
    let mut peak = 0.0f64;
    for _ in 0..options.runs {
        let space = open(&dir)?;
        // The peak counts from here on.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let before = peak_mib();
        let (ms, rows, sum) = ask(&space, &query)?;
        peak = peak.max(peak_mib() - before);
        first.push(ms / 1e3);
        answer = (rows, sum);
        for _ in 0..options.again {
            let (ms, rows, sum) = ask(&space, &query)?;
            ensure!((rows, sum.to_bits()) == (answer.0, answer.1.to_bits()), "another answer than at first");
            again.push(ms);
        }
        let stats = space.store().stats();
        ensure!(stats.result_cache_hits > 0, "nothing was kept: {stats:?}");
    }
    aim("first query, median, s", median(&first), 2, Aim::AtMost(FIRST_S_MAX, "3"));
    aim("the same again, median, ms", median(&again), 1, Aim::AtMost(AGAIN_MS_MAX, "100"));
    line("slowest of each", format!("{:.2} s, {:.1} ms", quantile(&first, 1.0), quantile(&again, 1.0)), "");
    line("memory that the first query took at its peak, MiB", format!("{peak:.0}"), "");
    let mut figures = json!({ "first_s": first, "again_ms": again, "peak_mib": peak, "rows": answer.0 });
    if options.python.exists() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let found = duckdb(&dir, options, threads)?;
        ensure!(found["rows"].as_u64() == Some(answer.0), "{} rows here, {} in DuckDB", answer.0, found["rows"]);
        let sum = found["sum"].as_f64().unwrap_or(0.0);
        ensure!(options.gaps || (sum - answer.1).abs() <= 1e-9 * sum.abs(), "sums {} and {sum}", answer.1);
        let theirs: Vec<f64> = found["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let ratio = median(&first) * 1e3 / median(&theirs);
        line(&format!("DuckDB, {threads} threads, median, s"), format!("{:.2}", median(&theirs) / 1e3), "");
        line("the first query beside it", format!("{ratio:.2}"), "");
        line("the same again beside it", format!("{:.3}", median(&again) / median(&theirs)), "");
        figures["duckdb_ms"] = json!(theirs);
        figures["ratio"] = json!(ratio);
    }
    keep("virtual", figures)
}
