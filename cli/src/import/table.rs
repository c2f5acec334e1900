//! Parquet and Arrow IPC files: the columns sensor, time and value, or a column of times and one for each sensor.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{DataType, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;
use wholegrain_model::Kind;
use wholegrain_query::UNIT_KEY;

use super::arrays::{is_number, is_text, is_time, is_wide_unsigned, number, plain, text, time};
use super::cells::Cell;
use super::encode::{Batch, Column, FirstReading, Sensors};
use super::names::TargetSensor;
use super::options::Shape;
use super::parse::{Bad, Parsed};
use super::preview::{self, PlannedColumn, READINGS_SHOWN_MAX};
use crate::export::{PROPERTIES_KEY, Properties, VALUE_INT};
use crate::failure::Failure;
use crate::output::style::Style;

/// The number of rows that are read at once.
const BATCH_ROWS: usize = 1 << 16;
/// A part with this number of readings is full.
const PART_READINGS: usize = 1 << 20;
/// The beginning of an Arrow IPC file; a stream has none.
const FILE_MAGIC: &[u8] = b"ARROW1";

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, Failure>>>;

/// The meaning of the columns of a file.
pub struct TablePlan {
    parquet: bool,
    schema: SchemaRef,
    time: usize,
    /// The columns of sensors and values of a long table.
    long: Option<(usize, usize)>,
    /// The column with exact integers, besides the values.
    exact: Option<usize>,
    wide: Vec<(usize, TargetSensor)>,
    left_out: Vec<String>,
    properties: Properties,
    unit: String,
}

impl TablePlan {
    pub fn parquet(shape: &Shape) -> Result<Self, Failure> {
        Self::make(shape, true)
    }

    pub fn arrow(shape: &Shape) -> Result<Self, Failure> {
        Self::make(shape, false)
    }

    fn make(shape: &Shape, parquet: bool) -> Result<Self, Failure> {
        let (schema, _) = open(shape, parquet)?;
        let refuse = |why: &str| Failure::Usage(format!("{}: {why}", shape.file.display()));
        let fields = schema.fields();
        let find = |name: &str| fields.iter().position(|field| field.name().eq_ignore_ascii_case(name));
        let time = find("time").filter(|at| is_time(fields[*at].data_type()));
        let time = time.or_else(|| fields.iter().position(|field| is_time(field.data_type())));
        let time = time.ok_or_else(|| refuse("no column has times (type timestamp)"))?;
        let long = find("sensor")
            .zip(find("value"))
            .filter(|(sensor, value)| is_text(fields[*sensor].data_type()) && is_number(fields[*value].data_type()));
        let exact = find(VALUE_INT).filter(|at| long.is_some() && *fields[*at].data_type() == DataType::Int64);
        let (mut wide, mut left_out) = (Vec::new(), Vec::new());
        let mut seen: HashMap<String, String> = HashMap::new();
        for (at, field) in fields.iter().enumerate() {
            let used =
                at == time || Some(at) == exact || long.is_some_and(|(sensor, value)| at == sensor || at == value);
            if used {
                continue;
            }
            if long.is_some() || !is_number(field.data_type()) {
                left_out.push(field.name().clone());
                continue;
            }
            let unit = field.metadata().get("unit").map_or("", String::as_str);
            let target = shape.names.target(field.name(), &[], unit).map_err(|why| refuse(&why))?;
            if let Some(other) = seen.insert(target.path.clone(), field.name().clone()) {
                let why = format!(
                    "the columns {other:?} and {:?} are both {}; rename one with --rename",
                    field.name(),
                    target.path
                );
                return Err(refuse(&why));
            }
            wide.push((at, target));
        }
        if long.is_none() && wide.is_empty() {
            return Err(refuse("it has neither the columns sensor and value nor columns of numbers"));
        }
        let get = |key: &str| schema.metadata().get(key).map(String::as_str).unwrap_or_default();
        let properties = serde_json::from_str(get(PROPERTIES_KEY)).unwrap_or_default();
        let unit = get(UNIT_KEY).to_owned();
        Ok(Self { parquet, time, long, exact, wide, left_out, properties, unit, schema: schema.clone() })
    }

