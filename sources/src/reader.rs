//! One sample: the row that a reader fills, and the result of a read.

/// Reads one group, on the sampling thread.
pub trait Reader: Send {
    /// Fills `row`, in which every sensor is a gap at first. A value that cannot be read stays a gap.
    fn read(&mut self, row: &mut Row<'_>) -> Reading;
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// The source has sensors that the group lacks, or lost some: the agent runs discovery again.
    pub layout_changed: bool,
    /// The first error. The agent counts errors, and logs one until a read succeeds again.
    pub problem: Option<ReadProblem>,
    /// The object of the reads no longer exists, such as a job that has ended. The agent takes no sample from this read.
    pub gone: bool,
    /// When the values were taken, in ns since the epoch, for a device that answered before this read. `None`: at the tick.
    pub taken_at: Option<i64>,
    /// There are no values since the last read. The agent takes no sample from this read.
    pub unchanged: bool,
}

impl Reading {
    /// All values were read at the tick.
    pub const COMPLETE: Self =
        Self { layout_changed: false, problem: None, gone: false, taken_at: None, unchanged: false };
}

/// Why a read left gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadProblem {
    /// A file could not be opened or read.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The file below its root, or its kind.
        what: &'static str,
        errno: i32,
    },
    /// The content of a file does not match its format.
    #[error("{what}: line {line} does not match the format")]
    Garbage {
        /// The file below its root, or its kind.
        what: &'static str,
        /// The first bad line, from 1.
        line: u32,
    },
    /// What a plug-in says.
    #[error("{text}")]
    Message { text: &'static str },
}

/// The words of the gap bits of `count` sensors from `first` on, each with the mask of these sensors.
fn gap_masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.saturating_sub(word * 64), (end - word * 64).min(64));
        (word, u64::MAX >> (64 - (to - from)) << from)
    })
}

/// One sample while it is filled: 64 bits for each sensor, and a bit for each gap.
pub struct Row<'a> {
    values: &'a mut [u64],
    gaps: &'a mut [u64],
}

impl<'a> Row<'a> {
    /// Takes one word for each sensor in `values` and one word for each 64 sensors in `gaps`. Every sensor is a gap at first.
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

    /// Sets sensor `index` to an integer.
    #[inline]
    pub fn set_int(&mut self, index: usize, value: i64) {
        self.values[index] = value as u64;
        self.gaps[index / 64] &= !(1 << (index % 64));
    }

    /// Sets sensor `index` to a float.
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

    /// Sets consecutive sensors from `first` on to values of 64 bits each.
    pub(crate) fn set_range(&mut self, first: usize, values: &[u64]) {
        self.values[first..first + values.len()].copy_from_slice(values);
        gap_masks(first, values.len()).for_each(|(word, mask)| self.gaps[word] &= !mask);
    }

    /// Whether none of the `count` sensors from `first` on is a gap.
    pub(crate) fn has_range(&self, first: usize, count: usize) -> bool {
        gap_masks(first, count).all(|(word, mask)| self.gaps[word] & mask == 0)
    }

    /// The 64 bits of each of `count` sensors from `first` on; zeros for gaps.
    pub(crate) fn values(&self, first: usize, count: usize) -> &[u64] {
        &self.values[first..first + count]
    }

    /// Sets every sensor. `bits` returns the 64 bits for an index: an `i64` as `u64`, or [`f64::to_bits`].
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
