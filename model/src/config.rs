//! Configuration files in TOML, with errors that name file, line and the nearest valid key.

mod table_text;

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use table_text::TableText;

use crate::suggest;

/// An error in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ConfigError {
    pub file: String,
    pub line: usize,
    /// Column from 1, in characters.
    pub column: usize,
    pub message: String,
}

/// The name and text of a configuration file, which is parsed in sections.
#[derive(Debug, Clone)]
pub struct Document {
    file: Arc<str>,
    text: Arc<str>,
}

/// One table of a document, such as `[sources.procfs]`.
#[derive(Debug, Clone)]
pub struct Section {
    document: Document,
    path: Vec<SectionStep>,
}

/// One step from a table to a table in it.
#[derive(Debug, Clone)]
enum SectionStep {
    Key(String),
    /// An element of an array of tables, from 0.
    Element(String, usize),
}

impl Document {
    /// Takes the name of a file, for messages, and its text.
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.into(), text: text.into() }
    }

    /// Parses the whole document. `T` should have `#[serde(deny_unknown_fields)]`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.root().parse()
    }

    /// The whole document as a section.
    pub fn root(&self) -> Section {
        Section { document: self.clone(), path: Vec::new() }
    }

    /// An error at byte `offset` of the text.
    pub fn error(&self, offset: usize, message: impl Into<String>) -> ConfigError {
        let before = &self.text[..floor_char_boundary(&self.text, offset)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ConfigError {
            file: self.file.to_string(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }

    fn explain(&self, error: &toml::de::Error, other_keys: &[&str]) -> ConfigError {
        let offset = error.span().map_or(0, |span| span.start);
        match self.unquoted_value(offset) {
            Some((at, value)) => self.error(at, format!("text stands in quotes; write \"{value}\"")),
            None => self.error(offset, with_suggestion(error.message(), other_keys)),
        }
    }

    /// The value at `offset` with its place, if it is text without quotes, such as `1s` or `n1`: a common mistake for which the TOML parser's message
    /// does not help.
    fn unquoted_value(&self, offset: usize) -> Option<(usize, &str)> {
        let line_start = self.text[..floor_char_boundary(&self.text, offset)].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[line_start..].lines().next()?;
        let (key, rest) = line.split_once('=')?;
        let (value_at, value) = (line_start + key.len() + 1 + (rest.len() - rest.trim_start().len()), rest.trim());
        let bare = value.chars().all(|c| c.is_alphanumeric() || "_-./:@".contains(c))
            && value.chars().any(char::is_alphabetic);
        let means_something =
            ["true", "false", "inf", "+inf", "-inf", "nan"].contains(&value) || value.parse::<f64>().is_ok();
        (bare && !means_something && !key.contains(['"', '#']) && offset >= value_at).then_some((value_at, value))
    }
}

impl Section {
    /// The table `name` within this one.
    pub fn child(&self, name: &str) -> Section {
        self.below(SectionStep::Key(name.to_owned()))
    }

    /// The tables of the array `name`, such as those that `[[device]]` begins; none if it does not exist.
    pub fn elements(&self, name: &str) -> Result<Vec<Section>, ConfigError> {
        let count = match self.table()?.into_inner().remove(name) {
            None => 0,
            Some(value) => {
                let at = value.span().start;
                match value.into_inner() {
                    DeValue::Array(array) => array.len(),
                    other => {
                        let is = other.type_str();
                        return Err(self
                            .document
                            .error(at, format!("{name} is a {is}, not a list of tables; write [[…{name}]]")));
                    }
                }
            }
        };
        Ok((0..count).map(|index| self.below(SectionStep::Element(name.to_owned(), index))).collect())
    }

    fn below(&self, step: SectionStep) -> Section {
        let mut path = self.path.clone();
        path.push(step);
        Section { document: self.document.clone(), path }
    }

    /// The keys of this table; empty if the table does not exist.
    pub fn keys(&self) -> Result<Vec<String>, ConfigError> {
        Ok(self.table()?.get_ref().keys().map(|key| key.get_ref().to_string()).collect())
    }

    /// Parses this table; a missing one is empty. `T` should have `#[serde(deny_unknown_fields)]`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.deserialize(self.table()?, &[])
    }

    /// Parses `keys` of this table into `A` and the other keys into `B`. An unknown key is an error that suggests keys of both. `A` and `B`
    /// should have `#[serde(deny_unknown_fields)]`.
    pub fn parse_split<A: DeserializeOwned, B: DeserializeOwned>(&self, keys: &[&str]) -> Result<(A, B), ConfigError> {
        let table = self.table()?;
        let span = table.span();
        let (first, second): (DeTable<'_>, DeTable<'_>) =
            table.into_inner().into_iter().partition(|(key, _)| keys.contains(&key.get_ref().as_ref()));
        let first = self.deserialize(Spanned::new(span.clone(), first), &[])?;
        Ok((first, self.deserialize(Spanned::new(span, second), keys)?))
    }

    fn deserialize<T: DeserializeOwned>(
        &self,
        table: Spanned<DeTable<'_>>,
        other_keys: &[&str],
    ) -> Result<T, ConfigError> {
        let own: Vec<String> = match other_keys {
            [] => Vec::new(),
            _ => table.get_ref().keys().map(|key| key.get_ref().to_string()).collect(),
        };
        T::deserialize(table.into_deserializer()).map_err(|error| {
            // A wrong value, or a key of a table within this one, has nothing to do with the other keys of this one.
            let is_own = |key: &String| error.message().starts_with(&format!("unknown field `{key}`"));
            let other_keys = if own.iter().any(is_own) { other_keys } else { &[] };
            self.document.explain(&error, other_keys)
        })
    }

    /// An error about `key` of this table, at the line of the key if it exists, else of the table.
    pub fn error(&self, key: &str, message: impl Into<String>) -> ConfigError {
        let message = message.into();
        match self.table() {
            Ok(table) => {
                let table = table.get_ref();
                let own = table.get_key_value(key).map(|(key, _)| key.span().start);
                let offset = own.or_else(|| table.keys().next().map(|key| key.span().start));
                self.document.error(offset.unwrap_or(0), message)
            }
            Err(error) => error,
        }
    }

    /// The table in the document; an empty one if it does not exist.
    fn table(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
        let mut table = DeTable::parse(&self.document.text).map_err(|error| self.document.explain(&error, &[]))?;
        for step in &self.path {
            let (SectionStep::Key(name) | SectionStep::Element(name, _)) = step;
            let value = table.get_mut().remove(name.as_str()).and_then(|value| match step {
                SectionStep::Key(_) => Some(value),
                SectionStep::Element(_, index) => match value.into_inner() {
                    DeValue::Array(elements) => elements.into_iter().nth(*index),
                    _ => None,
                },
            });
            let Some(value) = value else {
                return Ok(Spanned::new(0..0, DeTable::new()));
            };
            let span = value.span();
            table = match value.into_inner() {
                DeValue::Table(inner) => Spanned::new(span, inner),
                other => {
                    return Err(self
                        .document
                        .error(span.start, format!("{name} is a {}, not a table", other.type_str())));
                }
            };
        }
        Ok(table)
    }
}

/// The message for an unknown name, with the most similar known one.
pub fn unknown(what: &str, wrong: &str, known: &[&str]) -> String {
    match suggest::nearest(wrong, known.iter().copied()) {
        Some(near) => format!("unknown {what} `{wrong}`; did you mean `{near}`?"),
        None if known.is_empty() => format!("unknown {what} `{wrong}`; there is none"),
        None => format!("unknown {what} `{wrong}`; expected one of {}", List(known)),
    }
}

/// Adds the most similar name to Serde's "unknown field `x`, expected one of `a`, `b`".
fn with_suggestion(message: &str, other_keys: &[&str]) -> String {
    for (serde_word, word) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        let Some((wrong, expected)) = message.strip_prefix(serde_word).and_then(|rest| rest.split_once('`')) else {
            continue;
        };
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).chain(other_keys.iter().copied()).collect();
        return if known.is_empty() {
            format!("unknown {word} `{wrong}`; none is allowed here")
        } else {
            unknown(word, wrong, &known)
        };
    }
    message.replace('\n', " ")
}

