//! How fast the embedded store answers: a thousand sensors as one series, hours of a day, and a month of one sensor in a thousand points. Beside DuckDB on the
//! same files, over one connection that stays, with as many threads, each query timed within its process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::{Across, Agg, Query, run as ask};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

use crate::report::{Aim, aim, keep, line, median, quantile};

const SECOND: i64 = 1_000_000_000;
const DAY_S: i64 = 86_400;
/// A day on which windows of a month of whole days begin, s since the Unix epoch.
const START_S: i64 = 20_000 * DAY_S;
/// Sensors of one group in the set of many sensors: those of a rack.
const RACK_SENSORS: usize = 50;
/// Sensors beside the one that is asked for in the set of long ranges.
const OTHERS: usize = 9;
/// One in this number of sensors is in the set of a day.
const DAY_PART: usize = 4;
/// Aim for a thousand sensors over an hour as one series, ms.
const ACROSS_MS_MAX: f64 = 150.0;
/// Aim for a month of one sensor in a thousand points, ms.
const POINTS_MS_MAX: f64 = 50.0;

#[derive(clap::Args, Clone)]
pub struct QuerySpeedOptions {
    /// Times that each query is asked; a fifth of them more before those that count.
    #[arg(long, default_value_t = 25)]
    runs: usize,
    /// Sensors that become one series.
    #[arg(long, default_value_t = 1000)]
    sensors: usize,
    /// Days of the one sensor.
    #[arg(long, default_value_t = 30)]
    days: i64,
    /// Where to make the data and leave it, to be used again; a temporary folder without it.
    #[arg(long)]
    keep_in: Option<PathBuf>,
    /// The Python that has DuckDB.
    #[arg(long, default_value = ".venv/bin/python")]
    python: PathBuf,
}

impl Default for QuerySpeedOptions {
    fn default() -> Self {
        Self { runs: 25, sensors: 1000, days: 30, keep_in: None, python: ".venv/bin/python".into() }
    }
}

impl QuerySpeedOptions {
    /// Sensors of the set of a day.
    fn day_sensors(&self) -> usize {
        self.sensors.div_ceil(DAY_PART)
    }
}

/// Readings of some groups, made as a node's power meter would give them.
struct Maker {
    store: Store,
    schemas: Vec<Schema>,
    floats: bool,
    seq: u64,
    state: u64,
    levels: Vec<f64>,
}

impl Maker {
    fn new(dir: &Path, groups: usize, sensors: usize, floats: bool) -> anyhow::Result<Self> {
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?;
        let define = |at: usize| {
            let def = SensorDef::gauge(format!("n{at:02}/power"), "W", "");
            if floats { def.float() } else { def }
        };
        let mut schemas = Vec::new();
        for group in 0..groups {
            let prefix = SensorPath::new(format!("/lab/rack{group:02}"))?;
            let schema = Schema::new(prefix, "power", (0..sensors).map(define).collect())?;
            store.register_schema(&schema)?;
            schemas.push(schema);
        }
        let levels = (0..groups * sensors).map(|at| 200.0 + (at % 170) as f64).collect();
        Ok(Self { store, schemas, floats, seq: 0, state: 1, levels })
    }

    /// A walk of watts between 80 and 700, in eighths when they are floats.
    fn next(&mut self, sensor: usize) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let step = ((self.state >> 40) % 65) as f64 - 32.0;
        let level = &mut self.levels[sensor];
        *level = (*level + step / 8.0).clamp(80.0, 700.0);
        *level
    }

    /// A batch of each group, from `second` on.
    fn send(&mut self, second: i64, samples: i64) -> anyhow::Result<()> {
        let times: Vec<i64> = (second..second + samples).map(|second| second * SECOND).collect();
        let mut sensor = 0;
        for group in 0..self.schemas.len() {
            let schema = self.schemas[group].clone();
            let mut columns = Vec::new();
            for _ in 0..schema.len() {
                let values: Vec<f64> = times.iter().map(|_| self.next(sensor)).collect();
                let values = match self.floats {
                    true => ColumnValues::Float(values),
                    false => ColumnValues::Int(values.into_iter().map(|value| value as i64).collect()),
                };
                columns.push(Column { values, gaps: Gaps::default() });
                sensor += 1;
            }
            self.seq += 1;
            let agent = format!("rack{group}");
            let header =
                BatchHeader { agent, boot: 1, seq: self.seq, schema: schema.hash(), interval_ns: SECOND as u64 };
            let payload = encode_batch(&Batch { header, times: times.clone(), columns });
            self.store.append_blocking(payload.into())?;
        }
        Ok(())
    }

    fn seal_until(&self, second: i64) -> anyhow::Result<()> {
        self.store.seal()?;
        self.store.maintain(second * SECOND)?;
        Ok(())
    }
}

