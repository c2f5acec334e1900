//! The last content of a file of lines, so that of the next one only what differs is parsed.
//!
//! Between two reads most of the kernel's counts stay as they are, and those that grow seldom grow by a digit: the new text lies
//! line by line where the old one did. Comparing the two, 32 bytes at a time, costs a fraction of parsing, and touches the two
//! texts in place of the table of keys, which is what counts when other programs have used the caches meanwhile. A value
//! whose bytes are the same was read all the same: nothing is repeated that was not in the new text.

use memchr::memchr;

use crate::Row;
use crate::table::{LineTable, Parsed};

/// This many bytes are compared at once.
const STEP: usize = 32;

/// What the last content gave. Its lines were all as the table expects them; otherwise nothing is kept.
#[derive(Debug, Default)]
pub struct Kept {
    bytes: Vec<u8>,
    /// Where each line begins, and the end of the last.
    starts: Vec<u32>,
    /// What the table's places of the row had.
    values: Vec<u64>,
    /// The first of these places.
    first: usize,
    is_good: bool,
}

impl Kept {
    /// With room for contents of `bytes` bytes: longer ones are parsed anew each time, so that no read allocates. Nothing is
    /// ever kept for a table whose places do not lie side by side.
    pub fn new(table: &LineTable, bytes: usize) -> Self {
        let Some((first, count)) = table.places() else { return Self::default() };
        Self {
            bytes: Vec::with_capacity(bytes),
            starts: Vec::with_capacity(table.len() + 1),
            values: vec![0; count],
            first,
            is_good: false,
        }
    }

    /// Reads a content into the row, as [`LineTable::parse`] does.
    pub fn parse(&mut self, table: &LineTable, bytes: &[u8], row: &mut Row<'_>) -> Parsed {
        if self.is_good && self.bytes.len() == bytes.len() {
            if self.differences(table, bytes, row) {
                return Parsed::default();
            }
            row.clear_side_by_side(self.first, self.values.len());
        }
        self.anew(table, bytes, row)
    }

    #[inline(never)]
    fn anew(&mut self, table: &LineTable, bytes: &[u8], row: &mut Row<'_>) -> Parsed {
        let parsed = table.parse(bytes, row);
        self.is_good = parsed == Parsed::default() && bytes.len() <= self.bytes.capacity() && !self.values.is_empty();
        if self.is_good {
            self.keep(table, bytes, row);
        }
        parsed
    }

    fn keep(&mut self, table: &LineTable, bytes: &[u8], row: &Row<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        let count = self.values.len();
        self.values.copy_from_slice(row.values(self.first, count));
        self.starts.clear();
        let mut at = 0;
        while self.starts.len() < table.len() {
            self.starts.push(at as u32);
            at += memchr(b'\n', &bytes[at..]).map_or(0, |newline| newline + 1);
        }
        self.starts.push(at as u32);
        self.is_good = at == bytes.len();
    }

    /// Takes over what differs; `false` when the lines do not lie where they did, or one is not as expected. Then the row has
    /// yet to be read.
    fn differences(&mut self, table: &LineTable, bytes: &[u8], row: &mut Row<'_>) -> bool {
        row.set_side_by_side(self.first, &self.values);
        let (mut at, mut line) = (0, 0);
        while let Some(differs) = first_difference(&self.bytes, bytes, at) {
            while self.starts.get(line + 1).is_some_and(|next| *next as usize <= differs) {
                line += 1;
            }
            let (Some(&start), Some(&end)) = (self.starts.get(line), self.starts.get(line + 1)) else { return false };
            let (start, end) = (start as usize, end as usize);
            if !table.parse_line(line, bytes, (start, differs, end), row) {
                // Of what was read so far the values are right, and the text is that of before.
                return false;
            }
            for slot in table.places_of(line) {
                self.values[slot - self.first] = row.values(slot, 1)[0];
            }
            self.bytes[start..end].copy_from_slice(&bytes[start..end]);
            (at, line) = (end, line + 1);
        }
        true
    }
}

/// The first place from `at` on where two texts of the same length differ.
#[inline]
fn first_difference(old: &[u8], new: &[u8], mut at: usize) -> Option<usize> {
    let (old_steps, new_steps) = (old.get(at..)?.chunks_exact(STEP), new.get(at..)?.chunks_exact(STEP));
    for (old, new) in old_steps.zip(new_steps) {
        if old != new {
            break;
        }
        at += STEP;
    }
    old[at..].iter().zip(&new[at..]).position(|(old, new)| old != new).map(|further| at + further)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, changed, filled};

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

    /// Both ways must give the same, whatever came before.
    #[track_caller]
    fn check(kept: &mut Kept, text: &[u8]) {
        let anew = filled(8, |row| table().parse(text, row));
        let again = filled(8, |row| kept.parse(&table(), text, row));
        assert_eq!((again.values, again.parsed), (anew.values, anew.parsed), "{:?}", String::from_utf8_lossy(text));
    }

    #[test]
    fn what_differs_is_read() {
        let mut kept = Kept::new(&table(), 4096);
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
        let mut kept = Kept::new(&table(), 4096);
        check(&mut kept, TEXT.as_bytes());
        kept.values[0] = 77;
        let again = filled(8, |row| kept.parse(&table(), TEXT.replace("20 30", "20 31").as_bytes(), row));
        assert_eq!(again.values[2..], [77, -2, 3, 10, 20, 31].map(Some), "the changed line only");
        assert_eq!(again.values[..2], [None, None], "no place of another table");
    }

    #[test]
    fn whatever_comes_it_is_as_if_read_anew() {
        let (mut kept, mut random) = (Kept::new(&table(), 4096), Random::new());
        for _ in 0..20_000 {
            let text = match random.below(3) {
                0 => changed(TEXT.as_bytes(), &mut random),
                1 => TEXT.replace("20 30", &format!("{} 30", 10 + random.below(90))).into_bytes(),
                _ => TEXT.replace("a:   1", &format!("a:{:>4}", random.below(10_000))).into_bytes(),
            };
            check(&mut kept, &text);
        }
    }

    #[test]
    fn without_room_or_order_nothing_is_kept() {
        let mut kept = Kept::new(&table(), 10);
        check(&mut kept, TEXT.as_bytes());
        assert!(!kept.is_good && kept.bytes.is_empty());
        let mut apart = LineTable::default();
        apart.push(b"a ", &[Some(0)]);
        apart.push(b"b ", &[Some(2)]);
        assert_eq!(apart.places(), None);
        assert_eq!(table().places(), Some((2, 6)));
    }
}
