//! `wholegrain jobs show ID`: one job, from its records and from the readings of its sensors.

mod missing;
mod readings;
mod records;
mod regions;
mod report;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::Args;
use wholegrain_api::{JobAllocation, JobDetails, Sensor, UtcTime, paths};

use super::listed::length;
use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::JobArgument;
use crate::output::{ResultFormat, print, print_json, values};
use crate::sensors;
use readings::JobReadings;
use records::JobRecords;
use report::{JobNodeUsage, JobReport, SensorGroupQuality};

const EXAMPLES: &str = "\
Sensors are shown for the time of the job, from stored readings. COVERED compares the number of stored values with the number that the \
current interval would have given, at most 100 % for each sensor. If the interval changed for a while, as after `jobs boost`, COVERED does not \
say how much is missing. A missing value was not read, could not be read, or has not arrived yet.

Examples:
  wholegrain jobs show 4711
  wholegrain jobs show 4711 --at 2026-01-31       the job with this id at that time
  wholegrain jobs show 4711 --format json | jq .node_statistics";

/// Show one job: times, nodes, its use on each node, its sensors and how complete they are
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowJobArgs {
    #[command(flatten)]
    job: JobArgument,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ResultFormat::Table)]
    format: ResultFormat,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &ShowJobArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let now = values::now();
    let details: JobDetails = args.job.find(&connection, paths::JOB, Vec::new())?.json()?;
    let report = gather(&connection, JobRecords::new(details), now.0)?;
    match args.format {
        ResultFormat::Json => print_json(&report),
        ResultFormat::Table => print(|style, out| text::write(&report, now.0, style, out)),
    }
}

/// Queries the sensors of the job.
fn gather(connection: &Connection, records: JobRecords, now: i64) -> Result<JobReport, Failure> {
    let (job, allocations) = (&records.details.job, &records.details.allocations);
    let mut readings =
        JobReadings::new(connection, &records, (job.from.0, job.from.0.saturating_add(length(job, now))));
    let sensors = sensors::fetch(connection, &records.patterns("**")?)?;
    let sensors: Vec<&Sensor<'_>> = sensors.iter().filter(|sensor| records.place(&sensor.path).is_some()).collect();
    let counts = if sensors.is_empty() { BTreeMap::new() } else { readings.aggregate("**", None, "count")? };
    let groups = groups(&records, &sensors, &counts, now);
    let mut statistics: Vec<JobNodeUsage> = allocations.iter().map(of_record).collect();
    let has =
        |name: &str| sensors.iter().any(|sensor| records.place(&sensor.path).is_some_and(|(_, rest)| rest == name));
    if has("cpu/usage") {
        let used = readings.spread("cpu/usage", Some("rate"))?;
        let seconds = readings.aggregate("cpu/usage", Some("delta"), "sum")?;
        for (index, one) in statistics.iter_mut().enumerate() {
            one.cpus_used = used.get(&index).copied();
            one.cpu_s = one.cpu_s.or_else(|| readings.of(&seconds, index, "cpu/usage"));
            let cpus = allocations[index].cpus.as_deref().and_then(count_cpus);
            one.utilisation = one.cpus_used.zip(cpus).map(|(used, cpus)| used.mean / cpus);
        }
    }
    let memory = if has("memory/usage") {
        readings.spread("memory/usage", None)?
    } else if has("memory/usage/mean") {
        // Kept as windows only.
        readings.spread_of_windows("memory/usage")?
    } else {
        BTreeMap::new()
    };
    statistics.iter_mut().enumerate().for_each(|(index, one)| one.memory = memory.get(&index).copied());
    for (name, of) in [
        ("io/read_bytes", (|one| &mut one.read_bytes) as fn(&mut JobNodeUsage) -> &mut Option<f64>),
        ("io/write_bytes", |one| &mut one.written_bytes),
    ] {
        if has(name) && statistics.iter_mut().any(|one| of(one).is_none()) {
            let sums = readings.aggregate(name, Some("delta"), "sum")?;
            for (index, one) in statistics.iter_mut().enumerate() {
                let value = of(one);
                *value = value.or_else(|| readings.of(&sums, index, name));
            }
        }
    }
    let has_regions =
        |sensor: &&Sensor<'_>| records.place(&sensor.path).is_some_and(|(_, rest)| rest.starts_with("region/"));
    let regions = if sensors.iter().any(has_regions) { regions::of(&mut readings)? } else { Vec::new() };
    let mut problems = std::mem::take(&mut readings.problems);
    problems.extend(missing::of(&records, &sensors));
    Ok(JobReport { node_statistics: statistics, sensors: groups, regions, problems, records })
}

