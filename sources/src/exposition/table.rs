//! The series of a text: which sensors they are, and the way to find them again in the next text.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memchr::memchr;
use wholegrain_model::name::check_relative;
use wholegrain_model::{SensorDef, ValueType};

use super::family::Families;
use super::lines::{Dialect, Line, SampleLine, sample};
use super::number;
use super::plain::{Attributes, time_of_seconds};
use super::rules::SensorNaming;
use super::series::{SERIES_BYTES_MAX, Series};
use crate::plan::Slot;
use crate::reader::Row;

/// The most notes of one text: of lines, names and collisions.
const NOTES_MAX: usize = 20;
/// What messages show of a word: its first 100 bytes.
const WORD_BYTES_SHOWN: usize = 100;
/// The most ways of writing a series that a table remembers, for each series.
const KEYS_PER_SERIES: usize = 2;

/// What messages show of a series: its first 200 characters.
const SERIES_SHOWN: usize = 200;
/// The bytes of a series in a catalogue and its table without its texts.
const SERIES_BYTES: usize = 500;
/// How often a table has the text of a series: in its order, by this text, and by another way to write it.
const KEY_COPIES: usize = 3;

/// What is the same for every way to write a series. A catalogue and its table share it.
type SeriesIdentity = Arc<[u8]>;

/// The series that were in the texts of one exporter, each with its sensor.
#[derive(Debug, Clone)]
pub struct SeriesCatalogue {
    naming: SensorNaming,
    series_max: usize,
    bounds: SeriesBounds,
    /// A series that no text had for as many calls of [`SeriesCatalogue::learn`] is forgotten.
    forget_after: u32,
    known: BTreeMap<SeriesIdentity, KnownSeries>,
    /// What the known series take.
    bytes: usize,
    /// The series of the last text that were not known before it.
    new: usize,
    left_out: LeftOut,
}

/// Bounds of a catalogue besides the number of its series.
#[derive(Debug, Clone)]
pub struct SeriesBounds {
    /// The most bytes that the series and their sensors take.
    pub bytes_max: usize,
    /// What a sensor takes outside the catalogue.
    pub sensor_bytes: fn(&SensorDef) -> usize,
    /// The most series that a text may have and the texts before had not.
    pub new_max: usize,
    /// The most notes about lines of one text. The others are counted in a last one.
    pub notes_max: usize,
}

impl Default for SeriesBounds {
    fn default() -> Self {
        Self { bytes_max: usize::MAX, sensor_bytes: |_| 0, new_max: usize::MAX, notes_max: NOTES_MAX }
    }
}

/// Why series of a text were left out, and how many.
#[derive(Debug, Clone, Copy, Default)]
struct LeftOut {
    long: usize,
    number: usize,
    bytes: usize,
    new: usize,
}

#[derive(Debug, Clone)]
struct KnownSeries {
    /// `None` for a series that a rule or a filter leaves out.
    sensor: Option<SensorDef>,
    bytes: usize,
    absent: u32,
    is_in_text: bool,
}

impl SeriesCatalogue {
    /// An empty catalogue of at most `series_max` series.
    pub fn new(naming: SensorNaming, series_max: usize, forget_after: u32) -> Self {
        let (known, bounds, left_out) = (BTreeMap::new(), SeriesBounds::default(), LeftOut::default());
        Self { naming, series_max, bounds, forget_after, known, bytes: 0, new: 0, left_out }
    }

    /// Changes the bound. Known series above it stay known.
    pub fn set_series_max(&mut self, series_max: usize) {
        self.series_max = series_max;
    }

    /// Changes the other bounds, which are wide without it.
    pub fn set_bounds(&mut self, bounds: SeriesBounds) {
        self.bounds = bounds;
    }

    /// What the known series and their sensors take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of series that were new in the last text and are known now.
    pub fn new_series(&self) -> usize {
        self.new
    }

    /// Learns the series of a complete text, and gives the table of it with the sensors in the table's order. `keeps` filters sensors; `report`
    /// takes lines for the administrator.
    pub fn learn(
        &mut self,
        text: &[u8],
        dialect: Dialect,
        keeps: &dyn Fn(&SensorDef) -> bool,
        report: &mut dyn FnMut(String),
    ) -> (SeriesTable, Vec<SensorDef>) {
        let mut notes = Notes { report, left: self.bounds.notes_max, more: 0 };
        self.known.values_mut().for_each(|known| known.is_in_text = false);
        let order = self.learn_lines(text, dialect, keeps, &mut notes);
        let forget_after = self.forget_after;
        self.known.retain(|_, known| {
            known.absent = if known.is_in_text { 0 } else { known.absent + 1 };
            let is_kept = known.absent <= forget_after;
            self.bytes -= if is_kept { 0 } else { known.bytes };
            is_kept
        });
        let (slots, sensors) = self.slots(&mut notes);
        notes.end();
        (SeriesTable::new(dialect, order, &slots, &sensors, self.is_full()), sensors)
    }

