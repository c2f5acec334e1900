//! Once warm, a read does not allocate. The allocator of this program counts.

mod tree;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tree::{RealJob, Tree, V1_JOB, V2_JOB, cgroups, discover, fixture, job_source, metric_sets, open, roots, source};
use wholegrain_sources::job::{JobCgroups, MetricSet};
use wholegrain_sources::{GroupPlan, Roots, Row, Timing};

struct Counting;

thread_local! {
    /// Of this thread only, as the test harness allocates on its threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s conditions.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s conditions.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// A group with its row.
struct Group {
    plan: GroupPlan,
    values: Vec<u64>,
    gaps: Vec<u64>,
}

impl Group {
    fn all(name: &str, config: &str, roots: &Roots) -> Vec<Self> {
        let (groups, _) = discover(source(name, config, roots).unwrap().as_mut());
        let groups = groups.into_values().map(|plan| {
            let sensors = plan.sensors.len();
            Self { plan, values: vec![0; sensors], gaps: vec![0; sensors.div_ceil(64)] }
        });
        groups.collect()
    }

    fn read(&mut self) -> bool {
        let mut row = Row::new(&mut self.values, &mut self.gaps);
        self.plan.reader.read(&mut row).problem.is_none()
    }

    #[track_caller]
    fn check(&mut self, is_good: bool) {
        self.read();
        let count = allocations(|| {
            for _ in 0..100 {
                assert_eq!(self.read(), is_good, "{}", self.plan.name);
            }
        });
        assert_eq!(count, 0, "{} allocates", self.plan.name);
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn recorded_trees() {
    let all = "[sources.procfs]\ngroups = [\"all\"]\nper_cpu = true\n";
    let mut groups = Group::all("procfs", all, &roots(&fixture("recorded")));
    groups.extend(Group::all("procfs", all, &roots(&fixture("handmade"))));
    for source in ["sysfs", "timex", "processes", "inventory", "nfs", "lustre", "beegfs", "ceph"] {
        groups.extend(Group::all(source, "", &roots(&fixture("handmade"))));
    }
    assert!(groups.len() >= 50, "{} groups", groups.len());
    for group in &mut groups {
        group.check(true);
    }
}

#[test]
fn the_real_trees() {
    let mut groups = Group::all("procfs", "", &Roots::default());
    assert!(groups.len() >= 6, "{} groups", groups.len());
    for group in &mut groups {
        group.check(true);
    }
    // This machine may have no such devices, or devices without a value.
    for mut group in Group::all("sysfs", "", &Roots::default()) {
        group.read();
        let count = allocations(|| {
            group.read();
        });
        assert_eq!(count, 0, "{} allocates", group.plan.name);
    }
}

#[test]
fn events_of_the_node_and_of_a_job() {
    let config = "[sources.perf]\nnode_events = [\"page-faults\", \"context-switches\", \"msr/tsc/\"]\n";
    let config = &format!("{config}lock_file = \"/run/wholegrain-no-such-lock\"\n");
    let mut groups = Group::all("perf", config, &Roots::default());
    if groups.is_empty() {
        println!("skipped: perf events cannot be opened here");
    }
    groups.iter_mut().for_each(|group| group.check(true));
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let unified = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let cgroups =
        JobCgroups { v2: unified.and_then(|line| line.split(' ').nth(1)).map(Into::into), ..JobCgroups::default() };
    let mut jobs = job_source("perf", config, &Roots::default()).unwrap();
    for set in jobs.metric_sets(&cgroups, &mut |text| println!("{text}")) {
        let slots: Vec<Option<u32>> = (0..set.sensors.len() as u32).map(Some).collect();
        let (reader, sensors) = ((set.open)(&slots), set.sensors.len());
        let MetricSet { name, sensors: defs, blocking, .. } = set;
        let plan = GroupPlan { name, sensors: defs, reader, timing: Timing::default(), blocking };
        Group { plan, values: vec![0; sensors], gaps: vec![0; sensors.div_ceil(64)] }.check(true);
    }
}

#[test]
fn synthetic_sensors() {
    for shape in ["constant", "ramp", "sine", "noise", "counter"] {
        let config = format!("[sources.tester]\nsensors = 1000\nshape = \"{shape}\"\n");
        Group::all("tester", &config, &Roots::default()).remove(0).check(true);
    }
}

#[test]
fn trouble() {
    let tree = Tree::copy("handmade");
    let mut groups = Group::all("procfs", "[sources.procfs]\ngroups = [\"meminfo\"]\n", &tree.roots());
    let meminfo = &mut groups[0];
    meminfo.check(true);
    tree.write("proc/meminfo", "MemFree: 5 kB\nNewOne: 5 kB\n");
    meminfo.check(true);
    tree.write("proc/meminfo", "\u{1}\nMemFree: x\n");
    meminfo.check(false);
    tree.remove("proc/meminfo");
    meminfo.check(false);
    tree.write("proc/meminfo", "MemFree: 5 kB\n");
    meminfo.check(true);
}

/// All files of a job, each as a group.
fn job_files(roots: &Roots, cgroups: &JobCgroups) -> Vec<Group> {
    let sets = metric_sets(job_source("cgroup", "", roots).unwrap().as_mut(), cgroups).0;
    let groups = sets.into_values().map(|set| {
        let (reader, count) = (open(&set), set.sensors.len());
        let MetricSet { name, sensors, blocking, .. } = set;
        let plan = GroupPlan { name, sensors, reader, timing: Timing::default(), blocking };
        Group { plan, values: vec![0; count], gaps: vec![0; count.div_ceil(64)] }
    });
    groups.collect()
}

#[test]
fn jobs() {
    let handmade = fixture("handmade/cgroup");
    for cgroups in [cgroups(&handmade, V1_JOB, "none"), cgroups(&handmade, "none", V2_JOB)] {
        let mut files = job_files(&roots(&fixture("handmade")), &cgroups);
        assert!(files.len() >= 14);
        files.iter_mut().for_each(|file| file.check(true));
    }
    if let Some(job) = RealJob::new(true, true) {
        let mut files = job_files(&Roots::default(), &job.cgroups);
        files.iter_mut().for_each(|file| file.check(true));
        job.remove();
        files.iter_mut().for_each(|file| file.check(true));
    }
}

#[test]
fn expositions_of_exporters() {
    use wholegrain_sources::exposition::{Dialect, SensorNaming, SeriesCatalogue};
    let line = |index: u32| format!("node_cpu_seconds_total{{cpu=\"{index}\",mode=\"idle\"}} {index}.25\n");
    let text: String = (0..1_000).map(line).collect();
    // The same series in another order, which the first read learns.
    let turned: String = (0..1_000).rev().map(line).collect();
    let mut catalogue = SeriesCatalogue::new(SensorNaming::default(), 1_000, 0);
    let (mut table, sensors) = catalogue.learn(text.as_bytes(), Dialect::Text, &|_| true, &mut |_| {});
    let (mut values, mut gaps) = (vec![0; sensors.len()], vec![0; sensors.len().div_ceil(64)]);
    let mut read = |text: &str| {
        let read = table.read(text.as_bytes(), None, &mut Row::new(&mut values, &mut gaps));
        assert_eq!((read.values, read.unknown), (1_000, 0));
    };
    assert_eq!(allocations(|| read(&text)), 0);
    assert_eq!(allocations(|| read(&turned)), 0);
}
