//! What a parser takes and gives.

use std::ops::Range;

use crate::plan::Slot;
use crate::reader::{ReadProblem, Reading};

/// Takes the values of a text, in the order of the text.
pub trait ValueSink {
    /// A number at the bytes `at` of the text. The byte after it is no digit.
    fn number(&mut self, slot: Slot, value: i64, at: Range<usize>, format: NumberFormat);

    /// Bytes that end before a newline and that the parser ignores.
    fn ignored(&mut self, _at: Range<usize>) {}

    /// A value calculated from several numbers.
    fn calculated(&mut self, slot: Slot, value: i64);
}

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberFormat {
    Int,
    /// An integer after any number of spaces. The spaces belong to its bytes.
    PaddedInt,
    /// A number with two decimals. Its value is in hundredths.
    Hundredths,
}

/// The format of a file, with the slot of each value.
pub trait TextParser {
    /// Reads a text and hands its values to `sink`.
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome;

    /// The slots that a parse fills, each once.
    fn slots(&self) -> Vec<u32>;
}

/// What a parse found besides the values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParseOutcome {
    /// The file has other lines or columns than at discovery.
    pub layout_changed: bool,
    /// The first line that does not match the format, from 1.
    pub garbage: Option<u32>,
}

impl ParseOutcome {
    /// The result of the read of `what`. A file with garbage does not start a discovery.
    pub fn reading(self, what: &'static str) -> Reading {
        Reading {
            layout_changed: self.layout_changed && self.garbage.is_none(),
            problem: self.garbage.map(|line| ReadProblem::Garbage { what, line }),
            ..Reading::COMPLETE
        }
    }

    /// Records that `line` does not match the format.
    #[cold]
    pub fn bad_line(&mut self, line: u32) {
        self.garbage.get_or_insert(line);
    }
}
