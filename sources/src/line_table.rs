//! Files whose lines are a key and then integers: meminfo, vmstat, stat, net/dev, diskstats, and a cgroup's *.stat and *.events.
//!
//! Discovery learns the lines, and they hardly ever change. A read compares each line with the one that is expected there. Only when
//! they differ does it search the table.

use wholegrain_model::SensorDef;

use crate::parse::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::{self, SensorPlan, Slot};
use crate::scan::{self, Cursor};

/// The most searches for a line in one read. After that the rest of the file is gaps until the next discovery, so that a file of unknown
/// lines cannot hold up the sampling thread.
const SEARCHES_MAX: u32 = 256;

/// The slot of a value without a sensor.
const SKIP: u32 = u32::MAX;

/// Bytes of a key that are compared at once, shorter keys with a mask. A loop over the words of a key would end in a branch that the
/// processor cannot predict, for each line. Nearly all keys are shorter.
const HEAD: usize = 32;

/// The [`HEAD`] bytes from `HEAD - n` on are n times 0xff and then zeros.
const MASKS: [u8; 2 * HEAD] = {
    let mut masks = [0; 2 * HEAD];
    let mut at = 0;
    while at < HEAD {
        masks[at] = 0xff;
        at += 1;
    }
    masks
};

/// The lines of a file, and the slots of their values.
#[derive(Debug, Default)]
pub struct LineTable {
    lines: Vec<TableLine>,
    /// The bytes of keys beyond [`HEAD`].
    tails: Vec<u8>,
    slots: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct TableLine {
    /// The first bytes of the key, padded with zeros.
    head: [u8; HEAD],
    key_len: u32,
    tail_at: u32,
    slots_at: u32,
    slots_len: u32,
}

impl LineTable {
    /// The table of a file with a name, a space and an integer in each line. `sensor_of` gives the sensor of a name, or `None` for a
    /// name without a sensor. Other lines are reported as lines of `file`, and reads ignore them.
    pub fn of_names_and_integers(
        file: &str,
        bytes: &[u8],
        plan: &mut SensorPlan<'_>,
        sensor_of: impl Fn(&str) -> Option<SensorDef>,
    ) -> Self {
        let mut table = Self::default();
        for line in scan::lines(bytes) {
            let mut cursor = Cursor::new(line);
            let name = cursor.word();
            let has_value = cursor.skip_spaces().int().is_some() && cursor.is_at_end();
            let Some(name) = name.filter(|_| has_value) else {
                plan.report(format!("{file}: left out: {:?}", String::from_utf8_lossy(line)));
                table.push_unknown(line);
                continue;
            };
            let slot = sensor_of(&String::from_utf8_lossy(name)).and_then(|sensor| plan.add(sensor));
            table.push(&line[..name.len() + 1], &[slot]);
        }
        table
    }

    /// Adds the next line: its bytes before the first value, and the slot of each value.
    pub fn push(&mut self, key: &[u8], slots: &[Slot]) {
        let used = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let (key_head, key_tail) = key.split_at(key.len().min(HEAD));
        let mut head = [0; HEAD];
        head[..key_head.len()].copy_from_slice(key_head);
        self.lines.push(TableLine {
            head,
            key_len: key.len() as u32,
            tail_at: self.tails.len() as u32,
            slots_at: self.slots.len() as u32,
            slots_len: used as u32,
        });
        self.tails.extend_from_slice(key_tail);
        self.slots.extend(slots[..used].iter().map(|slot| slot.unwrap_or(SKIP)));
    }

    /// Adds a line that discovery did not understand. Reads ignore it and do not ask for another discovery.
    pub fn push_unknown(&mut self, line: &[u8]) {
        let key_len = line.iter().position(|byte| *byte == b' ').map_or(line.len(), |space| space + 1);
        self.push(&line[..key_len], &[]);
    }

    /// The same lines with other slots: slot `n` becomes `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        let mut table = Self { tails: self.tails.clone(), ..Self::default() };
        for line in &self.lines {
            let values = self.slots[line.slots_at as usize..][..line.slots_len as usize].iter();
            let values: Vec<u32> = values.map(|&slot| plan::mapped(Some(slot), slots).unwrap_or(SKIP)).collect();
            let used = values.iter().rposition(|slot| *slot != SKIP).map_or(0, |last| last + 1);
            table.lines.push(TableLine { slots_at: table.slots.len() as u32, slots_len: used as u32, ..*line });
            table.slots.extend(&values[..used]);
        }
        table
    }

