//! Counting all paths and saying how they stand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::json;

use crate::budgets::{Budgets, Tolerance, Tools, Verdict};
use crate::callgrind::{self, Count};
use crate::paths::{ALL, HotPath};

/// Tolerance when there is no file yet.
const TOLERANCE: Tolerance = Tolerance { same_tools: 0.03, other_tools: 0.25 };
/// How often a path is counted before it exceeds its budget.
const COUNTS: usize = 3;
/// How this is run.
const COMMAND: &str = "cargo run --profile hot-paths -p wholegrain-hot-paths -- check";

#[derive(clap::Args)]
pub struct CheckOptions {
    /// Write the counts as the new budgets.
    #[arg(long)]
    update: bool,
    /// Check only these paths.
    #[arg(long, value_name = "PATH")]
    only: Vec<String>,
    /// Print JSON in place of the table.
    #[arg(long)]
    json: bool,
    /// The file with the budgets.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../budgets/hot-paths.toml"))]
    budgets: PathBuf,
    /// Where callgrind's files are left; without it in `target/hot-paths-callgrind` beside this program's folder.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The valgrind to count with.
    #[arg(long, value_name = "PROGRAM", default_value = "valgrind")]
    valgrind: PathBuf,
}

/// Whether every count is within its budget.
pub fn run(options: &CheckOptions) -> anyhow::Result<bool> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        eprintln!("the budgets of the hot paths are of x86-64 and glibc: nothing is counted on this machine");
        return Ok(true);
    }
    ensure!(!cfg!(debug_assertions), "this is not the code that the budgets are of: use {COMMAND}");
    let version = callgrind::version(&options.valgrind)?;
    let chosen: Vec<&HotPath> = ALL
        .iter()
        .filter(|path| options.only.is_empty() || options.only.iter().any(|only| only == path.name))
        .collect();
    if let Some(unknown) = options.only.iter().find(|only| ALL.iter().all(|path| path.name != **only)) {
        bail!(
            "there is no path {unknown:?}; there are {}",
            ALL.iter().map(|path| path.name).collect::<Vec<_>>().join(", ")
        );
    }
    let dir = folder(options)?;
    let known = known(options)?;
    let mut counts = Vec::new();
    for path in &chosen {
        counts.push((*path, least(options, path.name, &dir, known.as_ref())?));
    }
    let processor = counts.first().map(|(_, count)| count.processor.clone()).unwrap_or_default();
    let tools = tools(version, processor);
    if options.update {
        return update(options, known, tools, &counts).map(|()| true);
    }
    let known = known.with_context(|| {
        format!("there are no budgets in {}: take them with\n  {COMMAND} --update", options.budgets.display())
    })?;
    Ok(compare(options, &known, &tools, &counts))
}

/// The least of several counts: what differs from run to run (hash tables' seeds, threads that hand over) only ever adds. One is enough when
/// it is within the budget.
fn least(options: &CheckOptions, name: &str, dir: &Path, known: Option<&Budgets>) -> anyhow::Result<Count> {
    let mut least = callgrind::count(&options.valgrind, name, dir)?;
    for _ in 1..COUNTS {
        let within = |known: &Budgets| known.verdict(name, least.each(), known.tolerance.same_tools) == Verdict::Within;
        if !options.update && known.is_some_and(within) {
            break;
        }
        let again = callgrind::count(&options.valgrind, name, dir)?;
        least = if again.instructions < least.instructions { again } else { least };
    }
    Ok(least)
}

fn folder(options: &CheckOptions) -> anyhow::Result<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("hot-paths-callgrind"));
    let dir = options.dir.clone().or_else(beside).context("finding a folder for callgrind's files")?;
    std::fs::create_dir_all(&dir).with_context(|| format!("making {} for callgrind's files", dir.display()))?;
    Ok(dir)
}

