//! /proc/loadavg: `0.24 0.16 0.15 1/91 10625` (proc_loadavg(5)).

use wholegrain_model::SensorDef;

use crate::kept::{Fill, Form, Parse};
use crate::plan::{Plan, Slot};
use crate::scan;
use crate::table::Parsed;

/// Where the values go: the three loads, the runnable and all threads.
#[derive(Debug)]
pub struct LoadTable([Slot; 5]);

/// Takes the sensors `loadavg/1min`, `5min`, `15min`, `runnable` and `threads`.
pub fn plan(plan: &mut Plan<'_>) -> LoadTable {
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

impl Parse for LoadTable {
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
        let garbage = self.values(bytes, fill).is_none().then_some(1);
        Parsed { layout_changed: false, garbage }
    }

    fn slots(&self) -> Vec<u32> {
        self.0.iter().filter_map(|slot| *slot).collect()
    }
}

impl LoadTable {
    fn values(&self, bytes: &[u8], fill: &mut impl Fill) -> Option<()> {
        let mut at = 0;
        for slot in &self.0[..3] {
            let (load, end) = scan::hundredths_at(bytes, at).filter(|&(_, end)| bytes.get(end) == Some(&b' '))?;
            fill.number(*slot, load, at..end, Form::Hundredths);
            at = end + 1;
        }
        let (runnable, end) = scan::int_at(bytes, at).filter(|&(_, end)| bytes.get(end) == Some(&b'/'))?;
        fill.number(self.0[3], runnable, at..end, Form::Int);
        let at = end + 1;
        let (threads, end) = scan::int_at(bytes, at).filter(|&(_, end)| scan::is_end_of_value(bytes, end))?;
        fill.number(self.0[4], threads, at..end, Form::Int);
        // The newest process.
        fill.passed_over(end + 1..scan::next_line(bytes, end).saturating_sub(1));
        Some(())
    }
}
