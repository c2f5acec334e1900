//! Files of jobs: the same names in both versions, errors, and the running kernel.

mod tree;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use expect_test::expect_file;
use tree::{RealJob, Tree, V1_JOB, V2_JOB, cgroups, fixture, job_source, metric_sets, open, read_set, roots, sample};
use wholegrain_sources::job::{JobCgroups, JobSource};
use wholegrain_sources::{ReadProblem, Reading, Roots};
use wholegrain_testkit::wait_until;

const GOOD: Reading = Reading::COMPLETE;
const GONE: Reading = Reading { gone: true, ..Reading::COMPLETE };

fn cgroup(config: &str, roots: &Roots) -> Box<dyn JobSource> {
    job_source("cgroup", config, roots).unwrap()
}

/// The two handmade jobs, which did the same work.
fn handmade() -> (Box<dyn JobSource>, JobCgroups, JobCgroups) {
    let root = fixture("handmade/cgroup");
    (cgroup("", &roots(&fixture("handmade"))), cgroups(&root, V1_JOB, "none"), cgroups(&root, "none", V2_JOB))
}

#[test]
fn both_versions_have_the_same_names_units_and_kinds() {
    let (mut source, v1, v2) = handmade();
    let mut of = |cgroups: &JobCgroups| {
        let (sets, reports) = metric_sets(source.as_mut(), cgroups);
        assert_eq!(reports, [""; 0], "nothing is missing");
        let sensors = sets.into_values().flat_map(|set| set.sensors);
        sensors.map(|sensor| (sensor.name, sensor.unit, format!("{:?}", sensor.kind), sensor.description)).collect()
    };
    let (v1, v2): (BTreeSet<_>, BTreeSet<_>) = (of(&v1), of(&v2));
    let names = |set: &BTreeSet<(String, String, String, String)>, other: &BTreeSet<_>| {
        let names: Vec<&str> = set.difference(other).map(|(name, ..)| name.as_str()).collect();
        names.join("\n") + "\n"
    };
    assert_eq!(v1.intersection(&v2).count(), 65);
    // Only metrics that one of the versions lacks. Any other would be a name that depends on the version.
    let differences = format!("only version 1:\n{}\nonly version 2:\n{}", names(&v1, &v2), names(&v2, &v1));
    println!("{differences}");
    expect_file!["../fixtures/cgroup-differences.txt"].assert_eq(&differences);
}

#[test]
fn both_versions_have_the_same_values() {
    let (mut source, v1, v2) = handmade();
    let (v1, v2) = (sample(source.as_mut(), &v1), sample(source.as_mut(), &v2));
    for (name, value) in &v1 {
        // Version 1 counts times in ns, version 2 in us. The user and system times of version 1 come from ticks.
        let tolerance = if name.starts_with("cpu/") { 1.0 } else { 0.0 };
        if let Some(other) = v2.get(name) {
            assert!((value - other).abs() <= tolerance, "{name}: {value} and {other}");
        }
    }
    assert_eq!((v2["io/nvme0n1/reads"], v2["io/9:127/reads"]), (40960.0, 1.0));
}

#[test]
fn a_mixed_machine_gives_each_metric_once() {
    let mut source = cgroup("", &roots(&fixture("recorded")));
    let mixed = tree::recorded(&fixture("recorded/cgroup"));
    // The helper refuses duplicate names.
    let all = sample(source.as_mut(), &mixed);
    assert_eq!((all["cpu/usage"], all["cpu/nice"]), (2.170525, 0.0));
    let unified = JobCgroups { v1: Default::default(), ..mixed };
    let (_, reports) = metric_sets(source.as_mut(), &unified);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("the controllers cpu, memory, io, pids are not enabled"), "{reports:?}");
    assert_eq!(sample(source.as_mut(), &unified)["cpu/usage"], 2.170525, "from cpu.stat where there is no cpuacct");
}

