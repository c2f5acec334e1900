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
