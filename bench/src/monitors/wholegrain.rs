//! Ours: the agent, pushing with quality of service 1 over TLS to a server that seals blocks, or to a broker in its place that takes hardly any CPU.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use wholegrain_model::Interval;
use wholegrain_testing::cgroups::{self, Cgroups, JobGroup};
use wholegrain_testing::{Process, free_port};

use super::folder::Address;
use super::{Folder, Monitor, Parts, Role, Running, folder, program};

const AGENT: &str = "wholegrain-agent";
const COMMAND: &str = "wholegrain";
/// The agent's configuration as packages have it; what is changed in it for a run is in [`default_settings`].
const SHIPPED: &str = include_str!("../../../packaging/agent.toml");
/// The broker that takes the server's place, as if that were on another machine.
const BROKER: &str = "mosquitto";
/// Configurations with the metrics of a job: with our server, and with the broker.
const WITH_JOB: &str = "job";
const TO_BROKER: &str = "job-broker";
/// The three files that bare loops and all peers can be compared by.
const SAME: &str = "[sources.procfs]\ngroups = [\"meminfo\", \"vmstat\", \"stat\"]\n";
/// How often processes of jobs are gone through, as the agent does without being told.
const TASKS_EVERY: &str = "10s";
/// The variable by which a job of Slurm's is known: its processes are in cgroups that the agent finds by itself.
const IN_A_JOB: &str = "SLURM_JOB_ID";
/// The job that is made where there is none.
const JOB: &str = "1";

/// See the module.
pub struct Wholegrain;

impl Monitor for Wholegrain {
    fn name(&self) -> &'static str {
        "wholegrain"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same", WITH_JOB, TO_BROKER]
    }

    fn version(&self) -> anyhow::Result<String> {
        program::ours(COMMAND)?;
        program::version(&program::ours(AGENT)?, &["--version"])
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        let folder = Folder::new(dir, role)?;
        let mut ours = Ours {
            parts: Parts::new(),
            job: None,
            interval_ns: interval.as_nanos() as u64,
            socket: folder.node("agent.sock")?,
            metrics: 0,
            configured: String::new(),
        };
        match configuration {
            _ if !folder.has_server() => {}
            TO_BROKER => ours.start_broker(&folder)?,
            _ => ours.start_server(&folder, role)?,
        }
        if folder.has_node() {
            ours.start_agent(&folder, configuration)?;
        }
        Ok(Box::new(ours))
    }
}

struct Ours {
    /// Before the job, whose cgroups are removed when the agent is gone.
    parts: Parts,
    job: Option<Job>,
    interval_ns: u64,
    socket: PathBuf,
    metrics: u64,
    configured: String,
}

/// A job's cgroups on a machine without a resource manager, with a process that sleeps.
pub struct Job {
    _idle: Process,
    /// Where it is.
    pub group: JobGroup,
    cgroups: Cgroups,
}

impl Job {
    /// Makes one.
    pub fn new() -> anyhow::Result<Self> {
        if let Some(why) = Cgroups::missing() {
            anyhow::bail!("there is no job here, and none can be made: {why}");
        }
        let cgroups = Cgroups::new();
        let group = cgroups.job(JOB, 0);
        Ok(Self { _idle: group.idle(), group, cgroups })
    }
}

impl Ours {
    fn start_server(&mut self, folder: &Folder, role: Role) -> anyhow::Result<()> {
        init(folder, role)?;
        let site = folder.server("")?;
        let config = folder.server("server/server.toml")?;
        let text = std::fs::read_to_string(&config).with_context(|| format!("reading {}", config.display()))?;
        self.configured += &folder.write(&config, &told(&text))?;
        let mut command = Command::new(program::ours(COMMAND)?);
        command.args(["server", "--config"]).arg(&config);
        self.configured += &format!("{command:?}\n");
        self.parts.start("wholegrain server", true, &mut command, &folder.server("server.log")?)?;
        let client = site.join("client.toml");
        let own = program::ours(COMMAND)?;
        self.parts.wait_until("the server answers", || {
            let mut command = Command::new(&own);
            command.args(["sensors", "--format", "json"]).env("WHOLEGRAIN_CLIENT", &client);
            // 1: it answers that there is none yet.
            command.output().is_ok_and(|output| matches!(output.status.code(), Some(0 | 1)))
        })
    }

