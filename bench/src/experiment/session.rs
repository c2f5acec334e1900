//! Makes the runs that are not made yet, one after the other, and keeps each as soon as it is finished.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::children::{Children, sweep};
use super::file::{Experiment, Known};
use super::launcher::Site;
use super::machine::{self, Load};
use super::one_run::{Run, Stopped};
use super::plan::{MONITOR_S, Plan, Planned, offers};
use super::records::{Folder, Identity, Journal, Part, Record, now_ns};
use super::summary::{SummaryOutput, summarize};

/// This project's programs that an experiment may start.
const PROGRAMS: [&str; 3] = ["wholegrain-bench", "wholegrain", "wholegrain-agent"];
/// Seeds that are drawn are below it, so that every reader of JSON and TOML keeps them whole.
const SEED_END: u64 = 1 << 53;
/// The shortest time over which the machine's load is looked at.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// Bytes read at a time of a program's file.
const CHUNK_BYTES: usize = 1 << 20;

/// How the runs came to an end.
pub enum End {
    /// All are made, some perhaps failed.
    Complete,
    /// A signal came between.
    Stopped(i32),
}

/// When what is in the folder is moved aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// It is gone on with, or refused.
    Never,
    /// Where it would be refused.
    WhenChanged,
    /// In any case.
    Always,
}

/// What was asked for.
pub struct SessionOptions<'a> {
    /// The experiment's file.
    pub file: &'a Path,
    /// The folder of its results.
    pub dir: &'a Path,
    /// Whether to start again.
    pub fresh: Fresh,
    /// Make those again that failed.
    pub retry_failed: bool,
}

/// An experiment with its folder, ready to go on.
pub struct Session {
    experiment: Experiment,
    site: Site,
    plan: Plan,
    folder: Folder,
    identity: Identity,
    journal: Journal,
    /// From which record on failures in a row are counted.
    failures_from: usize,
    /// Held while this lives: two at a time would disturb each other.
    _lock: File,
}

/// Reads an experiment's file.
pub fn read(file: &Path) -> anyhow::Result<(Experiment, String)> {
    let text = fs::read_to_string(file).with_context(|| format!("reading the experiment {}", file.display()))?;
    Ok((Experiment::parse(file, &text, &Known::here())?, text))
}

/// Makes all runs that are not made yet.
pub fn run(options: &SessionOptions) -> anyhow::Result<End> {
    let mut session = Session::open(options)?;
    let mut children = Children::new(&session.identity.mark)?;
    let left = sweep(&session.identity.mark);
    if !left.is_empty() {
        eprintln!("ended what an earlier start had left running: {}", left.join(", "));
    }
    session.build_workloads()?;
    let end = session.all(&mut children, options.retry_failed);
    drop(children);
    // The runs that were made are summarised, whatever ended the others.
    let output = if matches!(end, Ok(End::Complete)) { SummaryOutput::Table } else { SummaryOutput::Nothing };
    let summarized = summarize(&session.folder.path(""), output);
    let end = end?;
    summarized.map(|()| end)
}

