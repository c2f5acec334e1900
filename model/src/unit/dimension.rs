//! Dimensions: exponents of the base quantities, and their names.

use std::fmt;

/// The base quantities, in the order of the exponents, with the coherent unit of each.
const BASE: [(&str, &str); BASES] = [
    ("length", "m"),
    ("mass", "kg"),
    ("time", "s"),
    ("current", "A"),
    ("temperature", "K"),
    ("amount", "mol"),
    ("luminous intensity", "cd"),
    ("angle", "rad"),
    ("information", "bit"),
];
const BASES: usize = 9;
/// The largest exponent of a base quantity, either way.
const EXPONENT_MAX: i32 = 100;

/// Named quantities, as exponents of [`BASE`].
const NAMED: &[(&str, [i8; BASES])] = &[
    ("number", [0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ("frequency", [0, 0, -1, 0, 0, 0, 0, 0, 0]),
    ("area", [2, 0, 0, 0, 0, 0, 0, 0, 0]),
    ("volume", [3, 0, 0, 0, 0, 0, 0, 0, 0]),
    ("velocity", [1, 0, -1, 0, 0, 0, 0, 0, 0]),
    ("acceleration", [1, 0, -2, 0, 0, 0, 0, 0, 0]),
    ("density", [-3, 1, 0, 0, 0, 0, 0, 0, 0]),
    ("force", [1, 1, -2, 0, 0, 0, 0, 0, 0]),
    ("pressure", [-1, 1, -2, 0, 0, 0, 0, 0, 0]),
    ("energy", [2, 1, -2, 0, 0, 0, 0, 0, 0]),
    ("power", [2, 1, -3, 0, 0, 0, 0, 0, 0]),
    ("charge", [0, 0, 1, 1, 0, 0, 0, 0, 0]),
    ("voltage", [2, 1, -3, -1, 0, 0, 0, 0, 0]),
    ("resistance", [2, 1, -3, -2, 0, 0, 0, 0, 0]),
    ("conductance", [-2, -1, 3, 2, 0, 0, 0, 0, 0]),
    ("capacitance", [-2, -1, 4, 2, 0, 0, 0, 0, 0]),
    ("inductance", [2, 1, -2, -2, 0, 0, 0, 0, 0]),
    ("magnetic flux", [2, 1, -2, -1, 0, 0, 0, 0, 0]),
    ("magnetic flux density", [0, 1, -2, -1, 0, 0, 0, 0, 0]),
    ("luminous flux", [0, 0, 0, 0, 0, 0, 1, 2, 0]),
    ("illuminance", [-2, 0, 0, 0, 0, 0, 1, 2, 0]),
    ("solid angle", [0, 0, 0, 0, 0, 0, 0, 2, 0]),
    ("specific heat", [2, 0, -2, 0, -1, 0, 0, 0, 0]),
    ("viscosity", [-1, 1, -1, 0, 0, 0, 0, 0, 0]),
    ("data rate", [0, 0, -1, 0, 0, 0, 0, 0, 1]),
];

/// The quantity that a unit measures, as exponents of length, mass, time, electric current, temperature, amount of substance, luminous
/// intensity, plane angle and information. `Display` writes words: `power`, `temperature/time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dimension([i8; BASES]);

impl Dimension {
    /// The dimension of numbers, ratios and counts.
    pub const NUMBER: Dimension = Dimension([0; BASES]);
    /// The dimension of `m`.
    pub const LENGTH: Dimension = Self::base(0);
    /// The dimension of `g`.
    pub const MASS: Dimension = Self::base(1);
    /// The dimension of `s`.
    pub const TIME: Dimension = Self::base(2);
    /// The dimension of `A`.
    pub const CURRENT: Dimension = Self::base(3);
    /// The dimension of `K`.
    pub const TEMPERATURE: Dimension = Self::base(4);
    /// The dimension of `mol`.
    pub const AMOUNT: Dimension = Self::base(5);
    /// The dimension of `cd`.
    pub const LUMINOUS_INTENSITY: Dimension = Self::base(6);
    /// The dimension of `rad`.
    pub const ANGLE: Dimension = Self::base(7);
    /// The dimension of `bit` and `By`.
    pub const INFORMATION: Dimension = Self::base(8);

    const fn base(at: usize) -> Self {
        let mut exponents = [0; BASES];
        exponents[at] = 1;
        Self(exponents)
    }

    /// Whether it is the dimension of numbers.
    pub fn is_number(self) -> bool {
        self == Self::NUMBER
    }

    /// The dimension of a product; `None` if an exponent exceeds 100.
    pub fn times(self, other: Self) -> Option<Self> {
        self.each(|at, exponent| exponent + i32::from(other.0[at]))
    }

    /// The dimension of a quotient; `None` if an exponent exceeds 100.
    pub fn over(self, other: Self) -> Option<Self> {
        self.each(|at, exponent| exponent - i32::from(other.0[at]))
    }

    /// The dimension of a power; `None` if an exponent exceeds 100.
    pub fn power(self, exponent: i32) -> Option<Self> {
        self.each(|_, of| of.saturating_mul(exponent))
    }

    /// The dimension of a root; `None` if there is none, such as the square root of a length.
    pub fn root(self, of: i32) -> Option<Self> {
        let whole = of != 0 && self.0.iter().all(|exponent| i32::from(*exponent) % of == 0);
        if whole { self.each(|_, exponent| exponent / of) } else { None }
    }

    fn each(self, of: impl Fn(usize, i32) -> i32) -> Option<Self> {
        let mut exponents = [0; BASES];
        for (at, exponent) in self.0.into_iter().enumerate() {
            let exponent = of(at, i32::from(exponent));
            exponents[at] = i8::try_from(exponent).ok().filter(|_| exponent.abs() <= EXPONENT_MAX)?;
        }
        Some(Self(exponents))
    }

    /// The UCUM code of the coherent unit: `kg.m2.s-3` for power.
    pub fn base_code(self) -> String {
        let codes: Vec<String> = self
            .0
            .into_iter()
            .zip(BASE)
            .filter(|(exponent, _)| *exponent != 0)
            .map(|(exponent, (_, code))| if exponent == 1 { code.to_owned() } else { format!("{code}{exponent}") })
            .collect();
        if codes.is_empty() { "1".to_owned() } else { codes.join(".") }
    }

    fn named(self) -> Option<&'static str> {
        let named = NAMED.iter().find(|(_, exponents)| *exponents == self.0).map(|(name, _)| *name);
        named.or_else(|| BASE.iter().enumerate().find(|(at, _)| Self::base(*at) == self).map(|(_, (name, _))| *name))
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.named() {
            return f.write_str(name);
        }
        // A named quantity multiplied or divided by a base quantity is clearer than exponents.
        for (exponent, sign) in [(1, "/"), (-1, "·"), (2, "/"), (-2, "·")] {
            for (at, (base, _)) in BASE.iter().enumerate() {
                let rest = Self::base(at).power(exponent).and_then(|power| self.times(power));
                if let Some(name) = rest.filter(|rest| !rest.is_number()).and_then(Self::named) {
                    let power = if exponent.abs() == 2 { "²" } else { "" };
                    return write!(f, "{name}{sign}{base}{power}");
                }
            }
        }
        for (name, below) in NAMED.iter().filter(|(_, exponents)| !Self(*exponents).is_number()) {
            if let Some(above) = self.times(Self(*below)).filter(|above| !above.is_number()).and_then(Self::named) {
                return write!(f, "{above}/{name}");
            }
        }
        let words: Vec<String> = self
            .0
            .into_iter()
            .zip(BASE)
            .filter(|(exponent, _)| *exponent != 0)
            .map(|(exponent, (name, _))| if exponent == 1 { name.to_owned() } else { format!("{name}^{exponent}") })
            .collect();
        f.write_str(&words.join("·"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let of = |code: &str| crate::Unit::parse(code).unwrap().dimension().to_string();
        for (code, words) in [
            ("1", "number"),
            ("W", "power"),
            ("Cel/s", "temperature/time"),
            ("W/K", "power/temperature"),
            ("By", "information"),
            ("MBy/s", "data rate"),
            ("m/s", "velocity"),
            ("kW.h", "energy"),
            ("W/m2", "power/length²"),
            ("By/J", "information/energy"),
            ("kg7.m3", "length^3·mass^7"),
            ("K.s", "temperature·time"),
            ("l/min", "volume/time"),
            ("m2/s", "area/time"),
        ] {
            assert_eq!(of(code), words, "{code}");
        }
    }

    #[test]
    fn exponents_are_bounded() {
        let most = Dimension::LENGTH.power(EXPONENT_MAX).unwrap();
        assert_eq!((most.times(Dimension::LENGTH), Dimension::LENGTH.power(i32::MIN)), (None, None));
        assert_eq!(most.over(most), Some(Dimension::NUMBER));
        assert_eq!((most.root(50), Dimension::LENGTH.root(2)), (Dimension::LENGTH.power(2), None));
        assert_eq!(Dimension::NUMBER.base_code(), "1");
    }
}
