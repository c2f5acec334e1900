//! A group's newest samples. The sampler writes without waiting; any thread reads under a sequence lock.
//!
//! Each slot has a sequence word: `2n + 1` while sample `n` is being written, `2n + 2` once it is complete. A reader copies the slot and then checks
//! that the word has not changed. All words are atomics, so that a torn read gives a wrong number at worst, which the check discards.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use wholegrain_transport::payload::Rows;

/// Words of a slot before its values: sequence, time, interval.
const HEAD_WORDS: usize = 3;

/// Sensors that are compared side by side: as many values as a cache line holds.
const ABREAST: usize = 8;

/// A ring of whole samples with one writer and any number of readers.
#[derive(Debug)]
pub struct Ring {
    sensors: usize,
    stride: usize,
    capacity: usize,
    words: Box<[AtomicU64]>,
    head: AtomicU64,
}

impl Ring {
    /// A ring of `capacity` samples (at least 2) of `sensors` values each.
    pub fn new(sensors: usize, capacity: usize) -> Self {
        let capacity = capacity.max(2);
        let stride = HEAD_WORDS + sensors + sensors.div_ceil(64);
        let words = (0..stride * capacity).map(|_| AtomicU64::new(0)).collect();
        Self { sensors, stride, capacity, words, head: AtomicU64::new(0) }
    }

