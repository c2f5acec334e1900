//! The visited directories with the owner of their parents: the owner of a directory can create very many in it.

use std::collections::{BTreeMap, HashMap};

use super::live::DirId;
use super::tree::DirectoryStat;

/// Directories, each counted for the owner of its parent.
#[derive(Debug, Default)]
pub struct VisitedDirectories {
    dirs: BTreeMap<DirId, (Option<DirectoryStat>, u32)>,
    charged: HashMap<u32, usize>,
}

impl VisitedDirectories {
    pub fn len(&self) -> usize {
        self.dirs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty()
    }

    /// Adds a directory: its state if others can be below it, and the owner of its parent.
    pub fn insert(&mut self, dir: DirId, stat: Option<DirectoryStat>, above: u32) {
        self.remove(&dir);
        self.dirs.insert(dir, (stat, above));
        *self.charged.entry(above).or_default() += 1;
    }

    pub fn remove(&mut self, dir: &DirId) {
        if let Some((_, above)) = self.dirs.remove(dir)
            && let Some(count) = self.charged.get_mut(&above)
        {
            *count -= 1;
            if *count == 0 {
                self.charged.remove(&above);
            }
        }
    }

    /// Whether a directory was visited.
    pub fn contains(&self, dir: &DirId) -> bool {
        self.dirs.contains_key(dir)
    }

    /// Moves all of another into this one.
    pub fn extend(&mut self, other: VisitedDirectories) {
        for (dir, (stat, above)) in other.dirs {
            self.insert(dir, stat, above);
        }
    }

    /// The directories that can have others below them, with their state.
    pub fn above_others(&self) -> Vec<(DirId, DirectoryStat)> {
        self.dirs.iter().filter_map(|(dir, (stat, _))| Some((dir.clone(), (*stat)?))).collect()
    }

    /// Those within a directory, including itself.
    pub fn below(&self, dir: &DirId) -> Vec<DirId> {
        let range = self.dirs.range(dir.clone()..).map(|(other, _)| other);
        let near = range.take_while(|other| other.hierarchy == dir.hierarchy && other.path.starts_with(&*dir.path));
        near.filter(|other| other.is_within(dir)).cloned().collect()
    }

    pub fn retain(&mut self, keep: impl Fn(&DirId) -> bool) {
        let lost: Vec<DirId> = self.dirs.keys().filter(|dir| !keep(dir)).cloned().collect();
        lost.iter().for_each(|dir| self.remove(dir));
    }

    /// The number of directories within directories of this user.
    pub fn charged_to(&self, uid: u32) -> usize {
        self.charged.get(&uid).copied().unwrap_or(0)
    }

    /// The owner of a directory, if it was visited and can have others below it; otherwise root.
    pub fn owner(&self, dir: &DirId) -> u32 {
        self.dirs.get(dir).and_then(|(stat, _)| *stat).map_or(0, |stat| stat.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_charged_once_and_to_the_owner_above() {
        let dir = |path: &str| DirId::new(0, path);
        let stat = |uid| {
            let mut stat = DirectoryStat::default();
            stat.uid = uid;
            Some(stat)
        };
        let mut visited = VisitedDirectories::default();
        visited.insert(dir("user"), stat(1000), 0);
        for _ in 0..2 {
            visited.insert(dir("user/a"), stat(1000), 1000);
            visited.insert(dir("user/a/b"), None, 1000);
        }
        assert_eq!((visited.charged_to(1000), visited.charged_to(0), visited.len()), (2, 1, 3));
        assert_eq!(
            (visited.owner(&dir("user/a")), visited.owner(&dir("user/a/b")), visited.owner(&dir("x"))),
            (1000, 0, 0)
        );
        assert_eq!(visited.below(&dir("user/a")), [dir("user/a"), dir("user/a/b")]);
        assert_eq!(visited.above_others().len(), 2);
        visited.retain(|here| !here.is_within(&dir("user/a")));
        assert_eq!((visited.charged_to(1000), visited.len()), (0, 1));
    }
}
