//! `wholegrain import`: imports readings from files into the server, part by part.
//!
//! - In: CSV of any dialect, LDMS's CSV, Parquet, Arrow IPC files. The detected format is shown before the import starts.
//! - Out: parts, each of which the server stores completely and once, so that an interrupted import can be continued. Bad lines, with their numbers
//!   and errors.
//! - Never: a line skipped silently; an empty cell as zero; an ambiguous time; more than a few parts in memory.

mod arrays;
mod bad;
mod cells;
mod encode;
mod lines;
mod names;
mod options;
mod parse;
mod pass;
mod plan;
mod preview;
mod send;
mod source;
mod table;
mod times;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use serde_json::json;
use sha2::Digest;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::style::{self, Style};
use crate::output::{confirm, print_json_lines};
use bad::BadLines;
use names::Names;
use options::{Common, CsvOptions, Empty, LDMS, Shape};
use parse::{Parsed, PieceParser};
use pass::{ImportSummary, pass};
use plan::Plan;
use preview::READINGS_SHOWN_MAX;
use source::{FileSource, Piece};
use table::TablePlan;
use times::Zone;

const EXAMPLES: &str = "\
Examples:
  wholegrain import csv hall.csv --dry-run                      the detected format, and bad lines
  wholegrain import csv hall.csv --prefix /lab/hall --yes
  wholegrain import csv log.csv --time-zone Europe/Berlin --unit Cel --rename 'T in=/hall/inlet/temp'
  wholegrain import csv readings.csv.gz --layout long --bad refused.tsv
  wholegrain import ldms meminfo.csv --prefix /lrz/ldms
  wholegrain import parquet export/*.parquet --yes
  wholegrain import arrow job4711.arrow --yes

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
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Subcommand)]
enum ImportCommand {
    /// Text tables: a column per sensor, or a line per reading; any delimiter; plain, gzip or zstd
    #[command(after_help = EXAMPLES)]
    Csv {
        #[command(flatten)]
        options: CsvOptions,
        #[command(flatten)]
        common: Common,
    },
    /// Files of LDMS's store_csv with their header; the sensors become /prefix/producer/metric, or /prefix/producer/instance/metric
    #[command(after_help = EXAMPLES)]
    Ldms {
        /// A file whose first line is the header, for data without one (altheader)
        #[arg(long, value_name = "FILE")]
        header_file: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Parquet files: the columns sensor, time and value, or a column of times and one for each sensor
    #[command(after_help = EXAMPLES)]
    Parquet {
        #[command(flatten)]
        common: Common,
    },
    /// Arrow IPC files or streams with the same columns
    #[command(after_help = EXAMPLES)]
    Arrow {
        #[command(flatten)]
        common: Common,
    },
}

pub fn run(args: &ImportArgs, client: Option<&Path>) -> Result<(), Failure> {
    let (common, format) = match &args.command {
        ImportCommand::Csv { options, common } => (common, ImportFormat::Csv(options, None)),
        ImportCommand::Ldms { header_file, common } => (common, ImportFormat::Csv(&LDMS, header_file.as_deref())),
        ImportCommand::Parquet { common } => (common, ImportFormat::Parquet),
        ImportCommand::Arrow { common } => (common, ImportFormat::Arrow),
    };
    if common.bad.is_some() && common.files.len() > 1 {
        return Err(Failure::Usage("--bad names one file for the bad lines; import several files one by one".into()));
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
        false => Err(Failure::Failed(format!("bad lines were refused: {}", refused.join(", ")))),
    }
}

enum ImportFormat<'a> {
    /// With an optional file that has the header.
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
    /// Imports the file. Returns the number of bad lines.
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
            .map(|batch| batch.first(READINGS_SHOWN_MAX));
        let first = first.unwrap_or_default();
        if header.is_some() {
            plan.skip = 0;
        }
        self.present(|style, out| plan.show(shape, &first, style, out), || plan.json(shape, &first))?;
        let piece_bytes = PART_READINGS * plan.line_bytes / plan.line_readings.max(1.0);
        let piece_bytes = piece_bytes.clamp(PIECE_BYTES.0, PIECE_BYTES.1) as usize;
        hash.update(plan.text());
        hash.update(format!(" {piece_bytes}"));
        let id = id(hash);
        let run = |each: &mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, taken: &mut dyn FnMut(u64)| {
            let source = FileSource::open(self.file, piece_bytes)?;
            pass(source, &plan, shape, each, taken)
        };
        self.import_parts(&id, shape, &run)
    }

    fn table(&self, plan: TablePlan, shape: &Shape, mut hash: sha2::Sha256) -> Result<u64, Failure> {
        let first = plan.first(shape)?;
        self.present(|style, out| plan.show(shape, &first, style, out), || plan.json(shape, &first))?;
        hash.update(plan.text());
        let id = id(hash);
        let run = |each: &mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, _: &mut dyn FnMut(u64)| {
            plan.parts(shape, &mut |parsed: Parsed| each(pass::Prepared::of(parsed)?))
        };
        self.import_parts(&id, shape, &run)
    }

    /// Shows the plan, and asks for a confirmation.
    fn present(
        &self,
        show: impl FnOnce(Style, &mut Vec<u8>) -> io::Result<()>,
        json: impl FnOnce() -> serde_json::Value,
    ) -> Result<(), Failure> {
        if self.common.json {
            print_json_lines([json!({ "plan": json() })])?;
        } else {
            let mut text = Vec::new();
            let shown = show(style::on_stderr(), &mut text).and_then(|()| io::stderr().write_all(&text));
            shown.map_err(Failure::writing("standard error"))?;
        }
        if self.common.dry_run || self.common.yes {
            return Ok(());
        }
        let advice =
            "an import needs a confirmation, and standard input is not a terminal; check the plan, then add --yes";
        match confirm("\nImport the file like this?", advice)? {
            true => Ok(()),
            false => {
                Err(Failure::Usage("nothing was imported; `wholegrain import csv --help` describes the options".into()))
            }
        }
    }

    /// Imports the file in one pass; with --strict a first pass finds bad lines.
    fn import_parts(&self, id: &str, shape: &Shape, run: &RunPass) -> Result<u64, Failure> {
        let begun = Instant::now();
        let mut bad = BadLines::new(self.common.bad.clone().unwrap_or_else(|| beside(self.file)));
        if self.common.strict && !self.common.dry_run {
            let mut ignore = ImportSummary::default();
            run(
                &mut |prepared| {
                    ignore.lines += prepared.lines;
                    bad.add(&prepared.bad)
                },
                &mut |_| (),
            )?;
            if bad.count() > 0 {
                let count = bad.count();
                bad.finish()?;
                self.report(
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
                    bad.add(&prepared.bad)?;
                    sender.borrow_mut().take(prepared)
                },
                &mut |taken| sender.borrow_mut().progress(taken),
            )
        };
        sender.finish();
        // Also after a failure, for the bad lines until then.
        bad.finish()?;
        result?;
        let summary = ImportSummary { bad: bad.count(), ..sender.summary };
        self.report(&summary, &bad, id, begun)?;
        Ok(bad.count())
    }

    fn report(&self, summary: &ImportSummary, bad: &BadLines, id: &str, begun: Instant) -> Result<(), Failure> {
        bad.print();
        let seconds = begun.elapsed().as_secs_f64();
        if self.common.json {
            let list = (bad.count() > 0).then(|| bad.path().to_owned());
            let value = summary.json(self.file, id, list, seconds, self.common.dry_run);
            return print_json_lines([value]);
        }
        eprintln!("{}: {}", self.file.display(), summary.words(seconds, self.common.dry_run, self.common.strict));
        Ok(())
    }
}

/// One pass through a file. The first function takes its parts in order, the second the number of bytes read.
type RunPass<'a> =
    dyn Fn(&mut dyn FnMut(pass::Prepared) -> Result<(), Failure>, &mut dyn FnMut(u64)) -> Result<(), Failure> + 'a;

/// The first line of a file of LDMS's header.
fn read_header(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = std::fs::read(path).map_err(Failure::reading(path))?;
    Ok(lines::lines(&text).next().unwrap_or_default().to_vec())
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
