//! `wholegrain export`: readings of a range or of a job out of the server into files that `wholegrain import` and others read.
//!
//! - In: patterns, a range of time, a job. Out: CSV (long and wide), Parquet, Arrow IPC files, LDMS's CSV; the job's records as JSON beside.
//! - Never: half a file under its final name; an integer that went through a float; a gap as a value; more than some columns in memory.

mod columns;
mod pivot;
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
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::{PATTERNS, TIMES};
use crate::output::Output;
use crate::output::style;
use crate::output::values;
use crate::progress::Progress;
use crate::range::range;
use crate::socket::encoded;
use columns::{Rows, Writer};
use pivot::Pivot;
use select::Selection;

pub use columns::{PROPERTIES_KEY, Properties, VALUE_INT};

/// ns of a day and of an hour.
const DAY_NS: i64 = 86_400_000_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;
/// The most files of one export.
const FILES_MAX: i64 = 100_000;
/// Where files are split by their size, it is looked at after so many rows.
const PIECE_ROWS: usize = 1_024;

const EXAMPLES: &str = "\
Examples:
  wholegrain export '/lab/**/power' --from -1d --output power.csv
  wholegrain export '/lab/**' --from 2026-01-01 --to 2026-02-01 --format parquet --output january/    a file a day
  wholegrain export '/lab/hall/**' --from -7d --format csv-wide --output hall.csv
  wholegrain export --job 4711 --format arrow --output job4711.arrow      with its records in job4711.arrow.job.json
  wholegrain export '/lrz/*/meminfo/*' --from -1d --format ldms --output meminfo.csv

A time without a reading of a column is empty in csv-wide and ldms, a gap is NA: import them with --empty none.
Parquet and Arrow files have the columns sensor, time and value; where integers and floats are exported together, value_int has the
integers exactly. csv-wide and ldms are read in pieces that fit into memory.";

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line a reading: sensor,time,value,unit
    Csv,
    /// A column for each sensor
    CsvWide,
    Parquet,
    /// An Arrow IPC file
    Arrow,
    /// As LDMS's store_csv writes it: a line for each sample of a producer
    Ldms,
}

impl Format {
    fn ending(self) -> &'static str {
        match self {
            Format::Csv | Format::CsvWide | Format::Ldms => "csv",
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
        }
    }
}

/// Where one file ends and the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Split {
    Hour,
    /// One file per UTC day
    Day,
    None,
}

/// Export readings of a range, or of a whole job, to files
#[derive(Args)]
#[command(after_help = format!("{PATTERNS}\n\n{TIMES}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ExportArgs {
    /// Which sensors; with --job all of the job's when none is given
    #[arg(value_name = "PATTERN", required_unless_present = "job")]
    patterns: Vec<Pattern>,
    /// Start of the range, within it [default with --job: its begin]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, required_unless_present = "job")]
    from: Option<String>,
    /// End of the range, not within it [default: now; with --job its end]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// Only what was measured of this job; its records are written beside as JSON
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Of several jobs that had this id, the newest that had begun by then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "job")]
    at: Option<String>,
    /// How to write it [default: by the file's ending, parquet, arrow or else csv]
    #[arg(long, short, value_enum)]
    format: Option<Format>,
    /// The file, or a directory for several; a file appears when it is whole
    #[arg(long, short, value_name = "FILE|DIR")]
    output: PathBuf,
    /// Into a directory: a file for each of these [default: day]
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// Into a directory: begin another file when one is larger than this, such as 1GB
    #[arg(long, value_name = "SIZE")]
    split_bytes: Option<ByteSize>,
    /// For ldms: the level of a path, from 1, that is the producer [default: that of the agent's name, else the one above the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=32))]
    producer_level: Option<u64>,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &ExportArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let of_job = args.of_job();
    let job = args.job.as_deref().map(|id| job(&connection, id, &of_job)).transpose()?;
    let (from, to) = args.range(job.as_ref())?;
    let all = [Pattern::new("/**").map_err(|error| Failure::Usage(error.to_string()))?];
    let patterns = if args.patterns.is_empty() { &all[..] } else { &args.patterns };
    let selection = Selection::make(&connection, patterns, of_job)?;
    let is_dir = args.output.is_dir() || args.output.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !is_dir && (args.split.is_some() || args.split_bytes.is_some()) {
        return Err(Failure::Usage("--split is for several files; name a directory with --output DIR/".into()));
    }
    let files = files(args, is_dir, (from, to))?;
    if is_dir {
        check_above_as_root(&args.output).map_err(Failure::Failed)?;
        std::fs::create_dir_all(&args.output)
            .map_err(|error| Failure::Failed(format!("cannot make {}: {error}", args.output.display())))?;
    }
    let pivot = match args.format() {
        Format::CsvWide => Some(Pivot::wide(&selection)),
        Format::Ldms => Some(Pivot::ldms(&selection, args.producer_level.map(|level| level as usize - 1))?),
        _ => None,
    };
    let mut export = Export { args, connection: &connection, selection: &selection, pivot, told: Told::default() };
    for (path, range) in files {
        export.file(&path, range)?;
    }
    if let Some(job) = &job {
        write_job(args, is_dir, job)?;
    }
    export.tell((from, to))
}

