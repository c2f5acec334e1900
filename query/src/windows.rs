//! Windows on the wall clock.

/// The division of time into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// One window over the whole range, given by its start.
    Whole(i64),
    /// Windows of this width in ns, which begin at multiples of it since the epoch.
    Every(i64),
}

impl Windows {
    /// The width; `None` for one window over the whole range.
    pub(crate) fn every(self) -> Option<i64> {
        match self {
            Windows::Whole(_) => None,
            Windows::Every(every) => Some(every),
        }
    }

    /// The start of the window that contains `time`.
    pub(crate) fn start(self, time: i64) -> i64 {
        match self {
            Windows::Whole(from) => from,
            Windows::Every(every) => time.saturating_sub(time.rem_euclid(every)),
        }
    }

    /// The end, exclusive, of the window that contains `time`; `i64::MAX` for a whole range.
    pub(crate) fn end(self, time: i64) -> i64 {
        match self {
            Windows::Whole(_) => i64::MAX,
            // Not start + every: the start of the very first window can be cut off at `i64::MIN`.
            Windows::Every(every) => time.saturating_add(every - time.rem_euclid(every)),
        }
    }

    /// Start and end of the window after the one that ends at `end`, if it contains `time`. Needs no division.
    pub(crate) fn next(self, end: i64, time: i64) -> Option<(i64, i64)> {
        let Windows::Every(every) = self else { return None };
        let after = end.checked_add(every)?;
        (end..after).contains(&time).then_some((end, after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_at_multiples_before_the_epoch_too() {
        let every = Windows::Every(10);
        for (time, start, end) in [(0, 0, 10), (9, 0, 10), (10, 10, 20), (-1, -10, 0), (-10, -10, 0), (-11, -20, -10)] {
            assert_eq!((every.start(time), every.end(time)), (start, end), "{time}");
            assert_eq!(every.next(start, time), Some((start, end)), "{time}");
            assert_eq!(every.next(start - 10, time), None, "{time}");
        }
        assert!(every.start(i64::MIN) <= i64::MIN + 9);
        assert_eq!(every.end(i64::MAX), i64::MAX);
        assert_eq!(every.next(i64::MAX - 5, i64::MAX), None);
        assert_eq!(Windows::Every(i64::MAX).start(5), 0);
    }
}
