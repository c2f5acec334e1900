//! `wholegrain config retention`, `delete`, `compact`, `verify`, `repair`, `stats` and `backup`: the care of what the server holds.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use wholegrain_server::backup::{BackupReport, held_in, take_into, take_tar};

use super::lost;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::{LENGTHS, PATTERNS, TIMES};
use crate::output::Output;
use crate::style::{self, Style};
use crate::table::Table;

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How often a work's progress is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(300);

const RETENTION: &str = "\
A rule that is set comes before those of server.toml, and before those that were set earlier; the first whose pattern matches a sensor counts.
Readings that a rule says are out are not shown any more at once; their files go soon after.

Examples:
  wholegrain config retention list
  wholegrain config retention set '/lrz/**/core/**' 30d --tier 1h=forever --dry-run
  wholegrain config retention set '/lrz/**/core/**' 30d --tier 1h=forever
  wholegrain config retention unset '/lrz/**/core/**'";

const DELETE: &str = "\
What is stored of the range is gone when the command ends, also from windows (where only windows are left, whole ones go); the disk's space comes back
soon after. Batches that agents send again do not bring it back. What arrives later is new, also within the range: data can be corrected by
deleting and importing.

Examples:
  wholegrain config delete '/lrz/sng/n01/**' --from 2026-01-30 --to 2026-01-31 --dry-run
  wholegrain config delete power --from -1h --to now --yes";

const WORK: &str = "\
It goes on at the server when this command is interrupted; --status says how far it is, --stop ends it where it is. One such work at a time.

Examples:
  wholegrain config compact
  wholegrain config verify --json
  wholegrain config repair --dry-run
  wholegrain config compact --status";

const STATS: &str = "\
Examples:
  wholegrain config stats
  wholegrain config stats '/lrz/**' --level 3 --json";

const BACKUP: &str = "\
The backup comes over the network to this machine and is checked against the server's checksums. Everything acknowledged before it began is in it.
Into a directory that holds an earlier backup only what is new is sent, and that one stays whole until the new one is. A name that ends
with .tar makes one file. `wholegrain store restore` brings a store back. The server's configuration and certificates are not in it.

Examples:
  wholegrain config backup /backup/wholegrain
  wholegrain config backup \"wholegrain-$(date +%F).tar\"
  wholegrain store restore /backup/wholegrain --dir /var/lib/wholegrain/store";

/// What concerns the data.
#[derive(Subcommand)]
pub enum DataCommand {
    /// How long readings are kept
    #[command(after_help = format!("{RETENTION}\n\n{PATTERNS}\n\n{LENGTHS}\n\n{EXIT_CODES}"))]
    Retention(RetentionArgs),
    /// Delete a range of time of chosen sensors
    #[command(after_help = format!("{DELETE}\n\n{PATTERNS}\n\n{TIMES}\n\n{EXIT_CODES}"))]
    Delete(DeleteArgs),
    /// Merge the files of each day into as few as there can be, now
    #[command(after_help = format!("{WORK}\n\n{EXIT_CODES}"))]
    Compact(WorkArgs),
    /// Read every file of the running server and compare it with its checksums; exit code 4 when something is damaged
    #[command(after_help = format!("{WORK}\n\n{EXIT_CODES}"))]
    Verify(WorkArgs),
    /// Keep of damaged files what can be read and set them aside; exit code 4 when something is lost
    #[command(after_help = format!("{WORK}\n\n{EXIT_CODES}"))]
    Repair(RepairArgs),
    /// Acknowledged readings that the journal has lost: list that, acknowledge it
    #[command(after_help = format!("{}\n\n{EXIT_CODES}", lost::EXAMPLES))]
    Lost(lost::LostArgs),
    /// Say what is stored, by sub-tree: sensors, rate, readings, bytes, oldest, newest
    #[command(after_help = format!("{STATS}\n\n{PATTERNS}\n\n{EXIT_CODES}"))]
    Stats(StatsArgs),
    /// Copy everything to this machine while the server goes on
    #[command(after_help = format!("{BACKUP}\n\n{EXIT_CODES}"))]
    Backup(BackupArgs),
}

