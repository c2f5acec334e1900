//! `wholegrain config lost`: lists and acknowledges losses of acknowledged readings.

use std::io::Write;

use clap::Args;
use wholegrain_api::{AcknowledgeLosses, LossList, ReadingLoss, paths};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::JsonOption;
use crate::output::table::Table;

pub const HELP: &str = "\
A damaged disk can destroy acknowledged readings in the journal. The server records their number, times and agents. Responses over these times
warn of the loss, and commands end with exit code 4, until an administrator acknowledges it.

Examples:
  wholegrain config lost
  wholegrain config lost --acknowledge 0000000012-68
  wholegrain config lost --acknowledge-all --json";

#[derive(Args)]
pub struct LostArgs {
    /// Acknowledge this loss; can be repeated
    #[arg(long, value_name = "ID", conflicts_with = "acknowledge_all")]
    acknowledge: Vec<String>,
    /// Acknowledge all recorded losses
    #[arg(long)]
    acknowledge_all: bool,
    #[command(flatten)]
    json: JsonOption,
}

/// Acknowledges the named losses, then lists the rest.
pub fn run(args: &LostArgs, server: &Connection) -> Result<(), Failure> {
    let request = match (args.acknowledge_all, &args.acknowledge[..]) {
        (false, []) => server.get(paths::LOST),
        (all, ids) => server.post(paths::LOST).json(&AcknowledgeLosses { ids: ids.to_vec(), all }).slow(),
    };
    let list: LossList = request.send()?.json()?;
    args.json.print(&list, |style, out| {
        if list.lost.is_empty() {
            return writeln!(out, "no losses are recorded");
        }
        let table = Table::of(
            &list.lost,
            &[
                ("ID", &|loss| loss.id.clone()),
                (">READINGS", &|loss| loss.readings.map_or("unknown".to_owned(), |readings| readings.to_string())),
                ("FROM", &|loss| loss.from.to_string()),
                ("TO", &|loss| loss.to.to_string()),
                ("AGENTS", &agents),
                ("FOUND", &|loss| loss.found.to_string()),
            ],
        );
        table.write(style, out)
    })
}

fn agents(loss: &ReadingLoss) -> String {
    let mut names = loss.agents.clone();
    if loss.others {
        names.push(if names.is_empty() { "unknown".to_owned() } else { "others".to_owned() });
    }
    names.join(" ")
}
