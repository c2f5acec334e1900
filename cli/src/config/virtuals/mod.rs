//! `wholegrain config virtual`: virtual sensors. `apply.rs` is for definitions in files and the library.

mod apply;

use std::path::Path;

use clap::{Args, Subcommand};
use wholegrain_api::{
    ChangeDefinitions, DefinitionHistory, DefinitionHistoryEntry, DefinitionsChanged, MissingOperands,
    VirtualDefinition, VirtualSensor, VirtualSensorList, paths,
};
use wholegrain_model::{Interval, Pattern};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::{JsonLinesOption, JsonOption, print, print_json, write_properties};

/// The sensors of a template that `show` names.
const SENSORS_SHOWN: usize = 20;
/// The longest expression in a table, in characters.
const EXPRESSION_SHOWN: usize = 60;

const EXAMPLES: &str = "\
An expression refers to sensors in <…>: below the same level as the defined sensor, or with a leading / from the root. A path with \
wildcards is a template: it makes one sensor for each place where all its references exist. docs/virtual-sensors.md describes the language.

Examples:
  wholegrain config virtual define /lrz/sng/pue 'sum(</lrz/facility/**/power>) / sum(</lrz/sng/*/power>)' --unit 1
  wholegrain config virtual define '/lrz/sng/*/ipc' 'rate(<perf/instructions>) / rate(<perf/cycles>)' --unit 1
  wholegrain config virtual check /lab/heat '<flow> * 4.18[kJ/(kg.K)] * 1[kg/L] * (<outlet> - <inlet>)' --unit kW
  wholegrain config virtual list
  wholegrain config virtual library
  wholegrain config virtual apply --library cpu --at '/lrz/sng/*'
  wholegrain config virtual export > virtual.toml
  wholegrain config virtual apply virtual.toml --prune --dry-run";

#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct VirtualArgs {
    #[command(subcommand)]
    command: VirtualCommand,
    #[command(flatten)]
    client: ClientOption,
}

#[derive(Subcommand)]
enum VirtualCommand {
    /// Define or redefine a virtual sensor or a template
    #[command(after_help = EXAMPLES)]
    Define(DefineArgs),
    /// Check a definition; change nothing
    #[command(after_help = EXAMPLES)]
    Check(DefineArgs),
    /// List the definitions of virtual sensors
    #[command(
        after_help = "Examples:\n  wholegrain config virtual list\n  wholegrain config virtual list '/lrz/**' --json"
    )]
    List(ListDefinitionsArgs),
    /// Show a definition and its sensors
    #[command(after_help = "Examples:\n  wholegrain config virtual show /lrz/sng/pue")]
    Show(ShowDefinitionArgs),
    /// Remove one or more definitions
    #[command(after_help = "Examples:\n  wholegrain config virtual remove /lrz/sng/pue")]
    Remove(RemoveArgs),
    /// List all definitions and removals
    #[command(after_help = "Examples:\n  wholegrain config virtual history /lrz/sng/pue")]
    History(HistoryArgs),
    /// Apply the definitions of a file or of the library
    Apply(apply::ApplyArgs),
    /// Write the definitions as a file for `apply`
    #[command(after_help = "Examples:\n  wholegrain config virtual export > virtual.toml")]
    Export(apply::ExportArgs),
    /// List the library of definitions, or print one of its files
    #[command(after_help = "Examples:\n  wholegrain config virtual library\n  wholegrain config virtual library cpu")]
    Library(apply::LibraryArgs),
}

