//! The full parse: every value of a text goes straight into the row.

use std::ops::Range;

use super::interface::{NumberFormat, ValueSink};
use crate::plan::Slot;
use crate::reader::Row;

impl ValueSink for Row<'_> {
    #[inline(always)]
    fn number(&mut self, slot: Slot, value: i64, _at: Range<usize>, _format: NumberFormat) {
        self.calculated(slot, value);
    }

    #[inline(always)]
    fn calculated(&mut self, slot: Slot, value: i64) {
        if let Some(slot) = slot {
            self.set_int(slot as usize, value);
        }
    }
}
