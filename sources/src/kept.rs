//! The last content of a file, so that of the next one only the numbers that differ are parsed.
//!
//! Between two reads most of the kernel's counts stay as they are. So the new text is compared with the last one, 32 bytes at a
//! time; where they differ in a number, that number alone is parsed. Keys, names and columns are not looked at: that they are the
//! same is known from the comparison. It touches the two texts in place of the tables of keys, which is what counts when other programs
//! have used the caches meanwhile. A value whose bytes are the same was read all the same: nothing is repeated that was not in
//! the new text.
//!
//! What a file's format is only its parser knows: the parser tells each number's place in the text as it fills the row ([`Fill`]).

use std::ops::Range;

use memchr::memchr;

use crate::plan::Slot;
use crate::table::Parsed;
use crate::{Row, scan};

/// This many bytes are compared at once.
const STEP: usize = 32;

/// The most digits that a number grows to.
const DIGITS_MAX: usize = 20;

/// The place of a number that is not sampled.
const SKIP: u32 = u32::MAX;

/// Takes what a parser finds in a text, in the order of the text.
pub trait Fill {
    /// A number, where its value goes, and where it stands in the text; what follows it is no digit.
    fn number(&mut self, slot: Slot, value: i64, stands: Range<usize>, form: Form);

    /// The rest of a line, up to its newline, which nobody looks at.
    fn passed_over(&mut self, _stands: Range<usize>) {}

    /// A value that is made of numbers of several places.
    fn made(&mut self, slot: Slot, value: i64);
}

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An integer at once.
    Int,
    /// An integer after any number of spaces, which belong to where it stands.
    Padded,
    /// A number with two decimals, whose value is in hundredths.
    Hundredths,
}

impl Fill for Row<'_> {
    #[inline(always)]
    fn number(&mut self, slot: Slot, value: i64, _stands: Range<usize>, _form: Form) {
        self.made(slot, value);
    }

    #[inline(always)]
    fn made(&mut self, slot: Slot, value: i64) {
        if let Some(slot) = slot {
            self.set_int(slot as usize, value);
        }
    }
}

/// A format with what is wanted of it.
pub trait Parse {
    /// Reads a content.
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed;

    /// All places of the row that it fills, each once.
    fn slots(&self) -> Vec<u32>;
}

/// What the last content gave. Every place was filled, and nothing was to be said about it; otherwise nothing is kept.
#[derive(Debug, Default)]
pub struct Kept {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// What the parser's places of the row had.
    values: Vec<u64>,
    /// The first of these places.
    first: usize,
    is_good: bool,
}

/// What may differ without the format being another one.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    /// Of the value, among those that are kept.
    place: u32,
    /// `None` for what nobody looks at.
    form: Option<Form>,
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    bytes: usize,
    pieces: usize,
}

impl Room {
    /// For contents like `bytes`, with room for every number to grow.
    pub fn of(parser: &impl Parse, bytes: &[u8]) -> Self {
        let mut count = Count(0);
        parser.parse(bytes, &mut count);
        // The rest of a line that was empty is a piece more.
        let pieces = count.0 + scan::lines(bytes).count();
        Self { bytes: bytes.len() + bytes.len().max(pieces * DIGITS_MAX), pieces }
    }
}

impl Kept {
    /// With this room: what is longer is parsed anew each time, so that no read allocates. Nothing is ever kept for a parser whose
    /// places do not lie side by side.
    pub fn new(parser: &impl Parse, room: Room) -> Self {
        let mut slots = parser.slots();
        slots.sort_unstable();
        let (Some(&first), true) = (slots.first(), slots.windows(2).all(|pair| pair[1] == pair[0] + 1)) else {
            return Self::default();
        };
        Self {
            bytes: Vec::with_capacity(room.bytes),
            pieces: Vec::with_capacity(room.pieces),
            values: vec![0; slots.len()],
            first: first as usize,
            is_good: false,
        }
    }

    /// Reads a content into the row, as the parser does.
    pub fn parse(&mut self, parser: &impl Parse, bytes: &[u8], row: &mut Row<'_>) -> Parsed {
        if self.is_good && self.take_over(bytes) {
            row.set_range(self.first, &self.values);
            return Parsed::default();
        }
        self.anew(parser, bytes, row)
    }

    /// Whether some content could be kept.
    #[cfg(test)]
    pub fn is_of_use(&self) -> bool {
        !self.bytes.is_empty() && !self.values.is_empty()
    }

