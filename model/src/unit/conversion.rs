//! Numbers in one unit become numbers in another.

use super::magnitude::{Magnitude, Ratio, WHOLE_MAX, common_factor};
use super::measure::Measure;

/// How numbers in one unit become numbers in another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conversion {
    /// `(x * multiplier + shift) / divisor`: whole numbers where that is possible, so that the result is rounded once.
    multiplier: f64,
    shift: f64,
    divisor: f64,
    /// Whether all three are exact.
    exact: bool,
}

impl Conversion {
    /// Leaves every number unchanged.
    pub const IDENTITY: Conversion = Conversion { multiplier: 1.0, shift: 0.0, divisor: 1.0, exact: true };

    /// For units of the same dimension.
    pub(super) fn new(from: &Measure, to: &Measure) -> Self {
        let ratio = from.magnitude.over(to.magnitude);
        let Ratio { multiplier, divisor, exact } = ratio.ratio();
        if from.offset == to.offset && (ratio == Magnitude::ONE || from.offset.is_none()) {
            return Self { multiplier, shift: 0.0, divisor, exact };
        }
        let zero = |unit: &Measure| match unit.offset {
            Some(offset) => offset.over(to.magnitude).ratio(),
            None => Ratio { multiplier: 0.0, divisor: 1.0, exact: true },
        };
        let (from, to) = (zero(from), zero(to));
        Self::of_whole_numbers(ratio.ratio(), from, to).unwrap_or_else(|| {
            let shift = from.multiplier / from.divisor - to.multiplier / to.divisor;
            Self { multiplier, shift: shift * divisor, divisor, exact: false }
        })
    }

    /// `x * ratio + from - to` over the common denominator; `None` if floats do not hold its parts exactly.
    fn of_whole_numbers(ratio: Ratio, from: Ratio, to: Ratio) -> Option<Self> {
        let multiple = |a: f64, b: f64| a / common_factor(a, b) * b;
        let common = multiple(multiple(ratio.divisor, from.divisor), to.divisor);
        let over = |part: Ratio| part.multiplier * (common / part.divisor);
        let parts = [common, over(ratio), over(from), over(to)];
        if ![ratio, from, to].iter().all(|part| part.exact) || parts.iter().any(|part| *part >= WHOLE_MAX) {
            return None;
        }
        let [divisor, multiplier, from, to] = parts;
        let shift = from - to;
        let least = common_factor(common_factor(multiplier, shift.abs()), divisor);
        Some(Self { multiplier: multiplier / least, shift: shift / least, divisor: divisor / least, exact: true })
    }

    /// The number in the other unit.
    pub fn apply(self, value: f64) -> f64 {
        (value * self.multiplier + self.shift) / self.divisor
    }

    /// By which differences are multiplied.
    pub fn factor(self) -> f64 {
        self.multiplier / self.divisor
    }

    /// The result for the value 0.
    pub fn offset(self) -> f64 {
        self.shift / self.divisor
    }

    /// Whether it leaves every number unchanged.
    pub fn is_identity(self) -> bool {
        self.multiplier == self.divisor && self.shift == 0.0
    }

    /// Whether 0 stays 0.
    pub fn is_linear(self) -> bool {
        self.shift == 0.0
    }

    /// Multiplier and divisor. Dividing by a whole number gives the float nearest to the decimal number; multiplying by its inverse does not.
    pub fn ratio(self) -> (f64, f64) {
        (self.multiplier, self.divisor)
    }

    /// The whole number by which integers are multiplied, if they stay exact integers.
    pub fn integer(self) -> Option<i64> {
        let whole = self.exact && self.is_linear() && self.divisor == 1.0;
        whole.then_some(self.multiplier as i64)
    }
}

#[cfg(test)]
mod tests {
    use crate::Unit;

    #[test]
    fn conversions_between_zero_points_consist_of_whole_numbers() {
        let parts = |from: &str, to: &str| {
            let conversion = Unit::parse(from).unwrap().to(&Unit::parse(to).unwrap()).unwrap();
            (conversion.multiplier, conversion.shift, conversion.divisor, conversion.exact)
        };
        assert_eq!(parts("Cel", "K"), (20.0, 5463.0, 20.0, true));
        assert_eq!(parts("[degF]", "Cel"), (5.0, -160.0, 9.0, true));
        assert_eq!(parts("Cel", "10*30.K"), (1.0, 273.15, 1e30, false));
    }
}
