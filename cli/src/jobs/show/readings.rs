//! Queries of a job's readings in its time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use wholegrain_api::{QueryLine, paths};
use wholegrain_model::Timestamp;
use wholegrain_model::text::escaped;

use super::records::JobRecords;
use super::report::ValueRange;
use crate::connection::Connection;
use crate::failure::Failure;

/// The most problems in a report.
const PROBLEMS_MAX: usize = 8;

/// Queries readings of one job.
pub struct JobReadings<'a> {
    connection: &'a Connection,
    records: &'a JobRecords,
    range: (i64, i64),
    /// The warnings and notes of responses.
    pub problems: Vec<String>,
}

impl<'a> JobReadings<'a> {
    /// `range`: from its first time, included, to its second.
    pub fn new(connection: &'a Connection, records: &'a JobRecords, range: (i64, i64)) -> Self {
        // The last sample can be at the end of the range.
        Self { connection, records, range: (range.0, range.1.saturating_add(1)), problems: Vec::new() }
    }

    /// Passes the rows of a query to `take`: the sensor's path, the time, the value or a gap.
    pub fn rows(
        &mut self,
        below: &str,
        more: &[(&'static str, String)],
        mut take: impl FnMut(&str, i64, Option<f64>),
    ) -> Result<(), Failure> {
        let mut parameters: Vec<_> =
            self.records.patterns(below)?.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
        parameters.push(("from", Timestamp(self.range.0).to_string()));
        parameters.push(("to", Timestamp(self.range.1).to_string()));
        parameters.extend_from_slice(more);
        let response = self.connection.get(paths::QUERY).queries(&parameters).send()?;
        response.remarks.warnings.iter().chain(&response.remarks.notes).for_each(|text| self.report(text));
        let url = self.connection.url();
        for line in BufReader::new(response.into_reader()).lines() {
            let line = line.map_err(|error| {
                Failure::Unreachable(format!("the response of {url} broke off: {error}; try again"))
            })?;
            let line: QueryLine = serde_json::from_str(&line)
                .map_err(|error| Failure::Unreachable(format!("the response of {url} has no reading: {error}")))?;
            match line {
                QueryLine::Reading { sensor, time, value } => {
                    take(&sensor, time.0, value.and_then(|value| value.as_f64()))
                }
                QueryLine::Warning { warning: text } | QueryLine::Note { note: text } => self.report(&text),
            }
        }
        Ok(())
    }

    fn report(&mut self, text: &str) {
        let text = escaped(text).into_owned();
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// One value of each sensor over the whole range, by path.
    pub fn aggregate(&mut self, below: &str, op: Option<&str>, agg: &str) -> Result<BTreeMap<String, f64>, Failure> {
        let mut parameters = vec![("agg", agg.to_owned())];
        parameters.extend(op.map(|op| ("op", op.to_owned())));
        let (records, mut values) = (self.records, BTreeMap::new());
        self.rows(below, &parameters, |sensor, _, value| {
            if let (Some(value), Some(_)) = (value, records.place(sensor)) {
                values.insert(sensor.to_owned(), value);
            }
        })?;
        Ok(values)
    }

    /// A node's value in a result.
    pub fn of(&self, values: &BTreeMap<String, f64>, index: usize, below: &str) -> Option<f64> {
        let allocation = &self.records.details.allocations[index];
        values.get(&format!("{}/job/{}/{below}", allocation.prefix, allocation.level)).copied()
    }

    /// The least, mean and greatest value of a metric on each node.
    pub fn spread(&mut self, below: &str, op: Option<&str>) -> Result<BTreeMap<usize, ValueRange>, Failure> {
        let [min, mean, max] =
            [self.aggregate(below, op, "min")?, self.aggregate(below, op, "mean")?, self.aggregate(below, op, "max")?];
        Ok(self.spreads([(below, &min), (below, &mean), (below, &max)]))
    }

    /// The same for a metric that keeps windows instead of samples.
    pub fn spread_of_windows(&mut self, below: &str) -> Result<BTreeMap<usize, ValueRange>, Failure> {
        let [min, mean, max] = ["min", "mean", "max"].map(|agg| format!("{below}/{agg}"));
        let values = [
            self.aggregate(&min, None, "min")?,
            self.aggregate(&mean, None, "mean")?,
            self.aggregate(&max, None, "max")?,
        ];
        Ok(self.spreads([(&min, &values[0]), (&mean, &values[1]), (&max, &values[2])]))
    }

    fn spreads(&self, [min, mean, max]: [(&str, &BTreeMap<String, f64>); 3]) -> BTreeMap<usize, ValueRange> {
        let one = |index| {
            let value = |(below, values)| self.of(values, index, below);
            Some((index, ValueRange { min: value(min)?, mean: value(mean)?, max: value(max)? }))
        };
        (0..self.records.details.allocations.len()).filter_map(one).collect()
    }
}
