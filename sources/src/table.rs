//! Files whose lines are a key and then integers: meminfo, vmstat, stat, net/dev, diskstats, and a cgroup's *.stat and *.events.
//!
//! What the lines are is known from discovery, and they hardly ever change. So a read compares each line with the one that
//! is expected there, and only when that fails looks for another.

use crate::kept::{Fill, Form, Parse};
use crate::plan::Slot;
use crate::scan;
use crate::{ReadProblem, Reading};

/// The most lines in one read that are looked for elsewhere than where they are expected. Beyond that the rest of the file is
/// gaps until it has been discovered anew, so that a file full of surprises cannot hold up the sampling thread.
const SEARCHES_MAX: u32 = 256;

/// The slot of a value that is not sampled.
const SKIP: u32 = u32::MAX;

/// Keys are compared this many bytes at once, shorter ones by a mask: a loop over a key's words would end in a branch that the
/// processor cannot predict, at each line. Nearly all keys are shorter.
const HEAD: usize = 32;

/// Its [`HEAD`] bytes from `HEAD - n` on are n times 0xff and then zeros.
const MASKS: [u8; 2 * HEAD] = {
    let mut masks = [0; 2 * HEAD];
    let mut at = 0;
    while at < HEAD {
        masks[at] = 0xff;
        at += 1;
    }
    masks
};

/// What the lines of a file are, and where their values go.
#[derive(Debug, Default)]
pub struct LineTable {
    lines: Vec<Line>,
    /// What the keys have beyond [`HEAD`] bytes.
    tails: Vec<u8>,
    slots: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    /// The key's first bytes, zeros after a shorter one.
    head: [u8; HEAD],
    key_len: u32,
    tail_at: u32,
    slots_at: u32,
    slots_len: u32,
}

/// What a parse found besides the values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The file has other lines or columns than were discovered.
    pub layout_changed: bool,
    /// The first line that is not as the format says, from 1.
    pub garbage: Option<u32>,
}

impl Parsed {
    /// As the result of a read of `what`. What garbage holds is no new layout.
    pub fn reading(self, what: &'static str) -> Reading {
        Reading {
            layout_changed: self.layout_changed && self.garbage.is_none(),
            problem: self.garbage.map(|line| ReadProblem::Garbage { what, line }),
            gone: false,
        }
    }

    /// Notes that `line` is garbage.
    #[cold]
    pub fn bad_line(&mut self, line: u32) {
        self.garbage.get_or_insert(line);
    }
}

impl LineTable {
    /// Adds the next line: its bytes up to the first value, and where each value goes.
    pub fn push(&mut self, key: &[u8], slots: &[Slot]) {
        let wanted = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let (key_head, key_tail) = key.split_at(key.len().min(HEAD));
        let mut head = [0; HEAD];
        head[..key_head.len()].copy_from_slice(key_head);
        self.lines.push(Line {
            head,
            key_len: key.len() as u32,
            tail_at: self.tails.len() as u32,
            slots_at: self.slots.len() as u32,
            slots_len: wanted as u32,
        });
        self.tails.extend_from_slice(key_tail);
        self.slots.extend(slots[..wanted].iter().map(|slot| slot.unwrap_or(SKIP)));
    }

    /// Adds a line that discovery could not make sense of, so that reads pass over it rather than ask for another discovery.
    pub fn push_unknown(&mut self, line: &[u8]) {
        let key_len = line.iter().position(|byte| *byte == b' ').map_or(line.len(), |space| space + 1);
        self.push(&line[..key_len], &[]);
    }

