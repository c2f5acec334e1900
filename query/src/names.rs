//! Completion of sensor names, and the nearest name to one that does not exist.
//!
//! Every search is bounded: it reads at most [`PAGES_MAX`] pages of sensors, whatever the number of sensors.

use std::collections::{BTreeMap, BTreeSet};

use wholegrain_model::{Pattern, SensorPath};
use wholegrain_store::SensorInfo;

use crate::nearest::{nearest_levels, nearest_pattern};
use crate::space::Space;

/// The most names of one answer.
pub const NAMES_MAX: usize = 200;
/// Sensors of one page.
const PAGE_SENSORS: usize = 64;
/// Pages of one search.
const PAGES_MAX: usize = 256;
/// Places in the hierarchy that are searched for a level behind a wildcard.
const PLACES_MAX: usize = 8;
/// Greater than every character of a name.
const LAST: char = '\u{10ffff}';

/// A search among the names that a user may see.
pub struct NameSearch<'a> {
    space: &'a Space,
    /// Shows only this user's jobs; `None` shows everything.
    only_user: Option<&'a str>,
    pages_left: usize,
    is_abandoned: Box<dyn Fn() -> bool + 'a>,
}

/// A level below a place in the hierarchy.
#[derive(Debug, Clone, Copy, Default)]
struct PathLevel {
    is_sensor: bool,
    has_deeper: bool,
}

impl<'a> NameSearch<'a> {
    /// Searches the sensors of `space`.
    pub fn new(space: &'a Space, only_user: Option<&'a str>) -> Self {
        Self { space, only_user, pages_left: PAGES_MAX, is_abandoned: Box::new(|| false) }
    }

    /// Stops the search once `is_abandoned` returns true, which is checked before each page.
    pub fn stop_when(self, is_abandoned: impl Fn() -> bool + 'a) -> Self {
        Self { is_abandoned: Box::new(is_abandoned), ..self }
    }

    /// Completions of the beginning of a name, sorted, at most [`NAMES_MAX`]. A beginning with `/` is completed by one level: to sensors, and to
    /// levels with sensors below, which end in `/`. Any other is completed to the last levels of paths.
    pub fn completions(mut self, begin: &str) -> Vec<String> {
        if begin.contains('*') {
            return Vec::new();
        }
        let Some((place, part)) = begin.strip_prefix('/').map(|_| begin.rsplit_once('/').unwrap_or(("", begin))) else {
            return self.last_levels(begin, begin.matches('/').count() + 1);
        };
        let mut names = BTreeSet::new();
        for (name, level) in self.levels(place, part) {
            if level.is_sensor {
                names.insert(format!("{place}/{name}"));
            }
            if level.has_deeper {
                names.insert(format!("{place}/{name}/"));
            }
        }
        names.into_iter().take(NAMES_MAX).collect()
    }

    /// The pattern with its first unmatched level replaced by a similar existing one. A pattern without a leading `/` is compared with the last
    /// levels of paths.
    pub fn nearest(mut self, pattern: &str) -> Option<String> {
        if !pattern.starts_with('/') {
            let known = self.last_levels("", pattern.matches('/').count() + 1);
            return nearest_levels(pattern, known.iter().map(String::as_str));
        }
        nearest_pattern(pattern, PLACES_MAX, |place, _| self.levels(place, "").into_keys().collect())
    }

    /// The next sensors that the user may see, and the path after which the next page begins; `None` at the end.
    fn page(&mut self, pattern: &Pattern, after: Option<&str>) -> Option<(Vec<SensorInfo>, String)> {
        self.pages_left = self.pages_left.checked_sub(1)?;
        if (self.is_abandoned)() {
            return None;
        }
        let mut page =
            self.space.sensors_after_until(std::slice::from_ref(pattern), after, PAGE_SENSORS, &self.is_abandoned);
        let last = page.last()?.path.to_string();
        if let Some(user) = self.only_user {
            self.space.retain_seen(user, &mut page);
        }
        Some((page, last))
    }

    /// The levels directly below a place whose names begin with `part`. The search skips what lies below each level.
    fn levels(&mut self, place: &str, part: &str) -> BTreeMap<String, PathLevel> {
        let below = if part.is_empty() { format!("{place}/**") } else { format!("{place}/{part}*/**") };
        let mut levels: BTreeMap<String, PathLevel> = BTreeMap::new();
        let Ok(pattern) = Pattern::new(below) else { return levels };
        let mut after: Option<String> = None;
        while let Some((page, last)) = self.page(&pattern, after.as_deref()) {
            after = Some(last);
            for sensor in &page {
                let Some(rest) = sensor.path.strip_prefix(place).and_then(|rest| rest.strip_prefix('/')) else {
                    continue;
                };
                let Some((name, _)) = rest.split_once('/') else {
                    levels.entry(rest.to_owned()).or_default().is_sensor = true;
                    continue;
                };
                levels.entry(name.to_owned()).or_default().has_deeper = true;
                after = Some(format!("{place}/{name}/{LAST}"));
                break;
            }
            if levels.len() > NAMES_MAX {
                break;
            }
        }
        levels
    }

