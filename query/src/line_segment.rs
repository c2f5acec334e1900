//! The line between two samples, and the area below it.

/// Nanoseconds of a second.
pub(crate) const NS_PER_S: f64 = 1e9;

/// The straight line between two neighbouring samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineSegment {
    pub start: (i64, f64),
    pub end: (i64, f64),
}

impl LineSegment {
    fn at(&self, time: i64) -> f64 {
        if time == self.start.0 {
            return self.start.1;
        }
        if time == self.end.0 {
            return self.end.1;
        }
        let part = seconds(self.start.0, time) / seconds(self.start.0, self.end.0);
        self.start.1 + (self.end.1 - self.start.1) * part
    }

    /// The area from `from` to `to`, both within the segment.
    pub fn area(&self, from: i64, to: i64) -> f64 {
        (self.at(from) / 2.0 + self.at(to) / 2.0) * seconds(from, to)
    }
}

fn seconds(from: i64, to: i64) -> f64 {
    let ns = to.checked_sub(from).map_or_else(|| (i128::from(to) - i128::from(from)) as f64, |ns| ns as f64);
    ns / NS_PER_S
}
