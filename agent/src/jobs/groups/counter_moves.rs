//! Which counters of a job have moved from one part to another, as when a controller's directory is gone and another file still tells the
//! same: the two files count from different moments.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::part::RunningPart;
use super::reader::PendingGap;

/// Where a counter comes from: the source, and the part's name in it.
type CounterOrigin = (&'static str, String);

/// What is remembered of a job's counters: nothing of those that have never moved.
#[derive(Default)]
pub struct CounterMoves {
    /// Where those came from that no part gives now.
    without: HashMap<String, CounterOrigin>,
    /// Those that have moved and have not had their gap yet.
    moved: HashMap<String, PendingGap>,
}

/// The counters of a job's parts, with where each comes from.
pub fn origins(parts: &[RunningPart]) -> HashMap<String, CounterOrigin> {
    let of = |part: &RunningPart| {
        let origin = (part.source, part.name.clone());
        part.counters().map(move |name| (name.to_owned(), origin.clone())).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of).collect()
}

impl CounterMoves {
    /// The parts were discovered again: `before` is where the counters came from, `parts` is what exists now.
    pub fn note(&mut self, before: HashMap<String, CounterOrigin>, parts: &[RunningPart]) {
        self.moved.retain(|_, moved| moved.load(Ordering::Relaxed));
        let mut before: HashMap<String, CounterOrigin> = before.into_iter().chain(self.without.drain()).collect();
        for part in parts {
            for name in part.counters() {
                let Some((source, of)) = before.remove(name) else { continue };
                if (source, of.as_str()) != (part.source, part.name.as_str()) {
                    self.moved.insert(name.to_owned(), Arc::new(AtomicBool::new(true)));
                }
            }
        }
        self.without = before;
    }

    /// Whether a metric has moved and has not had its gap yet.
    pub fn of(&self, metric: &str) -> Option<PendingGap> {
        self.moved.get(metric).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{PartIntake, SensorListPool};
    use super::*;
    use wholegrain_model::{Interval, SensorDef};
    use wholegrain_sources::job::JobPart;

    /// Parts by name with their metrics; those with an `m` are gauges.
    fn parts(of: &[(&str, &[&str])]) -> Vec<RunningPart> {
        let (mut pool, mut next) = (SensorListPool::default(), 0);
        let mut intake = PartIntake::new(&mut pool, &mut next);
        for (name, metrics) in of {
            let sensor = |metric: &&str| match metric.contains('m') {
                true => SensorDef::gauge(*metric, "1", ""),
                false => SensorDef::counter(*metric, "1", ""),
            };
            let part = JobPart {
                name: (*name).to_owned(),
                sensors: metrics.iter().map(sensor).collect(),
                interval_min: Interval::from_ms(1),
                blocking: false,
                open: Box::new(|_| unreachable!("nothing is read here")),
            };
            intake.take("cgroup", part, None, &mut |_| {});
        }
        intake.into_parts()
    }

    fn check(steps: &[&[(&str, &[&str])]], expected: &[&str]) {
        let (mut moves, mut before) = (CounterMoves::default(), Vec::new());
        for step in steps {
            let now = parts(step);
            moves.note(origins(&before), &now);
            before = now;
        }
        let moved: Vec<&str> = ["a", "b", "m"].into_iter().filter(|metric| moves.of(metric).is_some()).collect();
        assert_eq!(moved, expected, "{steps:?}");
    }

    #[test]
    fn only_counters_that_come_from_another_part_have_moved() {
        check(&[&[("v1", &["a", "m"]), ("v2", &["b"])]], &[]);
        // The same parts, opened again.
        check(&[&[("v1", &["a", "m"])], &[("v1", &["a", "m"])]], &[]);
        check(&[&[("v1", &["a", "m"]), ("v2", &["b"])], &[("v2", &["a", "b", "m"])]], &["a"]);
        // A preferred part that comes later takes it from one that stays.
        check(&[&[("v2", &["a", "b"])], &[("v1", &["a"]), ("v2", &["b"])]], &["a"]);
        // For a while nobody gives it.
        check(&[&[("v1", &["a"])], &[], &[], &[("v2", &["a"])]], &["a"]);
        check(&[&[("v1", &["a"])], &[], &[("v1", &["a"])]], &[]);
    }

    #[test]
    fn what_had_its_gap_is_forgotten_and_what_had_not_is_kept() {
        let (first, second) = (parts(&[("v1", &["a", "b"])]), parts(&[("v2", &["a", "b"])]));
        let mut moves = CounterMoves::default();
        moves.note(origins(&first), &second);
        moves.of("a").unwrap().store(false, Ordering::Relaxed);
        moves.note(origins(&second), &second);
        assert!(moves.of("a").is_none() && moves.of("b").is_some());
    }
}
