//! Memory of each NUMA node: devices/system/node/node*/meminfo and numastat (Documentation/admin-guide/numastat.rst).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::meminfo;
use crate::line_table::LineTable;
use crate::plan::SensorPlan;
use crate::scan;

/// Adds the sensors of a node's meminfo, whose lines are such as `Node 0 MemFree:  24406048 kB`: `numa/<node>/<key>`.
pub fn plan_meminfo(bytes: &[u8], captures: &[String], plan: &mut SensorPlan<'_>) -> LineTable {
    let node = captures.first().map_or("", String::as_str);
    let prefix = format!("Node {node} ");
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let Some((key_len, sensor)) = line.strip_prefix(prefix.as_bytes()).and_then(meminfo::sensor) else {
            plan.report(format!("numa: left out: {:?}", String::from_utf8_lossy(line)));
            table.push_unknown(line);
            continue;
        };
        let name = sensor.name.replacen("meminfo/", &format!("numa/{}/", sanitize_level(node)), 1);
        let slot = plan.add(SensorDef { name, ..sensor });
        table.push(&line[..prefix.len() + key_len], &[slot]);
    }
    table
}

/// Adds the sensors of a node's numastat: `numa/<node>/<name>`.
pub fn plan_numastat(bytes: &[u8], captures: &[String], plan: &mut SensorPlan<'_>) -> LineTable {
    let node = sanitize_level(captures.first().map_or("", String::as_str));
    LineTable::of_names_and_integers("numa", bytes, plan, |name| {
        let text = match name {
            "numa_hit" => "Pages given from this node, where they were requested.",
            "numa_miss" => "Pages given from this node though another was requested.",
            "numa_foreign" => "Pages requested here and given from another node.",
            "interleave_hit" => "Pages given from this node by interleaving, as requested.",
            "local_node" => "Pages given to programs on this node.",
            "other_node" => "Pages given to programs on other nodes.",
            _ => "",
        };
        Some(SensorDef::counter(format!("numa/{node}/{}", sanitize_level(name)), "{page}", text))
    })
}
