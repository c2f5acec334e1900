//! The plan of a file: its layout, its columns, the notation of its times, from the options or detected in the first lines.

use std::io::Write;

use serde_json::json;

use super::cells::{Cell, cell};
use super::encode::FirstReading;
use super::lines::{LDMS_TIME, is_comment, lines, text_of};
use super::names::TargetSensor;
use super::options::{CsvOptions, Layout, Shape};
use super::preview::{self, COLUMNS_SHOWN_MAX, PlannedColumn};
use super::times::{TimeFormat, Zone, guess};
use crate::csv::Fields;
use crate::failure::Failure;
use crate::output::style::Style;

/// The number of lines in which the format is detected.
const SAMPLE_LINES: usize = 1_000;
/// Names of columns of times, of sensors, of values and of units.
const TIME_NAMES: &[&str] =
    &["time", "timestamp", "ts", "datetime", "date_time", "_time", "t", "epoch", "zeit", "zeitstempel", "date"];
const SENSOR_NAMES: &[&str] = &["sensor", "metric", "path", "name", "series", "sensor_id", "topic", "channel"];
const VALUE_NAMES: &[&str] = &["value", "val", "_value", "reading", "wert"];
const UNIT_NAMES: &[&str] = &["unit", "units", "einheit"];

/// A column of values.
#[derive(Debug, Clone)]
pub struct ValueColumn {
    pub at: usize,
    pub name: String,
    /// `None` with LDMS, where the producer decides.
    pub target: Option<TargetSensor>,
}

/// The meaning of the lines of a file.
#[derive(Debug, Clone)]
pub struct Plan {
    pub layout: Layout,
    pub delimiter: u8,
    pub comma: bool,
    pub header: Vec<String>,
    /// The number of lines up to the header, included.
    pub skip: u64,
    /// The line of the header; later lines that repeat it are skipped.
    pub header_line: Vec<u8>,
    pub time: Vec<usize>,
    pub format: TimeFormat,
    /// The column of sensors, or of producers.
    pub sensor: Option<usize>,
    pub unit: Option<usize>,
    pub values: Vec<ValueColumn>,
    /// Columns that are not imported, with the reason.
    pub left_out: Vec<(String, &'static str)>,
    /// The average number of bytes and readings of a line.
    pub line_bytes: f64,
    pub line_readings: f64,
}

impl Plan {
    /// Makes the plan from the first lines and the options.
    pub fn make(sample: &[u8], options: &CsvOptions, shape: &Shape) -> Result<Self, Failure> {
        let refuse = |why: String| Failure::Usage(format!("{}: {why}", shape.file.display()));
        if !sample.contains(&b'\n') && sample.contains(&b'\r') {
            return Err(refuse("its lines end with CR alone; convert CR to LF: tr '\\r' '\\n'".into()));
        }
        let all: Vec<&[u8]> = lines(sample).take(SAMPLE_LINES).collect();
        let mut skip = options.skip_lines;
        while let Some(line) = all.get(skip)
            && (line.trim_ascii().is_empty() || (is_comment(line) && !line.starts_with(LDMS_TIME)))
        {
            skip += 1;
        }
        let Some(first) = all.get(skip).copied() else { return Err(refuse("it has no lines".into())) };
        let delimiter = match options.delimiter {
            Some(delimiter) => delimiter,
            None => delimiter_of(&all[skip..]),
        };
        let comma = options.decimal_comma.unwrap_or_else(|| delimiter != b',' && has_commas(&all[skip..], delimiter));
        let mut fields = Fields::new(delimiter);
        let mut rows: Vec<Vec<Vec<u8>>> = Vec::new();
        for line in all[skip..].iter().filter(|line| !line.trim_ascii().is_empty()) {
            if fields.split(line).is_ok() && (rows.is_empty() || !is_comment(line)) {
                rows.push((0..fields.len()).map(|at| fields.get(line, at).to_vec()).collect());
            }
        }
        let Some(head) = rows.first() else { return Err(refuse("its first line cannot be split into fields".into())) };
        let is_header = options.header.unwrap_or_else(|| looks_like_header(head, comma));
        let given = options.columns.as_ref();
        let header: Vec<String> = match given {
            Some(names) => names.clone(),
            None if is_header => head.iter().map(|cell| text_of(cell).trim().to_owned()).collect(),
            None => (1..=head.len()).map(|number| format!("column{number}")).collect(),
        };
        let body: Vec<&Vec<Vec<u8>>> =
            rows.iter().skip(usize::from(is_header)).filter(|row| row.len() == header.len()).collect();
        let columns =
            Columns { header: &header, body: &body, options, zone: &shape.zone, named: is_header || given.is_some() };
        let mut plan = columns.plan(delimiter, comma, shape).map_err(refuse)?;
        plan.skip = (skip + usize::from(is_header)) as u64;
        plan.header_line = if is_header { first.to_vec() } else { Vec::new() };
        let bytes: usize = all[skip..].iter().map(|line| line.len() + 1).sum();
        plan.line_bytes = bytes as f64 / (all.len() - skip).max(1) as f64;
        plan.line_readings = if plan.layout == Layout::Long { 1.0 } else { plan.values.len() as f64 };
        Ok(plan)
    }

