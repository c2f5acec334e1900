//! Jobs from the kernel's cgroups to the server's answers: real directories with real processes, a real agent, a real server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;
use wholegrain_testing::cgroups::{Cgroups, JobGroup};
use wholegrain_testing::jobs::{Descriptors, JobReading, JobSite};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::{Process, wait_until};

/// The sources of job metrics with their defaults.
const SOURCES: &str = "[sources.cgroup]\n[sources.perf]\n[sources.tasks]\n";

/// Whether jobs can be created on this machine; prints the reason if not.
fn can_create_jobs() -> bool {
    let missing = Cgroups::missing();
    if let Some(why) = &missing {
        println!("NOT TESTED: {why}");
    }
    missing.is_none()
}

/// Rules that sample all metrics with this interval, and those of processes ten times slower.
fn everything(every_ms: u64) -> String {
    format!(
        "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"{every_ms}ms\"\n\
         [[jobs.rule]]\nmetrics = [\"tasks/**\"]\nevery = \"{}ms\"\n",
        every_ms * 10
    )
}

#[track_caller]
fn wait_for_job(site: &JobSite, id: &str) {
    wait_until(&format!("the agent samples job {id}"), || site.metrics(id).iter().any(|(_, every)| every.is_some()));
}

/// The values without gaps.
fn values(readings: &[JobReading]) -> Vec<f64> {
    readings.iter().filter_map(|(_, value)| *value).collect()
}

/// Panics if a counter's values decrease.
#[track_caller]
fn assert_rising(what: &str, readings: &[JobReading]) {
    let values = values(readings);
    assert!(values.windows(2).all(|pair| pair[1] >= pair[0]), "{what} falls: {values:?}");
}

/// The number of missing ticks of an interval between the first and the last of these times.
fn holes(times: &[i64], interval_ns: i64) -> i64 {
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return 0 };
    (last - first + interval_ns / 2) / interval_ns + 1 - times.len() as i64
}

fn times(readings: &[JobReading]) -> Vec<i64> {
    readings.iter().map(|(time, _)| *time).collect()
}

