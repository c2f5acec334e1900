//! Topic names and filters (4.7, 4.8.2).

use super::FIELD_BYTES_MAX;

/// Whether a message can be published on `topic`: not empty, no wildcard, no U+0000, at most 65,535 bytes.
pub fn valid_topic(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= FIELD_BYTES_MAX && !topic.bytes().any(|byte| matches!(byte, b'+' | b'#' | 0))
}

/// Whether `filter` can be subscribed to, shared subscriptions (`$share/name/filter`) included.
pub fn valid_filter(filter: &str) -> bool {
    if filter.is_empty() || filter.len() > FIELD_BYTES_MAX || filter.contains('\0') {
        return false;
    }
    let filter = if filter.starts_with("$share/") {
        match shared(filter) {
            Some(shared) => shared.filter,
            None => return false,
        }
    } else {
        filter
    };
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let wrong_plus = level.contains('+') && level != "+";
        let wrong_hash = level.contains('#') && (level != "#" || levels.peek().is_some());
        if wrong_plus || wrong_hash {
            return false;
        }
    }
    true
}

/// A parsed shared subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared<'a> {
    /// The name that its subscribers share.
    pub name: &'a str,
    /// The filter after the name.
    pub filter: &'a str,
}

/// Parses `$share/name/filter`; `None` for any other filter.
pub fn shared(filter: &str) -> Option<Shared<'_>> {
    let (name, filter) = filter.strip_prefix("$share/")?.split_once('/')?;
    (!name.is_empty() && !filter.is_empty() && !name.contains(['+', '#'])).then_some(Shared { name, filter })
}

/// Whether `topic` matches `filter`. Both are valid, and `filter` has no `$share/name/`.
/// A leading wildcard does not match topics that begin with `$` (4.7.2).
pub fn topic_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topic_levels = topic.split('/');
    for level in filter.split('/') {
        if level == "#" {
            return true;
        }
        match topic_levels.next() {
            Some(topic_level) if level == "+" || level == topic_level => {}
            _ => return false,
        }
    }
    topic_levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for good in
            ["#", "+", "/", "a", "a/#", "+/+", "a/+/b", "/+", "$SYS/#", "$share/g/a/#", "$share/g/+", "$share/g//"]
        {
            assert!(valid_filter(good), "{good}");
        }
        for bad in [
            "",
            "a#",
            "a/#/b",
            "#/",
            "a+",
            "a/b+/c",
            "+a",
            "\0",
            "$share/g",
            "$share//a",
            "$share/g/",
            "$share/+/a",
            "$share/g/a#",
        ] {
            assert!(!valid_filter(bad), "{bad}");
        }
        assert!(!valid_filter(&"a".repeat(65_536)));
        assert_eq!(shared("$share/g/a/b"), Some(Shared { name: "g", filter: "a/b" }));
        assert_eq!(shared("a/b"), None);
    }

    #[test]
    fn topics() {
        for good in ["a", "/", "a b", "$SYS/x", "a//b"] {
            assert!(valid_topic(good), "{good}");
        }
        for bad in ["", "+", "a/#", "a\0"] {
            assert!(!valid_topic(bad), "{bad}");
        }
        assert!(!valid_topic(&"a".repeat(65_536)));
    }

    /// The examples of 4.7.1 and 4.7.2.
    #[test]
    fn matching() {
        let yes = [
            ("sport/tennis/player1/#", "sport/tennis/player1"),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
            ("sport/#", "sport"),
            ("#", "a/b/c"),
            ("sport/tennis/+", "sport/tennis/player1"),
            ("sport/+", "sport/"),
            ("+/+", "/finance"),
            ("/+", "/finance"),
            ("$SYS/#", "$SYS/uptime"),
            ("$SYS/monitor/+", "$SYS/monitor/Clients"),
            ("a/b", "a/b"),
        ];
        let no = [
            ("sport/tennis/+", "sport/tennis/player1/ranking"),
            ("sport/+", "sport"),
            ("+", "/finance"),
            ("#", "$SYS/uptime"),
            ("+/monitor/Clients", "$SYS/monitor/Clients"),
            ("a/b", "a"),
            ("a", "a/b"),
            ("a", "A"),
            ("/a", "a"),
        ];
        yes.iter().for_each(|(filter, topic)| assert!(topic_matches(filter, topic), "{filter} {topic}"));
        no.iter().for_each(|(filter, topic)| assert!(!topic_matches(filter, topic), "{filter} {topic}"));
    }
}
