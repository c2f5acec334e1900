//! Suggestions for names that are not units.

use super::symbol::{Atoms, BINARY, DECIMAL, is_logarithmic, unit};
use crate::suggest;

/// Common names in lower case, with their UCUM codes.
const WORDS: &[(&str, &str)] = &[
    ("celsius", "Cel"),
    ("centigrade", "Cel"),
    ("degc", "Cel"),
    ("deg_c", "Cel"),
    ("°c", "Cel"),
    ("℃", "Cel"),
    ("°", "deg"),
    ("degree", "deg"),
    ("degrees", "deg"),
    ("fahrenheit", "[degF]"),
    ("degf", "[degF]"),
    ("deg_f", "[degF]"),
    ("°f", "[degF]"),
    ("kelvin", "K"),
    ("°k", "K"),
    ("watt", "W"),
    ("watts", "W"),
    ("kilowatt", "kW"),
    ("kilowatts", "kW"),
    ("megawatt", "MW"),
    ("joule", "J"),
    ("joules", "J"),
    ("wh", "W.h"),
    ("kwh", "kW.h"),
    ("mwh", "MW.h"),
    ("gwh", "GW.h"),
    ("va", "V.A"),
    ("kva", "kV.A"),
    ("var", "V.A{reactive}"),
    ("kvar", "kV.A{reactive}"),
    ("ah", "A.h"),
    ("volt", "V"),
    ("volts", "V"),
    ("amp", "A"),
    ("amps", "A"),
    ("ampere", "A"),
    ("amperes", "A"),
    ("ohms", "Ohm"),
    ("ω", "Ohm"),
    ("hertz", "Hz"),
    ("rpm", "{rev}/min"),
    ("pascal", "Pa"),
    ("psi", "[psi]"),
    ("ppm", "[ppm]"),
    ("ppb", "[ppb]"),
    ("inch", "[in_i]"),
    ("foot", "[ft_i]"),
    ("feet", "[ft_i]"),
    ("ft", "[ft_i]"),
    ("mile", "[mi_i]"),
    ("gallon", "[gal_us]"),
    ("gal", "[gal_us]"),
    ("gpm", "[gal_us]/min"),
    ("btu", "[Btu_IT]"),
    ("lb", "[lb_av]"),
    ("hp", "[HP]"),
    ("meter", "m"),
    ("meters", "m"),
    ("metre", "m"),
    ("metres", "m"),
    ("m²", "m2"),
    ("m³", "m3"),
    ("liter", "l"),
    ("liters", "l"),
    ("litre", "l"),
    ("litres", "l"),
    ("gram", "g"),
    ("kilogram", "kg"),
    ("ton", "t"),
    ("tonne", "t"),
    ("mole", "mol"),
    ("lux", "lx"),
    ("lumen", "lm"),
    ("candela", "cd"),
    ("radian", "rad"),
    ("byte", "By"),
    ("bytes", "By"),
    ("octets", "By"),
    ("kib", "KiBy"),
    ("kb", "kBy"),
    ("bits", "bit"),
    ("kbps", "kbit/s"),
    ("mbps", "Mbit/s"),
    ("gbps", "Gbit/s"),
    ("bps", "bit/s"),
    ("baud", "Bd"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("millisecond", "ms"),
    ("milliseconds", "ms"),
    ("microseconds", "us"),
    ("nanoseconds", "ns"),
    ("minute", "min"),
    ("minutes", "min"),
    ("mins", "min"),
    ("hour", "h"),
    ("hours", "h"),
    ("hr", "h"),
    ("day", "d"),
    ("days", "d"),
    ("week", "wk"),
    ("weeks", "wk"),
    ("month", "mo"),
    ("year", "a"),
    ("years", "a"),
    ("percent", "%"),
    ("pct", "%"),
    ("ratio", "1"),
    ("none", "1"),
    ("number", "1"),
    ("count", "{count}"),
    ("counts", "{count}"),
    ("cycles", "{cycle}"),
    ("packets", "{packet}"),
    ("events", "{event}"),
    ("instructions", "{instruction}"),
    ("requests", "{request}"),
];

/// Returns a code similar to `name`, which is not a unit.
pub(super) fn suggest(name: &str, atoms: &Atoms) -> Option<String> {
    if is_logarithmic(name) {
        // No other suggestion: a user of dB does not mean the decibarn.
        return bytes(name);
    }
    bytes(name).or_else(|| word(name)).or_else(|| letters(name)).or_else(|| other_case(name, atoms)).or_else(|| {
        // Short names are similar to too many others.
        let known = atoms.keys().copied().filter(|known| known.len() > 2);
        if name.len() > 3 { suggest::nearest(name, known).map(str::to_owned) } else { None }
    })
}

/// `B` is the bel. With a usual prefix of bytes, a user means bytes.
fn bytes(name: &str) -> Option<String> {
    let prefix = name.strip_suffix('B')?;
    let usual = prefix.is_empty()
        || ["k", "K", "M", "G", "T", "P", "E"].contains(&prefix)
        || BINARY.iter().any(|(binary, _)| *binary == prefix);
    let prefix = if prefix == "K" { "Ki" } else { prefix };
    usual.then(|| format!("{prefix}By"))
}

fn word(name: &str) -> Option<String> {
    let lower = name.trim().to_lowercase();
    WORDS.iter().find(|(word, _)| *word == lower).map(|(_, code)| (*code).to_owned())
}

/// Replaces letters that are not ASCII.
fn letters(name: &str) -> Option<String> {
    if name.is_ascii() {
        return None;
    }
    let mut text =
        name.replace(['µ', 'μ'], "u").replace(['Ω', 'Ω'], "Ohm").replace("°C", "Cel").replace("°F", "[degF]");
    for (digit, plain) in
        [("¹", "1"), ("²", "2"), ("³", "3"), ("⁻", "-"), ("·", "."), ("⋅", "."), ("×", "."), ("‰", "[ppth]")]
    {
        text = text.replace(digit, plain);
    }
    (text.is_ascii()).then_some(text)
}

/// Finds a unit with the same letters in other case: the one with most letters in the right case, then with the most usual prefix.
fn other_case(name: &str, atoms: &Atoms) -> Option<String> {
    let lower = name.to_lowercase();
    let mut best: Option<(usize, String)> = None;
    let prefixes = [""].into_iter().chain(["k", "M", "G", "m", "u", "n", "T", "P"]).chain(BINARY.iter().map(|of| of.0));
    for prefix in prefixes.chain(DECIMAL.iter().map(|of| of.0)) {
        let Some(rest) = lower.strip_prefix(&prefix.to_lowercase()) else { continue };
        for atom in atoms.keys().filter(|atom| atom.to_lowercase() == rest) {
            let code = format!("{prefix}{atom}");
            let right = code.chars().zip(name.chars()).filter(|(a, b)| a == b).count();
            let better = best.as_ref().is_none_or(|(known, text)| (right, text) > (*known, &code) && right > *known);
            if better && unit(&code, atoms).is_ok() {
                best = Some((right, code));
            }
        }
    }
    best.map(|(_, code)| code)
}
