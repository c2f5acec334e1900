//! `wholegrain config virtual apply`, `export`, `library`: definitions in files.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use wholegrain_model::Pattern;
use wholegrain_query::virtuals::{Definition, DefinitionFile, LIBRARY};

use super::{ANSWER_BYTES_MAX, VIRTUAL, definitions, done, write};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::style;
use crate::table::Table;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Args)]
#[command(after_help = "\
A file is TOML: [[virtual]] with path, expression, unit, and where they are wanted description, interval, bridge, missing. Applying it \
again changes nothing. All of it is taken or nothing; of the library what fits the sensors there are.

Examples:
  wholegrain config virtual apply virtual.toml --dry-run
  wholegrain config virtual apply virtual.toml --prune
  wholegrain config virtual apply --library perf --at '/lrz/sng/*/job/*'
  wholegrain config virtual apply --library facility --at /lrz --set it_power='sng/*/power'")]
pub(super) struct ApplyArgs {
    /// The file; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "library")]
    file: Option<PathBuf>,
    /// A file of the library, such as cpu
    #[arg(long, value_name = "NAME", conflicts_with = "file", requires = "at")]
    library: Option<String>,
    /// The place that relative paths in the file are below, such as '/lrz/sng/*'
    #[arg(long, value_name = "PLACE")]
    at: Option<String>,
    /// A parameter of the file, such as power=psu/power
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Remove definitions that are not in the file
    #[arg(long, conflicts_with = "library")]
    prune: bool,
    /// With --prune: also those that others are computed from
    #[arg(long, requires = "prune")]
    force: bool,
    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what was done as a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct ExportArgs {
    /// Which; all of them when none is given
    #[arg(value_name = "PATTERN")]
    patterns: Vec<Pattern>,
}

#[derive(Args)]
pub(super) struct LibraryArgs {
    /// The file to write; a list of them without a name
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// One JSON object a line
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

/// Runs `apply`.
pub(super) fn apply(args: &ApplyArgs, open: impl FnOnce() -> Result<Connection, Failure>) -> Result<(), Failure> {
    let usage = Failure::Usage;
    let set = args.set.iter().map(|set| {
        let pair = set.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| usage(format!("--set {set:?} is not NAME=VALUE")))
    });
    let set: Vec<(String, String)> = set.collect::<Result<_, _>>()?;
    let file = match &args.library {
        Some(name) => DefinitionFile::of_library(name).map_err(usage)?,
        None => read(args.file.as_ref())?,
    };
    let wanted = file.placed(args.at.as_deref(), &set).map_err(usage)?;
    let server = open()?;
    let wanted = if args.library.is_some() { fitting(&server, wanted)? } else { wanted };
    let mut body = json!({ "define": wanted, "force": args.force });
    if args.prune {
        let kept: BTreeSet<&str> = wanted.iter().map(|definition| definition.path.as_str()).collect();
        let there = definitions(&server, &[])?;
        let gone = there.iter().filter_map(|one| one["path"].as_str()).filter(|path| !kept.contains(path));
        body["remove"] = gone.collect();
    }
    let answer = if args.dry_run { server.post_json(VIRTUAL, &body)? } else { server.put_json(VIRTUAL, &[], &body)? };
    done(&answer.read(ANSWER_BYTES_MAX)?, args.json, if args.dry_run { "would be " } else { "" })
}

fn read(path: Option<&PathBuf>) -> Result<DefinitionFile, Failure> {
    use std::io::Read;
    let Some(path) = path else { return Err(Failure::Usage("which file?".to_owned())) };
    let name = path.display().to_string();
    let cannot = |error| Failure::Failed(format!("cannot read {name}: {error}"));
    let mut text = String::new();
    if name == "-" {
        std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    } else {
        let file = std::fs::File::open(path).map_err(cannot)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    }
    DefinitionFile::read(&name, &text).map_err(Failure::Usage)
}

/// Those of the library whose sensors are there; of the others it is said why they are left out.
fn fitting(server: &Connection, wanted: Vec<Definition>) -> Result<Vec<Definition>, Failure> {
    let mut fit: Vec<Definition> = Vec::new();
    let mut left_out = 0;
    for definition in wanted {
        let path = definition.path.clone();
        fit.push(definition);
        match server.post_json(VIRTUAL, &json!({ "define": fit })) {
            Ok(_) => {}
            Err(Failure::Usage(said)) => {
                fit.pop();
                left_out += 1;
                eprintln!("Left out {path}: {said}");
            }
            Err(other) => return Err(other),
        }
    }
    if fit.is_empty() && left_out > 0 {
        return Err(Failure::NothingMatched(
            "none of the library's definitions fits the sensors below this place; look at --at".to_owned(),
        ));
    }
    Ok(fit)
}

/// Runs `export`.
pub(super) fn export(args: &ExportArgs, server: &Connection) -> Result<(), Failure> {
    let all = definitions(server, &args.patterns)?;
    let text = |value: &Value| value.as_str().map(quoted);
    write(|out| {
        writeln!(out, "# Virtual sensors; `wholegrain config virtual apply FILE` makes them what this says.")?;
        for one in &all {
            writeln!(out, "\n[[virtual]]")?;
            for key in ["path", "expression", "unit", "description", "interval", "bridge", "missing"] {
                // What is the default anyway is left out.
                if let Some(value) = text(&one[key]).filter(|_| one[key] != "gap") {
                    writeln!(out, "{key} = {value}")?;
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
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Runs `library`.
pub(super) fn library(args: &LibraryArgs) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        DefinitionFile::of_library(name).map_err(Failure::Usage)?;
        let text = LIBRARY.iter().find(|(known, _)| known == name).map_or("", |(_, text)| text);
        return write(|out| out.write_all(text.as_bytes()));
    }
    let mut table = Table::new(&["library", "sensors", "about"]);
    let mut lines = Vec::new();
    for (name, _) in LIBRARY {
        let file = DefinitionFile::of_library(name).map_err(Failure::Failed)?;
        let paths: Vec<&str> = file.definitions.iter().map(|written| written.path.as_str()).collect();
        table.row(vec![(*name).to_owned(), paths.len().to_string(), file.about.clone()]);
        lines.push(json!({ "library": name, "about": file.about, "parameters": file.parameters, "paths": paths }));
    }
    write(|out| {
        if args.json {
            return lines.iter().try_for_each(|line| writeln!(out, "{line}"));
        }
        table.write(style::on_stdout(), out)
    })
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
