//! Files that vanish, devices that come and go, and errors in the configuration.

mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tree::{Tree, discover, fixture, read, roots, source};
use wholegrain_model::Interval;
use wholegrain_sources::{GroupPlan, ReadProblem, Reading, SOURCES, Timing};

fn group(name: &str, config: &str, tree: &Tree, group: &str) -> GroupPlan {
    let (mut groups, _) = discover(source(name, config, &tree.roots()).unwrap().as_mut());
    groups.remove(group).unwrap_or_else(|| panic!("no group {group}"))
}

const CHANGED: Reading = Reading { layout_changed: true, ..Reading::COMPLETE };
const GOOD: Reading = Reading::COMPLETE;

fn os(what: &'static str, errno: i32) -> Option<ReadProblem> {
    Some(ReadProblem::Os { what, errno })
}

#[test]
fn a_file_that_vanishes_is_gaps_and_comes_back() {
    const ENOENT: i32 = 2;
    let tree = Tree::copy("recorded");
    for (name, file) in [
        ("meminfo", "meminfo"),
        ("net/dev", "net/dev"),
        ("loadavg", "loadavg"),
        ("net/snmp", "net/snmp"),
        ("net/sockstat", "net/sockstat"),
        ("net/softnet", "net/softnet_stat"),
        ("filefd", "sys/fs/file-nr"),
        ("interrupts", "interrupts"),
        ("slab", "slabinfo"),
    ] {
        let mut group = group("procfs", "[sources.procfs]\ngroups = [\"all\"]\n", &tree, name);
        let (good, reading) = read(&mut group);
        assert_eq!(reading, GOOD);
        let content = std::fs::read_to_string(tree.path(&format!("proc/{file}"))).unwrap();
        tree.remove(&format!("proc/{file}"));
        for _ in 0..2 {
            let (values, reading) = read(&mut group);
            let is_of_file = |sensor: &String| name != "net/sockstat" || !sensor.contains('6');
            let mut gaps = values.iter().filter(|(sensor, _)| is_of_file(sensor));
            assert!(gaps.all(|(_, value)| value.is_none()), "{name}: nothing from before");
            assert_eq!(reading, Reading { problem: os(file, ENOENT), ..Reading::COMPLETE });
        }
        assert_eq!(reading_text(&mut group), format!("{file}: No such file or directory (os error 2)"));
        tree.write(&format!("proc/{file}"), &content);
        assert_eq!(read(&mut group), (good, GOOD), "{name}: opened again");
    }
}

fn reading_text(group: &mut GroupPlan) -> String {
    read(group).1.problem.map(|problem| problem.to_string()).unwrap_or_default()
}

#[test]
fn one_of_several_files_that_vanishes_leaves_the_others() {
    let tree = Tree::copy("recorded");
    let mut pressure = group("procfs", "", &tree, "pressure");
    tree.remove("proc/pressure/memory");
    let (values, reading) = read(&mut pressure);
    assert_eq!(reading.problem, os("pressure/memory", 2));
    assert!(values["pressure/cpu/some/total"].is_some() && values["pressure/io/some/total"].is_some());
    assert!(values["pressure/memory/some/total"].is_none());
}

#[test]
fn garbage_is_gaps_counted_and_no_new_layout() {
    let tree = Tree::copy("recorded");
    let mut meminfo = group("procfs", "", &tree, "meminfo");
    tree.replace("proc/meminfo", "MemFree:  ", "MemFree: ?");
    let (values, reading) = read(&mut meminfo);
    assert_eq!(reading.problem.unwrap().to_string(), "meminfo: line 2 does not match the format");
    assert_eq!(values.values().filter(|value| value.is_none()).count(), 1);
    assert_eq!(values["meminfo/MemFree"], None);
    tree.write("proc/meminfo", "\u{7f}\0ELF garbage");
    let (values, reading) = read(&mut meminfo);
    assert!(values.values().all(Option::is_none));
    assert!(!reading.layout_changed && matches!(reading.problem, Some(ReadProblem::Garbage { .. })), "{reading:?}");
    tree.write("proc/meminfo", "");
    assert!(matches!(read(&mut meminfo).1.problem, Some(ReadProblem::Os { .. })));
}

