//! From the values of a poll to the sensors of a group: which there are, their numbers, and counters of 32 bits.

use std::collections::{BTreeMap, HashMap};

use wholegrain_model::name::sanitize_level;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, SENSORS_MAX};
use wholegrain_model::{Kind, SensorDef, ValueType};

use crate::ber::Oid;
use crate::message::SnmpValue;
use crate::spec::{GroupSpec, ObjectSpec, TableSpec, TableStyle, entity_unit};

/// The most rows of a table.
pub const ROWS_MAX: usize = 8192;
/// After this many polls without a value, the next change of the sensors drops a sensor.
const ABSENT_POLLS_MAX: u32 = 10;
/// The most objects and tables that a remark names.
const REMARKS_MAX: usize = 8;
/// The modulus of a Counter32.
const COUNTER32: i64 = 1 << 32;
/// How far sysUpTime may differ from our clock: 3 s and a fifth of the time between two polls.
const UPTIME_TOLERANCE_S: f64 = 3.0;

/// The cells of one table: the values of each walked column by the index of the row.
pub type TableCells = BTreeMap<Vec<u32>, Vec<Option<SnmpValue>>>;

/// All that one poll of a group brought.
#[derive(Debug, Default)]
pub struct GroupAnswer {
    /// The value of each object of the group.
    pub objects: Vec<Option<SnmpValue>>,
    /// The cells of each table.
    pub tables: Vec<TableCells>,
    /// sysUpTime in hundredths of a second.
    pub uptime: Option<u32>,
    /// How often the engine was started.
    pub boots: Option<i64>,
    /// The wall-clock time of the answer, in ns.
    pub at_ns: i64,
}

/// Which sensor a value is of: its path below the device.
type SensorName = String;

/// A number that a device answered, ready for the slot.
struct Measured {
    name: SensorName,
    /// Fixed when the sensor appears.
    unit: String,
    scale: f64,
    kind: Kind,
    natural: ValueType,
    value: SnmpValue,
    declared: Option<ValueType>,
    description: String,
}

/// A sensor of the group.
struct LaidSensor {
    def: SensorDef,
    absent: u32,
    /// The last number of a Counter32, and what its wraps add up to.
    counter: Option<(u32, i64)>,
    /// Whether a gap has to be read before its next value.
    owes_gap: bool,
}

/// What is known of the time between two answers of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Continuity {
    /// There is no answer before this one.
    First,
    /// The device ran on.
    Continues,
    /// The device started again: its counters began at 0.
    Restarted,
    /// The device does not say, or our clock was stepped.
    Unknown,
}

/// The sensors of a group of one device.
#[derive(Default)]
pub struct GroupLayout {
    sensors: Vec<LaidSensor>,
    places: HashMap<SensorName, usize>,
    last: Option<(Option<u32>, Option<i64>, i64)>,
    values: Vec<Option<u64>>,
}

impl GroupLayout {
    /// Takes an answer. Returns the sensors if they are others than before; [`GroupLayout::values`] has their values.
    pub fn take(&mut self, device: &str, spec: &GroupSpec, answer: &GroupAnswer) -> Option<Vec<SensorDef>> {
        let continuity = self.continuity(answer);
        self.last = Some((answer.uptime, answer.boots, answer.at_ns));
        let measured = measured(device, spec, answer);
        let has_changed = measured.iter().any(|measured| match self.places.get(&measured.name) {
            Some(at) => {
                let def = &self.sensors[*at].def;
                def.scale.to_bits() != measured.scale.to_bits() || def.unit != measured.unit
            }
            None => number(&measured.value, measured.declared.unwrap_or(measured.natural)).is_some(),
        });
        if has_changed {
            self.rebuild(&measured);
        }
        self.values.clear();
        self.values.resize(self.sensors.len(), None);
        self.sensors.iter_mut().for_each(|sensor| sensor.absent = sensor.absent.saturating_add(1));
        for measured in &measured {
            if let Some(at) = self.places.get(&measured.name) {
                let sensor = &mut self.sensors[*at];
                if number(&measured.value, sensor.def.value_type).is_some() {
                    sensor.absent = 0;
                }
                self.values[*at] = sensor.value(&measured.value, continuity);
            }
        }
        has_changed.then(|| self.sensors.iter().map(|sensor| sensor.def.clone()).collect())
    }

