//! Which path has which number. Sensors that came with one schema, all of them new, have numbers one after the other in the schema's order: they are
//! kept as one family, whose paths are its prefix and the schema's names, and agents with the same sensors share the names and their order. All
//! others are kept one by one.
//!
//! In the order of paths they stand as runs, none of which reaches into another: a family is one run, or more where other sensors lie between.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use wholegrain_model::Schema;

use crate::sensors::info::SensorId;

/// Sensors of one schema, numbered together.
pub(super) struct SensorFamily {
    /// The number of the first column.
    pub first: u32,
    /// The schema, and its index into [`super::Sensors::schema_at`].
    pub schema: Schema,
    pub at: u32,
    /// The columns in the order of their names.
    order: Arc<[u32]>,
    /// As [`super::Entry::held`], made when somebody first asks.
    pub held: OnceLock<Box<[AtomicU32]>>,
}

impl SensorFamily {
    pub(crate) fn len(&self) -> u32 {
        self.schema.len() as u32
    }

    /// The name of the column that is so far in the order of names.
    fn name(&self, place: u32) -> &str {
        &self.schema.sensors()[self.order[place as usize] as usize].name
    }

    fn path(&self, place: u32) -> Arc<str> {
        self.schema.path(self.order[place as usize] as usize).into()
    }

    fn compare(&self, place: u32, path: &str) -> Ordering {
        let prefix = self.schema.prefix().as_str();
        let name = self.name(place).as_bytes();
        match path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')) {
            Some(rest) => name.cmp(rest.as_bytes()),
            None => prefix.bytes().chain([b'/']).chain(name.iter().copied()).cmp(path.bytes()),
        }
    }

    /// The first place of `from..to` whose path is not before `path`, or with `after` comes after it.
    fn position(&self, (from, to): (u32, u32), path: &str, after: bool) -> u32 {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low + (high - low) / 2;
            let order = self.compare(middle, path);
            if order == Ordering::Less || (after && order == Ordering::Equal) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The order of a schema's names.
pub(super) fn order_of(schema: &Schema) -> Arc<[u32]> {
    let mut order: Vec<u32> = (0..schema.len() as u32).collect();
    order.sort_unstable_by_key(|column| schema.sensors()[*column as usize].name.as_str());
    order.into()
}

/// Consecutive paths of one family, or one sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PathRun {
    /// The family, or the sensor's number.
    first: u32,
    /// Places in the family's order; `0..0` of one sensor.
    from: u32,
    to: u32,
}

impl PathRun {
    fn is_one(self) -> bool {
        self.to == 0
    }
}

/// Sensors by path, with families of sensors stored once.
#[derive(Default)]
pub(super) struct PathIndex {
    /// By the first path of each.
    runs: BTreeMap<Arc<str>, PathRun>,
    /// By their first numbers.
    families: BTreeMap<u32, SensorFamily>,
}

impl PathIndex {
    /// Sensors one by one, in any order.
    pub fn of(paths: impl Iterator<Item = (Arc<str>, u32)>) -> Self {
        let runs = paths.map(|(path, first)| (path, PathRun { first, from: 0, to: 0 })).collect();
        Self { runs, families: BTreeMap::new() }
    }

    /// The family that has this number, and which of its columns.
    pub fn family(&self, id: SensorId) -> Option<(&SensorFamily, u32)> {
        let (first, family) = self.families.range(..=id.0).next_back()?;
        Some((family, id.0 - first)).filter(|(family, column)| *column < family.len())
    }

    /// The families from the one on that has this number, or the next.
    pub fn families_from(&self, number: u32) -> impl Iterator<Item = &SensorFamily> {
        let from = self.family(SensorId(number)).map_or(number, |(family, _)| family.first);
        self.families.range(from..).map(|(_, family)| family)
    }

    pub(crate) fn families_mut(&mut self) -> impl Iterator<Item = &mut SensorFamily> {
        self.families.values_mut()
    }

    pub(crate) fn id(&self, path: &str) -> Option<SensorId> {
        let (key, run) = self.runs.range::<str, _>((Bound::Unbounded, Bound::Included(path))).next_back()?;
        if run.is_one() {
            return (&**key == path).then_some(SensorId(run.first));
        }
        let family = self.families.get(&run.first)?;
        let place = family.position((run.from, run.to), path, false);
        let is = place < run.to && family.compare(place, path) == Ordering::Equal;
        is.then(|| SensorId(family.first + family.order[place as usize]))
    }

    /// Whether nothing lies between the first and the last of a schema's paths, so that none of them is known.
    pub fn is_free(&self, schema: &Schema, order: &[u32]) -> bool {
        let (Some(first), Some(last)) = (order.first(), order.last()) else { return true };
        let (first, last) = (schema.path(*first as usize), schema.path(*last as usize));
        let mut walk = self.walk(Bound::Included(&first));
        walk.step().is_none_or(|(path, _)| path > last.as_str())
    }

