//! LNet: counts of messages, interfaces and peers (lnet/lnet/router_proc.c).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::objects::{BoundedObjects, ObjectState};
use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};
use crate::scan;

/// The numbers of `stats`: name, unit, whether it is a counter, description.
const STATS: [(&str, &str, bool, &str); 11] = [
    ("messages", "1", false, "Messages in progress."),
    ("messages_max", "1", false, "The most messages in progress at a time."),
    ("errors", "1", true, "Errors."),
    ("sent", "1", true, "Messages sent."),
    ("received", "1", true, "Messages received."),
    ("routed", "1", true, "Messages routed for others."),
    ("dropped", "1", true, "Messages dropped."),
    ("sent_bytes", "By", true, "Bytes sent."),
    ("received_bytes", "By", true, "Bytes received."),
    ("routed_bytes", "By", true, "Bytes routed for others."),
    ("dropped_bytes", "By", true, "Bytes dropped."),
];

/// The format of `stats`: one line of numbers.
pub struct LnetStats;

impl KeyedFormat for LnetStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            for (column, word) in words(line).take(STATS.len()).enumerate() {
                take(ValueKey { object: b"", name: b"", column }, whole_int(word)?);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let (name, unit, is_counter, text) = STATS.get(key.column)?;
        let name = format!("lustre/lnet/{name}");
        Some(if *is_counter { SensorDef::counter(name, unit, text) } else { SensorDef::gauge(name, unit, text) })
    }
}

/// A table with a line for each NID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// `nis`, with a line for each set of CPUs of an interface.
    Interfaces,
    Peers,
}

/// A column that has a sensor: its position after the NID, name and description. Columns without one are settings.
type TableColumn = (usize, &'static str, &'static str);

/// nid status alive refs peer rtr max tx min
const INTERFACES: &[TableColumn] = &[
    (0, "up", "1 if the interface is up, otherwise 0."),
    (2, "references", "References to the interface."),
    (5, "credits_max", "Messages that can be sent at a time."),
    (6, "credits", "Further messages that can be sent now; below 0: messages that wait."),
    (7, "credits_min", "The lowest value of credits."),
];

/// nid refs state last max rtr min tx min queue
const PEERS: &[TableColumn] = &[
    (0, "references", "References to the peer."),
    (1, "up", "1 if the peer is up, otherwise 0."),
    (3, "credits_max", "Messages that can be sent to the peer at a time."),
    (6, "credits", "Further messages that can be sent now; below 0: messages that wait."),
    (7, "credits_min", "The lowest value of credits."),
    (8, "queued_bytes", "Bytes that wait to be sent."),
];

impl TableKind {
    const fn columns(self) -> &'static [TableColumn] {
        match self {
            Self::Interfaces => INTERFACES,
            Self::Peers => PEERS,
        }
    }
}

/// The column of the next line of the same NID.
const LINE_COLUMNS: usize = 100;

/// The format of `nis` and `peers`.
pub struct LnetTable {
    pub table: TableKind,
    pub nids: BoundedObjects,
}

/// The NIDs in a table.
pub fn nids(text: &[u8]) -> Vec<&[u8]> {
    scan::lines(text).filter_map(|line| words(line).next()).filter(|nid| *nid != b"nid").collect()
}

impl KeyedFormat for LnetTable {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let (mut previous, mut line_of_nid, mut left_out): (&[u8], usize, i64) = (b"", 0, 0);
        let bad = each_line(text, |line| {
            let mut words = words(line);
            let Some(nid) = words.next().filter(|nid| *nid != b"nid") else { return Some(()) };
            line_of_nid = if nid == previous { line_of_nid + 1 } else { 0 };
            previous = nid;
            match self.nids.state(nid) {
                ObjectState::Sampled => {}
                ObjectState::Filtered => return Some(()),
                ObjectState::LeftOut => {
                    left_out += 1;
                    return Some(());
                }
            }
            for (column, word) in words.enumerate() {
                let Some((_, name, _)) = self.table.columns().iter().find(|(at, ..)| *at == column) else { continue };
                let value = match (*name, word) {
                    ("up", b"up") => 1,
                    ("up", b"down") => 0,
                    // A peer that is not a router has no state.
                    ("up", b"NA" | b"~rtr") => continue,
                    ("up", _) => return None,
                    (_, word) => whole_int(word)?,
                };
                let column = column + LINE_COLUMNS * line_of_nid;
                take(ValueKey { object: nid, name: b"", column }, value);
            }
            Some(())
        });
        if bad.is_none() && self.table == TableKind::Peers {
            take(ValueKey { object: b"", name: b"peers_left_out", column: 0 }, left_out);
        }
        bad
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        if key.object.is_empty() {
            let text = "Peers without sensors, as peers_max have them already.";
            return Some(SensorDef::gauge("lustre/lnet/peers_left_out", "1", text));
        }
        let nid = sanitize_level(&String::from_utf8_lossy(key.object));
        let (line, column) = (key.column / LINE_COLUMNS, key.column % LINE_COLUMNS);
        let folder = match self.table {
            TableKind::Interfaces => format!("lustre/lnet/interfaces/{nid}/{line}"),
            TableKind::Peers if line == 0 => format!("lustre/lnet/peers/{nid}"),
            TableKind::Peers => return None,
        };
        let (_, name, text) = self.table.columns().iter().find(|(at, ..)| *at == column)?;
        let unit = if *name == "queued_bytes" { "By" } else { "1" };
        Some(SensorDef::gauge(format!("{folder}/{name}"), unit, text))
    }
}
