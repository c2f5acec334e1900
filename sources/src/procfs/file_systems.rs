//! XFS and ZFS: fs/xfs/<device>/stats/stats below /sys (fs/xfs/xfs_stats.h), and spl/kstat/zfs below /proc (arc_stats in zfs/arc.c, the kstats of
//! datasets in zfs/dataset_kstats.c, spa_state_to_name).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::sums::WRAPS_AT;
use crate::line_table::LineTable;
use crate::plan::{SensorPlan, Slot};
use crate::scan::{self, Cursor};
use crate::states::StateText;

/// The lines of XFS statistics that are sampled, with the names of their columns.
const XFS: [(&str, &[&str]); 14] = [
    ("extent_alloc", &["extents_allocated", "blocks_allocated", "extents_freed", "blocks_freed"]),
    ("blk_map", &["reads", "writes", "unmaps", "add_exlist", "del_exlist", "look_exlist", "cmp_exlist"]),
    ("dir", &["lookups", "creates", "removes", "getdents"]),
    ("trans", &["sync", "async", "empty"]),
    ("ig", &["attempts", "found", "recycled", "missed", "duplicates", "reclaims", "attribute_changes"]),
    ("log", &["writes", "blocks", "no_buffer", "forced", "forced_sleep"]),
    (
        "push_ail",
        &["try_space", "sleep_space", "pushes", "success", "buffer", "pinned", "locked", "flushing", "restarts"],
    ),
    ("xstrat", &["quick", "split"]),
    ("rw", &["write_calls", "read_calls"]),
    ("attr", &["gets", "sets", "removes", "lists"]),
    ("icluster", &["flushes", "buffers", "inodes"]),
    ("vnodes", &["active", "allocated", "gets", "holds", "releases", "reclaims", "removes", "frees"]),
    ("buf", &["gets", "creates", "locked", "waited", "busy", "missed", "page_retries", "page_found", "reads"]),
    ("xpc", &["flushed_bytes", "write_bytes", "read_bytes"]),
];

/// Adds the sensors of an XFS file system, `xfs/<device>/<line>/<name>`. Counters have 32 bits, except bytes.
pub fn plan_xfs(bytes: &[u8], captures: &[String], plan: &mut SensorPlan<'_>) -> LineTable {
    let device = sanitize_level(captures.first().map_or("", String::as_str));
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        let key = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let Some((name, columns)) = XFS.iter().find(|(name, _)| name.as_bytes() == key && line.len() > key.len())
        else {
            table.push_unknown(line);
            continue;
        };
        let count = line[key.len()..].split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count();
        let slots: Vec<Slot> = columns
            .iter()
            .take(count)
            .map(|column| {
                let path = format!("xfs/{device}/{name}/{column}");
                plan.add(match (*name, *column) {
                    ("vnodes", "active") => SensorDef::gauge(path, "1", "Inodes of files in use."),
                    ("log", "blocks") => xfs_counter(path, "By", "Written to the log.").scaled(512.0),
                    ("xpc", _) => SensorDef::counter(path, "By", ""),
                    _ => xfs_counter(path, "1", ""),
                })
            })
            .collect();
        table.push(&line[..=key.len()], &slots);
    }
    table
}

fn xfs_counter(path: String, unit: &str, description: &str) -> SensorDef {
    SensorDef { wraps_at: Some(WRAPS_AT), ..SensorDef::counter(path, unit, description) }
}

/// The types of kstat whose data is an integer of 32 or 64 bits (KSTAT_DATA_INT32 to KSTAT_DATA_ULONG).
const KSTAT_INTEGERS: std::ops::RangeInclusive<u64> = 1..=6;

/// A line of a kstat, such as `hits   4    2021`: the name, and the length of what precedes the integer.
fn kstat(line: &[u8]) -> Option<(&str, usize)> {
    let mut cursor = Cursor::new(line);
    let name = std::str::from_utf8(cursor.word()?).ok()?;
    let kind = cursor.skip_spaces().number().filter(|kind| KSTAT_INTEGERS.contains(kind))?;
    let key_len = cursor.position();
    let is_integer = kind > 0 && cursor.skip_spaces().int().is_some() && cursor.is_at_end();
    is_integer.then_some((name, key_len + 1))
}

