//! Writes tier files: one for each resolution, beside the block that they are made from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use wholegrain_model::{Column, Interval, ValueType};

use crate::block::draft::{DraftDirectory, FinishedBlock, TemporaryFile};
use crate::block::index::IndexWriter;
use crate::block::lines::{LINES_KEY, WindowLinesWriter};
use crate::block::page::ChunkBytes;
use crate::block::record::{BlockKind, BlockRecord, BlockSummary, block_path};
use crate::block::rows::RowReader;
use crate::block::sensor_column::SensorColumn;
use crate::block::windows::{LineSpacings, TIERS_DIR, TierSource, TierWindows, WindowColumns, even_area};
use crate::block::write::{
    ColumnChunk, FileSink, TIME_ZSTD_LEVEL, external, finish_file, message, properties, write_row_group,
};
use crate::block::{GROUP_ROWS, PAGE_ROWS, TIME_PAGE_ROWS, fault};
use crate::disk::Disk;
use crate::downsample::build::AnyWindowBuilder;
use crate::sensors::SensorIndex;
use crate::{StoreConfig, StoreError};

/// The columns after `sensor` and `time`.
fn columns_of(value_type: ValueType) -> [(&'static str, ValueType); 11] {
    let int = ValueType::Int;
    [
        ("min", value_type),
        ("max", value_type),
        ("sum", value_type),
        ("count", int),
        ("first", value_type),
        ("last", value_type),
        ("first_after", int),
        ("last_after", int),
        ("covered", int),
        ("uneven", ValueType::Float),
        ("edges", int),
    ]
}

/// A smaller part of an area is only rounding of the addition.
const ROUNDED: f64 = 1e-14;

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
        let Self { config, drafts: directory, sensors } = self;
        let builder = AnyWindowBuilder::new(kind.value_type, resolutions);
        let mut drafts = TierDrafts { sensors, kind, block, builder, files: Vec::new(), range: None };
        for &resolution_ns in resolutions {
            let (id, temporary) = directory.next();
            let (disk, level) = (directory.disk(), config.seal_zstd_level);
            let writer = TierWriter::create(disk.as_ref(), &temporary.path, kind.value_type, level)?;
            drafts.files.push(TierFile { id, resolution_ns, temporary, writer });
        }
        Ok(drafts)
    }
}

/// The tiers of one block that are being written.
pub(crate) struct TierDrafts<'a> {
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
    temporary: TemporaryFile,
    writer: TierWriter,
}

impl TierDrafts<'_> {
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

    /// Writes the rest and syncs the files.
    pub fn finish(self) -> std::result::Result<Vec<FinishedBlock>, StoreError> {
        let (kind, block) = (self.kind, self.block);
        let finish = |TierFile { id, resolution_ns, temporary, writer }: TierFile| {
            let record = record(kind, id, TierSource { resolution_ns, block }, &writer.finish()?);
            Ok(FinishedBlock { temporary, record })
        };
        self.files.into_iter().map(finish).collect()
    }
}

/// The record of a finished tier.
pub(super) fn record(kind: BlockKind, id: u64, tier: TierSource, written: &BlockSummary) -> BlockRecord {
    let name = Interval::from_ns(tier.resolution_ns.cast_unsigned());
    let path = format!("{TIERS_DIR}{name}/{}", block_path(id, kind.value_type, written.first_time));
    kind.record(id, path, Some(tier), written)
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
    lines: WindowLinesWriter,
}

