//! The engine's threads: a device that hangs delays no other group, and a command does not wait for a tick.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wholegrain_agent::encoder::Encoder;
use wholegrain_agent::engine::passes::ClockPasses;
use wholegrain_agent::engine::ring::RowCopy;
use wholegrain_agent::engine::schedule::TickSchedule;
use wholegrain_agent::engine::{Group, GroupStart, Sampled, Sampler, SamplerChange, clock};
use wholegrain_agent::{AgentHandles, Config};
use wholegrain_model::{Interval, Schema, SensorDef};
use wholegrain_sources::{Reader, Reading, Row};
use wholegrain_testkit::wait_until;
use wholegrain_transport::payload::read_header;

fn handles() -> AgentHandles {
    let config = Config::parse(Path::new("a.toml"), "name = \"n1\"\n", Path::new(".")).unwrap();
    AgentHandles::new(&config).unwrap()
}

fn group(handles: &AgentHandles, name: &str, interval: Interval) -> Arc<Group> {
    let schema = Schema::new(handles.identity.prefix.clone(), name, vec![SensorDef::gauge(name, "1", "")]).unwrap();
    let ticking = TickSchedule { interval, offset: Interval::default(), synchronous: true };
    let group = Arc::new(Group::new("test", "n1", schema, ticking, true, Interval::from_s(1), Arc::default()));
    handles.registry.add(group.clone());
    group
}

/// Counts up; hangs while the test asks for it.
struct Counts {
    count: i64,
    hangs: Arc<AtomicBool>,
}

impl Reader for Counts {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        while self.hangs.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        row.set_int(0, self.count);
        self.count += 1;
        Reading::default()
    }
}

#[test]
fn a_device_that_hangs_delays_nobody_else_and_is_left_behind() {
    let handles = handles();
    let (good, bad) = (group(&handles, "good", Interval::from_ms(1)), group(&handles, "bad", Interval::from_ms(1)));
    let hangs = Arc::new(AtomicBool::new(true));
    let mut fast = Sampler::start("fast", handles.counters.clone(), true).unwrap();
    let mut own = Sampler::start("own", handles.counters.clone(), false).unwrap();
    fast.add(Sampled::new(good.clone(), Box::new(Counts { count: 0, hangs: Arc::default() })));
    own.add(Sampled::new(bad.clone(), Box::new(Counts { count: 0, hangs: hangs.clone() })));
    wait_until("the good one's ticks", || good.ring.head() > 200);
    assert_eq!(bad.ring.head(), 0);
    assert!(!own.join(Duration::from_millis(50)), "it hangs");
    hangs.store(false, Ordering::Release);
    wait_until("the end of the thread left behind", || bad.sealed.load(Ordering::Acquire));
    assert!(fast.join(Duration::from_secs(60)) && good.sealed.load(Ordering::Acquire));
}

#[test]
fn a_late_reader_counts_what_it_missed() {
    let handles = handles();
    let slow = group(&handles, "slow", Interval::from_ms(1));
    let hangs = Arc::new(AtomicBool::new(false));
    let mut sampler = Sampler::start("sampler", handles.counters.clone(), true).unwrap();
    sampler.add(Sampled::new(slow.clone(), Box::new(Counts { count: 0, hangs: hangs.clone() })));
    wait_until("some ticks", || slow.ring.head() > 10);
    hangs.store(true, Ordering::Release);
    let from = clock::mono();
    while clock::mono() - from < 50_000_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    hangs.store(false, Ordering::Release);
    wait_until("the missed ticks", || slow.stats.missed.load(Ordering::Relaxed) >= 40);
    assert!(sampler.join(Duration::from_secs(60)));
}

