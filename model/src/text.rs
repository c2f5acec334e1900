//! Makes text of unknown origin safe for terminals and spreadsheets.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character is invisible or changes the display of the text around it: control characters, line and paragraph separators, and marks for
/// the direction of text (Unicode Technical Report 36, 2.6).
pub fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
        || c.is_control()
}

/// Replaces each hidden character by its escape, such as `\u{202e}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_hidden(c) {
            true => _ = write!(shown, "{}", c.escape_unicode()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A text field of a CSV line (RFC 4180). Spreadsheets interpret text that begins with `=`, `+`, `-`, `@`, a tab or a carriage return as a formula:
/// it gets a leading `'`, which spreadsheets hide. Do not use it for numbers.
pub fn csv_field(text: &str) -> String {
    let mark = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{mark}{}\"", text.replace('"', "\"\"")),
        false => format!("{mark}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        for (text, expected) in [
            ("/höhe/µ 漢字 👩", "/höhe/µ 漢字 👩"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("\u{1b}[31m\u{9b}1m", "\\u{1b}[31m\\u{9b}1m"),
            ("\u{2066}x\u{200b}", "\\u{2066}x\\u{200b}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn fields_of_a_csv_line() {
        for (text, expected) in [
            ("a", "a"),
            ("a,b", "\"a,b\""),
            ("a\"b,c", "\"a\"\"b,c\""),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("=1,2", "\"'=1,2\""),
            ("+1", "'+1"),
            ("-x", "'-x"),
            ("@x", "'@x"),
            ("a=b", "a=b"),
        ] {
            assert_eq!(csv_field(text), expected);
        }
    }
}
