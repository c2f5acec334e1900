//! Selects the series of a query by its matchers, and the sensors that could match.

use regex_lite::{Regex, RegexBuilder};
use wholegrain_model::Pattern;

use super::labels::{Labels, NAME, NODE, SENSOR, value};
use super::wire::{LabelMatcher, MatcherKind};

/// The most memory of one compiled regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// The deepest nesting of a regular expression.
const REGEX_DEPTH_MAX: u32 = 64;

/// The compiled matchers of a query.
pub struct LabelMatchers(Vec<(String, LabelTest)>);

enum LabelTest {
    Equal(String),
    NotEqual(String),
    Regex(Regex),
    NotRegex(Regex),
}

impl LabelMatchers {
    /// Compiles matchers. A regular expression must match the whole value, as in Prometheus, and takes linear time. The error says what to change.
    pub fn new(matchers: &[LabelMatcher]) -> Result<Self, String> {
        let compile = |matcher: &LabelMatcher| {
            let text = format!("^(?s:{})$", matcher.value);
            let regex = RegexBuilder::new(&text).size_limit(REGEX_BYTES_MAX).nest_limit(REGEX_DEPTH_MAX).build();
            regex.map_err(|error| {
                let shown: String = matcher.value.chars().take(80).collect();
                format!("the matcher of {:?} has the expression {shown:?}, which cannot be used: {error}", matcher.name)
            })
        };
        let test = |matcher: &LabelMatcher| {
            Ok::<_, String>(match matcher.comparison {
                MatcherKind::Equal => LabelTest::Equal(matcher.value.clone()),
                MatcherKind::NotEqual => LabelTest::NotEqual(matcher.value.clone()),
                MatcherKind::Regex => LabelTest::Regex(compile(matcher)?),
                MatcherKind::NotRegex => LabelTest::NotRegex(compile(matcher)?),
            })
        };
        let mut tests = Vec::with_capacity(matchers.len());
        for matcher in matchers {
            tests.push((matcher.name.clone(), test(matcher)?));
        }
        // The cheapest tests run first.
        tests.sort_by_key(|(_, test)| matches!(test, LabelTest::Regex(_) | LabelTest::NotRegex(_)));
        Ok(Self(tests))
    }

    /// Whether the labels match. A missing label counts as empty.
    pub fn match_labels(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(name, test)| {
            let value = value(labels, name);
            match test {
                LabelTest::Equal(wanted) => value == wanted,
                LabelTest::NotEqual(unwanted) => value != unwanted,
                LabelTest::Regex(regex) => regex.is_match(value),
                LabelTest::NotRegex(regex) => !regex.is_match(value),
            }
        })
    }
}

/// Patterns that select at least every sensor that can match. `trailing` is the number of levels at the end of a path that may be missing in the
/// metric's name; `mapped` says whether paths can have labels other than the default ones.
pub fn patterns(matchers: &[LabelMatcher], trailing: usize, mapped: bool) -> Vec<Pattern> {
    let of = |comparison: MatcherKind, name: &str| {
        let found = matchers.iter().find(|matcher| matcher.comparison == comparison && matcher.name == name);
        found.map(|matcher| matcher.value.as_str()).filter(|value| !value.is_empty())
    };
    let made = if let Some(path) = of(MatcherKind::Equal, SENSOR) {
        vec![path.to_owned()]
    } else if let Some(prefix) = of(MatcherKind::Regex, SENSOR).and_then(literal_levels) {
        vec![format!("{prefix}/**")]
    } else if let Some(node) = of(MatcherKind::Equal, NODE).filter(|_| !mapped) {
        vec![format!("/**/{node}/**")]
    } else if let Some(tail) = of(MatcherKind::Equal, NAME).and_then(tail) {
        // The last piece of the name is the end of some level; the levels after it became labels.
        (0..=trailing + 1).map(|levels| format!("/**/*{tail}{}", "/*".repeat(levels))).collect()
    } else {
        vec!["/**".to_owned()]
    };
    // A value that no path can contain (`node="a b"`) selects none.
    let is_plain = |text: &String| !text.contains("//");
    made.iter().filter(|text| is_plain(text)).filter_map(|text| Pattern::new(text.as_str()).ok()).collect()
}

