//! Groups, multiplexing, sums, and readers that come and go.

use super::*;

const CYCLES: (u32, u64) = (0, 0);
const INSTRUCTIONS: (u32, u64) = (0, 1);

fn two(machine: &Machine, cpu: u32, cycles: u64, instructions: u64) {
    machine.kernel.count(cpu, CYCLES.0, CYCLES.1, cycles);
    machine.kernel.count(cpu, INSTRUCTIONS.0, INSTRUCTIONS.1, instructions);
}

const PAIR: &str = "groups = [[\"cycles\", \"instructions\"]]\nevents = []";

#[test]
fn the_default_events_are_packed_so_that_ratios_are_of_one_instant() {
    let machine = Machine::new();
    let (sets, reports) = metric_sets(&mut machine.jobs(""), &machine.cgroups());
    assert_eq!(reports, [""; 0]);
    let software = ["task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults"];
    assert_eq!(names(&sets["software"].sensors), software.map(|name| format!("perf/{name}")));
    let hardware =
        ["perf/cycles", "perf/instructions", "perf/cache-references", "perf/cache-misses", "perf/hardware/running"];
    assert_eq!(names(&sets["hardware"].sensors), hardware);
    assert_eq!(names(&sets["hardware_2"].sensors), ["perf/branches", "perf/branch-misses", "perf/hardware_2/running"]);
    assert_eq!(sets.len(), 3);
    assert_eq!(machine.kernel.state().events.len(), 12 * 2);
    assert!(sets.values().all(|set| set.interval_min.ns() == 1_000_000 && !set.blocking));
    let all_sensors: Vec<SensorDef> = sets.values().flat_map(|set| set.sensors.clone()).collect();
    let prefix = wholegrain_model::SensorPath::new("/n").unwrap();
    wholegrain_model::Schema::new(prefix, "job", all_sensors).expect("a valid schema");
}

#[test]
fn each_group_is_read_once_on_each_cpu() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(""), &machine.cgroups());
    let mut readers: Vec<Sampled> = sets.values().map(Sampled::set).collect();
    machine.kernel.state().reads = 0;
    readers.iter_mut().for_each(|reader| drop(reader.read()));
    assert_eq!(machine.kernel.state().reads, 3 * 2);
    let mut none = Sampled::some(&sets["software"], &[]);
    none.check(&[]);
    assert_eq!(machine.kernel.state().reads, 3 * 2, "a reader without slots reads nothing");
}

#[test]
fn counts_are_summed_over_cpus() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(""), &machine.cgroups());
    let mut software = Sampled::set(&sets["software"]);
    machine.kernel.count(0, 1, 1, 1_500_000_000);
    machine.kernel.count(1, 1, 1, 500_000_000);
    machine.kernel.count(1, 1, 2, 77);
    software.check(&[
        ("perf/task-clock", Some(2.0)),
        ("perf/page-faults", Some(77.0)),
        ("perf/major-faults", Some(0.0)),
    ]);
}

#[test]
fn multiplexed_counts_are_scaled_and_the_fraction_is_a_sensor() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
    let mut reader = Sampled::set(&sets["group_1"]);
    let mut step = |times: [(u64, u64); 2], counts: [(u64, u64); 2], cycles, instructions, running| {
        for cpu in 0..2 {
            machine.kernel.times(cpu, times[cpu as usize].0, times[cpu as usize].1);
            two(&machine, cpu, counts[cpu as usize].0, counts[cpu as usize].1);
        }
        let expected =
            [("perf/cycles", cycles), ("perf/instructions", instructions), ("perf/group_1/running", running)];
        reader.check(&expected);
    };
    step([(100, 100), (100, 100)], [(1000, 500), (1000, 500)], Some(2000.0), Some(1000.0), Some(1.0));
    // Half of the time on one CPU: its counts are doubled, those of the other CPU are not.
    step([(200, 150), (200, 200)], [(1500, 750), (2000, 1000)], Some(4000.0), Some(2000.0), Some(0.75));
    // A quarter: the fraction of the whole time falls, the sum does not.
    step([(300, 175), (300, 225)], [(1750, 875), (2250, 1125)], Some(6000.0), Some(3000.0), Some(0.25));
    // The job was idle: no counts, and no fraction of a time of zero.
    step([(300, 175), (300, 225)], [(1750, 875), (2250, 1125)], Some(6000.0), Some(3000.0), None);
    // Other groups had the hardware all the time.
    step([(400, 175), (400, 225)], [(1750, 875), (2250, 1125)], None, None, Some(0.0));
    // Of three times 100 ns, one is counted on each CPU.
    step([(600, 275), (600, 325)], [(2750, 1375), (3250, 1625)], Some(12_000.0), Some(6000.0), Some(0.5));
}

