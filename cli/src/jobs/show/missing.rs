//! Messages about missing or uncertain values of a job.

use std::collections::BTreeMap;

use wholegrain_api::{JobAllocation, Sensor, UtcTime};
use wholegrain_model::text::escaped;

use super::records::JobRecords;
use crate::output::values;

/// The most nodes in a message; of the others only the number is given.
const NODES_NAMED_MAX: usize = 4;
/// The metric that agents read of every job.
const TOTAL: &str = "cpu/usage";
/// The least unread time that is reported: 1 ms.
const UNREAD_NS_MIN: i64 = 1_000_000;
/// The least advance of one node before all others that is reported: 10 min.
const ALONE_NS_MIN: i64 = 600_000_000_000;
/// The level of process sensors, which agents read only at their interval.
const TASKS: &str = "tasks/";

/// One message for each kind of missing values.
pub fn of(records: &JobRecords, sensors: &[&Sensor<'_>]) -> Vec<String> {
    let mut last: BTreeMap<usize, i64> = BTreeMap::new();
    for sensor in sensors {
        if let Some((index, rest)) = records.place(&sensor.path)
            && rest.starts_with(TASKS)
            && let Some(UtcTime(time)) = sensor.last_time
        {
            last.entry(index).and_modify(|last| *last = time.max(*last)).or_insert(time);
        }
    }
    let mut lines = lines(&records.details.allocations, &last);
    lines.extend(began_alone(&records.details.allocations));
    lines
}

/// Reports a node on which the job began long before it did on any other: start and length depend on this node alone.
fn began_alone(allocations: &[JobAllocation]) -> Option<String> {
    let mut begins: Vec<(i64, &str)> = allocations.iter().map(|one| (one.from.0, one.node.as_str())).collect();
    begins.sort_unstable();
    let [(first, node), (second, _), ..] = begins[..] else { return None };
    let alone = second.saturating_sub(first);
    (alone >= ALONE_NS_MIN).then(|| {
        format!(
            "the job began on {node} {} before it did on any other node: start, length and its part of the sums come from that node's agent alone",
            values::duration(alone)
        )
    })
}

/// `last` has the time of the last reading of an allocation's tasks.
fn lines(allocations: &[JobAllocation], last: &BTreeMap<usize, i64>) -> Vec<String> {
    let ended = || allocations.iter().enumerate().filter(|(_, one)| one.to.is_some());
    let bare: Vec<&str> =
        ended().filter(|(_, one)| !one.totals.contains_key(TOTAL)).map(|(_, one)| one.node.as_str()).collect();
    let mut lines = Vec::new();
    if !bare.is_empty() {
        lines.push(format!(
            "no totals from {}: the job's cgroups disappeared before the agent read them; CPU time, memory and I/O come from stored readings",
            named(&bare)
        ));
    }
    let mut late: BTreeMap<String, (i64, &str)> = BTreeMap::new();
    for (index, one) in ended().filter(|(_, one)| !one.totals.keys().any(|name| name.starts_with(TASKS))) {
        if let Some(unread) = last.get(&index).and_then(|last| unread(one, *last)) {
            let longest = late.entry(reason(one)).or_insert(unread);
            *longest = unread.max(*longest);
        }
    }
    lines.extend(late.into_iter().map(|(reason, (unread, node))| {
        format!(
            "tasks/* were last read up to {} before the end (on {node}), later use is unknown: {reason}",
            values::duration(unread)
        )
    }));
    lines
}

/// The reason why the record lacks the use between the last sample and the end.
fn reason(one: &JobAllocation) -> String {
    match &one.tasks_missing {
        Some(reason) => escaped(reason).into_owned(),
        None if one.end_unseen => "the agent was not running at the end".to_owned(),
        None => "the agent gives no reason".to_owned(),
    }
}

/// The time between the last reading of an allocation's tasks and its end, and the node.
fn unread(one: &JobAllocation, last: i64) -> Option<(i64, &str)> {
    let unread = one.to?.0.checked_sub(last).filter(|unread| *unread >= UNREAD_NS_MIN)?;
    Some((unread, one.node.as_str()))
}

fn named(nodes: &[&str]) -> String {
    let named = nodes[..nodes.len().min(NODES_NAMED_MAX)].join(" ");
    match nodes.len().saturating_sub(NODES_NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Timestamp;

    use super::*;

    fn time(text: &str) -> UtcTime {
        Timestamp::parse(text, Timestamp(0)).unwrap().into()
    }

    fn allocation(node: &str, to: Option<&str>, totals: &[&str]) -> JobAllocation {
        let totals: BTreeMap<&str, f64> = totals.iter().map(|name| (*name, 1.0)).collect();
        let value = serde_json::json!({
            "job": "1", "manager": "slurm", "owner": "", "node": node, "prefix": "/lab", "level": "1", "from": "2026-01-31T10:00:00Z",
            "to": to, "totals": totals, "devices": [], "end_unseen": false, "steps": [], "steps_dropped": 0, "revision": 1,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_node_that_begins_long_before_the_others_is_named() {
        let at = |node: &str, from: &str| JobAllocation { from: time(from), ..allocation(node, None, &[]) };
        let (noon, later) = (at("n1", "2026-01-31T12:00:00Z"), at("n2", "2026-01-31T12:09:59Z"));
        assert_eq!(began_alone(std::slice::from_ref(&noon)), None);
        assert_eq!(began_alone(&[noon.clone(), later.clone()]), None);
        let liar = at("n3", "1970-01-01T00:00:00Z");
        let said = began_alone(&[noon, liar, later]).unwrap();
        assert!(said.starts_with("the job began on n3 ") && said.contains("that node's agent alone"), "{said}");
    }

    #[test]
    fn only_of_jobs_that_have_ended_something_is_missing() {
        let end = Some("2026-01-31T10:00:30Z");
        let at =
            |second: i64| Timestamp::parse("2026-01-31T10:00:00Z", Timestamp(0)).unwrap().0 + second * 1_000_000_000;
        let whole = allocation("n1", end, &["cpu/usage"]);
        assert!(lines(&[allocation("n1", None, &[])], &[(0, at(1))].into()).is_empty());
        assert!(lines(std::slice::from_ref(&whole), &[(0, at(30))].into()).is_empty());
        let found = lines(&[whole.clone(), allocation("n2", end, &[])], &[(0, at(20)), (1, at(29))].into());
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("no totals from n2: "), "{found:?}");
        assert!(
            found[1].contains("up to 10s before the end (on n1)") && found[1].contains("the agent gives no reason"),
            "{found:?}"
        );
        // Each true reason once; what is known up to the end is worth no word.
        let mut away = whole.clone();
        away.end_unseen = true;
        let mut unexplained = whole.clone();
        unexplained.tasks_missing = Some("it is so".to_owned());
        let known = allocation("n3", end, &["cpu/usage", "tasks/ended"]);
        let late = (0..4).map(|index| (index, at(20))).collect();
        let found = lines(&[away, unexplained.clone(), unexplained, known], &late);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].ends_with(": it is so") && found[1].ends_with(": the agent was not running at the end"),
            "{found:?}"
        );
        let many: Vec<JobAllocation> = (1..=6).map(|n| allocation(&format!("n{n}"), end, &[])).collect();
        assert!(lines(&many, &BTreeMap::new())[0].starts_with("no totals from n1 n2 n3 n4 and 2 more: "));
    }
}
