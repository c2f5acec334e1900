//! Turns the readings of a sub-tree into rows: bands of columns, cut at the edges of cells.

use std::collections::BTreeMap;

use wholegrain_model::{Column, ColumnValues, Gaps};
use wholegrain_store::{Chunk, StoreError};

use crate::body::{BodyEncoder, ROW_READINGS_MAX};
use crate::layout::{BUCKET_LENGTHS, bucket_of, cell_end};

/// A partition that receives more than this many bytes in its time gets shorter buckets. It stays below 100 MB, and has room for what comes late.
const PARTITION_BYTES_MAX: i64 = 80_000_000;
/// The time that readings are taken to cover at least, ns, when the size of a partition is estimated.
const COVERED_NS_MIN: i64 = 60_000_000_000;

/// A row without the parts of its key that its sub-tree has.
#[derive(Debug)]
pub(crate) struct EncodedRow {
    pub class: usize,
    pub bucket: i32,
    pub group: [u8; 16],
    pub band: i16,
    pub first_time: i64,
    pub part: i16,
    pub last_time: i64,
    pub readings: i32,
    pub body: Vec<u8>,
}

/// The readings of one band.
#[derive(Default)]
struct BandDraft {
    class: usize,
    columns: Vec<(u8, Chunk)>,
}

/// The readings of one sub-tree of an upload.
#[derive(Default)]
pub(crate) struct SubtreeDraft {
    bands: BTreeMap<([u8; 16], i16), BandDraft>,
    readings: usize,
    times: Option<(i64, i64)>,
}

impl SubtreeDraft {
    /// Adds readings of a column. The rows of its band go to the longest class of its columns.
    pub fn add(&mut self, (group, band, column): ([u8; 16], i16, u8), class: usize, chunk: Chunk) {
        let (Some(first), Some(last)) = (chunk.times.first(), chunk.times.last()) else { return };
        let (from, to) = self.times.unwrap_or((*first, *last));
        self.times = Some((from.min(*first), to.max(*last)));
        self.readings += chunk.times.len();
        let draft = self.bands.entry((group, band)).or_default();
        draft.class = draft.class.max(class);
        draft.columns.push((column, chunk));
    }

    /// The number of readings so far.
    pub fn readings(&self) -> usize {
        self.readings
    }

    /// Encodes all rows; returns them with the span: the number of the buckets' length. `hint` is the span of the last upload of the sub-tree.
    pub fn encode(self, encoder: &mut BodyEncoder, hint: u8) -> Result<(u8, Vec<EncodedRow>), StoreError> {
        let (first, last) = self.times.unwrap_or((0, 0));
        let covered = last.saturating_sub(first).max(COVERED_NS_MIN);
        let mut span = hint;
        loop {
            let mut rows = Vec::new();
            for ((group, band), draft) in &self.bands {
                encode_band(encoder, (*group, *band), draft, span, &mut rows)?;
            }
            let bytes: usize = rows.iter().map(|row| row.body.len()).sum();
            // What a bucket of each length would hold if readings went on like this.
            let holds = |span: u8| bytes as f64 / covered as f64 * BUCKET_LENGTHS[usize::from(span)] as f64;
            let longest = (0..4u8).find(|span| holds(*span) <= PARTITION_BYTES_MAX as f64).unwrap_or(3);
            // A longer bucket is taken only if it is far from full, so that the length does not change often.
            let is_fit = span == longest || (span > longest && holds(span - 1) > PARTITION_BYTES_MAX as f64 / 2.0);
            if is_fit {
                return Ok((span, rows));
            }
            span = longest;
        }
    }
}

/// Columns that have the same times within one cell.
type SameTimes = (Vec<i64>, Vec<(u8, Column)>);

fn encode_band(
    encoder: &mut BodyEncoder,
    (group, band): ([u8; 16], i16),
    draft: &BandDraft,
    span: u8,
    rows: &mut Vec<EncodedRow>,
) -> Result<(), StoreError> {
    let mut cells: BTreeMap<i64, Vec<SameTimes>> = BTreeMap::new();
    for (number, chunk) in &draft.columns {
        let mut start = 0;
        while start < chunk.times.len() {
            let edge = cell_end(chunk.times[start], span);
            // The last cell ends with the last time that there can be.
            let inside = |time: &i64| *time < edge || edge == i64::MAX;
            let end = start + chunk.times[start..].partition_point(inside).min(ROW_READINGS_MAX);
            let times = &chunk.times[start..end];
            let column = part(&chunk.column, start, end);
            let together = cells.entry(times[0]).or_default();
            let same = together
                .iter_mut()
                .find(|(other, columns)| other == times && columns.iter().all(|(of, _)| of != number));
            match same {
                Some((_, columns)) => columns.push((*number, column)),
                None => together.push((times.to_vec(), vec![(*number, column)])),
            }
            start = end;
        }
    }
    for (first_time, together) in cells {
        for (part, (times, columns)) in together.into_iter().enumerate() {
            let body = encoder.encode(&times, &columns);
            let body = body.map_err(|error| StoreError::Sensor(format!("compressing a chunk: {error}")))?;
            rows.push(EncodedRow {
                class: draft.class,
                bucket: bucket_of(first_time, span),
                group,
                band,
                first_time,
                part: i16::try_from(part).unwrap_or(i16::MAX),
                last_time: times.last().copied().unwrap_or(first_time),
                readings: i32::try_from(times.len() * columns.len()).unwrap_or(i32::MAX),
                body,
            });
        }
    }
    Ok(())
}