    /// Takes one sensor in that is not there.
    pub fn insert(&mut self, path: Arc<str>, id: SensorId) {
        self.split(&path);
        self.runs.insert(path, PathRun { first: id.0, from: 0, to: 0 });
    }

    /// Takes a schema's sensors in, none of which is there.
    pub fn insert_family(&mut self, first: u32, schema: Schema, at: u32, order: Arc<[u32]>) {
        let family = SensorFamily { first, schema, at, order, held: OnceLock::new() };
        let mut from = 0;
        while from < family.len() {
            let path = family.path(from);
            self.split(&path);
            let next = self.runs.range::<str, _>((Bound::Excluded(&*path), Bound::Unbounded)).next();
            let to = next.map_or(family.len(), |(next, _)| family.position((from, family.len()), next, false));
            self.runs.insert(path, PathRun { first, from, to });
            from = to;
        }
        self.families.insert(first, family);
    }

    /// Lets a run that goes past `path` end before it, and another begin behind it.
    fn split(&mut self, path: &str) {
        let before = (Bound::Unbounded, Bound::Excluded(path));
        let Some((_, run)) = self.runs.range_mut::<str, _>(before).next_back() else { return };
        let Some(family) = self.families.get(&run.first).filter(|_| !run.is_one()) else { return };
        let place = family.position((run.from, run.to), path, false);
        if place < run.to {
            let rest = PathRun { from: place, ..*run };
            run.to = place;
            self.runs.insert(family.path(place), rest);
        }
    }

    /// Takes one sensor out that is of no family.
    pub fn remove(&mut self, path: &str, id: SensorId) {
        if self.runs.get(path) == Some(&PathRun { first: id.0, from: 0, to: 0 }) {
            self.runs.remove(path);
            self.join(path);
        }
    }

    /// Takes a family out with all its sensors.
    pub fn remove_family(&mut self, first: u32) -> Option<SensorFamily> {
        let family = self.families.remove(&first)?;
        let mut from = 0;
        while from < family.len() {
            let path = family.path(from);
            let Some(run) = self.runs.remove(&path) else { break };
            self.join(&path);
            from = run.to;
        }
        Some(family)
    }

    /// Makes one run again of what lies on both sides of `path`, where nothing is any more.
    fn join(&mut self, path: &str) {
        let next = self.runs.range::<str, _>((Bound::Excluded(path), Bound::Unbounded)).next();
        let Some((key, next)) = next.map(|(key, run)| (key.clone(), *run)) else { return };
        let before = self.runs.range_mut::<str, _>((Bound::Unbounded, Bound::Excluded(path))).next_back();
        let Some((_, before)) = before else { return };
        if !next.is_one() && !before.is_one() && before.first == next.first && before.to == next.from {
            before.to = next.to;
            self.runs.remove(&key);
        }
    }

    /// All from a path on, in the order of paths.
    pub fn walk(&self, from: Bound<&str>) -> PathWalk<'_> {
        let mut walk = PathWalk {
            paths: self,
            runs: self.runs.range::<str, _>((from, Bound::Unbounded)),
            run: None,
            text: String::new(),
            stem: 0,
        };
        let (path, after) = match from {
            Bound::Included(path) => (path, false),
            Bound::Excluded(path) => (path, true),
            Bound::Unbounded => return walk,
        };
        let end = if after { Bound::Included(path) } else { Bound::Excluded(path) };
        // The run in whose middle it begins.
        if let Some((_, run)) = self.runs.range::<str, _>((Bound::Unbounded, end)).next_back()
            && let Some(family) = self.families.get(&run.first).filter(|_| !run.is_one())
        {
            walk.enter(family, family.position((run.from, run.to), path, after), run.to);
        }
        walk
    }
}

/// Going through the paths. No path is made in memory of its own.
pub(super) struct PathWalk<'a> {
    paths: &'a PathIndex,
    runs: btree_map::Range<'a, Arc<str>, PathRun>,
    /// The family that it is in, the next place and the end.
    run: Option<(&'a SensorFamily, u32, u32)>,
    /// The last path; in a family how much of it is the family's prefix.
    text: String,
    stem: usize,
}

impl<'a> PathWalk<'a> {
    fn enter(&mut self, family: &'a SensorFamily, from: u32, to: u32) {
        self.text.clear();
        self.text.push_str(family.schema.prefix().as_str());
        self.text.push('/');
        self.stem = self.text.len();
        self.run = Some((family, from, to));
    }

    /// The path of the last step.
    pub fn last(&self) -> &str {
        &self.text
    }

    /// Goes on at the first path that is not before `to`, which is behind the last one.
    pub fn skip_to(&mut self, to: &str) {
        if let Some((family, at, end)) = &mut self.run {
            let place = family.position((*at, *end), to, false);
            if place < *end {
                *at = place;
                return;
            }
        }
        *self = self.paths.walk(Bound::Included(to));
    }

