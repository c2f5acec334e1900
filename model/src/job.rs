//! Job records: one job on one node, as agents send it to the server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The longest job id, in bytes.
pub const JOB_ID_BYTES_MAX: usize = 128;
/// The most steps of a record; further ones are only counted.
pub const STEPS_MAX: usize = 1024;
/// The longest text in a record without another bound, in bytes. Hooks of resource managers cut texts to the same length.
pub const JOB_TEXT_BYTES_MAX: usize = 1024;
/// The longest list of CPUs, in bytes.
pub const JOB_CPUS_BYTES_MAX: usize = 4096;
/// The most devices of a record.
pub const JOB_DEVICES_MAX: usize = 1024;
/// The most totals of a record.
pub const JOB_TOTALS_MAX: usize = 1024;
/// The largest record, in bytes of JSON.
pub const JOB_RECORD_BYTES_MAX: usize = 1 << 20;

/// One job on one node. The agent sends it after each change; a record replaces an earlier one with the same (node, manager, job, owner, from) and a
/// lower revision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRecord {
    /// The id as the resource manager writes it, such as `4711`, `4711.pbs01`, `ƒ2oLkTLb` or a SLUID.
    pub job: String,
    /// The level above the job's sensors: `<prefix>/job/<level>/…`. Derived from the id.
    pub level: String,
    /// `slurm`, `oar`, `pbs`, `flux`, `systemd`, or the name of a configured pattern.
    pub manager: String,
    pub node: String,
    pub prefix: String,
    /// The owner according to the path of the cgroup: `uid:<uid>` or `user:<name>` if the manager wrote it; `own:<uid>` below that user's own systemd
    /// manager, where the user chose the id; empty if the path has no owner.
    pub owner: String,
    /// The user of the processes; `None` if unknown.
    pub uid: Option<u32>,
    /// The name of `uid` on the node.
    pub user: Option<String>,
    /// The CPUs that it may use as the kernel lists them, such as `0-3,8`; `None` if unknown.
    pub cpus: Option<String>,
    /// Allocated devices, such as `gpu/0`.
    pub devices: Vec<String>,
    /// The begin on this node, ns since the Unix epoch: the creation of its cgroup.
    pub from: i64,
    /// The end on this node; `None` while it runs.
    pub to: Option<i64>,
    /// The agent did not run at the end: `to` is the time at which it last saw the job.
    pub end_unseen: bool,
    /// From a prolog hook.
    pub name: Option<String>,
    /// From a prolog hook.
    pub account: Option<String>,
    /// From a prolog hook.
    pub partition: Option<String>,
    /// All nodes of the job as the resource manager writes them, from a prolog hook.
    pub nodes: Option<String>,
    /// The second id, if the manager uses two, such as Slurm's job id beside a SLUID, from a prolog hook.
    pub also: Option<String>,
    /// Steps and tasks in the order of their begin.
    pub steps: Vec<StepRecord>,
    pub steps_dropped: u64,
    /// The last known totals by metric, in the metrics' units (`cpu/usage` in s, `memory/peak` in By, …). An ended job also has the counters `tasks/*`
    /// if they are known up to the end of its last process.
    pub totals: BTreeMap<String, f64>,
    /// Why the totals of an ended job lack `tasks/*` although its processes were sampled.
    pub tasks_missing: Option<String>,
    /// The time at which the latest of `totals` was read, ns since the Unix epoch.
    pub totals_at: Option<i64>,
    /// Rises with every change.
    pub revision: u64,
}

/// A step or a task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRecord {
    /// Its path below the job, such as `step_0` or `step_0/task_1`.
    pub name: String,
    /// The begin, ns since the Unix epoch.
    pub from: i64,
    /// The end; `None` while it runs.
    pub to: Option<i64>,
}

/// The most plausible CPUs of a node: the bound of the kernel (`NR_CPUS` of x86-64).
pub const JOB_NODE_CPUS_MAX: u32 = 8192;
/// The most plausible memory of a node, in bytes: 1 PiB.
pub const JOB_NODE_MEMORY_BYTES_MAX: u64 = 1 << 50;
/// The largest plausible clock step during a job, s.
const CLOCK_S_MAX: f64 = 3600.0;
/// Totals in CPU seconds.
const CPU_SECONDS: [&str; 3] = ["cpu/usage", "cpu/user", "cpu/system"];

