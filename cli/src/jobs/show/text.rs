//! The report on a job as text.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wholegrain_api::{JobAllocation, JobDetails, UtcTime};
use wholegrain_model::text::escaped;

use super::super::job_fields::{length, owner};
use super::report::{JobReport, ValueRange};
use crate::output::style::Style;
use crate::output::table::{Table, width};
use crate::output::values;

/// The most names of nodes; of the others only the number is given.
const NODES_SHOWN_MAX: usize = 16;
/// The most steps in the list.
const STEPS_SHOWN_MAX: usize = 32;

fn instant(time: UtcTime) -> String {
    values::time(time.0, 3)
}

pub fn write(report: &JobReport, now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    properties(report, now, style, out)?;
    steps(report, now, style, out)?;
    nodes(report, style, out)?;
    tasks(report, style, out)?;
    groups(report, style, out)?;
    if !report.regions.is_empty() {
        heading("Regions", style, out)?;
        let mut table = Table::new(&["REGION", ">COUNT", ">TIME s", ">NODES"]);
        for region in &report.regions {
            let count = format!("{}{}", region.count, if region.open > 0 { " (open)" } else { "" });
            table.row(vec![region.region.clone(), count, format!("{:.3}", region.seconds), region.nodes.to_string()]);
        }
        table.write(style, out)?;
    }
    for problem in &report.problems {
        writeln!(out, "\nnote: {problem}")?;
    }
    Ok(())
}

fn heading(text: &str, style: Style, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", style.head(text))
}

fn properties(report: &JobReport, now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let JobDetails { job, runs, allocations, summary, damaged } = &report.records.details;
    let mut names: Vec<&str> = allocations.iter().map(|allocation| allocation.node.as_str()).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(NODES_SHOWN_MAX);
    names.truncate(NODES_SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let unseen = if summary.end_unseen > 0 {
        format!(
            "; on {} of {} nodes the agent was not running at the end: the time is when it saw the job last",
            summary.end_unseen, job.nodes
        )
    } else {
        String::new()
    };
    let cpus = match summary.cpus_nodes {
        0 => String::new(),
        nodes if nodes == job.nodes => summary.cpus.to_string(),
        nodes => format!("{} on {nodes} of {} nodes", summary.cpus, job.nodes),
    };
    let devices = match summary.devices_count {
        0 => String::new(),
        count => format!("{count}: {}", Vec::from_iter(summary.devices.iter().map(String::as_str)).join(" ")),
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    // For a running job, the sum of the readings so far.
    let so_far = || report.node_statistics.iter().filter_map(|node| node.cpu_s).reduce(|a, b| a + b);
    let cpu_s = if job.to.is_some() { job.cpu_s } else { so_far() };
    let lines = [
        ("job", job.job.clone()),
        ("also", text(&job.also)),
        ("name", text(&job.name)),
        ("user", owner(job)),
        ("account", text(&job.account)),
        ("partition", text(&job.partition)),
        ("manager", job.manager.clone()),
        ("state", job.state.name().to_owned()),
        ("begin", instant(job.from)),
        ("end", job.to.map(|to| format!("{}{unseen}", instant(to))).unwrap_or_default()),
        ("duration", values::duration(length(job, now))),
        ("nodes", format!("{}: {}{more}", job.nodes, names.join(" "))),
        ("cpus", cpus),
        ("devices", devices),
        ("cpu seconds", cpu_s.map(|seconds| format!("{seconds:.3}")).unwrap_or_default()),
        (
            "memory peak",
            job.memory_peak
                .filter(|_| job.to.is_some())
                .map(|bytes| format!("{} on one node", values::size(bytes)))
                .unwrap_or_default(),
        ),
        (
            "other runs",
            match runs.len() {
                0 | 1 => String::new(),
                runs => format!("{} of this id; --at TIME shows another", runs - 1),
            },
        ),
        ("damaged", if *damaged > 0 { format!("{damaged} records could not be read") } else { String::new() }),
    ];
    let widest = lines.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "{}  {}", style.head(&format!("{name:<widest$}")), escaped(&value))?;
    }
    Ok(())
}

