//! Errors of the kernel, CPUs and jobs that go away, and the lock file.

use super::*;
use crate::perf::fake::OWN_UID;
use crate::reader::ReadProblem;

const PAIR: &str = "groups = [[\"cycles\", \"instructions\"]]\nevents = []";

#[test]
fn events_that_the_machine_lacks_are_reported_and_the_others_counted() {
    let machine = Machine::new();
    for config in 0..6 {
        machine.kernel.state().refused.insert((0, config), libc::ENOENT);
    }
    let mut jobs = machine.jobs("");
    let (sets, reports) = metric_sets(&mut jobs, &machine.cgroups());
    assert_eq!(sets.keys().collect::<Vec<_>>(), ["software"]);
    let expected = "perf: this machine has no cycles, instructions, cache-references, cache-misses, branches, branch-misses: left \
                    out (No such file or directory (os error 2))";
    assert_eq!(reports, [expected]);
    let other = JobCgroups { level: "4712".to_owned(), ..machine.cgroups() };
    assert_eq!(metric_sets(&mut jobs, &other).1, [expected], "the same text for each job, which the agent logs once");
    assert_eq!(machine.kernel.descriptors(), 2 * 6 * 2);
}

#[test]
fn an_unsupported_event_is_not_in_its_group() {
    let machine = Machine::new();
    // The refused event is the leader. The next one takes its place.
    machine.kernel.state().refused.insert((0, 0), libc::EOPNOTSUPP);
    machine.kernel.count(0, 0, 1, 42);
    machine.kernel.times(0, 1, 1);
    let (sets, reports) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
    assert_eq!(names(&sets["group_1"].sensors), ["perf/instructions", "perf/group_1/running"]);
    assert!(reports[0].starts_with("perf: this machine has no cycles: left out"), "{reports:?}");
    Sampled::set(&sets["group_1"]).check(&[("perf/instructions", Some(42.0))]);
}

#[test]
fn reads_without_bytes_are_gaps_whatever_the_buffer_holds() {
    let machine = Machine::new();
    let mut jobs = machine.jobs(PAIR);
    let (sets, _) = metric_sets(&mut jobs, &machine.cgroups());
    let mut reader = Sampled::set(&sets["group_1"]);
    machine.kernel.times(0, 5, 5);
    machine.kernel.count(0, 0, 0, 50);
    reader.check(&[("perf/cycles", Some(50.0))]);
    let check = |reader: &mut Sampled, expected: ReadProblem| {
        let (values, reading) = reader.read();
        assert!(values.values().all(Option::is_none), "{values:?}");
        assert_eq!(reading, Reading { layout_changed: true, problem: Some(expected), ..Reading::COMPLETE });
    };
    machine.kernel.state().offline.insert(1);
    check(&mut reader, ReadProblem::Os { what: "perf events of a CPU that went offline", errno: libc::ENODATA });
    machine.kernel.state().offline.clear();
    machine.kernel.state().read_error = Some(libc::ENODEV);
    check(&mut reader, ReadProblem::Os { what: "perf events", errno: libc::ENODEV });
    machine.kernel.state().read_error = None;
    machine.kernel.state().wrong_ids = true;
    check(&mut reader, ReadProblem::Garbage { what: "perf events", line: 1 });
    machine.kernel.state().wrong_ids = false;
    machine.kernel.count(0, 0, 0, 40);
    check(&mut reader, ReadProblem::Garbage { what: "perf events", line: 1 });
    // The counters are opened again on the same CPUs, and the sums go on.
    let before: Vec<i32> = machine.kernel.state().events.keys().copied().collect();
    metric_sets(&mut jobs, &machine.cgroups());
    assert!(machine.kernel.state().events.keys().all(|fd| !before.contains(fd)));
    machine.kernel.count(0, 0, 0, 3);
    machine.kernel.times(0, 1, 1);
    reader.check(&[("perf/cycles", Some(53.0))]);
}

#[test]
fn a_cpu_goes_offline_and_comes_back() {
    let machine = Machine::new();
    let mut jobs = machine.jobs(PAIR);
    let mut reader = Sampled::set(&metric_sets(&mut jobs, &machine.cgroups()).0["group_1"]);
    let count = |cpu: u32, time, cycles| {
        machine.kernel.times(cpu, time, time);
        machine.kernel.count(cpu, 0, 0, cycles);
    };
    count(0, 10, 100);
    count(1, 10, 1000);
    reader.check(&[("perf/cycles", Some(1100.0))]);
    machine.kernel.state().offline.insert(1);
    assert!(reader.read().1.layout_changed);
    machine.write("sys/devices/system/cpu/online", "0\n");
    metric_sets(&mut jobs, &machine.cgroups());
    count(0, 1, 5);
    reader.check(&[("perf/cycles", Some(1105.0)), ("perf/group_1/running", Some(1.0))]);
    assert_eq!(machine.kernel.descriptors(), 2);
    machine.kernel.state().offline.clear();
    machine.write("sys/devices/system/cpu/online", "0-1\n");
    metric_sets(&mut jobs, &machine.cgroups());
    count(0, 1, 1);
    count(1, 1, 1);
    reader.check(&[("perf/cycles", Some(1107.0))]);
}

