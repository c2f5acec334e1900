//! The reader of a job's group: calls the readers of all metric sets that its metrics come from, each of which writes its own places of the row.
//!
//! A counter that moves to another metric set begins with a gap: the new file counts from another value, and the difference to the old one's last value is
//! not the job's use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wholegrain_sources::{Reader, Reading, Row};

/// The metric sets that have requested a rediscovery: one bit each, and the last bit for all metric sets from the 64th on.
#[derive(Debug, Default)]
pub struct RediscoveryRequests(AtomicU64);

impl RediscoveryRequests {
    /// The bit of the metric set at this index of the group's readers.
    pub fn bit(at: usize) -> u64 {
        1 << at.min(63)
    }

    /// The requests since the last call.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::AcqRel)
    }
}

/// Set while the gap of a moved counter is due. The reader that samples first stores it, because the group may get another reader before its next
/// tick.
pub type PendingGap = Arc<AtomicBool>;

pub struct CombinedReader {
    readers: Box<[Box<dyn Reader>]>,
    asked: Arc<RediscoveryRequests>,
    /// Moved counters, by their places in the row.
    moved: Box<[(usize, PendingGap)]>,
}

impl CombinedReader {
    /// The readers, in order.
    pub fn new(readers: Vec<Box<dyn Reader>>, asked: Arc<RediscoveryRequests>) -> Self {
        Self { readers: readers.into(), asked, moved: Box::default() }
    }

    /// With gaps due for the counters at these places of the row.
    pub fn moved(self, moved: Vec<(usize, PendingGap)>) -> Self {
        Self { moved: moved.into(), ..self }
    }
}

impl Reader for CombinedReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut all = Reading { gone: !self.readers.is_empty(), ..Reading::default() };
        for (at, reader) in self.readers.iter_mut().enumerate() {
            let one = reader.read(row);
            all.gone &= one.gone;
            // A removed metric set is not a problem: a job's directories are removed one after another.
            if one.gone {
                continue;
            }
            all.problem = all.problem.or(one.problem);
            if one.layout_changed {
                all.layout_changed = true;
                self.asked.0.fetch_or(RediscoveryRequests::bit(at), Ordering::AcqRel);
            }
        }
        // The row of a removed group is not stored.
        if !all.gone {
            for (place, moved) in &self.moved {
                if moved.load(Ordering::Relaxed) && moved.swap(false, Ordering::AcqRel) {
                    row.set_gap(*place);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_sources::ReadProblem;

    struct Says(usize, Reading);

    impl Reader for Says {
        fn read(&mut self, row: &mut Row<'_>) -> Reading {
            if !self.1.gone {
                row.set_int(self.0, self.0 as i64 + 10);
            }
            self.1
        }
    }

    fn check(readings: &[Reading], expected: Reading, values: &[Option<i64>], asked: u64) {
        let readers = readings.iter().enumerate().map(|(at, reading)| Box::new(Says(at, *reading)) as Box<dyn Reader>);
        let flags = Arc::new(RediscoveryRequests::default());
        let mut reader = CombinedReader::new(readers.collect(), flags.clone());
        let (mut slots, mut gaps) = (vec![0; readings.len()], vec![0; 1]);
        let mut row = Row::new(&mut slots, &mut gaps);
        assert_eq!(reader.read(&mut row), expected);
        assert_eq!((0..readings.len()).map(|index| row.int(index)).collect::<Vec<_>>(), values);
        assert_eq!((flags.take(), flags.take()), (asked, 0));
    }

    #[test]
    fn what_has_moved_begins_with_one_gap_whoever_reads_first() {
        let flag: PendingGap = Arc::new(AtomicBool::new(true));
        let reader = |reading| {
            let readers: Vec<Box<dyn Reader>> = vec![Box::new(Says(0, reading)), Box::new(Says(1, reading))];
            CombinedReader::new(readers, Arc::default()).moved(vec![(1, flag.clone())])
        };
        let read = |reader: &mut CombinedReader| {
            let (mut slots, mut gaps) = (vec![0; 2], vec![0; 1]);
            let mut row = Row::new(&mut slots, &mut gaps);
            reader.read(&mut row);
            [row.int(0), row.int(1)]
        };
        read(&mut reader(Reading { gone: true, ..Reading::default() }));
        assert!(flag.load(Ordering::Relaxed), "a row that is not kept is no gap");
        let (mut one, mut other) = (reader(Reading::default()), reader(Reading::default()));
        assert_eq!(read(&mut one), [Some(10), None]);
        assert_eq!((read(&mut one), read(&mut other)), ([Some(10), Some(11)], [Some(10), Some(11)]));
    }

    #[test]
    fn what_is_gone_leaves_the_rest_and_all_gone_is_gone() {
        let good = Reading::default();
        let trouble = Some(ReadProblem::Os { what: "memory.stat", errno: 24 });
        let gone = Reading {
            gone: true,
            problem: Some(ReadProblem::Os { what: "x", errno: 19 }),
            layout_changed: true,
            ..Reading::COMPLETE
        };
        let bad = Reading { problem: trouble, layout_changed: true, ..good };
        check(&[good, good], good, &[Some(10), Some(11)], 0);
        check(&[good, gone], good, &[Some(10), None], 0);
        check(&[gone, gone], Reading { gone: true, ..good }, &[None, None], 0);
        check(&[good, bad, gone], bad, &[Some(10), Some(11), None], 2);
        check(&[], good, &[], 0);
    }
}
