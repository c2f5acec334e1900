//! The report on a job as text.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wholegrain_api::{JobAllocation, JobDetails, JobStep, UtcTime};

use super::super::listed::{length, owner};
use super::report::{JobNodeUsage, JobReport, Region, ValueRange};
use crate::output::style::Style;
use crate::output::table::Table;
use crate::output::{values, write_properties};

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
        let open = |region: &Region| if region.open > 0 { " (open)" } else { "" };
        let table = Table::of(
            &report.regions,
            &[
                ("REGION", &|region| region.region.clone()),
                (">COUNT", &|region| format!("{}{}", region.count, open(region))),
                (">TIME s", &|region| format!("{:.3}", region.seconds)),
                (">NODES", &|region| region.nodes.to_string()),
            ],
        );
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
    write_properties(&lines, style, out)
}

fn steps(report: &JobReport, now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let summary = &report.records.details.summary;
    if summary.steps.is_empty() {
        return Ok(());
    }
    heading("Steps", style, out)?;
    let duration = |step: &JobStep| step.to.map_or(now, |to| to.0).saturating_sub(step.from.0);
    let table = Table::of(
        summary.steps.iter().take(STEPS_SHOWN_MAX),
        &[
            ("STEP", &|step| step.name.clone()),
            ("BEGIN", &|step| instant(step.from)),
            (">DURATION", &|step| values::duration(duration(step))),
            (">NODES", &|step| step.nodes.to_string()),
        ],
    );
    table.write(style, out)?;
    let more = summary.steps.len().saturating_sub(STEPS_SHOWN_MAX) as u64 + summary.steps_dropped;
    if more > 0 { writeln!(out, "and {more} more") } else { Ok(()) }
}

fn spread(spread: Option<ValueRange>, show: impl Fn(f64) -> String) -> String {
    spread.map_or_else(String::new, |one| [one.min, one.mean, one.max].map(show).join(" / "))
}

fn nodes(report: &JobReport, style: Style, out: &mut impl Write) -> io::Result<()> {
    heading("Nodes (min / mean / max over the readings)", style, out)?;
    let bytes = |value: Option<f64>| value.map(values::size).unwrap_or_default();
    let agent = |node: &JobNodeUsage| if node.end_unseen { "not running at the end" } else { "" };
    let table = Table::of(
        &report.node_statistics,
        &[
            ("NODE", &|node| node.node.clone()),
            (">CPU s", &|node| node.cpu_s.map(|seconds| format!("{seconds:.3}")).unwrap_or_default()),
            (">CPUS IN USE", &|node| spread(node.cpus_used, |value| format!("{value:.2}"))),
            (">UTILISATION", &|node| node.utilisation.map(|part| format!("{:.1} %", part * 100.0)).unwrap_or_default()),
            (">MEMORY", &|node| spread(node.memory, values::size)),
            (">PEAK", &|node| bytes(node.memory_peak)),
            (">READ", &|node| bytes(node.read_bytes)),
            (">WRITTEN", &|node| bytes(node.written_bytes)),
            ("AGENT", &|node| agent(node).to_owned()),
        ],
    );
    table.write(style, out)
}

/// The use of the processes of an ended job, from the records of its nodes.
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
    let text = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
    let table = Table::of(
        &report.sensors,
        &[
            ("GROUP", &|group| group.group.clone()),
            (">SENSORS", &|group| group.sensors.to_string()),
            (">NODES", &|group| group.nodes.to_string()),
            (">EVERY", &|group| values::interval(group.interval_ns)),
            (">REQUESTED", &|group| text(group.requested)),
            (">GOT", &|group| group.got.to_string()),
            (">COVERED", &|group| group.covered.map(|part| format!("{:.1} %", part * 100.0)).unwrap_or_default()),
            (">MISSING", &|group| group.missing_ns.map(|ns| values::duration(ns as i64)).unwrap_or_default()),
            ("LAST", &|group| group.last_seen.map(instant).unwrap_or_default()),
        ],
    );
    table.write(style, out)
}
