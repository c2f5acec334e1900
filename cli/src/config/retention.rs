//! `wholegrain config retention`: how long readings are kept.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use wholegrain_api::{DeletedReadings, RetentionList, SetRetention, paths};

use super::delete::print_deleted;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::JsonOption;
use crate::output::table::Table;

pub const HELP: &str = "\
A rule that is set takes precedence over the rules of server.toml and over earlier ones; the first rule whose pattern matches a sensor applies.
Readings beyond their retention disappear from responses at once; their files are removed soon after.

Examples:
  wholegrain config retention list
  wholegrain config retention set '/lrz/**/core/**' 30d --tier 1h=forever --dry-run
  wholegrain config retention set '/lrz/**/core/**' 30d --tier 1h=forever
  wholegrain config retention unset '/lrz/**/core/**'";

#[derive(Args)]
pub struct RetentionArgs {
    #[command(subcommand)]
    command: RetentionCommand,
}

#[derive(Subcommand)]
enum RetentionCommand {
    /// List the rules in their order of precedence
    #[command(after_help = "Examples:\n  wholegrain config retention list\n  wholegrain config retention list --json")]
    List(JsonOption),
    /// Set a retention rule
    #[command(after_help = "\
Examples:
  wholegrain config retention set '/lrz/**/core/**' 30d --tier 1h=forever --dry-run
  wholegrain config retention set '/lrz/**' forever")]
    Set {
        /// The pattern of the sensors
        #[arg(value_name = "PATTERN")]
        pattern: String,
        /// How long readings are kept, such as 30d, or forever
        keep: String,
        /// How long the windows of a tier are kept; other tiers are kept as long as the readings
        #[arg(long = "tier", value_name = "TIER=LENGTH")]
        tiers: Vec<String>,
        /// Change nothing; print what would be dropped
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        json: JsonOption,
    },
    /// Remove a rule that was set
    #[command(after_help = "Examples:\n  wholegrain config retention unset '/lrz/**/core/**'")]
    Unset {
        /// The pattern of the rule
        pattern: String,
        #[command(flatten)]
        json: JsonOption,
    },
}

pub fn run(args: &RetentionArgs, server: &Connection) -> Result<(), Failure> {
    let (request, json) = match &args.command {
        RetentionCommand::List(json) => (server.get(paths::RETENTION), json),
        RetentionCommand::Set { pattern, keep, tiers, dry_run, json } => {
            let body = SetRetention { pattern: pattern.clone(), keep: keep.clone(), tiers: ages(tiers)? };
            let request = server.put(paths::RETENTION).query("try", u8::from(*dry_run)).json(&body).slow();
            if *dry_run {
                let dropped: DeletedReadings = request.send()?.json()?;
                return json.print(&dropped, |_, out| print_deleted("would be dropped", &dropped, out));
            }
            (request, json)
        }
        RetentionCommand::Unset { pattern, json } => (server.delete(paths::RETENTION).query("pattern", pattern), json),
    };
    let list: RetentionList = request.find()?.json()?;
    let mut table = Table::new(&["PATTERN", "READINGS", "WINDOWS", "SOURCE"]);
    for rule in &list.rules {
        let tiers: Vec<String> = rule.tiers.iter().map(|(tier, age)| format!("{tier}: {age}")).collect();
        let source = match (&rule.who, rule.at) {
            (Some(who), Some(at)) => format!("set by {who} at {at}"),
            _ => "server.toml".to_owned(),
        };
        table.row(vec![rule.pattern.clone(), rule.keep.clone(), tiers.join(", "), source]);
    }
    table.row(vec!["(others)".into(), list.default.clone(), String::new(), "server.toml".into()]);
    json.print(&list, |style, out| table.write(style, out))
}

fn ages(tiers: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let age = |tier: &String| match tier.split_once('=') {
        Some((tier, age)) => Ok((tier.to_owned(), age.to_owned())),
        None => Err(Failure::Usage(format!("--tier {tier:?}: expected TIER=LENGTH, such as 1h=forever"))),
    };
    tiers.iter().map(age).collect()
}
