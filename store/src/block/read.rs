//! Reads a block: its footer and index once, then single pages. `rows.rs` reads rows.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type as PhysicalType};
use parquet::column::page::{Page, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader as _, FileReader as _};
use parquet::file::serialized_reader::{SerializedFileReader, SerializedPageReader};
use wholegrain_model::{ColumnValues, Gaps, ValueType};

use super::file::{BlockFile, OnePage};
use super::find::{RecentPlaces, SensorRows};
use super::index::{self, INDEX_KEY, IndexEntry, VERSION_KEY};
use super::page::read_header;
use super::same_times::{self, TIMES_KEY};
use super::{FORMAT_VERSION, fault, locate};
use crate::StoreError;
use crate::block::lines::{self, LINES_KEY};
use crate::block::record::{BlockRecord, FileChecksums};
use crate::block::windows::LineSpacings;
use crate::chunk::CHUNK_ROWS;
use crate::disk::Disk;

/// The most bytes of a row in a page before compression, and of the rest of a page.
const ROW_BYTES_MAX: usize = 16;
const PAGE_BYTES_MORE: usize = 1024;

/// One block or tier. Its file is removed when the last reader is done, if [`Block::remove_when_unused`] was called.
#[derive(Debug)]
pub(crate) struct Block {
    pub record: BlockRecord,
    pub path: PathBuf,
    file: Arc<SharedBlockFile>,
    /// Which retention rules apply to its rows, once that was asked, with the generation of the rules.
    pub shares: Mutex<Option<(u64, Arc<[RuleShare]>)>>,
}

/// The state of one file, shared by all blocks with it, also after its record in the catalogue has changed.
#[derive(Debug)]
struct SharedBlockFile {
    id: u64,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    is_unused: AtomicBool,
    damaged: AtomicBool,
    removed: Arc<RemovedBlocks>,
}

/// Blocks whose files are removed, with their directories. The catalogue may drop the entry when the directory is synced: otherwise a crash
/// could bring the file back without an entry.
pub(crate) type RemovedBlocks = Mutex<Vec<(u64, PathBuf)>>;

impl Block {
    pub(crate) fn new(record: BlockRecord, blocks: &Path, disk: Arc<dyn Disk>, removed: Arc<RemovedBlocks>) -> Self {
        let path = locate(blocks, &record.path);
        let (is_unused, damaged) = (AtomicBool::new(false), AtomicBool::new(false));
        let file = Arc::new(SharedBlockFile { id: record.id, path: path.clone(), disk, is_unused, damaged, removed });
        Self { record, path, file, shares: Mutex::default() }
    }

    /// The same file with another record.
    pub fn with_record(&self, record: BlockRecord) -> Self {
        Self { record, path: self.path.clone(), file: self.file.clone(), shares: Mutex::default() }
    }

    /// Has the file removed when the last reader is done.
    pub fn remove_when_unused(&self) {
        self.file.is_unused.store(true, Relaxed);
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.file.damaged.load(Relaxed)
    }

    /// Leaves the block out of all answers from now on, and logs it once.
    pub fn mark_damaged(&self, error: &StoreError) {
        if !self.file.damaged.swap(true, Relaxed) {
            tracing::error!(block = %self.path.display(), rows = self.record.rows, %error, "block left out of answers");
        }
    }
}

impl Drop for SharedBlockFile {
    fn drop(&mut self) {
        if self.is_unused.load(Relaxed) {
            match self.disk.remove(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(block = %self.path.display(), %error, "cannot remove; tried again at the next start");
                }
                _ => {
                    let dir = self.path.parent().unwrap_or(&self.path).to_owned();
                    self.removed.lock().unwrap_or_else(PoisonError::into_inner).push((self.id, dir));
                }
            }
        }
    }
}

/// A page of a column other than `sensor`.
#[derive(Debug, Clone)]
pub(super) struct PageRef {
    pub(super) first_row: u64,
    pub(super) rows: usize,
    group: usize,
    location: PageLocation,
}

/// The decoded content of a page; only `value` has gaps.
#[derive(Debug)]
pub(super) struct DecodedPage {
    pub(super) values: ColumnValues,
    pub(super) gaps: Gaps,
}

