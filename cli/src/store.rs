//! `wholegrain store`: checks, describes, repairs and restores a store on this machine's disk.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use wholegrain_model::Timestamp;
use wholegrain_server::ServerConfig;
use wholegrain_server::backup::restore;
use wholegrain_server::repair::{RepairReport, repair};
use wholegrain_server::verify::{FileKind, FileReport, StoredFiles, VerifyReport, holdings, verify};

use crate::failure::{EXIT_CODES, Failure};
use crate::output::Output;
use crate::output::style::{self, Style};
use crate::output::table::Table;

const EXAMPLES: &str = "\
Examples:
  wholegrain store verify --dir /var/lib/wholegrain/store
  wholegrain store verify --config /etc/wholegrain/server.toml --json
  wholegrain store stats --dir var/server/store
  wholegrain store repair --dir /var/lib/wholegrain/store --dry-run
  wholegrain store restore /backup/wholegrain --dir /var/lib/wholegrain/store";

/// Check, describe, repair and restore a store on this machine's disk
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Compare every file with its checksums; exit code 4 if any is damaged. Changes nothing; the server may run
    Verify(StoreLocation),
    /// Show files, bytes, readings and the range of time. The server may run
    Stats(StoreLocation),
    /// Keep the readable part of damaged files and move them to damaged/; the server must not run. Exit code 4 if readings are lost
    Repair {
        #[command(flatten)]
        place: StoreLocation,
        /// Change nothing; print what would be kept
        #[arg(long)]
        dry_run: bool,
    },
    /// Restore a backup into an empty directory and print its statistics
    Restore {
        /// The backup: a directory, or a tar file
        backup: PathBuf,
        /// The directory for the store; it must be empty or missing
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct StoreLocation {
    /// The store's directory, with catalogue.redb
    #[arg(long, value_name = "DIR", required_unless_present = "config", conflicts_with = "config")]
    dir: Option<PathBuf>,
    /// The server's configuration, which names the store's directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl StoreLocation {
    fn dir(&self, may_lack_catalogue: bool) -> Result<PathBuf, Failure> {
        let dir = match (&self.dir, &self.config) {
            (Some(dir), _) => dir.clone(),
            (None, Some(path)) => {
                ServerConfig::load(path).map_err(|error| Failure::Usage(error.to_string()))?.store.dir
            }
            (None, None) => return Err(Failure::Usage("give --dir or --config".into())),
        };
        if dir.join("catalogue.redb").exists() || may_lack_catalogue && dir.join("blocks").exists() {
            return Ok(dir);
        }
        Err(Failure::Usage(format!(
            "{} holds no store: there is no catalogue.redb, or you may not look",
            dir.display()
        )))
    }
}

pub fn run(args: &StoreArgs) -> Result<(), Failure> {
    match &args.command {
        StoreCommand::Verify(place) => verify_store(place),
        StoreCommand::Stats(place) => stats(place),
        StoreCommand::Repair { place, dry_run } => repair_store(place, *dry_run),
        StoreCommand::Restore { backup, dir, json } => restore_store(backup, dir, *json),
    }
}

fn verify_store(place: &StoreLocation) -> Result<(), Failure> {
    let dir = place.dir(false)?;
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {elapsed}")
        {
            bar.set_style(style);
        }
        bar
    });
    let report = verify(&dir, &mut |done, total| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.iter().for_each(ProgressBar::finish_and_clear);
    let report = report.map_err(|error| Failure::Failed(error.to_string()))?;
    let mut output = Output::open(None)?;
    if place.json {
        json(&report, &mut output)?;
    } else {
        let style = if output.is_terminal() { style::on_stdout() } else { Style::PLAIN };
        show(&report, &dir, style, &mut output).map_err(Failure::writing("standard output"))?;
    }
    output.finish()?;
    match report.damaged().count() {
        0 if !report.lost.is_empty() => Err(Failure::Failed(format!(
            "the journal has lost acknowledged readings, {} times; `wholegrain config lost` lists and acknowledges the losses",
            report.lost.len()
        ))),
        0 => Ok(()),
        count => Err(Failure::Failed(format!(
            "{count} of {} files are damaged; restore them from a backup, or continue without their readings",
            report.files.len()
        ))),
    }
}

