//! Whether one topic filter covers another: it matches every topic that the other matches.

/// Stands for the client's identity in a filter of the configuration.
pub(super) const IDENTITY: &str = "%i";

/// Whether `grant` matches every topic that `wanted` matches. `wanted` may be a topic name. [`IDENTITY`] in `grant` stands for `identity`. Both are
/// valid filters without `$share/name/`.
///
/// A wildcard in the first level matches no topic that begins with `$` (MQTT 5, section 4.7.2), so it grants none. Does not allocate: it is called
/// for publishes.
pub(crate) fn covers(grant: &str, identity: &str, wanted: &str) -> bool {
    if wanted.starts_with('$') && !grant.starts_with('$') {
        return false;
    }
    // A topic has at least one level, so a bare `#` equals `+/#`.
    let mut levels = (wanted == "#").then_some("+").into_iter().chain(wanted.split('/'));
    for level in grant.split('/') {
        if level == "#" {
            return true;
        }
        let fits = match levels.next() {
            // Any number of levels exceeds one.
            None | Some("#") => false,
            Some(next) => level == "+" || (next != "+" && same_level(level, identity, next)),
        };
        if !fits {
            return false;
        }
    }
    levels.next().is_none()
}

fn same_level(granted: &str, identity: &str, level: &str) -> bool {
    match granted.split_once(IDENTITY) {
        None => granted == level,
        Some((before, after)) => {
            let middle = level.strip_prefix(before).and_then(|rest| rest.strip_prefix(identity));
            middle.is_some_and(|rest| same_level(after, identity, rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_cover_topics_and_filters() {
        for (grant, wanted, expected) in [
            ("a/#", "a/+/c", true),
            ("a/#", "a/#", true),
            ("a/#", "a", true),
            ("a/#", "a/", true),
            ("a/#", "ab", false),
            ("a/#", "+/b", false),
            ("a/#", "#", false),
            ("a/+", "a/b", true),
            ("a/+", "a/+", true),
            ("a/+", "a/#", false),
            ("a/+", "a/b/c", false),
            ("a/+", "a", false),
            ("a/+/#", "a/#", false),
            ("a/+/#", "a/+", true),
            ("a/+/#", "a/b/#", true),
            ("a/b", "a/+", false),
            ("a/b", "a/b", true),
            ("a/b", "a/b/#", false),
            ("#", "#", true),
            ("#", "+/+", true),
            ("#", "/a", true),
            ("+/#", "#", true),
            ("+/#", "a", true),
            ("+/+/#", "#", false),
            ("+", "#", false),
            ("#", "$SYS/a", false),
            ("+/a", "$SYS/a", false),
            ("$SYS/#", "$SYS/a", true),
            ("$SYS/#", "#", false),
            ("/site/%i/#", "/site/n1/+/x", true),
            ("/site/%i/#", "/site/n2/x", false),
            ("/site/%i/#", "/site/+/x", false),
            ("/site/rack-%i.%i/#", "/site/rack-n1.n1/x", true),
            ("/site/rack-%i/#", "/site/rack-n1x/x", false),
            ("%i/#", "n1/x", true),
        ] {
            assert_eq!(covers(grant, "n1", wanted), expected, "{grant} over {wanted}");
        }
    }

    /// Against the definition: over all topics of up to three levels of two names, a filter that covers another chooses all
    /// that it chooses; and one that does not, leaves one out.
    #[test]
    fn covering_follows_its_definition() {
        let levels = |count: u32, names: &'static [&'static str]| {
            (0..names.len().pow(count)).map(move |mut number| {
                let mut parts = Vec::new();
                for _ in 0..count {
                    parts.push(names[number % names.len()]);
                    number /= names.len();
                }
                parts.join("/")
            })
        };
        let topics: Vec<String> = (1..=5).flat_map(|count| levels(count, &["a", "b", "$c"])).collect();
        let filters: Vec<String> = (1..=3).flat_map(|count| levels(count, &["a", "b", "+", "#", "$c"])).collect();
        let filters: Vec<&String> =
            filters.iter().filter(|filter| wholegrain_transport::mqtt::valid_filter(filter)).collect();
        let chosen: Vec<Vec<bool>> = filters
            .iter()
            .map(|filter| topics.iter().map(|t| wholegrain_transport::mqtt::topic_matches(filter, t)).collect())
            .collect();
        for (i, grant) in filters.iter().enumerate() {
            for (j, wanted) in filters.iter().enumerate() {
                let subset = chosen[j].iter().zip(&chosen[i]).all(|(wanted, granted)| !wanted || *granted);
                // `a/#` matches `a` too (MQTT 5, 4.7.1.2); the first test checks that `topic_matches` agrees.
                assert_eq!(covers(grant, "n1", wanted), subset, "{grant} over {wanted}");
            }
        }
    }
}