/// The columns that are read; the index replaces `sensor`.
pub(super) const TIME: usize = 0;
pub(super) const VALUE: usize = 1;
/// Columns that are read: of a block `time` and `value`; of a tier `time`, `min`, `max`, `sum`, `count`, `first`, `last`, `first_after`,
/// `last_after`, `covered`, `uneven`, `edges`.
const BLOCK_COLUMNS: usize = 2;
const TIER_COLUMNS: usize = 12;
/// The first of a tier's columns that describe the lines between its values.
const LINES: usize = 7;
/// The tier's column with the number of values.
pub(super) const COUNT: usize = 4;
/// The tier's column that holds floats whatever the values are; those next to it hold integers.
pub(super) const UNEVEN: usize = 10;

/// A block with its footer read.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    reader: Arc<BlockFile>,
    pub(super) value_type: ValueType,
    entries: Vec<IndexEntry>,
    starts: Vec<u64>,
    /// For each sensor the first one of the run with the same times; empty if each sensor has its own times.
    same_times: Vec<u32>,
    /// For a tier: what each sensor's lines depend on.
    drawn: Vec<LineSpacings>,
    pub(super) pages: Vec<Vec<PageRef>>,
    groups: Vec<Vec<ColumnChunkMetaData>>,
    last_found: RecentPlaces,
}

impl OpenBlock {
    /// Opens it for one pass; [`super::cache::BlockCache`] keeps blocks open.
    pub fn open_once(block: &Block) -> Result<Arc<Self>, StoreError> {
        Self::open(block).map(Arc::new)
    }

    pub(crate) fn open(block: &Block) -> Result<Self, StoreError> {
        let opened = Self::open_unknown(block)?;
        if opened.rows() != block.record.rows {
            return Err(StoreError::damaged(&block.path, "its index and its pages have different numbers of rows"));
        }
        Ok(opened)
    }

    fn rows(&self) -> u64 {
        self.entries.iter().map(|entry| entry.rows).sum()
    }

    /// The checksums of this file's content.
    pub fn sums_of(&self, content: &[u8]) -> FileChecksums {
        let ends = self.pages.iter().flatten();
        let ends = ends.map(|page| page.location.offset + i64::from(page.location.compressed_page_size));
        let tail_at = ends.max().unwrap_or(4).cast_unsigned().min(content.len() as u64);
        FileChecksums { file: crc32c::crc32c(content), tail_at, tail: crc32c::crc32c(&content[tail_at as usize..]) }
    }

    /// Opens a file with an unknown number of rows.
    pub fn open_unknown(block: &Block) -> Result<Self, StoreError> {
        let path = &block.path;
        let file = block.file.disk.open(path, false).map_err(|error| StoreError::io("opening", path, error))?;
        let size = file.size().map_err(|error| StoreError::io("opening", path, error))?;
        if size != block.record.bytes {
            return Err(StoreError::damaged(path, format!("it has {size} bytes, {} were written", block.record.bytes)));
        }
        let reader = Arc::new(BlockFile::new(file, &block.record, path)?);
        let metadata = ParquetMetaDataReader::new()
            .with_offset_index_policy(PageIndexPolicy::Required)
            .parse_and_finish(reader.as_ref())
            .map_err(|error| fault("reading", path, error))?;
        check_version(path, &metadata)?;
        let entries = read_index(&metadata).map_err(|reason| StoreError::damaged(path, reason))?;
        let mut starts = Vec::with_capacity(entries.len());
        let mut rows = 0u64;
        for entry in &entries {
            starts.push(rows);
            rows = rows.saturating_add(entry.rows);
        }
        let same_times = match pair(&metadata, TIMES_KEY) {
            Some(text) => same_times::decode(text, &entries).map_err(|reason| StoreError::damaged(path, reason))?,
            None => Vec::new(),
        };
        let is_tier = block.record.tier.is_some();
        let drawn = match pair(&metadata, LINES_KEY) {
            _ if !is_tier => Ok(Vec::new()),
            Some(text) => lines::decode(text, entries.len()),
            None => Err("its footer does not say what its lines depend on"),
        };
        let drawn = drawn.map_err(|reason| StoreError::damaged(path, reason))?;
        let mut opened = Self {
            id: block.record.id,
            path: path.clone(),
            reader,
            value_type: block.record.value_type,
            entries,
            starts,
            same_times,
            drawn,
            pages: vec![Vec::new(); if is_tier { TIER_COLUMNS } else { BLOCK_COLUMNS }],
            groups: Vec::new(),
            last_found: RecentPlaces::default(),
        };
        opened.read_pages(&metadata).map_err(|reason| StoreError::damaged(path, reason))?;
        let covered = |pages: &[PageRef]| pages.last().map_or(0, |page| page.first_row + page.rows as u64);
        if opened.pages.iter().any(|pages| covered(pages) != rows) {
            return Err(StoreError::damaged(path, "its index and its pages have different numbers of rows"));
        }
        Ok(opened)
    }

