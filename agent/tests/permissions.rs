//! Permissions: two users of this machine at the users' socket, tokens with roles over HTTPS, callers who send random bytes or take every
//! connection.
//!
//! The jobs are directories of a made-up cgroup tree, one for each user. The users are real: each caller is a thread that gives up root before it
//! connects, so that the kernel identifies it to the agent. That requires root; a test prints when it is skipped.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{Agent, parse_answer};
use wholegrain_agent::api::{
    HTTPS_CONNECTIONS_MAX, HTTPS_RESERVED, REQUESTS_PER_MINUTE, UNAUTHENTICATED_MAX, USERS_CONNECTIONS_MAX,
};
use wholegrain_testkit::{DEADLINE, free_port, wait_until};

/// Users of every Debian system, by uid and name, with a job each.
const ALICE: (u32, &str, &str) = (1, "daemon", "4711");
const BOB: (u32, &str, &str) = (2, "bin", "99");

/// More connections than one user may have.
const HOARD: usize = 200;

/// Whether this process may change its user; prints a line if not.
fn is_root() -> bool {
    // SAFETY: takes and changes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: becoming other users takes root, and this test runs as somebody else");
    }
    root
}

/// Runs `f` on a thread of this user, without root's groups and capabilities.
fn as_user<R: Send>(uid: u32, f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the system calls themselves, which change this thread only (the library's functions would change all);
            // the list of groups is empty.
            let changed = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
                    && libc::syscall(libc::SYS_setresgid, uid, uid, uid) == 0
                    && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
            };
            assert!(changed, "cannot become uid {uid}: {}", std::io::Error::last_os_error());
            f()
        });
        thread.join().unwrap()
    })
}

/// A job of Slurm in the handmade tree.
fn make_job(dir: &Path, (uid, _, job): (u32, &str, &str)) {
    for (controller, file, text) in
        [("cpuacct", "cpuacct.usage", "123000000\n"), ("memory", "memory.usage_in_bytes", "4096\n")]
    {
        let path = dir.join(format!("cgroup/{controller}/slurm/uid_{uid}/job_{job}"));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(file), text).unwrap();
        fs::write(path.join("cgroup.procs"), "1\n").unwrap();
    }
}

/// An agent that has both jobs; `more` goes into `[api]` and `[jobs]`.
fn start(dir: &Path, api: &str, jobs: &str) -> Agent {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    make_job(dir, ALICE);
    make_job(dir, BOB);
    restart(dir, api, jobs)
}

fn restart(dir: &Path, api: &str, jobs: &str) -> Agent {
    let text = format!(
        "name = \"n1\"\nroots = {{ cgroup = \"cgroup\" }}\n[api]\nsocket = \"agent.sock\"\n{api}\n[jobs]\ndir = \"state\"\n\
         socket = \"jobs.sock\"\nrescan = \"200ms\"\n{jobs}\n[sources.cgroup]\n"
    );
    let agent = Agent::start(dir, &text);
    wait_until("both jobs and their metrics", || {
        let view = agent.handles.jobs.get();
        view.jobs.len() == 2 && view.jobs.iter().all(|job| !job.metrics.is_empty() && job.record.user.is_some())
    });
    agent
}

/// One request on its own connection, with these bytes as its body.
fn ask(socket: &Path, line: &str, body: &[u8]) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    write!(stream, "{line} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    parse_answer(&answer)
}

/// A request of a user at the users' socket.
fn ask_as(dir: &Path, user: (u32, &str, &str), line: &str, body: &Value) -> (u16, Value) {
    let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    as_user(user.0, || ask(&dir.join("jobs.sock"), line, &bytes))
}

fn rule(job: &str, every: &str) -> Value {
    json!({"jobs": job, "metrics": ["cpu/*"], "every": every, "for": "10min"})
}

fn texts<'a>(answer: &'a Value, list: &str, key: &str) -> Vec<&'a str> {
    answer[list].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(|row| row[key].as_str().unwrap()).collect()
}

