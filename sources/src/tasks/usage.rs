//! The counters of a process, and the sensors of a job that show their sums.

use wholegrain_model::SensorDef;

/// A counter: name below the job, unit, scale, description.
type CounterDef = (&'static str, &'static str, f64, &'static str);

pub(super) const RUN: usize = 0;
pub(super) const DELAY_CPU: usize = 1;
pub(super) const DELAY_BLKIO: usize = 3;
pub(super) const DELAY_SWAPIN: usize = 5;
pub(super) const DELAY_RECLAIM: usize = 7;
pub(super) const DELAY_THRASHING: usize = 9;
pub(super) const DELAY_COMPACT: usize = 11;
pub(super) const DELAY_WPCOPY: usize = 13;
pub(super) const DELAY_IRQ: usize = 15;
pub(super) const SWITCHES: usize = 17;
pub(super) const FAULTS: usize = 19;
/// The first counter of I/O. After a process has waited for a child, its counters of I/O include those of the child.
pub const IO: usize = 21;
pub(super) const COUNTERS: usize = 28;

/// The counters in the order of [`Usage`].
#[rustfmt::skip]
const TABLE: [CounterDef; COUNTERS] = [
    ("tasks/cpu/run", "s", 1e-9, "Time on a CPU, summed over threads."),
    ("tasks/delay/cpu/count", "1", 1.0, "Times that a thread waited for a CPU."),
    ("tasks/delay/cpu/total", "s", 1e-9, "Time that threads were ready and waited for a CPU."),
    ("tasks/delay/blkio/count", "1", 1.0, "Times that a thread waited for a block device."),
    ("tasks/delay/blkio/total", "s", 1e-9, "Time that threads waited for block devices."),
    ("tasks/delay/swapin/count", "1", 1.0, "Times that a thread waited for a page to be swapped in."),
    ("tasks/delay/swapin/total", "s", 1e-9, "Time that threads waited for pages to be swapped in."),
    ("tasks/delay/reclaim/count", "1", 1.0, "Times that a thread had to reclaim memory."),
    ("tasks/delay/reclaim/total", "s", 1e-9, "Time that threads spent on reclaiming memory."),
    ("tasks/delay/thrashing/count", "1", 1.0, "Times that a thread waited for a page that had been reclaimed shortly before."),
    ("tasks/delay/thrashing/total", "s", 1e-9, "Time that threads waited for pages that had been reclaimed shortly before."),
    ("tasks/delay/compact/count", "1", 1.0, "Times that a thread had to compact memory."),
    ("tasks/delay/compact/total", "s", 1e-9, "Time that threads spent on compacting memory."),
    ("tasks/delay/wpcopy/count", "1", 1.0, "Times that a thread copied a shared page to write to it."),
    ("tasks/delay/wpcopy/total", "s", 1e-9, "Time that threads spent on copying shared pages to write to them."),
    ("tasks/delay/irq/count", "1", 1.0, "Times that an interrupt held up a thread."),
    ("tasks/delay/irq/total", "s", 1e-9, "Time that interrupts held up threads."),
    ("tasks/switches/voluntary", "1", 1.0, "Context switches of threads that had to wait for something."),
    ("tasks/switches/involuntary", "1", 1.0, "Context switches of threads that could have continued."),
    ("tasks/faults/minor", "1", 1.0, "Page faults that needed no disk."),
    ("tasks/faults/major", "1", 1.0, "Page faults that needed a disk."),
    ("tasks/io/read_chars", "By", 1.0, "Read by system calls, from files in memory, pipes and terminals too."),
    ("tasks/io/write_chars", "By", 1.0, "Written by system calls, to files in memory, pipes and terminals too."),
    ("tasks/io/read_calls", "1", 1.0, "System calls that read."),
    ("tasks/io/write_calls", "1", 1.0, "System calls that write."),
    ("tasks/io/read_bytes", "By", 1.0, "Fetched from storage."),
    ("tasks/io/write_bytes", "By", 1.0, "Sent to storage, or bound for it."),
    ("tasks/io/cancelled_write_bytes", "By", 1.0, "Bound for storage and not sent, as the file was truncated or removed before."),
];

/// The number of gauges, which precede the counters.
pub const GAUGES: usize = 4;
/// The index of the number of ended processes, after the gauges.
pub const ENDED: usize = GAUGES;

/// The counters of a process since it began, in raw units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage(pub [u64; COUNTERS]);

impl Default for Usage {
    fn default() -> Self {
        Self([0; COUNTERS])
    }
}

impl Usage {
    /// Adds the counters `from..to` of `other`.
    pub fn add(&mut self, other: &Self, from: usize, to: usize) {
        for index in from..to {
            self.0[index] = self.0[index].wrapping_add(other.0[index]);
        }
    }

    /// Raises each counter to that of `other`: two views of the same process, each of which may lack some counts.
    pub fn raise(&mut self, other: &Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(other);
        }
    }
}

/// The gauges of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessGauges {
    pub threads: u64,
    pub rss_bytes: u64,
    pub peak_rss_bytes: u64,
}

/// All sensors, also those that this machine lacks: gauges, the number of ended processes, counters.
pub fn sensors() -> Vec<SensorDef> {
    let mut sensors = vec![
        SensorDef::gauge("tasks/processes", "1", "Processes."),
        SensorDef::gauge("tasks/threads", "1", "Threads."),
        SensorDef::gauge(
            "tasks/memory/rss",
            "By",
            "Resident memory, summed over processes: shared pages count in each.",
        ),
        SensorDef::gauge(
            "tasks/memory/peak_rss",
            "By",
            "The most resident memory of each process, summed over the processes that run.",
        ),
        SensorDef::counter("tasks/ended", "1", "Processes that have ended and were counted."),
    ];
    let counters = TABLE.iter();
    sensors.extend(counters.map(|(name, unit, scale, text)| SensorDef::counter(*name, unit, text).scaled(*scale)));
    sensors
}
