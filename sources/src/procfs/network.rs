//! net/sockstat, net/softnet_stat, net/snmp6 and the connection tracking (Documentation/filesystems/proc.rst, net/core/net-procfs.c,
//! Documentation/networking/nf_conntrack-sysctl.rst).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::context::PlanContext;
use super::parser::ProcParser;
use super::sums::{ColumnFormat, ColumnSums, SumColumn, WRAPS_AT};
use super::words::{self, WordNumber, WordTable};
use crate::line_table::LineTable;
use crate::plan::SensorPlan;
use crate::scan;

/// The columns of softnet_stat.
const SOFTNET: [(usize, &str, bool, &str); 6] = [
    (0, "processed", true, "Frames processed."),
    (1, "dropped", true, "Frames dropped as the backlog queue was full."),
    (2, "time_squeeze", true, "Times that work was left when the time or the budget was used up."),
    (9, "received_rps", true, "Times that another CPU made this one process packets."),
    (10, "flow_limit", true, "Frames dropped by the limit of a flow."),
    (11, "backlog", false, "Frames that wait in the backlog queue."),
];
/// The column of softnet_stat with the number of the CPU, from Linux 5.14 on.
const SOFTNET_CPU: usize = 12;

/// The columns of stat/nf_conntrack after the number of entries, which all lines repeat. Kernels differ in columns that are no longer used.
const CONNTRACK: [(&str, &str); 11] = [
    ("clashres", "Insertions that met the same connection and were resolved."),
    ("found", "Searches that found a connection."),
    ("invalid", "Packets that could not be tracked."),
    ("insert", "Connections inserted."),
    ("insert_failed", "Connections that could not be inserted, as they existed already."),
    ("drop", "Packets dropped as the tracking failed."),
    ("early_drop", "Connections dropped to make room for others."),
    ("icmp_error", "Packets that could not be tracked because of an ICMP error."),
    ("expect_new", "Expected connections added."),
    ("expect_create", "Expected connections created."),
    ("search_restart", "Searches that had to restart as the table was resized."),
];

/// Adds the sensors of net/sockstat and net/sockstat6, `net/sockstat/<protocol>/<state>`.
pub fn plan_sockstat(bytes: &[u8], plan: &mut SensorPlan<'_>) -> WordTable {
    words::plan(bytes, plan, |WordNumber { line, word, .. }| {
        let protocol = line.strip_suffix(':')?;
        let path = format!("net/sockstat/{}/{}", sanitize_level(protocol), sanitize_level(word));
        let (unit, description) = match word {
            "used" => ("1", "Sockets of all kinds."),
            "inuse" => ("1", "Sockets in use."),
            "orphan" => ("1", "Connections without a process."),
            "tw" => ("1", "Connections that wait after their end."),
            "alloc" => ("1", "Sockets allocated."),
            "mem" => ("{page}", "Memory of buffers."),
            "memory" => ("By", "Memory of fragments."),
            _ => ("1", ""),
        };
        Some(SensorDef::gauge(path, unit, description))
    })
}

/// Adds the sensors of net/softnet_stat, `net/softnet/<counter>`, and with `per_cpu` also `net/softnet/<cpu>/<counter>`.
pub fn plan_softnet(context: &PlanContext<'_>, bytes: &[u8], plan: &mut SensorPlan<'_>) -> ColumnSums {
    let columns = SOFTNET.map(|(index, name, is_counter, text)| {
        let path = format!("net/softnet/{name}");
        let sensor = match is_counter {
            true => SensorDef { wraps_at: Some(WRAPS_AT), ..SensorDef::counter(path, "1", text) },
            false => SensorDef::gauge(path, "1", text),
        };
        SumColumn { index, sensor }
    });
    let format = ColumnFormat { header_lines: 0, prefix: b"", radix: 16 };
    ColumnSums::plan(bytes, format, &columns, plan, |_, values| {
        let cpu = values.get(SOFTNET_CPU)?.to_string();
        context.samples_cpu(&cpu).then_some(cpu)
    })
}

/// Adds the sensors of net/snmp6, `net/snmp6/<name>`. Counters of a message type appear with the first message and are left out.
pub fn plan_snmp6(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let tab = line.iter().position(|byte| *byte == b'\t');
        let Some(tab) = tab.filter(|tab| scan::int_at(line, tab + 1).is_some_and(|(_, end)| end == line.len())) else {
            plan.report(format!("net/snmp6: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        };
        let name = String::from_utf8_lossy(&line[..tab]).trim_end().to_owned();
        let unit = if name.ends_with("Octets") { "By" } else { "1" };
        let is_of_type = name.starts_with("Icmp6InType") || name.starts_with("Icmp6OutType");
        let sensor = SensorDef::counter(format!("net/snmp6/{}", sanitize_level(&name)), unit, "");
        let slot = Some(sensor).filter(|_| !is_of_type).and_then(|sensor| plan.add(sensor));
        table.push(&line[..=tab], &[slot]);
    }
    table
}

/// Adds the sensors of a file of the connection tracking, `conntrack/<name>`.
pub fn plan_conntrack(context: &PlanContext<'_>, bytes: &[u8], plan: &mut SensorPlan<'_>) -> ProcParser {
    let single = |name: &str, text: &str, plan: &mut SensorPlan<'_>| {
        ProcParser::Words(words::plan(bytes, plan, |_| Some(SensorDef::gauge(format!("conntrack/{name}"), "1", text))))
    };
    if context.file.path.ends_with("count") {
        return single("entries", "Connections in the table.", plan);
    }
    if context.file.path.ends_with("max") {
        return single("entries_max", "The most connections that the table may hold.", plan);
    }
    let header = scan::lines(bytes).next().unwrap_or_default();
    let names = String::from_utf8_lossy(header).into_owned();
    let columns = names.split_ascii_whitespace().enumerate().filter_map(|(index, name)| {
        let (name, text) = CONNTRACK.iter().find(|(known, _)| *known == name)?;
        let sensor = SensorDef::counter(format!("conntrack/{name}"), "1", text);
        Some(SumColumn { index, sensor: SensorDef { wraps_at: Some(WRAPS_AT), ..sensor } })
    });
    let columns: Vec<SumColumn> = columns.collect();
    let format = ColumnFormat { header_lines: 1, prefix: b"", radix: 16 };
    ProcParser::Columns(ColumnSums::plan(bytes, format, &columns, plan, |_, _| None))
}
