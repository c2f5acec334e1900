//! XOR chunks of Prometheus (`tsdb/docs/format/chunks.md`), and the frames that contain them.
//!
//! A chunk is the number of its samples (16 bits, big endian) and a stream of bits, the highest bit of a byte first. The first sample is a time
//! (varint, zigzag) and a value (64 bits); the second the time difference (varint) and a value; each later one the change of the time difference, in
//! 1, 16, 20, 24 or 68 bits, and a value. A value is the XOR with the previous one: a bit 0 if that is zero; else 1 and then 0 if its set bits fit
//! between the leading and trailing zeros of the last description, or 1 and a new description (5 bits of leading zeros, 6 bits of length), then the
//! bits.

use super::wire;

pub const CHUNK_SAMPLES: u16 = 120;
/// The encoding's number in the message.
const XOR: i64 = 1;
/// A message is sent when its chunks have this many bytes.
const FRAME_BYTES: usize = 256 << 10;

/// Writes bits, the highest bit of a byte first.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// The number of used bits of the last byte; 0 if it is full.
    used: u32,
}

impl BitWriter {
    fn put(&mut self, value: u64, count: u32) {
        for at in (0..count).rev() {
            if self.used == 0 {
                self.bytes.push(0);
            }
            if value >> at & 1 == 1
                && let Some(last) = self.bytes.last_mut()
            {
                *last |= 0x80 >> self.used;
            }
            self.used = (self.used + 1) % 8;
        }
    }

    fn put_varint(&mut self, value: u64) {
        let mut bytes = Vec::new();
        wire::put_varint(value, &mut bytes);
        bytes.iter().for_each(|byte| self.put(u64::from(*byte), 8));
    }
}

struct XorChunk {
    bits: BitWriter,
    count: u16,
    first_ms: i64,
    last_ms: i64,
    distance: i64,
    value: u64,
    /// Leading and trailing zeros of the last description.
    zeros: Option<(u32, u32)>,
}

impl XorChunk {
    fn new() -> Self {
        Self { bits: BitWriter::default(), count: 0, first_ms: 0, last_ms: 0, distance: 0, value: 0, zeros: None }
    }

    fn push(&mut self, ms: i64, value: f64) {
        let value = value.to_bits();
        let distance = ms.wrapping_sub(self.last_ms);
        match self.count {
            0 => {
                self.first_ms = ms;
                self.bits.put_varint((ms << 1 ^ ms >> 63).cast_unsigned());
                self.bits.put(value, 64);
            }
            1 => {
                self.bits.put_varint(distance.cast_unsigned());
                self.put_value(value);
            }
            _ => {
                self.put_difference(distance.wrapping_sub(self.distance));
                self.put_value(value);
            }
        }
        (self.last_ms, self.value, self.distance) = (ms, value, distance);
        self.count += 1;
    }

    fn put_difference(&mut self, difference: i64) {
        let fits = |bits: u32| (1 - (1i64 << (bits - 1))..=1i64 << (bits - 1)).contains(&difference);
        let (mark, mark_bits, bits) = match difference {
            0 => return self.bits.put(0, 1),
            _ if fits(14) => (0b10, 2, 14),
            _ if fits(17) => (0b110, 3, 17),
            _ if fits(20) => (0b1110, 4, 20),
            _ => (0b1111, 4, 64),
        };
        self.bits.put(mark, mark_bits);
        self.bits.put(difference.cast_unsigned(), bits);
    }

    fn put_value(&mut self, value: u64) {
        let xor = value ^ self.value;
        if xor == 0 {
            return self.bits.put(0, 1);
        }
        let (leading, trailing) = (xor.leading_zeros().min(31), xor.trailing_zeros());
        self.bits.put(1, 1);
        match self.zeros {
            Some((before, after)) if leading >= before && trailing >= after => {
                self.bits.put(0, 1);
                self.bits.put(xor >> after, 64 - before - after);
            }
            _ => {
                let length = 64 - leading - trailing;
                self.bits.put(1, 1);
                self.bits.put(u64::from(leading), 5);
                // A length of 64 does not fit into six bits and is written as 0, which is no valid length.
                self.bits.put(u64::from(length % 64), 6);
                self.bits.put(xor >> trailing, length);
                self.zeros = Some((leading, trailing));
            }
        }
    }

    /// Encodes the message `Chunk`.
    fn message(&self) -> Vec<u8> {
        let mut data = self.count.to_be_bytes().to_vec();
        data.extend_from_slice(&self.bits.bytes);
        let mut message = Vec::with_capacity(data.len() + 24);
        wire::put_int(1, self.first_ms, &mut message);
        wire::put_int(2, self.last_ms, &mut message);
        wire::put_int(3, XOR, &mut message);
        wire::put_bytes(4, &data, &mut message);
        message
    }
}

