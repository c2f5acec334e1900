//! Writes tier files: as many as there are resolutions, beside the block that they are made from.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrow_schema::{DataType, Field, Schema as ArrowSchema, TimeUnit};
use parquet::arrow::encode_arrow_schema;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnDescPtr, ColumnPath, SchemaDescriptor};
use wholegrain_model::{Column, Interval, ValueType};

use super::build::AnyBuilder;
use super::{Rows, TIERS_DIR, TierOf, Windows, floor};
use crate::StoreError;
use crate::block::index::{IndexWriter, VERSION_KEY};
use crate::block::page::ChunkBytes;
use crate::block::read::OpenBlock;
use crate::block::rows::RowReader;
use crate::block::sensor_column::SensorColumn;
use crate::block::write::{FileSink, TIME_ZSTD_LEVEL, Written, finish_file};
use crate::block::{BLOCK_VERSION, GROUP_ROWS, PAGE_ROWS, TIME_PAGE_ROWS, fault};
use crate::catalogue::BlockRecord;
use crate::delete::cuts::kept_windows;
use crate::delete::rewrite::kind_of;
use crate::disk::Disk;
use crate::publish::{Finished, Kind, block_path};
use crate::store::Shared;

/// The columns after `sensor`.
const COLUMNS: [&str; 7] = ["time", "min", "max", "sum", "count", "first", "last"];

/// The tiers of one block on their way.
pub(crate) struct TierDrafts<'a> {
    shared: &'a Shared,
    kind: Kind,
    block: u64,
    builder: AnyBuilder,
    files: Vec<TierFile>,
    range: Option<(i64, i64)>,
}

struct TierFile {
    id: u64,
    resolution_ns: i64,
    temporary: PathBuf,
    writer: TierWriter,
}

impl<'a> TierDrafts<'a> {
    /// Begins a file for each resolution (finest first), of the block with number `block`.
    pub fn create(
        shared: &'a Shared,
        kind: Kind,
        block: u64,
        resolutions: &[i64],
    ) -> std::result::Result<Self, StoreError> {
        let builder = AnyBuilder::new(kind.value_type, resolutions);
        let mut drafts = Self { shared, kind, block, builder, files: Vec::new(), range: None };
        for &resolution_ns in resolutions {
            let id = shared.next_block.fetch_add(1, Relaxed);
            let temporary = shared.paths.temporary.join(format!("{id}.parquet"));
            let level = shared.config.seal_zstd_level;
            match TierWriter::create(shared.disk.as_ref(), &temporary, kind.value_type, level) {
                Ok(writer) => drafts.files.push(TierFile { id, resolution_ns, temporary, writer }),
                Err(error) => {
                    let _ = shared.disk.remove(&temporary);
                    drafts.discard();
                    return Err(error);
                }
            }
        }
        Ok(drafts)
    }

    /// The next readings of the sensor at hand.
    pub fn push(&mut self, times: &[i64], column: &Column) {
        let (Some(first), Some(last)) = (times.first(), times.last()) else { return };
        self.range = Some((self.range.map_or(*first, |range| range.0), *last));
        self.builder.push(times, column);
    }

    /// The sensor at hand was `path`, and the next begins.
    pub fn end_sensor(&mut self, path: &str) -> std::result::Result<(), StoreError> {
        let Some(range) = self.range.take() else { return Ok(()) };
        let windows = self.builder.finish();
        for (file, windows) in self.files.iter_mut().zip(&windows) {
            file.writer.push(path, windows, range)?;
        }
        self.builder.give_back(windows);
        Ok(())
    }

    /// Writes what is left. After an error nothing of it stays.
    pub fn finish(mut self) -> std::result::Result<Vec<Finished>, StoreError> {
        let mut finished: Vec<Finished> = Vec::new();
        while !self.files.is_empty() {
            let file = self.files.remove(0);
            match file.writer.finish() {
                Ok(written) => {
                    let tier = TierOf { resolution_ns: file.resolution_ns, block: self.block };
                    finished.push(Finished {
                        temporary: file.temporary,
                        record: record(self.kind, file.id, tier, &written),
                    });
                }
                Err(error) => {
                    let _ = self.shared.disk.remove(&file.temporary);
                    finished.iter().for_each(|file| file.discard(self.shared));
                    self.discard();
                    return Err(error);
                }
            }
        }
        Ok(finished)
    }