#[test]
fn a_command_does_not_wait_for_an_hour() {
    let handles = handles();
    let hourly = group(&handles, "hourly", Interval::from_s(3600));
    let mut sampler = Sampler::start("sampler", handles.counters.clone(), true).unwrap();
    sampler.add(Sampled::new(hourly.clone(), Box::new(Counts { count: 0, hangs: Arc::default() })));
    let start = Instant::now();
    let often = TickSchedule { interval: Interval::from_ms(1), ..hourly.ticking };
    let new = Arc::new(hourly.retimed("n1", often, Interval::from_s(1)));
    sampler.retime(hourly.id, new.clone());
    wait_until("ticks at the new interval", || new.ring.head() > 5);
    assert!(hourly.sealed.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(60));
    assert!(sampler.join(Duration::from_secs(60)));
}

#[test]
fn what_leaves_a_group_before_its_first_sample_is_sampled_at_once_too() {
    let handles = handles();
    let [first, moved, replaced, ticking] =
        ["first", "moved", "replaced", "ticking"].map(|name| group(&handles, name, Interval::from_s(3600)));
    let sampled =
        |group: &Arc<Group>| Sampled::new(group.clone(), Box::new(Counts { count: 0, hangs: Arc::default() }));
    let mut sampler = Sampler::start("sampler", handles.counters.clone(), true).unwrap();
    let mut change = SamplerChange::new();
    change.add(sampled(&first), GroupStart::AtOnce);
    change.add(sampled(&moved), GroupStart::InStepWith(first.id));
    change.replace(first.id, sampled(&replaced), true);
    change.add(sampled(&ticking), GroupStart::OnTick);
    sampler.change(change);
    wait_until("the first samples", || moved.ring.head() == 1 && replaced.ring.head() == 1);
    assert!(sampler.join(Duration::from_secs(60)));
    let heads = [&first, &moved, &replaced, &ticking].map(|group| group.ring.head());
    assert_eq!(heads, [0, 1, 1, 0]);
}

#[test]
fn an_encoder_that_comes_too_late_counts_what_was_overwritten() {
    let handles = handles();
    let group = group(&handles, "g", Interval::from_ms(100));
    let mut encoder = Encoder::new(handles.encoder());
    let push =
        |from: i64, to: i64| (from..to).for_each(|n| group.ring.push(n * 100_000_000, 100_000_000, &[n as u64], &[0]));
    let capacity = group.ring.capacity() as i64;
    push(0, 5);
    encoder.pass(true);
    assert_eq!(handles.counters.overruns.load(Ordering::Relaxed), 0);
    push(5, 5 + capacity + 7);
    encoder.pass(true);
    assert_eq!(handles.counters.overruns.load(Ordering::Relaxed), 7, "each is counted");
    assert_eq!(group.encoded.load(Ordering::Relaxed), group.ring.head());
    assert_eq!(handles.counters.batches.load(Ordering::Relaxed), 2, "and the numbers of batches have no hole");
}

#[test]
fn a_changed_interval_ends_a_batch() {
    let text = "name = \"n1\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:1\"\n";
    let config = Config::parse(Path::new("a.toml"), text, Path::new(".")).unwrap();
    let handles = AgentHandles::new(&config).unwrap();
    let group = group(&handles, "g", Interval::from_ms(100));
    for n in 0..6 {
        group.ring.push(n * 100, if n < 4 { 100 } else { 50 }, &[n as u64], &[0]);
    }
    Encoder::new(handles.encoder()).pass(true);
    let mut batches = std::collections::VecDeque::new();
    handles.queue.take(&mut batches, 0);
    let headers: Vec<_> = batches.iter().map(|batch| read_header(&batch.payload).unwrap()).collect();
    let shown: Vec<_> = headers.iter().map(|(header, span)| (header.seq, header.interval_ns, span.samples)).collect();
    assert_eq!(shown, [(1, 100, 4), (2, 50, 2)]);
}

