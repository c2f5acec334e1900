//! `wholegrain config virtual apply`, `export` and `library`: definitions in files.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use wholegrain_api::{ChangeDefinitions, DefinitionsChanged, MissingOperands, VirtualDefinition, paths};
use wholegrain_model::{Interval, Pattern};
use wholegrain_query::virtuals::{Definition, DefinitionFile, LIBRARY, MissingOperands as OperandsMissing};

use super::{definitions, print_change};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::{JsonLinesOption, JsonOption, print};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Args)]
#[command(after_help = "\
A file is TOML: [[virtual]] with path, expression, unit, and optionally description, interval, bridge, missing. Applying a file \
again changes nothing. All its definitions are applied or none; of a library file, those whose sensors exist.

Examples:
  wholegrain config virtual apply virtual.toml --dry-run
  wholegrain config virtual apply virtual.toml --prune
  wholegrain config virtual apply --library perf --at '/lrz/sng/*/job/*'
  wholegrain config virtual apply --library facility --at /lrz --set it_power='sng/*/power'")]
pub(super) struct ApplyArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "library")]
    file: Option<PathBuf>,
    /// A file of the library, such as cpu
    #[arg(long, value_name = "NAME", conflicts_with = "file", requires = "at")]
    library: Option<String>,
    /// The path above relative paths of the file, such as '/lrz/sng/*'
    #[arg(long, value_name = "PLACE")]
    at: Option<String>,
    /// A parameter of the file, such as power=psu/power
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Remove definitions that are not in the file
    #[arg(long, conflicts_with = "library")]
    prune: bool,
    /// With --prune: also remove definitions that others refer to. With --library: also replace other definitions of the same path
    #[arg(long)]
    force: bool,
    /// Change nothing; print the changes
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    json: JsonOption,
}

#[derive(Args)]
pub(super) struct ExportArgs {
    /// Patterns of the definitions [default: all]
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
}

#[derive(Args)]
pub(super) struct LibraryArgs {
    /// The file to print [default: a list of the files]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    json: JsonLinesOption,
}

pub(super) fn apply(args: &ApplyArgs, open: impl FnOnce() -> Result<Connection, Failure>) -> Result<(), Failure> {
    let set = args.set.iter().map(|set| {
        let pair = set.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| Failure::Usage(format!("--set {set:?} is not NAME=VALUE")))
    });
    let set: Vec<(String, String)> = set.collect::<Result<_, _>>()?;
    let file = match &args.library {
        Some(name) => DefinitionFile::of_library(name).map_err(Failure::Usage)?,
        None => read(args.file.as_ref())?,
    };
    let placed = file.placed(args.at.as_deref(), &set).map_err(Failure::Usage)?;
    let define: Vec<VirtualDefinition> = placed.into_iter().map(for_request).collect();
    let server = open()?;
    let define = if args.library.is_some() { applicable(&server, define, args.force)? } else { define };
    let mut remove = Vec::new();
    if args.prune {
        let kept: BTreeSet<&str> = define.iter().map(|definition| definition.path.as_str()).collect();
        let present = definitions(&server, &[])?;
        remove =
            present.into_iter().map(|one| one.definition.path).filter(|path| !kept.contains(path.as_str())).collect();
    }
    let change = ChangeDefinitions { define, remove, force: args.force };
    let request = if args.dry_run { server.post(paths::VIRTUAL) } else { server.put(paths::VIRTUAL) };
    let changed = request.json(&change).send()?.json()?;
    print_change(&changed, &args.json, if args.dry_run { "would be " } else { "" })
}

/// A definition of a file as part of a request.
fn for_request(definition: Definition) -> VirtualDefinition {
    let Definition { path, expression, unit, description, interval, bridge, missing } = definition;
    let missing = match missing {
        OperandsMissing::Gap => MissingOperands::Gap,
        OperandsMissing::Skip => MissingOperands::Skip,
    };
    VirtualDefinition { path, expression, unit, description, interval, bridge, missing }
}

