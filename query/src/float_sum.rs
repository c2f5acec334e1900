//! Compensated sums of floats.

/// A sum with the rounding errors of its additions (Neumaier's variant of compensated summation).
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FloatSum {
    pub sum: f64,
    pub lost: f64,
}

impl FloatSum {
    #[inline]
    pub(crate) fn add(&mut self, value: f64) {
        let next = self.sum + value;
        let larger_first = self.sum.abs() >= value.abs();
        let (larger, smaller) = if larger_first { (self.sum, value) } else { (value, self.sum) };
        // The difference of infinities would be NaN.
        self.lost += if next.is_finite() { (larger - next) + smaller } else { 0.0 };
        self.sum = next;
    }

    pub(crate) fn total(&self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_small_parts() {
        let mut sum = FloatSum::default();
        for value in [1e100, 1.0, -1e100] {
            sum.add(value);
        }
        assert_eq!(sum.total(), 1.0);
    }
}