    /// Notes that the values of the last answer were read, with their gaps. An answer that is replaced before a read separates nothing.
    pub fn note_read(&mut self) {
        self.sensors.iter_mut().for_each(|sensor| sensor.owes_gap = false);
    }

    /// The values of the last answer, in the order of the sensors.
    pub fn values(&self) -> &[Option<u64>] {
        &self.values
    }

    /// Whether the device has started again since the last answer, as far as it says so.
    fn continuity(&self, answer: &GroupAnswer) -> Continuity {
        let Some((before, boots, at_ns)) = self.last else {
            // A device without sysUpTime has no counter whose wraps are added, and so no sum that a start of the plug-in could lose.
            return if answer.uptime.is_some() { Continuity::First } else { Continuity::Unknown };
        };
        let (Some(before), Some(uptime)) = (before, answer.uptime) else { return Continuity::Unknown };
        let elapsed = (answer.at_ns - at_ns) as f64 / 1e9;
        // sysUpTime wraps after 497 days: the difference is taken modulo 2^32.
        let passed = f64::from(uptime.wrapping_sub(before)) / 100.0;
        let is_as_expected = (passed - elapsed).abs() <= UPTIME_TOLERANCE_S + 0.2 * elapsed.abs();
        // An uptime shorter than the time since the last answer: it started in between. A wrapped one is short as well.
        let uptime_s = f64::from(uptime) / 100.0;
        let is_old_enough = uptime < before || uptime_s >= elapsed - UPTIME_TOLERANCE_S;
        let has_booted = boots.zip(answer.boots).is_some_and(|(before, now)| before != now);
        if has_booted {
            Continuity::Restarted
        } else if is_as_expected && is_old_enough {
            Continuity::Continues
        } else if uptime_s <= elapsed + UPTIME_TOLERANCE_S {
            Continuity::Restarted
        } else {
            Continuity::Unknown
        }
    }

    /// Adds new sensors, and drops those that have been absent for long. The order is that of the names, so that it does not depend on history.
    fn rebuild(&mut self, measured: &[Measured]) {
        let mut old: BTreeMap<SensorName, LaidSensor> = std::mem::take(&mut self.sensors)
            .into_iter()
            .filter(|sensor| sensor.absent < ABSENT_POLLS_MAX)
            .map(|sensor| (sensor.def.name.clone(), sensor))
            .collect();
        for new in measured {
            let value_type = new.declared.unwrap_or(new.natural);
            if number(&new.value, value_type).is_none() || old.len() == SENSORS_MAX {
                continue;
            }
            let def = SensorDef {
                name: new.name.clone(),
                unit: new.unit.clone(),
                kind: new.kind,
                value_type,
                scale: new.scale,
                wraps_at: None,
                description: new.description.clone(),
            };
            let sensor =
                old.entry(new.name.clone()).or_insert(LaidSensor { def, absent: 0, counter: None, owes_gap: false });
            (sensor.def.scale, sensor.def.unit) = (new.scale, new.unit.clone());
        }
        self.sensors = old.into_values().collect();
        self.places = self.sensors.iter().enumerate().map(|(at, sensor)| (sensor.def.name.clone(), at)).collect();
    }
}

impl LaidSensor {
    fn value(&mut self, value: &SnmpValue, continuity: Continuity) -> Option<u64> {
        let bits = number(value, self.def.value_type)?;
        let (SnmpValue::Counter32(now), Kind::Counter, ValueType::Int) = (value, self.def.kind, self.def.value_type)
        else {
            return Some(bits);
        };
        let wraps = match (continuity, self.counter) {
            (Continuity::Continues, Some((before, wraps))) if *now < before => wraps + COUNTER32,
            (Continuity::Continues, Some((_, wraps))) => wraps,
            _ => 0,
        };
        // Where the wraps before are not known, the step to this value is not either: a gap separates them. A plug-in that was started again does
        // not know whether there were wraps.
        let is_separate = match (continuity, self.counter) {
            (Continuity::First, _) => true,
            (Continuity::Unknown, Some((_, wraps))) => wraps > 0,
            _ => false,
        };
        self.counter = Some((*now, wraps));
        self.owes_gap |= is_separate;
        (!self.owes_gap).then_some((wraps + i64::from(*now)) as u64)
    }
}