/// An hour of many sensors, sealed each minute and merged as a server would have.
fn make_hour(dir: &Path, options: &QuerySpeedOptions, floats: bool) -> anyhow::Result<()> {
    let mut maker = Maker::new(dir, options.sensors.div_ceil(RACK_SENSORS), RACK_SENSORS.min(options.sensors), floats)?;
    for minute in 0..60 {
        let second = START_S + minute * 60;
        maker.send(second, 60)?;
        maker.seal_until(second + 60)?;
    }
    maker.store.close()?;
    Ok(())
}

/// A day of a part of the sensors; a seal each hour, merged as the day is over.
fn make_day(dir: &Path, options: &QuerySpeedOptions) -> anyhow::Result<()> {
    const SEAL_S: i64 = 3600;
    let sensors = options.day_sensors();
    let mut maker = Maker::new(dir, sensors.div_ceil(RACK_SENSORS), RACK_SENSORS.min(sensors), false)?;
    for begin in (0..DAY_S).step_by(SEAL_S as usize) {
        for second in (begin..begin + SEAL_S).step_by(600) {
            maker.send(START_S + second, 600)?;
        }
        maker.seal_until(START_S + begin + SEAL_S)?;
    }
    maker.seal_until(START_S + 3 * DAY_S)?;
    maker.store.close()?;
    Ok(())
}

/// A month of few sensors; a seal each six hours, the days merged as they are over.
fn make_month(dir: &Path, options: &QuerySpeedOptions) -> anyhow::Result<()> {
    const SEAL_S: i64 = 6 * 3600;
    let mut maker = Maker::new(dir, 1, 1 + OTHERS, false)?;
    for begin in (0..options.days * DAY_S).step_by(SEAL_S as usize) {
        for second in (begin..begin + SEAL_S).step_by(600) {
            maker.send(START_S + second, 600)?;
        }
        maker.seal_until(START_S + begin + SEAL_S)?;
    }
    maker.seal_until(START_S + (options.days + 2) * DAY_S)?;
    maker.store.close()?;
    Ok(())
}

/// A Python with DuckDB, asked over its standard input.
struct DuckDb {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Answers each line with the milliseconds of each run, the rows, and the sum of the last column.
const SCRIPT: &str = "
import duckdb, json, sys, time
db = duckdb.connect()
for line in sys.stdin:
    ask = json.loads(line)
    for setting in ask['settings']:
        db.execute(setting)
    times = []
    for _ in range(ask['runs']):
        start = time.perf_counter()
        table = db.execute(ask['sql']).fetch_arrow_table()
        times.append((time.perf_counter() - start) * 1e3)
    column = table.column(table.num_columns - 1)
    print(json.dumps({'ms': times, 'rows': table.num_rows, 'sum': float(sum(column.to_pylist()))}), flush=True)
";

impl DuckDb {
    fn start(python: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}; `make prepare` makes it", python.display()))?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, sql: &str, threads: usize, runs: usize) -> anyhow::Result<Answer> {
        // Its caches stay between queries.
        let settings = [
            format!("SET threads = {threads}"),
            "SET parquet_metadata_cache = true".to_owned(),
            "SET enable_external_file_cache = true".to_owned(),
            "SET enable_progress_bar = false".to_owned(),
        ];
        writeln!(self.input, "{}", json!({ "sql": sql, "runs": runs, "settings": settings }))?;
        let mut text = String::new();
        self.output.read_line(&mut text)?;
        let found: Value = serde_json::from_str(&text).context("DuckDB's answer; its error stands above")?;
        let ms = found["ms"].as_array().context("ms")?.iter().filter_map(Value::as_f64).collect();
        let (rows, sum) = (found["rows"].as_u64().context("rows")?, found["sum"].as_f64().context("sum")?);
        Ok(Answer { ms, rows, sum })
    }
}

impl Drop for DuckDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The time of each run, and its result for the comparison.
struct Answer {
    ms: Vec<f64>,
    rows: u64,
    sum: f64,
}

fn ours(store: &Store, query: &Query, runs: usize) -> anyhow::Result<Answer> {
    let mut answer = Answer { ms: Vec::new(), rows: 0, sum: 0.0 };
    for _ in 0..runs {
        let start = Instant::now();
        let batches: Vec<_> = ask(store, query)?.batches.collect::<Result<_, _>>()?;
        answer.ms.push(start.elapsed().as_secs_f64() * 1e3);
        answer.rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let column = |batch: &arrow_array::RecordBatch| -> f64 {
            use arrow_array::cast::AsArray;
            use arrow_array::types::Float64Type;
            batch.column(2).as_primitive::<Float64Type>().iter().flatten().sum()
        };
        answer.sum = batches.iter().map(column).sum();
    }
    Ok(answer)
}

