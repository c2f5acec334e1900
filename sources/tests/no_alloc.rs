//! Once warm, a read does not allocate: counted by the test program's own allocator.

mod tree;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tree::{Tree, discover, fixture, roots, source};
use wholegrain_sources::{GroupPlan, Roots, Row};

struct Counting;

thread_local! {
    /// Of this thread only, as the test harness allocates on its own ones.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and counts for nothing.
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
    let mut groups = Group::all("procfs", "", &roots(&fixture("recorded")));
    groups.extend(Group::all("procfs", "", &roots(&fixture("handmade"))));
    groups.extend(Group::all("sysfs", "", &roots(&fixture("handmade"))));
    assert!(groups.len() >= 25, "{} groups", groups.len());
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
    // What this machine has of it, if anything; its devices may have nothing to say.
    for mut group in Group::all("sysfs", "", &Roots::default()) {
        group.read();
        let count = allocations(|| {
            group.read();
        });
        assert_eq!(count, 0, "{} allocates", group.plan.name);
    }
}

#[test]
fn made_up_sensors() {
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
