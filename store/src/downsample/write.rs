//! Writes tier files: one for each resolution, beside the block that they are made from.

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
use parquet::schema::types::{ColumnDescPtr, ColumnPath, SchemaDescriptor};
use wholegrain_model::{Column, Interval, ValueType};

use crate::block::draft::{DraftDirectory, FinishedBlock};
use crate::block::index::{IndexWriter, VERSION_KEY};
use crate::block::lines::{LINES_KEY, WindowLinesWriter};
use crate::block::page::ChunkBytes;
use crate::block::record::{BlockKind, BlockRecord, block_path};
use crate::block::rows::RowReader;
use crate::block::sensor_column::SensorColumn;
use crate::block::windows::{LineSpacings, TIERS_DIR, TierSource, TierWindows, WindowColumns, even_area};
use crate::block::write::{BlockSummary, FileSink, TIME_ZSTD_LEVEL, finish_file};
use crate::block::{BLOCK_VERSION, GROUP_ROWS, PAGE_ROWS, TIER_VERSION, TIME_PAGE_ROWS, fault};
use crate::disk::Disk;
use crate::downsample::build::AnyWindowBuilder;
use crate::sensors::SensorIndex;
use crate::{StoreConfig, StoreError};

/// The columns after `sensor`.
const COLUMNS: [&str; 12] =
    ["time", "min", "max", "sum", "count", "first", "last", "first_after", "last_after", "covered", "uneven", "edges"];
/// The first this many are the columns of a file without lines.
const COLUMNS_WITHOUT_LINES: usize = 7;
/// A smaller part of an area is only rounding of the addition.
const ROUNDED: f64 = 1e-14;

/// The columns of lines as a Parquet schema.
const LINES: &str = "REQUIRED INT64 first_after; REQUIRED INT64 last_after; REQUIRED INT64 covered; REQUIRED DOUBLE uneven; REQUIRED INT64 edges;";

/// Writes the tiers of blocks.
pub(crate) struct Downsampler {
    pub(super) config: Arc<StoreConfig>,
    pub(super) drafts: Arc<DraftDirectory>,
    pub(super) sensors: Arc<SensorIndex>,
}

impl Downsampler {
    pub(crate) fn new(config: Arc<StoreConfig>, drafts: Arc<DraftDirectory>, sensors: Arc<SensorIndex>) -> Self {
        Self { config, drafts, sensors }
    }

    /// Begins a file for each resolution (finest first), of the block with number `block`.
    pub fn begin(
        &self,
        kind: BlockKind,
        block: u64,
        resolutions: &[i64],
    ) -> std::result::Result<TierDrafts<'_>, StoreError> {
        TierDrafts::create(self, kind, block, resolutions)
    }
}

