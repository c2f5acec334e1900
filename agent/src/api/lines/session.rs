//! Requests and responses of one connection. No I/O except reading `/proc/PID/cgroup`; the clocks are arguments.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wholegrain_model::Pattern;

use super::limits::HANDLES_MAX;
use super::reading;
use super::reading::SensorWatch;
use crate::api::context::ApiContext;
use crate::engine::schedule::ClockReading;
use crate::jobs::marks::process::ProcessLocation;
use crate::jobs::marks::{JobMarks, Mark, MarkError, MarkKind};
use crate::jobs::{CallerIdentity, JobView, Role};

/// The version of the protocol.
const VERSION: u32 = 1;
/// How long a mark waits for its job: a job's first process may be faster than the discovery of the job's directory.
const JOB_TIMEOUT_NS: i64 = 500_000_000;
/// The pause after a failed search for the job.
const JOB_AGAIN_NS: i64 = 1_000_000_000;
/// The most patterns of one request.
const PATTERNS_MAX: usize = 32;
/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 512;
/// The begin of a pattern that stands for the caller's own job.
const OWN: &str = "@/";

const KNOWN: &str = "hello, job [ID], begin NAME [TIME], end NAME [TIME], value NAME NUMBER [UNIT [TIME]], keep, sensors [PATTERN…], \
                     newest PATTERN…, watch PATTERN…, get HANDLE, list HANDLE [FROM], forget HANDLE";

/// Whether a request is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestProgress {
    /// It has its response, or needs none.
    Done,
    /// It has to be given again in a moment.
    Later,
}

/// Why there is no result.
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

/// The job of a connection.
#[derive(Debug)]
enum PeerJob {
    Unknown,
    Absent { why: String, since: i64, searched: i64 },
    Known { job: Arc<JobView>, marks: Arc<JobMarks> },
}

#[derive(Debug)]
pub struct LineSession {
    who: CallerIdentity,
    peer_job: PeerJob,
    /// Regions that it has opened, and how many times.
    open: HashMap<String, i64>,
    /// Regions stay open when the connection ends.
    keep: bool,
    watches: [Option<Box<SensorWatch>>; HANDLES_MAX],
    refusal_logged: bool,
}

impl LineSession {
    pub fn new(who: CallerIdentity) -> Self {
        let watches = std::array::from_fn(|_| None);
        Self { who, peer_job: PeerJob::Unknown, open: HashMap::new(), keep: false, watches, refusal_logged: false }
    }

    /// Finds the job at the begin, while the process surely runs.
    pub fn begin(&mut self, context: &ApiContext, now: ClockReading) {
        let _ = self.job(context, now);
    }

