//! The agent with a Mosquitto: every batch arrives complete and at least once, whatever happens to the connection.

mod support;

use std::sync::atomic::Ordering;

use support::arrived::Arrived;
use support::{Agent, Broker, Line, Mode};
use wholegrain_model::Value;
use wholegrain_testkit::wait_until;

fn config(port: u16, more: &str) -> String {
    format!(
        "name = \"n1\"\nprefix = \"/lab/n1\"\n[defaults]\ninterval = \"10ms\"\n[sources.tester]\nsensors = 20\nshape = \"counter\"\n\
         amplitude = 3\n[api]\nsocket = \"agent.sock\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:{port}\"\nsend_interval = \"50ms\"\n{more}"
    )
}

const SPOOL: &str = "[spool]\ndir = \"spool\"\nafter = \"500ms\"\nflush_every = \"100ms\"\n";

#[test]
fn schemas_and_batches_arrive_and_are_what_was_sampled() {
    for version in ["version = \"5\"\n", "version = \"3.1.1\"\n"] {
        let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
        let mut listener = broker.listener();
        let agent = Agent::start(dir.path(), &config(broker.port, version));
        let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
        arrived.listen(&mut listener, "thirty batches", |arrived| arrived.batches.len() >= 30);
        assert_eq!(arrived.orphans, 0, "a schema comes before the first batch that needs it");
        let last = arrived.batches.iter().map(|(_, seq, _)| *seq).max().unwrap();
        arrived.listen(&mut listener, "all numbers", |arrived| arrived.has_all(boot, last));
        let mut before: Option<i64> = None;
        for (_, _, batch) in &arrived.batches {
            let schema = &arrived.schemas[&batch.header.schema];
            assert_eq!((schema.prefix().as_str(), batch.header.interval_ns), ("/lab/n1", 10_000_000));
            if schema.group() != "tester" {
                continue;
            }
            for sample in 0..batch.times.len() {
                let Some(Value::Int(value)) = batch.columns[0].get(sample) else { panic!("a gap where none is") };
                assert_eq!(before.map_or(value, |before| before + 3), value, "no sample is lost or twice");
                before = Some(value);
            }
        }
        agent.stop();
    }
}

#[test]
fn a_schema_that_the_server_asks_for_comes_again() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let mut listener = broker.listener();
    let agent = Agent::start(dir.path(), &config(broker.port, ""));
    let mut arrived = Arrived::default();
    arrived.listen(&mut listener, "a batch", |arrived| !arrived.batches.is_empty());
    let hash = arrived.batches[0].2.header.schema;
    assert_eq!(arrived.announced[&hash], 1);
    let mut server = broker.client("server");
    server.publish("wholegrain/v1/need/n1", &hash.0, true, false).unwrap();
    server.flush().unwrap();
    arrived.listen(&mut listener, "the schema again", |arrived| arrived.announced[&hash] == 2);
    agent.stop();
}

#[test]
fn a_server_away_longer_than_the_memory_gets_everything_in_order() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let line = Line::to(broker.port, Mode::Cut);
    let agent = Agent::start(dir.path(), &config(line.port, &format!("queue_bytes_max = \"64KiB\"\n{SPOOL}")));
    let counters = agent.handles.counters.clone();
    wait_until("the spool to fill", || {
        let queued = counters.queue_bytes.load(Ordering::Relaxed);
        assert!(queued <= 64 << 10, "the memory keeps its bound: {queued}");
        counters.spooled.load(Ordering::Relaxed) >= 100
    });
    assert!(counters.spool_bytes.load(Ordering::Relaxed) > 0);
    let mut listener = broker.listener();
    line.set(Mode::Through);
    let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
    // Everything that was sampled until the connection worked again.
    let last = counters.batches.load(Ordering::Relaxed);
    arrived.listen(&mut listener, "everything", |arrived| arrived.has_all(boot, last));
    assert_eq!(arrived.orphans, 0, "the spool has the schemas too");
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 0);
    // Live batches came at once; the spooled ones came oldest first.
    let position = |wanted: u64| arrived.batches.iter().position(|(_, seq, _)| *seq == wanted).unwrap();
    let old: Vec<usize> = (1..=90).map(position).collect();
    assert!(old.is_sorted(), "in the order of the spool: {old:?}");
    assert!(arrived.batches[0].1 > 90, "live batches do not wait for the spool: {} came first", arrived.batches[0].1);
    wait_until("the spool to be empty", || counters.spool_bytes.load(Ordering::Relaxed) == 0);
    agent.stop();
    let (made, acknowledged) =
        (counters.batches.load(Ordering::Relaxed), counters.acknowledged.load(Ordering::Relaxed));
    assert_eq!(acknowledged, made, "each batch once, and no schema");
}

