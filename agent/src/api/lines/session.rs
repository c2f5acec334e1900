//! What one connection says and is answered. No I/O but a look at `/proc/PID/cgroup`; the clocks are arguments.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wholegrain_model::Pattern;

use super::reading::SensorWatch;
use super::{HANDLES_MAX, reading};
use crate::engine::schedule::ClockReading;
use crate::jobs::marks::process::ProcessLocation;
use crate::jobs::marks::{JobMarks, Mark, MarkError, MarkKind};
use crate::jobs::{CallerIdentity, JobView, Role};
use crate::state::AgentState;

/// Version of the protocol.
const VERSION: u32 = 1;
/// How long a mark waits for its job to be found: a job's first process may be faster than the agent sees the job's directory.
const JOB_TIMEOUT_NS: i64 = 500_000_000;
/// How long after a look for the job in vain the next one is made.
const JOB_AGAIN_NS: i64 = 1_000_000_000;
/// The most patterns of one request.
const PATTERNS_MAX: usize = 32;
/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 512;
/// What stands at the beginning of a pattern for the caller's own job.
const OWN: &str = "@/";

const KNOWN: &str = "hello, job [ID], begin NAME [TIME], end NAME [TIME], value NAME NUMBER [UNIT [TIME]], keep, sensors [PATTERN…], \
                     newest PATTERN…, watch PATTERN…, get HANDLE, list HANDLE [FROM], forget HANDLE";

/// What is to become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestProgress {
    /// It was answered, or needs no answer.
    Done,
    /// It is to be given again in a moment.
    Later,
}

/// Why there is no answer.
enum RequestStop {
    Later,
    Because(String),
    Dropped(String),
}

impl From<String> for RequestStop {
    fn from(why: String) -> Self {
        RequestStop::Because(why)
    }
}

impl From<MarkError> for RequestStop {
    fn from(error: MarkError) -> Self {
        match error {
            MarkError::Dropped(why) => RequestStop::Dropped(why),
            MarkError::Refused(_) | MarkError::Over(_) => RequestStop::Because(error.to_string()),
        }
    }
}

/// Which job the connection is of.
#[derive(Debug)]
enum PeerJob {
    Unknown,
    Absent { why: String, since: i64, looked: i64 },
    Known { job: Arc<JobView>, marks: Arc<JobMarks> },
}

#[derive(Debug)]
pub struct LineSession {
    who: CallerIdentity,
    standing: PeerJob,
    /// Regions that it has begun and not ended, and how often.
    open: HashMap<String, i64>,
    /// They stay open when it goes.
    keep: bool,
    watches: [Option<Box<SensorWatch>>; HANDLES_MAX],
    refusal_logged: bool,
}

impl LineSession {
    /// A connection that begins.
    pub fn new(who: CallerIdentity) -> Self {
        let watches = std::array::from_fn(|_| None);
        Self { who, standing: PeerJob::Unknown, open: HashMap::new(), keep: false, watches, refusal_logged: false }
    }

    /// Looks which job it is of while its process surely runs.
    pub fn begin(&mut self, state: &AgentState, now: ClockReading) {
        let _ = self.job(state, now);
    }