    /// Whether the last line of `bytes` is the last of the table, so that no further read is needed.
    pub fn ends_with_last_line(&self, bytes: &[u8]) -> bool {
        let Some((last, b'\n')) = self.lines.last().zip(bytes.last().copied()) else { return false };
        let start = memchr::memrchr(b'\n', &bytes[..bytes.len() - 1]).map_or(0, |newline| newline + 1);
        self.is_at(last, bytes, start)
    }

    // The compiler would not inline it by itself, and the call costs more than the comparison.
    #[inline(always)]
    fn is_at(&self, line: &TableLine, bytes: &[u8], at: usize) -> bool {
        let key_len = line.key_len as usize;
        let masks = MASKS[HEAD - key_len.min(HEAD)..].first_chunk::<HEAD>().unwrap_or(&[0xff; HEAD]);
        let (found, mut other) = (scan::chunk_at::<HEAD>(bytes, at), 0);
        for i in 0..HEAD {
            other |= (found[i] ^ line.head[i]) & masks[i];
        }
        other == 0 && (key_len <= HEAD || self.is_tail_at(line, bytes, at))
    }

    #[inline(never)]
    fn is_tail_at(&self, line: &TableLine, bytes: &[u8], at: usize) -> bool {
        let tail = &self.tails[line.tail_at as usize..][..line.key_len as usize - HEAD];
        bytes.get(at + HEAD..).is_some_and(|rest| rest.starts_with(tail))
    }

    /// Reads the values of the line that begins at `at`; gives the position of the next line.
    #[inline(always)]
    fn parse_line(
        &self,
        line: &TableLine,
        bytes: &[u8],
        at: usize,
        number: u32,
        sink: &mut impl ValueSink,
        outcome: &mut ParseOutcome,
    ) -> usize {
        // The byte before each value but the first is the space or newline that ends the previous one.
        let (mut at, mut after) = (at + line.key_len as usize, 0);
        for &slot in &self.slots[line.slots_at as usize..][..line.slots_len as usize] {
            let start = scan::skip_spaces(bytes, at);
            match scan::int_at(bytes, start) {
                Some((value, end)) if scan::is_end_of_value(bytes, end) => {
                    let slot = if slot == SKIP { None } else { Some(slot) };
                    sink.number(slot, value, at + after..end, NumberFormat::PaddedInt);
                    (at, after) = (end, 1);
                }
                _ => {
                    outcome.bad_line(number);
                    at = start;
                    break;
                }
            }
        }
        let next = scan::next_line(bytes, at);
        sink.ignored(at + after..next.saturating_sub(1));
        next
    }

    /// Searches the table for a line that is not the expected one. The lines after the expected one come first, as lines vanish more
    /// often than they move.
    #[cold]
    #[inline(never)]
    fn search(
        &self,
        bytes: &[u8],
        at: usize,
        number: u32,
        expected: usize,
        outcome: &mut ParseOutcome,
    ) -> Option<usize> {
        let others = (expected + 1..self.lines.len()).chain(0..expected.min(self.lines.len()));
        let found = others.into_iter().find(|&index| self.is_at(&self.lines[index], bytes, at));
        outcome.layout_changed = true;
        if found.is_none() && !is_plausible(&bytes[at..scan::next_line(bytes, at)]) {
            outcome.bad_line(number);
        }
        found
    }
}

impl TextParser for LineTable {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        let mut searches = 0;
        let (mut at, mut number, mut expected) = (0, 0, 0);
        while at < bytes.len() {
            number += 1;
            let found = match self.lines.get(expected) {
                Some(line) if self.is_at(line, bytes, at) => Some(expected),
                _ => {
                    searches += 1;
                    if searches > SEARCHES_MAX {
                        return outcome;
                    }
                    self.search(bytes, at, number, expected, &mut outcome)
                }
            };
            at = match found {
                Some(index) => {
                    expected = index + 1;
                    self.parse_line(&self.lines[index], bytes, at, number, sink, &mut outcome)
                }
                None => scan::next_line(bytes, at),
            };
        }
        outcome.layout_changed |= expected < self.lines.len();
        if bytes.last().is_some_and(|last| *last != b'\n') {
            outcome.bad_line(number);
        }
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        self.slots.iter().copied().filter(|slot| *slot != SKIP).collect()
    }
}

