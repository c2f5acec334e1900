//! The sensors of one address: those of its values, of the rows that its tables have had, and those about the answers.

use std::collections::{BTreeMap, HashMap, HashSet};

use wholegrain_device_http::SensorRoom;
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

/// The bytes of a row in a layout without its sensors: twice its name, and its places.
const ROW_BYTES: usize = 200;

/// Bounds of a new layout besides `series_max`.
#[derive(Debug, Clone, Copy)]
pub struct LayoutBounds {
    /// The most bytes of all rows with their sensors.
    pub bytes_max: usize,
    /// The most sensors of rows that are new.
    pub new_max: usize,
}

/// What a new layout found.
pub struct NewLayout {
    /// What the rows and their sensors take.
    pub bytes: usize,
    /// The sensors of new rows.
    pub new: usize,
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
    pub fn learn(
        &mut self,
        spec: &PageSpec,
        path: &str,
        group: &str,
        found: &[Vec<String>],
        bounds: LayoutBounds,
    ) -> NewLayout {
        self.rows.resize(spec.tables.len(), BTreeMap::new());
        let (mut left, mut bytes, mut new_sensors) = (spec.series_max, 0, 0);
        for ((rows, table), found) in self.rows.iter_mut().zip(&spec.tables).zip(found) {
            let present: HashSet<&String> = found.iter().collect();
            rows.iter_mut().for_each(|(name, absent)| *absent = if present.contains(name) { 0 } else { *absent + 1 });
            rows.retain(|_, absent| *absent < FORGET_AFTER);
            left = left.saturating_sub(rows.len() * table.columns.len());
            bytes += rows.keys().map(|row| row_bytes(table, path, row)).sum::<usize>();
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
            let columns = table.columns.len();
            for name in &new {
                let row = row_bytes(table, path, name);
                let reason = if columns > left {
                    format!("more than series_max = {} sensors", spec.series_max)
                } else if columns > bounds.new_max.saturating_sub(new_sensors) {
                    "too many rows are new, more come later".to_owned()
                } else if bytes + row > bounds.bytes_max {
                    "too much memory beside other devices; raise memory_bytes_max".to_owned()
                } else {
                    self.rows[number].insert(name.clone(), 0);
                    (left, bytes, new_sensors) = (left - columns, bytes + row, new_sensors + columns);
                    continue;
                };
                refused = Some(format!("{reason}: the row {name:?} and others are left out"));
                break;
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
        let new = new_sensors;
        self.count = sensors.len();
        sensors.extend(own);
        NewLayout { bytes, new, sensors, refused }
    }
}

/// What a row and its sensors take.
fn row_bytes(table: &PageTable, path: &str, row: &str) -> usize {
    let place = path.len() + table.name.len() + row.len() + 3;
    let sensor =
        |column: &SensorDef| SensorRoom::cost(place + column.name.len() + column.unit.len() + column.description.len());
    let sensors: usize = table.columns.iter().map(|column| sensor(&column.value.sensor)).sum();
    ROW_BYTES + 2 * row.len() + sensors
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
            "Rows of tables that have no sensors: beyond a bound, without a name, or new.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PageFormat, PagePath};
    use crate::spec::PathValue;
    use crate::value::tests::value;

    /// A table with two columns.
    fn spec() -> PageSpec {
        let path = |text: &str| PagePath::parse(text, PageFormat::Json).unwrap();
        let column = |name: &str| PathValue { path: path(name), value: value(SensorDef::gauge(name, "1", "").float()) };
        let columns = vec![column("a"), column("b")];
        let table = PageTable { name: "t".to_owned(), rows: path("$.*"), index: Vec::new(), time: None, columns };
        PageSpec { format: PageFormat::Json, time: None, values: Vec::new(), tables: vec![table], series_max: 1000 }
    }

    #[test]
    fn new_rows_have_a_budget_and_all_rows_a_bound_of_memory() {
        let (spec, mut layout) = (spec(), PageLayout::default());
        let mut learn = |rows: &[&str], bytes_max: usize, new_max: usize| {
            let found = vec![rows.iter().map(|row| (*row).to_owned()).collect()];
            let new = layout.learn(&spec, "d", "u", &found, LayoutBounds { bytes_max, new_max });
            (layout.count(), new.new, new.bytes, new.refused.unwrap_or_default())
        };
        let (count, new, bytes, refused) = learn(&["r1", "r2"], usize::MAX, 5);
        assert_eq!((count, new, refused.as_str()), (4, 4, ""));
        let (count, new, _, refused) = learn(&["r1", "r2", "r3"], usize::MAX, 1);
        assert_eq!((count, new), (4, 0));
        assert_eq!(refused, "too many rows are new, more come later: the row \"r3\" and others are left out");
        let (count, new, after, refused) = learn(&["r1", "r2", "r3", "r4"], bytes / 2 * 3, 100);
        assert_eq!((count, new, after), (6, 2, bytes / 2 * 3));
        assert!(refused.starts_with("too much memory beside other devices"), "{refused}");
        assert!(bytes > 4 * SensorRoom::cost(1));
        // What is known stays, whatever the bounds.
        assert_eq!(learn(&["r1"], 0, 0).0, 6);
    }
}
