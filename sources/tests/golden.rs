//! Every sensor that the fixtures give, in one file that a review sees: `UPDATE_EXPECT=1` writes it anew.

mod tree;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use wholegrain_model::config::Document;
use wholegrain_model::{Kind, Schema, SensorPath, ValueType};
use wholegrain_sources::job::{JobPart, JobPlace};
use wholegrain_sources::{GroupPlan, Roots, Row, SOURCES, Timing};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

fn roots(tree: &str) -> Roots {
    Roots { proc: fixture(tree).join("proc"), sys: fixture(tree).join("sys"), cgroup: fixture(tree).join("cgroup") }
}

fn write_source(out: &mut String, tree: &str, source: &str, config: &str) {
    let section = Document::new("golden.toml", config).root().child("sources").child(source);
    let source = SOURCES.iter().find(|one| one.name == source).unwrap();
    let mut reports = Vec::new();
    let mut source_made = (source.configure)(&section, &roots(tree).into()).unwrap();
    let groups = source_made.discover(&mut |text| reports.push(text));
    writeln!(out, "# {tree}: {}", source.name).unwrap();
    for report in reports {
        let here = env!("CARGO_MANIFEST_DIR");
        writeln!(out, "! {}", report.replace(here, "")).unwrap();
    }
    for group in groups {
        write_group(out, group);
    }
    out.push('\n');
}

fn write_group(out: &mut String, mut group: GroupPlan) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let blocking = if group.blocking { ", blocking" } else { "" };
    writeln!(out, "[{}] {count} sensors{blocking}", group.name).unwrap();
    for (index, sensor) in group.sensors.iter().enumerate() {
        let kind = match (sensor.kind, sensor.value_type) {
            (Kind::Gauge, ValueType::Int) => "gauge",
            (Kind::Counter, ValueType::Int) => "counter",
            (_, ValueType::Float) => "float",
        };
        let value = row.int(index).map_or("gap".to_owned(), |value| value.to_string());
        write!(out, "{} {value} x {} {} {kind}", sensor.name, sensor.scale, sensor.unit).unwrap();
        if let Some(wraps_at) = sensor.wraps_at {
            write!(out, " wraps at {wraps_at}").unwrap();
        }
        writeln!(out, "{}{}", if sensor.description.is_empty() { "" } else { ": " }, sensor.description).unwrap();
    }
    if reading != Default::default() {
        writeln!(out, "! {reading:?}").unwrap();
    }
    Schema::new(SensorPath::new("/site/node").unwrap(), group.name, group.sensors).expect("a schema that others take");
}

/// A job's parts as if each were a group.
fn write_jobs(out: &mut String, tree: &str, source: &str, place: &JobPlace) {
    let mut reports = Vec::new();
    let mut made = tree::job_source(source, "", &roots(tree)).unwrap();
    let parts = made.parts(place, &mut |text| reports.push(text));
    let of = if place.v1.is_empty() { "version 2" } else { "version 1" };
    writeln!(out, "# {tree}: {source}, a job of {of}").unwrap();
    reports.iter().for_each(|report| writeln!(out, "! {report}").unwrap());
    for part in parts {
        let reader = tree::open(&part);
        let JobPart { name, sensors, blocking, .. } = part;
        write_group(out, GroupPlan { name, sensors, reader, timing: Timing::default(), blocking });
    }
    out.push('\n');
}

#[test]
fn every_sensor_of_the_fixtures() {
    let mut out =
        String::from("# name value x scale unit kind: description, by group; ! is what is told to people\n\n");
    write_source(&mut out, "recorded", "procfs", "");
    write_source(&mut out, "handmade", "procfs", "");
    let files = r#"
[[sources.sysfs.files]]
path = "class/net/*/carrier_*"
name = "net/{1}/carrier_{2}"
kind = "counter"
description = "Times that the link went up or down."
[[sources.sysfs.files]]
path = "class/net/*/duplex"
name = "net/{1}/duplex"
"#;
    write_source(&mut out, "handmade", "sysfs", files);
    write_source(&mut out, "handmade", "tester", "[sources.tester]\nsensors = 4\ngroups = 2\nshape = \"counter\"\n");
    write_jobs(&mut out, "recorded", "cgroup", &tree::recorded(&fixture("recorded/cgroup")));
    let handmade = |v1, v2| tree::place(&fixture("handmade/cgroup"), v1, v2);
    write_jobs(&mut out, "handmade", "cgroup", &handmade(tree::V1_JOB, "none"));
    write_jobs(&mut out, "handmade", "cgroup", &handmade("none", tree::V2_JOB));
    expect_file!["../fixtures/golden.txt"].assert_eq(&out);
}