impl ExportArgs {
    /// What --format says, else the ending of the file's name.
    fn format(&self) -> Format {
        self.format.unwrap_or_else(|| match self.output.extension().and_then(|ending| ending.to_str()) {
            Some("parquet") => Format::Parquet,
            Some("arrow") => Format::Arrow,
            _ => Format::Csv,
        })
    }

    /// The parameters that say which job.
    fn of_job(&self) -> Vec<(&'static str, String)> {
        let job = self.job.iter().map(|id| ("job", id.clone()));
        job.chain(self.at.iter().map(|at| ("at", at.clone()))).collect()
    }

    fn range(&self, job: Option<&JobDetails>) -> Result<(i64, i64), Failure> {
        let now = values::now();
        let (from, to) = range(self.from.as_deref(), self.to.as_deref(), now)?;
        let job = job.map(|details| &details.job);
        let from = match from {
            Some(from) => from.0,
            None => job.map(|job| job.from.0).ok_or_else(|| Failure::Usage("which range? add --from".into()))?,
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

/// A file, and the range that it has.
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

fn job(connection: &Connection, id: &str, of_job: &[(&'static str, String)]) -> Result<JobDetails, Failure> {
    let at: Vec<_> = of_job.iter().filter(|(name, _)| *name == "at").cloned().collect();
    connection.get(paths::of_job(paths::JOB, &encoded(id))).queries(&at).find()?.json()
}

/// The job's records beside its readings.
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

/// What there is to tell at the end.
#[derive(Default)]
struct Told {
    readings: u64,
    files: u64,
    bytes: u64,
    warnings: Vec<String>,
    notes: Vec<String>,
}

/// An export under way.
struct Export<'a> {
    args: &'a ExportArgs,
    connection: &'a Connection,
    selection: &'a Selection,
    pivot: Option<Pivot>,
    told: Told,
}

impl Export<'_> {
    /// Writes the file of a range, or several when one becomes too large.
    fn file(&mut self, path: &Path, range: (i64, i64)) -> Result<(), Failure> {
        let most = self.args.split_bytes.map_or(u64::MAX, |size| size.0);
        let mut numbered = Numbered { path: path.to_owned(), number: 1 };
        let mut writer: Option<Writer> = None;
        let mut progress = Progress::new(false, Some(self.selection.sensors.len() as u64), range);
        let (selection, format) = (self.selection, self.args.format());
        let mut pivot = self.pivot.take();
        let told = &mut self.told;
        let is_pivot = pivot.is_some();
        let mut take = |rows: Rows| -> Result<(), Failure> {
            if let Some(full) = writer.take_if(|writer| writer.bytes() >= most) {
                told.bytes += full.finish()?;
                told.files += 1;
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(Writer::begin(&numbered.next(), format, selection, pivot.as_ref())?),
            };
            progress.step(rows.len(), rows.last());
            told.readings += rows.len() as u64;
            writer.write(&rows, selection, pivot.as_mut())
        };
        // A file is looked at between pieces; the lines of a pivot's slice stay together.
        let mut pieces = |rows: Rows| match most {
            _ if rows.is_empty() => Ok(()),
            u64::MAX => take(rows),
            _ if is_pivot => take(rows),
            _ => rows.pieces(PIECE_ROWS).try_for_each(&mut take),
        };
        let result = match format {
            Format::CsvWide | Format::Ldms => pivot::slices(self.connection, selection, range, &mut pieces),
            _ => selection.query(self.connection, range, &mut pieces),
        };
        progress.finish();
        let (warnings, notes) = result?;
        told.warnings.extend(warnings);
        told.notes.extend(notes);
        if let Some(writer) = writer {
            told.bytes += writer.finish()?;
            told.files += 1;
        }
        self.pivot = pivot;
        Ok(())
    }

    fn tell(mut self, (from, to): (i64, i64)) -> Result<(), Failure> {
        let Told { readings, files, bytes, warnings, notes } = &mut self.told;
        for list in [&mut *warnings, &mut *notes] {
            list.sort();
            list.dedup();
        }
        notes.iter().for_each(|note| eprintln!("note: {note}"));
        warnings.iter().for_each(|warning| eprintln!("{} {warning}", style::on_stderr().error("warning:")));
        if let Some(prefix) = self.pivot.as_ref().and_then(Pivot::prefix) {
            eprintln!("note: the producers are below {prefix}: import with --prefix {prefix}");
        }
        if !warnings.is_empty() {
            return Err(Failure::Failed(format!(
                "the export is not whole: {} parts of the store could not be read; `wholegrain store verify` on the server says more",
                warnings.len()
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

/// Names of the files of one range: `a.csv`, `a-2.csv`, ….
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
