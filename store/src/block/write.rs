//! Writes a block. Rows come sensor by sensor in the order of their paths, and in time order within a sensor.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema as ArrowSchema, TimeUnit};
use parquet::arrow::encode_arrow_schema;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnDescPtr, ColumnPath, SchemaDescriptor, TypePtr};
use wholegrain_model::{Column, ColumnValues, Gaps, ValueType};

use super::index::{BlockIndex, INDEX_KEY, IndexWriter, SEGMENTS_KEY, VERSION_KEY};
use super::page::ChunkBytes;
use super::same_times::{SameTimes, TIMES_KEY};
use super::sensor_column::SensorColumn;
use super::time_column::TimeColumn;
use super::{FORMAT_VERSION, GROUP_ROWS, PAGE_ROWS, TIME_PAGE_ROWS, fault};
use crate::StoreError;
use crate::block::record::{BlockSummary, FileChecksums};
use crate::disk::{Disk, DiskFile};

/// Level of zstd for times: they repeat from sensor to sensor, which the fastest level finds as well as any.
pub(crate) const TIME_ZSTD_LEVEL: i32 = 1;
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 << 10;

/// A block that is being written.
pub(crate) struct BlockWriter {
    path: PathBuf,
    file: SerializedFileWriter<FileSink>,
    columns: [ColumnDescPtr; 3],
    props: WriterPropertiesPtr,
    value_type: ValueType,
    level: i32,
    group: Option<RowGroup>,
    index: IndexWriter,
    pub(super) times: SameTimes,
}

/// The row group that is being filled: column chunks in memory, compressed.
struct RowGroup {
    sensor: SensorColumn,
    time: TimeColumn,
    value: ColumnChunk,
    rows: u64,
    waiting: PendingRows,
}

/// Rows that wait until they are a page: handing them to the library sensor by sensor would cost more than the rows themselves where a
/// sensor has few.
#[derive(Default)]
struct PendingRows {
    times: Vec<i64>,
    /// 1 for a value, 0 for a gap.
    levels: Vec<i16>,
    ints: Vec<i64>,
    floats: Vec<f64>,
}

impl BlockWriter {
    /// Creates the block's file, which must not exist.
    pub fn create(
        disk: &dyn Disk,
        path: &Path,
        value_type: ValueType,
        level: i32,
    ) -> std::result::Result<Self, StoreError> {
        let file = disk.create(path).map_err(|error| StoreError::io("creating", path, error))?;
        Self::new(file, path, value_type, level).map_err(|error| fault("creating", path, error))
    }

    fn new(file: Arc<dyn DiskFile>, path: &Path, value_type: ValueType, level: i32) -> Result<Self> {
        let columns = [("value", value_type)];
        let schema = message("reading", &columns)?;
        let descr = SchemaDescriptor::new(schema.clone());
        let props = Arc::new(properties(&columns, level, PAGE_ROWS)?);
        let sink = FileSink::new(file);
        Ok(Self {
            path: path.to_owned(),
            file: SerializedFileWriter::new(sink, schema, props.clone())?,
            columns: [descr.column(0), descr.column(1), descr.column(2)],
            props,
            value_type,
            level,
            group: None,
            index: IndexWriter::default(),
            times: SameTimes::default(),
        })
    }

    /// Rows of one sensor; further calls with the same path go on with it.
    pub fn push(&mut self, sensor: &str, times: &[i64], column: &Column) -> std::result::Result<(), StoreError> {
        self.push_rows(sensor, times, column).map_err(|error| fault("writing", &self.path, error))
    }

    fn push_rows(&mut self, sensor: &str, times: &[i64], column: &Column) -> Result<()> {
        let mut at = 0;
        while at < times.len() {
            let end = times.len().min(at + PAGE_ROWS);
            let group = self.group.get_or_insert_with(|| RowGroup::new(&self.columns, self.value_type, &self.props));
            group.push(sensor, &times[at..end], column, at)?;
            if group.rows >= GROUP_ROWS {
                self.finish_group()?;
            }
            at = end;
        }
        let (Some(first), Some(last)) = (times.first(), times.last()) else { return Ok(()) };
        if self.index.push(sensor, times.len() as u64, (*first, *last)) {
            self.times.end_sensor();
        }
        self.times.push(times);
        Ok(())
    }

    fn finish_group(&mut self) -> Result<()> {
        let Some(mut group) = self.group.take() else { return Ok(()) };
        group.flush()?;
        let columns = [group.time.finish()?, group.value];
        write_row_group(&mut self.file, group.sensor, (&self.columns[0], self.level), columns)
    }

