//! `wholegrain sensors`: lists sensors.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use wholegrain_api::{Sensor, SensorPage, paths};
use wholegrain_model::text::escaped;
use wholegrain_model::{Pattern, ValueType};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::JobOption;
use crate::no_match::{no_sensor, no_sensor_of_job};
use crate::output::style::Style;
use crate::output::table::{Table, TableColumn};
use crate::output::{ListFormat, print, print_json_lines, print_table, values};

const EXAMPLES: &str = "\
Examples:
  wholegrain sensors                       all sensors
  wholegrain sensors 'cpu/**' --tree       sensors below any level cpu, as a tree
  wholegrain sensors '/lab/n1/meminfo/*' --format json
  wholegrain sensors 'inventory/*' --long  with their descriptions
  wholegrain sensors --job 4711            sensors of a job and of its nodes";

/// List sensors with unit, kind, interval and the time of the newest reading
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SensorsArgs {
    /// The sensors [default: all]
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Show the hierarchy as a tree
    #[arg(long, conflicts_with = "format")]
    tree: bool,
    /// Show the descriptions, too; json and csv have them always
    #[arg(long, short, conflicts_with = "tree")]
    long: bool,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    #[command(flatten)]
    job: JobOption,
    #[command(flatten)]
    client: ClientOption,
}

/// The most sensors in a page.
const PAGE_SENSORS: u64 = 100_000;

pub fn run(args: &SensorsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let patterns = or_all(&args.patterns)?;
    let connection = Connection::open(client)?;
    let sensors = fetch_with(&connection, &patterns, &args.job.parameters()?)?;
    if sensors.is_empty() {
        return Err(match &args.job.job {
            Some(job) => no_sensor_of_job(job, &patterns),
            None => no_sensor(&connection, &patterns),
        });
    }
    let now = values::now().0;
    match args.format {
        _ if args.tree => print(|style, out| tree(&sensors, now, style, out)),
        ListFormat::Table => print_table(&table(&sensors, now, args.long)),
        ListFormat::Csv => print(|_, out| csv(&sensors).write_csv(out)),
        ListFormat::Json => print_json_lines(&sensors),
    }
}

/// The sensors that match the patterns, sorted by path.
pub fn fetch(connection: &Connection, patterns: &[Pattern]) -> Result<Vec<Sensor<'static>>, Failure> {
    fetch_with(connection, patterns, &[])
}

/// As [`fetch`], with further parameters such as a job.
pub fn fetch_with(
    connection: &Connection,
    patterns: &[Pattern],
    parameters: &[(&'static str, String)],
) -> Result<Vec<Sensor<'static>>, Failure> {
    let request = connection.get(paths::SENSORS).each("pattern", patterns).queries(parameters);
    let (mut sensors, _) = request.pages(PAGE_SENSORS, u64::MAX, |page: SensorPage| (page.sensors, page.next))?;
    sensors.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sensors)
}

/// The patterns, or the pattern of all sensors without any.
pub fn or_all(patterns: &[Pattern]) -> Result<Cow<'_, [Pattern]>, Failure> {
    match patterns {
        [] => Ok(vec![Pattern::new("/**").map_err(Failure::usage)?].into()),
        patterns => Ok(patterns.into()),
    }
}

fn last_seen(sensor: &Sensor<'_>, now: i64) -> String {
    sensor.last_time.map_or("never".to_owned(), |time| values::ago(time.0, now))
}

