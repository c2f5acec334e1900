//! Numbers of uploads and changes, which order them over all servers.

use std::sync::atomic::{AtomicI64, Ordering};

use wholegrain_store::Clock;

/// Numbers that only grow, also beyond a clock that steps back: microseconds since the Unix epoch. The servers raise theirs above what they see of each
/// other, so that clocks that differ by more than the time of an exchange give nearly the same numbers.
#[derive(Default)]
pub(crate) struct Stamps {
    newest: AtomicI64,
    clock: Clock,
}

impl Stamps {
    pub fn new(clock: Clock) -> Self {
        Self { newest: AtomicI64::new(0), clock }
    }

    /// Raises the numbers above this one.
    pub fn raise(&self, above: i64) {
        self.newest.fetch_max(above, Ordering::Relaxed);
    }

    pub fn next(&self) -> i64 {
        let now = self.clock.now() / 1_000;
        let next = |last: i64| Some(now.max(last.saturating_add(1)));
        let last = self.newest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_else(|last| last);
        now.max(last.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_whatever_the_clock_does() {
        let times = std::sync::Mutex::new(vec![4_000, 9_000_000, 9_000_500, 10_000_000].into_iter());
        let stamps = Stamps::new(Clock::new(move || times.lock().unwrap().next().unwrap()));
        assert_eq!(stamps.next(), 4);
        stamps.raise(9_000);
        assert_eq!((stamps.next(), stamps.next(), stamps.next()), (9_001, 9_002, 10_000));
    }
}