fn of_record(allocation: &JobAllocation) -> JobNodeUsage {
    // The totals of a running job are as old as the last change of its record; its readings are newer.
    let ended = allocation.to.is_some();
    let total = |name: &str| allocation.totals.get(name).copied().filter(|_| ended);
    JobNodeUsage {
        node: allocation.node.clone(),
        cpu_s: total("cpu/usage"),
        memory_peak: total("memory/peak"),
        read_bytes: total("io/read_bytes"),
        written_bytes: total("io/write_bytes"),
        end_unseen: allocation.end_unseen,
        ..JobNodeUsage::default()
    }
}

/// The number of CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<f64> {
    let mut count = 0;
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    (count > 0).then(|| f64::from(count))
}

/// A group that is being counted.
struct Tally {
    group: SensorGroupQuality,
    /// The number of requested values that are stored. Surplus values of one sensor do not count for another.
    stored: u64,
    nodes: BTreeSet<usize>,
    last: Option<UtcTime>,
}

impl Tally {
    fn new(name: &str, interval_ns: u64) -> Self {
        let group = SensorGroupQuality {
            group: name.to_owned(),
            interval_ns,
            sensors: 0,
            nodes: 0,
            requested: (interval_ns > 0).then_some(0),
            got: 0,
            covered: None,
            missing_ns: None,
            last_seen: None,
        };
        Self { group, stored: 0, nodes: BTreeSet::new(), last: None }
    }

    fn finish(mut self) -> SensorGroupQuality {
        let group = &mut self.group;
        group.nodes = self.nodes.len() as u64;
        group.last_seen = self.last;
        let requested = group.requested.filter(|requested| *requested > 0);
        group.covered = requested.map(|requested| self.stored as f64 / requested as f64);
        group.missing_ns = group.requested.map(|requested| {
            requested.saturating_sub(self.stored).saturating_mul(group.interval_ns) / group.sensors.max(1)
        });
        self.group
    }
}

/// The data quality of the sensors, by first level and interval.
fn groups(
    records: &JobRecords,
    sensors: &[&Sensor<'_>],
    counts: &BTreeMap<String, f64>,
    now: i64,
) -> Vec<SensorGroupQuality> {
    let mut tallies: BTreeMap<(&str, u64), Tally> = BTreeMap::new();
    for sensor in sensors {
        let Some((index, rest)) = records.place(&sensor.path) else { continue };
        let name = rest.split('/').next().unwrap_or_default();
        let tally = tallies.entry((name, sensor.interval_ns)).or_insert_with(|| Tally::new(name, sensor.interval_ns));
        let allocation = &records.details.allocations[index];
        let to = allocation.to.map_or(now, |to| to.0);
        let length = to.saturating_sub(allocation.from.0).max(0) as u64;
        let got = counts.get(&*sensor.path).map_or(0, |count| *count as u64);
        if let Some(requested) = &mut tally.group.requested {
            // One value is requested even if the job is shorter than the interval.
            let of_sensor = (length / sensor.interval_ns).max(1);
            *requested += of_sensor;
            tally.stored += got.min(of_sensor);
        }
        tally.group.sensors += 1;
        tally.group.got += got;
        tally.nodes.insert(index);
        tally.last = tally.last.max(sensor.last_time);
    }
    tallies.into_values().map(Tally::finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_values_of_one_sensor_do_not_count_for_another() {
        let details: JobDetails = serde_json::from_value(serde_json::json!({
            "job": {
                "job": "1", "manager": "slurm", "state": "running", "nodes": 1, "node_names": ["n1"], "from": "2026-01-31T10:00:00Z",
            },
            "runs": [],
            "allocations": [{
                "job": "1", "manager": "slurm", "owner": "", "node": "n1", "prefix": "/lab/n1", "level": "1", "devices": [],
                "from": "2026-01-31T10:00:00Z", "to": "2026-01-31T10:00:10Z", "end_unseen": false, "steps": [], "steps_dropped": 0,
                "totals": {}, "revision": 1,
            }],
            "summary": wholegrain_api::JobSummary::default(),
            "damaged": 0,
        }))
        .unwrap();
        let records = JobRecords::new(details);
        let sensor = |name: &str, interval_ns: u64| {
            let path = format!("/lab/n1/job/1/{name}").into();
            Sensor { path, interval_ns, ..sensors::of_test("", wholegrain_model::Kind::Gauge) }
        };
        let second = 1_000_000_000;
        // One was boosted for a time, one has half of its values, and one has a value though its interval is longer than the job.
        let sensors = [sensor("cpu/usage", second), sensor("cpu/user", second), sensor("tasks/ended", 30 * second)];
        let counts: BTreeMap<String, f64> =
            sensors.iter().map(|sensor| sensor.path.to_string()).zip([3_000.0, 5.0, 1.0]).collect();
        let of: Vec<&Sensor<'_>> = sensors.iter().collect();
        let found: Vec<_> = groups(&records, &of, &counts, 0).into_iter().map(|one| (one.group, one.covered)).collect();
        assert_eq!(found, [("cpu".to_owned(), Some(0.75)), ("tasks".to_owned(), Some(1.0))]);
    }
}
