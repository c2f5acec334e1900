//! The incremental parser: keeps the previous text of a file and parses only the numbers that differ in the next one.
//!
//! Between two reads most of the kernel's counters do not change. The incremental parser compares the new text with the previous one,
//! 32 bytes at a time. Where they differ within a number, it parses that number. It does not parse keys, names and columns: the
//! comparison has shown that they are the same. It touches the two texts and not the tables of keys, which matters when other programs
//! have used the caches since the last read. The file is read each time; only the conversion of unchanged digits is skipped.
//!
//! Only the format's own parser knows where numbers are. It reports the position of each to the [`ValueSink`] during a full parse. When
//! anything else than a number differs, a full parse follows.

use std::ops::Range;

use memchr::memchr;

use super::interface::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::Slot;
use crate::reader::Row;
use crate::scan;

/// Bytes compared at once.
const COMPARE_BYTES: usize = 32;

/// The most digits of a number.
const DIGITS_MAX: usize = 20;

/// The index of a number without a sensor.
const SKIP: u32 = u32::MAX;

/// The previous text of a file with its values. The text is kept only if it filled every slot and matched its format.
#[derive(Debug, Default)]
pub struct IncrementalParser {
    text: Vec<u8>,
    fields: Vec<TextField>,
    /// The values of the parser's slots.
    values: Vec<u64>,
    /// The first of the parser's slots.
    first: usize,
    /// Whether `text`, `fields` and `values` belong together.
    is_valid: bool,
}

/// A range of the text that may differ without a change of the format.
#[derive(Debug, Clone, Copy)]
struct TextField {
    start: u32,
    end: u32,
    /// Index of the value, or [`SKIP`].
    value: u32,
    /// `None` for ignored bytes.
    format: Option<NumberFormat>,
}

/// How much an incremental parser may keep.
#[derive(Debug, Clone, Copy)]
pub struct ParserCapacity {
    bytes: usize,
    fields: usize,
}

impl ParserCapacity {
    /// For texts like `bytes`, with room for every number to grow.
    pub fn of(parser: &impl TextParser, bytes: &[u8]) -> Self {
        let mut counter = FieldCounter(0);
        parser.parse(bytes, &mut counter);
        // An empty end of a line may become an ignored field later.
        let fields = counter.0 + scan::lines(bytes).count();
        Self { bytes: bytes.len() + bytes.len().max(fields * DIGITS_MAX), fields }
    }
}

impl IncrementalParser {
    /// Allocates `capacity` now, so that no read allocates: a longer text gets a full parse each time. So does every text of a parser
    /// whose slots are not consecutive.
    pub fn new(parser: &impl TextParser, capacity: ParserCapacity) -> Self {
        let mut slots = parser.slots();
        slots.sort_unstable();
        let (Some(&first), true) = (slots.first(), slots.windows(2).all(|pair| pair[1] == pair[0] + 1)) else {
            return Self::default();
        };
        Self {
            text: Vec::with_capacity(capacity.bytes),
            fields: Vec::with_capacity(capacity.fields),
            values: vec![0; slots.len()],
            first: first as usize,
            is_valid: false,
        }
    }

    /// Reads a text into the row. The result equals that of a full parse by `parser`.
    pub fn parse(&mut self, parser: &impl TextParser, bytes: &[u8], row: &mut Row<'_>) -> ParseOutcome {
        if self.is_valid && self.update(bytes) {
            row.set_range(self.first, &self.values);
            return ParseOutcome::default();
        }
        self.parse_fully(parser, bytes, row)
    }

    /// Whether it has kept a text.
    #[cfg(test)]
    pub fn has_text(&self) -> bool {
        !self.text.is_empty() && !self.values.is_empty()
    }

    #[inline(never)]
    fn parse_fully(&mut self, parser: &impl TextParser, bytes: &[u8], row: &mut Row<'_>) -> ParseOutcome {
        self.is_valid = false;
        if self.values.is_empty() || bytes.len() > self.text.capacity() {
            return parser.parse(bytes, row);
        }
        self.fields.clear();
        let first = self.first;
        let mut recorder = FieldRecorder { row, fields: &mut self.fields, first, has_overflowed: false };
        let outcome = parser.parse(bytes, &mut recorder);
        let has_all = !recorder.has_overflowed && row.has_range(first, self.values.len());
        if outcome == ParseOutcome::default() && has_all {
            self.text.clear();
            self.text.extend_from_slice(bytes);
            let count = self.values.len();
            self.values.copy_from_slice(row.values(first, count));
            self.is_valid = true;
        }
        outcome
    }

