//! The files of a crate form layers: no cycle of more than two files, no import from a lower layer to a higher one.
//!
//! An import is followed through re-exports to the file that defines the item. Test modules do not count, and neither does a file that only
//! declares or re-exports what others define. Methods are not followed: a call needs the type, and the type is imported.
//!
//! `LAYERS=store cargo test -p wholegrain-testing --test layers` prints the cycles of one crate, enforced or not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree, Visibility};
use wholegrain_testkit::checkout::root;

/// The crates that are checked, by folder, each with the layers of its top-level modules from low to high. Modules of one layer may use each other.
/// Without layers, only cycles are refused.
const ENFORCED: &[(&str, &[&[&str]])] = &[
    ("api", &[]),
    (
        "agent",
        &[
            &[
                "batch",
                "heap",
                "identity",
                "log",
                "log_limiter",
                "rate_limit",
                "rediscovery",
                "refusal",
                "service",
                "sync",
                "waker",
            ],
            &["counters", "engine"],
            &["cache", "registry", "selfstat"],
            &["plugins"],
            &["readings", "reconcile", "status"],
            &["jobs"],
            &["config"],
            &["send_queue"],
            &["encoder", "sender"],
            &["manager"],
            &["api"],
            &["agent", "check", "once"],
        ],
    ),
    ("bench", &[]),
    (
        "cli",
        &[
            &["csv", "failure", "progress", "rule", "socket"],
            &["client_file", "help", "output", "range"],
            &["remarks"],
            &["connection"],
            &["job_arguments", "no_match", "reading_stream"],
            &["auth", "query", "sensors"],
            &["export", "init"],
            &[
                "ca",
                "completions",
                "config",
                "ctl",
                "doctor",
                "import",
                "jobs",
                "man",
                "plugin",
                "server",
                "store",
                "up",
                "watch",
            ],
        ],
    ),
    ("demo", &[]),
    ("model", &[]),
    ("query", &[]),
    ("server", &[]),
    (
        "sources",
        &[
            &["descriptors", "reader", "scan"],
            &["options", "plan", "source"],
            &["confinement", "exposition", "file", "glob", "job", "parse", "source_type", "trusted"],
            &["graphics_cards", "keyed", "line_table", "pressure", "states", "text_file"],
            &["line_file"],
            &[
                "amdgpu",
                "beegfs",
                "ceph",
                "cgroup",
                "ethtool",
                "exec",
                "filesystems",
                "gpfs",
                "infiniband",
                "intelgpu",
                "inventory",
                "lustre",
                "nfs",
                "perf",
                "processes",
                "procfs",
                "slingshot",
                "sysfs",
                "tasks",
                "tester",
                "textfile",
                "timex",
            ],
        ],
    ),
    ("sources/abi", &[&["abi", "checks"], &["export", "host"]]),
    ("store", STORE),
    ("transport", &[&["host", "mqtt", "payload", "spool", "tls", "topics"], &["client"]]),
];

const STORE: &[&[&str]] = &[
    &["chunk", "clock", "disk", "error", "holes", "path_owners", "progress", "ranges", "time", "work"],
    &["append", "block", "config", "database", "paths", "registry", "scan"],
    &["losses", "retention_policy", "sensors", "settings"],
    &["catalogue", "stats"],
    &["jobs", "segment"],
    &["head"],
    &["computed"],
    &["files", "read_store"],
    &["registration", "wal"],
    &["downsample"],
    &["sealed", "snapshot"],
    &["compaction"],
    &["deletes", "expiry", "imports", "maintenance", "retention"],
    &["engine"],
    &["embedded"],
];

/// The largest cycle that is accepted, in files: a parent and its child.
const CYCLE_MAX: usize = 2;

/// The path of a module from the crate's root.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Module {
    /// Relative to the crate's source folder.
    file: String,
    /// The names of what is defined here, modules aside.
    items: BTreeSet<String>,
    /// What a name stands for that `use` brings here: the path as it is written.
    names: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// The paths that stand in the code, and those of private imports.
    used: Vec<Vec<String>>,
}

#[derive(Default)]
struct CrateModules(BTreeMap<ModulePath, Module>);

impl CrateModules {
    /// Reads `lib.rs` or `main.rs` in a source folder, and every module from there.
    fn read(folder: &Path) -> Self {
        let first =
            ["lib.rs", "main.rs"].into_iter().find(|name| folder.join(name).exists()).expect("lib.rs or main.rs");
        let mut modules = Self::default();
        modules.read_file(folder, first, Vec::new());
        modules
    }

