//! `wholegrain sensors`: which sensors there are.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use wholegrain_model::text::{csv_field, escaped};
use wholegrain_model::{Pattern, Timestamp};

use crate::connection::{ClientOption, Connection};
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::PATTERNS;
use crate::of_job::JobOption;
use crate::output::Output;
use crate::query::{no_sensor, no_sensor_of};
use crate::shown;
use crate::style::{self, Style};
use crate::table::Table;

/// The largest list that is read, in bytes.
const LIST_BYTES_MAX: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  wholegrain sensors                       every sensor
  wholegrain sensors 'cpu/**' --tree       those below any level cpu, as a tree
  wholegrain sensors '/lab/n1/meminfo/*' --format json
  wholegrain sensors --job 4711            what there is of a job and of its nodes";

/// List sensors with unit, kind, interval and when they were last seen
#[derive(Args)]
#[command(after_help = format!("{PATTERNS}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct SensorsArgs {
    /// Which sensors; all of them when none is given
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Show the hierarchy as a tree
    #[arg(long, conflicts_with = "format")]
    tree: bool,
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    #[command(flatten)]
    job: JobOption,
    #[command(flatten)]
    client: ClientOption,
}

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Aligned columns, for people
    Table,
    /// One line each, with a head
    Csv,
    /// One JSON object a line
    Json,
}

/// A sensor as the server describes it.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Sensor {
    /// Its path.
    pub path: String,
    /// The unit of its values.
    #[serde(default)]
    pub unit: String,
    /// gauge or counter.
    #[serde(default)]
    pub kind: String,
    /// int or float.
    #[serde(default, rename = "type")]
    pub value_type: String,
    /// Raw value times scale is the quantity.
    #[serde(default)]
    pub scale: f64,
    /// The interval asked for, ns; 0 when there is none.
    #[serde(default)]
    pub interval_ns: u64,
    /// RFC 3339 (or ns since the epoch).
    #[serde(default)]
    pub last_time: Option<serde_json::Value>,
    /// What it is.
    #[serde(default)]
    pub description: String,
    /// Who sends it.
    #[serde(default)]
    pub agent: String,
}

/// A page of the list.
#[derive(Deserialize)]
struct Page {
    sensors: Vec<Sensor>,
    /// Where the next page begins.
    #[serde(default)]
    next: Option<String>,
}

/// Sensors that are asked for at a time, which is the most that the server gives.
const PAGE_SENSORS: usize = 100_000;

/// Runs the subcommand.
pub fn run(args: &SensorsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let all = [Pattern::new("/**").map_err(|error| Failure::Usage(error.to_string()))?];
    let patterns = if args.patterns.is_empty() { &all[..] } else { &args.patterns };
    let connection = Connection::open(client)?;
    let sensors = fetch_of(&connection, patterns, &args.job.parameters(shown::now())?)?;
    if sensors.is_empty() {
        return Err(match &args.job.job {
            Some(job) => no_sensor_of(job, patterns),
            None => no_sensor(&connection, patterns),
        });
    }
    let mut output = Output::open(None)?;
    let (style, now) = (style::on_stdout(), shown::now().0);
    let written = match args.format {
        _ if args.tree => tree(&sensors, now, style, &mut output),
        ListFormat::Table => table(&sensors, now, style, &mut output),
        ListFormat::Csv => csv(&sensors, &mut output),
        ListFormat::Json => json(&sensors, &mut output),
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()
}

/// Asks the server for the sensors of these patterns, sorted by path.
pub fn fetch(connection: &Connection, patterns: &[Pattern]) -> Result<Vec<Sensor>, Failure> {
    fetch_of(connection, patterns, &[])
}

/// The same with further parameters, such as a job.
pub fn fetch_of(
    connection: &Connection,
    patterns: &[Pattern],
    more: &[(&'static str, String)],
) -> Result<Vec<Sensor>, Failure> {
    let mut parameters: Vec<_> = patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    parameters.extend_from_slice(more);
    parameters.push(("limit", PAGE_SENSORS.to_string()));
    let mut sensors = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut parameters = parameters.clone();
        parameters.extend(after.take().map(|after| ("after", after)));
        let answer = match more {
            [] => connection.get("/api/v1/sensors", &parameters, false)?,
            _ => connection.find("/api/v1/sensors", &parameters)?,
        };
        let body = answer.read(LIST_BYTES_MAX)?;
        let page: Page = serde_json::from_slice(&body).map_err(|error| {
            Failure::Unreachable(format!("the answer of {} is no list of sensors: {error}", connection.url()))
        })?;
        sensors.extend(page.sensors);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    sensors.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sensors)
}

/// An instant as JSON carries it: RFC 3339, or ns since the epoch.
pub fn instant(value: &serde_json::Value) -> Option<i64> {
    match value {
        serde_json::Value::String(text) => Timestamp::parse(text, Timestamp(0)).ok().map(|time| time.0),
        value => value.as_i64(),
    }
}

impl Sensor {
    fn last_seen(&self, now: i64) -> String {
        self.last_time.as_ref().and_then(instant).map_or("never".to_owned(), |time| shown::ago(time, now))
    }
}

fn table(sensors: &[Sensor], now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["SENSOR", "UNIT", "KIND", ">INTERVAL", "LAST SEEN"]);
    for sensor in sensors {
        let interval = shown::interval(sensor.interval_ns);
        table.row(vec![sensor.path.clone(), sensor.unit.clone(), sensor.kind.clone(), interval, sensor.last_seen(now)]);
    }
    table.write(style, out)
}

fn csv(sensors: &[Sensor], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "path,unit,kind,type,scale,interval_ns,last_time,description,agent")?;
    for sensor in sensors {
        let last_time =
            sensor.last_time.as_ref().and_then(instant).map_or(String::new(), |time| Timestamp(time).to_string());
        let fields = [
            csv_field(&sensor.path),
            csv_field(&sensor.unit),
            csv_field(&sensor.kind),
            csv_field(&sensor.value_type),
            shown::float_exact(sensor.scale),
            sensor.interval_ns.to_string(),
            last_time,
            csv_field(&sensor.description),
            csv_field(&sensor.agent),
        ];
        writeln!(out, "{}", fields.join(","))?;
    }
    Ok(())
}

