//! Faults around jobs, including those that broke other monitors: none may stop the sampling of anything else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use wholegrain_testing::cgroups::{Cgroups, JobGroup};
use wholegrain_testing::jobs::{Descriptors, JobSite, ask, instant};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::{Process, program, wait_until};

/// All metrics every 50 ms, and the agent's own memory file, which must always be sampled.
const RULES: &str = "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"50ms\"\n";
const SOURCES: &str = "[sources.cgroup]\n[sources.perf]\n[sources.tasks]\n";
/// A user of every machine without rights.
const NOBODY: u32 = 65_534;

/// Whether jobs can be created on this machine; prints the reason if not.
fn can_create_jobs() -> bool {
    let missing = Cgroups::missing();
    if let Some(why) = &missing {
        println!("NOT TESTED: {why}");
    }
    missing.is_none()
}

/// A server, an agent, and a job `17` whose sampling must not be interrupted.
struct Node {
    steady: Option<(JobGroup, Process)>,
    server: Process,
    site: JobSite,
    cgroups: Cgroups,
}

impl Node {
    fn new(rules: &str, sources: &str) -> Self {
        let cgroups = Cgroups::new();
        let site = JobSite::new(&cgroups.root());
        site.configure(rules, sources);
        let server = site.site.start_server();
        let job = cgroups.job("17", 0);
        let process = job.idle();
        Self { steady: Some((job, process)), server, site, cgroups }
    }

    fn start(&self) -> Process {
        let agent = self.site.start();
        self.goes_on("from the start");
        agent
    }

    /// Waits for a reading of the steady job that was taken after this call.
    #[track_caller]
    fn goes_on(&self, when: &str) {
        let since = now_ns();
        let mut newest = Value::Null;
        let later =
            |value: &Value| value["value"].is_number() && instant(&value["time"]).is_some_and(|time| time > since);
        wait_until(&format!("the steady job is sampled, {when}"), || {
            let answer = self.site.get("/v1/newest?pattern=/node1/job/17/cpu/usage").unwrap_or_default();
            newest = answer["readings"][0].clone();
            later(&newest)
        });
    }

    fn end(mut self, mut agent: Process) {
        drop(self.steady.take());
        assert!(agent.stop().success() && self.server.stop().success());
    }
}

#[test]
fn no_valid_change_of_rules_stops_the_sampling() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, SOURCES);
    let agent = node.start();
    let job = node.cgroups.job("9", 0);
    let _busy = job.burn();
    wait_until("the job", || !node.site.metrics("9").is_empty());
    let rules = [
        json!({ "metrics": ["**"], "jobs": "9", "every": "off", "for": "10m" }),
        json!({ "metrics": ["cpu/**"], "jobs": "9", "every": "1ms", "for": "10m" }),
        json!({ "metrics": ["**"], "jobs": "9", "every": "1ms", "for": "10m" }),
        json!({ "metrics": ["cpu/usage", "memory/**"], "jobs": "9", "every": "7ms", "for": "1s" }),
        json!({ "metrics": ["**"], "jobs": "9", "every": "1h", "for": "10m" }),
        json!({ "metrics": ["cpu/*"], "jobs": "9*", "every": "20ms", "for": "10m",
                "accumulate": { "window": "1s", "quantiles": [] } }),
        json!({ "metrics": ["**"], "jobs": "9", "every": "10ms", "for": "10m",
                "accumulate": { "window": "100ms", "quantiles": [0.01, 0.5, 0.99] } }),
        json!({ "metrics": ["**"], "jobs": "9", "every": "50ms", "for": "10m" }),
    ];
    for round in 0..3 {
        for rule in &rules {
            node.site.rule(rule);
            node.goes_on(&format!("in round {round} after {rule}"));
        }
    }
    let newest = || node.site.stored("9", "cpu/usage").last().map_or(0, |(time, _)| *time);
    let since = now_ns();
    wait_until("the job itself is sampled as the last rule says", || newest() > since);
    node.end(agent);
}