#[test]
fn filters_and_devices() {
    let check = |keys: &str, expected: usize| {
        let mut source = cgroup(&format!("[sources.cgroup]\n{keys}\n"), &roots(&fixture("handmade")));
        let all = sample(source.as_mut(), &cgroups(&fixture("handmade/cgroup"), "none", V2_JOB));
        assert_eq!(all.len(), expected, "{keys}: {:?}", all.keys());
    };
    check("", 154);
    check("per_device = false", 130);
    check("metrics.include = [\"cpu/*\", \"io/*\"]", 16);
    check("metrics = { include = [\"memory/**\"], exclude = [\"memory/pg*\", \"events/*\"] }", 66);
    check("metrics.include = [\"usage\"]", 2);
    let error = job_source("cgroup", "[sources.cgroup]\nper_devise = true\n", &Roots::default()).err().unwrap();
    assert!(error.to_string().starts_with("agent.toml:2:1: unknown key `per_devise`; did you mean `per_device`?"));
}

#[test]
fn the_configurations_in_the_readmes_are_taken() {
    for name in ["cgroup", "tasks"] {
        let readme = std::fs::read_to_string(fixture("../src").join(name).join("README.md")).unwrap();
        let (_, block) = readme.split_once("```toml\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let mut source =
            job_source(name, block, &roots(&fixture("handmade"))).unwrap_or_else(|error| panic!("{error}"));
        let made = source.metric_sets(&cgroups(&fixture("handmade/cgroup"), "none", V2_JOB), &mut |_| {});
        // The /proc of the recorded tree has no processes.
        assert!(!made.is_empty(), "{name}");
    }
}

/// A copy of the handmade tree with its job of version 2.
fn changing() -> (Tree, Box<dyn JobSource>, JobCgroups) {
    let tree = Tree::copy("handmade");
    let cgroups = cgroups(&tree.path("cgroup"), "none", V2_JOB);
    let source = cgroup("", &tree.roots());
    (tree, source, cgroups)
}

fn file(name: &str) -> String {
    format!("cgroup/{V2_JOB}/{name}")
}

#[test]
fn garbage_is_gaps_counted_and_no_new_layout() {
    let (tree, mut source, cgroups) = changing();
    let sets = metric_sets(source.as_mut(), &cgroups).0;
    for (name, from, to, line) in [
        ("memory.stat", "\nfile 1", "\nfile x1", 2),
        ("cpu.stat", "usage_usec 86512345678", "usage_usec 99999999999999999999999", 1),
        ("memory.current", "82678120448", "much", 1),
        ("io.stat", "rios=100", "rios=", 2),
        ("memory.pressure", "avg60=0.10", "avg60=0.1", 2),
    ] {
        let set = &sets[name];
        let mut reader = open(set);
        let (good, reading) = read_set(set, reader.as_mut());
        assert_eq!(reading, GOOD, "{name}");
        assert!(good.values().all(Option::is_some));
        tree.replace(&file(name), from, to);
        let (values, reading) = read_set(set, reader.as_mut());
        assert_eq!(reading, Reading { problem: Some(ReadProblem::Garbage { what: leak(name), line }), ..GOOD });
        assert!(values.iter().any(|(_, value)| value.is_none()), "{name}");
        assert!(values.iter().all(|(name, value)| value.is_none() || *value == good[name]), "{name}");
    }
    let (values, _) = read_set(&sets["io.stat"], open(&sets["io.stat"]).as_mut());
    assert_eq!((values["io/reads"], values["io/sda/read_bytes"]), (None, Some(1_048_576)));
}

/// A static name, for comparisons.
fn leak(name: &str) -> &'static str {
    name.to_owned().leak()
}

#[test]
fn a_file_cut_short_is_reported() {
    let (tree, mut source, cgroups) = changing();
    let set = &metric_sets(source.as_mut(), &cgroups).0["memory.stat"];
    let mut reader = open(set);
    let text = std::fs::read_to_string(tree.path(&file("memory.stat"))).unwrap();
    tree.write(&file("memory.stat"), &text[..text.len() / 2 - 3]);
    let (values, reading) = read_set(set, reader.as_mut());
    assert!(matches!(reading.problem, Some(ReadProblem::Garbage { .. })), "{reading:?}");
    assert_eq!((values["memory/anon"], values["memory/hugetlb"]), (Some(68_719_476_736), None));
    tree.write(&file("memory.stat"), &text);
    assert_eq!(read_set(set, reader.as_mut()).1, GOOD);
}

