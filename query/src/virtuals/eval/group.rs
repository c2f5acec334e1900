//! Aggregates over sensors at each time. The values of only one sensor are in memory at a time.

use super::super::MissingOperands;
use super::grid::{GridSink, OperandTrack, finite};
use crate::query::Agg;

/// The aggregates so far, for each point of a part of the grid.
#[derive(Debug, Clone)]
pub(super) struct GroupSums {
    agg: Agg,
    /// The point of the first.
    pub base: i64,
    values: Vec<f64>,
    counts: Vec<u32>,
    sampled: Vec<bool>,
    /// The member of each value; only for first and last.
    ranks: Vec<u32>,
    /// The member whose values are added next.
    pub rank: u32,
}

impl GroupSums {
    pub(crate) fn new(agg: Agg, base: i64, len: usize) -> Self {
        let mut sums =
            Self { agg, base, values: Vec::new(), counts: Vec::new(), sampled: Vec::new(), ranks: Vec::new(), rank: 0 };
        sums.reach(len);
        sums
    }

    fn reach(&mut self, len: usize) {
        if self.values.len() >= len {
            return;
        }
        let first = match self.agg {
            Agg::Min => f64::INFINITY,
            Agg::Max => f64::NEG_INFINITY,
            _ => 0.0,
        };
        self.values.resize(len, first);
        self.counts.resize(len, 0);
        self.sampled.resize(len, false);
        if matches!(self.agg, Agg::First | Agg::Last) {
            self.ranks.resize(len, 0);
        }
    }

    /// Removes and returns the first `len` points.
    pub fn take(&mut self, len: usize) -> GroupSums {
        self.reach(len);
        let base = self.base;
        self.base += len as i64;
        GroupSums {
            agg: self.agg,
            base,
            values: self.values.drain(..len).collect(),
            counts: self.counts.drain(..len).collect(),
            sampled: self.sampled.drain(..len).collect(),
            ranks: if self.ranks.is_empty() { Vec::new() } else { self.ranks.drain(..len).collect() },
            rank: 0,
        }
    }

    /// Adds the aggregates of other members at the same points.
    pub fn join(&mut self, other: &GroupSums) {
        self.reach(other.values.len());
        for at in 0..other.values.len() {
            self.sampled[at] |= other.sampled[at];
            if other.counts[at] == 0 {
                continue;
            }
            let new = other.values[at];
            let mine = &mut self.values[at];
            let none = self.counts[at] == 0;
            match self.agg {
                Agg::Sum | Agg::Mean | Agg::SampleMean | Agg::Count => *mine += new,
                Agg::Min => *mine = mine.min(new),
                Agg::Max => *mine = mine.max(new),
                Agg::First | Agg::Last => {
                    let rank = other.ranks[at];
                    let earlier = rank < self.ranks[at];
                    if none || earlier == (self.agg == Agg::First) {
                        (*mine, self.ranks[at]) = (new, rank);
                    }
                }
            }
            self.counts[at] += other.counts[at];
        }
    }

    /// The values, and which points have a row. `members` is the number of all members.
    pub fn finish(&self, missing: MissingOperands, members: usize) -> (Vec<f64>, &[bool]) {
        let value = |at: usize| {
            let count = self.counts[at];
            match self.agg {
                Agg::Count if self.sampled[at] => f64::from(count),
                Agg::Count => f64::NAN,
                _ if count == 0 || (missing == MissingOperands::Gap && (count as usize) < members) => f64::NAN,
                Agg::Mean | Agg::SampleMean => self.values[at] / f64::from(count),
                _ => self.values[at],
            }
        };
        ((0..self.values.len()).map(|at| finite(value(at))).collect(), &self.sampled)
    }

    /// Adds a member's values from index `at` on.
    pub fn add(&mut self, at: usize, values: &[f64]) {
        self.reach(at + values.len());
        let range = at..at + values.len();
        let (mine, counts) = (&mut self.values[range.clone()], &mut self.counts[range.clone()]);
        match self.agg {
            Agg::Sum | Agg::Mean | Agg::SampleMean => {
                for ((mine, count), new) in mine.iter_mut().zip(counts).zip(values) {
                    let is_number = !new.is_nan();
                    *mine += if is_number { *new } else { 0.0 };
                    *count += u32::from(is_number);
                }
            }
            Agg::Count => counts.iter_mut().zip(values).for_each(|(count, new)| *count += u32::from(!new.is_nan())),
            Agg::Min | Agg::Max => {
                let least = self.agg == Agg::Min;
                for ((mine, count), new) in mine.iter_mut().zip(counts).zip(values) {
                    // `min` and `max` ignore NaN.
                    *mine = if least { mine.min(*new) } else { mine.max(*new) };
                    *count += u32::from(!new.is_nan());
                }
            }
            Agg::First | Agg::Last => {
                let first = self.agg == Agg::First;
                let ranks = &mut self.ranks[range.clone()];
                for (((mine, count), rank), new) in mine.iter_mut().zip(counts).zip(ranks).zip(values) {
                    if new.is_nan() {
                        continue;
                    }
                    if *count == 0 || (self.rank < *rank) == first {
                        (*mine, *rank) = (*new, self.rank);
                    }
                    *count += 1;
                }
            }
        }
        self.sampled[range].fill(true);
    }

    /// Adds a member's sampled points; the first point of the track has the index `start`.
    pub fn add_track(&mut self, start: usize, track: &OperandTrack) {
        let mut at = 0;
        for same in track.sampled.chunk_by(|a, b| a == b) {
            if same.first() == Some(&true) {
                self.add(start + at, &track.values[at..at + same.len()]);
            }
            at += same.len();
        }
    }
}

impl GridSink for GroupSums {
    fn run(&mut self, point: i64, values: &[f64]) {
        if let Ok(at) = usize::try_from(point - self.base) {
            self.add(at, values);
        }
    }
}
