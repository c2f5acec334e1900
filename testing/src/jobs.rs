//! An installation whose agents search for jobs: configuration and responses of an agent.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use serde_json::Value;

use crate::{Process, Site, program, wait_until};

/// The first agent's name.
pub const NODE: &str = "node1";
/// How long a response over the socket may take, s.
const ANSWER_S_MAX: u64 = 30;

/// An agent that searches for jobs, and its server.
pub struct JobSite {
    pub site: Rc<Site>,
    name: String,
    cgroup_root: PathBuf,
    certificate: String,
}

/// A time, ns since the Unix epoch, and the value; `None` for a gap.
pub type JobReading = (i64, Option<f64>);

impl JobSite {
    /// Creates an installation whose agent searches for jobs below `cgroup_root`.
    pub fn new(cgroup_root: &Path) -> Self {
        let site = Site::new();
        // Other users connect to the users' socket in this directory.
        crate::open_to_all(site.dir());
        let made = Self::of(Rc::new(site), NODE, cgroup_root);
        let socket = format!("\"{}\"", made.socket().display());
        made.site.set("client.toml", "", "agent_socket", &socket);
        made
    }

    /// Adds an agent that finds the same jobs, as a second node.
    pub fn another(&self, name: &str) -> Self {
        Self::of(self.site.clone(), name, &self.cgroup_root)
    }

    fn of(site: Rc<Site>, name: &str, cgroup_root: &Path) -> Self {
        let (certificate, key) = site.agent_certificate(name);
        let certificate = format!("cert = \"{}\"\nkey = \"{}\"", certificate.display(), key.display());
        Self { site, name: name.to_owned(), cgroup_root: cgroup_root.to_owned(), certificate }
    }

    /// Returns a path of this agent in the installation's directory.
    fn own(&self, what: &str) -> PathBuf {
        self.site.path(&format!("{}{what}", self.name))
    }

    pub fn socket(&self) -> PathBuf {
        self.own(".sock")
    }

    /// The socket of all users.
    pub fn users_socket(&self) -> PathBuf {
        self.own("-users.sock")
    }

    /// The directory of hook files.
    pub fn hooks(&self) -> PathBuf {
        self.own("-hooks")
    }

    /// The number of jobs in the agent's file of records.
    pub fn recorded_jobs(&self) -> usize {
        let text = std::fs::read(self.own("-jobs").join("records.json")).unwrap_or_default();
        let file: Value = serde_json::from_slice(&text).unwrap_or_default();
        file["records"].as_array().map_or(0, Vec::len)
    }

    pub fn config(&self) -> PathBuf {
        self.own(".toml")
    }

    /// Writes the agent's configuration. `jobs` are further lines of `[jobs]` and its tables, `sources` those of the sources.
    pub fn configure(&self, jobs: &str, sources: &str) {
        let Self { site, name, cgroup_root, certificate } = self;
        let config = format!(
            r#"name = "{name}"
[roots]
cgroup = "{root}"
[mqtt]
url = "mqtts://localhost:{port}"
ca = "{ca}"
{certificate}
send_interval = "200ms"
queue_bytes_max = "16MiB"
[spool]
dir = "{spool}"
[cache]
duration = "5min"
bytes_max = "16MiB"
[api]
socket = "{socket}"
[sources.agent]
enabled = false
{sources}
[jobs]
dir = "{dir}"
socket = "{users}"
hooks = "{hooks}"
hierarchies = {hierarchies:?}
rescan = "1s"
{jobs}
"#,
            root = cgroup_root.display(),
            hierarchies = crate::cgroups::links(cgroup_root).into_iter().collect::<Vec<_>>(),
            port = site.mqtt_port,
            ca = site.path("ca.pem").display(),
            spool = self.own("-spool").display(),
            socket = self.socket().display(),
            dir = self.own("-jobs").display(),
            users = self.users_socket().display(),
            hooks = self.hooks().display(),
        );
        std::fs::write(self.config(), config).expect("a writable folder");
    }

    /// Starts the agent and waits until it answers.
    #[track_caller]
    pub fn start(&self) -> Process {
        self.start_by(&mut Command::new(program("wholegrain-agent")))
    }

    /// Starts the agent with another command, which gets the agent's arguments.
    #[track_caller]
    pub fn start_by(&self, command: &mut Command) -> Process {
        let mut agent = Process::start(command.arg("--config").arg(self.config()), &self.own(".log"));
        wait_until("the agent answers", || {
            assert!(agent.runs(), "the agent ended: {}", agent.log());
            self.get("/v1/status").is_some()
        });
        agent
    }

