//! Checks of `docs/principles.md` by program. Each finding names the file, the line and the correction.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use wholegrain_testkit::checkout::{files, root, test_modules};

/// The longest source file, in lines.
const FILE_LINES_MAX: usize = 700;
/// The longest function, in lines.
const FUNCTION_LINES_MAX: usize = 100;

/// The crates that a crate may use: dependencies follow the data flow and never go back.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wholegrain-model", &[]),
    ("wholegrain-api", &["model"]),
    ("wholegrain-protocol", &[]),
    ("wholegrain-sources", &["model"]),
    ("wholegrain-job-records", &["model"]),
    ("wholegrain-source-testkit", &["model", "sources", "testkit"]),
    ("wholegrain-plugin", &["model", "sources"]),
    ("wholegrain-devices", &["model", "sources"]),
    ("wholegrain-device-http", &["devices"]),
    ("wholegrain-plugin-ebpf", &["job-records", "model", "plugin", "sources"]),
    ("wholegrain-plugin-ipmi", &["devices", "model", "plugin", "sources"]),
    ("wholegrain-plugin-nvml", &["job-records", "model", "plugin", "sources"]),
    ("wholegrain-plugin-redfish", &["device-http", "devices", "model", "plugin", "sources"]),
    ("wholegrain-plugin-rest", &["device-http", "devices", "model", "plugin", "sources"]),
    ("wholegrain-plugin-snmp", &["devices", "model", "plugin", "sources"]),
    ("wholegrain-transport", &["model"]),
    ("wholegrain-agent", &["model", "plugin", "sources", "transport"]),
    ("wholegrain-store", &["model", "transport"]),
    ("wholegrain-query", &["model", "store"]),
    ("wholegrain-cassandra", &["model", "store", "transport"]),
    ("wholegrain-server", &["api", "cassandra", "model", "transport", "store", "query"]),
    ("wholegrain-demo", &["model", "transport"]),
    ("wholegrain", &["api", "model", "transport", "query", "server", "demo"]),
];

/// Crates that must not be in the agent, also not indirectly: it is small and has no async runtime.
const NOT_IN_AGENT: &[&str] = &["tokio", "arrow-array", "parquet", "axum", "hyper", "redb", "aya"];

/// A dependency's licence expression must be satisfiable with these alone.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Text that is refused in code, where, and its replacement.
struct Banned {
    text: &'static str,
    /// The rule applies to paths with one of these prefixes; empty means everywhere.
    within: &'static [&'static str],
    instead: &'static str,
}

const BANNED: &[Banned] = &[
    Banned { text: concat!("todo", "!("), within: &[], instead: "finish it, or leave it out and say so" },
    Banned { text: concat!("unimplemented", "!("), within: &[], instead: "finish it, or leave it out and say so" },
    Banned { text: concat!("dbg", "!("), within: &[], instead: "tracing::debug!" },
    Banned { text: concat!("#[", "ignore"), within: &[], instead: "a test that runs, or none" },
    Banned { text: concat!("FIX", "ME"), within: &[], instead: "the fix" },
    Banned { text: concat!("TO", "DO"), within: &[], instead: "the doing" },
    Banned {
        text: "println!(",
        within: &["model/src", "sources/src", "transport/src", "store/src", "query/src", "server/src"],
        instead: "tracing, or a value returned to the caller",
    },
    Banned { text: "SystemTime::now", within: &["model/src", "query/src"], instead: "the time as an argument" },
    Banned { text: "std::fs", within: &["model/src"], instead: "bytes as an argument: the vocabulary does no I/O" },
    Banned { text: "tokio", within: &["agent/src", "sources/src", "transport/src"], instead: "std threads" },
];

fn sources() -> Vec<(String, String)> {
    let rust = files().into_iter().filter(|file| file.ends_with(".rs"));
    rust.map(|file| (std::fs::read_to_string(root().join(&file)).expect("a readable source file"), file))
        .map(|(text, file)| (file, text))
        .collect()
}

fn metadata() -> serde_json::Value {
    // Only crates that are built on this machine are on its disk.
    let version = Command::new("rustc").arg("-vV").output().expect("rustc -vV").stdout;
    let version = String::from_utf8(version).expect("UTF-8");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("the host in rustc -vV");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON from cargo metadata")
}

#[track_caller]
fn report(findings: Vec<String>) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn no_banned_text() {
    let mut findings = Vec::new();
    let sources = sources();
    let tests: BTreeSet<String> = sources.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    for (file, text) in sources.iter().filter(|(file, _)| !file.ends_with("tidy.rs") && !tests.contains(file)) {
        for banned in BANNED.iter().filter(|b| b.within.is_empty() || b.within.iter().any(|dir| file.starts_with(dir)))
        {
            let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            for (number, _) in
                code.take_while(|(_, line)| *line != "#[cfg(test)]").filter(|(_, line)| line.contains(banned.text))
            {
                findings.push(format!("{file}:{}: `{}`; use {}", number + 1, banned.text, banned.instead));
            }
        }
    }
    report(findings);
}