    /// The size of one sample.
    pub fn row_bytes(sensors: usize) -> usize {
        (HEAD_WORDS + sensors + sensors.div_ceil(64)) * 8
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Values of each sample.
    pub fn sensors(&self) -> usize {
        self.sensors
    }

    /// The number of samples ever written.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// The oldest sample that the ring can still hold.
    pub fn tail(&self) -> u64 {
        self.head().saturating_sub(self.capacity as u64)
    }

    /// Writes a sample without waiting or allocating. Only the thread that samples the group may call it.
    #[inline]
    pub fn push(&self, time: i64, interval_ns: u64, values: &[u64], gaps: &[u64]) {
        debug_assert_eq!(values.len(), self.sensors);
        let row = self.head.load(Ordering::Relaxed);
        let slot = self.slot(row);
        slot[0].store(2 * row + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        slot[1].store(time as u64, Ordering::Relaxed);
        slot[2].store(interval_ns, Ordering::Relaxed);
        let (value_words, gap_words) = slot[HEAD_WORDS..].split_at(self.sensors);
        store(value_words, values);
        store(gap_words, gaps);
        slot[0].store(2 * row + 2, Ordering::Release);
        self.head.store(row + 1, Ordering::Release);
    }

    fn slot(&self, row: u64) -> &[AtomicU64] {
        let at = (row % self.capacity as u64) as usize * self.stride;
        &self.words[at..at + self.stride]
    }

    /// Copies sample `row` into `into`; `false` if the ring does not hold it, or not yet.
    pub fn copy(&self, row: u64, into: &mut RowCopy) -> bool {
        let slot = self.slot(row);
        if slot[0].load(Ordering::Acquire) != 2 * row + 2 {
            return false;
        }
        into.time = slot[1].load(Ordering::Relaxed) as i64;
        into.interval_ns = slot[2].load(Ordering::Relaxed);
        into.values.clear();
        into.values.extend(slot[HEAD_WORDS..HEAD_WORDS + self.sensors].iter().map(|word| word.load(Ordering::Relaxed)));
        into.gaps.clear();
        into.gaps.extend(slot[HEAD_WORDS + self.sensors..].iter().map(|word| word.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        slot[0].load(Ordering::Relaxed) == 2 * row + 2
    }

    /// Copies the newest sample; `false` if there is none yet.
    pub fn newest(&self, into: &mut RowCopy) -> bool {
        loop {
            let head = self.head();
            if head == 0 {
                return false;
            }
            if self.copy(head - 1, into) {
                return true;
            }
            std::hint::spin_loop();
        }
    }

    /// A view of `count` samples from `first` on without a copy. Its values are valid only if [`RingView::is_whole`] is true afterwards.
    pub fn view(&self, first: u64, count: usize) -> RingView<'_> {
        debug_assert!(count <= self.capacity);
        RingView { ring: self, first, count, start: (first % self.capacity as u64) as usize }
    }
}

/// Stores each number in its word. Unrolled by four, because every sample passes here and the crate is compiled for size, which leaves loops as they
/// are.
#[inline]
fn store(words: &[AtomicU64], numbers: &[u64]) {
    let ((words, last_words), (numbers, last_numbers)) = (words.as_chunks::<4>(), numbers.as_chunks::<4>());
    for ([a, b, c, d], numbers) in words.iter().zip(numbers) {
        a.store(numbers[0], Ordering::Relaxed);
        b.store(numbers[1], Ordering::Relaxed);
        c.store(numbers[2], Ordering::Relaxed);
        d.store(numbers[3], Ordering::Relaxed);
    }
    for (word, number) in last_words.iter().zip(last_numbers) {
        word.store(*number, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Default)]
pub struct RowCopy {
    /// ns since the Unix epoch.
    pub time: i64,
    /// The group's interval when the sample was taken, ns.
    pub interval_ns: u64,
    /// 64 bits for each sensor.
    pub values: Vec<u64>,
    /// A bit for each gap, 64 a word.
    pub gaps: Vec<u64>,
}

impl RowCopy {
    /// The value of sensor `index`; `None` for a gap.
    pub fn get(&self, index: usize) -> Option<u64> {
        (self.gaps[index / 64] >> (index % 64) & 1 == 0).then(|| self.values[index])
    }
}

#[derive(Debug, Clone, Copy)]
pub struct RingView<'a> {
    ring: &'a Ring,
    first: u64,
    count: usize,
    start: usize,
}

impl RingView<'_> {
    #[inline]
    fn word(&self, sample: usize, word: usize) -> u64 {
        self.words(sample, word, 1)[0].load(Ordering::Relaxed)
    }

    #[inline]
    fn words(&self, sample: usize, from: usize, count: usize) -> &[AtomicU64] {
        let mut slot = self.start + sample;
        if slot >= self.ring.capacity {
            slot -= self.ring.capacity;
        }
        &self.ring.words[slot * self.ring.stride + from..][..count]
    }

    /// Whether every sample of the view is complete and still in the ring. To be checked before and after reading.
    pub fn is_whole(&self) -> bool {
        fence(Ordering::Acquire);
        let whole = (0..self.count).all(|sample| self.word(sample, 0) == 2 * (self.first + sample as u64) + 2);
        fence(Ordering::Acquire);
        whole
    }

    /// The time of a sample.
    pub fn time(&self, sample: usize) -> i64 {
        self.word(sample, 1) as i64
    }

    /// For each sensor whether it is a gap in any of the samples, 64 a word.
    pub fn any_gaps(&self, words: &mut Vec<u64>) {
        let at = HEAD_WORDS + self.ring.sensors;
        words.clear();
        words.extend(
            (at..self.ring.stride).map(|word| (0..self.count).fold(0, |all, sample| all | self.word(sample, word))),
        );
    }

    /// For each sensor whether its value differs between samples, 64 a word. Compares [`ABREAST`] sensors at a time, which lie side by side in
    /// memory, while the values of a column lie a sample apart.
    pub fn any_changes(&self, words: &mut Vec<u64>) {
        words.clear();
        words.resize(self.ring.sensors.div_ceil(64), 0);
        if self.count < 2 {
            return;
        }
        for from in (0..self.ring.sensors).step_by(ABREAST) {
            let abreast = ABREAST.min(self.ring.sensors - from);
            let of = |sample: usize| self.words(sample, HEAD_WORDS + from, abreast);
            let mut changes = [0; ABREAST];
            for sample in 1..self.count {
                for ((change, value), first) in changes.iter_mut().zip(of(sample)).zip(of(0)) {
                    *change |= value.load(Ordering::Relaxed) ^ first.load(Ordering::Relaxed);
                }
            }
            for (sensor, change) in (from..from + abreast).zip(changes) {
                words[sensor / 64] |= u64::from(change != 0) << (sensor % 64);
            }
        }
    }

    /// The group's interval when a sample was taken, ns.
    pub fn interval_ns(&self, sample: usize) -> u64 {
        self.word(sample, 2)
    }
}

impl Rows for RingView<'_> {
    #[inline]
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.word(sample, HEAD_WORDS + sensor)
    }

