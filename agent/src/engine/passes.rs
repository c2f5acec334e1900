//! The times that this process has sampled, so that none is sampled twice after the wall clock was stepped back. Pure: times are arguments.
//!
//! Sensor and time identify a reading. After a step back the clock shows times again that have readings: a second reading would replace the first one
//! or lie between two of them, and no rate or sum over both passes would mean anything. Therefore each time belongs to the pass that reaches it
//! first, and later passes sample nothing there.

/// The passes that are kept apart; beyond it, the two closest are merged with the time between them.
pub const PASSES_MAX: usize = 4;

/// The times of the passes before the present one.
#[derive(Debug, Clone, Copy)]
pub struct ClockPasses {
    /// First and last time of each, ns since the Unix epoch, ascending and disjoint.
    over: [(i64, i64); PASSES_MAX + 1],
    count: usize,
    /// The begin of the present pass.
    from: i64,
}

impl ClockPasses {
    pub fn new(from: i64) -> Self {
        Self { over: [(0, 0); PASSES_MAX + 1], count: 0, from }
    }

    /// Notes that the clock was stepped from `before` to `after`.
    pub fn stepped(&mut self, before: i64, after: i64) {
        let (mut from, mut to) = (self.from.min(before), before);
        let mut kept = 0;
        for at in 0..self.count {
            let other = self.over[at];
            if other.1 < from || other.0 > to {
                self.over[kept] = other;
                kept += 1;
            } else {
                (from, to) = (from.min(other.0), to.max(other.1));
            }
        }
        self.over[kept] = (from, to);
        self.count = kept + 1;
        self.over[..self.count].sort_unstable();
        if self.count > PASSES_MAX {
            self.join_closest();
        }
        self.from = after;
    }

    fn join_closest(&mut self) {
        let distance = |at: &usize| self.over[at + 1].0.saturating_sub(self.over[*at].1);
        let at = (0..self.count - 1).min_by_key(distance).unwrap_or(0);
        self.over[at].1 = self.over[at + 1].1;
        self.over.copy_within(at + 2..self.count, at + 1);
        self.count -= 1;
    }

    /// The time before which nothing may be sampled, because readings of these times exist. The nanosecond after it is reserved for the gap between
    /// the passes.
    #[inline]
    pub fn held_until(&self, time: i64) -> Option<i64> {
        if self.count == 0 {
            return None;
        }
        let holds = |pass: &&(i64, i64)| pass.0 <= time && time <= pass.1.saturating_add(1);
        self.over[..self.count].iter().find(holds).map(|pass| pass.1)
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    #[test]
    fn each_time_belongs_to_the_first_pass_over_it() {
        let mut passes = ClockPasses::new(100);
        assert_eq!(passes.held_until(100), None);
        passes.stepped(200, 195);
        let held =
            |passes: &ClockPasses| (90..260).filter(|time| passes.held_until(*time).is_some()).collect::<Vec<_>>();
        assert_eq!(held(&passes), (100..=201).collect::<Vec<_>>());
        assert_eq!(passes.held_until(150), Some(200));
        // On to 230, then before the first time of all, and from there over everything.
        passes.stepped(230, 50);
        assert_eq!(held(&passes), (100..=231).collect::<Vec<_>>());
        passes.stepped(60, 55);
        assert_eq!((passes.held_until(55), passes.held_until(62), passes.held_until(100)), (Some(60), None, Some(230)));
        passes.stepped(300, 299);
        assert_eq!(passes.held_until(80), Some(300));
        // Forward: the times in between were not sampled.
        let mut passes = ClockPasses::new(100);
        passes.stepped(200, 250);
        passes.stepped(260, 210);
        assert_eq!(held(&passes), (100..=201).chain(250..=261).collect::<Vec<_>>()[..102 + 10]);
    }

    #[test]
    fn however_many_steps_there_are_no_time_is_given_free() {
        let mut numbers = Random::seeded_or(7);
        for _ in 0..200 {
            let mut random = |below: i64| numbers.below(below as u64) as i64;
            let mut sampled = [false; 6_000];
            let mut now = 2_000;
            let mut passes = ClockPasses::new(now);
            for _ in 0..30 {
                for _ in 0..random(60) {
                    let held = passes.held_until(now).is_some();
                    let known = std::mem::replace(&mut sampled[now as usize], true);
                    assert!(held || !known, "{now} is sampled twice");
                    now += 1;
                }
                let after = now + random(80) - 40;
                passes.stepped(now, after);
                now = after;
            }
        }
        for extreme in [i64::MIN, -1, i64::MAX] {
            let mut passes = ClockPasses::new(extreme);
            passes.stepped(i64::MAX, i64::MIN);
            passes.stepped(0, 5);
            passes.held_until(i64::MAX);
        }
    }
}