fn known(options: &CheckOptions) -> anyhow::Result<Option<Budgets>> {
    match std::fs::read_to_string(&options.budgets) {
        Ok(text) => {
            let parsed = Budgets::parse(&text);
            parsed.map(Some).with_context(|| format!("reading the budgets in {}", options.budgets.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading the budgets in {}", options.budgets.display())),
    }
}

/// The environment of the counts. The compilers are those that this program was built with.
fn tools(valgrind: String, processor: String) -> Tools {
    // SAFETY: the call gives a text that stays.
    let libc = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned();
    let text = |name: Option<&str>| name.unwrap_or("unknown").to_owned();
    let (rustc, cc) = (text(option_env!("HOT_PATHS_RUSTC")), text(option_env!("HOT_PATHS_CC")));
    Tools { rustc, cc, libc, valgrind, processor }
}

fn update(
    options: &CheckOptions,
    known: Option<Budgets>,
    tools: Tools,
    counts: &[(&HotPath, Count)],
) -> anyhow::Result<()> {
    let mut instructions = BTreeMap::new();
    let mut tolerance = TOLERANCE;
    if let Some(known) = known {
        if !options.only.is_empty() {
            let differ = tools.differences(&known.taken_with);
            ensure!(differ.is_empty(), "all budgets must be taken again, as there is {}", differ.join(", "));
            instructions = known.instructions;
            instructions.retain(|name, _| ALL.iter().any(|path| path.name == name));
        }
        tolerance = known.tolerance;
    }
    instructions.extend(counts.iter().map(|(path, count)| (path.name.to_owned(), count.each())));
    let budgets = Budgets { taken_with: tools, tolerance, instructions };
    let units: Vec<(&str, &str)> = ALL.iter().map(|path| (path.name, path.unit)).collect();
    if let Some(parent) = options.budgets.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    std::fs::write(&options.budgets, budgets.text(&units))
        .with_context(|| format!("writing the budgets into {}", options.budgets.display()))?;
    eprintln!("{} budgets are in {}: say in the commit why they changed", counts.len(), options.budgets.display());
    Ok(())
}

fn compare(options: &CheckOptions, known: &Budgets, tools: &Tools, counts: &[(&HotPath, Count)]) -> bool {
    let differ = tools.differences(&known.taken_with);
    let allowed = if differ.is_empty() { known.tolerance.same_tools } else { known.tolerance.other_tools };
    if !differ.is_empty() {
        eprintln!(
            "the budgets were taken with other tools ({}): {:.0} % over them is allowed in place of {:.0} %; `{COMMAND} --update` takes \
             them with these",
            differ.join(", "),
            allowed * 100.0,
            known.tolerance.same_tools * 100.0
        );
    }
    let mut all_within = true;
    let mut rows = Vec::new();
    for (path, count) in counts {
        let (each, verdict) = (count.each(), known.verdict(path.name, count.each(), allowed));
        let budget = known.instructions.get(path.name).copied();
        all_within &= matches!(verdict, Verdict::Within | Verdict::Below(_));
        if let Some(text) = message(path, count, budget.unwrap_or_default(), verdict, allowed, &options.budgets) {
            eprintln!("{text}");
        }
        rows.push(json!({ "path": path.name, "unit": path.unit, "instructions": each, "budget": budget,
                          "verdict": format!("{verdict:?}"), "callgrind": count.file }));
        if !options.json {
            let budget = budget.map_or("none".to_owned(), |budget| format!("{budget:.1}"));
            println!("{:<16} {each:>12.1} {budget:>12}  a {}", path.name, path.unit);
        }
    }
    let gone =
        known.instructions.keys().filter(|name| options.only.is_empty() && ALL.iter().all(|path| path.name != **name));
    for name in gone {
        eprintln!("{name}: there is a budget and no such path any more; `{COMMAND} --update` takes it out");
        all_within = false;
    }
    if options.json {
        println!("{}", json!({ "tools_differ": differ, "allowed": allowed, "paths": rows }));
    }
    all_within
}

/// The message about a path; none about one within its budget.
fn message(path: &HotPath, count: &Count, budget: f64, verdict: Verdict, allowed: f64, file: &Path) -> Option<String> {
    let (name, unit, each) = (path.name, path.unit, count.each());
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let file = file.display();
    match verdict {
        Verdict::Within => None,
        Verdict::Over(part) => Some(format!(
            "{name}: {each:.1} instructions a {unit}; the budget is {budget:.1}, so that is {:.1} % over it, and {:.0} % is allowed.\n  \
             to see where they go:     callgrind_annotate --inclusive=yes {}\n  \
             to accept them:           {COMMAND} --update --only {name}\n  \
             the budgets are in {file}",
            part * 100.0,
            allowed * 100.0,
            count.file.display()
        )),
        Verdict::Below(part) => Some(format!(
            "{name}: {each:.1} instructions a {unit}; the budget of {budget:.1} is {:.0} % more than it takes: lower it, or it guards \
             nothing: {COMMAND} --update --only {name}",
            (1.0 / (1.0 - part) - 1.0) * 100.0
        )),
        Verdict::Unknown => Some(format!(
            "{name}: {each:.1} instructions a {unit}, and there is no budget for it in {file}; to give it this one: {COMMAND} \
             --update --only {name}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(each: f64, budget: f64, verdict: Verdict) -> String {
        let count =
            Count { instructions: (each * 10.0) as u64, units: 10, processor: String::new(), file: "/t/x.out".into() };
        message(&ALL[0], &count, budget, verdict, 0.03, Path::new("/nowhere/hot-paths.toml")).unwrap_or_default()
    }

    #[test]
    fn an_exceeded_budget_is_reported_with_figures_and_commands() {
        let text = says(1100.0, 1000.0, Verdict::Over(0.1));
        for part in [
            "1100.0 instructions",
            "budget is 1000.0",
            "10.0 % over",
            "3 % is allowed",
            "callgrind_annotate",
            "/t/x.out",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(text.contains("--update --only sample-procfs") && text.contains("/nowhere/hot-paths.toml"), "{text}");
        assert_eq!(says(1000.0, 1000.0, Verdict::Within), "");
        let text = says(500.0, 1000.0, Verdict::Below(0.5));
        assert!(text.contains("is 100 % more than it takes: lower it"), "{text}");
        assert!(says(5.0, 0.0, Verdict::Unknown).contains("there is no budget"), "as a new path has none");
    }
}
