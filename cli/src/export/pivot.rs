//! Files with a row for each time and a column for each sensor. Readings are requested in slices of time that fit into memory.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wholegrain_model::text::csv_field;
use wholegrain_model::{Timestamp, Value};

use super::rows::ExportRows;
use super::select::Selection;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::readings::value_exact;
use crate::remarks::Remarks;

/// The most readings in memory.
const READINGS_MAX: usize = 2 << 20;
/// The length of the first slice. Later slices are longer or shorter, according to their number of readings.
const SLICE_NS: i64 = 600_000_000_000;
/// The shortest slice; the readings of a million sensors at one time fit into memory.
const SLICE_NS_MIN: i64 = 1;
/// The text for a gap. A cell without a reading is empty.
const GAP: &str = "NA";

/// The column of each sensor.
pub struct Pivot {
    ldms: Option<Ldms>,
    column: Vec<usize>,
    columns: usize,
}

/// The producers and metrics of a file of LDMS.
struct Ldms {
    prefix: String,
    /// The producer of each sensor, as an index.
    producer: Vec<usize>,
    producers: Vec<String>,
    metrics: Vec<String>,
}

impl Pivot {
    /// A column for each sensor.
    pub fn wide(selection: &Selection) -> Self {
        let columns = selection.sensors.len();
        Self { ldms: None, column: (0..columns).collect(), columns }
    }

    /// A column for each metric, with the level of paths that is the producer.
    pub fn ldms(selection: &Selection, level: Option<usize>) -> Result<Self, Failure> {
        let levels = |path: &str| path[1..].split('/').map(str::to_owned).collect::<Vec<String>>();
        let mut parts: Vec<(Vec<String>, Vec<String>)> = Vec::new();
        for sensor in &selection.sensors {
            let path = levels(&sensor.path);
            let of_agent = || path.iter().position(|level| *level == sensor.agent);
            let at = level.or_else(of_agent).unwrap_or(path.len().saturating_sub(2));
            if at + 1 >= path.len() {
                let why = format!(
                    "{} has no level below level {}; choose another with --producer-level",
                    sensor.path,
                    at + 1
                );
                return Err(Failure::Usage(why));
            }
            parts.push((path[..=at].to_vec(), path[at + 1..].to_vec()));
        }
        let shared = |a: &[String], b: &[String]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let first = parts.first().map(|(place, _)| place.clone()).unwrap_or_default();
        let common = parts.iter().map(|(place, _)| shared(&first, place).min(place.len() - 1)).min().unwrap_or(0);
        let mut producers: BTreeMap<String, usize> = BTreeMap::new();
        let mut metrics: BTreeMap<String, usize> = BTreeMap::new();
        for (place, metric) in &parts {
            producers.insert(place[common..].join("/"), 0);
            metrics.insert(metric.join("/"), 0);
        }
        producers.values_mut().zip(0..).for_each(|(number, at)| *number = at);
        metrics.values_mut().zip(0..).for_each(|(number, at)| *number = at);
        let producer = parts.iter().map(|(place, _)| producers[&place[common..].join("/")]).collect();
        let column = parts.iter().map(|(_, metric)| metrics[&metric.join("/")]).collect();
        let prefix: String = first[..common].iter().map(|level| format!("/{level}")).collect();
        let columns = metrics.len();
        let ldms = Ldms {
            prefix,
            producer,
            producers: producers.into_keys().collect(),
            metrics: metrics.into_keys().collect(),
        };
        Ok(Self { ldms: Some(ldms), column, columns })
    }

    /// The path above the producers; an import needs it as --prefix.
    pub fn prefix(&self) -> Option<&str> {
        self.ldms.as_ref().map(|ldms| ldms.prefix.as_str())
    }

