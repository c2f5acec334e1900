//! Where a reading is in Cassandra: partitions by sub-tree and time, rows by band of columns and time.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use wholegrain_model::Schema;

/// The columns of a group that share rows.
pub const BAND_COLUMNS: usize = 16;
const SECOND_NS: i64 = 1_000_000_000;
/// The lengths of the times that a partition can hold, ns.
pub const BUCKET_LENGTHS: [i64; 4] = [86_400 * SECOND_NS, 3_600 * SECOND_NS, 300 * SECOND_NS, 20 * SECOND_NS];
/// No row crosses an edge of these parts of a bucket, so that a scan knows how far before its range a row can begin.
const CELLS: i64 = 24;

/// The tables of chunks: their names and how long their rows live in seconds; 0 is for ever.
pub const CLASSES: [(&str, i64); 4] = [("7d", 8 * 86_400), ("30d", 31 * 86_400), ("400d", 401 * 86_400), ("ever", 0)];

/// The index of the bucket with this time, in buckets of the length number `span`.
pub fn bucket_of(time: i64, span: u8) -> i32 {
    let bucket = time.div_euclid(BUCKET_LENGTHS[usize::from(span)]);
    // The smallest length is 20 s: every time of 64 bits in ns fits.
    i32::try_from(bucket).unwrap_or(if bucket < 0 { i32::MIN } else { i32::MAX })
}

/// The first time of a bucket and the first one after it.
pub fn bucket_times(bucket: i32, span: u8) -> (i64, i64) {
    let length = BUCKET_LENGTHS[usize::from(span)];
    let start = i64::from(bucket).saturating_mul(length);
    (start, start.saturating_add(length))
}

/// The first time of the cell with this time.
pub fn cell_of(time: i64, span: u8) -> i64 {
    let length = BUCKET_LENGTHS[usize::from(span)] / CELLS;
    time.div_euclid(length).saturating_mul(length)
}

/// The first time after the cell with this time.
pub fn cell_end(time: i64, span: u8) -> i64 {
    cell_of(time, span).saturating_add(BUCKET_LENGTHS[usize::from(span)] / CELLS)
}

/// Where the readings of a sensor are, but for the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SensorPlace {
    /// The sub-tree that is a partition.
    pub place: Arc<str>,
    /// A schema's hash, or that of a schemaless sensor's path.
    pub group: [u8; 16],
    pub band: i16,
    /// The column within the band.
    pub column: u8,
}

impl SensorPlace {
    /// Of a column of a schema.
    pub fn of_schema(schema: &Schema, column: usize, shard_levels: u8) -> Self {
        Self {
            place: shard(schema.prefix().as_str(), shard_levels).into(),
            group: schema.hash().0,
            band: i16::try_from(column / BAND_COLUMNS).unwrap_or(i16::MAX),
            column: (column % BAND_COLUMNS) as u8,
        }
    }

    /// Of a schemaless sensor: a band of its own below the level that it is in.
    pub fn of_path(path: &str, shard_levels: u8) -> Self {
        let above = path.rfind('/').filter(|at| *at > 0).map_or(path, |at| &path[..at]);
        let mut group = [0; 16];
        group.copy_from_slice(&Sha256::digest(path.as_bytes())[..16]);
        Self { place: shard(above, shard_levels).into(), group, band: 0, column: 0 }
    }
}

/// The sub-tree that holds a prefix: without the levels of a job, and at most `levels` levels (0: all).
fn shard(prefix: &str, levels: u8) -> &str {
    let prefix = prefix.find("/job/").filter(|at| *at > 0).map_or(prefix, |at| &prefix[..at]);
    if levels == 0 {
        return prefix;
    }
    let mut slashes = prefix.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
    slashes.nth(usize::from(levels)).map_or(prefix, |at| &prefix[..at])
}

#[cfg(test)]
mod tests {
    use wholegrain_model::SensorPath;
    use wholegrain_model::schema::SensorDef;

    use super::*;

    #[test]
    fn buckets_and_cells_cover_all_times() {
        for time in [i64::MIN, i64::MIN + 1, -1, 0, 1, 1_767_225_599_999_999_999, i64::MAX] {
            for span in 0..4 {
                let (start, end) = bucket_times(bucket_of(time, span), span);
                assert!(start <= time && (time < end || end == i64::MAX), "{time} {span}");
                let cell = cell_of(time, span);
                assert!(cell <= time && cell >= start && (time < cell_end(time, span) || time > i64::MAX - start));
            }
        }
        assert_eq!((bucket_of(-1, 0), bucket_of(0, 0)), (-1, 0));
        assert_eq!(cell_end(0, 0), 3_600 * SECOND_NS);
    }

    #[test]
    fn a_shard_is_a_sub_tree_without_jobs() {
        assert_eq!(shard("/hpc/r1/n1", 0), "/hpc/r1/n1");
        assert_eq!(shard("/hpc/r1/n1/job/17", 0), "/hpc/r1/n1");
        assert_eq!(shard("/hpc/r1/n1", 2), "/hpc/r1");
        assert_eq!(shard("/hpc", 2), "/hpc");
        assert_eq!(shard("/job/17", 0), "/job/17");
    }

    #[test]
    fn places() {
        let sensors = (0..40).map(|at| SensorDef::gauge(format!("s{at}"), "1", "")).collect();
        let schema = Schema::new(SensorPath::new("/hpc/n1").unwrap(), "cpu", sensors).unwrap();
        let place = SensorPlace::of_schema(&schema, 37, 1);
        assert_eq!((&*place.place, place.band, place.column), ("/hpc", 2, 5));
        assert_eq!(place.group, schema.hash().0);
        let single = SensorPlace::of_path("/hall/pump/power", 0);
        assert_eq!((&*single.place, single.band, single.column), ("/hall/pump", 0, 0));
        assert_ne!(single.group, SensorPlace::of_path("/hall/pump/flow", 0).group);
        assert_eq!(&*SensorPlace::of_path("/top", 0).place, "/top");
    }
}
