//! Deletions that are not applied to a file yet: stored in the catalogue's record of the file, applied by every reader, and dropped when the file
//! has been rewritten.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wholegrain_model::Pattern;

use crate::time::{ceil, floor};

/// One deletion: `from <= time < to` of the sensors that match one of the patterns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tombstone {
    #[serde(serialize_with = "write_patterns", deserialize_with = "read_patterns")]
    pub patterns: Vec<Pattern>,
    pub from: i64,
    pub to: i64,
}

fn write_patterns<S: Serializer>(patterns: &[Pattern], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(patterns.iter().map(Pattern::as_str))
}

fn read_patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.into_iter().map(|text| Pattern::new(text).map_err(serde::de::Error::custom)).collect()
}

impl Tombstone {
    /// Whether a sensor matches.
    pub fn chooses(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(path))
    }

    /// The range in whole windows of `resolution`.
    pub fn windows(&self, resolution: i64) -> (i64, i64) {
        (floor(self.from, resolution), ceil(self.to, resolution))
    }
}

/// The ranges of a sensor's `from <= time < to` that no tombstone deletes, in order.
pub(crate) fn remaining(tombstones: &[Tombstone], path: &str, from: i64, to: i64) -> Vec<(i64, i64)> {
    let mut left = vec![(from, to)];
    for cut in tombstones.iter().filter(|cut| cut.from < to && cut.to > from && cut.chooses(path)) {
        left = left.into_iter().flat_map(|(lo, hi)| [(lo, hi.min(cut.from)), (lo.max(cut.to), hi)]).collect();
        left.retain(|(lo, hi)| lo < hi);
    }
    left
}

/// The same for windows of `resolution` that begin in the range.
pub(crate) fn remaining_windows(
    tombstones: &[Tombstone],
    path: &str,
    from: i64,
    to: i64,
    resolution: i64,
) -> Vec<(i64, i64)> {
    if tombstones.is_empty() {
        return vec![(from, to)];
    }
    let widened: Vec<Tombstone> = tombstones
        .iter()
        .filter(|cut| cut.chooses(path))
        .map(|cut| {
            let (from, to) = cut.windows(resolution);
            Tombstone { from, to, patterns: cut.patterns.clone() }
        })
        .collect();
    remaining(&widened, path, from, to)
}

/// Whether a tombstone deletes something of a sensor's `first <= time <= last`, in whole windows of `resolution`.
pub(crate) fn touches(tombstones: &[Tombstone], path: &str, first: i64, last: i64, resolution: i64) -> bool {
    tombstones.iter().any(|cut| {
        let (from, to) = cut.windows(resolution);
        from <= last && to > first && cut.chooses(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pattern: &str, from: i64, to: i64) -> Tombstone {
        Tombstone { patterns: vec![Pattern::new(pattern).unwrap()], from, to }
    }

    #[test]
    fn what_is_left_is_what_no_cut_takes() {
        assert_eq!(remaining(&[], "/a", 3, 9), [(3, 9)]);
        let tombstones = [cut("/a", 5, 7), cut("/b", 0, 100), cut("/*", 20, 30), cut("/a", 6, 8)];
        assert_eq!(remaining(&tombstones, "/a", 0, 40), [(0, 5), (8, 20), (30, 40)]);
        assert_eq!(remaining(&tombstones, "/a", 5, 8), []);
        assert_eq!(remaining(&tombstones, "/b", 0, 100), []);
        assert_eq!(remaining(&tombstones, "/x/b", 0, 100), [(0, 100)]);
    }

    #[test]
    fn windows_go_as_wholes() {
        let tombstones = [cut("/a", 15, 31)];
        assert_eq!(remaining_windows(&tombstones, "/a", 0, 100, 10), [(0, 10), (40, 100)]);
        assert!(touches(&tombstones, "/a", 0, 10, 10) && !touches(&tombstones, "/a", 0, 9, 10));
        assert!(touches(&tombstones, "/a", 39, 50, 10) && !touches(&tombstones, "/a", 40, 50, 10));
        assert!(!touches(&tombstones, "/b", 0, 100, 10));
    }

    #[test]
    fn a_cut_is_read_as_it_was_written() {
        let tombstones = vec![cut("/a/**/power", -5, i64::MAX)];
        let json = serde_json::to_string(&tombstones).unwrap();
        assert_eq!(json, format!("[{{\"patterns\":[\"/a/**/power\"],\"from\":-5,\"to\":{}}}]", i64::MAX));
        assert_eq!(serde_json::from_str::<Vec<Tombstone>>(&json).unwrap(), tombstones);
    }
}
