//! Whether two patterns can select the same path, existing or not. This detects a cycle before the sensors exist that would close it.

use wholegrain_model::Pattern;

/// Whether a path is possible that both select. Both begin with `/`.
pub(super) fn overlap(one: &Pattern, other: &Pattern) -> bool {
    if one.is_literal() {
        return other.matches(one.as_str());
    }
    if other.is_literal() {
        return one.matches(other.as_str());
    }
    let levels =
        |pattern: &'_ Pattern| -> Vec<String> { pattern.as_str().split('/').skip(1).map(str::to_owned).collect() };
    let (one, other) = (levels(one), levels(other));
    meet(&one, &other, |level| level == "**", |one, other| level_meets(one, other))
}

fn level_meets(one: &str, other: &str) -> bool {
    match (one.contains('*'), other.contains('*')) {
        (false, false) => one == other,
        (true, false) => wholegrain_model::pattern::glob(one, other),
        (false, true) => wholegrain_model::pattern::glob(other, one),
        (true, true) => {
            let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
            meet(&one, &other, |c| *c == '*', |one, other| one == other)
        }
    }
}

/// Whether two sequences with wildcards (each for any number of elements) can be equal. Fills a table of the suffixes that can.
fn meet<T>(one: &[T], other: &[T], is_any: impl Fn(&T) -> bool, alike: impl Fn(&T, &T) -> bool) -> bool {
    // `below[j]`: whether the elements after `i` in `one` can equal those from `j` on in `other`.
    let mut below = vec![false; other.len() + 1];
    below[other.len()] = true;
    for j in (0..other.len()).rev() {
        below[j] = below[j + 1] && is_any(&other[j]);
    }
    for i in (0..one.len()).rev() {
        let mut here = vec![false; other.len() + 1];
        here[other.len()] = is_any(&one[i]) && below[other.len()];
        for j in (0..other.len()).rev() {
            here[j] = if is_any(&one[i]) || is_any(&other[j]) {
                below[j] || here[j + 1]
            } else {
                alike(&one[i], &other[j]) && below[j + 1]
            };
        }
        below = here;
    }
    below[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_can_and_cannot_select_the_same_path() {
        for (one, other, expected) in [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/*", true),
            ("/a/*", "/*/b", true),
            ("/a/*", "/b/*", false),
            ("/a/*/c", "/a/b/*", true),
            ("/a/*/c", "/a/b/d", false),
            ("/a/*", "/a/*/c", false),
            ("/**/power", "/lab/*/power", true),
            ("/**/power", "/lab/*/energy", false),
            ("/**", "/lab/*/energy", true),
            ("/lab/**", "/**/energy", true),
            ("/lab/**/x/**", "/*/y/*", true),
            ("/lab/**/x/**", "/*/y/z", false),
            ("/lab/**/x/**", "/*/*/x", true),
            ("/a/n*1", "/a/*n1", true),
            ("/a/n*1", "/a/m*1", false),
            ("/a/n*1", "/a/*2", false),
            ("/a/**/b/**/c", "/**/b/c", true),
            ("/a/**", "/a", true),
        ] {
            let pattern = |text: &str| Pattern::new(text).unwrap();
            assert_eq!(overlap(&pattern(one), &pattern(other)), expected, "{one} {other}");
            assert_eq!(overlap(&pattern(other), &pattern(one)), expected, "{other} {one}");
        }
    }
}
