//! Units as UCUM codes (`W`, `kW.h`, `MiBy/s`, `Cel`): their dimensions, and conversions between units of the same dimension.
//!
//! A unit is never converted to one with another meaning: other dimensions, logarithmic units and unknown names are refused. A [`UnitError`] names the
//! place in the code and a similar valid code.
//!
//! `docs/units.md` lists the decisions where the UCUM leaves a choice or Wholegrain differs from it.

mod atoms;
mod conversion;
mod dimension;
mod error;
mod magnitude;
mod measure;
mod nearest;
mod parse;
mod symbol;

#[cfg(test)]
mod conformance;

use std::fmt;

use atoms::ATOMS;
pub use conversion::Conversion;
pub use dimension::Dimension;
pub use error::UnitError;
use error::{CODE_BYTES_MAX, EXPONENT_MAX};
use measure::Measure;
use parse::Factor;

#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// Empty for 1.
    code: String,
    measure: Measure,
}

impl Unit {
    /// The unit of numbers.
    pub const ONE: Unit = Unit { code: String::new(), measure: Measure::ONE };

    /// Parses a UCUM code. The empty one is `1`.
    pub fn parse(code: &str) -> Result<Unit, UnitError> {
        if code.is_empty() || code == "1" {
            return Ok(Unit::ONE);
        }
        Ok(Unit { code: code.to_owned(), measure: parse::parse(code, &ATOMS)?.0 })
    }

    /// The code as parsed, or as composed for a product.
    pub fn code(&self) -> &str {
        if self.code.is_empty() { "1" } else { &self.code }
    }

    pub fn dimension(&self) -> Dimension {
        self.measure.dimension
    }

    /// Whether 0 in this unit differs from 0 in the coherent unit: `Cel` and `[degF]` alone.
    pub fn has_offset(&self) -> bool {
        self.measure.offset.is_some()
    }

    /// The unit of differences: 1 `Cel` is 1 `K`, and 0 is 0. Units without an offset are unchanged.
    pub fn interval(&self) -> Unit {
        Unit { code: self.code.clone(), measure: Measure { offset: None, ..self.measure } }
    }

    /// In products `Cel` and `[degF]` are intervals.
    pub fn multiply(&self, other: &Unit) -> Result<Unit, UnitError> {
        self.compose(other, 1)
    }

    /// In quotients `Cel` and `[degF]` are intervals.
    pub fn divide(&self, other: &Unit) -> Result<Unit, UnitError> {
        self.compose(other, -1)
    }

    /// The product of this unit and another to the power 1 or -1. Factors that cancel are omitted from its code.
    fn compose(&self, other: &Unit, power: i32) -> Result<Unit, UnitError> {
        let (_, mut factors) = parse::parse(self.code(), &ATOMS)?;
        for factor in parse::parse(other.code(), &ATOMS)?.1 {
            let exponent = factor.exponent * power;
            match factors.iter_mut().find(|known| (known.base, known.annotation) == (factor.base, factor.annotation)) {
                Some(known) => known.exponent += exponent,
                None => factors.push(Factor { exponent, ..factor }),
            }
        }
        let refused = |reason| {
            let code = format!("({self}){}({other})", if power > 0 { "." } else { "/" });
            UnitError::Beyond { code: code.chars().take(80).collect(), reason }
        };
        if factors.iter().any(|factor| factor.exponent.abs() > EXPONENT_MAX) {
            return Err(refused("exponents are at most 99"));
        }
        let code = format_code(&factors).ok_or_else(|| refused("its code would be too long"))?;
        Ok(Unit::parse(&code)?.interval())
    }

    /// The conversion of values in this unit to values in `other`.
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

    /// The conversion of values in this unit to values in the coherent unit of its dimension: W, J, K, m/s, kg (not g), bit.
    pub fn to_base(&self) -> Conversion {
        Conversion::new(&self.measure, &Measure::ONE)
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

/// The code of factors: first those with a positive exponent, then the divisors. `None` if it would be too long.
fn format_code(factors: &[Factor<'_>]) -> Option<String> {
    let mut code = String::new();
    for (sign, before) in [(1, "."), (-1, "/")] {
        for Factor { base, annotation, exponent } in factors.iter().filter(|factor| factor.exponent.signum() == sign) {
            let is_digits = base.bytes().all(|byte| byte.is_ascii_digit());
            let (count, exponent) = match *base {
                "1" => continue,
                // Integers and annotations take no exponent: they are repeated.
                _ if is_digits => (exponent.unsigned_abs(), String::new()),
                "10*" | "10^" => (1, exponent.abs().to_string()),
                _ if exponent.abs() == 1 => (1, String::new()),
                _ => (1, exponent.abs().to_string()),
            };
            for _ in 0..count {
                // Two integers with a `.` between them look like a decimal fraction.
                let after_digit = code.bytes().last().is_some_and(|byte| byte.is_ascii_digit());
                match (code.is_empty(), sign) {
                    (true, 1) => {}
                    (true, _) => code.push_str("1/"),
                    (false, 1) if after_digit && is_digits && !base.is_empty() => code = format!("({code})."),
                    _ => code.push_str(before),
                }
                code.extend([base, exponent.as_str(), annotation]);
                if code.len() > CODE_BYTES_MAX {
                    return None;
                }
            }
        }
    }
    Some(code)
}
