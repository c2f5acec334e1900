//! `wholegrain config backup`: copies the running server's store to this machine.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use wholegrain_api::{UtcTime, paths};
use wholegrain_server::backup::{BackupReport, held_in, take_into, take_tar};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::JsonOption;
use crate::progress::with_byte_bar;

pub const HELP: &str = "\
The backup is sent over the network and checked against the server's checksums. It holds all readings that were acknowledged before it began.
Into a directory with an earlier backup only new files are sent, and the earlier backup stays intact until the new one is complete. A name that
ends with .tar makes one file. `wholegrain store restore` restores a store. The backup does not hold the server's configuration and certificates.

Examples:
  wholegrain config backup /backup/wholegrain
  wholegrain config backup \"wholegrain-$(date +%F).tar\"
  wholegrain store restore /backup/wholegrain --dir /var/lib/wholegrain/store";

#[derive(Args)]
pub struct BackupArgs {
    /// A directory, or a file whose name ends with .tar
    #[arg(value_name = "DIR|FILE.tar")]
    to: PathBuf,
    #[command(flatten)]
    json: JsonOption,
}

/// The result as `--json` prints it.
#[derive(Serialize)]
struct BackupSummary<'a> {
    to: &'a PathBuf,
    made_at: UtcTime,
    files: usize,
    bytes: u64,
    received_files: u64,
    received_bytes: u64,
    /// Files that were damaged before.
    damaged: &'a [String],
    damaged_now: &'a [String],
}

pub fn run(args: &BackupArgs, server: &Connection) -> Result<(), Failure> {
    let is_tar = args.to.extension().is_some_and(|ending| ending == "tar") && !args.to.is_dir();
    let held = if is_tar { Vec::new() } else { held_in(&args.to).map_err(Failure::Failed)? };
    let lines: String = held.iter().map(|file| format!("{} {} {}\n", file.name, file.bytes, file.sum)).collect();
    let stream = server.post(paths::BACKUP).body("text/plain", lines.into_bytes()).slow().send()?.into_reader();
    let report = with_byte_bar(|progress| match is_tar {
        true => take_tar(stream, &args.to, progress),
        false => take_into(stream, &args.to, &held, progress),
    });
    let BackupReport { manifest, files, bytes, damaged } = &report.map_err(Failure::Failed)?;
    let summary = BackupSummary {
        to: &args.to,
        made_at: UtcTime(manifest.made_at),
        files: manifest.files.len(),
        bytes: manifest.bytes(),
        received_files: *files,
        received_bytes: *bytes,
        damaged: &manifest.damaged,
        damaged_now: damaged,
    };
    args.json.print(&summary, |style, out| {
        let (to, made_at) = (args.to.display(), summary.made_at);
        let (all_files, all_bytes) = (summary.files, summary.bytes);
        writeln!(
            out,
            "{to}: {all_files} files, {all_bytes} bytes, of which {files} files and {bytes} bytes are new; all readings before {made_at}"
        )?;
        let all = manifest.damaged.iter().chain(damaged.iter().filter(|name| !manifest.damaged.contains(name)));
        for name in all {
            writeln!(out, "{} {name}: damaged at the server, not in the backup", style.error("damaged"))?;
        }
        Ok(())
    })?;
    if manifest.damaged.is_empty() && damaged.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed("some files are damaged at the server; see `wholegrain config verify`".into()))
}