#[derive(Args)]
struct DefineArgs {
    /// The path; with wildcards a template
    #[arg(value_name = "PATH")]
    path: String,
    /// The expression that computes it
    #[arg(value_name = "EXPRESSION", allow_hyphen_values = true)]
    expression: String,
    /// The unit, a UCUM code such as W, kW.h, % or 1
    #[arg(long)]
    unit: String,
    /// A description in one sentence
    #[arg(long, default_value = "")]
    description: String,
    /// Its times are multiples of this [default: the shortest interval of its operands]
    #[arg(long, value_name = "LENGTH")]
    interval: Option<Interval>,
    /// The maximum gap for interpolation [default: three intervals of the operand]
    #[arg(long, value_name = "LENGTH")]
    bridge: Option<Interval>,
    /// The value of an aggregate while operands are missing: a gap, or skip for the aggregate of the others
    #[arg(long, value_parser = ["gap", "skip"], default_value = "gap")]
    missing: String,
    #[command(flatten)]
    json: JsonOption,
}

impl DefineArgs {
    fn definition(&self) -> VirtualDefinition {
        VirtualDefinition {
            path: self.path.clone(),
            expression: self.expression.clone(),
            unit: self.unit.clone(),
            description: self.description.clone(),
            interval: self.interval,
            bridge: self.bridge,
            missing: if self.missing == "skip" { MissingOperands::Skip } else { MissingOperands::Gap },
        }
    }
}

#[derive(Args)]
struct ListDefinitionsArgs {
    /// Patterns of the definitions [default: all]
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    #[command(flatten)]
    json: JsonLinesOption,
}

#[derive(Args)]
struct ShowDefinitionArgs {
    /// The path of the definition, or of one of its sensors
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    json: JsonOption,
}

#[derive(Args)]
struct RemoveArgs {
    /// The paths of the definitions; all are removed or none
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Also if other definitions refer to them; their sensors have gaps then
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: JsonOption,
}

#[derive(Args)]
struct HistoryArgs {
    /// Only changes of this definition
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// The most entries; the latest are listed
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
    #[command(flatten)]
    json: JsonLinesOption,
}

pub fn run(args: &VirtualArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let open = || Connection::open(client);
    match &args.command {
        VirtualCommand::Define(define) => {
            let changed = open()?.put(paths::VIRTUAL).json(&define.definition()).send()?.json()?;
            print_change(&changed, &define.json, "")
        }
        VirtualCommand::Check(define) => {
            let changed = open()?.post(paths::VIRTUAL).json(&define.definition()).send()?.json()?;
            print_change(&changed, &define.json, "would be ")
        }
        VirtualCommand::List(list) => show_list(&open()?, list),
        VirtualCommand::Show(show) => show_one(&open()?, show),
        VirtualCommand::Remove(remove) => {
            let (paths, force) = (remove.paths.clone(), remove.force);
            let change = ChangeDefinitions { define: Vec::new(), remove: paths, force };
            print_change(&open()?.put(paths::VIRTUAL).json(&change).send()?.json()?, &remove.json, "")
        }
        VirtualCommand::History(history) => show_history(&open()?, history),
        VirtualCommand::Apply(args) => apply::apply(args, open),
        VirtualCommand::Export(args) => apply::export(args, &open()?),
        VirtualCommand::Library(args) => apply::library(args),
    }
}

/// Prints a change: as text on standard error, or as JSON on standard output.
fn print_change(change: &DefinitionsChanged, json: &JsonOption, would: &str) -> Result<(), Failure> {
    for warning in &change.warnings {
        eprintln!("Warning: {warning}");
    }
    if json.json {
        return print_json(change);
    }
    for (paths, verb) in [(&change.added, "defined"), (&change.changed, "redefined"), (&change.removed, "removed")] {
        for path in paths {
            let count = match change.sensors.get(path) {
                Some(1) if path.contains('*') => ", 1 sensor".to_owned(),
                Some(count) if path.contains('*') => format!(", {count} sensors"),
                _ => String::new(),
            };
            eprintln!("{path}: {would}{verb}{count}");
        }
    }
    if change.unchanged > 0 {
        eprintln!("{} unchanged", change.unchanged);
    }
    Ok(())
}