/// How an answer is written.
#[derive(Args)]
pub(super) struct Json {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RetentionArgs {
    #[command(subcommand)]
    command: RetentionCommand,
}

#[derive(Subcommand)]
enum RetentionCommand {
    /// The rules in the order in which they count
    List(Json),
    /// Set a rule
    Set {
        /// Which sensors
        pattern: String,
        /// How long readings are kept, such as 30d, or forever
        keep: String,
        /// How long the windows of a tier are kept; those not named are kept as long as the readings
        #[arg(long = "tier", value_name = "TIER=LENGTH")]
        tiers: Vec<String>,
        /// Change nothing; say what would go
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Take a rule that was set away
    Unset {
        /// Its pattern
        pattern: String,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Args)]
pub struct DeleteArgs {
    /// Which sensors
    #[arg(value_name = "PATTERN", required = true)]
    patterns: Vec<String>,
    /// From when on
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: String,
    /// Until before when
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: String,
    /// Change nothing; say what would go
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Args)]
pub struct WorkArgs {
    /// Only say how far it is, or how the last one ended
    #[arg(long, conflicts_with = "stop")]
    status: bool,
    /// End it where it is
    #[arg(long)]
    stop: bool,
    /// Begin it and do not wait for its end
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    no_wait: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Args)]
pub struct RepairArgs {
    /// Change nothing; say what would be kept
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Args)]
pub struct StatsArgs {
    /// Which sensors [default: all]
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Levels of the sub-trees; 0: everything together
    #[arg(long, default_value_t = 1)]
    level: usize,
    #[command(flatten)]
    json: Json,
}

#[derive(Args)]
pub struct BackupArgs {
    /// A directory, or a file whose name ends with .tar
    #[arg(value_name = "DIR|FILE.tar")]
    to: PathBuf,
    #[command(flatten)]
    json: Json,
}

/// Runs the subcommand.
pub fn run(command: &DataCommand, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(client)?;
    match command {
        DataCommand::Retention(args) => retention(&args.command, &server),
        DataCommand::Delete(args) => delete(args, &server),
        DataCommand::Compact(args) => work("compact", false, args, &server),
        DataCommand::Verify(args) => work("verify", false, args, &server),
        DataCommand::Repair(args) => work("repair", args.dry_run, &args.work, &server),
        DataCommand::Lost(args) => lost::run(args, &server),
        DataCommand::Stats(args) => stats(args, &server),
        DataCommand::Backup(args) => backup(args, &server),
    }
}

pub(super) fn value(answer: crate::connection::Answer) -> Result<Value, Failure> {
    let bytes = answer.read(ANSWER_BYTES_MAX)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::Unreachable(format!("the server's answer cannot be read: {error}")))
}

