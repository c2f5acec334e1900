//! Records of jobs: revisions, crashes and damage, and lists of jobs.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};

use support::{EIO, Fault, FaultyDisk, Random, seed};
use wholegrain_model::pattern::glob;
use wholegrain_model::{Interval, JobRecord};
use wholegrain_store::{AppendOutcome, JobFilter, JobList, JobRow, JobState, Store, StoreConfig, StoreError};

const S: i64 = 1_000_000_000;

fn record(job: &str, node: &str, from: i64, revision: u64) -> JobRecord {
    JobRecord {
        job: job.to_owned(),
        level: job.replace(['.', ':'], "_"),
        manager: "slurm".to_owned(),
        node: node.to_owned(),
        prefix: format!("/site/{node}"),
        user: Some("anna".to_owned()),
        uid: Some(1000),
        from,
        revision,
        ..JobRecord::default()
    }
}

fn config() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new("/store") }
}

fn open(disk: &FaultyDisk) -> Store {
    Store::open_on(config(), Arc::new(disk.clone())).unwrap().0
}

fn put(store: &Store, records: Vec<JobRecord>) -> Result<AppendOutcome, StoreError> {
    let (sender, receiver) = sync_channel(1);
    store.put_jobs(records, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

fn records(store: &Store, job: &str) -> Vec<JobRecord> {
    let mut all = Vec::new();
    if let Some(found) = store.find_job(job, None, None) {
        let damaged = store.job_records(&found, |record| {
            all.push(record);
            Ok(())
        });
        assert_eq!(damaged.unwrap().unwrap(), 0);
    }
    all
}

fn list(store: &Store) -> Vec<JobRow> {
    store.jobs(&JobFilter { limit: 10_000, ..JobFilter::default() }).rows
}

#[test]
fn the_highest_revision_counts_in_whatever_order_they_come() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    assert!(disk.files("jobs.redb").is_empty(), "no file before the first record");
    let named = |revision, name: &str| JobRecord { name: Some(name.to_owned()), ..record("7", "n1", S, revision) };
    assert_eq!(put(&store, vec![named(3, "three")]).unwrap(), AppendOutcome::Stored);
    assert_eq!(put(&store, vec![named(2, "two")]).unwrap(), AppendOutcome::Duplicate);
    assert_eq!(put(&store, vec![named(3, "three")]).unwrap(), AppendOutcome::Duplicate, "sent again");
    assert_eq!(put(&store, vec![named(9, "nine"), named(8, "eight")]).unwrap(), AppendOutcome::Stored, "in one call");
    assert_eq!(records(&store, "7"), [named(9, "nine")]);
    // An agent that lost count can still end it, and what it forgot does not make it run again.
    let ended = JobRecord { to: Some(9 * S), ..named(1, "one") };
    assert_eq!(put(&store, vec![ended.clone()]).unwrap(), AppendOutcome::Stored);
    assert_eq!(put(&store, vec![named(1, "one")]).unwrap(), AppendOutcome::Duplicate);
    assert_eq!(records(&store, "7"), std::slice::from_ref(&ended));
    // Another start is another allocation, and another run.
    put(&store, vec![record("7", "n1", 100 * S, 1)]).unwrap();
    assert_eq!(
        list(&store).iter().map(|row| (row.from, row.to)).collect::<Vec<_>>(),
        [(100 * S, None), (S, Some(9 * S))]
    );
    drop(store);
    let store = open(&disk);
    assert_eq!(list(&store).len(), 2);
    assert_eq!(put(&store, vec![ended.clone()]).unwrap(), AppendOutcome::Duplicate, "known after a restart");
    assert_eq!(store.find_job("7", None, Some(50 * S)).unwrap().row.to, Some(9 * S), "the run of that time");
}

#[test]
fn what_is_no_record_is_refused_and_harms_nothing() {
    let store = open(&FaultyDisk::default());
    let good = record("7", "n1", S, 1);
    let long = "x".repeat(129);
    for (bad, says) in [
        (JobRecord { job: String::new(), ..good.clone() }, "`job` is 0 bytes"),
        (JobRecord { job: long, ..good.clone() }, "`job` is 129 bytes"),
        (JobRecord { node: String::new(), ..good.clone() }, "`node`"),
        (JobRecord { manager: String::new(), ..good.clone() }, "`manager`"),
        (JobRecord { prefix: "n1".to_owned(), ..good.clone() }, "`prefix`"),
        (JobRecord { level: "a/b".to_owned(), ..good.clone() }, "`level`"),
        (JobRecord { level: String::new(), ..good.clone() }, "`level`"),
        (JobRecord { name: Some("x".repeat(1 << 20)), ..good.clone() }, "at most 1048576"),
    ] {
        let error = put(&store, vec![good.clone(), bad]).unwrap_err();
        assert!(matches!(error, StoreError::Payload(_)) && error.to_string().contains(says), "{error}");
    }
    assert!(list(&store).is_empty());
    let odd = JobRecord { level: "x".to_owned(), ..record("ƒ2o \"Lk,\n", "n1", S, 1) };
    put(&store, vec![odd.clone()]).unwrap();
    assert_eq!(records(&store, &odd.job), std::slice::from_ref(&odd));
    assert_eq!(records(&store, "x"), [odd], "by its level");
}

/// Otherwise one node's record of 1970 would move the begin of the job.
#[test]
fn times_that_cannot_be_of_a_job_are_refused() {
    const DAY: i64 = 86_400 * S;
    let now = 20_000 * DAY;
    let bounded = |past_max, future_max| {
        let clock = wholegrain_store::Clock::new(move || now);
        Store::open_on(StoreConfig { past_max, future_max, clock, ..config() }, Arc::new(FaultyDisk::default()))
            .unwrap()
            .0
    };
    let days = |count: u64| Some(Interval::from_s(count * 86_400));
    let store = bounded(days(30), days(1));
    let good = record("7", "n1", now - 399 * DAY, 1);
    for (bad, says) in [
        (record("7", "n2", S, 1), "`from` is 1970-01-01"),
        (record("7", "n2", now - 401 * DAY, 1), "`from`"),
        (record("7", "n2", now + 2 * DAY, 1), "`from`"),
        (JobRecord { to: Some(now + 2 * DAY), ..good.clone() }, "`to`"),
        (JobRecord { totals_at: Some(i64::MAX), ..good.clone() }, "`totals_at`"),
    ] {
        let error = put(&store, vec![bad]).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("store.past_max"), "{error}");
    }
    assert!(list(&store).is_empty());
    put(&store, vec![good.clone(), record("8", "n1", now + DAY / 2, 1)]).unwrap();
    assert_eq!(records(&store, "7"), [good]);
    // Where older readings are taken, older jobs are.
    put(&bounded(days(500), None), vec![record("7", "n2", now - 499 * DAY, 1)]).unwrap();
}

