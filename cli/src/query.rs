//! `wholegrain query`: prints readings of a range of time, formatted while the Arrow stream arrives.

use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use clap::Args;
use wholegrain_api::paths;
use wholegrain_model::{Interval, Pattern, Timestamp, Unit};
use wholegrain_query::{Across, Agg, Op, POINTS_MAX, Query};

use crate::client_file::ClientOption;
use crate::connection::{Connection, Response};
use crate::failure::Failure;
use crate::job_arguments::JobOption;
use crate::no_match::{no_sensor, no_sensor_of_job};
use crate::output::Output;
use crate::output::readings::{ParquetRows, ReadingBatch, ReadingFormat, TextRows, Units};
use crate::output::style;
use crate::output::values;
use crate::progress::QueryProgress;
use crate::range::range;
use crate::reading_stream::ReadingStream;
use crate::remarks::Remarks;

/// The most levels of a path.
const LEVELS_MAX: u64 = 1024;

const HELP: &str = "\
Values are in the sensor's unit (see `wholegrain sensors`). Operations change it: rate and derivative divide by seconds (By \
becomes By/s), integral multiplies by seconds (W becomes W.s, which is J), delta keeps it. --unit then converts: MBy/s, kW.h, %, \
[degF]; units of another dimension are refused. Resets and wrap-around of counters are \
handled; a gap gives no value.

Examples:
  wholegrain query MemAvailable                          the last ten minutes, as sampled
  wholegrain query MemAvailable --from -1m --every 10s   means of ten seconds
  wholegrain query power --from -365d --points 500       a year, from a downsampled tier
  wholegrain query 'cpu/*/user' --op rate --every 1min   counters as rates
  wholegrain query '/lab/**/power' --op integral --every 1h --from -1d --format csv
  wholegrain query '/lab/**/power' --across sum --every 1min           the sum as one series
  wholegrain query '/lab/**/power' --across max --levels 2 --every 1h  one for each /lab/<rack>
  wholegrain query power --job 4711 --agg mean           each node of a job, over the job's time there
  wholegrain query '/lab/**/power' --op integral --agg sum --from -1d --unit kW.h
  wholegrain query '/**' --from 2026-01-31 --to 2026-02-01 --format parquet --output day.parquet";

/// Print readings of a range of time
#[derive(Args)]
#[command(after_help = HELP)]
pub struct QueryArgs {
    /// Patterns of the sensors
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Start of the range, included [default: -10m; with --job its start]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// End of the range, excluded [default: now; with --job its end]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    #[command(flatten)]
    job: JobOption,
    /// One value per window of this length; windows begin at multiples of it since 1970-01-01 UTC
    #[arg(long, value_name = "LENGTH")]
    every: Option<Interval>,
    /// The approximate number of windows, in place of --every; the range is extended to whole windows
    #[arg(long, value_name = "N", conflicts_with = "every", value_parser = clap::value_parser!(u64).range(1..=POINTS_MAX))]
    points: Option<u64>,
    /// The aggregate of each window, without --every of the whole range. mean is weighted by time, sample_mean is not [default: mean for gauges and rates, last for counters, sum for deltas]
    #[arg(long, value_parser = names(Agg::ALL.map(|(name, _)| name)))]
    agg: Option<String>,
    /// The operation on successive values, before --every: rate and delta of counters, derivative and integral of gauges
    #[arg(long, value_parser = names(Op::ALL.map(|(name, _)| name)))]
    op: Option<String>,
    /// Combine all sensors into one series: the aggregate of their values in each window, or at each time. A note reports rows with values of fewer sensors
    #[arg(long, value_name = "AGG", value_parser = names(["mean", "min", "max", "sum", "count"]))]
    across: Option<String>,
    /// With --across: one series for each group of sensors whose paths have this number of first levels in common
    #[arg(long, value_name = "N", requires = "across", value_parser = clap::value_parser!(u64).range(1..=LEVELS_MAX))]
    levels: Option<u64>,
    /// The unit of the values, after --op and --agg: a UCUM code such as kW, kW.h, MiBy/s, %
    #[arg(long, value_name = "UNIT")]
    unit: Option<Unit>,
    /// The format of the output [default: by the extension of --output, csv, json or parquet, else table]
    #[arg(long, short, value_enum)]
    format: Option<ReadingFormat>,
    /// Write to this file; it appears when it is complete
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Stop after this number of readings
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print the width of the windows and the tier on standard error
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    client: ClientOption,
}

