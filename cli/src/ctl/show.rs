//! An agent's JSON for people: lists as tables, everything else as names and values.
//!
//! The names decide the notation, so that additional fields of a newer agent appear too: `…_ns` is a length of time, `…_bytes` a size, `time`
//! and `…_time` an instant.

use std::io::{self, Write};

use serde_json::{Map, Value};
use wholegrain_model::Interval;
use wholegrain_model::size::ByteSize;
use wholegrain_model::text::escaped;

use crate::output::style::Style;
use crate::output::table::{Table, width};
use crate::output::values;

pub fn write(response: &Value, style: Style, out: &mut impl Write) -> io::Result<()> {
    match response {
        Value::Object(object) => match only_list(object) {
            Some(rows) => list(rows, style, out),
            None => properties(object, style, out),
        },
        Value::Array(rows) => list(rows, style, out),
        other => writeln!(out, "{}", cell("", other)),
    }
}

/// Whether a response is an empty list.
pub fn is_empty(response: &Value) -> bool {
    match response {
        Value::Object(object) => only_list(object).is_some_and(<[Value]>::is_empty),
        Value::Array(rows) => rows.is_empty(),
        _ => false,
    }
}

/// The list of a response such as `{"groups":[…]}`.
fn only_list(object: &Map<String, Value>) -> Option<&[Value]> {
    let (true, Some(Value::Array(rows))) = (object.len() == 1, object.values().next()) else { return None };
    Some(rows)
}

/// Single values as `name  value`, then each list under its name.
fn properties(object: &Map<String, Value>, style: Style, out: &mut impl Write) -> io::Result<()> {
    let mut pairs = Vec::new();
    flatten("", object, &mut pairs);
    let (lists, single): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(_, value)| is_table(value));
    let widest = single.iter().map(|(name, _)| width(&head(name))).max().unwrap_or(0);
    for (name, value) in single {
        let name_shown = head(&name);
        writeln!(out, "{}  {}", style.head(&format!("{name_shown:<widest$}")), cell(&name, value))?;
    }
    for (name, value) in lists {
        writeln!(out, "\n{}", style.head(&head(&name)))?;
        list(value.as_array().map_or(&[], Vec::as_slice), style, out)?;
    }
    Ok(())
}

fn is_table(value: &Value) -> bool {
    value.as_array().is_some_and(|rows| rows.first().is_some_and(Value::is_object))
}

/// Objects within objects become `outer.inner`.
fn flatten<'a>(prefix: &str, object: &'a Map<String, Value>, pairs: &mut Vec<(String, &'a Value)>) {
    for (name, value) in object {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&name, inner, pairs),
            value => pairs.push((name, value)),
        }
    }
}

/// The first columns, in this order; the others follow by name.
const FIRST: &[&str] = &[
    "agent",
    "id",
    "job",
    "jobs",
    "metrics",
    "every",
    "accumulate",
    "until",
    "by",
    "name",
    "source",
    "group",
    "plugin",
    "path",
    "sensor",
    "state",
    "time",
    "value",
    "mean",
    "min",
    "max",
    "unit",
    "interval_ns",
];
/// The last columns, in this order: long texts, after which nothing is pushed off the screen.
const LAST: &[&str] = &["library", "fault_time", "fault"];
/// Columns that are too wide for a table, or only for programs; `--format json` has them.
const LEFT_OUT: &[&str] = &["description", "topic", "schema", "lag.buckets"];

/// A table with a column for each name that any row has.
fn list(rows: &[Value], style: Style, out: &mut impl Write) -> io::Result<()> {
    let mut columns: Vec<String> = Vec::new();
    let mut flat = Vec::with_capacity(rows.len());
    for row in rows {
        let mut pairs = Vec::new();
        match row {
            Value::Object(object) => flatten("", object, &mut pairs),
            other => pairs.push((String::new(), other)),
        }
        for (name, _) in &pairs {
            if !columns.contains(name) && !LEFT_OUT.contains(&name.as_str()) {
                columns.push(name.clone());
            }
        }
        flat.push(pairs);
    }
    let place = |name: &String| {
        let first = FIRST.iter().position(|first| first == name);
        let last = LAST.iter().position(|last| last == name);
        first.or(last.map(|at| FIRST.len() + 1 + at)).unwrap_or(FIRST.len())
    };
    columns.sort_by_key(place);
    let find = |pairs: &[(String, &Value)], name: &str| {
        pairs.iter().find(|(n, _)| n == name).map_or(String::new(), |(_, value)| cell(name, value))
    };
    let align = |name: &String| if is_numeric(&flat, name) { ">" } else { "" };
    let heads: Vec<String> = columns.iter().map(|name| format!("{}{}", align(name), head(name))).collect();
    let mut table = Table::new(&heads);
    for pairs in &flat {
        table.row(columns.iter().map(|name| find(pairs, name)).collect());
    }
    table.write(style, out)
}

