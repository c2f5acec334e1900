//! `wholegrain import`: readings out of files into the server, part by part.
//!
//! - In: CSV of any dialect, LDMS's CSV, Parquet, Arrow IPC files; what they are taken for is shown before anything starts.
//! - Out: parts that the server stores whole, each once: an import that was cut off goes on when it is started again. Lines that were refused, with
//!   their numbers and why.
//! - Never: a line left out silently; an empty cell as zero; a time that could be two instants; more than some parts in memory.

mod arrays;
mod bad;
mod cells;
mod encode;
mod names;
mod parse;
mod pass;
mod plan;
mod send;
mod source;
mod table;
mod times;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use sha2::Digest;
use wholegrain_model::Pattern;

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::output::style;
use bad::BadLines;
use names::Names;
use parse::{Parsed, PieceParser};
use pass::{ImportSummary, pass};
use plan::{Layout, Plan, SHOWN_ROWS};
use source::{FileSource, Piece};
use table::TablePlan;
use times::{TimeFormat, Zone};

const EXAMPLES: &str = "\
Examples:
  wholegrain import csv hall.csv --dry-run                      the detected format, and wrong lines
  wholegrain import csv hall.csv --prefix /lab/hall --yes
  wholegrain import csv log.csv --time-zone Europe/Berlin --unit Cel --rename 'T in=/hall/inlet/temp'
  wholegrain import csv readings.csv.gz --layout long --bad refused.tsv
  wholegrain import ldms meminfo.csv --prefix /lrz/ldms
  wholegrain import parquet export/*.parquet --yes

The same command with the same file and options continues an interrupted import, and reports a finished one.
Readings deleted since then stay deleted: --again 2 imports the file once more.
Bad lines are listed in FILE.bad with their numbers and errors; the exit code is then 4.";

/// The version of the division into parts; a component of an import's id.
const ID_VERSION: &str = "1";
/// The approximate number of readings in a part.
const PART_READINGS: f64 = 1_048_576.0;
/// The least and the most bytes of a piece of a file.
const PIECE_BYTES: (f64, f64) = (262_144.0, 33_554_432.0);

/// Import readings from files: CSV, LDMS's CSV, Parquet, Arrow
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Subcommand)]
enum ImportCommand {
    /// Text tables: a column per sensor, or a line per reading; any delimiter; plain, gzip or zstd
    #[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Csv {
        #[command(flatten)]
        options: CsvOptions,
        #[command(flatten)]
        common: Common,
    },
    /// Files of LDMS's store_csv with their header; the sensors become /prefix/producer/metric, or /prefix/producer/instance/metric
    #[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Ldms {
        /// A file whose first line is the header, for data without one (altheader)
        #[arg(long, value_name = "FILE")]
        header_file: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Parquet files: the columns sensor, time and value, or a column of times and one for each sensor
    #[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Parquet {
        #[command(flatten)]
        common: Common,
    },
    /// Arrow IPC files or streams with the same columns
    #[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Arrow {
        #[command(flatten)]
        common: Common,
    },
}

/// The meaning of empty cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Empty {
    /// A gap of the sensor at the line's time
    Gap,
    /// No reading of the sensor at the line's time; NA, null and similar words are gaps
    None,
}

/// The options of all imports.
#[derive(Args)]
struct Common {
    /// The files to import
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The path above the sensors; absolute names keep their paths without this option [default: /import/<name of the file>]
    #[arg(long, value_name = "PATH")]
    prefix: Option<String>,
    /// A file with the sensors of names: lines name,path[,unit[,gauge or counter]]
    #[arg(long, value_name = "FILE")]
    name_map: Option<PathBuf>,
    /// The path of one name; can be repeated
    #[arg(long, value_name = "NAME=PATH")]
    rename: Vec<String>,
    /// The unit (UCUM) of all values, or of those of a name or pattern; can be repeated, the last one applies
    #[arg(long, value_name = "[NAME=]UNIT")]
    unit: Vec<String>,
    /// Sensors that are counters; can be given again
    #[arg(long, value_name = "PATTERN")]
    counter: Vec<Pattern>,
    /// What empty cells are
    #[arg(long, value_enum, default_value_t = Empty::Gap)]
    empty: Empty,
    /// The time zone of times without an offset: UTC, +01:00, Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// Read everything and show what it is taken for and what is wrong; send nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before it starts
    #[arg(long, short)]
    yes: bool,
    /// Import the file once more, under a label of yours such as 2: what was deleted of it comes back. The same label again goes on
    /// where that import was cut off
    #[arg(long, value_name = "LABEL")]
    again: Option<String>,
    /// Import nothing of a file that has a wrong line
    #[arg(long)]
    strict: bool,
    /// Where wrong lines are listed: number, reason and text, separated by tabs [default: FILE.bad]
    #[arg(long, value_name = "FILE")]
    bad: Option<PathBuf>,
    /// Say what happened as JSON on standard output, an object for each file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOption,
}

/// How a table is written, where it is not to be guessed.
#[derive(Args, Default)]
pub struct CsvOptions {
    /// Where the readings are [default: guessed]
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// What separates fields: a character, or tab [default: guessed]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    delimiter: Option<u8>,
    /// Whether the first line has the names [default: guessed]
    #[arg(long, value_name = "BOOL")]
    header: Option<bool>,
    /// The names of the columns, in place of a header's
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Lines before the header that are left out
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_lines: usize,
    /// The column of times, by name or number; two, such as Date,Time, are read as one
    #[arg(long = "time-column", value_name = "NAME", value_delimiter = ',')]
    time_columns: Vec<String>,
    /// How times are written [default: guessed]
    #[arg(long, value_enum)]
    time_format: Option<TimeFormat>,
    /// The column of sensors' names (long)
    #[arg(long, value_name = "NAME")]
    sensor_column: Option<String>,
    /// The column of values (long)
    #[arg(long, value_name = "NAME")]
    value_column: Option<String>,
    /// The column of units (long)
    #[arg(long, value_name = "NAME")]
    unit_column: Option<String>,
    /// A column that is not imported; can be given again
    #[arg(long = "skip-column", value_name = "NAME")]
    skip_columns: Vec<String>,
    /// Whether decimals come after a comma [default: guessed]
    #[arg(long, value_name = "BOOL")]
    decimal_comma: Option<bool>,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        _ if text == "tab" || text == "\\t" => Ok(b'\t'),
        [byte] if !byte.is_ascii_alphanumeric() && !b"\"\r\n.-+".contains(byte) => Ok(*byte),
        _ => Err("expected one character such as , ; | or the word tab".to_owned()),
    }
}

/// What decides how a file is read, apart from its plan.
pub struct Shape {
    pub file: PathBuf,
    pub bytes: u64,
    pub names: Names,
    pub zone: Zone,
    pub keep_empty: bool,
}

pub fn run(args: &ImportArgs, client: Option<&Path>) -> Result<(), Failure> {
    let (common, format) = match &args.command {
        ImportCommand::Csv { options, common } => (common, ImportFormat::Csv(options, None)),
        ImportCommand::Ldms { header_file, common } => (common, ImportFormat::Csv(&LDMS, header_file.as_deref())),
        ImportCommand::Parquet { common } => (common, ImportFormat::Parquet),
        ImportCommand::Arrow { common } => (common, ImportFormat::Arrow),
    };
    if common.bad.is_some() && common.files.len() > 1 {
        return Err(Failure::Usage(
            "--bad is one file, and there are several to import; import them one by one".into(),
        ));
    }
    let connection = match common.dry_run {
        true => None,
        false => Some(Connection::open(common.client.or(client))?),
    };
    let mut refused = Vec::new();
    for file in &common.files {
        let job = FileImport { common, file, connection: connection.as_ref() };
        let bad = job.import(&format)?;
        if bad > 0 {
            refused.push(format!("{} ({bad})", file.display()));
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("lines were refused: {}", refused.join(", ")))),
    }
}

/// How LDMS's files are read.
static LDMS: CsvOptions = CsvOptions {
    layout: Some(Layout::Ldms),
    delimiter: Some(b','),
    header: Some(true),
    columns: None,
    skip_lines: 0,
    time_columns: Vec::new(),
    time_format: Some(TimeFormat::S),
    sensor_column: None,
    value_column: None,
    unit_column: None,
    skip_columns: Vec::new(),
    decimal_comma: Some(false),
};

enum ImportFormat<'a> {
    /// With a file that has the header.
    Csv(&'a CsvOptions, Option<&'a Path>),
    Parquet,
    Arrow,
}

struct FileImport<'a> {
    common: &'a Common,
    file: &'a Path,
    connection: Option<&'a Connection>,
}

impl FileImport<'_> {
    /// Imports the file; the number of lines that were refused.
    fn import(&self, format: &ImportFormat) -> Result<u64, Failure> {
        let (bytes, mut hash) = source::fingerprint(self.file)?;
        let shape = self.shape(bytes)?;
        hash.update(ID_VERSION);
        shape.names.hash(&mut hash);
        hash.update(format!(" {} {} ", shape.zone.name(), shape.keep_empty));
        if let Some(label) = &self.common.again {
            hash.update(format!("again {} {label} ", label.len()));
        }
        match format {
            ImportFormat::Csv(options, header) => self.csv(options, *header, &shape, hash),
            ImportFormat::Parquet => self.table(TablePlan::parquet(&shape)?, &shape, hash),
            ImportFormat::Arrow => self.table(TablePlan::arrow(&shape)?, &shape, hash),
        }
    }

    fn shape(&self, bytes: u64) -> Result<Shape, Failure> {
        let common = self.common;
        let mut names = Names::new(common.prefix.as_deref(), self.file, &common.unit, &common.counter)?;
        common.name_map.as_deref().map(|map| names.read_map(map)).transpose()?;
        common.rename.iter().try_for_each(|text| names.rename(text))?;
        let zone = Zone::parse(&common.time_zone)?;
        Ok(Shape { file: self.file.to_owned(), bytes, names, zone, keep_empty: common.empty == Empty::Gap })
    }

    fn csv(
        &self,
        options: &CsvOptions,
        header: Option<&Path>,
        shape: &Shape,
        mut hash: sha2::Sha256,
    ) -> Result<u64, Failure> {
        let mut source = FileSource::open(self.file, source::SAMPLE_BYTES)?;
        let mut sample = source.sample()?.to_vec();
        let header = header.map(read_header).transpose()?;
        if let Some(header) = &header {
            sample = [header, &b"\n"[..], &sample].concat();
        }
        let mut plan = Plan::make(&sample, options, shape)?;
        let piece = Piece { index: 0, first_line: 1, bytes: sample };
        let first = PieceParser::new(&plan, shape)
            .parse(&piece)
            .batches
            .into_iter()
            .next()
            .map(|batch| batch.first(SHOWN_ROWS));
        let first = first.unwrap_or_default();
        if header.is_some() {
            plan.skip = 0;
        }
        let mut shown = Vec::new();
        plan.show(shape, &first, style::on_stderr(), &mut shown).map_err(Failure::writing("standard error"))?;
        self.present(&shown, || plan.json(shape, &first))?;
        let piece_bytes = PART_READINGS * plan.line_bytes / plan.line_readings.max(1.0);
        let piece_bytes = piece_bytes.clamp(PIECE_BYTES.0, PIECE_BYTES.1) as usize;
        hash.update(plan.text());
        hash.update(format!(" {piece_bytes}"));
        let id = id(hash);
        let run = |each: &mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, taken: &mut dyn FnMut(u64)| {
            let source = FileSource::open(self.file, piece_bytes)?;
            pass(source, &plan, shape, each, taken)
        };
        self.go(&id, shape, &run)
    }

    fn table(&self, plan: TablePlan, shape: &Shape, mut hash: sha2::Sha256) -> Result<u64, Failure> {
        let first = plan.first(shape)?;
        let mut shown = Vec::new();
        plan.show(shape, &first, style::on_stderr(), &mut shown).map_err(Failure::writing("standard error"))?;
        self.present(&shown, || plan.json(shape, &first))?;
        hash.update(plan.text());
        let id = id(hash);
        let run = |each: &mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, _: &mut dyn FnMut(u64)| {
            plan.parts(shape, &mut |parsed: Parsed| each(pass::Prepared::of(parsed)?))
        };
        self.go(&id, shape, &run)
    }

    /// Shows what the file is taken for, and asks.
    fn present(&self, shown: &[u8], json: impl Fn() -> serde_json::Value) -> Result<(), Failure> {
        if self.common.json {
            print_json(&json!({ "plan": json() }))?;
        } else {
            io::stderr().write_all(shown).map_err(Failure::writing("standard error"))?;
        }
        if self.common.dry_run || self.common.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::Usage(
                "nobody can be asked whether that is right; look at it, and add --yes (or --dry-run)".into(),
            ));
        }
        eprint!("\nImport it like that? [y/N] ");
        let mut line = String::new();
        io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|error| Failure::Usage(format!("cannot read the answer: {error}")))?;
        match line.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::Usage("nothing was imported; see `wholegrain import csv --help` for the options".into())),
        }
    }

    /// Goes through the file, once or twice.
    fn go(&self, id: &str, shape: &Shape, run: &RunPass) -> Result<u64, Failure> {
        let begun = Instant::now();
        let mut bad = BadLines::new(self.common.bad.clone().unwrap_or_else(|| beside(self.file)));
        if self.common.strict && !self.common.dry_run {
            let mut ignore = ImportSummary::default();
            run(
                &mut |prepared| {
                    ignore.lines += prepared.lines;
                    bad.take(&prepared.bad)
                },
                &mut |_| (),
            )?;
            if bad.count() > 0 {
                let count = bad.count();
                bad.finish()?;
                self.tell(
                    &ImportSummary { lines: ignore.lines, bad: count, ..ImportSummary::default() },
                    &bad,
                    id,
                    begun,
                )?;
                return Ok(count);
            }
        }
        let mut sender = send::Sender::new(self.connection, id, shape.bytes)?;
        let result = {
            let sender = std::cell::RefCell::new(&mut sender);
            run(
                &mut |prepared| {
                    bad.take(&prepared.bad)?;
                    sender.borrow_mut().take(prepared)
                },
                &mut |taken| sender.borrow_mut().progress(taken),
            )
        };
        sender.finish();
        // Also after a failure: reports the lines that were refused until then.
        bad.finish()?;
        result?;
        let summary = ImportSummary { bad: bad.count(), ..sender.summary };
        self.tell(&summary, &bad, id, begun)?;
        Ok(bad.count())
    }

    fn tell(&self, summary: &ImportSummary, bad: &BadLines, id: &str, begun: Instant) -> Result<(), Failure> {
        bad.tell();
        let seconds = begun.elapsed().as_secs_f64();
        if self.common.json {
            let list = (bad.count() > 0).then(|| bad.path().to_owned());
            let value = summary.json(self.file, id, list, seconds, self.common.dry_run);
            return print_json(&value);
        }
        eprintln!("{}: {}", self.file.display(), summary.words(seconds, self.common.dry_run, self.common.strict));
        Ok(())
    }
}

/// Goes through a file: its parts in order, and now and then how much of it has been read.
type RunPass<'a> =
    dyn Fn(&mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, &mut dyn FnMut(u64)) -> Result<(), Failure> + 'a;

/// The first line of a file of LDMS's header.
fn read_header(path: &Path) -> Result<Vec<u8>, Failure> {
    let text =
        std::fs::read(path).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))?;
    Ok(parse::lines(&text).next().unwrap_or_default().to_vec())
}

fn id(hash: sha2::Sha256) -> String {
    let digest: [u8; 32] = hash.finalize().into();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".bad");
    name.into()
}

fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}").map_err(Failure::writing("standard output"))
}
