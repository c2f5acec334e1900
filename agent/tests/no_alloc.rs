//! Once warm, the sampler thread allocates and frees nothing, as a counting allocator shows. It takes no lock by construction: it shares only atomics
//! (`engine::ring`, `engine::group`, `engine::mailbox`), and no module of `engine` names a mutex, which a test checks in the sources.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wholegrain_agent::encoder::EncoderThread;
use wholegrain_agent::engine::schedule::TickSchedule;
use wholegrain_agent::engine::{Group, GroupStart, Sampled, Sampler, SamplerChange};
use wholegrain_agent::jobs::groups::reader::CombinedReader;
use wholegrain_agent::{AgentHandles, Config};
use wholegrain_model::{Interval, Schema, SensorDef};
use wholegrain_sources::{Reader, Reading, Row};
use wholegrain_testkit::wait_until;

struct CountingAllocator;

static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTED.with(Cell::get) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: hands everything to the system's allocator; counting touches an atomic and a thread-local without a destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs on the sampler thread, and starts the counting there once everything is warm.
struct Switch {
    reads: Arc<AtomicU64>,
    warm_after: u64,
    allocates: bool,
}

impl Reader for Switch {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        COUNTED.with(|counted| counted.set(reads >= self.warm_after));
        row.set_int(0, reads as i64);
        if self.allocates {
            std::hint::black_box(Box::new(reads));
        }
        Reading::default()
    }
}

/// The reader of one metric set of a job.
struct SetReader(usize);

impl Reader for SetReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        row.set_int(self.0, self.0 as i64);
        Reading::default()
    }
}

fn group(handles: &AgentHandles, name: &str, sensors: Vec<SensorDef>, interval: Interval) -> Arc<Group> {
    let schema = Schema::new(handles.identity.prefix.clone(), name, sensors).unwrap();
    let ticking = TickSchedule { interval, offset: Interval::default(), synchronous: true };
    Arc::new(Group::new("test", &handles.identity.name, schema, ticking, false, Interval::from_s(1), Arc::default()))
}

/// Samples tester and procfs at 1 ms with the whole engine and some commands; returns the allocator's calls on the sampler thread.
fn calls(text: &str, allocates: bool, ticks: u64) -> u64 {
    let config = Config::parse(Path::new("test.toml"), text, Path::new(".")).unwrap();
    let handles = AgentHandles::new(&config).unwrap();
    let encoder = EncoderThread::start(handles.encoder()).unwrap();
    let mut sampler = Sampler::start("sampler", handles.counters.clone(), true).unwrap();
    let (reads, before) = (Arc::new(AtomicU64::new(0)), CALLS.load(Ordering::Relaxed));
    let ms = Interval::from_ms(1);
    let mut first = None;
    for source in &config.sources {
        for plan in source.build(&config.roots).unwrap().discover(&mut |_| {}) {
            let group = group(&handles, &plan.name, plan.sensors, ms);
            sampler.add(Sampled::new(group.clone(), plan.reader));
            handles.registry.add(group.clone());
            first.get_or_insert(group);
        }
    }
    let switch = group(&handles, "switch", vec![SensorDef::gauge("switch", "1", "")], ms);
    let reader = Box::new(Switch { reads: reads.clone(), warm_after: 200, allocates });
    sampler.add(Sampled::new(switch.clone(), reader));
    handles.registry.add(switch);
    // A job's group: several readers in one, replaced together with another group.
    let job = |count: usize| {
        let sensors = (0..count).map(|n| SensorDef::counter(format!("m{n}"), "1", "")).collect();
        let readers = (0..count).map(|at| Box::new(SetReader(at)) as Box<dyn Reader>).collect();
        let group = group(&handles, &format!("job/1/{count}"), sensors, ms);
        (group.clone(), Sampled::new(group, Box::new(CombinedReader::new(readers, Arc::default()))))
    };
    let ((first_job, reads_first), (second_job, reads_second), (third_job, reads_third)) = (job(70), job(3), job(65));
    sampler.change({
        let mut change = SamplerChange::new();
        change.add(reads_first, GroupStart::AtOnce);
        change
    });
    wait_until("half of the ticks", || reads.load(Ordering::Relaxed) > ticks / 2);
    // The sampler thread executes commands too.
    let old = first.expect("a group");
    let new = Arc::new(old.retimed(
        &handles.identity.name,
        TickSchedule { interval: Interval::from_ms(2), ..old.ticking },
        Interval::from_s(1),
    ));
    sampler.retime(old.id, new.clone());
    wait_until("the command", || old.sealed.load(Ordering::Acquire));
    sampler.change({
        let mut change = SamplerChange::new();
        change.add(reads_second, GroupStart::InStepWith(first_job.id));
        change.replace(first_job.id, reads_third, true);
        change
    });
    let heads = || second_job.ring.head().min(third_job.ring.head());
    wait_until("the change", || first_job.sealed.load(Ordering::Acquire) && heads() > 10);
    sampler.remove(new.id);
    wait_until("the other command", || new.sealed.load(Ordering::Acquire));
    wait_until("all ticks", || reads.load(Ordering::Relaxed) > ticks);
    let calls = CALLS.load(Ordering::Relaxed) - before;
    assert!(sampler.join(Duration::from_secs(10)), "the sampler ends");
    encoder.finish();
    calls
}

const SOURCES: &str = "[sources.tester]\nsensors = 200\n[sources.procfs]\n";

#[test]
fn nothing_is_allocated_while_sampling() {
    let noticed = calls(SOURCES, true, 600);
    assert!(noticed >= 300, "the counting works: a reader that allocates is noticed, {noticed} calls");
    assert_eq!(calls(SOURCES, false, 4_000), 0, "calls of the allocator on the sampler thread");
}

#[test]
fn no_lock_in_the_engine() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["Mutex", "RwLock", "Condvar", "mpsc"] {
            assert!(!text.contains(word), "{word} in {}", path.display());
        }
    }
}