#[test]
fn a_missing_permission_is_reported_with_a_remedy() {
    let machine = Machine::new();
    machine.kernel.state().all_refused = Some(libc::EACCES);
    let (sets, reports) = metric_sets(&mut machine.jobs(""), &machine.cgroups());
    assert!(sets.is_empty());
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report.starts_with("perf: the agent may not count task-clock, context-switches, "), "{report}");
    for part in ["/proc/sys/kernel/perf_event_paranoid is 2.", "CAP_PERFMON", "sysctl kernel.perf_event_paranoid=0"] {
        assert!(report.contains(part), "{report} does not contain {part}");
    }
    // Only one event is refused; the other is counted.
    machine.kernel.state().all_refused = None;
    machine.kernel.state().refused.insert((1, 3), libc::EPERM);
    let (sets, reports) =
        metric_sets(&mut machine.jobs("events = [\"context-switches\", \"page-faults\"]"), &machine.cgroups());
    assert_eq!(names(&sets["software"].sensors), ["perf/page-faults"]);
    assert!(reports[0].starts_with("perf: the agent may not count context-switches"), "{reports:?}");
    assert_eq!(machine.kernel.descriptors(), 2, "of page-faults, on two CPUs");
}

#[test]
fn without_descriptors_complete_groups_are_left_out_until_there_are_some() {
    let machine = Machine::new();
    machine.kernel.state().events_max = Some(17);
    let mut jobs = machine.jobs("");
    let (sets, reports) = metric_sets(&mut jobs, &machine.cgroups());
    // The software group takes 12 of them. The first hardware group needs 8 more, the second takes 4.
    assert_eq!(sets.keys().collect::<Vec<_>>(), ["hardware_2", "software"]);
    assert_eq!(machine.kernel.descriptors(), 16, "no group is opened in part");
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report.contains("cycles, instructions, cache-references, cache-misses: no file descriptors"), "{report}");
    assert!(report.contains("Too many open files") && report.contains("LimitNOFILE="), "{report}");
    machine.kernel.state().events_max = None;
    let (sets, reports) = metric_sets(&mut jobs, &machine.cgroups());
    assert_eq!((sets.len(), reports.len()), (3, 0));
    for (errno, part) in [
        (libc::ENOSPC, "more than the hardware has"),
        (libc::EINVAL, "the kernel refuses them"),
        (libc::EBUSY, "exclusively"),
        (libc::EBADF, "perf cannot count in the hierarchy"),
        (libc::ENOMEM, "no memory"),
        (libc::E2BIG, "cannot be counted"),
    ] {
        machine.kernel.state().all_refused = Some(errno);
        let (sets, reports) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
        assert!(sets.is_empty() && reports.len() == 1 && reports[0].contains(part), "{errno}: {reports:?}");
    }
}

#[test]
fn jobs_without_a_directory_and_jobs_that_have_ended() {
    let machine = Machine::new();
    let mut jobs = machine.jobs("");
    let nowhere = JobCgroups { v2: None, ..machine.cgroups() };
    let (sets, reports) = metric_sets(&mut jobs, &nowhere);
    assert!(sets.is_empty() && reports[0].contains("unified hierarchy nor below the controller perf_event"));
    std::fs::create_dir_all(machine.path("cgroup/perf_event/job")).unwrap();
    let v1 = [("perf_event".to_owned(), machine.path("cgroup/perf_event/job"))].into();
    assert_eq!(metric_sets(&mut jobs, &JobCgroups { v1, ..nowhere }).0.len(), 3);
    let over = JobCgroups { level: "1".to_owned(), v2: Some(machine.path("cgroup/gone")), ..machine.cgroups() };
    let (sets, reports) = metric_sets(&mut jobs, &over);
    assert!(sets.is_empty() && reports.is_empty(), "{reports:?}");
    // The job ends while its events are opened: no event is reported as missing on this machine.
    std::fs::create_dir_all(machine.path("cgroup/short")).unwrap();
    machine.kernel.state().vanishing = Some(machine.path("cgroup/short"));
    let before = machine.kernel.descriptors();
    let short = JobCgroups { level: "2".to_owned(), v2: Some(machine.path("cgroup/short")), ..machine.cgroups() };
    let (sets, reports) = metric_sets(&mut jobs, &short);
    assert!(sets.is_empty() && reports.is_empty(), "{reports:?}");
    assert_eq!(machine.kernel.descriptors(), before);
    // The final counts of a job that has ended can be read until the job is forgotten.
    machine.kernel.state().all_refused = None;
    std::fs::create_dir_all(machine.path("cgroup/short")).unwrap();
    assert_eq!(metric_sets(&mut jobs, &short).0.len(), 3);
    std::fs::remove_dir(machine.path("cgroup/short")).unwrap();
    let (sets, _) = metric_sets(&mut jobs, &short);
    Sampled::set(&sets["software"]).check(&[("perf/page-faults", Some(0.0))]);
    jobs.forget(&short);
    assert_eq!(machine.kernel.descriptors(), before);
}

