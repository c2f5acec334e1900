//! LIKWID: `likwid-perfctr` in timeline mode, which reads the hardware's counters of each core at each period. It reads none of the
//! same data as the others; it is here because sites run it as their monitor of counters. It has no server's part.
//!
//! - In: counters of the processor, which most virtual machines do not have: LIKWID then says so itself and is left out.
//! - Out: its lines in a file of the node.
//! - Never: counters that another program is using, unsaid: LIKWID refuses these.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::{Folder, Monitor, Role, Running, Started, program, started};

/// Its manual says that values of shorter periods differ from the true ones.
const SHORTEST: Duration = Duration::from_millis(100);
/// The group that every processor it supports has.
const GROUP: &str = "CLOCK";
/// What precedes the values of a line: the group, the number of values, of threads, and the time.
const LEADING: usize = 4;

/// See the module.
pub struct Likwid;

impl Monitor for Likwid {
    fn name(&self) -> &'static str {
        "likwid"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["clock"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let version = program::version(&program::installed("likwid-perfctr", "likwid")?, &["-v"])?;
        if let Some(reason) = refusal(&ask("-e")?) {
            bail!("LIKWID {version} finds no hardware counters on this machine: {reason}");
        }
        Ok(version)
    }

    fn shortest_interval(&self) -> Duration {
        SHORTEST
    }

    fn start(
        &self,
        role: Role,
        _configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        ensure!(
            interval.subsec_nanos().is_multiple_of(1_000_000),
            "this takes whole milliseconds as LIKWID's period, not {interval:?}"
        );
        started::both(role, interval, dir, |_, _| Ok(()), |started, folder| node(started, folder, interval))
    }
}

fn node(started: &mut Started, folder: &Folder, interval: Duration) -> anyhow::Result<()> {
    let lines = folder.node("timeline")?;
    // That of an earlier run in the same folder.
    let _ = std::fs::remove_file(&lines);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new("likwid-perfctr");
    command.args(["-c", &format!("0-{}", cores - 1), "-g", GROUP, "-t", &format!("{}ms", interval.as_millis())]);
    command.args(["sleep", "infinity"]);
    let since = Instant::now();
    started.run("likwid-perfctr", false, &mut command, &lines)?;
    started.parts.wait_until("likwid-perfctr writes lines of values", || counted(&read(&lines)).0 > 0)?;
    started.metrics = counted(&read(&lines)).1;
    started.counts(since, move || Some(counted(&read(&lines)).0));
    Ok(())
}

/// What it prints when it is asked something, wherever it prints it.
fn ask(argument: &str) -> anyhow::Result<String> {
    let Output { stdout, stderr, .. } =
        Command::new("likwid-perfctr").arg(argument).output().context("asking likwid-perfctr")?;
    Ok(String::from_utf8_lossy(&[stderr, stdout].concat()).into_owned())
}

/// Why it has no counters, in its own words; none when it has some.
fn refusal(events: &str) -> Option<String> {
    let none = events.lines().find(|line| line.contains("has 0 counters"));
    let error = events.lines().find_map(|line| line.strip_prefix("ERROR - ").or_else(|| line.strip_prefix("ERROR: ")));
    // The place in its source that precedes the words is of no use here.
    let error = error.map(|line| line.split_once("] ").map_or(line, |(_, words)| words));
    error.or(none).map(|line| line.trim().to_owned())
}

fn read(lines: &Path) -> String {
    std::fs::read_to_string(lines).unwrap_or_default()
}

/// Lines of values, and how many values the last of them has. Other lines are its messages.
fn counted(text: &str) -> (u64, u64) {
    let numbers = |line: &str| line.split_whitespace().filter(|field| field.parse::<f64>().is_ok()).count();
    let whole = |line: &&str| numbers(line) > LEADING && numbers(line) == line.split_whitespace().count();
    let lines: Vec<&str> = text.lines().filter(whole).collect();
    (lines.len() as u64, lines.last().map_or(0, |line| (numbers(line) - LEADING) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_counters_is_left_out_with_its_words() {
        let told = "ERROR - [./src/perfmon.c:perfmon_init_maps:1427] Unsupported Processor\nThis architecture has 0 counters.\n";
        assert_eq!(refusal(told).as_deref(), Some("Unsupported Processor"));
        assert_eq!(
            refusal("This architecture has 0 counters.\n").as_deref(),
            Some("This architecture has 0 counters.")
        );
        assert_eq!(refusal("This architecture has 52 counters.\nCounter tags(name, type<, options>):\n"), None);
    }

    /// The layout is that of the manual: group, number of values, number of threads, time, the values.
    #[test]
    fn lines_of_values_are_told_from_messages() {
        let text = "--------\nCPU clock:\t2.6 GHz\n1 2 2 1.0003 10 11 0.5 nan\n1 2 2 2.0004 10 11 0.5 0.25\n1 2 2 3.";
        assert_eq!(counted(text), (2, 4));
    }
}
