//! `wholegrain jobs show ID`: one job. What the records say comes with the job, the rest is asked of its sensors.

mod missing;
mod readings;
mod regions;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use wholegrain_model::{Pattern, Timestamp};

use super::JobsFormat;
use super::list::Job;
use crate::connection::{ClientOption, Connection};
use crate::failure::{EXIT_CODES, Failure};
use crate::output::Output;
use crate::sensors::{self, Sensor};
use crate::shown;
use crate::socket::encoded;
use crate::style;
use readings::Readings;
use regions::Region;

/// The largest answer about one job, in bytes.
const JOB_BYTES_MAX: u64 = 1 << 30;

/// What stands between an agent's prefix and a job's level.
const LEVEL: &str = "/job/";

const EXAMPLES: &str = "\
What is shown of sensors is of the job's time and comes from what is stored: COVERED compares the values that are there with \
those that the present interval would have given, of each sensor at most all of them. Where the interval was another for a while, as \
after `jobs boost`, it does not say how much is missing. A value that is missing was not read, could not be read, or has not arrived yet.

Examples:
  wholegrain jobs show 4711
  wholegrain jobs show 4711 --at 2026-01-31       of several jobs of this id the one of that time
  wholegrain jobs show 4711 --format json | jq .node_statistics";

/// Show one job: where, when, how long, what it used on each node, its sensors and how complete they are
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ShowArgs {
    /// The job's id, or its other id
    #[arg(value_name = "ID")]
    job: String,
    /// Of several jobs that had this id, the newest that had begun by then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = JobsFormat::Table)]
    format: JobsFormat,
    #[command(flatten)]
    client: ClientOption,
}

/// What the server knows of a job.
#[derive(Debug, Deserialize, Serialize)]
pub struct Known {
    pub job: Job,
    #[serde(default)]
    pub runs: Vec<serde_json::Value>,
    pub allocations: Vec<Allocation>,
    pub summary: Summary,
    #[serde(default)]
    pub damaged: u64,
    /// Allocations by what their sensors are below.
    #[serde(skip)]
    places: HashMap<String, usize>,
}

/// A job on one node.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Allocation {
    pub node: String,
    pub prefix: String,
    pub level: String,
    pub from: String,
    #[serde(default)]
    pub to: Option<String>,
    #[serde(default)]
    pub cpus: Option<String>,
    #[serde(default)]
    pub devices: Vec<String>,
    #[serde(default)]
    pub end_unseen: bool,
    #[serde(default)]
    pub totals: BTreeMap<String, f64>,
    #[serde(default)]
    pub tasks_missing: Option<String>,
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// All nodes together.
#[derive(Debug, Deserialize, Serialize)]
pub struct Summary {
    #[serde(default)]
    pub cpus: u64,
    #[serde(default)]
    pub cpus_nodes: u64,
    #[serde(default)]
    pub devices_count: u64,
    #[serde(default)]
    pub devices: Vec<String>,
    #[serde(default)]
    pub steps: Vec<Step>,
    #[serde(default)]
    pub steps_dropped: u64,
    #[serde(default)]
    pub end_unseen: u64,
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// A step over its nodes.
#[derive(Debug, Deserialize, Serialize)]
pub struct Step {
    pub name: String,
    pub from: String,
    #[serde(default)]
    pub to: Option<String>,
    #[serde(default)]
    pub nodes: u64,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    pub known: Known,
    pub node_statistics: Vec<NodeStatistics>,
    pub sensors: Vec<Group>,
    pub regions: Vec<Region>,
    /// Whether sensors and regions could not be told because there are too many readings, or for other reasons.
    pub problems: Vec<String>,
}

/// What a job used on one node.
#[derive(Debug, Default, Serialize)]
pub struct NodeStatistics {
    pub node: String,
    /// CPU seconds: the record's, else what the readings give.
    pub cpu_s: Option<f64>,
    /// CPUs in use: least, mean and greatest over the readings.
    pub cpus_used: Option<Spread>,
    /// Mean of the CPUs in use by the CPUs that it has.
    pub utilisation: Option<f64>,
    /// Memory in use, bytes.
    pub memory: Option<Spread>,
    /// Its peak as the kernel kept it.
    pub memory_peak: Option<f64>,
    pub read_bytes: Option<f64>,
    pub written_bytes: Option<f64>,
    pub end_unseen: bool,
}

/// Least, mean and greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
}

/// Sensors of one kind and interval, on all nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The first level of their names below the job.
    pub group: String,
    /// The interval asked for now; 0 for values that come when something happens.
    pub interval_ns: u64,
    pub sensors: u64,
    pub nodes: u64,
    /// Values that this interval would have given in the job's time; `None` without one.
    pub requested: Option<u64>,
    /// Values that are there.
    pub got: u64,
    /// The part of what was to come that came, 0 to 1; a sensor that gave more than was to come of it does not make up for another.
    pub covered: Option<f64>,
    /// Time without values, over all these sensors on average; ns.
    pub missing_ns: Option<u64>,
    pub last_seen: Option<String>,
}

