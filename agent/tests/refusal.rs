//! A server that refuses, is silent, or lacks a schema: no batch is given up that may still be accepted, and none waits forever.

mod support;

use std::path::Path;
use std::sync::atomic::Ordering;

use support::Agent;
use support::script::Script;
use wholegrain_model::batch::{Batch, BatchHeader, Column, ColumnValues, Gaps};
use wholegrain_model::{Schema, SensorDef, SensorPath};
use wholegrain_testkit::wait_until;
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::payload::encode_batch;
use wholegrain_transport::spool::{Spool, SpoolConfig};
use wholegrain_transport::topics::Topic;

const SPOOL: &str = "[spool]\ndir = \"spool\"\nafter = \"300ms\"\nflush_every = \"100ms\"\n";

fn config(port: u16, more: &str) -> String {
    format!(
        "name = \"n1\"\n[sources.agent]\nenabled = false\n[sources.tester]\nsensors = 5\ninterval = \"10ms\"\n[api]\n\
         socket = \"agent.sock\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:{port}\"\nsend_interval = \"50ms\"\n{more}"
    )
}

#[test]
fn what_may_pass_is_sent_again_and_what_cannot_is_given_up_once() {
    // Every third batch is refused three times for a temporary reason, every third for a permanent one.
    let (port, script) = Script::start(false, |came| match (came.seq % 3, came.before) {
        (0, 0) => ReasonCode::UNSPECIFIED_ERROR,
        (0, 1) => ReasonCode::QUOTA_EXCEEDED,
        (0, 2) => ReasonCode::NOT_AUTHORIZED,
        (1, _) => ReasonCode::PAYLOAD_FORMAT_INVALID,
        _ => ReasonCode::SUCCESS,
    });
    for spool in ["", SPOOL] {
        let dir = tempfile::tempdir().unwrap();
        let agent = Agent::start(dir.path(), &config(port, spool));
        let (boot, counters) = (agent.handles.identity.boot_ns, agent.handles.counters.clone());
        wait_until("twelve batches that are taken", || {
            (1..=18).filter(|seq| seq % 3 != 1).all(|seq| script.has(boot, seq))
        });
        let counts = script.counts();
        for seq in (1..=18).filter(|seq| seq % 3 == 1) {
            assert_eq!(counts[&(boot, seq)], 1, "batch {seq} is given up at once");
        }
        assert!(counters.refused.load(Ordering::Relaxed) >= 6 && counters.deferred.load(Ordering::Relaxed) >= 18);
        assert_eq!(counters.dropped.load(Ordering::Relaxed), 0);
        agent.stop();
    }
}

#[test]
fn a_server_that_refuses_everything_is_asked_ever_more_rarely_and_the_spool_keeps_it() {
    let refuse = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let its = refuse.clone();
    let (port, script) = Script::start(false, move |_| {
        if its.load(Ordering::SeqCst) { ReasonCode::IMPLEMENTATION_ERROR } else { ReasonCode::SUCCESS }
    });
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &config(port, &format!("queue_bytes_max = \"64KiB\"\n{SPOOL}")));
    let (boot, counters) = (agent.handles.identity.boot_ns, agent.handles.counters.clone());
    wait_until("batches in the spool", || counters.spooled.load(Ordering::Relaxed) >= 40);
    let (made, sent) = (counters.batches.load(Ordering::Relaxed), script.came.lock().unwrap().len() as u64);
    assert!(sent < made * 4, "{sent} messages for {made} batches: there are pauses");
    assert_eq!(agent.handles.status.link().state, "connected", "the connection is good");
    refuse.store(false, Ordering::SeqCst);
    wait_until("everything", || (1..=made).all(|seq| script.has(boot, seq)));
    assert_eq!(counters.dropped.load(Ordering::Relaxed) + counters.refused.load(Ordering::Relaxed), 0);
    wait_until("the spool to be empty", || counters.spool_bytes.load(Ordering::Relaxed) == 0);
    agent.stop();
}

#[test]
fn a_batch_copied_to_the_disk_while_it_was_in_flight_is_not_sent_again_once_acknowledged() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    script.silent.store(true, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &config(port, SPOOL));
    let counters = agent.handles.counters.clone();
    wait_until("copies on the disk", || counters.spooled.load(Ordering::Relaxed) >= 10);
    script.silent.store(false, Ordering::SeqCst);
    wait_until("the spool to be empty", || counters.spool_bytes.load(Ordering::Relaxed) == 0);
    let twice: Vec<_> = script.counts().into_iter().filter(|(_, count)| *count > 1).collect();
    assert!(twice.is_empty(), "sent again: {twice:?}");
    agent.stop();
}

/// The spool of an agent that had the group `old`: batches 1 to 6, with the schema at this position among them or without it.
fn leave_spool(dir: &Path, schema_at: Option<u64>) {
    let config = SpoolConfig { dir: dir.to_owned(), bytes_max: 1 << 20, segment_bytes: 1 << 17, sync: false };
    let (mut spool, _) = Spool::open(config).unwrap();
    let prefix = SensorPath::new("/n1").unwrap();
    let schema = Schema::new(prefix, "old", vec![SensorDef::gauge("old/a", "1", "")]).unwrap();
    for seq in 1..=6 {
        if schema_at == Some(seq) {
            let topic = Topic::Schema { agent: "n1", group: "old" }.to_string();
            spool.push(&topic, &schema.encode()).unwrap();
        }
        let header =
            BatchHeader { agent: "n1".into(), boot: 7, seq, schema: schema.hash(), interval_ns: 1_000_000_000 };
        let batch = Batch {
            header,
            times: vec![seq as i64],
            columns: vec![Column { values: ColumnValues::Int(vec![1]), gaps: Gaps::default() }],
        };
        spool.push(&Topic::Batch { agent: "n1", group: "old" }.to_string(), &encode_batch(&batch)).unwrap();
    }
    spool.flush().unwrap();
}

#[test]
fn a_schema_that_only_the_spool_has_is_found_there() {
    let (port, script) = Script::start(true, |_| ReasonCode::SUCCESS);
    let dir = tempfile::tempdir().unwrap();
    leave_spool(&dir.path().join("spool"), Some(4));
    // A window of one record: the schema is not sent while the batches before it wait.
    let agent = Agent::start(dir.path(), &config(port, &format!("{SPOOL}drain_share = 0.000001\n")));
    wait_until("the old batches", || (1..=6).all(|seq| script.has(7, seq)));
    let (boot, last) = (agent.handles.identity.boot_ns, agent.handles.counters.batches.load(Ordering::Relaxed));
    wait_until("the new ones", || last > 0 && (1..=last).all(|seq| script.has(boot, seq)));
    agent.stop();
}

#[test]
fn batches_whose_schema_nobody_has_are_dropped_and_counted_and_hold_up_nothing() {
    let (port, script) = Script::start(true, |_| ReasonCode::SUCCESS);
    let dir = tempfile::tempdir().unwrap();
    leave_spool(&dir.path().join("spool"), None);
    let agent = Agent::start(dir.path(), &config(port, SPOOL));
    let counters = agent.handles.counters.clone();
    wait_until("the loss to be counted", || counters.dropped.load(Ordering::Relaxed) == 6);
    let (boot, last) = (agent.handles.identity.boot_ns, counters.batches.load(Ordering::Relaxed) + 20);
    wait_until("all others", || (1..=last).all(|seq| script.has(boot, seq)));
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 6);
    agent.stop();
}
