//! The `sensor` column of a block: one dictionary entry and one run a sensor, so that writing it costs almost nothing. The library's writer would
//! hash the path of every row.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder};
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescPtr;
use wholegrain_model::schema::put_varint;

use super::page::ChunkBytes;

/// Rows of one data page; its content is runs, so even a long page is a few bytes.
const PAGE_ROWS: u64 = 1 << 18;

/// Collects the paths and runs of one row group.
#[derive(Default)]
pub(crate) struct SensorColumn {
    paths: Vec<String>,
    runs: Vec<u64>,
}

impl SensorColumn {
    /// Adds `rows` rows of `path`; the rows of a path are consecutive.
    pub fn push(&mut self, path: &str, rows: u64) {
        match (self.paths.last(), self.runs.last_mut()) {
            (Some(last), Some(run)) if last == path => *run += rows,
            _ => {
                self.paths.push(path.to_owned());
                self.runs.push(rows);
            }
        }
    }

    /// The column chunk: its bytes, and its entry in the footer.
    pub fn finish(self, descr: &ColumnDescPtr, level: i32) -> Result<(Bytes, ColumnCloseResult)> {
        let mut bytes = ChunkBytes::default();
        let (mut compressed, mut uncompressed) = (0, 0);
        let mut write = |page: Page, size: usize| -> Result<u64> {
            let spec = bytes.write_page(CompressedPage::new(page, size))?;
            compressed += spec.compressed_size;
            uncompressed += spec.uncompressed_size;
            Ok(spec.bytes_written)
        };
        let (page, size) = self.dictionary_page(level)?;
        let dictionary_bytes = write(page, size)?;
        let mut offset = dictionary_bytes;
        let mut index = OffsetIndexBuilder::new();
        let mut total = 0;
        for (rows, content) in self.pages() {
            let page = data_page(rows, &content, level)?;
            let length = write(page, content.len())?;
            index.append_row_count(rows.cast_signed());
            index.append_offset_and_size(offset.cast_signed(), i32::try_from(length).unwrap_or(i32::MAX));
            index.append_unencoded_byte_array_data_bytes(None);
            offset += length;
            total += rows;
        }
        let edge = |path: Option<&String>| path.map(|path| ByteArray::from(path.as_bytes().to_vec()));
        let (min, max) = (edge(self.paths.iter().min()), edge(self.paths.iter().max()));
        let metadata = ColumnChunkMetaData::builder(descr.clone())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(level)?))
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY])
            .set_num_values(total.cast_signed())
            .set_total_compressed_size(compressed as i64)
            .set_total_uncompressed_size(uncompressed as i64)
            .set_dictionary_page_offset(Some(0))
            .set_data_page_offset(dictionary_bytes.cast_signed())
            .set_statistics(Statistics::byte_array(min, max, Some(self.paths.len() as u64), Some(0), false))
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: offset,
            rows_written: total,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: Some(index.build()),
        };
        Ok((bytes.take(), close))
    }

    fn dictionary_page(&self, level: i32) -> Result<(Page, usize)> {
        let mut content = Vec::new();
        for path in &self.paths {
            content.extend_from_slice(&u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes());
            content.extend_from_slice(path.as_bytes());
        }
        let page = Page::DictionaryPage {
            buf: compress(&content, level)?,
            num_values: u32::try_from(self.paths.len()).unwrap_or(u32::MAX),
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        Ok((page, content.len()))
    }

    /// The rows and the content of each data page: the width of an index in bits, then runs (parquet-format, Encodings.md, "RLE").
    fn pages(&self) -> Vec<(u64, Vec<u8>)> {
        // At least one bit: a width of 0 is allowed and not every reader knows it.
        let width = (usize::BITS - self.paths.len().saturating_sub(1).leading_zeros()).max(1);
        let mut pages = vec![(0, vec![width as u8])];
        for (path, &run) in (0u32..).zip(&self.runs) {
            let mut left = run;
            while left > 0 {
                if pages.last().is_some_and(|(rows, _)| *rows == PAGE_ROWS) {
                    pages.push((0, vec![width as u8]));
                }
                let Some((rows, content)) = pages.last_mut() else { break };
                let part = left.min(PAGE_ROWS - *rows);
                put_varint(part << 1, content);
                content.extend_from_slice(&path.to_le_bytes()[..width.div_ceil(8) as usize]);
                *rows += part;
                left -= part;
            }
        }
        pages
    }
}

fn data_page(rows: u64, content: &[u8], level: i32) -> Result<Page> {
    Ok(Page::DataPage {
        buf: compress(content, level)?,
        num_values: u32::try_from(rows).unwrap_or(u32::MAX),
        encoding: Encoding::RLE_DICTIONARY,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    })
}

fn compress(content: &[u8], level: i32) -> Result<Bytes> {
    zstd::bulk::compress(content, level).map(Bytes::from).map_err(|error| ParquetError::External(Box::new(error)))
}
