//! `wholegrain config stats`: statistics of stored readings by subtree.

use std::io::Write;

use clap::Args;
use wholegrain_api::{StoreStatistics, paths};

use super::output::{JsonOption, print_as};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::table::Table;

pub const HELP: &str = "\
Examples:
  wholegrain config stats
  wholegrain config stats '/lrz/**' --level 3 --json";

#[derive(Args)]
pub struct StatsArgs {
    /// The sensors [default: all]
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    /// The number of levels of the subtrees; 0: all sensors together
    #[arg(long, default_value_t = 1)]
    level: usize,
    #[command(flatten)]
    json: JsonOption,
}

pub fn run(args: &StatsArgs, server: &Connection) -> Result<(), Failure> {
    let request =
        args.patterns.iter().fold(server.get(paths::STATISTICS), |request, pattern| request.query("pattern", pattern));
    let statistics: StoreStatistics = request.query("level", args.level).slow().send()?.json()?;
    let mut table = Table::new(&[
        "subtree",
        ">sensors",
        ">live",
        ">readings/s",
        ">readings",
        ">bytes",
        ">bytes/reading",
        "oldest",
        "newest",
    ]);
    for subtree in &statistics.subtrees {
        let (readings, bytes) = (subtree.readings, subtree.bytes);
        let (first, last) =
            subtree.times.map(|(first, last)| (first.to_string(), last.to_string())).unwrap_or_default();
        table.row(vec![
            subtree.path.clone(),
            subtree.sensors.to_string(),
            subtree.live.to_string(),
            format!("{:.1}", subtree.per_s),
            readings.to_string(),
            bytes.to_string(),
            if readings > 0 { format!("{:.2}", bytes as f64 / readings as f64) } else { String::new() },
            first,
            last,
        ]);
    }
    print_as(&args.json, &statistics, |style, out| {
        table.write(style, out)?;
        let store = &statistics.store;
        writeln!(
            out,
            "{} sensors, {} readings in {} blocks ({} bytes), {} tiers ({} bytes), {} bytes of journal, {} jobs",
            store.sensors,
            store.readings,
            store.blocks,
            store.block_bytes,
            store.tiers,
            store.tier_bytes,
            store.journal_bytes,
            store.jobs
        )?;
        match store.damaged {
            0 => Ok(()),
            damaged => writeln!(out, "{} {damaged} blocks; see `wholegrain config verify`", style.error("damaged:")),
        }
    })?;
    let nothing = || Failure::NothingMatched("no sensor matches".into());
    if statistics.subtrees.is_empty() { Err(nothing()) } else { Ok(()) }
}
