//! Encodes batches. On the agent's hot path: once warm, only the output allocates.

use wholegrain_model::batch::{AGENT_BYTES_MAX, SAMPLES_MAX};
use wholegrain_model::schema::{SENSORS_MAX, put_varint};
use wholegrain_model::{Batch, BatchHeader, ColumnValues, ValueType};

use super::{FLAG_STEADY, MAGIC, VALUES_MAX, VERSION, mode, zigzag};

/// The encoder's input: read sensor by sensor, each from the first sample to the last.
pub trait Rows {
    /// The raw 64 bits: of an `i64` or of an `f64`. Not called for gaps.
    fn value(&self, sensor: usize, sample: usize) -> u64;

    /// Whether the sensor has no value in the sample.
    fn is_gap(&self, sensor: usize, sample: usize) -> bool;

    /// Whether [`Rows::is_gap`] can be true for this sensor: `false` saves a check of each sample.
    fn may_have_gaps(&self, sensor: usize) -> bool {
        let _ = sensor;
        true
    }

    /// Whether the sensor is known to have the same value in every sample, without a gap: then only one is read.
    fn is_constant(&self, sensor: usize) -> bool {
        let _ = sensor;
        false
    }
}

/// Encodes batches; reuses its buffers.
#[derive(Debug, Default)]
pub struct BatchEncoder {
    /// The values of the current column without gaps; for integers later their differences.
    values: Vec<u64>,
    gaps: Vec<u8>,
    modes: Vec<u8>,
    bodies: Vec<u8>,
}

impl BatchEncoder {
    /// An encoder without buffers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one payload to `out`: `times.len()` samples of `types.len()` sensors.
    ///
    /// # Panics
    /// If there is no sample or no sensor, there are more values than [`super::samples_max`] allows, or the agent's name is
    /// longer than [`AGENT_BYTES_MAX`]: the caller checks these bounds when it is configured.
    pub fn encode<R: Rows + ?Sized>(
        &mut self,
        header: &BatchHeader,
        types: &[ValueType],
        times: &[i64],
        rows: &R,
        out: &mut Vec<u8>,
    ) {
        assert!(
            !types.is_empty() && types.len() <= SENSORS_MAX,
            "a batch has 1 to {SENSORS_MAX} sensors, not {}",
            types.len()
        );
        assert!(
            !times.is_empty() && times.len() <= SAMPLES_MAX,
            "a batch has 1 to {SAMPLES_MAX} samples, not {}",
            times.len()
        );
        assert!(types.len() * times.len() <= VALUES_MAX, "a batch has at most {VALUES_MAX} values");
        assert!(header.agent.len() <= AGENT_BYTES_MAX, "an agent's name has at most {AGENT_BYTES_MAX} bytes");
        put_header(header, types.len(), times, out);
        self.modes.clear();
        self.bodies.clear();
        let mut run = Run::default();
        for (sensor, value_type) in types.iter().enumerate() {
            let column_mode = self.column(sensor, *value_type, times.len(), rows);
            run.add(column_mode, &mut self.modes);
        }
        run.end(&mut self.modes);
        out.extend_from_slice(&self.modes);
        out.extend_from_slice(&self.bodies);
    }

    /// Writes the only value of a column: the most frequent case for an agent that sends each sample at once or has constant values.
    fn single<R: Rows + ?Sized>(&mut self, sensor: usize, value_type: ValueType, rows: &R) -> u8 {
        if rows.may_have_gaps(sensor) && rows.is_gap(sensor, 0) {
            return mode::ABSENT;
        }
        let value = rows.value(sensor, 0);
        match value_type {
            ValueType::Int => {
                put_varint(zigzag(value as i64), &mut self.bodies);
                mode::INT_CONSTANT
            }
            ValueType::Float => {
                put_xor(value, &mut self.bodies);
                mode::FLOAT_CONSTANT
            }
        }
    }