#[test]
fn invalid_rules_are_refused_with_a_reason_and_change_nothing() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, SOURCES);
    let mut agent = node.start();
    let rule = |changes: Value| {
        let mut rule = json!({ "metrics": ["cpu/usage"], "jobs": "17", "every": "10ms", "for": "10m" });
        for (key, value) in changes.as_object().expect("an object") {
            rule[key] = value.clone();
        }
        rule.to_string()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let long = rule(json!({ "metrics": [format!("cpu/{}", "x".repeat(200_000))] }));
    let cases = [
        (rule(json!({ "every": "0" })), ""),
        (rule(json!({ "every": "0s" })), ""),
        (rule(json!({ "every": "-1s" })), ""),
        (rule(json!({ "every": "10us" })), "1ms"),
        (rule(json!({ "every": "soon" })), ""),
        (rule(json!({ "every": 10 })), ""),
        (rule(json!({ "for": "0s" })), ""),
        (rule(json!({ "for": "-5m" })), ""),
        (rule(json!({ "metrics": [] })), ""),
        (rule(json!({ "metrics": ["cpu/usge"] })), "cpu/usage"),
        (rule(json!({ "metrics": ["["] })), ""),
        (rule(json!({ "accumulate": { "window": "1ms" } })), ""),
        (rule(json!({ "accumulate": { "window": "1s", "quantiles": [2.0] } })), ""),
        (rule(json!({ "accumulat": { "window": "1s" } })), "accumulat"),
        (String::new(), ""),
        ("{".into(), ""),
        ("null".into(), ""),
        ("\u{0}\u{1}\u{2}".into(), ""),
        (deep, ""),
        (long, ""),
    ];
    let every = || node.site.metrics("17").into_iter().find(|(name, _)| name == "cpu/usage").and_then(|(_, e)| e);
    for (body, part) in &cases {
        let shown = &body[..body.len().min(120)];
        // The server may close the connection during a body that is too long: that is a refusal too.
        let (status, answer) = node.site.ask("POST", "/v1/rules", body).unwrap_or((413, String::new()));
        assert!((400..500).contains(&status), "{shown}: {status} {answer}");
        assert!(answer.contains(part), "{shown}: the refusal does not say {part}: {answer}");
        assert!(agent.runs(), "{shown} ended the agent");
        assert_eq!(every(), Some(50_000_000), "{shown} changed something");
    }
    for (method, path) in [("DELETE", "/v1/rules/99999999"), ("DELETE", "/v1/rules/x"), ("GET", "/v1/jobs/no-such")] {
        let (status, answer) = node.site.ask(method, path, "").expect("an answer");
        assert!((400..500).contains(&status), "{method} {path}: {status} {answer}");
    }
    node.goes_on("after all that");
    node.end(agent);
}

#[test]
fn controllers_that_disappear_one_by_one_delay_nothing() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, SOURCES);
    let agent = node.start();
    let mut job = node.cgroups.job("10", 0);
    let process = job.burn();
    let sampled = || node.site.stored("10", "cpu/usage").len();
    wait_until("the job is sampled", || sampled() > 2);
    // From here on only version 1 counts its usage, so that version 2 reports less later. Otherwise the difference is the usage between entering one
    // directory and the other, mostly none.
    if let (Some(_), Some(unified)) = (node.cgroups.hierarchy("cpuacct"), node.cgroups.hierarchy("unified")) {
        std::fs::write(unified.join("cgroup.procs"), process.id().to_string()).expect("the process leaves version 2");
        let before = sampled();
        wait_until("version 1 is ahead", || sampled() > before + 4);
    }
    // The process leaves with the first removed directory.
    for controller in ["memory", "pids", "blkio", "cpu", "cpuset", "devices", "cpuacct", "freezer"] {
        job.remove_v1(controller);
        node.goes_on(&format!("after {controller} has gone"));
    }
    job.remove_v2();
    node.goes_on("after everything has gone");
    wait_until("the job is over", || node.site.job("10").is_none());
    wait_until("its end is at the server", || node.site.record("10").is_some_and(|job| job["to"].is_string()));
    let readings: Vec<Option<f64>> = node.site.stored("10", "cpu/usage").into_iter().map(|(_, value)| value).collect();
    // The remaining file of version 2 counts from when the process entered the directory. So there is a gap between the two files, and no rate spans
    // the restart of a counter.
    let falls = readings.windows(2).filter(|pair| matches!(pair, [Some(before), Some(after)] if after < before));
    assert_eq!(falls.count(), 0, "no counter passes for another's: {readings:?}");
    assert_eq!(Descriptors::of(agent.id()).jobs, Descriptors::of(agent.id()).jobs.min(64), "its files are closed");
    drop((job, process));
    node.end(agent);
}

