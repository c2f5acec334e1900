//! The `time` column of a block. Sensors of a group have the same times, so a page repeats itself with every sensor. How often it must repeat so
//! that times cost almost nothing depends on the times.
//!
//! Times on the ticks compress well by themselves, and short pages are faster to read. Samples of a busy machine are late by varying microseconds:
//! these times are noise, and only their repetition is cheap.

use std::sync::Arc;

use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::errors::Result;
use parquet::schema::types::ColumnDescPtr;
use wholegrain_model::ValueType;

use super::page::ChunkBytes;
use super::write::{ColumnChunk, TIME_ZSTD_LEVEL, properties};
use super::{GROUP_ROWS, TIME_PAGE_ROWS};

/// Sensors whose times a page holds if they are noise.
const REPEATS: usize = 64;
/// If times are on the ticks, at most one of this many differences between neighbours differs from the one before.
const UNSTEADY_PART: usize = 8;
/// The fastest level of zstd finds repetitions this far back, with some margin, in bytes.
const NEAR_BYTES: usize = 384 << 10;
/// Level of zstd if it must look further back.
const FAR_ZSTD_LEVEL: i32 = 3;

/// The column chunk that is being written. The first [`TIME_PAGE_ROWS`] decide the length of its pages.
pub(super) struct TimeColumn {
    descr: ColumnDescPtr,
    value_type: ValueType,
    early: Vec<i64>,
    writer: Option<ColumnChunk>,
}

impl TimeColumn {
    pub(crate) fn new(descr: ColumnDescPtr, value_type: ValueType) -> Self {
        Self { descr, value_type, early: Vec::new(), writer: None }
    }

    pub(crate) fn push(&mut self, times: &[i64]) -> Result<()> {
        if let Some((writer, _)) = &mut self.writer {
            return write(writer, times);
        }
        self.early.extend_from_slice(times);
        if self.early.len() >= TIME_PAGE_ROWS {
            self.writer = Some(self.begin()?);
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<ColumnChunk> {
        let early = std::mem::take(&mut self.early);
        let (rows, level) = page(&early);
        let props = Arc::new(properties(&[("value", self.value_type)], level, rows)?);
        let bytes = ChunkBytes::default();
        let mut writer = get_column_writer(self.descr.clone(), props, Box::new(bytes.clone()));
        write(&mut writer, &early)?;
        Ok((writer, bytes))
    }

    /// The complete writer, and its bytes.
    pub fn finish(mut self) -> Result<ColumnChunk> {
        match self.writer.take() {
            Some(begun) => Ok(begun),
            None => self.begin(),
        }
    }
}

fn write(writer: &mut ColumnWriter<'static>, times: &[i64]) -> Result<()> {
    if let ColumnWriter::Int64ColumnWriter(writer) = writer {
        writer.write_batch(times, None, None)?;
    }
    Ok(())
}

/// Rows of a page and the level of zstd, from the first times of several sensors.
fn page(times: &[i64]) -> (usize, i32) {
    let sensors = 1 + times.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    let unsteady = times.windows(3).filter(|three| three[2].wrapping_sub(three[1]) != three[1].wrapping_sub(three[0]));
    // Two at the begin of each sensor are no sign of noise.
    let noise = unsteady.count().saturating_sub(2 * sensors);
    if times.len() < TIME_PAGE_ROWS || noise * UNSTEADY_PART < times.len() {
        return (TIME_PAGE_ROWS, TIME_ZSTD_LEVEL);
    }
    let each = times.len() / sensors;
    let rows = (REPEATS * each).clamp(TIME_PAGE_ROWS, GROUP_ROWS as usize);
    (rows, if each * size_of::<i64>() > NEAR_BYTES { FAR_ZSTD_LEVEL } else { TIME_ZSTD_LEVEL })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many sensors with so many times each; late by up to so many ns.
    fn times(sensors: usize, each: usize, late: u64) -> Vec<i64> {
        let one =
            |at: usize| at as i64 * 100_000_000 + (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 % late as i64;
        (0..sensors).flat_map(|_| (0..each).map(one)).collect()
    }

    #[test]
    fn pages_are_long_only_where_times_are_noise() {
        assert_eq!(page(&times(15, 9_000, 1)), (TIME_PAGE_ROWS, TIME_ZSTD_LEVEL));
        assert_eq!(page(&times(15, 9_000, 9_000_000)), (64 * 9_000, TIME_ZSTD_LEVEL));
        assert_eq!(page(&times(220, 600, 9_000_000)), (TIME_PAGE_ROWS, TIME_ZSTD_LEVEL), "64 of 600 fit anyway");
        assert_eq!(page(&times(2, 86_400, 9_000_000)), (GROUP_ROWS as usize, FAR_ZSTD_LEVEL));
        assert_eq!(page(&times(3, 100, 9_000_000)), (TIME_PAGE_ROWS, TIME_ZSTD_LEVEL), "too few to tell");
    }
}