#[test]
fn absent_files_are_left_out_and_reported() {
    let tree = Tree::copy("handmade");
    let mut procfs = source("procfs", "", &tree.roots()).unwrap();
    let (groups, reports) = discover(procfs.as_mut());
    assert!(!groups.contains_key("pressure"));
    assert_eq!(reports.len(), 3, "{reports:?}");
    let [report, ..] = &reports[..] else { panic!("no report") };
    assert!(report.contains("pressure/cpu is left out: No such file") && report.contains("psi=1"), "{report}");
    let (groups, reports) = discover(source("sysfs", "", &Tree::empty().roots()).unwrap().as_mut());
    assert!(groups.is_empty() && reports.is_empty(), "{reports:?}");
}

#[test]
fn network_devices_come_and_go() {
    let tree = Tree::copy("handmade");
    let mut procfs = source("procfs", "", &tree.roots()).unwrap();
    let mut dev = discover(procfs.as_mut()).0.remove("net/dev").unwrap();
    assert_eq!(read(&mut dev).1, GOOD);
    let line = "  new0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
    tree.replace("proc/net/dev", "  eno1:", &format!("{line}  eno1:"));
    let (values, reading) = read(&mut dev);
    assert_eq!(reading, CHANGED);
    assert!(values.values().all(Option::is_some), "the known ones stay");
    dev = discover(procfs.as_mut()).0.remove("net/dev").unwrap();
    let (values, reading) = read(&mut dev);
    assert_eq!((values["net/dev/new0/tx_bytes"], reading), (Some(9), GOOD));
    tree.replace("proc/net/dev", line, "");
    let (values, reading) = read(&mut dev);
    assert_eq!(reading, CHANGED);
    assert_eq!((values["net/dev/new0/tx_bytes"], values["net/dev/eno1/tx_bytes"]), (None, Some(9)));
}

#[test]
fn disks_and_cpus_come_and_go() {
    let tree = Tree::copy("handmade");
    let mut disks = group("procfs", "", &tree, "diskstats");
    tree.replace("proc/diskstats", "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11\n", "");
    let (values, reading) = read(&mut disks);
    assert_eq!(reading, CHANGED);
    assert_eq!((values["diskstats/sda/reads"], values["diskstats/nvme0n1/reads"]), (None, Some(1)));
    tree.replace("proc/diskstats", " 104 ", "   8      16 sdb 1 2 3 4 5 6 7 8 9 10 11\n 104 ");
    assert_eq!(read(&mut disks).1, CHANGED);

    let mut stat = group("procfs", "", &tree, "stat");
    tree.replace("proc/stat", "cpu2 40 1 10 1000 2 2 3\n", "");
    let (values, reading) = read(&mut stat);
    assert_eq!(reading, CHANGED);
    let of = |name: &str| values[name];
    assert_eq!(
        (of("cpu/2/idle"), of("cpu/0/idle"), of("cpu/10/idle"), of("stat/ctxt")),
        (None, Some(2000), Some(1000), Some(-1))
    );
}

fn names(name: &str, config: &str) -> Vec<String> {
    let (groups, _) = discover(source(name, config, &roots(&fixture("handmade"))).unwrap().as_mut());
    groups.into_values().flat_map(|group| group.sensors).map(|sensor| sensor.name).collect()
}

#[test]
fn filters() {
    let check = |keys: &str, expected: &[&str]| {
        assert_eq!(names("procfs", &format!("[sources.procfs]\n{keys}\n")), expected, "{keys}");
    };
    check("groups = [\"meminfo\"]\nmetrics.include = [\"Mem*\"]", &["meminfo/MemTotal", "meminfo/MemFree"]);
    check("groups = [\"meminfo\"]\nmetrics.exclude = [\"Huge*\", \"meminfo/*Total\"]", &["meminfo/MemFree"]);
    check(
        "metrics.include = [\"cpu/**\"]\nstat.metrics.include = [\"user\"]\ncpus.include = [\"1*\"]",
        &["cpu/user", "cpu/10/user"],
    );
    check("metrics.include = [\"cpu/*/idle\"]\ncpus.exclude = [\"10\"]", &["cpu/0/idle", "cpu/2/idle"]);
    check("metrics.include = [\"rx_bytes\"]\ndevices.include = [\"bond*\"]", &["net/dev/bond0.100/rx_bytes"]);
    check(
        "groups = [\"diskstats\"]\nmetrics.include = [\"reads\"]\ndevices.exclude = [\"s*\", \"nvme*\", \"cciss*\"]",
        &["diskstats/loop0/reads"],
    );
    check("groups = []", &[]);
    assert_eq!(
        names("sysfs", "[sources.sysfs]\npresets = [\"edac\"]\nedac.metrics.include = [\"edac/*/ue_count\"]\n").len(),
        3
    );
    assert_eq!(
        names("sysfs", "[sources.sysfs]\npresets = [\"hwmon\"]\nmetrics.include = [\"nvme*/**\"]\n").len(),
        4,
        "as chips"
    );
}