#[test]
fn users_see_their_own_jobs_only() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"10ms\"");
    for (user, other) in [(ALICE, BOB), (BOB, ALICE)] {
        let get = |target: &str| ask_as(dir.path(), user, &format!("GET {target}"), &Value::Null);
        let below = format!("/n1/job/{}/", user.2);
        wait_until("readings of both", || {
            let newest = agent.ask("GET", "/v1/newest?pattern=/n1/job/**").1;
            let all = newest["readings"].as_array().unwrap();
            all.len() > 2 && all.iter().all(|reading| !reading["value"].is_null())
        });
        let (status, answer) = get("/v1/jobs");
        assert_eq!((status, texts(&answer, "jobs", "job")), (200, vec![user.2]), "{answer}");
        assert_eq!(answer["jobs"][0]["user"], user.1);
        let (status, answer) = get(&format!("/v1/jobs/{}", user.2));
        assert!(status == 200 && texts(&answer, "metrics", "name").contains(&"cpu/usage"), "{answer}");
        assert!(answer["from"].as_str().unwrap().ends_with('Z'), "{answer}");
        // A job of another user and no job at all have the same response.
        let (status, answer) = get(&format!("/v1/jobs/{}", other.2));
        let (none_status, none) = get("/v1/jobs/12345");
        let why = |answer: &Value, id: &str| answer["error"].as_str().unwrap().replace(id, "ID");
        assert_eq!((status, none_status), (404, 404), "{answer} {none}");
        assert_eq!(why(&answer, other.2), why(&none, "12345"));
        for (question, list) in [
            ("/v1/sensors", "sensors"),
            ("/v1/newest?pattern=**", "readings"),
            ("/v1/average?window=1h", "averages"),
            ("/v1/history?pattern=/**", "readings"),
        ] {
            let (status, answer) = get(question);
            let paths = texts(&answer, list, "path");
            assert!(status == 200 && !paths.is_empty(), "{question}: {status} {answer}");
            assert!(paths.iter().all(|path| path.starts_with(&below)), "{question}: {paths:?}");
        }
        for pattern in [format!("/n1/job/{}/**", other.2), "/n1/agent/**".into(), format!("/n1/job/{}x/**", user.2)] {
            for question in ["sensors", "newest", "average", "history"] {
                let (status, answer) = get(&format!("/v1/{question}?pattern={pattern}"));
                let rows = answer.as_object().unwrap().values().next().unwrap().as_array().unwrap();
                assert!(status == 200 && rows.is_empty(), "{question} {pattern}: {answer}");
            }
        }
    }
    // The administrator sees all, over either socket.
    for socket in ["agent.sock", "jobs.sock"] {
        let (status, answer) = ask(&dir.path().join(socket), "GET /v1/jobs", b"");
        let mut jobs = texts(&answer, "jobs", "job");
        jobs.sort_unstable();
        assert_eq!((status, jobs), (200, vec!["4711", "99"]), "{socket}");
        assert_eq!(ask(&dir.path().join(socket), "GET /v1/status", b"").0, 200);
    }
    agent.stop();
    assert!(!dir.path().join("jobs.sock").exists());
}

