//! An experiment as its file says it, checked: every mistake named with file, line and the nearest valid word.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Document, unknown};

/// Repetitions, warm-up rounds and runs without a monitor in a round, at most.
const COUNT_MAX: usize = 10_000;
/// What no monitor may be called, because every round has runs without any.
pub const NONE: &str = "none";

/// What can be named in a file: workloads; monitors with their configurations.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Workloads that `wholegrain-bench workload run` takes.
    pub workloads: Vec<&'static str>,
    /// Monitors that `wholegrain-bench monitor run` takes, each with its configurations, the usual one first.
    pub monitors: BTreeMap<&'static str, Vec<&'static str>>,
}

impl Known {
    /// What this program has.
    pub fn here() -> Self {
        let monitors = crate::monitors::all();
        let monitors = monitors.iter().map(|monitor| (monitor.name(), monitor.configurations().to_vec()));
        Self { workloads: crate::workloads::NAMES.to_vec(), monitors: monitors.collect() }
    }
}

/// An experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// What it is called in its results.
    pub name: String,
    /// What all orders are drawn from; `None` to draw one and record it.
    pub seed: Option<u64>,
    /// Rounds that count.
    pub repetitions: usize,
    /// Rounds before them that do not.
    pub warm_up: usize,
    /// Runs of each workload without a monitor in each round: all ratios hang on them.
    pub none_per_round: usize,
    /// Between two runs; the machine's load is looked at meanwhile.
    pub pause: Interval,
    /// Programs whose time is taken.
    pub workloads: Vec<Workload>,
    /// What runs beside them.
    pub monitors: Vec<MonitorUse>,
    /// How both are started.
    pub launcher: Launcher,
    /// How long anything may take.
    pub limits: Limits,
    /// When the machine is called quiet.
    pub quiet: Quiet,
}

/// Who takes the time of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimedBy {
    /// The program: it prints a line of JSON, a [`crate::workloads::Outcome`].
    Program,
    /// Whoever starts it: from its start to its end, which must be exit code 0.
    #[default]
    Runner,
}

/// A program whose time is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// A workload's name, or any name when there is a command.
    pub name: String,
    /// As the workload understands it.
    pub size: String,
    /// Processes.
    pub ranks: usize,
    /// Nodes it runs on, the first of the launcher's; `None` for all.
    pub hosts: Option<usize>,
    /// A program of the user's own.
    pub command: Option<Vec<String>>,
    /// Who takes a command's time.
    pub timed_by: TimedBy,
    /// Parts of it whose times it tells as figures (`hpl_s` for `hpl`); each is shown as a workload of its own besides.
    pub parts: Vec<String>,
    /// About how long it takes, for `plan`; what was measured counts more.
    pub expect: Interval,
}

/// A monitor in some configurations at some periods.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorUse {
    /// A monitor's name, or any name when there is a command.
    pub name: String,
    /// Its configurations.
    pub configurations: Vec<String>,
    /// Sampling periods.
    pub intervals: Vec<Interval>,
    /// Only beside these workloads; all when empty.
    pub workloads: Vec<String>,
    /// A program of the user's own that prints the two lines of `wholegrain-bench monitor run`.
    pub command: Option<Vec<String>>,
}

/// How processes come to the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// On this machine alone.
    #[default]
    Local,
    /// By Open MPI's mpirun on listed hosts.
    Mpirun,
    /// Within an allocation of Slurm, on all of its nodes.
    Slurm,
}

/// See [`Kind`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Launcher {
    /// Which of them.
    pub kind: Kind,
    /// The hosts of mpirun.
    pub hosts: Vec<String>,
    /// What a workload's ranks are started with, in place of the kind's own words.
    pub workload: Option<String>,
    /// What a monitor's part on one host is started with, in place of the kind's own words.
    pub monitor: Option<String>,
}

/// How long anything may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// A workload's run.
    pub run: Interval,
    /// From a monitor's start until it samples on every node.
    pub ready: Interval,
    /// From the word to stop until it is gone.
    pub stop: Interval,
    /// So many failures in a row, and a monitor's setting or a workload is given up and its remaining runs left out.
    pub failures: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let (run, ready, stop) = (Interval::from_s(900), Interval::from_s(60), Interval::from_s(30));
        Self { run, ready, stop, failures: 3 }
    }
}

