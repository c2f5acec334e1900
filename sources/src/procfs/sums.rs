//! Files with a column or a line for each CPU, of which the sums over the CPUs are sampled.
//!
//! A sum is a gap unless every CPU that discovery found has its value, so that a file that was cut gives no smaller sum.

use wholegrain_model::SensorDef;

use crate::parse::{ParseOutcome, TextParser, ValueSink};
use crate::plan::{SensorPlan, Slot};
use crate::scan;

/// The most searches for a line in one read, as in `LineTable`.
const SEARCHES_MAX: u32 = 256;

/// The most sampled columns of a file.
const COLUMNS_MAX: usize = 24;

/// A sampled column, in the order of the columns.
#[derive(Debug, Clone)]
pub struct SumColumn {
    /// Its place in the line, from 0.
    pub index: usize,
    pub sensor: SensorDef,
}

/// The lines of a file with one line for each CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnFormat {
    /// Lines before the first CPU.
    pub header_lines: usize,
    /// What a line of a CPU begins with; other lines are ignored. The rest of the first word is the CPU.
    pub prefix: &'static [u8],
    /// The base of the numbers: 10 or 16.
    pub radix: u32,
}

/// Sums of columns over the lines of the CPUs, and columns of single CPUs.
#[derive(Debug)]
pub struct ColumnSums {
    format: ColumnFormat,
    /// Place, slot, and the modulus of the sum less 1, of each sampled column.
    sums: Vec<(usize, Slot, u64)>,
    /// The slots of each line, in the order of `sums`; no slots if only the sums are sampled.
    lines: Vec<Vec<Slot>>,
}

impl ColumnSums {
    /// Adds the sensors of the sums, and those of each CPU that `cpu_of` names. It takes the first word of the line without the prefix, and the columns.
    pub fn plan(
        bytes: &[u8],
        format: ColumnFormat,
        columns: &[SumColumn],
        plan: &mut SensorPlan<'_>,
        cpu_of: impl Fn(&str, &[u64]) -> Option<String>,
    ) -> Self {
        let lines: Vec<(String, Vec<u64>)> = scan::lines(bytes)
            .skip(format.header_lines)
            .filter_map(|line| {
                let mut values = Vec::new();
                let at = format.columns_at(line)?;
                let complete = [line, b"\n"].concat();
                format.each(&complete, at, |_, value| values.push(value));
                let word = String::from_utf8_lossy(&line[format.prefix.len()..at]).trim().to_owned();
                Some((word, values))
            })
            .collect();
        let fewest = lines.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
        let columns: Vec<&SumColumn> =
            columns.iter().filter(|column| column.index < fewest).take(COLUMNS_MAX).collect();
        let sums = columns.iter().map(|column| {
            let modulus = column.sensor.wraps_at.map_or(u64::MAX, |wraps_at| wraps_at - 1);
            (column.index, plan.add(column.sensor.clone()), modulus)
        });
        let sums = sums.collect();
        let slots = |(word, values): &(String, Vec<u64>)| {
            let cpu = cpu_of(word, values)?;
            let sensors = columns.iter().map(|column| {
                let sensor = column.sensor.clone();
                let (folder, name) = sensor.name.rsplit_once('/').unwrap_or(("", &sensor.name));
                let name = format!("{folder}/{cpu}/{name}");
                let description = format!("{} Of this CPU.", sensor.description);
                plan.add(SensorDef { name, description, ..sensor })
            });
            Some(sensors.collect())
        };
        let lines = lines.iter().map(slots).map(Option::unwrap_or_default).collect();
        Self { format, sums, lines }
    }
}

impl ColumnFormat {
    /// Where the columns of a CPU's line begin; `None` for other lines.
    fn columns_at(&self, line: &[u8]) -> Option<usize> {
        if !line.starts_with(self.prefix) {
            return None;
        }
        if self.prefix.is_empty() {
            return Some(0);
        }
        line.iter().position(|byte| *byte == b' ')
    }

