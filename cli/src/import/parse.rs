//! Parses lines. A line is imported as a whole or refused as a whole.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::cells::{Cell, cell};
use super::encode::{Batch, Column, Sensors};
use super::lines::{is_comment, lines, text_of};
use super::names::TargetSensor;
use super::options::{Layout, Shape};
use super::plan::Plan;
use super::source::Piece;
use super::times::Times;
use crate::csv::Fields;

/// A part with this number of readings at the end of a line is full.
const PART_READINGS: usize = 2 << 20;
/// The most bytes of a bad cell in a message.
const SHOWN_BYTES: usize = 60;

/// A line that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    pub line: u64,
    pub why: String,
    pub text: String,
}

/// The content of a piece of a file.
#[derive(Debug, Default)]
pub struct Parsed {
    pub index: u64,
    /// The parts; at least one, nearly always one.
    pub batches: Vec<Batch>,
    pub bad: Vec<Bad>,
    /// The number of lines with readings.
    pub lines: u64,
    /// Comments, empty lines and headers.
    pub other_lines: u64,
}

pub struct PieceParser<'a> {
    plan: &'a Plan,
    shape: &'a Shape,
    times: Times,
    fields: Fields,
    joined: Vec<u8>,
    cells: Vec<Cell>,
    /// In a piece: the group of a producer of LDMS, or the sensor of a name in a long table.
    known: HashMap<Vec<u8>, usize>,
}

/// A part that is being built.
#[derive(Default)]
struct Building {
    sensors: Sensors,
    groups: Vec<Group>,
    rows: Vec<(usize, i64, Cell)>,
    readings: usize,
}

struct Group {
    /// The number of the first column's sensor; the others follow.
    first: usize,
    times: Vec<i64>,
    columns: Vec<Column>,
}

impl<'a> PieceParser<'a> {
    pub fn new(plan: &'a Plan, shape: &'a Shape) -> Self {
        Self {
            plan,
            shape,
            times: Times::new(plan.format, &shape.zone),
            fields: Fields::new(plan.delimiter),
            joined: Vec::new(),
            cells: Vec::new(),
            known: HashMap::new(),
        }
    }

    pub fn parse(&mut self, piece: &Piece) -> Parsed {
        let mut parsed = Parsed { index: piece.index, ..Parsed::default() };
        let mut building = Building::default();
        self.known.clear();
        for (number, line) in (piece.first_line..).zip(lines(&piece.bytes)) {
            let repeats = !self.plan.header_line.is_empty() && line == self.plan.header_line;
            let comment = self.plan.layout != Layout::Ldms && is_comment(line);
            if number <= self.plan.skip || repeats || comment || line.trim_ascii().is_empty() {
                parsed.other_lines += 1;
                continue;
            }
            parsed.lines += 1;
            if let Err(why) = self.line(line, &mut building) {
                parsed.bad.push(Bad { line: number, why, text: text_of(line) });
            }
            if building.readings >= PART_READINGS {
                parsed.batches.push(std::mem::take(&mut building).finish(self.shape.keep_empty));
                self.known.clear();
            }
        }
        parsed.batches.push(building.finish(self.shape.keep_empty));
        parsed
    }

    fn line(&mut self, line: &[u8], building: &mut Building) -> Result<(), String> {
        self.fields.split(line)?;
        if self.fields.len() != self.plan.header.len() {
            return Err(format!("{} fields, expected {}", self.fields.len(), self.plan.header.len()));
        }
        let time = self.time(line)?;
        match self.plan.layout {
            Layout::Long => self.long(line, time, building),
            Layout::Wide | Layout::Ldms => self.wide(line, time, building),
        }
    }

    fn time(&mut self, line: &[u8]) -> Result<i64, String> {
        let text = match self.plan.time[..] {
            [at] => self.fields.get(line, at),
            _ => {
                self.joined.clear();
                for at in &self.plan.time {
                    self.joined.extend_from_slice(self.fields.get(line, *at).trim_ascii());
                    self.joined.push(b' ');
                }
                &self.joined
            }
        };
        self.times.parse(text).map_err(|fault| format!("{fault}: {:?}", shortened(text)))
    }

