//! Texts whose values have names in the text: statistics of file systems and fabrics, which come and go with mounts, targets and jobs.
//!
//! - In: a [`KeyedFormat`], which finds the values of a text with their names.
//! - Out: the sensors of a group ([`KeyedGroup`]), and a reader that finds the slot of each value by its name.
//! - Never: a value whose text is cut off, and two sensors of one name.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use wholegrain_model::SensorDef;

use crate::file::{self, PolledFile};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::scan;
use crate::source::{GroupPlan, Timing};

/// The name of a value in a text: which object has it, what it is, and which of several numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueKey<'a> {
    /// The mount, the job or the peer; empty in a text about one object.
    pub object: &'a [u8],
    pub name: &'a [u8],
    pub column: usize,
}

/// Takes the values of a text in their order.
pub type TakeValue<'t> = &'t mut dyn FnMut(ValueKey<'_>, i64);

/// The format of a text.
pub trait KeyedFormat: Send {
    /// Hands each value of `text` to `take`. Gives the first line that does not match the format, from 1. Allocates nothing.
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32>;

    /// The sensor of a value at discovery; `None` to leave it out.
    fn sensor(&self, key: ValueKey<'_>, value: i64) -> Option<SensorDef>;
}

/// Calls `read` for each line. Gives the first line for which it gives `None`, or that lacks its newline, from 1.
pub fn each_line<'a>(text: &'a [u8], mut read: impl FnMut(&'a [u8]) -> Option<()>) -> Option<u32> {
    let (mut number, mut bad, mut length) = (0, None, 0);
    for line in scan::lines(text) {
        number += 1;
        length += line.len() + 1;
        if read(line).is_none() {
            bad = bad.or(Some(number));
        }
    }
    bad.or((length < text.len()).then_some(number + 1))
}

/// The words of a line between spaces and tabs.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// An integer that is the whole word.
pub fn whole_int(word: &[u8]) -> Option<i64> {
    let (value, end) = scan::int_at(word, 0)?;
    (end == word.len()).then_some(value)
}

/// The names of the values that discovery knows, with their slots.
struct SlotTable {
    hasher: RandomState,
    /// The hash of each name and its slot, in the order of the text.
    order: Vec<(u64, Slot)>,
    /// The place of a hash in `order`.
    places: HashMap<u64, usize>,
}

impl SlotTable {
    fn new() -> Self {
        Self { hasher: RandomState::new(), order: Vec::new(), places: HashMap::new() }
    }

    /// Adds a name; false if it is there already.
    fn add(&mut self, key: ValueKey<'_>, slot: impl FnOnce() -> Slot) -> bool {
        let hash = self.hasher.hash_one(key);
        let is_new = !self.places.contains_key(&hash);
        if is_new {
            self.places.insert(hash, self.order.len());
            self.order.push((hash, slot()));
        }
        is_new
    }

    /// The place of a name, which is mostly the expected one.
    fn place(&self, key: ValueKey<'_>, expected: usize) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        match self.order.get(expected) {
            Some((there, _)) if *there == hash => Some(expected),
            _ => self.places.get(&hash).copied(),
        }
    }

    fn fill(&self, format: &dyn KeyedFormat, text: &[u8], what: &'static str, row: &mut Row<'_>) -> Reading {
        let (mut expected, mut known, mut unknown) = (0, 0, false);
        let bad = format.walk(text, &mut |key, value| match self.place(key, expected) {
            Some(place) => {
                (expected, known) = (place + 1, known + 1);
                if let Some(slot) = self.order[place].1 {
                    row.set_int(slot as usize, value);
                }
            }
            None => unknown = true,
        });
        Reading {
            layout_changed: bad.is_none() && (unknown || known < self.order.len()),
            problem: bad.map(|line| ReadProblem::Garbage { what, line }),
            ..Reading::COMPLETE
        }
    }
}

/// A text that something else reads, such as the answer of a program.
pub struct KeyedText {
    what: &'static str,
    format: Box<dyn KeyedFormat>,
    table: SlotTable,
}

impl KeyedText {
    /// Adds the sensors of a text. Errors name it `what`.
    pub fn discover(what: &'static str, text: &[u8], format: Box<dyn KeyedFormat>, plan: &mut SensorPlan<'_>) -> Self {
        let mut table = SlotTable::new();
        format.walk(text, &mut |key, value| {
            table.add(key, || format.sensor(key, value).and_then(|sensor| plan.add_once(sensor)));
        });
        Self { what, format, table }
    }

    /// Fills the values of a text.
    pub fn fill(&self, text: &[u8], row: &mut Row<'_>) -> Reading {
        self.table.fill(self.format.as_ref(), text, self.what, row)
    }
}

/// A file that is read at each sample.
struct KeyedFile {
    file: PolledFile,
    buffer: Vec<u8>,
    text: KeyedText,
}

impl KeyedFile {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        match self.file.read_whole(&mut self.buffer, |_| false) {
            Ok(length) => self.text.fill(&self.buffer[..length], row),
            Err(errno) => Reading {
                layout_changed: file::is_absent(&std::io::Error::from_raw_os_error(errno)) && errno != libc::ENODATA,
                problem: Some(ReadProblem::Os { what: self.text.what, errno }),
                ..Reading::default()
            },
        }
    }
}