#[test]
fn each_forbidden_thing_is_refused_to_each_user() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "");
    let made = |user: (u32, &str, &str)| {
        let (status, done) = ask_as(dir.path(), user, "POST /v1/rules", &rule(user.2, "50ms"));
        assert!(status == 200 && done["jobs"] == json!([user.2]), "{status} {done}");
        done["rule"].as_u64().unwrap()
    };
    let (alices, bobs) = (made(ALICE), made(BOB));
    let (_, roots) =
        ask(&dir.path().join("agent.sock"), "POST /v1/rules", b"{\"metrics\":[\"cpu/*\"],\"every\":\"2s\"}");
    let roots = roots["rule"].as_u64().unwrap();
    let before = agent.ask("GET", "/v1/rules").1;
    for (user, other, others) in [(ALICE, BOB, bobs), (BOB, ALICE, alices)] {
        let check = |line: &str, body: &Value, status: u16, part: &str| {
            let (is, answer) = ask_as(dir.path(), user, line, body);
            let why = answer["error"].as_str().unwrap_or_default();
            assert!(is == status && why.contains(part), "{} {line}: {is} {answer}", user.1);
        };
        for line in [
            "GET /v1/status",
            "GET /v1/log",
            "GET /v1/sources",
            "GET /v1/groups",
            "GET /",
            "POST /v1/reload",
            "POST /v1/log?level=trace",
            "POST /v1/sources/cgroup/stop",
            "POST /v1/sources/cgroup/start",
            "POST /v1/groups/agent/interval?value=1ms",
            "POST /v1/jobs/4711",
            "DELETE /v1/jobs/4711",
            "PUT /v1/rules",
            "POST /v1//rules",
            "POST /v1/rules/../reload",
            "TRACE /v1/jobs",
        ] {
            check(line, &Value::Null, 403, "is for administrators; users may GET");
        }
        check("POST /v1/rules", &rule(other.2, "50ms"), 404, "does not run here");
        check("POST /v1/rules?try=1", &rule(other.2, "50ms"), 404, "does not run here");
        check("POST /v1/rules", &rule(&format!("{}*", other.2), "50ms"), 404, "does not run here");
        check(&format!("DELETE /v1/rules/{others}"), &Value::Null, 404, "there is no rule");
        check(&format!("DELETE /v1/rules/{roots}"), &Value::Null, 403, "is an administrator's");
        check("DELETE /v1/rules/1", &Value::Null, 403, "is the configuration's");
        check("POST /v1/rules", &json!({"metrics": ["cpu/*"], "every": "1s"}), 422, "the limit duration_max is 1h");
        check("POST /v1/rules", &rule("4713", "1s"), 404, "does not run here");
        let mut misspelt = rule(user.2, "1s");
        misspelt["metrics"] = json!(["cpu/usge"]);
        check("POST /v1/rules", &misspelt, 404, "the nearest are cpu/usage");
        let (_, seen) = ask_as(dir.path(), user, "GET /v1/rules", &Value::Null);
        let ids: Vec<u64> = seen["rules"].as_array().unwrap().iter().map(|rule| rule["id"].as_u64().unwrap()).collect();
        assert!(ids.contains(&roots) && ids.contains(&1) && !ids.contains(&others), "{seen}");
        let by =
            |id: u64| seen["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == id).unwrap()["by"].clone();
        assert_eq!((by(roots), by(1)), ("an administrator".into(), "the configuration".into()));
        let admin = as_user(user.0, || UnixStream::connect(dir.path().join("agent.sock")).unwrap_err().kind());
        assert_eq!(admin, std::io::ErrorKind::PermissionDenied);
        let audit = as_user(user.0, || fs::read(dir.path().join("state/audit.jsonl")).unwrap_err().kind());
        assert_eq!(audit, std::io::ErrorKind::PermissionDenied);
    }
    assert_eq!(agent.ask("GET", "/v1/rules").1, before, "nothing of it had an effect");
    let sources = agent.ask("GET", "/v1/sources").1;
    assert!(sources["sources"].as_array().unwrap().iter().all(|source| source["state"] == "running"), "{sources}");
    let audit = fs::read_to_string(dir.path().join("state/audit.jsonl")).unwrap();
    let refusals: Vec<Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["verb"] == "refused")
        .collect();
    for user in [ALICE, BOB] {
        assert!(refusals.iter().filter(|line| line["uid"] == user.0).count() >= 6, "{audit}");
    }
    for (user, id) in [(ALICE, alices), (BOB, bobs)] {
        assert_eq!(ask_as(dir.path(), user, &format!("DELETE /v1/rules/{id}"), &Value::Null).0, 200);
    }
    agent.stop();
}

#[test]
fn a_rule_is_in_force_at_once_outlives_the_agent_and_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "");
    let socket = dir.path().join("agent.sock");
    let interval = |agent: &Agent| {
        agent.ask("GET", "/v1/jobs/4711").1["metrics"]
            .as_array()
            .unwrap()
            .iter()
            .find(|metric| metric["name"] == "cpu/usage")
            .unwrap()["interval_ns"]
            .clone()
    };
    assert_eq!(interval(&agent), 1_000_000_000);
    let (status, done) = ask(&socket, "POST /v1/rules?try=1", &serde_json::to_vec(&rule("4711", "20ms")).unwrap());
    assert!(status == 200 && done["done"].as_str().unwrap().starts_with("it could be done"), "{status} {done}");
    assert_eq!(interval(&agent), 1_000_000_000);
    let (status, done) = ask(&socket, "POST /v1/rules", &serde_json::to_vec(&rule("4711", "20ms")).unwrap());
    assert_eq!(status, 200, "{done}");
    assert_eq!(interval(&agent), 20_000_000);
    agent.stop();
    let agent = restart(dir.path(), "", "");
    assert_eq!(interval(&agent), 20_000_000);
    let short = json!({"jobs": "4711", "metrics": ["cpu/usage"], "every": "10ms", "for": "2s"});
    let (status, done) = ask(&socket, "POST /v1/rules", &serde_json::to_vec(&short).unwrap());
    assert_eq!(status, 200, "{done}");
    assert_eq!(interval(&agent), 10_000_000);
    wait_until("the end of the rule", || interval(&agent) == 20_000_000);
    assert!(fs::read_to_string(dir.path().join("state/audit.jsonl")).unwrap().contains("\"who\":\"the clock\""));
    agent.stop();
}

