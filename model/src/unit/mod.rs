//! Units as UCUM codes (`W`, `kW.h`, `MiBy/s`, `Cel`): what they measure, and how to get from one to another.
//!
//! - In: codes, case-sensitive.
//! - Out: [`Unit`], its [`Dimension`], and [`Conversion`]s between units of the same dimension; [`UnitError`]s that say where a code is wrong and what may
//!   have been meant.
//! - Never: a number in a unit that it is not in. What cannot be converted exactly in meaning is refused: other dimensions, logarithmic units, and names
//!   that are not known.
//!
//! What was decided where the UCUM leaves a choice, or where another one was taken, is in `docs/units.md`.

mod atoms;
mod dimension;
mod magnitude;
mod nearest;
mod parse;

#[cfg(test)]
mod conformance;

use std::fmt;

use atoms::ATOMS;
pub use dimension::Dimension;
use magnitude::Magnitude;
use parse::{Factor, Measure};

/// The longest code, in bytes.
pub const CODE_BYTES_MAX: usize = 256;
/// The deepest that parentheses may stand in a code.
pub const DEPTH_MAX: usize = 16;
/// The largest exponent in a code.
pub const EXPONENT_MAX: i32 = 99;

/// Why something is no unit, or cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The code is wrong.
    #[error("unit {code:?}, at {}: {reason}{}", at + 1, meant(.suggestion.as_deref()))]
    Code {
        /// The whole code.
        code: String,
        /// The byte where it goes wrong, from 0.
        at: usize,
        /// What is wrong.
        reason: String,
        /// The whole code that may have been meant.
        suggestion: Option<String>,
    },
    /// The two do not measure the same.
    #[error("{from} ({from_dimension}) cannot be converted to {to} ({to_dimension})")]
    Mismatch {
        /// The unit there is.
        from: String,
        /// What it measures.
        from_dimension: Dimension,
        /// The unit wanted.
        to: String,
        /// What that measures.
        to_dimension: Dimension,
    },
    /// It would go beyond a bound.
    #[error("unit {code:?}: {reason}")]
    Beyond {
        /// The code, or its beginning.
        code: String,
        /// Which bound.
        reason: &'static str,
    },
}

fn meant(suggestion: Option<&str>) -> String {
    suggestion.map(|code| format!("; did you mean `{code}`?")).unwrap_or_default()
}

impl UnitError {
    /// The byte of the code where it goes wrong, from 0.
    pub fn at(&self) -> Option<usize> {
        match self {
            UnitError::Code { at, .. } => Some(*at),
            _ => None,
        }
    }
}

/// A unit: its code and what it measures.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// Empty for 1.
    code: String,
    measure: Measure,
}

impl Unit {
    /// The unit of numbers.
    pub const ONE: Unit = Unit { code: String::new(), measure: Measure::ONE };

    /// Takes a UCUM code. The empty one is `1`.
    pub fn parse(code: &str) -> Result<Unit, UnitError> {
        if code.is_empty() || code == "1" {
            return Ok(Unit::ONE);
        }
        Ok(Unit { code: code.to_owned(), measure: parse::measure(code, &ATOMS)? })
    }

    /// The code, as it was written or as it came out of a product.
    pub fn code(&self) -> &str {
        if self.code.is_empty() { "1" } else { &self.code }
    }

    /// What it measures.
    pub fn dimension(&self) -> Dimension {
        self.measure.dimension
    }

    /// Whether it is the number 1: no other number such as `%`, but also `{cpu}`, whose annotation says nothing about the value.
    pub fn is_one(&self) -> bool {
        self.measure == Measure::ONE
    }

    /// Whether its zero is not the zero of what it measures: `Cel` and `[degF]` when they stand alone.
    pub fn has_offset(&self) -> bool {
        self.measure.offset.is_some()
    }

