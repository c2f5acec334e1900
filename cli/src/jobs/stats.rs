//! `wholegrain jobs stats ID PATTERN…`: statistics of a job's sensors, over nodes and on each.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use wholegrain_api::{JobStatistics, paths};
use wholegrain_model::Pattern;

use super::job_fields::at_parameter;
use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::no_match::no_sensor_of_job;
use crate::notation::{PATTERNS, TIMES};
use crate::output::style::{self, Style};
use crate::output::table::Table;
use crate::output::{ListFormat, print, print_json, values};
use crate::range::range;
use crate::socket::encoded;

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
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &StatsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let mut parameters: Vec<_> = args.patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    parameters.extend(at_parameter(args.at.as_deref())?);
    let (from, to) = range(args.from.as_deref(), args.to.as_deref(), values::now())?;
    parameters
        .extend([("from", from), ("to", to)].into_iter().filter_map(|(name, end)| Some((name, end?.to_string()))));
    if args.format == ListFormat::Csv {
        parameters.push(("format", "csv".to_owned()));
    } else if args.format == ListFormat::Table && !args.nodes {
        parameters.push(("nodes", "false".to_owned()));
    }
    let path = paths::of_job(paths::JOB_STATISTICS, &encoded(&args.job));
    let response = connection.get(path).queries(&parameters).find()?;
    if response.sensors == Some(0) {
        return Err(no_sensor_of_job(&args.job, &args.patterns));
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
            row.spread.count.to_string(),
            number(row.spread.min),
            number(row.spread.mean),
            number(row.spread.max),
            number(row.spread.deviation),
            values::percent(row.coverage),
            row.imbalance.map_or("-".to_owned(), values::percent),
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
            row.node.to_string(),
            row.metric.to_string(),
            row.unit.to_string(),
            row.spread.count.to_string(),
            number(row.spread.min),
            number(row.spread.mean),
            number(row.spread.max),
            number(row.spread.deviation),
            values::percent(row.coverage),
        ]);
    }
    writeln!(out)?;
    nodes.write(style, out)
}