impl Session {
    fn open(options: &SessionOptions) -> anyhow::Result<Self> {
        let (experiment, text) = read(options.file)?;
        let site = Site::new(&experiment.launcher)?;
        let dir = std::path::absolute(options.dir)?;
        let folder = Folder::new(&dir);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let mut held = lock(&folder)?;
        if options.fresh == Fresh::Always && folder.begun()?.is_some() {
            held = start_again(&folder, held)?;
        }
        let begun = folder.begun()?;
        let seed = match (experiment.seed, &begun) {
            (Some(seed), _) => seed,
            (None, Some((_, identity))) => identity.seed,
            (None, None) => draw_seed()?,
        };
        let offers = offers(&experiment);
        let plan = Plan::new(&experiment, seed, &offers, site.hosts())?;
        let versions = offers.iter().map(|(name, offer)| {
            let version = offer.version.as_ref().map_or("not here".to_owned(), Clone::clone);
            (name.clone(), version)
        });
        let divided = experiment.workloads.iter().filter(|workload| !workload.parts.is_empty());
        let parts = divided.map(|workload| (workload.name.clone(), workload.parts.clone()));
        let mut identity = Identity::new(seed, programs()?, versions.collect(), site.hosts(), &plan, parts.collect());
        match begun {
            None => {
                folder.write("machine.json", &serde_json::to_vec_pretty(&machine::description(site.hosts()))?)?;
                folder.begin(&text, &identity)?;
            }
            Some((old_text, old)) => {
                let differs = if old_text == text {
                    old.differs(&identity)
                } else {
                    Some(format!(
                        "{} is not the file it was begun with, {}",
                        options.file.display(),
                        folder.path("experiment.toml").display()
                    ))
                };
                if let Some(what) = differs {
                    if options.fresh == Fresh::WhenChanged {
                        eprintln!("{} holds runs of another experiment: {what}", dir.display());
                        drop(start_again(&folder, held)?);
                        return Self::open(&SessionOptions { fresh: Fresh::Never, ..*options });
                    }
                    bail!(
                        "{} holds runs of another experiment: {what}. Runs of both in one table would be compared as if they \
                         were alike. Name another --dir, or say --fresh, which moves the old one aside",
                        dir.display()
                    );
                }
                identity = old;
            }
        }
        let journal = Journal::open(&folder)?;
        for record in &journal.records {
            let planned = plan.runs.get(record.run).filter(|p| plan.conditions[p.condition] == record.condition);
            ensure!(
                planned.is_some(),
                "run {} of {} is not in the plan of its seed: --fresh starts again",
                record.run,
                dir.display()
            );
        }
        let failures_from = if options.retry_failed { journal.records.len() } else { 0 };
        Ok(Self { experiment, site, plan, folder, identity, journal, failures_from, _lock: held })
    }

    /// Compiles the workloads of this project once, so that no run waits for a compiler.
    fn build_workloads(&self) -> anyhow::Result<()> {
        if self.experiment.workloads.iter().all(|workload| workload.command.is_some()) {
            return Ok(());
        }
        let program = std::env::current_exe().context("the path of this program")?;
        let status = Command::new(program)
            .args(["workload", "build", "--dir"])
            .arg(self.programs_dir())
            .stdout(std::process::Stdio::null())
            .status()
            .context("starting `wholegrain-bench workload build`")?;
        ensure!(status.success(), "the workloads cannot be built ({status}): what they lack is said above");
        Ok(())
    }

    fn programs_dir(&self) -> PathBuf {
        self.folder.path("programs")
    }

    fn all(&mut self, children: &mut Children, retry_failed: bool) -> anyhow::Result<End> {
        let done: BTreeSet<usize> = self.journal.records.iter().map(|record| record.run).collect();
        let mut todo: Vec<(Planned, usize)> =
            self.plan.runs.iter().filter(|p| !done.contains(&p.run)).map(|p| (*p, 0)).collect();
        if retry_failed {
            todo.extend(self.failed());
        }
        let total = self.plan.runs.len();
        if todo.is_empty() {
            eprintln!("{}: all of its {total} runs are made; --fresh repeats them", self.experiment.name);
            return Ok(End::Complete);
        }
        eprintln!(
            "{}: seed {}, {} runs of {total} to be made, about {}",
            self.experiment.name,
            self.identity.seed,
            todo.len(),
            minutes(estimate(&self.experiment, &self.plan, &self.journal.records, todo.iter().map(|(p, _)| *p)))
        );
        for place in 0..todo.len() {
            let (planned, attempt) = todo[place];
            if let Some(why) = self.given_up(planned) {
                eprintln!("  {} left out: {why}", self.plan.conditions[planned.condition]);
                continue;
            }
            let Some(record) = self.one(planned, attempt, children)? else {
                let signal = children.stopped().unwrap_or(libc::SIGTERM);
                return Ok(End::Stopped(signal));
            };
            let left = estimate(
                &self.experiment,
                &self.plan,
                &self.journal.records,
                todo[place + 1..].iter().map(|(p, _)| *p),
            );
            self.tell(&record, total, left);
            self.journal.append(record)?;
        }
        Ok(End::Complete)
    }

    /// Runs whose last attempt failed, with the number of the next one.
    fn failed(&self) -> Vec<(Planned, usize)> {
        let last = |planned: &&Planned| self.journal.records.iter().rev().find(|record| record.run == planned.run);
        let failed = self.plan.runs.iter().filter_map(|planned| Some((planned, last(&planned)?)));
        failed.filter(|(_, record)| record.failure.is_some()).map(|(p, record)| (*p, record.attempt + 1)).collect()
    }