#[test]
fn cgroups_that_disappear_during_a_read_leave_no_false_value() {
    if !can_create_jobs() {
        return;
    }
    let rules = "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"1ms\"\n\
                 [[jobs.rule]]\nmetrics = [\"tasks/**\"]\nevery = \"50ms\"\n";
    let node = Node::new(rules, SOURCES);
    let agent = node.start();
    let ids: Vec<String> = (0..30).map(|number| (200 + number).to_string()).collect();
    for id in &ids {
        let job = node.cgroups.job(id, 0);
        let _busy = job.burn();
        // The job ends as soon as it is known, while its files are being opened or first read.
        wait_until("the job is known", || node.site.job(id).is_some());
    }
    wait_until("every job's end is at the server", || {
        let records = node.site.records();
        let over = |id: &String| records.iter().any(|record| record["job"] == id.as_str() && record["to"].is_string());
        ids.iter().all(over)
    });
    node.goes_on("after all of them");
    let mut read = 0;
    for id in &ids {
        let readings: Vec<f64> = node.site.stored(id, "cpu/usage").into_iter().filter_map(|(_, value)| value).collect();
        assert!(readings.windows(2).all(|pair| pair[1] >= pair[0]), "job {id}: {readings:?}");
        assert!(readings.iter().all(|value| *value < 60.0), "job {id} used no hours: {readings:?}");
        read += readings.len();
    }
    println!("{read} readings of {} short jobs", ids.len());
    assert!(agent.log().lines().count() < 500, "the log stays short: {}", agent.log().lines().count());
    node.end(agent);
}

#[test]
fn job_ids_may_contain_special_characters() {
    if !can_create_jobs() {
        return;
    }
    let pattern = "[[jobs.pattern]]\nname = \"odd\"\npath = \"odd/(?<job>[^/]+)\"\n";
    let node = Node::new(&format!("{RULES}{pattern}"), SOURCES);
    let agent = node.start();
    let long = "x".repeat(200);
    let ids =
        ["a b", "ƒ2oLkTLb", "50%", "quote\"d", "semi;colon", "*", "..x", "plus+#", "tab\there", "\u{1f680}", &long];
    let top = ["cpuacct", "unified"].into_iter().find_map(|name| node.cgroups.hierarchy(name)).expect("a hierarchy");
    let mut processes = Vec::new();
    for id in ids {
        let dir = top.join("odd").join(id);
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{id}: {e}"));
        // A job without processes has no sensors.
        let process = Process::start(Command::new("sleep").arg("100000").stdin(Stdio::null()), Path::new("/dev/null"));
        std::fs::write(dir.join("cgroup.procs"), process.id().to_string()).expect("moved");
        processes.push(process);
    }
    wait_until("all are found", || node.site.jobs().len() == ids.len() + 1);
    let jobs = node.site.jobs();
    let mut levels: Vec<String> = Vec::new();
    for id in ids.iter().filter(|id| **id != long) {
        let job = jobs.iter().find(|job| job["job"] == *id).unwrap_or_else(|| panic!("no job {id} among {jobs:?}"));
        // An id is one component of a path in a request.
        let path: String = id.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let level = node.site.job(&path).and_then(|job| Some(job["level"].as_str()?.to_owned()));
        let level = level.unwrap_or_else(|| panic!("{id}: no level: {job}"));
        wait_until(&format!("readings of {id} below {level}"), || !node.site.stored(&level, "cpu/usage").is_empty());
        assert!(!levels.contains(&level), "two jobs share {level}");
        levels.push(level);
    }
    drop(processes);
    for id in ids {
        std::fs::remove_dir(top.join("odd").join(id)).expect("removed");
    }
    wait_until("all are over", || node.site.jobs().len() == 1);
    wait_until("their ends are at the server", || {
        node.site.records().iter().filter(|record| record["to"].is_string()).count() == ids.len()
    });
    node.goes_on("with odd jobs beside it");
    node.end(agent);
}

