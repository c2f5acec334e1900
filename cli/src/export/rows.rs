//! Readings to export, and the metadata of the files, which an import reads.

use std::collections::BTreeMap;

use wholegrain_model::Value;

/// The key in a file's metadata of the properties of its sensors, as JSON: path to unit and kind.
pub const PROPERTIES_KEY: &str = "wholegrain.sensors";
/// The column with exact integers in a file that has floats too.
pub const VALUE_INT: &str = "value_int";
/// Unit and kind by path.
pub type Properties = BTreeMap<String, (String, String)>;

/// Readings, sorted by sensor and time.
#[derive(Debug, Default)]
pub struct ExportRows {
    pub sensors: Vec<usize>,
    pub times: Vec<i64>,
    pub values: Vec<Option<Value>>,
}

impl ExportRows {
    pub fn push(&mut self, sensor: usize, time: i64, value: Option<Value>) {
        self.sensors.push(sensor);
        self.times.push(time);
        self.values.push(value);
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }

    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The rows in pieces of this number of rows.
    pub fn pieces(&self, rows: usize) -> impl Iterator<Item = ExportRows> + '_ {
        (0..self.len()).step_by(rows.max(1)).map(move |start| {
            let range = start..self.len().min(start + rows.max(1));
            ExportRows {
                sensors: self.sensors[range.clone()].to_vec(),
                times: self.times[range.clone()].to_vec(),
                values: self.values[range].to_vec(),
            }
        })
    }

    /// The last sensor and its time.
    pub fn last(&self) -> Option<(usize, i64)> {
        Some((*self.sensors.last()?, *self.times.last()?))
    }
}
