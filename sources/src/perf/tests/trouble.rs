//! What is refused, what goes away, what others want.

use super::*;
use crate::ReadProblem;
use crate::perf::fake::OWN_UID;

const PAIR: &str = "groups = [[\"cycles\", \"instructions\"]]\nevents = []";

#[test]
fn events_that_the_machine_lacks_are_told_once_and_the_rest_goes_on() {
    let machine = Machine::new();
    for config in 0..6 {
        machine.kernel.state().refused.insert((0, config), libc::ENOENT);
    }
    let mut jobs = machine.jobs("");
    let (parts_made, reports) = parts(&mut jobs, &machine.place());
    assert_eq!(parts_made.keys().collect::<Vec<_>>(), ["software"]);
    let expected = "perf: this machine has no cycles, instructions, cache-references, cache-misses, branches, branch-misses: left \
                    out (No such file or directory (os error 2))";
    assert_eq!(reports, [expected]);
    let other = JobPlace { level: "4712".to_owned(), ..machine.place() };
    assert_eq!(parts(&mut jobs, &other).1, [expected], "the same text of each job, which the agent tells once");
    assert_eq!(machine.kernel.descriptors(), 2 * 6 * 2);
}

#[test]
fn one_that_is_not_supported_leaves_its_group_and_is_never_read() {
    let machine = Machine::new();
    // The leader itself: the next one leads.
    machine.kernel.state().refused.insert((0, 0), libc::EOPNOTSUPP);
    machine.kernel.count(0, 0, 1, 42);
    machine.kernel.times(0, 1, 1);
    let (parts_made, reports) = parts(&mut machine.jobs(PAIR), &machine.place());
    assert_eq!(names(&parts_made["group_1"].sensors), ["perf/instructions", "perf/group_1/running"]);
    assert!(reports[0].starts_with("perf: this machine has no cycles: left out"), "{reports:?}");
    Sampled::part(&parts_made["group_1"]).check(&[("perf/instructions", Some(42.0))]);
}

#[test]
fn reads_that_give_nothing_are_gaps_whatever_stands_in_memory() {
    let machine = Machine::new();
    let mut jobs = machine.jobs(PAIR);
    let (parts_made, _) = parts(&mut jobs, &machine.place());
    let mut reader = Sampled::part(&parts_made["group_1"]);
    machine.kernel.times(0, 5, 5);
    machine.kernel.count(0, 0, 0, 50);
    reader.check(&[("perf/cycles", Some(50.0))]);
    let check = |reader: &mut Sampled, expected: ReadProblem| {
        let (values, reading) = reader.read();
        assert!(values.values().all(Option::is_none), "{values:?}");
        assert_eq!(reading, Reading { layout_changed: true, problem: Some(expected), gone: false });
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
    // Opened anew, on the same CPUs; the sums go on.
    let before: Vec<i32> = machine.kernel.state().events.keys().copied().collect();
    parts(&mut jobs, &machine.place());
    assert!(machine.kernel.state().events.keys().all(|fd| !before.contains(fd)));
    machine.kernel.count(0, 0, 0, 3);
    machine.kernel.times(0, 1, 1);
    reader.check(&[("perf/cycles", Some(53.0))]);
}

#[test]
fn a_cpu_goes_offline_and_comes_back() {
    let machine = Machine::new();
    let mut jobs = machine.jobs(PAIR);
    let mut reader = Sampled::part(&parts(&mut jobs, &machine.place()).0["group_1"]);
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
    parts(&mut jobs, &machine.place());
    count(0, 1, 5);
    reader.check(&[("perf/cycles", Some(1105.0)), ("perf/group_1/running", Some(1.0))]);
    assert_eq!(machine.kernel.descriptors(), 2);
    machine.kernel.state().offline.clear();
    machine.write("sys/devices/system/cpu/online", "0-1\n");
    parts(&mut jobs, &machine.place());
    count(0, 1, 1);
    count(1, 1, 1);
    reader.check(&[("perf/cycles", Some(1107.0))]);
}

#[test]
fn permissions_are_named_with_what_would_give_them() {
    let machine = Machine::new();
    machine.kernel.state().all_refused = Some(libc::EACCES);
    let (parts_made, reports) = parts(&mut machine.jobs(""), &machine.place());
    assert!(parts_made.is_empty());
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report.starts_with("perf: task-clock, context-switches, "), "{report}");
    for part in ["/proc/sys/kernel/perf_event_paranoid is 2.", "CAP_PERFMON", "sysctl kernel.perf_event_paranoid=0"] {
        assert!(report.contains(part), "{report} does not say {part}");
    }
    // Some only: the others are counted.
    machine.kernel.state().all_refused = None;
    machine.kernel.state().refused.insert((1, 3), libc::EPERM);
    let (parts_made, reports) =
        parts(&mut machine.jobs("events = [\"context-switches\", \"page-faults\"]"), &machine.place());
    assert_eq!(names(&parts_made["software"].sensors), ["perf/page-faults"]);
    assert!(reports[0].starts_with("perf: context-switches may not be counted"), "{reports:?}");
    assert_eq!(machine.kernel.descriptors(), 2, "of page-faults, on two CPUs");
}