/// Sends bytes to the users' socket of an agent: as a user if possible, otherwise as the user of the test.
struct Sender {
    agent: Agent,
    as_user: bool,
}

impl Sender {
    fn start(dir: &Path) -> Self {
        let rules = "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"5ms\"\n[jobs.limits]\nchanges_per_minute = 1000";
        Self { agent: start(dir, "", rules), as_user: is_root() }
    }

    fn send(&self, bytes: &[u8]) -> Vec<u8> {
        let exchange = || {
            let mut stream = UnixStream::connect(self.agent.dir.join("jobs.sock")).unwrap();
            // The agent may have closed the connection before all bytes are sent.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            answer
        };
        if self.as_user { as_user(ALICE.0, exchange) } else { exchange() }
    }

    fn post(&self, body: &[u8]) -> (u16, Value) {
        let head = format!("POST /v1/rules HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        parse_answer(&self.send(&[head.as_bytes(), body].concat()))
    }

    fn samples(&self) -> u64 {
        let groups = self.agent.handles.registry.live();
        let of_job = groups.iter().filter(|group| group.name().starts_with("job/4711"));
        of_job.map(|group| group.stats.samples.load(Ordering::Relaxed)).sum()
    }

    fn goes_on(&self, after: &str) {
        let before = self.samples();
        wait_until(&format!("samples after {after}"), || self.samples() > before + 2);
    }

    /// A valid rule is still accepted.
    fn finish(self) {
        self.goes_on("all that");
        let (status, done) = self.post(&serde_json::to_vec(&rule("4711", "2ms")).unwrap());
        assert_eq!(status, 200, "{done}");
        self.goes_on("a good rule");
        self.agent.stop();
    }
}

#[test]
fn whatever_a_caller_sends_the_agent_goes_on_sampling() {
    let dir = tempfile::tempdir().unwrap();
    let sender = Sender::start(dir.path());
    for (name, bytes) in [
        ("nothing", vec![]),
        ("zeros", vec![0; 100_000]),
        ("bytes that are no text", (0..=255).cycle().skip(128).take(100_000).collect()),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("half a head", b"POST /v1/rules HTTP/1.1\r\ncontent-le".to_vec()),
        ("a head without an end", [b"GET / HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(100_000)].concat()),
        ("a body that is too long", b"POST /v1/rules HTTP/1.1\r\ncontent-length: 65537\r\n\r\n".to_vec()),
        ("a length that is none", b"POST /v1/rules HTTP/1.1\r\ncontent-length: -5\r\n\r\n".to_vec()),
        ("a body that is cut off", b"POST /v1/rules HTTP/1.1\r\ncontent-length: 500\r\n\r\n{}".to_vec()),
        ("a line that never ends", vec![b'n'; 1 << 20]),
        ("lines that nobody speaks", b"newest \x00\xff\nbegin\n\n\nvalue\n".to_vec()),
    ] {
        sender.send(&bytes);
        sender.goes_on(name);
    }
    sender.finish();
}

#[test]
fn whatever_rule_a_caller_asks_for_the_agent_goes_on_sampling() {
    let dir = tempfile::tempdir().unwrap();
    let sender = Sender::start(dir.path());
    let post = |body: &[u8]| sender.post(body);
    let deep = |open: &str, count| open.repeat(count).into_bytes();
    for body in [
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\xff\xfe{}".to_vec(),
        b"{}".to_vec(),
        deep("[", 60_000),
        deep("{\"metrics\":", 5_000),
        b"{\"metrics\":[\"**\"],\"every\":\"1s\",\"for\":\"1m\",\"evil\":1}".to_vec(),
        b"{\"metrics\":[\"**\"],\"every\":\"1s\",\"every\":\"2s\",\"for\":\"1m\"}".to_vec(),
        b"{\"metrics\":[\"**\"],\"every\":-1,\"for\":\"1m\"}".to_vec(),
        b"{\"metrics\":[\"**\"],\"every\":\"1s\",\"for\":\"-1m\"}".to_vec(),
        b"{\"metrics\":[\"**\"],\"every\":\"1s\",\"for\":\"1m\",\"accumulate\":{\"window\":\"1s\",\"quantiles\":[1e999]}}".to_vec(),
        b"{\"metrics\":\"**\",\"every\":\"1s\",\"for\":\"1m\"}".to_vec(),
    ] {
        let (status, answer) = post(&body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("the body is not a rule"), "{answer}");
    }
    for every in ["0s", "0", "-1ms", "-0s", "1us", "99999999d", "inf", "NaN", "1e3s", "", "off\u{0}", "１ms"] {
        let (status, answer) = post(&serde_json::to_vec(&rule("4711", every)).unwrap());
        assert!(
            status == 422 && answer["error"].as_str().unwrap().starts_with("every: "),
            "{every:?}: {status} {answer}"
        );
    }
    for (key, value) in [
        ("metrics", json!([])),
        ("metrics", json!([""])),
        ("metrics", json!(["/../etc"])),
        ("metrics", json!([format!("{}b", "*a".repeat(400))])),
        ("metrics", json!(vec!["**"; 1000])),
        ("jobs", json!("")),
        ("jobs", json!("*".repeat(250))),
        ("jobs", json!("../4711")),
        ("jobs", json!("4711\n")),
        ("for", json!("0s")),
        ("for", json!("290y")),
        ("accumulate", json!({"window": "0s"})),
        ("accumulate", json!({"window": "3ms"})),
        ("accumulate", json!({"window": "1s", "quantiles": [2]})),
    ] {
        let mut body = rule("4711", "2ms");
        body[key] = value.clone();
        let (status, answer) = post(&serde_json::to_vec(&body).unwrap());
        // `*` selects only the user's own jobs.
        let expected: &[u16] = if key == "jobs" && value.as_str().is_some_and(|text| text.starts_with('*')) {
            &[200]
        } else {
            &[400, 403, 404, 422]
        };
        assert!(expected.contains(&status), "{key} = {value}: {status} {answer}");
    }
    sender.finish();
}

#[test]
fn a_user_who_takes_every_connection_keeps_nobody_out() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "");
    let socket = dir.path().join("jobs.sock");
    let refused = || agent.handles.counters.api_refused.load(Ordering::Relaxed);
    // Each sends a part of a request: a slow connection, not a silent one.
    let mut hoard = as_user(ALICE.0, || {
        let connect = |_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let _ = stream.write_all(b"GET /v1/jobs");
            stream
        };
        (0..HOARD).map(connect).collect::<Vec<_>>()
    });
    wait_until("all of them to be taken or refused", || refused() >= (HOARD - USERS_CONNECTIONS_MAX / 2) as u64);
    let (status, answer) = ask_as(dir.path(), BOB, "GET /v1/jobs", &Value::Null);
    assert_eq!((status, texts(&answer, "jobs", "job")), (200, vec!["99"]));
    assert_eq!(ask(&socket, "GET /v1/status", b"").0, 200, "root at the same socket");
    assert_eq!(agent.ask("GET", "/v1/status").0, 200, "the administrator's socket");
    let more = as_user(ALICE.0, || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.read(&mut [0; 1])
    });
    assert_eq!(more.unwrap_or(0), 0, "there is no permit for one more");
    // A connection that sends no more is closed, and its permit is free again.
    let mut last = hoard.swap_remove(0);
    last.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    wait_until("a permit", || {
        let asked = as_user(ALICE.0, || {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let _ = stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nconnection: close\r\n\r\n");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            answer
        });
        asked.starts_with(b"HTTP/1.1 200")
    });
    agent.stop();
}

