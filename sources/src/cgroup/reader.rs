//! Reading one file of a job again and again, until the job is no more.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::io::IoTable;
use crate::descriptors::Quota;
use crate::file::{Errno, KeptFile};
use crate::kept::{Fill, Kept, Parse, Room};
use crate::plan::Slot;
use crate::pressure::PressureTable;
use crate::scan;
use crate::table::{LineTable, Parsed};
use crate::{ReadProblem, Reader, Reading, Row};

/// The room for a file at first, in bytes; memory.stat of version 2 takes under 3 KB. It grows when a file has outgrown it.
const BUFFER_BYTES: usize = 16 << 10;

/// The longest file of one number, in bytes, with its newline.
const NUMBER_BYTES_MAX: usize = 64;

const GONE: Reading = Reading { layout_changed: false, problem: None, gone: true };

thread_local! {
    /// One for all readers of a thread: a job has some twenty files, a node hundreds of jobs, and one file is read at a time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How a file is parsed.
#[derive(Debug)]
pub enum Parser {
    /// Where the number goes, and what it is divided by.
    Number(Slot, i64),
    Lines(LineTable),
    Pressure(PressureTable),
    Io(IoTable),
}

impl Parser {
    /// The same with its values elsewhere.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        match self {
            Self::Number(slot, divisor) => {
                Self::Number(slot.and_then(|slot| slots.get(slot as usize).copied().flatten()), *divisor)
            }
            Self::Lines(table) => Self::Lines(table.mapped(slots)),
            Self::Pressure(table) => Self::Pressure(table.mapped(slots)),
            Self::Io(table) => Self::Io(table.mapped(slots)),
        }
    }
}

impl Parse for Parser {
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
        match self {
            Self::Number(slot, divisor) => number(*slot, *divisor, bytes, fill),
            Self::Lines(table) => table.parse(bytes, fill),
            Self::Pressure(table) => table.parse(bytes, fill),
            Self::Io(table) => table.parse(bytes, fill),
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

fn number(slot: Slot, divisor: i64, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
    let mut parsed = Parsed::default();
    match scan::only_int(bytes) {
        Some(value) => fill.made(slot, if divisor == 1 { value } else { value / divisor }),
        None => parsed.bad_line(1),
    }
    parsed
}

/// A directory as it was when the job was looked at. Another one in its place is another job's.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    inode: u64,
}

impl Directory {
    /// The directory at a path; `None` when there is none.
    pub fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_dir)?;
        Some(Self { path: path.to_owned(), inode: metadata.ino() })
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it is no more.
    #[cold]
    pub fn is_gone(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(metadata) => metadata.ino() != self.inode,
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV)),
        }
    }
}

/// What readers of one file are made of.
pub struct Template {
    /// What people are told that it is.
    pub what: &'static str,
    pub directory: Directory,
    pub path: PathBuf,
    /// With the sensors of the part as places.
    pub parser: Parser,
    /// What a reader keeps of the last content.
    pub room: Room,
    /// Whose descriptors its readers take.
    pub quota: Quota,
}

impl Template {
    /// A reader of a choice of the sensors.
    pub fn reader(&self, slots: &[Slot]) -> FileReader {
        let mut file = KeptFile::of_job(&self.path, &self.quota);
        file.open_now();
        let parser = self.parser.mapped(slots);
        // To parse one number costs no more than to compare it.
        let kept = if matches!(parser, Parser::Number(..)) { Kept::default() } else { Kept::new(&parser, self.room) };
        FileReader { what: self.what, directory: self.directory.clone(), file, parser, kept, gone: false }
    }
}

/// Reads one file.
pub struct FileReader {
    what: &'static str,
    directory: Directory,
    file: KeptFile,
    parser: Parser,
    kept: Kept,
    gone: bool,
}

impl FileReader {
    /// One `pread`: the kernel makes these files whole for each read that begins at their beginning.
    fn parsed(&mut self, row: &mut Row<'_>) -> Result<Parsed, Errno> {
        if let Parser::Number(slot, divisor) = self.parser {
            let mut buffer = [0; NUMBER_BYTES_MAX];
            let length = self.file.read_once(&mut buffer)?;
            return Ok(number(slot, divisor, &buffer[..length], row));
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.is_empty() {
                buffer.resize(BUFFER_BYTES, 0);
            }
            let room = buffer.len();
            let mut length = self.content(buffer)?;
            if length >= room {
                // It came in two pieces, which are of two instants; now there is room for it.
                length = self.content(buffer)?;
            }
            Ok(self.kept.parse(&self.parser, &buffer[..length], row))
        })
    }

    fn content(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        match self.parser {
            Parser::Io(_) => self.file.read_whole_or_empty(buffer, |_| true),
            Parser::Number(..) | Parser::Lines(_) | Parser::Pressure(_) => self.file.read_whole(buffer, |_| true),
        }
    }

    /// A file whose directory is gone says ENODEV while it is open, and ENOENT when it is opened.
    #[cold]
    fn failed(&mut self, errno: Errno) -> Reading {
        let is_missing = matches!(errno, libc::ENODEV | libc::ENOENT | libc::ENOTDIR);
        if is_missing && self.directory.is_gone() {
            self.gone = true;
            return GONE;
        }
        let problem = Some(ReadProblem::Os { what: self.what, errno });
        Reading { layout_changed: is_missing, problem, gone: false }
    }
}

impl Reader for FileReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        if self.gone {
            return GONE;
        }
        match self.parsed(row) {
            Ok(parsed) => parsed.reading(self.what),
            Err(errno) => self.failed(errno),
        }
    }
}