/// What of a group is no sensor and why, at the first answer. `None` if there is nothing to say.
pub fn remark(device: &str, spec: &GroupSpec, answer: &GroupAnswer) -> Option<String> {
    let group = format!("device {device}, group {}", spec.name);
    if spec.is_preset {
        let has_any = answer.objects.iter().any(Option::is_some) || answer.tables.iter().any(|cells| !cells.is_empty());
        return (!has_any).then(|| format!("{group}: the device has nothing of this preset"));
    }
    let object = |(object, value): (&ObjectSpec, &Option<SnmpValue>)| {
        let why = match value {
            None if object.oid.numbers().last() == Some(&0) => "the device does not have it",
            None => "the device does not have it; the number of a single value ends in .0",
            Some(value) if number(value, object.value_type.unwrap_or(natural(value))).is_none() => {
                "its value is no number of this type"
            }
            Some(_) => return None,
        };
        Some(format!("{} ({why})", object.name))
    };
    let objects = spec.objects.iter().zip(&answer.objects).filter_map(object);
    let empty = spec.tables.iter().zip(&answer.tables).filter(|(_, cells)| cells.is_empty());
    let without: Vec<String> =
        objects.chain(empty.map(|(table, _)| format!("{} (the table has no rows)", table.name))).collect();
    let more = without.len().saturating_sub(REMARKS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = &without[..without.len().min(REMARKS_MAX)];
    (!named.is_empty()).then(|| format!("{group}: no sensors for {}{more}", named.join(", ")))
}

/// The type of a value's sensor without `type`.
fn natural(value: &SnmpValue) -> ValueType {
    match value {
        SnmpValue::Float(_) | SnmpValue::Text(_) => ValueType::Float,
        _ => ValueType::Int,
    }
}

/// The 64 bits of a value as a number of this type. `None` if it is none, or does not fit.
fn number(value: &SnmpValue, value_type: ValueType) -> Option<u64> {
    let integer = match value {
        SnmpValue::Integer(value) => *value,
        SnmpValue::Counter32(value) | SnmpValue::Gauge32(value) | SnmpValue::TimeTicks(value) => i64::from(*value),
        SnmpValue::Counter64(value) => match value_type {
            ValueType::Int => i64::try_from(*value).ok()?,
            ValueType::Float => return Some((*value as f64).to_bits()),
        },
        SnmpValue::Float(value) => return float(*value, value_type),
        SnmpValue::Text(text) => {
            let text = std::str::from_utf8(text).ok()?.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            return match value_type {
                ValueType::Int => text.parse::<i64>().ok().map(|value| value as u64),
                ValueType::Float => text.parse().ok().and_then(|value| float(value, value_type)),
            };
        }
        SnmpValue::Other | SnmpValue::Absent | SnmpValue::EndOfMib => return None,
    };
    Some(match value_type {
        ValueType::Int => integer as u64,
        ValueType::Float => (integer as f64).to_bits(),
    })
}

fn float(value: f64, value_type: ValueType) -> Option<u64> {
    match value_type {
        _ if !value.is_finite() => None,
        ValueType::Float => Some(value.to_bits()),
        ValueType::Int if value.fract() == 0.0 && value.abs() < 9e15 => Some(value as i64 as u64),
        ValueType::Int => None,
    }
}

/// The integer of a value, for factors, types and states.
fn integer(value: Option<&SnmpValue>) -> Option<i64> {
    number(value?, ValueType::Int).map(|bits| bits as i64)
}

fn measured(device: &str, spec: &GroupSpec, answer: &GroupAnswer) -> Vec<Measured> {
    let mut all = Vec::new();
    for (object, value) in spec.objects.iter().zip(&answer.objects) {
        if let Some(value) = value {
            all.extend(one(object, format!("{device}/{}", object.name), value, object.scale, &object.unit));
        }
    }
    for (table, cells) in spec.tables.iter().zip(&answer.tables) {
        rows(device, table, cells, &mut all);
    }
    all
}

fn one(object: &ObjectSpec, name: String, value: &SnmpValue, scale: f64, unit: &str) -> Option<Measured> {
    if object.gap.is_some() && integer(Some(value)) == object.gap {
        return None;
    }
    let is_counter = matches!(value, SnmpValue::Counter32(_) | SnmpValue::Counter64(_));
    let mut description = object.description.clone();
    while description.len() > DESCRIPTION_BYTES_MAX {
        description.pop();
    }
    Some(Measured {
        name,
        unit: unit.to_owned(),
        scale,
        kind: object.kind.unwrap_or(if is_counter { Kind::Counter } else { Kind::Gauge }),
        natural: natural(value),
        value: value.clone(),
        declared: object.value_type,
        description,
    })
}

/// The text of a row's index: `3` or `1.3`.
fn index_text(index: &[u32]) -> String {
    index.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

fn rows(device: &str, table: &TableSpec, cells: &TableCells, all: &mut Vec<Measured>) {
    let walked = table.walked();
    let place = |oid: &Oid| walked.iter().position(|column| column == oid);
    let names = row_names(cells, table.index.as_ref().and_then(place));
    let entity: Vec<Option<usize>> = table.entity_columns().map(|oid| place(&oid)).collect();
    for ((_, row), name) in cells.iter().zip(&names) {
        let cell = |at: Option<usize>| row.get(at?)?.as_ref();
        for (at, column) in table.columns.iter().enumerate() {
            let Some(value) = cell(Some(at)) else { continue };
            let (mut scale, mut unit) = (column.scale, column.unit.as_str());
            if let Some(factor) = &column.scale_by {
                match integer(cell(place(factor))).filter(|factor| *factor > 0) {
                    Some(factor) => scale *= factor as f64,
                    None => continue,
                }
            }
            let path = match (table.style, &entity[..]) {
                (TableStyle::EntitySensor, [kind, of_scale, precision, state]) => {
                    let number = |at: &Option<usize>| integer(cell(*at));
                    let (Some(kind), Some(of_scale), Some(precision)) =
                        (number(kind), number(of_scale), number(precision))
                    else {
                        continue;
                    };
                    let (Some(entity), Some(1)) = (entity_unit(kind, of_scale, precision), number(state)) else {
                        continue;
                    };
                    (unit, scale) = entity;
                    format!("{device}/{}/{name}", table.name)
                }
                _ => format!("{device}/{}/{name}/{}", table.name, column.name),
            };
            all.extend(one(column, path, value, scale, unit));
        }
    }
}

/// The level of each row: the text of its name column, with the index where two rows have the same; else the index.
fn row_names(cells: &TableCells, names: Option<usize>) -> Vec<String> {
    let text = |row: &Vec<Option<SnmpValue>>| match row.get(names?)? {
        Some(SnmpValue::Text(text)) => {
            let text = String::from_utf8_lossy(text);
            let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            (!text.is_empty()).then(|| sanitize_level(text))
        }
        Some(SnmpValue::Integer(number)) => Some(number.to_string()),
        _ => None,
    };
    let texts: Vec<Option<String>> = cells.values().map(text).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    texts.iter().flatten().for_each(|text| *counts.entry(text).or_default() += 1);
    cells
        .keys()
        .zip(&texts)
        .map(|(index, text)| match text {
            Some(text) if counts[text.as_str()] == 1 => text.clone(),
            Some(text) => {
                let index = index_text(index);
                sanitize_level(&format!("{}:{index}", text.chars().take(60).collect::<String>()))
            }
            None => sanitize_level(&index_text(index)),
        })
        .collect()
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
