//! `wholegrain export`: writes readings of a range or a job to files.
//!
//! - Input: patterns, a range of time, a job. Output: CSV (long and wide), Parquet, Arrow IPC files, CSV of LDMS; the job's records as JSON.
//! - Never: an incomplete file under its final name; an integer converted to a float; a gap as a value; all columns in memory.

mod columns;
mod pivot;
mod rows;
mod select;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use wholegrain_api::{JobDetails, paths};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Pattern, Timestamp};
use wholegrain_server::path_owners::check_above_as_root;

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::JobOption;
use crate::output::Output;
use crate::output::values;
use crate::progress::QueryProgress;
use crate::range::range;
use crate::remarks::Remarks;
use crate::sensors;
use columns::{ExportFormat, Writer};
use pivot::Pivot;
use rows::ExportRows;
use select::Selection;

pub use rows::{PROPERTIES_KEY, Properties, VALUE_INT};

/// A day and an hour, in ns.
const DAY_NS: i64 = 86_400_000_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;
/// The most files of one export.
const FILES_MAX: i64 = 100_000;
/// The number of rows between checks of a file's size.
const PIECE_ROWS: usize = 1_024;

const EXAMPLES: &str = "\
Examples:
  wholegrain export '/lab/**/power' --from -1d --output power.csv
  wholegrain export '/lab/**' --from 2026-01-01 --to 2026-02-01 --format parquet --output january/    a file a day
  wholegrain export '/lab/hall/**' --from -7d --format csv-wide --output hall.csv
  wholegrain export --job 4711 --format arrow --output job4711.arrow      and the job's records in job4711.arrow.job.json
  wholegrain export '/lrz/*/meminfo/*' --from -1d --format ldms --output meminfo.csv

In csv-wide and ldms an empty cell is a time without a reading of the column, and NA is a gap: import such files with --empty none.
Parquet and Arrow files have the columns sensor, time and value. If both integers and floats are exported, the column value_int has the
exact integers.";

/// The range of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Split {
    Hour,
    /// One file per UTC day
    Day,
    None,
}

/// Export readings of a range, or of a whole job, to files
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// Patterns of the sensors [default with --job: all sensors of the job]
    #[arg(value_name = "PATTERN", required_unless_present = "job")]
    patterns: Vec<Pattern>,
    /// Start of the range, included [default with --job: its start]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, required_unless_present = "job")]
    from: Option<String>,
    /// End of the range, excluded [default: now; with --job its end]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    #[command(flatten)]
    job: JobOption,
    /// The format of the files [default: by the extension parquet or arrow, else csv]
    #[arg(long, short, value_enum)]
    format: Option<ExportFormat>,
    /// The file, or a directory for several files; a file appears when it is complete
    #[arg(long, short, value_name = "FILE|DIR")]
    output: PathBuf,
    /// For a directory: the range of each file [default: day]
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// For a directory: begin another file above this size, such as 1GB
    #[arg(long, value_name = "SIZE")]
    split_bytes: Option<ByteSize>,
    /// For ldms: the level of the path, from 1, with the producer [default: the level of the agent's name, else the last but one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=32))]
    producer_level: Option<u64>,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &ExportArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let job: Option<JobDetails> = args.job.fetch(&connection, paths::JOB)?;
    let (from, to) = args.range(job.as_ref())?;
    let selection = Selection::make(&connection, &sensors::or_all(&args.patterns)?, args.job.parameters()?)?;
    let is_dir = args.output.is_dir() || args.output.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !is_dir && (args.split.is_some() || args.split_bytes.is_some()) {
        return Err(Failure::Usage("--split makes several files; name a directory with --output DIR/".into()));
    }
    let files = files(args, is_dir, (from, to))?;
    if is_dir {
        check_above_as_root(&args.output).map_err(Failure::Usage)?;
        std::fs::create_dir_all(&args.output)
            .map_err(|error| Failure::Failed(format!("cannot make {}: {error}", args.output.display())))?;
    }
    let pivot = match args.format() {
        ExportFormat::CsvWide => Some(Pivot::wide(&selection)),
        ExportFormat::Ldms => Some(Pivot::ldms(&selection, args.producer_level.map(|level| level as usize - 1))?),
        _ => None,
    };
    let mut export =
        Export { args, connection: &connection, selection: &selection, pivot, summary: ExportSummary::default() };
    for (path, range) in files {
        export.file(&path, range)?;
    }
    if let Some(job) = &job {
        write_job(args, is_dir, job)?;
    }
    export.report((from, to))
}

impl ExportArgs {
    /// The format of `--format`, else of the file's extension.
    fn format(&self) -> ExportFormat {
        self.format.unwrap_or_else(|| match self.output.extension().and_then(|ending| ending.to_str()) {
            Some("parquet") => ExportFormat::Parquet,
            Some("arrow") => ExportFormat::Arrow,
            _ => ExportFormat::Csv,
        })
    }

    fn range(&self, job: Option<&JobDetails>) -> Result<(i64, i64), Failure> {
        let now = values::now();
        let (from, to) = range(self.from.as_deref(), self.to.as_deref(), now)?;
        let job = job.map(|details| &details.job);
        let from = match from {
            Some(from) => from.0,
            None => job
                .map(|job| job.from.0)
                .ok_or_else(|| Failure::Usage("the start of the range is missing; add --from".into()))?,
        };
        let to = match to {
            Some(to) => to.0,
            // A sample at the end of the job belongs to it.
            None => job.and_then(|job| job.to).map_or(now.0, |to| to.0.saturating_add(1)),
        };
        if from >= to {
            return Err(Failure::Usage(format!("the range from {} to {} is empty", Timestamp(from), Timestamp(to))));
        }
        Ok((from, to))
    }
}

