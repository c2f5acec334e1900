//! The content of a chunk's row: up to 16 columns that share their times.
//!
//! `store/CASSANDRA.md` describes the bytes.

use wholegrain_model::{BatchHeader, Column, ColumnValues, SchemaHash, ValueType};
use wholegrain_store::Chunk;
use wholegrain_transport::payload::{BatchEncoder, Rows, decode_column_of, decode_columns_of};

use crate::layout::BAND_COLUMNS;

const VERSION: u8 = 1;
/// Marks a column of floats beside the column's number.
const FLOAT: u8 = 0x80;
/// Bytes of the checksum at the end.
const SUM_BYTES: usize = 4;
/// The largest body after decompression, in bytes: the times and 16 columns of 65,536 readings take at most 10 bytes a value.
const PAYLOAD_BYTES_MAX: usize = 12 << 20;
/// The most readings of one column in a row.
pub(crate) const ROW_READINGS_MAX: usize = 16_384;

/// Columns with the numbers that they have in their band.
pub(crate) struct BandColumns<'a>(pub &'a [(u8, Column)]);

impl Rows for BandColumns<'_> {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        match &self.0[sensor].1.values {
            ColumnValues::Int(values) => values[sample].cast_unsigned(),
            ColumnValues::Float(values) => values[sample].to_bits(),
        }
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.0[sensor].1.gaps.is_gap(sample)
    }

    fn may_have_gaps(&self, sensor: usize) -> bool {
        !self.0[sensor].1.gaps.0.is_empty()
    }
}

fn type_of(column: &Column) -> ValueType {
    match column.values {
        ColumnValues::Int(_) => ValueType::Int,
        ColumnValues::Float(_) => ValueType::Float,
    }
}

/// Encodes bodies; reuses its buffers.
pub(crate) struct BodyEncoder {
    batches: BatchEncoder,
    payload: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
}

impl BodyEncoder {
    /// With this level of zstd.
    pub fn new(level: i32) -> std::io::Result<Self> {
        Ok(Self { batches: BatchEncoder::new(), payload: Vec::new(), compressor: zstd::bulk::Compressor::new(level)? })
    }

    /// The body of 1 to 16 columns, each as long as `times` (1 to [`ROW_READINGS_MAX`]).
    pub fn encode(&mut self, times: &[i64], columns: &[(u8, Column)]) -> std::io::Result<Vec<u8>> {
        let types: Vec<ValueType> = columns.iter().map(|(_, column)| type_of(column)).collect();
        let header = BatchHeader { agent: String::new(), boot: 0, seq: 0, schema: SchemaHash([0; 16]), interval_ns: 0 };
        self.payload.clear();
        self.batches.encode(&header, &types, times, &BandColumns(columns), &mut self.payload);
        let mut body = vec![VERSION, columns.len() as u8];
        let numbers = columns.iter().zip(&types);
        body.extend(numbers.map(|((number, _), of)| number | if *of == ValueType::Float { FLOAT } else { 0 }));
        body.extend_from_slice(&u32::try_from(self.payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        body.extend_from_slice(&self.compressor.compress(&self.payload)?);
        body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        Ok(body)
    }
}

/// A body whose checksum is right, decompressed.
pub(crate) struct OpenBody {
    /// Number and type of each column.
    columns: Vec<(u8, ValueType)>,
    payload: Vec<u8>,
}

impl OpenBody {
    /// Checks a body and decompresses it. The error says what is wrong.
    pub fn open(body: &[u8]) -> Result<Self, String> {
        let Some((content, sum)) = body.split_last_chunk::<SUM_BYTES>() else { return Err("is cut short".to_owned()) };
        if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
            return Err("has a wrong checksum".to_owned());
        }
        let (version, count) = match content {
            [version, count, ..] => (*version, usize::from(*count)),
            _ => return Err("is cut short".to_owned()),
        };
        if version != VERSION {
            return Err(format!("has version {version}; this release reads version {VERSION}"));
        }
        let Some((numbers, packed)) = content[2..].split_at_checked(count) else {
            return Err("is cut short".to_owned());
        };
        if count == 0 || count > BAND_COLUMNS {
            return Err(format!("has {count} columns"));
        }
        let of = |number: &u8| if number & FLOAT == 0 { ValueType::Int } else { ValueType::Float };
        let columns = numbers.iter().map(|number| (number & !FLOAT, of(number))).collect();
        let Some((length, packed)) = packed.split_first_chunk::<4>() else { return Err("is cut short".to_owned()) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(format!("has {length} bytes of content"));
        }
        let payload = zstd::bulk::decompress(packed, length).map_err(|error| error.to_string())?;
        Ok(Self { columns, payload })
    }

    /// The times, and all columns with their numbers.
    pub fn columns(&self) -> Result<BodyColumns, String> {
        let types: Vec<ValueType> = self.columns.iter().map(|(_, of)| *of).collect();
        let (times, columns) = decode_columns_of(&self.payload, &types).map_err(|error| error.to_string())?;
        let columns = self.columns.iter().map(|(number, _)| *number).zip(columns).collect();
        Ok(BodyColumns { times, columns })
    }

    /// The readings of a column, integers or floats; `None` if it is not here.
    pub fn column(&self, number: u8) -> Result<Option<Chunk>, String> {
        let Some(at) = self.columns.iter().position(|(of, _)| *of == number) else { return Ok(None) };
        let types: Vec<ValueType> = self.columns.iter().map(|(_, of)| *of).collect();
        let (times, column) = decode_column_of(&self.payload, &types, at).map_err(|error| error.to_string())?;
        Ok(Some(Chunk { times, column }))
    }
}

/// The decoded columns of a body.
#[derive(Debug)]
pub(crate) struct BodyColumns {
    times: Vec<i64>,
    columns: Vec<(u8, Column)>,
}

impl BodyColumns {
    /// The readings of a column; `None` if it is not here.
    pub fn column(&self, number: u8) -> Option<Chunk> {
        let (_, column) = self.columns.iter().find(|(of, _)| *of == number)?;
        Some(Chunk { times: self.times.clone(), column: column.clone() })
    }