    /// The unit of differences: one `Cel` is then one `K`, and 0 is 0. All others are that already.
    pub fn interval(&self) -> Unit {
        Unit { code: self.code.clone(), measure: Measure { offset: None, ..self.measure } }
    }

    /// The unit of products. In products `Cel` and `[degF]` are intervals.
    pub fn multiply(&self, other: &Unit) -> Result<Unit, UnitError> {
        let measure = self.measure.times(other.measure);
        combined(measure, [(self, 1), (other, 1)])
    }

    /// The unit of quotients.
    pub fn divide(&self, other: &Unit) -> Result<Unit, UnitError> {
        let measure = self.measure.over(other.measure);
        combined(measure, [(self, 1), (other, -1)])
    }

    /// The unit of powers.
    pub fn power(&self, exponent: i32) -> Result<Unit, UnitError> {
        if exponent.abs() > EXPONENT_MAX {
            return Err(UnitError::Beyond { code: self.code().to_owned(), reason: "exponents are at most 99" });
        }
        combined(self.measure.power(exponent), [(self, exponent), (&Unit::ONE, 1)])
    }

    /// How values in this unit become values in `other`.
    pub fn to(&self, other: &Unit) -> Result<Conversion, UnitError> {
        if self.dimension() != other.dimension() {
            return Err(UnitError::Mismatch {
                from: self.code().to_owned(),
                from_dimension: self.dimension(),
                to: other.code().to_owned(),
                to_dimension: other.dimension(),
            });
        }
        Ok(Conversion::new(&self.measure, &other.measure))
    }