fn repair_store(place: &StoreLocation, dry_run: bool) -> Result<(), Failure> {
    let dir = place.dir(true)?;
    let bar = crate::config::progress_bar();
    let report = repair(&dir, dry_run, &mut |done, total| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
        true
    });
    bar.iter().for_each(ProgressBar::finish_and_clear);
    let report = report.map_err(|error| Failure::Failed(error.to_string()))?;
    let mut output = Output::open(None)?;
    if place.json {
        json(&report, &mut output)?;
    } else {
        let style = if output.is_terminal() { style::on_stdout() } else { Style::PLAIN };
        show_repair(&report, &dir, dry_run, style, &mut output).map_err(Failure::writing("standard output"))?;
    }
    output.finish()?;
    if let Some(made) = report.catalogue.as_ref().filter(|made| made.batches + made.unnamed > 0) {
        let (batches, unnamed) = (made.batches, made.unnamed);
        return Err(Failure::Failed(format!(
            "{batches} batches and {unnamed} single readings of the journal are quarantined"
        )));
    }
    match report.lost() {
        0 => Ok(()),
        lost => Err(Failure::Failed(format!("{lost} readings and windows could not be read"))),
    }
}

fn show_repair(
    report: &RepairReport,
    dir: &Path,
    dry_run: bool,
    style: Style,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let below = |path: &Path| path.strip_prefix(dir).unwrap_or(path).display().to_string();
    if let Some(made) = &report.catalogue {
        writeln!(out, "{} catalogue.redb: {}", style.error("damaged"), made.problem)?;
        let verb = if dry_run { "can be made" } else { "was made" };
        writeln!(
            out,
            "a new one {verb} from {} files with {} readings of {} sensors; {} batches and {} single readings were in the journal",
            made.blocks, made.readings, made.sensors, made.batches, made.unnamed
        )?;
        for path in &made.damaged_copies {
            writeln!(out, "damaged file moved to {}", below(path))?;
        }
    }
    for file in &report.files {
        write!(out, "{} {}: {}; ", style.error("damaged"), below(&file.path), file.problem)?;
        let keeps = if dry_run { "rows can be kept" } else { "rows kept" };
        write!(out, "{} of {} {keeps}", file.kept, file.rows)?;
        match (&file.damaged_copy, &file.note) {
            (Some(copy), _) => writeln!(out, ", damaged file moved to {}", below(copy))?,
            (None, Some(note)) => writeln!(out, ", {note}")?,
            (None, None) => writeln!(out)?,
        }
    }
    match report.files.len() {
        0 if report.catalogue.is_some() => Ok(()),
        0 => writeln!(out, "nothing is damaged"),
        count => writeln!(out, "{count} files, {} rows lost", report.lost()),
    }
}

fn restore_store(backup: &Path, dir: &Path, as_json: bool) -> Result<(), Failure> {
    let bar = crate::config::progress_bar();
    let restored = restore(backup, dir, &mut |done, total| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.iter().for_each(ProgressBar::finish_and_clear);
    let restored = restored.map_err(Failure::Failed)?;
    let holdings = holdings(dir).map_err(|error| Failure::Failed(error.to_string()))?;
    let made_at = Timestamp(restored.manifest.made_at).to_string();
    let mut output = Output::open(None)?;
    if as_json {
        let summary = serde_json::json!({ "made_at": made_at, "holds": holdings, "damaged": restored.damaged });
        json(&summary, &mut output)?;
    } else {
        let style = if output.is_terminal() { style::on_stdout() } else { Style::PLAIN };
        let say = Failure::writing("standard output");
        show_holdings(&holdings, style, &mut output).map_err(&say)?;
        writeln!(output, "restored to {}: everything of before {made_at}", dir.display()).map_err(&say)?;
        for name in &restored.damaged {
            writeln!(output, "{} {name}: missing or damaged in the backup", style.error("damaged")).map_err(&say)?;
        }
    }
    output.finish()?;
    match restored.damaged.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} files could not be restored; run `wholegrain store repair`"))),
    }
}

fn json(value: &impl serde::Serialize, output: &mut Output) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(error.to_string()))?;
    writeln!(output, "{text}").map_err(Failure::writing("standard output"))
}

