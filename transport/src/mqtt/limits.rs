//! Sizes and counts that a packet may have.

/// The largest remaining length, which has four bytes.
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;
/// The longest text or binary field, in bytes.
pub const FIELD_BYTES_MAX: usize = 65_535;
/// The most properties of one packet, or of its will. A property of two bytes occupies more than thirty times as much memory.
pub const PROPERTIES_MAX: usize = 1024;
/// The most topic filters of one SUBSCRIBE or UNSUBSCRIBE, for the same reason.
pub const FILTERS_MAX: usize = 16_384;
