//! How many coherent units one of another is, exactly where that can be said: a fraction times powers of 2, 5 and pi.

use std::f64::consts::PI;

/// The largest power of 5 that 128 bits hold.
const FIVES_MAX: u32 = 55;
/// Magnitudes beyond 10 to this power, or below its inverse, are refused: products of two must stay finite.
const DECADES_MAX: i32 = 150;
/// The largest integer up to which all are floats.
pub(super) const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// `num / den * 2^two * 5^five * pi^pi`; `num` and `den` have no common factor and none of 2 and 5, so that equal magnitudes are equal field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exact {
    num: u128,
    den: u128,
    two: i32,
    five: i32,
    pi: i32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Magnitude {
    /// `None` when the fraction needs more than 128 bits.
    exact: Option<Exact>,
    approx: f64,
}

/// A factor as a product and a quotient: `x * mul / div` is rounded once where one of them is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Factor {
    pub mul: f64,
    pub div: f64,
    /// Whether both are exact.
    pub exact: bool,
}

impl Exact {
    const ONE: Exact = Exact { num: 1, den: 1, two: 0, five: 0, pi: 0 };

    fn new(num: u128, den: u128, two: i32, five: i32, pi: i32) -> Self {
        let common = gcd(num, den);
        let mut exact = Self { num: num / common, den: den / common, two, five, pi };
        exact.two += strip(&mut exact.num, 2) - strip(&mut exact.den, 2);
        exact.five += strip(&mut exact.num, 5) - strip(&mut exact.den, 5);
        exact
    }

    fn times(self, other: Self) -> Option<Self> {
        let (a, b) = (gcd(self.num, other.den), gcd(other.num, self.den));
        let num = (self.num / a).checked_mul(other.num / b)?;
        let den = (self.den / b).checked_mul(other.den / a)?;
        Some(Self {
            num,
            den,
            two: self.two.checked_add(other.two)?,
            five: self.five.checked_add(other.five)?,
            pi: self.pi.checked_add(other.pi)?,
        })
    }

    fn inverse(self) -> Self {
        Self { num: self.den, den: self.num, two: -self.two, five: -self.five, pi: -self.pi }
    }

    fn factor(self) -> Factor {
        let (mul, mul_exact) = part(self.num, self.two, self.five);
        let (div, div_exact) = part(self.den, -self.two, -self.five);
        Factor { mul: mul * PI.powi(self.pi), div, exact: mul_exact && div_exact && self.pi == 0 }
    }
}

/// `of * 2^two * 5^five`, powers below 0 left out, and whether the float is exactly that.
fn part(of: u128, two: i32, five: i32) -> (f64, bool) {
    let (two, fives) = (2f64.powi(two.max(0)), five.max(0).unsigned_abs());
    match 5u128.checked_pow(fives).filter(|_| fives <= FIVES_MAX).and_then(|fives| fives.checked_mul(of)) {
        Some(whole) => (whole as f64 * two, whole as f64 <= INTEGER_MAX),
        None => (of as f64 * 5f64.powi(five) * two, false),
    }
}

impl Magnitude {
    /// The factor 1, exact.
    pub const ONE: Magnitude = Magnitude { exact: Some(Exact::ONE), approx: 1.0 };
    /// The factor pi, kept as a symbol.
    pub const PI: Magnitude = Magnitude { exact: Some(Exact { pi: 1, ..Exact::ONE }), approx: PI };

    /// `digits * 10^ten`; `None` for 0 and beyond the bounds.
    pub fn decimal(digits: u128, ten: i32) -> Option<Self> {
        if digits == 0 || ten.unsigned_abs() > DECADES_MAX.unsigned_abs() {
            return None;
        }
        Self::of(Exact::new(digits, 1, ten, ten, 0))
    }