/// The tiers of one block that are being written.
pub(crate) struct TierDrafts<'a> {
    drafts: &'a DraftDirectory,
    sensors: &'a SensorIndex,
    kind: BlockKind,
    block: u64,
    builder: AnyWindowBuilder,
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
    fn create(
        downsampler: &'a Downsampler,
        kind: BlockKind,
        block: u64,
        resolutions: &[i64],
    ) -> std::result::Result<Self, StoreError> {
        let Downsampler { config, drafts: directory, sensors } = downsampler;
        let builder = AnyWindowBuilder::new(kind.value_type, resolutions);
        let mut drafts = Self { drafts: directory, sensors, kind, block, builder, files: Vec::new(), range: None };
        for &resolution_ns in resolutions {
            let (id, temporary) = directory.next();
            let (disk, level) = (directory.disk(), config.seal_zstd_level);
            match TierWriter::create(disk.as_ref(), &temporary, kind.value_type, level, true) {
                Ok(writer) => drafts.files.push(TierFile { id, resolution_ns, temporary, writer }),
                Err(error) => {
                    let _ = disk.remove(&temporary);
                    drafts.discard();
                    return Err(error);
                }
            }
        }
        Ok(drafts)
    }

    /// Adds the next readings of the current sensor, `path`.
    pub fn push(&mut self, path: &str, times: &[i64], column: &Column) {
        let (Some(first), Some(last)) = (times.first(), times.last()) else { return };
        if self.files.is_empty() {
            return;
        }
        if self.range.is_none() {
            self.builder.begin(self.sensors.interval_ns(path));
        }
        self.range = Some((self.range.map_or(*first, |range| range.0), *last));
        self.builder.push(times, column);
    }

    /// Ends the current sensor, `path`.
    pub fn end_sensor(&mut self, path: &str) -> std::result::Result<(), StoreError> {
        let Some(range) = self.range.take() else { return Ok(()) };
        let windows = self.builder.finish();
        let drawn = self.builder.drawn();
        for (file, windows) in self.files.iter_mut().zip(&windows) {
            file.writer.push(path, windows, range, drawn)?;
        }
        self.builder.give_back(windows);
        Ok(())
    }

    /// Writes the rest and syncs the files. After an error they are removed.
    pub fn finish(mut self) -> std::result::Result<Vec<FinishedBlock>, StoreError> {
        let mut finished: Vec<FinishedBlock> = Vec::new();
        while !self.files.is_empty() {
            let file = self.files.remove(0);
            match file.writer.finish() {
                Ok(written) => {
                    let tier = TierSource { resolution_ns: file.resolution_ns, block: self.block };
                    let record = record(self.kind, file.id, tier, &written);
                    finished.push(FinishedBlock::new(self.drafts.disk().clone(), file.temporary, record));
                }
                Err(error) => {
                    let _ = self.drafts.disk().remove(&file.temporary);
                    finished.iter().for_each(FinishedBlock::discard);
                    self.discard();
                    return Err(error);
                }
            }
        }
        Ok(finished)
    }

    /// Removes the temporary files.
    pub fn discard(self) {
        for file in &self.files {
            let _ = self.drafts.disk().remove(&file.temporary);
        }
    }
}

pub(super) fn record(kind: BlockKind, id: u64, tier: TierSource, written: &BlockSummary) -> BlockRecord {
    let BlockKind { value_type, day, level, first_segment, last_segment, import } = kind;
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
        tombstones: Vec::new(),
    }
}

/// One tier file being written.
pub(super) struct TierWriter {
    path: PathBuf,
    file: SerializedFileWriter<FileSink>,
    columns: Vec<ColumnDescPtr>,
    props: WriterPropertiesPtr,
    time_props: WriterPropertiesPtr,
    level: i32,
    group: Option<TierRowGroup>,
    index: IndexWriter,
    lines: Option<WindowLinesWriter>,
}