    /// The part of the import's id that depends on the plan.
    pub fn text(&self) -> String {
        let values: Vec<usize> = self.values.iter().map(|column| column.at).collect();
        let Self { layout, delimiter, comma, skip, time, format, sensor, unit, header, .. } = self;
        format!("{layout:?} {delimiter} {comma} {skip} {time:?} {format:?} {sensor:?} {unit:?} {values:?} {header:?}")
    }

    /// Writes the plan for people.
    pub fn show(
        &self,
        shape: &Shape,
        first: &[FirstReading],
        style: Style,
        out: &mut impl Write,
    ) -> std::io::Result<()> {
        let name = |at: &usize| format!("{:?}", self.header.get(*at).map_or("", String::as_str));
        let delimiter = match self.delimiter {
            b'\t' => "tab".to_owned(),
            byte => format!("{:?}", char::from(byte)),
        };
        let layout = match self.layout {
            Layout::Wide => "wide: a column for each sensor",
            Layout::Long => "long: a line for each reading",
            Layout::Ldms => "LDMS store_csv: a line for each sample of a producer",
        };
        let decimals = if self.comma { ", decimals follow a comma" } else { "" };
        writeln!(out, "file      {} ({} bytes)", shape.file.display(), shape.bytes)?;
        writeln!(
            out,
            "layout    {layout}; fields separated by {delimiter}{decimals}; data from line {}",
            self.skip + 1
        )?;
        let zone =
            if self.is_local() { format!("; without an offset in {}", shape.zone.name()) } else { String::new() };
        let columns: Vec<String> = self.time.iter().map(name).collect();
        writeln!(out, "time      column {}: {}{zone}", columns.join(" and "), self.format.words())?;
        if let Some(at) = &self.sensor {
            writeln!(out, "sensor    column {}, below {}", name(at), shape.names.prefix())?;
        }
        let empty = if shape.keep_empty { "gaps (--empty none leaves them out)" } else { "left out" };
        writeln!(out, "empty     cells are {empty}")?;
        for (column, why) in &self.left_out {
            writeln!(out, "left out  column {column:?}: {why}")?;
        }
        writeln!(out)?;
        preview::write_columns(&self.columns(), style, out)?;
        preview::write_first(first, style, out)
    }

    fn columns(&self) -> Vec<PlannedColumn<'_>> {
        let columns = self.values.iter().map(|column| PlannedColumn {
            column: &column.name,
            sensor: column.target.as_ref().map(|target| target.path.as_str()),
            unit: column.target.as_ref().map(|target| target.unit.as_str()),
        });
        columns.collect()
    }

    /// Whether times may depend on a time zone.
    pub fn is_local(&self) -> bool {
        !matches!(self.format, TimeFormat::S | TimeFormat::Ms | TimeFormat::Us | TimeFormat::Ns)
    }

    /// The plan for programs.
    pub fn json(&self, shape: &Shape, first: &[FirstReading]) -> serde_json::Value {
        let name = |at: &usize| self.header.get(*at).cloned().unwrap_or_default();
        json!({
            "file": shape.file, "layout": format!("{:?}", self.layout).to_lowercase(), "delimiter": char::from(self.delimiter).to_string(),
            "decimal_comma": self.comma, "first_line": self.skip + 1, "time_columns": self.time.iter().map(name).collect::<Vec<_>>(),
            "time_format": format!("{:?}", self.format).to_lowercase(), "time_zone": self.is_local().then(|| shape.zone.name()),
            "sensor_column": self.sensor.as_ref().map(name), "columns": self.columns(), "first": first,
            "left_out": self.left_out.iter().map(|(column, why)| json!({ "column": column, "why": why })).collect::<Vec<_>>(),
        })
    }
}

/// The columns of a file with the cells of its first lines.
struct Columns<'a> {
    header: &'a [String],
    body: &'a [&'a Vec<Vec<u8>>],
    options: &'a CsvOptions,
    zone: &'a Zone,
    named: bool,
}

