//! Lets the Parquet library read a block's file, and pages that were read already.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use crate::StoreError;
use crate::block::record::BlockRecord;
use crate::disk::DiskFile;

/// A file for the library.
#[derive(Debug, Clone)]
pub(crate) struct BlockFile {
    file: Arc<dyn DiskFile>,
    size: u64,
    /// The end of the file, in memory and checked, and its offset.
    tail: (u64, Bytes),
}

impl BlockFile {
    /// A file with the size that was written.
    pub fn new(file: Arc<dyn DiskFile>, record: &BlockRecord, path: &Path) -> Result<Self, StoreError> {
        let tail = read_tail(&file, record, path)?;
        Ok(Self { file, size: record.bytes, tail })
    }
}

impl Length for BlockFile {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for BlockFile {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let length = self.size.saturating_sub(start);
        Ok(Cursor::new(self.get_bytes(start, usize::try_from(length)?)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.size) {
            return Err(ParquetError::EOF(format!("bytes {start} to {start} + {length} of {}", self.size)));
        }
        if start >= self.tail.0 {
            let at = usize::try_from(start - self.tail.0)?;
            return Ok(self.tail.1.slice(at..at + length));
        }
        let mut bytes = vec![0; length];
        self.file.read_at(start, &mut bytes).map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(bytes.into())
    }
}

/// The page indexes and the footer, if the catalogue's checksum fits.
fn read_tail(file: &Arc<dyn DiskFile>, record: &BlockRecord, path: &Path) -> Result<(u64, Bytes), StoreError> {
    let Some(sums) = record.sums else { return Ok((record.bytes, Bytes::new())) };
    let length = record.bytes.checked_sub(sums.tail_at).and_then(|length| usize::try_from(length).ok());
    let mut tail = vec![0; length.ok_or_else(|| StoreError::damaged(path, "it is shorter than its pages"))?];
    file.read_at(sums.tail_at, &mut tail).map_err(|error| StoreError::io("reading", path, error))?;
    if crc32c::crc32c(&tail) != sums.tail {
        return Err(StoreError::damaged(path, "its footer does not have its checksum"));
    }
    Ok((sums.tail_at, tail.into()))
}

/// One page that was read already.
pub(crate) struct OnePage(pub Option<Page>);

impl Iterator for OnePage {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageReader for OnePage {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Ok(self.0.take())
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        Ok(None)
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0 = None;
        Ok(())
    }
}