/// A group of files while it is discovered.
pub struct KeyedGroup<'a> {
    name: &'static str,
    plan: SensorPlan<'a>,
    files: Vec<KeyedFile>,
    is_unseen: bool,
}

impl<'a> KeyedGroup<'a> {
    /// A group without files yet.
    pub fn new(name: &'static str, plan: SensorPlan<'a>) -> Self {
        Self { name, plan, files: Vec::new(), is_unseen: false }
    }

    /// Adds the sensors of a file. An absent file is left out silently, an unreadable one is reported. Whether the file was read.
    pub fn add(&mut self, what: &'static str, path: &Path, format: Box<dyn KeyedFormat>) -> bool {
        self.add_with(what, path, |_| format)
    }

    /// The same with a format that depends on the text.
    pub fn add_with(
        &mut self,
        what: &'static str,
        path: &Path,
        format: impl FnOnce(&[u8]) -> Box<dyn KeyedFormat>,
    ) -> bool {
        match file::read_file(path) {
            Ok(bytes) => {
                let text = KeyedText::discover(what, &bytes, format(&bytes), &mut self.plan);
                if !text.table.order.is_empty() {
                    let buffer = vec![0; (bytes.len() + bytes.len() / 2 + 256).next_multiple_of(512)];
                    self.files.push(KeyedFile { file: PolledFile::new(path), buffer, text });
                }
                true
            }
            Err(error) if file::is_absent(&error) => false,
            Err(error) => {
                self.plan.report(format!("{}: {} is left out: {error}", self.name, path.display()));
                self.is_unseen = true;
                false
            }
        }
    }

    /// The group, if it has sensors. Its name goes to `unseen` if a file could not be opened.
    pub fn into_plan(self, timing: Timing, blocking: bool, unseen: &mut Vec<&'static str>) -> Option<GroupPlan> {
        let sensors = self.plan.into_sensors();
        if self.is_unseen && sensors.is_empty() {
            unseen.push(self.name);
        }
        let reader = Box::new(KeyedReader { files: self.files });
        (!sensors.is_empty()).then(|| GroupPlan { name: self.name.to_owned(), sensors, reader, timing, blocking })
    }
}

struct KeyedReader {
    files: Vec<KeyedFile>,
}

impl Reader for KeyedReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut result = Reading::default();
        for file in &mut self.files {
            let reading = file.read(row);
            result.layout_changed |= reading.layout_changed;
            result.problem = result.problem.or(reading.problem);
        }
        result
    }
}

/// Tests that every format passes with any input.
#[cfg(test)]
pub mod checks {
    use super::*;
    use crate::testing::{Random, changed, planned, with_other_numbers};