    /// With the certificates that our server would have.
    fn start_broker(&mut self, folder: &Folder) -> anyhow::Result<()> {
        let broker = program::installed(BROKER, BROKER)?;
        let address = init(folder, Role::Both)?;
        let (port, site) = (address.port("mqtt")?, folder.server("")?);
        let config = folder.server("mosquitto.conf")?;
        let text = format!(
            "listener {port} {}\nallow_anonymous true\nrequire_certificate true\ncafile {site}/ca.pem\n\
             certfile {site}/server/server.pem\nkeyfile {site}/server/server.key\nuser {}\n",
            folder.listen(),
            program::user()?,
            site = site.display(),
        );
        self.configured += &folder.write(&config, &text)?;
        let mut command = Command::new(broker);
        command.arg("-c").arg(&config);
        self.configured += &format!("{command:?}\n");
        self.parts.start(BROKER, true, &mut command, &folder.server("mosquitto.log")?)?;
        self.parts.wait_until("the broker listens", || TcpStream::connect((address.host.as_str(), port)).is_ok())
    }

    fn start_agent(&mut self, folder: &Folder, configuration: &str) -> anyhow::Result<()> {
        let address = folder.address()?;
        let (site, name) = (folder.server("")?, folder::node());
        program::output(Command::new(program::ours(COMMAND)?).args(["ca", "agent", &name, "--dir"]).arg(&site))?;
        let interval = Interval::from_ns(self.interval_ns);
        let mut text = match configuration {
            "same" => format!(
                "name = \"{name}\"\n[defaults]\ninterval = \"{interval}\"\n[api]\nsocket = \"{}\"\n{SAME}\
                 [sources.agent]\nenabled = false\n",
                self.socket.display()
            ),
            _ => default_settings(&name, interval, &self.socket, &folder.node("jobs.sock")?)?,
        };
        text += &format!(
            "\n[mqtt]\nurl = \"mqtts://{}:{}\"\nca = \"{site}/ca.pem\"\ncert = \"{site}/agents/{name}.pem\"\n\
             key = \"{site}/agents/{name}.key\"\n[spool]\ndir = \"{}\"\n",
            if address.host == "127.0.0.1" { "localhost" } else { &address.host },
            address.port("mqtt")?,
            folder.node("spool")?.display(),
            site = site.display(),
        );
        let with_job = configuration == WITH_JOB || configuration == TO_BROKER;
        if with_job {
            text += &format!(
                "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"{interval}\"\n\
                 [[jobs.rule]]\nmetrics = [\"tasks/**\"]\nevery = \"{TASKS_EVERY}\"\n"
            );
            text = self.with_job(text)?;
        }
        let config = folder.node("agent.toml")?;
        self.configured += &folder.write(&config, &told(&text))?;
        let mut command = Command::new(program::ours(AGENT)?);
        command.arg("--config").arg(&config);
        self.configured += &format!("{command:?}\n");
        self.parts.start(AGENT, false, &mut command, &folder.node("agent.log")?)?;
        let socket = self.socket.clone();
        let mut status = Value::Null;
        self.parts.wait_until("the server acknowledges the agent's first readings", || {
            status = ask(&socket).unwrap_or_default();
            let of_job = |group: &Value| group["topic"].as_str().is_some_and(|topic| topic.contains("job/"));
            let groups = status["groups"].as_array().map_or(&[][..], Vec::as_slice);
            status["acknowledged"].as_u64() > Some(0) && (!with_job || groups.iter().any(of_job))
        })?;
        // What is read at each period: of what is read less often there is only the CPU that it takes.
        let groups = status["groups"].as_array().map_or(&[][..], Vec::as_slice);
        let read = groups.iter().filter(|group| group["interval_ns"].as_u64() == Some(self.interval_ns));
        self.metrics = read.filter_map(|group| group["sensors"].as_u64()).sum();
        ensure!(self.metrics > 0, "the agent samples nothing at {interval}: {status}");
        Ok(())
    }

