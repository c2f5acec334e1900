//! `wholegrain config delete`: deletes readings of a range of time.

use std::io::{self, Write};

use clap::Args;
use wholegrain_api::{DeleteReadings, DeletedReadings, paths};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::{JsonOption, Output, confirm, print};

pub const HELP: &str = "\
The readings are deleted when the command ends, also from the windows of tiers (where only windows are left, whole ones); the space on disk
becomes free soon after. Batches that agents send again stay deleted. Later readings are new, also within the range: data can be corrected by
deleting and importing.

Examples:
  wholegrain config delete '/lrz/sng/n01/**' --from 2026-01-30 --to 2026-01-31 --dry-run
  wholegrain config delete power --from -1h --to now --yes";

#[derive(Args)]
pub struct DeleteArgs {
    /// Patterns of the sensors
    #[arg(value_name = "PATTERN", required = true)]
    patterns: Vec<String>,
    /// Start of the range, included
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: String,
    /// End of the range, excluded
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: String,
    /// Change nothing; print what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Delete without a confirmation
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    #[command(flatten)]
    json: JsonOption,
}

pub fn run(args: &DeleteArgs, server: &Connection) -> Result<(), Failure> {
    let body = DeleteReadings { patterns: args.patterns.clone(), from: args.from.clone(), to: args.to.clone() };
    let request = |dry_run: bool| -> Result<DeletedReadings, Failure> {
        server.post(paths::DELETE).query("try", u8::from(dry_run)).json(&body).slow().send()?.json()
    };
    let nothing = || Failure::NothingMatched("no readings of these sensors are stored in this range".into());
    if !args.yes {
        let would = request(true)?;
        if args.dry_run || is_nothing(&would) {
            args.json.print(&would, |_, out| print_deleted("would be deleted", &would, out))?;
            return if is_nothing(&would) { Err(nothing()) } else { Ok(()) };
        }
        print(|_, out| print_deleted("would be deleted", &would, out))?;
        let advice =
            "deleting needs a confirmation, and standard input is not a terminal; check with --dry-run, then add --yes";
        if !confirm("Delete these readings?", advice)? {
            return Err(Failure::Usage("nothing was deleted".into()));
        }
    }
    let deleted = request(false)?;
    args.json.print(&deleted, |_, out| print_deleted("deleted", &deleted, out))?;
    if is_nothing(&deleted) { Err(nothing()) } else { Ok(()) }
}

/// Writes the counts after `what`, such as "deleted".
pub fn print_deleted(what: &str, deleted: &DeletedReadings, out: &mut Output) -> io::Result<()> {
    let DeletedReadings { sensors, readings, bytes, windows, files, times, unreadable } = deleted;
    write!(out, "{what}: {readings} readings of {sensors} sensors")?;
    if *windows > 0 {
        write!(out, ", {windows} windows without readings")?;
    }
    write!(out, ", about {bytes} bytes in {files} files")?;
    if let Some((first, last)) = times {
        write!(out, ", {first} to {last}")?;
    }
    writeln!(out)?;
    unreadable.iter().try_for_each(|path| writeln!(out, "damaged, may hold more: {path}"))
}

fn is_nothing(deleted: &DeletedReadings) -> bool {
    deleted.readings == 0 && deleted.windows == 0
}
