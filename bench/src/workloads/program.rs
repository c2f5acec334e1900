//! A workload that is ready to be started, its start and its end.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::catalogue::{self, Kind, Source};
use super::hpcc::{self, Part};
use super::launch::Launch;
use super::marks::Marks;
use super::{Built, Outcome, compile, made, printed};

/// How often a file in a folder shared with other machines is looked at; here the kernel tells.
const REMOTE_LOOK: Duration = Duration::from_millis(100);
/// How long a launcher has after SIGTERM to stop its ranks.
const STOP: Duration = Duration::from_secs(5);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Request {
    /// The workload's name.
    pub name: String,
    /// Its size, or the name of one.
    pub size: String,
    /// Processes.
    pub ranks: usize,
    /// How they are started.
    pub launch: Launch,
    /// How the program is made.
    pub built: Built,
}

/// The same, compiled, with its input written.
pub struct Prepared {
    name: String,
    size: String,
    ranks: usize,
    launch: Launch,
    words: Vec<String>,
    part: Option<Part>,
    /// The program's working folder, of its own.
    folder: tempfile::TempDir,
}

impl Prepared {
    /// Makes it.
    pub fn new(request: &Request) -> anyhow::Result<Self> {
        ensure!(request.ranks > 0, "{} with no ranks: say --ranks 2", request.name);
        let workload = catalogue::find(&request.name)?;
        // `quick` and `long` stand for sizes that differ between workloads, and are told as what they stand for.
        let size = match request.size.as_str() {
            name @ ("quick" | "long") => catalogue::meaning(workload.sizes, name),
            other => other,
        };
        let (size, means) = (size.to_owned(), catalogue::meaning(workload.sizes, size));
        let dir = made(&request.built.dir)?;
        let folder = tempfile::Builder::new().prefix("run").tempdir_in(&dir);
        let folder = folder.with_context(|| format!("making a folder in {}", dir.display()))?;
        let (words, part) = match workload.kind {
            Kind::Own(source) => (own(source, means, &request.built)?, None),
            Kind::Hpcc(part) => {
                hpcc::version()?;
                let order: u64 =
                    means.parse().with_context(|| format!("the size {size} of {}: say HPL's order", request.name))?;
                let input = folder.path().join("hpccinf.txt");
                std::fs::write(&input, hpcc::input(order, request.ranks))
                    .with_context(|| format!("writing {}", input.display()))?;
                (vec!["hpcc".to_owned()], Some(part))
            }
        };
        let (name, launch) = (request.name.clone(), request.launch.clone());
        Ok(Self { name, size, ranks: request.ranks, launch, words, part, folder })
    }

    fn command(&self) -> Command {
        let mut command = self.launch.command(self.ranks);
        command.args(&self.words).current_dir(self.folder.path());
        command
    }

    /// To be made before the program is started.
    fn watch(&self) -> anyhow::Result<Watch> {
        let file = self.folder.path().join("hpccoutf.txt");
        let _ = std::fs::remove_file(&file);
        let marks = if self.part.is_some() { Some(Marks::of(&file)?) } else { None };
        Ok(Watch { marks, file, remote: self.launch.may_be_remote() })
    }

    /// What the program gave, from what it printed and what was seen of it.
    fn outcome(&self, output: &str, mut watch: Watch) -> anyhow::Result<Outcome> {
        watch.look();
        let (workload, size, ranks) = (self.name.clone(), self.size.clone(), self.ranks);
        if let (Some(part), Some(marks)) = (self.part, &watch.marks) {
            let text = std::fs::read_to_string(&watch.file)
                .with_context(|| format!("hpcc's results; it printed: {output}"))?;
            let hpcc::Result { seconds, verified, figures } = hpcc::parse(&text, marks.spans(), part)?;
            return Ok(Outcome { workload, size, ranks, seconds, verified, figures, histogram: Vec::new() });
        }
        let printed::Printed { seconds, verified, figures, histogram } =
            printed::parse(output).with_context(|| format!("{workload} of size {size}"))?;
        Ok(Outcome { workload, size, ranks, seconds, verified, figures, histogram })
    }

