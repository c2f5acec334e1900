//! What can be sampled. One folder a source, one line in [`SOURCES`].
//!
//! - In: a table of the configuration and the roots of /proc, /sys and the cgroup tree.
//! - Out: groups ([`GroupPlan`]) with their sensors and a [`Reader`] that fills a [`Row`].
//! - Never: a thread, a clock, a network; and in [`Reader::read`] no allocation, no lock, no path look-up once warm.
//!
//! # Adding a source
//!
//! 1. A folder `src/<name>/` with `mod.rs` and `README.md` (what it reads, its keys, its sensors with their units, what a read
//!    costs). `mod.rs` has `pub const SOURCE: SourceType` whose `configure` reads the source's own table into its own type
//!    with `#[serde(deny_unknown_fields)]`; nothing outside the folder knows that type.
//! 2. One line in [`SOURCES`], and `pub mod <name>;` above it.
//! 3. A parser takes bytes and a [`Row`] and does no I/O, so that it is tested on bytes alone; the reader around it keeps its
//!    files open. What a file gives goes under `fixtures/`, and `UPDATE_EXPECT=1 cargo test -p wholegrain-sources` writes the
//!    new sensors into `fixtures/golden.txt`, where the review sees them.

mod file;
mod kept;
mod options;
mod plan;
mod pressure;
mod scan;
mod table;
#[cfg(test)]
mod testing;

pub mod cgroup;
pub mod descriptors;
pub mod job;
pub mod perf;
pub mod procfs;
pub mod sysfs;
pub mod tasks;
pub mod tester;

use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

pub use plan::Slot;

/// Every source there is, in the order in which they are listed to people. A new source is one line here.
pub static SOURCES: &[SourceType] =
    &[procfs::SOURCE, sysfs::SOURCE, cgroup::SOURCE, tasks::SOURCE, perf::SOURCE, tester::SOURCE];

/// Where the kernel's trees are mounted; moved in tests to recorded trees.
#[derive(Debug, Clone)]
pub struct Roots {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

/// A kind of source: what `[sources.<name>]` in the configuration makes.
#[derive(Clone, Copy)]
pub struct SourceType {
    /// The name in the configuration, such as `procfs`.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Reads the table of the configuration, opens nothing yet.
    pub configure: Configure,
    /// The same for its job scope, if it has one; both read the same table.
    pub jobs: Option<job::ConfigureJobs>,
}

/// Makes a source of its table.
pub type Configure = fn(&Section, &Roots) -> Result<Box<dyn Source>, ConfigError>;

/// A configured source.
pub trait Source: Send {
    /// Looks at the system and says which groups there are now. Called off the sampling path: at start, when a reader says
    /// that its layout changed, and at every rescan. Cheap enough for every few seconds. What is absent on this machine is
    /// left out and told to `report` (one line for people each, the caller logs each text once).
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan>;

    /// Groups that the last look could not see, though they may be there as before: their files could not be opened for want of
    /// rights, descriptors or memory. Those that run go on as they are, and are looked for again.
    fn unseen(&self) -> &[&'static str] {
        &[]
    }
}

/// A group that a source offers: sampled together, at one instant, at one interval.
pub struct GroupPlan {
    /// Name below the agent's prefix, such as `meminfo` or `net/dev`. Unique within the agent.
    pub name: String,
    /// The sensors in the row's order; names below the agent's prefix, such as `meminfo/MemFree`.
    pub sensors: Vec<SensorDef>,
    /// Reads them.
    pub reader: Box<dyn Reader>,
    /// When to read them.
    pub timing: Timing,
    /// Whether a read can take long (a device that may hang): such a group is read on a thread of its source's own.
    pub blocking: bool,
}

/// When a group is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The interval; `None` for the agent's default.
    pub interval: Option<Interval>,
    /// Added to the wall-clock multiples of the interval.
    pub offset: Interval,
    /// On wall-clock multiples of the interval (true) or free-running from the start (false).
    pub synchronous: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self { interval: None, offset: Interval::default(), synchronous: true }
    }
}

