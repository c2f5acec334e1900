//! Prefixes, and the lookup of a unit with its prefix.

use std::collections::HashMap;

use super::magnitude::Magnitude;
use super::measure::Measure;

/// A unit without a prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Atom {
    pub measure: Measure,
    /// Metric units take prefixes.
    pub metric: bool,
}

/// All known units by name.
pub(super) type Atoms = HashMap<&'static str, Atom>;

/// Decimal prefixes with their powers of 10.
pub(super) const DECIMAL: [(&str, i32); 24] = [
    ("Q", 30),
    ("R", 27),
    ("Y", 24),
    ("Z", 21),
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("h", 2),
    ("da", 1),
    ("d", -1),
    ("c", -2),
    ("m", -3),
    ("u", -6),
    ("n", -9),
    ("p", -12),
    ("f", -15),
    ("a", -18),
    ("z", -21),
    ("y", -24),
    ("r", -27),
    ("q", -30),
];

/// Binary prefixes with their powers of 2.
pub(super) const BINARY: [(&str, i32); 8] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60), ("Zi", 70), ("Yi", 80)];

/// Units that a factor cannot express. They are refused.
pub(super) const LOGARITHMIC: [&str; 15] = [
    "B",
    "Np",
    "B[SPL]",
    "B[V]",
    "B[mV]",
    "B[uV]",
    "B[10.nV]",
    "B[W]",
    "B[kW]",
    "bit_s",
    "[pH]",
    "%[slope]",
    "[p'diop]",
    "[m/s2/Hz^0.5]",
    "[hp'_X]",
];

/// Looks up a unit with or without a prefix. The error is the reason.
pub(super) fn unit(name: &str, atoms: &Atoms) -> Result<Measure, String> {
    if let Some(atom) = atoms.get(name) {
        return Ok(atom.measure);
    }
    if let Some((prefix, atom)) = prefixed(name, |name| atoms.get(name).filter(|atom| atom.metric)) {
        let magnitude = prefix.times(atom.measure.magnitude);
        let magnitude = magnitude.ok_or_else(|| format!("`{name}` is too large or too small to compute with"))?;
        return Ok(Measure { magnitude, ..atom.measure });
    }
    if is_logarithmic(name) {
        return Err(format!("`{name}` is logarithmic or arbitrary in the UCUM, and such units are not converted"));
    }
    Err(match prefixed(name, |name| atoms.get(name)) {
        Some(_) => format!("`{name}` has a prefix, which this unit does not take"),
        None => format!("`{name}` is not a known UCUM unit"),
    })
}

/// Whether it is one of [`LOGARITHMIC`], with or without a prefix.
pub(super) fn is_logarithmic(name: &str) -> bool {
    let known = |name: &str| LOGARITHMIC.contains(&name).then_some(());
    known(name).is_some() || prefixed(name, known).is_some()
}

/// Splits a name into a prefix and a `known` rest.
fn prefixed<T>(name: &str, known: impl Fn(&str) -> Option<T>) -> Option<(Magnitude, T)> {
    let binary = BINARY.iter().map(|(prefix, two)| (*prefix, Magnitude::decimal(2f64.powi(*two), 0)));
    let decimal = DECIMAL.iter().map(|(prefix, ten)| (*prefix, Magnitude::decimal(1.0, *ten)));
    binary.chain(decimal).find_map(|(prefix, factor)| Some((factor?, known(name.strip_prefix(prefix)?)?)))
}
