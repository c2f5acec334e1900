//! Checks every definition of the library over the sensors of the sources: those in their golden file, and for perf and a site's facility the documented
//! ones.

use std::collections::BTreeSet;
use std::path::Path;

use wholegrain_model::{Kind, Pattern, SensorPath, ValueType};
use wholegrain_query::Space;
use wholegrain_query::virtuals::{DefinitionChange, DefinitionFile, LIBRARY, each_reference, parse};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};

/// Sensors beyond the golden file: path, unit, whether it is a counter.
const MORE: &[(&str, &str, bool)] = &[
    ("/lab/n1/power", "W", false),
    ("/lab/facility/chillers/1/power", "kW", false),
    ("/lab/facility/flow", "m3/h", false),
    ("/lab/facility/inlet", "Cel", false),
    ("/lab/facility/outlet", "Cel", false),
];

fn schemaless(path: &str, unit: &str, counter: bool) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: unit.to_owned(),
        kind: if counter { Kind::Counter } else { Kind::Gauge },
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    }
}

/// The sensors of the golden file: of the node, then, from the cgroup source on, of a job.
fn golden() -> Vec<SchemalessSensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sources/fixtures/golden.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut place, mut seen, mut sensors) = ("/lab/n1", BTreeSet::new(), Vec::new());
    for line in text.lines() {
        if let Some(section) = line.strip_prefix("# ") {
            place = if section.contains("cgroup") { "/lab/n1/job/4711" } else { "/lab/n1" };
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _, "x", _, unit, kind, ..] = words[..] else { continue };
        let path = format!("{place}/{name}");
        if seen.insert(path.clone()) {
            sensors.push(schemaless(&path, unit, kind.starts_with("counter")));
        }
    }
    sensors
}

/// The events of the library `perf`, in the units of the source.
fn perf() -> Vec<SchemalessSensor> {
    let file = DefinitionFile::of_library("perf").unwrap();
    let mut names = BTreeSet::new();
    for written in &file.definitions {
        let expr = parse(&written.expression, "/lab/n1/perf/x").unwrap();
        each_reference(&expr, &mut |reference, _| {
            names.insert(reference.text.clone());
        });
    }
    let unit = |name: &str| match name {
        "task-clock" => "s",
        "power.energy-pkg" => "J",
        name if name.starts_with("uncore_imc.") => "MiBy",
        _ => "1",
    };
    names.iter().map(|name| schemaless(&format!("/lab/n1/perf/{name}"), unit(name), true)).collect()
}

#[test]
fn every_definition_of_the_library_matches_the_sources() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(dir.path().to_owned())).unwrap().0;
    let mut sensors = golden();
    assert!(sensors.len() > 500, "{} sensors in the golden file", sensors.len());
    sensors.extend(perf());
    sensors.extend(MORE.iter().map(|(path, unit, counter)| schemaless(path, unit, *counter)));
    sensors.chunks(1000).for_each(|some| drop(store.register_sensors("test", some).unwrap()));
    let space = Space::new(store);
    let mut refused = Vec::new();
    for (name, _) in LIBRARY {
        let at = match *name {
            "facility" => "/lab",
            "job" => "/lab/*/job/*",
            _ => "/lab/*",
        };
        let file = DefinitionFile::of_library(name).unwrap();
        assert!(file.about.ends_with('.') && !file.definitions.is_empty(), "{name}");
        for definition in file.placed(Some(at), &[]).unwrap() {
            let path = definition.path.clone();
            assert!(definition.description.ends_with('.'), "{path}");
            match space.virtuals().change(
                DefinitionChange { define: vec![definition], ..DefinitionChange::default() },
                "test",
                1,
            ) {
                Ok(changed) => {
                    assert!(changed.warnings.is_empty(), "{path}: {:?}", changed.warnings);
                    let made = space.virtuals().sensors(&[Pattern::new(path.as_str()).unwrap()]);
                    assert!(!made.is_empty(), "{name}: {path} makes no sensor");
                }
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n\n"));
}

#[test]
fn the_library_includes_every_file_of_its_folder() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/virtual");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files.filter_map(|name| name.strip_suffix(".toml").map(str::to_owned)).collect();
    let known: BTreeSet<String> = LIBRARY.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, known);
}

#[test]
fn files_get_their_place_and_parameters() {
    let text = "[parameters]\npower = \"power\"\n[[virtual]]\npath = \"x\"\nexpression = \"<{power}>\"\nunit = \"W\"\n";
    let file = DefinitionFile::read("f.toml", text).unwrap();
    let placed = file.placed(Some("/lab/*/"), &[("power".to_owned(), "psu/power".to_owned())]).unwrap();
    assert_eq!((placed[0].path.as_str(), placed[0].expression.as_str()), ("/lab/*/x", "<psu/power>"));
    assert_eq!(file.placed(None, &[]).unwrap_err(), "the path x is relative: give the place above it, such as /lab/*");
    let error = file.placed(Some("/lab"), &[("pwer".to_owned(), String::new())]).unwrap_err();
    assert!(error.contains("pwer") && error.contains("power"), "{error}");
    let error = DefinitionFile::read("f.toml", "[[virtual]]\npath = \"x\"\nexpresion = \"1\"\n").unwrap_err();
    assert!(error.starts_with("f.toml:3:1: ") && error.contains("expression"), "{error}");
}