    /// Writes the body of one column and returns its mode.
    fn column<R: Rows + ?Sized>(&mut self, sensor: usize, value_type: ValueType, samples: usize, rows: &R) -> u8 {
        if samples == 1 || rows.is_constant(sensor) {
            return self.single(sensor, value_type, rows);
        }
        self.values.clear();
        let mut flag = 0;
        if rows.may_have_gaps(sensor) && (0..samples).any(|sample| rows.is_gap(sensor, sample)) {
            self.gaps.clear();
            self.gaps.resize(samples.div_ceil(8), 0);
            for sample in 0..samples {
                if rows.is_gap(sensor, sample) {
                    self.gaps[sample / 8] |= 1 << (sample % 8);
                } else {
                    self.values.push(rows.value(sensor, sample));
                }
            }
            if self.values.is_empty() {
                return mode::ABSENT;
            }
            self.bodies.extend_from_slice(&self.gaps);
            flag = mode::GAPS;
        } else {
            self.values.extend((0..samples).map(|sample| rows.value(sensor, sample)));
        }
        flag | match value_type {
            ValueType::Int => put_ints(&mut self.values, &mut self.bodies),
            ValueType::Float => put_floats(&self.values, &mut self.bodies),
        }
    }
}

/// Successive columns of the same mode share one mode byte.
#[derive(Default)]
struct Run {
    mode: u8,
    length: usize,
}

impl Run {
    fn add(&mut self, column_mode: u8, modes: &mut Vec<u8>) {
        if self.length > 0 && self.mode != column_mode {
            self.end(modes);
        }
        self.mode = column_mode;
        self.length += 1;
    }

    fn end(&mut self, modes: &mut Vec<u8>) {
        let more = usize::from(mode::RUN_MORE);
        let less_one = self.length - 1;
        modes.push(self.mode | (less_one.min(more) as u8) << mode::RUN_SHIFT);
        if less_one >= more {
            put_varint((less_one - more) as u64, modes);
        }
        self.length = 0;
    }
}

fn put_header(header: &BatchHeader, sensors: usize, times: &[i64], out: &mut Vec<u8>) {
    let step = if times.len() > 1 { times[1].wrapping_sub(times[0]) } else { 0 };
    let steady = times.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == step);
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.push(if steady { FLAG_STEADY } else { 0 });
    put_varint(header.agent.len() as u64, out);
    out.extend_from_slice(header.agent.as_bytes());
    out.extend_from_slice(&header.boot.to_le_bytes());
    put_varint(header.seq, out);
    out.extend_from_slice(&header.schema.0);
    put_varint(header.interval_ns, out);
    put_varint(times.len() as u64, out);
    put_varint(sensors as u64, out);
    out.extend_from_slice(&times[0].to_le_bytes());
    if !steady {
        times.windows(2).for_each(|pair| put_varint(zigzag(pair[1].wrapping_sub(pair[0])), out));
    } else if times.len() > 1 {
        put_varint(zigzag(step), out);
    }
}

/// Writes the first value and the differences in the smallest of the modes. Turns `values` into differences.
fn put_ints(values: &mut [u64], out: &mut Vec<u8>) -> u8 {
    put_varint(zigzag(values[0] as i64), out);
    if values.len() == 1 {
        return mode::INT_CONSTANT;
    }
    let step = values[1].wrapping_sub(values[0]);
    let mut previous = values[0];
    let mut differing = 0;
    for slot in &mut values[1..] {
        let delta = slot.wrapping_sub(previous);
        previous = *slot;
        *slot = delta;
        differing |= delta ^ step;
    }
    if differing == 0 {
        if step == 0 {
            return mode::INT_CONSTANT;
        }
        put_varint(zigzag(step as i64), out);
        return mode::INT_STEP;
    }
    put_deltas(&values[1..], out)
}