    /// How values in this unit become values in the coherent unit of its dimension: W, J, K, m/s, but kg and not g, and bit.
    pub fn to_base(&self) -> Conversion {
        Conversion::new(&self.measure, &Measure { dimension: self.measure.dimension, ..Measure::ONE })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl std::str::FromStr for Unit {
    type Err = UnitError;
    fn from_str(code: &str) -> Result<Self, UnitError> {
        Unit::parse(code)
    }
}

/// Gives a measure the code of its parts, each to its power; what cancels is left out.
fn combined(measure: Option<Measure>, parts: [(&Unit, i32); 2]) -> Result<Unit, UnitError> {
    let beyond = |reason| {
        let code = parts.map(|(unit, exponent)| format!("({unit}){exponent}")).join(".");
        UnitError::Beyond { code: code.chars().take(80).collect(), reason }
    };
    let measure = measure.ok_or_else(|| beyond("it is too great or too small to compute with"))?;
    let mut factors: Vec<Factor<'_>> = Vec::new();
    for (unit, exponent) in parts {
        let of = if unit.code.is_empty() { Vec::new() } else { parse::parse(&unit.code, &ATOMS)?.1 };
        for factor in of {
            let exponent = factor.exponent * exponent;
            match factors.iter_mut().find(|known| (known.base, known.annotation) == (factor.base, factor.annotation)) {
                Some(known) => known.exponent += exponent,
                None => factors.push(Factor { exponent, ..factor }),
            }
        }
    }
    if factors.iter().any(|factor| factor.exponent.abs() > EXPONENT_MAX) {
        return Err(beyond("exponents are at most 99"));
    }
    let code = written(&factors).ok_or_else(|| beyond("its code would be too long"))?;
    Ok(Unit { code: if code == "1" { String::new() } else { code }, measure })
}

/// The code of these factors: what is multiplied, then what is divided by. `None` when it would be too long.
fn written(factors: &[Factor<'_>]) -> Option<String> {
    let mut code = String::new();
    for (sign, before) in [(1, "."), (-1, "/")] {
        for Factor { base, annotation, exponent } in factors.iter().filter(|factor| factor.exponent.signum() == sign) {
            let (count, exponent) = match *base {
                "1" => continue,
                // Integers and annotations take no exponent: they are written as often as they are there.
                base if base.bytes().all(|byte| byte.is_ascii_digit()) => (exponent.unsigned_abs(), String::new()),
                "10*" | "10^" => (1, exponent.abs().to_string()),
                _ if exponent.abs() == 1 => (1, String::new()),
                _ => (1, exponent.abs().to_string()),
            };
            for _ in 0..count {
                // Two integers with a `.` between them look like one with decimals.
                let digits = code.bytes().last().is_some_and(|byte| byte.is_ascii_digit());
                match (code.is_empty(), sign) {
                    (true, 1) => {}
                    (true, _) => code.push_str("1/"),
                    (false, 1) if digits && base.bytes().all(|byte| byte.is_ascii_digit()) && !base.is_empty() => {
                        code = format!("({code}).");
                    }
                    _ => code.push_str(before),
                }
                code.push_str(base);
                code.push_str(&exponent);
                code.push_str(annotation);
                if code.len() > CODE_BYTES_MAX {
                    return None;
                }
            }
        }
    }
    Some(if code.is_empty() { "1".to_owned() } else { code })
}

/// How numbers in one unit become numbers in another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conversion {
    /// `(x * multiplier + shift) / divisor`: integers where that is possible, so that the result is rounded once.
    multiplier: f64,
    shift: f64,
    divisor: f64,
    /// Whether all three are exact.
    exact: bool,
}

impl Conversion {
    /// Leaves everything as it is.
    pub const IDENTITY: Conversion = Conversion { multiplier: 1.0, shift: 0.0, divisor: 1.0, exact: true };

    fn new(from: &Measure, to: &Measure) -> Self {
        let down = to.magnitude.inverse();
        let ratio = from.magnitude.times(down);
        let (multiplier, divisor, exact) = match ratio.map(Magnitude::factor) {
            Some(magnitude::Factor { mul, div, exact }) => (mul, div, exact),
            // Both are within 150 decades of 1, so that this is a number, though beyond what a unit can be.
            None => (from.magnitude.value() / to.magnitude.value(), 1.0, false),
        };
        if from.offset == to.offset && ratio == Some(Magnitude::ONE) || (from.offset, to.offset) == (None, None) {
            return Self { multiplier, shift: 0.0, divisor, exact };
        }
        let over = |offset: Option<Magnitude>| offset.map(|offset| offset.times(down).unwrap_or(Magnitude::ONE));
        let (zero, other) = (over(from.offset), over(to.offset));
        if let Some(ratio) = ratio
            && let Some([multiplier, shift, divisor]) = magnitude::affine(ratio, zero, other)
        {
            return Self { multiplier, shift, divisor, exact: true };
        }
        let value = |of: Option<Magnitude>| of.map_or(0.0, Magnitude::value);
        Self { multiplier, shift: (value(zero) - value(other)) * divisor, divisor, exact: false }
    }

    /// The number in the other unit.
    pub fn apply(self, value: f64) -> f64 {
        (value * self.multiplier + self.shift) / self.divisor
    }

    /// What differences are multiplied by.
    pub fn factor(self) -> f64 {
        self.multiplier / self.divisor
    }

    /// What 0 becomes.
    pub fn offset(self) -> f64 {
        self.shift / self.divisor
    }

    /// Whether nothing changes.
    pub fn is_identity(self) -> bool {
        self.multiplier == self.divisor && self.shift == 0.0
    }

    /// Whether 0 stays 0.
    pub fn is_linear(self) -> bool {
        self.shift == 0.0
    }

    /// Multiplier and divisor. Dividing by a whole number gives the float that is nearest to the decimal number; multiplying by its inverse does not.
    pub fn ratio(self) -> (f64, f64) {
        (self.multiplier, self.divisor)
    }

    /// The integer by which integers are multiplied, when they stay exactly what they are.
    pub fn integer(self) -> Option<i64> {
        let whole = self.exact && self.is_linear() && self.divisor == 1.0 && self.multiplier.fract() == 0.0;
        (whole && self.multiplier <= magnitude::INTEGER_MAX).then_some(self.multiplier as i64)
    }
}