/// A file and its range.
type FileOf = (PathBuf, (i64, i64));

/// The files to write, each with its range.
fn files(args: &ExportArgs, is_dir: bool, (from, to): (i64, i64)) -> Result<Vec<FileOf>, Failure> {
    if !is_dir {
        return Ok(vec![(args.output.clone(), (from, to))]);
    }
    let ending = args.format().ending();
    let width = match args.split.unwrap_or(Split::Day) {
        Split::None => return Ok(vec![(args.output.join(format!("readings.{ending}")), (from, to))]),
        Split::Day => DAY_NS,
        Split::Hour => HOUR_NS,
    };
    let (first, last) = (from.div_euclid(width), (to - 1).div_euclid(width));
    if last - first >= FILES_MAX {
        return Err(Failure::Usage(format!(
            "that would be {} files; split by day, or export a shorter range",
            last - first + 1
        )));
    }
    let named = |at: i64| {
        let (begin, end) = (at.saturating_mul(width).max(from), (at + 1).saturating_mul(width).min(to));
        let whole = Timestamp(at.saturating_mul(width)).to_string();
        let name = if width == DAY_NS { &whole[..10] } else { &whole[..13] };
        (args.output.join(format!("{name}.{ending}")), (begin, end))
    };
    Ok((first..=last).map(named).collect())
}

/// Writes the job's records to a file beside the readings.
fn write_job(args: &ExportArgs, is_dir: bool, job: &JobDetails) -> Result<(), Failure> {
    let path = if is_dir {
        args.output.join("job.json")
    } else {
        let mut name = args.output.clone().into_os_string();
        name.push(".job.json");
        name.into()
    };
    let mut output = Output::open(Some(&path))?;
    let text = serde_json::to_string_pretty(job).unwrap_or_default();
    writeln!(output, "{text}").map_err(Failure::writing(&path.display().to_string()))?;
    output.finish()
}

/// The summary at the end of an export.
#[derive(Default)]
struct ExportSummary {
    readings: u64,
    files: u64,
    bytes: u64,
    remarks: Remarks,
}

/// The state of a running export.
struct Export<'a> {
    args: &'a ExportArgs,
    connection: &'a Connection,
    selection: &'a Selection,
    pivot: Option<Pivot>,
    summary: ExportSummary,
}

impl Export<'_> {
    /// Writes the file of a range, or several if one becomes too large.
    fn file(&mut self, path: &Path, range: (i64, i64)) -> Result<(), Failure> {
        let most = self.args.split_bytes.map_or(u64::MAX, |size| size.0);
        let mut numbered = Numbered { path: path.to_owned(), number: 1 };
        let mut writer: Option<Writer> = None;
        let mut progress = QueryProgress::new(false, Some(self.selection.sensors.len() as u64), range);
        let (selection, format) = (self.selection, self.args.format());
        let mut pivot = self.pivot.take();
        let summary = &mut self.summary;
        let is_pivot = pivot.is_some();
        let mut take = |rows: ExportRows| -> Result<(), Failure> {
            if let Some(full) = writer.take_if(|writer| writer.bytes() >= most) {
                summary.bytes += full.finish()?;
                summary.files += 1;
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(Writer::begin(&numbered.next(), format, selection, pivot.as_ref())?),
            };
            progress.step(rows.len(), rows.last());
            summary.readings += rows.len() as u64;
            writer.write(&rows, selection, pivot.as_mut())
        };
        // The file's size is checked between pieces; the lines of a pivot's slice stay together.
        let mut pieces = |rows: ExportRows| match most {
            _ if rows.is_empty() => Ok(()),
            u64::MAX => take(rows),
            _ if is_pivot => take(rows),
            _ => rows.pieces(PIECE_ROWS).try_for_each(&mut take),
        };
        let result = match format {
            ExportFormat::CsvWide | ExportFormat::Ldms => pivot::slices(self.connection, selection, range, &mut pieces),
            _ => selection.query(self.connection, range, &mut pieces),
        };
        progress.finish();
        summary.remarks.extend(result?);
        if let Some(writer) = writer {
            summary.bytes += writer.finish()?;
            summary.files += 1;
        }
        self.pivot = pivot;
        Ok(())
    }

    fn report(&self, (from, to): (i64, i64)) -> Result<(), Failure> {
        let ExportSummary { readings, files, bytes, remarks } = &self.summary;
        remarks.print();
        if let Some(prefix) = self.pivot.as_ref().and_then(Pivot::prefix) {
            eprintln!("note: the producers are below {prefix}: import with --prefix {prefix}");
        }
        if !remarks.warnings.is_empty() {
            return Err(Failure::Failed(format!(
                "the export is incomplete: {} parts of the store could not be read; see `wholegrain store verify` on the server",
                remarks.warnings.len()
            )));
        }
        if *readings == 0 {
            let count = self.selection.sensors.len();
            let (from, to) = (Timestamp(from), Timestamp(to));
            return Err(Failure::NothingMatched(format!("no reading of {count} sensors from {from} to {to}")));
        }
        eprintln!(
            "{readings} readings of {} sensors in {files} {} of {bytes} bytes: {}",
            self.selection.sensors.len(),
            if *files == 1 { "file" } else { "files" },
            self.args.output.display()
        );
        Ok(())
    }
}

/// The names of the files of one range: `a.csv`, `a-2.csv`, ….
struct Numbered {
    path: PathBuf,
    number: u32,
}

impl Numbered {
    fn next(&mut self) -> PathBuf {
        let number = self.number;
        self.number += 1;
        if number == 1 {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let ending = self.path.extension().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{stem}-{number}.{ending}"))
    }
}