    /// The next path with its number.
    pub fn step(&mut self) -> Option<(&str, SensorId)> {
        loop {
            if let Some((family, at, to)) = &mut self.run
                && at < to
            {
                self.text.truncate(self.stem);
                self.text.push_str(family.name(*at));
                let id = SensorId(family.first + family.order[*at as usize]);
                *at += 1;
                return Some((&self.text, id));
            }
            self.run = None;
            let (path, run) = self.runs.next()?;
            if run.is_one() {
                self.text.clear();
                self.text.push_str(path);
                return Some((&self.text, SensorId(run.first)));
            }
            self.enter(self.paths.families.get(&run.first)?, run.from, run.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{SensorDef, SensorPath};

    use super::*;

    fn schema(prefix: &str, names: &[&str]) -> Schema {
        let sensors = names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect();
        Schema::new(SensorPath::new(prefix).unwrap(), "g", sensors).unwrap()
    }

    fn walked(paths: &PathIndex, from: Bound<&str>) -> Vec<(String, u32)> {
        let mut walk = paths.walk(from);
        let mut all = Vec::new();
        while let Some((path, id)) = walk.step() {
            all.push((path.to_owned(), id.0));
        }
        all
    }

    /// The same as the plain table that it stands for.
    fn check(paths: &PathIndex, plain: &BTreeMap<String, u32>) {
        let all = |from: Bound<&str>| -> Vec<(String, u32)> {
            plain.range::<str, _>((from, Bound::Unbounded)).map(|(path, id)| (path.clone(), *id)).collect()
        };
        assert_eq!(walked(paths, Bound::Unbounded), all(Bound::Unbounded));
        let between: Vec<String> =
            plain.keys().flat_map(|path| [path.clone(), format!("{path}!"), format!("{path}/x")]).collect();
        for path in between.iter().map(String::as_str).chain(["/", "/a", "/a/", "/b/zz", "/zz"]) {
            assert_eq!(paths.id(path).map(|id| id.0), plain.get(path).copied(), "{path}");
            for from in [Bound::Included(path), Bound::Excluded(path)] {
                assert_eq!(walked(paths, from), all(from), "{from:?}");
            }
        }
    }

    #[test]
    fn families_and_single_sensors_that_lie_among_each_other_are_in_order() {
        let (mut paths, mut plain) = (PathIndex::default(), BTreeMap::new());
        let mut next = 0;
        let families = [
            schema("/a", &["g/z", "g/b", "g/b/c", "a", "x"]),
            schema("/a/g", &["a", "c", "y", "zz"]),
            schema("/a-b", &["g/z", "q"]),
            schema("/b", &["q"]),
        ];
        let mut firsts = Vec::new();
        for schema in &families {
            for i in 0..schema.len() {
                plain.insert(schema.path(i), next + i as u32);
            }
            let order = order_of(schema);
            assert!(firsts.len() == 1 || paths.is_free(schema, &order), "{schema:?}");
            paths.insert_family(next, schema.clone(), 0, order.clone());
            assert!(!paths.is_free(schema, &order));
            check(&paths, &plain);
            firsts.push(next);
            next += schema.len() as u32 + 3;
        }
        for path in ["/a/g/bb", "/a/g/b/b", "/a", "/zz", "/a/g/zzz", "/a/b"] {
            paths.insert(path.into(), SensorId(next));
            plain.insert(path.to_owned(), next);
            next += 1;
            check(&paths, &plain);
        }
        paths.remove("/a/g/bb", SensorId(plain["/a/g/bb"]));
        plain.remove("/a/g/bb");
        check(&paths, &plain);
        for (schema, first) in families.iter().zip(firsts).rev() {
            assert!(paths.remove_family(first).is_some());
            (0..schema.len()).for_each(|i| assert!(plain.remove(&schema.path(i)).is_some()));
            check(&paths, &plain);
        }
    }

    #[test]
    fn what_lay_between_leaves_no_trace() {
        let mut paths = PathIndex::default();
        let whole = schema("/a", &["a", "b", "c", "d"]);
        paths.insert_family(0, whole.clone(), 0, order_of(&whole));
        let between = schema("/a/b", &["x", "y"]);
        paths.insert_family(10, between.clone(), 1, order_of(&between));
        paths.insert("/a/cc".into(), SensorId(20));
        assert_eq!(paths.runs.len(), 5);
        assert_eq!(paths.family(SensorId(11)).map(|(family, column)| (family.at, column)), Some((1, 1)));
        assert!(paths.family(SensorId(12)).is_none() && paths.family(SensorId(4)).is_none());
        paths.remove_family(10);
        paths.remove("/a/cc", SensorId(20));
        assert_eq!(paths.runs.values().collect::<Vec<_>>(), [&PathRun { first: 0, from: 0, to: 4 }]);
    }
}
