//! PMUs, tracepoints, the node's scope, the configuration.

use super::*;

fn rapl(machine: &Machine) {
    machine.pmu(
        "power",
        &[
            ("type", "12\n"),
            ("cpumask", "0\n"),
            ("format/event", "config:0-7\n"),
            ("events/energy-pkg", "event=0x02\n"),
            ("events/energy-pkg.scale", "2.3283064365386962890625e-10\n"),
            ("events/energy-pkg.unit", "Joules\n"),
            ("events/energy-ram", "event=0x03\n"),
            ("events/energy-ram.scale", "2.3283064365386962890625e-10\n"),
            ("events/energy-ram.unit", "Joules\n"),
        ],
    );
}

#[test]
fn rapl_is_in_joules_on_one_cpu_of_each_package() {
    let machine = Machine::new();
    rapl(&machine);
    let (sampled, reports) =
        discover(&mut machine.node("node_events = [\"power/energy-pkg/\", \"power/energy-ram/\"]"));
    let mut sampled = sampled.unwrap();
    assert_eq!(reports, [""; 0]);
    assert_eq!(names(&sampled.sensors), ["perf/power.energy-pkg", "perf/power.energy-ram", "perf/power/running"]);
    assert!(sampled.sensors[0].unit == "J" && sampled.sensors[0].kind == wholegrain_model::Kind::Counter);
    assert!(machine.kernel.state().events.values().all(|event| event.cpu == 0 && event.attr.kind == 12));
    machine.kernel.times(0, 1, 1);
    machine.kernel.count(0, 12, 2, 150 << 32);
    machine.kernel.count(0, 12, 3, 1 << 31);
    sampled.check(&[("perf/power.energy-pkg", Some(150.0)), ("perf/power.energy-ram", Some(0.5))]);
    // 500 W for a year: the kernel's 64 bits of 2^-32 J have wrapped several times.
    let (mut joules, mut time) = (150u64, 1);
    for _ in 0..400 {
        (joules, time) = (joules + 500 * 86_400, time + 1);
        machine.kernel.times(0, time, time);
        machine.kernel.count(0, 12, 2, joules << 32);
        sampled.check(&[("perf/power.energy-pkg", Some(joules as f64))]);
    }
}

#[test]
fn events_of_the_whole_node_are_not_available_for_a_job() {
    let machine = Machine::new();
    rapl(&machine);
    let (sets, reports) =
        metric_sets(&mut machine.jobs("events = [\"power/energy-pkg/\", \"page-faults\"]"), &machine.cgroups());
    assert_eq!(sets.keys().collect::<Vec<_>>(), ["software"]);
    assert!(reports[0].contains("power/energy-pkg/ counts all") && reports[0].contains("node_events"), "{reports:?}");
}

#[test]
fn numbered_pmus_are_summed() {
    let machine = Machine::new();
    for index in 0..3 {
        machine.pmu(
            &format!("uncore_imc_{index}"),
            &[
                ("type", &(20 + index).to_string()),
                ("cpumask", "0-1"),
                ("format/event", "config:0-7"),
                ("format/umask", "config:8-15"),
                ("events/cas_count_read", "event=0x04,umask=0x03"),
                ("events/cas_count_read.scale", "6.103515625e-5"),
                ("events/cas_count_read.unit", "MiB"),
            ],
        );
        for cpu in 0..2 {
            machine.kernel.count(cpu, 20 + index, 0x304, 16_384 * (u64::from(index) + 1));
        }
    }
    machine.pmu("uncore_imc_free_running_0", &[("type", "40")]);
    (0..2).for_each(|cpu| machine.kernel.times(cpu, 1, 1));
    let mut node = machine.node("node_events = [\"uncore_imc/cas_count_read/\"]");
    let mut sampled = discover(&mut node).0.unwrap();
    assert_eq!(sampled.sensors[0].unit, "MiBy");
    sampled.check(&[("perf/uncore_imc.cas_count_read", Some(12.0))]);
    assert_eq!(machine.kernel.descriptors(), 6);
    let mut sampled =
        discover(&mut machine.node("node_events = [\"uncore_imc_1/event=4,umask=3,name=reads/\"]")).0.unwrap();
    sampled.check(&[("perf/reads", Some(65_536.0))]);
}

