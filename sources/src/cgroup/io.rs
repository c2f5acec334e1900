//! Counts of block devices: io.stat of version 2, `254:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`, and the
//! throttling files of version 1, `254:0 Read 4096`.

use wholegrain_model::SensorDef;

use super::metrics::{below, sensor};
use crate::parse::{ParseOutcome, TextParser, ValueSink};
use crate::plan::{self, SensorPlan, Slot};
use crate::scan;

/// The most devices with their own metrics. The others are in the sums only.
pub const DEVICES_MAX: usize = 256;

/// The counters of a device.
const FIELDS: [&str; 6] = ["read_bytes", "write_bytes", "reads", "writes", "discard_bytes", "discards"];

/// The descriptions of a device's metrics, in place of those of the sums over devices.
const OF_ONE: [&str; FIELDS.len()] = [
    "Read from the device.",
    "Written to the device.",
    "Reads of the device.",
    "Writes to the device.",
    "Discarded on the device.",
    "Discards on the device.",
];

/// The layout of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoLayout {
    /// Version 2: one line for each device.
    Unified,
    /// Version 1: bytes, one line for each operation.
    Bytes,
    /// Version 1: counts, one line for each operation.
    Operations,
}

impl IoLayout {
    /// The words for [`FIELDS`]; empty for a field that the file does not have.
    const fn words(self) -> [&'static [u8]; FIELDS.len()] {
        match self {
            Self::Unified => [b"rbytes", b"wbytes", b"rios", b"wios", b"dbytes", b"dios"],
            Self::Bytes => [b"Read", b"Write", b"", b"", b"Discard", b""],
            Self::Operations => [b"", b"", b"Read", b"Write", b"", b"Discard"],
        }
    }
}

/// The devices of one file, with the slots of their values.
#[derive(Debug, Clone)]
pub struct IoTable {
    layout: IoLayout,
    sums: [Slot; FIELDS.len()],
    /// Whether devices have their own metrics, so that a new device changes the layout.
    per_device: bool,
    devices: Vec<IoDevice>,
}

#[derive(Debug, Clone)]
struct IoDevice {
    /// Major and minor number, such as `254:0`.
    number: Box<[u8]>,
    slots: [Slot; FIELDS.len()],
}

/// An item of a file.
enum IoItem<'a> {
    /// The values that follow belong to this device.
    Device(&'a [u8]),
    /// A value of one of [`FIELDS`].
    Value(usize, i64),
    /// This line, from 1, does not match the format.
    Bad(u32),
}

/// Adds the sensors of a file: the sums, and those of each device if `device_names` names devices.
pub fn plan(
    layout: IoLayout,
    bytes: &[u8],
    device_names: Option<&dyn Fn(&str) -> String>,
    plan: &mut SensorPlan<'_>,
) -> IoTable {
    let words = layout.words();
    let has = |field: usize| !words[field].is_empty();
    let sums = std::array::from_fn(|field| {
        let sensor = sensor(&below("io", FIELDS[field]), 1.0);
        if has(field) { plan.add(sensor) } else { None }
    });
    let mut table = IoTable { layout, sums, per_device: device_names.is_some(), devices: Vec::new() };
    let Some(name_of) = device_names else { return table };
    let mut current = None;
    walk(layout, bytes, |item| match item {
        IoItem::Device(number) => {
            current = table.devices.iter().position(|device| *device.number == *number);
            if current.is_none() && table.devices.len() < DEVICES_MAX {
                current = Some(table.devices.len());
                table.devices.push(IoDevice { number: number.into(), slots: [None; FIELDS.len()] });
            }
        }
        IoItem::Value(field, _) => {
            if let Some(device) = current.and_then(|index| table.devices.get_mut(index)) {
                let name = format!("io/{}/{}", name_of(&String::from_utf8_lossy(&device.number)), FIELDS[field]);
                let like = sensor(&below("io", FIELDS[field]), 1.0);
                device.slots[field] = device.slots[field]
                    .or_else(|| plan.add(SensorDef { name, description: OF_ONE[field].to_owned(), ..like }));
            }
        }
        IoItem::Bad(_) => {}
    });
    if table.devices.len() == DEVICES_MAX {
        plan.report(format!(
            "cgroup: a job uses over {DEVICES_MAX} block devices; further ones are in the sums io/* only"
        ));
    }
    table
}

impl IoTable {
    /// The same devices with other slots: slot `n` becomes `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        let place = |slot: Slot| plan::mapped(slot, slots);
        let devices = self.devices.iter();
        let devices = devices.map(|device| IoDevice { number: device.number.clone(), slots: device.slots.map(place) });
        Self { sums: self.sums.map(place), devices: devices.collect(), ..*self }
    }

    /// The index of a device. Devices come in the known order, in version 1 with several lines each.
    fn device(&self, number: &[u8], expected: usize) -> Option<usize> {
        let near = [expected, expected + 1];
        let is_same = |index: &usize| self.devices.get(*index).is_some_and(|device| *device.number == *number);
        near.into_iter().find(is_same).or_else(|| (0..self.devices.len()).find(is_same))
    }
}