    /// Memory, approximately, in bytes.
    pub fn bytes(&self) -> usize {
        self.times.len() * size_of::<i64>() * (self.columns.len() + 1)
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Gaps;
    use wholegrain_testkit::Random;

    use super::*;

    fn column(values: ColumnValues, gaps: &[usize]) -> Column {
        let length = match &values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        };
        let mut marked = Gaps::default();
        gaps.iter().for_each(|at| marked.set(*at, length));
        Column { values, gaps: marked }
    }

    fn example(times: &[i64]) -> Vec<(u8, Column)> {
        let ints = ColumnValues::Int(times.iter().map(|time| time.wrapping_mul(3)).collect());
        let floats = ColumnValues::Float(times.iter().map(|time| (*time as f64).sqrt()).collect());
        vec![(3, column(ints, &[1])), (7, column(floats, &[]))]
    }

    #[test]
    fn columns_come_back_to_the_bit() {
        let times: Vec<i64> = vec![i64::MIN, -5, 0, 1, 1_767_225_600_000_000_000, i64::MAX];
        let columns = example(&times);
        let body = BodyEncoder::new(1).unwrap().encode(&times, &columns).unwrap();
        let open = OpenBody::open(&body).unwrap();
        for (number, column) in &columns {
            let chunk = open.column(*number).unwrap().unwrap();
            assert_eq!(chunk.times, times);
            for at in 0..times.len() {
                let bits = |column: &Column| column.get(at).map(|value| format!("{value:?}"));
                assert_eq!(bits(&chunk.column), bits(column), "{number} {at}");
            }
        }
        assert!(open.column(4).unwrap().is_none());
        let all = open.columns().unwrap();
        assert_eq!(all.column(3), open.column(3).unwrap());
        assert!(all.column(4).is_none());
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let times: Vec<i64> = (0..300).collect();
        let body = BodyEncoder::new(1).unwrap().encode(&times, &example(&times)).unwrap();
        let mut random = Random::seeded();
        for _ in 0..300 {
            let mut damaged = body.clone();
            match random.chance(50) {
                true => damaged.truncate(random.index(body.len())),
                false => damaged[random.index(body.len())] ^= 1 << random.below(8),
            }
            assert!(OpenBody::open(&damaged).is_err());
        }
    }
}
