//! One run: the monitor is started and samples on all nodes, the workload runs to its end, the monitor is stopped and says what it
//! used. Whatever fails, nothing of it is left running.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::children::{Children, Event};
use super::file::{Experiment, TimedBy, Workload};
use super::launcher::{Site, Start};
use super::plan::Condition;
use super::records::{Failure, MonitorReport, Part, Usage};
use crate::monitors::{ProcessUsed, Ready, Used};
use crate::workloads::Outcome;

/// Characters of a program's own words that go into the reason of a failure.
const WORDS_MAX: usize = 400;
/// Lines of them.
const LINES_MAX: usize = 3;
/// How long the end of a part may take to be heard of after it stopped its output.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The command as one that enters a job first, by writing itself into each of these files ([`Ready::job`]).
pub fn in_job(files: &[PathBuf], command: Vec<String>) -> Vec<String> {
    if files.is_empty() {
        return command;
    }
    let enter = r#"while [ "$1" != -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@""#;
    let begin = ["sh", "-c", enter, "sh"].map(str::to_owned);
    let files = files.iter().map(|file| file.display().to_string());
    begin.into_iter().chain(files).chain(std::iter::once("--".to_owned())).chain(command).collect()
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Result {
    /// What the workload said.
    pub outcome: Option<Outcome>,
    /// Why it does not count.
    pub failure: Option<Failure>,
    /// What the monitor said.
    pub seen: Option<MonitorReport>,
    /// What it used.
    pub usage: Option<Usage>,
}

/// There is no result: this program was told to end.
#[derive(Debug)]
pub struct Stopped;

/// What one line of a monitor's part says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Ready(Ready),
    Used(Used),
}

/// One part of a monitor.
struct PartOf {
    child: usize,
    node: bool,
    /// See [`Start::place`].
    place: Option<String>,
    /// Where its complaints go.
    log: PathBuf,
    ready: Option<Ready>,
    used: Option<Used>,
    ended: bool,
}

impl PartOf {
    /// A failure of it, named by where it runs, with its own last words.
    fn failed(&self, reason: &str) -> Trouble {
        let place = self.place.as_ref().map_or(String::new(), |place| format!("{place}: "));
        Trouble::Failed(Part::Monitor, format!("{place}{}", with_words(reason, &self.log)))
    }
}

/// Why a run goes no further.
enum Trouble {
    Stopped,
    Failed(Part, String),
}

/// A run under way.
pub struct Run<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Where things are started.
    pub site: &'a Site,
    /// Its processes.
    pub children: &'a mut Children,
    /// What is measured.
    pub condition: &'a Condition,
    /// The workload.
    pub workload: &'a Workload,
    /// An empty folder for the monitor's files.
    pub monitor_dir: &'a Path,
    /// The folder in which compiled workloads are kept.
    pub programs_dir: &'a Path,
    /// Where complaints go: this path with `-workload` after it, and `-monitor` and the node where there are several.
    pub logs: &'a Path,
}

