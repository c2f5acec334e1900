//! Readings of schemaless sensors that are not in blocks yet: rows in the order of arrival; each row links to the previous row of its sensor.
//! Adding a row costs a push and a lookup, however many sensors there are.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use wholegrain_model::{Value, ValueType};

use crate::SensorId;
use crate::sensors::reading::Reading;

/// Rows of one piece. Full pieces never change, so a reader does not block the journal.
const PIECE_ROWS: usize = 65_536;
/// Bytes of memory for each row, without its share of the table.
pub(crate) const ROW_BYTES: u64 = size_of::<LogRow>() as u64;
/// Set in [`LogRow::before`] when the value is a float.
const FLOAT: u32 = 1 << 31;
/// The most rows of one log: row number and [`FLOAT`] share 32 bits. A segment is closed long before.
const ROWS_MAX: usize = FLOAT as usize - 1;

#[derive(Debug, Clone, Copy)]
struct LogRow {
    time: i64,
    bits: u64,
    sensor: u32,
    /// Number of the sensor's previous row, plus 1; 0 if there is none.
    before: u32,
}

/// A hash for sensors' numbers. They are dense, so one multiplication spreads them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

/// A map from sensors' numbers.
pub(crate) type IdMap<T> = HashMap<u32, T, BuildHasherDefault<IdHasher>>;

/// The readings of schemaless sensors in one segment.
#[derive(Debug, Default)]
pub(crate) struct ReadingLog {
    whole: Vec<Arc<[LogRow]>>,
    open: Vec<LogRow>,
    /// Each sensor's last row, plus 1.
    last: IdMap<u32>,
    /// For each record its number of arrival and the number of rows after it.
    arrivals: Vec<(u64, u32)>,
}

impl ReadingLog {
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    pub(crate) fn rows(&self) -> usize {
        self.whole.len() * PIECE_ROWS + self.open.len()
    }

    /// Adds the readings of a record.
    pub fn add(&mut self, readings: &[Reading], arrival: u64) {
        for reading in readings {
            let number = self.rows();
            if number >= ROWS_MAX {
                debug_assert!(false, "a segment is closed before");
                return;
            }
            let (bits, float) = match reading.value {
                Value::Int(value) => (value as u64, 0),
                Value::Float(value) => (value.to_bits(), FLOAT),
            };
            let last = self.last.entry(reading.sensor.0).or_insert(0);
            self.open.push(LogRow { time: reading.time, bits, sensor: reading.sensor.0, before: *last | float });
            *last = number as u32 + 1;
            if self.open.len() == PIECE_ROWS {
                self.whole.push(std::mem::take(&mut self.open).into());
            }
        }
        self.arrivals.push((arrival, self.rows() as u32));
    }

    pub(crate) fn has(&self, id: SensorId) -> bool {
        self.last.contains_key(&id.0)
    }

    /// What is needed to read one sensor's rows that arrived up to `watermark`, without a lock.
    pub fn chain(&self, id: SensorId, watermark: u64) -> Option<SensorReadings> {
        let mut next = *self.last.get(&id.0)?;
        let seen = self.arrivals.partition_point(|(arrival, _)| *arrival <= watermark);
        let end = seen.checked_sub(1).map_or(0, |at| self.arrivals[at].1);
        let start = (self.whole.len() * PIECE_ROWS) as u32;
        let mut newest = Vec::new();
        while next > start {
            let row = self.open[(next - 1 - start) as usize];
            if next <= end {
                newest.push(row);
            }
            next = row.before & !FLOAT;
        }
        Some(SensorReadings { newest, whole: self.whole.clone(), next, end })
    }

    /// All rows, readable without a lock.
    pub fn all(&self) -> ClosedLog {
        let mut pieces = self.whole.clone();
        if !self.open.is_empty() {
            pieces.push(self.open.as_slice().into());
        }
        ClosedLog { pieces, sensors: self.last.keys().copied().collect() }
    }
}

/// The readings of one sensor in a log.
pub(crate) struct SensorReadings {
    /// Readings of the growing piece, the newest first.
    newest: Vec<LogRow>,
    whole: Vec<Arc<[LogRow]>>,
    next: u32,
    end: u32,
}

impl SensorReadings {
    /// The readings of `from <= time < to`, in the order of arrival.
    pub fn readings(self, from: i64, to: i64) -> Vec<(i64, Value)> {
        let mut found: Vec<LogRow> = self.newest;
        let mut next = self.next;
        while let Some(number) = next.checked_sub(1) {
            let row = self.whole[number as usize / PIECE_ROWS][number as usize % PIECE_ROWS];
            if next <= self.end {
                found.push(row);
            }
            next = row.before & !FLOAT;
        }
        found.iter().rev().filter(|row| (from..to).contains(&row.time)).map(reading).collect()
    }
}

fn reading(row: &LogRow) -> (i64, Value) {
    let value_type = if row.before & FLOAT != 0 { ValueType::Float } else { ValueType::Int };
    (row.time, Value::from_bits(row.bits, value_type))
}

