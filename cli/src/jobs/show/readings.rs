//! Questions about a job's readings in its time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use serde::Deserialize;
use wholegrain_model::text::escaped;
use wholegrain_model::{Pattern, Timestamp};

use super::{Known, Spread, patterns, place};
use crate::connection::Connection;
use crate::failure::Failure;

/// The most problems that are told.
const PROBLEMS_MAX: usize = 8;

/// Asks about one job.
pub struct Readings<'a> {
    connection: &'a Connection,
    known: &'a Known,
    range: (i64, i64),
    /// What the server said is missing from its answers.
    pub problems: Vec<String>,
}

/// A line of an answer: a row, or what is missing from it.
#[derive(Deserialize)]
struct Line {
    sensor: Option<String>,
    time: Option<String>,
    value: Option<f64>,
    warning: Option<String>,
    note: Option<String>,
}

impl<'a> Readings<'a> {
    /// In the range from its first time to before its second.
    pub fn new(connection: &'a Connection, known: &'a Known, range: (i64, i64)) -> Self {
        // The last sample can lie at the very end.
        Self { connection, known, range: (range.0, range.1.saturating_add(1)), problems: Vec::new() }
    }

    /// Patterns of a name below the job.
    pub fn patterns(&self, below: &str) -> Result<Vec<Pattern>, Failure> {
        patterns(self.known, below)
    }

    /// Gives the rows of a query to `take`: the sensor's path, the time, the value or a gap.
    pub fn rows(
        &mut self,
        below: &str,
        more: &[(&'static str, String)],
        mut take: impl FnMut(&str, i64, Option<f64>),
    ) -> Result<(), Failure> {
        let mut parameters: Vec<_> =
            self.patterns(below)?.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
        parameters.push(("from", Timestamp(self.range.0).to_string()));
        parameters.push(("to", Timestamp(self.range.1).to_string()));
        parameters.extend_from_slice(more);
        let answer = self.connection.get("/api/v1/query", &parameters, false)?;
        answer.warnings.iter().chain(&answer.notes).for_each(|warning| self.tell(warning));
        let url = self.connection.url();
        for line in BufReader::new(answer.into_reader()).lines() {
            let line = line
                .map_err(|error| Failure::Unreachable(format!("the answer of {url} broke off: {error}; ask again")))?;
            let line: Line = serde_json::from_str(&line)
                .map_err(|error| Failure::Unreachable(format!("the answer of {url} is no reading: {error}")))?;
            [line.warning, line.note].into_iter().flatten().for_each(|text| self.tell(&text));
            if let (Some(sensor), Some(time)) = (line.sensor, line.time) {
                let time = Timestamp::parse(&time, Timestamp(0)).map_or(0, |time| time.0);
                take(&sensor, time, line.value);
            }
        }
        Ok(())
    }

    fn tell(&mut self, text: &str) {
        let text = escaped(text).into_owned();
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// One value a sensor over the whole range, by path.
    pub fn ask(&mut self, below: &str, op: Option<&str>, agg: &str) -> Result<BTreeMap<String, f64>, Failure> {
        let mut parameters = vec![("agg", agg.to_owned())];
        parameters.extend(op.map(|op| ("op", op.to_owned())));
        let (known, mut values) = (self.known, BTreeMap::new());
        self.rows(below, &parameters, |sensor, _, value| {
            if let (Some(value), Some(_)) = (value, place(known, sensor)) {
                values.insert(sensor.to_owned(), value);
            }
        })?;
        Ok(values)
    }

    /// A node's value of an answer.
    pub fn of(&self, values: &BTreeMap<String, f64>, index: usize, below: &str) -> Option<f64> {
        let allocation = &self.known.allocations[index];
        values.get(&format!("{}/job/{}/{below}", allocation.prefix, allocation.level)).copied()
    }

    /// Least, mean and greatest of a metric on each node.
    pub fn spread(&mut self, below: &str, op: Option<&str>) -> Result<BTreeMap<usize, Spread>, Failure> {
        let [min, mean, max] = [self.ask(below, op, "min")?, self.ask(below, op, "mean")?, self.ask(below, op, "max")?];
        Ok(self.spreads([(below, &min), (below, &mean), (below, &max)]))
    }

    /// The same of a metric of which windows are kept in place of every sample.
    pub fn spread_of_windows(&mut self, below: &str) -> Result<BTreeMap<usize, Spread>, Failure> {
        let [min, mean, max] = ["min", "mean", "max"].map(|agg| format!("{below}/{agg}"));
        let values = [self.ask(&min, None, "min")?, self.ask(&mean, None, "mean")?, self.ask(&max, None, "max")?];
        Ok(self.spreads([(&min, &values[0]), (&mean, &values[1]), (&max, &values[2])]))
    }

    fn spreads(&self, [min, mean, max]: [(&str, &BTreeMap<String, f64>); 3]) -> BTreeMap<usize, Spread> {
        let one = |index| {
            let value = |(below, values)| self.of(values, index, below);
            Some((index, Spread { min: value(min)?, mean: value(mean)?, max: value(max)? }))
        };
        (0..self.known.allocations.len()).filter_map(one).collect()
    }
}