    /// Why a run is not worth its time: its monitor's setting, or its workload, has only failed lately.
    fn given_up(&self, planned: Planned) -> Option<String> {
        let condition = &self.plan.conditions[planned.condition];
        let records = &self.journal.records[self.failures_from..];
        let limit = self.experiment.limits.failures;
        let in_a_row = |part: Part, same: &dyn Fn(&Record) -> bool| {
            let of_these = records.iter().rev().filter(|record| same(record));
            let failed = of_these.map_while(|record| record.failure.as_ref().filter(|failure| failure.part == part));
            let reasons: Vec<&str> = failed.map(|failure| failure.reason.as_str()).collect();
            (reasons.len() >= limit).then(|| format!("failed {} times in a row, last: {}", reasons.len(), reasons[0]))
        };
        let of_monitor = || in_a_row(Part::Monitor, &|record| record.condition.setting() == condition.setting());
        let of_workload = in_a_row(Part::Workload, &|record| record.condition.load() == condition.load());
        of_workload.or_else(|| (!condition.is_without()).then(of_monitor).flatten())
    }

    /// One run; `None` when this program was told to end meanwhile.
    fn one(&mut self, planned: Planned, attempt: usize, children: &mut Children) -> anyhow::Result<Option<Record>> {
        let condition = self.plan.conditions[planned.condition].clone();
        let Some(others_percent) = self.wait_for_quiet(children) else { return Ok(None) };
        let name = format!("run-{:06}.{attempt}", planned.run);
        let (work, logs) = (self.folder.path("work").join(&name), self.folder.path("logs"));
        let _ = fs::remove_dir_all(&work);
        for dir in [&work, &logs] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let logs = logs.join(&name);
        clear_logs(&logs);
        let (started_ns, begun) = (now_ns(), Instant::now());
        let workload = self.experiment.workloads.iter().find(|workload| {
            let hosts = workload.hosts.unwrap_or(self.site.hosts());
            (workload.name.as_str(), workload.size.as_str(), workload.ranks, hosts) == condition.load()
        });
        let programs_dir = self.programs_dir();
        let run = Run {
            experiment: &self.experiment,
            site: &self.site,
            children,
            condition: &condition,
            workload: workload.context("the plan names a workload that the file does not")?,
            monitor_dir: &work,
            programs_dir: &programs_dir,
            logs: &logs,
        };
        let mut result = match run.make() {
            Ok(result) => result,
            Err(Stopped) => {
                let _ = fs::remove_dir_all(&work);
                return Ok(None);
            }
        };
        if result.failure.is_none() {
            let _ = fs::remove_dir_all(&work);
            clear_logs(&logs);
        }
        // The files that a setting was started with are long and always the same: kept once.
        let known = |record: &Record| record.seen.is_some() && record.condition.setting() == condition.setting();
        if let Some(seen) = result.seen.as_mut().filter(|_| self.journal.records.iter().any(known)) {
            seen.configured = None;
        }
        Ok(Some(Record {
            run: planned.run,
            attempt,
            round: planned.round,
            warm_up: planned.warm_up,
            condition,
            started_ns,
            wall_s: begun.elapsed().as_secs_f64(),
            others_percent,
            outcome: result.outcome,
            failure: result.failure,
            seen: result.seen,
            usage: result.usage,
        }))
    }

    /// Looks at what others use of the machine during the pause before a run, and longer where the file says so; `None` when this
    /// program was told to end meanwhile.
    fn wait_for_quiet(&self, children: &mut Children) -> Option<f64> {
        let (quiet, begun) = (self.experiment.quiet, Instant::now());
        loop {
            let before = Load::now();
            children.pause(self.experiment.pause.duration().max(LOOK_MIN));
            if children.stopped().is_some() {
                return None;
            }
            let percent = Load::now().percent_since(&before);
            if percent <= quiet.warn || begun.elapsed() >= quiet.wait.duration() {
                return Some(percent);
            }
        }
    }