/// When the machine is called quiet.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quiet {
    /// Other processes' CPU, percent of one core, above which a run is marked and a warning printed.
    pub warn: f64,
    /// How long it is waited for quiet before a run is made all the same.
    pub wait: Interval,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { warn: 5.0, wait: Interval::from_ns(0) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: Spanned<String>,
    seed: Option<u64>,
    repetitions: Spanned<usize>,
    #[serde(default = "one_round")]
    warm_up: usize,
    #[serde(default = "one")]
    none_per_round: Spanned<usize>,
    #[serde(default)]
    intervals: Vec<Spanned<Interval>>,
    #[serde(default = "pause")]
    pause: Interval,
    #[serde(default)]
    workload: Vec<Spanned<RawWorkload>>,
    #[serde(default)]
    monitor: Vec<Spanned<RawMonitor>>,
    #[serde(default)]
    launcher: RawLauncher,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    quiet: Quiet,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkload {
    name: Spanned<String>,
    #[serde(default)]
    size: String,
    #[serde(default = "one")]
    ranks: Spanned<usize>,
    hosts: Option<Spanned<usize>>,
    command: Option<Spanned<Vec<String>>>,
    timed_by: Option<Spanned<TimedBy>>,
    #[serde(default)]
    parts: Vec<Spanned<String>>,
    #[serde(default = "expect")]
    expect: Interval,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMonitor {
    name: Spanned<String>,
    #[serde(default)]
    configurations: Vec<Spanned<String>>,
    #[serde(default)]
    intervals: Vec<Spanned<Interval>>,
    #[serde(default)]
    workloads: Vec<Spanned<String>>,
    command: Option<Spanned<Vec<String>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawLauncher {
    kind: Kind,
    hosts: Option<Vec<String>>,
    hostfile: Option<PathBuf>,
    workload: Option<String>,
    monitor: Option<String>,
}

fn one_round() -> usize {
    1
}

fn one() -> Spanned<usize> {
    Spanned::new(0..0, 1)
}

fn pause() -> Interval {
    Interval::from_ms(300)
}

fn expect() -> Interval {
    Interval::from_s(5)
}

impl Experiment {
    /// Reads and checks a file's text. Paths in it are below the file's folder.
    pub fn parse(file: &Path, text: &str, known: &Known) -> Result<Self, ConfigError> {
        let document = Document::new(&file.to_string_lossy(), text);
        let raw: Raw = document.parse()?;
        let check = Check { document: &document, known };
        let name = raw.name.get_ref();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return check.refuse(&raw.name, format!("name = {name:?}: letters, digits, `-`, `_` and `.` make a name"));
        }
        for (key, count) in [("repetitions", &raw.repetitions), ("none_per_round", &raw.none_per_round)] {
            if !(1..=COUNT_MAX).contains(count.get_ref()) {
                return check.refuse(count, format!("{key} is from 1 to {COUNT_MAX}"));
            }
        }
        let workloads: Vec<Workload> =
            raw.workload.into_iter().map(|workload| check.workload(workload)).collect::<Result<_, _>>()?;
        if workloads.is_empty() {
            return check.refuse(&raw.name, "nothing to run: name at least one [[workload]]".to_owned());
        }
        let monitors: Vec<MonitorUse> = raw
            .monitor
            .into_iter()
            .map(|monitor| check.monitor(monitor, &raw.intervals, &workloads))
            .collect::<Result<_, _>>()?;
        let launcher = check.launcher(raw.launcher, file)?;
        let quiet_section = document.root().child("quiet");
        if raw.quiet.warn.is_nan() || raw.quiet.warn <= 0.0 {
            return Err(quiet_section.error("warn", "warn is a share of one core in percent, above 0"));
        }
        let limits = document.root().child("limits");
        for (key, limit) in [("run", raw.limits.run), ("ready", raw.limits.ready), ("stop", raw.limits.stop)] {
            if limit.ns() == 0 {
                return Err(limits.error(key, format!("{key} is how long it may take at most; it must not be 0")));
            }
        }
        if raw.limits.failures == 0 {
            return Err(limits.error("failures", "failures is from 1: how many in a row until a setting is given up"));
        }
        check.once(&workloads, &monitors)?;
        Ok(Self {
            name: raw.name.into_inner(),
            seed: raw.seed,
            repetitions: raw.repetitions.into_inner(),
            warm_up: raw.warm_up.min(COUNT_MAX),
            none_per_round: raw.none_per_round.into_inner(),
            pause: raw.pause,
            workloads,
            monitors,
            launcher,
            limits: raw.limits,
            quiet: raw.quiet,
        })
    }
}

struct Check<'a> {
    document: &'a Document,
    known: &'a Known,
}

impl Check<'_> {
    fn refuse<T, R>(&self, at: &Spanned<T>, message: String) -> Result<R, ConfigError> {
        Err(self.document.error(at.span().start, message))
    }

    fn workload(&self, raw: Spanned<RawWorkload>) -> Result<Workload, ConfigError> {
        let place = Spanned::new(raw.span(), ());
        let raw = raw.into_inner();
        let name = raw.name.get_ref();
        match &raw.command {
            None if !self.known.workloads.contains(&name.as_str()) => {
                let message = unknown("workload", name, &self.known.workloads);
                return self.refuse(&raw.name, format!("{message} A program of your own has a `command`."));
            }
            Some(command) if command.get_ref().is_empty() => {
                return self
                    .refuse(command, "a command is a program and its arguments: [\"./app\", \"{ranks}\"]".into());
            }
            _ => {}
        }
        if let (None, Some(timed_by)) = (&raw.command, &raw.timed_by) {
            return self.refuse(timed_by, format!("timed_by is for a `command`; {name} takes its own time"));
        }
        if *raw.ranks.get_ref() == 0 {
            return self.refuse(&raw.ranks, "ranks is at least 1".into());
        }
        if let Some(hosts) = raw.hosts.as_ref().filter(|hosts| *hosts.get_ref() == 0) {
            return self.refuse(hosts, "hosts is at least 1, or left out for all".into());
        }
        if raw.command.is_none() && raw.size.is_empty() {
            return self.refuse(&place, format!("{name} needs a size, such as size = \"W\""));
        }
        if let Some(part) = raw.parts.iter().find(|part| part.get_ref() == name) {
            return self.refuse(part, format!("{name} cannot be a part of itself"));
        }
        Ok(Workload {
            parts: raw.parts.into_iter().map(Spanned::into_inner).collect(),
            name: raw.name.into_inner(),
            size: raw.size,
            ranks: raw.ranks.into_inner(),
            hosts: raw.hosts.map(Spanned::into_inner),
            command: raw.command.map(Spanned::into_inner),
            timed_by: raw.timed_by.map(Spanned::into_inner).unwrap_or_default(),
            expect: raw.expect,
        })
    }

    fn monitor(
        &self,
        raw: Spanned<RawMonitor>,
        usual: &[Spanned<Interval>],
        workloads: &[Workload],
    ) -> Result<MonitorUse, ConfigError> {
        let raw = raw.into_inner();
        let name = raw.name.get_ref();
        if name == NONE {
            return self.refuse(&raw.name, "runs without a monitor are in every round by themselves".into());
        }
        let mut configurations: Vec<String> = raw.configurations.iter().map(|c| c.get_ref().clone()).collect();
        match (self.known.monitors.get(name.as_str()), &raw.command) {
            (_, Some(command)) if command.get_ref().is_empty() => {
                return self.refuse(command, "a command is a program and its arguments".into());
            }
            (_, Some(_)) if configurations.is_empty() => configurations.push("own".to_owned()),
            (_, Some(_)) => {}
            (None, None) => {
                let names: Vec<&str> = self.known.monitors.keys().copied().collect();
                return self.refuse(&raw.name, unknown("monitor", name, &names));
            }
            (Some(known), None) => {
                if let Some(wrong) = raw.configurations.iter().find(|c| !known.contains(&c.get_ref().as_str())) {
                    return self.refuse(wrong, unknown(&format!("configuration of {name}"), wrong.get_ref(), known));
                }
                if configurations.is_empty() {
                    configurations.extend(known.first().map(|first| (*first).to_owned()));
                }
            }
        }
        let intervals = if raw.intervals.is_empty() { usual } else { &raw.intervals };
        if intervals.is_empty() {
            return self.refuse(&raw.name, format!("{name} has no intervals, and the file has none for all"));
        }
        if let Some(wrong) = intervals.iter().find(|interval| interval.get_ref().ns() == 0) {
            return self.refuse(wrong, "a sampling period is longer than 0".into());
        }
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        if let Some(wrong) = raw.workloads.iter().find(|w| !names.contains(&w.get_ref().as_str())) {
            return self.refuse(wrong, unknown("workload of this file", wrong.get_ref(), &names));
        }
        Ok(MonitorUse {
            configurations,
            intervals: intervals.iter().map(|interval| *interval.get_ref()).collect(),
            workloads: raw.workloads.into_iter().map(Spanned::into_inner).collect(),
            command: raw.command.map(Spanned::into_inner),
            name: raw.name.into_inner(),
        })
    }

    fn launcher(&self, raw: RawLauncher, file: &Path) -> Result<Launcher, ConfigError> {
        let section = self.document.root().child("launcher");
        let hosts = match (raw.kind, raw.hosts, raw.hostfile) {
            (Kind::Mpirun, Some(hosts), None) => hosts,
            (Kind::Mpirun, None, Some(hostfile)) => {
                let path = file.parent().unwrap_or(Path::new("")).join(hostfile);
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| section.error("hostfile", format!("cannot read {}: {error}", path.display())))?;
                let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
                lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
            }
            (Kind::Mpirun, _, _) => {
                return Err(section.error("kind", "mpirun needs either `hosts = [\"n1\", \"n2\"]` or `hostfile`"));
            }
            (_, None, None) => Vec::new(),
            _ => return Err(section.error("hosts", "hosts and hostfile are for kind = \"mpirun\"")),
        };
        if raw.kind == Kind::Mpirun && hosts.is_empty() {
            return Err(section.error("hosts", "no host is named"));
        }
        Ok(Launcher { kind: raw.kind, hosts, workload: raw.workload, monitor: raw.monitor })
    }

    /// Nothing is named twice: its runs would be taken for repetitions of each other.
    fn once(&self, workloads: &[Workload], monitors: &[MonitorUse]) -> Result<(), ConfigError> {
        for (at, workload) in workloads.iter().enumerate() {
            let same = |other: &&Workload| {
                (&other.name, &other.size, other.ranks, other.hosts)
                    == (&workload.name, &workload.size, workload.ranks, workload.hosts)
            };
            if workloads[..at].iter().any(|other| same(&other)) {
                let message = format!("{} of this size, with these ranks and hosts, is named twice", workload.name);
                return Err(self.document.root().error("workload", message));
            }
        }
        // A part is shown as a workload of that name: what is one by itself would be taken for repetitions of it.
        for workload in workloads {
            for (at, part) in workload.parts.iter().enumerate() {
                let taken = workloads.iter().any(|other| {
                    other.name == *part
                        || (!std::ptr::eq(other, workload)
                            && (&other.size, other.ranks) == (&workload.size, workload.ranks)
                            && other.parts.contains(part))
                });
                if taken || workload.parts[..at].contains(part) {
                    let message = format!("{part} of {} is named twice, as a part or a workload", workload.name);
                    return Err(self.document.root().error("workload", message));
                }
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for monitor in monitors {
            for configuration in &monitor.configurations {
                for interval in &monitor.intervals {
                    let all =
                        workloads.iter().map(|workload| &workload.name).collect::<std::collections::BTreeSet<_>>();
                    let places = if monitor.workloads.is_empty() { all } else { monitor.workloads.iter().collect() };
                    for place in places {
                        if !seen.insert((&monitor.name, configuration, interval.ns(), place)) {
                            let message = format!("{} {configuration} at {interval} is named twice", monitor.name);
                            return Err(self.document.root().error("monitor", message));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
