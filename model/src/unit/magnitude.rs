//! The value of a unit in coherent units: a fraction of whole numbers times powers of 10 and pi.
//!
//! Floats hold whole numbers below 2^53 exactly. A fraction that needs larger ones becomes an approximate number.

use std::f64::consts::PI;

/// Magnitudes above 10 to this power, or below its inverse, are refused: products of two stay finite.
const DECADES_MAX: i32 = 150;
/// Below this, floats hold every whole number.
pub(super) const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// `numerator / denominator * 10^ten * pi^pi`
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Magnitude {
    numerator: f64,
    denominator: f64,
    ten: i32,
    pi: i32,
    /// Whether numerator and denominator are whole, without a common factor and not divisible by 10. Otherwise the denominator is 1.
    exact: bool,
}

/// A magnitude as a product and a quotient: `x * multiplier / divisor` is rounded once where one of them is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratio {
    pub multiplier: f64,
    pub divisor: f64,
    /// Whether both are exact whole numbers.
    pub exact: bool,
}

impl Magnitude {
    pub(super) const ONE: Magnitude = Magnitude { numerator: 1.0, denominator: 1.0, ten: 0, pi: 0, exact: true };
    pub(super) const PI: Magnitude = Magnitude { pi: 1, ..Magnitude::ONE };

    fn new(numerator: f64, denominator: f64, ten: i32, pi: i32, exact: bool) -> Self {
        if !(exact && numerator < WHOLE_MAX && denominator < WHOLE_MAX) {
            return Self { numerator: numerator / denominator, denominator: 1.0, ten, pi, exact: false };
        }
        let common = common_factor(numerator, denominator);
        let (numerator, up) = without_tens(numerator / common);
        let (denominator, down) = without_tens(denominator / common);
        Self { numerator, denominator, ten: ten + up - down, pi, exact }
    }

    /// `digits * 10^ten`; `None` for 0 and beyond the bounds.
    pub fn decimal(digits: f64, ten: i32) -> Option<Self> {
        (digits > 0.0 && (-DECADES_MAX..=DECADES_MAX).contains(&ten))
            .then(|| Self::new(digits, 1.0, ten, 0, true))
            .and_then(Self::bounded)
    }

    /// Reads a positive number such as `0.3048`, `1e-6`, `1.602176634e-19`.
    pub fn read(text: &str) -> Option<Self> {
        let (mantissa, ten) = match text.split_once(['e', 'E']) {
            Some((mantissa, ten)) => (mantissa, ten.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Self::decimal(digits.parse().ok()?, ten.checked_sub(i32::try_from(fraction.len()).ok()?)?)
    }

    fn bounded(self) -> Option<Self> {
        let decades =
            (self.numerator / self.denominator).log10() + f64::from(self.ten) + f64::from(self.pi) * PI.log10();
        (decades.abs() <= f64::from(DECADES_MAX)).then_some(self)
    }

    /// `None` beyond the bounds.
    pub fn times(self, other: Self) -> Option<Self> {
        self.over(other.inverse()).bounded()
    }

    /// The quotient, also beyond the bounds.
    pub fn over(self, other: Self) -> Self {
        let (numerator, denominator) = (self.numerator * other.denominator, self.denominator * other.numerator);
        Self::new(numerator, denominator, self.ten - other.ten, self.pi - other.pi, self.exact && other.exact)
    }

    fn inverse(self) -> Self {
        Self { numerator: self.denominator, denominator: self.numerator, ten: -self.ten, pi: -self.pi, ..self }
    }

    /// `None` beyond the bounds.
    pub fn power(self, exponent: i32) -> Option<Self> {
        let base = if exponent < 0 { self.inverse() } else { self };
        (0..exponent.unsigned_abs()).try_fold(Self::ONE, |product, _| product.times(base))
    }

    pub(super) fn ratio(self) -> Ratio {
        let multiplier = times_ten(self.numerator, self.ten.max(0));
        let divisor = times_ten(self.denominator, (-self.ten).max(0));
        let whole = self.exact && multiplier < WHOLE_MAX && divisor < WHOLE_MAX;
        let common = if whole { common_factor(multiplier, divisor) } else { 1.0 };
        Ratio {
            multiplier: multiplier / common * PI.powi(self.pi),
            divisor: divisor / common,
            exact: whole && self.pi == 0,
        }
    }
}

/// `number * 10^ten`, rounded once; `ten` is not negative.
fn times_ten(number: f64, ten: i32) -> f64 {
    if ten == 0 { number } else { format!("{number}e{ten}").parse().unwrap_or(f64::NAN) }
}

/// The greatest common divisor of two whole numbers below [`WHOLE_MAX`], of which at most one is 0.
pub(super) fn common_factor(mut a: f64, mut b: f64) -> f64 {
    while b != 0.0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Divides a whole number by 10 as often as possible, and counts how often.
fn without_tens(mut number: f64) -> (f64, i32) {
    let mut tens = 0;
    while number % 10.0 == 0.0 {
        (number, tens) = (number / 10.0, tens + 1);
    }
    (number, tens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_magnitudes_are_equal() {
        let read = |text| Magnitude::read(text).unwrap();
        assert_eq!(read("0.001"), read("1e-3"));
        assert_eq!(read("1000").times(read("0.001")), Some(Magnitude::ONE));
        assert_eq!(read("2.54").over(read("2.54")), Magnitude::ONE);
        assert_eq!(read("5").over(read("2")).times(read("0.4")), Some(Magnitude::ONE));
        assert_eq!(read("0.3").power(-2).unwrap().times(read("0.09")), Some(Magnitude::ONE));
    }

    #[test]
    fn factors_are_rounded_once_where_they_can_be() {
        let ratio = |text| {
            let Ratio { multiplier, divisor, exact } = Magnitude::read(text).unwrap().ratio();
            (multiplier, divisor, exact)
        };
        assert_eq!(ratio("0.001"), (1.0, 1000.0, true));
        assert_eq!(ratio("3600"), (3600.0, 1.0, true));
        assert_eq!(ratio("3.6"), (18.0, 5.0, true));
        assert_eq!(ratio("1e-30"), (1.0, 1e30, false));
        assert!(!Magnitude::PI.ratio().exact);
    }

    #[test]
    fn beyond_the_bounds_there_is_none() {
        for text in ["0", "", "-1", "1e151", "1e-151", "1e99999999999", "1.2.3", "x", "1e-2147483648"] {
            assert_eq!(Magnitude::read(text), None, "{text}");
        }
        assert_eq!(Magnitude::read("1e30").unwrap().power(99), None);
        // A fraction of numbers from 2^53 on is still a number, also when its numerator alone would overflow.
        let ratio = Magnitude::read("1.000000000000000000000000000007").unwrap().power(9).unwrap().ratio();
        assert!((ratio.multiplier / ratio.divisor - 1.0).abs() < 1e-12 && !ratio.exact);
        assert!(!Magnitude::read("9007199254740993").unwrap().ratio().exact);
    }
}
