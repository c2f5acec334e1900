//! Reads one file of a job at each sample, until the job has ended.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::io::IoTable;
use crate::descriptors::Quota;
use crate::file::{Errno, PolledFile};
use crate::line_table::LineTable;
use crate::parse::{IncrementalParser, ParseOutcome, ParserCapacity, TextParser, ValueSink};
use crate::plan::{self, Slot};
use crate::pressure::PressureTable;
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::scan;

/// The initial size of the buffer; memory.stat of version 2 takes under 3 KB. The buffer grows with the files.
const BUFFER_BYTES: usize = 16 << 10;

/// The maximum length of a file of one number, with its newline.
const NUMBER_BYTES_MAX: usize = 64;

const GONE: Reading = Reading { gone: true, ..Reading::COMPLETE };

thread_local! {
    /// The buffer of all readers of a thread, which reads one file at a time. A job has some twenty files, a node hundreds of jobs.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How a file is outcome.
#[derive(Debug)]
pub enum CgroupParser {
    /// One number: its slot, and its divisor.
    Number(Slot, i64),
    Lines(LineTable),
    Pressure(PressureTable),
    Io(IoTable),
}

impl CgroupParser {
    /// The same parser with other slots: slot `n` becomes `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        match self {
            Self::Number(slot, divisor) => Self::Number(plan::mapped(*slot, slots), *divisor),
            Self::Lines(table) => Self::Lines(table.mapped(slots)),
            Self::Pressure(table) => Self::Pressure(table.mapped(slots)),
            Self::Io(table) => Self::Io(table.mapped(slots)),
        }
    }
}

impl TextParser for CgroupParser {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        match self {
            Self::Number(slot, divisor) => parse_number(*slot, *divisor, bytes, sink),
            Self::Lines(table) => table.parse(bytes, sink),
            Self::Pressure(table) => table.parse(bytes, sink),
            Self::Io(table) => table.parse(bytes, sink),
        }
    }

    fn slots(&self) -> Vec<u32> {
        match self {
            Self::Number(slot, _) => slot.iter().copied().collect(),
            Self::Lines(table) => table.slots(),
            Self::Pressure(table) => table.slots(),
            Self::Io(table) => table.slots(),
        }
    }
}

fn parse_number(slot: Slot, divisor: i64, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
    let mut outcome = ParseOutcome::default();
    match scan::only_int(bytes) {
        Some(value) => sink.calculated(slot, if divisor == 1 { value } else { value / divisor }),
        None => outcome.bad_line(1),
    }
    outcome
}

/// A directory of a job, with its inode: a directory with the same path and another inode belongs to another job.
#[derive(Debug, Clone)]
pub struct JobDirectory {
    path: PathBuf,
    inode: u64,
}

impl JobDirectory {
    /// The directory at a path; `None` when it does not exist.
    pub fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_dir)?;
        Some(Self { path: path.to_owned(), inode: metadata.ino() })
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether the directory was removed.
    #[cold]
    pub fn is_gone(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(metadata) => metadata.ino() != self.inode,
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV)),
        }
    }
}

/// Creates readers of one file.
pub struct ReaderTemplate {
    /// The name of the file in messages.
    pub what: &'static str,
    pub directory: JobDirectory,
    pub path: PathBuf,
    /// Its slots are the indices of the part's sensors.
    pub parser: CgroupParser,
    pub capacity: ParserCapacity,
    /// Pays for the descriptors of the readers.
    pub quota: Quota,
}

impl ReaderTemplate {
    /// A reader of some of the sensors.
    pub fn reader(&self, slots: &[Slot]) -> CgroupFileReader {
        let mut file = PolledFile::of_job(&self.path, &self.quota);
        file.open_now();
        let parser = self.parser.mapped(slots);
        // Parsing one number costs no more than comparing it.
        let incremental = match parser {
            CgroupParser::Number(..) => IncrementalParser::default(),
            _ => IncrementalParser::new(&parser, self.capacity),
        };
        CgroupFileReader { what: self.what, directory: self.directory.clone(), file, parser, incremental, gone: false }
    }
}

/// Reads one file of a job.
pub struct CgroupFileReader {
    what: &'static str,
    directory: JobDirectory,
    file: PolledFile,
    parser: CgroupParser,
    incremental: IncrementalParser,
    gone: bool,
}

impl CgroupFileReader {
    /// One `pread` reads the file: the kernel formats these files as a whole for each read from the beginning.
    fn parse(&mut self, row: &mut Row<'_>) -> Result<ParseOutcome, Errno> {
        if let CgroupParser::Number(slot, divisor) = self.parser {
            let mut buffer = [0; NUMBER_BYTES_MAX];
            let length = self.file.read_once(&mut buffer)?;
            return Ok(parse_number(slot, divisor, &buffer[..length], row));
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.is_empty() {
                buffer.resize(BUFFER_BYTES, 0);
            }
            let size = buffer.len();
            let mut length = self.content(buffer)?;
            if length >= size {
                // Two reads of two moments gave it. The buffer has grown, and one read is enough now.
                length = self.content(buffer)?;
            }
            Ok(self.incremental.parse(&self.parser, &buffer[..length], row))
        })
    }

    fn content(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        match self.parser {
            CgroupParser::Io(_) => self.file.read_whole_or_empty(buffer, |_| true),
            CgroupParser::Number(..) | CgroupParser::Lines(_) | CgroupParser::Pressure(_) => {
                self.file.read_whole(buffer, |_| true)
            }
        }
    }

    /// After its directory was removed, an open file gives ENODEV, and opening it gives ENOENT.
    #[cold]
    fn failed(&mut self, errno: Errno) -> Reading {
        let is_missing = matches!(errno, libc::ENODEV | libc::ENOENT | libc::ENOTDIR);
        if is_missing && self.directory.is_gone() {
            self.gone = true;
            return GONE;
        }
        let problem = Some(ReadProblem::Os { what: self.what, errno });
        Reading { layout_changed: is_missing, problem, ..Reading::COMPLETE }
    }
}

impl Reader for CgroupFileReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        if self.gone {
            return GONE;
        }
        match self.parse(row) {
            Ok(outcome) => outcome.reading(self.what),
            Err(errno) => self.failed(errno),
        }
    }
}