/// One query, asked both.
struct Case<'a> {
    what: &'a str,
    query: Query,
    sql: String,
    most_ms: f64,
}

fn query(pattern: &str, seconds: i64) -> anyhow::Result<Query> {
    Ok(Query {
        patterns: vec![Pattern::new(pattern)?],
        from: Timestamp(START_S * SECOND),
        to: Timestamp((START_S + seconds) * SECOND),
        every: None,
        points: None,
        agg: None,
        op: None,
        across: None,
        unit: None,
        limit: None,
    })
}

fn compare(case: &Case, store: &Store, duck: &mut DuckDb, options: &QuerySpeedOptions) -> anyhow::Result<Value> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let warm_up = options.runs.div_ceil(5);
    println!(" {}", case.what);
    // In turn, so that both meet the same neighbours.
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    let half = options.runs.div_ceil(2);
    let (mut rows, mut sums) = ((0, 0), (0.0, 0.0));
    for _ in 0..2 {
        let answer = ours(store, &case.query, warm_up + half)?;
        mine.extend_from_slice(&answer.ms[warm_up..]);
        (rows.0, sums.0) = (answer.rows, answer.sum);
        let answer = duck.ask(&case.sql, threads, warm_up + half)?;
        theirs.extend_from_slice(&answer.ms[warm_up..]);
        (rows.1, sums.1) = (answer.rows, answer.sum);
    }
    ensure!(rows.0 == rows.1, "{}: {} rows here, {} in DuckDB", case.what, rows.0, rows.1);
    ensure!((sums.0 - sums.1).abs() <= 1e-9 * sums.1.abs(), "{}: sums {} and {}", case.what, sums.0, sums.1);
    let text = format!("{} (warm)", case.most_ms);
    aim("median, ms", median(&mine), 1, Aim::AtMost(case.most_ms, &text));
    line("slowest, ms", format!("{:.1}", quantile(&mine, 1.0)), "");
    line(&format!("DuckDB, {threads} threads, median, ms"), format!("{:.1}", median(&theirs)), "");
    let ratio = median(&mine) / median(&theirs);
    aim("of DuckDB's", ratio, 2, Aim::AtMost(1.0, "1.0"));
    Ok(
        json!({ "what": case.what, "ms": mine, "duckdb_ms": theirs, "ratio": ratio, "threads": threads, "rows": rows.0 }),
    )
}

/// Columns of `/proc/self/status` in MiB.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

pub fn run(options: &QuerySpeedOptions) -> anyhow::Result<()> {
    println!(
        "query-speed: {} sensors over 1 h at 1 s as one series, {} over six hours of a day, one over {} days in 1,000 points, {} runs each",
        options.sensors,
        options.day_sensors(),
        options.days,
        options.runs
    );
    let temporary = tempfile::tempdir()?;
    let base = options.keep_in.clone().unwrap_or_else(|| temporary.path().to_owned());
    let made = |name: &str, make: &dyn Fn(&Path) -> anyhow::Result<()>| -> anyhow::Result<PathBuf> {
        let (dir, part) = (base.join(name), base.join(format!("{name}.part")));
        if !dir.exists() {
            let _ = std::fs::remove_dir_all(&part);
            std::fs::create_dir_all(&part)?;
            make(&part)?;
            std::fs::rename(&part, &dir)?;
        }
        Ok(dir)
    };
    let start = Instant::now();
    let ints = made("ints", &|dir| make_hour(dir, options, false))?;
    let floats = made("floats", &|dir| make_hour(dir, options, true))?;
    let day = made("day", &|dir| make_day(dir, options))?;
    let month = made("month", &|dir| make_month(dir, options))?;
    line("making the data, s", format!("{:.0}", start.elapsed().as_secs_f64()), "");
    let mut duck = DuckDb::start(&options.python)?;
    let mut figures = Vec::new();
    for (name, dir) in [("integers", &ints), ("floats", &floats)] {
        figures.extend(ask_hour(name, dir, &mut duck, options)?);
    }
    figures.extend(ask_day(&day, &mut duck, options)?);
    figures.extend(ask_month(&month, &mut duck, options)?);
    line("resident memory at its peak, MiB", format!("{:.0}", memory("VmHWM")), "");
    keep("query-speed", json!({ "queries": figures, "peak_mib": memory("VmHWM") }))
}