impl TextParser for IoTable {
    /// A sum has a value only if every line matches the format. A file without a device belongs to a job without I/O. The sink learns no
    /// positions, as one number is part of several values.
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        let mut sums = [0i64; FIELDS.len()];
        let (mut fields_read, mut has_device) = (0u32, false);
        let mut found = [0u64; DEVICES_MAX.div_ceil(64)];
        let (mut current, mut expected) = (None, 0);
        walk(self.layout, bytes, |item| match item {
            IoItem::Device(number) => {
                has_device = true;
                current = self.device(number, expected);
                match current {
                    Some(index) => {
                        found[index / 64] |= 1 << (index % 64);
                        expected = index;
                    }
                    None => outcome.layout_changed |= self.per_device && self.devices.len() < DEVICES_MAX,
                }
            }
            IoItem::Value(field, value) => {
                fields_read |= 1 << field;
                sums[field] = sums[field].wrapping_add(value);
                sink.calculated(current.and_then(|index| self.devices[index].slots[field]), value);
            }
            IoItem::Bad(line) => outcome.bad_line(line),
        });
        let found: u32 = found.iter().map(|word| word.count_ones()).sum();
        outcome.layout_changed |= found as usize != self.devices.len();
        if outcome.garbage.is_none() {
            for (field, slot) in self.sums.iter().enumerate() {
                sink.calculated(slot.filter(|_| fields_read >> field & 1 == 1 || !has_device), sums[field]);
            }
        }
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        let of_devices = self.devices.iter().flat_map(|device| &device.slots);
        of_devices.chain(&self.sums).filter_map(|slot| *slot).collect()
    }
}

fn walk<'a>(layout: IoLayout, bytes: &'a [u8], mut take: impl FnMut(IoItem<'a>)) {
    let (mut at, mut number) = (0, 0);
    while at < bytes.len() {
        number += 1;
        let next = scan::next_line(bytes, at);
        let line = bytes[at..next].strip_suffix(b"\n");
        let result = line.and_then(|line| match layout {
            IoLayout::Unified => unified_line(line, &mut take),
            IoLayout::Bytes | IoLayout::Operations => operation_line(&layout.words(), line, &mut take),
        });
        if result.is_none() {
            take(IoItem::Bad(number));
        }
        at = next;
    }
}

/// A line with all counters of a device. Some kernels leave out the newline after a device without counters, so that a line has several
/// devices; the counters belong to the last one. Counters of cost and latency models are ignored.
fn unified_line<'a>(line: &'a [u8], take: &mut impl FnMut(IoItem<'a>)) -> Option<()> {
    let words = IoLayout::Unified.words();
    let (mut has_device, mut expected) = (false, 0);
    for word in line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
        let Some(equals) = memchr::memchr(b'=', word) else {
            take(IoItem::Device(Some(word).filter(|word| is_device(word))?));
            has_device = true;
            continue;
        };
        let key = &word[..equals];
        let is_next = words.get(expected).is_some_and(|next| *next == key);
        let field = if is_next { Some(expected) } else { words.iter().position(|known| *known == key) };
        if let Some(field) = field {
            let (value, _) = scan::int_at(word, equals + 1).filter(|&(_, end)| end == word.len() && has_device)?;
            take(IoItem::Value(field, value));
            expected = field + 1;
        }
    }
    has_device.then_some(())
}