    /// Has the footer say which segments' readings these are, so that readers without the catalogue know whose reading counts.
    pub fn say_segments(&mut self, first: u64, last: u64) {
        self.file.append_key_value_metadata(KeyValue::new(SEGMENTS_KEY.to_owned(), format!("{first}-{last}")));
    }

    /// Writes the footer and waits until everything is on stable storage. The file still has the name it was made under.
    pub fn finish(mut self) -> std::result::Result<BlockSummary, StoreError> {
        let path = self.path.clone();
        let written = self.finish_group().and_then(|()| {
            if let Some(text) = self.times.text().map_err(external)? {
                self.file.append_key_value_metadata(KeyValue::new(TIMES_KEY.to_owned(), text));
            }
            finish_file(self.file, self.index)
        });
        written.map_err(|error| fault("writing", &path, error))
    }
}

pub(crate) fn external(error: io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// A column chunk that is being written, and its bytes.
pub(crate) type ColumnChunk = (ColumnWriter<'static>, ChunkBytes);

/// Writes a row group: the sensors, with the description of their column and the level of zstd, and the other columns.
pub(crate) fn write_row_group(
    file: &mut SerializedFileWriter<FileSink>,
    sensor: SensorColumn,
    (descr, level): (&ColumnDescPtr, i32),
    columns: impl IntoIterator<Item = ColumnChunk>,
) -> Result<()> {
    let mut row_group = file.next_row_group()?;
    let (bytes, close) = sensor.finish(descr, level)?;
    row_group.append_column(&bytes, close)?;
    for (writer, bytes) in columns {
        let close = writer.close()?;
        row_group.append_column(&bytes.take(), close)?;
    }
    row_group.close().map(drop)
}

/// Writes the index and the footer, and syncs the file.
pub(crate) fn finish_file(mut file: SerializedFileWriter<FileSink>, index: IndexWriter) -> Result<BlockSummary> {
    let BlockIndex { text, entries, rows, times: (first_time, last_time) } = index.finish().map_err(external)?;
    file.append_key_value_metadata(KeyValue::new(INDEX_KEY.to_owned(), text));
    file.inner_mut().begin_tail();
    let mut sink = file.into_inner()?;
    sink.flush().map_err(external)?;
    sink.file.sync().map_err(external)?;
    Ok(BlockSummary { entries, rows, bytes: sink.offset, first_time, last_time, sums: sink.sums })
}

impl RowGroup {
    fn new(columns: &[ColumnDescPtr; 3], value_type: ValueType, props: &WriterPropertiesPtr) -> Self {
        let bytes = ChunkBytes::default();
        let value = get_column_writer(columns[2].clone(), props.clone(), Box::new(bytes.clone()));
        Self {
            sensor: SensorColumn::default(),
            time: TimeColumn::new(columns[1].clone(), value_type),
            value: (value, bytes),
            rows: 0,
            waiting: PendingRows::default(),
        }
    }

    /// Rows `at..at + times.len()` of `column`.
    fn push(&mut self, sensor: &str, times: &[i64], column: &Column, at: usize) -> Result<()> {
        self.sensor.push(sensor, times.len() as u64);
        self.rows += times.len() as u64;
        let waiting = &mut self.waiting;
        waiting.times.extend_from_slice(times);
        let (range, gaps) = (at..at + times.len(), &column.gaps);
        if gaps.0.is_empty() {
            waiting.levels.resize(waiting.times.len(), 1);
        } else {
            waiting.levels.extend(range.clone().map(|i| i16::from(!gaps.is_gap(i))));
        }
        match &column.values {
            ColumnValues::Int(values) => present(&values[range.clone()], range.start, gaps, &mut waiting.ints),
            ColumnValues::Float(values) => present(&values[range.clone()], range.start, gaps, &mut waiting.floats),
        }
        if waiting.times.len() >= PAGE_ROWS { self.flush() } else { Ok(()) }
    }

    /// Gives to the library what waits.
    fn flush(&mut self) -> Result<()> {
        let PendingRows { times, levels, ints, floats } = &mut self.waiting;
        self.time.push(times)?;
        match &mut self.value.0 {
            ColumnWriter::Int64ColumnWriter(writer) if floats.is_empty() => {
                writer.write_batch(ints, Some(levels), None)?
            }
            ColumnWriter::DoubleColumnWriter(writer) if ints.is_empty() => {
                writer.write_batch(floats, Some(levels), None)?
            }
            _ => return Err(ParquetError::General("values of the other type than the block's".to_owned())),
        };
        times.clear();
        levels.clear();
        ints.clear();
        floats.clear();
        Ok(())
    }
}

/// Appends the values that are no gaps.
fn present<T: Copy>(values: &[T], start: usize, gaps: &Gaps, out: &mut Vec<T>) {
    if gaps.0.is_empty() {
        out.extend_from_slice(values);
    } else {
        out.extend(values.iter().enumerate().filter(|(i, _)| !gaps.is_gap(start + i)).map(|(_, value)| *value));
    }
}

/// The schema of a file with these columns after `sensor` and `time`. Only a reading's `value` can be a gap.
pub(crate) fn message(name: &str, columns: &[(&str, ValueType)]) -> Result<TypePtr> {
    let column = |(name, value_type): &(&str, ValueType)| {
        let repetition = if *name == "value" { "OPTIONAL" } else { "REQUIRED" };
        let physical = match value_type {
            ValueType::Int => "INT64",
            ValueType::Float => "DOUBLE",
        };
        format!("{repetition} {physical} {name};")
    };
    let text = format!(
        "message {name} {{
            REQUIRED BYTE_ARRAY sensor (STRING);
            REQUIRED INT64 time (TIMESTAMP(NANOS,true));
            {}
        }}",
        columns.iter().map(column).collect::<String>()
    );
    Ok(Arc::new(parse_message_type(&text)?))
}