#[test]
fn a_user_is_answered_so_often_a_minute_and_others_are_not_held_up() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "");
    // The rate limit's minute may end in between.
    let refused = as_user(ALICE.0, || {
        (0..2 * REQUESTS_PER_MINUTE + 1).find_map(|_| {
            let (status, answer) = ask(&dir.path().join("jobs.sock"), "GET /v1/rules", b"");
            (status != 200).then_some((status, answer))
        })
    });
    let (status, answer) = refused.unwrap();
    assert!(status == 429 && answer["error"].as_str().unwrap().contains("600 requests of one user"), "{answer}");
    assert_eq!(ask_as(dir.path(), BOB, "GET /v1/rules", &Value::Null).0, 200);
    assert_eq!(agent.ask("GET", "/v1/status").0, 200);
    agent.stop();
}

#[test]
fn a_caller_who_is_slow_for_ever_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), "", "");
    let mut stream = UnixStream::connect(dir.path().join("jobs.sock")).unwrap();
    let start = std::time::Instant::now();
    // A byte from time to time: never silent for the whole timeout.
    while stream.write_all(b"G").is_ok() {
        assert!(start.elapsed() < DEADLINE, "still read after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(500));
    }
    agent.stop();
}

/// A line of a tokens file.
fn entry(name: &str, role: &str, token: &str, more: &str) -> String {
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{{\"id\":\"id-{token}\",\"name\":\"{name}\",\"role\":\"{role}\",\"sha256\":\"{hash}\",\"created\":\"2026-01-01T00:00:00Z\"{more}}}\n"
    )
}

#[test]
fn neither_silent_connections_nor_a_users_keep_anybody_from_https() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(dir.path().join("agent.pem"), made.cert.pem()).unwrap();
    fs::write(dir.path().join("agent.key"), made.signing_key.serialize_pem()).unwrap();
    fs::write(dir.path().join("tokens"), entry("ops", "admin", "t-admin", "") + &entry(ALICE.1, "user", "t-alice", ""))
        .unwrap();
    let port = free_port();
    let https = "cert = \"agent.pem\"\nkey = \"agent.key\"\ntokens_file = \"tokens\"";
    let agent = start(dir.path(), &format!("listen = \"127.0.0.1:{port}\"\n{https}"), "");
    let tls = wholegrain_transport::tls::client_config(&dir.path().join("agent.pem"), None).unwrap();
    // A connection that stays open, with its first response, if any.
    let connect = |token: &str| {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(tls.clone(), name).unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, tcp);
        let _ = write!(stream, "GET /v1/jobs HTTP/1.1\r\nhost: agent\r\nauthorization: Bearer {token}\r\n\r\n");
        let mut answer = [0; 12];
        let read = stream.read_exact(&mut answer);
        (stream, read.is_ok().then(|| String::from_utf8_lossy(&answer[9..]).into_owned()))
    };
    let refused = || agent.handles.counters.api_refused.load(Ordering::Relaxed);
    // Three times as many silent connections from the same machine as permits; no caller waits for their timeout.
    let silent: Vec<TcpStream> =
        (0..UNAUTHENTICATED_MAX * 3).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    wait_until("the silent ones to be taken", || refused() >= (UNAUTHENTICATED_MAX * 5 / 2) as u64);
    let start = std::time::Instant::now();
    assert_eq!(connect("t-admin").1.as_deref(), Some("200"));
    println!("answered after {:?} beside {} silent connections", start.elapsed(), silent.len());
    // A user takes all available permits; the administrator still gets one, and the user gets an error.
    let hers: Vec<_> = (0..HTTPS_CONNECTIONS_MAX).map(|_| connect("t-alice")).collect();
    let got = hers.iter().filter(|(_, status)| status.as_deref() == Some("200")).count();
    assert_eq!(
        got,
        (HTTPS_CONNECTIONS_MAX - HTTPS_RESERVED) / 2,
        "{:?}",
        hers.iter().map(|(_, s)| s).collect::<Vec<_>>()
    );
    assert!(hers.iter().any(|(_, status)| status.as_deref() == Some("503")));
    assert_eq!(connect("t-admin").1.as_deref(), Some("200"));
    assert_eq!(connect("wrong").1.as_deref(), Some("401"));
    drop((silent, hers));
    agent.stop();
}