    /// The job whose metrics are read: one of a resource manager's, or else one that is made, which the workload is then put into.
    fn with_job(&mut self, text: String) -> anyhow::Result<String> {
        if std::env::var_os(IN_A_JOB).is_some() {
            return Ok(text);
        }
        let job = Job::new()?;
        let root = job.cgroups.root();
        let links: Vec<PathBuf> = cgroups::links(&root).into_iter().collect();
        let text = with(text, "[jobs]\n", &format!("[jobs]\nhierarchies = {links:?}\n"))?;
        self.job = Some(job);
        Ok(text + &format!("[roots]\ncgroup = \"{}\"\n", root.display()))
    }
}

/// Makes a site with its certificates, and tells the nodes where it is.
fn init(folder: &Folder, role: Role) -> anyhow::Result<Address> {
    let address = folder.announce(&[("mqtt", free_port()), ("https", free_port())])?;
    let (mqtt, https) = (address.port("mqtt")?.to_string(), address.port("https")?.to_string());
    let mut command = Command::new(program::ours(COMMAND)?);
    command.args(["init", "--mqtt-port", &mqtt, "--http-port", &https, "--host", &address.host]);
    if role == Role::Server {
        command.args(["--listen", folder.listen()]);
    }
    program::output(command.arg(folder.server("")?))?;
    Ok(address)
}

/// [`SHIPPED`] with this run's name, places and period in it; everything else stays as it is.
fn default_settings(name: &str, interval: Interval, socket: &Path, jobs: &Path) -> anyhow::Result<String> {
    let text = with(SHIPPED.to_owned(), "\ninterval = \"1s\"", &format!("\ninterval = \"{interval}\""))?;
    let text = with(text, "\"/run/wholegrain/agent.sock\"", &format!("{socket:?}"))?;
    let text = with(text, "\"/run/wholegrain/jobs.sock\"", &format!("{jobs:?}"))?;
    let text = with(text, "\n# [sources.agent]\n", &format!("\n[sources.agent]\ninterval = \"{interval}\"\n"))?;
    let text = with(text, "\"/var/lib/wholegrain-agent/jobs\"", &format!("{:?}", jobs.with_extension("kept")))?;
    let text = with(text, "# hooks = \"/run/wholegrain-hooks\"", "hooks = \"\"")?;
    with(text, "# name = \"node0042\"", &format!("name = \"{name}\""))
}

fn with(text: String, from: &str, to: &str) -> anyhow::Result<String> {
    ensure!(text.contains(from), "packaging/agent.toml has no {from:?} any more");
    Ok(text.replacen(from, to, 1))
}

/// A configuration without its comments.
fn told(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(" # ").next().unwrap_or(line).trim_end());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    lines.join("\n") + "\n"
}

/// The agent's status.
fn ask(socket: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(program::ours(COMMAND)?);
    command.args(["ctl", "--socket"]).arg(socket).args(["status", "--format", "json"]);
    serde_json::from_str(&program::output(&mut command)?).context("the agent's status")
}

impl Running for Ours {
    fn metrics(&self) -> u64 {
        self.metrics
    }

    fn configured(&self) -> String {
        self.configured.clone()
    }

    fn processes(&self) -> Vec<(String, u32, bool)> {
        self.parts.list()
    }

    fn ticks(&self) -> Option<(u64, u64)> {
        let status = ask(&self.socket).ok()?;
        Some((status["samples"].as_u64()?, status["missed_ticks"].as_u64()?))
    }

    fn job(&self) -> Vec<PathBuf> {
        self.job.iter().flat_map(|job| job.group.task_files()).collect()
    }

    fn stop(self: Box<Self>) {
        let Self { mut parts, job, .. } = *self;
        parts.stop();
        drop(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_configuration_is_changed_in_places_and_period_only() {
        let interval = Interval::from_ms(10);
        let text = default_settings("n1", interval, Path::new("/d/a.sock"), Path::new("/d/j.sock")).unwrap();
        let (shipped, text) = (told(SHIPPED), told(&text));
        let mut changed: Vec<&str> = text.lines().filter(|line| !shipped.lines().any(|l| l == *line)).collect();
        let mut expected = [
            "name = \"n1\"",
            "interval = \"10ms\"",
            "socket = \"/d/a.sock\"",
            "[sources.agent]",
            "interval = \"10ms\"",
            "dir = \"/d/j.kept\"",
            "hooks = \"\"",
            "socket = \"/d/j.sock\"",
        ];
        changed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(changed, expected);
    }
}