    pub fn head(&self, selection: &Selection) -> String {
        let mut head = String::new();
        match &self.ldms {
            Some(ldms) => {
                head.push_str("#Time,Time_usec,ProducerName");
                ldms.metrics.iter().for_each(|metric| head.extend([",", metric]));
            }
            None => {
                head.push_str("time");
                for sensor in &selection.sensors {
                    let unit = if sensor.unit.is_empty() { String::new() } else { format!(" [{}]", sensor.unit) };
                    head.push(',');
                    head.push_str(&csv_field(&format!("{}{unit}", sensor.path)));
                }
            }
        }
        head.push('\n');
        head
    }

    /// Writes a slice's readings as lines.
    pub fn write(&mut self, rows: &ExportRows, out: &mut impl Write) -> io::Result<()> {
        let producer = |sensor: usize| self.ldms.as_ref().map_or(0, |ldms| ldms.producer[sensor]);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|at| (rows.times[*at], producer(rows.sensors[*at]), self.column[rows.sensors[*at]]));
        let line_of = |at: &usize| (rows.times[*at], producer(rows.sensors[*at]));
        for line in order.chunk_by(|a, b| line_of(a) == line_of(b)) {
            let (time, producer) = line_of(&line[0]);
            match &self.ldms {
                None => write!(out, "{}", Timestamp(time))?,
                Some(ldms) => write!(out, "{},{}", ldms_time(time), ldms.producers[producer])?,
            }
            let mut next = 0;
            for at in line {
                let column = self.column[rows.sensors[*at]];
                (next..=column).try_for_each(|_| out.write_all(b","))?;
                next = column + 1;
                out.write_all(cell(rows.values[*at]).as_bytes())?;
            }
            (next..self.columns).try_for_each(|_| out.write_all(b","))?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

fn cell(value: Option<Value>) -> String {
    if value.is_none() { GAP.to_owned() } else { value_exact(value) }
}

/// Seconds with six decimals, or nine where they are needed, and microseconds.
fn ldms_time(time: i64) -> String {
    let (second, ns) = (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000));
    if second < 0 {
        // The decimals of a negative time count downwards.
        let size = time.unsigned_abs();
        return format!("-{}.{:09},{}", size / 1_000_000_000, size % 1_000_000_000, ns / 1_000);
    }
    if ns % 1_000 == 0 {
        format!("{second}.{:06},{}", ns / 1_000, ns / 1_000)
    } else {
        format!("{second}.{ns:09},{}", ns / 1_000)
    }
}

/// Passes the readings of a range to `each`, one whole slice at a time.
pub fn slices(
    connection: &Connection,
    selection: &Selection,
    (from, to): (i64, i64),
    each: &mut dyn FnMut(ExportRows) -> Result<(), Failure>,
) -> Result<Remarks, Failure> {
    let mut remarks = Remarks::default();
    let (mut begin, mut width) = (from, SLICE_NS);
    while begin < to {
        let end = begin.saturating_add(width).min(to);
        let mut slice = ExportRows::default();
        let mut full = false;
        let result = selection.query(connection, (begin, end), &mut |mut rows| {
            if slice.len() + rows.len() > READINGS_MAX && end - begin > SLICE_NS_MIN {
                full = true;
                // Ends this request; the next one is for a shorter slice.
                return Err(Failure::ReaderGone);
            }
            slice.sensors.append(&mut rows.sensors);
            slice.times.append(&mut rows.times);
            slice.values.append(&mut rows.values);
            Ok(())
        });
        if full {
            width = ((end - begin) / 2).max(SLICE_NS_MIN);
            continue;
        }
        remarks.extend(result?);
        if slice.len() < READINGS_MAX / 4 {
            width = width.saturating_mul(2);
        }
        each(slice)?;
        begin = end;
    }
    Ok(remarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_ldms() {
        assert_eq!(ldms_time(1_769_860_800_000_000_000), "1769860800.000000,0");
        assert_eq!(ldms_time(1_769_860_800_001_500_000), "1769860800.001500,1500");
        assert_eq!(ldms_time(1_769_860_800_000_000_001), "1769860800.000000001,0");
        assert_eq!(ldms_time(-1), "-0.000000001,999999");
    }
}