    /// The number of series of the last text that were beyond a bound.
    pub fn left_out(&self) -> usize {
        let LeftOut { long, number, bytes, new } = self.left_out;
        long + number + bytes + new
    }

    /// Whether the last text had series that a later one may have room for.
    pub fn is_full(&self) -> bool {
        self.left_out() > self.left_out.long
    }

    /// Whether any series is known.
    pub fn has_series(&self) -> bool {
        !self.known.is_empty()
    }

    /// Each series of the text in its order: how it is written, and its identity.
    fn learn_lines(
        &mut self,
        text: &[u8],
        dialect: Dialect,
        keeps: &dyn Fn(&SensorDef) -> bool,
        notes: &mut Notes<'_>,
    ) -> Vec<TextSeries> {
        let (mut families, mut order) = (Families::default(), Vec::new());
        let lines = || text.split(|byte| *byte == b'\n').map(|line| Line::parse(line, dialect)).enumerate();
        lines().for_each(|(_, line)| families.learn(&line));
        (self.left_out, self.new) = (LeftOut::default(), 0);
        let mut identity = Vec::new();
        for (number, line) in lines() {
            let sample = match line {
                Line::Sample(sample) => sample,
                Line::Eof => break,
                Line::Bad => {
                    notes.add(|| format!("line {} does not match the format", number + 1));
                    continue;
                }
                _ => continue,
            };
            if sample.key.len() > SERIES_BYTES_MAX {
                self.left_out.long += 1;
                continue;
            }
            let (series, sensor) = match self.sensor(&sample, dialect, &families) {
                Ok(sensor) => sensor,
                Err(reason) => {
                    notes.add(|| format!("line {}: {}: {reason}", number + 1, shown(sample.key)));
                    continue;
                }
            };
            series.identity(&mut identity);
            let known = self.known.get_key_value(identity.as_slice());
            if known.is_some_and(|(_, known)| known.is_in_text) {
                continue;
            }
            let sensor = sensor.filter(keeps);
            let sensor_bytes = sensor.as_ref().map_or(0, self.bounds.sensor_bytes);
            let bytes = SERIES_BYTES + identity.len() + KEY_COPIES * sample.key.len() + sensor_bytes;
            let bytes_before = known.map_or(0, |(_, known)| known.bytes);
            let is_new = known.is_none();
            if is_new && self.known.len() >= self.series_max {
                self.left_out.number += 1;
            } else if (self.bytes - bytes_before).saturating_add(bytes) > self.bounds.bytes_max {
                self.left_out.bytes += 1;
            } else if is_new && self.new >= self.bounds.new_max {
                self.left_out.new += 1;
            } else {
                let identity = known.map_or_else(|| identity.as_slice().into(), |(identity, _)| identity.clone());
                self.bytes = self.bytes - bytes_before + bytes;
                self.new += usize::from(is_new);
                order.push(TextSeries { key: sample.key.into(), identity: Arc::clone(&identity) });
                self.known.insert(identity, KnownSeries { sensor, bytes, absent: 0, is_in_text: true });
            }
        }
        self.note_left_out(notes);
        order
    }

    /// Notes why series are left out. Notes about lines never take their place.
    fn note_left_out(&self, notes: &mut Notes<'_>) {
        let LeftOut { long, number, bytes, new } = self.left_out;
        let mut note = |count: usize, text: String| {
            if count > 0 {
                (notes.report)(text);
            }
        };
        note(number, format!("more than {} series: the others are left out; filter or drop some", self.series_max));
        note(long, format!("series whose name and labels are longer than {SERIES_BYTES_MAX} bytes are left out"));
        note(
            bytes,
            "its series take too much memory beside those of others: some are left out; filter or drop some, or raise \
             memory_bytes_max"
                .to_owned(),
        );
        note(
            new,
            "too many series are new: some are left out until later; drop those whose labels change all the time"
                .to_owned(),
        );
    }