impl Columns<'_> {
    fn plan(&self, delimiter: u8, comma: bool, shape: &Shape) -> Result<Plan, String> {
        let ldms =
            self.header.first().is_some_and(|name| name.starts_with('#')) && self.find(&["ProducerName"]).is_some();
        let layout = match self.options.layout {
            Some(layout) => layout,
            None if ldms => Layout::Ldms,
            None if self.sensor().is_some() && self.find(VALUE_NAMES).is_some() => Layout::Long,
            None if !self.named && self.header.len() == 3 && self.sensor().is_some() => Layout::Long,
            None => Layout::Wide,
        };
        let time = self.time(layout, comma)?;
        let format = self.format(&time)?;
        let sensor = match layout {
            Layout::Wide => None,
            Layout::Ldms => {
                Some(self.find(&["ProducerName"]).ok_or("it has no column ProducerName; is it a file of LDMS?")?)
            }
            Layout::Long => {
                Some(self.sensor().ok_or("no column has the names of the sensors; name it with --sensor-column")?)
            }
        };
        let named = |names: &[&str], option: &Option<String>| match option {
            Some(name) => self.column(name).map(Some),
            None => Ok(self.find(names)),
        };
        let unit = if layout == Layout::Long { named(UNIT_NAMES, &self.options.unit_column)? } else { None };
        let mut plan = Plan {
            layout,
            delimiter,
            comma,
            header: self.header.to_vec(),
            skip: 0,
            header_line: Vec::new(),
            time,
            format,
            sensor,
            unit,
            values: Vec::new(),
            left_out: Vec::new(),
            line_bytes: 0.0,
            line_readings: 1.0,
        };
        let value = if layout == Layout::Long {
            let taken = |at: &usize| !plan.time.contains(at) && Some(*at) != sensor && Some(*at) != unit;
            let only = || (0..self.header.len()).filter(taken).find(|at| self.is_numeric(*at, comma));
            let value = named(VALUE_NAMES, &self.options.value_column)?.or_else(only);
            Some(value.ok_or("no column has the values; name it with --value-column")?)
        } else {
            None
        };
        self.values(&mut plan, value, shape)?;
        Ok(plan)
    }

    /// The columns of values, and those that are left out.
    fn values(&self, plan: &mut Plan, value: Option<usize>, shape: &Shape) -> Result<(), String> {
        for (at, name) in self.header.iter().enumerate() {
            let special = plan.time.contains(&at) || Some(at) == plan.sensor || Some(at) == plan.unit;
            if special {
                continue;
            }
            let shown = if name.is_empty() { format!("column {}", at + 1) } else { name.clone() };
            if value.is_some_and(|value| value != at) {
                plan.left_out.push((shown, "it is neither sensor, time, value nor unit"));
            } else if self.options.skip_columns.iter().any(|skip| skip == name) {
                plan.left_out.push((shown, "skipped by --skip-column"));
            } else if plan.layout == Layout::Ldms && name == "Time_usec" {
                plan.left_out.push((shown, "the time has it"));
            } else if name.is_empty() && self.body.iter().all(|row| row[at].trim_ascii().is_empty()) {
                plan.left_out.push((shown, "it has neither a name nor cells"));
            } else if value.is_none() && self.is_text(at, plan.comma) {
                plan.left_out.push((shown, "it holds text"));
            } else {
                let target = match plan.layout {
                    Layout::Wide => Some(shape.names.target(&shown, &[], "")?),
                    _ => None,
                };
                plan.values.push(ValueColumn { at, name: shown, target });
            }
        }
        if plan.values.is_empty() {
            return Err("no column has values".to_owned());
        }
        let mut paths: Vec<(&str, &str)> = plan
            .values
            .iter()
            .filter_map(|column| Some((column.target.as_ref()?.path.as_str(), column.name.as_str())))
            .collect();
        paths.sort_unstable();
        if let Some(pair) = paths.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!(
                "the columns {:?} and {:?} are both {}; rename one with --rename",
                pair[0].1, pair[1].1, pair[0].0
            ));
        }
        Ok(())
    }

    fn column(&self, name: &str) -> Result<usize, String> {
        if let Some(at) = self.header.iter().position(|column| column == name) {
            return Ok(at);
        }
        match name.parse::<usize>() {
            Ok(number) if (1..=self.header.len()).contains(&number) => Ok(number - 1),
            _ => Err(format!(
                "it has no column {name:?}; it has {}",
                self.header.iter().take(COLUMNS_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ")
            )),
        }
    }

    fn find(&self, names: &[&str]) -> Option<usize> {
        let is = |column: &String, name: &&str| column.eq_ignore_ascii_case(name);
        names.iter().find_map(|name| self.header.iter().position(|column| is(column, name)))
    }

    fn sensor(&self) -> Option<usize> {
        if let Some(name) = &self.options.sensor_column {
            return self.column(name).ok();
        }
        if self.named {
            return self.find(SENSOR_NAMES);
        }
        (0..self.header.len())
            .find(|at| self.body.iter().all(|row| row[*at].starts_with(b"/")) && !self.body.is_empty())
    }

    fn time(&self, layout: Layout, comma: bool) -> Result<Vec<usize>, String> {
        if !self.options.time_columns.is_empty() {
            return self.options.time_columns.iter().map(|name| self.column(name)).collect();
        }
        if layout == Layout::Ldms {
            return Ok(vec![0]);
        }
        if let (Some(date), Some(time)) = (self.find(&["date", "datum"]), self.find(&["time", "zeit", "uhrzeit"]))
            && self.options.time_format.is_none()
            && guess(&self.cells(time), self.zone).is_err()
        {
            return Ok(vec![date, time]);
        }
        let taken = self.sensor().filter(|_| layout == Layout::Long);
        let is_time = |at: &usize| {
            Some(*at) != taken && (self.options.time_format.is_some() || guess(&self.cells(*at), self.zone).is_ok())
        };
        if self.named
            && let Some(at) = self.find(TIME_NAMES)
        {
            return Ok(vec![at]);
        }
        let plausible =
            |at: &usize| is_time(at) && (*at == 0 || !self.is_numeric(*at, comma) || layout == Layout::Long);
        let found = (0..self.header.len()).find(plausible);
        found.map(|at| vec![at]).ok_or_else(|| {
            "no column has times; name it with --time-column, and their notation with --time-format".to_owned()
        })
    }

    fn format(&self, time: &[usize]) -> Result<TimeFormat, String> {
        if let Some(format) = self.options.time_format {
            return Ok(format);
        }
        let joined: Vec<Vec<u8>> = self
            .body
            .iter()
            .map(|row| {
                let cells: Vec<&[u8]> = time.iter().map(|at| row[*at].trim_ascii()).collect();
                cells.join(&b' ')
            })
            .collect();
        let filled: Vec<&[u8]> = joined.iter().map(Vec::as_slice).filter(|cell| !cell.is_empty()).collect();
        if filled.is_empty() {
            return Err("it has no line with a readable time; name the notation with --time-format".to_owned());
        }
        guess(&filled, self.zone)
    }

    fn cells(&self, at: usize) -> Vec<&[u8]> {
        self.body.iter().map(|row| row[at].as_slice()).collect()
    }

    fn is_numeric(&self, at: usize, comma: bool) -> bool {
        !self.body.is_empty() && self.body.iter().all(|row| cell(&row[at], comma).is_ok())
    }

    /// Whether the column has cells, and none is a number.
    fn is_text(&self, at: usize, comma: bool) -> bool {
        self.body.len() > 1 && self.body.iter().all(|row| cell(&row[at], comma).is_err())
    }
}