#[test]
fn a_server_that_hangs_does_not_stop_the_sampling_and_gets_everything_later() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let line = Line::to(broker.port, Mode::Through);
    let mut listener = broker.listener();
    let agent = Agent::start(
        dir.path(),
        &config(line.port, &format!("queue_bytes_max = \"64KiB\"\nkeep_alive = \"1s\"\n{SPOOL}")),
    );
    let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
    arrived.listen(&mut listener, "the first batches", |arrived| arrived.batches.len() > 5);
    line.set(Mode::Hang);
    let counters = agent.handles.counters.clone();
    let group = agent.handles.registry.find("tester").unwrap();
    let (samples, missed) = (group.stats.samples.load(Ordering::Relaxed), group.stats.missed.load(Ordering::Relaxed));
    wait_until("batches on the disk", || counters.spooled.load(Ordering::Relaxed) >= 50);
    let ticks =
        group.stats.samples.load(Ordering::Relaxed) - samples + group.stats.missed.load(Ordering::Relaxed) - missed;
    assert!(ticks >= 100, "sampling goes on: {ticks} ticks");
    assert_eq!(counters.overruns.load(Ordering::Relaxed), 0, "and so does encoding");
    line.set(Mode::Cut);
    wait_until("the agent to notice", || agent.handles.status.link().state != "connected");
    line.set(Mode::Through);
    let last = counters.batches.load(Ordering::Relaxed);
    arrived.listen(&mut listener, "everything", |arrived| arrived.has_all(boot, last));
    assert_eq!((arrived.orphans, counters.dropped.load(Ordering::Relaxed)), (0, 0));
    assert!(counters.reconnects.load(Ordering::Relaxed) >= 1);
    agent.stop();
}

#[test]
fn what_is_unsent_at_the_end_waits_on_the_disk_for_the_next_start() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let line = Line::to(broker.port, Mode::Cut);
    let text = config(line.port, SPOOL);
    let agent = Agent::start(dir.path(), &text);
    let (boot, counters) = (agent.handles.identity.boot_ns, agent.handles.counters.clone());
    wait_until("some batches", || counters.batches.load(Ordering::Relaxed) >= 20);
    agent.stop();
    let last = counters.batches.load(Ordering::Relaxed);
    assert!(counters.spooled.load(Ordering::Relaxed) >= last, "all of it");
    let mut listener = broker.listener();
    line.set(Mode::Through);
    let second = Agent::start(dir.path(), &text);
    assert_ne!(second.handles.identity.boot_ns, boot);
    let mut arrived = Arrived::default();
    arrived.listen(&mut listener, "the first run's batches", |arrived| arrived.has_all(boot, last));
    assert_eq!(arrived.orphans, 0);
    second.stop();
}

#[test]
fn without_a_spool_the_oldest_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let line = Line::to(1, Mode::Cut);
    let text = config(line.port, "queue_bytes_max = \"64KiB\"\n")
        .replace("sensors = 20", "sensors = 500")
        .replace("counter", "noise");
    let agent = Agent::start(dir.path(), &text);
    let counters = agent.handles.counters.clone();
    wait_until("drops", || counters.dropped.load(Ordering::Relaxed) >= 10);
    // A batch is counted before the oldest ones are dropped for it.
    wait_until("the bound", || counters.queue_bytes.load(Ordering::Relaxed) <= 64 << 10);
    assert_eq!(counters.overruns.load(Ordering::Relaxed), 0);
    agent.stop();
}

