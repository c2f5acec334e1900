//! `wholegrain jobs stats ID PATTERN…`: statistics of a job's sensors, over nodes and on each.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use wholegrain_model::{Pattern, Timestamp};

use crate::connection::{ClientOption, Connection};
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::{PATTERNS, TIMES};
use crate::output::Output;
use crate::query::no_sensor_of;
use crate::range::range;
use crate::shown;
use crate::socket::encoded;
use crate::style::{self, Style};
use crate::table::Table;

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

const EXAMPLES: &str = "\
Gauges count as they were read, counters as rates per second. DEVIATION is the standard deviation of all values. COVERED is the part of the \
job's time for which there are readings. IMBALANCE is the greatest of the nodes' means by their mean, less 1: 0% is perfect balance.

Examples:
  wholegrain jobs stats 4711 power MemAvailable
  wholegrain jobs stats 4711 'job/4711/cpu/usage' --nodes
  wholegrain jobs stats 4711 'cpu/*/user' --from -10m --format csv > job.csv
  wholegrain jobs stats 4711 power --format json | jq '.metrics[0].imbalance'";

/// Show least, mean, greatest and balance of a job's sensors over its nodes
#[derive(Args)]
#[command(after_help = format!("{PATTERNS}\n\n{TIMES}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct StatsArgs {
    /// The job's id, or its other id
    #[arg(value_name = "ID")]
    job: String,
    /// Which of its sensors, and of its nodes'
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Of several jobs that had this id, the newest that had begun by then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,
    /// Start of the range, within it [default: when the job began]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// End of the range, not within it [default: when the job ended, or now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// Show each node too; csv and json always do
    #[arg(long)]
    nodes: bool,
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = StatsFormat::Table)]
    format: StatsFormat,
    #[command(flatten)]
    client: ClientOption,
}

/// How statistics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatsFormat {
    /// Aligned columns, for people
    Table,
    /// One line each, with a head; those with an empty node are over nodes
    Csv,
    /// One JSON object
    Json,
}

#[derive(Deserialize)]
struct Statistics {
    nodes: Vec<Row>,
    metrics: Vec<Row>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Row {
    metric: String,
    unit: String,
    #[serde(default)]
    node: String,
    count: u64,
    min: Option<f64>,
    mean: Option<f64>,
    max: Option<f64>,
    deviation: Option<f64>,
    coverage: f64,
    #[serde(default)]
    nodes: u64,
    min_node: Option<String>,
    max_node: Option<String>,
    imbalance: Option<f64>,
}

/// Runs the subcommand.
pub fn run(args: &StatsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let now = shown::now();
    let mut parameters: Vec<_> = args.patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    if let Some(at) = &args.at {
        let at = Timestamp::parse(at, now).map_err(|error| Failure::Usage(format!("--at: {error}")))?;
        parameters.push(("at", at.to_string()));
    }
    let (from, to) = range(args.from.as_deref(), args.to.as_deref(), now)?;
    parameters
        .extend([("from", from), ("to", to)].into_iter().filter_map(|(name, end)| Some((name, end?.to_string()))));
    if args.format == StatsFormat::Csv {
        parameters.push(("format", "csv".to_owned()));
    } else if args.format == StatsFormat::Table && !args.nodes {
        parameters.push(("nodes", "false".to_owned()));
    }
    let path = format!("/api/v1/jobs/{}/statistics", encoded(&args.job));
    let answer = connection.find(&path, &parameters)?;
    if answer.sensors == Some(0) {
        return Err(no_sensor_of(&args.job, &args.patterns));
    }
    let body = answer.read(ANSWER_BYTES_MAX)?;
    let mut output = Output::open(None)?;
    let written = if args.format == StatsFormat::Table {
        let statistics: Statistics = serde_json::from_slice(&body).map_err(|error| {
            Failure::Unreachable(format!("the answer of {} is no statistics: {error}", connection.url()))
        })?;
        for warning in &statistics.warnings {
            eprintln!("{} {warning}", style::on_stderr().error("warning:"));
        }
        table(&statistics, style::on_stdout(), &mut output)
    } else {
        output.write_all(&body)
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), shown::float)
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn table(statistics: &Statistics, style: Style, out: &mut impl Write) -> io::Result<()> {
    let mut over = Table::new(&[
        "METRIC",
        "UNIT",
        ">NODES",
        ">VALUES",
        ">MIN",
        ">MEAN",
        ">MAX",
        ">DEVIATION",
        ">COVERED",
        ">IMBALANCE",
        "LEAST",
        "GREATEST",
    ]);
    for row in &statistics.metrics {
        over.row(vec![
            row.metric.clone(),
            row.unit.clone(),
            row.nodes.to_string(),
            row.count.to_string(),
            number(row.min),
            number(row.mean),
            number(row.max),
            number(row.deviation),
            percent(row.coverage),
            row.imbalance.map_or("-".to_owned(), percent),
            row.min_node.clone().unwrap_or_default(),
            row.max_node.clone().unwrap_or_default(),
        ]);
    }
    over.write(style, out)?;
    if statistics.nodes.is_empty() {
        return Ok(());
    }
    let mut nodes =
        Table::new(&["NODE", "METRIC", "UNIT", ">VALUES", ">MIN", ">MEAN", ">MAX", ">DEVIATION", ">COVERED"]);
    for row in &statistics.nodes {
        nodes.row(vec![
            row.node.clone(),
            row.metric.clone(),
            row.unit.clone(),
            row.count.to_string(),
            number(row.min),
            number(row.mean),
            number(row.max),
            number(row.deviation),
            percent(row.coverage),
        ]);
    }
    writeln!(out)?;
    nodes.write(style, out)
}