    fn read_pages(&mut self, metadata: &ParquetMetaData) -> Result<(), &'static str> {
        let mut group_start = 0u64;
        for (group, row_group) in metadata.row_groups().iter().enumerate() {
            let Some((_, columns)) = row_group.columns().split_first() else { return Err("it has no columns") };
            if columns.len() != self.pages.len() {
                return Err("it has another number of columns than a file of its kind");
            }
            self.check_types(columns)?;
            self.groups.push(columns.to_vec());
            let group_rows = u64::try_from(row_group.num_rows()).map_err(|_| "a row group of negative length")?;
            let index = metadata.page_index_for_row_group(group);
            for column in 0..columns.len() {
                let locations = index.offset_index(column + 1).ok_or("it has no page index")?.page_locations();
                for (at, location) in locations.iter().enumerate() {
                    let start = location.first_row_index.cast_unsigned();
                    let end = locations.get(at + 1).map_or(group_rows, |next| next.first_row_index.cast_unsigned());
                    let rows = end.checked_sub(start).filter(|rows| *rows <= group_rows).ok_or("pages out of order")?;
                    self.pages[column].push(PageRef {
                        first_row: group_start + start,
                        rows: rows as usize,
                        group,
                        location: location.clone(),
                    });
                }
            }
            group_start += group_rows;
        }
        Ok(())
    }

    /// A page's header has no checksum: it must say what was written.
    fn checked(&self, page: Option<Page>, column: usize, rows: usize) -> ParquetResult<Page> {
        let expected = match column {
            TIME => Encoding::PLAIN,
            _ if self.is_integer(column) => Encoding::DELTA_BINARY_PACKED,
            _ => Encoding::BYTE_STREAM_SPLIT,
        };
        match page {
            Some(Page::DataPage { num_values, encoding, def_level_encoding, .. })
                if num_values as usize != rows || encoding != expected || def_level_encoding != Encoding::RLE =>
            {
                Err(ParquetError::General("a page's header is not the one that was written".to_owned()))
            }
            Some(page @ Page::DataPage { .. }) => Ok(page),
            _ => Err(ParquetError::General("a page of data is missing".to_owned())),
        }
    }

    /// Whether a column is of integers.
    fn is_integer(&self, column: usize) -> bool {
        match column {
            TIME | COUNT | LINES.. => column != UNEVEN,
            _ => self.value_type == ValueType::Int,
        }
    }

    fn check_types(&self, columns: &[ColumnChunkMetaData]) -> Result<(), &'static str> {
        for (at, column) in columns.iter().enumerate() {
            let expected = if self.is_integer(at) { PhysicalType::INT64 } else { PhysicalType::DOUBLE };
            if column.column_type() != expected {
                return Err("a column has another type than was written");
            }
        }
        Ok(())
    }

    /// What the lines of a sensor's windows depend on; `None` if the tier has no windows of the sensor.
    pub fn drawn(&self, path: &str) -> Option<LineSpacings> {
        self.last_found.find(&self.entries, path).and_then(|at| self.drawn.get(at)).copied()
    }

    /// The same for one of the [`OpenBlock::entries`] of a tier.
    pub fn drawn_at(&self, at: usize) -> LineSpacings {
        self.drawn[at]
    }

    /// Every sensor's rows, in row order.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Finds a sensor's rows.
    pub fn find(&self, path: &str) -> Option<SensorRows> {
        self.last_found.find(&self.entries, path).map(|at| self.found(at))
    }

    /// The rows of one of [`OpenBlock::entries`].
    pub fn found(&self, at: usize) -> SensorRows {
        let &IndexEntry { rows, first_time, last_time, .. } = &self.entries[at];
        let times = self.same_times.get(at).map_or(at, |first| *first as usize);
        SensorRows { start: self.starts[at], times: self.starts[times], rows, first_time, last_time }
    }

    /// Compares the column of names, which queries do not need, with the index.
    pub fn check_sensors(&self) -> Result<Result<(), String>, StoreError> {
        let read = || -> ParquetResult<Result<(), String>> {
            let file = SerializedFileReader::new(self.reader.as_ref().clone())?;
            let mut expected =
                self.entries.iter().filter(|entry| entry.rows > 0).map(|entry| (entry.path.as_bytes(), entry.rows));
            let mut left: Option<(&[u8], u64)> = None;
            for group in 0..file.num_row_groups() {
                let ColumnReader::ByteArrayColumnReader(mut column) =
                    file.get_row_group(group)?.get_column_reader(0)?
                else {
                    return Ok(Err("its sensors are no text".to_owned()));
                };
                loop {
                    let mut names: Vec<ByteArray> = Vec::new();
                    if column.read_records(CHUNK_ROWS, None, None, &mut names)?.0 == 0 {
                        break;
                    }
                    for name in &names {
                        if left.is_none_or(|(_, rows)| rows == 0) {
                            left = expected.next();
                        }
                        match &mut left {
                            Some((path, rows)) if *path == name.data() => *rows -= 1,
                            _ => return Ok(Err("its column of sensors is not what its index says".to_owned())),
                        }
                    }
                }
            }
            let ends = left.is_none_or(|(_, rows)| rows == 0) && expected.next().is_none();
            Ok(if ends { Ok(()) } else { Err("its column of sensors is shorter than its index".to_owned()) })
        };
        read().map_err(|error| fault("reading", &self.path, error))
    }

    pub(super) fn memory(&self) -> usize {
        let entries: usize = self.entries.iter().map(|entry| entry.path.len() + size_of::<IndexEntry>() + 8).sum();
        let pages: usize = self.pages.iter().map(Vec::len).sum();
        let same_times = self.same_times.len() * size_of::<u32>();
        let same_times = same_times + self.drawn.len() * size_of::<LineSpacings>();
        entries + same_times + pages * size_of::<PageRef>() + self.groups.len() * self.pages.len() * 1024
    }

    pub(super) fn decode(&self, column: usize, at: usize) -> Result<DecodedPage, StoreError> {
        self.decode_page(column, at).map_err(|error| fault("reading", &self.path, error))
    }

    fn decode_page(&self, column: usize, at: usize) -> ParquetResult<DecodedPage> {
        let page = &self.pages[column][at];
        let whole = &self.groups[page.group][column];
        if let Some(content) = self.page_as_written(page, whole)? {
            return self.values_of(content, column, page.rows, whole);
        }
        // Presents the chunk as if this page were all of it: the reader would take the bytes before it for a dictionary.
        let meta = whole
            .clone()
            .into_builder()
            .set_data_page_offset(page.location.offset)
            .set_dictionary_page_offset(None)
            .set_total_compressed_size(i64::from(page.location.compressed_page_size))
            .build()?;
        let location = PageLocation { first_row_index: 0, ..page.location.clone() };
        let mut pages = SerializedPageReader::new(self.reader.clone(), &meta, page.rows, Some(vec![location]))?;
        self.values_of(pages.get_next_page()?, column, page.rows, whole)
    }

    /// Decodes a page with a header as this crate writes it, without the preparations of the library's reader. `None` for any other.
    fn page_as_written(&self, page: &PageRef, whole: &ColumnChunkMetaData) -> ParquetResult<Option<Option<Page>>> {
        thread_local! {
            /// Creating one costs as much as using it.
            static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
        }
        let length = usize::try_from(page.location.compressed_page_size)?;
        let bytes = self.reader.get_bytes(u64::try_from(page.location.offset)?, length)?;
        let Some(head) = read_header(&bytes) else { return Ok(None) };
        let wrong = |what: &str| ParquetError::General(what.to_owned());
        if head.length + head.compressed != length || head.uncompressed > page.rows * ROW_BYTES_MAX + PAGE_BYTES_MORE {
            return Err(wrong("a page has another length than was written"));
        }
        let body = bytes.slice(head.length..);
        if crc32fast::hash(&body) != head.crc {
            return Err(wrong("a page does not have its checksum"));
        }
        let buf = match whole.compression() {
            Compression::UNCOMPRESSED => body,
            Compression::ZSTD(_) => ZSTD.with_borrow_mut(|zstd| -> ParquetResult<Bytes> {
                let failed = |error| ParquetError::External(Box::new(error));
                let zstd = match zstd {
                    Some(zstd) => zstd,
                    None => zstd.insert(zstd::bulk::Decompressor::new().map_err(failed)?),
                };
                Ok(zstd.decompress(&body, head.uncompressed).map_err(failed)?.into())
            })?,
            _ => return Ok(None),
        };
        if buf.len() != head.uncompressed {
            return Err(wrong("a page has fewer bytes than its header says"));
        }
        let (num_values, encoding) = (head.values, head.encoding);
        let levels = Encoding::RLE;
        Ok(Some(Some(Page::DataPage {
            buf,
            num_values,
            encoding,
            def_level_encoding: levels,
            rep_level_encoding: levels,
            statistics: None,
        })))
    }

    /// Decodes the values of a page.
    fn values_of(
        &self,
        content: Option<Page>,
        column: usize,
        page_rows: usize,
        whole: &ColumnChunkMetaData,
    ) -> ParquetResult<DecodedPage> {
        let content = self.checked(content, column, page_rows)?;
        let descr = whole.column_descr_ptr();
        let mut levels: Vec<i16> = Vec::new();
        let has_levels = descr.max_def_level() > 0;
        let short = || ParquetError::General("a page has fewer rows than the page index says".to_owned());
        if column == TIME && !has_levels {
            // PLAIN: the numbers themselves.
            let (times, rest) = content.buffer().as_chunks();
            (times.len() == page_rows && rest.is_empty()).then_some(()).ok_or_else(short)?;
            let times = times.iter().map(|time| i64::from_le_bytes(*time)).collect();
            return Ok(DecodedPage { values: ColumnValues::Int(times), gaps: Gaps::default() });
        }
        let pages: Box<dyn PageReader> = Box::new(OnePage(Some(content)));
        let (values, gaps) = if whole.column_type() == PhysicalType::INT64 {
            let mut values = Vec::with_capacity(page_rows);
            let mut reader = ColumnReaderImpl::<Int64Type>::new(descr, pages);
            let (rows, ..) = reader.read_records(page_rows, has_levels.then_some(&mut levels), None, &mut values)?;
            (rows == page_rows).then_some(()).ok_or_else(short)?;
            let gaps = spread(&mut values, &levels);
            (ColumnValues::Int(values), gaps)
        } else {
            let mut values = Vec::with_capacity(page_rows);
            let mut reader = ColumnReaderImpl::<DoubleType>::new(descr, pages);
            let (rows, ..) = reader.read_records(page_rows, has_levels.then_some(&mut levels), None, &mut values)?;
            (rows == page_rows).then_some(()).ok_or_else(short)?;
            let gaps = spread(&mut values, &levels);
            (ColumnValues::Float(values), gaps)
        };
        Ok(DecodedPage { values, gaps })
    }
}