#[test]
fn tokens_have_roles_ends_and_can_be_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(dir.path().join("agent.pem"), made.cert.pem()).unwrap();
    fs::write(dir.path().join("agent.key"), made.signing_key.serialize_pem()).unwrap();
    fs::write(dir.path().join("token"), "s3cret\n").unwrap();
    let tokens = |alice: &str| {
        let text = [
            entry("ops", "admin", "t-admin", ""),
            entry("desk", "support", "t-support", ""),
            entry(ALICE.1, "user", "t-alice", alice),
            entry("nobody-here", "user", "t-nobody", ""),
            entry("n1", "agent", "t-agent", ""),
            entry("ops", "admin", "t-old", ",\"expires\":\"2026-01-01T00:00:00Z\""),
            entry("ops", "admin", "t-gone", ",\"revoked\":\"2026-01-01T00:00:00Z\""),
        ];
        fs::write(dir.path().join("tokens.new"), text.concat()).unwrap();
        fs::rename(dir.path().join("tokens.new"), dir.path().join("tokens")).unwrap();
    };
    tokens("");
    let port = free_port();
    let agent = start(
        dir.path(),
        &format!(
            "listen = \"127.0.0.1:{port}\"\ncert = \"agent.pem\"\nkey = \"agent.key\"\ntoken_file = \"token\"\ntokens_file = \"tokens\""
        ),
        "",
    );
    let tls = wholegrain_transport::tls::client_config(&dir.path().join("agent.pem"), None).unwrap();
    let request = |token: &str, line: &str, body: &Value| {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(tls.clone(), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port)).unwrap());
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        write!(stream, "{line} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        parse_answer(&answer)
    };
    let check = |token: &str, line: &str, body: &Value, status: u16, part: &str| {
        let (is, answer) = request(token, line, body);
        assert!(is == status && answer.to_string().contains(part), "{token} {line}: {is} {answer}");
    };
    let (none, mine, bobs) = (Value::Null, rule(ALICE.2, "50ms"), rule(BOB.2, "50ms"));
    for admin in ["s3cret", "t-admin"] {
        check(admin, "GET /v1/status", &none, 200, "uptime_ns");
        check(admin, "POST /v1/rules", &bobs, 200, "every 50ms");
        check(admin, "POST /v1/log?level=info", &none, 200, "info");
    }
    check("t-support", "GET /v1/status", &none, 200, "uptime_ns");
    check("t-support", "GET /v1/jobs/99", &none, 200, "cpu/usage");
    check("t-support", "POST /v1/rules", &bobs, 403, "the role support reads everything and changes nothing");
    check("t-support", "POST /v1/rules?try=1", &bobs, 403, "changes nothing");
    check("t-support", "DELETE /v1/rules/10001", &none, 403, "changes nothing");
    check("t-support", "POST /v1/reload", &none, 403, "changes nothing");
    check("t-alice", "GET /v1/jobs/4711", &none, 200, "cpu/usage");
    check("t-alice", "GET /v1/jobs/99", &none, 404, "does not run here");
    check("t-alice", "GET /v1/status", &none, 403, "is for administrators");
    check("t-alice", "POST /v1/sources/cgroup/stop", &none, 403, "is for administrators");
    check("t-alice", "POST /v1/rules", &mine, 200, "every 50ms");
    check("t-alice", "POST /v1/rules", &bobs, 404, "does not run here");
    check("t-alice", "DELETE /v1/rules/10001", &none, 403, "is an administrator's");
    check("t-nobody", "GET /v1/jobs", &none, 200, "\"jobs\":[]");
    check("t-nobody", "POST /v1/rules", &mine, 404, "no job of");
    check("t-agent", "GET /v1/jobs", &none, 401, "a token with the role agent");
    check("t-old", "GET /v1/jobs", &none, 401, "this token has expired");
    check("t-gone", "GET /v1/jobs", &none, 401, "this token was revoked");
    check("t-what", "GET /v1/jobs", &none, 401, "send a token");
    check("", "GET /v1/jobs", &none, 401, "send a token");
    // A token that is revoked while the agent runs is refused from the next request on.
    tokens(",\"revoked\":\"2026-01-01T00:00:00Z\"");
    check("t-alice", "GET /v1/jobs", &none, 401, "this token was revoked");
    check("t-admin", "GET /v1/jobs", &none, 200, "4711");
    let audit = fs::read_to_string(dir.path().join("state/audit.jsonl")).unwrap();
    assert!(audit.contains("token daemon id-t-alice (127.0.0.1)"), "{audit}");
    assert!(!audit.contains("s3cret"), "{audit}");
    agent.stop();
}