#[test]
fn filtered_values_are_the_same_as_all_values() {
    let tree = Tree::copy("recorded");
    let all = group("procfs", "", &tree, "vmstat");
    let config = "[sources.procfs]\nmetrics.include = [\"pg*\"]\n";
    let mut some = group("procfs", config, &tree, "vmstat");
    let (mut all, (some, reading)) = (all, read(&mut some));
    assert_eq!(reading, GOOD);
    let (all, _) = read(&mut all);
    let expected: BTreeMap<_, _> = all.into_iter().filter(|(name, _)| name.starts_with("vmstat/pg")).collect();
    assert_eq!(some, expected);
}

#[test]
fn timing_comes_from_the_group_then_the_source() {
    let config = "[sources.procfs]\ninterval = \"1s\"\noffset = \"5ms\"\n[sources.procfs.\"net/dev\"]\ninterval = \"100ms\"\nsynchronous = false\n";
    let (groups, _) = discover(source("procfs", config, &roots(&fixture("recorded"))).unwrap().as_mut());
    let offset = Interval::from_ms(5);
    let meminfo = Timing { interval: Some(Interval::from_s(1)), offset, synchronous: true };
    let dev = Timing { interval: Some(Interval::from_ms(100)), offset, synchronous: false };
    assert_eq!((groups["meminfo"].timing, groups["net/dev"].timing), (meminfo, dev));
}

#[test]
fn sysfs_devices_come_and_go() {
    let tree = Tree::copy("handmade");
    let mut sysfs = source("sysfs", "", &tree.roots()).unwrap();
    let mut thermal = discover(sysfs.as_mut()).0.remove("thermal").unwrap();
    assert_eq!(read(&mut thermal).1, GOOD);
    std::fs::remove_dir_all(tree.path("sys/devices/virtual/thermal/thermal_zone0")).unwrap();
    let (values, reading) = read(&mut thermal);
    assert_eq!((values["thermal/zone0_acpitz"], values["thermal/zone1_x86_pkg_temp"]), (None, Some(42000)));
    assert_eq!(reading, Reading { layout_changed: true, problem: os("thermal", 2), ..Reading::COMPLETE });
    tree.write("sys/class/thermal/thermal_zone7/temp", "1000\n");
    let mut thermal = discover(sysfs.as_mut()).0.remove("thermal").unwrap();
    let (values, reading) = read(&mut thermal);
    assert_eq!(values.keys().collect::<Vec<_>>(), ["thermal/zone1_x86_pkg_temp", "thermal/zone7"]);
    assert_eq!((values["thermal/zone7"], reading), (Some(1000), GOOD));
}

#[test]
fn a_sysfs_file_with_garbage_is_a_gap_among_values() {
    let tree = Tree::copy("handmade");
    let mut edac = group("sysfs", "", &tree, "edac");
    for garbage in ["<unknown>\n", "12", "", "1 2\n", "99999999999999999999\n", &"1".repeat(5000)] {
        tree.write("sys/devices/system/edac/mc/mc1/ce_count", garbage);
        let (values, reading) = read(&mut edac);
        assert_eq!((values["edac/mc1/ce_count"], values["edac/mc1/dimm3/ce_count"]), (None, Some(3)), "{garbage:?}");
        assert!(!reading.layout_changed);
        assert_eq!(reading.problem.is_some(), !garbage.is_empty(), "{garbage:?}");
    }
}

