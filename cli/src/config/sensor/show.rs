//! `wholegrain config sensor show`, `list` and `history`.

use std::collections::HashMap;
use std::path::Path;

use clap::Args;
use serde_json::Value;
use wholegrain_api::{
    PropertyChange, PropertyHistory, PropertySettings, PropertyValue, SensorProperties, SensorPropertiesPage, paths,
};
use wholegrain_model::Pattern;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::no_match::no_sensor;
use crate::output::table::Table;
use crate::output::{JsonLinesOption, values};
use crate::sensors;

/// The most sensors in a page.
const PAGE_SENSORS: u64 = 10_000;
/// The most changes that are searched for one pattern.
const CHANGES_MAX: u64 = 1_000_000;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  wholegrain config sensor show '/lrz/**/power'\n  wholegrain config sensor show power --json"
)]
pub struct ShowPropertiesArgs {
    /// Patterns of the sensors
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// The most sensors to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
    #[command(flatten)]
    json: JsonLinesOption,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  wholegrain config sensor list\n  wholegrain config sensor list --json")]
pub struct ListSettingsArgs {
    #[command(flatten)]
    json: JsonLinesOption,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  wholegrain config sensor history\n  wholegrain config sensor history '/lrz/**/power' --limit 10"
)]
pub struct HistoryArgs {
    /// Only settings with this pattern, or with a pattern that matches any of its sensors
    #[arg(value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// The most changes; the latest are listed
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
    #[command(flatten)]
    json: JsonLinesOption,
}

pub fn show(args: &ShowPropertiesArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let request = connection.get(paths::PROPERTIES).each("pattern", &args.patterns);
    let (sensors, more) =
        request.pages(PAGE_SENSORS, args.limit, |page: SensorPropertiesPage| (page.sensors, page.next))?;
    if sensors.is_empty() {
        return Err(no_sensor(&connection, &args.patterns));
    }
    args.json.print(&sensors, || {
        let now = values::now().0;
        let mut table = Table::new(&["SENSOR", "PROPERTY", "VALUE", "FROM"]);
        for sensor in &sensors {
            for (name, property) in sensor.each() {
                let is_empty = property.value.as_str().is_some_and(str::is_empty);
                if !is_empty || property.who.is_some() {
                    let origin = origin(sensor, property, now);
                    table.row(vec![sensor.path.clone(), name.name().to_owned(), text(&property.value), origin]);
                }
            }
        }
        table
    })?;
    if more {
        eprintln!("note: more than {} sensors match; --limit shows more", sensors.len());
    }
    Ok(())
}

/// The origin of a property, in words.
fn origin(sensor: &SensorProperties, property: &PropertyValue, now: i64) -> String {
    match (&property.pattern, &property.who) {
        (Some(pattern), Some(who)) => {
            let when = property.time.map_or(String::new(), |time| format!(" {}", values::ago(time.0, now)));
            let sent = match &property.sent {
                None => String::new(),
                Some(sent) if sent == "" => "; sent: nothing".to_owned(),
                Some(sent) => format!("; sent: {}", text(sent)),
            };
            format!("{pattern}, {who}{when}{sent}")
        }
        (Some(pattern), None) => format!("{pattern}, the server's configuration"),
        _ if property.value == "forever" => "the default".to_owned(),
        _ if sensor.agent.is_empty() => "sent".to_owned(),
        _ => format!("sent by {}", sensor.agent),
    }
}

pub fn list(args: &ListSettingsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let PropertySettings { settings } = Connection::open(client)?.get(paths::PROPERTY_SETTINGS).send()?.json()?;
    if settings.is_empty() {
        return Err(Failure::NothingMatched("no settings; `wholegrain config sensor set` makes some".into()));
    }
    print_changes(&settings, &args.json)
}

