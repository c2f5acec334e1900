//! The native batch payload: samples of one group, column by column. `FORMAT.md` specifies every byte.
//!
//! - In: rows of 64-bit values ([`Rows`]) or a [`Batch`]; bytes from a network or a journal.
//! - Out: bytes; a [`Batch`], one column of it, its last row, or only its header.
//! - Never: a panic or an allocation beyond the named bounds, for any input.

mod decode;
mod encode;

pub use decode::{
    Checked, append_columns, check_batch, decode_batch, decode_column, decode_column_of, decode_columns_of,
    for_each_column, last_row, read_header, read_origin, read_times,
};
pub use encode::{BatchEncoder, Rows, encode_batch};

#[cfg(doc)]
use wholegrain_model::Batch;
use wholegrain_model::SchemaHash;
use wholegrain_model::batch::SAMPLES_MAX;

/// The largest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// The most values (samples times sensors) of one batch. A batch within this bound always fits [`PAYLOAD_BYTES_MAX`],
/// and a few bytes that claim many constant columns cannot make a decoder allocate more than this.
pub const VALUES_MAX: usize = 1 << 20;
/// The first bytes of every payload.
pub const MAGIC: [u8; 2] = *b"WG";
/// Version of the byte layout.
pub const VERSION: u8 = 1;

/// Header flag: all differences between successive times are equal and written once.
const FLAG_STEADY: u8 = 1;

/// The encodings of a column's values: the low four bits of a mode byte.
mod mode {
    /// Every sample is a gap: no bytes.
    pub const ABSENT: u8 = 0;
    /// All values equal the first.
    pub const INT_CONSTANT: u8 = 1;
    /// All differences equal one number.
    pub const INT_STEP: u8 = 2;
    /// Differences as zigzag varints.
    pub const INT_VARINT: u8 = 3;
    /// Differences less the smallest one, in as many bits each as the largest needs.
    pub const INT_PACKED: u8 = 4;
    /// A bit for each difference, and zigzag varints for those that are not 0.
    pub const INT_SPARSE: u8 = 5;
    /// All values equal the first.
    pub const FLOAT_CONSTANT: u8 = 6;
    /// Each XORed with the previous one, without its zero bytes at both ends.
    pub const FLOAT_XOR: u8 = 7;
    /// The first, then eight bytes each.
    pub const FLOAT_RAW: u8 = 8;
    /// Set when a gap bitmap precedes the values.
    pub const GAPS: u8 = 0x10;
    /// The mode and the gap flag of a mode byte; above them is the run's length.
    pub const MASK: u8 = 0x1f;
    /// The shift of the run's length less one.
    pub const RUN_SHIFT: u32 = 5;
    /// With this run length less one a varint follows, which is added to it.
    pub const RUN_MORE: u8 = 7;
}

/// The size and the times of a batch, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The number of samples, at least 1.
    pub samples: usize,
    /// The number of sensors, at least 1.
    pub sensors: usize,
    /// Time of the first sample, ns since the Unix epoch.
    pub first_time: i64,
    /// Time of the last sample, ns since the Unix epoch.
    pub last_time: i64,
}

/// Why bytes were refused as a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The bytes are not a payload of this version, are truncated, or are inconsistent.
    #[error("not a batch payload: {reason} at byte {offset}")]
    Malformed { reason: &'static str, offset: usize },
    /// A version that this program does not know.
    #[error("batch payload of version {0}, this program reads version {VERSION}; update the older side")]
    Version(u8),
    /// The payload names another schema.
    #[error("batch payload is of schema {payload}, asked to decode it with schema {schema}")]
    OtherSchema { payload: SchemaHash, schema: SchemaHash },
    /// The payload has another number of sensors than its schema, or a column of another type.
    #[error("batch payload does not fit its schema {schema}: {reason}")]
    Unfit { schema: SchemaHash, reason: String },
    /// The schema has no such sensor.
    #[error("no sensor {sensor} in a schema of {sensors}")]
    NoSuchSensor {
        /// The index of the sensor.
        sensor: usize,
        /// The number of sensors.
        sensors: usize,
    },
}

/// The most samples of a batch with this number of sensors: within [`SAMPLES_MAX`] and [`VALUES_MAX`], at least 1.
pub fn samples_max(sensors: usize) -> usize {
    (VALUES_MAX / sensors.max(1)).clamp(1, SAMPLES_MAX)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
