//! Parsers of text files.
//!
//! - [`TextParser`]: a format. It reads bytes and hands each value to a [`ValueSink`]; it does no I/O.
//! - `full`: the full parse, which fills a row.
//! - [`IncrementalParser`]: compares a text with the previous one and parses only the numbers that differ.

mod full;
mod incremental;
mod interface;

pub use incremental::{IncrementalParser, ParserCapacity};
pub use interface::{NumberFormat, ParseOutcome, TextParser, ValueSink};