#[test]
fn keys_and_devices_that_come_later() {
    let (tree, mut source, cgroups) = changing();
    let first = metric_sets(source.as_mut(), &cgroups).0;
    let mut readers = [open(&first["cpu.stat"]), open(&first["io.stat"])];
    tree.replace(&file("cpu.stat"), "nr_periods", "brand_new_usec 5\nnr_periods");
    tree.replace(&file("io.stat"), "8:0 ", "7:5 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n8:0 ");
    let changed = Reading { layout_changed: true, ..GOOD };
    let (values, reading) = read_set(&first["cpu.stat"], readers[0].as_mut());
    assert_eq!((values["cpu/burst_time"], reading), (Some(34567), changed));
    let (values, reading) = read_set(&first["io.stat"], readers[1].as_mut());
    assert_eq!((values["io/reads"], values["io/sda/reads"], reading), (Some(41065), Some(100), changed));
    let all = sample(source.as_mut(), &cgroups);
    assert_eq!((all["cpu/brand_new"], all["io/7:5/writes"]), (5.0 * 1e-6, 4.0));
}

#[test]
fn a_directory_that_is_gone_is_no_problem_and_another_in_its_place_is_not_the_job() {
    let (tree, mut source, cgroups) = changing();
    let sets = metric_sets(source.as_mut(), &cgroups).0;
    let mut reader = open(&sets["cpu.stat"]);
    let unopened = open(&sets["memory.stat"]);
    assert_eq!(read_set(&sets["cpu.stat"], reader.as_mut()).1, GOOD);
    let (directory, kept) = (tree.path(&format!("cgroup/{V2_JOB}")), tree.path("kept"));
    std::fs::rename(&directory, &kept).unwrap();
    std::fs::remove_dir_all(&kept).unwrap();
    for mut reader in [reader, unopened] {
        let (values, reading) = read_set(&sets["cpu.stat"], reader.as_mut());
        assert_eq!(reading, GONE);
        assert!(values.values().all(Option::is_none));
        tree.write(&file("cpu.stat"), "usage_usec 5\n");
        assert_eq!(read_set(&sets["cpu.stat"], reader.as_mut()).1, GONE, "of another job");
        std::fs::remove_dir_all(&directory).unwrap();
    }
    assert!(source.metric_sets(&cgroups, &mut |text| panic!("{text}")).is_empty());
}

#[test]
fn one_file_that_vanishes_or_may_not_be_read_is_a_problem() {
    let (tree, mut source, cgroups) = changing();
    let sets = metric_sets(source.as_mut(), &cgroups).0;
    let set = &sets["memory.current"];
    let mut reader = open(set);
    tree.remove(&file("memory.current"));
    let (values, reading) = read_set(set, reader.as_mut());
    assert_eq!(values["memory/usage"], None);
    assert_eq!(reading.problem, Some(ReadProblem::Os { what: "memory.current", errno: 2 }));
    assert!(reading.layout_changed && !reading.gone);
    // A folder in place of the file simulates an error of a read, also for root.
    std::fs::create_dir(tree.path(&file("memory.current"))).unwrap();
    let (_, reading) = read_set(set, reader.as_mut());
    assert_eq!(reading, Reading { problem: Some(ReadProblem::Os { what: "memory.current", errno: 21 }), ..GOOD });
    let mut reports = Vec::new();
    let names: Vec<String> =
        source.metric_sets(&cgroups, &mut |text| reports.push(text)).into_iter().map(|p| p.name).collect();
    assert!(!names.contains(&"memory.current".to_owned()) && names.len() == 14, "{names:?}");
    assert_eq!(reports, ["cgroup: memory.current of jobs is left out: Is a directory (os error 21)"]);
}

#[test]
fn files_that_a_kernel_lacks_are_reported_once_for_all_jobs() {
    let (tree, mut source, cgroups) = changing();
    tree.remove(&file("memory.peak"));
    tree.remove(&file("cpu.pressure"));
    let (_, first) = metric_sets(source.as_mut(), &cgroups);
    assert_eq!(
        first,
        [
            "cgroup: memory.peak of jobs is left out: No such file or directory (os error 2) (needs Linux 5.19)",
            "cgroup: cpu.pressure of jobs is left out: No such file or directory (os error 2) (needs PSI: CONFIG_PSI, and psi=1 where it is off by default)",
        ]
    );
    assert_eq!(metric_sets(source.as_mut(), &cgroups).1, first, "the same text for every job");
}

