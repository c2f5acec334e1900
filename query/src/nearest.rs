//! The existing name nearest to a pattern without matches.

use wholegrain_model::pattern::glob;
use wholegrain_model::suggest::nearest;

/// The pattern with its first unmatched level replaced by the nearest existing one. `levels_below` returns the names directly below a place in the
/// hierarchy, and learns how many places are searched at this level: at most `places_max`.
pub(crate) fn nearest_pattern(
    pattern: &str,
    places_max: usize,
    mut levels_below: impl FnMut(&str, usize) -> Vec<String>,
) -> Option<String> {
    let levels: Vec<&str> = pattern.split('/').skip(1).collect();
    let mut places = vec![String::new()];
    for (at, level) in levels.iter().enumerate() {
        let mut known: Vec<(&str, String)> = Vec::new();
        for place in &places {
            known.extend(levels_below(place, places.len()).into_iter().map(|name| (place.as_str(), name)));
        }
        let matches = |name: &str| if level.contains('*') { glob(level, name) } else { name == *level };
        let next = known.iter().filter(|(_, name)| matches(name)).map(|(place, name)| format!("{place}/{name}"));
        let next: Vec<String> = next.take(places_max).collect();
        if next.is_empty() {
            let mut corrected = levels.clone();
            corrected[at] = nearest(level, known.iter().map(|(_, name)| name.as_str()))?;
            return Some(format!("/{}", corrected.join("/")));
        }
        places = next;
    }
    None
}

/// The known name nearest to a pattern with as many levels, with the wildcards of the pattern. Each level must be similar: a name that only begins as
/// the pattern is not what is meant.
pub(crate) fn nearest_levels<'a>(pattern: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let is_near = |(level, other): (&str, &'a str)| match level.contains('*') {
        true => glob(level, other),
        false => nearest(level, [other]).is_some(),
    };
    let similar = known.into_iter().filter(|other| pattern.split('/').zip(other.split('/')).all(is_near));
    let levels = pattern.split('/').zip(nearest(pattern, similar)?.split('/'));
    let levels: Vec<&str> = levels.map(|(level, other)| if level.contains('*') { level } else { other }).collect();
    Some(levels.join("/"))
}
