//! Run-queue latency and off-CPU time against `/proc/<pid>/schedstat`.

use std::collections::BTreeMap;
use std::path::Path;

use wholegrain_sources::GroupPlan;
use wholegrain_testkit::wait_for;

use crate::machine::{Cgroup, MOUNT, Machine, discover, skips, unified, values};
use crate::workload::{SchedStat, Work, Worker};

const SLEEPS: u32 = 60;
const SLEEP_NS: i64 = 3_000_000;

/// The job's values of one run of the process, and what the kernel counted of it.
fn run(worker: &Worker, job: &mut GroupPlan) -> (BTreeMap<String, i64>, SchedStat) {
    let (stat_before, before) = (worker.sched_stat(), values(job));
    worker.run();
    let stat = worker.sched_stat();
    let counted = values(job).into_iter().map(|(name, value)| {
        let below = name.strip_prefix("job/7/ebpf/").unwrap().to_owned();
        (below, value - before[&name])
    });
    let (run_delay_ns, count) = (stat.run_delay_ns - stat_before.run_delay_ns, stat.count - stat_before.count);
    (counted.collect(), SchedStat { run_delay_ns, count })
}

/// The waits of the job are those that the kernel counted of its only process, to the nanosecond.
fn job_equals_schedstat(mount: &Path) {
    let (machine, cgroup) = (Machine::new(), Cgroup::new(mount));
    // Its processes are below the job's directory.
    let below = Cgroup::at(cgroup.path.join("step"));
    let _idle = Worker::idle_in(&below);
    machine.jobs(&[("7", &[&cgroup.path])]);
    let mut source = machine.source("programs = [\"scheduler\"]\n");
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    let worker = Worker::start(&Work::Sleeps(SLEEPS, SLEEP_NS));
    below.enter(worker.pid);
    let mut job = groups.remove("job/7/ebpf").expect("a group of the job");
    // Some virtual machines hide tasks of their supervisor from tracepoints: a switch from one of them to the process is not seen, and counted as
    // lost. The run is repeated then.
    let node = groups.get_mut("ebpf").unwrap();
    let (counted, stat) = wait_for("a run without an unseen switch", || {
        let unseen = values(node)["ebpf/lost/unseen"];
        let (counted, stat) = run(&worker, &mut job);
        (values(node)["ebpf/lost/unseen"] == unseen).then_some((counted, stat))
    });
    let of = |name: &str| counted[name];
    assert!(stat.count >= i64::from(SLEEPS), "{stat:?}");
    assert_eq!(of("run_queue_latency/count"), stat.count);
    assert_eq!(of("run_queue_latency/sum"), stat.run_delay_ns);
    assert_eq!(of("run_queue_latency/le=Inf/bucket"), stat.count);
    // Each time that it ran, it had been off its CPU before: at least as long as it waited, and as it slept.
    assert_eq!(of("off_cpu_time/count"), stat.count);
    assert!(of("off_cpu_time/count") - of("off_cpu_time/le=0.002048/bucket") >= i64::from(SLEEPS));
    assert!(of("off_cpu_time/sum") >= i64::from(SLEEPS) * SLEEP_NS + of("run_queue_latency/sum"));
    // The sum of a histogram's values is within its buckets' bounds.
    let mut low = 0.0;
    let (mut least, mut most, mut below_bound) = (0.0, 0.0, 0);
    for power in 0..25 {
        let bound = f64::from(1_u32 << power) / 1e6;
        let up_to = of(&format!("off_cpu_time/le={bound}/bucket"));
        assert!(up_to >= below_bound, "buckets are cumulative");
        least += (up_to - below_bound) as f64 * low;
        most += (up_to - below_bound) as f64 * bound;
        (low, below_bound) = (bound, up_to);
    }
    let sum = of("off_cpu_time/sum") as f64 / 1e9;
    assert_eq!(below_bound, of("off_cpu_time/count"), "nothing was longer");
    assert!((least..=most).contains(&sum), "{least} {sum} {most}");
    let node = values(node);
    for name in ["run_queue_latency/count", "run_queue_latency/sum", "off_cpu_time/sum"] {
        assert!(node[&format!("ebpf/{name}")] >= of(name), "the job is part of the node: {name}");
    }
}

#[test]
fn waits_of_a_job_of_version_2() {
    let Some(mount) = unified() else {
        crate::machine::said("waits_of_a_job_of_version_2", "no unified hierarchy");
        return;
    };
    if !skips("waits_of_a_job_of_version_2") {
        job_equals_schedstat(&mount);
    }
}

#[test]
fn waits_of_a_job_of_version_1() {
    let controllers = ["freezer", "memory", "pids", "cpuacct"].map(|name| Path::new(MOUNT).join(name));
    let Some(mount) = controllers.iter().find(|dir| dir.join("tasks").exists()) else {
        crate::machine::said("waits_of_a_job_of_version_1", "no hierarchy of version 1");
        return;
    };
    if !skips("waits_of_a_job_of_version_1") {
        job_equals_schedstat(mount);
    }
}

#[test]
fn tasks_that_are_born_later_are_counted_from_their_first_wait() {
    if skips("tasks_that_are_born_later") {
        return;
    }
    let Some(mount) = unified() else { return };
    let (machine, cgroup) = (Machine::new(), Cgroup::new(&mount));
    let _idle = Worker::idle_in(&cgroup);
    machine.jobs(&[("8", &[&cgroup.path])]);
    let mut source = machine.source("programs = [\"scheduler\"]\n");
    let (mut groups, _) = discover(source.as_mut());
    let job = groups.get_mut("job/8/ebpf").unwrap();
    let mut child = std::process::Command::new("sh");
    child.args(["-c", "echo $$ > \"$0\"/cgroup.procs; for i in 1 2 3 4 5; do sleep 0.01; done"]).arg(&cgroup.path);
    assert!(child.status().unwrap().success());
    // Five processes with at least a first wait and a sleep each.
    let counted = wait_for("the waits of five processes", || {
        let counted = values(job);
        (counted["job/8/ebpf/run_queue_latency/count"] >= 10).then_some(counted)
    });
    let longer = counted["job/8/ebpf/off_cpu_time/count"] - counted["job/8/ebpf/off_cpu_time/le=0.008192/bucket"];
    assert!(longer >= 5, "{longer}");
    assert!(
        counted["job/8/ebpf/run_queue_latency/count"] > counted["job/8/ebpf/off_cpu_time/count"],
        "a first wait follows no time off a CPU"
    );
}