fn read(path: Option<&PathBuf>) -> Result<DefinitionFile, Failure> {
    use std::io::Read;
    let Some(path) = path else { return Err(Failure::Usage("which file?".to_owned())) };
    let name = path.display().to_string();
    let failed = Failure::reading(path);
    let mut text = String::new();
    if name == "-" {
        std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(&failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(&failed)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(&failed)?;
    }
    DefinitionFile::read(&name, &text).map_err(Failure::Usage)
}

/// The definitions whose sensors exist, and which replace no other definition unless `force` is set; reports the reason for each other one.
fn applicable(
    server: &Connection,
    all: Vec<VirtualDefinition>,
    force: bool,
) -> Result<Vec<VirtualDefinition>, Failure> {
    let mut applicable: Vec<VirtualDefinition> = Vec::new();
    let mut left_out = 0;
    for definition in all {
        let path = definition.path.clone();
        applicable.push(definition);
        let reason = match server.post(paths::VIRTUAL).json(&applicable).send() {
            Ok(response) => {
                let change: DefinitionsChanged = response.json()?;
                if force || !change.changed.contains(&path) {
                    continue;
                }
                "another definition has this path; --force replaces it".to_owned()
            }
            Err(Failure::Usage(reason)) => reason,
            Err(other) => return Err(other),
        };
        applicable.pop();
        left_out += 1;
        eprintln!("Left out {path}: {}", reason.strip_prefix(&format!("{path}: ")).unwrap_or(&reason));
    }
    if applicable.is_empty() && left_out > 0 {
        return Err(Failure::NothingMatched(
            "no definition of the library can be applied below this path; check --at and --set".to_owned(),
        ));
    }
    Ok(applicable)
}

pub(super) fn export(args: &ExportArgs, server: &Connection) -> Result<(), Failure> {
    let all = definitions(server, &args.patterns)?;
    print(|_, out| {
        writeln!(out, "# Virtual sensors; `wholegrain config virtual apply FILE` applies them.")?;
        for one in &all {
            let definition = &one.definition;
            let length = |length: Option<Interval>| length.map(|length| length.to_string()).unwrap_or_default();
            writeln!(out, "\n[[virtual]]")?;
            let is_default = definition.missing == MissingOperands::default();
            for (key, value) in [
                ("path", definition.path.clone()),
                ("expression", definition.expression.clone()),
                ("unit", definition.unit.clone()),
                ("description", definition.description.clone()),
                ("interval", length(definition.interval)),
                ("bridge", length(definition.bridge)),
                ("missing", if is_default { String::new() } else { definition.missing.name().to_owned() }),
            ] {
                if !value.is_empty() {
                    writeln!(out, "{key} = {}", quoted(&value))?;
                }
            }
        }
        Ok(())
    })
}

/// A TOML string; of several lines as such.
fn quoted(text: &str) -> String {
    if text.contains('\n') && !text.contains("'''") && !text.contains('\r') {
        return format!("'''\n{text}'''");
    }
    // JSON's escapes are TOML's too.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

pub(super) fn library(args: &LibraryArgs) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        DefinitionFile::of_library(name).map_err(Failure::Usage)?;
        let text = LIBRARY.iter().find(|(known, _)| known == name).map_or("", |(_, text)| text);
        return print(|_, out| out.write_all(text.as_bytes()));
    }
    let files = LIBRARY.iter().map(|(name, _)| Ok((*name, DefinitionFile::of_library(name).map_err(Failure::Failed)?)));
    let files: Vec<(&str, DefinitionFile)> = files.collect::<Result<_, Failure>>()?;
    let paths =
        |file: &DefinitionFile| -> Vec<String> { file.definitions.iter().map(|one| one.path.clone()).collect() };
    let json = files.iter().map(|(name, file)| LibraryFile {
        library: name,
        about: &file.about,
        parameters: &file.parameters,
        paths: paths(file),
    });
    args.json.print(json, || {
        Table::of(
            &files,
            &[
                ("LIBRARY", &|(name, _)| (*name).to_owned()),
                (">SENSORS", &|(_, file)| file.definitions.len().to_string()),
                ("ABOUT", &|(_, file)| file.about.clone()),
            ],
        )
    })
}

/// A file of the library as `--json` prints it.
#[derive(Serialize)]
struct LibraryFile<'a, P> {
    library: &'a str,
    about: &'a str,
    parameters: &'a P,
    paths: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_text_is_toml() {
        for text in ["plain", "a \"b\" \\ c", "two\nlines", "'''\n", "tab\tü\u{7f}", ""] {
            let file = format!("[[virtual]]\npath = \"/x\"\nunit = \"1\"\nexpression = {}\n", quoted(text));
            let read = DefinitionFile::read("f", &file).unwrap_or_else(|error| panic!("{error}: {file}"));
            assert_eq!(read.definitions[0].expression, text);
        }
    }
}
