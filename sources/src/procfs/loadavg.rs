//! /proc/loadavg: `0.24 0.16 0.15 1/91 10625` (proc_loadavg(5)).

use wholegrain_model::SensorDef;

use crate::parse::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::{SensorPlan, Slot};
use crate::scan::{self, Cursor};

/// The slots of the three loads, of the runnable threads and of all threads.
#[derive(Debug)]
pub struct LoadTable([Slot; 5]);

/// Adds the sensors `loadavg/1min`, `5min`, `15min`, `runnable` and `threads`.
pub fn plan(plan: &mut SensorPlan<'_>) -> LoadTable {
    let load = |name: &str, of: &str| {
        let description =
            format!("Threads that run, could run or wait for a disk: mean that forgets with a time constant of {of}.");
        SensorDef::gauge(format!("loadavg/{name}"), "1", &description).scaled(0.01)
    };
    LoadTable([
        plan.add(load("1min", "1 minute")),
        plan.add(load("5min", "5 minutes")),
        plan.add(load("15min", "15 minutes")),
        plan.add(SensorDef::gauge("loadavg/runnable", "1", "Threads that run or could run now.")),
        plan.add(SensorDef::gauge("loadavg/threads", "1", "Threads that there are.")),
    ])
}

impl TextParser for LoadTable {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let garbage = self.parse_line(bytes, sink).is_none().then_some(1);
        ParseOutcome { layout_changed: false, garbage }
    }

    fn slots(&self) -> Vec<u32> {
        self.0.iter().filter_map(|slot| *slot).collect()
    }
}

impl LoadTable {
    fn parse_line(&self, bytes: &[u8], sink: &mut impl ValueSink) -> Option<()> {
        let mut cursor = Cursor::new(bytes);
        for slot in &self.0[..3] {
            let start = cursor.position();
            let load = cursor.hundredths()?;
            let end = cursor.position();
            cursor.literal(b" ")?;
            sink.number(*slot, load, start..end, NumberFormat::Hundredths);
        }
        let start = cursor.position();
        let runnable = cursor.int()?;
        let end = cursor.position();
        cursor.literal(b"/")?;
        sink.number(self.0[3], runnable, start..end, NumberFormat::Int);
        let start = cursor.position();
        let threads = cursor.int().filter(|_| cursor.is_end_of_value())?;
        let end = cursor.position();
        sink.number(self.0[4], threads, start..end, NumberFormat::Int);
        // The number of the newest process follows.
        sink.ignored(end + 1..scan::next_line(bytes, end).saturating_sub(1));
        Some(())
    }
}
