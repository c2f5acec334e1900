//! Files of words and integers, such as `TCP: inuse 5 orphan 0`: what is between the integers does not change while the kernel runs.

use wholegrain_model::SensorDef;

use crate::parse::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::{SensorPlan, Slot};
use crate::scan;

/// An integer of the file, for the choice of its sensor.
#[derive(Debug, Clone, Copy)]
pub struct WordNumber<'a> {
    /// The first word of the line.
    pub line: &'a str,
    /// The word before the integer; empty without one.
    pub word: &'a str,
    /// Its place among the integers of the line, from 0.
    pub index: usize,
}

/// The text between the integers, with the slots of the integers.
#[derive(Debug, Default)]
pub struct WordTable {
    pieces: Vec<(Box<[u8]>, Slot)>,
    end: Box<[u8]>,
}

fn is_space(byte: Option<&u8>) -> bool {
    matches!(byte, None | Some(b' ' | b'\t' | b'\n'))
}

/// The integer at `at` with its end, if white space is on both sides.
fn integer(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    let (value, end) = scan::int_at(bytes, at)?;
    (is_space(before) && end < bytes.len() && is_space(bytes.get(end))).then_some((value, end))
}

/// Learns the text, and adds the sensors that `sensor_of` gives for its integers.
pub fn plan(
    bytes: &[u8],
    plan: &mut SensorPlan<'_>,
    sensor_of: impl Fn(WordNumber<'_>) -> Option<SensorDef>,
) -> WordTable {
    let mut table = WordTable::default();
    let (mut at, mut piece, mut line, mut index) = (0, 0, 0, 0);
    while at < bytes.len() {
        if let Some((_, end)) = integer(bytes, at) {
            let before = String::from_utf8_lossy(&bytes[line..at]);
            let word_before = before.split_ascii_whitespace().next_back().unwrap_or_default();
            let first = before.split_ascii_whitespace().next().unwrap_or_default();
            let number = WordNumber { line: first, word: word_before, index };
            let slot = sensor_of(number).and_then(|sensor| plan.add(sensor));
            table.pieces.push((bytes[piece..at].into(), slot));
            (at, piece, index) = (end, end, index + 1);
            continue;
        }
        if bytes[at] == b'\n' {
            (line, index) = (at + 1, 0);
        }
        at += 1;
    }
    table.end = bytes[piece..].into();
    table
}

impl TextParser for WordTable {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        let mut at = 0;
        let mut differs = false;
        for (text, slot) in &self.pieces {
            let start = at + text.len();
            let matches = bytes.get(at..start) == Some(text);
            let Some((value, end)) = integer(bytes, start).filter(|_| matches) else {
                differs = true;
                break;
            };
            sink.number(*slot, value, start..end, NumberFormat::Int);
            at = end;
        }
        if differs || bytes[at..] != *self.end {
            outcome.layout_changed = true;
            if !is_text(bytes) {
                outcome.bad_line(bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u32 + 1);
            }
        }
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        self.pieces.iter().filter_map(|(_, slot)| *slot).collect()
    }
}

/// Whether a text could be a file of this kind: complete lines of visible characters.
fn is_text(bytes: &[u8]) -> bool {
    bytes.last() == Some(&b'\n') && bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Filled, filled, planned};

    const GOOD: &str = "sockets: used 290\nTCP: inuse 27 orphan 0 mem 3\nUDP6: inuse 1\n5\t0\t9\n";

    fn table() -> WordTable {
        let (sensors, table) = planned(|sensors| {
            plan(GOOD.as_bytes(), sensors, |number| {
                let WordNumber { line, word, index } = number;
                let name = format!("f/{}-{}{index}", line.trim_end_matches(':'), word);
                (word != "orphan").then(|| SensorDef::gauge(name, "1", ""))
            })
        });
        let names: Vec<String> = sensors.into_iter().map(|sensor| sensor.name).collect();
        assert_eq!(
            names,
            ["f/sockets-used0", "f/TCP-inuse0", "f/TCP-mem2", "f/UDP6-inuse0", "f/-0", "f/5-51", "f/5-02"]
        );
        table
    }

    #[track_caller]
    fn check(text: &str, values: [Option<i64>; 7], layout_changed: bool, garbage: Option<u32>) {
        let Filled { values: found, outcome } = filled(7, |row| table().parse(text.as_bytes(), row));
        assert_eq!(found, values, "{text:?}");
        assert_eq!(outcome, ParseOutcome { layout_changed, garbage }, "{text:?}");
    }

    #[test]
    fn words_and_integers() {
        let all = [Some(290), Some(27), Some(3), Some(1), Some(5), Some(0), Some(9)];
        check(GOOD, all, false, None);
        check(
            &GOOD.replace("27", "123456"),
            [all[0], Some(123_456), all[2], all[3], all[4], all[5], all[6]],
            false,
            None,
        );
        check(&GOOD.replace("mem 3", "mem 3 new 4"), [all[0], all[1], all[2], None, None, None, None], true, None);
        check(&format!("{GOOD}RAW: inuse 1\n"), all, true, None);
        check(&GOOD.replace("TCP: inuse 27", "TCP: inuse x"), [all[0], None, None, None, None, None, None], true, None);
        check("sockets: used\n", [None; 7], true, None);
        check("\u{1}\n", [None; 7], true, Some(1));
        check("", [None; 7], true, Some(1));
    }
}