pub fn history(args: &HistoryArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let limit = if args.pattern.is_some() { CHANGES_MAX } else { args.limit };
    let PropertyHistory { mut history } =
        connection.get(paths::PROPERTY_HISTORY).query("limit", limit).send()?.json()?;
    if let Some(pattern) = &args.pattern {
        let sensors = sensors::fetch(&connection, std::slice::from_ref(pattern))?;
        let paths: Vec<&str> = sensors.iter().map(|sensor| &*sensor.path).collect();
        retain_of(&mut history, pattern, &paths);
    }
    if history.is_empty() {
        return Err(Failure::NothingMatched("no setting was ever made".into()));
    }
    let first = history.len().saturating_sub(usize::try_from(args.limit).unwrap_or(usize::MAX));
    print_changes(&history[first..], &args.json)
}

/// Retains changes with `pattern`, and with patterns that match any of the sensors at `paths`.
fn retain_of(history: &mut Vec<PropertyChange>, pattern: &Pattern, paths: &[&str]) {
    let mut known: HashMap<String, bool> = HashMap::new();
    history.retain(|change| {
        *known.entry(change.pattern.clone()).or_insert_with(|| {
            let matches = |other: Pattern| paths.iter().any(|path| other.matches(path));
            change.pattern == pattern.as_str() || Pattern::new(change.pattern.as_str()).is_ok_and(matches)
        })
    });
}

fn print_changes(changes: &[PropertyChange], json: &JsonLinesOption) -> Result<(), Failure> {
    json.print(changes, || {
        Table::of(
            changes,
            &[
                ("TIME", &|change| values::time(change.time.0, 0)),
                ("WHO", &|change| change.who.clone()),
                ("PATTERN", &|change| change.pattern.clone()),
                ("PROPERTY", &|change| change.property.name().to_owned()),
                ("VALUE", &|change| change.value.as_ref().map_or("(removed)".to_owned(), text)),
            ],
        )
    })
}

/// A JSON value as text: strings without quotes.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), values::float_exact),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_history_of_a_sensor_has_settings_with_other_patterns_that_match_it() {
        let change = |pattern: &str, unit: &str| PropertyChange {
            pattern: pattern.to_owned(),
            property: wholegrain_api::PropertyName::Unit,
            value: Some(json!(unit)),
            who: "ada".to_owned(),
            time: wholegrain_api::UtcTime(0),
        };
        let all = [change("/lab/**", "1"), change("**/MemFree", "2"), change("MemFree", "3"), change("/other/**", "4")];
        let retained = |pattern: &str, paths: &[&str]| {
            let mut history = all.to_vec();
            retain_of(&mut history, &Pattern::new(pattern).unwrap(), paths);
            history.iter().map(|change| text(change.value.as_ref().unwrap())).collect::<String>()
        };
        assert_eq!(retained("MemFree", &["/lab/n1/meminfo/MemFree"]), "123");
        assert_eq!(retained("/lab/n1/meminfo/MemFree", &["/lab/n1/meminfo/MemFree"]), "123");
        assert_eq!(retained("/other/**", &[]), "4", "a setting with the pattern itself, though it matches no sensor");
        assert_eq!(retained("power", &["/third/power"]), "");
    }

    #[test]
    fn origins() {
        let now = 1_000_000_000_000;
        let of = |agent: &str, property: Value| {
            let sensor = json!({
                "path": "/a", "agent": agent, "unit": property, "scale": property, "kind": property,
                "description": property, "interval": property, "ttl": property,
            });
            let sensor: SensorProperties = serde_json::from_value(sensor).unwrap();
            origin(&sensor, &sensor.unit, now)
        };
        assert_eq!(of("n1", json!({ "value": "W" })), "sent by n1");
        assert_eq!(of("n1", json!({ "value": "forever" })), "the default");
        assert_eq!(of("n1", json!({ "value": "1d", "pattern": "/a" })), "/a, the server's configuration");
        let set = json!({ "value": "W", "sent": "", "pattern": "/a", "who": "ada", "time": "1970-01-01T00:16:35Z" });
        assert_eq!(of("n1", set), "/a, ada 5s ago; sent: nothing");
        assert_eq!(of("", json!({ "value": "W" })), "sent");
    }
}