#[test]
fn without_descriptors_whole_groups_are_left_out_and_taken_when_there_are_some() {
    let machine = Machine::new();
    machine.kernel.state().events_max = Some(17);
    let mut jobs = machine.jobs("");
    let (parts_made, reports) = parts(&mut jobs, &machine.place());
    // Software takes 12 of them, the first of the hardware's would take 8 more, the second takes 4.
    assert_eq!(parts_made.keys().collect::<Vec<_>>(), ["hardware_2", "software"]);
    assert_eq!(machine.kernel.descriptors(), 16, "half a group is of no use");
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report.contains("cycles, instructions, cache-references, cache-misses: no file descriptors"), "{report}");
    assert!(report.contains("Too many open files") && report.contains("LimitNOFILE="), "{report}");
    machine.kernel.state().events_max = None;
    let (parts_made, reports) = parts(&mut jobs, &machine.place());
    assert_eq!((parts_made.len(), reports.len()), (3, 0));
    for (errno, part) in [
        (libc::ENOSPC, "more of them than the hardware has"),
        (libc::EINVAL, "the kernel refuses them as they are"),
        (libc::EBUSY, "for itself"),
        (libc::EBADF, "perf does not count by the hierarchy"),
        (libc::ENOMEM, "no memory"),
        (libc::E2BIG, "cannot be counted"),
    ] {
        machine.kernel.state().all_refused = Some(errno);
        let (parts_made, reports) = parts(&mut machine.jobs(PAIR), &machine.place());
        assert!(parts_made.is_empty() && reports.len() == 1 && reports[0].contains(part), "{errno}: {reports:?}");
    }
}

#[test]
fn jobs_without_a_directory_and_jobs_that_are_over() {
    let machine = Machine::new();
    let mut jobs = machine.jobs("");
    let nowhere = JobPlace { v2: None, ..machine.place() };
    let (parts_made, reports) = parts(&mut jobs, &nowhere);
    assert!(parts_made.is_empty() && reports[0].contains("unified hierarchy nor below the controller perf_event"));
    std::fs::create_dir_all(machine.path("cgroup/perf_event/job")).unwrap();
    let v1 = [("perf_event".to_owned(), machine.path("cgroup/perf_event/job"))].into();
    assert_eq!(parts(&mut jobs, &JobPlace { v1, ..nowhere }).0.len(), 3);
    let over = JobPlace { level: "1".to_owned(), v2: Some(machine.path("cgroup/gone")), ..machine.place() };
    let (parts_made, reports) = parts(&mut jobs, &over);
    assert!(parts_made.is_empty() && reports.is_empty(), "{reports:?}");
    // Over in the middle of it: no event is said to be missing on this machine.
    std::fs::create_dir_all(machine.path("cgroup/short")).unwrap();
    machine.kernel.state().vanishing = Some(machine.path("cgroup/short"));
    let before = machine.kernel.descriptors();
    let short = JobPlace { level: "2".to_owned(), v2: Some(machine.path("cgroup/short")), ..machine.place() };
    let (parts_made, reports) = parts(&mut jobs, &short);
    assert!(parts_made.is_empty() && reports.is_empty(), "{reports:?}");
    assert_eq!(machine.kernel.descriptors(), before);
    // One that was counted and ended: what it came to can be read until it is forgotten.
    machine.kernel.state().all_refused = None;
    std::fs::create_dir_all(machine.path("cgroup/short")).unwrap();
    assert_eq!(parts(&mut jobs, &short).0.len(), 3);
    std::fs::remove_dir(machine.path("cgroup/short")).unwrap();
    let (parts_made, _) = parts(&mut jobs, &short);
    Sampled::part(&parts_made["software"]).check(&[("perf/page-faults", Some(0.0))]);
    jobs.forget(&short);
    assert_eq!(machine.kernel.descriptors(), before);
}