    pub fn text(&self) -> String {
        let names: Vec<&String> = self.schema.fields().iter().map(|field| field.name()).collect();
        format!("{} {:?} {} {:?} {BATCH_ROWS} {PART_READINGS}", self.parquet, names, self.time, self.long)
    }

    pub fn first(&self, shape: &Shape) -> Result<Vec<FirstReading>, Failure> {
        let (_, mut batches) = open(shape, self.parquet)?;
        let Some(batch) = batches.next().transpose()? else { return Ok(Vec::new()) };
        let mut part = TablePart::default();
        self.take(&batch.slice(0, batch.num_rows().min(READINGS_SHOWN_MAX)), shape, &mut part)?;
        Ok(part.finish(0, shape).batches.first().map(|batch| batch.first(READINGS_SHOWN_MAX)).unwrap_or_default())
    }

    /// Passes every part to `each`, in order.
    pub fn parts(&self, shape: &Shape, each: &mut dyn FnMut(Parsed) -> Result<(), Failure>) -> Result<(), Failure> {
        let (_, batches) = open(shape, self.parquet)?;
        let (mut part, mut index) = (TablePart::default(), 0);
        for batch in batches {
            self.take(&batch?, shape, &mut part)?;
            if part.readings >= PART_READINGS {
                let row = part.row;
                each(std::mem::take(&mut part).finish(index, shape))?;
                part.row = row;
                index += 1;
            }
        }
        each(part.finish(index, shape))
    }

    fn take(&self, batch: &RecordBatch, shape: &Shape, part: &mut TablePart) -> Result<(), Failure> {
        let columns: Vec<ArrayRef> = batch.columns().iter().map(plain).collect::<Result<_, _>>()?;
        let times = &columns[self.time];
        let values = |at: usize| &columns[at];
        for row in 0..batch.num_rows() {
            part.row += 1;
            part.lines += 1;
            let result = time(times, row).and_then(|time| match self.long {
                Some((sensor, value)) => {
                    let exact = self.exact.map(values).filter(|exact| exact.is_valid(row));
                    part.long(self, shape, time, values(sensor), exact.unwrap_or(values(value)), row)
                }
                None => part.wide(self, time, &columns, row),
            });
            if let Err(why) = result {
                part.bad.push(Bad { line: part.row, why, text: String::new() });
            }
        }
        Ok(())
    }

    /// Writes the plan for people.
    pub fn show(
        &self,
        shape: &Shape,
        first: &[FirstReading],
        style: Style,
        out: &mut impl Write,
    ) -> std::io::Result<()> {
        let layout =
            if self.long.is_some() { "long: a row for each reading" } else { "wide: a column for each sensor" };
        let time = self.schema.field(self.time);
        writeln!(out, "file      {} ({} bytes)", shape.file.display(), shape.bytes)?;
        writeln!(out, "layout    {layout}")?;
        writeln!(out, "time      column {:?}: {}", time.name(), time.data_type())?;
        for column in &self.left_out {
            writeln!(out, "left out  column {column:?}: it is neither a number, the time nor the sensor")?;
        }
        for field in self.schema.fields().iter().filter(|field| is_wide_unsigned(field.data_type())) {
            let name = field.name();
            writeln!(
                out,
                "note      column {name:?}: unsigned 64-bit; values above {} are stored as floats",
                i64::MAX
            )?;
        }
        writeln!(out)?;
        if !self.wide.is_empty() {
            preview::write_columns(&self.columns(), style, out)?;
        }
        preview::write_first(first, style, out)
    }

    fn columns(&self) -> Vec<PlannedColumn<'_>> {
        let wide = self.wide.iter().map(|(at, target)| (self.schema.field(*at).name(), target));
        wide.map(|(column, target)| PlannedColumn { column, sensor: Some(&target.path), unit: Some(&target.unit) })
            .collect()
    }

    /// The plan for programs.
    pub fn json(&self, shape: &Shape, first: &[FirstReading]) -> serde_json::Value {
        let layout = if self.long.is_some() { "long" } else { "wide" };
        json!({
            "file": shape.file, "layout": layout, "time_columns": [self.schema.field(self.time).name()], "columns": self.columns(),
            "first": first, "left_out": self.left_out.iter().map(|column| json!({ "column": column })).collect::<Vec<_>>(),
        })
    }
}