/// Cuts a text to [`JOB_TEXT_BYTES_MAX`], between two characters.
fn cut(text: &mut String) {
    let end = (0..=JOB_TEXT_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

impl JobRecord {
    /// Cuts descriptive texts to [`JOB_TEXT_BYTES_MAX`]. Other texts and lists over their bounds are an error.
    pub fn bound(&mut self) -> Result<(), String> {
        let texts = [&mut self.user, &mut self.name, &mut self.account, &mut self.partition, &mut self.nodes];
        let more = [&mut self.also, &mut self.tasks_missing];
        texts.into_iter().chain(more).flatten().for_each(cut);
        if self.steps.len() > STEPS_MAX {
            return Err(format!("it has {} steps, at most {STEPS_MAX} are allowed", self.steps.len()));
        }
        if self.devices.len() > JOB_DEVICES_MAX || self.totals.len() > JOB_TOTALS_MAX {
            let (devices, totals) = (self.devices.len(), self.totals.len());
            return Err(format!(
                "it has {devices} devices and {totals} totals, at most {JOB_DEVICES_MAX} and {JOB_TOTALS_MAX} are allowed"
            ));
        }
        let names = self.steps.iter().map(|step| &step.name).chain(&self.devices).chain(self.totals.keys());
        if names.into_iter().any(|name| name.len() > JOB_TEXT_BYTES_MAX) {
            return Err(format!("the name of a step, device or total has over {JOB_TEXT_BYTES_MAX} bytes"));
        }
        if self.cpus.as_ref().is_some_and(|cpus| cpus.len() > JOB_CPUS_BYTES_MAX) {
            return Err(format!("its list of CPUs has over {JOB_CPUS_BYTES_MAX} bytes"));
        }
        Ok(())
    }

    /// Removes implausible totals and returns their names: negative ones, more CPU seconds than [`JOB_NODE_CPUS_MAX`] CPUs have in the job's time (up to
    /// `now` while it runs), and more memory than [`JOB_NODE_MEMORY_BYTES_MAX`].
    pub fn remove_implausible_totals(&mut self, now: i64) -> Vec<String> {
        let elapsed_s = self.to.unwrap_or(now).saturating_sub(self.from).max(0) as f64 / 1e9;
        let cpu_s_max = (elapsed_s + CLOCK_S_MAX) * f64::from(JOB_NODE_CPUS_MAX);
        let is_possible = |name: &str, value: f64| {
            let most = match name {
                _ if CPU_SECONDS.contains(&name) => cpu_s_max,
                "memory/peak" => JOB_NODE_MEMORY_BYTES_MAX as f64,
                _ => f64::MAX,
            };
            (0.0..=most).contains(&value)
        };
        let mut taken = Vec::new();
        self.totals.retain(|name, value| {
            let stays = is_possible(name, *value);
            if !stays {
                taken.push(name.clone());
            }
            stays
        });
        taken
    }

    /// Whether both records are of the same job on the same node.
    pub fn is_same(&self, other: &JobRecord) -> bool {
        (&self.node, &self.manager, &self.job, &self.owner, self.from)
            == (&other.node, &other.manager, &other.job, &other.owner, other.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_totals_are_removed() {
        let hour = 3_600_000_000_000;
        let record = |to| JobRecord {
            from: hour,
            to,
            totals: [("cpu/usage", 1e8), ("cpu/user", -1.0), ("memory/peak", 1e18), ("io/read_bytes", 1e15)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..JobRecord::default()
        };
        let mut short = record(Some(2 * hour));
        assert_eq!(short.remove_implausible_totals(100 * hour), ["cpu/usage", "cpu/user", "memory/peak"]);
        assert_eq!(short.totals.keys().collect::<Vec<_>>(), ["io/read_bytes"]);
        assert_eq!(record(None).remove_implausible_totals(100 * hour), ["cpu/user", "memory/peak"]);
    }

    #[test]
    fn texts_are_cut_between_characters_and_long_names_are_refused() {
        let mut record = JobRecord { name: Some("a".to_owned() + &"ä".repeat(600)), ..JobRecord::default() };
        record.bound().unwrap();
        assert_eq!(record.name.as_ref().unwrap().len(), 1023);
        let long = "x".repeat(JOB_TEXT_BYTES_MAX + 1);
        let step = StepRecord { name: long.clone(), ..StepRecord::default() };
        for (wrong, said) in [
            (JobRecord { devices: vec![long.clone()], ..JobRecord::default() }, "1024 bytes"),
            (JobRecord { devices: vec![String::new(); 1025], ..JobRecord::default() }, "1025 devices"),
            (JobRecord { totals: [(long.clone(), 1.0)].into(), ..JobRecord::default() }, "1024 bytes"),
            (JobRecord { steps: vec![step], ..JobRecord::default() }, "1024 bytes"),
            (JobRecord { steps: vec![StepRecord::default(); STEPS_MAX + 1], ..JobRecord::default() }, "1025 steps"),
            (JobRecord { cpus: Some("1,".repeat(4096)), ..JobRecord::default() }, "4096 bytes"),
        ] {
            let error = wrong.clone().bound().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
