//! GPUs by the files of their drivers: cards that sleep, vanish, or have another driver than before.

mod tree;

use std::fs;

use tree::{Tree, discover, read, source};
use wholegrain_sources::{GroupPlan, ReadProblem, Source};

const TABLE: &str = "sys/class/drm/card0/device/gpu_metrics";

fn amdgpu(tree: &Tree) -> (Box<dyn Source>, GroupPlan) {
    let mut source = source("amdgpu", "[sources.amdgpu]\n", &tree.roots()).unwrap();
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let group = groups.remove("amdgpu").unwrap();
    (source, group)
}

#[test]
fn a_changed_value_is_read_and_one_that_the_card_lacks_is_a_gap() {
    let tree = Tree::copy("handmade");
    let (mut source, mut group) = amdgpu(&tree);
    let mut table = fs::read(tree.path(TABLE)).unwrap();
    table[22..24].copy_from_slice(&250u16.to_le_bytes());
    table[24..32].fill(0xff);
    table[112..120].fill(0);
    fs::write(tree.path(TABLE), &table).unwrap();
    let (values, reading) = read(&mut group);
    assert_eq!(values["gpu/renderD128/power"], Some(250));
    assert_eq!(values["gpu/renderD128/energy"], None);
    assert_eq!(values["gpu/renderD128/throttle/power"], Some(0));
    assert_eq!((reading.problem, reading.layout_changed), (None, false));
    let (groups, _) = discover(source.as_mut());
    assert_eq!(groups["amdgpu"].sensors, group.sensors, "a value that is absent for a while keeps its sensor");
}

#[test]
fn a_table_of_another_revision_gives_gaps_until_the_discovery() {
    let tree = Tree::copy("handmade");
    let (mut source, mut group) = amdgpu(&tree);
    let mut table = fs::read(tree.path(TABLE)).unwrap();
    table[3] = 9;
    fs::write(tree.path(TABLE), &table).unwrap();
    let (values, reading) = read(&mut group);
    assert_eq!(values["gpu/renderD128/power"], None);
    assert_eq!(values["gpu/renderD128/memory/used"], Some(4294967296), "other files are read");
    assert_eq!(values["gpu/renderD129/power"], Some(534), "and other cards");
    assert!(reading.layout_changed && reading.problem.is_some());
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports[0].contains("revision 1.9 with 120 bytes is unknown"), "{reports:?}");
    let (values, _) = read(groups.get_mut("amdgpu").unwrap());
    assert_eq!(values["gpu/renderD128/temperature/edge"], Some(45000), "from the hardware monitor");
    assert!(!values.contains_key("gpu/renderD128/energy"));
}

#[test]
fn a_table_cut_anywhere_gives_no_wrong_value() {
    let tree = Tree::copy("handmade");
    let (_source, mut group) = amdgpu(&tree);
    let (whole, _) = read(&mut group);
    let table = fs::read(tree.path(TABLE)).unwrap();
    for length in 1..table.len() {
        fs::write(tree.path(TABLE), &table[..length]).unwrap();
        for (name, value) in read(&mut group).0 {
            assert!(value.is_none() || value == whole[&name], "{name} is {value:?} with {length} bytes");
        }
    }
}

#[test]
fn a_card_that_vanishes_has_gaps_and_then_no_sensors() {
    let tree = Tree::copy("handmade");
    let (mut source, mut group) = amdgpu(&tree);
    fs::remove_dir_all(tree.path("sys/class/drm/card0")).unwrap();
    let (values, reading) = read(&mut group);
    assert!(values.iter().filter(|(name, _)| name.contains("renderD128")).all(|(_, value)| value.is_none()));
    assert_eq!(values["gpu/renderD130/power"], Some(15200));
    assert!(reading.layout_changed);
    assert_eq!(reading.problem, Some(ReadProblem::Os { what: "amdgpu", errno: libc::ENOENT }));
    let (groups, _) = discover(source.as_mut());
    assert!(!groups["amdgpu"].sensors.iter().any(|sensor| sensor.name.contains("renderD128")));
}

#[test]
fn without_cards_there_is_nothing() {
    let tree = Tree::empty();
    for name in ["amdgpu", "intelgpu"] {
        let mut source = source(name, &format!("[sources.{name}]\n"), &tree.roots()).unwrap();
        let (groups, reports) = discover(source.as_mut());
        assert!(groups.is_empty() && reports.is_empty(), "{name}: {reports:?}");
    }
}

#[test]
fn intel_values_are_those_of_the_files() {
    let tree = Tree::copy("handmade");
    let mut source =
        source("intelgpu", "[sources.intelgpu]\nmetrics = { include = [\"gpu/renderD132/**\"] }\n", &tree.roots())
            .unwrap();
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let group = groups.get_mut("intelgpu").unwrap();
    tree.write("sys/class/drm/card4/device/tile0/gt1/gtidle/idle_residency_ms", "5000\n");
    tree.write("sys/class/drm/card4/device/hwmon/hwmon6/energy1_input", "garbage\n");
    let (values, reading) = read(group);
    assert_eq!(values["gpu/renderD132/gt1/idle_time"], Some(5000));
    assert_eq!(values["gpu/renderD132/energy/card"], None);
    assert_eq!(values["gpu/renderD132/energy/pkg"], Some(4_000_000));
    assert_eq!(reading.problem, Some(ReadProblem::Garbage { what: "intelgpu", line: 1 }));
    assert!(!reading.layout_changed && values.keys().all(|name| name.starts_with("gpu/renderD132/")));
}
