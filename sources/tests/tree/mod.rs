//! What the tests of sources share: a /proc and a /sys to change, and sources made of a configuration.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Document};
use wholegrain_sources::{GroupPlan, Reading, Roots, Row, SOURCES, Source};

/// A folder below `fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// A fixture's trees.
pub fn roots(tree: &Path) -> Roots {
    Roots { proc: tree.join("proc"), sys: tree.join("sys"), cgroup: tree.join("cgroup") }
}

/// A source from a configuration file's text.
pub fn source(name: &str, config: &str, roots: &Roots) -> Result<Box<dyn Source>, ConfigError> {
    let section = Document::new("agent.toml", config).root().child("sources").child(name);
    let source = SOURCES.iter().find(|one| one.name == name).expect("a source of that name");
    (source.configure)(&section, roots)
}

/// A copy of a fixture that a test changes.
pub struct Tree(tempfile::TempDir);

impl Tree {
    /// A copy of `fixtures/<tree>`.
    pub fn copy(tree: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture(tree), folder.path());
        Self(folder)
    }

    pub fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn roots(&self) -> Roots {
        roots(self.0.path())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    pub fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.write(path, &text.replacen(from, to, 1));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// The groups by their names, and what was told.
pub fn discover(source: &mut dyn Source) -> (BTreeMap<String, GroupPlan>, Vec<String>) {
    let mut reports = Vec::new();
    let groups = source.discover(&mut |text| reports.push(text));
    (groups.into_iter().map(|group| (group.name.clone(), group)).collect(), reports)
}

/// One sample of a group: by name, `None` for a gap.
pub fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let named = group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index)));
    (named.collect(), reading)
}