/// A line such as `254:0 Read 4096`, or `Total 4096` at the end.
fn operation_line<'a>(
    words: &[&'static [u8]; FIELDS.len()],
    line: &'a [u8],
    take: &mut impl FnMut(IoItem<'a>),
) -> Option<()> {
    let mut parts = line.split(|byte| *byte == b' ');
    let first = parts.next()?;
    let (operation, number) = if first == b"Total" { (first, parts.next()?) } else { (parts.next()?, parts.next()?) };
    let (value, _) = scan::int_at(number, 0).filter(|&(_, end)| end == number.len() && parts.next().is_none())?;
    if first == b"Total" {
        return Some(());
    }
    take(IoItem::Device(Some(first).filter(|word| is_device(word))?));
    if let Some(field) = words.iter().position(|word| !word.is_empty() && *word == operation) {
        take(IoItem::Value(field, value));
    }
    Some(())
}

/// Whether a word is two numbers with a colon between them.
fn is_device(word: &[u8]) -> bool {
    scan::number_at(word, 0)
        .filter(|&(_, colon)| word.get(colon) == Some(&b':'))
        .and_then(|(_, colon)| scan::number_at(word, colon + 1))
        .is_some_and(|(_, end)| end == word.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{self, filled};

    const V2: &str = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=5 dios=6\n";
    const V1: &str = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 12288\n254:0 Async 0\n254:0 Discard 0\n254:0 Total 12288\nTotal 12288\n";

    /// The values of `text` after discovery with `planned`.
    fn read(layout: IoLayout, planned: &str, text: &str) -> (BTreeMap<String, Option<i64>>, ParseOutcome) {
        let (sensors, table) = testing::planned(|sensors| {
            plan(layout, planned.as_bytes(), Some(&|number: &str| format!("d{}", number.replace(':', "_"))), sensors)
        });
        let filled = filled(sensors.len(), |row| table.parse(text.as_bytes(), row));
        let names = sensors.into_iter().map(|sensor| sensor.name.trim_start_matches("io/").to_owned());
        (names.zip(filled.values).collect(), filled.outcome)
    }

    #[track_caller]
    fn check(layout: IoLayout, text: &str, expected: &[(&str, Option<i64>)], expected_outcome: ParseOutcome) {
        let planned = if layout == IoLayout::Unified { V2 } else { V1 };
        let (values, outcome) = read(layout, planned, text);
        for (name, value) in expected {
            assert_eq!(values[*name], *value, "{name} in {text:?}");
        }
        assert_eq!(outcome, expected_outcome, "{text:?}");
    }

    const GOOD: ParseOutcome = ParseOutcome { layout_changed: false, garbage: None };
    const CHANGED: ParseOutcome = ParseOutcome { layout_changed: true, garbage: None };

    #[test]
    fn version_2() {
        let all = [
            ("read_bytes", Some(4106)),
            ("discards", Some(6)),
            ("d254_0/write_bytes", Some(8192)),
            ("d8_16/discard_bytes", Some(5)),
        ];
        check(IoLayout::Unified, V2, &all, GOOD);
        let extra = V2.replace("\n", " use_delay=0 cost.vrate=100.00 cost.usage=5\n");
        check(IoLayout::Unified, &extra, &all, GOOD);
        let joined = format!("7:0 7:1 {V2}");
        check(IoLayout::Unified, &joined, &all, CHANGED);
        check(
            IoLayout::Unified,
            "",
            &[("read_bytes", Some(0)), ("discards", Some(0)), ("d254_0/reads", None)],
            CHANGED,
        );
        let old = "254:0 rbytes=1 wbytes=2 rios=3 wios=4\n8:16 rbytes=1 wbytes=2 rios=3 wios=4\n";
        check(IoLayout::Unified, old, &[("reads", Some(6)), ("discards", None), ("d8_16/discards", None)], GOOD);
    }

    #[test]
    fn a_new_device_is_in_the_sums_at_once() {
        let text = format!("{V2}9:9 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n");
        check(IoLayout::Unified, &text, &[("read_bytes", Some(4107)), ("d8_16/reads", Some(3))], CHANGED);
        let (values, outcome) = read(IoLayout::Unified, &text, &text);
        assert_eq!((values["d9_9/writes"], outcome), (Some(4), GOOD));
        let one = V2.lines().next().unwrap().to_owned() + "\n";
        check(IoLayout::Unified, &one, &[("read_bytes", Some(4096)), ("d8_16/reads", None)], CHANGED);
    }

    #[test]
    fn version_1() {
        check(
            IoLayout::Bytes,
            V1,
            &[("read_bytes", Some(4096)), ("d254_0/write_bytes", Some(8192)), ("discard_bytes", Some(0))],
            GOOD,
        );
        let (values, _) = read(IoLayout::Operations, V1, V1);
        assert_eq!((values["reads"], values["d254_0/writes"]), (Some(4096), Some(8192)));
        assert!(!values.contains_key("read_bytes"));
        let (values, outcome) = read(IoLayout::Bytes, "Total 0\n", "Total 0\n");
        assert_eq!((values["read_bytes"], values.len(), outcome), (Some(0), 3, GOOD));
    }

    #[test]
    fn garbage_leaves_no_sum() {
        for (text, line) in [
            ("254:0 rbytes=x\n8:16 rbytes=1 rios=1\n", 1),
            ("254:0 rbytes=1\nrbytes=1\n", 2),
            ("254:0 rbytes=1\n8:16 rbytes=1", 2),
            ("254:0 rbytes=99999999999999999999\n", 1),
            ("254:0 rbytes=\n", 1),
            ("254 rbytes=1\n", 1),
            ("\n", 1),
        ] {
            let (values, outcome) = read(IoLayout::Unified, V2, text);
            assert_eq!((values["read_bytes"], outcome.garbage), (None, Some(line)), "{text:?}");
        }
        for text in ["254:0 Read\n", "254:0 Read x\n", "x Read 1\n", "254:0 Read 1 2\n", "Total\n", "254:0 Read 1"] {
            let (values, outcome) = read(IoLayout::Bytes, V1, text);
            assert_eq!((values["read_bytes"], outcome.garbage), (None, Some(1)), "{text:?}");
        }
    }

    #[test]
    fn more_devices_than_have_their_own() {
        let line = |n: usize| format!("8:{n} rbytes=1 wbytes=1 rios=1 wios=1 dbytes=1 dios=1\n");
        let text: String = (0..DEVICES_MAX + 10).map(line).collect();
        let (values, outcome) = read(IoLayout::Unified, &text, &text);
        assert_eq!(values["read_bytes"], Some(DEVICES_MAX as i64 + 10));
        assert_eq!(
            (values.len(), outcome),
            ((DEVICES_MAX + 1) * FIELDS.len(), GOOD),
            "and no discovery after discovery"
        );
    }
}
