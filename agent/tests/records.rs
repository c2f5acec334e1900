//! Sending of job records: each until it is acknowledged, none that was refused for good, and without delaying readings.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use support::Agent;
use support::script::Script;
use wholegrain_agent::jobs::pending_records::{PendingCallback, PendingRecords};
use wholegrain_model::JobRecord;
use wholegrain_testkit::wait_until;
use wholegrain_transport::mqtt::ReasonCode;

/// A job table that counts how often it is read.
#[derive(Default)]
struct TestRecords {
    pending: Mutex<Vec<JobRecord>>,
    on_pending: Mutex<Option<PendingCallback>>,
    reads: AtomicUsize,
}

impl TestRecords {
    fn put(&self, record: JobRecord) {
        let mut pending = self.pending.lock().unwrap();
        pending.retain(|other| !other.is_same(&record));
        pending.push(record);
        drop(pending);
        if let Some(on_pending) = self.on_pending.lock().unwrap().clone() {
            on_pending();
        }
    }
}

impl PendingRecords for TestRecords {
    fn is_pending(&self) -> bool {
        !self.pending.lock().unwrap().is_empty()
    }

    fn pending(&self, max: usize) -> Vec<JobRecord> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.pending.lock().unwrap().iter().take(max).cloned().collect()
    }

    fn acknowledged(&self, record: &JobRecord) {
        self.pending.lock().unwrap().retain(|other| !other.is_same(record) || other.revision > record.revision);
    }

    fn on_change(&self, on_pending: PendingCallback) {
        *self.on_pending.lock().unwrap() = Some(on_pending);
    }

    fn complete(&self, _: &JobRecord, _: &std::collections::BTreeMap<String, f64>, _: i64) {}

    fn finish(&self, _: &JobRecord, _: &std::collections::BTreeMap<String, f64>, _: Option<&str>) {}
}

fn record(job: &str, revision: u64) -> JobRecord {
    JobRecord {
        job: job.to_owned(),
        level: job.to_owned(),
        manager: "slurm".to_owned(),
        node: "n1".to_owned(),
        prefix: "/n1".to_owned(),
        revision,
        ..JobRecord::default()
    }
}

fn start(script_port: u16, job_table: &Arc<TestRecords>) -> (tempfile::TempDir, Agent) {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "name = \"n1\"\n[sources.agent]\nenabled = false\n[sources.tester]\nsensors = 5\ninterval = \"10ms\"\n[api]\n\
         socket = \"agent.sock\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:{script_port}\"\nsend_interval = \"50ms\"\n"
    );
    let agent = Agent::start(dir.path(), &config);
    agent.handles.records.set(Some(job_table.clone()));
    (dir, agent)
}

fn came(script: &Script) -> Vec<(String, u64)> {
    script.jobs.lock().unwrap().iter().map(|record| (record.job.clone(), record.revision)).collect()
}

#[test]
fn each_record_arrives_once_and_a_change_again() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    let job_table = Arc::new(TestRecords::default());
    (0..20).for_each(|job| job_table.put(record(&format!("{job:02}"), 1)));
    let (_dir, agent) = start(port, &job_table);
    wait_until("twenty records", || !job_table.is_pending());
    let expected: Vec<(String, u64)> = (0..20).map(|job| (format!("{job:02}"), 1)).collect();
    assert_eq!(came(&script), expected, "the oldest change first, each once");
    job_table.put(record("07", 2));
    wait_until("a change", || !job_table.is_pending());
    assert_eq!(came(&script)[20..], [("07".to_owned(), 2)]);
    let reads = job_table.reads.load(Ordering::Relaxed);
    let batches = script.came.lock().unwrap().len();
    wait_until("more batches", || script.came.lock().unwrap().len() > batches + 5);
    assert_eq!(job_table.reads.load(Ordering::Relaxed), reads, "a table without changes is not read");
    agent.stop();
}

#[test]
fn a_record_refused_for_good_is_sent_again_only_when_it_has_changed() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    *script.job_answer.lock().unwrap() = Box::new(|record| {
        Some(if record.job == "bad" && record.revision < 3 {
            ReasonCode::PAYLOAD_FORMAT_INVALID
        } else {
            ReasonCode::SUCCESS
        })
    });
    let job_table = Arc::new(TestRecords::default());
    job_table.put(record("bad", 1));
    (0..8).for_each(|job| job_table.put(record(&job.to_string(), 1)));
    let (_dir, agent) = start(port, &job_table);
    wait_until("the good ones", || job_table.pending.lock().unwrap().len() == 1);
    job_table.put(record("good", 1));
    wait_until("another good one", || job_table.pending.lock().unwrap().len() == 1);
    let bad = |script: &Script| came(script).iter().filter(|(job, _)| job == "bad").count();
    assert_eq!(bad(&script), 1, "once, however often others are sent");
    job_table.put(record("bad", 2));
    wait_until("the next revision", || bad(&script) == 2);
    job_table.put(record("bad", 3));
    wait_until("one that is taken", || !job_table.is_pending());
    assert_eq!(agent.handles.counters.refused.load(Ordering::Relaxed), 2);
    agent.stop();
}

#[test]
fn a_refusal_that_may_pass_holds_up_no_batch_and_the_record_comes_again() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    let refuse = Arc::new(AtomicBool::new(true));
    let its = refuse.clone();
    *script.job_answer.lock().unwrap() = Box::new(move |_| {
        Some(if its.load(Ordering::SeqCst) { ReasonCode::NOT_AUTHORIZED } else { ReasonCode::SUCCESS })
    });
    let job_table = Arc::new(TestRecords::default());
    job_table.put(record("1", 1));
    let (_dir, agent) = start(port, &job_table);
    wait_until("two refusals", || came(&script).len() >= 2);
    let before = script.came.lock().unwrap().len();
    wait_until("batches meanwhile", || script.came.lock().unwrap().len() > before + 10);
    assert!(came(&script).len() < 8, "ever more rarely");
    refuse.store(false, Ordering::SeqCst);
    wait_until("the record", || !job_table.is_pending());
    agent.stop();
}

#[test]
fn a_connection_that_ends_costs_no_record() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    let cuts = Arc::new(AtomicUsize::new(2));
    let its = cuts.clone();
    *script.job_answer.lock().unwrap() = Box::new(move |_| {
        let cut = its.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if cut { None } else { Some(ReasonCode::SUCCESS) }
    });
    let job_table = Arc::new(TestRecords::default());
    (0..6).for_each(|job| job_table.put(record(&job.to_string(), 1)));
    let (_dir, agent) = start(port, &job_table);
    wait_until("all of them", || !job_table.is_pending());
    assert!(agent.handles.counters.reconnects.load(Ordering::Relaxed) >= 2);
    let came = came(&script);
    assert!((0..6).all(|job| came.contains(&(job.to_string(), 1))) && came.len() > 6, "{came:?}");
    agent.stop();
}

#[test]
fn what_is_pending_at_the_end_still_goes_out() {
    let (port, script) = Script::start(false, |_| ReasonCode::SUCCESS);
    let job_table = Arc::new(TestRecords::default());
    let (_dir, agent) = start(port, &job_table);
    wait_until("a connection", || agent.handles.status.link().state == "connected");
    (0..30).for_each(|job| job_table.put(record(&job.to_string(), 1)));
    agent.stop();
    assert!(!job_table.is_pending());
    assert_eq!(script.jobs.lock().unwrap().len(), 30);
}