/// The regular files below a folder.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// Sources whose values depend on nothing but the files of the tree.
const OF_FILES_ONLY: [&str; 3] = ["procfs", "sysfs", "inventory"];

#[test]
fn any_file_that_is_cut_garbage_or_absent_leaves_gaps_and_right_values() {
    for fixture in tree::TREES {
        let tree = Tree::copy(fixture);
        let sources = SOURCES.iter().filter(|kind| OF_FILES_ONLY.contains(&kind.name));
        let groups = sources.flat_map(|kind| {
            let mut source = (kind.configure)(&tree::every_group(kind.name), &tree.roots().into()).unwrap();
            discover(source.as_mut()).0.into_values()
        });
        let mut groups: Vec<(GroupPlan, _)> = groups.map(|group| (group, BTreeMap::new())).collect();
        for (group, good) in &mut groups {
            let reading;
            (*good, reading) = read(group);
            assert_eq!(reading, Reading::default(), "{}", group.name);
        }
        let mut files = Vec::new();
        ["proc", "sys"].iter().for_each(|root| files_below(&tree.path(root), &mut files));
        let mut gaps = 0;
        for file in files {
            let content = std::fs::read(&file).unwrap();
            let cut = |length: usize| Some(content[..length].to_vec());
            let bad = [
                None,
                cut(0),
                cut(content.len() / 2),
                cut(content.len().saturating_sub(1)),
                Some(b"\x01\x7fELF\n".to_vec()),
                Some(b"99999999999999999999 \x01\n".to_vec()),
                Some(vec![b'x'; 64 << 10]),
            ];
            for (variant, bad) in bad.into_iter().enumerate() {
                bad.map_or_else(|| std::fs::remove_file(&file), |bad| std::fs::write(&file, bad)).unwrap();
                for (group, good) in &mut groups {
                    for (name, value) in read(group).0 {
                        let is_right = value.is_none() || value == good[&name];
                        assert!(is_right, "{}, variant {variant}: {name} is {value:?}", file.display());
                        gaps += usize::from(value.is_none());
                    }
                }
                std::fs::write(&file, &content).unwrap();
            }
            for (group, good) in &mut groups {
                assert_eq!(read(group).0, *good, "{} as before", file.display());
            }
        }
        assert!(gaps > 1000, "{gaps} gaps");
    }
}

#[test]
fn lists_of_groups_have_words_for_several() {
    let groups = |list: &str| -> Vec<String> {
        let config = format!("[sources.procfs]\ngroups = {list}\n");
        let mut source = source("procfs", &config, &roots(&fixture("handmade"))).unwrap();
        discover(source.as_mut()).0.into_keys().collect()
    };
    let (none, default, all) = (groups("[]"), groups("[\"default\"]"), groups("[\"all\"]"));
    assert!(none.is_empty() && !default.contains(&"slab".to_owned()), "{default:?}");
    let more = groups("[\"default\", \"slab\"]");
    assert_eq!(more.len(), default.len() + 1);
    assert!(more.contains(&"slab".to_owned()) && default.iter().all(|name| more.contains(name)), "{more:?}");
    assert!(all.len() > more.len() && more.iter().all(|name| all.contains(name)), "{all:?}");
}

#[test]
fn a_group_has_its_own_interval_unless_the_settings_have_one() {
    let interval = |config: &str| {
        let mut source = source("procfs", config, &roots(&fixture("handmade"))).unwrap();
        discover(source.as_mut()).0["numa"].timing.interval
    };
    assert_eq!(interval(""), Some(Interval::from_s(10)));
    assert_eq!(interval("[sources.procfs]\ninterval = \"1s\"\n"), Some(Interval::from_s(1)));
    let own = "[sources.procfs]\ninterval = \"1s\"\n[sources.procfs.numa]\ninterval = \"2s\"\n";
    assert_eq!(interval(own), Some(Interval::from_s(2)));
}

#[test]
fn files_by_pattern_that_are_no_numbers_are_looked_at_again() {
    let tree = Tree::copy("handmade");
    let config = "[[sources.sysfs.files]]\npath = \"class/net/*/*\"\nname = \"net/{1}/{2}\"\n";
    let mut sysfs = source("sysfs", config, &tree.roots()).unwrap();
    let (groups, reports) = discover(sysfs.as_mut());
    assert_eq!(groups["sysfs"].sensors.len(), 16);
    assert!(reports.iter().any(|report| report.contains("duplex is left out: it holds no number")), "{reports:?}");
    tree.write("sys/class/net/eth0/duplex", "1\n");
    assert_eq!(discover(sysfs.as_mut()).0["sysfs"].sensors.len(), 17);
}

