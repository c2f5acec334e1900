//! Numbers of expositions: integers and short decimals by arithmetic, all others by the standard library.

use crate::scan;

/// Powers of ten that a float represents exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];
/// Up to this number a float represents every integer.
const EXACT_MAX: u64 = 1 << 53;

/// The number that is the whole text: `1`, `-0.25`, `1e+09`, `NaN`, `+Inf`.
pub fn float(text: &[u8]) -> Option<f64> {
    let (digits, sign) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, -1.0),
        None => (text, 1.0),
    };
    if let Some(value) = short_decimal(digits) {
        return Some(sign * value);
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A decimal whose digits and power of ten are exact as floats: one division rounds it correctly.
fn short_decimal(digits: &[u8]) -> Option<f64> {
    let (whole, at) = scan::number_at(digits, 0)?;
    if at == digits.len() {
        return (whole <= EXACT_MAX).then_some(whole as f64);
    }
    let decimals = digits[at..].strip_prefix(b".")?;
    let (part, end) = scan::number_at(decimals, 0)?;
    if end != decimals.len() || end >= POWERS.len() {
        return None;
    }
    let scaled = whole.checked_mul(10u64.checked_pow(end as u32)?)?.checked_add(part)?;
    (scaled <= EXACT_MAX).then(|| scaled as f64 / POWERS[end])
}

/// The integer that is the whole text. A decimal is none, nor is a number beyond 64 bits with sign: no other number may stand for it.
pub fn int(text: &[u8]) -> Option<i64> {
    let (value, end) = scan::int_at(text, 0)?;
    (end == text.len() && (value >= 0 || text.first() == Some(&b'-'))).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_the_standard_library() {
        for text in [
            "0",
            "1",
            "-1",
            "0.5",
            "-0.25",
            "12345.678901",
            "9007199254740993",
            "18446744073709551615",
            "1e+09",
            "1E-3",
            "0.1",
            "0.30000000000000004",
            "123456789.123456789",
            "1.",
            ".5",
            "+3",
            "1.7976931348623157e308",
            "00.10",
            "0.00000000000000000000000001",
        ] {
            let expected: f64 = text.parse().unwrap();
            assert_eq!(float(text.as_bytes()).map(f64::to_bits), Some(expected.to_bits()), "{text}");
        }
        let mut random = wholegrain_testkit::Random::seeded();
        for _ in 0..20_000 {
            let bits = (random.below(60), random.below(40));
            let (whole, part) = (random.below(1 << bits.0), random.below(1 << bits.1));
            let text = format!("{whole}.{part}");
            assert_eq!(
                float(text.as_bytes()).map(f64::to_bits),
                Some(text.parse::<f64>().unwrap().to_bits()),
                "{text}"
            );
        }
        assert!(float(b"NaN").unwrap().is_nan());
        assert_eq!((float(b"+Inf"), float(b"-Inf")), (Some(f64::INFINITY), Some(f64::NEG_INFINITY)));
        for none in ["", "-", "x", "1x", "1 ", " 1", "1.2.3", "0x10", "1_000", "--1", "1,5"] {
            assert_eq!(float(none.as_bytes()), None, "{none:?}");
        }
        assert_eq!((int(b"-12"), int(b"1.0"), int(b"")), (Some(-12), None, None));
    }

    #[test]
    fn integers_beyond_64_bits_with_sign_are_none() {
        assert_eq!((int(b"9223372036854775807"), int(b"-9223372036854775808")), (Some(i64::MAX), Some(i64::MIN)));
        for text in ["9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809"] {
            assert_eq!(int(text.as_bytes()), None, "{text}");
        }
    }
}
