//! The parser of any file of a group.

use super::loadavg::LoadTable;
use super::pairs::PairTable;
use super::sums::{ColumnSums, RowSums};
use super::words::WordTable;
use crate::line_table::LineTable;
use crate::parse::{ParseOutcome, TextParser, ValueSink};
use crate::pressure::PressureTable;
use crate::states::StateText;

/// A file that comes in several reads is complete when one read gave at most so many bytes. The first read gives as many lines as fit
/// into a page or into the buffer (`seq_read_iter` in fs/seq_file.c). Lines of devices have up to 450 bytes, so one more line would have
/// fitted.
const COMPLETE_BYTES_MAX: usize = 4096 - 512;

/// The parser of a file, and how the end of the file is recognized. A read that gives nothing would show it too, but is one more system
/// call.
pub enum ProcParser {
    /// One read gives the whole file.
    OneRecord(LineTable),
    /// Several reads give the file. Its lines do not change while the kernel runs: the last one shows the end.
    KnownLast(LineTable),
    /// Several reads give the file. A new device may come at the end.
    UnknownLast(LineTable),
    Pairs(PairTable),
    Load(LoadTable),
    Pressure(PressureTable),
    Words(WordTable),
    Columns(ColumnSums),
    Rows(RowSums),
    State(StateText),
}

impl ProcParser {
    /// Whether a read gave the whole file.
    pub fn is_complete(&self, bytes: &[u8]) -> bool {
        match self {
            Self::KnownLast(table) => table.ends_with_last_line(bytes),
            Self::UnknownLast(_) | Self::Columns(_) | Self::Rows(_) => bytes.len() <= COMPLETE_BYTES_MAX,
            Self::OneRecord(_)
            | Self::Pairs(_)
            | Self::Load(_)
            | Self::Pressure(_)
            | Self::Words(_)
            | Self::State(_) => true,
        }
    }
}

impl TextParser for ProcParser {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        match self {
            Self::OneRecord(table) | Self::KnownLast(table) | Self::UnknownLast(table) => table.parse(bytes, sink),
            Self::Pairs(table) => table.parse(bytes, sink),
            Self::Load(table) => table.parse(bytes, sink),
            Self::Pressure(table) => table.parse(bytes, sink),
            Self::Words(table) => table.parse(bytes, sink),
            Self::Columns(table) => table.parse(bytes, sink),
            Self::Rows(table) => table.parse(bytes, sink),
            Self::State(text) => text.parse(bytes, sink),
        }
    }

    fn slots(&self) -> Vec<u32> {
        match self {
            Self::OneRecord(table) | Self::KnownLast(table) | Self::UnknownLast(table) => table.slots(),
            Self::Pairs(table) => table.slots(),
            Self::Load(table) => table.slots(),
            Self::Pressure(table) => table.slots(),
            Self::Words(table) => table.slots(),
            Self::Columns(table) => table.slots(),
            Self::Rows(table) => table.slots(),
            Self::State(text) => text.slots(),
        }
    }
}
