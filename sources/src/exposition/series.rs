//! The name and the labels of a series.

use std::collections::BTreeMap;

/// The most labels of a series.
const LABELS_MAX: usize = 64;
/// The most bytes of a series' name and labels as they are written.
pub(super) const SERIES_BYTES_MAX: usize = 2048;

/// A series: its name, and its labels sorted by name. A label with an empty value counts as absent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

impl Series {
    /// Parses `name{label="value",…}` or `{"name",label="value",…}`. `None` if it is neither, or names a label twice.
    pub fn parse(key: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        let (name, labels) = match key.find('{') {
            Some(brace) => (key[..brace].trim_end(), key[brace + 1..].strip_suffix('}')?),
            None => (key, ""),
        };
        let mut series = Self { name: name.to_owned(), labels: BTreeMap::new() };
        let mut rest = labels.trim_start();
        while !rest.is_empty() {
            rest = series.parse_label(rest)?;
        }
        let is_name = !series.name.is_empty() && !series.name.contains(['"', '}']);
        is_name.then_some(series)
    }

    /// Takes one label, or the quoted name, and the comma after it. Gives the rest.
    fn parse_label<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        let (name, after) = match text.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = text.find('=')?;
                (text[..end].trim_end().to_owned(), &text[end..])
            }
        };
        let mut rest = after.trim_start();
        if let Some(value) = rest.strip_prefix('=') {
            let (value, after) = unquoted(value.trim_start().strip_prefix('"')?)?;
            let is_new = !name.is_empty() && !self.labels.contains_key(&name) && self.labels.len() < LABELS_MAX;
            if !is_new {
                return None;
            }
            self.labels.insert(name, value);
            rest = after.trim_start();
        } else if self.name.is_empty() {
            self.name = name;
        } else {
            return None;
        }
        match rest.strip_prefix(',') {
            Some(next) => Some(next.trim_start()),
            None => rest.is_empty().then_some(rest),
        }
    }

    /// The value of a label; `None` if it is absent or empty.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The labels that are not empty, by name.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The series of an identity.
    pub(super) fn of_identity(identity: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut parts = identity.split(|byte| *byte == 0xff);
        let name = text(parts.next().unwrap_or_default());
        let label = |label: &[u8]| {
            let mut halves = label.splitn(2, |byte| *byte == 0xfe);
            Some((text(halves.next()?), text(halves.next()?)))
        };
        Self { name, labels: parts.filter_map(label).collect() }
    }

    /// Writes what is the same for every way to write the series, into `out`.
    pub fn identity(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.name.as_bytes());
        for (name, value) in self.labels() {
            // No text in UTF-8 has these bytes.
            out.push(0xff);
            out.extend_from_slice(name.as_bytes());
            out.push(0xfe);
            out.extend_from_slice(value.as_bytes());
        }
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        for (at, (name, value)) in self.labels().enumerate() {
            write!(f, "{}{name}={value:?}", if at == 0 { "{" } else { "," })?;
        }
        if self.labels().next().is_some() { f.write_str("}") } else { Ok(()) }
    }
}

/// The text up to the closing quote, without its escapes, and what follows the quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => out.push('\n'),
                escaped @ ('"' | '\\') => out.push(escaped),
                // As Prometheus reads it: other escapes stand for themselves.
                other => out.extend(['\\', other]),
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, expected: &str) {
        let series = Series::parse(key.as_bytes()).unwrap_or_else(|| panic!("{key} is refused"));
        assert_eq!(series.to_string(), expected, "{key}");
        let mut identity = Vec::new();
        series.identity(&mut identity);
        assert_eq!(Series::of_identity(&identity).to_string(), expected, "{key}");
    }

    #[test]
    fn names_and_labels() {
        check("up", "up");
        check("up{}", "up");
        check("a{x=\"1\",b=\"2\"}", "a{b=\"2\",x=\"1\"}");
        check("a { b = \"2\" , x=\"1\", }", "a{b=\"2\",x=\"1\"}");
        check("a{b=\"\",c=\"d\"}", "a{c=\"d\"}");
        check("a{b=\"q\\\"u\\\\o\\nte\"}", "a{b=\"q\\\"u\\\\o\\nte\"}");
        check("{\"my.name\",\"my.label\"=\"x\"}", "my.name{my.label=\"x\"}");
        check("a{b=\"höhe\"}", "a{b=\"höhe\"}");
        for bad in
            ["", "{}", "{b=\"c\"}", "a{b=c}", "a{b=\"c\",b=\"d\"}", "a{b}", "a{b=\"c\"x}", "a{b=\"c", "a{=\"c\"}"]
        {
            assert_eq!(Series::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(Series::parse(b"a{b=\"\xff\"}"), None);
    }

    #[test]
    fn the_order_of_labels_does_not_matter() {
        let identity = |key: &str| {
            let mut out = Vec::new();
            Series::parse(key.as_bytes()).unwrap().identity(&mut out);
            out
        };
        assert_eq!(identity("a{x=\"1\",b=\"2\"}"), identity("a{b=\"2\",x=\"1\",y=\"\"}"));
        assert_ne!(identity("a{x=\"1\"}"), identity("a{x=\"2\"}"));
        assert_ne!(identity("a{x=\"1\"}"), identity("ax{=\"1\"}".replace("{=", "{z=").as_str()));
    }
}