    #[inline(never)]
    fn anew(&mut self, parser: &impl Parse, bytes: &[u8], row: &mut Row<'_>) -> Parsed {
        self.is_good = false;
        if self.values.is_empty() || bytes.len() > self.bytes.capacity() {
            return parser.parse(bytes, row);
        }
        self.pieces.clear();
        let first = self.first;
        let mut recorder = Recorder { row, pieces: &mut self.pieces, first, is_full: false };
        let parsed = parser.parse(bytes, &mut recorder);
        let has_all = !recorder.is_full && row.has_range(first, self.values.len());
        if parsed == Parsed::default() && has_all {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
            let count = self.values.len();
            self.values.copy_from_slice(row.values(first, count));
            self.is_good = true;
        }
        parsed
    }

    /// Takes over what differs; `false` when something else than numbers differs. Then what is kept is worth nothing.
    fn take_over(&mut self, new: &[u8]) -> bool {
        let Self { bytes: old, pieces, values, .. } = self;
        // `at` is in the old text, and the same place in the new one is `shift` further; pieces before `next` are where they are in
        // the new one.
        let (mut at, mut shift, mut next, mut has_moved) = (0, 0isize, 0, false);
        while let Some(further) = first_difference(&old[at..], &new[at.wrapping_add_signed(shift)..]) {
            let differs = at + further;
            let beyond = pieces[next..].partition_point(|piece| piece.start as usize <= differs);
            let Some(index) = (next + beyond).checked_sub(1).filter(|_| beyond > 0) else { return false };
            let piece = pieces[index];
            let (start, end) = (piece.start as usize, piece.end as usize);
            // What follows a piece differs when it has grown.
            if differs > end {
                return false;
            }
            let new_start = start.wrapping_add_signed(shift);
            let Some(new_end) = piece.read(new, new_start, values) else { return false };
            if has_moved {
                rebase(&mut pieces[next..index], shift);
            }
            if new_end - new_start == end - start && !has_moved {
                old[start..end].copy_from_slice(&new[start..end]);
            } else {
                pieces[index] = Piece { start: new_start as u32, end: new_end as u32, ..piece };
                has_moved = true;
            }
            shift = new_end as isize - end as isize;
            (at, next) = (end, index + 1);
        }
        if has_moved {
            if new.len() > old.capacity() {
                return false;
            }
            rebase(&mut pieces[next..], shift);
            old.clear();
            old.extend_from_slice(new);
        }
        true
    }
}

impl Piece {
    /// Reads it anew from where it begins now; gives where it ends, or `None` when it is none.
    #[inline]
    fn read(&self, bytes: &[u8], start: usize, values: &mut [u64]) -> Option<usize> {
        let (value, end) = match self.form {
            Some(Form::Padded) => scan::int_at(bytes, scan::skip_spaces(bytes, start))?,
            Some(Form::Int) => scan::int_at(bytes, start)?,
            Some(Form::Hundredths) => scan::hundredths_at(bytes, start)?,
            None => return memchr(b'\n', &bytes[start..]).map(|length| start + length),
        };
        if self.place != SKIP {
            values[self.place as usize] = value.cast_unsigned();
        }
        Some(end)
    }
}

fn rebase(pieces: &mut [Piece], shift: isize) {
    for piece in pieces {
        piece.start = piece.start.wrapping_add_signed(shift as i32);
        piece.end = piece.end.wrapping_add_signed(shift as i32);
    }
}

/// Counts the pieces that there are.
struct Count(usize);

impl Fill for Count {
    fn number(&mut self, _slot: Slot, _value: i64, _stands: Range<usize>, _form: Form) {
        self.0 += 1;
    }

    fn made(&mut self, _slot: Slot, _value: i64) {}

    fn passed_over(&mut self, _stands: Range<usize>) {
        self.0 += 1;
    }
}

/// Fills a row and notes where everything stands.
struct Recorder<'a, 'b> {
    row: &'a mut Row<'b>,
    pieces: &'a mut Vec<Piece>,
    first: usize,
    is_full: bool,
}

impl Recorder<'_, '_> {
    fn push(&mut self, slot: Slot, stands: Range<usize>, form: Option<Form>) {
        if self.pieces.len() == self.pieces.capacity() {
            self.is_full = true;
            return;
        }
        let place = slot.map_or(SKIP, |slot| slot - self.first as u32);
        self.pieces.push(Piece { start: stands.start as u32, end: stands.end as u32, place, form });
    }
}

impl Fill for Recorder<'_, '_> {
    fn number(&mut self, slot: Slot, value: i64, stands: Range<usize>, form: Form) {
        self.push(slot, stands, Some(form));
        self.row.made(slot, value);
    }

    fn passed_over(&mut self, stands: Range<usize>) {
        if !stands.is_empty() {
            self.push(None, stands, None);
        }
    }

    fn made(&mut self, slot: Slot, value: i64) {
        self.row.made(slot, value);
    }
}

