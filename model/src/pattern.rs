//! Patterns that select sensors: `*` matches any text within a level, the level `**` any number of levels.

use std::fmt;

/// The longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;

/// Why a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern {pattern:?}: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: &'static str,
}

/// A valid pattern over sensor paths. Without a leading `/` it matches at any depth, as if it began with `/**/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: String,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Level {
    /// `**`: zero or more levels.
    Any,
    /// A level without `*`.
    Exact(String),
    /// The text between the `*` of one level; at least two pieces.
    Glob(Vec<String>),
}

impl Pattern {
    /// Parses a pattern such as `/lrz/**/power`, `/lrz/*/cpu/*/user` or `MemAvailable`.
    pub fn new(text: impl Into<String>) -> Result<Self, PatternError> {
        let text = text.into();
        let refuse = |reason| Err(PatternError { pattern: text.chars().take(80).collect(), reason });
        if text.len() > PATTERN_BYTES_MAX {
            return refuse("longer than 1024 bytes");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refuse("contains white space or a control character");
        }
        if text.contains(['+', '#']) {
            return refuse(
                "`+` and `#` are MQTT's wildcards; write `*` for one level and `**` for any number of levels",
            );
        }
        let (relative, body) = match text.strip_prefix('/') {
            Some(body) => (false, body),
            None => (true, text.as_str()),
        };
        let mut levels = Vec::new();
        if relative {
            levels.push(Level::Any);
        }
        for level in body.split('/') {
            match level {
                "" => return refuse("has an empty level; write `/**` for every sensor"),
                "." | ".." => return refuse("has the level `.` or `..`"),
                "**" => {
                    if levels.last() != Some(&Level::Any) {
                        levels.push(Level::Any);
                    }
                }
                _ if level.contains("**") => return refuse("`**` must be a whole level"),
                _ if level.contains('*') => levels.push(Level::Glob(level.split('*').map(str::to_owned).collect())),
                _ => levels.push(Level::Exact(level.to_owned())),
            }
        }
        Ok(Self { text, levels })
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern matches `path`, an absolute path or a name below a prefix.
    ///
    /// Whatever the number of `**`, the comparisons are bounded by the number of the path's levels, at most [`crate::name::LEVELS_MAX`], times the
    /// longest run of levels between two `**`. Levels before the first and after the last `**` are compared once.
    pub fn matches(&self, path: &str) -> bool {
        let mut rest = Some(path.strip_prefix('/').unwrap_or(path));
        // The levels after the last `**` must match the path's end.
        let last = self.levels.iter().rposition(|level| matches!(level, Level::Any));
        for level in last.into_iter().flat_map(|last| self.levels[last + 1..].iter().rev()) {
            let Some(text) = rest else { return false };
            let (before, end) = split_last_level(text);
            if !level.matches(end) {
                return false;
            }
            rest = before;
        }
        // Two-pointer wildcard match over levels: after a mismatch the previous `**` takes one more level.
        let mut p = 0;
        let mut back: Option<(usize, Option<&str>)> = None;
        loop {
            if last == Some(p) {
                return true;
            }
            match (self.levels.get(p), rest) {
                (None, None) => return true,
                (Some(Level::Any), _) => {
                    back = Some((p, rest));
                    p += 1;
                    continue;
                }
                (Some(level), Some(text)) => {
                    let (head, tail) = split_level(text);
                    if level.matches(head) {
                        (p, rest) = (p + 1, tail);
                        continue;
                    }
                }
                _ => {}
            }
            match back {
                Some((at, Some(text))) => {
                    let tail = split_level(text).1;
                    back = Some((at, tail));
                    (p, rest) = (at + 1, tail);
                }
                _ => return false,
            }
        }
    }

    /// The literal beginning of every path that can match, for seeking in sorted names; `/` if nothing is literal.
    pub fn literal_prefix(&self) -> String {
        let mut prefix = String::from("/");
        for (i, level) in self.levels.iter().enumerate() {
            match level {
                Level::Exact(text) => {
                    prefix.push_str(text);
                    if i + 1 < self.levels.len() && !matches!(self.levels[i + 1], Level::Any) {
                        prefix.push('/');
                    }
                }
                Level::Glob(pieces) => {
                    prefix.push_str(&pieces[0]);
                    break;
                }
                Level::Any => break,
            }
        }
        prefix
    }

    /// For a skip scan: sets `to` to a lower bound of the next sorted name after `path` (absolute) that can match; empty means the next name.
    /// Returns `false` if no later name can match.
    pub fn skip(&self, path: &str, to: &mut String) -> bool {
        to.clear();
        // The end of the last level with a `*`: if no later name with this beginning can match, the scan skips all of them.
        let mut star: Option<usize> = None;
        let beyond = |star: Option<usize>, to: &mut String| {
            if let Some(end) = star {
                to.push_str(&path[..end]);
                // `0` follows `/` in ASCII: the bound lies after all names below this level.
                to.push('0');
            }
            star.is_some()
        };
        let mut at = 1;
        for (number, level) in self.levels.iter().enumerate() {
            let Some(rest) = path.get(at..) else { return true };
            let (head, tail) = split_level(rest);
            match level {
                Level::Any => return true,
                Level::Exact(exact) if exact == head => {}
                Level::Exact(exact) => {
                    let more = number + 1 < self.levels.len();
                    if rest < exact.as_str() {
                        to.push_str(&path[..at]);
                        to.push_str(exact);
                    } else if more && rest.strip_prefix(exact.as_str()).is_some_and(|more| more < "/") {
                        to.push_str(&path[..at + exact.len()]);
                        to.push('/');
                    } else {
                        return beyond(star, to);
                    }
                    return true;
                }
                Level::Glob(pieces) => {
                    let start = pieces.first().map_or("", String::as_str);
                    if !begins(rest, start) {
                        if rest > start {
                            return beyond(star, to);
                        }
                        to.push_str(&path[..at]);
                        to.push_str(start);
                        return true;
                    }
                    let end = at + head.len();
                    if !level.matches(head) {
                        return tail.is_none() || beyond(Some(end), to);
                    }
                    star = tail.map(|_| end);
                }
            }
            if tail.is_none() {
                return true;
            }
            at += head.len() + 1;
        }
        beyond(star, to)
    }

    /// Whether the pattern has no wildcard and so matches one path.
    pub fn is_literal(&self) -> bool {
        self.levels.iter().all(|level| matches!(level, Level::Exact(_)))
    }
}

fn split_level(text: &str) -> (&str, Option<&str>) {
    // Levels are short: a search optimized for long texts takes longer to start.
    match text.bytes().position(|byte| byte == b'/') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// The levels before the last one, if any, and the last one.
fn split_last_level(text: &str) -> (Option<&str>, &str) {
    match text.bytes().rposition(|byte| byte == b'/') {
        Some(at) => (Some(&text[..at]), &text[at + 1..]),
        None => (None, text),
    }
}

impl Level {
    fn matches(&self, text: &str) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        match self {
            Level::Any => true,
            Level::Exact(exact) => exact == text,
            Level::Glob(pieces) if let [first, last] = pieces.as_slice() => {
                text.len() >= first.len() + last.len() && begins(text, first) && ends(text, last)
            }
            Level::Glob(pieces) => pieces_fit(pieces.iter().map(String::as_str), text),
        }
    }
}

/// Whether a pattern matches a text that is not a path, such as a job id: `*` matches any text, also an empty one and `/`.
pub fn glob(pattern: &str, text: &str) -> bool {
    pieces_fit(pattern.split('*'), text)
}

/// Matches the pieces between stars: the first at the start, the last at the end, the others at their first occurrence. The time is at most the
/// product of the two lengths.
fn pieces_fit<'a>(mut pieces: impl DoubleEndedIterator<Item = &'a str>, text: &str) -> bool {
    let first = pieces.next().unwrap_or_default();
    if !begins(text, first) {
        return false;
    }
    let mut rest = &text[first.len()..];
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    ends(rest, last)
}

