//! `wholegrain config compact`, `verify` and `repair`: long-running maintenance of the running server's store.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use wholegrain_api::{MaintenanceKind, MaintenanceResult, MaintenanceStatus};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::style::Style;
use crate::output::{JsonOption, Output};
use crate::progress::with_byte_bar;

/// The interval of requests for the progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(300);

pub const HELP: &str = "\
The task continues at the server if this command is interrupted; --status prints its progress, --stop cancels it. One task runs at a time.

Examples:
  wholegrain config compact
  wholegrain config verify --json
  wholegrain config repair --dry-run
  wholegrain config compact --status";

#[derive(Args)]
pub struct MaintenanceArgs {
    /// Print the progress, or the result of the last task
    #[arg(long, conflicts_with = "stop")]
    status: bool,
    /// Cancel the running task
    #[arg(long)]
    stop: bool,
    /// Begin the task and do not wait for its end
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    no_wait: bool,
    #[command(flatten)]
    json: JsonOption,
}

#[derive(Args)]
pub struct RepairArgs {
    /// Change nothing; print what would be kept
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub common: MaintenanceArgs,
}

/// Runs the subcommand of this kind.
pub fn run(kind: MaintenanceKind, dry_run: bool, args: &MaintenanceArgs, server: &Connection) -> Result<(), Failure> {
    let request = if args.stop {
        server.delete(kind.path())
    } else if args.status {
        server.get(kind.path())
    } else if kind == MaintenanceKind::Repair {
        server.post(kind.path()).query("try", u8::from(dry_run))
    } else {
        server.post(kind.path())
    };
    let response = if args.stop || args.status { request.find()? } else { request.send()? };
    let mut status: MaintenanceStatus = response.json()?;
    if !args.status && !args.stop && !args.no_wait {
        status = wait(status, server)?;
    }
    args.json.print(&status, |style, out| print_status(&status, style, out))?;
    let name = kind.name();
    if let Some(error) = &status.error {
        return Err(Failure::Failed(format!("{name} failed: {error}")));
    }
    match &status.result {
        Some(MaintenanceResult::Verify(result)) if result.damaged > 0 => Err(Failure::Failed(format!(
            "{} files are damaged; `wholegrain config repair` keeps their readable part, or restore them from a backup",
            result.damaged
        ))),
        Some(MaintenanceResult::Verify(result)) if result.lost > 0 => Err(Failure::Failed(format!(
            "the journal has lost acknowledged readings, {} times; `wholegrain config lost` lists and acknowledges the losses",
            result.lost
        ))),
        Some(MaintenanceResult::Repair(result)) if result.lost > 0 => {
            Err(Failure::Failed(format!("{} readings and windows could not be read", result.lost)))
        }
        _ => Ok(()),
    }
}

/// Waits for the end of a task, with a progress bar on a terminal.
fn wait(mut status: MaintenanceStatus, server: &Connection) -> Result<MaintenanceStatus, Failure> {
    with_byte_bar(|progress| {
        while status.running {
            std::thread::sleep(PROGRESS_EVERY);
            status = server.get(status.kind.path()).send()?.json()?;
            progress(status.done, status.total);
        }
        Ok(status)
    })
}

fn print_status(status: &MaintenanceStatus, style: Style, out: &mut Output) -> io::Result<()> {
    let MaintenanceStatus { kind, begun, by, done, total, .. } = status;
    let name = kind.name();
    if status.running {
        return writeln!(out, "{name} is running since {begun}, begun by {by}: {done} of {total} bytes");
    }
    let ended = status.ended.map(|ended| ended.to_string()).unwrap_or_default();
    writeln!(out, "{name}, begun {begun} by {by}, ended {ended}")?;
    match &status.result {
        None => Ok(()),
        Some(MaintenanceResult::Compact(result)) => {
            let (blocks, bytes) = (result.blocks, result.bytes);
            writeln!(out, "blocks: {} before, {} now; bytes: {} before, {} now", blocks.0, blocks.1, bytes.0, bytes.1)
        }
        Some(MaintenanceResult::Verify(result)) => {
            for file in &result.files {
                for problem in &file.problems {
                    writeln!(out, "{} {}: {problem}", style.error("damaged"), file.path)?;
                }
                print_note(&file.path, file.note.as_deref(), out)?;
            }
            result.counts.iter().try_for_each(|(kind, count)| {
                writeln!(out, "{kind}: {} files, {} bytes, {} damaged", count.files, count.bytes, count.damaged)
            })
        }
        Some(MaintenanceResult::Repair(result)) => result.files.iter().try_for_each(|file| {
            let copy = file.damaged_copy.as_ref().map(|copy| format!(", damaged file moved to {copy}"));
            writeln!(
                out,
                "{} {}: {}; {} of {} rows kept{}",
                style.error("damaged"),
                file.path,
                file.problem,
                file.kept,
                file.rows,
                copy.unwrap_or_default()
            )?;
            print_note(&file.path, file.note.as_deref(), out)
        }),
    }
}

fn print_note(path: &str, note: Option<&str>, out: &mut Output) -> io::Result<()> {
    note.map_or(Ok(()), |note| writeln!(out, "note    {path}: {note}"))
}
