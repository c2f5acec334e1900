//! One line of an exposition: a sample, metadata, or neither.

/// The language of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `name value`, then perhaps attributes `key=value`.
    Plain,
    /// Prometheus text 0.0.4: times in ms.
    Text,
    /// OpenMetrics 1.0: times in s, exemplars, `# EOF` at the end.
    OpenMetrics,
}

/// A line with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLine<'a> {
    /// The name and the labels as they are written; they identify the series.
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// After the value: a time, an exemplar, or the attributes of a plain line.
    pub rest: &'a [u8],
}

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    Sample(SampleLine<'a>),
    Type {
        family: &'a [u8],
        kind: &'a [u8],
    },
    Help {
        family: &'a [u8],
        text: &'a [u8],
    },
    Unit {
        family: &'a [u8],
        unit: &'a [u8],
    },
    /// `# EOF`: the end of OpenMetrics.
    Eof,
    /// A comment or an empty line.
    Nothing,
    /// The line does not match the format.
    Bad,
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(*byte) && *byte != b'\r').map_or(start, |last| last + 1);
    &text[start..end.max(start)]
}

/// The first word and the trimmed rest.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| is_blank(*byte)).unwrap_or(text.len());
    (&text[..end], trimmed(&text[end..]))
}

impl<'a> Line<'a> {
    /// Parses a line without its newline.
    pub fn parse(line: &'a [u8], dialect: Dialect) -> Self {
        let line = trimmed(line);
        match line.first() {
            None => Line::Nothing,
            Some(b'#') if dialect == Dialect::Plain => Line::Nothing,
            Some(b'#') => metadata(trimmed(&line[1..])),
            Some(_) => match key_length(line, dialect) {
                Some(length) => sample(&line[..length], &line[length..]).map_or(Line::Bad, Line::Sample),
                None => Line::Bad,
            },
        }
    }
}

/// The value and what follows it, after a key.
pub(super) fn sample<'a>(key: &'a [u8], after: &'a [u8]) -> Option<SampleLine<'a>> {
    let (value, rest) = word(trimmed(after));
    (!value.is_empty()).then_some(SampleLine { key, value, rest })
}

fn metadata(text: &[u8]) -> Line<'_> {
    let (keyword, rest) = word(text);
    let (family, text) = word(rest);
    match keyword {
        b"EOF" if rest.is_empty() => Line::Eof,
        b"TYPE" => Line::Type { family, kind: text },
        b"HELP" => Line::Help { family, text },
        b"UNIT" => Line::Unit { family, unit: text },
        _ => Line::Nothing,
    }
}

/// The length of name and labels; `None` if a label or its quote does not end.
fn key_length(line: &[u8], dialect: Dialect) -> Option<usize> {
    if dialect == Dialect::Plain {
        return Some(line.iter().position(|byte| is_blank(*byte)).unwrap_or(line.len()));
    }
    let name = line.iter().position(|byte| is_blank(*byte) || *byte == b'{').unwrap_or(line.len());
    let brace = line[name..].iter().position(|byte| !is_blank(*byte)).map_or(line.len(), |blanks| name + blanks);
    if line.get(brace) != Some(&b'{') {
        return Some(name);
    }
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in line.iter().enumerate().skip(brace + 1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: (&str, &str, &str)) {
        match Line::parse(line.as_bytes(), Dialect::Text) {
            Line::Sample(SampleLine { key, value, rest }) => {
                let text = |bytes| std::str::from_utf8(bytes).unwrap();
                assert_eq!((text(key), text(value), text(rest)), expected, "{line:?}");
            }
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn samples() {
        check("up 1", ("up", "1", ""));
        check("up\t1 1699999999000", ("up", "1", "1699999999000"));
        check("a{b=\"c\"} 2\r", ("a{b=\"c\"}", "2", ""));
        check("a {b=\"c\"}2", ("a {b=\"c\"}", "2", ""));
        check("a{b=\"}\",c=\"\\\"} 5\"} 3", ("a{b=\"}\",c=\"\\\"} 5\"}", "3", ""));
        check("a_total 17 1.5 # {id=\"x\"} 0.5", ("a_total", "17", "1.5 # {id=\"x\"} 0.5"));
        check("{\"my.name\",b=\"c\"} 4", ("{\"my.name\",b=\"c\"}", "4", ""));
        for bad in ["up", "a{b=\"c\" 1", "a{b=\"c} 1", "a{b=\"c\"}"] {
            assert_eq!(Line::parse(bad.as_bytes(), Dialect::Text), Line::Bad, "{bad:?}");
        }
    }

    #[test]
    fn metadata_and_comments() {
        let parse = |line: &'static str| Line::parse(line.as_bytes(), Dialect::OpenMetrics);
        assert_eq!(parse("# TYPE a counter"), Line::Type { family: b"a", kind: b"counter" });
        assert_eq!(parse("# HELP a Some help."), Line::Help { family: b"a", text: b"Some help." });
        assert_eq!(parse("# UNIT a_bytes bytes"), Line::Unit { family: b"a_bytes", unit: b"bytes" });
        assert_eq!(
            (parse("# EOF"), parse("# EOF 1"), parse(""), parse("# x")),
            (Line::Eof, Line::Nothing, Line::Nothing, Line::Nothing)
        );
        assert_eq!(Line::parse(b"# TYPE a counter", Dialect::Plain), Line::Nothing);
    }
}