/// Writes an answer as JSON, or as `show` does.
pub(super) fn write(
    json: &Json,
    value: &Value,
    show: impl FnOnce(Style, &mut Output) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut output = Output::open(None)?;
    let style = if output.is_terminal() { style::on_stdout() } else { Style::PLAIN };
    let written = if json.json { writeln!(output, "{value:#}") } else { show(style, &mut output) };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn retention(command: &RetentionCommand, server: &Connection) -> Result<(), Failure> {
    const PATH: &str = "/api/v1/data/retention";
    let (answer, json) = match command {
        RetentionCommand::List(json) => (server.get(PATH, &[], false)?, json),
        RetentionCommand::Set { pattern, keep, tiers, dry_run, json } => {
            let mut kept = serde_json::Map::new();
            for tier in tiers {
                let Some((tier, age)) = tier.split_once('=') else {
                    return Err(Failure::Usage(format!("--tier {tier:?} is no TIER=LENGTH, such as 1h=forever")));
                };
                kept.insert(tier.to_owned(), age.into());
            }
            let body = json!({ "pattern": pattern, "keep": keep, "tiers": kept }).to_string();
            let answer = server.work("PUT", &format!("{PATH}?try={}", u8::from(*dry_run)), &body)?;
            if *dry_run {
                let affected = value(answer)?;
                return write(json, &affected, |_, out| counts("would go", &affected, out));
            }
            (answer, json)
        }
        RetentionCommand::Unset { pattern, json } => (server.delete_with(PATH, &[("pattern", pattern.clone())])?, json),
    };
    let rules = value(answer)?;
    write(json, &rules, |style, out| {
        let mut table = Table::new(&["pattern", "readings", "windows", "source"]);
        for rule in rules["rules"].as_array().into_iter().flatten() {
            let tiers = rule["tiers"].as_object().into_iter().flatten();
            let tiers: Vec<String> = tiers.map(|(tier, age)| format!("{tier}: {}", text(age))).collect();
            let source = match rule["who"].as_str() {
                Some(who) => format!("set by {who} at {}", text(&rule["at"])),
                None => "server.toml".to_owned(),
            };
            table.row(vec![text(&rule["pattern"]), text(&rule["keep"]), tiers.join(", "), source]);
        }
        table.row(vec!["(others)".into(), text(&rules["default"]), String::new(), "server.toml".into()]);
        table.write(style, out)
    })
}

fn counts(what: &str, affected: &Value, out: &mut Output) -> std::io::Result<()> {
    let of = |name: &str| number(&affected[name]);
    write!(out, "{what}: {} readings of {} sensors", of("readings"), of("sensors"))?;
    if of("windows") > 0 {
        write!(out, ", {} windows without readings", of("windows"))?;
    }
    write!(out, ", about {} bytes in {} files", of("bytes"), of("files"))?;
    if let Some([first, last]) = affected["times"].as_array().map(Vec::as_slice) {
        write!(out, ", {} to {}", text(first), text(last))?;
    }
    writeln!(out)?;
    for path in affected["unreadable"].as_array().into_iter().flatten() {
        writeln!(out, "damaged, and may hold more: {}", text(path))?;
    }
    Ok(())
}

fn is_nothing(affected: &Value) -> bool {
    ["readings", "windows"].iter().all(|name| number(&affected[*name]) == 0)
}

fn delete(args: &DeleteArgs, server: &Connection) -> Result<(), Failure> {
    let body = json!({ "patterns": args.patterns, "from": args.from, "to": args.to }).to_string();
    let ask = |dry: bool| value(server.work("POST", &format!("/api/v1/data/delete?try={}", u8::from(dry)), &body)?);
    let nothing = || Failure::NothingMatched("nothing is stored of this range and these sensors".into());
    if !args.yes {
        let would = ask(true)?;
        if args.dry_run || is_nothing(&would) {
            write(&args.json, &would, |_, out| counts("would be deleted", &would, out))?;
            return if is_nothing(&would) { Err(nothing()) } else { Ok(()) };
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Usage(
                "deleting asks before it does so, and there is nobody to ask; see what would go with --dry-run, then add --yes"
                    .into(),
            ));
        }
        let say = |error: std::io::Error| Failure::Failed(format!("cannot ask: {error}"));
        let mut out = Output::open(None)?;
        counts("would be deleted", &would, &mut out).and_then(|()| out.flush()).map_err(say)?;
        eprint!("Delete it for good? [y/N] ");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(say)?;
        if !matches!(line.trim(), "y" | "Y" | "yes") {
            return Err(Failure::Usage("nothing was deleted".into()));
        }
    }
    let done = ask(false)?;
    write(&args.json, &done, |_, out| counts("deleted", &done, out))?;
    if is_nothing(&done) { Err(nothing()) } else { Ok(()) }
}