/// Reads one group. Lives on the sampling thread.
pub trait Reader: Send {
    /// Fills `row`, which comes with every sensor a gap. What cannot be read stays a gap.
    fn read(&mut self, row: &mut Row<'_>) -> Reading;
}

/// How a read went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// The source has shown sensors that the group does not have, or no longer has some: discover again.
    pub layout_changed: bool,
    /// What went wrong, if anything did; the agent counts it, and reports it once until a read is good again.
    pub problem: Option<ReadProblem>,
    /// What is read is no more, such as a job that has ended: no sample is made of this read.
    pub gone: bool,
}

/// Why a read gave gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadProblem {
    /// A file could not be opened or read: the `errno`.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The file below its root, or its kind.
        what: &'static str,
        /// The error number.
        errno: i32,
    },
    /// A file's content is not what its format says.
    #[error("{what}: line {line} is not as the format says")]
    Garbage {
        /// The file below its root, or its kind.
        what: &'static str,
        /// The first bad line, from 1.
        line: u32,
    },
}

/// The words of gaps that sensors side by side have a part of, and which.
fn side_by_side(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.saturating_sub(word * 64), (end - word * 64).min(64));
        (word, u64::MAX >> (64 - (to - from)) << from)
    })
}

/// One sample being made: a slot of 64 bits for each sensor, and which of them are gaps.
pub struct Row<'a> {
    values: &'a mut [u64],
    gaps: &'a mut [u64],
}

impl<'a> Row<'a> {
    /// Takes the slots, one for each sensor, and the gap bits, one 64-bit word for 64 sensors; marks everything a gap.
    pub fn new(values: &'a mut [u64], gaps: &'a mut [u64]) -> Self {
        values.fill(0);
        gaps.fill(0);
        for (index, word) in gaps.iter_mut().enumerate() {
            let left = values.len() - index * 64;
            *word = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        }
        Self { values, gaps }
    }

    /// The number of sensors.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the row has no sensors.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Gives sensor `index` an integer.
    #[inline]
    pub fn set_int(&mut self, index: usize, value: i64) {
        self.values[index] = value as u64;
        self.gaps[index / 64] &= !(1 << (index % 64));
    }

    /// Gives sensor `index` a float.
    #[inline]
    pub fn set_float(&mut self, index: usize, value: f64) {
        self.values[index] = value.to_bits();
        self.gaps[index / 64] &= !(1 << (index % 64));
    }

    /// Makes sensor `index` a gap again.
    #[inline]
    pub fn set_gap(&mut self, index: usize) {
        self.values[index] = 0;
        self.gaps[index / 64] |= 1 << (index % 64);
    }

    /// Gives sensors from `first` on, side by side, values as 64 bits each.
    pub(crate) fn set_side_by_side(&mut self, first: usize, values: &[u64]) {
        self.values[first..first + values.len()].copy_from_slice(values);
        side_by_side(first, values.len()).for_each(|(word, bits)| self.gaps[word] &= !bits);
    }

    /// Whether none of `count` sensors from `first` on is a gap.
    pub(crate) fn is_set_side_by_side(&self, first: usize, count: usize) -> bool {
        side_by_side(first, count).all(|(word, bits)| self.gaps[word] & bits == 0)
    }

    /// The 64 bits of sensors from `first` on; zeros for gaps that nobody has set.
    pub(crate) fn values(&self, first: usize, count: usize) -> &[u64] {
        &self.values[first..first + count]
    }

    /// Gives every sensor a value: `bits` makes the 64 bits (an `i64` as `u64`, or [`f64::to_bits`]) from the index.
    #[inline]
    pub fn set_all(&mut self, mut bits: impl FnMut(usize) -> u64) {
        for (index, value) in self.values.iter_mut().enumerate() {
            *value = bits(index);
        }
        self.gaps.fill(0);
    }

    /// The integer of sensor `index`; `None` for a gap.
    pub fn int(&self, index: usize) -> Option<i64> {
        (self.gaps[index / 64] >> (index % 64) & 1 == 0).then(|| self.values[index] as i64)
    }
}