#[test]
fn a_group_whose_old_thread_hangs_is_encoded_and_one_that_was_retimed_waits_for_its_past() {
    let text = "name = \"n1\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:1\"\n";
    let handles = AgentHandles::new(&Config::parse(Path::new("a.toml"), text, Path::new(".")).unwrap()).unwrap();
    let mut encoder = Encoder::new(handles.encoder());
    let row = |group: &Group, time: i64| group.ring.push(time, 100_000_000, &[time as u64], &[0]);
    let mut sent = || {
        encoder.pass(true);
        let mut batches = std::collections::VecDeque::new();
        handles.queue.take(&mut batches, 0);
        batches.iter().map(|batch| batch.first).collect::<Vec<_>>()
    };
    let old = group(&handles, "g", Interval::from_ms(100));
    row(&old, 1);
    handles.registry.retire(old.id);
    let new = group(&handles, "g", Interval::from_ms(100));
    assert_eq!(sent(), [1], "what the old one has, sealed or not");
    // The old thread hangs in its device and never seals its group.
    row(&new, 2);
    assert_eq!(sent(), [2], "the new one does not wait for it");
    row(&old, 3);
    old.sealed.store(true, Ordering::Release);
    row(&new, 4);
    assert_eq!(sent(), [3, 4], "the past goes first");
    assert!(handles.registry.draining().is_empty());
}

/// Gives one value and one reading after the other, from a list.
struct Answers(std::vec::IntoIter<(i64, Reading)>);

impl Reader for Answers {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let (value, reading) = self.0.next().expect("an answer");
        row.set_int(0, value);
        reading
    }
}

#[test]
fn samples_have_the_times_of_a_devices_answers_and_each_answer_is_one_sample() {
    let handles = handles();
    let device = group(&handles, "device", Interval::from_s(1));
    let at = |time: i64| Reading { taken_at: Some(time), ..Reading::COMPLETE };
    let unchanged = Reading { unchanged: true, ..Reading::COMPLETE };
    let now = clock::real();
    let answers = vec![
        (1, at(1_000)),
        (2, at(1_000)),
        (3, at(900)),
        (4, unchanged),
        (5, at(2_000)),
        (6, at(i64::MAX)),
        (7, at(0)),
    ];
    let count = answers.len();
    let mut sampled = Sampled::new(device.clone(), Box::new(Answers(answers.into_iter())));
    let passes = ClockPasses::new(0);
    let mut copy = RowCopy::default();
    let mut newest = || {
        device.ring.newest(&mut copy);
        (device.ring.head(), copy.time, copy.values.first().map(|value| *value as i64))
    };
    let mut seen = Vec::new();
    for tick in 0..count {
        assert!(sampled.read(now + tick as i64, &passes, &handles.counters));
        seen.push(newest());
    }
    let first = (1, 1_000, Some(1));
    assert_eq!(seen[..5], [first, first, first, first, (2, 2_000, Some(5))]);
    assert!(seen[5].0 == 3 && seen[5].2 == Some(6) && (now..=clock::real()).contains(&seen[5].1), "{:?}", seen[5]);
    assert_eq!(seen[6], seen[5]);
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let stats = &device.stats;
    assert_eq!((load(&stats.samples), load(&stats.gaps), load(&stats.missed)), (3, 0, 0));
    assert_eq!((load(&handles.counters.samples), load(&handles.counters.gaps)), (3, 0));
}

#[test]
fn after_a_step_of_the_clock_no_answer_is_sampled_twice() {
    let handles = handles();
    let device = group(&handles, "device", Interval::from_s(1));
    let at = |time: i64| Reading { taken_at: Some(time), ..Reading::COMPLETE };
    let answers = vec![(1, at(1_500)), (2, at(2_000)), (3, at(2_500)), (4, at(999))];
    let mut sampled = Sampled::new(device.clone(), Box::new(Answers(answers.into_iter())));
    // The times from 1000 to 2000 were sampled before the clock was set to 1200.
    let mut passes = ClockPasses::new(1_000);
    passes.stepped(2_000, 1_200);
    let heads: Vec<u64> = (0..4)
        .map(|tick| {
            sampled.read(3_000 + tick, &passes, &handles.counters);
            device.ring.head()
        })
        .collect();
    assert_eq!(heads, [0, 0, 1, 1]);
}