/// A part that is being built.
#[derive(Default)]
struct TablePart {
    sensors: Sensors,
    known: HashMap<String, usize>,
    rows: Vec<(usize, i64, Cell)>,
    times: Vec<i64>,
    columns: Vec<Column>,
    bad: Vec<Bad>,
    readings: usize,
    lines: u64,
    row: u64,
}

impl TablePart {
    fn long(
        &mut self,
        plan: &TablePlan,
        shape: &Shape,
        time: i64,
        sensors: &ArrayRef,
        values: &ArrayRef,
        row: usize,
    ) -> Result<(), String> {
        let value = number(values, row)?;
        let value = if value == Cell::Empty { Cell::Gap } else { value };
        let name = text(sensors, row).ok_or("the sensor is missing")?;
        let sensor = match self.known.get(name) {
            Some(sensor) => *sensor,
            None => {
                let properties = plan.properties.get(name);
                let unit = properties.map_or(plan.unit.as_str(), |(unit, _)| unit.as_str());
                let mut target = shape.names.target(name, &[], unit)?;
                if properties.is_some_and(|(_, kind)| kind == "counter") {
                    target.kind = Kind::Counter;
                }
                let sensor = self.sensors.add(target, "")?;
                self.known.insert(name.to_owned(), sensor);
                sensor
            }
        };
        self.rows.push((sensor, time, value));
        self.readings += 1;
        Ok(())
    }

    fn wide(&mut self, plan: &TablePlan, time: i64, columns: &[ArrayRef], row: usize) -> Result<(), String> {
        let cells: Result<Vec<Cell>, String> = plan.wide.iter().map(|(at, _)| number(&columns[*at], row)).collect();
        let cells = cells?;
        if self.columns.is_empty() {
            for (_, target) in &plan.wide {
                self.sensors.add(target.clone(), "")?;
                self.columns.push(Column::default());
            }
        }
        self.times.push(time);
        self.readings += cells.len();
        self.columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        Ok(())
    }

    fn finish(self, index: u64, shape: &Shape) -> Parsed {
        let mut batch = Batch::new(self.sensors);
        for (at, column) in self.columns.iter().enumerate() {
            batch.column(at, &self.times, column, shape.keep_empty);
        }
        batch.rows(&self.rows, shape.keep_empty);
        Parsed { index, batches: vec![batch], bad: self.bad, lines: self.lines, other_lines: 0 }
    }
}

/// The columns and the rows of a file.
fn open(shape: &Shape, parquet: bool) -> Result<(SchemaRef, Batches), Failure> {
    let path = shape.file.display().to_string();
    let mut file = File::open(&shape.file).map_err(Failure::reading(&shape.file))?;
    let kind = if parquet { "Parquet" } else { "Arrow IPC" };
    let refuse = |error: String| Failure::Usage(format!("{path} is not a file of {kind}: {error}"));
    let broken = {
        let path = path.clone();
        move |error: String| Failure::Failed(format!("cannot read {path} to its end: {error}"))
    };
    if parquet {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| refuse(error.to_string()))?;
        let schema = builder.schema().clone();
        let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(|error| refuse(error.to_string()))?;
        return Ok((schema, Box::new(reader.map(move |batch| batch.map_err(|error| broken(error.to_string()))))));
    }
    let mut magic = [0; FILE_MAGIC.len()];
    let is_file = file.read_exact(&mut magic).is_ok() && magic == FILE_MAGIC;
    file.seek(SeekFrom::Start(0)).map_err(|error| refuse(error.to_string()))?;
    let file = BufReader::new(file);
    if is_file {
        let reader = FileReader::try_new(file, None).map_err(|error| refuse(error.to_string()))?;
        let schema = reader.schema();
        return Ok((schema, Box::new(reader.map(move |batch| batch.map_err(|error| broken(error.to_string()))))));
    }
    let reader = StreamReader::try_new(file, None).map_err(|error| refuse(error.to_string()))?;
    let schema = reader.schema();
    Ok((schema, Box::new(reader.map(move |batch| batch.map_err(|error| broken(error.to_string()))))))
}