fn files(dir: &Path) -> String {
    format!("read_parquet('{}/blocks/**/*.parquet')", dir.display())
}

fn open(dir: &Path) -> anyhow::Result<Store> {
    Ok(Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) })?.0)
}

fn ask_hour(name: &str, dir: &Path, duck: &mut DuckDb, options: &QuerySpeedOptions) -> anyhow::Result<Vec<Value>> {
    let store = open(dir)?;
    let from = files(dir);
    let sum = Some(Across { agg: Agg::Sum, levels: None });
    // Faster in DuckDB than its time_bucket.
    let bucket = |seconds: i64| {
        format!(
            "SELECT bucket, sum(mean) FROM (SELECT sensor, epoch_us(time) // {seconds}000000 AS bucket, avg(value) AS mean \
             FROM {from} GROUP BY 1, 2) GROUP BY 1 ORDER BY 1"
        )
    };
    let hour = query("/lab/**/power", 3600)?;
    let case = |what: &'static str| format!("{} sensors ({name}), {what}", options.sensors);
    let cases = [
        Case {
            what: &case("the sum at each second"),
            query: Query { across: sum, ..hour.clone() },
            sql: format!("SELECT time, sum(value) FROM {from} GROUP BY time ORDER BY time"),
            most_ms: ACROSS_MS_MAX,
        },
        Case {
            what: &case("the sum of the means of each 7 s, from readings"),
            query: Query { across: sum, every: Some(Interval::from_s(7)), ..hour.clone() },
            sql: bucket(7),
            most_ms: ACROSS_MS_MAX,
        },
        Case {
            what: &case("the sum of the means of each 10 s, from a tier where there is one"),
            query: Query { across: sum, every: Some(Interval::from_s(10)), ..hour },
            sql: bucket(10),
            most_ms: ACROSS_MS_MAX,
        },
    ];
    cases.iter().map(|case| compare(case, &store, duck, options)).collect()
}

fn ask_day(dir: &Path, duck: &mut DuckDb, options: &QuerySpeedOptions) -> anyhow::Result<Vec<Value>> {
    // As for the last hours until now: no window begins or ends with the range.
    let (begin, end, window) = (START_S + 15 * 3600 + 7, START_S + 21 * 3600 + 11, 300);
    let store = open(dir)?;
    let query = Query {
        from: Timestamp(begin * SECOND),
        to: Timestamp(end * SECOND),
        every: Some(Interval::from_s(window as u64)),
        across: Some(Across { agg: Agg::Sum, levels: None }),
        ..query("/lab/**/power", DAY_S)?
    };
    let sql = format!(
        "SELECT bucket, sum(mean) FROM (SELECT sensor, epoch_us(time) // {window}000000 AS bucket, avg(value) AS mean FROM {} \
         WHERE epoch_us(time) >= {begin}000000 AND epoch_us(time) < {end}000000 GROUP BY 1, 2) GROUP BY 1 ORDER BY 1",
        files(dir)
    );
    let what =
        format!("{} sensors, six hours of a day that begin and end within a window of 5 min", options.day_sensors());
    Ok(vec![compare(&Case { what: &what, query, sql, most_ms: ACROSS_MS_MAX }, &store, duck, options)?])
}

fn ask_month(dir: &Path, duck: &mut DuckDb, options: &QuerySpeedOptions) -> anyhow::Result<Vec<Value>> {
    let store = open(dir)?;
    let month = query("/lab/rack00/n05/power", options.days * DAY_S)?;
    // Of no tier's: 2,592 s for 30 days.
    let width = options.days * DAY_S / 1000;
    let sql = |seconds: i64| {
        format!(
            "SELECT epoch_us(time) // {seconds}000000 AS bucket, avg(value) FROM {} WHERE sensor = '/lab/rack00/n05/power' \
             GROUP BY 1 ORDER BY 1",
            files(dir)
        )
    };
    let asked = Query { points: Some(1000), ..month.clone() };
    let chosen = ask(&store, &asked)?.every.map_or(0, |every| (every.ns() / SECOND as u64) as i64);
    let cases = [
        Case {
            what: &format!("one sensor over {} days in 1,000 points, as it is asked for (from a tier)", options.days),
            query: asked,
            sql: sql(chosen),
            most_ms: POINTS_MS_MAX,
        },
        Case {
            what: &format!("the same in windows of {width} s, from readings"),
            query: Query { every: Some(Interval::from_s(width as u64)), ..month },
            sql: sql(width),
            most_ms: POINTS_MS_MAX,
        },
    ];
    cases.iter().map(|case| compare(case, &store, duck, options)).collect()
}