/// A page has a bound in bytes, and the next page continues after it.
#[test]
fn long_texts_make_short_pages() {
    let store = open(&FaultyDisk::default());
    let long = |number: i64| {
        let text = |what: &str| Some(format!("{what}{number}{}", "x".repeat(1000)));
        let (name, account, partition) = (text("name"), text("account"), text("partition"));
        JobRecord { name, account, partition, ..record(&format!("{number}"), "n1", number * S, 1) }
    };
    put(&store, (0..3000).map(long).collect()).unwrap();
    let (mut after, mut jobs, mut pages) = (None, Vec::new(), Vec::new());
    loop {
        let page = store.jobs(&JobFilter { limit: 10_000, after, ..JobFilter::default() });
        pages.push(page.rows.len());
        jobs.extend(page.rows.into_iter().map(|row| row.job));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(pages.len() == 3 && pages[0] < 1500, "{pages:?}");
    assert_eq!(jobs, (0..3000).rev().map(|number| number.to_string()).collect::<Vec<_>>());
}

/// Puts records of five jobs, two revisions each, until the disk fails; returns the acknowledged ones.
fn put_some(store: &Store, acknowledged: &mut BTreeMap<String, u64>) {
    for revision in 1..=2 {
        for job in 0..5 {
            let job = job.to_string();
            if put(store, vec![record(&job, "n1", S, revision)]).is_ok() {
                acknowledged.insert(job, revision);
            }
        }
    }
}

fn check(store: &Store, acknowledged: &BTreeMap<String, u64>, what: &str) {
    for (job, revision) in acknowledged {
        let found = records(store, job);
        assert!(found.len() == 1 && found[0].revision >= *revision, "{what}: job {job}: {found:?}, wanted {revision}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_stop_of_the_machine_at_any_moment() {
    let mut at = 0;
    loop {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        let mut acknowledged = BTreeMap::new();
        disk.plan(at, Fault::Crash);
        put_some(&store, &mut acknowledged);
        let finished = acknowledged.values().filter(|revision| **revision == 2).count() == 5;
        for crash in 0..3 {
            let after = disk.after_crash(&mut Random::new(crash + at * 3));
            check(&open(&after), &acknowledged, &format!("operation {at}, crash {crash}"));
        }
        check(&open(&disk.after_kill()), &acknowledged, &format!("operation {at}, killed"));
        if finished {
            assert!(at > 40, "{at} operations were tried");
            return;
        }
        at += 1;
    }
}

#[test]
fn a_disk_that_fails_for_a_while_costs_nothing_that_was_acknowledged() {
    for (at, errors) in (0..36).flat_map(|at| [(at, 1), (at, 3)]) {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        let mut acknowledged = BTreeMap::new();
        put(&store, vec![record("0", "n1", S, 1)]).unwrap();
        disk.plan(at, Fault::Errors(EIO, errors));
        put_some(&store, &mut acknowledged);
        disk.calm();
        // It goes on by itself, and a record that was not acknowledged is taken when it comes again.
        for job in 0..10 {
            put(&store, vec![record(&job.to_string(), "n1", S, 3)]).unwrap();
            acknowledged.insert(job.to_string(), 3);
        }
        check(&store, &acknowledged, "the same process");
        drop(store);
        for crash in 0..2 {
            let after = disk.after_crash(&mut Random::new(crash));
            check(&open(&after), &acknowledged, &format!("operation {at}, {errors} errors, crash {crash}"));
        }
    }
}

#[test]
fn a_record_that_a_failed_fsync_left_in_memory_is_made_durable_before_it_counts_as_a_repeat() {
    for at in 0..12 {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        put(&store, vec![record("1", "n1", S, 1)]).unwrap();
        disk.plan(at, Fault::Errors(EIO, 1));
        let _ = put(&store, vec![record("2", "n1", S, 1)]);
        let killed = disk.after_kill();
        let store = open(&killed);
        put(&store, vec![record("2", "n1", S, 1)]).unwrap();
        for crash in 0..3 {
            let store = open(&killed.after_crash(&mut Random::new(crash)));
            assert_eq!(list(&store).len(), 2, "operation {at}, crash {crash}");
        }
    }
}

#[test]
fn a_damaged_record_is_left_out_and_named_and_a_damaged_file_put_aside() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    let records: Vec<JobRecord> = (0..5).map(|job| record(&format!("job{job}"), "n1", S, 1)).collect();
    put(&store, records).unwrap();
    drop(store);
    let path = Path::new("/store/jobs.redb");
    let mut content = disk.content(path);
    // Values lie in the order of their names, each packed.
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let places: Vec<usize> = (0..content.len() - 4).filter(|at| content[*at..].starts_with(&magic)).collect();
    assert_eq!(places.len(), 5);
    let whole = content.clone();
    for at in places[3] - 8..places[3] + 80 {
        content[at] ^= 1;
        disk.put(path, &content);
        let (store, report) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
        assert_eq!((report.damaged_jobs.len(), list(&store).len()), (1, 4), "byte {at}");
        content.clone_from(&whole);
    }
    content[places[3] + 20] ^= 1;
    disk.put(path, &content);
    let (store, report) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    assert_eq!(report.damaged_jobs.len(), 1, "{report:?}");
    assert!(report.damaged_jobs[0].contains("slurm job job3 on n1"), "{report:?}");
    assert!(!report.is_clean());
    assert_eq!((list(&store).len(), store.stats().damaged_jobs), (4, 1));
    put(&store, vec![record("job3", "n1", S, 1)]).unwrap();
    assert_eq!(list(&store).len(), 5, "it comes again");
    drop(store);
    for broken in [vec![0; 10_000], content[..300].to_vec()] {
        disk.put(path, &broken);
        let (store, report) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
        assert!(report.damaged_jobs[0].contains("/store/damaged/jobs-"), "{report:?}");
        assert!(list(&store).is_empty());
        put(&store, vec![record("new", "n1", S, 1)]).unwrap();
        drop(store);
        assert_eq!(list(&open(&disk)).len(), 1);
    }
    assert_eq!(disk.files("/damaged/jobs-").len(), 2);
}

#[test]
fn records_that_wait_together_share_a_transaction_and_no_more_wait_than_fit() {
    let store = open(&FaultyDisk::default());
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    // The thread is held up in the answer to the first while the others come.
    let (held, is_held) = channel();
    let done = Box::new(move |_| {
        held.send(()).unwrap();
        let _ = gate.lock().unwrap().recv();
    });
    store.put_jobs(vec![record("0", "n0", S, 1)], done);
    is_held.recv().unwrap();
    let (sender, receiver) = channel();
    for node in 1..=2000 {
        let sender = sender.clone();
        let one = record("1", &format!("n{node}"), S, 1);
        store.put_jobs(vec![one], Box::new(move |result| sender.send(result).unwrap()));
    }
    // Of what cannot be packed to less than three quarters.
    let mut random = Random::new(seed());
    let noise: String = (0..1_000_000)
        .map(|_| (b' ' + random.below(64) as u8) as char)
        .map(|c| if c == '"' || c == '\\' { 'x' } else { c })
        .collect();
    let large = |job: usize| JobRecord { name: Some(noise.clone()), ..record(&job.to_string(), "n1", S, 1) };
    let mut busy = 0;
    for job in 100..220 {
        let (sender, receiver) = sync_channel(1);
        store.put_jobs(vec![large(job)], Box::new(move |result| drop(sender.send(result))));
        busy += usize::from(matches!(receiver.try_recv(), Ok(Err(StoreError::Busy))));
    }
    assert!((10..60).contains(&busy), "{busy} of 120 were turned away");
    drop(go);
    for _ in 0..2000 {
        assert_eq!(receiver.recv().unwrap().unwrap(), AppendOutcome::Stored);
    }
    let commits = store.stats().job_commits;
    assert!(commits <= 3, "{commits} transactions for 2001 calls");
    // A page of the list ends before it: the names are long.
    assert_eq!(store.find_job("1", None, None).unwrap().row.nodes, 2000);
}

#[test]
fn what_ended_longer_ago_than_jobs_are_kept_is_forgotten() {
    let disk = FaultyDisk::default();
    let config = StoreConfig { jobs_age: Some(Interval::from_s(100)), ..config() };
    let (store, _) = Store::open_on(config.clone(), Arc::new(disk.clone())).unwrap();
    for (job, to) in [("old", Some(50 * S)), ("long", Some(950 * S)), ("runs", None)] {
        put(&store, vec![JobRecord { to, ..record(job, "n1", S, 1) }]).unwrap();
    }
    store.maintain(1000 * S).unwrap();
    let jobs = |store: &Store| list(store).into_iter().map(|row| row.job).collect::<Vec<_>>();
    assert_eq!(jobs(&store).len(), 2);
    assert!(!jobs(&store).contains(&"old".to_owned()) && store.job("old").is_empty());
    assert_eq!(store.stats().jobs_dropped, 1);
    drop(store);
    let (store, _) = Store::open_on(config, Arc::new(disk)).unwrap();
    assert_eq!(jobs(&store).len(), 2);
    store.maintain(1_000_000 * S).unwrap();
    assert_eq!(jobs(&store), ["runs"]);
}

/// A few hundred allocations with much in common.
fn random_records(random: &mut Random) -> Vec<JobRecord> {
    let mut all: BTreeMap<(String, String, i64), JobRecord> = BTreeMap::new();
    for _ in 0..300 {
        let job = random.below(60);
        let user = ["anna", "bert", "cleo"][job as usize % 3];
        // Each run of a job is far from the others.
        let (run, begun) = (random.below(3) as i64, random.below(3) as i64);
        let from = run * 100_000 * S + job as i64 * 10 * S + begun * S;
        let node = format!("n{}", random.below(8));
        let mut one = record(&job.to_string(), &node, from, 1);
        one.user = Some(user.to_owned()).filter(|_| job != 7);
        one.uid = Some(1000 + job as u32 % 3);
        one.name = Some(format!("run-{}", job % 5));
        one.partition = Some(["short", "long"][job as usize % 2].to_owned());
        one.to = Some(from + 1000 * S).filter(|_| run < 2 || !job.is_multiple_of(4));
        one.totals.insert("cpu/usage".to_owned(), random.below(1 << 40) as f64 / 1024.0);
        one.totals.insert("memory/peak".to_owned(), random.below(1000) as f64);
        // A node has a job once in a run.
        all.retain(|(other_job, other_node, other), _| {
            (other_job, other_node) != (&one.job, &one.node) || (from - other).abs() > 50_000 * S
        });
        all.insert((one.job.clone(), one.node.clone(), from), one);
    }
    all.into_values().collect()
}

/// The jobs that match a filter, found by a full search: (newest matching allocation, job, begin, nodes).
fn slowly(records: &[JobRecord], filter: &JobFilter) -> Vec<(i64, String, i64, usize)> {
    let mut runs: BTreeMap<(String, i64), Vec<&JobRecord>> = BTreeMap::new();
    for record in records {
        if filter.only_user.is_none() || record.user == filter.only_user {
            runs.entry((record.job.clone(), record.from / (100_000 * S))).or_default().push(record);
        }
    }
    let is = |expected: &Option<String>, value: &Option<String>| expected.is_none() || expected == value;
    let mut rows = Vec::new();
    for ((job, _), run) in runs {
        let running = run.iter().any(|record| record.to.is_none());
        let asked = run.iter().filter(|record| {
            let user = filter.user.is_none()
                || record.user == filter.user
                || record.uid.map(|uid| uid.to_string()) == filter.user;
            user && is(&filter.partition, &record.partition)
                && filter.node.as_ref().is_none_or(|node| glob(node, &record.node))
                && filter.name.as_ref().is_none_or(|name| glob(name, record.name.as_ref().unwrap()))
                && filter.from.is_none_or(|from| record.to.is_none_or(|to| to >= from))
                && filter.to.is_none_or(|to| record.from < to)
                && match filter.state {
                    None => true,
                    Some(JobState::Running) => record.to.is_none(),
                    Some(JobState::Ended) => !running,
                }
        });
        if let Some(newest) = asked.map(|record| record.from).max() {
            rows.push((newest, job, run.iter().map(|record| record.from).min().unwrap(), run.len()));
        }
    }
    rows.sort_by(|a, b| b.cmp(a));
    rows
}

#[test]
fn lists_say_what_looking_at_every_record_says_on_pages_of_any_length() {
    let mut random = Random::new(seed());
    let store = open(&FaultyDisk::default());
    let records = random_records(&mut random);
    put(&store, records.clone()).unwrap();
    let mut seen = 0;
    for round in 0..400 {
        let mut maybe = |of: &[&str]| {
            let choice = random.below(of.len() as u64 * 3) as usize;
            of.get(choice).map(|text| (*text).to_owned())
        };
        let mut filter = JobFilter {
            only_user: maybe(&["anna", "bert", "nobody"]),
            user: maybe(&["anna", "1001", "4"]),
            node: maybe(&["n1", "n*", "*3", "x*"]),
            partition: maybe(&["short", "none"]),
            name: maybe(&["run-*", "run-2", "*3"]),
            ..JobFilter::default()
        };
        filter.state = [None, Some(JobState::Running), Some(JobState::Ended)][random.below(3) as usize];
        filter.from = random.chance(30).then(|| random.below(300_000) as i64 * S);
        filter.to = random.chance(30).then(|| random.below(300_000) as i64 * S);
        filter.limit = 1 + random.below(20) as usize;
        let expected = slowly(&records, &filter);
        let mut found = Vec::new();
        loop {
            let JobList { rows, next } = store.jobs(&filter);
            assert!(rows.len() <= filter.limit && (next.is_none() || rows.len() == filter.limit));
            found.extend(rows.into_iter().map(|row| (row.job, row.from, row.nodes)));
            filter.after = next;
            if next.is_none() {
                break;
            }
        }
        let mut sorted = found.clone();
        sorted.sort();
        let mut wanted: Vec<_> = expected.iter().map(|(_, job, from, nodes)| (job.clone(), *from, *nodes)).collect();
        wanted.sort();
        assert_eq!(sorted, wanted, "round {round}: {filter:?}");
        seen += found.len();
    }
    assert!(seen > 1000, "{seen} rows were compared");
    let row = list(&store).into_iter().max_by_key(|row| row.nodes).unwrap();
    let of_it: Vec<&JobRecord> =
        records.iter().filter(|record| record.job == row.job && (record.from - row.from).abs() < 50_000 * S).collect();
    assert_eq!(row.nodes, of_it.len());
    assert_eq!(row.cpu_s, Some(of_it.iter().map(|record| record.totals["cpu/usage"]).sum()));
    assert_eq!(row.memory_peak, of_it.iter().map(|record| record.totals["memory/peak"]).reduce(f64::max));
}