fn steps(report: &JobReport, now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let summary = &report.records.details.summary;
    if summary.steps.is_empty() {
        return Ok(());
    }
    heading("Steps", style, out)?;
    let mut table = Table::new(&["STEP", "BEGIN", ">DURATION", ">NODES"]);
    for step in summary.steps.iter().take(STEPS_SHOWN_MAX) {
        let length = step.to.map_or(now, |to| to.0).saturating_sub(step.from.0);
        table.row(vec![step.name.clone(), instant(step.from), values::duration(length), step.nodes.to_string()]);
    }
    table.write(style, out)?;
    let more = summary.steps.len().saturating_sub(STEPS_SHOWN_MAX) as u64 + summary.steps_dropped;
    if more > 0 { writeln!(out, "and {more} more") } else { Ok(()) }
}

fn spread(spread: Option<ValueRange>, show: impl Fn(f64) -> String) -> String {
    spread.map_or_else(String::new, |one| [one.min, one.mean, one.max].map(show).join(" / "))
}

fn nodes(report: &JobReport, style: Style, out: &mut impl Write) -> io::Result<()> {
    heading("Nodes (min / mean / max over the readings)", style, out)?;
    let heads = ["NODE", ">CPU s", ">CPUS IN USE", ">UTILISATION", ">MEMORY", ">PEAK", ">READ", ">WRITTEN", "AGENT"];
    let mut table = Table::new(&heads);
    for node in &report.node_statistics {
        let bytes = |value: Option<f64>| value.map(values::size).unwrap_or_default();
        table.row(vec![
            node.node.clone(),
            node.cpu_s.map(|seconds| format!("{seconds:.3}")).unwrap_or_default(),
            spread(node.cpus_used, |value| format!("{value:.2}")),
            node.utilisation.map(|part| format!("{:.1} %", part * 100.0)).unwrap_or_default(),
            spread(node.memory, values::size),
            bytes(node.memory_peak),
            bytes(node.read_bytes),
            bytes(node.written_bytes),
            if node.end_unseen { "not running at the end".to_owned() } else { String::new() },
        ]);
    }
    table.write(style, out)
}

/// The use of the processes of an ended job, as far as agents know it.
fn tasks(report: &JobReport, style: Style, out: &mut impl Write) -> io::Result<()> {
    let ended = || report.records.details.allocations.iter().filter(|one| one.to.is_some());
    let of_tasks = |one: &&JobAllocation| one.totals.keys().any(|name| name.starts_with("tasks/"));
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, total) in ended().flat_map(|one| &one.totals).filter(|(name, _)| name.starts_with("tasks/")) {
        *sums.entry(name).or_default() += total;
    }
    sums.retain(|_, sum| *sum != 0.0);
    if sums.is_empty() {
        return Ok(());
    }
    let (count, nodes) = (ended().filter(of_tasks).count(), report.records.details.allocations.len());
    heading(&format!("Processes, up to their end (sums over {count} of {nodes} nodes; without zeros)"), style, out)?;
    let mut table = Table::new(&["METRIC", ">TOTAL"]);
    for (name, sum) in sums {
        let is_bytes = name.ends_with("_bytes") || name.ends_with("_chars");
        let is_time = name.ends_with("/total") || name.ends_with("/run");
        let shown = if is_bytes {
            values::size(sum)
        } else if is_time {
            format!("{sum:.3} s")
        } else {
            format!("{sum}")
        };
        table.row(vec![name.to_owned(), shown]);
    }
    table.write(style, out)
}

fn groups(report: &JobReport, style: Style, out: &mut impl Write) -> io::Result<()> {
    heading("Sensors and data quality", style, out)?;
    if report.sensors.is_empty() {
        return writeln!(out, "no sensors of this job are stored, or you may not see them");
    }
    let heads = ["GROUP", ">SENSORS", ">NODES", ">EVERY", ">REQUESTED", ">GOT", ">COVERED", ">MISSING", "LAST"];
    let mut table = Table::new(&heads);
    for group in &report.sensors {
        table.row(vec![
            group.group.clone(),
            group.sensors.to_string(),
            group.nodes.to_string(),
            values::interval(group.interval_ns),
            group.requested.map(|count| count.to_string()).unwrap_or_default(),
            group.got.to_string(),
            group.covered.map(|covered| format!("{:.1} %", covered * 100.0)).unwrap_or_default(),
            group.missing_ns.map(|ns| values::duration(ns as i64)).unwrap_or_default(),
            group.last_seen.map(instant).unwrap_or_default(),
        ]);
    }
    table.write(style, out)
}
