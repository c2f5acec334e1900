//! `wholegrain config virtual`: virtual sensors. A file for what is done with one, `apply.rs` for files of them and the library.

mod apply;

use std::io::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wholegrain_model::{Interval, Pattern};

use crate::connection::{ClientOption, Connection};
use crate::failure::{EXIT_CODES, Failure};
use crate::output::Output;
use crate::style;
use crate::table::Table;

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The route.
const VIRTUAL: &str = "/api/v1/virtual";
/// The sensors of a template that `show` names.
const SENSORS_SHOWN: usize = 20;
/// The longest expression in a table, in characters.
const EXPRESSION_SHOWN: usize = 60;

const EXAMPLES: &str = "\
An expression computes from sensors in <…>: beside the one that is defined, or with a leading / from the root. A path with wildcards is a \
template: one sensor for each place where all that it refers to is there. docs/virtual-sensors.md describes the language.

Examples:
  wholegrain config virtual define /lrz/sng/pue 'sum(</lrz/facility/**/power>) / sum(</lrz/sng/*/power>)' --unit 1
  wholegrain config virtual define '/lrz/sng/*/ipc' 'rate(<perf/instructions>) / rate(<perf/cycles>)' --unit 1
  wholegrain config virtual check /lab/heat '<flow> * 4.18[kJ/(kg.K)] * 1[kg/L] * (<outlet> - <inlet>)' --unit kW
  wholegrain config virtual list
  wholegrain config virtual library
  wholegrain config virtual apply --library cpu --at '/lrz/sng/*'
  wholegrain config virtual export > virtual.toml
  wholegrain config virtual apply virtual.toml --prune --dry-run";

/// The arguments.
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
pub struct VirtualArgs {
    #[command(subcommand)]
    command: VirtualCommand,
    #[command(flatten)]
    client: ClientOption,
}

#[derive(Subcommand)]
enum VirtualCommand {
    /// Define a virtual sensor or a template, or define it anew
    Define(DefineArgs),
    /// Say what defining it would say, and change nothing
    Check(DefineArgs),
    /// List the definitions
    List(ListArgs),
    /// Show a definition and the sensors that it makes
    Show(ShowArgs),
    /// Remove definitions
    Remove(RemoveArgs),
    /// Who defined and removed what, and when
    History(HistoryArgs),
    /// Define what a file says, or the library
    Apply(apply::ApplyArgs),
    /// Write the definitions as a file for `apply`
    Export(apply::ExportArgs),
    /// List the library of ready definitions, or write one of its files
    Library(apply::LibraryArgs),
}

#[derive(Args)]
struct DefineArgs {
    /// Its path; with wildcards a template
    #[arg(value_name = "PATH")]
    path: String,
    /// What it is computed by
    #[arg(value_name = "EXPRESSION", allow_hyphen_values = true)]
    expression: String,
    /// Its unit, a UCUM code such as W, kW.h, % or 1
    #[arg(long)]
    unit: String,
    /// What it is, in a sentence
    #[arg(long, default_value = "")]
    description: String,
    /// Its times are whole multiples of this [default: the shortest interval of what it is computed from]
    #[arg(long, value_name = "LENGTH")]
    interval: Option<Interval>,
    /// Interpolate over no more than this [default: three intervals of the sensor]
    #[arg(long, value_name = "LENGTH")]
    bridge: Option<Interval>,
    /// What a time gives at which sensors of an aggregate are missing: gap, or skip for what the others come to
    #[arg(long, value_parser = ["gap", "skip"], default_value = "gap")]
    missing: String,
    /// Print what was done as a JSON object
    #[arg(long)]
    json: bool,
}

impl DefineArgs {
    fn to_json(&self) -> Value {
        let mut definition =
            json!({ "path": self.path, "expression": self.expression, "unit": self.unit, "missing": self.missing });
        if !self.description.is_empty() {
            definition["description"] = json!(self.description);
        }
        for (name, length) in [("interval", self.interval), ("bridge", self.bridge)] {
            if let Some(length) = length {
                definition[name] = json!(length.to_string());
            }
        }
        definition
    }
}

