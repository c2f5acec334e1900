//! What the kernel counts: the layout of `struct totals` and `struct losses` in `programs.bpf.c`, and the sensors made of it.

use wholegrain_model::SensorDef;

/// The buckets of a histogram: bounds of 1 us to 2^24 us, and one for what is longer.
pub const BUCKETS: usize = 26;
/// The words of a histogram: its buckets, and its sum in ns.
const HISTOGRAM_WORDS: usize = BUCKETS + 1;
/// The words of `struct totals`: three histograms, and the retransmitted segments.
pub const TOTALS_WORDS: usize = 3 * HISTOGRAM_WORDS + 1;
/// The words of `struct losses`.
pub const LOSSES_WORDS: usize = 5;
/// The scale of sums: the kernel counts ns.
const NS: f64 = 1e-9;

/// A histogram of `struct totals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histogram {
    RunQueue,
    OffCpu,
    Block,
}

impl Histogram {
    /// The level in names of sensors.
    const fn name(self) -> &'static str {
        match self {
            Self::RunQueue => "run_queue_latency",
            Self::OffCpu => "off_cpu_time",
            Self::Block => "block_latency",
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::RunQueue => "Waits of tasks for a CPU",
            Self::OffCpu => "Times of tasks between leaving a CPU and running again",
            Self::Block => "Requests of block devices, from their creation to their completion",
        }
    }
}

/// One value of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotQuantity {
    /// The number of values up to the bound with this index.
    Bucket(Histogram, usize),
    Count(Histogram),
    Sum(Histogram),
    Retransmits,
}

impl SlotQuantity {
    /// The quantities of a histogram, in the order of their sensors.
    pub fn of(histogram: Histogram) -> impl Iterator<Item = Self> {
        let buckets = (0..BUCKETS).map(move |index| Self::Bucket(histogram, index));
        buckets.chain([Self::Count(histogram), Self::Sum(histogram)])
    }

    /// The sensor below `ebpf/` or `job/<level>/ebpf/`.
    pub fn sensor(self) -> SensorDef {
        match self {
            Self::Bucket(histogram, index) => SensorDef::counter(
                format!("{}/le={}/bucket", histogram.name(), bound(index)),
                "1",
                &format!("{}: up to {} s.", histogram.what(), bound(index)),
            ),
            Self::Count(histogram) => SensorDef::counter(
                format!("{}/count", histogram.name()),
                "1",
                &format!("{}: all of them.", histogram.what()),
            ),
            Self::Sum(histogram) => SensorDef::counter(
                format!("{}/sum", histogram.name()),
                "s",
                &format!("{}: the sum of their times.", histogram.what()),
            )
            .scaled(NS),
            Self::Retransmits => SensorDef::counter("tcp/retransmits", "1", "TCP segments that were sent again."),
        }
    }
}

/// The bound of a bucket in seconds.
fn bound(index: usize) -> String {
    if index + 1 == BUCKETS {
        return "Inf".to_owned();
    }
    // At most 2^24 us: exact, and written without an exponent.
    ((1_u32 << index) as f64 / 1e6).to_string()
}

/// The sum of one slot over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotTotals(pub [u64; TOTALS_WORDS]);

impl SlotTotals {
    #[cfg(test)]
    pub const ZERO: Self = Self([0; TOTALS_WORDS]);

    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut words = self.0;
        words.iter_mut().zip(before.0).for_each(|(word, before)| *word = word.wrapping_sub(before));
        Self(words)
    }

    fn histogram(&self, histogram: Histogram) -> &[u64] {
        &self.0[histogram as usize * HISTOGRAM_WORDS..][..HISTOGRAM_WORDS]
    }

    pub fn value(&self, quantity: SlotQuantity) -> u64 {
        match quantity {
            SlotQuantity::Bucket(of, index) => self.histogram(of)[..=index].iter().sum(),
            SlotQuantity::Count(of) => self.histogram(of)[..BUCKETS].iter().sum(),
            SlotQuantity::Sum(of) => self.histogram(of)[BUCKETS],
            SlotQuantity::Retransmits => self.0[TOTALS_WORDS - 1],
        }
    }
}

/// Adds the values of a per-CPU map, one after the other for each CPU.
pub fn sum_over_cpus<const WORDS: usize>(values: &[u64]) -> [u64; WORDS] {
    let mut sums = [0_u64; WORDS];
    for value in values.chunks_exact(WORDS) {
        sums.iter_mut().zip(value).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_double_from_a_microsecond() {
        let bounds: Vec<String> = (0..BUCKETS).map(bound).collect();
        assert_eq!(bounds[..4], ["0.000001", "0.000002", "0.000004", "0.000008"]);
        assert_eq!(bounds[20..], ["1.048576", "2.097152", "4.194304", "8.388608", "16.777216", "Inf"]);
    }

    #[test]
    fn buckets_are_cumulative_and_sums_exact() {
        let mut cpus = vec![0_u64; 3 * TOTALS_WORDS];
        // Off-CPU times on CPU 0 and 2; requests on CPU 1.
        cpus[27] = 2;
        cpus[27 + 25] = 1;
        cpus[27 + 26] = (1 << 63) - 5;
        cpus[TOTALS_WORDS + 54 + 3] = 7;
        cpus[2 * TOTALS_WORDS + 27 + 1] = 4;
        cpus[2 * TOTALS_WORDS + 27 + 26] = 3;
        cpus[3 * TOTALS_WORDS - 1] = 9;
        let totals = SlotTotals(sum_over_cpus(&cpus));
        let buckets: Vec<u64> =
            [0, 1, 24, 25].map(|index| totals.value(SlotQuantity::Bucket(Histogram::OffCpu, index))).to_vec();
        assert_eq!(buckets, [2, 6, 6, 7]);
        assert_eq!(totals.value(SlotQuantity::Count(Histogram::OffCpu)), 7);
        assert_eq!(totals.value(SlotQuantity::Sum(Histogram::OffCpu)), (1 << 63) - 2);
        assert_eq!(totals.value(SlotQuantity::Count(Histogram::Block)), 7);
        assert_eq!(totals.value(SlotQuantity::Count(Histogram::RunQueue)), 0);
        assert_eq!(totals.value(SlotQuantity::Retransmits), 9);
        assert_eq!(totals.since(&totals), SlotTotals::ZERO);
    }
}
