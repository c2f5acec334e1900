//! Jobs that begin, end, and are many.

use std::path::Path;

use crate::machine::{Cgroup, Machine, discover, sample, skips, unified, values};
use crate::workload::{Work, Worker};

#[test]
fn jobs_begin_and_end_and_do_not_inherit_counts() {
    if skips("jobs_begin_and_end_and_do_not_inherit_counts") {
        return;
    }
    let Some(mount) = unified() else { return };
    let (machine, first, second) = (Machine::new(), Cgroup::new(&mount), Cgroup::new(&mount));
    let worker = Worker::start(&Work::Sleeps(50, 100_000));
    first.enter(worker.pid);
    let _idle = Worker::idle_in(&second);
    let mut source = machine.source("jobs_max = 1\nprograms = [\"scheduler\"]\n");
    let (mut groups, _) = discover(source.as_mut());
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["ebpf"], "no jobs without records");
    let node = groups.get_mut("ebpf").unwrap();
    machine.jobs(&[("1", &[&first.path])]);
    assert!(sample(node).1.layout_changed, "a job has begun");
    assert!(!sample(node).1.layout_changed);
    // It is counted from now on, before the agent asks for its sensors.
    worker.run();
    let (mut groups, _) = discover(source.as_mut());
    let count = "job/1/ebpf/run_queue_latency/count";
    let before = values(groups.get_mut("job/1/ebpf").unwrap())[count];
    assert!(before >= 50, "{before}");
    // Another job has no slot, and takes none from the first.
    machine.jobs(&[("0", &[&second.path]), ("1", &[&first.path])]);
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports[0].contains("1 jobs are left out"), "{reports:?}");
    worker.run();
    assert!(values(groups.get_mut("job/1/ebpf").unwrap())[count] >= before + 50);
    let node = values(groups.get_mut("ebpf").unwrap());
    assert_eq!((node["ebpf/jobs"], node["ebpf/jobs_left_out"]), (1, 1));
    // The first ends: its sensors end, and the other job begins at 0 in its slot.
    machine.jobs(&[("0", &[&second.path])]);
    assert!(sample(groups.get_mut("ebpf").unwrap()).1.layout_changed);
    let (gaps, reading) = sample(groups.get_mut("job/1/ebpf").unwrap());
    assert!(reading.gone && gaps.values().all(Option::is_none), "{reading:?}");
    worker.run();
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty() && !groups.contains_key("job/1/ebpf"), "{reports:?}");
    let counted = values(groups.get_mut("job/0/ebpf").unwrap());
    assert!(counted.values().all(|value| *value == 0), "{counted:?}");
    // The process moves into the other job.
    second.enter(worker.pid);
    worker.run();
    let counted = values(groups.get_mut("job/0/ebpf").unwrap());
    assert!(counted["job/0/ebpf/run_queue_latency/count"] >= 50);
}

#[test]
fn a_thousand_cgroups_and_a_deep_one_belong_to_their_job() {
    if skips("a_thousand_cgroups_and_a_deep_one_belong_to_their_job") {
        return;
    }
    let Some(mount) = unified() else { return };
    let (machine, first, second) = (Machine::new(), Cgroup::new(&mount), Cgroup::new(&mount));
    let _idle = [Worker::idle_in(&first), Worker::idle_in(&second)];
    machine.jobs(&[("1", &[&first.path]), ("2", &[&second.path])]);
    let mut source = machine.source("programs = [\"scheduler\"]\n");
    let (mut groups, _) = discover(source.as_mut());
    let many: Vec<Cgroup> = (0..1000).map(|index| Cgroup::at(first.path.join(index.to_string()))).collect();
    let mut deep = vec![Cgroup::at(first.path.join("deep"))];
    for _ in 0..40 {
        let path: &Path = &deep[deep.len() - 1].path;
        deep.push(Cgroup::at(path.join("d")));
    }
    let count = |groups: &mut std::collections::BTreeMap<String, wholegrain_sources::GroupPlan>, job: &str| {
        values(groups.get_mut(&format!("job/{job}/ebpf")).unwrap())[&format!("job/{job}/ebpf/run_queue_latency/count")]
    };
    let worker = Worker::start(&Work::Sleeps(20, 100_000));
    for cgroup in many.iter().step_by(100).chain(deep.last()) {
        let before = count(&mut groups, "1");
        cgroup.enter(worker.pid);
        worker.run();
        let counted = count(&mut groups, "1") - before;
        assert!(counted >= 20, "{counted} in {}", cgroup.path.display());
    }
    assert_eq!(count(&mut groups, "2"), 0, "nobody is in the other job");
    second.enter(worker.pid);
    worker.run();
    assert!(count(&mut groups, "2") >= 20, "which is counted as well as before");
    while deep.pop().is_some() {}
}

/// A user makes many cgroups with names of jobs and no process, then with one each. Another user's job is counted all the same.
#[test]
fn a_job_is_counted_beside_many_of_another_user() {
    if skips("a_job_is_counted_beside_many_of_another_user") {
        return;
    }
    let Some(mount) = unified() else { return };
    let machine = Machine::new();
    let many: Vec<Cgroup> = (0..8).map(|_| Cgroup::new(&mount)).collect();
    let own = Cgroup::new(&mount);
    let names: Vec<String> = (0..many.len()).map(|index| format!("00{index}")).collect();
    let mut jobs: Vec<(&str, u32, &Path)> =
        names.iter().zip(&many).map(|(name, cgroup)| (name.as_str(), 1000, cgroup.path.as_path())).collect();
    machine.jobs_of(&jobs);
    let mut source = machine.source("jobs_max = 3\nprograms = [\"scheduler\"]\n");
    let (mut groups, reports) = discover(source.as_mut());
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["ebpf"]);
    assert!(reports[0].contains("8 jobs are left out or counted in part, 8 of them without a process"), "{reports:?}");
    let node = values(groups.get_mut("ebpf").unwrap());
    assert_eq!((node["ebpf/jobs"], node["ebpf/jobs_left_out"]), (0, 8));
    // They get processes: the user has all slots.
    let _idle: Vec<Worker> = many.iter().map(Worker::idle_in).collect();
    assert!(sample(groups.get_mut("ebpf").unwrap()).1.layout_changed);
    let (groups, _) = discover(source.as_mut());
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["ebpf", "job/000/ebpf", "job/001/ebpf", "job/002/ebpf"]);
    let worker = Worker::idle_in(&own);
    jobs.push(("4711", 1001, &own.path));
    machine.jobs_of(&jobs);
    let (mut groups, _) = discover(source.as_mut());
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["ebpf", "job/000/ebpf", "job/001/ebpf", "job/4711/ebpf"]);
    let node = values(groups.get_mut("ebpf").unwrap());
    assert_eq!((node["ebpf/jobs"], node["ebpf/jobs_left_out"]), (3, 6));
    drop(worker);
}