    /// Gives the columns of a line with its newline to `column`, with their places. Gives whether the line has nothing else.
    fn each(&self, line: &[u8], mut at: usize, mut column: impl FnMut(usize, u64)) -> bool {
        let mut index = 0;
        loop {
            at = scan::skip_spaces(line, at);
            if line.get(at) == Some(&b'\n') {
                return true;
            }
            let number = if self.radix == 16 { hex_at(line, at) } else { scan::number_at(line, at) };
            let Some((value, end)) = number.filter(|(_, end)| scan::is_end_of_value(line, *end)) else { return false };
            column(index, value);
            (at, index) = (end, index + 1);
        }
    }
}

/// The hexadecimal number at `at` and its end; `None` without one of at most 64 bits.
fn hex_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let text = std::str::from_utf8(&bytes[at..at + digits]).ok()?;
    Some((u64::from_str_radix(text, 16).ok()?, at + digits))
}

impl TextParser for ColumnSums {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        let mut totals = [0u64; COLUMNS_MAX];
        let (mut at, mut number, mut cpus) = (0, 0, 0);
        while at < bytes.len() {
            let (next, start) = (scan::next_line(bytes, at), at);
            (at, number) = (next, number + 1);
            let line = &bytes[start..next];
            if number as usize <= self.format.header_lines {
                continue;
            }
            let Some(columns) = self.format.columns_at(line) else {
                if !line.ends_with(b"\n") {
                    outcome.bad_line(number);
                }
                continue;
            };
            let slots = self.lines.get(cpus).map_or(&[][..], Vec::as_slice);
            let mut found = 0;
            let is_good = self.format.each(line, columns, |index, value| {
                if self.sums.get(found).is_some_and(|(place, ..)| *place == index) {
                    totals[found] = totals[found].wrapping_add(value);
                    if let Some(slot) = slots.get(found) {
                        sink.calculated(*slot, value as i64);
                    }
                    found += 1;
                }
            });
            if !is_good || found < self.sums.len() {
                outcome.bad_line(number);
            }
            cpus += 1;
        }
        outcome.layout_changed = cpus != self.lines.len();
        if outcome == ParseOutcome::default() {
            for ((_, slot, modulus), total) in self.sums.iter().zip(totals) {
                sink.calculated(*slot, (total & modulus) as i64);
            }
        }
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        let sums = self.sums.iter().filter_map(|(_, slot, _)| *slot);
        sums.chain(self.lines.iter().flatten().filter_map(|slot| *slot)).collect()
    }
}

/// Sums over the columns of the CPUs, one for each line.
#[derive(Debug)]
pub struct RowSums {
    /// The first line, which names the CPUs.
    header: Box<[u8]>,
    rows: Vec<SumRow>,
}

#[derive(Debug)]
struct SumRow {
    /// The line up to its colon.
    key: Box<[u8]>,
    columns: usize,
    slot: Slot,
}

/// The integers of a CPU are of 32 bits in the kernel: the sum is taken modulo this number.
pub const WRAPS_AT: u64 = 1 << 32;

impl RowSums {
    /// Adds the sensors that `sensor_of` gives for a line: its name before the colon, and the text after the numbers.
    pub fn plan(bytes: &[u8], plan: &mut SensorPlan<'_>, sensor_of: impl Fn(&str, &str) -> Option<SensorDef>) -> Self {
        let mut table = Self { header: Box::default(), rows: Vec::new() };
        let Some(end) = memchr::memchr(b'\n', bytes).filter(|_| is_header(bytes)) else { return table };
        table.header = bytes[..=end].into();
        let cpus = cpus_of(&table.header);
        for line in scan::lines(&bytes[end + 1..]) {
            let key = key_of(line);
            let complete = [line, b"\n"].concat();
            let (columns, _, rest) = sum_of(&complete, key.len(), cpus);
            let name = String::from_utf8_lossy(key).trim_end_matches(':').trim().to_owned();
            let text = String::from_utf8_lossy(&complete[rest..]).split_whitespace().collect::<Vec<_>>().join(" ");
            let is_known = key.ends_with(b":") && columns > 0;
            let slot = sensor_of(&name, &text).filter(|_| is_known).and_then(|sensor| plan.add(sensor));
            table.rows.push(SumRow { key: key.into(), columns, slot });
        }
        table
    }

