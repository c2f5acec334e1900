//! Reads one file of the folder, with all checks at each read.

use std::ffi::OsString;
use std::io::Read;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::config::FolderSettings;
use crate::exposition::{Dialect, SeriesTable};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::trusted::{TrustError, TrustedFolder};

/// The name of every file in problems; the group's name says which one it is.
const FILE: &str = "the file";
/// What is wrong with a number for a sensor with integers.
const NO_INTEGER: &str = "the file (its integers must fit into 64 bits with sign)";

/// A file that is opened for each read.
pub(super) struct ExpositionFile {
    settings: Arc<FolderSettings>,
    name: OsString,
    buffer: Vec<u8>,
    /// When the content was written, in ns since the epoch.
    written_ns: i64,
}

impl ExpositionFile {
    /// A file of the folder, which is not opened yet.
    pub fn new(settings: Arc<FolderSettings>, name: &str) -> Self {
        Self { settings, name: name.into(), buffer: Vec::new(), written_ns: 0 }
    }

    /// The content. The folder is opened again too: it may be another one now.
    pub fn load(&mut self) -> Result<&[u8], TrustError> {
        let settings = &self.settings;
        let folder = TrustedFolder::open(&settings.dir, settings.owners())?;
        let (file, stat) = folder.file(&self.name, settings.file_bytes_max)?;
        self.written_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
        self.buffer.clear();
        let path = || self.name.to_string_lossy().into_owned();
        let read = file.take(settings.file_bytes_max + 1).read_to_end(&mut self.buffer);
        read.map_err(|error| TrustError::Os { path: path(), error })?;
        let (bytes, max) = (self.buffer.len() as u64, settings.file_bytes_max);
        if bytes > max {
            return Err(TrustError::TooLong { path: path(), bytes, max });
        }
        Ok(&self.buffer)
    }
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

pub(super) struct ExpositionFileReader {
    pub file: ExpositionFile,
    pub table: SeriesTable,
    pub dialect: Dialect,
}

impl ExpositionFileReader {
    fn fill(&mut self, row: &mut Row<'_>) -> Result<Reading, ReadProblem> {
        let max_age = self.file.settings.max_age.ns() as i64;
        self.file.load().map_err(|error| ReadProblem::Os { what: FILE, errno: error.errno() })?;
        let oldest = now_ns().saturating_sub(max_age);
        if self.file.written_ns < oldest {
            return Err(ReadProblem::Message { text: "the file is older than max_age" });
        }
        if !SeriesTable::is_whole(&self.file.buffer, self.dialect) {
            return Err(ReadProblem::Message { text: "the file is half-written: it has no end" });
        }
        let read = self.table.read(&self.file.buffer, Some(oldest), row);
        let problem = match (read.first_bad, read.first_duplicate) {
            (Some(line), _) if read.is_no_integer => Some(ReadProblem::Garbage { what: NO_INTEGER, line }),
            (Some(line), _) => Some(ReadProblem::Garbage { what: FILE, line }),
            (None, Some(_)) => Some(ReadProblem::Message { text: "the file has a series twice, which is a gap" }),
            (None, None) => None,
        };
        Ok(Reading { layout_changed: read.unknown > 0, problem, ..Reading::COMPLETE })
    }
}

impl Reader for ExpositionFileReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        self.fill(row).unwrap_or_else(|problem| {
            let is_absent = problem == ReadProblem::Os { what: FILE, errno: libc::ENOENT };
            Reading { layout_changed: is_absent, problem: Some(problem), ..Reading::COMPLETE }
        })
    }
}
