//! The formats of files with one value.

use crate::{scan, states};

/// How a file writes its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    /// An integer, perhaps with a sign.
    Int,
    /// An integer; a negative one stands for an unknown value.
    NotNegative,
    /// One of these words, whose place in the list is the value.
    State(&'static [&'static str]),
    /// Words between spaces, whose number is the value.
    WordCount,
    /// An integer, perhaps with more after a space, or `none` without a value, such as `100 / 200`.
    First,
}

/// What a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileValue {
    Number(i64),
    /// The device has no value at the moment.
    Absent,
    /// The text does not match the format, or may be cut.
    Garbage,
}

impl ValueFormat {
    /// The value of a file's text.
    pub fn value(self, bytes: &[u8]) -> FileValue {
        let value = match self {
            Self::Int => scan::only_int(bytes),
            Self::NotNegative => match scan::only_int(bytes) {
                Some(value) if value < 0 => return FileValue::Absent,
                value => value,
            },
            Self::State(words) => states::state(bytes, words),
            Self::WordCount => word_count(bytes),
            Self::First if bytes == b"none\n" => return FileValue::Absent,
            Self::First => first(bytes),
        };
        value.map_or(FileValue::Garbage, FileValue::Number)
    }
}

fn word_count(bytes: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let is_text = !text.contains(char::is_control);
    is_text.then(|| text.split_ascii_whitespace().count() as i64)
}

fn first(bytes: &[u8]) -> Option<i64> {
    let (value, end) = scan::int_at(bytes, 0)?;
    (scan::is_end_of_value(bytes, end) && bytes.ends_with(b"\n")).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::FileValue::{Absent, Garbage, Number};
    use super::*;
    use crate::testing::{Random, changed};

    #[test]
    fn values_of_texts() {
        use ValueFormat::{First, Int, NotNegative, State, WordCount};
        let state = State(&["down", "up"]);
        for (format, text, expected) in [
            (Int, "-5\n", Number(-5)),
            (Int, "5", Garbage),
            (NotNegative, "-1\n", Absent),
            (NotNegative, "10000\n", Number(10_000)),
            (NotNegative, "x\n", Garbage),
            (state, "up\n", Number(1)),
            (state, "u", Garbage),
            (state, "unknown\n", Garbage),
            (WordCount, "eth0 eth1 eth2\n", Number(3)),
            (WordCount, "\n", Number(0)),
            (WordCount, "eth0 et", Garbage),
            (WordCount, "eth0\u{1}\n", Garbage),
            (First, "100 / 200\n", Number(100)),
            (First, "none\n", Absent),
            (First, "1000 (local)\n", Number(1000)),
            (First, "100 / 2", Garbage),
            (First, "", Garbage),
        ] {
            assert_eq!(format.value(text.as_bytes()), expected, "{format:?} {text:?}");
        }
    }

    #[test]
    fn a_cut_or_changed_text_gives_a_value_only_if_it_is_complete() {
        let mut random = Random::seeded();
        let formats = [
            ValueFormat::Int,
            ValueFormat::NotNegative,
            ValueFormat::State(&["up"]),
            ValueFormat::WordCount,
            ValueFormat::First,
        ];
        let texts = ["1234567\n", "1234567\n", "up\n", "eth0 eth1\n", "1234567 / 200\n"];
        for (format, own) in formats.into_iter().zip(texts) {
            for text in [own, "12\n", "-1\n", "eth0\n"] {
                for end in 0..text.len() {
                    assert!(
                        !matches!(format.value(&text.as_bytes()[..end]), Number(_)),
                        "{format:?} {text:?} cut at {end}"
                    );
                }
                for _ in 0..200 {
                    format.value(&changed(text.as_bytes(), &mut random));
                }
            }
        }
    }
}