    /// The same lines with their values elsewhere: what went to `n` goes to `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        let mut table = Self { tails: self.tails.clone(), ..Self::default() };
        for line in &self.lines {
            let values = self.slots[line.slots_at as usize..][..line.slots_len as usize].iter();
            let values: Vec<u32> =
                values.map(|&slot| slots.get(slot as usize).copied().flatten().unwrap_or(SKIP)).collect();
            let wanted = values.iter().rposition(|slot| *slot != SKIP).map_or(0, |last| last + 1);
            table.lines.push(Line { slots_at: table.slots.len() as u32, slots_len: wanted as u32, ..*line });
            table.slots.extend(&values[..wanted]);
        }
        table
    }

    /// Whether the last line in `bytes` is the last that is expected, so that there is no need to ask for more.
    pub fn ends_with_last_line(&self, bytes: &[u8]) -> bool {
        let Some((last, b'\n')) = self.lines.last().zip(bytes.last().copied()) else { return false };
        let start = memchr::memrchr(b'\n', &bytes[..bytes.len() - 1]).map_or(0, |newline| newline + 1);
        self.is_at(last, bytes, start)
    }

    // Always: left to itself the compiler makes a call of it, which costs more than the comparison.
    #[inline(always)]
    fn is_at(&self, line: &Line, bytes: &[u8], at: usize) -> bool {
        let key_len = line.key_len as usize;
        let masks = MASKS[HEAD - key_len.min(HEAD)..].first_chunk::<HEAD>().unwrap_or(&[0xff; HEAD]);
        let (found, mut other) = (scan::chunk_at::<HEAD>(bytes, at), 0);
        for i in 0..HEAD {
            other |= (found[i] ^ line.head[i]) & masks[i];
        }
        other == 0 && (key_len <= HEAD || self.is_tail_at(line, bytes, at))
    }

    #[inline(never)]
    fn is_tail_at(&self, line: &Line, bytes: &[u8], at: usize) -> bool {
        let tail = &self.tails[line.tail_at as usize..][..line.key_len as usize - HEAD];
        bytes.get(at + HEAD..).is_some_and(|rest| rest.starts_with(tail))
    }

    /// Reads the values of the line that begins at `at`; gives the place of the next line.
    #[inline(always)]
    fn values(
        &self,
        line: &Line,
        bytes: &[u8],
        at: usize,
        number: u32,
        fill: &mut impl Fill,
        parsed: &mut Parsed,
    ) -> usize {
        // Before each value but the first stands the space or the end of line that ends the one before.
        let (mut at, mut after) = (at + line.key_len as usize, 0);
        for &slot in &self.slots[line.slots_at as usize..][..line.slots_len as usize] {
            let start = scan::skip_spaces(bytes, at);
            match scan::int_at(bytes, start) {
                Some((value, end)) if scan::is_end_of_value(bytes, end) => {
                    let slot = if slot == SKIP { None } else { Some(slot) };
                    fill.number(slot, value, at + after..end, Form::Padded);
                    (at, after) = (end, 1);
                }
                _ => {
                    parsed.bad_line(number);
                    at = start;
                    break;
                }
            }
        }
        let next = scan::next_line(bytes, at);
        fill.passed_over(at + after..next.saturating_sub(1));
        next
    }

    /// A line that is not the expected one: which of the others it is, if any. The next ones come first, as lines vanish more
    /// often than they move.
    #[cold]
    #[inline(never)]
    fn surprise(&self, bytes: &[u8], at: usize, number: u32, expected: usize, parsed: &mut Parsed) -> Option<usize> {
        let others = (expected + 1..self.lines.len()).chain(0..expected.min(self.lines.len()));
        let found = others.into_iter().find(|&index| self.is_at(&self.lines[index], bytes, at));
        parsed.layout_changed = true;
        if found.is_none() && !looks_right(&bytes[at..scan::next_line(bytes, at)]) {
            parsed.bad_line(number);
        }
        found
    }
}

impl Parse for LineTable {
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
        let mut parsed = Parsed::default();
        let mut searches = 0;
        let (mut at, mut number, mut expected) = (0, 0, 0);
        while at < bytes.len() {
            number += 1;
            let found = match self.lines.get(expected) {
                Some(line) if self.is_at(line, bytes, at) => Some(expected),
                _ => {
                    searches += 1;
                    if searches > SEARCHES_MAX {
                        return parsed;
                    }
                    self.surprise(bytes, at, number, expected, &mut parsed)
                }
            };
            at = match found {
                Some(index) => {
                    expected = index + 1;
                    self.values(&self.lines[index], bytes, at, number, fill, &mut parsed)
                }
                None => scan::next_line(bytes, at),
            };
        }
        parsed.layout_changed |= expected < self.lines.len();
        if bytes.last().is_some_and(|last| *last != b'\n') {
            parsed.bad_line(number);
        }
        parsed
    }

    fn slots(&self) -> Vec<u32> {
        self.slots.iter().copied().filter(|slot| *slot != SKIP).collect()
    }
}