fn is_numeric(rows: &[Vec<(String, &Value)>], name: &str) -> bool {
    let mut values =
        rows.iter().flatten().filter(|(n, value)| n == name && !value.is_null()).map(|(_, value)| value).peekable();
    values.peek().is_some() && values.all(|value| value.is_number())
}

/// A name as a head: `interval_ns` is INTERVAL, `lag.p99_ns` is LAG P99.
fn head(name: &str) -> String {
    let name = ["_ns", "_bytes"].iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    name.replace(['_', '.'], " ").to_uppercase()
}

/// A value in the notation that its name decides.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => escaped(text).into_owned(),
        Value::Array(items) => items.iter().map(|item| cell(name, item)).collect::<Vec<_>>().join(", "),
        Value::Object(_) => value.to_string(),
        Value::Number(number) => {
            let is =
                |kind: &str| name == kind || name.ends_with(&format!("_{kind}")) || name.ends_with(&format!(".{kind}"));
            match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (_, Some(ns), _) if (is("time") || is("time_ns")) && ns > 0 => {
                    wholegrain_model::Timestamp(ns).to_string()
                }
                (Some(ns), ..) if is("ns") => duration(ns),
                (Some(bytes), ..) if is("bytes") => ByteSize(bytes).to_string(),
                (_, Some(int), _) => int.to_string(),
                (_, _, Some(float)) => values::float(float),
                _ => number.to_string(),
            }
        }
    }
}

/// A length of time: exact if this is short, else with one decimal in a suitable unit.
fn duration(ns: u64) -> String {
    let exact = Interval::from_ns(ns).to_string();
    if exact.len() <= 5 {
        return exact;
    }
    let (unit, length) = match ns {
        0..1_000_000 => ("us", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        1_000_000_000..120_000_000_000 => ("s", 1e9),
        120_000_000_000..7_200_000_000_000 => ("min", 6e10),
        7_200_000_000_000..172_800_000_000_000 => ("h", 3.6e12),
        _ => ("d", 8.64e13),
    };
    format!("{:.1}{unit}", ns as f64 / length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(value: Value, expected: &str) {
        let mut out = Vec::new();
        write(&value, Style::PLAIN, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn lists_are_tables() {
        let groups = json!({"groups": [
            {"name": "meminfo", "interval_ns": 1_000_000_000u64, "running": true, "lag": {"p99_ns": 12_345}, "missed": 0, "topic": "t"},
            {"name": "net/dev", "interval_ns": 100_000_000u64, "running": false, "lag": {"p99_ns": 1_234_567}, "missed": 12, "note": "x"},
        ]});
        check(
            groups,
            "\
NAME     INTERVAL  LAG P99  MISSED  RUNNING  NOTE
meminfo        1s   12.3us       0  yes
net/dev     100ms    1.2ms      12  no       x
",
        );
        check(json!({"sources": ["procfs", "sysfs"]}), "procfs\nsysfs\n");
        let plugins = json!({"plugins": [
            {"plugin": "snmp", "state": "refused", "pid": null, "faults": 1, "fault": "no", "fault_time": "t", "library": "l"},
        ]});
        check(
            plugins,
            "\
PLUGIN  STATE    FAULTS  PID  LIBRARY  FAULT TIME  FAULT
snmp    refused       1  -    l        t           no
",
        );
    }

    #[test]
    fn objects_are_names_and_values() {
        let status = json!({"agent": "n1", "rss_bytes": 5_242_880, "uptime_ns": 90_000_000_000u64, "ratio": 0.25, "spool": {"bytes": 0},
            "problems": [{"source": "procfs", "text": "gone"}], "none": null, "tags": ["a", "b"], "start_time": 1_500_000_000});
        check(
            status,
            "\
AGENT        n1
NONE         -
RATIO        0.25
RSS          5MiB
SPOOL BYTES  0B
START TIME   1970-01-01T00:00:01.5Z
TAGS         a, b
UPTIME       90s

PROBLEMS
SOURCE  TEXT
procfs  gone
",
        );
    }

    #[test]
    fn emptiness() {
        assert!(is_empty(&json!({"readings": []})) && is_empty(&json!([])));
        assert!(!is_empty(&json!({"ok": true})) && !is_empty(&json!({"readings": [1]})));
    }

    #[test]
    fn durations() {
        for (ns, expected) in [
            (999, "999ns"),
            (1_500, "1.5us"),
            (12_345_678, "12.3ms"),
            (3_723_000_000_000, "3723s"),
            (3_723_456_000_000, "62.1min"),
            (0, "0s"),
        ] {
            assert_eq!(duration(ns), expected);
        }
    }
}