/// A table of the lines of a kstat, with the sensor of each name.
fn plan_kstat(bytes: &[u8], plan: &mut SensorPlan<'_>, sensor_of: impl Fn(&str) -> Option<SensorDef>) -> LineTable {
    let mut table = LineTable::default();
    for line in scan::lines(bytes) {
        match kstat(line) {
            Some((name, key_len)) => {
                let slot = sensor_of(name).and_then(|sensor| plan.add(sensor));
                table.push(&line[..key_len], &[slot]);
            }
            None => table.push_unknown(line),
        }
    }
    table
}

/// Adds the sensors of the ZFS cache, `zfs/arcstats/<name>`. Sizes and targets are gauges in bytes, all others count.
pub fn plan_arcstats(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    const GAUGES: [&str; 9] =
        ["c", "c_min", "c_max", "size", "p", "arc_no_grow", "arc_prune", "memory_all_bytes", "memory_free_bytes"];
    const ENDS: [&str; 4] = ["size", "_evictable_data", "_evictable_metadata", "_available_bytes"];
    plan_kstat(bytes, plan, |name| {
        let path = format!("zfs/arcstats/{}", sanitize_level(name));
        let is_size = GAUGES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end)) || name.starts_with("arc_");
        Some(match name {
            "hits" => SensorDef::counter(path, "1", "Reads that the cache answered."),
            "misses" => SensorDef::counter(path, "1", "Reads that the cache could not answer."),
            "size" => SensorDef::gauge(path, "By", "Memory that the cache takes."),
            "c" => SensorDef::gauge(path, "By", "Memory that the cache aims at."),
            "arc_no_grow" | "arc_prune" => SensorDef::gauge(path, "1", ""),
            _ if name.contains("hash_chain") || name == "hash_elements" || name.ends_with("_max") && !is_size => {
                SensorDef::gauge(path, "1", "")
            }
            _ if is_size => SensorDef::gauge(path, "By", ""),
            "l2_read_bytes" | "l2_write_bytes" => SensorDef::counter(path, "By", ""),
            _ => SensorDef::counter(path, "1", ""),
        })
    })
}

/// The states of a pool, each with its value.
const POOL: [&str; 7] = ["ONLINE", "DEGRADED", "FAULTED", "OFFLINE", "UNAVAIL", "REMOVED", "SUSPENDED"];

/// Adds the sensor of a pool's state, `zfs/pool/<pool>/state`.
pub fn plan_pool(captures: &[String], plan: &mut SensorPlan<'_>) -> StateText {
    let pool = sanitize_level(captures.first().map_or("", String::as_str));
    StateText::plan(&POOL, SensorDef::gauge(format!("zfs/pool/{pool}/state"), "1", "State of the pool."), plan)
}

/// Adds the sensors of a dataset, `zfs/dataset/<dataset>/<name>`. The dataset's name is a line of the file.
pub fn plan_dataset(bytes: &[u8], plan: &mut SensorPlan<'_>) -> LineTable {
    let name = scan::lines(bytes).find_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        (words.next() == Some(b"dataset_name")).then_some(())?;
        words.nth(1).map(|name| String::from_utf8_lossy(name).into_owned())
    });
    let Some(name) = name else {
        plan.report("zfs/datasets: a file without the name of its dataset is left out".to_owned());
        return LineTable::default();
    };
    let dataset: Vec<String> = name.split('/').map(sanitize_level).collect();
    plan_kstat(bytes, plan, |field| {
        let (unit, description) = match field {
            "reads" => ("1", "Reads."),
            "writes" => ("1", "Writes."),
            "nread" => ("By", "Bytes read."),
            "nwritten" => ("By", "Bytes written."),
            "nunlinks" => ("1", "Files requested to be removed."),
            "nunlinked" => ("1", "Files removed."),
            _ => return None,
        };
        Some(SensorDef::counter(format!("zfs/dataset/{}/{field}", dataset.join("/")), unit, description))
    })
}