impl Run<'_> {
    /// Makes it. When it returns no process of it is left.
    pub fn make(mut self) -> std::result::Result<Result, Stopped> {
        let mut result = Result::default();
        let mut parts = Vec::new();
        let made = self.steps(&mut parts, &mut result);
        let left = self.children.end_all();
        if !left.is_empty() {
            eprintln!("  processes outlived those who started them, and were ended: {}", left.join(", "));
        }
        match made {
            Ok(()) => {}
            Err(Trouble::Stopped) => return Err(Stopped),
            Err(Trouble::Failed(part, reason)) => result.failure = Some(Failure { part, reason }),
        }
        if self.children.stopped().is_some() {
            return Err(Stopped);
        }
        Ok(result)
    }

    fn steps(&mut self, parts: &mut Vec<PartOf>, result: &mut Result) -> std::result::Result<(), Trouble> {
        if !self.condition.is_without() {
            self.start_monitor(parts)?;
            result.seen = seen(parts, self.monitor_dir);
        }
        let outcome = self.run_workload(parts)?;
        let verified = outcome.verified;
        result.outcome = Some(outcome);
        if !self.condition.is_without() {
            self.stop_monitor(parts)?;
            result.usage = usage(parts);
        }
        if !verified {
            return Err(Trouble::Failed(Part::Workload, "its own check found its result wrong".to_owned()));
        }
        Ok(())
    }

    fn log(&self, part: &str, place: Option<&str>) -> PathBuf {
        let mut name = self.logs.as_os_str().to_owned();
        name.push(format!("-{part}"));
        if let Some(place) = place {
            name.push(format!("-{}", place.replace(['/', ' '], "-")));
        }
        PathBuf::from(name)
    }

    fn start_monitor(&mut self, parts: &mut Vec<PartOf>) -> std::result::Result<(), Trouble> {
        let failed = |reason: String| Trouble::Failed(Part::Monitor, reason);
        let deadline = Instant::now() + self.experiment.limits.ready.duration();
        // The server's part first: the nodes' parts find what it has prepared.
        for Start { command, node, place } in self.site.monitor(self.experiment, self.condition, self.monitor_dir) {
            if node && parts.iter().any(|part| !part.node && part.ready.is_none()) {
                self.wait_ready(parts, deadline)?;
            }
            let log = self.log("monitor", place.as_deref());
            let child = self.children.start(&command, false, &log).map_err(|error| failed(format!("{error:#}")))?;
            parts.push(PartOf { child, node, place, log, ready: None, used: None, ended: false });
        }
        self.wait_ready(parts, deadline)
    }

    fn wait_ready(&mut self, parts: &mut [PartOf], deadline: Instant) -> std::result::Result<(), Trouble> {
        while parts.iter().any(|part| part.ready.is_none()) {
            match self.children.next(deadline) {
                Event::Stop(_) => return Err(Trouble::Stopped),
                Event::Nothing => {
                    let silent: Vec<&PartOf> = parts.iter().filter(|part| part.ready.is_none()).collect();
                    let (count, limit) = (silent.len(), self.experiment.limits.ready);
                    let others: Vec<&str> = silent.iter().skip(1).filter_map(|part| part.place.as_deref()).collect();
                    let others = if others.is_empty() { String::new() } else { format!(", nor {}", others.join(", ")) };
                    let reason = format!("{count} of its {} parts did not sample within {limit}{others}", parts.len());
                    return Err(silent[0].failed(&reason));
                }
                event => self.heard(parts, event)?,
            }
        }
        Ok(())
    }

    /// A monitor's line or its end, which before the word to stop is a failure.
    fn heard(&mut self, parts: &mut [PartOf], event: Event) -> std::result::Result<(), Trouble> {
        match event {
            Event::Line(child, line) => {
                let Some(part) = parts.iter_mut().find(|part| part.child == child) else { return Ok(()) };
                // Lines of other kinds are what the program has to say to people.
                match serde_json::from_str(&line) {
                    Ok(Said::Ready(ready)) => part.ready = Some(ready),
                    Ok(Said::Used(used)) => part.used = Some(used),
                    Err(_) => {}
                }
                Ok(())
            }
            Event::End(child, _) => {
                let Some(part) = parts.iter().find(|part| part.child == child) else { return Ok(()) };
                let status = self.children.reap(child).unwrap_or_else(|| "exit status: 0".to_owned());
                let when =
                    if parts.iter().all(|part| part.ready.is_some()) { "during the run" } else { "before it sampled" };
                Err(part.failed(&format!("it ended {when} ({status})")))
            }
            _ => Ok(()),
        }
    }

    fn run_workload(&mut self, parts: &mut [PartOf]) -> std::result::Result<Outcome, Trouble> {
        let failed = |reason: String| Trouble::Failed(Part::Workload, reason);
        let job: Vec<PathBuf> =
            parts.iter().filter_map(|part| part.ready.as_ref()).flat_map(|r| r.job.clone()).collect();
        if !job.is_empty() && self.site.is_launched() {
            let reason = "the monitor reads a job that it made on each node, which ranks of a launcher cannot enter: start the experiment \
                          within a resource manager's job, or leave this configuration out";
            // Of the monitor's setting: beside another the workload is as it should be.
            return Err(Trouble::Failed(Part::Monitor, reason.to_owned()));
        }
        let limit = self.experiment.limits.run;
        let command = in_job(&job, self.site.workload(self.workload, self.condition, self.programs_dir, limit));
        let begun = Instant::now();
        let log = self.log("workload", None);
        let child = self.children.start(&command, true, &log).map_err(|e| failed(format!("{e:#}")))?;
        let mut lines = Vec::new();
        let took = loop {
            match self.children.next(begun + limit.duration()) {
                Event::Stop(_) => return Err(Trouble::Stopped),
                Event::Nothing => {
                    return Err(failed(with_words(&format!("it did not end within {limit}"), &log)));
                }
                Event::Line(from, line) if from == child => lines.push(line),
                Event::End(from, ended) if from == child => break ended.duration_since(begun),
                event => self.heard(parts, event)?,
            }
        };
        if let Some(status) = self.children.reap(child) {
            return Err(failed(with_words(&status, &log)));
        }
        if self.workload.command.is_some() && self.workload.timed_by == TimedBy::Runner {
            return Ok(Outcome {
                workload: self.workload.name.clone(),
                size: self.workload.size.clone(),
                ranks: self.workload.ranks,
                seconds: took.as_secs_f64(),
                verified: true,
                figures: std::collections::BTreeMap::new(),
                histogram: Vec::new(),
            });
        }
        let outcome = lines.iter().rev().find_map(|line| serde_json::from_str::<Outcome>(line).ok());
        match outcome {
            Some(outcome) if outcome.seconds.is_finite() && outcome.seconds > 0.0 => Ok(outcome),
            Some(outcome) => Err(failed(format!("it says that it took {} s", outcome.seconds))),
            None => Err(failed(with_words("it printed no line with its outcome", &log))),
        }
    }

    /// Tells all parts to stop, the nodes' first, and takes what they used.
    fn stop_monitor(&mut self, parts: &mut [PartOf]) -> std::result::Result<(), Trouble> {
        for node in [true, false] {
            // A part that this program has started itself gets a signal; one behind a launcher the end of its input.
            let by_signal = !node || !self.site.is_launched();
            for part in parts.iter().filter(|part| part.node == node) {
                self.children.tell(part.child, by_signal);
            }
            self.wait_stopped(parts, node)?;
        }
        Ok(())
    }

    fn wait_stopped(&mut self, parts: &mut [PartOf], node: bool) -> std::result::Result<(), Trouble> {
        let limit = self.experiment.limits.stop;
        let deadline =
            Instant::now() + limit.duration() + if self.site.is_launched() { AT_ONCE } else { Duration::ZERO };
        while parts.iter().any(|part| part.node == node && !part.ended) {
            match self.children.next(deadline) {
                Event::Stop(_) => return Err(Trouble::Stopped),
                Event::Nothing => {
                    let late = parts.iter().find(|part| part.node == node && !part.ended);
                    let reason = format!("it did not stop within {limit}");
                    return Err(
                        late.map_or(Trouble::Failed(Part::Monitor, reason.clone()), |part| part.failed(&reason))
                    );
                }
                Event::End(child, _) => {
                    let Some(part) = parts.iter_mut().find(|part| part.child == child) else { continue };
                    part.ended = true;
                    let (status, silent) = (self.children.reap(child), part.used.is_none());
                    if status.is_some() || silent {
                        let what = status.unwrap_or_else(|| "it did not say what it used".to_owned());
                        return Err(part.failed(&format!("when told to stop: {what}")));
                    }
                }
                event => self.heard(parts, event)?,
            }
        }
        Ok(())
    }
}

