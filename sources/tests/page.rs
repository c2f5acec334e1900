//! Writes `docs/sources.md`: every group of every source, with its files, units, interval and cost. `UPDATE_EXPECT=1` writes it.
//!
//! The groups are those that the sources offer for the trees in `fixtures`, with every group on. Files are those that a read keeps open.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use tree::{fixture, roots};
use wholegrain_model::config::{Document, Section};
use wholegrain_model::{Kind, SensorDef};
use wholegrain_sources::{ConfigureContext, GroupPlan, Reader, Row, SOURCES, SourceType};

/// The most file patterns in a line of the page.
const PATTERNS_MAX: usize = 3;

const INTRODUCTION: &str = "\
# Sources

Every group of every source on the node: what it reads, what it gives, how often, and what that costs. A test writes this page from the code:
`UPDATE_EXPECT=1 cargo test -p wholegrain-sources --test page`.

- **files**: below `/proc` (`proc/`), `/sys` (`sys/`) and the cgroup tree (`cgroup/`). `*` is a number or a name.
- **sensors**: the number in the larger one of the two [recorded trees](../sources/fixtures/README.md); `../sources/fixtures/golden.txt` lists them.
- **every**: the interval without settings. `default` is the interval of `[defaults]`, 1 s in the packages. `off`: read only if the settings name it.
  `own thread`: a read may take long, so the source's own thread reads it.
- **us**: time of a read in microseconds with the number of values that it had: `cargo run --release -p wholegrain-sources --example read_cost -- --write`.
  `(tree)`: this machine has no such files; the time is that of files of the recorded tree, which costs the kernel less.
  Hosts differ: one was twice as fast in some rows.

";

/// What the page says of a group.
#[derive(Default)]
struct GroupRow {
    sensors: usize,
    units: BTreeSet<String>,
    kinds: BTreeSet<&'static str>,
    files: BTreeSet<String>,
    every: String,
}

impl GroupRow {
    fn add(&mut self, sensors: &[SensorDef], files: BTreeSet<String>) {
        self.sensors = self.sensors.max(sensors.len());
        for sensor in sensors {
            self.units.insert(sensor.unit.clone());
            self.kinds.insert(if sensor.kind == Kind::Counter { "counter" } else { "gauge" });
        }
        self.files.extend(files);
    }
}

fn context(tree: &str) -> ConfigureContext {
    ConfigureContext { roots: roots(&fixture(tree)), config_dir: fixture(tree) }
}

fn groups(kind: &SourceType, section: &Section, tree: &str) -> Vec<GroupPlan> {
    let source = (kind.configure)(section, &context(tree));
    source.map_or(Vec::new(), |mut source| source.discover(&mut |_| {}))
}

/// The open files of this process by descriptor.
fn open_files() -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, std::fs::read_link(entry.path()).ok()?)))
        .collect()
}

/// The files below the tree that a reader has open after a read, as patterns.
fn files(reader: &mut dyn Reader, sensors: usize, tree: &str) -> BTreeSet<String> {
    let before = open_files();
    let (mut values, mut gaps) = (vec![0; sensors], vec![0; sensors.div_ceil(64)]);
    reader.read(&mut Row::new(&mut values, &mut gaps));
    let root = std::fs::canonicalize(fixture(tree)).unwrap();
    let new = open_files().into_iter().filter(|(number, path)| before.get(number) != Some(path));
    new.filter_map(|(_, path)| Some(pattern(path.strip_prefix(&root).ok()?))).collect()
}

/// Numbers of devices become `*`, and so do the levels between `devices` and the kind of device.
fn pattern(path: &Path) -> String {
    let is_address = |level: &str| level.starts_with("pci") || level.contains(':');
    let levels = path.iter().map(|level| level.to_string_lossy().into_owned());
    let mut levels: Vec<String> = levels.map(|level| if is_address(&level) { "*".into() } else { level }).collect();
    levels.dedup_by(|a, b| a == "*" && b == "*");
    let text = levels.join("/");
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('*') => {}
            '0'..='9' => out.push('*'),
            c => out.push(c),
        }
    }
    out
}