/// Encodes one series into frames.
pub struct XorSeries {
    query: i64,
    labels: Vec<u8>,
    chunks: Vec<u8>,
    chunk: XorChunk,
    /// Complete frames, not yet sent.
    pub frames: Vec<u8>,
}

impl XorSeries {
    /// `query` is the number of the query in the request.
    pub fn new(query: usize, labels: &[(String, String)]) -> Self {
        let mut encoded = Vec::new();
        wire::put_labels(labels, &mut encoded);
        Self { query: query as i64, labels: encoded, chunks: Vec::new(), chunk: XorChunk::new(), frames: Vec::new() }
    }

    /// Adds the next sample.
    pub fn push(&mut self, ms: i64, value: f64) {
        self.chunk.push(ms, value);
        if self.chunk.count == CHUNK_SAMPLES {
            self.close_chunk();
            if self.chunks.len() >= FRAME_BYTES {
                self.close_frame();
            }
        }
    }

    /// Ends the series; a series without samples has no frame.
    pub fn finish(&mut self) {
        if self.chunk.count > 0 {
            self.close_chunk();
        }
        if !self.chunks.is_empty() {
            self.close_frame();
        }
    }

    /// Ends a series that is listed without samples.
    pub fn finish_empty(&mut self) {
        self.close_frame();
    }

    fn close_chunk(&mut self) {
        let chunk = std::mem::replace(&mut self.chunk, XorChunk::new());
        wire::put_bytes(2, &chunk.message(), &mut self.chunks);
    }

    fn close_frame(&mut self) {
        let mut series = Vec::with_capacity(self.labels.len() + self.chunks.len());
        series.extend_from_slice(&self.labels);
        series.append(&mut self.chunks);
        let mut message = Vec::with_capacity(series.len() + 16);
        wire::put_bytes(1, &series, &mut message);
        wire::put_int(2, self.query, &mut message);
        wire::put_varint(message.len() as u64, &mut self.frames);
        self.frames.extend_from_slice(&crc32c::crc32c(&message).to_be_bytes());
        self.frames.append(&mut message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_what_prometheus_writes() {
        // Written by `chunkenc.XORChunk` of Prometheus 2.42.
        const WRITTEN: &str = "000b80a0abfef9623ff8000000000000e807309dffec000e03e002dfff58013399e70fdffc000000000000e8cc44071f\
            90f22001d67f8000000000079f2c61fffc94511a57c4362ffffffffffff860d45f955b87f0be3cd67c0000005d21db90627fd8000000000001ff\
            fffffd16f1230030000000000112e0c0";
        let times = [
            1_700_000_000_000,
            1_700_000_001_000,
            1_700_000_002_000,
            1_700_000_003_001,
            1_700_000_004_000,
            1_700_000_064_000,
            1_700_000_065_000,
            1_700_001_065_000,
            1_700_001_066_000,
            1_800_001_066_000,
            1_800_001_066_001,
        ];
        let stale = super::super::samples::stale();
        let values = [1.5, 1.5, 2.25, -3.0, 0.0, stale, 1e300, 1e-300, f64::INFINITY, 7.0, 7.000000001];
        let mut chunk = XorChunk::new();
        times.iter().zip(values).for_each(|(time, value)| chunk.push(*time, value));
        let found: String = chunk.bits.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("{:04x}{found}", chunk.count), WRITTEN);
    }

    #[test]
    fn a_series_is_cut_into_chunks_and_frames() {
        let labels = [("__name__".to_owned(), "x".to_owned())];
        let mut series = XorSeries::new(3, &labels);
        (0..100_000).for_each(|at| series.push(at * 1000, (at as f64).sin()));
        series.finish();
        let (mut rest, mut frames) = (&series.frames[..], 0);
        while !rest.is_empty() {
            let mut length = 0usize;
            for shift in (0..).step_by(7) {
                let byte = rest[0];
                rest = &rest[1..];
                length |= usize::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            let (crc, message) = (&rest[..4], &rest[4..4 + length]);
            assert_eq!(crc, crc32c::crc32c(message).to_be_bytes());
            assert!(message.len() < 2 * FRAME_BYTES && message.ends_with(&[2 << 3, 3]));
            rest = &rest[4 + length..];
            frames += 1;
        }
        assert!(frames > 2, "{frames}");
        let mut none = XorSeries::new(0, &labels);
        none.finish();
        assert!(none.frames.is_empty());
    }
}