/// A reason with the last words of the program itself.
fn with_words(reason: &str, log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    match last_words(&String::from_utf8_lossy(&text)) {
        words if words.is_empty() => reason.to_owned(),
        words => format!("{reason}: {words}"),
    }
}

/// What a program says of its end: from the last line that calls itself an error on, or the last lines; without where in its code
/// that was.
fn last_words(text: &str) -> String {
    let said = text.split("Stack backtrace:").next().unwrap_or_default();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|l| l.chars().any(char::is_alphanumeric)).collect();
    let error = lines.iter().rposition(|line| line.starts_with("Error:"));
    let from = error.unwrap_or(lines.len().saturating_sub(LINES_MAX));
    let words = lines[from..].iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("; ");
    words.chars().take(WORDS_MAX).collect()
}

/// What the parts of a monitor said, together.
fn seen(parts: &[PartOf], dir: &Path) -> Option<MonitorReport> {
    let nodes: Vec<&Ready> = parts.iter().filter(|part| part.node).filter_map(|part| part.ready.as_ref()).collect();
    let first = nodes.first()?;
    let metrics = nodes.iter().map(|ready| ready.metrics).sum::<u64>() / nodes.len() as u64;
    let server = parts.iter().find(|part| !part.node).and_then(|part| part.ready.as_ref());
    let texts = server.into_iter().chain([*first]).map(|ready| ready.configured.as_str());
    // Where a run's files lay tells nothing and differs from run to run.
    let configured = texts.collect::<Vec<_>>().join("\n").replace(&dir.display().to_string(), "{dir}");
    Some(MonitorReport { version: first.version.clone(), metrics, configured: Some(configured) })
}

/// What the parts of a monitor used, together: the mean over the nodes, and the server's part.
fn usage(parts: &[PartOf]) -> Option<Usage> {
    let all: Vec<&Used> = parts.iter().filter_map(|part| part.used.as_ref()).collect();
    let nodes: Vec<&Used> = parts.iter().filter(|part| part.node).filter_map(|part| part.used.as_ref()).collect();
    let count = u64::try_from(nodes.len()).ok().filter(|count| *count > 0)?;
    let sum = |server: bool, of: fn(&ProcessUsed) -> u64| -> u64 {
        let processes = all.iter().flat_map(|used| &used.processes);
        processes.filter(|process| process.server == server).map(of).sum()
    };
    let told = |of: fn(&Used) -> Option<u64>| nodes.iter().map(|used| of(used)).sum::<Option<u64>>();
    Some(Usage {
        node_cpu_ns: sum(false, |process| process.cpu_ns) / count,
        server_cpu_ns: sum(true, |process| process.cpu_ns),
        window_ns: nodes.iter().map(|used| used.window_ns).sum::<u64>() / count,
        rss_kb: sum(false, |process| process.rss_kb) / count,
        pss_kb: sum(false, |process| process.pss_kb) / count,
        samples: told(|used| used.samples),
        missed: told(|used| used.missed),
    })
}

#[cfg(test)]
mod tests {
    use super::last_words;

    #[test]
    fn the_last_words_are_the_error() {
        let told = "starting\nError: no such file\n\nCaused by:\n    nothing\n\nStack backtrace:\n   0: main\n";
        assert_eq!(last_words(told), "Error: no such file; Caused by:; nothing");
        assert_eq!(last_words("a\nb\n--\nc\nd\n"), "b; c; d");
        assert_eq!(last_words(""), "");
    }
}
