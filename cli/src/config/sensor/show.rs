//! What holds, what is set, what was set.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use wholegrain_model::Pattern;
use wholegrain_model::text::escaped;

use super::{ANSWER_BYTES_MAX, PATH, strange};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::Output;
use crate::query::no_sensor;
use crate::sensors::{self, instant};
use crate::shown;
use crate::style;
use crate::table::Table;

/// The properties in the order in which they are shown.
const PROPERTIES: [&str; 6] = ["unit", "scale", "kind", "description", "interval", "ttl"];

/// Sensors that are asked for at a time, which is the most that the server gives.
const PAGE_SENSORS: u64 = 10_000;
/// The most changes that are looked through for those of one pattern, the latest.
const CHANGES_MAX: u64 = 1_000_000;

/// The arguments of `show`.
#[derive(Args)]
pub struct ShowArgs {
    /// Which sensors
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// The most sensors
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// The arguments of `list`.
#[derive(Args)]
pub struct ListArgs {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// The arguments of `history`.
#[derive(Args)]
pub struct HistoryArgs {
    /// Only what was set with this pattern, or with another one that chooses any of its sensors
    #[arg(value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// The most changes, the latest
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// A page of sensors.
#[derive(Deserialize)]
struct Page {
    sensors: Vec<Value>,
    /// Where the next page begins.
    #[serde(default)]
    next: Option<String>,
}

/// Runs `show`.
pub fn show(args: &ShowArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let (mut sensors, mut next) = (Vec::new(), None);
    loop {
        let mut parameters: Vec<_> = args.patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
        parameters.push(("limit", PAGE_SENSORS.min(args.limit - sensors.len() as u64).to_string()));
        parameters.extend(next.take().map(|after| ("after", after)));
        let answer = connection.get(PATH, &parameters, false)?.read(ANSWER_BYTES_MAX)?;
        let page: Page = serde_json::from_slice(&answer).map_err(|error| strange(&connection, &error))?;
        sensors.extend(page.sensors);
        next = page.next;
        if next.is_none() || sensors.len() as u64 >= args.limit {
            break;
        }
    }
    if sensors.is_empty() {
        return Err(no_sensor(&connection, &args.patterns));
    }
    let now = shown::now().0;
    write(&sensors, args.json, &["SENSOR", "PROPERTY", "VALUE", "FROM"], |sensor, table| {
        for name in PROPERTIES {
            let (property, path) = (&sensor[name], text(&sensor["path"]));
            let is_empty = property["value"].as_str().is_some_and(str::is_empty);
            if !is_empty || property["who"].is_string() {
                table.row(vec![path, name.to_owned(), text(&property["value"]), origin(sensor, property, now)]);
            }
        }
    })?;
    if next.is_some() {
        eprintln!("note: more than {} sensors match; --limit shows more", sensors.len());
    }
    Ok(())
}

/// Where a property comes from, in words.
fn origin(sensor: &Value, property: &Value, now: i64) -> String {
    let (pattern, who) = (property["pattern"].as_str(), property["who"].as_str());
    match (pattern, who) {
        (Some(pattern), Some(who)) => {
            let when = instant(&property["time"]).map_or(String::new(), |time| format!(" {}", shown::ago(time, now)));
            let sent = match &property["sent"] {
                Value::Null => String::new(),
                sent => format!("; sent: {}", if sent == "" { "nothing".to_owned() } else { text(sent) }),
            };
            format!("{pattern}, {who}{when}{sent}")
        }
        (Some(pattern), None) => format!("{pattern}, the server's configuration"),
        _ if property["value"] == "forever" => "nothing says otherwise".to_owned(),
        _ => match sensor["agent"].as_str() {
            Some(agent) if !agent.is_empty() => format!("sent by {agent}"),
            _ => "sent".to_owned(),
        },
    }
}

/// Runs `list`.
pub fn list(args: &ListArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let answer = connection.get(&format!("{PATH}/settings"), &[], false)?.read(ANSWER_BYTES_MAX)?;
    let settings = rows(&connection, &answer, "settings")?;
    if settings.is_empty() {
        return Err(Failure::NothingMatched("nothing is set; `wholegrain config sensor set` does".into()));
    }
    changes(&settings, args.json)
}

/// Runs `history`.
pub fn history(args: &HistoryArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let limit = if args.pattern.is_some() { CHANGES_MAX } else { args.limit };
    let parameters = [("limit", limit.to_string())];
    let answer = connection.get(&format!("{PATH}/history"), &parameters, false)?.read(ANSWER_BYTES_MAX)?;
    let mut history = rows(&connection, &answer, "history")?;
    if let Some(pattern) = &args.pattern {
        let sensors = sensors::fetch(&connection, std::slice::from_ref(pattern))?;
        let paths: Vec<&str> = sensors.iter().map(|sensor| sensor.path.as_str()).collect();
        retain_of(&mut history, pattern, &paths);
    }
    if history.is_empty() {
        let with = args.pattern.as_ref().map_or(String::new(), |pattern| format!(" for what {pattern} chooses"));
        return Err(Failure::NothingMatched(format!("nothing was ever set{with}")));
    }
    let first = history.len().saturating_sub(usize::try_from(args.limit).unwrap_or(usize::MAX));
    changes(&history[first..], args.json)
}

/// Keeps the changes that were made with `pattern`, or with another one that chooses any of the sensors at `paths`.
fn retain_of(history: &mut Vec<Value>, pattern: &Pattern, paths: &[&str]) {
    let mut known: HashMap<String, bool> = HashMap::new();
    history.retain(|change| {
        let set_with = change["pattern"].as_str().unwrap_or_default();
        *known.entry(set_with.to_owned()).or_insert_with(|| {
            let chooses = |other: Pattern| paths.iter().any(|path| other.matches(path));
            set_with == pattern.as_str() || Pattern::new(set_with).is_ok_and(chooses)
        })
    });
}

fn changes(rows: &[Value], json: bool) -> Result<(), Failure> {
    write(rows, json, &["TIME", "WHO", "PATTERN", "PROPERTY", "VALUE"], |row, table| {
        let value = if row["value"].is_null() { "(taken back)".to_owned() } else { text(&row["value"]) };
        let time = instant(&row["time"]).map_or(String::new(), |time| shown::time(time, 0));
        table.row(vec![time, text(&row["who"]), text(&row["pattern"]), text(&row["property"]), value]);
    })
}

fn rows(connection: &Connection, answer: &[u8], name: &str) -> Result<Vec<Value>, Failure> {
    let mut answer: Value = serde_json::from_slice(answer).map_err(|error| strange(connection, &error))?;
    Ok(answer[name].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// A text without its quotes, anything else as JSON has it; nothing that a terminal would obey.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => escaped(text).into_owned(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), shown::float_exact),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn write(
    rows: &[Value],
    json: bool,
    heads: &[&'static str],
    mut row: impl FnMut(&Value, &mut Table),
) -> Result<(), Failure> {
    let mut output = Output::open(None)?;
    let written: io::Result<()> = if json {
        rows.iter().try_for_each(|row| {
            serde_json::to_writer(&mut output, row)?;
            writeln!(output)
        })
    } else {
        let mut table = Table::new(heads);
        rows.iter().for_each(|one| row(one, &mut table));
        table.write(style::on_stdout(), &mut output)
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_history_of_a_sensor_has_what_was_set_with_other_patterns_that_choose_it() {
        let change = |pattern: &str, unit: &str| serde_json::json!({ "pattern": pattern, "unit": unit });
        let all = [change("/lab/**", "1"), change("**/MemFree", "2"), change("MemFree", "3"), change("/other/**", "4")];
        let kept = |pattern: &str, paths: &[&str]| {
            let mut history = all.to_vec();
            retain_of(&mut history, &Pattern::new(pattern).unwrap(), paths);
            history.iter().map(|change| change["unit"].as_str().unwrap().to_owned()).collect::<String>()
        };
        assert_eq!(kept("MemFree", &["/lab/n1/meminfo/MemFree"]), "123");
        assert_eq!(kept("/lab/n1/meminfo/MemFree", &["/lab/n1/meminfo/MemFree"]), "123");
        assert_eq!(kept("/other/**", &[]), "4", "what was set with the pattern itself, though no sensor is there");
        assert_eq!(kept("power", &["/third/power"]), "");
    }

    #[test]
    fn origins() {
        let sensor = json!({ "agent": "n1" });
        let now = 1_000_000_000_000;
        let at = |property: Value| origin(&sensor, &property, now);
        assert_eq!(at(json!({ "value": "W" })), "sent by n1");
        assert_eq!(at(json!({ "value": "forever" })), "nothing says otherwise");
        assert_eq!(at(json!({ "value": "1d", "pattern": "/a" })), "/a, the server's configuration");
        let set = json!({ "value": "W", "sent": "", "pattern": "/a", "who": "ada", "time": "1970-01-01T00:16:35Z" });
        assert_eq!(at(set), "/a, ada 5s ago; sent: nothing");
        assert_eq!(origin(&json!({ "agent": "" }), &json!({ "value": "W" }), now), "sent");
    }
}