/// As `starts_with`. An empty `String` has a dangling pointer, and C libraries with masked AVX-512 loads take about 100 ns to compare no bytes there.
fn begins(text: &str, piece: &str) -> bool {
    piece.is_empty() || text.starts_with(piece)
}

fn ends(text: &str, piece: &str) -> bool {
    piece.is_empty() || text.ends_with(piece)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Pattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::new(text)
    }
}

impl<'de> serde::Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Keeps names that match an include pattern (all, without include patterns) and no exclude pattern.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    #[serde(default)]
    pub include: Vec<Pattern>,
    #[serde(default)]
    pub exclude: Vec<Pattern>,
}

impl Filter {
    pub fn keeps(&self, name: &str) -> bool {
        (self.include.is_empty() || self.include.iter().any(|p| p.matches(name)))
            && !self.exclude.iter().any(|p| p.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::name::LEVELS_MAX;

    thread_local! {
        /// The number of compared levels on this thread.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A reference implementation, level by level.
    fn is_match(levels: &[Level], path: &[&str]) -> bool {
        match levels {
            [] => path.is_empty(),
            [Level::Any, rest @ ..] => (0..=path.len()).any(|at| is_match(rest, &path[at..])),
            [level, rest @ ..] => path.first().is_some_and(|first| level.matches(first)) && is_match(rest, &path[1..]),
        }
    }

    #[track_caller]
    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let p = Pattern::new(pattern).unwrap();
        for path in yes {
            assert!(p.matches(path), "{pattern} should match {path}");
            assert!(path.starts_with(&p.literal_prefix()), "{} is no prefix of {path}", p.literal_prefix());
        }
        for path in no {
            assert!(!p.matches(path), "{pattern} should not match {path}");
        }
    }

    #[test]
    fn matching() {
        check("/a/b", &["/a/b"], &["/a", "/a/b/c", "/a/bc", "/x/a/b"]);
        check("/a/*", &["/a/b", "/a/c"], &["/a", "/a/b/c"]);
        check("/a/**", &["/a", "/a/b", "/a/b/c"], &["/ab", "/b"]);
        check("/**", &["/a", "/a/b"], &[]);
        check("/**/power", &["/power", "/a/power", "/a/b/power"], &["/a/power/x", "/a/powers"]);
        check("/a/**/b/**/c", &["/a/b/c", "/a/x/b/y/z/c", "/a/b/b/c/c"], &["/a/c/b", "/a/b"]);
        check("/cpu/*/us*r", &["/cpu/0/user", "/cpu/12/usr"], &["/cpu/user", "/cpu/0/users"]);
        check("/a*a/b", &["/aa/b", "/axa/b"], &["/a/b"]);
        check("MemAvailable", &["/n/meminfo/MemAvailable", "/MemAvailable"], &["/n/MemAvailable/x"]);
        check("meminfo/Mem*", &["/n/meminfo/MemFree"], &["/n/meminfo/SwapFree"]);
    }

    /// Every path of up to `most` levels of these names.
    fn all_of(names: &[&str], most: usize) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        let mut last = vec![String::new()];
        for _ in 0..most {
            last = last.iter().flat_map(|path| names.iter().map(move |name| format!("{path}/{name}"))).collect();
            paths.extend(last.iter().cloned());
        }
        paths
    }

    #[test]
    fn skipped_names_do_not_match() {
        let mut paths = all_of(&["a", "a-", "a0", "ab", "b", "b.c", "z"], 3);
        paths.sort();
        let mut skipped = 0;
        for pattern in [
            "/a/b",
            "/a/*",
            "/*/b",
            "/*/b/a*",
            "/a*/b/*",
            "/*/*/z",
            "/a-/b/z",
            "/*b/a",
            "/b*/a-/a0",
            "/a/**",
            "/*/a/**",
            "/**/b",
            "/*/**/b",
            "b.c",
            "/*",
            "/*-/*0",
            "/z/z/z",
            "/zz/a",
            "/*/zz",
            "/*/*/ab*",
            "/*/a-*",
            "/*/a0*/b*",
            "/*/z*/a",
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            for (number, path) in paths.iter().enumerate().filter(|(_, path)| !pattern.matches(path)) {
                let mut to = String::new();
                let ends = !pattern.skip(path, &mut to);
                assert!(to.is_empty() || to > *path, "{pattern} goes from {path} back to {to}");
                let between = paths[number + 1..].iter().take_while(|next| ends || **next < to);
                skipped += between
                    .inspect(|next| assert!(!pattern.matches(next), "{pattern} skips from {path} past {next}"))
                    .count();
            }
        }
        assert!(skipped > 450_000, "only {skipped} were skipped");
    }

    #[test]
    fn refused() {
        for bad in ["", "/", "/a//b", "/a/../b", "/a/**b", "/a/+", "/a/#", "/a b", "/a\n"] {
            assert!(Pattern::new(bad).is_err(), "{bad:?} should be refused");
        }
    }

    #[test]
    fn matches_agree_with_the_reference_implementation() {
        let levels = ["a", "b", "a*", "*", "**", "**", "*b*"];
        let names = ["a", "b", "ab"];
        let paths = all_of(&names, 4);
        let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('/').skip(1).collect()).collect();
        let mut chosen = 0;
        for text in all_of(&levels, 4) {
            let pattern = Pattern::new(text).unwrap();
            for (path, split) in paths.iter().zip(&split) {
                let expected = is_match(&pattern.levels, split);
                assert_eq!(pattern.matches(path), expected, "{pattern} {path}");
                chosen += usize::from(expected);
            }
        }
        assert!(chosen > 10_000, "{chosen}");
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_the_levels_of_both() {
        let path = "/a".repeat(LEVELS_MAX);
        let run = LEVELS_MAX / 2;
        for (text, most) in [
            ("/**/none".to_owned(), 1),
            ("/**/*".repeat(200) + "/none", 1),
            (format!("/**{}/none", "/*".repeat(run)), 1),
            ("/**/a".repeat(200), LEVELS_MAX),
            ("/**/*".repeat(200) + "/**", LEVELS_MAX),
            (format!("/**{}/none/**", "/*".repeat(run)), LEVELS_MAX * (run + 1)),
            (format!("{}/none/**", format!("/**{}", "/a".repeat(run)).repeat(20)), LEVELS_MAX * (run + 1)),
            ("/**/a".repeat(30) + "/none/**", 2 * LEVELS_MAX),
        ] {
            COMPARED.set(0);
            assert!(!Pattern::new(text.as_str()).unwrap().matches(&path), "{text}");
            assert!(COMPARED.get() <= most, "{text}: {} compared", COMPARED.get());
        }
        let p = Pattern::new("/**/a".repeat(100)).unwrap();
        assert!(!p.matches(&"/a".repeat(99)));
        let g = Pattern::new(format!("/{}b", "*a".repeat(200))).unwrap();
        assert!(!g.matches(&format!("/{}", "a".repeat(500))));
    }

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("n*", "n1", true),
            ("n*", "m1", false),
            ("*1", "n11", true),
            ("*.scope", ".scope", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("n1", "n11", false),
            ("**", "x", true),
            ("ü*", "über", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