    /// The last `count` levels of all paths, as far as they begin with `begin`, sorted.
    fn last_levels(&mut self, begin: &str, count: usize) -> Vec<String> {
        let Ok(pattern) = Pattern::new(if begin.is_empty() { "/**".to_owned() } else { format!("{begin}*") }) else {
            return Vec::new();
        };
        let mut names = BTreeSet::new();
        let mut after: Option<String> = None;
        while let Some((page, last)) = self.page(&pattern, after.as_deref()) {
            after = Some(last);
            for sensor in &page {
                let levels = SensorPath::new(&*sensor.path).map_or(0, |path| path.levels().count());
                let skipped = levels.saturating_sub(count);
                if let Some((at, _)) = sensor.path.match_indices('/').nth(skipped) {
                    names.insert(sensor.path[at + 1..].to_owned());
                }
            }
            if !begin.is_empty() && names.len() >= NAMES_MAX {
                break;
            }
        }
        names.into_iter().filter(|name| name.starts_with(begin)).take(PAGE_SENSORS * PAGES_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::job::JobRecord;
    use wholegrain_store::{Store, StoreConfig};

    use super::*;
    use crate::space::tests::sensor;

    fn space(paths: &[&str]) -> (tempfile::TempDir, Space) {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap();
        store.register_sensors("test", &paths.iter().map(|path| sensor(path)).collect::<Vec<_>>()).unwrap();
        (dir, Space::new(store))
    }

    const PATHS: &[&str] = &[
        "/lab/n1/cpu/0/user",
        "/lab/n1/cpu/1/user",
        "/lab/n1/mem",
        "/lab/n1/mem-free",
        "/lab/n1/mem/total",
        "/lab/n2/cpu/0/user",
        "/lab/power",
    ];

    #[test]
    fn beginnings_are_completed_by_a_level() {
        let (_dir, space) = space(PATHS);
        for (begin, expected) in [
            ("/", &["/lab/"][..]),
            ("/la", &["/lab/"]),
            ("/lab/", &["/lab/n1/", "/lab/n2/", "/lab/power"]),
            ("/lab/n", &["/lab/n1/", "/lab/n2/"]),
            ("/lab/n1/mem", &["/lab/n1/mem", "/lab/n1/mem-free", "/lab/n1/mem/"]),
            ("/lab/n1/cpu/0/", &["/lab/n1/cpu/0/user"]),
            ("/lab/x", &[]),
            ("/lab/*", &[]),
            ("us", &["user"]),
            ("cpu/1", &[]),
            ("0/us", &["0/user"]),
            ("mem", &["mem", "mem-free"]),
            ("a//b", &[]),
        ] {
            assert_eq!(NameSearch::new(&space, None).completions(begin), expected, "{begin}");
        }
    }

    #[test]
    fn the_nearest_name() {
        let (_dir, space) = space(PATHS);
        for (pattern, expected) in [
            ("/lab/n1/cpu/0/usr", Some("/lab/n1/cpu/0/user")),
            ("/lab/n*/cpus/*/user", Some("/lab/n*/cpu/*/user")),
            ("/lob/n1/mem", Some("/lab/n1/mem")),
            ("usr", Some("user")),
            ("Power", Some("power")),
            ("cpu/0/usr", Some("cpu/0/user")),
            ("zzz", None),
            ("cpu/weather/**", None),
            ("cpu/*/usr", Some("cpu/*/user")),
        ] {
            assert_eq!(NameSearch::new(&space, None).nearest(pattern).as_deref(), expected, "{pattern}");
        }
    }

    #[test]
    fn a_search_below_a_level_with_many_levels_is_bounded() {
        let paths: Vec<String> = (0..20_000).map(|at| format!("/a/b{at:05}/c/power")).collect();
        let (_dir, space) = space(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        let mut names = NameSearch::new(&space, None);
        assert_eq!(names.levels("/a", "").len(), NAMES_MAX + 1);
        assert!(names.pages_left < PAGES_MAX);
        assert_eq!(NameSearch::new(&space, None).completions("/a/b").len(), NAMES_MAX);
        assert_eq!(NameSearch::new(&space, None).nearest("powr").as_deref(), Some("power"));
    }

    #[test]
    fn an_abandoned_search_stops() {
        let paths: Vec<String> = (0..20_000).map(|at| format!("/a/b{at:05}/c/power")).collect();
        let (_dir, space) = space(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        let asked = std::cell::Cell::new(0);
        let abandoned_after = |most: usize| {
            let asked = &asked;
            asked.set(0);
            NameSearch::new(&space, None).stop_when(move || {
                asked.set(asked.get() + 1);
                asked.get() > most
            })
        };
        abandoned_after(usize::MAX).nearest("powr");
        assert_eq!(asked.get(), PAGES_MAX, "the bound");
        for (pattern, most) in [("powr", 3), ("/a/b*/c/powr", 0), ("/a/b*/x/powr", 5)] {
            abandoned_after(most).nearest(pattern);
            // Each place that is searched checks once more.
            assert!(asked.get() > most && asked.get() <= most + 1 + PLACES_MAX, "{pattern}: {}", asked.get());
        }
    }

    #[test]
    fn users_do_not_see_names_of_other_users_jobs() {
        let (_dir, space) = space(&["/lab/n1/job/7/cpu", "/lab/n1/job/8/secret", "/lab/n1/load"]);
        for (id, user) in [("7", "alice"), ("8", "bob")] {
            let record = JobRecord {
                job: id.into(),
                level: id.into(),
                manager: "slurm".into(),
                node: "n1".into(),
                prefix: "/lab/n1".into(),
                user: Some(user.into()),
                from: 1,
                revision: 1,
                ..JobRecord::default()
            };
            let (sender, done) = std::sync::mpsc::channel();
            space.store().put_jobs(vec![record], Box::new(move |result| sender.send(result).unwrap()));
            done.recv().unwrap().unwrap();
        }
        let names = || NameSearch::new(&space, Some("alice"));
        assert_eq!(names().completions("/lab/n1/job/"), ["/lab/n1/job/7/"]);
        assert_eq!(names().completions("sec"), [""; 0]);
        assert_eq!(names().nearest("secrt"), None);
        assert_eq!(names().nearest("/lab/n1/job/8/secre"), None);
        assert_eq!(NameSearch::new(&space, Some("bob")).completions("sec"), ["secret"]);
    }
}