fn table(sensors: &[Sensor<'_>], now: i64, is_long: bool) -> Table {
    let mut columns: Vec<TableColumn<'_, Sensor<'_>>> = vec![
        ("SENSOR", &|sensor| sensor.path.to_string()),
        ("UNIT", &|sensor| sensor.unit.to_string()),
        ("KIND", &|sensor| sensor.kind.name().to_owned()),
        (">INTERVAL", &|sensor| values::interval(sensor.interval_ns)),
    ];
    let last_seen = |sensor: &Sensor<'_>| last_seen(sensor, now);
    columns.push(("LAST SEEN", &last_seen));
    if is_long {
        columns.push(("DESCRIPTION", &|sensor| sensor.description.to_string()));
    }
    Table::of(sensors, &columns)
}

fn csv(sensors: &[Sensor<'_>]) -> Table {
    let value_type = |value_type| match value_type {
        ValueType::Int => "int".to_owned(),
        ValueType::Float => "float".to_owned(),
    };
    Table::of(
        sensors,
        &[
            ("path", &|sensor| sensor.path.to_string()),
            ("unit", &|sensor| sensor.unit.to_string()),
            ("kind", &|sensor| sensor.kind.name().to_owned()),
            ("type", &|sensor| value_type(sensor.value_type)),
            ("scale", &|sensor| values::float_exact(sensor.scale)),
            ("interval_ns", &|sensor| sensor.interval_ns.to_string()),
            ("last_time", &|sensor| sensor.last_time.map(|time| time.to_string()).unwrap_or_default()),
            ("description", &|sensor| sensor.description.to_string()),
            ("agent", &|sensor| sensor.agent.to_string()),
        ],
    )
}

/// Writes the hierarchy: a line for each level, sensors with their properties.
fn tree(sensors: &[Sensor<'_>], now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let mut open: Vec<&str> = Vec::new();
    for sensor in sensors {
        let levels: Vec<&str> = sensor.path.trim_start_matches('/').split('/').collect();
        let same = levels.iter().zip(&open).take_while(|(a, b)| a == b).count();
        for (depth, level) in levels.iter().enumerate().skip(same) {
            let indent = "  ".repeat(depth);
            let slash = if depth == 0 { "/" } else { "" };
            let level = escaped(level);
            if depth + 1 < levels.len() {
                writeln!(out, "{indent}{}", style.head(&format!("{slash}{level}/")))?;
                continue;
            }
            let (unit, interval) = (escaped(&sensor.unit), values::interval(sensor.interval_ns));
            let properties = format!("[{unit}] {} every {interval}, {}", sensor.kind.name(), last_seen(sensor, now));
            writeln!(out, "{indent}{slash}{level}  {}", style.dim(&properties))?;
        }
        // The sensor's own name is not an open level, even if other sensors are below it.
        open = levels[..levels.len() - 1].to_vec();
    }
    Ok(())
}

/// A sensor for tests.
#[cfg(test)]
pub fn of_test(path: &str, kind: wholegrain_model::Kind) -> Sensor<'static> {
    Sensor {
        path: path.to_owned().into(),
        unit: "By".into(),
        kind,
        value_type: ValueType::Int,
        scale: 1.0,
        interval_ns: 0,
        last_time: None,
        description: "".into(),
        agent: "n1".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor(path: &str, unit: &str) -> Sensor<'static> {
        let text = format!(
            r#"{{"path":"{path}","unit":"{unit}","kind":"gauge","type":"int","scale":1024.0,"interval_ns":1000000000,
            "last_time":"1970-01-01T00:00:10Z","description":"a, \"b\"","agent":"n1"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn written(write: impl Fn(&[Sensor<'_>], &mut Vec<u8>) -> io::Result<()>) -> String {
        let sensors = [sensor("/n1/mem/Free", "By"), sensor("/n1/mem/Swap", "By"), sensor("/n1/up", "s")];
        let mut out = Vec::new();
        write(&sensors, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format() {
        let now = 15_000_000_000;
        let expected = "\
SENSOR        UNIT  KIND   INTERVAL  LAST SEEN
/n1/mem/Free  By    gauge        1s  5s ago
/n1/mem/Swap  By    gauge        1s  5s ago
/n1/up        s     gauge        1s  5s ago
";
        assert_eq!(written(|sensors, out| table(sensors, now, false).write(Style::PLAIN, out)), expected);
        let long = written(|sensors, out| table(sensors, now, true).write(Style::PLAIN, out));
        assert_eq!(long.lines().next().unwrap(), "SENSOR        UNIT  KIND   INTERVAL  LAST SEEN  DESCRIPTION");
        assert_eq!(long.lines().nth(3).unwrap(), "/n1/up        s     gauge        1s  5s ago     a, \"b\"");
        let expected = "\
/n1/
  mem/
    Free  [By] gauge every 1s, 5s ago
    Swap  [By] gauge every 1s, 5s ago
  up  [s] gauge every 1s, 5s ago
";
        assert_eq!(written(|sensors, out| tree(sensors, now, Style::PLAIN, out)), expected);
        let csv = written(|sensors, out| csv(sensors).write_csv(out));
        assert_eq!(
            csv.lines().nth(1).unwrap(),
            "/n1/mem/Free,By,gauge,int,1024,1000000000,1970-01-01T00:00:10Z,\"a, \"\"b\"\"\",n1"
        );
    }
}
