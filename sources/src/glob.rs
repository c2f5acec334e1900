//! Finds files below /sys by a pattern such as `class/net/*/statistics/*`, with the text that each `*` matched.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use wholegrain_model::schema::SENSORS_MAX;

/// A file that matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMatch {
    pub path: PathBuf,
    /// The text that each `*` matched, in order.
    pub captures: Vec<String>,
}

/// The existing paths below `root` that match the pattern, in natural order (`cpu2` before `cpu10`), at most [`SENSORS_MAX`]. A `*` matches any
/// text within one level.
pub fn find(root: &Path, pattern: &str) -> Vec<PathMatch> {
    let mut found = vec![PathMatch { path: root.to_owned(), captures: Vec::new() }];
    for level in pattern.split('/') {
        let mut next = Vec::new();
        for place in &found {
            if level.contains('*') {
                expand(place, level, &mut next);
            } else {
                let path = place.path.join(level);
                if path.exists() {
                    next.push(PathMatch { path, captures: place.captures.clone() });
                }
            }
        }
        next.truncate(SENSORS_MAX);
        found = next;
    }
    found
}

fn expand(place: &PathMatch, level: &str, next: &mut Vec<PathMatch>) {
    for name in names(&place.path) {
        if let Some(captures) = match_level(level, &name) {
            let captures = place.captures.iter().cloned().chain(captures).collect();
            next.push(PathMatch { path: place.path.join(&name), captures });
        }
    }
}

/// The names in a folder, in natural order; none when it cannot be read.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by(|a, b| natural_order(a, b));
    names
}

/// The text that each `*` of a level matches in `name`: as little as possible, for the last one the rest. `None` without a match.
fn match_level(level: &str, name: &str) -> Option<Vec<String>> {
    let mut pieces = level.split('*');
    let mut rest = name.strip_prefix(pieces.next()?)?;
    let pieces: Vec<&str> = pieces.collect();
    let (last, middle) = pieces.split_last()?;
    let mut captures = Vec::with_capacity(pieces.len());
    for piece in middle {
        let (capture, after) = rest.split_once(piece)?;
        captures.push(capture.to_owned());
        rest = after;
    }
    captures.push(rest.strip_suffix(last)?.to_owned());
    Some(captures)
}

/// Compares texts by characters, and runs of digits by their numbers.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        let (Some(&x), Some(&y)) = (left.first(), right.first()) else { return left.len().cmp(&right.len()) };
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (l, r) = (digits(&mut left), digits(&mut right));
            let order = l.len().cmp(&r.len()).then_with(|| l.cmp(r));
            if order != Ordering::Equal {
                return order;
            }
        } else if x != y {
            return x.cmp(&y);
        } else {
            (left, right) = (&left[1..], &right[1..]);
        }
    }
}

/// Removes the digits at the beginning of `text` and gives them without leading zeros.
fn digits<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(count);
    *text = rest;
    &digits[digits.iter().take_while(|byte| **byte == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_text() {
        for (level, name, expected) in [
            ("cpu*", "cpu12", Some(vec!["12"])),
            ("*", "eth0", Some(vec!["eth0"])),
            ("a*b*c", "a1b2c", Some(vec!["1", "2"])),
            ("a*b*c", "abbc", Some(vec!["", "b"])),
            ("a*", "b", None),
            ("a*a", "a", None),
            ("*_input", "temp1_label", None),
        ] {
            let captures = expected.map(|captures| captures.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(match_level(level, name), captures, "{level} {name}");
        }
    }

    #[test]
    fn natural_order_of_names() {
        let mut names = ["cpu10", "cpu2", "cpu", "cpu1x", "cpu01", "cpu1", "a10b2", "a10b10", "a9b99"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["a9b99", "a10b2", "a10b10", "cpu", "cpu01", "cpu1", "cpu1x", "cpu2", "cpu10"]);
    }

    #[test]
    fn finds_existing_paths() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["net/eth0/stat/rx", "net/eth0/stat/tx", "net/eth10/stat/rx", "net/eth2/stat/rx", "net/eth1/other"]
        {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1\n").unwrap();
        }
        let found = find(folder.path(), "net/eth*/stat/*");
        let captures: Vec<String> = found.iter().map(|found| found.captures.join(" ")).collect();
        assert_eq!(captures, ["0 rx", "0 tx", "2 rx", "10 rx"]);
        assert_eq!(found[2].path, folder.path().join("net/eth2/stat/rx"));
        assert_eq!(find(folder.path(), "net/eth1/other").len(), 1);
        assert!(find(folder.path(), "absent/*").is_empty());
    }
}
