//! Groups of jobs on a real sampler: a change affects no other group, a metric that moves is read exactly once at each tick, and an ended job leaves
//! nothing behind.

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wholegrain_agent::batch::EncodedBatch;
use wholegrain_agent::encoder::EncoderThread;
use wholegrain_agent::engine::ring::RowCopy;
use wholegrain_agent::engine::{Group, Sampler, clock};
use wholegrain_agent::jobs::groups::{JobGroups, JobSourceHandle};
use wholegrain_agent::jobs::rules::{RawRule, Rules, RulesConfig};
use wholegrain_agent::jobs::tracker::{Job, JobEvent};
use wholegrain_agent::jobs::{Accumulation, CallerIdentity, JobsAction, JobsCommand};
use wholegrain_agent::{AgentHandles, Config};
use wholegrain_model::{Interval, JobRecord, Schema, SensorDef, SensorPath, Value};
use wholegrain_sources::job::{JobCgroups, JobSource, MetricSet};
use wholegrain_sources::{Reader, Reading, Row, Slot};
use wholegrain_testkit::{Random, wait_until};
use wholegrain_transport::payload::decode_batch;

/// State that the simulated source shares with its test.
#[derive(Default)]
struct World {
    /// Passes of the sampler: the first reader of each counts them.
    passes: AtomicI64,
    /// The number of existing readers, and of all readers so far.
    readers: AtomicU64,
    opened: AtomicU64,
    forgotten: AtomicU64,
    asked: AtomicU64,
    /// Some reads take longer than a tick, so that changes are requested while ticks are due.
    heavy: AtomicBool,
    always: AtomicBool,
    /// All directories of jobs are removed.
    gone: AtomicBool,
    /// The metric set of this name requests a rediscovery.
    changed: Mutex<Option<String>>,
    changed_is_set: AtomicBool,
}

/// Metric sets by name with their sensors; the name `clock` counts passes, one with `slow` in its name blocks.
struct TestSource {
    world: Arc<World>,
    sets: Vec<(&'static str, usize)>,
}

impl JobSource for TestSource {
    fn metric_sets(&mut self, _place: &JobCgroups, report: &mut dyn FnMut(String)) -> Vec<MetricSet> {
        self.world.asked.fetch_add(1, Ordering::SeqCst);
        report("nothing here has a name".to_owned());
        let set = |(name, count): &(&'static str, usize)| {
            let (name, world) = (*name, self.world.clone());
            MetricSet {
                name: name.to_owned(),
                sensors: (0..*count).map(|n| SensorDef::gauge(format!("{name}/{n}"), "1", "TestSource up.")).collect(),
                interval_min: Interval::from_ms(1),
                blocking: name.contains("slow"),
                open: Box::new(move |slots: &[Slot]| {
                    world.readers.fetch_add(1, Ordering::SeqCst);
                    world.opened.fetch_add(1, Ordering::SeqCst);
                    Box::new(Passes { world: world.clone(), name, slots: slots.to_vec() })
                }),
            }
        };
        self.sets.iter().map(set).collect()
    }

    fn forget(&mut self, _place: &JobCgroups) {
        self.world.forgotten.fetch_add(1, Ordering::SeqCst);
    }
}

/// Its value is the number of the pass.
struct Passes {
    world: Arc<World>,
    name: &'static str,
    slots: Vec<Slot>,
}

impl Reader for Passes {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        if self.world.gone.load(Ordering::Acquire) {
            return Reading { gone: true, ..Reading::default() };
        }
        let first = i64::from(self.name == "clock");
        let pass = self.world.passes.fetch_add(first, Ordering::AcqRel) + first;
        let is_time = pass % 8 == 0 || self.world.always.load(Ordering::Relaxed);
        if first == 1 && is_time && self.world.heavy.load(Ordering::Relaxed) {
            let end = clock::mono() + HEAVY_NS;
            while clock::mono() < end {
                std::hint::spin_loop();
            }
        }
        for slot in self.slots.iter().flatten() {
            row.set_int(*slot as usize, pass);
        }
        let is_me = || self.world.changed.lock().unwrap().as_deref() == Some(self.name);
        let layout_changed = self.world.changed_is_set.load(Ordering::Acquire)
            && is_me()
            && self.world.changed_is_set.swap(false, Ordering::AcqRel);
        Reading { layout_changed, ..Reading::default() }
    }
}