    /// Executes one request, without its newline, and writes the response into `out`.
    pub fn line(&mut self, line: &[u8], context: &ApiContext, now: ClockReading, out: &mut Vec<u8>) -> RequestProgress {
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
        match self.answer(verb, &words, context, now, out) {
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
                    self.count_refused(context);
                }
                if !std::mem::replace(&mut self.refusal_logged, true) {
                    context.marks.log_refusal(&self.who, &why, now);
                }
                if is_asked {
                    let _ = writeln!(out, "error {}", why.replace(char::is_control, " "));
                }
            }
            Err(RequestStop::Dropped(_)) => {}
        }
        RequestProgress::Done
    }

    /// Executes a request. Returns the time of a mark's sample; `None` if the response is in `out`.
    fn answer(
        &mut self,
        verb: &str,
        words: &[&str],
        context: &ApiContext,
        now: ClockReading,
        out: &mut Vec<u8>,
    ) -> Result<Option<i64>, RequestStop> {
        match (verb, words) {
            ("begin", [name, time @ ..]) => return self.mark(name, MarkKind::Begin, time, context, now).map(Some),
            ("end", [name, time @ ..]) => return self.mark(name, MarkKind::End, time, context, now).map(Some),
            ("value", [name, number, rest @ ..]) => {
                let value: f64 =
                    number.parse().map_err(|_| format!("{number:?} is not a number; write one such as 1e-9"))?;
                let (unit, time) = match rest {
                    [] => (None, rest),
                    [unit, time @ ..] => (Some(*unit).filter(|unit| *unit != "-"), time),
                };
                let value = Some(value).filter(|value| value.is_finite());
                return self.mark(name, MarkKind::Value(value, unit), time, context, now).map(Some);
            }
            ("get", [handle]) => {
                let who = &self.who;
                watch(&mut self.watches, handle)?.1.get(who, context, out);
            }
            ("list", [handle, from @ ..]) if from.len() <= 1 => {
                let from = match from {
                    [from] => from.parse().map_err(|_| format!("{from:?} is not an index; write a number"))?,
                    _ => 0,
                };
                let (handle, watch) = watch(&mut self.watches, handle)?;
                watch.list(handle, from, &self.who, context, out);
            }
            ("forget", [handle]) => {
                let (handle, _) = watch(&mut self.watches, handle)?;
                self.watches[handle] = None;
                let _ = writeln!(out, "ok");
            }
            ("watch", [_, ..]) => self.watch(words, context, now, out)?,
            ("newest", [_, ..]) => {
                let patterns = self.patterns(words, context, now)?;
                let begin = out.len();
                if !SensorWatch::new(patterns, &self.who, context).newest(context, out) {
                    self.nothing(begin, out)?;
                }
            }
            ("sensors", _) => {
                let patterns = self.patterns(words, context, now)?;
                let begin = out.len();
                reading::sensors(&patterns, &self.who, context, out);
                if out[begin..].starts_with(b"sensors 0 ") {
                    self.nothing(begin, out)?;
                }
            }
            ("job", []) => self.write_job(context, now, out)?,
            ("job", [id]) => {
                self.choose_job(id, context, now)?;
                self.write_job(context, now, out)?;
            }
            ("keep", []) => {
                self.keep = true;
                let _ = writeln!(out, "ok");
            }
            ("hello", []) => {
                let _ = writeln!(out, "wholegrain {VERSION} {} {}", context.identity.name, context.identity.prefix);
            }
            _ => {
                let verb: String = verb.chars().take(64).collect();
                return Err(RequestStop::Because(format!(
                    "{verb:?} with {} words after it is not a request; requests are {KNOWN}",
                    words.len()
                )));
            }
        }
        Ok(None)
    }

    /// A response without sensors is a refusal for a caller who may not read all of them.
    fn nothing(&self, begin: usize, out: &mut Vec<u8>) -> Result<(), RequestStop> {
        if self.who.role != Role::User {
            return Ok(());
        }
        out.truncate(begin);
        Err(RequestStop::Because("no sensor of a running job of yours matches; you may read only those".into()))
    }

    fn mark(
        &mut self,
        name: &str,
        kind: MarkKind<'_>,
        time: &[&str],
        context: &ApiContext,
        now: ClockReading,
    ) -> Result<i64, RequestStop> {
        let time = match time {
            [] => None,
            [time] => Some(time.parse().map_err(|_| format!("{time:?} is not a time; write ns since the Unix epoch"))?),
            _ => return Err(RequestStop::Because("words after the time; a name has no spaces in it".into())),
        };
        let marks = self.job(context, now)?.1.clone();
        let result = marks.take(Mark { name, kind, time }, now);
        // A mark over the rate has changed the depth nevertheless.
        if let Ok(_) | Err(MarkError::Dropped(_)) = &result {
            match kind {
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
            (self.peer_job, self.open) = (PeerJob::Unknown, HashMap::new());
        }
        Ok(result?)
    }

    fn count_refused(&self, context: &ApiContext) {
        match &self.peer_job {
            PeerJob::Known { marks, .. } => marks.count_refused(),
            _ => _ = context.counters.marks_refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The job of the connection.
    fn job(&mut self, context: &ApiContext, now: ClockReading) -> Result<(&Arc<JobView>, &Arc<JobMarks>), RequestStop> {
        let since = match &self.peer_job {
            PeerJob::Known { .. } => None,
            PeerJob::Unknown => Some(now.mono),
            PeerJob::Absent { since, searched, why } => {
                let waits = now.mono - since < JOB_TIMEOUT_NS;
                if !waits && now.mono - searched < JOB_AGAIN_NS {
                    return Err(RequestStop::Because(why.clone()));
                }
                Some(*since)
            }
        };
        if let Some(since) = since {
            match self.find_job(context) {
                Ok(job) => {
                    let marks = context.marks.of(&job)?;
                    self.peer_job = PeerJob::Known { job, marks };
                }
                Err(why) => {
                    self.peer_job = PeerJob::Absent { why: why.clone(), since, searched: now.mono };
                    return Err(if now.mono - since < JOB_TIMEOUT_NS {
                        RequestStop::Later
                    } else {
                        RequestStop::Because(why)
                    });
                }
            }
        }
        match &self.peer_job {
            PeerJob::Known { job, marks } => Ok((job, marks)),
            _ => Err(RequestStop::Later),
        }
    }

    fn find_job(&self, context: &ApiContext) -> Result<Arc<JobView>, String> {
        let Some(pid) = self.who.pid else { return Err("which job? name it with `job ID`".into()) };
        let at = match ProcessLocation::of(context.marks.roots(), pid) {
            Ok(at) => at,
            // The process has ended. If its user has only one job here, it was that one.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.only_job(context, pid),
            Err(error) => {
                return Err(format!("cannot find the job of process {pid} ({error}); name it with `job ID`"));
            }
        };
        let Some(job) = at.job(&context.jobs.get(), context.marks.roots()) else {
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

    fn only_job(&self, context: &ApiContext, pid: i32) -> Result<Arc<JobView>, String> {
        let view = context.jobs.get();
        let mut own = view.jobs.iter().filter(|job| self.who.uid.is_some() && job.record.uid == self.who.uid);
        match (own.next(), own.next()) {
            (Some(job), None) => Ok(job.clone()),
            (one, _) => Err(format!(
                "process {pid} had ended before its job was found, and its user has {} here; ask for an \
                 answer, as with `begin? NAME`, so that it waits",
                if one.is_some() { "more than one" } else { "none" }
            )),
        }
    }

    fn choose_job(&mut self, id: &str, context: &ApiContext, now: ClockReading) -> Result<(), RequestStop> {
        let view = context.jobs.get();
        let may_mark = |job: &JobView| self.who.role == Role::Admin || job.is_owned_by(&self.who);
        let Some(job) = view.jobs.iter().find(|job| job.has_id(id) && may_mark(job)).cloned() else {
            return Err(RequestStop::Because(format!(
                "no job {id:?} of yours runs here; `job` alone finds that of this process"
            )));
        };
        let marks = context.marks.of(&job)?;
        self.close_regions(now);
        self.peer_job = PeerJob::Known { job, marks };
        Ok(())
    }

    /// `job LEVEL FROM TAKEN DROPPED REFUSED MANAGER ID`; the id is the rest of the line.
    fn write_job(&mut self, context: &ApiContext, now: ClockReading, out: &mut Vec<u8>) -> Result<(), RequestStop> {
        let (job, marks) = self.job(context, now)?;
        let (record, counts) = (&job.record, marks.counts());
        let id = record.job.replace(char::is_control, "?");
        let _ = writeln!(
            out,
            "job {} {} {} {} {} {} {id}",
            record.level, record.from, counts.taken, counts.dropped, counts.refused, record.manager
        );
        Ok(())
    }

    fn patterns(
        &mut self,
        words: &[&str],
        context: &ApiContext,
        now: ClockReading,
    ) -> Result<Vec<Pattern>, RequestStop> {
        if words.len() > PATTERNS_MAX {
            return Err(RequestStop::Because(format!(
                "{} patterns; at most {PATTERNS_MAX} are allowed in one request",
                words.len()
            )));
        }
        let mut patterns = Vec::with_capacity(words.len());
        for word in words {
            if word.len() > PATTERN_BYTES_MAX {
                return Err(RequestStop::Because(format!(
                    "a pattern of {} bytes; at most {PATTERN_BYTES_MAX} are allowed",
                    word.len()
                )));
            }
            let text = match word.strip_prefix(OWN) {
                Some(rest) => {
                    format!("{}/job/{}/{rest}", context.identity.prefix, self.job(context, now)?.0.record.level)
                }
                None => (*word).to_owned(),
            };
            let pattern = Pattern::new(text).map_err(|error| error.to_string())?;
            if let Some(why) = reading::refusal(&pattern, &self.who, context) {
                return Err(RequestStop::Because(why));
            }
            patterns.push(pattern);
        }
        Ok(patterns)
    }

    fn watch(
        &mut self,
        words: &[&str],
        context: &ApiContext,
        now: ClockReading,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestStop> {
        let patterns = self.patterns(words, context, now)?;
        let Some(handle) = self.watches.iter().position(Option::is_none) else {
            return Err(RequestStop::Because(format!("a connection has at most {HANDLES_MAX} handles; forget one")));
        };
        let mut watch = Box::new(SensorWatch::new(patterns, &self.who, context));
        watch.list(handle, 0, &self.who, context, out);
        self.watches[handle] = Some(watch);
        Ok(())
    }

    /// Closes the regions that the connection has opened, unless it said `keep`.
    pub fn close_regions(&mut self, now: ClockReading) {
        let open = std::mem::take(&mut self.open);
        if let (PeerJob::Known { marks, .. }, false) = (&self.peer_job, self.keep) {
            open.iter().for_each(|(region, times)| marks.close(region, *times, now));
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
        _ => Err(format!("{text:?} is not a handle of this connection; `watch PATTERN…` gives one")),
    }
}
