//! Requests of block devices against `/proc/diskstats`.

use std::collections::BTreeMap;

use wholegrain_sources::GroupPlan;
use wholegrain_testkit::wait_for;

use crate::machine::{Cgroup, Machine, discover, said, skips, unified, values};
use crate::workload::{Work, Worker, direct_file};

const READS: u32 = 300;
const FLUSHES: u32 = 10;

/// Requests of all devices that have requests, and their time in ms: reads, writes and discards (Documentation/admin-guide/iostats.rst).
fn disk_stats() -> (i64, i64) {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let devices = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields[2];
        let is_whole = std::path::Path::new("/sys/block").join(name.replace('/', "!")).exists();
        let has_requests = !["dm-", "md", "zram", "ram"].iter().any(|kind| name.starts_with(kind));
        let number = |index: usize| fields.get(index).map_or(0, |text| text.parse::<i64>().unwrap());
        (is_whole && has_requests).then(|| (number(3) + number(7) + number(14), number(6) + number(10) + number(17)))
    });
    devices.fold((0, 0), |(count, ms), device| (count + device.0, ms + device.1))
}

/// The node's values at a time at which no request ended.
fn at_rest(node: &mut GroupPlan) -> ((i64, i64), BTreeMap<String, i64>) {
    wait_for("a time without requests", || {
        let before = disk_stats();
        let counted = values(node);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let after = values(node);
        let name = "ebpf/block_latency/count";
        (before == disk_stats() && counted[name] == after[name]).then_some((before, counted))
    })
}

#[test]
fn requests_of_the_node_and_of_a_job() {
    check("requests_of_the_node_and_of_a_job", &[]);
}

/// Before Linux 6.5 there is no tracepoint at the creation of a request.
#[test]
fn requests_on_earlier_kernels() {
    check("requests_on_earlier_kernels", &["btf_trace_block_io_start"]);
}

fn check(test: &str, absent: &[&str]) {
    if skips(test) {
        return;
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{test}-{}", std::process::id()));
    let flushed = path.with_extension("flushed");
    let file = direct_file(&path, READS);
    let Some(file) = file else {
        said(test, "the file system of the target folder has no O_DIRECT");
        std::fs::remove_file(path).unwrap();
        return;
    };
    let Some(mount) = unified() else { return };
    let (machine, cgroup) = (Machine::new(), Cgroup::new(&mount));
    machine.jobs(&[("9", &[&cgroup.path])]);
    let worker = Worker::start(&Work::Reads(file, READS));
    cgroup.enter(worker.pid);
    let roots = machine.roots_without(absent);
    let mut source = machine.configure_below(roots, "programs = [\"block\"]\n").unwrap();
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let mut job = groups.remove("job/9/ebpf").unwrap();
    let node = groups.get_mut("ebpf").unwrap();
    let count = "ebpf/block_latency/count";
    // Some virtual machines hide what interrupts tasks of their supervisor from tracepoints. A round has fewer requests then, never more.
    let mut round = || {
        let (disks_before, node_before) = at_rest(node);
        let job_before = values(&mut job);
        worker.run();
        // With flushes, of which each has several steps that are no requests.
        for _ in 0..FLUSHES {
            std::fs::write(&flushed, [7; 100]).unwrap();
            std::fs::File::open(&flushed).unwrap().sync_all().unwrap();
        }
        let (disks, node) = at_rest(node);
        let (seen, all) = (node[count] - node_before[count], disks.0 - disks_before.0);
        assert!(seen <= all, "{seen} of {all}");
        (seen == all).then(|| (disks_before, node_before, job_before, disks, node, values(&mut job)))
    };
    let complete = wait_for("a round of which all requests are seen", &mut round);
    let (disks_before, node_before, job_before, disks, node, counted) = complete;
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(flushed).unwrap();
    let of_job = |name: &str| {
        let name = format!("job/9/ebpf/block_latency/{name}");
        counted[&name] - job_before[&name]
    };
    let of_node = |name: &str| {
        let name = format!("ebpf/block_latency/{name}");
        node[&name] - node_before[&name]
    };
    if disks.0 - disks_before.0 < i64::from(READS) {
        said(test, "reads of the target folder are no requests of a block device");
        return;
    }
    // Each of the three times of a device is cut to ms, before and after.
    let devices = std::fs::read_dir("/sys/block").unwrap().count() as i64;
    let ms = of_node("sum") / 1_000_000;
    assert!((ms - (disks.1 - disks_before.1)).abs() <= 6 * devices, "{ms} {disks:?} {disks_before:?}");
    // Reads one after the other are a request each; a few may read what finds them.
    let count = of_job("count");
    assert!((i64::from(READS)..i64::from(READS) + 20).contains(&count), "{count}");
    assert!(of_job("sum") > 0 && of_job("sum") <= of_node("sum"));
    assert_eq!(node["ebpf/lost/untimed"] + node["ebpf/lost/requests"], 0);
}