#[test]
fn the_configurations_in_the_readmes_are_taken() {
    const NODE: [&str; 5] = ["procfs", "sysfs", "timex", "processes", "inventory"];
    const OTHERS: [&str; 9] =
        ["perf", "filesystems", "nfs", "lustre", "infiniband", "slingshot", "beegfs", "ceph", "tester"];
    for name in NODE.into_iter().chain(OTHERS) {
        let path = fixture("..").join("src").join(name).join("README.md");
        let readme = std::fs::read_to_string(path).unwrap();
        let (_, block) = readme.split_once("```toml\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let source = source(name, block, &roots(&fixture("handmade")));
        let groups = discover(source.unwrap_or_else(|error| panic!("{name}: {error}")).as_mut()).0;
        // This machine may not permit perf events.
        assert!(!groups.is_empty() || name == "perf", "{name}");
    }
}

#[test]
fn errors_name_file_line_and_the_nearest_key() {
    let check = |name: &str, config: &str, expected: &str| {
        let error =
            source(name, config, &Tree::empty().roots()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with(expected), "{config:?}: {error:?} does not begin with {expected:?}");
    };
    let procfs = |keys: &str, expected| check("procfs", &format!("[sources.procfs]\n{keys}\n"), expected);
    procfs("intervall = \"1s\"", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?");
    procfs("metrics = { includes = [] }", "agent.toml:2:13: unknown key `includes`; did you mean `include`?");
    procfs("metrics.include = [\"a/+\"]", "agent.toml:2:19: pattern \"a/+\": `+` and `#` are MQTT's wildcards");
    procfs("groups = [\"memifno\"]", "agent.toml:2:11: unknown value `memifno`; did you mean `meminfo`?");
    procfs("[sources.procfs.netdev]", "agent.toml:2:17: unknown key `netdev`; did you mean `net/dev`?");
    procfs(
        "[sources.procfs.stat]\nintreval = \"1s\"",
        "agent.toml:3:1: unknown key `intreval`; did you mean `interval`?",
    );
    procfs("[sources.procfs.stat]\ninterval = \"1us\"", "agent.toml:3:1: interval 1us is shorter than 1ms");
    procfs("interval = \"1s\"\noffset = \"2s\"", "agent.toml:3:1: offset 2s is not below the interval 1s");
    procfs("interval = 10", "agent.toml:2:12: invalid type: integer `10`, expected a length of time");
    let sysfs = |keys: &str, expected| check("sysfs", &format!("[sources.sysfs]\n{keys}\n"), expected);
    sysfs("presets = [\"hwmom\"]", "agent.toml:2:12: unknown value `hwmom`; did you mean `hwmon`?");
    sysfs("powercap.inteval = \"1s\"", "agent.toml:2:10: unknown key `inteval`; did you mean `interval`?");
    let file = |keys: &str, expected| check("sysfs", &format!("[[sources.sysfs.files]]\n{keys}\n"), expected);
    file("pth = \"a\"", "agent.toml:2:1: unknown key `pth`; did you mean `path`?");
    file("path = \"/sys/a\"\nname = \"a\"", "agent.toml:1:1: path \"/sys/a\" must be below /sys");
    file("path = \"a/../b\"\nname = \"a\"", "agent.toml:1:1: path \"a/../b\" must be below /sys");
    file("path = \"a/*/b*\"\nname = \"a/{1}\"", "agent.toml:1:1: name \"a/{1}\" lacks `{2}`");
    file("path = \"a/*\"\nname = \"a/{1}/{2}\"", "agent.toml:1:1: sensor name \"a/x/{2}\" has '{'");
    file("path = \"a\"\nname = \"a\"\nscale = 0.0", "agent.toml:1:1: scale is 0");
    file(
        "path = \"a\"\nname = \"a\"\nkind = \"count\"",
        "agent.toml:4:8: unknown value `count`; did you mean `counter`?",
    );
}
