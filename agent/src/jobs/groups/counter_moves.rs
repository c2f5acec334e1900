//! Counters of a job that have moved from one metric set to another, for example because a controller's directory was removed and another file has the same
//! value: the two files began to count at different times.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::reader::PendingGap;
use super::running_set::RunningSet;

/// The origin of a counter: the source and the name of the metric set.
type CounterOrigin = (&'static str, String);

/// Moved counters of a job; counters that have never moved take no memory.
#[derive(Default)]
pub struct CounterMoves {
    /// The last origins of counters that no metric set has now.
    without: HashMap<String, CounterOrigin>,
    /// Moved counters whose gap is still due.
    moved: HashMap<String, PendingGap>,
}

/// The origin of each counter of these metric sets.
pub fn origins(sets: &[RunningSet]) -> HashMap<String, CounterOrigin> {
    let of = |set: &RunningSet| {
        let origin = (set.source, set.name.clone());
        set.counters().map(move |name| (name.to_owned(), origin.clone())).collect::<Vec<_>>()
    };
    sets.iter().flat_map(of).collect()
}

impl CounterMoves {
    /// Compares the origins before a rediscovery with the metric sets after it.
    pub fn note(&mut self, before: HashMap<String, CounterOrigin>, sets: &[RunningSet]) {
        self.moved.retain(|_, moved| moved.load(Ordering::Relaxed));
        let mut before: HashMap<String, CounterOrigin> = before.into_iter().chain(self.without.drain()).collect();
        for set in sets {
            for name in set.counters() {
                let Some((source, of)) = before.remove(name) else { continue };
                if (source, of.as_str()) != (set.source, set.name.as_str()) {
                    self.moved.insert(name.to_owned(), Arc::new(AtomicBool::new(true)));
                }
            }
        }
        self.without = before;
    }

    /// The pending gap of a metric that has moved.
    pub fn of(&self, metric: &str) -> Option<PendingGap> {
        self.moved.get(metric).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::running_set::{SensorListPool, SetIntake};
    use super::*;
    use wholegrain_model::{Interval, SensorDef};
    use wholegrain_sources::job::MetricSet;

    /// Metric sets by name with their metrics; metrics with an `m` are gauges.
    fn metric_sets(of: &[(&str, &[&str])]) -> Vec<RunningSet> {
        let (mut pool, mut next) = (SensorListPool::default(), 0);
        let mut intake = SetIntake::new(&mut pool, &mut next);
        for (name, metrics) in of {
            let sensor = |metric: &&str| match metric.contains('m') {
                true => SensorDef::gauge(*metric, "1", ""),
                false => SensorDef::counter(*metric, "1", ""),
            };
            let set = MetricSet {
                name: (*name).to_owned(),
                sensors: metrics.iter().map(sensor).collect(),
                interval_min: Interval::from_ms(1),
                blocking: false,
                open: Box::new(|_| unreachable!("nothing is read here")),
            };
            intake.take("cgroup", set, None, &mut |_| {});
        }
        intake.into_sets()
    }

    fn check(steps: &[&[(&str, &[&str])]], expected: &[&str]) {
        let (mut moves, mut before) = (CounterMoves::default(), Vec::new());
        for step in steps {
            let now = metric_sets(step);
            moves.note(origins(&before), &now);
            before = now;
        }
        let moved: Vec<&str> = ["a", "b", "m"].into_iter().filter(|metric| moves.of(metric).is_some()).collect();
        assert_eq!(moved, expected, "{steps:?}");
    }

    #[test]
    fn only_counters_that_come_from_another_part_have_moved() {
        check(&[&[("v1", &["a", "m"]), ("v2", &["b"])]], &[]);
        // The same metric sets, opened again.
        check(&[&[("v1", &["a", "m"])], &[("v1", &["a", "m"])]], &[]);
        check(&[&[("v1", &["a", "m"]), ("v2", &["b"])], &[("v2", &["a", "b", "m"])]], &["a"]);
        // A preferred metric set appears later and takes the counter from one that stays.
        check(&[&[("v2", &["a", "b"])], &[("v1", &["a"]), ("v2", &["b"])]], &["a"]);
        // For a while no metric set has it.
        check(&[&[("v1", &["a"])], &[], &[], &[("v2", &["a"])]], &["a"]);
        check(&[&[("v1", &["a"])], &[], &[("v1", &["a"])]], &[]);
    }

    #[test]
    fn what_had_its_gap_is_forgotten_and_what_had_not_is_kept() {
        let (first, second) = (metric_sets(&[("v1", &["a", "b"])]), metric_sets(&[("v2", &["a", "b"])]));
        let mut moves = CounterMoves::default();
        moves.note(origins(&first), &second);
        moves.of("a").unwrap().store(false, Ordering::Relaxed);
        moves.note(origins(&second), &second);
        assert!(moves.of("a").is_none() && moves.of("b").is_some());
    }
}
