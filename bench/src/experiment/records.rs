//! What was run, kept as it happens: a line of JSON for each finished run, on disk before the next one begins.
//!
//! A line is appended with one write and synchronised; a crash can only tear the last one, which is cut off when the file is
//! opened again. Its run is then made once more.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::plan::{Condition, LeftOut, Plan};
use crate::workloads::Outcome;

/// The version of these files' form.
const FORMAT: u32 = 1;

/// Which part of a run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The monitor did not start, ended too early, or did not stop in order.
    Monitor,
    /// The workload did not start, did not end well or in time, or its result was wrong.
    Workload,
}

/// Why a run has no place among the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which part.
    pub part: Part,
    /// Why, in a line.
    pub reason: String,
}

/// What a monitor said when it sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorReport {
    /// Its version.
    pub version: String,
    /// Values at each period on a node; the mean over the nodes.
    pub metrics: u64,
    /// Files and arguments, of the first node, in the first run of each setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<String>,
}

/// What a monitor used: means over the nodes, and the server's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU of its processes on a node, ns.
    pub node_cpu_ns: u64,
    /// CPU of its server's part, ns.
    pub server_cpu_ns: u64,
    /// From being ready to the word to stop, ns.
    pub window_ns: u64,
    /// Resident memory on a node, kB.
    pub rss_kb: u64,
    /// Proportional memory on a node, kB.
    pub pss_kb: u64,
    /// Samples of all nodes, where told.
    pub samples: Option<u64>,
    /// Ticks missed on all nodes, where told.
    pub missed: Option<u64>,
}

/// A finished run, good or failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its position in the order.
    pub run: usize,
    /// How often it had been made before: above 0 only when asked for by `--retry-failed`.
    pub attempt: usize,
    /// Its round.
    pub round: usize,
    /// Whether it does not count.
    pub warm_up: bool,
    /// What was measured.
    pub condition: Condition,
    /// When it was begun, ns since 1970.
    pub started_ns: i64,
    /// How long it took with all about it, s.
    pub wall_s: f64,
    /// Other processes' CPU just before it, percent of one core.
    pub others_percent: f64,
    /// What the workload said, good or not verified.
    pub outcome: Option<Outcome>,
    /// Why it does not count.
    pub failure: Option<Failure>,
    /// What the monitor said.
    pub seen: Option<MonitorReport>,
    /// What the monitor used.
    pub usage: Option<Usage>,
}

impl Record {
    /// The time of a run that counts.
    pub fn seconds(&self) -> Option<f64> {
        let outcome = self.outcome.as_ref().filter(|outcome| self.failure.is_none() && outcome.verified)?;
        Some(outcome.seconds)
    }
}

/// What all runs of a folder have in common; a run by anything else has no place in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// See [`FORMAT`].
    format: u32,
    /// What orders are drawn from.
    pub seed: u64,
    /// The programs of this project, each with a hash of its file.
    pub programs: Vec<(String, String)>,
    /// The monitors with their versions, or that they are not here.
    pub monitors: Vec<(String, String)>,
    /// Nodes.
    pub hosts: usize,
    /// What is not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// What is measured, in the order of the file.
    pub conditions: Vec<Condition>,
    /// How many runs that makes.
    pub runs: usize,
    /// Workloads that tell times of their parts, with those.
    pub parts: Vec<(String, Vec<String>)>,
    /// Marks the processes of this folder's runs.
    pub mark: String,
}

impl Identity {
    /// Of a new folder.
    pub fn new(
        seed: u64,
        programs: Vec<(String, String)>,
        monitors: Vec<(String, String)>,
        hosts: usize,
        plan: &Plan,
        parts: Vec<(String, Vec<String>)>,
    ) -> Self {
        let (conditions, left_out, runs) = (plan.conditions.clone(), plan.left_out.clone(), plan.runs.len());
        let mark = format!("{seed:x}-{:x}-{:x}", std::process::id(), now_ns());
        Self { format: FORMAT, seed, programs, monitors, hosts, left_out, conditions, runs, parts, mark }
    }

