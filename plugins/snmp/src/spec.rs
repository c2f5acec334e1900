//! What is read of a device: objects and tables, checked.

use wholegrain_model::{Interval, Kind, ValueType};

use crate::ber::Oid;

/// One object: a scalar with its whole number, or a column without the index.
#[derive(Debug, Clone)]
pub struct ObjectSpec {
    pub oid: Oid,
    /// The last level of the path.
    pub name: String,
    pub unit: String,
    pub scale: f64,
    /// `None`: a counter, if the agent answers a type of counters.
    pub kind: Option<Kind>,
    /// `None`: integers, unless the first answer is a float or text.
    pub value_type: Option<ValueType>,
    pub description: String,
    /// The number with which the device says that it has no value.
    pub gap: Option<i64>,
    /// A column of the same table whose number is a factor of the scale.
    pub scale_by: Option<Oid>,
}

/// How the sensors of a table get their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableStyle {
    Plain,
    /// ENTITY-SENSOR-MIB: type, scale, precision and state of each row are columns.
    EntitySensor,
}

/// A table: its rows are found by walking its columns.
#[derive(Debug, Clone)]
pub struct TableSpec {
    /// The level above the rows in the path.
    pub name: String,
    /// The column whose text names the rows. Without it, they have the numbers of their index.
    pub index: Option<Oid>,
    pub columns: Vec<ObjectSpec>,
    pub style: TableStyle,
}

impl TableSpec {
    /// All columns to walk: those of sensors, that of the names, and those that the style or a scale needs.
    pub fn walked(&self) -> Vec<Oid> {
        let mut oids: Vec<Oid> = self.columns.iter().map(|column| column.oid.clone()).collect();
        let more = self.index.iter().chain(self.columns.iter().filter_map(|column| column.scale_by.as_ref()));
        for oid in more.cloned().chain(self.entity_columns()) {
            if !oids.contains(&oid) {
                oids.push(oid);
            }
        }
        oids
    }

    /// Type, scale, precision and state, for ENTITY-SENSOR-MIB.
    pub fn entity_columns(&self) -> impl Iterator<Item = Oid> + use<> {
        let columns: &[u32] = if self.style == TableStyle::EntitySensor { &[1, 2, 3, 5] } else { &[] };
        let table = Oid::new([1, 3, 6, 1, 2, 1, 99, 1, 1, 1]);
        columns.iter().map(move |column| table.child(*column))
    }
}

/// A group of a device.
#[derive(Debug, Clone)]
pub struct GroupSpec {
    pub name: String,
    pub interval: Option<Interval>,
    pub offset: Option<Interval>,
    pub objects: Vec<ObjectSpec>,
    pub tables: Vec<TableSpec>,
    /// Whether it is ready-made: devices lack some of its objects, and nobody wrote them down.
    pub is_preset: bool,
}

/// The unit and scale of a sensor of ENTITY-SENSOR-MIB by its type, scale and precision (RFC 3433). `None` for types without a number.
pub fn entity_unit(kind: i64, scale: i64, precision: i64) -> Option<(&'static str, f64)> {
    let unit = match kind {
        1 | 2 | 12 => "1",
        3 | 4 => "V",
        5 => "A",
        6 => "W",
        7 => "Hz",
        8 => "Cel",
        9 => "%",
        10 => "/min",
        11 => "m3/min",
        _ => return None,
    };
    let power = (1..=17).contains(&scale).then_some((scale as i32 - 9) * 3)?;
    let precision = (-8..=9).contains(&precision).then_some(precision as i32)?;
    // A precision below 0 means significant digits of a float, which do not change the scale.
    Some((unit, 10f64.powi(power - precision.max(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_entity_sensors() {
        assert_eq!(entity_unit(8, 9, 1), Some(("Cel", 0.1)));
        assert_eq!(entity_unit(5, 8, 0), Some(("A", 0.001)));
        assert_eq!(entity_unit(6, 10, 0), Some(("W", 1000.0)));
        assert_eq!(entity_unit(10, 9, 0), Some(("/min", 1.0)));
        assert_eq!(entity_unit(9, 9, 0), Some(("%", 1.0)));
        assert_eq!(entity_unit(8, 0, 0), None);
        assert_eq!(entity_unit(99, 9, 0), None);
        assert_eq!(entity_unit(8, 9, 99), None);
    }
}
