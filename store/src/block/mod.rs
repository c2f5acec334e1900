//! Blocks: Parquet files of sealed readings, sorted by sensor and then by time. `FORMAT.md` describes them.

pub(crate) mod cache;
pub(crate) mod draft;
pub(crate) mod drafts;
pub(crate) mod file;
pub(crate) mod find;
pub(crate) mod index;
pub(crate) mod lines;
pub(crate) mod page;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod rows;
pub(crate) mod runs;
mod same_times;
pub(crate) mod sensor_column;
mod time_column;
pub(crate) mod tombstones;
pub(crate) mod windows;
pub(crate) mod write;

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Version of the files of blocks and tiers; another one is refused.
pub(crate) const FORMAT_VERSION: u64 = 1;

/// Approximate rows of a data page of `value`: a page ends at the first sensor's end at or after this many, and never has more than twice as many.
/// A scan of one sensor decodes whole pages.
pub(crate) const PAGE_ROWS: usize = 8_192;
/// Rows of a page of times. Sensors of a group have the same times, so a page repeats itself with every sensor: the more it holds, the less the
/// times cost. 131,072 rows are 1 MiB before compression.
pub(crate) const TIME_PAGE_ROWS: usize = 131_072;
/// Rows of a row group: what other readers prune by their statistics, and what a writer holds in memory (compressed).
pub(crate) const GROUP_ROWS: u64 = 1 << 20;

/// The path of a file in the catalogue: blocks are below `blocks/`, tiers below `tiers/` beside it.
pub(crate) fn locate(blocks: &Path, path: &str) -> PathBuf {
    match blocks.parent() {
        Some(dir) if path.starts_with(crate::block::windows::TIERS_DIR) => dir.join(path),
        _ => blocks.join(path),
    }
}

/// Converts an error of the library. An error of the system stays an I/O error, so that a full disk is recognised; one that the bytes caused (a
/// decompressor's error, an early end) is damage.
pub(crate) fn fault(doing: &'static str, path: &std::path::Path, error: ParquetError) -> crate::StoreError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) if error.raw_os_error().is_some() => crate::StoreError::io(doing, path, *error),
            Ok(error) => crate::StoreError::damaged(path, error.to_string()),
            Err(error) => crate::StoreError::damaged(path, error.to_string()),
        },
        error => crate::StoreError::damaged(path, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wholegrain_model::{Column, ColumnValues, Gaps, ValueType};

    use super::read::{Block, OpenBlock};
    use super::rows::RowReader;
    use super::same_times::SameTimes;
    use super::write::BlockWriter;
    use crate::block::record::{BlockKind, BlockRecord, BlockSummary};
    use crate::disk::{Disk, RealDisk};
    use crate::maintenance::verify::check_file;
    use crate::{Chunk, StoreError};

    fn column(values: &[i64]) -> Column {
        Column { values: ColumnValues::Int(values.to_vec()), gaps: Gaps::default() }
    }

    fn record(written: &BlockSummary) -> BlockRecord {
        let value_type = ValueType::Int;
        let kind = BlockKind { value_type, day: Some(0), level: 0, first_segment: 1, last_segment: 1, import: 0 };
        BlockRecord { sums: None, ..kind.record(1, "a.parquet".to_owned(), None, written) }
    }

    #[test]
    fn times_are_shared_where_they_are_the_same_and_wrongly_shared_ones_are_found() {
        let times: [(&str, &[i64]); 4] =
            [("/a", &[1, 3, 5]), ("/b", &[1, 3, 5]), ("/c", &[1, 4, 5]), ("/d", &[1, 4, 5])];
        for lies in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.parquet");
            let mut writer = BlockWriter::create(&RealDisk, &path, ValueType::Int, 1).unwrap();
            for (sensor, times) in times {
                writer.push(sensor, &times[..1], &column(&[times[0]])).unwrap();
                writer.push(sensor, &times[1..], &column(&times[1..])).unwrap();
            }
            if lies {
                writer.times = SameTimes::default();
                for (_, shared) in [times[0], times[0], times[0], times[2]] {
                    writer.times.end_sensor();
                    writer.times.push(shared);
                }
            }
            let record = record(&writer.finish().unwrap());
            let disk: Arc<dyn Disk> = Arc::new(RealDisk);
            let block = Block::new(record, dir.path(), disk.clone(), Arc::default());
            let opened = Arc::new(OpenBlock::open(&block).unwrap());
            let rows = |at: usize| {
                let found = opened.found(at);
                let mut reader = RowReader::of(opened.clone(), None, found);
                let from_3 = reader.seek(found.start, found.start + found.rows, 3).unwrap() - found.start;
                (found.times, from_3, reader.read(found.start, found.rows).unwrap())
            };
            let of = |first: u64, (_, times): (&str, &[i64]), values: &[i64]| {
                (first, 1, Chunk { times: times.to_vec(), column: column(values) })
            };
            assert_eq!(rows(1), of(0, times[0], times[1].1));
            if lies {
                assert_eq!(rows(2), of(0, times[0], times[2].1), "this is what a lie would do");
                let found = check_file(&disk, &block).unwrap_err();
                assert!(found.contains("times of /c"), "{found}");
            } else {
                assert_eq!((rows(2), rows(3)), (of(6, times[2], times[2].1), of(6, times[2], times[3].1)));
                assert_eq!(check_file(&disk, &block), Ok(()));
            }
        }
    }

    #[test]
    fn a_block_of_a_newer_release_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mut writer = BlockWriter::create(&RealDisk, &path, ValueType::Int, 1).unwrap();
        writer.push("/n/x", &[5], &column(&[7])).unwrap();
        let record = record(&writer.finish().unwrap());
        let open = || OpenBlock::open(&Block::new(record.clone(), dir.path(), Arc::new(RealDisk), Arc::default()));
        assert_eq!(open().unwrap().entries().len(), 1);
        let mut content = std::fs::read(&path).unwrap();
        let key = b"wholegrain.version";
        let at = content.windows(key.len()).rposition(|window| window == key).unwrap() + key.len();
        // In Thrift's compact protocol: the next field's header, the length, the text.
        assert_eq!(content[at + 1..at + 3], [1, b'1']);
        for (text, newer) in [(b'2', true), (b'0', false), (b'x', false)] {
            content[at + 2] = text;
            std::fs::write(&path, &content).unwrap();
            match open().unwrap_err() {
                StoreError::NewerVersion { found: 2, known: 1, .. } => assert!(newer),
                StoreError::Damaged { reason, .. } => assert!(!newer && reason.contains("version"), "{reason}"),
                other => panic!("{other}"),
            }
        }
    }
}
