//! Parquet pages with a checksum: the library checks the CRC-32 of a page header but does not write it, and a flipped bit in a page must not become
//! a value.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::errors::{ParquetError, Result};

/// The bytes of a column chunk as far as they are written, shared between a column writer and who will place them in the file.
#[derive(Clone, Default)]
pub(crate) struct ChunkBytes(Arc<Mutex<Vec<u8>>>);

impl ChunkBytes {
    /// What was written; nothing is left behind.
    pub fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

impl PageWriter for ChunkBytes {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = out.len();
        write_header(&page, &mut out)?;
        let header_size = out.len() - start;
        out.extend_from_slice(page.data());
        let mut spec = PageWriteSpec::new();
        spec.page_type = page.page_type();
        spec.uncompressed_size = page.uncompressed_size() + header_size;
        spec.compressed_size = page.compressed_size() + header_size;
        spec.offset = start as u64;
        spec.bytes_written = (out.len() - start) as u64;
        spec.num_values = page.num_values();
        Ok(spec)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Types of Thrift's compact protocol (its specification, "struct encoding").
const I32: u8 = 5;
const STRUCT: u8 = 12;
const TRUE: u8 = 1;
const FALSE: u8 = 2;

/// Writes a PageHeader (parquet.thrift) in Thrift's compact protocol.
fn write_header(page: &CompressedPage, out: &mut Vec<u8>) -> Result<()> {
    let size = |bytes: usize| i32::try_from(bytes).map_err(|_| ParquetError::General("page over 2 GiB".to_owned()));
    let crc = crc32fast::hash(page.data());
    let kind = if page.compressed_page().is_dictionary_page() { 2 } else { 0 };
    field(1, I32, out);
    number(kind, out);
    field(1, I32, out);
    number(size(page.uncompressed_size())?, out);
    field(1, I32, out);
    number(size(page.compressed_size())?, out);
    field(1, I32, out);
    number(crc.cast_signed(), out);
    match page.compressed_page() {
        Page::DataPage { num_values, encoding, def_level_encoding, rep_level_encoding, .. } => {
            field(1, STRUCT, out);
            field(1, I32, out);
            number(size(*num_values as usize)?, out);
            for encoding in [encoding, def_level_encoding, rep_level_encoding] {
                field(1, I32, out);
                number(encoding_number(*encoding)?, out);
            }
        }
        Page::DictionaryPage { num_values, encoding, is_sorted, .. } => {
            field(3, STRUCT, out);
            field(1, I32, out);
            number(size(*num_values as usize)?, out);
            field(1, I32, out);
            number(encoding_number(*encoding)?, out);
            field(1, if *is_sorted { TRUE } else { FALSE }, out);
        }
        Page::DataPageV2 { .. } => return Err(ParquetError::General("pages of version 2 are not written".to_owned())),
    }
    out.extend_from_slice(&[0, 0]);
    Ok(())
}

/// What the header of a data page says.
pub(crate) struct PageHead {
    pub length: usize,
    pub uncompressed: usize,
    pub compressed: usize,
    pub crc: u32,
    pub values: u32,
    pub encoding: Encoding,
}

/// Reads the header of a data page as [`write_header`] writes it; `None` for any other.
pub(crate) fn read_header(bytes: &[u8]) -> Option<PageHead> {
    let mut at = 0;
    let int = |at: &mut usize| {
        (bytes.get(*at) == Some(&(1 << 4 | I32))).then_some(())?;
        *at += 1;
        let zigzag = u32::try_from(crate::ranges::get_varint(bytes, at)?).ok()?;
        Some((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    };
    let kind = int(&mut at)?;
    let (uncompressed, compressed, crc) = (int(&mut at)?, int(&mut at)?, int(&mut at)?);
    (kind == 0 && bytes.get(at) == Some(&(1 << 4 | STRUCT))).then_some(())?;
    at += 1;
    let values = int(&mut at)?;
    let encoding = int(&mut at)?;
    let levels = (int(&mut at)?, int(&mut at)?);
    (bytes.get(at..at + 2) == Some(&[0, 0]) && levels.0 == 3).then_some(())?;
    let encodings =
        [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::RLE_DICTIONARY, Encoding::BYTE_STREAM_SPLIT];
    Some(PageHead {
        length: at + 2,
        uncompressed: usize::try_from(uncompressed).ok()?,
        compressed: usize::try_from(compressed).ok()?,
        crc: crc.cast_unsigned(),
        values: u32::try_from(values).ok()?,
        encoding: encodings.into_iter().find(|known| encoding_number(*known).ok() == Some(encoding))?,
    })
}

/// A field's header: how far its number is from the one before, and its type.
fn field(delta: u8, kind: u8, out: &mut Vec<u8>) {
    out.push(delta << 4 | kind);
}

/// Appends a zigzag varint to `out`.
fn number(value: i32, out: &mut Vec<u8>) {
    let zigzag = ((value << 1) ^ (value >> 31)).cast_unsigned();
    wholegrain_model::schema::put_varint(u64::from(zigzag), out);
}

/// The number of an encoding in parquet.thrift, of those that are written here.
fn encoding_number(encoding: Encoding) -> Result<i32> {
    match encoding {
        Encoding::PLAIN => Ok(0),
        Encoding::RLE => Ok(3),
        #[expect(deprecated, reason = "the library names it for levels that a required column does not have")]
        Encoding::BIT_PACKED => Ok(4),
        Encoding::DELTA_BINARY_PACKED => Ok(5),
        Encoding::RLE_DICTIONARY => Ok(8),
        Encoding::BYTE_STREAM_SPLIT => Ok(9),
        other => Err(ParquetError::General(format!("encoding {other} is not written"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for encoding in [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT] {
            for rows in [1, 8_192, 131_072] {
                let page = Page::DataPage {
                    buf: Bytes::from(vec![7; 100 + rows as usize % 100]),
                    num_values: rows,
                    encoding,
                    def_level_encoding: Encoding::RLE,
                    rep_level_encoding: Encoding::RLE,
                    statistics: None,
                };
                let page = CompressedPage::new(page, 5_000);
                let mut bytes = Vec::new();
                write_header(&page, &mut bytes).unwrap();
                let head = read_header(&bytes).unwrap();
                assert_eq!((head.length, head.uncompressed, head.compressed), (bytes.len(), 5_000, page.data().len()));
                assert_eq!((head.values, head.encoding, head.crc), (rows, encoding, crc32fast::hash(page.data())));
                for end in 0..bytes.len() {
                    assert!(read_header(&bytes[..end]).is_none(), "cut at {end}");
                }
            }
        }
    }
}
