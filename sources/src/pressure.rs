//! /proc/pressure/{cpu,memory,io} and a cgroup's {cpu,memory,io}.pressure: lines such as
//! `some avg10=0.84 avg60=0.95 avg300=0.53 total=16914514` (Documentation/accounting/psi.rst).

use wholegrain_model::SensorDef;

use crate::parse::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::{self, SensorPlan, Slot};
use crate::scan::{self, Cursor};

/// The values of a line, each with the text before it.
const FIELDS: [(&str, &[u8]); 4] =
    [("avg10", b" avg10="), ("avg60", b" avg60="), ("avg300", b" avg300="), ("total", b" total=")];

/// The lines, each with the tasks that it counts.
const LINES: [(&str, &str); 2] = [("some", "at least one task"), ("full", "every task that has work")];

/// The lines of one file, with the slots of their values.
#[derive(Debug, Default)]
pub struct PressureTable {
    lines: Vec<(&'static [u8], [Slot; FIELDS.len()])>,
}

/// Adds the sensors of a resource's file, `pressure/<resource>/<some|full>/<field>`.
pub fn plan(resource: &str, bytes: &[u8], plan: &mut SensorPlan<'_>) -> PressureTable {
    let mut table = PressureTable::default();
    for line in scan::lines(bytes) {
        let is_new = |name: &str| table.lines.iter().all(|(known, _)| *known != name.as_bytes());
        let Some((name, tasks)) = LINES.iter().find(|(name, _)| line.starts_with(name.as_bytes()) && is_new(name))
        else {
            plan.report(format!("pressure/{resource}: left out: {:?}", String::from_utf8_lossy(line)));
            continue;
        };
        let slots = FIELDS.map(|(field, _)| {
            let path = format!("pressure/{resource}/{name}/{field}");
            plan.add(match field {
                "total" => {
                    SensorDef::counter(path, "s", &format!("Time that {tasks} waited for {resource}.")).scaled(1e-6)
                }
                _ => SensorDef::gauge(
                    path,
                    "%",
                    &format!("Share of the last {} s that {tasks} waited for {resource}.", &field[3..]),
                )
                .scaled(0.01),
            })
        });
        table.lines.push((name.as_bytes(), slots));
    }
    table
}

impl PressureTable {
    /// The same lines with other slots: slot `n` becomes `slots[n]`.
    pub fn mapped(&self, slots: &[Slot]) -> Self {
        let lines = self.lines.iter().map(|(name, values)| (*name, values.map(|slot| plan::mapped(slot, slots))));
        Self { lines: lines.collect() }
    }
}

impl TextParser for PressureTable {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
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
                    if parse_fields(&bytes[..next], at + name.len(), slots, sink).is_none() {
                        outcome.bad_line(number);
                    }
                }
                None if is_known_and_complete(line) => outcome.layout_changed = true,
                None => outcome.bad_line(number),
            }
            at = next;
        }
        outcome.layout_changed |= seen.count_ones() as usize != self.lines.len();
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        self.lines.iter().flat_map(|(_, slots)| slots.iter().filter_map(|slot| *slot)).collect()
    }
}

fn is_known_and_complete(line: &[u8]) -> bool {
    line.ends_with(b"\n") && LINES.iter().any(|(name, _)| line.starts_with(name.as_bytes()))
}

fn parse_fields(bytes: &[u8], start: usize, slots: &[Slot], sink: &mut impl ValueSink) -> Option<()> {
    let mut cursor = Cursor::at(bytes, start);
    for (slot, (field, prefix)) in slots.iter().zip(FIELDS) {
        cursor.literal(prefix)?;
        let start = cursor.position();
        let format = if field == "total" { NumberFormat::Int } else { NumberFormat::Hundredths };
        let number = if format == NumberFormat::Int { cursor.int() } else { cursor.hundredths() };
        let value = number.filter(|_| cursor.is_end_of_value())?;
        sink.number(*slot, value, start..cursor.position(), format);
    }
    Some(())
}