#[derive(Args)]
struct ListArgs {
    /// Which; all of them when none is given
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArgs {
    /// The path of the definition, or of a sensor that it makes
    #[arg(value_name = "PATH")]
    path: String,
    /// As a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RemoveArgs {
    /// The paths of the definitions; they go together or not at all
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Also when others are computed from them; those have gaps then
    #[arg(long)]
    force: bool,
    /// Print what was done as a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct HistoryArgs {
    /// Of one definition
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// The latest so many
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &VirtualArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let open = || Connection::open(client);
    match &args.command {
        VirtualCommand::Define(define) => {
            let answer = open()?.put_json(VIRTUAL, &[], &define.to_json())?.read(ANSWER_BYTES_MAX)?;
            done(&answer, define.json, "")
        }
        VirtualCommand::Check(define) => {
            let answer = open()?.post_json(VIRTUAL, &define.to_json())?.read(ANSWER_BYTES_MAX)?;
            done(&answer, define.json, "would be ")
        }
        VirtualCommand::List(list) => show_list(&open()?, list),
        VirtualCommand::Show(show) => show_one(&open()?, show),
        VirtualCommand::Remove(remove) => {
            let body = json!({ "remove": remove.paths, "force": remove.force });
            done(&open()?.put_json(VIRTUAL, &[], &body)?.read(ANSWER_BYTES_MAX)?, remove.json, "")
        }
        VirtualCommand::History(history) => show_history(&open()?, history),
        VirtualCommand::Apply(args) => apply::apply(args, open),
        VirtualCommand::Export(args) => apply::export(args, &open()?),
        VirtualCommand::Library(args) => apply::library(args),
    }
}

/// Says what was changed, or would be: what was done on standard error, the JSON on standard output.
fn done(answer: &[u8], as_json: bool, would: &str) -> Result<(), Failure> {
    let changed = object(answer)?;
    for warning in strings(&changed["warnings"]) {
        eprintln!("Warning: {warning}");
    }
    if as_json {
        return write(|out| out.write_all(answer).and_then(|()| writeln!(out)));
    }
    for (key, what) in [("added", "defined"), ("changed", "redefined"), ("removed", "removed")] {
        for path in strings(&changed[key]) {
            let makes = match changed["sensors"][path].as_u64() {
                Some(1) if path.contains('*') => ", 1 sensor".to_owned(),
                Some(count) if path.contains('*') => format!(", {count} sensors"),
                _ => String::new(),
            };
            eprintln!("{path}: {would}{what}{makes}");
        }
    }
    if let Some(count) = changed["unchanged"].as_u64().filter(|count| *count > 0) {
        eprintln!("{count} as before");
    }
    Ok(())
}

fn object(answer: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(answer)
        .map_err(|error| Failure::Unreachable(format!("the answer of the server is not what was expected: {error}")))
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn write(write: impl FnOnce(&mut Output) -> std::io::Result<()>) -> Result<(), Failure> {
    let mut out = Output::open(None)?;
    write(&mut out).map_err(Failure::writing("standard output"))?;
    out.finish()
}

/// The definitions that the server has.
fn definitions(server: &Connection, patterns: &[Pattern]) -> Result<Vec<Value>, Failure> {
    let parameters: Vec<_> = patterns.iter().map(|pattern| ("pattern", pattern.to_string())).collect();
    let mut answer = object(&server.get(VIRTUAL, &parameters, false)?.read(ANSWER_BYTES_MAX)?)?;
    match answer["virtual"].take() {
        Value::Array(definitions) => Ok(definitions),
        _ => Err(Failure::Unreachable("the answer of the server has no definitions".to_owned())),
    }
}

fn none_there() -> Failure {
    Failure::NothingMatched(
        "there is no such virtual sensor; `wholegrain config virtual define` and `apply` make some".to_owned(),
    )
}

fn show_list(server: &Connection, list: &ListArgs) -> Result<(), Failure> {
    let all = definitions(server, &list.patterns)?;
    if all.is_empty() {
        return Err(none_there());
    }
    write(|out| {
        if list.json {
            return all.iter().try_for_each(|one| writeln!(out, "{one}"));
        }
        let mut table = Table::new(&["path", "unit", ">sensors", "by", "expression"]);
        let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        for one in &all {
            let expression: String = text(one, "expression").split_whitespace().collect::<Vec<_>>().join(" ");
            let mut shown: String = expression.chars().take(EXPRESSION_SHOWN).collect();
            if shown.len() < expression.len() {
                shown.push('…');
            }
            table.row(vec![text(one, "path"), text(one, "unit"), one["sensors"].to_string(), text(one, "who"), shown]);
        }
        table.write(style::on_stdout(), out)
    })
}

fn show_one(server: &Connection, show: &ShowArgs) -> Result<(), Failure> {
    let pattern = Pattern::new(show.path.as_str()).map_err(|error| Failure::Usage(error.to_string()))?;
    let all = definitions(server, std::slice::from_ref(&pattern))?;
    let one = all.iter().find(|one| one["path"] == show.path.as_str()).or(all.first()).ok_or_else(none_there)?;
    if show.json {
        return write(|out| writeln!(out, "{one}"));
    }
    let of = one["path"].as_str().and_then(|path| Pattern::new(path).ok()).unwrap_or(pattern);
    let sensors = crate::sensors::fetch(server, &[of])?;
    write(|out| {
        for key in ["path", "expression", "unit", "description", "interval", "bridge", "missing", "at", "who"] {
            if let Some(value) = one[key].as_str() {
                writeln!(out, "{key:<12} {}", value.replace('\n', "\n             "))?;
            }
        }
        for (at, sensor) in sensors.iter().take(SENSORS_SHOWN).enumerate() {
            writeln!(out, "{:<12} {}", if at == 0 { "sensors" } else { "" }, sensor.path)?;
        }
        let more = sensors.len().saturating_sub(SENSORS_SHOWN);
        if more > 0 { writeln!(out, "{:<12} and {more} more", "") } else { Ok(()) }
    })
}

fn show_history(server: &Connection, history: &HistoryArgs) -> Result<(), Failure> {
    let mut parameters = vec![("limit", history.limit.to_string())];
    parameters.extend(history.path.iter().map(|path| ("path", path.clone())));
    let answer = object(&server.get("/api/v1/virtual/history", &parameters, false)?.read(ANSWER_BYTES_MAX)?)?;
    let entries = answer["history"].as_array().filter(|entries| !entries.is_empty()).ok_or_else(none_there)?;
    write(|out| {
        if history.json {
            return entries.iter().try_for_each(|one| writeln!(out, "{one}"));
        }
        let mut table = Table::new(&["at", "by", "path", "unit", "expression"]);
        for one in entries {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let definition = &one["definition"];
            let expression =
                if definition.is_null() { "(removed)".to_owned() } else { text(&definition["expression"]) };
            let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
            table.row(vec![
                text(&one["at"]),
                text(&one["who"]),
                text(&one["path"]),
                text(&definition["unit"]),
                expression,
            ]);
        }
        table.write(style::on_stdout(), out)
    })
}
