//! What is exported: the sensors, and the questions that give their readings with integers as integers.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::ArrowError;
use wholegrain_api::{Sensor, paths};
use wholegrain_model::{Pattern, Timestamp, Value, ValueType};

use super::columns::ExportRows;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::no_match::no_sensor;
use crate::query::tail;
use crate::sensors;

/// The most paths of one question.
const PATHS_MAX: usize = 128;

/// The warnings and the notes of answers.
pub type Remarks = (Vec<String>, Vec<String>);

/// Which sensors, and how they are asked for.
pub struct Selection {
    /// In the order of their paths.
    pub sensors: Vec<Sensor<'static>>,
    by_path: HashMap<String, usize>,
    /// The patterns of each question: each gives integers only or floats only.
    questions: Vec<Vec<String>>,
    /// The parameters that say of which job.
    of_job: Vec<(&'static str, String)>,
    /// Whether there are sensors with integers, and others.
    pub has: (bool, bool),
}

impl Selection {
    pub fn make(
        connection: &Connection,
        patterns: &[Pattern],
        of_job: Vec<(&'static str, String)>,
    ) -> Result<Self, Failure> {
        let mut sensors = sensors::fetch_with(connection, patterns, &of_job)?;
        sensors.sort_by(|a, b| a.path.cmp(&b.path));
        if sensors.is_empty() {
            return Err(no_sensor(connection, patterns));
        }
        let has = (sensors.iter().any(is_exact), sensors.iter().any(|sensor| !is_exact(sensor)));
        let mut questions: Vec<Vec<String>> = Vec::new();
        if has == (true, true) {
            // Of integers and floats together an answer has floats.
            for run in sensors.chunk_by(|a, b| is_exact(a) == is_exact(b)) {
                let paths: Vec<String> = run.iter().map(|sensor| sensor.path.to_string()).collect();
                questions.extend(paths.chunks(PATHS_MAX).map(<[String]>::to_vec));
            }
        } else {
            questions.push(patterns.iter().map(Pattern::to_string).collect());
        }
        let by_path = sensors.iter().enumerate().map(|(at, sensor)| (sensor.path.to_string(), at)).collect();
        Ok(Self { sensors, by_path, questions, of_job, has })
    }

    /// The readings of a range, sorted by sensor and time.
    pub fn query(
        &self,
        connection: &Connection,
        (from, to): (i64, i64),
        each: &mut dyn FnMut(ExportRows) -> Result<(), Failure>,
    ) -> Result<Remarks, Failure> {
        let mut remarks = Remarks::default();
        for patterns in &self.questions {
            let mut parameters: Vec<(&str, String)> = patterns.iter().map(|text| ("pattern", text.clone())).collect();
            parameters.push(("from", Timestamp(from).to_string()));
            parameters.push(("to", Timestamp(to).to_string()));
            parameters.push(("format", "arrow".to_owned()));
            parameters.extend(self.of_job.iter().cloned());
            let answer = connection.get(paths::QUERY).queries(&parameters).send()?;
            remarks.0.extend(answer.warnings.clone());
            remarks.1.extend(answer.notes.clone());
            let url = connection.url();
            let broke_off =
                |error: ArrowError| Failure::Unreachable(format!("the answer of {url} broke off: {error}; ask again"));
            let mut stream = StreamReader::try_new(answer.into_reader(), None).map_err(broke_off)?;
            for batch in stream.by_ref() {
                each(self.rows(&batch.map_err(broke_off)?)?)?;
            }
            let (warnings, notes) = tail(stream.get_mut());
            remarks.0.extend(warnings);
            remarks.1.extend(notes);
        }
        Ok(remarks)
    }

    fn rows(&self, batch: &RecordBatch) -> Result<ExportRows, Failure> {
        let strange = || {
            let what = "the answer does not have the columns sensor, time, value; is the server a newer one?";
            Failure::Unreachable(what.into())
        };
        let [sensors, times, values] = batch.columns() else { return Err(strange()) };
        let sensors = sensors.as_dictionary_opt::<Int32Type>().ok_or_else(strange)?;
        let names = sensors.values().as_string_opt::<i32>().ok_or_else(strange)?;
        let times = times.as_primitive_opt::<TimestampNanosecondType>().ok_or_else(strange)?.values();
        let numbers: Vec<Option<usize>> =
            names.iter().map(|name| self.by_path.get(name.unwrap_or_default()).copied()).collect();
        let ints = values.as_primitive_opt::<Int64Type>();
        let floats = values.as_primitive_opt::<Float64Type>();
        let mut rows = ExportRows::default();
        for (row, (key, time)) in sensors.keys().values().iter().zip(times).enumerate() {
            // A sensor that came into being after the export began is not in it.
            let Some(sensor) = numbers.get(*key as usize).copied().flatten() else { continue };
            let value = match (ints, floats) {
                _ if values.is_null(row) => None,
                (Some(ints), _) => Some(Value::Int(ints.value(row))),
                (_, Some(floats)) => Some(Value::Float(floats.value(row))),
                _ => return Err(strange()),
            };
            rows.push(sensor, *time, value);
        }
        Ok(rows)
    }
}

/// Whether an answer about sensors like this one has integers.
fn is_exact(sensor: &Sensor<'_>) -> bool {
    sensor.value_type == ValueType::Int && sensor.scale == 1.0
}