fn json(sensors: &[Sensor], out: &mut impl Write) -> io::Result<()> {
    sensors.iter().try_for_each(|sensor| {
        serde_json::to_writer(&mut *out, sensor)?;
        writeln!(out)
    })
}

/// The hierarchy: a line for each level, the sensors with their properties.
fn tree(sensors: &[Sensor], now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
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
            let interval = shown::interval(sensor.interval_ns);
            let properties =
                format!("[{}] {} every {interval}, {}", escaped(&sensor.unit), sensor.kind, sensor.last_seen(now));
            writeln!(out, "{indent}{slash}{level}  {}", style.dim(&properties))?;
        }
        // The sensor's own name is no open level, even where other sensors lie below it.
        open = levels[..levels.len() - 1].to_vec();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor(path: &str, unit: &str) -> Sensor {
        let text = format!(
            r#"{{"path":"{path}","unit":"{unit}","kind":"gauge","type":"int","scale":1024.0,"interval_ns":1000000000,
            "last_time":"1970-01-01T00:00:10Z","description":"a, \"b\"","agent":"n1"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn shown_by(write: impl Fn(&[Sensor], &mut Vec<u8>) -> io::Result<()>) -> String {
        let sensors = [sensor("/n1/mem/Free", "By"), sensor("/n1/mem/Used", "By"), sensor("/n1/up", "s")];
        let mut out = Vec::new();
        write(&sensors, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_form() {
        let now = 15_000_000_000;
        let expected = "\
SENSOR        UNIT  KIND   INTERVAL  LAST SEEN
/n1/mem/Free  By    gauge        1s  5s ago
/n1/mem/Used  By    gauge        1s  5s ago
/n1/up        s     gauge        1s  5s ago
";
        assert_eq!(shown_by(|sensors, out| table(sensors, now, Style::PLAIN, out)), expected);
        let expected = "\
/n1/
  mem/
    Free  [By] gauge every 1s, 5s ago
    Used  [By] gauge every 1s, 5s ago
  up  [s] gauge every 1s, 5s ago
";
        assert_eq!(shown_by(|sensors, out| tree(sensors, now, Style::PLAIN, out)), expected);
        let csv = shown_by(csv);
        assert_eq!(
            csv.lines().nth(1).unwrap(),
            "/n1/mem/Free,By,gauge,int,1024,1000000000,1970-01-01T00:00:10Z,\"a, \"\"b\"\"\",n1"
        );
        let json = shown_by(json);
        let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!(
            (first["path"].as_str(), first["interval_ns"].as_u64()),
            (Some("/n1/mem/Free"), Some(1_000_000_000))
        );
    }

    #[test]
    fn instants() {
        assert_eq!(instant(&serde_json::json!("1970-01-01T00:00:01Z")), Some(1_000_000_000));
        assert_eq!(instant(&serde_json::json!(5)), Some(5));
        assert_eq!(instant(&serde_json::json!("soon")), None);
    }
}