#[test]
fn without_permission() {
    use std::os::unix::process::CommandExt;
    // As another user, since root may read everything.
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "without_permission_in_a_program_of_its_own", "--nocapture"]).env("WHOLEGRAIN_ALONE", "1");
    match program.uid(65534).gid(65534).current_dir("/").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("without permission: done"), "{text}{output:?}");
        }
        Err(error) => println!("left out: the test program cannot be started as another user: {error}"),
    }
}

#[test]
fn without_permission_in_a_program_of_its_own() {
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: no arguments, cannot fail.
    if std::env::var_os("WHOLEGRAIN_ALONE").is_none() || unsafe { libc::geteuid() } == 0 {
        return;
    }
    const EACCES: i32 = 13;
    let (tree, mut source, cgroups) = changing();
    let path = tree.path(&file("memory.stat"));
    let allow = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    let known = metric_sets(source.as_mut(), &cgroups).0;
    allow(0);
    let set = &known["memory.stat"];
    let mut reader = open(set);
    let (values, reading) = read_set(set, reader.as_mut());
    assert!(values.values().all(Option::is_none));
    assert_eq!(reading, Reading { problem: Some(ReadProblem::Os { what: "memory.stat", errno: EACCES }), ..GOOD });
    let (others, reports) = metric_sets(source.as_mut(), &cgroups);
    assert_eq!(others.len(), known.len() - 1);
    assert_eq!(reports, ["cgroup: memory.stat of jobs is left out: Permission denied (os error 13)"]);
    allow(0o400);
    assert_eq!(read_set(set, reader.as_mut()).1, GOOD, "once it may be read");
    println!("without permission: done");
}

/// The descriptors of this program for files below a folder.
fn descriptors(below: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(below))).count()
}

#[test]
fn a_job_has_one_descriptor_a_file_and_leaves_none() {
    let (tree, mut source, cgroups) = changing();
    let folder = tree.path("cgroup").canonicalize().unwrap();
    for _ in 0..50 {
        let sets = metric_sets(source.as_mut(), &cgroups).0;
        let mut readers: Vec<_> = sets.values().map(|set| (set, open(set), open(set))).collect();
        for (set, one, other) in &mut readers {
            assert_eq!(read_set(set, one.as_mut()), read_set(set, other.as_mut()), "two at a time");
        }
        assert_eq!(descriptors(&folder), 2 * sets.len());
        drop(readers);
        source.forget(&cgroups);
        assert_eq!(descriptors(&folder), 0);
    }
}

#[test]
fn out_of_descriptors() {
    // In another program, as the limit applies to all threads.
    let name = "out_of_descriptors_in_a_program_of_its_own";
    let program = std::env::current_exe().unwrap();
    let output =
        Command::new(program).args(["--exact", name, "--nocapture"]).env("WHOLEGRAIN_ALONE", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("out of descriptors: done"), "{text}{output:?}");
}

#[test]
fn out_of_descriptors_in_a_program_of_its_own() {
    if std::env::var_os("WHOLEGRAIN_ALONE").is_none() {
        return;
    }
    const EMFILE: i32 = 24;
    let (_tree, mut source, cgroups) = changing();
    let known = metric_sets(source.as_mut(), &cgroups).0.len();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let (sets, reports) = metric_sets(source.as_mut(), &cgroups);
    assert_eq!(sets.len(), known, "what such files hold is known from before: {reports:?}");
    let mut readers: Vec<_> = sets.values().map(|set| (set, open(set))).collect();
    for (set, reader) in &mut readers {
        let (values, reading) = read_set(set, reader.as_mut());
        assert!(values.values().all(Option::is_none), "{}", set.name);
        assert!(matches!(reading.problem, Some(ReadProblem::Os { errno: EMFILE, .. })), "{} {reading:?}", set.name);
    }
    drop(taken);
    for (set, reader) in &mut readers {
        let (_, reading) = read_set(set, reader.as_mut());
        // Its discovery did not see the block devices.
        assert_eq!(reading, Reading { layout_changed: set.name == "io.stat", ..GOOD }, "{}", set.name);
    }
    println!("out of descriptors: done");
}

/// A program that prints its CPU time, waits for a line, uses CPU time in user mode and memory, prints its CPU time again, and waits.
const BURN: &str = r#"
import resource, sys, time
def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, flush=True)
    sys.stdin.readline()
tell()
memory = bytearray(64 << 20)
for page in range(0, len(memory), 4096): memory[page] = 1
start = time.process_time()
while time.process_time() - start < 0.5: pass
tell()
"#;