    /// The row of a line, from the expected one on.
    fn row(&self, key: &[u8], expected: usize, searches: &mut u32) -> Option<usize> {
        if self.rows.get(expected).is_some_and(|row| *row.key == *key) {
            return Some(expected);
        }
        *searches += 1;
        if *searches > SEARCHES_MAX {
            return None;
        }
        self.rows.iter().position(|row| *row.key == *key)
    }
}

/// Whether a text begins with a line such as `   CPU0   CPU2`.
fn is_header(bytes: &[u8]) -> bool {
    let line = scan::lines(bytes).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).peekable();
    words.peek().is_some()
        && words.all(|word| word.strip_prefix(b"CPU").is_some_and(|number| number.iter().all(u8::is_ascii_digit)))
}

fn cpus_of(header: &[u8]) -> usize {
    header.split(|byte| *byte == b' ').filter(|word| word.starts_with(b"CPU")).count()
}

/// A line up to its first colon, or its first word.
fn key_of(line: &[u8]) -> &[u8] {
    let colon = line.iter().position(|byte| *byte == b':').map(|colon| colon + 1);
    let word = || line.iter().skip_while(|byte| **byte == b' ').position(|byte| *byte == b' ');
    &line[..colon.or_else(word).unwrap_or(line.len())]
}

/// The number of integers from `at` on, at most `most`, their sum, and where the rest of the line begins.
fn sum_of(line: &[u8], mut at: usize, most: usize) -> (usize, u64, usize) {
    let (mut count, mut sum) = (0, 0u64);
    while count < most {
        let start = scan::skip_spaces(line, at);
        match scan::number_at(line, start).filter(|(_, end)| scan::is_end_of_value(line, *end)) {
            Some((value, end)) => (at, sum, count) = (end, sum.wrapping_add(value), count + 1),
            None => break,
        }
    }
    (count, sum, at)
}

impl TextParser for RowSums {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        if !bytes.starts_with(&self.header) || self.header.is_empty() {
            outcome.layout_changed = true;
            if !is_header(bytes) {
                outcome.bad_line(1);
            }
            return outcome;
        }
        let cpus = cpus_of(&self.header);
        let (mut at, mut number, mut expected, mut seen, mut searches) = (self.header.len(), 1, 0, 0, 0);
        while at < bytes.len() {
            let (next, start) = (scan::next_line(bytes, at), at);
            (at, number) = (next, number + 1);
            let line = &bytes[start..next];
            if !line.ends_with(b"\n") {
                outcome.bad_line(number);
            }
            let key = key_of(line.strip_suffix(b"\n").unwrap_or(line));
            let Some(index) = self.row(key, expected, &mut searches) else {
                outcome.layout_changed = true;
                if searches > SEARCHES_MAX {
                    return outcome;
                }
                continue;
            };
            (expected, seen) = (index + 1, seen + 1);
            let row = &self.rows[index];
            if row.slot.is_none() {
                continue;
            }
            match sum_of(line, key.len(), cpus) {
                (count, sum, _) if count == row.columns => {
                    sink.calculated(row.slot, (sum & (WRAPS_AT - 1)) as i64);
                }
                _ => outcome.bad_line(number),
            }
        }
        outcome.layout_changed |= seen != self.rows.len();
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        self.rows.iter().filter_map(|row| row.slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Filled, filled, planned};

    const FORMAT: ColumnFormat = ColumnFormat { header_lines: 1, prefix: b"cpu", radix: 10 };
    const COLUMNS: &str = "version 15\ncpu0 1 2 3\ndomain0 7\ncpu2 10 20 30\n";

    fn column(index: usize, name: &str) -> SumColumn {
        SumColumn { index, sensor: SensorDef::counter(format!("f/{name}"), "1", "") }
    }

