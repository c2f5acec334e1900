//! The options of an import.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use wholegrain_model::Pattern;

use super::names::Names;
use super::times::{TimeFormat, Zone};
use crate::client_file::ClientOption;

/// The meaning of empty cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Empty {
    /// A gap of the sensor at the line's time
    Gap,
    /// No reading of the sensor at the line's time; NA, null and similar words are gaps
    None,
}

/// The options of all imports.
#[derive(Args)]
pub struct Common {
    /// The files to import
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The path above the sensors; absolute names keep their paths without this option [default: /import/<name of the file>]
    #[arg(long, value_name = "PATH")]
    pub prefix: Option<String>,
    /// A file with the sensors of names: lines name,path[,unit[,gauge or counter]]
    #[arg(long, value_name = "FILE")]
    pub name_map: Option<PathBuf>,
    /// The path of one name; can be repeated
    #[arg(long, value_name = "NAME=PATH")]
    pub rename: Vec<String>,
    /// The unit (UCUM) of all values, or of those of a name or pattern; can be repeated, the last one applies
    #[arg(long, value_name = "[NAME=]UNIT")]
    pub unit: Vec<String>,
    /// Sensors that are counters; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub counter: Vec<Pattern>,
    /// The meaning of empty cells
    #[arg(long, value_enum, default_value_t = Empty::Gap)]
    pub empty: Empty,
    /// The time zone of times without an offset, such as UTC, +01:00 or Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub time_zone: String,
    /// Send nothing; show the detected format and the bad lines
    #[arg(long)]
    pub dry_run: bool,
    /// Import without a confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Import the file once more, under a new label such as 2: deleted readings return. The same label again continues an interrupted
    /// import
    #[arg(long, value_name = "LABEL")]
    pub again: Option<String>,
    /// Import nothing from a file with a bad line
    #[arg(long)]
    pub strict: bool,
    /// The file for the list of bad lines: number, reason and text, separated by tabs [default: FILE.bad]
    #[arg(long, value_name = "FILE")]
    pub bad: Option<PathBuf>,
    /// Print the plan and the result of each file as JSON objects, one per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientOption,
}

/// The format of a table; what is not given is detected.
#[derive(Args, Default)]
pub struct CsvOptions {
    /// The arrangement of the readings [default: detected]
    #[arg(long, value_enum)]
    pub layout: Option<Layout>,
    /// The separator of fields: a character, or tab [default: detected]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Whether the first line has the names [default: detected]
    #[arg(long, value_name = "BOOL")]
    pub header: Option<bool>,
    /// The names of the columns, instead of the header's
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub columns: Option<Vec<String>>,
    /// The number of lines before the header to skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_lines: usize,
    /// The column of times, by name or number; two, such as Date,Time, are read as one
    #[arg(long = "time-column", value_name = "NAME", value_delimiter = ',')]
    pub time_columns: Vec<String>,
    /// The notation of times [default: detected]
    #[arg(long, value_enum)]
    pub time_format: Option<TimeFormat>,
    /// The column of sensors' names (long)
    #[arg(long, value_name = "NAME")]
    pub sensor_column: Option<String>,
    /// The column of values (long)
    #[arg(long, value_name = "NAME")]
    pub value_column: Option<String>,
    /// The column of units (long)
    #[arg(long, value_name = "NAME")]
    pub unit_column: Option<String>,
    /// A column to skip; can be repeated
    #[arg(long = "skip-column", value_name = "NAME")]
    pub skip_columns: Vec<String>,
    /// Whether decimals follow a comma [default: detected]
    #[arg(long, value_name = "BOOL")]
    pub decimal_comma: Option<bool>,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        _ if text == "tab" || text == "\\t" => Ok(b'\t'),
        [byte] if !byte.is_ascii_alphanumeric() && !b"\"\r\n.-+".contains(byte) => Ok(*byte),
        _ => Err("expected one character such as , ; | or the word tab".to_owned()),
    }
}

/// The parameters of an import besides the plan of its file.
pub struct Shape {
    pub file: PathBuf,
    pub bytes: u64,
    pub names: Names,
    pub zone: Zone,
    pub keep_empty: bool,
}

/// The arrangement of readings in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// A column of times and one for each sensor
    Wide,
    /// A line for each reading: sensor, time, value, optionally unit
    Long,
    /// The format of LDMS's store_csv
    Ldms,
}

/// The format of LDMS's files.
pub static LDMS: CsvOptions = CsvOptions {
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
