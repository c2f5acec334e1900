//! The words that start a workload or a monitor on this machine, by mpirun, or within an allocation of Slurm.
//!
//! A monitor's part is started once for each host, by a launch of its own: its two lines then come whole, and an error names its
//! host. Launchers pass the end of input on, so that it ends a monitor's part; their handling of signals differs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use wholegrain_model::Interval;

use super::file::{Experiment, Kind, Launcher, Workload};
use super::plan::Condition;

/// The variable by which Slurm names the nodes of an allocation.
const NODES: &str = "SLURM_JOB_NODELIST";
/// So much later than this program ends a workload, the workload's own timeout does.
const BEYOND_LIMIT: Duration = Duration::from_secs(60);
/// What a failure calls the server's part of a monitor.
const SERVER: &str = "its server";

/// How a part of a monitor is started.
pub struct Start {
    /// The command.
    pub command: Vec<String>,
    /// Whether it is a node's part.
    pub node: bool,
    /// Where it runs, as a failure names it; `None` where everything is on one machine.
    pub place: Option<String>,
}

/// Where things are started.
pub struct Site {
    launcher: Launcher,
    hosts: Vec<String>,
    program: String,
}

impl Site {
    /// Of this machine, the listed hosts, or the allocation that this program runs in.
    pub fn new(launcher: &Launcher) -> anyhow::Result<Self> {
        let hosts = match launcher.kind {
            Kind::Local => vec![String::new()],
            Kind::Mpirun => launcher.hosts.clone(),
            Kind::Slurm => slurm_hosts()?,
        };
        let program = std::env::current_exe().context("the path of this program")?;
        Ok(Self { launcher: launcher.clone(), hosts, program: program.display().to_string() })
    }

    /// How many nodes there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Whether a launcher stands between this program and the monitor.
    pub fn is_launched(&self) -> bool {
        self.launcher.kind != Kind::Local
    }

    /// What the ranks of a workload are started with; `None` for the workload's own way. `{ranks}` is left in it.
    fn ranks_launcher(&self, condition: &Condition) -> Option<String> {
        let hosts = self.hosts.get(..condition.hosts).unwrap_or(&self.hosts);
        let slots = condition.ranks.div_ceil(hosts.len().max(1));
        let with_slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{slots}")).collect();
        let template = match (&self.launcher.workload, self.launcher.kind) {
            (Some(own), _) => own.clone(),
            (None, Kind::Local) => return None,
            // An MPI that knows Slurm finds the allocation by itself, and whatever MPI there is has an mpirun.
            (None, Kind::Mpirun | Kind::Slurm) => format!("mpirun{} --host {{slots}} -np {{ranks}}", as_root()),
        };
        let text = template.replace("{slots}", &with_slots.join(",")).replace("{hosts}", &hosts.join(","));
        Some(text.replace("{nodes}", &hosts.len().to_string()))
    }

    /// The command of a workload's run, which ends by itself a while after `limit` should nobody end it.
    pub fn workload(&self, workload: &Workload, condition: &Condition, dir: &Path, limit: Interval) -> Vec<String> {
        let launcher = self.ranks_launcher(condition);
        let Some(command) = &workload.command else {
            let words = ["workload", "run", &workload.name, "--size", &workload.size, "--ranks"];
            let mut words: Vec<String> =
                std::iter::once(self.program.as_str()).chain(words).map(str::to_owned).collect();
            words.extend([workload.ranks.to_string(), "--dir".to_owned(), dir.display().to_string()]);
            let timeout = limit.duration() + BEYOND_LIMIT;
            words.extend(["--timeout-s".to_owned(), timeout.as_secs().to_string()]);
            words.extend(launcher.into_iter().flat_map(|launcher| ["--launcher".to_owned(), launcher]));
            return words;
        };
        let launcher = launcher.unwrap_or_else(|| format!("mpirun{} --oversubscribe -np {{ranks}}", as_root()));
        let fill = |word: &str| {
            word.replace("{ranks}", &workload.ranks.to_string())
                .replace("{size}", &workload.size)
                .replace("{nodes}", &condition.hosts.to_string())
                .replace("{dir}", &dir.display().to_string())
        };
        let words = command.iter().flat_map(|word| match word.as_str() {
            "{launcher}" => launcher.split_whitespace().map(str::to_owned).collect(),
            other => vec![other.to_owned()],
        });
        words.map(|word| fill(&word)).collect()
    }

    /// A monitor's parts, the server's first where there is one.
    pub fn monitor(&self, experiment: &Experiment, condition: &Condition, dir: &Path) -> Vec<Start> {
        if !self.is_launched() {
            return vec![Start { command: self.part(experiment, condition, "both", dir), node: true, place: None }];
        }
        let server = self.part(experiment, condition, "server", dir);
        let server = Start { command: server, node: false, place: Some(SERVER.to_owned()) };
        let hosts = self.hosts.get(..condition.hosts).unwrap_or(&self.hosts);
        let nodes = hosts.iter().map(|host| {
            let template = match (&self.launcher.monitor, self.launcher.kind) {
                (Some(own), _) => own.clone(),
                // On a node with all of its cores, as a service is.
                (None, Kind::Slurm) => {
                    "srun --overlap --nodes=1 --ntasks=1 --nodelist={host} --cpu-bind=none --quiet".to_owned()
                }
                (None, _) => format!("mpirun{} --host {{host}} --bind-to none -np 1", as_root()),
            };
            let words = template.split_whitespace().map(|word| word.replace("{host}", host));
            let command = words.chain(self.part(experiment, condition, "node", dir)).collect();
            Start { command, node: true, place: Some(host.clone()) }
        });
        std::iter::once(server).chain(nodes).collect()
    }

    fn part(&self, experiment: &Experiment, condition: &Condition, role: &str, dir: &Path) -> Vec<String> {
        let interval = Interval::from_ns(condition.interval_ns.unwrap_or_default()).to_string();
        let dir = dir.display().to_string();
        let own = experiment.monitors.iter().find(|monitor| monitor.name == condition.monitor);
        if let Some(command) = own.and_then(|monitor| monitor.command.as_ref()) {
            let fill = |word: &String| {
                word.replace("{configuration}", &condition.configuration)
                    .replace("{interval}", &interval)
                    .replace("{role}", role)
                    .replace("{dir}", &dir)
            };
            return command.iter().map(fill).collect();
        }
        let words = [
            (self.program.as_str(), "monitor"),
            ("run", condition.monitor.as_str()),
            ("--configuration", &condition.configuration),
            ("--interval", &interval),
            ("--role", role),
            ("--dir", &dir),
        ];
        words.into_iter().flat_map(|(a, b)| [a.to_owned(), b.to_owned()]).collect()
    }
}

/// Open MPI refuses to be run by root unless it is told that this is meant.
fn as_root() -> &'static str {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 { " --allow-run-as-root" } else { "" }
}

/// The nodes of the allocation that this program runs in.
fn slurm_hosts() -> anyhow::Result<Vec<String>> {
    let Some(list) = std::env::var_os(NODES) else {
        bail!(
            "{NODES} is not set: start it within an allocation (salloc -N 2 …), or by sbatch as bench/experiments/cluster.sbatch shows"
        )
    };
    let output = Command::new("scontrol").args(["show", "hostnames"]).arg(&list).output();
    let output = output.context("scontrol, which tells the nodes of the allocation")?;
    ensure!(output.status.success(), "scontrol show hostnames: {}", String::from_utf8_lossy(&output.stderr).trim());
    let hosts: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    ensure!(!hosts.is_empty(), "scontrol names no node for {}", list.to_string_lossy());
    Ok(hosts)
}
