//! A budget for names of sensors that a device did not have before: one whose names change in every answer would otherwise use up what the server lets
//! the whole agent create.

use std::time::Instant;

/// The seconds in which an empty budget is full again: 1 h.
const REFILL_S: f64 = 3600.0;

/// The budget of one device. It is full at first, and refills evenly, at most to its capacity.
#[derive(Debug, Clone)]
pub struct NewNames {
    capacity: f64,
    left: f64,
    /// When `left` was right; `None` before the first use.
    at: Option<Instant>,
}

impl NewNames {
    /// A full budget of `capacity` names, and as many more in each hour.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity as f64, left: capacity as f64, at: None }
    }

    /// How many new names the device may have now.
    pub fn left(&mut self, now: Instant) -> usize {
        let passed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.left = (self.left + passed * self.capacity / REFILL_S).min(self.capacity);
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.left as usize
    }

    /// Takes `count` names, or as many as are left. How many were taken.
    pub fn take(&mut self, count: usize, now: Instant) -> usize {
        let allowed = count.min(self.left(now));
        self.left -= allowed as f64;
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_budget_is_used_up_and_refills_to_its_capacity() {
        let (mut names, begin) = (NewNames::new(100), Instant::now());
        let after = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        assert_eq!((names.take(60, begin), names.left(begin)), (60, 40));
        assert_eq!((names.take(60, begin), names.take(1, begin)), (40, 0));
        assert_eq!(names.take(1000, after(6)), 10, "a tenth of an hour");
        assert_eq!(names.left(begin), 0, "a time before the last one adds nothing");
        assert_eq!(names.left(after(6)), 0, "nor is it counted twice");
        assert_eq!(names.take(1000, after(600)), 100, "no more than the capacity");
        // Small steps are not lost.
        let steps = 36_000;
        let taken: usize = (1..=steps).map(|step| names.take(1, after(600) + Duration::from_millis(100 * step))).sum();
        assert!((99..=100).contains(&taken), "{taken}");
    }
}
