//! Checks `docs/virtual-sensors.md`: its examples, its functions and its bounds.

use std::path::Path;

use wholegrain_model::{Kind, SensorPath, ValueType};
use wholegrain_query::Space;
use wholegrain_query::virtuals::{
    CHAIN_MAX, DEFINITIONS_MAX, DEPTH_MAX, Definition, DefinitionChange, DefinitionFile, EXPRESSION_BYTES_MAX,
    INSTANCES_MAX, NESTED_MAX, NODES_MAX, OPERANDS_MAX, function_names,
};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};

/// The sensors of the examples: path, unit, whether it is a counter.
const SENSORS: &[(&str, &str, bool)] = &[
    ("/lab/facility/chiller1/power", "kW", false),
    ("/lab/facility/flow", "L/min", false),
    ("/lab/facility/inlet", "Cel", false),
    ("/lab/facility/outlet", "Cel", false),
    ("/lab/n1/power", "W", false),
    ("/lab/n2/power", "W", false),
    ("/demo/facility/power", "W", false),
    ("/demo/rack01/n001/power", "W", false),
    ("/demo/rack01/n001/job/4711/perf/cycles", "1", true),
    ("/demo/rack01/n001/job/4711/perf/instructions", "1", true),
    ("/lab/n1/energy", "J", true),
    ("/lab/n1/perf/cycles", "1", true),
    ("/lab/n1/perf/instructions", "1", true),
    ("/lab/n1/cpu/0/busy", "s", true),
    ("/lab/n1/cpu/1/busy", "s", true),
];

fn document() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/virtual-sensors.md")).unwrap()
}

fn lab() -> (Space, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(dir.path().to_owned())).unwrap().0;
    let sensor = |(path, unit, counter): &(&str, &str, bool)| SchemalessSensor {
        path: SensorPath::new(*path).unwrap(),
        unit: (*unit).to_owned(),
        kind: if *counter { Kind::Counter } else { Kind::Gauge },
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    };
    store.register_sensors("test", &SENSORS.iter().map(sensor).collect::<Vec<_>>()).unwrap();
    (Space::new(store), dir)
}

/// The definition of a command line `… define|check PATH EXPRESSION --unit UNIT`.
fn definition(line: &str) -> Definition {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    let [_, _, _, _, path, expression, flag, unit] = &words[..] else { panic!("{words:?}") };
    assert_eq!(flag, "--unit");
    Definition { path: path.clone(), expression: expression.clone(), unit: unit.clone(), ..Definition::default() }
}

fn says(space: &Space, definition: Definition) -> String {
    let path = definition.path.clone();
    match space.virtuals().check(DefinitionChange { define: vec![definition], ..DefinitionChange::default() }) {
        Ok(changed) => {
            let count = changed.sensors[&path];
            let s = if count == 1 { "" } else { "s" };
            let makes = if path.contains('*') { format!(", {count} sensor{s}") } else { String::new() };
            let warnings: String = changed.warnings.iter().map(|warning| format!("Warning: {warning}\n")).collect();
            format!("{warnings}{path}: would be defined{makes}")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn its_examples_have_the_documented_output() {
    let ((space, _dir), text) = (lab(), document());
    let (mut checked, mut defined) = (0, 0);
    for block in text.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap()) {
        for example in block.split("$ ").skip(1) {
            let (line, expected) = example.split_once('\n').unwrap();
            assert_eq!(says(&space, definition(line)), expected.trim_end(), "{line}");
            checked += 1;
        }
    }
    for line in text.lines().filter(|line| line.starts_with("wholegrain config virtual define ")) {
        let said = says(&space, definition(line));
        assert!(said.contains("would be defined") && !said.contains("Warning"), "{line}: {said}");
        defined += 1;
    }
    assert!(checked >= 8 && defined >= 2, "{checked} {defined}");
    let file = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = DefinitionFile::read("the document", file).unwrap().placed(None, &[]).unwrap();
    let changed =
        space.virtuals().change(DefinitionChange { define: file, ..DefinitionChange::default() }, "test", 1).unwrap();
    assert_eq!(changed.added, ["/lab/pue", "/lab/*/ipc"]);
}

#[test]
fn it_names_every_function_and_bound() {
    let text = document();
    for name in function_names() {
        assert!(text.contains(&format!("`{name}(")) || text.contains(&format!("`{name}`")), "{name} is not described");
    }
    for (bound, name) in [
        (EXPRESSION_BYTES_MAX, "bytes"),
        (NODES_MAX, "numbers"),
        (NESTED_MAX, "parentheses"),
        (DEPTH_MAX, "nested operations"),
        (OPERANDS_MAX, "direct operands"),
        (CHAIN_MAX, "a chain of"),
        (DEFINITIONS_MAX, "definitions"),
        (INSTANCES_MAX, "sensors of all definitions"),
    ] {
        let bounds = text.split("## Bounds").nth(1).unwrap();
        let found = bounds.lines().any(|line| line.contains(&bound.to_string()) && line.contains(name));
        assert!(found, "{name}: {bound} is not said");
    }
}