    /// Parses the fields that differ; `false` when anything else differs. The state is then invalid.
    fn update(&mut self, new: &[u8]) -> bool {
        let Self { text: old, fields, values, .. } = self;
        // `at` is a position in the old text; the same position in the new text is `shift` bytes later. The fields before `next` have
        // their positions in the new text already.
        let (mut at, mut shift, mut next, mut has_moved) = (0, 0isize, 0, false);
        while let Some(offset) = first_difference(&old[at..], &new[at.wrapping_add_signed(shift)..]) {
            let differs = at + offset;
            let candidates = fields[next..].partition_point(|field| field.start as usize <= differs);
            let Some(index) = (next + candidates).checked_sub(1).filter(|_| candidates > 0) else { return false };
            let field = fields[index];
            let (start, end) = (field.start as usize, field.end as usize);
            // The byte at `end` differs when the field has grown.
            if differs > end {
                return false;
            }
            let new_start = start.wrapping_add_signed(shift);
            let Some(new_end) = field.parse(new, new_start, values) else { return false };
            if has_moved {
                shift_fields(&mut fields[next..index], shift);
            }
            if new_end - new_start == end - start && !has_moved {
                old[start..end].copy_from_slice(&new[start..end]);
            } else {
                fields[index] = TextField { start: new_start as u32, end: new_end as u32, ..field };
                has_moved = true;
            }
            shift = new_end as isize - end as isize;
            (at, next) = (end, index + 1);
        }
        if has_moved {
            if new.len() > old.capacity() {
                return false;
            }
            shift_fields(&mut fields[next..], shift);
            old.clear();
            old.extend_from_slice(new);
        }
        true
    }
}

impl TextField {
    /// Parses the field at its new position; gives its end, or `None` when it does not match its format.
    #[inline]
    fn parse(&self, bytes: &[u8], start: usize, values: &mut [u64]) -> Option<usize> {
        let (value, end) = match self.format {
            Some(NumberFormat::PaddedInt) => scan::int_at(bytes, scan::skip_spaces(bytes, start))?,
            Some(NumberFormat::Int) => scan::int_at(bytes, start)?,
            Some(NumberFormat::Hundredths) => scan::hundredths_at(bytes, start)?,
            None => return memchr(b'\n', &bytes[start..]).map(|length| start + length),
        };
        if self.value != SKIP {
            values[self.value as usize] = value.cast_unsigned();
        }
        Some(end)
    }
}

fn shift_fields(fields: &mut [TextField], shift: isize) {
    for field in fields {
        field.start = field.start.wrapping_add_signed(shift as i32);
        field.end = field.end.wrapping_add_signed(shift as i32);
    }
}

struct FieldCounter(usize);

impl ValueSink for FieldCounter {
    fn number(&mut self, _slot: Slot, _value: i64, _at: Range<usize>, _format: NumberFormat) {
        self.0 += 1;
    }

    fn calculated(&mut self, _slot: Slot, _value: i64) {}

    fn ignored(&mut self, _at: Range<usize>) {
        self.0 += 1;
    }
}

/// Fills a row and records the position of each field.
struct FieldRecorder<'a, 'b> {
    row: &'a mut Row<'b>,
    fields: &'a mut Vec<TextField>,
    first: usize,
    has_overflowed: bool,
}

impl FieldRecorder<'_, '_> {
    fn push(&mut self, slot: Slot, at: Range<usize>, format: Option<NumberFormat>) {
        if self.fields.len() == self.fields.capacity() {
            self.has_overflowed = true;
            return;
        }
        let value = slot.map_or(SKIP, |slot| slot - self.first as u32);
        self.fields.push(TextField { start: at.start as u32, end: at.end as u32, value, format });
    }
}

impl ValueSink for FieldRecorder<'_, '_> {
    fn number(&mut self, slot: Slot, value: i64, at: Range<usize>, format: NumberFormat) {
        self.push(slot, at, Some(format));
        self.row.calculated(slot, value);
    }

    fn ignored(&mut self, at: Range<usize>) {
        if !at.is_empty() {
            self.push(None, at, None);
        }
    }

    fn calculated(&mut self, slot: Slot, value: i64) {
        self.row.calculated(slot, value);
    }
}