    #[test]
    fn columns_are_summed_over_complete_lines_only() {
        let columns = [column(0, "a"), column(2, "c"), column(9, "absent")];
        let (sensors, table) = planned(|sensors| {
            ColumnSums::plan(COLUMNS.as_bytes(), FORMAT, &columns, sensors, |cpu, _| Some(cpu.to_owned()))
        });
        let names: Vec<String> = sensors.into_iter().map(|sensor| sensor.name).collect();
        assert_eq!(names, ["f/a", "f/c", "f/0/a", "f/0/c", "f/2/a", "f/2/c"]);
        let check = |text: &str, values: [Option<i64>; 6], layout_changed, garbage| {
            let Filled { values: found, outcome } = filled(6, |row| table.parse(text.as_bytes(), row));
            assert_eq!(found, values, "{text:?}");
            assert_eq!(outcome, ParseOutcome { layout_changed, garbage }, "{text:?}");
        };
        let all = [Some(11), Some(33), Some(1), Some(3), Some(10), Some(30)];
        check(COLUMNS, all, false, None);
        let first = [None, None, Some(1), Some(3), None, None];
        check("version 15\ncpu0 1 2 3\n", first, true, None);
        check(&COLUMNS.replace("30\n", "3"), [None, None, Some(1), Some(3), Some(10), None], false, Some(4));
        check(&COLUMNS.replace("20", "x"), [None, None, Some(1), Some(3), Some(10), None], false, Some(4));
        check(&format!("{COLUMNS}cpu3 1 1 1\n"), [None, None, Some(1), Some(3), Some(10), Some(30)], true, None);
    }

    #[test]
    fn sums_have_the_modulus_of_the_counters() {
        let wrapping = SumColumn { sensor: SensorDef { wraps_at: Some(WRAPS_AT), ..column(0, "a").sensor }, index: 0 };
        let format = ColumnFormat { header_lines: 0, prefix: b"", radix: 16 };
        let text = b"fffffffe 1\n00000003 1\n";
        let (_, table) = planned(|sensors| ColumnSums::plan(text, format, &[wrapping], sensors, |_, _| None));
        assert_eq!(filled(1, |row| table.parse(text, row)).values, [Some(1)]);
    }

    const ROWS: &str =
        "           CPU0       CPU1\n  0:  9 1  IO-APIC   2-edge      timer\nNMI: 4294967295 2 Non-maskable\nERR: 5\n";

    #[test]
    fn rows_are_summed_over_all_cpus() {
        let (sensors, table) = planned(|sensors| {
            RowSums::plan(ROWS.as_bytes(), sensors, |name, text| {
                Some(SensorDef::counter(format!("f/{name}"), "1", text))
            })
        });
        let names: Vec<_> = sensors.iter().map(|sensor| (sensor.name.as_str(), sensor.description.as_str())).collect();
        assert_eq!(names, [("f/0", "IO-APIC 2-edge timer"), ("f/NMI", "Non-maskable"), ("f/ERR", "")]);
        let check = |text: &str, values: [Option<i64>; 3], layout_changed, garbage| {
            let Filled { values: found, outcome } = filled(3, |row| table.parse(text.as_bytes(), row));
            assert_eq!(found, values, "{text:?}");
            assert_eq!(outcome, ParseOutcome { layout_changed, garbage }, "{text:?}");
        };
        let all = [Some(10), Some(1), Some(5)];
        check(ROWS, all, false, None);
        check(&ROWS.replace("  0:  9 1", "  0:  9 x"), [None, all[1], all[2]], false, Some(2));
        check(&ROWS.replace("ERR", "  7: 1 1 new\nERR"), all, true, None);
        check(&ROWS.replace("       CPU1", ""), [None; 3], true, None);
        check("garbage\n", [None; 3], true, Some(1));
        check(&ROWS[..ROWS.len() - 1], [all[0], all[1], None], false, Some(4));
    }
}
