//! A store with the power of many nodes at 1 s, and queries of it without a server: parts of `query-speed` and `virtual`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use serde::Deserialize;
use serde_json::json;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::virtuals::{Definition, DefinitionChange, MissingOperands};
use wholegrain_query::{Across, Agg, Query, Space, run as query_store, run_on};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY_S: i64 = 86_400;
/// Distance of the reading after the others, s.
const LATER_S: i64 = 600;
/// With `--gaps` one of this number of readings is a gap.
const GAP_PART: u64 = 1000;

#[derive(clap::Args)]
pub struct MakeOptions {
    /// The folder of the store.
    #[arg(long)]
    dir: PathBuf,
    /// Nodes, each with one sensor.
    #[arg(long)]
    nodes: usize,
    /// Nodes of one group.
    #[arg(long)]
    rack: usize,
    /// The first reading, s since the Unix epoch.
    #[arg(long)]
    start_s: i64,
    /// For how many seconds there are readings.
    #[arg(long)]
    seconds: i64,
    /// Samples of a batch.
    #[arg(long)]
    batch: i64,
    /// From seal to seal, s.
    #[arg(long)]
    seal_s: i64,
    /// Floats in eighths; integers otherwise.
    #[arg(long)]
    floats: bool,
    /// Gaps in the readings of every second node.
    #[arg(long)]
    gaps: bool,
    /// One newer reading of each node, so that the last hour is complete too.
    #[arg(long)]
    later: bool,
    /// The days are over: they are merged.
    #[arg(long)]
    over: bool,
}

/// Makes readings as power meters would give them: journal, seals and merges as a server would have done them.
struct Maker<'a> {
    options: &'a MakeOptions,
    store: Store,
    schemas: Vec<Schema>,
    seq: u64,
    state: u64,
    levels: Vec<f64>,
}

impl<'a> Maker<'a> {
    fn new(options: &'a MakeOptions) -> anyhow::Result<Self> {
        let store = open(&options.dir)?;
        let define = |at: usize| {
            let def = SensorDef::gauge(format!("n{at:02}/power"), "W", "");
            if options.floats { def.float() } else { def }
        };
        let mut schemas = Vec::new();
        for first in (0..options.nodes).step_by(options.rack) {
            let nodes = options.rack.min(options.nodes - first);
            let prefix = SensorPath::new(format!("/lab/rack{:02}", first / options.rack))?;
            let schema = Schema::new(prefix, "power", (0..nodes).map(define).collect())?;
            store.register_schema(&schema)?;
            schemas.push(schema);
        }
        let levels = (0..options.nodes).map(|at| 200.0 + (at % 170) as f64).collect();
        Ok(Self { options, store, schemas, seq: 0, state: 1, levels })
    }

    /// The values of one node: a walk of watts between 80 and 700.
    fn column(&mut self, node: usize, samples: usize) -> Column {
        let mut gaps = Gaps::default();
        let mut values = Vec::with_capacity(samples);
        for at in 0..samples {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let step = ((self.state >> 40) % 65) as f64 - 32.0;
            self.levels[node] = (self.levels[node] + step / 8.0).clamp(80.0, 700.0);
            let is_gap = self.options.gaps && node.is_multiple_of(2) && (self.state >> 20).is_multiple_of(GAP_PART);
            if is_gap {
                gaps.set(at, samples);
            }
            values.push(if is_gap { 0.0 } else { self.levels[node] });
        }
        let values = match self.options.floats {
            true => ColumnValues::Float(values),
            false => ColumnValues::Int(values.into_iter().map(|value| value as i64).collect()),
        };
        Column { values, gaps }
    }