/// Whether a line that nobody expected could be a new one of these formats: text that ends in a number and a newline.
fn looks_right(line: &[u8]) -> bool {
    let Some(text) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) else { return false };
    let mut words = text.trim_end_matches(" kB").split_ascii_whitespace();
    let key = words.next();
    let value = words.next_back();
    !text.contains(char::is_control) && key.is_some() && value.is_some_and(|value| value.parse::<i128>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Filled, filled};

    /// a: one value, bb: two of which the first is skipped, header: none, long…: one.
    fn table() -> LineTable {
        let mut table = LineTable::default();
        table.push(b"a:", &[Some(0)]);
        table.push(b"bb ", &[None, Some(1), None]);
        table.push(b"header | line", &[]);
        table.push(b"a long key of more than thirty-two bytes: ", &[Some(2)]);
        table
    }

    #[track_caller]
    fn check(text: &str, values: [Option<i64>; 3], layout_changed: bool, garbage: Option<u32>) {
        let Filled { values: found, parsed } = filled(3, |row| table().parse(text.as_bytes(), row));
        assert_eq!(found, values, "{text:?}");
        assert_eq!(parsed, Parsed { layout_changed, garbage }, "{text:?}");
    }

    const GOOD: &str = "a:   1 kB\nbb 7 -2 x\nheader | line\na long key of more than thirty-two bytes: 3\n";

    #[test]
    fn as_expected() {
        check(GOOD, [Some(1), Some(-2), Some(3)], false, None);
        check(
            "a:18446744073709551615\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(-1), Some(2), Some(3)],
            false,
            None,
        );
    }

    #[test]
    fn mapped_to_other_places() {
        let table = table().mapped(&[None, Some(0), Some(2)]);
        let Filled { values, parsed } = filled(3, |row| table.parse(GOOD.as_bytes(), row));
        assert_eq!((values, parsed), (vec![Some(-2), None, Some(3)], Parsed::default()));
        let Filled { values, .. } = filled(1, |row| super::tests::table().mapped(&[]).parse(GOOD.as_bytes(), row));
        assert_eq!(values, [None]);
    }

    #[test]
    fn lines_come_go_and_move() {
        check(
            "a: 1\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(1), None, Some(3)],
            true,
            None,
        );
        check(
            "a: 1\nnew: 5\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(1), Some(2), Some(3)],
            true,
            None,
        );
        check(
            "bb 7 2\na: 1\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(1), Some(2), Some(3)],
            true,
            None,
        );
        check("a: 1\n", [Some(1), None, None], true, None);
        check(&format!("{GOOD}more 1 2 3\n"), [Some(1), Some(-2), Some(3)], true, None);
    }

    #[test]
    fn garbage_is_a_gap_and_its_line_is_told() {
        check(
            "a: x\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [None, Some(2), Some(3)],
            false,
            Some(1),
        );
        check(
            "a: 1\nbb 7\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(1), None, Some(3)],
            false,
            Some(2),
        );
        check(
            "a: 1\nbb z 2\nheader | line\na long key of more than thirty-two bytes: 3x\n",
            [Some(1), None, None],
            false,
            Some(2),
        );
        check(
            "a: 99999999999999999999\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [None, Some(2), Some(3)],
            false,
            Some(1),
        );
        check(
            "a: 1\n\u{1}\u{2}\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(1), Some(2), Some(3)],
            true,
            Some(2),
        );
        check("", [None, None, None], true, None);
        check("no newline 1", [None, None, None], true, Some(1));
    }

    #[test]
    fn garbage_is_no_new_layout() {
        let parsed = Parsed { layout_changed: true, garbage: Some(2) };
        let reading = parsed.reading("meminfo");
        assert!(!reading.layout_changed);
        assert_eq!(reading.problem.unwrap().to_string(), "meminfo: line 2 does not match the format");
    }

    #[test]
    fn a_file_of_surprises_is_given_up() {
        let text = format!("{}{GOOD}", "new 1\n".repeat(SEARCHES_MAX as usize + 1));
        check(&text, [None, None, None], true, None);
        let text = format!("{}{GOOD}", "new 1\n".repeat(SEARCHES_MAX as usize));
        check(&text, [Some(1), Some(-2), Some(3)], true, None);
    }

    #[test]
    fn the_end_is_known_by_the_last_line() {
        assert!(table().ends_with_last_line(GOOD.as_bytes()));
        for end in 0..GOOD.len() {
            assert!(!table().ends_with_last_line(&GOOD.as_bytes()[..end]), "cut at {end}");
        }
    }
}