    /// Sends a request over the administrators' socket; returns status and body, or `None` without a response.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        ask(&self.socket(), method, path, body)
    }

    /// Returns the JSON of a successful GET.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", path, "")?;
        (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }

    /// Adds a rule and returns the agent's response; panics if the rule is refused.
    #[track_caller]
    pub fn rule(&self, rule: &Value) -> Value {
        let (status, body) = self.ask("POST", "/v1/rules", &rule.to_string()).expect("an answer");
        assert!((200..300).contains(&status), "the rule {rule} is refused: {status} {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// The running jobs of the agent.
    pub fn jobs(&self) -> Vec<Value> {
        let answer = self.get("/v1/jobs").unwrap_or_default();
        let rows = answer.as_array().or_else(|| answer["jobs"].as_array());
        rows.cloned().unwrap_or_default()
    }

    /// One running job with its metrics.
    pub fn job(&self, id: &str) -> Option<Value> {
        self.get(&format!("/v1/jobs/{id}"))
    }

    /// The names of a running job's metrics and their intervals, ns.
    pub fn metrics(&self, id: &str) -> Vec<(String, Option<u64>)> {
        let job = self.job(id).unwrap_or_default();
        let rows = job["metrics"].as_array().cloned().unwrap_or_default();
        let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
        rows.iter().map(|row| (name(row), row["interval_ns"].as_u64())).collect()
    }

    /// Missed ticks of the group that contains a metric of a running job.
    pub fn missed_ticks(&self, job: &str, metric: &str) -> u64 {
        let metrics = self.job(job).unwrap_or_default()["metrics"].as_array().cloned().unwrap_or_default();
        let Some(group) = metrics.iter().find(|row| row["name"] == metric).map(|row| row["group"].clone()) else {
            return 0;
        };
        let groups = self.get("/v1/groups").unwrap_or_default()["groups"].as_array().cloned().unwrap_or_default();
        let found = groups.iter().find(|row| row["group"] == group);
        found.and_then(|row| row["missed_ticks"].as_u64()).unwrap_or(0)
    }

    /// The number of groups of the agent.
    pub fn groups(&self) -> usize {
        self.get("/v1/groups").and_then(|answer| Some(answer["groups"].as_array()?.len())).unwrap_or(0)
    }

    /// All jobs that the server knows, including ended ones; one row each.
    pub fn records(&self) -> Vec<Value> {
        let mut rows: Vec<Value> = Vec::new();
        let mut after = String::new();
        loop {
            let answer = self.site.api(&format!("/api/v1/jobs?limit=10000{after}")).unwrap_or_default();
            rows.extend(answer["jobs"].as_array().cloned().unwrap_or_default());
            match answer["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return rows,
            }
        }
    }

    /// The server's record of a job on this agent's node.
    pub fn record(&self, id: &str) -> Option<Value> {
        let answer = self.site.api(&format!("/api/v1/jobs/{id}"))?;
        answer["allocations"].as_array()?.iter().find(|record| record["node"] == self.name.as_str()).cloned()
    }

    /// A number of the agent's status; 0 if it is missing.
    pub fn status(&self, name: &str) -> u64 {
        self.get("/v1/status").and_then(|status| status[name].as_u64()).unwrap_or(0)
    }

    /// The stored readings of a sensor of a job, in order of time.
    pub fn stored(&self, level: &str, metric: &str) -> Vec<JobReading> {
        self.stored_of_node(&format!("job/{level}/{metric}"))
    }

    /// The stored readings of a sensor of the node, by its name below the node.
    pub fn stored_of_node(&self, name: &str) -> Vec<JobReading> {
        let sensor = format!("/{}/{name}", self.name);
        let arguments = ["query", &sensor, "--from", "-1h", "--format", "json", "--limit", "5000000"];
        let output = self.site.run(&arguments);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON lines"));
        let mut readings: Vec<JobReading> = rows.map(|row| (time(&row["time"]), row["value"].as_f64())).collect();
        readings.sort_by_key(|(time, _)| *time);
        readings
    }

    /// The names of all stored sensors of a job, below the job.
    pub fn stored_sensors(&self, level: &str) -> Vec<String> {
        let prefix = format!("/{}/job/{level}/", self.name);
        let output = self.site.run(&["sensors", &format!("{prefix}**"), "--format", "json"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        rows.filter_map(|row| Some(row["path"].as_str()?.strip_prefix(&prefix)?.to_owned())).collect()
    }
}

/// Sends a request over a Unix socket; returns status and body, or `None` without a response.
pub fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(ANSWER_S_MAX))).ok()?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    stream.write_all(format!("{head}{kind}\r\n{body}").as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Some((status, if chunked { joined(body)? } else { body.to_owned() }))
}

/// Joins the chunks of a body.
fn joined(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        whole.push_str(rest.get(..size)?);
        body = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

fn time(text: &Value) -> i64 {
    instant(text).unwrap_or_else(|| panic!("no time: {text}"))
}

/// Parses a time of a response to ns since the Unix epoch; `None` for anything else.
pub fn instant(text: &Value) -> Option<i64> {
    let zero = wholegrain_model::Timestamp(0);
    Some(wholegrain_model::Timestamp::parse(text.as_str()?, zero).ok()?.0)
}

/// The numbers of a process's open descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptors {
    pub all: usize,
    pub perf: usize,
    /// Files whose path contains `/job_`.
    pub jobs: usize,
    /// Watches of all inotify instances.
    pub watches: usize,
}

impl Descriptors {
    /// Counts the descriptors of a process.
    pub fn of(pid: u32) -> Self {
        let mut count = Self::default();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy();
            count.all += 1;
            count.perf += usize::from(target.contains("[perf_event]"));
            count.jobs += usize::from(target.contains("/job_"));
            if target.contains("inotify") {
                let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(entry.file_name());
                let text = std::fs::read_to_string(info).unwrap_or_default();
                count.watches += text.lines().filter(|line| line.starts_with("inotify wd:")).count();
            }
        }
        count
    }
}
