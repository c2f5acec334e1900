//! Commands to try once everything runs, short and with names that exist here.

use std::fs;
use std::path::{Path, PathBuf};

use wholegrain_api::Sensor;
use wholegrain_model::{Kind, Pattern};

use super::demo;
use crate::client_file::places;
use crate::output::style;

pub fn print(dir: &Path, url: &str, known: &[Sensor<'_>], logs: [&Path; 2], is_demo: bool) {
    println!("{} {url}, {} sensors.", style::on_stdout().good("Running:"), known.len());
    println!("\nTry in another terminal:");
    let program = std::env::args().next().unwrap_or_else(|| "wholegrain".to_owned());
    let client = dir.join("client.toml");
    let found = std::env::var_os("WHOLEGRAIN_CLIENT").map(PathBuf::from);
    let found = found.or_else(|| places().into_iter().find(|path| path.exists()));
    let command = if found.is_some_and(|found| is_same(&found, &client)) {
        program
    } else {
        format!("{program} --client {}", shell(&client.display().to_string()))
    };
    let gauge = example(known, Kind::Gauge, "/MemAvailable").unwrap_or_else(|| "'/**'".to_owned());
    let of_demo = if is_demo { demo::examples().to_vec() } else { Vec::new() };
    for line in examples(known, &gauge).into_iter().chain(of_demo) {
        println!("  {command} {line}");
    }
    let (ca, token) = (dir.join("ca.pem").display().to_string(), dir.join("token").display().to_string());
    println!(
        "  curl --cacert {} -H \"Authorization: Bearer $(cat {})\" '{url}/api/v1/newest?pattern={}'",
        shell(&ca),
        shell(&token),
        gauge.trim_matches('\'')
    );
    println!("\nLogs: {}, {}", logs[0].display(), logs[1].display());
    println!("Ctrl-C stops both; the data stays in {}.", dir.display());
}

fn examples(known: &[Sensor<'_>], gauge: &str) -> Vec<String> {
    let mut lines = vec![
        "sensors --tree".to_owned(),
        format!("query {gauge} --from -1m"),
        format!("query {gauge} --from -1h --every 1min --format csv"),
    ];
    lines.extend(example(known, Kind::Counter, "/user").map(|counter| format!("query {counter} --op rate --from -1m")));
    lines.push(format!("watch {gauge}"));
    lines.push("ctl status".to_owned());
    lines
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// The shortest pattern for a sensor of this kind, preferably one whose path has this end.
fn example(known: &[Sensor<'_>], kind: Kind, end: &str) -> Option<String> {
    let is_kind = |sensor: &&Sensor<'_>| sensor.kind == kind;
    let sensor = known.iter().filter(is_kind).find(|sensor| sensor.path.ends_with(end));
    let sensor = sensor.or_else(|| known.iter().find(is_kind))?;
    Some(shell(shortest(&sensor.path, known)))
}

/// The shortest end of `path` that matches no other sensor.
fn shortest<'a>(path: &'a str, known: &[Sensor<'_>]) -> &'a str {
    let ends = path.rmatch_indices('/').map(|(at, _)| &path[at + 1..]).filter(|end| !end.is_empty());
    let is_alone = |end: &str| {
        Pattern::new(end).is_ok_and(|pattern| known.iter().filter(|sensor| pattern.matches(&sensor.path)).count() == 1)
    };
    // A number, such as that of a CPU, means nothing without the level above it.
    let has_meaning = |end: &&str| end.starts_with(|c: char| !c.is_ascii_digit());
    ends.filter(has_meaning).find(|end| is_alone(end)).unwrap_or(path)
}

/// A word, quoted for the shell if necessary.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor(path: &str, kind: Kind) -> Sensor<'static> {
        crate::sensors::of_test(path, kind)
    }

    #[test]
    fn examples_choose_one_sensor_with_few_words() {
        let known = [
            sensor("/n/cpu/0/user", Kind::Counter),
            sensor("/n/cpu/1/user", Kind::Counter),
            sensor("/n/cpu/user", Kind::Counter),
            sensor("/n/meminfo/MemAvailable", Kind::Gauge),
        ];
        assert_eq!(example(&known, Kind::Gauge, "/MemAvailable").as_deref(), Some("MemAvailable"));
        assert_eq!(example(&known, Kind::Counter, "/user").as_deref(), Some("cpu/0/user"));
        assert_eq!(shortest("/n/cpu/user", &known), "cpu/user");
        assert_eq!(example(&known[..1], Kind::Gauge, "/x"), None);
        let lines = examples(&known, "MemAvailable");
        assert_eq!(lines[3], "query cpu/0/user --op rate --from -1m");
        let twice = [sensor("/a/x", Kind::Gauge), sensor("/b/a/x", Kind::Gauge)];
        assert_eq!(shortest("/a/x", &twice), "/a/x", "each end of it chooses the other too");
    }

    #[test]
    fn words_are_quoted_where_the_shell_would_change_them() {
        assert_eq!(shell("var/a-b_c.toml"), "var/a-b_c.toml");
        assert_eq!(shell("/**"), "'/**'");
        assert_eq!(shell("it's"), "'it'\\''s'");
        assert_eq!(shell(""), "''");
    }
}