/// The row group that is being filled.
struct TierRowGroup {
    sensor: SensorColumn,
    columns: Vec<ColumnChunk>,
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
    ) -> std::result::Result<Self, StoreError> {
        let file = disk.create(path).map_err(|error| StoreError::io("creating", path, error))?;
        let new = || -> Result<Self> {
            let columns = columns_of(value_type);
            let schema = message("window", &columns)?;
            let descr = SchemaDescriptor::new(schema.clone());
            let props = Arc::new(properties(&columns, level, PAGE_ROWS)?);
            Ok(Self {
                path: path.to_owned(),
                file: SerializedFileWriter::new(FileSink::new(file), schema, props.clone())?,
                columns: descr.columns().to_vec(),
                props,
                time_props: Arc::new(properties(&columns, TIME_ZSTD_LEVEL, TIME_PAGE_ROWS)?),
                level,
                group: None,
                index: IndexWriter::default(),
                lines: WindowLinesWriter::default(),
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
        self.begin(sensor, windows.len() as u64, range, drawn);
        self.push_rows(sensor, windows).map_err(|error| fault("writing", &self.path, error))
    }

    /// Notes rows of a sensor.
    fn begin(&mut self, sensor: &str, rows: u64, range: (i64, i64), drawn: LineSpacings) {
        if self.index.push(sensor, rows, range) {
            self.lines.push(drawn);
        }
    }

    fn push_rows(&mut self, sensor: &str, windows: &TierWindows) -> Result<()> {
        for start in (0..windows.len()).step_by(PAGE_ROWS) {
            let end = windows.len().min(start + PAGE_ROWS);
            let group =
                self.group.get_or_insert_with(|| TierRowGroup::new(&self.columns, &self.time_props, &self.props));
            group.push(sensor, windows, start, end)?;
            if group.rows >= GROUP_ROWS {
                self.finish_group()?;
            }
        }
        Ok(())
    }

    /// Copies windows of another file; further calls with the same path continue. `cut` says whether windows before them are left out.
    pub(super) fn copy(
        &mut self,
        reader: &mut RowReader,
        (sensor, drawn): (&str, LineSpacings),
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
        let written = self.finish_group().and_then(|()| {
            let text = self.lines.text().map_err(external)?;
            self.file.append_key_value_metadata(KeyValue::new(LINES_KEY.to_owned(), text));
            finish_file(self.file, self.index)
        });
        written.map_err(|error| fault("writing", &path, error))
    }

    fn finish_group(&mut self) -> Result<()> {
        let Some(mut group) = self.group.take() else { return Ok(()) };
        group.flush()?;
        write_row_group(&mut self.file, group.sensor, (&self.columns[0], self.level), group.columns)
    }
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

    /// Writes the columns of the lines.
    fn lines<T: Copy>(&mut self, rows: &WindowColumns<T>, float: impl Fn(T) -> f64) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use wholegrain_model::{ColumnValues, Gaps};

    use super::*;
    use crate::block::read::{Block, OpenBlock};
    use crate::disk::RealDisk;

    #[test]
    fn windows_are_read_as_they_were_written() {
        for values in [ColumnValues::Int(vec![5, 7, 11, -3, 2]), ColumnValues::Float(vec![0.5, 7.25, 11.0, -3.0, 2.0])]
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.parquet");
            let value_type = if matches!(values, ColumnValues::Int(_)) { ValueType::Int } else { ValueType::Float };
            let mut builder = AnyWindowBuilder::new(value_type, &[10]);
            builder.begin(0);
            builder.push(&[1, 2, 8, 15, 29], &Column { values, gaps: Gaps::default() });
            let windows = builder.finish().remove(0);
            let mut writer = TierWriter::create(&RealDisk, &path, value_type, 1).unwrap();
            let drawn = LineSpacings { longest: 7, hole: 14, beyond: true };
            writer.push("/a", &windows, (1, 29), drawn).unwrap();
            let written = writer.finish().unwrap();
            let tier = TierSource { resolution_ns: 10, block: 1 };
            let kind = BlockKind { value_type, day: Some(0), level: 0, first_segment: 1, last_segment: 1, import: 0 };
            let record = BlockRecord { path: "a.parquet".to_owned(), ..record(kind, 2, tier, &written) };
            let block = Block::new(record, dir.path(), Arc::new(RealDisk), Arc::default());
            let opened = Arc::new(OpenBlock::open(&block).unwrap());
            assert_eq!(opened.drawn("/a"), Some(drawn));
            assert_eq!(RowReader::new(opened, None).read_lines(0, 3).unwrap(), windows);
        }
    }
}
