//! Replays days of a liquid-cooled system into a running server, for the case study `python/examples/heat_removal.py`.
//!
//! `cargo run --release -p wholegrain-testing --example facility -- var/client.toml [DAYS [EVERY_S [NODES [SEED]]]]`
//!
//! The last reading is of now. The server quarantines readings older than `[store] past_max` (30 days by default).

use std::path::{Path, PathBuf};

use wholegrain_testing::facility::{Replay, replay};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(client) = arguments.first().map(PathBuf::from) else {
        eprintln!("facility CLIENT_TOML [DAYS [EVERY_S [NODES [SEED]]]]");
        std::process::exit(2);
    };
    let number = |at: usize, default: u64| -> u64 {
        let given = arguments.get(at).map(|text| text.parse());
        given.unwrap_or(Ok(default)).unwrap_or_else(|_| panic!("argument {at} is not a number"))
    };
    let text = std::fs::read_to_string(&client).unwrap_or_else(|error| panic!("{}: {error}", client.display()));
    let value = |key: &str| -> String {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        let line = line.unwrap_or_else(|| panic!("{} has no {key}", client.display()));
        line.trim().trim_matches('"').to_owned()
    };
    let folder = client.parent().unwrap_or(Path::new("."));
    let token = std::fs::read_to_string(folder.join(value("token_file"))).expect("the token");
    let now_s = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_secs() as i64;
    let (days, every_s, nodes, seed) = (number(1, 3), number(2, 10), number(3, 16), number(4, 1));
    let from_s = now_s - days as i64 * 86_400;
    let what = Replay { seed, nodes: nodes as usize, from_s, to_s: now_s, every_s: every_s as u32 };
    let count = replay(value("url").trim_end_matches('/'), &folder.join(value("ca")), token.trim(), &what);
    println!("{count} readings of {} sensors over {days} days, seed {seed}: /site/**", nodes + 5);
}