/// Patterns in few words: folders with many files become one.
fn patterns(files: &BTreeSet<String>) -> String {
    let mut folders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        folders.entry(folder).or_default().push(name);
    }
    let mut texts = Vec::new();
    for (folder, names) in folders {
        if names.len() > PATTERNS_MAX {
            texts.push(format!("`{folder}/*`"));
        } else {
            texts.extend(names.iter().map(|name| format!("`{folder}/{name}`")));
        }
    }
    let more = texts.len().saturating_sub(PATTERNS_MAX);
    texts.truncate(PATTERNS_MAX);
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    texts.join(", ")
}

/// The interval of a group, and whether it is on without settings.
fn every(group: &GroupPlan, is_on: bool) -> String {
    let interval = group.timing.interval.map_or("default".to_owned(), |interval| interval.to_string());
    let off = if is_on { "" } else { "off; " };
    let blocking = if group.blocking { ", own thread" } else { "" };
    format!("{off}{interval}{blocking}")
}

fn rows(kind: &SourceType) -> Vec<(String, GroupRow)> {
    let default = Document::new("default.toml", "").root();
    let mut rows: Vec<(String, GroupRow)> = Vec::new();
    for tree in tree::TREES {
        let on: BTreeSet<String> = groups(kind, &default, tree).into_iter().map(|group| group.name).collect();
        for mut group in groups(kind, &tree::every_group(kind.name), tree) {
            let files = files(group.reader.as_mut(), group.sensors.len(), tree);
            let index = rows.iter().position(|(known, _)| *known == group.name).unwrap_or_else(|| {
                let every = every(&group, on.contains(&group.name));
                rows.push((group.name.clone(), GroupRow { every, ..GroupRow::default() }));
                rows.len() - 1
            });
            rows[index].1.add(&group.sensors, files);
        }
    }
    rows
}

/// The measured cost of each group: source and group, then the text of the column.
fn costs() -> BTreeMap<(String, String), String> {
    let lines = include_str!("../fixtures/cost.txt").lines().filter(|line| !line.starts_with('#'));
    let costs = lines.filter_map(|line| {
        let [source, group, values, us, place] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let place = if place == "tree" { " (tree)" } else { "" };
        Some(((source.to_owned(), group.to_owned()), format!("{us} for {values}{place}")))
    });
    costs.collect()
}

fn joined<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

#[test]
fn every_group_is_on_the_page() {
    let (mut out, costs) = (INTRODUCTION.to_owned(), costs());
    let packaged = include_str!("../../packaging/agent.toml");
    for kind in SOURCES {
        let is_on = packaged.lines().any(|line| line == format!("[sources.{}]", kind.name));
        let on = if is_on { "on in the packages" } else { "off in the packages" };
        writeln!(out, "## {}\n\n`[sources.{}]`, {on}: {}.\n", kind.name, kind.name, kind.summary).unwrap();
        if kind.jobs.is_some() {
            writeln!(out, "Its metrics of each job: [job-metrics.md](job-metrics.md).\n").unwrap();
        }
        let rows = rows(kind);
        if rows.is_empty() {
            if kind.jobs.is_none() {
                writeln!(out, "Its sensors depend on the settings and the machine; see its README.\n").unwrap();
            }
            continue;
        }
        writeln!(out, "| group | files | sensors | units | kinds | every | us |\n|---|---|---|---|---|---|---|")
            .unwrap();
        for (name, row) in rows {
            let units = joined(row.units.iter().map(String::as_str));
            let kinds = joined(row.kinds.iter().copied());
            let cost = costs.get(&(kind.name.to_owned(), name.clone())).map_or("", String::as_str);
            let (files, sensors, every) = (patterns(&row.files), row.sensors, row.every);
            writeln!(out, "| `{name}` | {files} | {sensors} | {units} | {kinds} | {every} | {cost} |").unwrap();
        }
        out.push('\n');
    }
    expect_file!["../../docs/sources.md"].assert_eq(&out.replace("\n\n\n", "\n\n"));
}