    fn read_file(&mut self, folder: &Path, file: &str, path: ModulePath) {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add(folder, file, path, &parsed.items);
    }

    fn add(&mut self, folder: &Path, file: &str, path: ModulePath, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !is_test(item)) {
            match item {
                Item::Mod(child) => {
                    let child_path: ModulePath = path.iter().cloned().chain([child.ident.to_string()]).collect();
                    match &child.content {
                        Some((_, items)) => self.add(folder, file, child_path, items),
                        None => self.read_file(folder, &file_of(folder, &child_path), child_path),
                    }
                }
                Item::Use(import) => {
                    let is_private = matches!(import.vis, Visibility::Inherited);
                    module.import(&import.tree, Vec::new(), is_private);
                }
                _ => {
                    module.items.extend(name_of(item));
                    module.collect(item.to_token_stream());
                }
            }
        }
        self.0.insert(path, module);
    }

    /// The file that defines what a path names in a module; none for other crates' items and for modules as such.
    fn definition(&self, from: &[String], path: &[String], depth: usize) -> Option<&str> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            _ => return self.in_scope(from, first, rest, depth),
        };
        self.definition(&start, rest, depth)
    }

    fn in_scope(&self, from: &[String], first: &str, rest: &[String], depth: usize) -> Option<&str> {
        // Imports may refer to each other in a circle.
        if depth > 20 {
            return None;
        }
        let module = self.0.get(from)?;
        if module.items.contains(first) {
            return Some(&module.file);
        }
        let child: ModulePath = from.iter().cloned().chain([first.to_owned()]).collect();
        if self.0.contains_key(&child) {
            return self.definition(&child, rest, depth);
        }
        let followed = |to: &[String], last: &[&str]| -> Vec<String> {
            to.iter().cloned().chain(last.iter().map(|name| (*name).to_owned())).chain(rest.iter().cloned()).collect()
        };
        if let Some(to) = module.names.get(first) {
            return self.definition(from, &followed(to, &[]), depth + 1);
        }
        module.globs.iter().find_map(|to| self.definition(from, &followed(to, &[first]), depth + 1))
    }

    /// The files that each file imports from.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, module) in &self.0 {
            let definitions = module.used.iter().filter_map(|used| self.definition(path, used, 0));
            imports.entry(&module.file).or_default().extend(definitions.filter(|file| *file != module.file));
        }
        imports
    }
}

impl Module {
    fn import(&mut self, tree: &UseTree, mut path: Vec<String>, is_private: bool) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, is_private);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path.clone(), is_private)),
            UseTree::Glob(_) => self.globs.push(path),
            UseTree::Name(name) => self.name(name.ident.to_string(), name.ident.to_string(), path, is_private),
            UseTree::Rename(rename) => self.name(rename.ident.to_string(), rename.rename.to_string(), path, is_private),
        }
    }

    fn name(&mut self, name: String, alias: String, mut path: Vec<String>, is_private: bool) {
        let alias = if name == "self" { path.last().cloned().unwrap_or_default() } else { alias };
        if name != "self" {
            path.push(name);
        }
        if is_private {
            self.used.push(path.clone());
        }
        // `use name;` for the name of a crate would stand for itself.
        if path.len() > 1 || path[0] != alias {
            self.names.insert(alias, path);
        }
    }

    /// Notes the paths in code, macros' arguments among it.
    fn collect(&mut self, code: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in code {
            match token {
                TokenTree::Ident(name) if path.is_empty() || colons == 2 => path.push(name.to_string()),
                TokenTree::Punct(point) if point.as_char() == ':' && !path.is_empty() && colons < 2 => {
                    colons += 1;
                    continue;
                }
                other => {
                    self.used.extend((!path.is_empty()).then(|| std::mem::take(&mut path)));
                    match other {
                        TokenTree::Ident(name) => path.push(name.to_string()),
                        TokenTree::Group(group) => self.collect(group.stream()),
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.used.extend((!path.is_empty()).then_some(path));
    }
}

fn file_of(folder: &Path, path: &[String]) -> String {
    let path = path.join("/");
    let candidates = [format!("{path}.rs"), format!("{path}/mod.rs")];
    candidates
        .into_iter()
        .find(|file| folder.join(file).exists())
        .unwrap_or_else(|| panic!("no file for the module {path}"))
}

fn is_test(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => &[],
    };
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg") && attribute.to_token_stream().to_string().contains("test"))
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        _ => return None,
    })
}

