//! Reads numbers and lines of the kernel's text, eight bytes at a time.
//!
//! The kernel's files have short fields between spaces, so that a loop over bytes spends its time on mispredicted branches. Here each step
//! loads a word of 64 bits and finds the end of the field by arithmetic. Beyond the end of the text a word has zeros, which are neither
//! digits nor spaces.
//!
//! The functions take a position and return the next one. [`Cursor`] keeps the position: code that is not called for each line of each
//! read is easier to write with it.

use memchr::memchr;

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The most digits of a number of 64 bits.
const DIGITS_MAX: usize = 20;

/// The `N` bytes from `at`, with zeros beyond the end.
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

/// The eight bytes from `at` as a little-endian number.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(chunk_at(bytes, at))
}

/// The first position from `at` on that is not a space.
#[inline]
pub fn skip_spaces(bytes: &[u8], mut at: usize) -> usize {
    // A branch that goes the same way each time costs nothing. Code that follows would wait for a calculated position.
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

/// The position after the line that contains `at`: after its newline, or the end of the text.
#[inline]
pub fn next_line(bytes: &[u8], at: usize) -> usize {
    // Most lines end here or in the next few bytes, where a call costs more than the search.
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

/// The unsigned number at `at` and the position after it; `None` without a number of at most 64 bits.
#[inline]
pub fn number_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let (value, digits) = up_to_8_digits(word_at(bytes, at));
    match digits {
        0 => None,
        8 => longer_number(bytes, at, value),
        _ => Some((value, at + digits)),
    }
}

/// The value and the count of the digits at the beginning of a word.
#[inline]
fn up_to_8_digits(word: u64) -> (u64, usize) {
    let digits = word ^ (EACH * b'0' as u64);
    // A byte over 9 sets its high bit. The carry into the next byte does not matter, as only the first such byte counts.
    let others = (digits.wrapping_add(EACH * 0x76) | digits) & HIGH;
    let count = others.trailing_zeros() as usize / 8;
    if count == 0 {
        return (0, 0);
    }
    // Leading zeros make eight digits, of which pairs, then fours, then all eight are combined.
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

/// The number at `at`, with or without a `-`, and the position after it. A number from [`i64::MAX`] + 1 to [`u64::MAX`] becomes the negative
/// number with the same bits, so that differences of counters stay right. Larger numbers, and numbers below [`i64::MIN`], give `None`.
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

/// A number with exactly two decimals, such as `0.84`, in hundredths, and the position after it.
pub fn hundredths_at(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (whole, point) = number_at(bytes, at)?;
    let [b'.', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = *bytes.get(point..)?.first_chunk::<3>()? else { return None };
    let hundredths = whole.checked_mul(100)?.checked_add(u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))?;
    Some((i64::try_from(hundredths).ok()?, point + 3))
}

/// Whether a value that ends at `at` is complete: a space or a newline follows. At the end of the text it is not, as digits may be missing.
#[inline]
pub fn is_end_of_value(bytes: &[u8], at: usize) -> bool {
    matches!(bytes.get(at), Some(b' ' | b'\n'))
}

/// The number of a file with one number, as in sysfs, with or without a sign and white space around it.
pub fn only_int(bytes: &[u8]) -> Option<i64> {
    let (value, end) = int_at(bytes, skip_spaces(bytes, 0))?;
    (end < bytes.len() && bytes[end..].iter().all(u8::is_ascii_whitespace)).then_some(value)
}

/// The complete lines of a text, without their newlines.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let end = memchr(b'\n', rest)?;
        let line = &rest[..end];
        rest = &rest[end + 1..];
        Some(line)
    })
}

/// A position in a text that moves over what it reads. A step that does not match gives `None` and stays, so that steps chain with `?`.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// At the byte `at` of `bytes`.
    #[inline]
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The current position, in bytes.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Skips spaces, if there are any.
    #[inline]
    pub fn skip_spaces(&mut self) -> &mut Self {
        self.at = skip_spaces(self.bytes, self.at);
        self
    }

    /// Skips `text` if it follows.
    #[inline]
    pub fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.bytes.get(self.at..)?.strip_prefix(text)?;
        self.at += text.len();
        Some(())
    }

    /// Reads an unsigned number, as [`number_at`].
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        let (value, end) = number_at(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    /// Reads an integer, as [`int_at`].
    #[inline]
    pub fn int(&mut self) -> Option<i64> {
        let (value, end) = int_at(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    /// Reads a number with two decimals, as [`hundredths_at`].
    #[inline]
    pub fn hundredths(&mut self) -> Option<i64> {
        let (value, end) = hundredths_at(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    /// Reads the bytes before the next space, newline or end. There must be at least one.
    pub fn word(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\n')).unwrap_or(rest.len());
        self.at += length;
        (length > 0).then_some(&rest[..length])
    }

    /// Whether the value before the position is complete, as [`is_end_of_value`].
    #[inline]
    pub fn is_end_of_value(&self) -> bool {
        is_end_of_value(self.bytes, self.at)
    }

    /// Whether the position is at the end of the text.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The bytes after the position.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(i64, usize)>) {
        assert_eq!(int_at(text.as_bytes(), 0), expected, "{text:?}");
        // The same within a longer text, where complete words can be loaded.
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
    fn positions() {
        for spaces in 0..30 {
            let text = format!("{}x", " ".repeat(spaces));
            assert_eq!(skip_spaces(text.as_bytes(), 0), spaces);
            assert_eq!(skip_spaces(&text.as_bytes()[..spaces], 0), spaces, "only spaces");
            let text = format!("{}\ny\n", "x".repeat(spaces));
            assert_eq!(next_line(text.as_bytes(), 0), spaces + 1);
            assert_eq!(next_line(&text.as_bytes()[..spaces], 0), spaces, "no newline");
        }
    }

    #[test]
    fn a_cursor_moves_over_what_it_reads() {
        let mut cursor = Cursor::new(b"  254 0 vda 0.84/-7\n");
        assert_eq!((cursor.skip_spaces().number(), cursor.skip_spaces().int()), (Some(254), Some(0)));
        assert_eq!((cursor.int(), cursor.word(), cursor.literal(b"x")), (None, None, None), "it stays");
        assert_eq!(cursor.skip_spaces().word(), Some(b"vda".as_slice()));
        assert_eq!(cursor.skip_spaces().hundredths(), Some(84));
        assert_eq!((cursor.is_end_of_value(), cursor.literal(b"/"), cursor.int()), (false, Some(()), Some(-7)));
        assert_eq!((cursor.is_end_of_value(), cursor.is_at_end(), cursor.rest()), (true, false, b"\n".as_slice()));
        assert!(cursor.literal(b"\n").is_some() && cursor.is_at_end() && cursor.word().is_none());
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