fn work(what: &str, dry_run: bool, args: &WorkArgs, server: &Connection) -> Result<(), Failure> {
    let path = format!("/api/v1/data/{what}");
    let state = if args.stop {
        value(server.delete_with(&path, &[])?)?
    } else if args.status {
        value(server.find(&path, &[])?)?
    } else {
        let query = if what == "repair" { format!("?try={}", u8::from(dry_run)) } else { String::new() };
        value(server.post(&format!("{path}{query}"))?)?
    };
    let state = if args.status || args.stop || args.no_wait { state } else { wait(&path, state, server)? };
    write(&args.json, &state, |style, out| show_work(what, &state, style, out))?;
    if let Some(error) = state["error"].as_str() {
        return Err(Failure::Failed(format!("{what} failed: {error}")));
    }
    match (what, number(&state["result"]["damaged"]), number(&state["result"]["lost"])) {
        ("verify", damaged, _) if damaged > 0 => Err(Failure::Failed(format!(
            "{damaged} files are damaged; `wholegrain config repair` keeps what can be read of them, or bring them back from a backup"
        ))),
        ("verify", _, lost) if lost > 0 => Err(Failure::Failed(format!(
            "the journal has lost acknowledged readings, {lost} times; `wholegrain config lost` lists and acknowledges that"
        ))),
        ("repair", _, lost) if lost > 0 => {
            Err(Failure::Failed(format!("{lost} readings and windows could not be read")))
        }
        _ => Ok(()),
    }
}

/// Waits for the end of a work, with a bar on a terminal.
fn wait(path: &str, mut state: Value, server: &Connection) -> Result<Value, Failure> {
    let bar = bar();
    while state["running"] == true {
        std::thread::sleep(LOOK_EVERY);
        state = value(server.get(path, &[], false)?)?;
        if let Some(bar) = &bar {
            bar.set_length(number(&state["total"]));
            bar.set_position(number(&state["done"]));
        }
    }
    bar.iter().for_each(ProgressBar::finish_and_clear);
    Ok(state)
}

pub fn bar() -> Option<ProgressBar> {
    let wanted = std::io::stderr().is_terminal();
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {elapsed}");
    wanted.then(|| match style {
        Ok(style) => ProgressBar::new(0).with_style(style),
        Err(_) => ProgressBar::new(0),
    })
}

fn show_work(what: &str, state: &Value, style: Style, out: &mut Output) -> std::io::Result<()> {
    let (begun, by) = (text(&state["begun"]), text(&state["by"]));
    if state["running"] == true {
        let (done, total) = (number(&state["done"]), number(&state["total"]));
        return writeln!(out, "{what} is going on since {begun}, begun by {by}: {done} of {total} bytes");
    }
    writeln!(out, "{what}, begun {begun} by {by}, ended {}", text(&state["ended"]))?;
    let result = &state["result"];
    for file in result["files"].as_array().into_iter().flatten() {
        let path = text(&file["path"]);
        for problem in file["problems"].as_array().into_iter().flatten() {
            writeln!(out, "{} {path}: {}", style.error("damaged"), text(problem))?;
        }
        if let Some(problem) = file["problem"].as_str() {
            write!(out, "{} {path}: {problem}; ", style.error("damaged"))?;
            write!(out, "{} of {} rows kept", number(&file["kept"]), number(&file["rows"]))?;
            writeln!(
                out,
                "{}",
                file["damaged_copy"].as_str().map(|aside| format!(", set aside as {aside}")).unwrap_or_default()
            )?;
        }
        if let Some(note) = file["note"].as_str() {
            writeln!(out, "note    {path}: {note}")?;
        }
    }
    for (kind, count) in result["counts"].as_object().into_iter().flatten() {
        let (files, damaged) = (number(&count["files"]), number(&count["damaged"]));
        writeln!(out, "{kind}: {files} files, {} bytes, {damaged} damaged", number(&count["bytes"]))?;
    }
    if let (Some([before, after]), Some([bytes, left])) =
        (result["blocks"].as_array().map(Vec::as_slice), result["bytes"].as_array().map(Vec::as_slice))
    {
        writeln!(out, "{} blocks are {} now, {} bytes are {}", text(before), text(after), text(bytes), text(left))?;
    }
    Ok(())
}