    fn wide(&mut self, line: &[u8], time: i64, building: &mut Building) -> Result<(), String> {
        // Parses all cells first, so that no cell of a refused line is imported.
        self.cells.clear();
        for column in &self.plan.values {
            let text = self.fields.get(line, column.at);
            let read = cell(text, self.plan.comma);
            self.cells.push(read.map_err(|why| format!("column {:?}: {why}: {:?}", column.name, shortened(text)))?);
        }
        let producer = self.plan.sensor.map_or(&b""[..], |at| self.fields.get(line, at));
        let group = match self.known.get(producer) {
            Some(group) => *group,
            None => {
                let group = Group::new(self.plan, self.shape, producer, &mut building.sensors)?;
                building.groups.push(group);
                self.known.insert(producer.to_owned(), building.groups.len() - 1);
                building.groups.len() - 1
            }
        };
        let group = &mut building.groups[group];
        group.times.push(time);
        for (column, cell) in group.columns.iter_mut().zip(&self.cells) {
            column.push(*cell);
        }
        building.readings += self.cells.len();
        Ok(())
    }

    fn long(&mut self, line: &[u8], time: i64, building: &mut Building) -> Result<(), String> {
        let plan = self.plan;
        let text = plan.values.first().map_or(&b""[..], |column| self.fields.get(line, column.at));
        let value = cell(text, plan.comma).map_err(|why| format!("the value: {why}: {:?}", shortened(text)))?;
        let name = plan.sensor.map_or(&b""[..], |at| self.fields.get(line, at));
        let unit = plan.unit.map_or(&b""[..], |at| self.fields.get(line, at)).trim_ascii();
        let sensor = match self.known.get(name) {
            Some(sensor) => *sensor,
            None => {
                if name.trim_ascii().is_empty() {
                    return Err("the sensor is missing".to_owned());
                }
                let target = self.shape.names.target(&text_of(name), &[], &text_of(unit))?;
                let sensor = building.sensors.add(target, &text_of(unit))?;
                self.known.insert(name.to_owned(), sensor);
                sensor
            }
        };
        let file_unit = building.sensors.file_unit(sensor);
        if file_unit.as_bytes() != unit {
            return Err(format!(
                "the unit is {:?} here and {file_unit:?} in an earlier line of the sensor",
                shortened(unit)
            ));
        }
        building.rows.push((sensor, time, value));
        building.readings += 1;
        Ok(())
    }
}

/// A text that fits into a message.
fn shortened(text: &[u8]) -> String {
    text_of(&text[..text.len().min(SHOWN_BYTES)])
}

impl Group {
    fn new(plan: &Plan, shape: &Shape, producer: &[u8], sensors: &mut Sensors) -> Result<Self, String> {
        if plan.sensor.is_some() && producer.trim_ascii().is_empty() {
            return Err("the producer is missing".to_owned());
        }
        let producer = text_of(producer);
        let mut targets = Vec::with_capacity(plan.values.len());
        for column in &plan.values {
            if let Some(target) = &column.target {
                targets.push(target.clone());
                continue;
            }
            // `metric#instance`: the instance is a level above its metrics.
            let (metric, instance) = column.name.split_once('#').unwrap_or((&column.name, ""));
            let below = producer.trim().split('/').chain([instance]).filter(|level| !level.is_empty());
            targets.push(shape.names.target(metric, &below.collect::<Vec<_>>(), "")?);
        }
        let first = sensors.len();
        let columns = targets.iter().map(|_| Column::default()).collect();
        for target in targets {
            sensors.add(target, "")?;
        }
        Ok(Self { first, times: Vec::new(), columns })
    }
}

impl Building {
    fn finish(self, keep_empty: bool) -> Batch {
        let mut batch = Batch::new(self.sensors);
        for group in self.groups {
            for (at, column) in group.columns.into_iter().enumerate() {
                batch.column(group.first + at, &group.times, &column, keep_empty);
            }
        }
        batch.rows(&self.rows, keep_empty);
        batch
    }
}

impl Sensors {
    /// Adds a sensor and returns its number. Refuses a second name for the same path.
    pub fn add(&mut self, target: TargetSensor, file_unit: &str) -> Result<usize, String> {
        let number = self.targets.len();
        match self.by_path.entry(target.path.clone()) {
            Entry::Occupied(_) => {
                Err(format!("two names of the file are the sensor {}; rename one with --rename", target.path))
            }
            Entry::Vacant(entry) => {
                entry.insert(number);
                self.targets.push((target, file_unit.to_owned()));
                Ok(number)
            }
        }
    }
}
