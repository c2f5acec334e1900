//! /proc/pressure/{cpu,memory,io} and a cgroup's {cpu,memory,io}.pressure: `some avg10=0.84 avg60=0.95 avg300=0.53 total=16914514` (Documentation/accounting/psi.rst).

use wholegrain_model::SensorDef;

use crate::kept::{Fill, Form, Parse};
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
}

impl Parse for PressureTable {
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
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
                    if values(&bytes[..next], at + name.len(), slots, fill).is_none() {
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

    fn slots(&self) -> Vec<u32> {
        self.lines.iter().flat_map(|(_, slots)| slots.iter().filter_map(|slot| *slot)).collect()
    }
}

fn is_known_and_whole(line: &[u8]) -> bool {
    line.ends_with(b"\n") && LINES.iter().any(|(name, _)| line.starts_with(name.as_bytes()))
}

fn values(bytes: &[u8], start: usize, slots: &[Slot], fill: &mut impl Fill) -> Option<()> {
    let mut at = start;
    for (slot, (field, prefix)) in slots.iter().zip(FIELDS) {
        bytes.get(at..)?.strip_prefix(prefix)?;
        at += prefix.len();
        let form = if field == "total" { Form::Int } else { Form::Hundredths };
        let number = if form == Form::Int { scan::int_at(bytes, at) } else { scan::hundredths_at(bytes, at) };
        let (value, end) = number.filter(|&(_, end)| scan::is_end_of_value(bytes, end))?;
        fill.number(*slot, value, at..end, form);
        at = end;
    }
    Some(())
}