#[test]
fn fields_set_their_bits() {
    let machine = Machine::new();
    machine.pmu(
        "cpu",
        &[
            ("type", "4"),
            ("format/event", "config:0-7,32-35"),
            ("format/umask", "config:8-15"),
            ("format/edge", "config:18"),
            ("format/offcore_rsp", "config1:0-63"),
            ("format/ldlat", "config2:4-19"),
            ("format/wide", "config3:0-7"),
            ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
            ("events/any", "event=?"),
        ],
    );
    let open = |event: &str| {
        machine.kernel.state().events.clear();
        let mut jobs = machine.jobs(&format!("events = [\"{event}\"]"));
        let (made, reports) = metric_sets(&mut jobs, &machine.cgroups());
        let attr = machine.kernel.state().events.values().next().map(|event| event.attr);
        jobs.forget(&machine.cgroups());
        drop(made);
        (attr.map(|attr| (attr.kind, attr.config, attr.config1, attr.config2)), reports)
    };
    assert_eq!(open("cpu/event=0x3c,umask=0x12,edge/").0, Some((4, 0x4_123c, 0, 0)));
    assert_eq!(open("cpu/event=0xabc/").0, Some((4, 0xa_0000_00bc, 0, 0)));
    assert_eq!(open("cpu/event=0xb7,offcore_rsp=0xffffffffffffffff/").0, Some((4, 0xb7, u64::MAX, 0)));
    assert_eq!(open("cpu/mem-loads/").0, Some((4, 0x1cd, 0, 0x30)));
    assert_eq!(open("cpu/mem-loads,ldlat=0x100/").0, Some((4, 0x1cd, 0, 0x1030)));
    assert_eq!(open("cpu/config=0x1,config1=2,config2=3/").0, Some((4, 1, 2, 3)));
    let refused = |event: &str, part: &str| {
        let (attr, reports) = open(event);
        assert!(
            attr.is_none() && reports.len() == 1 && reports[0].contains(part),
            "{event}: {reports:?} lack {part:?}"
        );
    };
    refused("cpu/event=0x1000/", "event=0x1000 does not fit into its 12 bits");
    refused("cpu/umsk=1/", "unknown event or field `umsk`; did you mean `umask`?");
    refused("cpu/mem_loads/", "did you mean `mem-loads`?");
    refused("cpu/any/", "by a value");
    refused("cpu/wide=1/", "cannot parse `config3:0-7`");
    refused("cpus/event=1/", "this machine has no such PMU: unknown PMU `cpus`; did you mean `cpu`?");
    refused("gpu_busy/event=1/", "this machine has no such PMU: unknown PMU `gpu_busy`; expected one of `cpu`");
}

#[test]
fn tracepoints_are_looked_up_in_tracefs() {
    let machine = Machine::new();
    let keys = "events = [\"sched:sched_switch\", \"page-faults\"]";
    let (sets, reports) = metric_sets(&mut machine.jobs(keys), &machine.cgroups());
    assert_eq!(names(&sets["software"].sensors), ["perf/page-faults"]);
    assert!(
        reports[0].contains("sched:sched_switch is left out") && reports[0].contains("mount -t tracefs"),
        "{reports:?}"
    );
    drop(sets);
    machine.write("sys/kernel/debug/tracing/events/sched/sched_switch/id", "316\n");
    let (sets, reports) = metric_sets(&mut machine.jobs(keys), &machine.cgroups());
    assert_eq!(
        (names(&sets["software"].sensors), reports.len()),
        (vec!["perf/sched:sched_switch", "perf/page-faults"], 0)
    );
    let kinds: Vec<(u32, u64)> =
        machine.kernel.state().events.values().map(|event| (event.attr.kind, event.attr.config)).collect();
    assert_eq!(kinds, [(2, 316), (1, 2), (2, 316), (1, 2)]);
    let (_, reports) =
        metric_sets(&mut machine.jobs("events = [\"sched:sched_swich\", \"shed:x\"]"), &machine.cgroups());
    assert!(reports[0].contains("unknown tracepoint `sched_swich`; did you mean `sched_switch`?"), "{reports:?}");
    assert!(reports[1].contains("unknown subsystem `shed`; did you mean `sched`?"), "{reports:?}");
}