    /// What differs from those that another run would be made with; `None` when nothing does.
    pub fn differs(&self, other: &Identity) -> Option<String> {
        if self.format != other.format {
            return Some(format!("its files have form {}, this program writes {}", self.format, other.format));
        }
        if self.seed != other.seed {
            return Some(format!("its seed is {}, not {}", self.seed, other.seed));
        }
        for (kind, old, new) in
            [("program", &self.programs, &other.programs), ("monitor", &self.monitors, &other.monitors)]
        {
            let of = |list: &[(String, String)], name: &str| {
                list.iter().find(|(n, _)| n == name).map_or("none".to_owned(), |(_, version)| version.clone())
            };
            let names = old.iter().chain(new).map(|(name, _)| name);
            if let Some(name) = names.into_iter().find(|name| of(old, name) != of(new, name)) {
                return Some(format!("its {kind} {name} was {}, and is now {}", of(old, name), of(new, name)));
            }
        }
        (self.hosts != other.hosts)
            .then(|| format!("it was made on {} hosts, and there are {} now", self.hosts, other.hosts))
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// A folder of results.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: PathBuf,
}

impl Folder {
    /// At this path, which need not exist yet.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a file so that it is either as it was or as it is to be, whatever happens.
    pub fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let (path, temporary) = (self.path(name), self.path(&format!(".{name}.new")));
        let written = (|| {
            let mut file = File::create(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.dir)?.sync_all()
        })();
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// The experiment's text and identity; `None` where no experiment was begun.
    pub fn begun(&self) -> anyhow::Result<Option<(String, Identity)>> {
        let path = self.path("state.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let identity =
            serde_json::from_slice(&text).with_context(|| format!("{} is not as written", path.display()))?;
        let file = self.path("experiment.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(Some((text, identity)))
    }

    /// Begins an experiment: its text first, so that an identity always has one.
    pub fn begin(&self, text: &str, identity: &Identity) -> anyhow::Result<()> {
        self.write("experiment.toml", text.as_bytes())?;
        self.write("state.json", &serde_json::to_vec_pretty(identity)?)
    }

    /// The finished runs without a torn last line, and how many bytes of the file they are.
    pub fn read(&self) -> anyhow::Result<(Vec<Record>, usize)> {
        let path = self.path("runs.jsonl");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut records = Vec::new();
        for (number, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let record = serde_json::from_slice(line).with_context(|| {
                format!(
                    "{}:{}: not a run: another program changed the file; `--fresh` starts again",
                    path.display(),
                    number + 1
                )
            })?;
            records.push(record);
        }
        Ok((records, whole))
    }

    /// Moves everything to a name of its own beside it; that name, if there was anything.
    pub fn move_aside(&self) -> anyhow::Result<Option<PathBuf>> {
        if !self.dir.exists() {
            return Ok(None);
        }
        let name =
            self.dir.file_name().context("the folder of an experiment has a name")?.to_string_lossy().into_owned();
        let free = (1..10_000).map(|number| self.dir.with_file_name(format!("{name}.old-{number}")));
        let Some(aside) = free.into_iter().find(|path| !path.exists()) else {
            bail!("{} has been moved aside too often: remove some of its old ones", self.dir.display())
        };
        fs::rename(&self.dir, &aside)
            .with_context(|| format!("moving {} to {}", self.dir.display(), aside.display()))?;
        Ok(Some(aside))
    }
}

/// The list of finished runs, open for more.
pub struct Journal {
    file: File,
    end: u64,
    /// What is in it.
    pub records: Vec<Record>,
}

impl Journal {
    /// Opens it; cuts a torn last line off.
    pub fn open(folder: &Folder) -> anyhow::Result<Self> {
        let (records, whole) = folder.read()?;
        let path = folder.path("runs.jsonl");
        let open = || -> std::io::Result<File> {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            if file.metadata()?.len() > whole as u64 {
                eprintln!("the last run of {} was not written to its end; it is made again", path.display());
                file.set_len(whole as u64)?;
            }
            file.sync_all()?;
            File::open(&folder.dir)?.sync_all()?;
            Ok(file)
        };
        let file = open().with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { file, end: whole as u64, records })
    }

    /// Adds a run; when this returns it is on disk.
    pub fn append(&mut self, record: Record) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&record)?;
        ensure!(!line.contains(&b'\n'), "a run's line has a line end in it");
        line.push(b'\n');
        let written = self.file.write_all_at(&line, self.end).and_then(|()| self.file.sync_all());
        written
            .context("keeping a finished run on disk; what was kept before is there, and the same command goes on")?;
        self.end += line.len() as u64;
        self.records.push(record);
        Ok(())
    }
}