#[test]
fn every_default_metric_of_a_job_arrives() {
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::new();
    let site = JobSite::new(&cgroups.root());
    site.configure(&everything(100), SOURCES);
    let mut server = site.site.start_server();
    let mut agent = site.start();
    let job = cgroups.job("4711", 0);
    let _busy = job.burn();
    wait_for_job(&site, "4711");
    wait_until("a second of CPU time", || job.cpu_s().is_some_and(|s| s > 1.0));
    let read = || -> BTreeSet<String> {
        site.metrics("4711").into_iter().filter(|(_, every)| every.is_some()).map(|(name, _)| name).collect()
    };
    let missing = || {
        let stored: BTreeSet<String> = site.stored_sensors("4711").into_iter().collect();
        read().difference(&stored).cloned().collect::<Vec<_>>()
    };
    let start = Instant::now();
    wait_until("every metric is at the server", || {
        let missing = missing();
        assert!(start.elapsed() < Duration::from_secs(55), "never came: {missing:?}");
        missing.is_empty()
    });
    let names = read();
    println!("{} metrics: {names:?}", names.len());
    for name in ["cpu/usage", "cpu/user", "cpu/system"] {
        assert!(names.contains(name), "no {name} among {names:?}");
        assert_rising(name, &site.stored("4711", name));
    }
    for (controller, name) in [("memory", "memory/usage"), ("memory", "memory/peak"), ("pids", "pids/current")] {
        assert!(!cgroups.has(controller) || names.contains(name), "no {name} among {names:?}");
    }
    // Stored values equal the kernel's counters: each is between two reads of the test.
    let before = job.cpu_s().expect("the kernel's count");
    let since = now_ns();
    let newest = || site.stored("4711", "cpu/usage").into_iter().rev().find_map(|(t, v)| Some((t, v?)));
    wait_until("a reading after a look", || newest().is_some_and(|(time, _)| time > since));
    let (_, stored) = newest().expect("it was there");
    let after = job.cpu_s().expect("the kernel's count");
    assert!((before..=after).contains(&stored), "{stored} s of CPU time is not between {before} and {after}");
    drop(job);
    // The totals of the end come first; what was sampled after them completes the record.
    let total = || site.record("4711").filter(|job| job["to"].is_string())?["totals"]["cpu/usage"].as_f64();
    wait_until("the ended job's total is at least a reading before it", || {
        total().is_some_and(|total| total >= stored)
    });
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_killed_agent_resumes_the_job_after_its_restart() {
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::new();
    let site = JobSite::new(&cgroups.root());
    site.configure(&everything(100), SOURCES);
    let mut server = site.site.start_server();
    let mut agent = site.start();
    let (job, ends_meanwhile) = (cgroups.job("1", 0), cgroups.job("2", 0));
    let _processes = (job.burn(), ends_meanwhile.idle());
    wait_for_job(&site, "1");
    wait_for_job(&site, "2");
    wait_until("records at the server", || site.record("1").is_some() && site.record("2").is_some());
    let began = site.record("1").expect("it was there")["from"].clone();
    // By its full name: `cpu/**` includes tasks/cpu/run, of a source with another interval.
    site.rule(&json!({ "metrics": ["cpu/usage"], "jobs": "1", "every": "20ms", "for": "10m" }));
    wait_until("readings", || site.stored("1", "cpu/usage").len() > 3);
    // The agent collects changes for some 200 ms before it writes its file of records.
    wait_until("both jobs in the agent's file", || site.recorded_jobs() == 2);
    agent.kill();
    let killed = now_ns();
    drop(ends_meanwhile);
    let mut agent = site.start();
    wait_for_job(&site, "1");
    wait_until("readings of the new agent", || {
        site.stored("1", "cpu/usage").last().is_some_and(|(time, _)| *time > killed)
    });
    assert_rising("cpu/usage", &site.stored("1", "cpu/usage"));
    let every = site.metrics("1").into_iter().find(|(name, _)| name == "cpu/usage").and_then(|(_, every)| every);
    assert_eq!(every, Some(20_000_000), "the rule outlived the agent");
    assert_eq!(site.record("1").expect("a record")["from"], began, "the same job, from its own beginning");
    wait_until("the end that nobody saw", || site.record("2").is_some_and(|job| job["to"].is_string()));
    assert_eq!(site.record("2").expect("it was there")["end_unseen"], true);
    assert_eq!(site.records().len(), 2, "no job twice: {:?}", site.records());
    drop(job);
    wait_until("the end of the job", || site.record("1").is_some_and(|job| job["to"].is_string()));
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_boost_expires_by_itself_and_costs_no_other_metric_a_tick() {
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::new();
    let site = JobSite::new(&cgroups.root());
    site.configure(&everything(50), SOURCES);
    let mut server = site.site.start_server();
    let mut agent = site.start();
    let job = cgroups.job("7", 0);
    let _busy = job.burn();
    wait_for_job(&site, "7");
    let metrics = site.metrics("7");
    let perf = metrics.iter().find(|(name, _)| name.starts_with("perf/"));
    // If cgroups have no counters of their own, another metric of the job is boosted.
    let (pattern, watched) = match perf {
        Some((name, _)) => ("perf/*", name.clone()),
        None => ("pids/*", "pids/current".to_owned()),
    };
    println!("turned up: {pattern}, looked at: {watched} of {} metrics", metrics.len());
    let others = ["cpu/usage", "cpu/user", "memory/usage"].map(str::to_owned);
    wait_until("readings before", || others.iter().all(|name| site.stored("7", name).len() > 10));
    let asked = now_ns();
    site.rule(&json!({ "metrics": [pattern], "jobs": "7", "every": "1ms", "for": "2s" }));
    let every = || site.metrics("7").into_iter().find(|(name, _)| *name == watched).and_then(|(_, every)| every);
    assert_eq!(every(), Some(1_000_000), "in force when it is answered");
    wait_until("it expires", || every() == Some(50_000_000));
    let over = now_ns();
    let last = |name: &str| site.stored("7", name).last().map_or(0, |(time, _)| *time);
    wait_until("readings after", || others.iter().chain([&watched]).all(|name| last(name) > over + 500_000_000));
    // The interval between stored samples: 1 ms is common during the boost and does not occur before and after it. The first sample is taken when
    // the job is found, not at a tick.
    let turned_up = times(&site.stored("7", &watched)).split_off(1);
    let close = |from: i64, to: i64| {
        let near = |pair: &&[i64]| pair[0] > from && pair[1] < to && pair[1] - pair[0] < 5_000_000;
        turned_up.windows(2).filter(near).count()
    };
    let (before, during, after) = (close(0, asked), close(asked, over), close(over, i64::MAX));
    let first = turned_up.windows(2).find(|p| p[0] > asked && p[1] - p[0] < 5_000_000).map(|p| p[0]).unwrap_or(0);
    println!("in force {:.1} ms after the request; {during} close pairs", (first - asked) as f64 / 1e6);
    assert!(before == 0 && during > 100 && after == 0, "{before} {during} {after}");
    for name in &others {
        let times = times(&site.stored("7", name));
        let (missing, reported) = (holes(&times, 50_000_000), site.missed_ticks("7", name));
        println!("{name}: {} readings, {missing} missing, {reported} reported", times.len());
        assert!(missing <= reported as i64, "{name}: {missing} ticks are missing and {reported} are reported");
        assert!(missing * 20 <= times.len() as i64, "{name}: so many missed ticks prove nothing: {missing}");
    }
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn raw_then_accumulated_then_raw_has_each_tick_once() {
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::new();
    let site = JobSite::new(&cgroups.root());
    site.configure(&everything(20), SOURCES);
    let mut server = site.site.start_server();
    let mut agent = site.start();
    let job = cgroups.job("8", 0);
    let _busy = job.burn();
    wait_for_job(&site, "8");
    let metric = if cgroups.has("memory") { "memory/usage" } else { "cpu/usage" };
    wait_until("raw readings", || site.stored("8", metric).len() > 20);
    let answer = site.rule(&json!({ "metrics": [metric], "jobs": "8", "every": "20ms", "for": "10m",
        "accumulate": { "window": "500ms", "quantiles": [0.5, 0.99] } }));
    let windows = |part: &str| site.stored("8", &format!("{metric}/{part}"));
    wait_until("windows", || windows("count").len() > 4);
    let rule = answer["rule"].as_u64().expect("the rule's number");
    let (status, body) = site.ask("DELETE", &format!("/v1/rules/{rule}"), "").expect("an answer");
    assert_eq!(status, 200, "{body}");
    let ended = now_ns();
    wait_until("raw readings again", || {
        site.stored("8", metric).last().is_some_and(|(t, _)| *t > ended + 1_000_000_000)
    });
    let (raw, counts) = (site.stored("8", metric), values(&windows("count")));
    for part in ["min", "max", "mean", "last", "p50", "p99"] {
        assert_eq!(windows(part).len(), counts.len(), "{metric}/{part}: as many as windows");
    }
    for ((least, greatest), mean) in windows("min").iter().zip(windows("max")).zip(windows("mean")) {
        let (Some(least), Some(greatest), Some(mean)) = (least.1, greatest.1, mean.1) else { continue };
        assert!(least <= mean && mean <= greatest, "{least} {mean} {greatest}");
    }
    // The first sample is taken when the job is found, not at a tick.
    let raw = times(&raw).split_off(1);
    let all = raw.len() as i64 + counts.iter().sum::<f64>() as i64;
    // Ticks are multiples of the interval. A late sample has the time of its read, which is before the next tick.
    let due = raw[raw.len() - 1] / 20_000_000 - raw[0] / 20_000_000 + 1;
    let reported = site.missed_ticks("8", metric) as i64;
    println!(
        "{due} ticks due, {} raw and {} in {} windows; {reported} reported as missed",
        raw.len(),
        all - raw.len() as i64,
        counts.len()
    );
    assert!(all <= due, "a tick counts twice: {all} of {due}");
    assert!(due - all <= reported, "{} ticks are in neither, {reported} are reported", due - all);
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_command_through_the_server_is_in_effect_on_every_node_when_it_is_answered() {
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::new();
    let first = JobSite::new(&cgroups.root());
    let mut server = first.site.start_server();
    let sites = [first.another("node2"), first.another("node3")];
    let sites: Vec<&JobSite> = std::iter::once(&first).chain(&sites).collect();
    let job = cgroups.job("4711", 0);
    let _idle = job.idle();
    let agents: Vec<Process> = sites
        .iter()
        .map(|site| {
            site.configure(&everything(500), SOURCES);
            site.start()
        })
        .collect();
    let all = |every: u64| {
        let of = |site: &&JobSite| site.metrics("4711").into_iter().find(|(name, _)| name == "cpu/usage");
        sites.iter().all(|site| of(site).is_some_and(|(_, now)| now == Some(every)))
    };
    wait_until("the job on every node", || all(500_000_000));
    wait_until("its records at the server", || sites.iter().all(|site| site.record("4711").is_some()));
    let boost = ["jobs", "boost", "4711", "--metrics", "cpu/*", "--every", "10ms", "--for", "10m"];
    let asked = now_ns();
    println!("{}", first.site.answer(&boost));
    assert!(all(10_000_000), "in force on every node when it is answered");
    let since = |site: &&JobSite| site.stored("4711", "cpu/usage").iter().filter(|(time, _)| *time > asked).count();
    wait_until("readings at the new rate from every node", || sites.iter().all(|site| since(site) > 20));
    for site in &sites {
        let times: Vec<i64> =
            times(&site.stored("4711", "cpu/usage")).into_iter().filter(|time| *time > asked).collect();
        let pair = times.windows(2).find(|pair| pair[1] - pair[0] < 20_000_000).expect("two at the new rate");
        println!("in force {:.1} ms after the request", (pair[0] - asked) as f64 / 1e6);
    }
    first.site.answer(&["jobs", "unboost", "4711"]);
    assert!(all(500_000_000), "over on every node when it is answered");
    assert!(agents.into_iter().all(|mut agent| agent.stop().success()) && server.stop().success());
}

#[test]
fn a_thousand_jobs_in_ten_seconds_leave_nothing_behind() {
    /// The number of jobs, the time between their starts, and the number at a time.
    const JOBS: usize = 1000;
    const APART: Duration = Duration::from_millis(10);
    const AT_A_TIME: usize = 20;
    if !can_create_jobs() {
        return;
    }
    let cgroups = Cgroups::of(&["cpuacct", "memory", "pids"]);
    let site = JobSite::new(&cgroups.root());
    site.configure(&everything(1000), SOURCES);
    let mut server = site.site.start_server();
    let mut agent = site.start();
    // One job runs all the time: descriptors that the agent needs for jobs in general exist before and after.
    let stays = cgroups.job("1", 0);
    let _idle = stays.idle();
    // The agent cannot find a job that starts and ends before it watches the directories.
    wait_for_job(&site, "1");
    // What the agent holds for this job is complete with all controllers, which it can find one after the other.
    wait_until("all controllers of the first job", || {
        let read: BTreeSet<String> =
            site.metrics("1").into_iter().filter(|(_, every)| every.is_some()).map(|(name, _)| name).collect();
        ["cpu/usage", "memory/usage", "pids/current", "tasks/threads"].iter().all(|name| read.contains(*name))
    });
    drop(cgroups.job("2", 0));
    wait_until("the first job's end is at the server", || {
        site.records().iter().any(|record| record["job"] == "2" && record["to"].is_string())
    });
    wait_until("the first job is gone", || site.jobs().len() == 1);
    let (before, groups, rss_kb) = (Descriptors::of(agent.id()), site.groups(), agent.status_kb("VmRSS"));
    assert!(groups > 0, "the agent does not answer");
    // The thread that answered exists for a moment longer.
    let threads = || agent.threads().into_iter().filter(|name| name != "api").collect::<Vec<_>>();
    let threads_before = threads();
    let mut running: std::collections::VecDeque<JobGroup> = std::collections::VecDeque::new();
    let start = Instant::now();
    for number in 0..JOBS {
        // The rate of starts is tested, so that this loop is paced.
        std::thread::sleep((APART * number as u32).saturating_sub(start.elapsed()));
        running.push_back(cgroups.job(&format!("{}", 100_000 + number), 0));
        if running.len() > AT_A_TIME {
            running.pop_front();
        }
    }
    let most = Descriptors::of(agent.id());
    running.clear();
    println!("{JOBS} jobs in {:.1} s; descriptors {before:?}, at the end {most:?}", start.elapsed().as_secs_f64());
    wait_until("only one job runs", || site.jobs().len() == 1);
    let begin = Instant::now();
    wait_until("everything of the others was given back", || {
        let (now, groups_now) = (Descriptors::of(agent.id()), site.groups());
        let is_back = now.jobs <= before.jobs && now.perf <= before.perf && now.watches <= before.watches;
        let is_late = begin.elapsed() >= Duration::from_secs(50);
        assert!(!is_late || is_back, "{now:?} after {before:?}");
        assert!(!is_late || groups_now == groups, "{groups_now} groups after {groups}");
        is_back && groups_now == groups
    });
    println!("memory {rss_kb} kB before, {} kB after", agent.status_kb("VmRSS"));
    assert_eq!(threads(), threads_before, "a thread is left over");
    let start = Instant::now();
    wait_until("every job's end is at the server", || {
        let records = site.records();
        let ended = records.iter().filter(|record| record["to"].is_string()).count();
        let all = (records.len(), ended) == (JOBS + 2, JOBS + 1);
        if !all && start.elapsed() >= Duration::from_secs(50) {
            let known = |id: &String| records.iter().any(|record| record["job"].as_str() == Some(id));
            let ids = (0..JOBS).map(|number| (100_000 + number).to_string()).chain(["1".to_owned(), "2".to_owned()]);
            let lost: Vec<String> = ids.filter(|id| !known(id)).collect();
            panic!("{} records, {ended} ended; without a record: {lost:?}", records.len());
        }
        all
    });
    let since = now_ns();
    wait_until("the one that stays is sampled", || {
        site.stored("1", "cpu/usage").last().is_some_and(|(time, _)| *time > since)
    });
    assert!(agent.stop().success() && server.stop().success());
}