    /// The series of a line and its sensor, `None` if it is left out; or why the line is refused.
    fn sensor(
        &self,
        line: &SampleLine<'_>,
        dialect: Dialect,
        families: &Families,
    ) -> Result<(Series, Option<SensorDef>), String> {
        if dialect == Dialect::Plain {
            return self.plain_sensor(line).map(|(series, sensor)| (series, Some(sensor)));
        }
        let series = Series::parse(line.key).ok_or("no valid name")?;
        let sensor = self.naming.sensor(&series, families);
        if let Some(sensor) = &sensor {
            check_relative(&sensor.name).map_err(|error| error.to_string())?;
        }
        Ok((series, sensor))
    }

    /// The series and the sensor of a line `name value key=value…`.
    fn plain_sensor(&self, line: &SampleLine<'_>) -> Result<(Series, SensorDef), String> {
        let name = std::str::from_utf8(line.key).map_err(|_| "the name is not UTF-8")?.to_owned();
        if name.ends_with(':') {
            return Err("the name ends with a colon; leave it out".to_owned());
        }
        check_relative(&name).map_err(|error| error.to_string())?;
        let path = if self.naming.prefix.is_empty() { name.clone() } else { format!("{}/{name}", self.naming.prefix) };
        check_relative(&path).map_err(|error| error.to_string())?;
        let attributes = Attributes::parse(line.rest).map_err(|error| match number::float(line.value) {
            Some(_) => error.to_string(),
            None => "no number follows the name; a name has no blanks".to_owned(),
        })?;
        let mut sensor = attributes.sensor(path).map_err(|error| error.to_string())?;
        if self.naming.integers {
            sensor.value_type = ValueType::Int;
        }
        Ok((Series { name, labels: BTreeMap::new() }, sensor))
    }

    /// The slot of each series, and the sensors sorted by name. Series with the same sensor are all left out and named: which one came first
    /// must not decide.
    fn slots(&self, notes: &mut Notes<'_>) -> (HashMap<&SeriesIdentity, Slot>, Vec<SensorDef>) {
        let mut by_name: BTreeMap<&str, Vec<(&SeriesIdentity, &KnownSeries)>> = BTreeMap::new();
        let mut slots: HashMap<&SeriesIdentity, Slot> = HashMap::with_capacity(self.known.len());
        for (identity, known) in &self.known {
            match &known.sensor {
                Some(sensor) => by_name.entry(&sensor.name).or_default().push((identity, known)),
                None => {
                    slots.insert(identity, None);
                }
            }
        }
        let mut sensors = Vec::with_capacity(by_name.len());
        for (name, series) in by_name {
            if let [(identity, KnownSeries { sensor: Some(sensor), .. })] = series.as_slice() {
                slots.insert(identity, Some(sensors.len() as u32));
                sensors.push(sensor.clone());
                continue;
            }
            notes.add(|| {
                let text = |identity| Series::of_identity(identity).to_string().chars().take(SERIES_SHOWN).collect();
                let texts: Vec<String> = series.iter().take(3).map(|(identity, _)| text(identity)).collect();
                format!(
                    "{} would all be the sensor {name}: left out; give them a path with more labels",
                    texts.join(", ")
                )
            });
            slots.extend(series.iter().map(|(identity, _)| (*identity, None)));
        }
        (slots, sensors)
    }
}

/// The beginning of a word for messages, quoted.
fn shown(word: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&word[..word.len().min(WORD_BYTES_SHOWN)]))
}

struct Notes<'a> {
    report: &'a mut dyn FnMut(String),
    left: usize,
    /// Notes beyond the most that are shown.
    more: usize,
}

impl Notes<'_> {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.left > 0 {
            self.left -= 1;
            (self.report)(text());
        } else {
            self.more += 1;
        }
    }

    fn end(&mut self) {
        if self.more > 0 {
            (self.report)(format!("and {} more lines or sensors are wrong", self.more));
        }
    }
}

/// A series as a text has it.
struct TextSeries {
    key: Box<[u8]>,
    identity: SeriesIdentity,
}

/// Finds the series of a text, in whichever order they are.
#[derive(Debug, Clone)]
pub struct SeriesTable {
    dialect: Dialect,
    entries: Vec<TableEntry>,
    keys: Vec<u8>,
    by_key: HashMap<Box<[u8]>, u32>,
    by_identity: HashMap<SeriesIdentity, u32>,
    /// Series beyond the bound are expected and no reason to learn again.
    is_full: bool,
    /// Of several lines of a series the last one counts.
    takes_newest: bool,
    generation: u32,
    identity: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct TableEntry {
    key_at: u32,
    key_len: u32,
    slot: Slot,
    is_integer: bool,
    /// The generation of the text that had the series last.
    seen: u32,
}

/// The result of reading a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpositionRead {
    /// Sensors with a value.
    pub values: u32,
    /// Series that the table does not have.
    pub unknown: u32,
    /// Lines that do not match the format, or with a value that is no number.
    pub bad: u32,
    /// The first of them, from 1.
    pub first_bad: Option<u32>,
    /// The first of them has a decimal, or a number beyond 64 bits with sign, for a sensor with integers.
    pub is_no_integer: bool,
    /// Lines of a series that the text has had before: the series is a gap.
    pub duplicates: u32,
    /// The first of them, from 1.
    pub first_duplicate: Option<u32>,
    /// Values with a time of their own before the oldest that counts.
    pub stale: u32,
    /// The newest time of a value, in ns since the epoch.
    pub time: Option<i64>,
}