#[test]
fn an_event_that_this_machine_lacks_is_reported_and_never_stored() {
    if !can_create_jobs() {
        return;
    }
    let sources = "[sources.cgroup]\n[sources.perf]\nevents = [\"instructions\", \"r1c0\", \"page-faults\"]\n";
    let node = Node::new(RULES, sources);
    let agent = node.start();
    let job = node.cgroups.job("11", 0);
    let _busy = job.burn();
    wait_until("the job is sampled", || node.site.stored("11", "cpu/usage").len() > 5);
    let hardware = Path::new("/sys/bus/event_source/devices/cpu").exists();
    if hardware {
        println!("this machine has hardware events: their absence is not tested");
    } else {
        let stored = node.site.stored_sensors("11");
        let wrong: Vec<&String> = stored.iter().filter(|n| n.contains("instructions") || n.contains("r1c0")).collect();
        assert!(wrong.is_empty(), "stored without being there: {wrong:?}");
        let named = agent.log().lines().filter(|line| line.contains("instructions")).count();
        assert_eq!(named, 1, "named once, not for each job: {}", agent.log());
    }
    node.end(agent);
}

#[test]
fn an_agent_without_free_descriptors_reports_it_and_recovers() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, &format!("{SOURCES}[sources.procfs]\ngroups = [\"meminfo\"]\ninterval = \"100ms\"\n"));
    // Opened before anything else, so that it has its descriptors.
    let agent = node.site.start_by(Command::new("prlimit").arg("--nofile=400:400").arg(program("wholegrain-agent")));
    node.goes_on("from the start");
    // Asked from the server: a request to the agent needs one of its descriptors.
    let newest = || {
        let stored = node.site.stored_of_node("meminfo/MemFree");
        stored.into_iter().rev().find_map(|(time, value)| value.map(|_| time))
    };
    wait_until("/proc is sampled", || newest().is_some());
    let jobs: Vec<_> = (0..60).map(|number| node.cgroups.job(&(500 + number).to_string(), 0)).collect();
    let idle: Vec<_> = jobs.iter().map(JobGroup::idle).collect();
    wait_until("the log names it", || agent.log().contains("[jobs.bounds] descriptors"));
    let named = now_ns();
    wait_until("/proc is still sampled", || newest().is_some_and(|time| time > named));
    assert!(agent.log().lines().count() < 500, "at a bounded rate: {} lines", agent.log().lines().count());
    drop((idle, jobs));
    wait_until("the jobs are over", || node.site.jobs().len() == 1);
    let late = node.cgroups.job("600", 0);
    let _busy = late.burn();
    wait_until("a job after that is sampled", || !node.site.stored("600", "cpu/usage").is_empty());
    node.goes_on("after it was out of descriptors");
    node.end(agent);
}

#[test]
fn an_agent_without_root_reports_unreadable_sensors_and_samples_the_others() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, SOURCES);
    // All files of the agent belong to nobody, and the program is where nobody may start it.
    let binary = node.site.site.path("wholegrain-agent");
    std::fs::copy(program("wholegrain-agent"), &binary).expect("a copy");
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let owned = Command::new("chown").args(["-R", "nobody"]).arg(node.site.site.dir()).status().expect("chown");
    assert!(owned.success());
    let user = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&binary);
    let agent = node.site.start_by(&mut command);
    node.goes_on("as nobody");
    let log = agent.log();
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level > 0) {
        wait_until("the log names the sysctl or the capability", || {
            let log = agent.log();
            log.contains("perf_event_paranoid") && log.contains("CAP_PERFMON")
        });
        let perf = node.site.metrics("17").into_iter().filter(|(name, _)| name.starts_with("perf/")).count();
        assert_eq!(perf, 0, "counters that it may not open are not offered");
    }
    println!("{log}");
    let memory = node.site.metrics("17").into_iter().filter(|(name, _)| name.starts_with("memory/")).count();
    assert!(memory > 10 || !node.cgroups.has("memory"), "what it may read it reads: {memory} metrics of memory");
    wait_until("readings at the server", || !node.site.stored("17", "cpu/usage").is_empty());
    node.end(agent);
}