/// The first position at which two texts differ; the end of the shorter one when the longer one begins with it.
#[inline]
fn first_difference(old: &[u8], new: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (old, new) in old.chunks_exact(COMPARE_BYTES).zip(new.chunks_exact(COMPARE_BYTES)) {
        if old != new {
            break;
        }
        at += COMPARE_BYTES;
    }
    let length = old.len().min(new.len());
    while at + 8 <= length {
        let other = scan::word_at(old, at) ^ scan::word_at(new, at);
        if other != 0 {
            return Some(at + other.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = old[at..length].iter().zip(&new[at..length]).position(|(old, new)| old != new);
    rest.map(|offset| at + offset).or((old.len() != new.len()).then_some(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_table::LineTable;
    use crate::testing::{Random, changed, filled, with_other_numbers};

    const TEXT: &str = "a:   1 kB\nbb 7 -2 x\nheader | line\na long key of more than thirty-two bytes: 3\nc 10 20 30\n";

    fn table() -> LineTable {
        let mut table = LineTable::default();
        table.push(b"a:", &[Some(2)]);
        table.push(b"bb ", &[None, Some(3), None]);
        table.push(b"header | line", &[]);
        table.push(b"a long key of more than thirty-two bytes: ", &[Some(4)]);
        table.push(b"c ", &[Some(5), Some(6), Some(7)]);
        table
    }

    fn incremental(table: &LineTable) -> IncrementalParser {
        IncrementalParser::new(table, ParserCapacity::of(table, TEXT.as_bytes()))
    }

    /// Both parsers must give the same result, whatever the previous text was.
    #[track_caller]
    fn check(parser: &mut IncrementalParser, text: &[u8]) {
        let full = filled(8, |row| table().parse(text, row));
        let incremental = filled(8, |row| parser.parse(&table(), text, row));
        assert_eq!(
            (incremental.values, incremental.outcome),
            (full.values, full.outcome),
            "{:?}",
            String::from_utf8_lossy(text)
        );
    }

    #[test]
    fn numbers_that_differ_are_parsed() {
        let mut parser = incremental(&table());
        for text in [
            TEXT.to_owned(),
            TEXT.to_owned(),
            TEXT.replace("a:   1", "a:   9"),
            TEXT.replace("a:   1", "a:  19"),
            TEXT.replace("-2", "-7").replace("20 30", "21 30"),
            // Another key, in a text of the same length.
            TEXT.replace("bb 7", "bc 7"),
            TEXT.to_owned(),
            // Lines at other positions, in a text of the same length.
            TEXT.replace("a:   1 kB", "a: 1 kB").replace("c 10", "c 1000"),
            TEXT.replace("c 10 20", "c 10x20"),
            TEXT.replace("c 10 20", "c 10\n20"),
            // A number without the space before it: the line has one number less.
            TEXT.replace("c 10 20 30", "c 1020 30"),
            TEXT.replace("c 10 20 30", "c 109 20 30"),
            TEXT.replace("c 10 20 30", "c 10920 30"),
            TEXT.replace(": 3\n", ": 3 "),
            TEXT.replace("10 20 30\n", "10 20 300"),
            String::new(),
            TEXT.to_owned(),
        ] {
            check(&mut parser, text.as_bytes());
        }
        assert!(parser.is_valid);
    }

    #[test]
    fn only_numbers_that_differ_are_parsed() {
        let mut parser = incremental(&table());
        check(&mut parser, TEXT.as_bytes());
        parser.values[0] = 77;
        let mut again = |text: String| filled(8, |row| parser.parse(&table(), text.as_bytes(), row)).values;
        let values = again(TEXT.replace("20 30", "20 31"));
        assert_eq!(values[2..], [77, -2, 3, 10, 20, 31].map(Some), "only the changed number");
        assert_eq!(values[..2], [None, None], "no slot of another table");
        // Longer, shorter, both at once, and in ignored bytes.
        let values = again(TEXT.replace("-2 x", "-20000 yyy").replace("20 30", "2 31"));
        assert_eq!(values[2..], [77, -20000, 3, 10, 2, 31].map(Some));
        let values = again(TEXT.replace("-2 x", "5 z").replace(": 3\n", ": 345\n"));
        assert_eq!(values[2..], [77, 5, 345, 10, 20, 30].map(Some));
        assert_eq!(again(TEXT.to_owned())[2..], [77, -2, 3, 10, 20, 30].map(Some));
    }

    #[test]
    fn random_texts_give_the_result_of_a_full_parse() {
        let (mut parser, mut random) = (incremental(&table()), Random::seeded());
        for _ in 0..20_000 {
            let text = match random.index(4) {
                0 => changed(TEXT.as_bytes(), &mut random),
                1 => with_other_numbers(TEXT.as_bytes(), &mut random),
                2 => TEXT.replace("20 30", &format!("{} 30", 10 + random.index(90))).into_bytes(),
                _ => TEXT.replace("a:   1", &format!("a:{:>4}", random.index(10_000))).into_bytes(),
            };
            check(&mut parser, &text);
        }
    }

    #[test]
    fn the_first_difference_of_two_texts() {
        let text: Vec<u8> = (0..100).collect();
        for length in 0..100 {
            let old = &text[..length];
            assert_eq!(first_difference(old, old), None);
            assert_eq!(first_difference(old, &text), Some(length));
            assert_eq!(first_difference(&text, old), Some(length));
            for at in 0..length {
                let mut new = old.to_vec();
                new[at] ^= 1;
                assert_eq!(first_difference(old, &new), Some(at), "{at} of {length}");
            }
        }
    }

    #[test]
    fn no_text_is_kept_without_capacity_or_with_slots_apart() {
        let lines = table();
        let mut parser = IncrementalParser::new(&lines, ParserCapacity { bytes: 10, fields: 20 });
        check(&mut parser, TEXT.as_bytes());
        assert!(!parser.is_valid && parser.text.is_empty());
        let mut parser = IncrementalParser::new(&lines, ParserCapacity { bytes: 1000, fields: 3 });
        check(&mut parser, TEXT.as_bytes());
        assert!(!parser.is_valid && parser.fields.len() == 3);
        let mut apart = LineTable::default();
        apart.push(b"a ", &[Some(0)]);
        apart.push(b"b ", &[Some(2)]);
        assert!(IncrementalParser::new(&apart, ParserCapacity { bytes: 1000, fields: 20 }).values.is_empty());
        let parser = incremental(&lines);
        assert_eq!((parser.first, parser.values.len()), (2, 6));
    }
}
