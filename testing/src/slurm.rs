//! A real Slurm on this machine: munge, a controller and nodes with a `slurmd` each, in a test's directory on its own ports.
//!
//! - Input: lines for slurm.conf, batch scripts.
//! - Output: jobs that Slurm placed in cgroups of version 1.
//! - Never: a change of the machine's own Slurm (`SLURM_CONF` points to this one); a daemon or a cgroup left behind.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cgroups::{MOUNT, remove_tree};
use crate::{Process, Random, free_port, open_to_all, wait_until};

/// The required programs, from Debian's slurmctld, slurmd, slurm-client and munge.
const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel"];
/// The version 1 controllers of Slurm's plugins for processes, tasks and accounting.
const CONTROLLERS: [&str; 3] = ["freezer", "memory", "cpuacct"];
/// The partition of every job.
pub const PARTITION: &str = "short";

/// A running Slurm; ended with its jobs when dropped.
pub struct Slurm {
    folder: tempfile::TempDir,
    nodes: Vec<String>,
    /// In the order in which they are ended.
    daemons: Vec<Process>,
}

impl Slurm {
    /// Why Slurm cannot run here; `None` if it can.
    pub fn missing() -> Option<String> {
        // SAFETY: geteuid takes no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Some("slurmd creates cgroups, which requires root".into());
        }
        if let Some(name) = PROGRAMS.iter().find(|name| find(name).is_none()) {
            return Some(format!("{name} is not installed: `make prepare` installs it"));
        }
        let lacks = CONTROLLERS.iter().find(|c| !Path::new(MOUNT).join(c).join("tasks").is_file())?;
        Some(format!("no cgroup v1 controller {lacks} below {MOUNT}; Slurm's v2 plugin requires systemd as process 1"))
    }

    /// Starts Slurm and waits until its node is idle. `settings` are further lines of slurm.conf.
    #[track_caller]
    pub fn start(settings: &str) -> Self {
        Self::start_nodes(1, settings)
    }

    /// Starts Slurm with several nodes, all on this machine under their own names (`slurmd -N`), each with two processors.
    #[track_caller]
    pub fn start_nodes(count: usize, settings: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a temporary folder");
        open_to_all(folder.path());
        let name = format!("wgslurm{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let nodes: Vec<String> = match count {
            1 => vec![name],
            _ => (1..=count).map(|number| format!("{name}n{number}")).collect(),
        };
        let mut slurm = Self { folder, nodes, daemons: Vec::new() };
        slurm.configure(settings);
        slurm.start_munge();
        let config = slurm.path("slurm.conf");
        let mut controller = slurm.command("slurmctld");
        controller.arg("-D").arg("-f").arg(&config);
        slurm.daemon(controller, "slurmctld.out");
        for node in slurm.nodes.clone() {
            let mut daemon = slurm.command("slurmd");
            daemon.args(["-D", "-N", &node, "-f"]).arg(&config);
            slurm.daemon(daemon, &format!("{node}.out"));
        }
        // Jobs are ended first, then the daemons.
        slurm.daemons.reverse();
        wait_until("Slurm's nodes are idle", || {
            slurm.daemons.iter_mut().for_each(|daemon| assert!(daemon.runs(), "a daemon ended: {}", daemon.log()));
            let nodes = slurm.command("sinfo").args(["--noheader", "--Node", "--format=%T"]).output();
            let states = nodes.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            states.lines().filter(|state| state.trim() == "idle").count() == count
        });
        slurm
    }

    fn configure(&self, settings: &str) {
        let host = Command::new("hostname").arg("-s").output().expect("hostname");
        let host = String::from_utf8_lossy(&host.stdout).trim().to_owned();
        let ports = ports(1 + self.nodes.len());
        let controller_port = ports[0];
        // Random job ids, so that jobs of two Slurms on one machine differ.
        let first = Random::seeded().within(1_000, 1_000_000);
        let dir = self.folder.path().display();
        std::fs::create_dir(self.path("state")).expect("a folder");
        let nodes: String = self
            .nodes
            .iter()
            .zip(&ports[1..])
            .map(|(node, port)| {
                std::fs::create_dir(self.path(&format!("spool-{node}"))).expect("a folder");
                format!("NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000\n")
            })
            .collect();
        let all = self.nodes.join(",");
        let config = format!(
            "ClusterName=wgtest\n\
             SlurmctldHost={host}(127.0.0.1)\n\
             SlurmctldPort={controller_port}\n\
             AuthType=auth/munge\n\
             AuthInfo=socket={dir}/munge/socket\n\
             SlurmUser=root\n\
             StateSaveLocation={dir}/state\n\
             SlurmdSpoolDir={dir}/spool-%n\n\
             SlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\n\
             SlurmctldLogFile={dir}/slurmctld.log\n\
             SlurmdLogFile={dir}/slurmd.log\n\
             PlugStackConfig={dir}/plugstack.conf\n\
             ProctrackType=proctrack/cgroup\n\
             TaskPlugin=task/cgroup\n\
             JobAcctGatherType=jobacct_gather/cgroup\n\
             SelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\n\
             SchedulerParameters=sched_interval=1,batch_sched_delay=0\n\
             MpiDefault=none\n\
             ReturnToService=2\n\
             FirstJobId={first}\n\
             {settings}\n\
             {nodes}\
             PartitionName={PARTITION} Nodes={all} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:8\n"
        );
        std::fs::write(self.path("slurm.conf"), config).expect("slurm.conf");
        std::fs::write(self.path("plugstack.conf"), "").expect("plugstack.conf");
        let cgroup = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n";
        std::fs::write(self.path("cgroup.conf"), cgroup).expect("cgroup.conf");
    }

    fn start_munge(&mut self) {
        use std::os::unix::fs::PermissionsExt;
        let dir = self.path("munge");
        std::fs::create_dir(&dir).expect("a folder");
        open_to_all(&dir);
        let mut random = Random::seeded();
        let key: Vec<u8> = (0..128).flat_map(|_| random.draw().to_le_bytes()).collect();
        std::fs::write(dir.join("key"), key).expect("a key");
        std::fs::set_permissions(dir.join("key"), std::fs::Permissions::from_mode(0o600)).expect("a key's mode");
        let mut munged = self.command("munged");
        munged.arg("--foreground");
        for (option, file) in
            [("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")]
        {
            munged.arg(format!("--{option}={}", dir.join(file).display()));
        }
        self.daemon(munged, "munged.out");
        wait_until("munge's socket", || dir.join("socket").exists());
    }

    fn daemon(&mut self, mut command: Command, log: &str) {
        self.daemons.push(Process::start(&mut command, &self.folder.path().join(log)));
    }

    /// Returns a path in its directory, which every user may enter.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    /// The first node's name.
    pub fn node(&self) -> &str {
        &self.nodes[0]
    }

    /// The names of all nodes, in the order in which Slurm allocates them.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Returns a command of one of Slurm's programs, connected to this Slurm.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(find(name).unwrap_or_else(|| PathBuf::from(name)));
        command.env("SLURM_CONF", self.path("slurm.conf")).current_dir(self.folder.path());
        command
    }

    /// Submits a bash script as this user; returns the job's id. `options` are sbatch's.
    #[track_caller]
    pub fn submit(&self, uid: u32, options: &[&str], script: &str) -> String {
        let mut command = self.command("sbatch");
        command.args(["--parsable", "--output=/dev/null", "--chdir=/"]).args(options);
        let mut child = command
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sbatch");
        let mut input = child.stdin.take().expect("sbatch's input");
        input.write_all(format!("#!/bin/bash\n{script}\n").as_bytes()).expect("a script that sbatch takes");
        drop(input);
        let output = child.wait_with_output().expect("sbatch");
        assert!(output.status.success(), "sbatch: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Whether a job is waiting or running.
    pub fn has(&self, job: &str) -> bool {
        let output = self.command("squeue").args(["--noheader", "--jobs", job, "--format=%T"]).output();
        output.is_ok_and(|o| o.status.success() && !String::from_utf8_lossy(&o.stdout).trim().is_empty())
    }

    /// The directory of a job on the first node for a version 1 controller.
    pub fn cgroup(&self, controller: &str, uid: u32, job: &str) -> PathBuf {
        Path::new(MOUNT).join(controller).join(format!("slurm_{}/uid_{uid}/job_{job}", self.node()))
    }

    /// The state of the first node, such as `IDLE`, with the reason if it is drained.
    pub fn node_state(&self) -> String {
        let output: Option<Output> = self.command("scontrol").args(["show", "node", self.node()]).output().ok();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let mut words =
            text.split_whitespace().filter(|word| word.starts_with("State=") || word.starts_with("Reason="));
        words.by_ref().collect::<Vec<_>>().join(" ")
    }

    /// The last lines of a daemon's log: `slurmctld.log` or `slurmd.log`.
    pub fn log(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- slurmctld\n{}\n--- slurmd\n{}", self.log("slurmctld.log"), self.log("slurmd.log"));
        }
        // The controller's job state is deleted with the directory; the processes are in the cgroups.
        self.daemons.iter_mut().for_each(Process::kill);
        for controller in std::fs::read_dir(MOUNT).into_iter().flatten().flatten() {
            for dir in self.nodes.iter().map(|node| controller.path().join(format!("slurm_{node}"))) {
                if dir.is_dir() {
                    remove_tree(&dir);
                }
            }
        }
    }
}

/// Returns different free ports.
fn ports(count: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = free_port();
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

/// Finds a program in the path, or in Debian's directory of daemons.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_in_cgroups_of_its_own_and_all_is_gone_after() {
        if let Some(why) = Slurm::missing() {
            println!("NOT TESTED: {why}");
            return;
        }
        let slurm = Slurm::start("");
        let job = slurm.submit(65_534, &[], "srun sleep 600");
        let step = slurm.cgroup("cpuacct", 65_534, &job).join("step_0");
        wait_until("the job's step is in its cgroup", || step.is_dir());
        assert!(slurm.has(&job), "{}", slurm.log("slurmctld.log"));
        // The Slurm is dropped while its job runs.
        drop(slurm);
        assert!(!step.ancestors().nth(3).is_some_and(Path::exists), "{} is left", step.display());
    }
}