#[test]
fn the_last_samples_are_sent_before_the_end() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let mut listener = broker.listener();
    let text = config(broker.port, "send = \"burst\"\nbursts_per_minute = 1\n");
    let agent = Agent::start(dir.path(), &text);
    wait_until("a connection", || agent.handles.status.link().state == "connected");
    let counters = agent.handles.counters.clone();
    wait_until("some batches", || counters.batches.load(Ordering::Relaxed) >= 10);
    let (boot, group) = (agent.handles.identity.boot_ns, agent.handles.registry.find("tester").unwrap());
    agent.stop();
    assert_eq!(group.encoded.load(Ordering::Relaxed), group.ring.head(), "every sample was encoded");
    let (last, mut arrived) = (counters.batches.load(Ordering::Relaxed), Arrived::default());
    arrived.listen(&mut listener, "everything", |arrived| arrived.has_all(boot, last));
    let samples: usize = arrived
        .batches
        .iter()
        .filter(|(_, _, batch)| batch.header.schema == group.schema.hash())
        .map(|(_, _, batch)| batch.times.len())
        .sum();
    assert_eq!(samples as u64, group.stats.samples.load(Ordering::Relaxed));
}

#[test]
fn a_layout_that_changes_in_the_middle_of_a_batch_mixes_nothing_up() {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let mut listener = broker.listener();
    std::fs::create_dir(dir.path().join("proc")).unwrap();
    let write = |text: &str| std::fs::write(dir.path().join("proc/meminfo"), text).unwrap();
    let layouts = ["MemTotal: 1000 kB\nMemFree: 500 kB\n", "New: 7 kB\nMemFree: 500 kB\nMemTotal: 1000 kB\n"];
    write(layouts[0]);
    let text = format!(
        "name = \"n1\"\nroots = {{ proc = \"proc\" }}\n[sources.procfs]\ngroups = [\"meminfo\"]\ninterval = \"5ms\"\n\
         [mqtt]\nurl = \"mqtt://127.0.0.1:{}\"\nsend_interval = \"200ms\"\n",
        broker.port
    );
    let agent = Agent::start(dir.path(), &text);
    let stats = agent.handles.registry.find("meminfo").unwrap().stats.clone();
    let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
    for (round, layout) in layouts.iter().cycle().take(3).enumerate() {
        write(layout);
        let before = arrived.batches.len();
        arrived.listen(&mut listener, "the layout", |arrived| {
            let schema =
                arrived.batches[before..].iter().rev().map(|(_, _, batch)| &arrived.schemas[&batch.header.schema]);
            let mut schema = schema.filter(|schema| schema.group() == "meminfo");
            schema.next().is_some_and(|schema| schema.len() == 2 + round % 2)
        });
    }
    agent.stop();
    let last = arrived.batches.iter().map(|(_, seq, _)| *seq).max().unwrap();
    let mut samples = 0;
    arrived.listen(&mut listener, "the rest", |arrived| {
        let of_meminfo = |batch: &&wholegrain_model::Batch| arrived.schemas[&batch.header.schema].group() == "meminfo";
        samples = arrived.batches.iter().map(|(_, _, batch)| batch).filter(of_meminfo).map(|b| b.times.len()).sum();
        arrived.has_all(boot, last) && samples as u64 == stats.samples.load(Ordering::Relaxed)
    });
    assert_eq!(stats.overruns.load(Ordering::Relaxed), 0);
    let mut times = Vec::new();
    for (_, _, batch) in &arrived.batches {
        let schema = &arrived.schemas[&batch.header.schema];
        for (sensor, column) in schema.sensors().iter().zip(&batch.columns).filter(|_| schema.group() == "meminfo") {
            let right = if sensor.name.ends_with("MemTotal") {
                1_024_000
            } else if sensor.name.ends_with("MemFree") {
                512_000
            } else {
                7 * 1024
            };
            for sample in 0..batch.times.len() {
                let value = column.get(sample);
                assert!(
                    value.is_none_or(|v| v.as_f64() * sensor.scale == f64::from(right)),
                    "{}: {value:?}",
                    sensor.name
                );
            }
        }
        if schema.group() == "meminfo" {
            times.extend_from_slice(&batch.times);
        }
    }
    assert!(times.is_sorted(), "batches of a group come in the order of its samples");
}