/// The rows `start..end` of a column.
pub(crate) fn part(column: &Column, start: usize, end: usize) -> Column {
    if start == 0 && end == column.len() {
        return column.clone();
    }
    let mut gaps = Gaps::default();
    if !column.gaps.0.is_empty() {
        (start..end).filter(|at| column.gaps.is_gap(*at)).for_each(|at| gaps.set(at - start, end - start));
    }
    let values = match &column.values {
        ColumnValues::Int(values) => ColumnValues::Int(values[start..end].to_vec()),
        ColumnValues::Float(values) => ColumnValues::Float(values[start..end].to_vec()),
    };
    Column { values, gaps }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;
    use crate::body::OpenBody;

    const SECOND: i64 = 1_000_000_000;

    fn chunk(times: Vec<i64>) -> Chunk {
        let values = ColumnValues::Int(times.clone());
        Chunk { times, column: Column { values, gaps: Gaps::default() } }
    }

    #[test]
    fn rows_hold_every_reading_once_and_no_row_crosses_a_cell() {
        let mut random = Random::seeded();
        let mut draft = SubtreeDraft::default();
        let mut expected: BTreeMap<(u8, i64), i64> = BTreeMap::new();
        for column in 0..16u8 {
            let mut time = i64::try_from(random.below(1_000)).unwrap() * SECOND;
            let times: Vec<i64> = (0..5_000)
                .map(|_| {
                    time += if random.chance(90) { SECOND } else { 40 * SECOND };
                    time
                })
                .collect();
            expected.extend(times.iter().map(|time| ((column, *time), *time)));
            draft.add(([7; 16], 0, column), 1, chunk(times));
        }
        let (span, rows) = draft.encode(&mut BodyEncoder::new(1).unwrap(), 0).unwrap();
        assert_eq!(span, 0);
        for row in rows {
            assert!(row.last_time < cell_end(row.first_time, span));
            assert_eq!(row.bucket, bucket_of(row.last_time, span));
            let open = OpenBody::open(&row.body).unwrap();
            for column in 0..16u8 {
                let Some(chunk) = open.column(column).unwrap() else { continue };
                for (at, time) in chunk.times.iter().enumerate() {
                    let ColumnValues::Int(values) = &chunk.column.values else { panic!("integers") };
                    assert_eq!(expected.remove(&(column, *time)), Some(values[at]));
                }
            }
        }
        assert!(expected.is_empty());
    }

    #[test]
    fn a_busy_sub_tree_gets_short_buckets() {
        let mut random = Random::seeded();
        let mut draft = SubtreeDraft::default();
        // 16 columns of random values a thousand times a second: 128 kB a second, 11 GB a day.
        let times: Vec<i64> = (0..60_000).map(|at| at * 1_000_000).collect();
        for column in 0..16u8 {
            let values = ColumnValues::Int(times.iter().map(|_| random.draw().cast_signed()).collect());
            let chunk = Chunk { times: times.clone(), column: Column { values, gaps: Gaps::default() } };
            draft.add(([1; 16], 0, column), 0, chunk);
        }
        let (span, rows) = draft.encode(&mut BodyEncoder::new(1).unwrap(), 0).unwrap();
        assert_eq!(span, 2);
        assert!(rows.iter().all(|row| row.readings <= 16 * ROW_READINGS_MAX as i32));
    }

    #[test]
    fn the_last_times_of_all_are_one_row() {
        let mut draft = SubtreeDraft::default();
        draft.add(([1; 16], 0, 0), 0, chunk(vec![i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX]));
        let (_, rows) = draft.encode(&mut BodyEncoder::new(1).unwrap(), 0).unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.first_time, row.last_time)).collect::<Vec<_>>(),
            [(i64::MIN, i64::MIN + 1), (i64::MAX - 1, i64::MAX)]
        );
    }
}