/// Moves values to their rows, with 0 at the gaps.
fn spread<T: Copy + Default>(values: &mut Vec<T>, levels: &[i16]) -> Gaps {
    let mut gaps = Gaps::default();
    let rows = levels.len();
    if values.len() >= rows {
        return gaps;
    }
    let mut from = values.len();
    values.resize(rows, T::default());
    for row in (0..rows).rev() {
        if levels[row] == 0 {
            values[row] = T::default();
            gaps.set(row, rows);
        } else {
            from = from.saturating_sub(1);
            values[row] = values[from];
        }
    }
    gaps
}

fn pair<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref())
}

/// Refuses a file of a newer release, whose columns may have another meaning.
fn check_version(path: &Path, metadata: &ParquetMetaData) -> Result<(), StoreError> {
    let known = FORMAT_VERSION;
    let text = pair(metadata, VERSION_KEY).unwrap_or_default();
    match text.parse() {
        Ok(FORMAT_VERSION) => Ok(()),
        Ok(found) if found > known => Err(StoreError::NewerVersion { path: path.to_owned(), found, known }),
        _ => Err(StoreError::damaged(path, format!("its footer has no version of the format ({text:?})"))),
    }
}

fn read_index(metadata: &ParquetMetaData) -> Result<Vec<IndexEntry>, &'static str> {
    index::decode(pair(metadata, INDEX_KEY).ok_or("its footer has no index")?)
}

impl DecodedPage {
    pub(super) fn gaps_len(&self) -> usize {
        match &self.values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        }
    }
}

/// The part of a file to which one rule of retention applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleShare {
    /// Number of the rule, or the number of rules if none matches.
    pub rule: usize,
    pub rows: u64,
    pub last_time: i64,
}

/// A damaged block is left out of the answer; other errors (too many open files, a failing disk) are returned.
pub(crate) fn tolerate<T>(block: &Block, result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ StoreError::Damaged { .. }) => {
            block.mark_damaged(&error);
            Ok(None)
        }
        Err(StoreError::Io { error, path, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            block.mark_damaged(&StoreError::damaged(&path, "it is gone"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