/// Where two texts begin to differ; the end of the shorter one when the other goes on.
#[inline]
fn first_difference(old: &[u8], new: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (old, new) in old.chunks_exact(STEP).zip(new.chunks_exact(STEP)) {
        if old != new {
            break;
        }
        at += STEP;
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
    rest.map(|further| at + further).or((old.len() != new.len()).then_some(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::LineTable;
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

    fn kept_of(table: &LineTable) -> Kept {
        Kept::new(table, Room::of(table, TEXT.as_bytes()))
    }

    /// Both ways must give the same, whatever came before.
    #[track_caller]
    fn check(kept: &mut Kept, text: &[u8]) {
        let anew = filled(8, |row| table().parse(text, row));
        let again = filled(8, |row| kept.parse(&table(), text, row));
        assert_eq!((again.values, again.parsed), (anew.values, anew.parsed), "{:?}", String::from_utf8_lossy(text));
    }

    #[test]
    fn what_differs_is_read() {
        let mut kept = kept_of(&table());
        for text in [
            TEXT.to_owned(),
            TEXT.to_owned(),
            TEXT.replace("a:   1", "a:   9"),
            TEXT.replace("a:   1", "a:  19"),
            TEXT.replace("-2", "-7").replace("20 30", "21 30"),
            // A key that is another one, in a text of the same length.
            TEXT.replace("bb 7", "bc 7"),
            TEXT.to_owned(),
            // Lines that begin elsewhere, in a text of the same length.
            TEXT.replace("a:   1 kB", "a: 1 kB").replace("c 10", "c 1000"),
            TEXT.replace("c 10 20", "c 10x20"),
            TEXT.replace("c 10 20", "c 10\n20"),
            // A number that has grown over the space before it: there is one less.
            TEXT.replace("c 10 20 30", "c 1020 30"),
            TEXT.replace("c 10 20 30", "c 109 20 30"),
            TEXT.replace("c 10 20 30", "c 10920 30"),
            TEXT.replace(": 3\n", ": 3 "),
            TEXT.replace("10 20 30\n", "10 20 300"),
            String::new(),
            TEXT.to_owned(),
        ] {
            check(&mut kept, text.as_bytes());
        }
        assert!(kept.is_good);
    }

    #[test]
    fn only_what_differs_is_read() {
        let mut kept = kept_of(&table());
        check(&mut kept, TEXT.as_bytes());
        kept.values[0] = 77;
        let mut again = |text: String| filled(8, |row| kept.parse(&table(), text.as_bytes(), row)).values;
        let values = again(TEXT.replace("20 30", "20 31"));
        assert_eq!(values[2..], [77, -2, 3, 10, 20, 31].map(Some), "the changed number only");
        assert_eq!(values[..2], [None, None], "no place of another table");
        // Longer, shorter, both at once, and in what nobody looks at.
        let values = again(TEXT.replace("-2 x", "-20000 yyy").replace("20 30", "2 31"));
        assert_eq!(values[2..], [77, -20000, 3, 10, 2, 31].map(Some));
        let values = again(TEXT.replace("-2 x", "5 z").replace(": 3\n", ": 345\n"));
        assert_eq!(values[2..], [77, 5, 345, 10, 20, 30].map(Some));
        assert_eq!(again(TEXT.to_owned())[2..], [77, -2, 3, 10, 20, 30].map(Some));
    }

    #[test]
    fn whatever_comes_it_is_as_if_read_anew() {
        let (mut kept, mut random) = (kept_of(&table()), Random::new());
        for _ in 0..20_000 {
            let text = match random.below(4) {
                0 => changed(TEXT.as_bytes(), &mut random),
                1 => with_other_numbers(TEXT.as_bytes(), &mut random),
                2 => TEXT.replace("20 30", &format!("{} 30", 10 + random.below(90))).into_bytes(),
                _ => TEXT.replace("a:   1", &format!("a:{:>4}", random.below(10_000))).into_bytes(),
            };
            check(&mut kept, &text);
        }
    }

    #[test]
    fn where_texts_differ() {
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
    fn without_room_or_order_nothing_is_kept() {
        let lines = table();
        let mut kept = Kept::new(&lines, Room { bytes: 10, pieces: 20 });
        check(&mut kept, TEXT.as_bytes());
        assert!(!kept.is_good && kept.bytes.is_empty());
        let mut kept = Kept::new(&lines, Room { bytes: 1000, pieces: 3 });
        check(&mut kept, TEXT.as_bytes());
        assert!(!kept.is_good && kept.pieces.len() == 3);
        let mut apart = LineTable::default();
        apart.push(b"a ", &[Some(0)]);
        apart.push(b"b ", &[Some(2)]);
        assert!(Kept::new(&apart, Room { bytes: 1000, pieces: 20 }).values.is_empty());
        let kept = kept_of(&lines);
        assert_eq!((kept.first, kept.values.len()), (2, 6));
    }
}