/// The row group that is being filled.
struct TierRowGroup {
    sensor: SensorColumn,
    columns: Vec<(ColumnWriter<'static>, ChunkBytes)>,
    rows: u64,
    /// Windows that are gathered to a page: most sensors have few.
    waiting: Option<TierWindows>,
}

impl TierWriter {
    pub(super) fn create(
        disk: &dyn Disk,
        path: &Path,
        value_type: ValueType,
        level: i32,
        lined: bool,
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
                    {}
                }}",
                if lined { LINES } else { "" }
            );
            let schema = Arc::new(parse_message_type(&text)?);
            let descr = SchemaDescriptor::new(schema.clone());
            let names = &COLUMNS[..if lined { COLUMNS.len() } else { COLUMNS_WITHOUT_LINES }];
            let props = Arc::new(properties(value_type, level, PAGE_ROWS, names)?);
            Ok(Self {
                path: path.to_owned(),
                file: SerializedFileWriter::new(FileSink::new(file), schema, props.clone())?,
                columns: (0..=names.len()).map(|at| descr.column(at)).collect(),
                props,
                time_props: Arc::new(properties(value_type, TIME_ZSTD_LEVEL, TIME_PAGE_ROWS, names)?),
                level,
                group: None,
                index: IndexWriter::default(),
                lines: lined.then(WindowLinesWriter::default),
            })
        };
        new().map_err(|error| fault("creating", path, error))
    }

    /// Writes all windows of one sensor, whose readings in the block are from `range.0` to `range.1`.
    pub(super) fn push(
        &mut self,
        sensor: &str,
        windows: &TierWindows,
        range: (i64, i64),
        drawn: LineSpacings,
    ) -> std::result::Result<(), StoreError> {
        self.begin(sensor, windows.len() as u64, range, Some(drawn));
        self.push_rows(sensor, windows).map_err(|error| fault("writing", &self.path, error))
    }

    /// Notes rows of a sensor.
    fn begin(&mut self, sensor: &str, rows: u64, range: (i64, i64), drawn: Option<LineSpacings>) {
        let is_new = self.index.push(sensor, rows, range);
        if let (Some(lines), true) = (&mut self.lines, is_new) {
            lines.push(drawn.unwrap_or_default());
        }
    }

    fn push_rows(&mut self, sensor: &str, windows: &TierWindows) -> Result<()> {
        for start in (0..windows.len()).step_by(PAGE_ROWS) {
            let end = windows.len().min(start + PAGE_ROWS);
            let group =
                self.group.get_or_insert_with(|| TierRowGroup::new(&self.columns, &self.time_props, &self.props));
            group.push(sensor, windows, start, end)?;
            if group.rows >= GROUP_ROWS {
                finish_group(&mut self.group, &mut self.file, &self.columns, self.level)?;
            }
        }
        Ok(())
    }

    /// Copies windows of another file; further calls with the same path continue. `cut` says whether windows before them are left out.
    pub(super) fn copy(
        &mut self,
        reader: &mut RowReader,
        (sensor, drawn): (&str, Option<LineSpacings>),
        rows: std::ops::Range<u64>,
        range: (i64, i64),
        cut: bool,
    ) -> std::result::Result<(), StoreError> {
        self.begin(sensor, rows.end - rows.start, range, drawn);
        let mut row = rows.start;
        while row < rows.end {
            let mut windows = reader.read_lines(row, (rows.end - row).min(PAGE_ROWS as u64))?;
            if cut && row == rows.start {
                windows.cut_before();
            }
            row += windows.len() as u64;
            self.push_rows(sensor, &windows).map_err(|error| fault("writing", &self.path, error))?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> std::result::Result<BlockSummary, StoreError> {
        let path = self.path.clone();
        let finished = finish_group(&mut self.group, &mut self.file, &self.columns, self.level);
        let written = finished.and_then(|()| {
            if let Some(lines) = self.lines {
                let text = lines.text().map_err(|error| ParquetError::External(Box::new(error)))?;
                self.file.append_key_value_metadata(KeyValue::new(LINES_KEY.to_owned(), text));
            }
            finish_file(self.file, self.index)
        });
        written.map_err(|error| fault("writing", &path, error))
    }
}

fn finish_group(
    group: &mut Option<TierRowGroup>,
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

impl TierRowGroup {
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

    fn push(&mut self, sensor: &str, windows: &TierWindows, start: usize, end: usize) -> Result<()> {
        self.sensor.push(sensor, (end - start) as u64);
        self.rows += (end - start) as u64;
        let waiting = self.waiting.get_or_insert_with(|| match windows {
            TierWindows::Int(_) => TierWindows::Int(WindowColumns::default()),
            TierWindows::Float(_) => TierWindows::Float(WindowColumns::default()),
        });
        match (&mut *waiting, windows) {
            (TierWindows::Int(waiting), TierWindows::Int(rows)) => waiting.extend(rows, start, end),
            (TierWindows::Float(waiting), TierWindows::Float(rows)) => waiting.extend(rows, start, end),
            _ => return Err(other_type()),
        }
        if waiting.len() >= PAGE_ROWS { self.flush() } else { Ok(()) }
    }

    /// Passes the gathered windows to the library.
    fn flush(&mut self) -> Result<()> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        match &mut waiting {
            TierWindows::Int(rows) => {
                self.lines(rows, |value| value as f64)?;
                let all = [&rows.times, &rows.mins, &rows.maxs, &rows.sums, &rows.counts, &rows.firsts, &rows.lasts];
                all.iter().enumerate().try_for_each(|(at, values)| self.ints(at, values))?;
                rows.clear();
            }
            TierWindows::Float(rows) => {
                self.lines(rows, |value| value)?;
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

    /// Writes the columns of the lines, if the file has them.
    fn lines<T: Copy>(&mut self, rows: &WindowColumns<T>, float: impl Fn(T) -> f64) -> Result<()> {
        if self.columns.len() == COLUMNS_WITHOUT_LINES {
            return Ok(());
        }
        let Some(lines) = &rows.lines else { return Err(other_type()) };
        let uneven = |at: usize| {
            let ends = (float(rows.firsts[at]), float(rows.lasts[at]));
            let even = even_area(rows.counts[at], float(rows.sums[at]), ends, lines.covered[at]);
            let area = lines.area[at];
            match area - even {
                _ if !even.is_finite() => area,
                rounded if rounded.abs() <= area.abs() * ROUNDED => 0.0,
                uneven => uneven,
            }
        };
        self.ints(7, &lines.first_after)?;
        self.ints(8, &lines.last_after)?;
        self.ints(9, &lines.covered)?;
        self.floats(10, &(0..rows.times.len()).map(uneven).collect::<Vec<_>>())?;
        self.ints(11, &lines.edges.iter().map(|edges| edges.code()).collect::<Vec<_>>())
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

fn properties(value_type: ValueType, level: i32, page_rows: usize, names: &[&str]) -> Result<WriterProperties> {
    let data_type = match value_type {
        ValueType::Int => DataType::Int64,
        ValueType::Float => DataType::Float64,
    };
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let mut fields = vec![
        Field::new("sensor", text, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
    ];
    let type_of = |name: &str| match name {
        "count" | "first_after" | "last_after" | "covered" | "edges" => DataType::Int64,
        "uneven" => DataType::Float64,
        _ => data_type.clone(),
    };
    names[1..].iter().for_each(|name| fields.push(Field::new(*name, type_of(name), false)));
    let version = if names.len() == COLUMNS_WITHOUT_LINES { BLOCK_VERSION } else { TIER_VERSION };
    let metadata = vec![
        KeyValue::new(parquet::arrow::ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&ArrowSchema::new(fields))),
        KeyValue::new(VERSION_KEY.to_owned(), version.to_string()),
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
    for &name in names {
        let encoding = match name {
            "time" => Encoding::PLAIN,
            _ if type_of(name) == DataType::Int64 => Encoding::DELTA_BINARY_PACKED,
            _ => Encoding::BYTE_STREAM_SPLIT,
        };
        builder = builder.set_column_encoding(ColumnPath::from(name), encoding);
        if name != "time" {
            builder = builder.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::None);
        }
    }
    Ok(builder.build())
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{ColumnValues, Gaps};

    use super::*;
    use crate::block::read::{Block, OpenBlock};
    use crate::disk::RealDisk;

    /// Three windows of 10 ns in a file with and without lines, as they are read.
    #[test]
    fn files_of_both_versions_are_read() {
        for (value_type, lined) in
            [(ValueType::Int, true), (ValueType::Int, false), (ValueType::Float, true), (ValueType::Float, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.parquet");
            let mut builder = AnyWindowBuilder::new(value_type, &[10]);
            builder.begin(0);
            let values = match value_type {
                ValueType::Int => ColumnValues::Int(vec![5, 7, 11, -3, 2]),
                ValueType::Float => ColumnValues::Float(vec![0.5, 7.25, 11.0, -3.0, 2.0]),
            };
            builder.push(&[1, 2, 8, 15, 29], &Column { values, gaps: Gaps::default() });
            let windows = builder.finish().remove(0);
            let mut writer = TierWriter::create(&RealDisk, &path, value_type, 1, lined).unwrap();
            let drawn = LineSpacings { longest: 7, hole: 14, beyond: true, undecided: false };
            writer.push("/a", &windows, (1, 29), drawn).unwrap();
            let written = writer.finish().unwrap();
            let tier = TierSource { resolution_ns: 10, block: 1 };
            let kind = BlockKind { value_type, day: Some(0), level: 0, first_segment: 1, last_segment: 1, import: 0 };
            let record = BlockRecord { path: "a.parquet".to_owned(), ..record(kind, 2, tier, &written) };
            let block = Block::new(record, dir.path(), Arc::new(RealDisk), Arc::default());
            let opened = Arc::new(OpenBlock::open(&block).unwrap());
            assert_eq!((opened.has_lines(), opened.drawn("/a")), (lined, lined.then_some(drawn)));
            let read = RowReader::new(opened, None).read_lines(0, 3).unwrap();
            if lined {
                assert_eq!(read, windows);
            } else {
                assert_eq!(
                    (0..3).map(|at| read.get(at)).collect::<Vec<_>>(),
                    (0..3).map(|at| windows.get(at)).collect::<Vec<_>>()
                );
            }
        }
    }
}
