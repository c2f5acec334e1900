//! Every sensor that the sources give from the fixtures, in one file for reviews. `UPDATE_EXPECT=1` writes it.

mod tree;

use std::fmt::Write;

use expect_test::expect_file;
use tree::{fixture, roots};
use wholegrain_model::{Kind, Schema, SensorPath, ValueType};
use wholegrain_sources::job::{JobCgroups, MetricSet};

use wholegrain_sources::{ConfigureContext, GroupPlan, Row, SOURCES, SourceType, Timing};

fn write_node(out: &mut String, tree: &str, kind: &SourceType) {
    let section = tree::every_group(kind.name);
    let mut reports = Vec::new();
    let context = ConfigureContext { roots: roots(&fixture(tree)), config_dir: fixture(tree) };
    let mut source = (kind.configure)(&section, &context).unwrap();
    let groups = source.discover(&mut |text| reports.push(text));
    writeln!(out, "# {tree}: {}", kind.name).unwrap();
    for report in reports {
        let here = env!("CARGO_MANIFEST_DIR");
        writeln!(out, "! {}", report.replace(here, "")).unwrap();
    }
    for group in groups {
        write_group(out, group, !tree::OF_THE_MACHINE.contains(&kind.name));
    }
    out.push('\n');
}

/// Writes a group. Without `has_values` its values are the machine's, and are left out.
fn write_group(out: &mut String, mut group: GroupPlan, has_values: bool) {
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
        let value = if has_values { value } else { "?".to_owned() };
        write!(out, "{} {value} x {} {} {kind}", sensor.name, sensor.scale, sensor.unit).unwrap();
        if let Some(wraps_at) = sensor.wraps_at {
            write!(out, " wraps at {wraps_at}").unwrap();
        }
        writeln!(out, "{}{}", if sensor.description.is_empty() { "" } else { ": " }, sensor.description).unwrap();
    }
    if reading != Default::default() {
        writeln!(out, "! {reading:?}").unwrap();
    }
    Schema::new(SensorPath::new("/site/node").unwrap(), group.name, group.sensors).expect("a valid schema");
}

/// Writes the metric sets of a job as if each were a group.
fn write_job(out: &mut String, tree: &str, source: &str, cgroups: &JobCgroups) {
    let mut reports = Vec::new();
    let sets = tree::job_source(source, "", &roots(&fixture(tree)))
        .unwrap()
        .metric_sets(cgroups, &mut |text| reports.push(text));
    let version = if cgroups.v1.is_empty() { "version 2" } else { "version 1" };
    writeln!(out, "# {tree}: {source}, a job of {version}").unwrap();
    reports.iter().for_each(|report| writeln!(out, "! {report}").unwrap());
    for set in sets {
        let reader = tree::open(&set);
        let MetricSet { name, sensors, blocking, .. } = set;
        write_group(out, GroupPlan { name, sensors, reader, timing: Timing::default(), blocking }, true);
    }
    out.push('\n');
}

#[test]
fn every_sensor_of_the_fixtures() {
    let mut out = String::from("# name value x scale unit kind: description, by group; ! is a report\n\n");
    let jobs = tree::jobs();
    for source in SOURCES {
        tree::TREES.iter().for_each(|tree| write_node(&mut out, tree, source));
        if source.jobs.is_some() && !tree::WITHOUT_FIXTURES_OF_JOBS.contains(&source.name) {
            jobs.iter().for_each(|(tree, cgroups)| write_job(&mut out, tree, source.name, cgroups));
        }
    }
    expect_file!["../fixtures/golden.txt"].assert_eq(&out);
}