/// Whether an unknown line could be a new line of the file: text that ends in a number and a newline.
fn is_plausible(line: &[u8]) -> bool {
    let Some(text) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) else { return false };
    let mut words = text.trim_end_matches(" kB").split_ascii_whitespace();
    let key = words.next();
    let value = words.next_back();
    !text.contains(char::is_control) && key.is_some() && value.is_some_and(|value| value.parse::<i128>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::GroupOptions;
    use crate::testing::{Filled, filled};

    /// `a` has one value, `bb` two of which the first has no sensor, `header` none, and the long key one.
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
        let Filled { values: found, outcome } = filled(3, |row| table().parse(text.as_bytes(), row));
        assert_eq!(found, values, "{text:?}");
        assert_eq!(outcome, ParseOutcome { layout_changed, garbage }, "{text:?}");
    }

    const GOOD: &str = "a:   1 kB\nbb 7 -2 x\nheader | line\na long key of more than thirty-two bytes: 3\n";

    #[test]
    fn names_and_integers() {
        let (mut reports, options) = (Vec::new(), GroupOptions::default());
        let mut report = |text| reports.push(text);
        let mut plan = SensorPlan::new(&options, &options, &mut report);
        let sensor_of = |name: &str| (name != "b").then(|| SensorDef::counter(format!("f/{name}"), "1", ""));
        let text = b"a 1\nb 2\nno number\n 5\nc   -3\n";
        let table = LineTable::of_names_and_integers("file", text, &mut plan, sensor_of);
        let sensors = plan.into_sensors();
        assert_eq!(sensors.iter().map(|sensor| sensor.name.as_str()).collect::<Vec<_>>(), ["f/a", "f/c"]);
        let Filled { values, outcome } = filled(2, |row| table.parse(text, row));
        assert_eq!((values, outcome), (vec![Some(1), Some(-3)], ParseOutcome::default()));
        assert_eq!(reports, ["file: left out: \"no number\"", "file: left out: \" 5\""]);
    }

    #[test]
    fn known_lines() {
        check(GOOD, [Some(1), Some(-2), Some(3)], false, None);
        check(
            "a:18446744073709551615\nbb 7 2\nheader | line\na long key of more than thirty-two bytes: 3\n",
            [Some(-1), Some(2), Some(3)],
            false,
            None,
        );
    }

    #[test]
    fn mapped_to_other_slots() {
        let table = table().mapped(&[None, Some(0), Some(2)]);
        let Filled { values, outcome } = filled(3, |row| table.parse(GOOD.as_bytes(), row));
        assert_eq!((values, outcome), (vec![Some(-2), None, Some(3)], ParseOutcome::default()));
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
    fn garbage_is_a_gap_and_its_line_is_reported() {
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
    fn garbage_does_not_change_the_layout() {
        let outcome = ParseOutcome { layout_changed: true, garbage: Some(2) };
        let reading = outcome.reading("meminfo");
        assert!(!reading.layout_changed);
        assert_eq!(reading.problem.unwrap().to_string(), "meminfo: line 2 does not match the format");
    }

    #[test]
    fn searches_are_bounded() {
        let text = format!("{}{GOOD}", "new 1\n".repeat(SEARCHES_MAX as usize + 1));
        check(&text, [None, None, None], true, None);
        let text = format!("{}{GOOD}", "new 1\n".repeat(SEARCHES_MAX as usize));
        check(&text, [Some(1), Some(-2), Some(3)], true, None);
    }

    #[test]
    fn the_last_line_shows_the_end_of_the_file() {
        assert!(table().ends_with_last_line(GOOD.as_bytes()));
        for end in 0..GOOD.len() {
            assert!(!table().ends_with_last_line(&GOOD.as_bytes()[..end]), "cut at {end}");
        }
    }
}