impl Drop for Passes {
    fn drop(&mut self) {
        self.world.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn job(id: &str) -> Arc<Job> {
    let record = JobRecord {
        job: id.to_owned(),
        level: id.to_owned(),
        manager: "made".to_owned(),
        from: 1,
        ..JobRecord::default()
    };
    Arc::new(Job { record, cgroups: JobCgroups { level: id.to_owned(), ..JobCgroups::default() }, has_processes: true })
}

/// The engine with jobs, without a tracker and a manager.
struct Bench {
    world: Arc<World>,
    handles: AgentHandles,
    sampler: Sampler,
    encoder: EncoderThread,
    jobs: JobGroups,
    events: Sender<JobEvent>,
}

impl Bench {
    fn new(sets: &[(&'static str, usize)]) -> Self {
        let text = "name = \"n1\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:1\"\nqueue_bytes_max = \"256MiB\"\nsend_interval = \"100ms\"\n";
        let config = Config::parse(Path::new("a.toml"), text, Path::new(".")).unwrap();
        let handles = AgentHandles::new(&config).unwrap();
        let world = Arc::new(World::default());
        let (events, receiver) = channel();
        let (rules, _) = Rules::open(&RulesConfig::default(), None, clock::real());
        let source: Box<dyn JobSource> = Box::new(TestSource { world: world.clone(), sets: sets.to_vec() });
        let sources = vec![JobSourceHandle::new("absent"), JobSourceHandle::started("made", Ok(source))];
        let jobs = JobGroups::new(handles.job_groups(), receiver, rules, sources);
        let sampler = Sampler::start("sampler", handles.counters.clone(), true).unwrap();
        let encoder = EncoderThread::start(handles.encoder()).unwrap();
        Self { world, handles, sampler, encoder, jobs, events }
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut JobGroups, &mut Sampler, i64) -> T) -> T {
        let result = f(&mut self.jobs, &mut self.sampler, clock::real());
        self.encoder.wake();
        result
    }

    fn round(&mut self) -> bool {
        self.sampler.collect();
        self.with(|jobs, sampler, now| jobs.round(sampler, now))
    }

    fn tell(&mut self, event: JobEvent) {
        self.events.send(event).unwrap();
        self.round();
    }

    fn rule(&mut self, jobs: &str, metrics: &[&str], every: &str, accumulate: Option<Accumulation>) {
        let metrics = metrics.iter().map(|metric| (*metric).to_owned()).collect();
        let rule = RawRule {
            metrics,
            jobs: Some(jobs.to_owned()),
            every: every.to_owned(),
            accumulate,
            within: Some(Interval::from_s(3600)),
        };
        let who = CallerIdentity::admin("test");
        let command = JobsCommand { who, action: JobsAction::Add(rule) };
        self.with(|jobs, sampler, now| jobs.execute(&command, sampler, now)).unwrap();
    }

    fn groups(&self) -> Vec<String> {
        self.handles.registry.live().iter().map(|group| group.name().to_owned()).collect()
    }

    fn group(&self, name: &str) -> Arc<Group> {
        self.handles.registry.find(name).unwrap_or_else(|| panic!("no group {name} among {:?}", self.groups()))
    }

    /// Ends everything and returns the batches.
    fn finish(self) -> (AgentHandles, Arc<World>, VecDeque<Arc<EncodedBatch>>) {
        self.jobs.finish(Duration::from_secs(60));
        assert!(self.sampler.join(Duration::from_secs(60)));
        self.encoder.finish();
        let mut batches = VecDeque::new();
        self.handles.queue.take(&mut batches, 0);
        (self.handles, self.world, batches)
    }
}

/// The first pass, the last pass, and the number of passes.
type Came = (i64, i64, i64);

/// The passes of each metric below `job`: a sample has one, a window those from its minimum to its maximum.
fn passes(batches: &VecDeque<Arc<EncodedBatch>>, job: &str) -> BTreeMap<String, Vec<Came>> {
    let mut all: BTreeMap<String, Vec<Came>> = BTreeMap::new();
    for encoded in batches {
        let batch = decode_batch(&encoded.payload, &encoded.schema).unwrap();
        let value = |name: &str, sample: usize| {
            let sensor = encoded.schema.sensors().iter().position(|sensor| sensor.name == name)?;
            batch.columns[sensor].get(sample).map(Value::as_f64)
        };
        for (index, sensor) in encoded.schema.sensors().iter().enumerate() {
            if !encoded.schema.path(index).starts_with(&format!("/n1/job/{job}/")) {
                continue;
            }
            for sample in 0..batch.times.len() {
                if let Some(metric) = sensor.name.strip_suffix("/count") {
                    // A gap: the window continues with the schema of another group.
                    let Some(count) = value(&sensor.name, sample) else { continue };
                    if count == 0.0 {
                        continue;
                    }
                    let of = |what: &str| value(&format!("{metric}/{what}"), sample).unwrap() as i64;
                    let (min, max) = (of("min"), of("max"));
                    assert_eq!(of("last"), max);
                    all.entry(metric.to_owned()).or_default().push((min, max, count as i64));
                } else if sensor.name.matches('/').count() == 1
                    && let Some(pass) = value(&sensor.name, sample)
                {
                    all.entry(sensor.name.clone()).or_default().push((pass as i64, pass as i64, 1));
                }
            }
        }
    }
    all.values_mut().for_each(|list| list.sort_unstable());
    all
}

const CHANGES: usize = 400;
/// How long a heavy read takes: more than one tick.
const HEAVY_NS: i64 = 1_400_000;

#[test]
fn hundreds_of_changes_lose_no_sample_of_what_they_do_not_touch() {
    let mut random = Random::seeded();
    let sets = [("clock", 1), ("still", 4), ("switched", 6), ("changing", 8), ("slow", 2)];
    let mut bench = Bench::new(&sets);
    bench.rule("*", &["**"], "1ms", None);
    bench.tell(JobEvent::Began(job("J")));
    let everywhere = bench.world.clone();
    everywhere.heavy.store(true, Ordering::Relaxed);
    for change in 0..CHANGES {
        let from = everywhere.passes.load(Ordering::Acquire);
        let ticks = random.below(8) as i64;
        wait_until("ticks", || everywhere.passes.load(Ordering::Acquire) >= from + ticks);
        let window = |ms| Some(Accumulation { window: Interval::from_ms(ms), quantiles: Vec::new() });
        // `still` never changes; `switched` changes between raw and windows at the same interval; the others change at random.
        match random.below(3) {
            0 => {
                let metric = format!("switched/{}", random.below(6));
                let mode = [None, window(20), window(50)][random.below(3) as usize].clone();
                bench.rule("J", &[&metric], "1ms", mode);
            }
            1 => bench.rule("J", &["switched/*"], "1ms", [None, window(20)][random.below(2) as usize].clone()),
            _ => {
                let metric = format!("{}/{}", ["changing", "slow"][random.below(2) as usize], random.below(8) % 8);
                let metric = if metric.starts_with("slow") { "slow/*".to_owned() } else { metric };
                let every = ["1ms", "2ms", "5ms", "off", "1s"][random.below(5) as usize];
                let mode = if every == "1ms" && random.below(2) == 0 { window(20) } else { None };
                bench.rule("J", &[&metric], every, mode);
            }
        }
        if change % 50 == 25 {
            *everywhere.changed.lock().unwrap() = Some(["still", "switched"][random.below(2) as usize].to_owned());
            everywhere.changed_is_set.store(true, Ordering::Release);
        }
        bench.round();
    }
    let from = everywhere.passes.load(Ordering::Acquire);
    wait_until("the last ticks", || everywhere.passes.load(Ordering::Acquire) > from + 50);
    let (handles, world, batches) = bench.finish();
    let lost = handles.counters.overruns.load(Ordering::Relaxed) as i64;
    let last = world.passes.load(Ordering::Acquire);
    let all = passes(&batches, "J");
    assert!(last > 500, "{last} passes");
    for metric in all.keys().filter(|metric| !metric.starts_with("changing") && !metric.starts_with("slow")) {
        let list = &all[metric];
        // Samples that a late encoder lost are counted, and are the only ones that may be missing. A window of a metric that was
        // absent for a part of it may include passes of others.
        let whole: Vec<&Came> = list.iter().filter(|(from, to, count)| to - from + 1 == *count).collect();
        let twice = whole.windows(2).find(|pair| pair[1].0 <= pair[0].1);
        assert!(twice.is_none(), "{metric}: {twice:?} overlap");
        let count: i64 = list.iter().map(|(_, _, count)| count).sum();
        let ends = (list[0].0, list.iter().map(|(_, to, _)| *to).max().unwrap());
        let missing = ends.1 - ends.0 + 1 - count;
        assert!((0..=lost).contains(&missing), "{metric}: {missing} passes are missing, the encoder lost {lost}");
        assert!(ends.0 <= 1 + lost && ends.1 >= last - lost, "{metric}: from first to last");
    }
    let count = |part: &str| all.keys().filter(|metric| metric.starts_with(part)).count();
    assert_eq!((count("clock"), count("still"), count("switched"), count("changing")), (1, 4, 6, 8));
    assert_eq!(world.readers.load(Ordering::SeqCst), 0, "all readers are freed");
}

#[test]
fn a_job_is_read_at_once_and_nothing_is_left_of_it_when_it_ends() {
    let mut bench = Bench::new(&[("a", 3), ("slow", 2)]);
    bench.rule("*", &["**"], "1h", None);
    bench.tell(JobEvent::Began(job("J1")));
    bench.tell(JobEvent::Began(job("J2")));
    assert_eq!(bench.groups(), ["job/J1/1h", "job/J1/1h-apart", "job/J2/1h", "job/J2/1h-apart"]);
    let groups = bench.handles.registry.live();
    wait_until("the first samples, which wait for no tick", || groups.iter().all(|group| group.ring.head() == 1));
    assert_eq!(
        bench.handles.jobs.get().jobs.iter().map(|job| job.record.job.as_str()).collect::<Vec<_>>(),
        ["J1", "J2"]
    );
    bench.tell(JobEvent::Ended(job("J1")));
    assert_eq!(bench.groups(), ["job/J2/1h", "job/J2/1h-apart"]);
    assert_eq!((bench.handles.jobs.get().jobs.len(), bench.world.forgotten.load(Ordering::SeqCst)), (1, 1));
    bench.tell(JobEvent::Ended(job("J2")));
    wait_until("the end of all readers", || {
        bench.round();
        bench.world.readers.load(Ordering::SeqCst) == 0
    });
    wait_until("the end of all groups", || bench.handles.registry.draining().is_empty());
    let (_, _, batches) = bench.finish();
    assert_eq!(batches.iter().map(|batch| batch.samples).sum::<usize>(), 4, "what was sampled was encoded");
}

/// Two groups with one sensor would mix their readings in the store. The job keeps its other metrics.
#[test]
fn a_metric_whose_sensor_a_plug_in_has_is_left_out() {
    let mut bench = Bench::new(&[("m", 2)]);
    let schema = |prefix: &str, group: &str, name: &str| {
        Schema::new(SensorPath::new(prefix).unwrap(), group, vec![SensorDef::gauge(name, "1", "")]).unwrap()
    };
    for schema in
        [schema("/n1", "plant", "job/7/m/0"), schema("/n1", "other", "m/1"), schema("/n2", "far", "job/7/m/1")]
    {
        bench.handles.registry.add(Arc::new(Group::of_events("plant", "n1", schema)));
    }
    bench.rule("*", &["**"], "1s", None);
    bench.tell(JobEvent::Began(job("7")));
    bench.tell(JobEvent::Began(job("8")));
    let sensors = |bench: &Bench, group: &str| -> Vec<String> {
        bench.group(group).schema.sensors().iter().map(|sensor| sensor.name.clone()).collect()
    };
    assert_eq!(sensors(&bench, "job/7/1s"), ["m/1"]);
    assert_eq!(sensors(&bench, "job/8/1s"), ["m/0", "m/1"]);
    // The plug-in is unloaded: the job has its metric from its next change on.
    let plant = bench.group("plant").id;
    bench.handles.registry.retire(plant);
    bench.tell(JobEvent::Changed(job("7")));
    assert_eq!(sensors(&bench, "job/7/1s"), ["m/0", "m/1"]);
    bench.finish();
}

#[test]
fn a_thousand_short_jobs_leave_nothing() {
    let mut bench = Bench::new(&[("a", 60), ("b", 40), ("slow", 3)]);
    let window = Some(Accumulation { window: Interval::from_s(1), quantiles: vec![0.5] });
    bench.rule("*", &["b/*"], "10ms", window);
    for n in 0..1000 {
        bench.tell(JobEvent::Began(job(&format!("J{n}"))));
        if n >= 20 {
            bench.tell(JobEvent::Ended(job(&format!("J{}", n - 20))));
        }
    }
    assert_eq!((bench.handles.jobs.get().jobs.len(), bench.handles.registry.live().len()), (20, 60));
    (980..1000).for_each(|n| bench.tell(JobEvent::Ended(job(&format!("J{n}")))));
    wait_until("the end of all readers", || {
        bench.round();
        bench.world.readers.load(Ordering::SeqCst) == 0
    });
    wait_until("the end of all groups", || bench.handles.registry.draining().is_empty());
    assert!(
        bench.jobs.is_empty() && bench.handles.registry.live().is_empty() && bench.handles.jobs.get().jobs.is_empty()
    );
    assert_eq!(bench.world.forgotten.load(Ordering::SeqCst), 1000);
    let (handles, _, batches) = bench.finish();
    let raw: std::collections::HashSet<_> =
        batches.iter().filter(|batch| batch.topic.ends_with("/1s")).map(|batch| &batch.topic).collect();
    assert_eq!(
        (raw.len(), handles.counters.overruns.load(Ordering::Relaxed)),
        (1000, 0),
        "each was read once at least"
    );
    assert!(batches.iter().filter(|batch| batch.topic.contains("-per-")).count() >= 1000, "and each window was sent");
    let sensors = |n: usize| {
        batches.iter().filter(|batch| batch.topic.ends_with("/1s")).nth(n).unwrap().schema.sensors().as_ptr()
    };
    assert_eq!(sensors(0), sensors(999), "sensors of all jobs are in memory once");
}

#[test]
fn an_interval_that_cannot_be_sustained_is_shown_as_such() {
    let mut bench = Bench::new(&[("clock", 1), ("a", 1)]);
    bench.world.heavy.store(true, Ordering::Relaxed);
    bench.world.always.store(true, Ordering::Relaxed);
    bench.rule("*", &["**"], "1ms", None);
    bench.rule("*", &["a/*"], "1h", None);
    bench.tell(JobEvent::Began(job("J")));
    let achieved = |bench: &Bench, index: usize| bench.handles.jobs.get().jobs[0].metrics[index].achieved;
    assert_eq!(achieved(&bench, 0), None, "not known yet");
    wait_until("what is achieved", || {
        bench.round();
        achieved(&bench, 0).is_some_and(|part| part > 0.0 && part < 0.8)
    });
    assert!(achieved(&bench, 1).is_none_or(|part| part == 1.0), "it has had no tick to miss");
}

#[test]
fn what_is_gone_gives_no_sample() {
    let mut bench = Bench::new(&[("a", 3)]);
    bench.rule("*", &["**"], "1ms", None);
    bench.tell(JobEvent::Began(job("J")));
    let group = bench.group("job/J/1ms");
    wait_until("samples", || group.ring.head() > 10);
    bench.world.gone.store(true, Ordering::Release);
    let mut head = group.ring.head();
    wait_until("the last sample", || {
        std::thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut head, group.ring.head()) == group.ring.head()
    });
    let mut row = RowCopy::default();
    assert!(group.ring.newest(&mut row) && row.get(0).is_some(), "the last sample is a true one");
    assert_eq!(group.stats.gaps.load(Ordering::Relaxed), 0);
}

#[test]
fn only_a_part_that_has_changed_is_opened_again() {
    let mut bench = Bench::new(&[("a", 3), ("b", 3)]);
    bench.rule("*", &["**"], "1ms", None);
    bench.rule("*", &["b/2"], "2ms", None);
    bench.tell(JobEvent::Began(job("J")));
    bench.tell(JobEvent::Began(job("K")));
    let group = bench.group("job/J/2ms");
    let (opened, asked) = (bench.world.opened.load(Ordering::SeqCst), bench.world.asked.load(Ordering::SeqCst));
    *bench.world.changed.lock().unwrap() = Some("a".to_owned());
    bench.world.changed_is_set.store(true, Ordering::Release);
    let world = bench.world.clone();
    wait_until("another look", || {
        bench.round();
        world.asked.load(Ordering::SeqCst) > asked
    });
    assert_eq!(world.asked.load(Ordering::SeqCst), asked + 1, "one job's sets");
    assert_eq!(
        world.opened.load(Ordering::SeqCst),
        opened + 2,
        "the one group that has a metric of it, of its two sets"
    );
    assert!(Arc::ptr_eq(&group, &bench.group("job/J/2ms")));
    let head = group.ring.head();
    wait_until("more ticks", || group.ring.head() > head + 5);
}

#[test]
fn a_source_is_stopped_and_started_beside_the_others() {
    let mut bench = Bench::new(&[("a", 3)]);
    let other = Arc::new(World::default());
    let source = |world: &Arc<World>| -> Box<dyn JobSource> {
        Box::new(TestSource { world: world.clone(), sets: vec![("b", 2)] })
    };
    bench.rule("*", &["**"], "1ms", None);
    bench.tell(JobEvent::Began(job("J")));
    bench.with(|jobs, sampler, now| jobs.start_source("absent", Ok(source(&other)), sampler, now));
    let metrics =
        |bench: &Bench| bench.handles.jobs.get().jobs[0].metrics.iter().map(|m| m.name.clone()).collect::<Vec<_>>();
    bench.round();
    assert_eq!(metrics(&bench), ["b/0", "b/1", "a/0", "a/1", "a/2"]);
    let group = bench.group("job/J/1ms");
    let (stats, opened) = (group.stats.clone(), bench.world.opened.load(Ordering::SeqCst));
    assert_eq!(bench.with(|jobs, sampler, now| jobs.stop_source("absent", sampler, now)), Some(true));
    bench.round();
    assert_eq!((metrics(&bench).len(), bench.group("job/J/1ms").schema.len()), (3, 3));
    assert!(Arc::ptr_eq(&stats, &bench.group("job/J/1ms").stats), "the same group without those sensors");
    assert_eq!(bench.world.opened.load(Ordering::SeqCst), opened + 1);
    wait_until("its readers' end", || {
        bench.round();
        other.readers.load(Ordering::SeqCst) == 0
    });
    assert_eq!(bench.jobs.notes_of("made"), ["nothing here has a name"], "reported once");
    assert_eq!(bench.with(|jobs, sampler, now| jobs.stop_source("nothing", sampler, now)), None);
}

#[test]
fn windows_come_with_their_start_and_the_newest_value_stays_raw() {
    let mut bench = Bench::new(&[("clock", 1), ("a", 2)]);
    let window = Accumulation { window: Interval::from_ms(50), quantiles: vec![0.5, 0.99] };
    bench.rule("*", &["**"], "1ms", Some(window));
    bench.tell(JobEvent::Began(job("J")));
    let group = bench.group("job/J/1ms-per-50ms-0.5-0.99");
    wait_until("windows", || group.ring.head() > 300);
    let mut row = RowCopy::default();
    assert!(group.ring.newest(&mut row) && row.get(0) > Some(300) && group.schema.len() == 3);
    assert_eq!(bench.handles.jobs.get().jobs[0].metrics[0].window_ns, Some(50_000_000));
    let (_, _, batches) = bench.finish();
    let mut starts = Vec::new();
    for encoded in &batches {
        let batch = decode_batch(&encoded.payload, &encoded.schema).unwrap();
        assert_eq!((batch.header.interval_ns, encoded.schema.len()), (50_000_000, 3 * 7));
        starts.extend(batch.times);
    }
    assert!(starts.len() > 5 && starts.iter().all(|time| time % 50_000_000 == 0), "{starts:?}");
    assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "each once: {starts:?}");
}
