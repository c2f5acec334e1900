//! `wholegrain config stats`: statistics of stored readings by subtree.

use std::io::Write;

use clap::Args;
use wholegrain_api::{StoreStatistics, SubtreeStatistics, paths};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::JsonOption;
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
    let request = server.get(paths::STATISTICS).each("pattern", &args.patterns).query("level", args.level);
    let statistics: StoreStatistics = request.slow().send()?.json()?;
    let per_reading = |subtree: &SubtreeStatistics| match subtree.readings {
        0 => String::new(),
        readings => format!("{:.2}", subtree.bytes as f64 / readings as f64),
    };
    let table = Table::of(
        &statistics.subtrees,
        &[
            ("SUBTREE", &|subtree| subtree.path.clone()),
            (">SENSORS", &|subtree| subtree.sensors.to_string()),
            (">LIVE", &|subtree| subtree.live.to_string()),
            (">READINGS/S", &|subtree| format!("{:.1}", subtree.per_s)),
            (">READINGS", &|subtree| subtree.readings.to_string()),
            (">BYTES", &|subtree| subtree.bytes.to_string()),
            (">BYTES/READING", &per_reading),
            ("OLDEST", &|subtree| subtree.times.map(|(first, _)| first.to_string()).unwrap_or_default()),
            ("NEWEST", &|subtree| subtree.times.map(|(_, last)| last.to_string()).unwrap_or_default()),
        ],
    );
    args.json.print(&statistics, |style, out| {
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