    /// Gives them up.
    pub fn discard(self) {
        for file in &self.files {
            let _ = self.shared.disk.remove(&file.temporary);
        }
    }
}

fn record(kind: Kind, id: u64, tier: TierOf, written: &Written) -> BlockRecord {
    let Kind { value_type, day, level, first_segment, last_segment, import } = kind;
    let name = Interval::from_ns(tier.resolution_ns.cast_unsigned());
    BlockRecord {
        id,
        path: format!("{TIERS_DIR}{name}/{}", block_path(id, value_type, written.first_time)),
        value_type,
        day,
        level,
        first_segment,
        last_segment,
        import,
        first_time: written.first_time,
        last_time: written.last_time,
        rows: written.rows,
        bytes: written.bytes,
        tier: Some(tier),
        trimmed: false,
        sums: Some(written.sums),
        cuts: Vec::new(),
    }
}

/// A tier's file once more without the windows that its cuts touch; `None` when there are none left.
pub(crate) fn without_cuts(
    shared: &Shared,
    old: &BlockRecord,
    opened: &Arc<OpenBlock>,
) -> std::result::Result<Option<Finished>, StoreError> {
    written_again(shared, old, opened, &|_| true)
}

fn written_again(
    shared: &Shared,
    old: &BlockRecord,
    opened: &Arc<OpenBlock>,
    wanted: &dyn Fn(usize) -> bool,
) -> std::result::Result<Option<Finished>, StoreError> {
    let Some(tier) = old.tier else { return Ok(None) };
    let id = shared.next_block.fetch_add(1, Relaxed);
    let temporary = shared.paths.temporary.join(format!("{id}.parquet"));
    let level = shared.config.seal_zstd_level;
    let write = || -> std::result::Result<Written, StoreError> {
        let mut writer = TierWriter::create(shared.disk.as_ref(), &temporary, old.value_type, level)?;
        let mut reader = RowReader::new(opened.clone(), None);
        let mut start = 0;
        for (at, entry) in opened.entries().iter().enumerate() {
            let (row, end) = (start, start + entry.rows);
            start = end;
            if !wanted(at) {
                continue;
            }
            let (first, last) = (entry.first_time, entry.last_time);
            let from = floor(first, tier.resolution_ns);
            for (lo, hi) in kept_windows(&old.cuts, &entry.path, from, last.saturating_add(1), tier.resolution_ns) {
                let row = if lo > from { reader.seek(row, end, lo)? } else { row };
                let end = if hi <= last { reader.seek(row, end, hi)? } else { end };
                let range = (first.max(lo), last.min(hi.saturating_sub(1)));
                writer.copy(&mut reader, &entry.path, row..end, range)?;
            }
        }
        writer.finish()
    };
    match write() {
        Ok(written) if written.entries == 0 => {
            let _ = shared.disk.remove(&temporary);
            Ok(None)
        }
        Ok(written) => {
            let record = record(kind_of(old), id, tier, &written);
            Ok(Some(Finished { temporary, record }))
        }
        Err(error) => {
            let _ = shared.disk.remove(&temporary);
            Err(error)
        }
    }
}