/// Runs the subcommand.
pub fn run(args: &ShowArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let now = shown::now();
    let mut parameters = Vec::new();
    if let Some(at) = &args.at {
        let at = Timestamp::parse(at, now).map_err(|error| Failure::Usage(format!("--at: {error}")))?;
        parameters.push(("at", at.to_string()));
    }
    let body = connection.find(&format!("/api/v1/jobs/{}", encoded(&args.job)), &parameters)?.read(JOB_BYTES_MAX)?;
    let mut known: Known = serde_json::from_slice(&body)
        .map_err(|error| Failure::Unreachable(format!("the answer of {} is no job: {error}", connection.url())))?;
    let place = |one: &Allocation| format!("{}{LEVEL}{}", one.prefix, one.level);
    known.places = known.allocations.iter().enumerate().map(|(index, one)| (place(one), index)).collect();
    let shown = gather(&connection, known, now.0)?;
    let mut output = Output::open(None)?;
    let written = match args.format {
        JobsFormat::Json => {
            serde_json::to_writer_pretty(&mut output, &shown).map_err(Into::into).and_then(|()| writeln!(output))
        }
        JobsFormat::Table => text::write(&shown, now.0, style::on_stdout(), &mut output),
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()
}

/// The node of a sensor and its name below the job, if it is this job's.
fn place<'a>(known: &Known, path: &'a str) -> Option<(usize, &'a str)> {
    path.match_indices(LEVEL).find_map(|(at, _)| {
        let end = at + LEVEL.len() + path[at + LEVEL.len()..].find('/')?;
        Some((*known.places.get(&path[..end])?, &path[end + 1..]))
    })
}

/// Asks for everything beside the records.
fn gather(connection: &Connection, known: Known, now: i64) -> Result<Shown, Failure> {
    let (from, length) = known.job.span(now);
    let mut readings = Readings::new(connection, &known, (from, from.saturating_add(length)));
    let sensors = sensors::fetch(connection, &readings.patterns("**")?)?;
    let sensors: Vec<&Sensor> = sensors.iter().filter(|sensor| place(&known, &sensor.path).is_some()).collect();
    let counts = if sensors.is_empty() { BTreeMap::new() } else { readings.ask("**", None, "count")? };
    let groups = groups(&known, &sensors, &counts, now);
    let mut statistics: Vec<NodeStatistics> = known.allocations.iter().map(of_record).collect();
    let has =
        |name: &str| sensors.iter().any(|sensor| place(&known, &sensor.path).is_some_and(|(_, rest)| rest == name));
    if has("cpu/usage") {
        let used = readings.spread("cpu/usage", Some("rate"))?;
        let seconds = readings.ask("cpu/usage", Some("delta"), "sum")?;
        for (index, one) in statistics.iter_mut().enumerate() {
            one.cpus_used = used.get(&index).copied();
            one.cpu_s = one.cpu_s.or_else(|| readings.of(&seconds, index, "cpu/usage"));
            let cpus = known.allocations[index].cpus.as_deref().and_then(count_cpus);
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
        ("io/read_bytes", (|one| &mut one.read_bytes) as fn(&mut NodeStatistics) -> &mut Option<f64>),
        ("io/write_bytes", |one| &mut one.written_bytes),
    ] {
        if has(name) && statistics.iter_mut().any(|one| of(one).is_none()) {
            let sums = readings.ask(name, Some("delta"), "sum")?;
            for (index, one) in statistics.iter_mut().enumerate() {
                let value = of(one);
                *value = value.or_else(|| readings.of(&sums, index, name));
            }
        }
    }
    let regions = if sensors
        .iter()
        .any(|sensor| place(&known, &sensor.path).is_some_and(|(_, rest)| rest.starts_with("region/")))
    {
        regions::of(&mut readings)?
    } else {
        Vec::new()
    };
    let mut problems = std::mem::take(&mut readings.problems);
    problems.extend(missing::of(&known, &sensors));
    Ok(Shown { node_statistics: statistics, sensors: groups, regions, problems, known })
}

fn of_record(allocation: &Allocation) -> NodeStatistics {
    // Of a job that runs they are as old as the last change of its record: its readings say more.
    let ended = allocation.to.is_some();
    let total = |name: &str| allocation.totals.get(name).copied().filter(|_| ended);
    NodeStatistics {
        node: allocation.node.clone(),
        cpu_s: total("cpu/usage"),
        memory_peak: total("memory/peak"),
        read_bytes: total("io/read_bytes"),
        written_bytes: total("io/write_bytes"),
        end_unseen: allocation.end_unseen,
        ..NodeStatistics::default()
    }
}

/// How many CPUs a list such as `0-3,8` has.
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
    group: Group,
    /// Of the values that were to come, how many came: no sensor's counts for more than were to come of it.
    came: u64,
    nodes: BTreeSet<usize>,
    last: Option<i64>,
}