    /// Answers one request, without its new line, into `out`.
    pub fn line(&mut self, line: &[u8], state: &AgentState, now: ClockReading, out: &mut Vec<u8>) -> RequestProgress {
        let Ok(line) = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) else {
            let _ = writeln!(out, "error a request is UTF-8; this one is not");
            return RequestProgress::Done;
        };
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let Some(verb) = words.next() else { return RequestProgress::Done };
        let words: Vec<&str> = words.collect();
        let (verb, is_asked) = match verb {
            "begin" | "end" | "value" => (verb, false),
            "begin?" | "end?" | "value?" => (&verb[..verb.len() - 1], true),
            _ => (verb, true),
        };
        match self.answer(verb, &words, state, now, out) {
            Ok(Some(time)) if is_asked => {
                let _ = writeln!(out, "ok {time}");
            }
            Ok(_) => {}
            Err(RequestStop::Later) => return RequestProgress::Later,
            Err(RequestStop::Dropped(why)) if is_asked => {
                let _ = writeln!(out, "dropped {why}");
            }
            Err(RequestStop::Because(why)) => {
                if matches!(verb, "begin" | "end" | "value") {
                    self.count_refused(state);
                }
                if !std::mem::replace(&mut self.refusal_logged, true) {
                    state.marks.tell_refusal(&self.who, &why, now);
                }
                if is_asked {
                    let _ = writeln!(out, "error {}", why.replace(char::is_control, " "));
                }
            }
            Err(RequestStop::Dropped(_)) => {}
        }
        RequestProgress::Done
    }

    /// The time that a mark was stored with; `None` where the answer is in `out`.
    fn answer(
        &mut self,
        verb: &str,
        words: &[&str],
        state: &AgentState,
        now: ClockReading,
        out: &mut Vec<u8>,
    ) -> Result<Option<i64>, RequestStop> {
        match (verb, words) {
            ("begin", [name, time @ ..]) => return self.mark(name, MarkKind::Begin, time, state, now).map(Some),
            ("end", [name, time @ ..]) => return self.mark(name, MarkKind::End, time, state, now).map(Some),
            ("value", [name, number, rest @ ..]) => {
                let value: f64 =
                    number.parse().map_err(|_| format!("{number:?} is no number; write one such as 1e-9"))?;
                let (unit, time) = match rest {
                    [] => (None, rest),
                    [unit, time @ ..] => (Some(*unit).filter(|unit| *unit != "-"), time),
                };
                let value = Some(value).filter(|value| value.is_finite());
                return self.mark(name, MarkKind::Value(value, unit), time, state, now).map(Some);
            }
            ("get", [handle]) => {
                let who = &self.who;
                watch(&mut self.watches, handle)?.1.get(who, state, out);
            }
            ("list", [handle, from @ ..]) if from.len() <= 1 => {
                let from = match from {
                    [from] => from.parse().map_err(|_| format!("{from:?} is no place; write a number"))?,
                    _ => 0,
                };
                let (handle, watch) = watch(&mut self.watches, handle)?;
                watch.list(handle, from, &self.who, state, out);
            }
            ("forget", [handle]) => {
                let (handle, _) = watch(&mut self.watches, handle)?;
                self.watches[handle] = None;
                let _ = writeln!(out, "ok");
            }
            ("watch", [_, ..]) => self.watch(words, state, now, out)?,
            ("newest", [_, ..]) => {
                let patterns = self.patterns(words, state, now)?;
                let begin = out.len();
                if !SensorWatch::new(patterns, &self.who, state).newest(state, out) {
                    self.nothing(begin, out)?;
                }
            }
            ("sensors", _) => {
                let patterns = self.patterns(words, state, now)?;
                let begin = out.len();
                reading::sensors(&patterns, &self.who, state, out);
                if out[begin..].starts_with(b"sensors 0 ") {
                    self.nothing(begin, out)?;
                }
            }
            ("job", []) => self.tell_job(state, now, out)?,
            ("job", [id]) => {
                self.choose_job(id, state, now)?;
                self.tell_job(state, now, out)?;
            }
            ("keep", []) => {
                self.keep = true;
                let _ = writeln!(out, "ok");
            }
            ("hello", []) => {
                let _ = writeln!(out, "wholegrain {VERSION} {} {}", state.name, state.prefix);
            }
            _ => {
                let verb: String = verb.chars().take(64).collect();
                return Err(RequestStop::Because(format!(
                    "{verb:?} with {} words after it is no request; there are {KNOWN}",
                    words.len()
                )));
            }
        }
        Ok(None)
    }

    /// An answer without a sensor, to somebody who may not read all of them, is a refusal.
    fn nothing(&self, begin: usize, out: &mut Vec<u8>) -> Result<(), RequestStop> {
        if self.who.role != Role::User {
            return Ok(());
        }
        out.truncate(begin);
        Err(RequestStop::Because(
            "no sensor of a running job of yours matches; those are all that you may read here".into(),
        ))
    }

    fn mark(
        &mut self,
        name: &str,
        what: MarkKind<'_>,
        time: &[&str],
        state: &AgentState,
        now: ClockReading,
    ) -> Result<i64, RequestStop> {
        let time = match time {
            [] => None,
            [time] => Some(time.parse().map_err(|_| format!("{time:?} is no time; write ns since the Unix epoch"))?),
            _ => return Err(RequestStop::Because("words after the time; a name has no spaces in it".into())),
        };
        let marks = self.job(state, now)?.1.clone();
        let result = marks.take(Mark { name, what, time }, state, now);
        // What was too many for a row has changed the depth all the same.
        if let Ok(_) | Err(MarkError::Dropped(_)) = &result {
            match what {
                MarkKind::Begin => *self.open.entry(name.to_owned()).or_default() += 1,
                MarkKind::End => {
                    if let Some(times) = self.open.get_mut(name) {
                        *times -= 1;
                        if *times == 0 {
                            self.open.remove(name);
                        }
                    }
                }
                MarkKind::Value(..) => {}
            }
        }
        if let Err(MarkError::Over(_)) = &result {
            (self.standing, self.open) = (PeerJob::Unknown, HashMap::new());
        }
        Ok(result?)
    }

    fn count_refused(&self, state: &AgentState) {
        match &self.standing {
            PeerJob::Known { marks, .. } => marks.count_refused(state),
            _ => _ = state.counters.marks_refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The job that the connection is of.
    fn job(&mut self, state: &AgentState, now: ClockReading) -> Result<(&Arc<JobView>, &Arc<JobMarks>), RequestStop> {
        let since = match &self.standing {
            PeerJob::Known { .. } => None,
            PeerJob::Unknown => Some(now.mono),
            PeerJob::Absent { since, looked, why } => {
                let waits = now.mono - since < JOB_TIMEOUT_NS;
                if !waits && now.mono - looked < JOB_AGAIN_NS {
                    return Err(RequestStop::Because(why.clone()));
                }
                Some(*since)
            }
        };
        if let Some(since) = since {
            match self.look_for_job(state) {
                Ok(job) => {
                    let marks = state.marks.of(&job, state)?;
                    self.standing = PeerJob::Known { job, marks };
                }
                Err(why) => {
                    self.standing = PeerJob::Absent { why: why.clone(), since, looked: now.mono };
                    return Err(if now.mono - since < JOB_TIMEOUT_NS {
                        RequestStop::Later
                    } else {
                        RequestStop::Because(why)
                    });
                }
            }
        }
        match &self.standing {
            PeerJob::Known { job, marks } => Ok((job, marks)),
            _ => Err(RequestStop::Later),
        }
    }

    fn look_for_job(&self, state: &AgentState) -> Result<Arc<JobView>, String> {
        let Some(pid) = self.who.pid else { return Err("which job? name it with `job ID`".into()) };
        let at = match ProcessLocation::of(state.marks.roots(), pid) {
            Ok(at) => at,
            // It has said what it had to say and is gone: no doubt remains where its user has one job here.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.only_job(state, pid),
            Err(error) => {
                return Err(format!("cannot see which job process {pid} is of ({error}); name it with `job ID`"));
            }
        };
        let Some(job) = at.job(&state.jobs(), state.marks.roots()) else {
            let place = at.deepest().map_or("the root".into(), |path| format!("/{}", path.display()));
            return Err(format!(
                "process {pid} is in no running job that this agent knows (its cgroup is {place}); name yours with `job ID`"
            ));
        };
        let record = &job.record;
        if record.uid.is_some() && self.who.role != Role::Admin && !self.who.owns(record.uid, record.user.as_deref()) {
            return Err(format!("process {pid} is in job {}, which is not yours", record.job));
        }
        Ok(job)
    }

    fn only_job(&self, state: &AgentState, pid: i32) -> Result<Arc<JobView>, String> {
        let view = state.jobs();
        let mut own = view.jobs.iter().filter(|job| self.who.uid.is_some() && job.record.uid == self.who.uid);
        match (own.next(), own.next()) {
            (Some(job), None) => Ok(job.clone()),
            (one, _) => Err(format!(
                "process {pid} had ended before it was seen which job it is of, and its user has {} here; ask for an \
                 answer, as with `begin? NAME`, so that it waits",
                if one.is_some() { "more than one" } else { "none" }
            )),
        }
    }

    fn choose_job(&mut self, id: &str, state: &AgentState, now: ClockReading) -> Result<(), RequestStop> {
        let view = state.jobs();
        let is_it = |job: &&Arc<JobView>| {
            let record = &job.record;
            let may = self.who.role == Role::Admin || self.who.owns(record.uid, record.user.as_deref());
            may && (record.job == id || record.level == id || record.also.as_deref() == Some(id))
        };
        let Some(job) = view.jobs.iter().find(is_it).cloned() else {
            return Err(RequestStop::Because(format!(
                "no job {id:?} of yours runs here; `job` alone finds that of this process"
            )));
        };
        let marks = state.marks.of(&job, state)?;
        self.let_go(state, now);
        self.standing = PeerJob::Known { job, marks };
        Ok(())
    }

    /// `job LEVEL FROM TAKEN DROPPED REFUSED MANAGER ID`; the id is the rest of the line.
    fn tell_job(&mut self, state: &AgentState, now: ClockReading, out: &mut Vec<u8>) -> Result<(), RequestStop> {
        let (job, marks) = self.job(state, now)?;
        let (record, counts) = (&job.record, marks.counts());
        let id = record.job.replace(char::is_control, "?");
        let _ = writeln!(
            out,
            "job {} {} {} {} {} {} {id}",
            record.level, record.from, counts.taken, counts.dropped, counts.refused, record.manager
        );
        Ok(())
    }

    fn patterns(&mut self, words: &[&str], state: &AgentState, now: ClockReading) -> Result<Vec<Pattern>, RequestStop> {
        if words.len() > PATTERNS_MAX {
            return Err(RequestStop::Because(format!(
                "{} patterns; {PATTERNS_MAX} are the most of one request",
                words.len()
            )));
        }
        let mut patterns = Vec::with_capacity(words.len());
        for word in words {
            if word.len() > PATTERN_BYTES_MAX {
                return Err(RequestStop::Because(format!(
                    "a pattern of {} bytes; {PATTERN_BYTES_MAX} are the most",
                    word.len()
                )));
            }
            let text = match word.strip_prefix(OWN) {
                Some(rest) => format!("{}/job/{}/{rest}", state.prefix, self.job(state, now)?.0.record.level),
                None => (*word).to_owned(),
            };
            let pattern = Pattern::new(text).map_err(|error| error.to_string())?;
            if let Some(why) = reading::refusal(&pattern, &self.who, state) {
                return Err(RequestStop::Because(why));
            }
            patterns.push(pattern);
        }
        Ok(patterns)
    }

    fn watch(
        &mut self,
        words: &[&str],
        state: &AgentState,
        now: ClockReading,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestStop> {
        let patterns = self.patterns(words, state, now)?;
        let Some(handle) = self.watches.iter().position(Option::is_none) else {
            return Err(RequestStop::Because(format!(
                "{HANDLES_MAX} handles are the most of one connection; forget one"
            )));
        };
        let mut watch = Box::new(SensorWatch::new(patterns, &self.who, state));
        watch.list(handle, 0, &self.who, state, out);
        self.watches[handle] = Some(watch);
        Ok(())
    }

    /// The connection has gone: what it began and did not end is ended, unless it said `keep`.
    pub fn gone(&mut self, state: &AgentState, now: ClockReading) {
        self.let_go(state, now);
    }

    fn let_go(&mut self, state: &AgentState, now: ClockReading) {
        let open = std::mem::take(&mut self.open);
        if let (PeerJob::Known { marks, .. }, false) = (&self.standing, self.keep) {
            open.iter().for_each(|(region, times)| marks.close(region, *times, state, now));
        }
    }
}

/// The selection of a handle.
fn watch<'a>(
    watches: &'a mut [Option<Box<SensorWatch>>; HANDLES_MAX],
    text: &str,
) -> Result<(usize, &'a mut SensorWatch), String> {
    let handle = text.parse().unwrap_or(usize::MAX);
    match watches.get_mut(handle) {
        Some(Some(watch)) => Ok((handle, watch)),
        _ => Err(format!("{text:?} is no handle of this connection; `watch PATTERN…` gives one")),
    }
}