impl SeriesTable {
    fn new(
        dialect: Dialect,
        order: Vec<TextSeries>,
        slots: &HashMap<&SeriesIdentity, Slot>,
        sensors: &[SensorDef],
        is_full: bool,
    ) -> Self {
        let mut table = Self {
            dialect,
            entries: Vec::with_capacity(slots.len()),
            keys: Vec::with_capacity(order.iter().map(|series| series.key.len()).sum()),
            by_key: HashMap::with_capacity(order.len()),
            by_identity: HashMap::with_capacity(slots.len()),
            is_full,
            takes_newest: false,
            generation: 0,
            identity: Vec::new(),
        };
        for TextSeries { key, identity } in order {
            let slot = slots.get(&identity).copied().flatten();
            table.push(key, identity, slot, sensors);
        }
        for (identity, slot) in slots {
            if !table.by_identity.contains_key(*identity) {
                table.push(Box::default(), Arc::clone(identity), *slot, sensors);
            }
        }
        table
    }

    fn push(&mut self, key: Box<[u8]>, identity: SeriesIdentity, slot: Slot, sensors: &[SensorDef]) {
        let index = self.entries.len() as u32;
        let is_integer = slot.is_some_and(|slot| sensors[slot as usize].value_type == ValueType::Int);
        let (key_at, key_len) = (self.keys.len() as u32, key.len() as u32);
        self.keys.extend_from_slice(&key);
        self.entries.push(TableEntry { key_at, key_len, slot, is_integer, seen: 0 });
        if !key.is_empty() {
            self.by_key.insert(key, index);
        }
        self.by_identity.insert(identity, index);
    }

    /// The language of the text that it was made of.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Of several lines of a series in a text the last one counts, as in the output of a program that goes on. Without this they are a gap.
    pub fn takes_newest(self) -> Self {
        Self { takes_newest: true, ..self }
    }

    /// Whether a text is whole: it ends with a newline, and OpenMetrics with `# EOF`.
    pub fn is_whole(text: &[u8], dialect: Dialect) -> bool {
        match dialect {
            Dialect::OpenMetrics => ends_with_eof(text),
            Dialect::Plain | Dialect::Text => text.last() == Some(&b'\n'),
        }
    }

    /// Reads a whole text into a row. Series that it lacks stay gaps, as do values that are no numbers. A value whose own time is before `oldest` (ns
    /// since the epoch) is a gap.
    pub fn read(&mut self, text: &[u8], oldest: Option<i64>, row: &mut Row<'_>) -> ExpositionRead {
        self.generation = self.generation.wrapping_add(1).max(1);
        let mut result = ExpositionRead::default();
        let (mut at, mut number, mut next) = (0, 0, 0);
        while at < text.len() {
            let end = memchr(b'\n', &text[at..]).map_or(text.len(), |length| at + length);
            let line = &text[at..end];
            (at, number) = (end + 1, number + 1);
            if line.first() == Some(&b'#') {
                if self.dialect == Dialect::OpenMetrics && line.trim_ascii_end() == b"# EOF" {
                    break;
                }
                continue;
            }
            match self.find(line, next) {
                Search::Entry(index, sample) => {
                    next = index + 1;
                    self.take(index, &sample, number, oldest, row, &mut result);
                }
                Search::Unknown => result.unknown += u32::from(!self.is_full),
                Search::Bad => result.bad_line(number),
                Search::Nothing => {}
            }
        }
        result
    }

