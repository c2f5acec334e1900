//! From raw values to the sensor's unit.

use wholegrain_model::Value;

/// The largest integral scale for which products of integers are kept as integers: 2^53, where floats stop being exact.
const INTEGRAL_MAX: f64 = 9_007_199_254_740_992.0;

/// A sensor's scale, made ready. A scale such as 0.001 is applied as a division by 1000, which gives the float nearest to
/// the decimal number (0.3, not 0.30000000000000004).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    factor: f64,
    divisor: Option<f64>,
}

impl Scale {
    /// Of 1: values as they are.
    pub const ONE: Scale = Scale { factor: 1.0, divisor: None };

    /// Takes a schema's scale, finite and not 0.
    pub fn new(factor: f64) -> Self {
        let inverse = (1.0 / factor).round();
        let is_inverse = factor.abs() < 1.0 && inverse.abs() <= INTEGRAL_MAX && 1.0 / inverse == factor;
        Self { factor, divisor: is_inverse.then_some(inverse) }
    }

    /// Whether integers stay integers.
    pub fn is_integral(self) -> bool {
        self.factor.fract() == 0.0 && self.factor.abs() <= INTEGRAL_MAX
    }

    /// Whether values stay as they are.
    pub(crate) fn is_one(self) -> bool {
        self == Self::ONE
    }

    /// Whether a greater raw value is a lesser quantity.
    pub(crate) fn is_negative(self) -> bool {
        self.factor < 0.0
    }

    /// The quantity as a float.
    pub fn apply(self, raw: f64) -> f64 {
        match self.divisor {
            Some(divisor) => raw / divisor,
            None => raw * self.factor,
        }
    }

    /// The quantity as an integer; `None` when it does not fit into 64 bits or is no integer.
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