    fn read(text: &KeyedText, bytes: &[u8], sensors: usize) -> (Vec<Option<i64>>, Reading) {
        let (mut values, mut gaps) = (vec![0; sensors], vec![0; sensors.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = text.fill(bytes, &mut row);
        ((0..sensors).map(|index| row.int(index)).collect(), reading)
    }

    /// Cuts and damages `good` anywhere. A cut text gives the same values as the whole one, or gaps; and no text panics.
    #[track_caller]
    pub fn check_any_input(good: &[u8], format: impl Fn() -> Box<dyn KeyedFormat>) {
        let (sensors, text) = planned(|plan| KeyedText::discover("file", good, format(), plan));
        let (all, reading) = read(&text, good, sensors.len());
        assert_eq!(reading, Reading::COMPLETE);
        assert!(!all.is_empty() && all.iter().all(Option::is_some), "{sensors:?} {all:?}");
        for end in (0..good.len()).step_by(1 + good.len() / 700) {
            let (values, reading) = read(&text, &good[..end], sensors.len());
            for (index, value) in values.iter().enumerate() {
                assert!(value.is_none() || *value == all[index], "cut at {end}: {:?}", sensors[index]);
            }
            assert!(values.iter().all(Option::is_some) || reading.layout_changed || reading.problem.is_some());
            planned(|plan| KeyedText::discover("file", &good[..end], format(), plan));
        }
        let mut random = Random::seeded();
        for _ in 0..300 {
            let damaged = changed(good, &mut random);
            read(&text, &damaged, sensors.len());
            planned(|plan| KeyedText::discover("file", &damaged, format(), plan));
            let (values, _) = read(&text, &with_other_numbers(good, &mut random), sensors.len());
            assert_eq!(values.len(), all.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::GroupOptions;
    use crate::testing::planned;

    /// Lines of an object, a name and two numbers.
    struct Pairs;

    impl KeyedFormat for Pairs {
        fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
            each_line(text, |line| {
                let mut words = words(line);
                let (object, name) = (words.next()?, words.next()?);
                for (column, word) in words.enumerate() {
                    take(ValueKey { object, name, column }, whole_int(word)?);
                }
                Some(())
            })
        }

        fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
            let [object, name] = [key.object, key.name].map(|part| String::from_utf8_lossy(part).replace('/', "_"));
            (name != "hidden").then(|| SensorDef::counter(format!("{object}/{name}/{}", key.column), "1", ""))
        }
    }

    const GOOD: &[u8] = b"a x 1 2\nb x 3 4\nb hidden 5\n";

    #[test]
    fn values_are_found_by_name() {
        let (sensors, text) = planned(|plan| KeyedText::discover("file", GOOD, Box::new(Pairs), plan));
        let names: Vec<&str> = sensors.iter().map(|sensor| sensor.name.as_str()).collect();
        assert_eq!(names, ["a/x/0", "a/x/1", "b/x/0", "b/x/1"]);
        let check = |bytes: &[u8], expected: [Option<i64>; 4], layout_changed: bool, bad: Option<u32>| {
            let (mut values, mut gaps) = ([0; 4], [0; 1]);
            let mut row = Row::new(&mut values, &mut gaps);
            let reading = text.fill(bytes, &mut row);
            assert_eq!((0..4).map(|index| row.int(index)).collect::<Vec<_>>(), expected);
            let problem = bad.map(|line| ReadProblem::Garbage { what: "file", line });
            assert_eq!(reading, Reading { layout_changed, problem, ..Reading::COMPLETE });
        };
        check(GOOD, [Some(1), Some(2), Some(3), Some(4)], false, None);
        check(b"b hidden 5\nb x 3 4\na x 1 2\n", [Some(1), Some(2), Some(3), Some(4)], false, None);
        check(b"a x 1 2\nb hidden 5\n", [Some(1), Some(2), None, None], true, None);
        check(b"a x 1 2\nb x 3 4\nb hidden 5\nc y 1\n", [Some(1), Some(2), Some(3), Some(4)], true, None);
        check(b"a x 1 ?\nb x 3 4\nb hidden 5\n", [Some(1), None, Some(3), Some(4)], false, Some(1));
        check(b"a x 1 2\nb x 3 4", [Some(1), Some(2), None, None], false, Some(2));
    }

    #[test]
    fn a_name_that_two_objects_would_have_belongs_to_neither_order_nor_number() {
        let mut reports = Vec::new();
        let mut report = |text| reports.push(text);
        let options = GroupOptions::default();
        let mut plan = SensorPlan::new(&options, &options, &mut report);
        KeyedText::discover("file", b"a/b x 1\na_b x 2\n", Box::new(Pairs), &mut plan);
        assert_eq!(plan.into_sensors().len(), 1);
        assert_eq!(reports, ["a_b/x/0: left out, as another object has this name already"]);
    }

    #[test]
    fn any_input() {
        checks::check_any_input(GOOD, || Box::new(Pairs));
    }
}
