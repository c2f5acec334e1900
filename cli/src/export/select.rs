//! The sensors of an export, and the queries for their readings, with integers as integers.

use std::collections::HashMap;

use arrow_array::RecordBatch;
use wholegrain_api::{Sensor, paths};
use wholegrain_model::{Pattern, Timestamp, ValueType};

use super::rows::ExportRows;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::no_match::no_sensor;
use crate::output::readings::{ReadingBatch, Units};
use crate::reading_stream::ReadingStream;
use crate::remarks::Remarks;
use crate::sensors;

/// The most paths of one query.
const PATHS_MAX: usize = 128;

/// The sensors of an export.
pub struct Selection {
    /// In the order of their paths.
    pub sensors: Vec<Sensor<'static>>,
    by_path: HashMap<String, usize>,
    /// The patterns of each query: each returns integers only or floats only.
    queries: Vec<Vec<String>>,
    /// The parameters that select the job.
    of_job: Vec<(&'static str, String)>,
    /// Whether sensors have integers, and whether sensors have floats.
    pub has: (bool, bool),
}

impl Selection {
    pub fn make(
        connection: &Connection,
        patterns: &[Pattern],
        of_job: Vec<(&'static str, String)>,
    ) -> Result<Self, Failure> {
        let sensors = sensors::fetch_with(connection, patterns, &of_job)?;
        if sensors.is_empty() {
            return Err(no_sensor(connection, patterns));
        }
        let has = (sensors.iter().any(is_exact), sensors.iter().any(|sensor| !is_exact(sensor)));
        let mut queries: Vec<Vec<String>> = Vec::new();
        if has == (true, true) {
            // A query of integers and floats together returns floats.
            for run in sensors.chunk_by(|a, b| is_exact(a) == is_exact(b)) {
                let paths: Vec<String> = run.iter().map(|sensor| sensor.path.to_string()).collect();
                queries.extend(paths.chunks(PATHS_MAX).map(<[String]>::to_vec));
            }
        } else {
            queries.push(patterns.iter().map(Pattern::to_string).collect());
        }
        let by_path = sensors.iter().enumerate().map(|(at, sensor)| (sensor.path.to_string(), at)).collect();
        Ok(Self { sensors, by_path, queries, of_job, has })
    }

    /// The readings of a range, sorted by sensor and time.
    pub fn query(
        &self,
        connection: &Connection,
        (from, to): (i64, i64),
        each: &mut dyn FnMut(ExportRows) -> Result<(), Failure>,
    ) -> Result<Remarks, Failure> {
        let mut remarks = Remarks::default();
        for patterns in &self.queries {
            let mut parameters: Vec<(&str, String)> = patterns.iter().map(|text| ("pattern", text.clone())).collect();
            parameters.push(("from", Timestamp(from).to_string()));
            parameters.push(("to", Timestamp(to).to_string()));
            parameters.push(("format", "arrow".to_owned()));
            parameters.extend(self.of_job.iter().cloned());
            let mut response = connection.get(paths::QUERY).queries(&parameters).send()?;
            remarks.extend(std::mem::take(&mut response.remarks));
            let mut stream = ReadingStream::open(response)?;
            while let Some(batch) = stream.next()? {
                each(self.rows(&batch)?)?;
            }
            remarks.extend(stream.remarks());
        }
        Ok(remarks)
    }

    fn rows(&self, batch: &RecordBatch) -> Result<ExportRows, Failure> {
        let units = Units::default();
        let readings = ReadingBatch::new(batch, &units)?;
        let sensors: Vec<Option<usize>> = readings.names().map(|name| self.by_path.get(name).copied()).collect();
        let mut rows = ExportRows::default();
        for row in 0..readings.len() {
            // Sensors that appeared after the begin of the export are not part of it.
            let Some(sensor) = sensors.get(readings.sensor(row)).copied().flatten() else { continue };
            let reading = readings.get(row);
            rows.push(sensor, reading.time, reading.value);
        }
        Ok(rows)
    }
}

/// Whether a query of this sensor returns integers.
fn is_exact(sensor: &Sensor<'_>) -> bool {
    sensor.value_type == ValueType::Int && sensor.scale == 1.0
}