/// The sets of files that reach each other, larger than is accepted.
fn cycles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached = |from: &'a str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in imports.get(file).into_iter().flatten() {
                if seen.insert(*next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|file| (*file, reached(file))).collect();
    let cycle = |file: &&'a str| -> Vec<&'a str> {
        reached
            .keys()
            .copied()
            .filter(|other| reached[*file].contains(*other) && reached[*other].contains(*file))
            .collect()
    };
    let all: BTreeSet<Vec<&str>> = imports.keys().map(cycle).filter(|cycle| cycle.len() > CYCLE_MAX).collect();
    all.into_iter().collect()
}

/// Cycles with the imports that make them.
fn describe(cycles: &[Vec<&str>], imports: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let mut text = String::new();
    for cycle in cycles {
        text += &format!("a cycle of {} files:\n", cycle.len());
        for file in cycle {
            let others: Vec<&str> = imports[*file].iter().copied().filter(|other| cycle.contains(other)).collect();
            text += &format!("  {file} imports from {}\n", others.join(", "));
        }
    }
    text
}

/// The top-level module of a file: `block` for `block/read.rs` and for `block.rs`.
fn top(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

fn upward(layers: &[&[&str]], imports: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let height = |file: &str| layers.iter().position(|layer| layer.contains(&top(file)));
    let mut findings = Vec::new();
    for (file, others) in imports.iter().filter(|(file, _)| !["lib", "main"].contains(&top(file))) {
        let Some(own) = height(file) else {
            findings.push(format!("{file} is in no layer: name {} in testing/tests/layers.rs", top(file)));
            continue;
        };
        let above = others.iter().filter(|other| height(other).is_some_and(|height| height > own));
        findings.extend(above.map(|other| format!("{file} imports from {other}, which is in a higher layer")));
    }
    findings
}

#[test]
fn files_form_layers() {
    let only = std::env::var("LAYERS").ok();
    let chosen: Vec<(&str, &[&[&str]])> = match &only {
        Some(folder) => {
            let layers = ENFORCED.iter().find(|(name, _)| name == folder).map_or(&[][..], |(_, layers)| layers);
            vec![(folder, layers)]
        }
        None => ENFORCED.to_vec(),
    };
    let mut findings = String::new();
    for (folder, layers) in chosen {
        let modules = CrateModules::read(&root().join(folder).join("src"));
        let imports = modules.imports();
        assert!(
            imports.values().any(|others| !others.is_empty()),
            "{folder}: no import was found: is this test blind?"
        );
        let upward = if layers.is_empty() { Vec::new() } else { upward(layers, &imports) };
        let cycles = describe(&cycles(&imports), &imports);
        if !cycles.is_empty() || !upward.is_empty() {
            findings += &format!("{folder}:\n{cycles}{}\n", upward.join("\n"));
        }
    }
    assert!(findings.is_empty(), "{findings}");
}

#[test]
fn imports_are_followed_through_reexports_and_macros_and_tests_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    write("lib.rs", "mod a; mod b; mod c; pub use a::inner::Thing; pub use b::*;");
    write("a/mod.rs", "pub mod inner; #[cfg(test)] mod tests { use crate::c::C; }");
    write("a/inner.rs", "use std::fs; pub struct Thing; fn f() { println!(\"{}\", crate::b::value()); }");
    write("b.rs", "use super::c::{self, C as D}; pub fn value() -> D { c::make() }");
    write("c.rs", "use crate::{Thing, value as other}; pub struct C; pub fn make() -> C { C }");
    let modules = CrateModules::read(folder.path());
    let imports = modules.imports();
    let of = |file: &str| imports[file].iter().copied().collect::<Vec<_>>().join(" ");
    assert_eq!(of("lib.rs"), "");
    assert_eq!(of("a/mod.rs"), "");
    assert_eq!(of("a/inner.rs"), "b.rs");
    assert_eq!(of("b.rs"), "c.rs");
    assert_eq!(of("c.rs"), "a/inner.rs b.rs");
    assert_eq!(cycles(&imports), [["a/inner.rs", "b.rs", "c.rs"]]);
    let found = upward(&[&["a"], &["b"]], &imports);
    assert_eq!(found[0], "a/inner.rs imports from b.rs, which is in a higher layer");
    assert_eq!(found[1], "c.rs is in no layer: name c in testing/tests/layers.rs");
    assert_eq!(found.len(), 2);
}
