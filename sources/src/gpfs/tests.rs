//! A program of the test in place of mmpmon, which answers as IBM's documentation says: no test has run the real one.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use wholegrain_model::config::Document;
use wholegrain_testkit::wait_until;

use super::*;

const ANSWERS: &str = include_str!("../../fixtures/handmade/mmpmon/answers");

/// A script that answers each request from files below its folder. `mode` in the folder changes what it does.
const SCRIPT: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
echo started >> starts
[ "$(cat mode)" = refuse ] && { echo "mmpmon: cannot connect to mmfsd" >&2; exit 1; }
while read request; do
  case "$(cat mode)" in
    hang) sleep 1000;;
    end) exit 0;;
    long) head -c 2000000 /dev/zero;;
  esac
  case "$request" in
    fs_io_s) grep '^_fs_io_s_' answers;;
    "rhist on") echo "_rhist_ _n_ 10.0.0.1 _nn_ node1 _req_ on _rc_ 0 _t_ 1 _tu_ 1";;
    "rhist s") grep '^_[rRLe]' answers;;
    io_s) grep '^_io_s_' answers;;
  esac
done
"#;

struct Machine {
    folder: tempfile::TempDir,
    source: Box<dyn Source>,
}

impl Machine {
    fn new(mode: &str, keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("answers", ANSWERS);
        write("mode", mode);
        write("starts", "");
        write("mmpmon", SCRIPT);
        // The program runs as another user when the test is root.
        for (name, mode) in [("", 0o755), ("mmpmon", 0o755), ("starts", 0o666)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.path().join(name), permissions).unwrap();
        }
        let program = folder.path().join("mmpmon");
        let config = format!("[sources.gpfs]\ncommand = [\"{}\", \"-p\"]\n{keys}", program.display());
        let section = Document::new("agent.toml", &config).root().child("sources").child("gpfs");
        let source = configure(&section, &ConfigureContext::default()).unwrap();
        Self { folder, source }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn starts(&self) -> usize {
        std::fs::read_to_string(self.folder.path().join("starts")).unwrap().lines().count()
    }

    fn discover(&mut self) -> (Vec<GroupPlan>, Vec<String>) {
        let mut reports = Vec::new();
        let groups = self.source.discover(&mut |text| reports.push(text));
        (groups, reports)
    }
}

fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    (group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index))).collect(), reading)
}

#[test]
fn one_program_answers_all_reads() {
    let mut machine = Machine::new("answer", "histograms = true\n");
    let (mut groups, reports) = machine.discover();
    assert!(reports.is_empty(), "{reports:?}");
    let group = &mut groups[0];
    let (values, reading) = read(group);
    assert_eq!(reading, Reading::COMPLETE);
    let of = |name: &str| values[&format!("gpfs/{name}")];
    assert_eq!(
        (of("scratch/bytes_read"), of("scratch/disks"), of("project/opens")),
        (Some(205607400434), Some(48), Some(513))
    );
    assert_eq!((of("bytes_written"), of("inode_updates")), (Some(74839282351), Some(544937)));
    assert_eq!(of("histograms/read/65536-131071/requests"), Some(32640));
    assert_eq!(of("histograms/write/262144-524287/latency/1.1-10.0"), Some(43));
    assert!(values.values().all(Option::is_some));
    for number in 0..5 {
        machine.write("answers", &ANSWERS.replace("_oc_ 513", &format!("_oc_ {}", 600 + number)));
        assert_eq!(read(group).0["gpfs/project/opens"], Some(600 + number));
    }
    assert_eq!(machine.starts(), 1, "it stays");
    machine.write("answers", &ANSWERS.replace("_fs_ project", "_fs_ other"));
    let (values, reading) = read(group);
    assert_eq!((values["gpfs/project/opens"], values["gpfs/scratch/disks"]), (None, Some(48)));
    assert!(reading.layout_changed);
    assert!(machine.discover().0[0].sensors.iter().any(|sensor| sensor.name == "gpfs/other/opens"));
}

#[test]
fn one_that_hangs_or_ends_is_started_again() {
    let mut machine = Machine::new("answer", "timeout = \"200ms\"\n");
    let mut group = machine.discover().0.remove(0);
    for (mode, errno) in [("hang", libc::ETIMEDOUT), ("end", libc::EPIPE), ("long", libc::EPIPE)] {
        machine.write("mode", mode);
        let (values, reading) = read(&mut group);
        assert!(values.values().all(Option::is_none), "{mode}");
        assert_eq!((reading.problem, reading.layout_changed), (Some(ReadProblem::Os { what: "mmpmon", errno }), true));
        let starts = machine.starts();
        let (values, reading) = read(&mut group);
        assert!(values.values().all(Option::is_none) && reading.problem.is_some() && !reading.layout_changed);
        assert_eq!(machine.starts(), starts, "a pause follows");
        let (groups, reports) = machine.discover();
        assert_eq!((groups.len(), reports.len()), (1, 1), "{reports:?}");
        machine.write("mode", "answer");
        wait_until("the next start", || read(&mut group).0["gpfs/project/opens"] == Some(513));
        assert!(machine.discover().1.is_empty());
    }
}

#[test]
fn one_that_refuses_is_reported_with_its_words() {
    let mut machine = Machine::new("refuse", "");
    let (groups, reports) = machine.discover();
    assert!(groups.is_empty());
    assert_eq!(reports.len(), 1);
    assert!(reports[0].ends_with(": mmpmon: cannot connect to mmfsd"), "{reports:?}");
    assert_eq!(machine.source.unseen(), ["gpfs"]);
}

#[test]
fn a_machine_without_the_program_is_silent_and_a_wrong_setting_is_not() {
    let section = |text: &str| Document::new("agent.toml", text).root().child("sources").child("gpfs");
    if !Path::new(PROGRAM).exists() {
        let mut source = configure(&section("[sources.gpfs]\n"), &ConfigureContext::default()).unwrap();
        assert!(source.discover(&mut |text| panic!("{text}")).is_empty());
    }
    let error = configure(&section("[sources.gpfs]\ncommand = [\"mmpmon\"]\n"), &ConfigureContext::default());
    let error = error.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with("agent.toml:2:1: command begins with the absolute path"), "{error}");
}

#[test]
fn any_input() {
    crate::keyed::checks::check_any_input(ANSWERS.as_bytes(), || Box::new(MmpmonAnswers));
}