#[test]
fn files_and_functions_have_a_bounded_length() {
    let mut findings = Vec::new();
    for (file, text) in sources() {
        let count = text.lines().count();
        if count > FILE_LINES_MAX {
            findings
                .push(format!("{file}: {count} lines; at most {FILE_LINES_MAX}: give its parts files of their own"));
        }
        findings.extend(long_functions(&text).into_iter().map(|(line, length)| {
            format!("{file}:{line}: a function of {length} lines; at most {FUNCTION_LINES_MAX}: name its steps")
        }));
    }
    report(findings);
}

/// Start and length of each function over the bound. Relies on rustfmt: a body ends at the first `}` with the `fn`'s indentation.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.trim_start().split(' ').take(5).collect();
        if line.trim_start().starts_with("//") || !words.contains(&"fn") || line.trim_end().ends_with(['}', ';']) {
            continue;
        }
        let closing = format!("{}}}", " ".repeat(indent));
        let length = lines[start..].iter().position(|l| *l == closing).map_or(0, |at| at + 1);
        if length > FUNCTION_LINES_MAX {
            found.push((start + 1, length));
        }
    }
    found
}

#[test]
fn long_functions_are_found() {
    let body = "    x();\n".repeat(FUNCTION_LINES_MAX);
    assert_eq!(long_functions(&format!("mod a {{\n}}\npub fn f() {{\n{body}}}\n")), [(3, FUNCTION_LINES_MAX + 2)]);
    assert_eq!(long_functions("fn f() {\n}\n"), []);
}

#[test]
fn every_crate_documents_input_output_and_limits() {
    let mut findings = Vec::new();
    for folder in ["model", "protocol", "sources", "sources/abi", "agent", "transport", "server", "store", "query"] {
        let file = format!("{folder}/src/lib.rs");
        let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        let head: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for words in [["Input:", "In:"], ["Output:", "Out:"], ["Never:", "Never:"]] {
            if !words.iter().any(|word| head.contains(word)) {
                findings.push(format!("{file}: its module doc does not say `{}`", words[0]));
            }
        }
    }
    report(findings);
}

#[test]
fn every_source_is_a_folder_with_a_readme_and_a_line_in_the_table() {
    let table = std::fs::read_to_string(root().join("sources/src/lib.rs")).expect("sources/src/lib.rs");
    let for_tests = test_modules("sources/src/lib.rs", &table);
    let (mut findings, mut sources) = (Vec::new(), 0);
    for entry in
        std::fs::read_dir(root().join("sources/src")).expect("sources/src").flatten().filter(|e| e.path().is_dir())
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let module = std::fs::read_to_string(entry.path().join("mod.rs")).unwrap_or_default();
        if !module.contains("const SOURCE: ") || for_tests.contains(&format!("sources/src/{name}.rs")) {
            continue;
        }
        sources += 1;
        if !entry.path().join("README.md").is_file() {
            findings.push(format!("sources/src/{name}/ has no README.md"));
        }
        if !table.contains(&format!("{name}::SOURCE")) {
            findings.push(format!("sources/src/lib.rs: SOURCES has no line for {name}"));
        }
    }
    assert!(sources >= 6, "only {sources} sources were found: is this test blind?");
    report(findings);
}

#[test]
fn no_folder_has_a_name_without_meaning() {
    let mut findings = BTreeSet::new();
    for file in files() {
        for name in file.split(['/', '.']).filter(|part| ["common", "util", "utils", "misc", "helpers"].contains(part))
        {
            findings.insert(format!("{file}: `{name}` says nothing; name it after what it does"));
        }
    }
    report(findings.into_iter().collect());
}

#[test]
fn links_in_documents_have_targets() {
    let mut findings = Vec::new();
    for file in files().into_iter().filter(|file| file.ends_with(".md")) {
        let text = std::fs::read_to_string(root().join(&file)).expect("a readable document");
        let folder = root().join(&file).parent().expect("a folder").to_owned();
        for (number, line) in text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = target.split('#').next().unwrap_or_default();
                if !path.is_empty() && !target.contains("://") && !folder.join(path).exists() {
                    findings.push(format!("{file}:{}: the link {target} leads nowhere", number + 1));
                }
            }
        }
    }
    report(findings);
}