/// The properties of a file with these columns after `sensor` and `time`.
pub(crate) fn properties(columns: &[(&str, ValueType)], level: i32, page_rows: usize) -> Result<WriterProperties> {
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let mut fields = vec![
        Field::new("sensor", text, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
    ];
    fields.extend(columns.iter().map(|(name, value_type)| {
        let data_type = match value_type {
            ValueType::Int => DataType::Int64,
            ValueType::Float => DataType::Float64,
        };
        Field::new(*name, data_type, *name == "value")
    }));
    let metadata = vec![
        KeyValue::new(parquet::arrow::ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&ArrowSchema::new(fields))),
        KeyValue::new(VERSION_KEY.to_owned(), FORMAT_VERSION.to_string()),
    ];
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(concat!("wholegrain ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(level)?))
        .set_dictionary_enabled(false)
        .set_column_encoding(ColumnPath::from("time"), Encoding::PLAIN)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_data_page_row_count_limit(page_rows)
        // Pages end by their rows: a page of times is half as long as this bound.
        .set_data_page_size_limit(page_rows.max(TIME_PAGE_ROWS) * 16)
        // So that a page ends with a sensor: less than a page's rows waited, and at most as many came.
        .set_write_batch_size(2 * PAGE_ROWS)
        .set_key_value_metadata(Some(metadata));
    for (name, value_type) in columns {
        let encoding = match value_type {
            ValueType::Int => Encoding::DELTA_BINARY_PACKED,
            ValueType::Float => Encoding::BYTE_STREAM_SPLIT,
        };
        builder = builder
            .set_column_encoding(ColumnPath::from(*name), encoding)
            .set_column_statistics_enabled(ColumnPath::from(*name), EnabledStatistics::None);
    }
    Ok(builder.build())
}

/// Where the library writes to: a file of the store's disk, in large pieces.
pub(crate) struct FileSink {
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: Vec<u8>,
    sums: FileChecksums,
}

impl FileSink {
    pub(crate) fn new(file: Arc<dyn DiskFile>) -> Self {
        let sums = FileChecksums { file: 0, tail_at: 0, tail: 0 };
        Self { file, offset: 0, buffer: Vec::with_capacity(WRITE_BYTES), sums }
    }

    /// What is written from now on is no page.
    fn begin_tail(&mut self) {
        self.sums.tail_at = self.offset + self.buffer.len() as u64;
        self.sums.tail = 0;
    }
}

impl Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sums.file = crc32c::crc32c_append(self.sums.file, bytes);
        self.sums.tail = crc32c::crc32c_append(self.sums.tail, bytes);
        if self.buffer.len() + bytes.len() > WRITE_BYTES {
            self.flush()?;
        }
        if bytes.len() >= WRITE_BYTES {
            self.file.write_at(self.offset, bytes)?;
            self.offset += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_at(self.offset, &self.buffer)?;
            self.offset += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}
