//! Mean rates of windows: the change divided by its time, so that each change is weighted by its duration.

use wholegrain_model::Value;

use super::{ChunkBuilder, FoldedWindows, WindowFold};
use crate::error::QueryError;
use crate::float_sum::FloatSum;
use crate::line_segment::NS_PER_S;
use crate::ops::ValueChange;
use crate::scale::Scale;
use crate::windows::Windows;

/// The changes of each window divided by their time, in unit/s.
pub(crate) struct WeightedMeans {
    windows: Windows,
    scale: Scale,
    open: Option<OpenSumWindow>,
    out: ChunkBuilder,
}

struct OpenSumWindow {
    start: i64,
    end: i64,
    by: FloatSum,
    ns: i128,
}

impl WeightedMeans {
    pub(crate) fn of<I>(changes: I, windows: Windows, scale: Scale) -> FoldedWindows<I, Self> {
        FoldedWindows::new(changes, Self { windows, scale, open: None, out: ChunkBuilder::new(false) })
    }

    fn close(&mut self) {
        if let Some(OpenSumWindow { start, by, ns, .. }) = self.open.take() {
            let rate = self.scale.apply(by.total()) / (ns as f64 / NS_PER_S);
            self.out.push(start, (!rate.is_nan()).then_some(Value::Float(rate)));
        }
    }
}

impl WindowFold<ValueChange> for WeightedMeans {
    fn take(&mut self, change: ValueChange) -> Result<(), QueryError> {
        let ValueChange { time, by, ns } = change;
        let is_other = |open: &OpenSumWindow| time >= open.end && open.start != self.windows.start(time);
        if self.open.as_ref().is_some_and(is_other) {
            self.close();
        }
        let fresh = || {
            let (start, end) = (self.windows.start(time), self.windows.end(time));
            OpenSumWindow { start, end, by: FloatSum::default(), ns: 0 }
        };
        let open = self.open.get_or_insert_with(fresh);
        open.by.add(by);
        open.ns += i128::from(ns);
        Ok(())
    }

    fn end(&mut self) -> Result<(), QueryError> {
        self.close();
        Ok(())
    }

    fn out(&mut self) -> &mut ChunkBuilder {
        &mut self.out
    }
}
