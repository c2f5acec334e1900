//! The files of a port that are not counters (Documentation/ABI/stable/sysfs-class-infiniband).

use wholegrain_model::SensorDef;

use crate::keyed::{KeyedFormat, TakeValue, ValueKey};
use crate::scan::{self, Cursor};

/// What a file of a port holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// A number and its name: `4: ACTIVE`
    State,
    /// A number and its name: `5: LinkUp`
    PhysicalState,
    /// A rate with the lanes: `100 Gb/sec (4X EDR)`
    Rate,
    /// The word `InfiniBand` or `Ethernet`
    Layer,
}

/// The files, by their names below the folder of a port.
pub const LINK_FILES: &[(&str, LinkKind)] = &[
    ("state", LinkKind::State),
    ("phys_state", LinkKind::PhysicalState),
    ("rate", LinkKind::Rate),
    ("link_layer", LinkKind::Layer),
];

/// The format of a file of a port.
pub struct LinkText {
    /// The levels before the name.
    pub folder: String,
    pub kind: LinkKind,
}

impl KeyedFormat for LinkText {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let mut take = |column, value| take(ValueKey { object: b"", name: b"", column }, value);
        let complete = text.strip_suffix(b"\n").filter(|_| !text.is_empty());
        let Some(line) = complete else { return Some(1) };
        let result = match self.kind {
            LinkKind::State | LinkKind::PhysicalState => number_before_colon(line).map(|value| take(0, value)),
            LinkKind::Rate => rate(line).map(|(tenths, lanes)| {
                take(0, tenths);
                take(1, lanes);
            }),
            LinkKind::Layer => layer(line).map(|value| take(0, value)),
        };
        if result.is_some() { None } else { Some(1) }
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let gauge =
            |name: &str, unit: &str, text: &str| SensorDef::gauge(format!("{}/{name}", self.folder), unit, text);
        Some(match (self.kind, key.column) {
            (LinkKind::State, _) => gauge(
                "state",
                "1",
                "State of the port: 0 no change, 1 down, 2 initializing, 3 armed, 4 active, 5 active deferred.",
            ),
            (LinkKind::PhysicalState, _) => gauge(
                "phys_state",
                "1",
                "Physical state: 0 no change, 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
            ),
            (LinkKind::Rate, 0) => gauge("rate", "bit/s", "Rate of the link.").scaled(1e8),
            (LinkKind::Rate, _) => gauge("lanes", "1", "Lanes of the link."),
            (LinkKind::Layer, _) => gauge("link_layer", "1", "Kind of the link: 0 other, 1 InfiniBand, 2 Ethernet."),
        })
    }
}

fn number_before_colon(line: &[u8]) -> Option<i64> {
    let mut cursor = Cursor::new(line);
    let value = cursor.int()?;
    cursor.literal(b": ")?;
    Some(value)
}

/// The rate in tenths of Gbit/s, and the lanes.
fn rate(line: &[u8]) -> Option<(i64, i64)> {
    let mut cursor = Cursor::new(line);
    let whole = cursor.int().filter(|whole| (0..1_000_000).contains(whole))?;
    let tenth = if cursor.literal(b".").is_some() { cursor.int().filter(|tenth| (0..10).contains(tenth))? } else { 0 };
    cursor.literal(b" Gb/sec (")?;
    let (lanes, end) = scan::int_at(line, cursor.position())?;
    line.get(end..)?.starts_with(b"X").then_some((whole * 10 + tenth, lanes))
}

fn layer(line: &[u8]) -> Option<i64> {
    match line {
        b"InfiniBand" => Some(1),
        b"Ethernet" => Some(2),
        other => (!other.is_empty() && other.iter().all(u8::is_ascii_graphic)).then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(kind: LinkKind, text: &str) -> Vec<i64> {
        let mut values = Vec::new();
        let format = LinkText { folder: String::new(), kind };
        let bad = format.walk(text.as_bytes(), &mut |_, value| values.push(value));
        assert_eq!(bad.is_some(), values.is_empty(), "{text}");
        values
    }

    #[test]
    fn files_of_ports() {
        for (kind, text, expected) in [
            (LinkKind::State, "4: ACTIVE\n", vec![4]),
            (LinkKind::State, "4\n", vec![]),
            (LinkKind::PhysicalState, "5: LinkUp\n", vec![5]),
            (LinkKind::Rate, "100 Gb/sec (4X EDR)\n", vec![1000, 4]),
            (LinkKind::Rate, "2.5 Gb/sec (1X SDR)\n", vec![25, 1]),
            (LinkKind::Rate, "100 Gb/sec (4X ED", vec![]),
            (LinkKind::Rate, "99999999999 Gb/sec (4X EDR)\n", vec![]),
            (LinkKind::Rate, "100 Mb/sec (4X EDR)\n", vec![]),
            (LinkKind::Layer, "InfiniBand\n", vec![1]),
            (LinkKind::Layer, "Ethernet\n", vec![2]),
            (LinkKind::Layer, "Unspecified\n", vec![0]),
            (LinkKind::Layer, "Ether", vec![]),
            (LinkKind::Layer, "", vec![]),
        ] {
            assert_eq!(values(kind, text), expected, "{kind:?} {text:?}");
        }
    }

    #[test]
    fn any_input() {
        for (kind, text) in [
            (LinkKind::State, "4: ACTIVE\n"),
            (LinkKind::Rate, "2.5 Gb/sec (1X SDR)\n"),
            (LinkKind::Layer, "InfiniBand\n"),
        ] {
            crate::keyed::checks::check_any_input(text.as_bytes(), || {
                Box::new(LinkText { folder: "f".to_owned(), kind })
            });
        }
    }
}