    /// A batch of each group, from `second` on.
    fn append(&mut self, second: i64, samples: i64) -> anyhow::Result<()> {
        let times: Vec<i64> = (second..second + samples).map(|second| second * SECOND).collect();
        let mut node = 0;
        for group in 0..self.schemas.len() {
            let schema = self.schemas[group].clone();
            let columns = (node..node + schema.len()).map(|node| self.column(node, times.len())).collect();
            node += schema.len();
            self.seq += 1;
            let (agent, seq) = (format!("rack{group}"), self.seq);
            let header = BatchHeader { agent, boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
            self.store.append_blocking(encode_batch(&Batch { header, times: times.clone(), columns }).into())?;
        }
        Ok(())
    }

    fn seal_until(&self, second: i64) -> anyhow::Result<()> {
        self.store.seal()?;
        Ok(self.store.maintain(second * SECOND)?)
    }
}

/// Makes the store with all readings, sealed and merged.
pub fn make(options: &MakeOptions) -> anyhow::Result<()> {
    let mut maker = Maker::new(options)?;
    let end = options.start_s + options.seconds;
    for second in (options.start_s..end).step_by(usize::try_from(options.batch)?) {
        maker.append(second, options.batch)?;
        let done = second + options.batch;
        if (done - options.start_s) % options.seal_s == 0 {
            maker.seal_until(done)?;
        }
    }
    if options.later {
        maker.append(end + LATER_S, 1)?;
    }
    if options.over {
        maker.seal_until(((end - 1).div_euclid(DAY_S) + 3) * DAY_S)?;
    }
    Ok(maker.store.close()?)
}

fn open(dir: &Path) -> anyhow::Result<Store> {
    let config = StoreConfig { background: false, ..StoreConfig::new(dir) };
    Ok(Store::open(config).with_context(|| format!("opening the store in {}", dir.display()))?.0)
}

#[derive(clap::Args)]
pub struct QueryOptions {
    /// The folder of the store.
    #[arg(long)]
    dir: PathBuf,
    /// Defines a virtual sensor in kW with this path, and begins without results of it.
    #[arg(long, requires = "expression")]
    define: Option<String>,
    /// What the virtual sensor computes.
    #[arg(long)]
    expression: Option<String>,
}

/// A line of standard input.
#[derive(Deserialize)]
struct Request {
    pattern: String,
    from_s: i64,
    to_s: i64,
    every_s: Option<u64>,
    points: Option<u64>,
    /// Adds up the sensors.
    sum: bool,
    /// How often the query runs.
    runs: usize,
}

impl Request {
    /// Windows have the arithmetic mean of their readings, as DuckDB's `avg`.
    fn query(&self) -> anyhow::Result<Query> {
        let has_windows = self.every_s.is_some() || self.points.is_some();
        Ok(Query {
            patterns: vec![Pattern::new(&self.pattern)?],
            from: Timestamp(self.from_s * SECOND),
            to: Timestamp(self.to_s * SECOND),
            every: self.every_s.map(Interval::from_s),
            points: self.points,
            agg: has_windows.then_some(Agg::SampleMean),
            op: None,
            across: self.sum.then_some(Across { agg: Agg::Sum, levels: None }),
            unit: None,
            limit: None,
        })
    }
}

/// A store, or one with virtual sensors.
enum Source {
    Store(Store),
    Space(Space),
}

impl Source {
    fn open(options: &QueryOptions) -> anyhow::Result<Self> {
        let (Some(path), Some(expression)) = (&options.define, &options.expression) else {
            return Ok(Self::Store(open(&options.dir)?));
        };
        let results = options.dir.join("results");
        if results.exists() {
            std::fs::remove_dir_all(&results).with_context(|| format!("removing {}", results.display()))?;
        }
        let space = Space::new(open(&options.dir)?);
        let definition = Definition {
            path: path.clone(),
            expression: expression.clone(),
            unit: "kW".to_owned(),
            description: String::new(),
            interval: None,
            bridge: None,
            missing: MissingOperands::Gap,
        };
        let change = DefinitionChange { define: vec![definition], ..DefinitionChange::default() };
        space.virtuals().change(change, "bench", 0).map_err(|error| anyhow::anyhow!("defining {path}: {error:?}"))?;
        Ok(Self::Space(space))
    }

    /// The answer's batches and the width of its windows, s.
    fn run(&self, query: &Query) -> anyhow::Result<(Vec<RecordBatch>, Option<u64>)> {
        let answer = match self {
            Self::Store(store) => query_store(store, query)?,
            Self::Space(space) => {
                let sensors = space.sensors(&query.patterns);
                run_on(space.snapshot_for(&sensors), sensors, query)?
            }
        };
        let every_s = answer.every.map(|every| every.ns() / SECOND as u64);
        Ok((answer.batches.collect::<Result<_, _>>()?, every_s))
    }

    fn cache_hits(&self) -> u64 {
        match self {
            Self::Store(_) => 0,
            Self::Space(space) => space.store().stats().result_cache_hits,
        }
    }
}

/// The peak of this process's memory since it was last reset, kB.
fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}

/// Answers each line with the time of each run, rows and sum of the values, and the peak of memory.
pub fn query(options: &QueryOptions) -> anyhow::Result<()> {
    let source = Source::open(options)?;
    for line in std::io::stdin().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let query = request.query()?;
        // The peak counts from here on.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let before_kb = peak_kb();
        let (mut ms, mut last) = (Vec::new(), None);
        for _ in 0..request.runs {
            let start = Instant::now();
            let (batches, every_s) = source.run(&query)?;
            ms.push(start.elapsed().as_secs_f64() * 1e3);
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            let values =
                |batch: &RecordBatch| batch.column(2).as_primitive::<Float64Type>().iter().flatten().sum::<f64>();
            let answer = (rows, batches.iter().map(values).sum::<f64>(), every_s);
            ensure!(last.is_none_or(|last| last == answer), "another answer than before: {answer:?}, {last:?}");
            last = Some(answer);
        }
        let (rows, sum, every_s) = last.context("no run")?;
        let answer = json!({ "ms": ms, "rows": rows, "sum": sum, "every_s": every_s, "before_kb": before_kb, "peak_kb": peak_kb(),
                             "cache_hits": source.cache_hits() });
        println!("{answer}");
    }
    Ok(())
}