fn put_deltas(deltas: &[u64], out: &mut Vec<u8>) -> u8 {
    let (mut min, mut max) = (i64::MAX, i64::MIN);
    let (mut varint_bytes, mut zeros) = (0, 0);
    for &delta in deltas {
        let delta = delta as i64;
        min = min.min(delta);
        max = max.max(delta);
        varint_bytes += varint_len(zigzag(delta));
        zeros += usize::from(delta == 0);
    }
    let width = 64 - (max.wrapping_sub(min) as u64).leading_zeros();
    let packed_bytes = 1 + varint_len(zigzag(min)) + (deltas.len() * width as usize).div_ceil(8);
    let sparse_bytes = deltas.len().div_ceil(8) + varint_bytes - zeros;
    if packed_bytes <= sparse_bytes.min(varint_bytes) {
        put_packed(deltas, min, width, out);
        mode::INT_PACKED
    } else if sparse_bytes < varint_bytes {
        put_sparse(deltas, out);
        mode::INT_SPARSE
    } else {
        deltas.iter().for_each(|&delta| put_varint(zigzag(delta as i64), out));
        mode::INT_VARINT
    }
}

fn put_sparse(deltas: &[u64], out: &mut Vec<u8>) {
    for group in deltas.chunks(8) {
        out.push(group.iter().enumerate().fold(0, |byte, (bit, &delta)| byte | u8::from(delta != 0) << bit));
    }
    deltas.iter().filter(|&&delta| delta != 0).for_each(|&delta| put_varint(zigzag(delta as i64), out));
}

/// `width` bits of each (delta - min), the lowest bit first, the last byte padded with zeros.
fn put_packed(deltas: &[u64], min: i64, width: u32, out: &mut Vec<u8>) {
    out.push(width as u8);
    put_varint(zigzag(min), out);
    let mut word = 0u128;
    let mut bits = 0;
    for &delta in deltas {
        word |= u128::from(delta.wrapping_sub(min as u64)) << bits;
        bits += width;
        if bits >= 64 {
            out.extend_from_slice(&(word as u64).to_le_bytes());
            word >>= 64;
            bits -= 64;
        }
    }
    out.extend_from_slice(&(word as u64).to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// The size of a number as a varint.
fn varint_len(number: u64) -> usize {
    // 9/64 is just above 1/7: right for every number of bits from 1 to 64.
    ((64 - (number | 1).leading_zeros()) as usize * 9 + 64) / 64
}

fn put_floats(values: &[u64], out: &mut Vec<u8>) -> u8 {
    put_xor(values[0], out);
    if values.iter().all(|&value| value == values[0]) {
        return mode::FLOAT_CONSTANT;
    }
    let start = out.len();
    let mut previous = values[0];
    for &value in &values[1..] {
        put_xor(value ^ previous, out);
        previous = value;
    }
    if out.len() - start < (values.len() - 1) * 8 {
        return mode::FLOAT_XOR;
    }
    out.truncate(start);
    values[1..].iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    mode::FLOAT_RAW
}

/// One byte: the number of zero bytes at the low end (high nibble) and of the bytes that follow (low nibble); then these bytes, the lowest first.
/// Zero is the byte 0.
fn put_xor(bits: u64, out: &mut Vec<u8>) {
    if bits == 0 {
        return out.push(0);
    }
    let low = bits.trailing_zeros() / 8;
    let count = 8 - bits.leading_zeros() / 8 - low;
    out.push((low << 4 | count) as u8);
    out.extend_from_slice(&(bits >> (low * 8)).to_le_bytes()[..count as usize]);
}

struct BatchRows<'a>(&'a Batch);

impl Rows for BatchRows<'_> {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        match &self.0.columns[sensor].values {
            ColumnValues::Int(values) => values[sample] as u64,
            ColumnValues::Float(values) => values[sample].to_bits(),
        }
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.0.columns[sensor].gaps.is_gap(sample)
    }

    fn may_have_gaps(&self, sensor: usize) -> bool {
        !self.0.columns[sensor].gaps.0.is_empty()
    }
}

/// Encodes a decoded batch; for tests, tools and imports, which need no speed.
///
/// # Panics
/// As [`BatchEncoder::encode`], and if a column is shorter than `times`.
pub fn encode_batch(batch: &Batch) -> Vec<u8> {
    let types: Vec<_> = (batch.columns.iter())
        .map(|column| match column.values {
            ColumnValues::Int(_) => ValueType::Int,
            ColumnValues::Float(_) => ValueType::Float,
        })
        .collect();
    let mut out = Vec::new();
    BatchEncoder::new().encode(&batch.header, &types, &batch.times, &BatchRows(batch), &mut out);
    out
}