    fn tell(&self, record: &Record, total: usize, left_s: f64) {
        let result = match (&record.failure, record.seconds()) {
            (Some(failure), _) => format!("FAILED: {:?}: {}", failure.part, failure.reason),
            (None, Some(seconds)) => format!("{seconds:.3} s"),
            (None, None) => "no time".to_owned(),
        };
        let round = if record.warm_up {
            "warm-up".to_owned()
        } else {
            format!("round {}", record.round + 1 - self.experiment.warm_up)
        };
        let (number, left, others) = (record.run + 1, minutes(left_s), record.others_percent);
        let disturbed = others > self.experiment.quiet.warn;
        let noise = if disturbed { format!("; others used {others:.0} % of a core before it") } else { String::new() };
        eprintln!("  {number}/{total}  {round}  {}  {result}  ({left} left{noise})", record.condition);
    }
}

/// About how long runs take, s: as long as those of the same kind did, or as the file expects.
pub fn estimate(experiment: &Experiment, plan: &Plan, records: &[Record], runs: impl Iterator<Item = Planned>) -> f64 {
    let guess = |index: usize| {
        let condition = &plan.conditions[index];
        let mean = |took: Vec<f64>| (!took.is_empty()).then(|| took.iter().sum::<f64>() / took.len() as f64);
        let of = |same: &dyn Fn(&Record) -> bool| mean(records.iter().filter(|r| same(r)).map(|r| r.wall_s).collect());
        let expected = experiment.workloads.iter().find(|w| w.name == condition.workload && w.size == condition.size);
        let expected = expected.map_or(0.0, |workload| workload.expect.seconds());
        of(&|record| record.condition == *condition)
            .or_else(|| of(&|record| record.condition.load() == condition.load()))
            .unwrap_or(expected + if condition.is_without() { 0.0 } else { MONITOR_S })
    };
    let each: Vec<f64> = (0..plan.conditions.len()).map(guess).collect();
    let pause = experiment.pause.duration().max(LOOK_MIN).as_secs_f64();
    // `sum` makes -0 of nothing.
    runs.fold(0.0, |sum, planned| sum + each[planned.condition] + pause)
}

/// A length of time for people.
pub fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A seed from the kernel.
pub fn draw_seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("drawing a seed")?;
    Ok(u64::from_le_bytes(bytes) % SEED_END)
}

/// Holds the folder against a second start.
fn lock(folder: &Folder) -> anyhow::Result<File> {
    let path = folder.path("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    // SAFETY: flock takes two numbers; the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let error = std::io::Error::last_os_error();
    ensure!(
        error.kind() != std::io::ErrorKind::WouldBlock,
        "another start of this experiment is at work in this folder ({})",
        path.display()
    );
    Err(error).with_context(|| format!("locking {}", path.display()))
}

/// Moves what is in a held folder aside and holds a new one.
fn start_again(folder: &Folder, held: File) -> anyhow::Result<File> {
    let aside = folder.move_aside()?;
    drop(held);
    let dir = folder.path("");
    if let Some(aside) = aside {
        eprintln!("moved {} to {}", dir.display(), aside.display());
    }
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    lock(folder)
}

/// This project's programs beside this one, each with a hash of its file: a run by another build is another experiment.
fn programs() -> anyhow::Result<Vec<(String, String)>> {
    let own = std::env::current_exe().context("the path of this program")?;
    let mut found = Vec::new();
    for name in PROGRAMS {
        let path = if name == PROGRAMS[0] { own.clone() } else { own.with_file_name(name) };
        if let Ok(file) = File::open(&path) {
            found.push((name.to_owned(), hash(file).with_context(|| format!("reading {}", path.display()))?));
        }
    }
    Ok(found)
}

fn hash(mut file: File) -> std::io::Result<String> {
    let (mut hasher, mut chunk) = (std::hash::DefaultHasher::new(), vec![0; CHUNK_BYTES]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(format!("{:016x}", hasher.finish())),
            read => hasher.write(&chunk[..read]),
        }
    }
}

/// Removes the logs of one run, which are of its parts: `<run>-workload`, `<run>-monitor` and one of each node.
fn clear_logs(logs: &Path) {
    let (Some(folder), Some(run)) = (logs.parent(), logs.file_name()) else { return };
    let of_run = format!("{}-", run.to_string_lossy());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&of_run) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