/// The delimiter that splits the lines most evenly.
fn delimiter_of(lines: &[&[u8]]) -> u8 {
    let evenness = |delimiter: u8| {
        let mut fields = Fields::new(delimiter);
        let counts: Vec<usize> =
            lines.iter().filter_map(|line| fields.split(line).ok().map(|()| fields.len())).collect();
        let first = counts.first().copied().unwrap_or(1);
        let same = counts.iter().filter(|count| **count == first).count();
        if first < 2 { (0, 0) } else { (same * 100 / counts.len().max(1), first) }
    };
    // The comma is last, because decimal commas also make it even.
    let candidates = [b'\t', b';', b'|', b','];
    let best = candidates.iter().rev().max_by_key(|delimiter| evenness(**delimiter)).copied();
    let even = |delimiter: u8| evenness(delimiter).0 >= 90;
    candidates.into_iter().find(|delimiter| even(*delimiter)).or(best).unwrap_or(b',')
}

/// Whether cells are numbers only if their decimals follow a comma.
fn has_commas(lines: &[&[u8]], delimiter: u8) -> bool {
    let mut fields = Fields::new(delimiter);
    lines.iter().any(|line| {
        fields.split(line).is_ok()
            && (0..fields.len()).any(|at| {
                let text = fields.get(line, at);
                text.contains(&b',') && cell(text, false).is_err() && cell(text, true).is_ok()
            })
    })
}

/// Whether a first line has names: cells that are not numbers, gaps or times.
fn looks_like_header(cells: &[Vec<u8>], comma: bool) -> bool {
    let zone = Zone::parse("UTC");
    let is_name = |text: &Vec<u8>| {
        let filled = !matches!(cell(text, comma), Ok(Cell::Empty | Cell::Int(_) | Cell::Float(_) | Cell::Gap));
        let time = zone.as_ref().is_ok_and(|zone| match guess(&[text], zone) {
            Ok(_) => true,
            Err(why) => why.contains("dmy"),
        });
        filled && !time
    };
    let names = cells.iter().filter(|cell| is_name(cell)).count();
    // In a line of readings one cell is a name: the sensor.
    names > 1 || (names == 1 && cells.len() <= 2)
}