    #[inline]
    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.word(sample, HEAD_WORDS + self.ring.sensors + sensor / 64) >> (sensor % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn keeps_the_newest_and_knows_what_is_gone() {
        let ring = Ring::new(65, 3);
        let mut copy = RowCopy::default();
        assert!(!ring.newest(&mut copy));
        for n in 0..5u64 {
            let values: Vec<u64> = (0..65).map(|s| n * 100 + s).collect();
            ring.push(n as i64, 7, &values, &[0, n & 1]);
        }
        assert_eq!((ring.head(), ring.tail()), (5, 2));
        assert!(!ring.copy(1, &mut copy) && !ring.copy(5, &mut copy));
        assert!(ring.copy(3, &mut copy));
        assert_eq!((copy.time, copy.interval_ns, copy.get(1), copy.get(64)), (3, 7, Some(301), None));
        assert!(ring.newest(&mut copy));
        assert_eq!((copy.time, copy.get(64)), (4, Some(464)));
        let view = ring.view(2, 3);
        assert!(view.is_whole());
        assert_eq!((view.time(0), view.value(0, 2), view.is_gap(64, 1), view.is_gap(64, 2)), (2, 400, true, false));
        ring.push(5, 7, &[0; 65], &[0, 0]);
        assert!(!view.is_whole(), "the oldest was overwritten");
    }

    #[test]
    fn what_changes_is_known_at_a_glance() {
        // Sensor counts that end within a word, within a group of several abreast, and a view across the ring's end.
        for sensors in [1, 7, 8, 64, 65, 131] {
            let ring = Ring::new(sensors, 5);
            for n in 0..8u64 {
                // Of each three sensors one is constant, one changes at each sample, and one at the last only.
                let value = |s: u64| [s, n * 100 + s, u64::from(n == 7)][s as usize % 3];
                let values: Vec<u64> = (0..sensors as u64).map(value).collect();
                ring.push(n as i64, 7, &values, &vec![0; sensors.div_ceil(64)]);
            }
            let mut words = vec![7; 9];
            for (first, count) in [(3, 5), (4, 3), (6, 1)] {
                let view = ring.view(first, count);
                view.any_changes(&mut words);
                let (actual, expected): (Vec<bool>, Vec<bool>) = (0..sensors)
                    .map(|sensor| {
                        let changes = (1..count).any(|sample| view.value(sensor, sample) != view.value(sensor, 0));
                        (words[sensor / 64] >> (sensor % 64) & 1 == 1, changes)
                    })
                    .unzip();
                assert_eq!(actual, expected, "{count} samples from {first} of {sensors} sensors");
                assert_eq!(words.len(), sensors.div_ceil(64));
            }
        }
    }

    #[test]
    fn readers_never_see_a_half_written_sample() {
        let ring = Arc::new(Ring::new(40, 4));
        let done = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (ring, done) = (ring.clone(), done.clone());
                std::thread::spawn(move || {
                    let (mut copy, mut seen) = (RowCopy::default(), 0u64);
                    while !done.load(Ordering::Relaxed) || seen == 0 {
                        if !ring.newest(&mut copy) {
                            continue;
                        }
                        let first = copy.values[0];
                        assert!(
                            copy.values.iter().all(|value| *value == first) && copy.time as u64 == first,
                            "{copy:?}"
                        );
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        for n in 1..200_000u64 {
            ring.push(n as i64, 0, &[n; 40], &[0]);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    }
}