    /// The entry of a line. `next` is the one that followed in the previous text.
    fn find<'a>(&mut self, line: &'a [u8], next: usize) -> Search<'a> {
        if let Some(entry) = self.entries.get(next).filter(|entry| entry.key_len > 0) {
            let key = &self.keys[entry.key_at as usize..(entry.key_at + entry.key_len) as usize];
            if line.starts_with(key)
                && matches!(line.get(key.len()), Some(b' ' | b'\t'))
                && let Some(sample) = sample(&line[..key.len()], &line[key.len()..])
            {
                return Search::Entry(next, sample);
            }
        }
        match Line::parse(line, self.dialect) {
            // This series is left out.
            Line::Sample(sample) if sample.key.len() > SERIES_BYTES_MAX => Search::Nothing,
            Line::Sample(sample) => match self.search(sample.key) {
                Some(index) => Search::Entry(index, sample),
                None => Search::Unknown,
            },
            Line::Bad => Search::Bad,
            _ => Search::Nothing,
        }
    }

    #[cold]
    fn search(&mut self, key: &[u8]) -> Option<usize> {
        if let Some(index) = self.by_key.get(key) {
            return Some(*index as usize);
        }
        if self.dialect == Dialect::Plain {
            return self.by_identity.get(key).map(|index| *index as usize);
        }
        let mut identity = std::mem::take(&mut self.identity);
        let series = Series::parse(key);
        let index = series.and_then(|series| {
            series.identity(&mut identity);
            self.by_identity.get(identity.as_slice()).copied()
        });
        self.identity = identity;
        if let Some(index) = index
            && self.by_key.len() < KEYS_PER_SERIES * self.entries.len()
        {
            self.by_key.insert(key.into(), index);
        }
        index.map(|index| index as usize)
    }

    fn take(
        &mut self,
        index: usize,
        sample: &SampleLine<'_>,
        number: u32,
        oldest: Option<i64>,
        row: &mut Row<'_>,
        result: &mut ExpositionRead,
    ) {
        let entry = &mut self.entries[index];
        let Some(slot) = entry.slot.map(|slot| slot as usize) else { return };
        if entry.seen == self.generation && self.takes_newest {
            row.set_gap(slot);
        } else if entry.seen == self.generation {
            result.duplicates += 1;
            result.first_duplicate.get_or_insert(number);
            row.set_gap(slot);
            return;
        }
        entry.seen = self.generation;
        if !sample.rest.is_empty() {
            match time_of(sample.rest, self.dialect) {
                Ok(Some(time)) if oldest.is_some_and(|oldest| time < oldest) => {
                    result.stale += 1;
                    return;
                }
                Ok(time) => result.time = result.time.max(time),
                Err(()) => return result.bad_line(number),
            }
        }
        if entry.is_integer {
            match number::int(sample.value) {
                Some(value) => row.set_int(slot, value),
                None => {
                    result.is_no_integer |= result.bad == 0 && number::float(sample.value).is_some();
                    return result.bad_line(number);
                }
            }
        } else {
            match number::float(sample.value) {
                Some(value) if value.is_finite() => row.set_float(slot, value),
                // `NaN` says that there is no value, and an infinity is none that can be stored.
                Some(_) => return,
                None => return result.bad_line(number),
            }
        }
        result.values += 1;
    }
}

enum Search<'a> {
    Entry(usize, SampleLine<'a>),
    Unknown,
    Bad,
    Nothing,
}

impl ExpositionRead {
    fn bad_line(&mut self, number: u32) {
        self.bad += 1;
        self.first_bad.get_or_insert(number);
    }
}

/// The time after a value, in ns; `Err` if there is something else.
fn time_of(rest: &[u8], dialect: Dialect) -> Result<Option<i64>, ()> {
    let word = rest.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
    match dialect {
        Dialect::Plain => Attributes::parse(rest).map(|attributes| attributes.time).map_err(|_| ()),
        Dialect::OpenMetrics if word == b"#" => Ok(None),
        Dialect::OpenMetrics => time_of_seconds(word).map(Some).ok_or(()),
        Dialect::Text => number::int(word).and_then(|ms| ms.checked_mul(1_000_000)).map(Some).ok_or(()),
    }
}

/// Whether the last line is `# EOF`.
fn ends_with_eof(text: &[u8]) -> bool {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    text.strip_suffix(b"# EOF").is_some_and(|before| before.is_empty() || before.ends_with(b"\n"))
}

impl Dialect {
    /// The dialect of a file in one of the two formats of exporters, by its end and its metadata.
    pub fn of_file(text: &[u8]) -> Self {
        let of_open_metrics = |line: &[u8]| {
            line.starts_with(b"# UNIT ")
                || (line.starts_with(b"# TYPE ")
                    && [b" unknown".as_slice(), b" info", b" stateset", b" gaugehistogram"]
                        .iter()
                        .any(|end| line.ends_with(end)))
        };
        let is_open = ends_with_eof(text) || text.split(|byte| *byte == b'\n').any(of_open_metrics);
        if is_open { Self::OpenMetrics } else { Self::Text }
    }
}

#[cfg(test)]
mod tests;