fn stats(args: &StatsArgs, server: &Connection) -> Result<(), Failure> {
    let mut parameters: Vec<(&str, String)> =
        args.patterns.iter().map(|pattern| ("pattern", pattern.clone())).collect();
    parameters.push(("level", args.level.to_string()));
    let stats = value(server.get_slowly("/api/v1/data/stats", &parameters)?)?;
    let rows = stats["subtrees"].as_array().cloned().unwrap_or_default();
    write(&args.json, &stats, |style, out| {
        let mut table = Table::new(&[
            "sub-tree",
            ">sensors",
            ">live",
            ">readings/s",
            ">readings",
            ">bytes",
            ">bytes/reading",
            "oldest",
            "newest",
        ]);
        for row in &rows {
            let (readings, bytes) = (number(&row["readings"]), number(&row["bytes"]));
            let times = row["times"].as_array().map(Vec::as_slice);
            let (first, last) =
                if let Some([first, last]) = times { (text(first), text(last)) } else { <(String, String)>::default() };
            table.row(vec![
                text(&row["path"]),
                text(&row["sensors"]),
                text(&row["live"]),
                format!("{:.1}", row["per_s"].as_f64().unwrap_or(0.0)),
                readings.to_string(),
                bytes.to_string(),
                if readings > 0 { format!("{:.2}", bytes as f64 / readings as f64) } else { String::new() },
                first,
                last,
            ]);
        }
        table.write(style, out)?;
        let of = |name: &str| number(&stats["store"][name]);
        writeln!(
            out,
            "{} sensors, {} readings in {} blocks ({} bytes), {} tiers ({} bytes), {} bytes of journal, {} jobs",
            of("sensors"),
            of("readings"),
            of("blocks"),
            of("block_bytes"),
            of("tiers"),
            of("tier_bytes"),
            of("journal_bytes"),
            of("jobs")
        )?;
        match of("damaged") {
            0 => Ok(()),
            damaged => writeln!(out, "{} {damaged} blocks; see `wholegrain config verify`", style.error("damaged:")),
        }
    })?;
    if rows.is_empty() { Err(Failure::NothingMatched("no sensor matches".into())) } else { Ok(()) }
}

fn backup(args: &BackupArgs, server: &Connection) -> Result<(), Failure> {
    let is_tar = args.to.extension().is_some_and(|ending| ending == "tar") && !args.to.is_dir();
    let held = if is_tar { Vec::new() } else { held_in(&args.to).map_err(Failure::Failed)? };
    let lines: String = held.iter().map(|file| format!("{} {} {}\n", file.name, file.bytes, file.sum)).collect();
    let stream = server.work("POST", "/api/v1/data/backup", &lines)?.into_reader();
    let bar = bar();
    let mut progress = |done: u64, total: u64| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    let taken = if is_tar {
        take_tar(stream, &args.to, &mut progress)
    } else {
        take_into(stream, &args.to, &held, &mut progress)
    };
    bar.iter().for_each(ProgressBar::finish_and_clear);
    let taken = taken.map_err(Failure::Failed)?;
    let BackupReport { manifest, files, bytes, damaged } = &taken;
    let told = json!({
        "to": args.to, "made_at": wholegrain_model::Timestamp(manifest.made_at).to_string(), "files": manifest.files.len(),
        "bytes": manifest.bytes(), "received_files": files, "received_bytes": bytes, "damaged": manifest.damaged,
        "damaged_now": damaged,
    });
    write(&args.json, &told, |style, out| {
        writeln!(
            out,
            "{}: {} files, {} bytes, of which {files} files and {bytes} bytes came now; everything of before {} is in it",
            args.to.display(),
            manifest.files.len(),
            manifest.bytes(),
            text(&told["made_at"])
        )?;
        let all = manifest.damaged.iter().chain(damaged.iter().filter(|name| !manifest.damaged.contains(name)));
        for name in all {
            writeln!(out, "{} {name}: damaged at the server, and not in the backup", style.error("damaged"))?;
        }
        Ok(())
    })?;
    if manifest.damaged.is_empty() && damaged.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed("some files are damaged at the server; see `wholegrain config verify`".into()))
}