#[test]
fn sensors_of_each_cpu_of_the_node() {
    let machine = Machine::new();
    let mut node = machine
        .node("node_events = [\"page-faults\", \"cycles\"]\nper_cpu = true\nmetrics.exclude = [\"**/1/cycles\"]");
    let mut sampled = discover(&mut node).0.unwrap();
    let expected = ["perf/cpu/0/page-faults", "perf/cpu/1/page-faults", "perf/cpu/0/cycles", "perf/hardware/running"];
    assert_eq!(names(&sampled.sensors), expected);
    machine.kernel.count(0, 1, 2, 3);
    machine.kernel.count(1, 1, 2, 4);
    machine.kernel.count(0, 0, 0, 50);
    machine.kernel.times(0, 20, 10);
    machine.kernel.times(1, 20, 20);
    sampled.check(&[
        ("perf/cpu/0/page-faults", Some(3.0)),
        ("perf/cpu/1/page-faults", Some(4.0)),
        ("perf/cpu/0/cycles", Some(100.0)),
        ("perf/hardware/running", Some(0.75)),
    ]);
    machine.kernel.times(0, 30, 10);
    machine.kernel.times(1, 30, 30);
    sampled.check(&[("perf/cpu/0/cycles", None), ("perf/hardware/running", Some(0.5))]);
    assert_eq!(machine.kernel.descriptors(), 4);
    discover(&mut node);
    assert_eq!(machine.kernel.descriptors(), 4, "another discovery opens no counters");
}

#[test]
fn no_event_of_the_node_is_counted_by_default() {
    let machine = Machine::new();
    let (sampled, reports) = discover(&mut machine.node(""));
    assert!(sampled.is_none() && reports.is_empty() && machine.kernel.descriptors() == 0);
}

#[test]
fn configured_groups_and_packed_single_events() {
    let check = |keys: &str, expected: &[(&str, &[&str])]| {
        let config = config(keys).unwrap();
        let groups: Vec<(&str, Vec<&str>)> = config
            .jobs
            .iter()
            .map(|group| (group.name.as_str(), group.events.iter().map(|event| event.text.as_str()).collect()))
            .collect();
        let expected: Vec<(&str, Vec<&str>)> = expected.iter().map(|(name, events)| (*name, events.to_vec())).collect();
        assert_eq!(groups, expected, "{keys}");
    };
    let software: &[&str] =
        &["task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults"];
    check(
        "groups = [[\"cycles\", \"instructions\", \"task-clock\"]]",
        &[
            ("group_1", &["cycles", "instructions", "task-clock"]),
            ("software", &software[1..]),
            ("hardware", &["cache-references", "cache-misses", "branches", "branch-misses"]),
        ],
    );
    check(
        "group_max = 2\nevents = [\"r1\", \"cycles\", \"LLC-loads\", \"a/x/\", \"cs\", \"b/x/\", \"sched:y\", \"cpu/x/\", \"hardware/x/\"]",
        &[
            ("software", &["context-switches", "sched:y"]),
            ("hardware", &["r1", "cycles"]),
            ("hardware_2", &["LLC-loads", "cpu/x/"]),
            ("a", &["a/x/"]),
            ("b", &["b/x/"]),
            ("hardware_pmu", &["hardware/x/"]),
        ],
    );
    check("events = []", &[]);
}

#[test]
fn a_relative_lock_file_is_below_the_configurations_directory() {
    let lock_file = |keys: &str| config(keys).unwrap().lock_file;
    assert_eq!(lock_file("lock_file = \"likwid.lock\""), Some("/etc/wholegrain/likwid.lock".into()));
    assert_eq!(lock_file("lock_file = \"/run/likwid.lock\""), Some("/run/likwid.lock".into()));
}

#[test]
fn errors_name_file_and_line() {
    let check = |keys: &str, expected: &str| {
        let error = config(keys).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with(expected), "{keys:?}: {error:?} does not begin with {expected:?}");
    };
    check("event = []", "agent.toml:2:1: unknown key `event`; did you mean `events`?");
    check("events = [\"cycels\"]", "agent.toml:2:1: unknown event `cycels`; did you mean `cycles`?");
    check(
        "node_events = [\"instrutions\"]",
        "agent.toml:2:1: unknown event `instrutions`; did you mean `instructions`?",
    );
    check("groups = [[]]", "agent.toml:2:1: a group has 0 events");
    check(
        "groups = [[\"cycles\", \"power/energy-pkg/\"]]",
        "agent.toml:2:1: the group cycles, power/energy-pkg/ has events of several PMUs",
    );
    check("events = [\"cycles\", \"cpu-cycles\"]", "agent.toml:2:1: event `cycles` is configured twice");
    check("group_max = 0", "agent.toml:2:1: group_max is 0; expected 1 to 64");
    check("interval = \"1us\"", "agent.toml:2:1: interval 1us is shorter than 1ms");
}
