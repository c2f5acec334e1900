//! The value of a unit in coherent units.

use super::dimension::Dimension;
use super::magnitude::Magnitude;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measure {
    pub magnitude: Magnitude,
    pub dimension: Dimension,
    /// The zero point in the coherent unit, of a unit such as `Cel` alone.
    pub offset: Option<Magnitude>,
}

impl Measure {
    /// The unit `1` of plain numbers.
    pub const ONE: Measure = Measure { magnitude: Magnitude::ONE, dimension: Dimension::NUMBER, offset: None };

    /// `None` beyond the bounds.
    pub fn times(self, other: Self) -> Option<Self> {
        let magnitude = self.magnitude.times(other.magnitude)?;
        Some(Self { magnitude, dimension: self.dimension.times(other.dimension)?, offset: None })
    }

    /// `None` beyond the bounds.
    pub fn power(self, exponent: i32) -> Option<Self> {
        let magnitude = self.magnitude.power(exponent)?;
        Some(Self { magnitude, dimension: self.dimension.power(exponent)?, offset: None })
    }
}
