//! /proc/pressure/{cpu,memory,io} and a cgroup's {cpu,memory,io}.pressure: `some avg10=0.84 avg60=0.95 avg300=0.53 total=16914514` (Documentation/accounting/psi.rst).

use wholegrain_model::SensorDef;

use crate::Row;
use crate::plan::{Plan, Slot};
use crate::scan;
use crate::table::Parsed;

/// What the values of a line are, with what stands before each.
const FIELDS: [(&str, &[u8]); 4] =
    [("avg10", b" avg10="), ("avg60", b" avg60="), ("avg300", b" avg300="), ("total", b" total=")];

/// The lines there can be, with whom they tell of.
const LINES: [(&str, &str); 2] = [("some", "at least one task"), ("full", "every task that has work")];

/// Where the values of one file go.
#[derive(Debug, Default)]
pub struct PressureTable {
    lines: Vec<(&'static [u8], [Slot; FIELDS.len()])>,
}

/// Takes the sensors of one resource's file, named `pressure/<resource>/<some|full>/<field>`.
pub fn plan(resource: &str, bytes: &[u8], plan: &mut Plan<'_>) -> PressureTable {
    let mut table = PressureTable::default();
    for line in scan::lines(bytes) {
        let is_new = |name: &str| table.lines.iter().all(|(known, _)| *known != name.as_bytes());
        let Some((name, who)) = LINES.iter().find(|(name, _)| line.starts_with(name.as_bytes()) && is_new(name)) else {
            plan.report(format!("pressure/{resource}: left out: {:?}", String::from_utf8_lossy(line)));
            continue;
        };
        let slots = FIELDS.map(|(field, _)| {
            let path = format!("pressure/{resource}/{name}/{field}");
            plan.add(match field {
                "total" => {
                    SensorDef::counter(path, "s", &format!("Time that {who} waited for {resource}.")).scaled(1e-6)
                }
                _ => SensorDef::gauge(
                    path,
                    "%",
                    &format!("Share of the last {} s that {who} waited for {resource}.", &field[3..]),
                )
                .scaled(0.01),
            })
        });
        table.lines.push((name.as_bytes(), slots));
    }
    table
}

impl PressureTable {
    /// The same lines with their values elsewhere: what went to `n` goes to `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        let place = |slot: Slot| slot.and_then(|slot| slots.get(slot as usize).copied().flatten());
        Self { lines: self.lines.iter().map(|(name, values)| (*name, values.map(place))).collect() }
    }

    /// Reads a file's content into the row.
    pub fn parse(&self, bytes: &[u8], row: &mut Row<'_>) -> Parsed {
        let mut parsed = Parsed::default();
        let (mut at, mut number) = (0, 0);
        let mut seen = 0u32;
        while at < bytes.len() {
            number += 1;
            let next = scan::next_line(bytes, at);
            let line = &bytes[at..next];
            match self.lines.iter().position(|(name, _)| line.starts_with(name)) {
                Some(index) => {
                    let (name, slots) = &self.lines[index];
                    seen |= 1 << index;
                    if values(&line[name.len()..], slots, row).is_none() {
                        parsed.bad_line(number);
                    }
                }
                None if is_known_and_whole(line) => parsed.layout_changed = true,
                None => parsed.bad_line(number),
            }
            at = next;
        }
        parsed.layout_changed |= seen.count_ones() as usize != self.lines.len();
        parsed
    }
}

fn is_known_and_whole(line: &[u8]) -> bool {
    line.ends_with(b"\n") && LINES.iter().any(|(name, _)| line.starts_with(name.as_bytes()))
}

fn values(line: &[u8], slots: &[Slot], row: &mut Row<'_>) -> Option<()> {
    let mut rest = line;
    for (slot, (field, prefix)) in slots.iter().zip(FIELDS) {
        rest = rest.strip_prefix(prefix)?;
        let number = if field == "total" { scan::int_at(rest, 0) } else { scan::hundredths_at(rest, 0) };
        let (value, end) = number.filter(|&(_, end)| scan::is_end_of_value(rest, end))?;
        if let Some(slot) = *slot {
            row.set_int(slot as usize, value);
        }
        rest = &rest[end..];
    }
    Some(())
}
