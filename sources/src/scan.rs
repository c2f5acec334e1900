//! Reading numbers and lines out of the kernel's text, eight bytes at a time.
//!
//! The kernel's files are short fields between spaces, so a loop over single bytes spends its time in mispredicted branches.
//! Here each step loads one 64-bit word and finds the end of the field in it by arithmetic; a word that would reach over the
//! end of the bytes is filled with zeros, which are neither digits nor spaces.

use memchr::memchr;

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The most digits a number of 64 bits has.
const DIGITS_MAX: usize = 20;

/// The `N` bytes from `at`; zeros where there are none.
#[inline]
pub fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(chunk) => *chunk,
        None => last_chunk(bytes, at),
    }
}

#[cold]
#[inline(never)]
fn last_chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut chunk = [0; N];
    let length = rest.len().min(N);
    chunk[..length].copy_from_slice(&rest[..length]);
    chunk
}

/// The eight bytes from `at` as a number, the first byte the lowest.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(chunk_at(bytes, at))
}

/// The first place from `at` on that is not a space.
#[inline]
pub fn skip_spaces(bytes: &[u8], mut at: usize) -> usize {
    // A branch that is always taken the same way costs nothing; to compute the place would hold up all that follows.
    if bytes.get(at) != Some(&b' ') {
        return at;
    }
    loop {
        let other = word_at(bytes, at) ^ (EACH * b' ' as u64);
        if other != 0 {
            return at + other.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
}

/// The place after the line that `at` is in: after its newline, or the end.
#[inline]
pub fn next_line(bytes: &[u8], at: usize) -> usize {
    // Mostly it ends right here, or in the next few bytes, where a call costs more than the search.
    if bytes.get(at) == Some(&b'\n') {
        return at + 1;
    }
    let other = word_at(bytes, at) ^ (EACH * b'\n' as u64);
    let zero = other.wrapping_sub(EACH) & !other & HIGH;
    if zero != 0 {
        return at + zero.trailing_zeros() as usize / 8 + 1;
    }
    let from = (at + 8).min(bytes.len());
    memchr(b'\n', &bytes[from..]).map_or(bytes.len(), |found| from + found + 1)
}

/// The unsigned number that begins at `at` and the place after it; `None` when there is none or it has over 64 bits.
#[inline]
pub fn number_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let (value, digits) = up_to_8_digits(word_at(bytes, at));
    match digits {
        0 => None,
        8 => longer_number(bytes, at, value),
        _ => Some((value, at + digits)),
    }
}

/// The value of the digits at the beginning of a word, and how many there are.
#[inline]
fn up_to_8_digits(word: u64) -> (u64, usize) {
    let digits = word ^ (EACH * b'0' as u64);
    // A byte over 9 sets its high bit; what carries into the next byte lies behind the first such byte and does not matter.
    let others = (digits.wrapping_add(EACH * 0x76) | digits) & HIGH;
    let count = others.trailing_zeros() as usize / 8;
    if count == 0 {
        return (0, 0);
    }
    // Leading zeros in front make it eight digits; then pairs, fours and all eight are joined.
    let padded = digits << (64 - 8 * count);
    let pairs = padded.wrapping_mul(10).wrapping_add(padded >> 8);
    let mask = 0x0000_00ff_0000_00ff;
    let upper = (pairs & mask).wrapping_mul(0x000f_4240_0000_0064);
    let lower = (pairs >> 16 & mask).wrapping_mul(0x0000_2710_0000_0001);
    (upper.wrapping_add(lower) >> 32, count)
}

#[inline]
fn longer_number(bytes: &[u8], start: usize, first_8: u64) -> Option<(u64, usize)> {
    let (second, digits) = up_to_8_digits(word_at(bytes, start + 8));
    const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let value = first_8 * TENS[digits] + second;
    if digits < 8 {
        return Some((value, start + 8 + digits));
    }
    let mut value = value;
    let mut at = start + 16;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
        if at - start == DIGITS_MAX {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        at += 1;
    }
    Some((value, at))
}

/// The number that begins at `at`, perhaps with a `-`, and the place after it. A number of [`i64::MAX`] + 1 to [`u64::MAX`]
/// comes as the negative number with the same bits, so that differences of counters stay right; one beyond that, and a
/// negative one under [`i64::MIN`], is no number.
#[inline]
pub fn int_at(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    match number_at(bytes, at) {
        Some((value, end)) => Some((value as i64, end)),
        None => negative_at(bytes, at),
    }
}

#[cold]
fn negative_at(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    if bytes.get(at) != Some(&b'-') {
        return None;
    }
    let (magnitude, end) = number_at(bytes, at + 1)?;
    (magnitude <= 1 << 63).then(|| ((magnitude as i64).wrapping_neg(), end))
}

/// A number with exactly two decimals, such as a load of `0.84`, in hundredths, and the place after it.
pub fn hundredths_at(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (whole, point) = number_at(bytes, at)?;
    let [b'.', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = *bytes.get(point..)?.first_chunk::<3>()? else { return None };
    let hundredths = whole.checked_mul(100)?.checked_add(u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))?;
    Some((i64::try_from(hundredths).ok()?, point + 3))
}

/// Whether a value that ends at `at` is whole: a space or the end of its line follows. At the end of the bytes it is not, as
/// the rest of its digits may be missing.
#[inline]
pub fn is_end_of_value(bytes: &[u8], at: usize) -> bool {
    matches!(bytes.get(at), Some(b' ' | b'\n'))
}

/// The only number in a file of one number, as in sysfs: perhaps with a sign, white space around it.
pub fn only_int(bytes: &[u8]) -> Option<i64> {
    let (value, end) = int_at(bytes, skip_spaces(bytes, 0))?;
    (end < bytes.len() && bytes[end..].iter().all(u8::is_ascii_whitespace)).then_some(value)
}

/// The lines of a file, each without its newline; what comes after the last newline is no line.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let end = memchr(b'\n', rest)?;
        let line = &rest[..end];
        rest = &rest[end + 1..];
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(i64, usize)>) {
        assert_eq!(int_at(text.as_bytes(), 0), expected, "{text:?}");
        // The same within a longer text, where whole words can be loaded.
        let longer = format!("ab{text} ....................");
        assert_eq!(int_at(longer.as_bytes(), 2), expected.map(|(value, end)| (value, end + 2)), "{longer:?}");
    }

    #[test]
    fn integers() {
        check("0", Some((0, 1)));
        check("7x", Some((7, 1)));
        check("-1", Some((-1, 2)));
        check("00012", Some((12, 5)));
        check("18446744073709551615", Some((-1, 20)));
        check("9223372036854775807", Some((i64::MAX, 19)));
        check("-9223372036854775808", Some((i64::MIN, 20)));
        for none in [
            "",
            "x",
            "-",
            "--1",
            "+1",
            ":5",
            "/5",
            "18446744073709551616",
            "99999999999999999999",
            "-9223372036854775809",
        ] {
            check(none, None);
        }
        check("000000000000000000001", None);
    }

    #[test]
    fn every_length_of_number() {
        for digits in 1..=19 {
            for digit in 1..=9u64 {
                let text = digit.to_string().repeat(digits);
                check(&text, Some((text.parse::<u64>().unwrap() as i64, digits)));
            }
        }
        for seed in 0..10_000u64 {
            let number = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> (seed % 64);
            let text = number.to_string();
            check(&text, Some((number as i64, text.len())));
        }
    }

    #[test]
    fn decimals() {
        for (text, expected) in [
            ("0.84 ", Some((84, 4))),
            ("12345.00\n", Some((1_234_500, 8))),
            ("0.8 ", None),
            ("0.8", None),
            (".80", None),
            ("1", None),
            ("1,00", None),
            ("18446744073709551615.00", None),
        ] {
            assert_eq!(hundredths_at(text.as_bytes(), 0), expected, "{text:?}");
        }
    }

    #[test]
    fn places() {
        for spaces in 0..30 {
            let text = format!("{}x", " ".repeat(spaces));
            assert_eq!(skip_spaces(text.as_bytes(), 0), spaces);
            assert_eq!(skip_spaces(&text.as_bytes()[..spaces], 0), spaces, "nothing but spaces");
            let text = format!("{}\ny\n", "x".repeat(spaces));
            assert_eq!(next_line(text.as_bytes(), 0), spaces + 1);
            assert_eq!(next_line(&text.as_bytes()[..spaces], 0), spaces, "no newline");
        }
    }

    #[test]
    fn one_number_in_a_file() {
        for (text, expected) in [
            ("42\n", Some(42)),
            ("-5000\n", Some(-5000)),
            ("  7 \n", Some(7)),
            ("42", None),
            ("", None),
            ("\n", None),
            ("42 kB\n", None),
            ("<unknown>\n", None),
            ("N/A (no PMA)\n", None),
            ("0x12\n", None),
        ] {
            assert_eq!(only_int(text.as_bytes()), expected, "{text:?}");
        }
    }
}