    /// Runs it to its end. What it says on its standard error goes to ours.
    pub fn run(&self, timeout: Duration) -> anyhow::Result<Outcome> {
        let mut watch = self.watch()?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: prctl takes numbers and touches no memory. Should this process be killed, the launcher stops its ranks.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let started = command.spawn();
        let mut running = Running(started.with_context(|| {
            format!("starting {:?}: install openmpi-bin, or say --launcher", command.get_program())
        })?);
        let output =
            running.read(&mut watch, timeout).with_context(|| format!("{} of size {}", self.name, self.size))?;
        let status = running.0.wait().context("waiting for the launcher")?;
        ensure!(status.success(), "{} of size {} failed ({status}): {output}", self.name, self.size);
        self.outcome(&output, watch)
    }
}

/// What is seen of a program from outside while it runs.
struct Watch {
    marks: Option<Marks>,
    file: PathBuf,
    remote: bool,
}

impl Watch {
    /// Takes in what there is to see; to be called when [`Watch::descriptor`] is readable, and at the end.
    fn look(&mut self) {
        if let Some(marks) = &mut self.marks {
            marks.look();
        }
    }

    fn descriptor(&self) -> i32 {
        self.marks.as_ref().map_or(-1, Marks::descriptor)
    }
}

/// A launcher that is stopped when it is dropped, with its ranks.
struct Running(Child);

impl Running {
    /// What it prints until it closes its output, with the watch kept up to date meanwhile. Sleeps but when there is something.
    fn read(&mut self, watch: &mut Watch, timeout: Duration) -> anyhow::Result<String> {
        let mut stdout = self.0.stdout.take().context("the launcher's output")?;
        let (until, mut text) = (Instant::now() + timeout, Vec::new());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "it was not done after {} s and was stopped: say a smaller size or a longer --timeout-s",
                    timeout.as_secs()
                );
            }
            let wait = if watch.remote && watch.marks.is_some() { left.min(REMOTE_LOOK) } else { left };
            let wait = i32::try_from(wait.as_millis() + 1).unwrap_or(i32::MAX);
            let each = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polled = [each(stdout.as_raw_fd()), each(watch.descriptor())];
            // SAFETY: two descriptors, as said; a negative one is passed over.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, wait) };
            if polled[1].revents != 0 || watch.remote {
                watch.look();
            }
            if polled[0].revents != 0 {
                let mut taken = [0u8; 16 << 10];
                match stdout.read(&mut taken).context("reading what the program prints")? {
                    0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
                    count => text.extend_from_slice(&taken[..count]),
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        // SAFETY: kill takes two numbers; the child was not waited for yet, so its number is still its own.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let until = Instant::now() + STOP;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The words with which a program of our own is started.
fn own(source: &'static Source, size: &str, built: &Built) -> anyhow::Result<Vec<String>> {
    let program = compile::compile(source, built)?;
    let arguments = catalogue::arguments(source, size, || noise_units(built, false))?;
    Ok(std::iter::once(program.display().to_string()).chain(arguments).collect())
}

/// Units of the noise loop's work that take a millisecond on this machine when it does nothing else: kept in a file, so that every
/// run does the same work, on every node.
pub fn noise_units(built: &Built, recalibrate: bool) -> anyhow::Result<f64> {
    let file = made(&built.dir)?.join("noise.units");
    if !recalibrate && file.is_file() {
        return kept(&file);
    }
    let program = compile::compile(catalogue::noise(), built)?;
    // A single process of Open MPI needs no mpirun, but root must say that it means it.
    let output = Command::new(&program)
        .args(["calibrate", "1000000"])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .output()
        .context("starting the noise loop to calibrate it")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "calibrating the noise loop: {}", String::from_utf8_lossy(&output.stderr));
    let units = text.lines().find_map(|line| line.strip_prefix("units ")).context("the noise loop printed no units")?;
    let aside = tempfile::NamedTempFile::new_in(&built.dir).context("making noise.units")?;
    std::fs::write(aside.path(), format!("{units}\n")).context("writing noise.units")?;
    aside.persist(&file).with_context(|| format!("putting {} in place", file.display()))?;
    kept(&file)
}

fn kept(file: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let units: Option<f64> = text.trim().parse().ok().filter(|units| *units > 0.0);
    units.with_context(|| {
        format!("{} has no number: remove it and run `wholegrain-bench workload build`", file.display())
    })
}
