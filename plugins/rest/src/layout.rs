//! The sensors of one address: those of its values, of the rows that its tables have had, and those about the answers.

use std::collections::{BTreeMap, HashMap, HashSet};

use wholegrain_model::SensorDef;
use wholegrain_model::name::check_relative;

use crate::spec::{OWN_SENSORS, PageSpec, PageTable};

/// A row that was in none of so many layouts is forgotten.
const FORGET_AFTER: u32 = 20;

/// The sensors of one address, in order: values, rows of the tables with their columns, and three about the answers.
#[derive(Debug, Default)]
pub struct PageLayout {
    /// For each table its rows, with the number of layouts in a row that lacked them.
    rows: Vec<BTreeMap<String, u32>>,
    /// For each table the first sensor of each row.
    places: Vec<HashMap<String, usize>>,
    /// The sensors of values and rows.
    count: usize,
}

/// What a new layout found.
pub struct NewLayout {
    pub sensors: Vec<SensorDef>,
    /// A row that has no sensors, and why.
    pub refused: Option<String>,
}

impl PageLayout {
    /// The sensors of values and rows together.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first sensor of a row.
    pub fn place(&self, table: usize, row: &str) -> Option<usize> {
        self.places.get(table)?.get(row).copied()
    }

    /// The names and places of a table's rows.
    pub fn rows(&self, table: usize) -> impl Iterator<Item = (&str, usize)> {
        self.places.get(table).into_iter().flatten().map(|(name, place)| (name.as_str(), *place))
    }

    /// Makes the layout of the rows that were there before and of those `found` in each table. `path` is that of the device, `group` the name of the address.
    pub fn learn(&mut self, spec: &PageSpec, path: &str, group: &str, found: &[Vec<String>]) -> NewLayout {
        self.rows.resize(spec.tables.len(), BTreeMap::new());
        let mut left = spec.series_max;
        for ((rows, table), found) in self.rows.iter_mut().zip(&spec.tables).zip(found) {
            let present: HashSet<&String> = found.iter().collect();
            rows.iter_mut().for_each(|(name, absent)| *absent = if present.contains(name) { 0 } else { *absent + 1 });
            rows.retain(|_, absent| *absent < FORGET_AFTER);
            left = left.saturating_sub(rows.len() * table.columns.len());
        }
        let own = own_sensors(path, group);
        let mut names: HashSet<String> = own.iter().map(|sensor| sensor.name.clone()).collect();
        let mut sensors: Vec<SensorDef> = spec
            .values
            .iter()
            .map(|value| value.value.sensor.clone())
            .map(|sensor| SensorDef { name: format!("{path}/{}", sensor.name), ..sensor })
            .collect();
        names.extend(sensors.iter().map(|sensor| sensor.name.clone()));
        let mut refused = None;
        self.places = vec![HashMap::new(); spec.tables.len()];
        for (number, table) in spec.tables.iter().enumerate() {
            let known: HashSet<&String> = self.rows[number].keys().collect();
            let new: Vec<String> =
                found.get(number).into_iter().flatten().filter(|name| !known.contains(name)).cloned().collect();
            for name in new {
                if table.columns.len() > left {
                    refused = Some(format!(
                        "more than series_max = {} sensors: the row {name:?} and others are left out",
                        spec.series_max
                    ));
                    break;
                }
                if self.rows[number].insert(name, 0).is_none() {
                    left -= table.columns.len();
                }
            }
            self.rows[number].retain(|name, _| {
                let new = row_sensors(table, path, name);
                let is_good =
                    new.iter().all(|sensor| check_relative(&sensor.name).is_ok() && !names.contains(&sensor.name));
                if is_good {
                    self.places[number].insert(name.clone(), sensors.len());
                    names.extend(new.iter().map(|sensor| sensor.name.clone()));
                    sensors.extend(new);
                } else {
                    refused = Some(format!(
                        "the row {name:?} is left out: its sensors have names that are too long, or those of others"
                    ));
                }
                is_good
            });
        }
        self.count = sensors.len();
        sensors.extend(own);
        NewLayout { sensors, refused }
    }
}

/// The sensors of a row.
fn row_sensors(table: &PageTable, path: &str, row: &str) -> Vec<SensorDef> {
    let place = if table.name.is_empty() { format!("{path}/{row}") } else { format!("{path}/{}/{row}", table.name) };
    let columns = table.columns.iter().map(|column| column.value.sensor.clone());
    columns.map(|sensor| SensorDef { name: format!("{place}/{}", sensor.name), ..sensor }).collect()
}

/// The sensors about the answers.
fn own_sensors(path: &str, group: &str) -> [SensorDef; OWN_SENSORS] {
    let name = |name: &str| format!("{path}/rest/{group}/{name}");
    [
        SensorDef::gauge(name("duration"), "s", "Time from the request to the end of the answer.").float(),
        SensorDef::gauge(name("gaps"), "1", "Values that the answer should have and has not."),
        SensorDef::gauge(
            name("left_out"),
            "1",
            "Rows of tables that have no sensors: beyond series_max, without a name, or new.",
        ),
    ]
}
