//! Reads the counts of the node, or of one job.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_sources::{ReadProblem, Reader, Reading, Row};

use crate::counts::{SlotQuantity, SlotTotals};
use crate::kernel::KernelPrograms;
use crate::records::RecordReader;
use crate::slots::{JobMaps, JobSlot, JobSlots};

/// The slot of the node.
const NODE: u32 = 0;

/// The programs in the kernel, and the jobs that they count.
pub struct EbpfState {
    pub kernel: KernelPrograms,
    pub slots: JobSlots,
    /// `None` without sensors of jobs.
    pub records: Option<RecordReader>,
}

impl EbpfState {
    /// Tells the kernel which jobs run. Whether others are counted than before.
    pub fn update_jobs(&mut self) -> Result<bool, String> {
        let Some(records) = &mut self.records else { return Ok(false) };
        let running = records.refresh()?;
        self.slots.update(running, &mut self.kernel).map_err(|error| format!("the kernel's map of jobs: {error}"))
    }
}

/// The state, which readers and discovery share.
pub type SharedState = Arc<Mutex<Option<EbpfState>>>;

pub fn lock(state: &Mutex<Option<EbpfState>>) -> MutexGuard<'_, Option<EbpfState>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn problem(error: &io::Error) -> ReadProblem {
    ReadProblem::Os { what: "bpf(2)", errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// What is lost, by sensor; the first four in the order of `struct losses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeQuantity {
    Counted(SlotQuantity),
    Lost(usize),
    Nested,
    Jobs,
    JobsLeftOut,
}

/// Reads the node's counts.
pub struct NodeReader {
    pub state: SharedState,
    /// In the order of the row.
    pub quantities: Vec<NodeQuantity>,
}

impl Reader for NodeReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut state = lock(&self.state);
        let Some(state) = &mut *state else { return Reading::COMPLETE };
        // What is wrong with the records is reported by the discovery.
        let changed = state.update_jobs().unwrap_or(false);
        let mut reading = Reading { layout_changed: changed, ..Reading::COMPLETE };
        let read = state.kernel.read(NODE).and_then(|totals| Ok((totals, state.kernel.losses()?)));
        let (totals, losses) = match read {
            Ok(read) => read,
            Err(error) => {
                reading.problem = Some(problem(&error));
                return reading;
            }
        };
        for (index, quantity) in self.quantities.iter().enumerate() {
            let value = match *quantity {
                NodeQuantity::Counted(quantity) => totals.value(quantity),
                NodeQuantity::Lost(reason) => losses.by_reason[reason],
                NodeQuantity::Nested => losses.nested,
                NodeQuantity::Jobs => state.slots.count() as u64,
                NodeQuantity::JobsLeftOut => state.slots.left_out() as u64,
            };
            row.set_int(index, value as i64);
        }
        reading
    }
}

/// Reads the counts of a job.
pub struct JobReader {
    pub state: SharedState,
    pub level: String,
    pub job: JobSlot,
    pub quantities: Vec<SlotQuantity>,
}

impl Reader for JobReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut state = lock(&self.state);
        let Some(state) = &mut *state else { return Reading::COMPLETE };
        if !state.slots.has(&self.level, self.job.epoch) {
            return Reading { gone: true, ..Reading::COMPLETE };
        }
        let totals: SlotTotals = match state.kernel.read(self.job.slot) {
            Ok(totals) => totals.since(&self.job.before),
            Err(error) => return Reading { problem: Some(problem(&error)), ..Reading::COMPLETE },
        };
        for (index, quantity) in self.quantities.iter().enumerate() {
            row.set_int(index, totals.value(*quantity) as i64);
        }
        Reading::COMPLETE
    }
}
