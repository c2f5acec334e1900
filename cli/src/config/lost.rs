//! `wholegrain config lost`: acknowledged readings that the journal has lost, until somebody acknowledges that.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::data::{Json, text, value, write};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::table::Table;

const PATH: &str = "/api/v1/data/lost";

pub const EXAMPLES: &str = "\
A damaged disk can take readings from the journal that their senders were told are stored. How many, of which times and whose is on record, and answers over
these times warn of it and end with exit code 4, until an administrator acknowledges it.

Examples:
  wholegrain config lost
  wholegrain config lost --acknowledge 0000000012-68
  wholegrain config lost --acknowledge-all --json";

#[derive(Args)]
pub struct LostArgs {
    /// Acknowledge this loss; may be given several times
    #[arg(long, value_name = "ID", conflicts_with = "acknowledge_all")]
    acknowledge: Vec<String>,
    /// Acknowledge all that are on record
    #[arg(long)]
    acknowledge_all: bool,
    #[command(flatten)]
    json: Json,
}

/// Lists what is on record, after what is to be acknowledged has been.
pub fn run(args: &LostArgs, server: &Connection) -> Result<(), Failure> {
    let answer = match (args.acknowledge_all, &args.acknowledge[..]) {
        (true, _) => server.work("POST", PATH, &json!({ "all": true }).to_string())?,
        (false, []) => server.get(PATH, &[], false)?,
        (false, ids) => server.work("POST", PATH, &json!({ "ids": ids }).to_string())?,
    };
    let answer = value(answer)?;
    write(&args.json, &answer, |style, out| {
        let lost = answer["lost"].as_array().map_or(&[][..], Vec::as_slice);
        if lost.is_empty() {
            return writeln!(out, "nothing is on record as lost");
        }
        let mut table = Table::new(&["id", ">readings", "from", "to", "agents", "found"]);
        for lost in lost {
            let readings = if lost["readings"].is_null() { "unknown".to_owned() } else { text(&lost["readings"]) };
            table.row(vec![
                text(&lost["id"]),
                readings,
                text(&lost["from"]),
                text(&lost["to"]),
                agents(lost),
                text(&lost["found"]),
            ]);
        }
        table.write(style, out)
    })
}

fn agents(lost: &Value) -> String {
    let mut names: Vec<String> = lost["agents"].as_array().into_iter().flatten().map(text).collect();
    if lost["others"] == true {
        names.push(if names.is_empty() { "unknown".to_owned() } else { "others".to_owned() });
    }
    names.join(" ")
}