#[test]
fn counters_are_given_up_for_the_lock_file_and_taken_back() {
    let machine = Machine::new();
    let mut jobs = machine.jobs("lock_file = \"/run/likwid.lock\"");
    let (parts_made, _) = parts(&mut jobs, &machine.place());
    let mut hardware = Sampled::part(&parts_made["hardware"]);
    let mut software = Sampled::part(&parts_made["software"]);
    machine.kernel.times(0, 10, 10);
    machine.kernel.count(0, 0, 0, 100);
    hardware.check(&[("perf/cycles", Some(100.0))]);
    let looks = machine.kernel.state().looks;
    for _ in 0..100 {
        hardware.read();
    }
    assert_eq!(machine.kernel.state().looks, looks, "not at every read");
    // Another user takes it.
    machine.kernel.state().lock_owner = Some(1000);
    machine.kernel.state().now_ms += 100;
    let (values, reading) = hardware.read();
    assert!(values.values().all(Option::is_none) && reading.layout_changed);
    let given_up = "perf events, given up while the lock file is another user's: Device or resource busy (os error 16)";
    assert_eq!(reading.problem.unwrap().to_string(), given_up);
    let (parts_held, reports) = parts(&mut jobs, &machine.place());
    let expected =
        "perf: the hardware's counters are given up while /run/likwid.lock belongs to the user with uid 1000";
    assert_eq!(reports, [expected]);
    assert_eq!(names(&parts_held["hardware"].sensors), names(&parts_made["hardware"].sensors));
    assert!(machine.kernel.state().events.values().all(|event| event.attr.kind == 1), "all counters are free");
    assert!(!hardware.read().1.layout_changed, "nothing to look at until the file goes");
    software.check(&[("perf/page-faults", Some(0.0))]);
    // A job that begins meanwhile.
    let other = JobPlace { level: "4712".to_owned(), ..machine.place() };
    let mut late = Sampled::part(&parts(&mut jobs, &other).0["hardware"]);
    assert_eq!(late.read().1.problem.unwrap().to_string(), given_up);
    // It is the agent's again, or gone.
    machine.kernel.state().lock_owner = Some(OWN_UID);
    machine.kernel.state().now_ms += 100;
    assert!(hardware.read().1.layout_changed);
    assert_eq!(
        late.read().1,
        Reading { layout_changed: true, ..Reading::default() },
        "no trouble: they are to be opened"
    );
    parts(&mut jobs, &machine.place());
    parts(&mut jobs, &other);
    machine.kernel.times(0, 1, 1);
    machine.kernel.count(0, 0, 0, 11);
    hardware.check(&[("perf/cycles", Some(111.0))]);
    late.check(&[("perf/cycles", Some(11.0))]);
}

#[test]
fn the_nodes_counters_are_given_up_too() {
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
    // Sensors do not come and go with the file, nor those come that the machine has not.
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