/// A damaged tier's file once more with the sensors whose windows can all be read; `None` when there are none.
pub(crate) fn salvaged(
    shared: &Shared,
    old: &BlockRecord,
    opened: &Arc<OpenBlock>,
) -> std::result::Result<Option<Finished>, StoreError> {
    let mut reader = RowReader::new(opened.clone(), None);
    let mut readable = |start: u64, end: u64| {
        let mut row = start;
        while row < end {
            match reader.read_windows(row, end - row) {
                Ok(windows) => row += windows.len() as u64,
                Err(StoreError::Damaged { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    };
    let (mut start, mut whole) = (0, Vec::new());
    for entry in opened.entries() {
        whole.push(readable(start, start + entry.rows)?);
        start += entry.rows;
    }
    written_again(shared, old, opened, &|at| whole[at])
}

/// One tier file being written.
struct TierWriter {
    path: PathBuf,
    file: SerializedFileWriter<FileSink>,
    columns: Vec<ColumnDescPtr>,
    props: WriterPropertiesPtr,
    time_props: WriterPropertiesPtr,
    level: i32,
    group: Option<Group>,
    index: IndexWriter,
}

/// The row group being filled.
struct Group {
    sensor: SensorColumn,
    columns: Vec<(ColumnWriter<'static>, ChunkBytes)>,
    rows: u64,
    /// Windows that wait until they are a page: most sensors have few.
    waiting: Option<Windows>,
}

impl TierWriter {
    fn create(
        disk: &dyn Disk,
        path: &Path,
        value_type: ValueType,
        level: i32,
    ) -> std::result::Result<Self, StoreError> {
        let file = disk.create(path).map_err(|error| StoreError::io("creating", path, error))?;
        let new = || -> Result<Self> {
            let value = match value_type {
                ValueType::Int => "INT64",
                ValueType::Float => "DOUBLE",
            };
            let text = format!(
                "message window {{
                    REQUIRED BYTE_ARRAY sensor (STRING);
                    REQUIRED INT64 time (TIMESTAMP(NANOS,true));
                    REQUIRED {value} min; REQUIRED {value} max; REQUIRED {value} sum;
                    REQUIRED INT64 count;
                    REQUIRED {value} first; REQUIRED {value} last;
                }}"
            );
            let schema = Arc::new(parse_message_type(&text)?);
            let descr = SchemaDescriptor::new(schema.clone());
            let props = Arc::new(properties(value_type, level, PAGE_ROWS)?);
            Ok(Self {
                path: path.to_owned(),
                file: SerializedFileWriter::new(FileSink::new(file), schema, props.clone())?,
                columns: (0..=COLUMNS.len()).map(|at| descr.column(at)).collect(),
                props,
                time_props: Arc::new(properties(value_type, TIME_ZSTD_LEVEL, TIME_PAGE_ROWS)?),
                level,
                group: None,
                index: IndexWriter::default(),
            })
        };
        new().map_err(|error| fault("creating", path, error))
    }

    /// All windows of one sensor, whose readings in the block are from `range.0` to `range.1`.
    fn push(&mut self, sensor: &str, windows: &Windows, range: (i64, i64)) -> std::result::Result<(), StoreError> {
        self.index.push(sensor, windows.len() as u64, range);
        self.push_rows(sensor, windows).map_err(|error| fault("writing", &self.path, error))
    }

    fn push_rows(&mut self, sensor: &str, windows: &Windows) -> Result<()> {
        for start in (0..windows.len()).step_by(PAGE_ROWS) {
            let end = windows.len().min(start + PAGE_ROWS);
            let group = self.group.get_or_insert_with(|| Group::new(&self.columns, &self.time_props, &self.props));
            group.push(sensor, windows, start, end)?;
            if group.rows >= GROUP_ROWS {
                finish_group(&mut self.group, &mut self.file, &self.columns, self.level)?;
            }
        }
        Ok(())
    }

    /// Windows of another file; further calls with the same path go on with it.
    fn copy(
        &mut self,
        reader: &mut RowReader,
        sensor: &str,
        rows: std::ops::Range<u64>,
        range: (i64, i64),
    ) -> std::result::Result<(), StoreError> {
        self.index.push(sensor, rows.end - rows.start, range);
        let mut row = rows.start;
        while row < rows.end {
            let windows = reader.read_windows(row, (rows.end - row).min(PAGE_ROWS as u64))?;
            row += windows.len() as u64;
            self.push_rows(sensor, &windows).map_err(|error| fault("writing", &self.path, error))?;
        }
        Ok(())
    }

    fn finish(mut self) -> std::result::Result<Written, StoreError> {
        let path = self.path.clone();
        let finished = finish_group(&mut self.group, &mut self.file, &self.columns, self.level);
        let written = finished.and_then(|()| finish_file(self.file, self.index));
        written.map_err(|error| fault("writing", &path, error))
    }
}

fn finish_group(
    group: &mut Option<Group>,
    file: &mut SerializedFileWriter<FileSink>,
    columns: &[ColumnDescPtr],
    level: i32,
) -> Result<()> {
    let Some(mut group) = group.take() else { return Ok(()) };
    group.flush()?;
    let mut row_group = file.next_row_group()?;
    let (bytes, close) = group.sensor.finish(&columns[0], level)?;
    row_group.append_column(&bytes, close)?;
    for (writer, bytes) in group.columns {
        let close = writer.close()?;
        row_group.append_column(&bytes.take(), close)?;
    }
    row_group.close()?;
    Ok(())
}

impl Group {
    fn new(columns: &[ColumnDescPtr], time_props: &WriterPropertiesPtr, props: &WriterPropertiesPtr) -> Self {
        let column = |(at, descr): (usize, &ColumnDescPtr)| {
            let bytes = ChunkBytes::default();
            let props = if at == 0 { time_props } else { props };
            (get_column_writer(descr.clone(), props.clone(), Box::new(bytes.clone())), bytes)
        };
        Self {
            sensor: SensorColumn::default(),
            columns: columns[1..].iter().enumerate().map(column).collect(),
            rows: 0,
            waiting: None,
        }
    }

    fn push(&mut self, sensor: &str, windows: &Windows, start: usize, end: usize) -> Result<()> {
        self.sensor.push(sensor, (end - start) as u64);
        self.rows += (end - start) as u64;
        let waiting = self.waiting.get_or_insert_with(|| match windows {
            Windows::Int(_) => Windows::Int(Rows::default()),
            Windows::Float(_) => Windows::Float(Rows::default()),
        });
        match (&mut *waiting, windows) {
            (Windows::Int(waiting), Windows::Int(rows)) => waiting.extend(rows, start, end),
            (Windows::Float(waiting), Windows::Float(rows)) => waiting.extend(rows, start, end),
            _ => return Err(other_type()),
        }
        if waiting.len() >= PAGE_ROWS { self.flush() } else { Ok(()) }
    }

    /// Gives to the library what waits.
    fn flush(&mut self) -> Result<()> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        match &mut waiting {
            Windows::Int(rows) => {
                let all = [&rows.times, &rows.mins, &rows.maxs, &rows.sums, &rows.counts, &rows.firsts, &rows.lasts];
                all.iter().enumerate().try_for_each(|(at, values)| self.ints(at, values))?;
                rows.clear();
            }
            Windows::Float(rows) => {
                self.ints(0, &rows.times)?;
                self.ints(4, &rows.counts)?;
                let floats = [(1, &rows.mins), (2, &rows.maxs), (3, &rows.sums), (5, &rows.firsts), (6, &rows.lasts)];
                floats.iter().try_for_each(|(at, values)| self.floats(*at, values))?;
                rows.clear();
            }
        }
        self.waiting = Some(waiting);
        Ok(())
    }

    fn ints(&mut self, column: usize, values: &[i64]) -> Result<()> {
        let ColumnWriter::Int64ColumnWriter(writer) = &mut self.columns[column].0 else { return Err(other_type()) };
        writer.write_batch(values, None, None).map(drop)
    }

    fn floats(&mut self, column: usize, values: &[f64]) -> Result<()> {
        let ColumnWriter::DoubleColumnWriter(writer) = &mut self.columns[column].0 else { return Err(other_type()) };
        writer.write_batch(values, None, None).map(drop)
    }
}

fn other_type() -> ParquetError {
    ParquetError::General("values of the other type than the tier's".to_owned())
}

fn properties(value_type: ValueType, level: i32, page_rows: usize) -> Result<WriterProperties> {
    let (data_type, encoding) = match value_type {
        ValueType::Int => (DataType::Int64, Encoding::DELTA_BINARY_PACKED),
        ValueType::Float => (DataType::Float64, Encoding::BYTE_STREAM_SPLIT),
    };
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let mut fields = vec![
        Field::new("sensor", text, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
    ];
    for name in &COLUMNS[1..] {
        fields.push(Field::new(*name, if *name == "count" { DataType::Int64 } else { data_type.clone() }, false));
    }
    let metadata = vec![
        KeyValue::new(parquet::arrow::ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&ArrowSchema::new(fields))),
        KeyValue::new(VERSION_KEY.to_owned(), BLOCK_VERSION.to_string()),
    ];
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(concat!("wholegrain ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(level)?))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_data_page_row_count_limit(page_rows)
        .set_data_page_size_limit(TIME_PAGE_ROWS * 16)
        .set_write_batch_size(2 * PAGE_ROWS)
        .set_key_value_metadata(Some(metadata));
    for name in COLUMNS {
        let encoding = match name {
            "time" => Encoding::PLAIN,
            "count" => Encoding::DELTA_BINARY_PACKED,
            _ => encoding,
        };
        builder = builder.set_column_encoding(ColumnPath::from(name), encoding);
        if name != "time" {
            builder = builder.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::None);
        }
    }
    Ok(builder.build())
}