/// The definitions of the server.
fn definitions(server: &Connection, patterns: &[Pattern]) -> Result<Vec<VirtualSensor>, Failure> {
    let request = server.get(paths::VIRTUAL).each("pattern", patterns);
    Ok(request.send()?.json::<VirtualSensorList>()?.definitions)
}

fn none_there() -> Failure {
    Failure::NothingMatched(
        "no such virtual sensor; `wholegrain config virtual define` and `apply` define virtual sensors".to_owned(),
    )
}

/// An expression on one line.
fn on_one_line(expression: &str) -> String {
    expression.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn show_list(server: &Connection, list: &ListDefinitionsArgs) -> Result<(), Failure> {
    let all = definitions(server, &list.patterns)?;
    if all.is_empty() {
        return Err(none_there());
    }
    list.json.print(&all, || {
        Table::of(
            &all,
            &[
                ("PATH", &|one| one.definition.path.clone()),
                ("UNIT", &|one| one.definition.unit.clone()),
                (">SENSORS", &|one| one.sensors.to_string()),
                ("BY", &|one| one.who.clone()),
                ("EXPRESSION", &|one| shortened(on_one_line(&one.definition.expression))),
            ],
        )
    })
}

/// An expression that fits into a table.
fn shortened(expression: String) -> String {
    match expression.char_indices().nth(EXPRESSION_SHOWN) {
        Some((end, _)) => format!("{}…", &expression[..end]),
        None => expression,
    }
}

fn show_one(server: &Connection, show: &ShowDefinitionArgs) -> Result<(), Failure> {
    let pattern = Pattern::new(show.path.as_str()).map_err(Failure::usage)?;
    let all = definitions(server, std::slice::from_ref(&pattern))?;
    let one = all.iter().find(|one| one.definition.path == show.path).or(all.first()).ok_or_else(none_there)?;
    if show.json.json {
        return print_json(one);
    }
    let definition = &one.definition;
    let of = Pattern::new(definition.path.as_str()).unwrap_or(pattern);
    let sensors = crate::sensors::fetch(server, &[of])?;
    let length = |length: Option<Interval>| length.map(|length| length.to_string()).unwrap_or_default();
    let mut paths: Vec<&str> = sensors.iter().take(SENSORS_SHOWN).map(|sensor| &*sensor.path).collect();
    let more = sensors.len().saturating_sub(SENSORS_SHOWN);
    let more = if more > 0 { format!("and {more} more") } else { String::new() };
    paths.extend((!more.is_empty()).then_some(more.as_str()));
    let properties = [
        ("path", definition.path.clone()),
        ("expression", definition.expression.clone()),
        ("unit", definition.unit.clone()),
        ("description", definition.description.clone()),
        ("interval", length(definition.interval)),
        ("bridge", length(definition.bridge)),
        ("missing", definition.missing.name().to_owned()),
        ("at", one.at.to_string()),
        ("who", one.who.clone()),
        ("sensors", paths.join("\n")),
    ];
    print(|style, out| write_properties(&properties, style, out))
}

fn show_history(server: &Connection, args: &HistoryArgs) -> Result<(), Failure> {
    let request = server.get(paths::VIRTUAL_HISTORY).query("limit", args.limit).each("path", &args.path);
    let DefinitionHistory { history } = request.send()?.json()?;
    if history.is_empty() {
        return Err(none_there());
    }
    let definition = |entry: &DefinitionHistoryEntry| match &entry.definition {
        Some(definition) => (definition.unit.clone(), on_one_line(&definition.expression)),
        None => (String::new(), "(removed)".to_owned()),
    };
    args.json.print(&history, || {
        Table::of(
            &history,
            &[
                ("AT", &|entry| entry.at.to_string()),
                ("BY", &|entry| entry.who.clone()),
                ("PATH", &|entry| entry.path.clone()),
                ("UNIT", &|entry| definition(entry).0),
                ("EXPRESSION", &|entry| definition(entry).1),
            ],
        )
    })
}
