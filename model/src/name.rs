//! Sensor paths: `/site/system/rack/node/…/quantity`.

use std::fmt;

use crate::text::is_hidden;

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 512;
/// The longest level of a path, in bytes.
pub const LEVEL_BYTES_MAX: usize = 128;
/// The most levels of a path.
pub const LEVELS_MAX: usize = 32;
/// Characters with a meaning in MQTT, patterns or expressions. Names cannot have them.
pub const RESERVED: &[char] = &['+', '#', '*', '?', '<', '>', '{', '}', '"', '\'', '\\', '$', ',', ';'];

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// An empty name, or an empty level (`//`, or a `/` at the end).
    #[error("sensor name {0:?} has an empty level; write /level/level/name without `//` or a trailing `/`")]
    EmptyLevel(String),
    /// The first character is not `/`.
    #[error("sensor name {0:?} must begin with `/`")]
    NotAbsolute(String),
    /// `.` or `..` as a level.
    #[error("sensor name {0:?} has the level {1:?}, which is relative; use another name")]
    Relative(String, String),
    /// A hidden character (see [`is_hidden`]), white space or one of [`RESERVED`].
    #[error("sensor name {name:?} has {character:?} at byte {position}; control characters, marks of text direction, white space and {} are not allowed; use `_`", RESERVED.iter().collect::<String>())]
    Character {
        /// The first 64 characters.
        name: String,
        character: char,
        /// The offset in bytes.
        position: usize,
    },
    /// Longer than [`PATH_BYTES_MAX`], a level longer than [`LEVEL_BYTES_MAX`], or more than [`LEVELS_MAX`] levels.
    #[error("sensor name {name:?}… is too long: {what} is {is}, at most {max} allowed")]
    TooLong {
        /// The first 64 characters.
        name: String,
        /// The bound that is exceeded.
        what: &'static str,
        is: usize,
        max: usize,
    },
}

/// A valid absolute path of a sensor or a subtree, at most [`PATH_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct SensorPath(String);

impl SensorPath {
    /// Checks and takes a path.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let Some(rest) = text.strip_prefix('/') else {
            return Err(if text.is_empty() { NameError::EmptyLevel(text) } else { NameError::NotAbsolute(cut(&text)) });
        };
        check_levels(&text, rest)?;
        Ok(Self(text))
    }

    /// Appends a relative name such as `cpu/3/user`.
    pub fn join(&self, relative: &str) -> Result<Self, NameError> {
        Self::new(format!("{}/{relative}", self.0))
    }

    /// The path as text, beginning with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The levels in order, without the slashes.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        self.0[1..].split('/')
    }

    /// Whether `self` is `other` or lies below it.
    pub fn is_within(&self, other: &SensorPath) -> bool {
        self.0.strip_prefix(other.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Checks a name below a prefix: levels without a leading `/`.
pub fn check_relative(name: &str) -> Result<(), NameError> {
    check_levels(name, name)
}

/// Converts any text to a valid level: characters that are not allowed and `(` become `_`, `)` is dropped (`Active(anon)` becomes `Active_anon`), and the
/// result is cut to [`LEVEL_BYTES_MAX`]. It is never empty.
pub fn sanitize_level(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim().chars() {
        let c = match c {
            ')' => continue,
            '(' | '/' => '_',
            c if is_refused(c) => '_',
            c => c,
        };
        if out.len() + c.len_utf8() > LEVEL_BYTES_MAX {
            break;
        }
        out.push(c);
    }
    if out.is_empty() || out == "." || out == ".." { "_".to_owned() } else { out }
}

fn is_refused(c: char) -> bool {
    is_hidden(c) || c.is_whitespace() || RESERVED.contains(&c)
}

fn check_levels(whole: &str, levels: &str) -> Result<(), NameError> {
    let too_long = |what, is, max| Err(NameError::TooLong { name: cut(whole), what, is, max });
    if whole.len() > PATH_BYTES_MAX {
        return too_long("its length in bytes", whole.len(), PATH_BYTES_MAX);
    }
    if let Some((position, character)) = whole.char_indices().find(|&(_, c)| is_refused(c)) {
        return Err(NameError::Character { name: cut(whole), character, position });
    }
    let mut count = 0;
    for level in levels.split('/') {
        count += 1;
        match level {
            "" => return Err(NameError::EmptyLevel(cut(whole))),
            "." | ".." => return Err(NameError::Relative(cut(whole), level.to_owned())),
            _ if level.len() > LEVEL_BYTES_MAX => return too_long("a level in bytes", level.len(), LEVEL_BYTES_MAX),
            _ => {}
        }
    }
    if count > LEVELS_MAX {
        return too_long("the number of levels", count, LEVELS_MAX);
    }
    Ok(())
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

impl fmt::Display for SensorPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for SensorPath {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl<'de> serde::Deserialize<'de> for SensorPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl std::borrow::Borrow<str> for SensorPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(name: &str, part: &str) {
        let error = SensorPath::new(name).expect_err(name).to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }

    #[test]
    fn good_names() {
        for name in ["/a", "/lrz/sng/rack07/node0042/cpu/3/user", "/höhe/µ", "/a/b.c/d-e_f:1(x)@[0]=%&!"] {
            assert_eq!(SensorPath::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn bad_names() {
        refused("", "empty level");
        refused("a/b", "must begin with `/`");
        refused("/", "empty level");
        refused("/a//b", "empty level");
        refused("/a/", "empty level");
        refused("/a/../b", "which is relative");
        refused("/a/./b", "which is relative");
        refused("/a/+/b", "'+' at byte 3");
        refused("/a/#", "'#' at byte 3");
        refused("/a/b\u{7}", "at byte 4");
        refused("/a/b\nc", "at byte 4");
        refused("/a/b c", "at byte 4");
        refused("/a\0", "at byte 2");
        refused("/a\u{202e}b", "at byte 2");
        refused(&format!("/{}", "x".repeat(LEVEL_BYTES_MAX + 1)), "a level in bytes is 129, at most 128");
        refused(&"/x".repeat(LEVELS_MAX + 1), "the number of levels is 33, at most 32");
        refused(&"/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".repeat(17), "its length in bytes is 544, at most 512");
    }

    #[test]
    fn within_is_by_levels() {
        let path = SensorPath::new("/a/bc").unwrap();
        assert!(path.is_within(&SensorPath::new("/a").unwrap()));
        assert!(path.is_within(&path));
        assert!(!path.is_within(&SensorPath::new("/a/b").unwrap()));
    }

    #[test]
    fn sanitized_levels_are_always_good() {
        for text in ["Active(anon)", "CPU Temp #1", "a\u{202e}b", "..", "", "a/b", "\u{7}", &"ä".repeat(100)] {
            let level = sanitize_level(text);
            check_relative(&level).unwrap_or_else(|e| panic!("{text:?} became {level:?}: {e}"));
        }
        assert_eq!(sanitize_level("Active(anon)"), "Active_anon");
    }
}