#[test]
fn dependencies_flow_one_way() {
    let metadata = metadata();
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().expect("packages").iter().filter(|p| p["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = MAY_USE.iter().find(|(of, _)| *of == name) else { continue };
        for dependency in
            package["dependencies"].as_array().expect("dependencies").iter().filter(|d| d["kind"].is_null())
        {
            let used = dependency["name"].as_str().unwrap_or_default();
            if let Some(short) = used.strip_prefix("wholegrain-").filter(|short| !allowed.contains(short)) {
                findings.push(format!("{name} uses wholegrain-{short}; it may use only {allowed:?}"));
            }
        }
    }
    report(findings);
}

/// Everything that a workspace member links, from the resolved graph of normal dependencies.
fn reachable(metadata: &serde_json::Value, from: &str) -> BTreeSet<String> {
    let nodes: BTreeMap<&str, &serde_json::Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|n| (n["id"].as_str().unwrap_or_default(), n))
        .collect();
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|p| (p["id"].as_str().unwrap_or_default(), p["name"].as_str().unwrap_or_default()))
        .collect();
    let mut todo: Vec<&str> = names.iter().filter(|(_, name)| **name == from).map(|(id, _)| *id).collect();
    assert_eq!(todo.len(), 1, "one package named {from}");
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dep in nodes[id]["deps"].as_array().expect("deps") {
            if dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k["kind"].is_null())) {
                todo.push(dep["pkg"].as_str().unwrap_or_default());
            }
        }
    }
    seen.into_iter().map(|id| names[id].to_owned()).collect()
}

#[test]
fn the_agent_stays_small() {
    let linked = reachable(&metadata(), "wholegrain-agent");
    assert!(linked.contains("wholegrain-transport"), "the walk over the graph found nothing");
    report(
        NOT_IN_AGENT
            .iter()
            .filter(|name| linked.contains(**name))
            .map(|name| format!("wholegrain-agent links {name}"))
            .collect(),
    );
}

#[test]
fn licences_are_on_the_list() {
    let metadata = metadata();
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let (name, licence) =
            (package["name"].as_str().unwrap_or_default(), package["license"].as_str().unwrap_or("none"));
        if !satisfied(licence) {
            findings.push(format!("{name}: {licence} is not satisfied by the list in testing/tests/tidy.rs"));
        }
    }
    report(findings);
}

/// Whether [`LICENCES`] satisfy an SPDX expression: one alternative of each OR, every part of each AND.
fn satisfied(expression: &str) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    let good = any_of(&tokens, &mut at);
    good && at == tokens.len()
}

fn any_of(tokens: &[&str], at: &mut usize) -> bool {
    let mut good = all_of(tokens, at);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all_of(tokens, at);
    }
    good
}

fn all_of(tokens: &[&str], at: &mut usize) -> bool {
    let mut good = one(tokens, at);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(tokens, at);
    }
    good
}

fn one(tokens: &[&str], at: &mut usize) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token == "(" {
        let good = any_of(tokens, at);
        *at += 1;
        return good;
    }
    let mut licence = (*token).to_owned();
    if tokens.get(*at) == Some(&"WITH") {
        licence = format!("{licence} WITH {}", tokens.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    LICENCES.contains(&licence.as_str())
}

#[test]
fn licence_expressions_are_evaluated() {
    for (expression, good) in [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("none", false),
    ] {
        assert_eq!(satisfied(expression), good, "{expression}");
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let manifest: toml::Table =
        toml::from_str(&std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml")).expect("TOML");
    let dependencies = manifest["workspace"]["dependencies"].as_table().expect("workspace.dependencies");
    let named = reasons.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(name, _)| name));
    let named: BTreeSet<&str> = named.collect();
    let wanted: BTreeSet<&str> =
        dependencies.keys().map(String::as_str).filter(|name| !name.starts_with("wholegrain-")).collect();
    let missing = wanted.difference(&named).map(|name| format!("docs/dependencies.md: no line for `{name}`"));
    let stale = named.difference(&wanted).map(|name| format!("docs/dependencies.md: `{name}` is no dependency"));
    let manifests = files().into_iter().filter(|file| file.ends_with("/Cargo.toml"));
    let manifests: String = manifests.filter_map(|file| std::fs::read_to_string(root().join(file)).ok()).collect();
    let uses = |name: &str| [".workspace", " = {"].iter().any(|end| manifests.contains(&format!("\n{name}{end}")));
    let unused = wanted.iter().filter(|name| !uses(name));
    let unused = unused.map(|name| format!("Cargo.toml: no crate uses `{name}`"));
    report(missing.chain(stale).chain(unused).collect());
}

#[test]
fn one_licence_for_all() {
    let metadata = metadata();
    let ours = metadata["packages"].as_array().expect("packages").iter().filter(|p| p["source"].is_null());
    report(
        ours.filter(|p| p["license"] != "Apache-2.0")
            .map(|p| format!("{} is not under Apache-2.0", p["name"]))
            .collect(),
    );
}

#[test]
fn nothing_names_a_machine() {
    let mut findings = Vec::new();
    let known = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];
    for file in files()
        .into_iter()
        .filter(|file| [".rs", ".md", ".toml", ".sh", ".py", "Makefile"].iter().any(|end| file.ends_with(end)))
    {
        let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            for place in
                known.iter().filter(|place| line.contains(&format!(" {place}")) || line.contains(&format!("\"{place}")))
            {
                findings.push(format!("{file}:{}: `{place}…` is a place on one machine", number + 1));
            }
        }
    }
    report(findings);
}