impl Tally {
    fn new(name: &str, interval_ns: u64) -> Self {
        let group = Group {
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
        Self { group, came: 0, nodes: BTreeSet::new(), last: None }
    }

    fn finish(mut self) -> Group {
        let group = &mut self.group;
        group.nodes = self.nodes.len() as u64;
        group.last_seen = self.last.map(|time| Timestamp(time).to_string());
        let requested = group.requested.filter(|requested| *requested > 0);
        group.covered = requested.map(|requested| self.came as f64 / requested as f64);
        group.missing_ns = group.requested.map(|requested| {
            requested.saturating_sub(self.came).saturating_mul(group.interval_ns) / group.sensors.max(1)
        });
        self.group
    }
}

/// The sensors by first level and interval, with how many of the values that were to come are there.
fn groups(known: &Known, sensors: &[&Sensor], counts: &BTreeMap<String, f64>, now: i64) -> Vec<Group> {
    let time = |text: &str| Timestamp::parse(text, Timestamp(now)).ok().map(|time| time.0);
    let mut tallies: BTreeMap<(&str, u64), Tally> = BTreeMap::new();
    for sensor in sensors {
        let Some((index, rest)) = place(known, &sensor.path) else { continue };
        let name = rest.split('/').next().unwrap_or_default();
        let tally = tallies.entry((name, sensor.interval_ns)).or_insert_with(|| Tally::new(name, sensor.interval_ns));
        let allocation = &known.allocations[index];
        let to = allocation.to.as_deref().and_then(time).unwrap_or(now);
        let length = time(&allocation.from).map_or(0, |from| to.saturating_sub(from).max(0) as u64);
        let got = counts.get(&sensor.path).map_or(0, |count| *count as u64);
        if let Some(requested) = &mut tally.group.requested {
            // Even of a job shorter than the interval one value was to come.
            let wanted = (length / sensor.interval_ns).max(1);
            *requested += wanted;
            tally.came += got.min(wanted);
        }
        tally.group.sensors += 1;
        tally.group.got += got;
        tally.nodes.insert(index);
        tally.last = tally.last.max(sensor.last_time.as_ref().and_then(sensors::instant));
    }
    tallies.into_values().map(Tally::finish).collect()
}

/// Patterns of one name below a job, at whatever nodes.
fn patterns(known: &Known, below: &str) -> Result<Vec<Pattern>, Failure> {
    let levels: BTreeSet<&str> = known.allocations.iter().map(|allocation| allocation.level.as_str()).collect();
    let pattern = |level: &str| Pattern::new(format!("/**/job/{level}/{below}"));
    levels
        .into_iter()
        .map(|level| {
            pattern(level).map_err(|error| Failure::Failed(format!("the level {level:?} of the job: {error}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_no_sensor_more_is_covered_than_was_to_come() {
        let mut known: Known = serde_json::from_value(serde_json::json!({
            "job": { "job": "1", "from": "2026-01-31T10:00:00Z" },
            "allocations": [{ "node": "n1", "prefix": "/lab/n1", "level": "1", "from": "2026-01-31T10:00:00Z", "to": "2026-01-31T10:00:10Z" }],
            "summary": {},
        }))
        .unwrap();
        known.places.insert("/lab/n1/job/1".to_owned(), 0);
        let sensor = |name: &str, interval_ns: u64| -> Sensor {
            serde_json::from_value(
                serde_json::json!({ "path": format!("/lab/n1/job/1/{name}"), "interval_ns": interval_ns }),
            )
            .unwrap()
        };
        let second = 1_000_000_000;
        // One was boosted for a while, one has half of its values, and of one a single value came though its interval is longer than the job.
        let sensors = [sensor("cpu/usage", second), sensor("cpu/user", second), sensor("tasks/ended", 30 * second)];
        let counts: BTreeMap<String, f64> =
            sensors.iter().map(|sensor| sensor.path.clone()).zip([3_000.0, 5.0, 1.0]).collect();
        let of: Vec<&Sensor> = sensors.iter().collect();
        let found: Vec<_> = groups(&known, &of, &counts, 0).into_iter().map(|one| (one.group, one.covered)).collect();
        assert_eq!(found, [("cpu".to_owned(), Some(0.75)), ("tasks".to_owned(), Some(1.0))]);
    }
}
