//! The example works, and docs/adding-a-source.md shows its code.

use std::fs;
use std::path::Path;

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Document};

use super::SOURCE;
use crate::reader::{ReadProblem, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};

const COUNTERS: &str = "staged_bytes 734003200\nstaged_files 1042\nbusy_ms 90500\nqueue_length 3\nversion 7\n";

fn source(directory: &Path, keys: &str) -> Result<Box<dyn Source>, ConfigError> {
    let document = Document::new("agent.toml", &format!("[sources.burst]\n{keys}\n"));
    let context = ConfigureContext { config_dir: directory.to_owned(), ..ConfigureContext::default() };
    (SOURCE.configure)(&document.root().child("sources").child("burst"), &context)
}

fn read(group: &mut GroupPlan) -> (Vec<Option<i64>>, Reading) {
    let (mut values, mut gaps) = (vec![0; group.sensors.len()], vec![0; group.sensors.len().div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    ((0..group.sensors.len()).map(|index| row.int(index)).collect(), reading)
}

#[test]
fn reads_counters() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counters");
    fs::write(&file, COUNTERS).unwrap();
    let mut source = source(directory.path(), "file = \"counters\"\ninterval = \"1s\"").unwrap();
    let mut groups = source.discover(&mut |text| panic!("{text}"));
    let group = &mut groups[0];
    assert_eq!((group.name.as_str(), group.timing.interval), ("burst", Some(Interval::from_s(1))));
    let names: Vec<&str> = group.sensors.iter().map(|sensor| sensor.name.as_str()).collect();
    assert_eq!(names, ["burst/staged_bytes", "burst/staged_files", "burst/busy", "burst/queue_length"]);
    assert_eq!(read(group), ([734_003_200, 1042, 90_500, 3].map(Some).to_vec(), Reading::default()));
    fs::write(&file, COUNTERS.replace("1042", "broken").replace("queue_length 3", "queue_length 12")).unwrap();
    let problem = Some(ReadProblem::Garbage { what: "burst", line: 2 });
    let expected = vec![Some(734_003_200), None, Some(90_500), Some(12)];
    assert_eq!(read(group), (expected, Reading { problem, ..Reading::default() }));
    fs::write(&file, COUNTERS.replace("version 7\n", "")).unwrap();
    assert!(read(group).1.layout_changed, "the agent discovers again");
}

#[test]
fn reports_an_absent_file_and_refuses_unknown_keys() {
    let directory = tempfile::tempdir().unwrap();
    let mut reports = Vec::new();
    let mut burst = source(directory.path(), "file = \"counters\"").unwrap();
    assert!(burst.discover(&mut |text| reports.push(text)).is_empty() && burst.unseen().is_empty());
    assert!(reports[0].starts_with("burst: ") && reports[0].contains("cannot read "), "{reports:?}");
    for (keys, expected) in [
        ("fil = \"x\"", "agent.toml:2:1: unknown key `fil`; did you mean `file`?"),
        ("intervall = \"1s\"", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?"),
        ("interval = \"1us\"", "agent.toml:2:1: interval 1us is shorter than 1ms"),
    ] {
        let error = source(directory.path(), keys).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_page_shows_this_example() {
    let page = include_str!("../../../docs/adding-a-source.md");
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks, [include_str!("mod.rs").replace("\n#[cfg(test)]\nmod tests;\n", "")]);
    let data = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(data, Some(COUNTERS));
}
