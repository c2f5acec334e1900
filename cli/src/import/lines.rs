//! Lines of a text file.

/// The beginning of the header of LDMS.
pub const LDMS_TIME: &[u8] = b"#Time";

/// The lines of a text, without their ends.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, after) = match memchr::memchr(b'\n', rest) {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        rest = after;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// Whether a line is a comment.
pub fn is_comment(line: &[u8]) -> bool {
    line.first() == Some(&b'#')
}

/// UTF-8, or else Latin-1.
pub fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}
