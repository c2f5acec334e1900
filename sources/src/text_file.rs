//! A text file that is read and parsed at each sample.

use std::path::Path;

use crate::file::PolledFile;
use crate::parse::{IncrementalParser, ParserCapacity, TextParser};
use crate::reader::{ReadProblem, Reading, Row};

/// A file, the parser of its format, and what both keep between reads.
pub struct TextFile<P> {
    what: &'static str,
    file: PolledFile,
    buffer: Vec<u8>,
    parser: P,
    incremental: IncrementalParser,
}

impl<P: TextParser> TextFile<P> {
    /// Of the file at `path`, which held `bytes` at discovery. Errors name it `what`.
    pub fn new(what: &'static str, path: &Path, bytes: &[u8], parser: P) -> Self {
        let incremental = IncrementalParser::new(&parser, ParserCapacity::of(&parser, bytes));
        Self { what, file: PolledFile::new(path), buffer: vec![0; buffer_bytes(bytes.len())], parser, incremental }
    }

    /// Reads and parses the file. `is_complete` recognizes a complete content, which saves an empty read at the end.
    #[inline]
    pub fn read(&mut self, row: &mut Row<'_>, is_complete: impl Fn(&P, &[u8]) -> bool) -> Reading {
        let Self { what, file, buffer, parser, incremental } = self;
        match file.read_whole(buffer, |bytes| is_complete(parser, bytes)) {
            Ok(length) => incremental.parse(parser, &buffer[..length], row).reading(what),
            Err(errno) => Reading { problem: Some(ReadProblem::Os { what, errno }), ..Reading::default() },
        }
    }
}

/// The size of the buffer for a file that had `length` bytes, with room for counters that grow.
fn buffer_bytes(length: usize) -> usize {
    (length + length / 2 + 1024).next_multiple_of(4096)
}
