//! `wholegrain store`: checks, describes, repairs and restores a store on this machine's disk.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use wholegrain_model::Timestamp;
use wholegrain_server::ServerConfig;
use wholegrain_server::backup::restore;
use wholegrain_server::repair::{RepairReport, repair};
use wholegrain_server::verify::{FileKind, FileReport, StoredFiles, VerifyReport, holdings, verify};

use crate::failure::Failure;
use crate::output::JsonOption;
use crate::output::style::Style;
use crate::output::table::Table;
use crate::progress::with_byte_bar;

const EXAMPLES: &str = "\
Examples:
  wholegrain store verify --dir /var/lib/wholegrain/store
  wholegrain store verify --config /etc/wholegrain/server.toml --json
  wholegrain store stats --dir var/server/store
  wholegrain store repair --dir /var/lib/wholegrain/store --dry-run
  wholegrain store restore /backup/wholegrain --dir /var/lib/wholegrain/store";

/// Check, describe, repair and restore a store on this machine's disk
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Compare every file with its checksums; exit code 4 if any is damaged. Changes nothing; the server may run
    #[command(after_help = EXAMPLES)]
    Verify(StoreLocation),
    /// Show files, bytes, readings and the range of time. The server may run
    #[command(after_help = EXAMPLES)]
    Stats(StoreLocation),
    /// Keep the readable part of damaged files and move them to damaged/; the server must not run. Exit code 4 if readings are lost
    #[command(after_help = EXAMPLES)]
    Repair {
        #[command(flatten)]
        place: StoreLocation,
        /// Change nothing; print what would be kept
        #[arg(long)]
        dry_run: bool,
    },
    /// Restore a backup into an empty directory and print its statistics
    #[command(after_help = EXAMPLES)]
    Restore {
        /// The backup: a directory, or a tar file
        #[arg(value_name = "DIR|FILE.tar")]
        backup: PathBuf,
        /// The directory for the store; it must be empty or missing
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        json: JsonOption,
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
    #[command(flatten)]
    json: JsonOption,
}

impl StoreLocation {
    fn dir(&self, may_lack_catalogue: bool) -> Result<PathBuf, Failure> {
        let dir = match (&self.dir, &self.config) {
            (Some(dir), _) => dir.clone(),
            (None, Some(path)) => ServerConfig::load(path).map_err(Failure::usage)?.store.dir,
            (None, None) => return Err(Failure::Usage("give --dir or --config".into())),
        };
        if dir.join("catalogue.redb").exists() || may_lack_catalogue && dir.join("blocks").exists() {
            return Ok(dir);
        }
        Err(Failure::Usage(format!(
            "{} holds no store: it has no catalogue.redb, or you may not read it",
            dir.display()
        )))
    }
}

pub fn run(args: &StoreArgs) -> Result<(), Failure> {
    match &args.command {
        StoreCommand::Verify(place) => verify_store(place),
        StoreCommand::Stats(place) => stats(place),
        StoreCommand::Repair { place, dry_run } => repair_store(place, *dry_run),
        StoreCommand::Restore { backup, dir, json } => restore_store(backup, dir, json),
    }
}

fn verify_store(place: &StoreLocation) -> Result<(), Failure> {
    let dir = place.dir(false)?;
    let report = with_byte_bar(|progress| verify(&dir, progress)).map_err(Failure::failed)?;
    place.json.print(&report, |style, out| show(&report, &dir, style, out))?;
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
    let report = with_byte_bar(|progress| {
        repair(&dir, dry_run, &mut |done, total| {
            progress(done, total);
            true
        })
    });
    let report = report.map_err(Failure::failed)?;
    place.json.print(&report, |style, out| show_repair(&report, &dir, dry_run, style, out))?;
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

fn restore_store(backup: &Path, dir: &Path, json: &JsonOption) -> Result<(), Failure> {
    let restored = with_byte_bar(|progress| restore(backup, dir, progress)).map_err(Failure::Failed)?;
    let holdings = holdings(dir).map_err(Failure::failed)?;
    let made_at = Timestamp(restored.manifest.made_at).to_string();
    let summary = serde_json::json!({ "made_at": made_at, "holds": holdings, "damaged": restored.damaged });
    json.print(&summary, |style, out| {
        show_holdings(&holdings, style, out)?;
        writeln!(out, "restored to {}: all readings before {made_at}", dir.display())?;
        restored
            .damaged
            .iter()
            .try_for_each(|name| writeln!(out, "{} {name}: missing or damaged in the backup", style.error("damaged")))
    })?;
    match restored.damaged.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} files could not be restored; run `wholegrain store repair`"))),
    }
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
    let kinds = [
        (FileKind::Catalogue, "catalogue"),
        (FileKind::Journal, "journal"),
        (FileKind::Block, "blocks"),
        (FileKind::Tier, "tiers"),
        (FileKind::Unknown, "unknown"),
    ];
    let files_of = |kind| report.files.iter().filter(move |file| file.kind == kind);
    let sum = |kind, count: fn(&FileReport) -> u64| files_of(kind).map(count).sum::<u64>().to_string();
    let table = Table::of(
        kinds.iter().filter(|(kind, _)| files_of(*kind).next().is_some()),
        &[
            ("KIND", &|(_, name)| (*name).to_owned()),
            (">FILES", &|(kind, _)| sum(*kind, |_| 1)),
            (">BYTES", &|(kind, _)| sum(*kind, |file| file.bytes)),
            (">ROWS", &|(kind, _)| sum(*kind, |file| file.rows)),
            (">DAMAGED", &|(kind, _)| sum(*kind, |file| u64::from(!file.problems.is_empty()))),
        ],
    );
    table.write(style, out)
}

fn stats(place: &StoreLocation) -> Result<(), Failure> {
    let holdings = holdings(&place.dir(false)?).map_err(Failure::failed)?;
    place.json.print(&holdings, |style, out| show_holdings(&holdings, style, out))
}

fn show_holdings(holdings: &StoredFiles, style: Style, out: &mut impl Write) -> std::io::Result<()> {
    let groups: Vec<_> = holdings.groups.iter().collect();
    let table = Table::of(
        &groups,
        &[
            ("FILES OF", &|(name, _)| name.to_string()),
            (">FILES", &|(_, group)| group.files.to_string()),
            (">BYTES", &|(_, group)| group.bytes.to_string()),
            (">ROWS", &|(_, group)| group.rows.to_string()),
            (">BYTES/ROW", &|(_, group)| format!("{:.3}", group.bytes as f64 / group.rows.max(1) as f64)),
            ("FROM", &|(_, group)| Timestamp(group.times.unwrap_or_default().0).to_string()),
            ("TO", &|(_, group)| Timestamp(group.times.unwrap_or_default().1).to_string()),
        ],
    );
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
KIND       FILES  BYTES  ROWS  DAMAGED
catalogue      1     10     3        0
blocks         2     20     6        1
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