/// All rows of a closed segment.
pub(crate) struct ClosedLog {
    pieces: Vec<Arc<[LogRow]>>,
    /// Its sensors, in no order.
    pub sensors: Vec<u32>,
}

impl ClosedLog {
    /// Each row's sensor and time.
    pub fn times(&self) -> impl Iterator<Item = (u32, i64)> {
        self.pieces.iter().flat_map(|piece| piece.iter().map(|row| (row.sensor, row.time)))
    }

    /// Groups the rows by sensor, in the order of `sensors`; those of one sensor stay in the order of arrival.
    pub fn sorted(&self) -> SortedLog<'_> {
        let slots: IdMap<u32> = self.sensors.iter().zip(0u32..).map(|(id, slot)| (*id, slot)).collect();
        let mut starts = vec![0u32; self.sensors.len() + 1];
        let rows = || self.pieces.iter().flat_map(|piece| piece.iter());
        let row_slots: Vec<u32> = rows().map(|row| slots.get(&row.sensor).copied().unwrap_or(0)).collect();
        row_slots.iter().for_each(|slot| starts[*slot as usize + 1] += 1);
        for slot in 1..starts.len() {
            starts[slot] += starts[slot - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0u32; row_slots.len()];
        for (number, slot) in (0u32..).zip(&row_slots) {
            order[next[*slot as usize] as usize] = number;
            next[*slot as usize] += 1;
        }
        SortedLog { pieces: &self.pieces, starts, order }
    }
}

/// The rows of a segment, grouped by sensor.
pub(crate) struct SortedLog<'a> {
    pieces: &'a [Arc<[LogRow]>],
    starts: Vec<u32>,
    order: Vec<u32>,
}

impl SortedLog<'_> {
    /// The readings of the sensor at `slot`, in the order of arrival.
    pub fn readings(&self, slot: usize) -> impl Iterator<Item = (i64, Value)> {
        let numbers = &self.order[self.starts[slot] as usize..self.starts[slot + 1] as usize];
        numbers.iter().map(|number| reading(&self.pieces[*number as usize / PIECE_ROWS][*number as usize % PIECE_ROWS]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::columns::{chunks, schemaless_row};

    fn reading(sensor: u32, time: i64) -> Reading {
        let value = if time % 2 == 0 { Value::Int(time) } else { Value::Float(time as f64) };
        Reading { sensor: SensorId(sensor), time, value }
    }

    #[test]
    fn each_sensor_gives_its_rows_up_to_the_watermark() {
        let mut log = ReadingLog::default();
        let sensors = 7;
        let mut all = Vec::new();
        for arrival in 1..=60i64 {
            let readings: Vec<Reading> = (0..PIECE_ROWS as i64 / 20)
                .map(|i| reading((i * arrival % sensors) as u32, arrival * 10_000 + i))
                .collect();
            log.add(&readings, arrival as u64);
            all.push(readings);
        }
        assert!(log.whole.len() > 1 && !log.open.is_empty());
        for (watermark, from, to) in
            [(60, i64::MIN, i64::MAX), (41, 0, i64::MAX), (u64::MAX, 70_005, 300_000), (0, 0, 9)]
        {
            for sensor in 0..sensors as u32 {
                let expected: Vec<(i64, Value)> = (all.iter().take(watermark.min(60) as usize).flatten())
                    .filter(|reading| reading.sensor.0 == sensor && (from..to).contains(&reading.time))
                    .map(|reading| (reading.time, reading.value))
                    .collect();
                assert_eq!(log.chain(SensorId(sensor), watermark).unwrap().readings(from, to), expected);
            }
        }
        assert!(log.chain(SensorId(99), 60).is_none());
        let everything = log.all();
        let sorted = everything.sorted();
        for (slot, sensor) in everything.sensors.iter().enumerate() {
            let expected = log.chain(SensorId(*sensor), u64::MAX).unwrap().readings(i64::MIN, i64::MAX);
            assert_eq!(sorted.readings(slot).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn of_equal_times_the_later_arrival_counts_whatever_its_type() {
        let int = |time, value| schemaless_row((time, Value::Int(value)));
        let float = |time, value| schemaless_row((time, Value::Float(value)));
        let found =
            chunks(vec![int(3, 1), float(3, 2.0), int(1, 3), float(2, 4.0), int(2, 5), (4, None, ValueType::Float)]);
        let rows: Vec<(i64, Option<Value>)> = (found.iter())
            .flat_map(|chunk| chunk.times.iter().enumerate().map(|(i, time)| (*time, chunk.column.get(i))))
            .collect();
        let expected = [(1, Some(Value::Int(3))), (2, Some(Value::Int(5))), (3, Some(Value::Float(2.0))), (4, None)];
        assert_eq!(rows, expected);
        let gap = chunks(vec![schemaless_row((5, crate::GAP)), float(6, f64::NAN)]).remove(0);
        assert!(gap.column.get(0).is_none() && gap.column.get(1).is_some(), "another NaN is a value");
        assert!(chunks(Vec::new()).is_empty());
    }
}