fn burner() -> Child {
    let piped = Stdio::piped;
    Command::new("python3").args(["-c", BURN]).stdin(piped()).stdout(piped()).spawn().unwrap()
}

fn write_line(child: &mut Child) {
    use std::io::Write;
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

fn check_burner(job: &RealJob) {
    use std::io::BufRead;
    let mut child = burner();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    job.add(child.id());
    let mut source = cgroup("", &Roots::default());
    let mut measure = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (line.trim().parse::<f64>().unwrap(), sample(source.as_mut(), &job.cgroups))
    };
    let (used_before, before) = measure();
    write_line(&mut child);
    let (used_after, after) = measure();
    let used = used_after - used_before;
    let rise = after["cpu/usage"] - before["cpu/usage"];
    println!("cpu/usage rose by {rise} s, getrusage has {used} s; {} metrics", after.len());
    // The two values are of different moments.
    assert!(used >= 0.5 && (rise - used).abs() < 0.02, "{rise} {used}");
    assert!(after["cpu/user"] + after["cpu/system"] > 0.4);
    if let Some(peak) = after.get("memory/peak") {
        assert!(*peak >= f64::from(64 << 20) && after["memory/usage"] >= f64::from(64 << 20), "{after:?}");
        assert!(after["memory/anon"] - before["memory/anon"] >= f64::from(60 << 20));
        assert!(after["memory/pgfault"] - before["memory/pgfault"] >= 1000.0);
        assert_eq!(after["pids/current"], 1.0);
    }
    write_line(&mut child);
    child.wait().unwrap();
}

#[test]
fn the_kernel_agrees_with_getrusage() {
    for (v1, v2) in [(true, false), (false, true), (true, true)] {
        let Some(job) = RealJob::new(v1, v2) else { continue };
        check_burner(&job);
    }
}

#[test]
fn a_real_cgroup_vanishes_between_open_and_read() {
    let Some(job) = RealJob::new(true, true) else { return };
    let mut source = cgroup("", &Roots::default());
    let sets = metric_sets(source.as_mut(), &job.cgroups).0;
    let mut readers: Vec<_> = sets.values().map(|set| (set, open(set))).collect();
    for (set, reader) in &mut readers {
        assert_eq!(read_set(set, reader.as_mut()).1, GOOD, "{}", set.name);
    }
    let never_read: Vec<_> = sets.values().map(|set| (set, open(set))).collect();
    job.remove();
    for (set, mut reader) in readers.into_iter().chain(never_read) {
        for _ in 0..2 {
            let (values, reading) = read_set(set, reader.as_mut());
            assert_eq!(reading, GONE, "{}", set.name);
            assert!(values.values().all(Option::is_none));
        }
    }
    assert!(source.metric_sets(&job.cgroups, &mut |text| panic!("{text}")).is_empty());
}

#[test]
fn a_real_cgroup_of_the_same_name_is_another_job() {
    let Some(job) = RealJob::new(true, true) else { return };
    let mut source = cgroup("", &Roots::default());
    let sets = metric_sets(source.as_mut(), &job.cgroups).0;
    let readers: Vec<_> = sets.values().map(|set| (set, open(set))).collect();
    // Removed and created again between two reads.
    job.remove();
    job.directories().iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
    for (set, mut reader) in readers {
        for _ in 0..2 {
            assert_eq!(read_set(set, reader.as_mut()).1, GONE, "{}", set.name);
        }
    }
}

#[test]
fn controllers_that_vanish_one_after_another() {
    let Some(job) = RealJob::new(true, false) else { return };
    let mut source = cgroup("", &Roots::default());
    let sets = metric_sets(source.as_mut(), &job.cgroups).0;
    let mut readers: Vec<_> = sets.values().map(|set| (set, open(set))).collect();
    let mut left = job.cgroups.v1.clone();
    while let Some((controller, directory)) = left.pop_first() {
        wait_until("the removal", || std::fs::remove_dir(&directory).is_ok());
        for (set, reader) in &mut readers {
            let of_it = |name: &str| {
                let file = set.name.trim_start_matches("v1/");
                file.split('.').next() == Some(name)
            };
            let expected = if left.keys().any(|name| of_it(name)) { GOOD } else { GONE };
            assert_eq!(read_set(set, reader.as_mut()).1, expected, "{} without {controller}", set.name);
        }
    }
}