#[test]
fn the_agent_works_with_ten_thousand_rules() {
    if !can_create_jobs() {
        return;
    }
    let mut rules = String::from(RULES);
    for number in 0..9_998 {
        rules +=
            &format!("[[jobs.rule]]\nmetrics = [\"cpu/**\", \"perf/*\"]\njobs = \"{number}\"\nevery = \"200ms\"\n");
    }
    rules += "[[jobs.rule]]\nmetrics = [\"memory/usage\"]\njobs = \"*7\"\nevery = \"10ms\"\n";
    let node = Node::new(&rules, SOURCES);
    let agent = node.start();
    let start = std::time::Instant::now();
    let jobs: Vec<_> = (0..10).map(|number| node.cgroups.job(&(4_000 + number).to_string(), 0)).collect();
    let _idle: Vec<_> = jobs.iter().map(JobGroup::idle).collect();
    let every = |id: &str, metric: &str| -> Option<u64> {
        node.site.metrics(id).into_iter().find(|(name, _)| name == metric)?.1
    };
    wait_until("every job has its rules", || {
        (4_000..4_010).all(|id| every(&id.to_string(), "cpu/usage") == Some(200_000_000))
    });
    println!("ten jobs under 10,000 rules: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    if node.cgroups.has("memory") {
        assert_eq!(
            (every("4007", "memory/usage"), every("4008", "memory/usage")),
            (Some(10_000_000), Some(50_000_000))
        );
    }
    let asked = std::time::Instant::now();
    node.site.rule(&json!({ "metrics": ["cpu/usage"], "jobs": "4001", "every": "30ms", "for": "10m" }));
    println!("one more: {:.1} ms", asked.elapsed().as_secs_f64() * 1e3);
    assert_eq!(every("4001", "cpu/usage"), Some(30_000_000));
    node.goes_on("under 10,000 rules");
    drop(jobs);
    node.end(agent);
}

#[test]
fn others_cannot_use_the_control_topic_or_the_administrators_socket() {
    if !can_create_jobs() {
        return;
    }
    let node = Node::new(RULES, SOURCES);
    let agent = node.start();
    let order = json!({ "id": 1, "who": { "name": "root", "role": "admin" },
                        "action": { "add": { "metrics": ["**"], "jobs": "17", "every": "off", "for": "10m" } } });
    let (certificate, key) = node.site.site.agent_certificate("intruder");
    let sent = Command::new("mosquitto_pub")
        .args(["-h", "localhost", "-p", &node.site.site.mqtt_port.to_string(), "-V", "5", "-q", "1"])
        .args(["-t", "wholegrain/v1/control/node1", "-m", &order.to_string(), "--cafile"])
        .arg(node.site.site.path("ca.pem"))
        .arg("--cert")
        .arg(certificate)
        .arg("--key")
        .arg(key)
        .output()
        .expect("mosquitto_pub");
    let said = String::from_utf8_lossy(&sent.stderr).into_owned() + &String::from_utf8_lossy(&sent.stdout);
    println!("another agent's order: {} {said}", sent.status);
    let every = || node.site.metrics("17").into_iter().find(|(name, _)| name == "cpu/usage").and_then(|(_, e)| e);
    node.goes_on("after an order of another agent");
    assert_eq!(every(), Some(50_000_000), "the agent did not run it");
    // The administrators' socket is closed to others; on the users' socket a user may not change another's job.
    let user = NOBODY.to_string();
    let rule = json!({ "metrics": ["cpu/usage"], "jobs": "17", "every": "10ms", "for": "10m" }).to_string();
    let as_nobody = |socket: &Path| {
        let mut curl = Command::new("setpriv");
        curl.args(["--reuid", &user, "--regid", &user, "--clear-groups", "curl", "--silent", "--max-time", "20"]);
        curl.args(["--unix-socket"]).arg(socket).args(["--data", &rule, "--write-out", "\n%{http_code}"]);
        let output = curl.arg("http://agent/v1/rules").output().expect("curl");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (code, text) = as_nobody(&node.site.socket());
    assert!(code != Some(0), "the administrator's socket answers nobody: {text}");
    let (_, text) = as_nobody(&node.site.users_socket());
    assert!(text.ends_with("403") || text.ends_with("404"), "{text}");
    assert_eq!(every(), Some(50_000_000), "nothing has changed");
    assert!(ask(&node.site.users_socket(), "GET", "/v1/jobs", "").is_some(), "root is heard there");
    node.end(agent);
}