#[test]
fn counters_are_closed_for_the_lock_file_and_opened_again() {
    let machine = Machine::new();
    let mut jobs = machine.jobs("lock_file = \"/run/likwid.lock\"");
    let (sets, _) = metric_sets(&mut jobs, &machine.cgroups());
    let mut hardware = Sampled::set(&sets["hardware"]);
    let mut software = Sampled::set(&sets["software"]);
    machine.kernel.times(0, 10, 10);
    machine.kernel.count(0, 0, 0, 100);
    hardware.check(&[("perf/cycles", Some(100.0))]);
    let checks = machine.kernel.state().lock_checks;
    for _ in 0..100 {
        hardware.read();
    }
    assert_eq!(machine.kernel.state().lock_checks, checks, "not at every read");
    // Another user takes the lock.
    machine.kernel.state().lock_owner = Some(1000);
    machine.kernel.state().now_ms += 100;
    let (values, reading) = hardware.read();
    assert!(values.values().all(Option::is_none) && reading.layout_changed);
    let yielded =
        "perf events, closed while the lock file belongs to another user: Device or resource busy (os error 16)";
    assert_eq!(reading.problem.unwrap().to_string(), yielded);
    let (closed, reports) = metric_sets(&mut jobs, &machine.cgroups());
    let expected = "perf: the hardware's counters are closed while /run/likwid.lock belongs to the user with uid 1000";
    assert_eq!(reports, [expected]);
    assert_eq!(names(&closed["hardware"].sensors), names(&sets["hardware"].sensors));
    assert!(machine.kernel.state().events.values().all(|event| event.attr.kind == 1), "all counters are free");
    assert!(!hardware.read().1.layout_changed, "no discovery is needed until the file goes");
    software.check(&[("perf/page-faults", Some(0.0))]);
    // A job that begins in this time.
    let other = JobCgroups { level: "4712".to_owned(), ..machine.cgroups() };
    let mut late = Sampled::set(&metric_sets(&mut jobs, &other).0["hardware"]);
    assert_eq!(late.read().1.problem.unwrap().to_string(), yielded);
    // The lock belongs to the agent again.
    machine.kernel.state().lock_owner = Some(OWN_UID);
    machine.kernel.state().now_ms += 100;
    assert!(hardware.read().1.layout_changed);
    assert_eq!(
        late.read().1,
        Reading { layout_changed: true, ..Reading::default() },
        "discovery opens them, without an error"
    );
    metric_sets(&mut jobs, &machine.cgroups());
    metric_sets(&mut jobs, &other);
    machine.kernel.times(0, 1, 1);
    machine.kernel.count(0, 0, 0, 11);
    hardware.check(&[("perf/cycles", Some(111.0))]);
    late.check(&[("perf/cycles", Some(11.0))]);
}

#[test]
fn the_nodes_counters_are_closed_too() {
    let machine = Machine::new();
    let mut node = machine.node("node_events = [\"cycles\", \"page-faults\"]\nlock_file = \"/run/likwid.lock\"");
    machine.kernel.state().lock_owner = Some(0);
    let (sampled, reports) = discover(&mut node);
    let mut sampled = sampled.unwrap();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(machine.kernel.descriptors(), 2);
    let (values, reading) = sampled.read();
    assert_eq!((values["perf/cycles"], values["perf/page-faults"]), (None, Some(0.0)));
    assert!(reading.problem.is_some() && !reading.layout_changed);
    machine.kernel.state().lock_owner = None;
    machine.kernel.state().now_ms += 1000;
    assert!(sampled.read().1.layout_changed);
    discover(&mut node);
    sampled.check(&[("perf/cycles", Some(0.0)), ("perf/page-faults", Some(0.0))]);
    drop((node, sampled));
    // Sensors do not come and go with the file, and events that the machine lacks have none.
    machine.kernel.state().refused.insert((0, 1), libc::ENOENT);
    let keys = "node_events = [\"cycles\", \"instructions\"]\nper_cpu = true\nlock_file = \"/run/likwid.lock\"";
    let mut node = machine.node(keys);
    let expected = ["perf/cpu/0/cycles", "perf/cpu/1/cycles", "perf/hardware/running"];
    for owner in [None, Some(0), None] {
        machine.kernel.state().lock_owner = owner;
        let sampled = discover(&mut node).0.unwrap();
        assert_eq!(names(&sampled.sensors), expected, "{owner:?}");
    }
    drop(node);
    assert_eq!(machine.kernel.descriptors(), 0);
}