    /// The factor `2^two`, exact.
    pub fn binary(two: i32) -> Self {
        Self { exact: Some(Exact { two, ..Exact::ONE }), approx: 2f64.powi(two) }
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

    fn of(exact: Exact) -> Option<Self> {
        let Factor { mul, div, .. } = exact.factor();
        Self { exact: Some(exact), approx: mul / div }.bounded()
    }

    fn bounded(self) -> Option<Self> {
        let decades = self.approx.log10();
        (decades.is_finite() && decades.abs() <= f64::from(DECADES_MAX)).then_some(self)
    }

    /// `None` beyond the bounds.
    pub fn times(self, other: Self) -> Option<Self> {
        let exact = self.exact.zip(other.exact).and_then(|(a, b)| a.times(b));
        match exact {
            Some(exact) => Self::of(exact),
            None => Self { exact: None, approx: self.approx * other.approx }.bounded(),
        }
    }

    /// The factor `1 / self`, exact if `self` is.
    pub fn inverse(self) -> Self {
        Self { exact: self.exact.map(Exact::inverse), approx: 1.0 / self.approx }
    }

    /// `None` beyond the bounds.
    pub fn power(self, exponent: i32) -> Option<Self> {
        let base = if exponent < 0 { self.inverse() } else { self };
        (0..exponent.unsigned_abs()).try_fold(Self::ONE, |product, _| product.times(base))
    }

    /// The magnitude as the nearest `f64`.
    pub fn value(self) -> f64 {
        self.approx
    }

    /// How to convert by this magnitude with the fewest roundings.
    pub fn factor(self) -> Factor {
        self.exact.map_or(Factor { mul: self.approx, div: 1.0, exact: false }, Exact::factor)
    }

    /// As a plain fraction, when it fits and there is no pi in it.
    fn whole(self) -> Option<(i128, i128)> {
        let (num, den) = self.exact?.whole()?;
        Some((i128::try_from(num).ok()?, i128::try_from(den).ok()?))
    }
}

/// `x * ratio + zero - other` as `[m, s, d]` of `(x * m + s) / d`, all of them integers that floats hold exactly; `None` when there are no such.
pub(super) fn affine(ratio: Magnitude, zero: Option<Magnitude>, other: Option<Magnitude>) -> Option<[f64; 3]> {
    let fraction = |of: Option<Magnitude>| of.map_or(Some((0, 1)), Magnitude::whole);
    let parts = [ratio.whole()?, fraction(zero)?, fraction(other)?];
    let mut common = 1i128;
    for (_, den) in parts {
        common = common.checked_mul(den / i128::try_from(gcd(common.unsigned_abs(), den.unsigned_abs())).ok()?)?;
    }
    let over = |(num, den): (i128, i128)| num.checked_mul(common / den);
    let (multiplier, shift) = (over(parts[0])?, over(parts[1])?.checked_sub(over(parts[2])?)?);
    let least = [shift, common].iter().fold(multiplier.unsigned_abs(), |least, of| gcd(least, of.unsigned_abs()));
    let least = i128::try_from(least).ok()?;
    let (multiplier, shift, common) = (multiplier / least, shift / least, common / least);
    let float = |whole: i128| Some(whole as f64).filter(|float| float.abs() <= INTEGER_MAX);
    Some([float(multiplier)?, float(shift)?, float(common)?])
}

impl Exact {
    /// As a plain fraction, when it fits and there is no pi in it.
    fn whole(self) -> Option<(u128, u128)> {
        let power = |of: u128, base: u128, exponent: i32| {
            of.checked_mul(base.checked_pow(u32::try_from(exponent.max(0)).ok()?)?)
        };
        let num = power(power(self.num, 2, self.two)?, 5, self.five)?;
        let den = power(power(self.den, 2, -self.two)?, 5, -self.five)?;
        (self.pi == 0).then_some((num, den))
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Takes all factors `of` out of `number`, which is not 0, and says how many there were.
fn strip(number: &mut u128, of: u128) -> i32 {
    let mut count = 0;
    while number.is_multiple_of(of) && *number != 0 {
        (*number, count) = (*number / of, count + 1);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_magnitudes_are_equal() {
        let read = |text| Magnitude::read(text).unwrap();
        assert_eq!(read("0.001"), read("1e-3"));
        assert_eq!(read("1000").times(read("0.001")), Some(Magnitude::ONE));
        assert_eq!(read("2.54").inverse().times(read("2.54")), Some(Magnitude::ONE));
        assert_eq!(Magnitude::binary(10), read("1024"));
        assert_eq!(read("0.3").power(-2).unwrap().times(read("0.09")), Some(Magnitude::ONE));
    }

    #[test]
    fn factors_are_rounded_once_where_they_can_be() {
        let milli = Magnitude::read("0.001").unwrap().factor();
        assert_eq!((milli.mul, milli.div, milli.exact), (1.0, 1000.0, true));
        let hour = Magnitude::read("3600").unwrap().factor();
        assert_eq!((hour.mul, hour.div, hour.exact), (3600.0, 1.0, true));
        assert!(!Magnitude::PI.factor().exact);
    }

    #[test]
    fn beyond_the_bounds_there_is_none() {
        for text in ["0", "", "-1", "1e151", "1e-151", "1e99999999999", "1.2.3", "x", "1e-2147483648"] {
            assert_eq!(Magnitude::read(text), None, "{text}");
        }
        assert_eq!(Magnitude::read("1e30").unwrap().power(99), None);
        // A fraction that 128 bits do not hold is still a number.
        let odd = Magnitude::read("1.000000000000000000000000000007").unwrap();
        let product = odd.power(9).unwrap();
        assert!((product.factor().mul - 1.0).abs() < 1e-12 && !product.factor().exact);
    }

    #[test]
    fn affine_conversions_are_made_of_integers() {
        let read = |text| Magnitude::read(text);
        let ninth = |text| read(text).unwrap().times(read("9").unwrap().inverse());
        assert_eq!(affine(Magnitude::ONE, read("273.15"), None), Some([20.0, 5463.0, 20.0]));
        assert_eq!(affine(ninth("5").unwrap(), ninth("2298.35"), read("273.15")), Some([5.0, -160.0, 9.0]));
        assert_eq!(affine(Magnitude::PI, read("273.15"), None), None);
    }
}
