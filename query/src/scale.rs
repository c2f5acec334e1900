//! Conversion of raw values to the sensor's unit.

use wholegrain_model::{Conversion, Value};

/// The largest integral scale for which integers stay integers: 2^53, the bound of exact integers in floats.
const INTEGRAL_MAX: f64 = 9_007_199_254_740_992.0;

/// A sensor's scale. A scale such as 0.001 is applied as a division by 1000, which gives the float nearest to the decimal number (0.3, not
/// 0.30000000000000004).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    factor: f64,
    divisor: Option<f64>,
}

impl Scale {
    /// The scale 1, which leaves values unchanged.
    pub const ONE: Scale = Scale { factor: 1.0, divisor: None };

    /// Takes a schema's scale, finite and not 0.
    pub fn new(factor: f64) -> Self {
        let inverse = (1.0 / factor).round();
        let is_inverse = factor.abs() < 1.0 && inverse.abs() <= INTEGRAL_MAX && 1.0 / inverse == factor;
        if is_inverse { Self { factor: 1.0, divisor: Some(inverse) } } else { Self { factor, divisor: None } }
    }

    /// This scale followed by a linear conversion, as one scale, which rounds once. `None` if that is not possible.
    pub(crate) fn then(self, conversion: Conversion) -> Option<Self> {
        let (multiplier, divisor) = conversion.ratio();
        let (mut above, mut below) = (self.factor * multiplier, self.divisor.unwrap_or(1.0) * divisor);
        let is_whole = |value: f64| value.fract() == 0.0 && (1.0..=INTEGRAL_MAX).contains(&value.abs());
        if !conversion.is_linear() || !is_whole(above) || !is_whole(below) {
            return None;
        }
        let common = common_factor(above.abs() as u64, below.abs() as u64) as f64 * below.signum();
        (above, below) = (above / common, below / common);
        Some(Self { factor: above, divisor: (below != 1.0).then_some(below) })
    }

    /// Whether integers stay integers.
    pub fn is_integral(self) -> bool {
        self.divisor.is_none() && self.factor.fract() == 0.0 && self.factor.abs() <= INTEGRAL_MAX
    }

    /// Whether values stay unchanged.
    pub(crate) fn is_one(self) -> bool {
        self == Self::ONE
    }

    /// Whether a larger raw value is a smaller quantity.
    pub(crate) fn is_negative(self) -> bool {
        (self.factor < 0.0) != self.divisor.is_some_and(|divisor| divisor < 0.0)
    }

    /// The quantity as a float.
    pub fn apply(self, raw: f64) -> f64 {
        match self.divisor {
            Some(divisor) => raw * self.factor / divisor,
            None => raw * self.factor,
        }
    }

    /// The quantity as an integer; `None` if it is not an integer of 64 bits.
    pub fn apply_exact(self, raw: Value) -> Option<i64> {
        match raw {
            Value::Int(raw) if self.is_integral() => raw.checked_mul(self.factor as i64),
            Value::Int(_) => None,
            Value::Float(raw) => {
                let scaled = self.apply(raw);
                let fits = scaled.fract() == 0.0 && scaled.abs() <= INTEGRAL_MAX;
                fits.then_some(scaled as i64)
            }
        }
    }
}

/// The greatest common divisor of two numbers that are not 0.
fn common_factor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_scales_give_decimal_numbers() {
        assert_eq!(Scale::new(0.1).apply(3.0), 0.3);
        assert_eq!(Scale::new(1e-6).apply(262_143_328_850.0), 262_143.328_85);
        assert_eq!(Scale::new(1024.0).apply(3.0), 3072.0);
        assert_eq!(Scale::new(0.3).apply(2.0), 0.6);
        assert_eq!(Scale::new(-0.01).apply(7.0), -0.07);
    }

    #[test]
    fn a_scale_and_a_unit_round_once() {
        let unit = |code: &str| wholegrain_model::Unit::parse(code).unwrap();
        let then = |scale: f64, from: &str, to: &str| Scale::new(scale).then(unit(from).to(&unit(to)).unwrap());
        assert_eq!(then(0.001, "mJ", "J").unwrap().apply(240_422_366_267.0), 240_422.366_267);
        assert_eq!(then(1.0, "uJ", "J").unwrap().apply(240_422_366_267.0), 240_422.366_267);
        assert_eq!(then(-0.01, "kW", "W").unwrap(), Scale::new(-10.0));
        assert_eq!(then(1024.0, "By", "kBy").unwrap().apply(1000.0), 1024.0);
        assert!(then(-0.001, "W", "kW").unwrap().is_negative() && !then(-0.001, "W", "kW").unwrap().is_integral());
        // A factor that is not a fraction of whole numbers, and a unit with another zero.
        assert_eq!((then(0.3, "W", "kW"), then(1.0, "Cel", "K")), (None, None));
    }

    #[test]
    fn integers_stay_or_are_refused() {
        let kib = Scale::new(1024.0);
        assert!(kib.is_integral() && !Scale::new(0.5).is_integral() && !Scale::new(1e300).is_integral());
        assert_eq!(kib.apply_exact(Value::Int(3)), Some(3072));
        assert_eq!(kib.apply_exact(Value::Int(i64::MAX)), None);
        assert_eq!(Scale::new(-1.0).apply_exact(Value::Int(i64::MIN)), None);
        assert_eq!(Scale::ONE.apply_exact(Value::Int(i64::MIN)), Some(i64::MIN));
        assert_eq!(Scale::ONE.apply_exact(Value::Float(2.0)), Some(2));
        for odd in [0.5, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(Scale::ONE.apply_exact(Value::Float(odd)), None, "{odd}");
        }
    }
}
