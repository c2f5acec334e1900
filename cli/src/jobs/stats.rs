//! `wholegrain jobs stats ID PATTERN…`: statistics of a job's sensors, over nodes and on each.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use wholegrain_api::{JobStatistics, paths};
use wholegrain_model::Pattern;

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::JobArgument;
use crate::no_match::no_sensor_of_job;
use crate::output::style::{self, Style};
use crate::output::table::Table;
use crate::output::{ListFormat, print, print_json, values};
use crate::range::range;

const EXAMPLES: &str = "\
Values of gauges are the readings, values of counters the rates per second. DEVIATION is the standard deviation of all values. COVERED is the \
part of the job's time that has readings. IMBALANCE is the greatest mean of a node divided by the mean of all nodes, minus 1: 0% is perfect \
balance.

Examples:
  wholegrain jobs stats 4711 power MemAvailable
  wholegrain jobs stats 4711 'job/4711/cpu/usage' --nodes
  wholegrain jobs stats 4711 'cpu/*/user' --from -10m --format csv > job.csv
  wholegrain jobs stats 4711 power --format json | jq '.metrics[0].imbalance'";

/// Show minimum, mean, maximum and imbalance of a job's sensors over its nodes
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    #[command(flatten)]
    job: JobArgument,
    /// Patterns of sensors of the job or of its nodes
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Start of the range, included [default: the job's start]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// End of the range, excluded [default: the job's end, or now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// Also show each node; csv and json always do
    #[arg(long)]
    nodes: bool,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &StatsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let mut parameters: Vec<_> = args.patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    let (from, to) = range(args.from.as_deref(), args.to.as_deref(), values::now())?;
    let ends = [("from", from), ("to", to)].into_iter();
    parameters.extend(ends.filter_map(|(name, end)| Some((name, end?.to_string()))));
    if args.format == ListFormat::Csv {
        parameters.push(("format", "csv".to_owned()));
    } else if args.format == ListFormat::Table && !args.nodes {
        parameters.push(("nodes", "false".to_owned()));
    }
    let response = args.job.find(&connection, paths::JOB_STATISTICS, parameters)?;
    if response.sensors == Some(0) {
        return Err(no_sensor_of_job(&args.job.job, &args.patterns));
    }
    match args.format {
        ListFormat::Csv => {
            let body = response.read()?;
            print(|_, out| out.write_all(&body))
        }
        ListFormat::Json => print_json(&response.json::<JobStatistics>()?),
        ListFormat::Table => {
            let statistics: JobStatistics = response.json()?;
            for warning in &statistics.warnings {
                eprintln!("{} {warning}", style::on_stderr().error("warning:"));
            }
            print(|style, out| table(&statistics, style, out))
        }
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), values::float)
}

fn table(statistics: &JobStatistics, style: Style, out: &mut impl Write) -> io::Result<()> {
    let over = Table::of(
        &statistics.metrics,
        &[
            ("METRIC", &|row| row.metric.clone()),
            ("UNIT", &|row| row.unit.clone()),
            (">NODES", &|row| row.nodes.to_string()),
            (">VALUES", &|row| row.spread.count.to_string()),
            (">MIN", &|row| number(row.spread.min)),
            (">MEAN", &|row| number(row.spread.mean)),
            (">MAX", &|row| number(row.spread.max)),
            (">DEVIATION", &|row| number(row.spread.deviation)),
            (">COVERED", &|row| values::percent(row.coverage)),
            (">IMBALANCE", &|row| row.imbalance.map_or("-".to_owned(), values::percent)),
            ("LEAST", &|row| row.min_node.clone().unwrap_or_default()),
            ("GREATEST", &|row| row.max_node.clone().unwrap_or_default()),
        ],
    );
    over.write(style, out)?;
    if statistics.nodes.is_empty() {
        return Ok(());
    }
    let nodes = Table::of(
        &statistics.nodes,
        &[
            ("NODE", &|row| row.node.to_string()),
            ("METRIC", &|row| row.metric.to_string()),
            ("UNIT", &|row| row.unit.to_string()),
            (">VALUES", &|row| row.spread.count.to_string()),
            (">MIN", &|row| number(row.spread.min)),
            (">MEAN", &|row| number(row.spread.mean)),
            (">MAX", &|row| number(row.spread.max)),
            (">DEVIATION", &|row| number(row.spread.deviation)),
            (">COVERED", &|row| values::percent(row.coverage)),
        ],
    );
    writeln!(out)?;
    nodes.write(style, out)
}