fn show(report: &VerifyReport, dir: &Path, style: Style, out: &mut impl Write) -> std::io::Result<()> {
    let remarkable = |file: &&FileReport| !file.problems.is_empty() || file.note.is_some();
    for file in report.files.iter().filter(remarkable) {
        let path = file.path.strip_prefix(dir).unwrap_or(&file.path).display();
        for problem in &file.problems {
            writeln!(out, "{} {path}: {problem}", style.error("damaged"))?;
        }
        if let Some(note) = &file.note {
            writeln!(out, "note    {path}: {note}")?;
        }
    }
    for lost in &report.lost {
        let agents = if lost.agents.is_empty() { "unknown".to_owned() } else { lost.agents.join(" ") };
        writeln!(out, "{} {}: {}; agents: {agents}", style.error("lost   "), lost.id, lost.sentence())?;
    }
    let mut table = Table::new(&["kind", ">files", ">bytes", ">rows", ">damaged"]);
    let kinds = [
        (FileKind::Catalogue, "catalogue"),
        (FileKind::Journal, "journal"),
        (FileKind::Block, "blocks"),
        (FileKind::Tier, "tiers"),
        (FileKind::Unknown, "unknown"),
    ];
    for (kind, name) in kinds {
        let files: Vec<&FileReport> = report.files.iter().filter(|file| file.kind == kind).collect();
        if files.is_empty() {
            continue;
        }
        let damaged = files.iter().filter(|file| !file.problems.is_empty()).count();
        table.row(vec![
            name.to_owned(),
            files.len().to_string(),
            files.iter().map(|file| file.bytes).sum::<u64>().to_string(),
            files.iter().map(|file| file.rows).sum::<u64>().to_string(),
            damaged.to_string(),
        ]);
    }
    table.write(style, out)
}

fn stats(place: &StoreLocation) -> Result<(), Failure> {
    let dir = place.dir(false)?;
    let holdings = holdings(&dir).map_err(|error| Failure::Failed(error.to_string()))?;
    let mut output = Output::open(None)?;
    if place.json {
        json(&holdings, &mut output)?;
    } else {
        let style = if output.is_terminal() { style::on_stdout() } else { Style::PLAIN };
        show_holdings(&holdings, style, &mut output).map_err(Failure::writing("standard output"))?;
    }
    output.finish()
}

fn show_holdings(holdings: &StoredFiles, style: Style, out: &mut impl Write) -> std::io::Result<()> {
    let mut table = Table::new(&["what", ">files", ">bytes", ">rows", ">bytes/row", "from", "to"]);
    for (name, holding) in &holdings.groups {
        let (first, last) = holding.times.unwrap_or_default();
        table.row(vec![
            name.clone(),
            holding.files.to_string(),
            holding.bytes.to_string(),
            holding.rows.to_string(),
            format!("{:.3}", holding.bytes as f64 / holding.rows.max(1) as f64),
            Timestamp(first).to_string(),
            Timestamp(last).to_string(),
        ]);
    }
    table.write(style, out)?;
    writeln!(out, "{} sensors, {} bytes in the journal", holdings.sensors, holdings.journal_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_comes_first_and_everything_is_counted() {
        let file = |path: &str, kind, problems: &[&str], note: Option<&str>| FileReport {
            path: PathBuf::from(path),
            kind,
            bytes: 10,
            rows: 3,
            problems: problems.iter().map(|text| (*text).to_owned()).collect(),
            note: note.map(str::to_owned),
        };
        let report = VerifyReport {
            files: vec![
                file("/s/catalogue.redb", FileKind::Catalogue, &[], None),
                file("/s/blocks/a", FileKind::Block, &["it is missing"], None),
                file("/s/blocks/b", FileKind::Block, &[], Some("replaced")),
            ],
            lost: Vec::new(),
        };
        let mut out = Vec::new();
        show(&report, Path::new("/s"), Style::PLAIN, &mut out).unwrap();
        let expected = "\
damaged blocks/a: it is missing
note    blocks/b: replaced
kind       files  bytes  rows  damaged
catalogue      1     10     3        0
blocks         2     20     6        1
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