/// The part after the name's last `_`: letters, digits and colons, which the path contains unchanged.
fn tail(name: &str) -> Option<&str> {
    let tail = name.rsplit('_').next()?;
    (!tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b':')).then_some(tail)
}

/// The whole levels with which every match of an expression begins: `/lrz/sng` for `/lrz/sng/.*`.
fn literal_levels(regex: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-:%,@".contains(&byte);
    let end = regex.bytes().position(|byte| !is_plain(byte)).unwrap_or(regex.len());
    // `a|b` has no common prefix, and a quantifier applies to the character before it.
    if regex.contains('|') || !regex.starts_with('/') {
        return None;
    }
    let is_quantified = regex[end..].starts_with(['?', '*', '{']);
    let literal = &regex[..end - usize::from(is_quantified)];
    literal.rfind('/').map(|at| &literal[..at]).filter(|levels| !levels.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::labels::labels;
    use super::super::labels::tests::sensor;
    use super::*;

    fn matcher(comparison: MatcherKind, name: &str, value: &str) -> LabelMatcher {
        LabelMatcher { comparison, name: name.into(), value: value.into() }
    }

    #[test]
    fn matching_is_prometheus_own() {
        use MatcherKind::{Equal, NotEqual, NotRegex, Regex};
        let labels = labels(&[], &sensor("/lrz/n1/cpu/12/user", "n1"));
        for (comparison, name, value, expected) in [
            (Equal, "node", "n1", true),
            (Equal, "node", "n", false),
            (Equal, "nothing", "", true),
            (NotEqual, "nothing", "", false),
            (NotEqual, "node", "n2", true),
            (Regex, "node", "n", false),
            (Regex, "node", "n.", true),
            (Regex, "node", "n2|n1", true),
            (Regex, "nothing", ".*", true),
            (Regex, "nothing", ".+", false),
            (NotRegex, "node", "n.*", false),
            (NotRegex, "cpu", "[0-9]", true),
            (Regex, "cpu", "(?:1[0-9])", true),
            (Regex, "__name__", "cpu_.*", true),
        ] {
            let matchers = LabelMatchers::new(&[matcher(comparison, name, value)]).unwrap();
            assert_eq!(matchers.match_labels(&labels), expected, "{comparison:?} {name} {value}");
        }
    }

    #[test]
    fn bombs_are_refused() {
        for bomb in ["(", "(((a{100}){100}){100})", &"(".repeat(10_000), "a{1000000}"] {
            let error = LabelMatchers::new(&[matcher(MatcherKind::Regex, "node", bomb)]).err().unwrap();
            assert!(error.contains("\"node\"") && error.len() < 1000, "{error}");
        }
    }

    #[test]
    fn patterns_choose_at_least_what_matches() {
        use MatcherKind::{Equal, Regex};
        let path = "/lrz/sng/n1/cpu/12/user";
        let series = labels(&[], &sensor(path, "n1"));
        for (matchers, expected) in [
            (vec![matcher(Equal, "sensor", path)], path),
            (vec![matcher(Regex, "sensor", "/lrz/sng/.*")], "/lrz/sng/**"),
            (vec![matcher(Regex, "sensor", "/lrz/sng?.*")], "/lrz/**"),
            (vec![matcher(Regex, "sensor", "/lrz/?.*")], "/**"),
            (vec![matcher(Regex, "sensor", "/lrz/sng/.*|/x/y")], "/**"),
            (vec![matcher(Equal, "node", "n1"), matcher(Equal, "__name__", "cpu_user")], "/**/n1/**"),
            (vec![matcher(Equal, "__name__", "cpu_user")], "/**/*user"),
            (vec![matcher(Regex, "node", "n.*")], "/**"),
        ] {
            let patterns = patterns(&matchers, 0, false);
            assert_eq!(patterns[0].as_str(), expected);
            assert!(LabelMatchers::new(&matchers).unwrap().match_labels(&series), "{matchers:?}");
            assert!(patterns.iter().any(|pattern| pattern.matches(path)), "{matchers:?}");
        }
        assert!(patterns(&[matcher(Equal, "node", "a b")], 0, false).is_empty());
        assert_eq!(patterns(&[matcher(Equal, "node", "n1")], 0, true)[0].as_str(), "/**");
    }
}