fn names<const N: usize>(names: [&'static str; N]) -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(names)
}

pub fn run(args: &QueryArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let now = values::now();
    let query = args.query(now)?;
    let mut parameters = parameters(&query);
    if args.job.job.is_some() {
        // The server knows the job's range.
        parameters.retain(|(name, _)| (*name != "from" || args.from.is_some()) && (*name != "to" || args.to.is_some()));
        parameters.extend(args.job.parameters()?);
    }
    if args.format() == ReadingFormat::Parquet && args.output.is_none() && Output::open(None)?.is_terminal() {
        return Err(Failure::Usage("Parquet cannot be shown on a terminal; add --output FILE, or use a pipe".into()));
    }
    let connection = Connection::open(client)?;
    let request = connection.get(paths::QUERY).queries(&parameters);
    let response = if args.job.job.is_some() { request.find()? } else { request.send()? };
    response.remarks.print();
    let sensors = response.sensors;
    if sensors == Some(0) {
        return Err(match &args.job.job {
            Some(job) => no_sensor_of_job(job, &query.patterns),
            None => no_sensor(&connection, &query.patterns),
        });
    }
    if args.explain {
        eprintln!("{}", explanation(response.every.as_deref(), response.tier.as_deref()));
    }
    let output = Output::open(args.output.as_deref())?;
    // With --levels the number of series is unknown before the end.
    let series = if query.across.is_some_and(|across| across.levels.is_none()) { Some(1) } else { sensors };
    let progress = QueryProgress::new(output.is_terminal(), series, (query.from.0, query.to.0));
    let (rows, remarks) = copy(response, args.format(), output, progress)?;
    if !remarks.warnings.is_empty() {
        return Err(Failure::Failed(format!(
            "the result is incomplete: {} parts of the store could not be read; see `wholegrain config verify`",
            remarks.warnings.len()
        )));
    }
    if rows == 0 {
        let count = sensors.map_or(String::new(), |count| format!(" of {count} sensors"));
        let range = match &args.job.job {
            Some(job) => format!("in this range of job {job}"),
            None => format!("from {} to {}", query.from, query.to),
        };
        return Err(Failure::NothingMatched(format!("no reading{count} {range}")));
    }
    Ok(())
}

impl QueryArgs {
    /// The format of --format, else of the file's extension.
    fn format(&self) -> ReadingFormat {
        let ending = || self.output.as_ref()?.extension()?.to_str();
        self.format.unwrap_or_else(|| match ending() {
            Some("parquet") => ReadingFormat::Parquet,
            Some("csv") => ReadingFormat::Csv,
            Some("json" | "ndjson" | "jsonl") => ReadingFormat::Json,
            _ => ReadingFormat::Table,
        })
    }

    /// The query, checked as far as possible without the server.
    fn query(&self, now: Timestamp) -> Result<Query, Failure> {
        /// A time before any job, only to check the end of the range.
        const EARLIEST: &str = "1970-01-01";
        let of_job = self.job.job.is_some();
        let default = if of_job { EARLIEST } else { "-10m" };
        let (from, to) = range(Some(self.from.as_deref().unwrap_or(default)), self.to.as_deref(), now)?;
        let query = Query {
            patterns: self.patterns.clone(),
            from: from.unwrap_or(now),
            to: to.unwrap_or(now),
            every: self.every,
            points: self.points,
            agg: self.agg.as_deref().and_then(|name| name.parse().ok()),
            op: self.op.as_deref().and_then(|name| name.parse().ok()),
            across: self.across(),
            unit: self.unit.as_ref().map(|unit| unit.code().to_owned()),
            limit: self.limit,
        };
        query.validate().map_err(Failure::usage)?;
        Ok(query)
    }

    fn across(&self) -> Option<Across> {
        let agg = self.across.as_deref()?.parse().ok()?;
        Some(Across { agg, levels: self.levels.and_then(|levels| usize::try_from(levels).ok()) })
    }
}

fn parameters(query: &Query) -> Vec<(&'static str, String)> {
    let mut parameters: Vec<_> = query.patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    parameters.push(("from", query.from.to_string()));
    parameters.push(("to", query.to.to_string()));
    parameters.extend(query.every.map(|every| ("every", every.to_string())));
    parameters.extend(query.points.map(|points| ("points", points.to_string())));
    parameters.extend(query.agg.map(|agg| ("agg", agg.to_string())));
    parameters.extend(query.op.map(|op| ("op", op.to_string())));
    if let Some(Across { agg, levels }) = query.across {
        parameters.push(("across", agg.to_string()));
        parameters.extend(levels.map(|levels| ("levels", levels.to_string())));
    }
    parameters.extend(query.unit.iter().map(|unit| ("unit", unit.clone())));
    parameters.extend(query.limit.map(|limit| ("limit", limit.to_string())));
    parameters.push(("format", "arrow".to_owned()));
    parameters
}

/// Describes how the result was computed.
fn explanation(every: Option<&str>, tier: Option<&str>) -> String {
    match (every, tier) {
        (None, None) => "readings, as sampled".to_owned(),
        (Some(every), None) => format!("windows of {every}, from readings"),
        (every, Some(tier)) => {
            let width = every.map_or("one window".to_owned(), |every| format!("windows of {every}"));
            format!("{width}, from the tier of {tier}; from readings where it does not reach")
        }
    }
}

/// Formats a response batch by batch. Returns the number of rows, and all remarks of the response; prints those at its end.
fn copy(
    mut response: Response,
    format: ReadingFormat,
    output: Output,
    mut progress: QueryProgress,
) -> Result<(u64, Remarks), Failure> {
    let mut remarks = std::mem::take(&mut response.remarks);
    let mut stream = ReadingStream::open(response)?;
    let mut sink = Sink::new(format, output, stream.schema())?;
    let mut rows = 0;
    while let Some(batch) = stream.next()? {
        rows += batch.num_rows() as u64;
        let last = sink.write(&batch)?;
        progress.step(batch.num_rows(), last);
    }
    progress.finish();
    sink.finish()?;
    // The end of the stream repeats the warnings of the headers.
    let later = stream.remarks().without(&remarks);
    later.print();
    remarks.extend(later);
    Ok((rows, remarks))
}

enum Sink {
    Text { rows: TextRows, output: Output, units: Units, begun: bool },
    Parquet { rows: Box<ParquetRows<Output>>, units: Units },
}

impl Sink {
    fn new(format: ReadingFormat, output: Output, schema: SchemaRef) -> Result<Self, Failure> {
        let units = Units::of(&schema);
        let Some(format) = format.text() else {
            let name = output.name();
            return Ok(Sink::Parquet { rows: Box::new(ParquetRows::new(schema, output, name)?), units });
        };
        let style = if output.is_terminal() { style::on_stdout() } else { style::Style::PLAIN };
        Ok(Sink::Text { rows: TextRows::new(format, style), output, units, begun: false })
    }

    /// Writes a batch. Returns the number of the sensor and the time of its last row.
    fn write(&mut self, batch: &RecordBatch) -> Result<Option<(usize, i64)>, Failure> {
        match self {
            Sink::Parquet { rows, units } => {
                let last = ReadingBatch::new(batch, units)?.last();
                rows.write(batch)?;
                Ok(last)
            }
            Sink::Text { rows, output, units, begun } => {
                let readings = ReadingBatch::new(batch, units)?;
                if !std::mem::replace(begun, true) {
                    rows.expect(readings.names());
                }
                let name = output.name();
                let mut write = || (0..readings.len()).try_for_each(|row| rows.write(&readings.get(row), output));
                write().map_err(Failure::writing(&name))?;
                Ok(readings.last())
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Sink::Parquet { rows, .. } => rows.finish()?.finish(),
            Sink::Text { mut rows, mut output, .. } => {
                let name = output.name();
                rows.write_head(&mut output)
                    .and_then(|()| rows.write_held(&mut output))
                    .map_err(Failure::writing(&name))?;
                output.finish()
            }
        }
    }
}