struct List<'a>(&'a [&'a str]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            write!(f, "{}`{name}`", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interval;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Root {
        #[serde(default)]
        interval: Interval,
        #[serde(default)]
        sources: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Source {
        #[serde(default)]
        include: Vec<crate::Pattern>,
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = Document::new("agent.toml", text).parse::<Root>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
    }

    #[test]
    fn errors_name_file_line_and_the_nearest_key() {
        check("\nintervall = \"1s\"", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?");
        check("interval = \"1y\"", "agent.toml:1:12: \"1y\" is not a length of time (unknown unit)");
        check("interval = 10", "agent.toml:1:12: invalid type: integer `10`, expected a length of time in quotes");
        check("zzz = 1", "agent.toml:1:1: unknown key `zzz`; expected one of `interval`, `sources`");
        check("interval = \"1s\"\ninterval = \"1s\"", "agent.toml:2:1: duplicate key");
        check("interval = ", "agent.toml:1:12: ");
        check("[sources", "agent.toml:1:9: ");
        check("\ninterval = 1s", "agent.toml:2:12: text stands in quotes; write \"1s\"");
        check("interval = mqtt://h:1", "agent.toml:1:12: text stands in quotes; write \"mqtt://h:1\"");
        check("interval = true", "agent.toml:1:12: invalid type: boolean `true`");
    }

    #[test]
    fn the_keys_of_a_table_are_split() {
        let split =
            |text: &str| Document::new("agent.toml", text).root().parse_split::<Root, Source>(&["interval", "sources"]);
        let (root, source) = split("include = [\"a\"]\ninterval = \"2s\"\n").unwrap();
        assert_eq!((root.interval, source.include.len()), (Interval::from_s(2), 1));
        for (text, expected) in [
            ("\ninterval = \"1y\"", "agent.toml:2:12: \"1y\" is not a length of time (unknown unit)"),
            ("\nincude = []", "agent.toml:2:1: unknown key `incude`; did you mean `include`?"),
            ("\nintervall = []", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?"),
            ("zzz = 1", "agent.toml:1:1: unknown key `zzz`; expected one of `include`, `interval`, `sources`"),
        ] {
            let error = split(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
        }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Speed {
        Slow,
        Fast,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Motor {
        #[serde(default, rename = "speed")]
        _speeds: Vec<Speed>,
        #[serde(rename = "inner")]
        _inner: Option<Source>,
    }

    #[test]
    fn a_wrong_value_and_an_inner_key_suggest_no_keys_of_the_table() {
        let split = |text: &str| {
            let document = Document::new("agent.toml", text);
            document.root().parse_split::<Root, Motor>(&["interval", "sources"]).unwrap_err().to_string()
        };
        assert_eq!(split("speed = [\"x\"]"), "agent.toml:1:10: unknown value `x`; expected one of `slow`, `fast`");
        assert_eq!(split("inner = { x = 1 }"), "agent.toml:1:11: unknown key `x`; expected one of `include`");
        assert_eq!(unknown("template", "pud", &[]), "unknown template `pud`; there is none");
    }

    #[test]
    fn tables_of_an_array_keep_their_place_in_the_file() {
        let text = "[p]\n[[p.device]]\ninclude = [\"a\"]\n[[p.device]]\nincude = []\n";
        let devices = Document::new("agent.toml", text).root().child("p").elements("device").unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[0].parse::<Source>().unwrap().include.len(), 1);
        let error = devices[1].parse::<Source>().unwrap_err();
        assert_eq!(error.to_string(), "agent.toml:5:1: unknown key `incude`; did you mean `include`?");
        assert_eq!(devices[1].error("incude", "no").to_string(), "agent.toml:5:1: no");
        let root = Document::new("agent.toml", "device = 1").root();
        assert!(root.elements("absent").unwrap().is_empty());
        let error = root.elements("device").unwrap_err().to_string();
        assert_eq!(error, "agent.toml:1:10: device is a integer, not a list of tables; write [[…device]]");
    }

    #[test]
    fn sections_keep_their_place_in_the_file() {
        let document = Document::new(
            "agent.toml",
            "interval = \"1s\"\n[sources.procfs]\ninclude = [\"a\"]\n[sources.sysfs]\nincude = []\n",
        );
        let root: Root = document.parse().unwrap();
        assert_eq!((root.interval, root.sources.len()), (Interval::from_s(1), 2));
        let sources = document.root().child("sources");
        assert_eq!(sources.keys().unwrap(), ["procfs", "sysfs"]);
        let procfs: Source = sources.child("procfs").parse().unwrap();
        assert_eq!(procfs.include.len(), 1);
        let error = sources.child("sysfs").parse::<Source>().unwrap_err();
        assert_eq!(error.to_string(), "agent.toml:5:1: unknown key `incude`; did you mean `include`?");
        assert!(sources.child("absent").parse::<Source>().unwrap().include.is_empty());
        let error = document.root().child("interval").parse::<Source>().unwrap_err();
        assert_eq!(error.to_string(), "agent.toml:1:12: interval is a string, not a table");
        assert_eq!(sources.child("procfs").error("include", "no").to_string(), "agent.toml:3:1: no");
    }
}