#[test]
fn readers_share_the_sums() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
    let set = &sets["group_1"];
    let mut slow = Sampled::some(set, &["perf/instructions", "perf/group_1/running"]);
    let mut fast = Sampled::some(set, &["perf/cycles"]);
    for ms in 1..=10u64 {
        machine.kernel.times(0, 2 * ms, ms);
        two(&machine, 0, 100 * ms, 10 * ms);
        fast.check(&[("perf/cycles", Some(200.0 * ms as f64))]);
    }
    slow.check(&[("perf/instructions", Some(200.0)), ("perf/group_1/running", Some(0.5))]);
    // A rule changes: the new reader is opened before the old one is dropped, and the counter goes on.
    let mut both = Sampled::some(set, &["perf/cycles", "perf/instructions"]);
    drop((fast, slow));
    both.check(&[("perf/cycles", Some(2000.0)), ("perf/instructions", Some(200.0))]);
    // Nothing was counted since the read of another reader. The interval of this reader decides.
    let mut other = Sampled::set(set);
    machine.kernel.times(0, 40, 15);
    two(&machine, 0, 1500, 150);
    other.check(&[("perf/cycles", Some(4000.0))]);
    machine.kernel.times(0, 41, 15);
    both.check(&[("perf/cycles", Some(4000.0))]);
    other.check(&[("perf/cycles", None), ("perf/group_1/running", Some(0.0))]);
}

#[test]
fn a_counter_goes_on_after_its_overflow() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
    let mut reader = Sampled::some(&sets["group_1"], &["perf/cycles"]);
    let mut raw = |time, cycles| {
        machine.kernel.times(0, time, time);
        two(&machine, 0, cycles, 0);
        reader.read().0["perf/cycles"].unwrap() as i64
    };
    raw(1, 1 << 62);
    raw(2, 1 << 63);
    let before = raw(3, u64::MAX - 9);
    assert_eq!(raw(4, 10).wrapping_sub(before), 20);
}

#[test]
fn a_group_that_never_gets_a_counter_is_reported() {
    let machine = Machine::new();
    let (sets, _) = metric_sets(&mut machine.jobs(PAIR), &machine.cgroups());
    let mut reader = Sampled::set(&sets["group_1"]);
    machine.kernel.times(0, 500_000_000, 0);
    reader.check(&[("perf/cycles", None)]);
    machine.kernel.times(0, 1_500_000_000, 0);
    let (values, reading) = reader.read();
    assert_eq!(values["perf/cycles"], None);
    assert!(reading.problem.unwrap().to_string().starts_with("perf events that find no free counters"));
}

#[test]
fn jobs_count_on_their_cpus_in_their_cgroup() {
    let machine = Machine::new();
    let cgroups = JobCgroups { cpus: vec![1, 7], ..machine.cgroups() };
    let mut jobs = machine.jobs(PAIR);
    let (_, reports) = metric_sets(&mut jobs, &cgroups);
    assert_eq!(reports, [""; 0]);
    let state = machine.kernel.state();
    assert!(state.directories.is_empty(), "only open while counters are opened");
    assert_eq!(state.events.values().map(|event| event.cpu).collect::<Vec<_>>(), [1, 1], "7 is offline");
    assert!(state.events.values().all(|event| matches!(event.scope, crate::perf::kernel::CountScope::Cgroup(_))));
}

#[test]
fn a_job_that_moves_to_more_cpus_goes_on() {
    let machine = Machine::new();
    let mut jobs = machine.jobs(PAIR);
    let mut cgroups = JobCgroups { cpus: vec![0], ..machine.cgroups() };
    let mut reader = Sampled::set(&metric_sets(&mut jobs, &cgroups).0["group_1"]);
    machine.kernel.times(0, 10, 10);
    two(&machine, 0, 100, 10);
    reader.check(&[("perf/cycles", Some(100.0))]);
    cgroups.cpus = Vec::new();
    // New counters begin at 0, as in the kernel.
    two(&machine, 0, 150, 15);
    machine.kernel.times(0, 15, 15);
    metric_sets(&mut jobs, &cgroups);
    two(&machine, 0, 5, 1);
    two(&machine, 1, 7, 1);
    machine.kernel.times(0, 1, 1);
    machine.kernel.times(1, 1, 1);
    reader.check(&[
        ("perf/cycles", Some(162.0)),
        ("perf/instructions", Some(17.0)),
        ("perf/group_1/running", Some(1.0)),
    ]);
    assert_eq!(machine.kernel.state().events.len(), 4);
}

#[test]
fn forgotten_jobs_leave_no_descriptor_open() {
    let machine = Machine::new();
    let mut jobs = machine.jobs("");
    let (sets, _) = metric_sets(&mut jobs, &machine.cgroups());
    let mut reader = Sampled::set(&sets["software"]);
    jobs.forget(&machine.cgroups());
    assert_eq!(machine.kernel.descriptors(), 0, "even while readers exist");
    assert!(reader.read().1.gone);
    // Another job of the same name.
    let (sets, _) = metric_sets(&mut jobs, &machine.cgroups());
    assert_eq!(machine.kernel.descriptors(), 24);
    drop(jobs);
    assert_eq!(machine.kernel.descriptors(), 24, "held by its sets");
    drop(sets);
    assert_eq!(machine.kernel.descriptors(), 0);
}
