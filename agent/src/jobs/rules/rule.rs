//! One rule: its metrics, jobs and setting, its owner and its time.

use std::fmt;

use serde::{Deserialize, Serialize};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::pattern::glob;
use wholegrain_model::{Interval, Pattern, Timestamp};

use super::super::setting::{Accumulation, MetricSetting, SampleMode, SamplingRate};
use super::super::view::RuleView;
use super::job::RuleJob;
use super::refusal::JobsRefusal;
use crate::engine::schedule::INTERVAL_NS_MAX;

/// The most rules of the configuration, and the most that people may have added at a time; numbers of added rules are above it.
pub const RULES_MAX: usize = 10_000;
/// The most metric patterns of one rule.
pub const PATTERNS_MAX: usize = 32;
/// The longest pattern of job ids, in bytes.
pub const JOB_PATTERN_BYTES_MAX: usize = 256;
/// The most samples of a window with quantiles: all of them are in memory until it ends.
pub const WINDOW_SAMPLES_MAX: u64 = 4096;
/// The most quantiles of a window.
pub const QUANTILES_MAX: usize = 8;

#[cfg(test)]
thread_local! {
    /// Patterns that this thread has matched.
    pub static EVALUATIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts matched patterns, in tests.
pub fn count_evaluation() {
    #[cfg(test)]
    EVALUATIONS.with(|count| count.set(count.get() + 1));
}

/// A rule as `[[jobs.rule]]` and the API have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRule {
    /// Patterns of metrics below the job, such as `perf/*`.
    pub metrics: Vec<String>,
    /// Pattern of job ids, with `*` for any text; every job if left out.
    pub jobs: Option<String>,
    /// The interval, such as `1ms`, or `off`.
    pub every: String,
    /// The accumulation; every sample is kept if left out.
    pub accumulate: Option<Accumulation>,
    /// The rule's duration; not in the configuration, whose rules have no end.
    #[serde(rename = "for")]
    pub within: Option<Interval>,
}

/// A pattern of job ids; `*` matches any text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobPattern(String);

impl JobPattern {
    /// Checks a pattern such as `4711`, `4711.*` or `*`.
    pub fn new(text: &str) -> Result<Self, JobsRefusal> {
        let refuse = |why: &str| {
            Err(JobsRefusal::Invalid(format!("jobs: {:?} {why}", text.chars().take(80).collect::<String>())))
        };
        if text.is_empty() {
            return refuse("is not a job; write its id, or `*` for every job");
        }
        if text.len() > JOB_PATTERN_BYTES_MAX {
            return refuse("is longer than 256 bytes");
        }
        if text.chars().any(char::is_control) {
            return refuse("holds a control character");
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches one id only.
    pub fn is_literal(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether it matches this id.
    pub fn matches(&self, id: &str) -> bool {
        count_evaluation();
        glob(&self.0, id)
    }

    /// Whether it matches any of the job's ids.
    pub fn matches_job(&self, job: &RuleJob) -> bool {
        self.matches(job.id) || self.matches(job.level) || job.also.is_some_and(|also| self.matches(also))
    }
}

/// Metrics, jobs and setting of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleSpec {
    pub metrics: Vec<Pattern>,
    pub jobs: JobPattern,
    pub setting: MetricSetting,
}

impl RuleSpec {
    /// Checks what every rule has to fulfil.
    pub fn read(raw: &RawRule) -> Result<Self, JobsRefusal> {
        let invalid = |why: String| Err(JobsRefusal::Invalid(why));
        if raw.metrics.is_empty() {
            return invalid("metrics: no pattern; write `**` for every metric of the job".into());
        }
        if raw.metrics.len() > PATTERNS_MAX {
            return invalid(format!("metrics: {} patterns; at most {PATTERNS_MAX} are taken", raw.metrics.len()));
        }
        let metrics = raw.metrics.iter().map(|text| Pattern::new(text.as_str())).collect::<Result<_, _>>();
        let metrics = metrics.map_err(|error| JobsRefusal::Invalid(format!("metrics: {error}")))?;
        let jobs = JobPattern::new(raw.jobs.as_deref().unwrap_or("*"))?;
        let setting = match read_interval(&raw.every)? {
            None if raw.accumulate.is_some() => {
                return invalid("every: off leaves nothing to accumulate; leave out `accumulate`".into());
            }
            None => MetricSetting::Off,
            Some(interval) => {
                let mode = match &raw.accumulate {
                    None => SampleMode::Raw,
                    Some(accumulation) => {
                        check_window(accumulation, interval)?;
                        SampleMode::Accumulate(accumulation.clone())
                    }
                };
                MetricSetting::On(SamplingRate { interval, mode })
            }
        };
        Ok(Self { metrics, jobs, setting })
    }

    /// The rule as it is written.
    pub fn raw(&self) -> RawRule {
        let (every, accumulate) = match &self.setting {
            MetricSetting::Off => ("off".to_owned(), None),
            MetricSetting::On(SamplingRate { interval, mode: SampleMode::Raw }) => (interval.to_string(), None),
            MetricSetting::On(SamplingRate { interval, mode: SampleMode::Accumulate(accumulation) }) => {
                (interval.to_string(), Some(accumulation.clone()))
            }
        };
        let metrics = self.metrics.iter().map(|pattern| pattern.to_string()).collect();
        RawRule { metrics, jobs: Some(self.jobs.0.clone()), every, accumulate, within: None }
    }
}

/// `off`, or an interval that is long enough.
fn read_interval(text: &str) -> Result<Option<Interval>, JobsRefusal> {
    let text = text.trim();
    if text == "off" {
        return Ok(None);
    }
    if text.starts_with('-') {
        return Err(JobsRefusal::Invalid(format!(
            "every: {text:.40} is negative; 1ms is the shortest that is sampled"
        )));
    }
    let interval = Interval::parse(text).map_err(|error| JobsRefusal::Invalid(format!("every: {error}, or `off`")))?;
    if interval.ns() < SAMPLING_INTERVAL_NS_MIN {
        return Err(JobsRefusal::Invalid(format!(
            "every: {interval} is too short; 1ms is the shortest that is sampled, and `off` stops it"
        )));
    }
    if interval.ns() > INTERVAL_NS_MAX as u64 {
        return Err(JobsRefusal::Invalid(format!("every: {interval} is too long; ten years is the longest")));
    }
    Ok(Some(interval))
}

fn check_window(accumulation: &Accumulation, interval: Interval) -> Result<(), JobsRefusal> {
    let Accumulation { window, quantiles } = accumulation;
    let limit = |limit, value: String, why: String| Err(JobsRefusal::Limit { limit, value, why });
    if window.ns() < interval.ns() || !window.ns().is_multiple_of(interval.ns()) {
        return Err(JobsRefusal::Invalid(format!(
            "accumulate: a window of {window} is not a multiple of the interval {interval}"
        )));
    }
    if window.ns() > INTERVAL_NS_MAX as u64 {
        return Err(JobsRefusal::Invalid(format!(
            "accumulate: a window of {window} is too long; ten years is the longest"
        )));
    }
    if quantiles.len() > QUANTILES_MAX {
        return limit(
            "of quantiles of a window",
            QUANTILES_MAX.to_string(),
            format!("accumulate: {} quantiles", quantiles.len()),
        );
    }
    let within = quantiles.iter().all(|quantile| *quantile > 0.0 && *quantile < 1.0);
    if !within || quantiles.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(JobsRefusal::Invalid(format!(
            "accumulate: quantiles {quantiles:?}: use ascending numbers between 0 and 1, both excluded, such as [0.5, 0.99]"
        )));
    }
    let samples = window.ns() / interval.ns();
    if !quantiles.is_empty() && samples > WINDOW_SAMPLES_MAX {
        return limit(
            "of samples of a window with quantiles",
            WINDOW_SAMPLES_MAX.to_string(),
            format!("accumulate: a window of {window} every {interval} has {samples} samples"),
        );
    }
    Ok(())
}

/// The user who added a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOwner {
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// The ids of the jobs that it was added for. It does not apply to later jobs, for which nobody has checked the limits.
    pub only: Vec<String>,
}

impl RuleOwner {
    /// Whether the user owns a job.
    pub fn owns(&self, job: &RuleJob) -> bool {
        let same_uid = self.uid.is_some() && self.uid == job.uid;
        same_uid || (self.user.is_some() && self.user.as_deref() == job.user)
    }
}

/// A rule in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub id: u64,
    pub spec: RuleSpec,
    /// The end, ns since the Unix epoch.
    pub until: Option<i64>,
    /// The name of the person.
    pub by: String,
    /// The user; `None` for the configuration and administrators.
    pub owner: Option<RuleOwner>,
    pub made: Option<i64>,
}

impl Rule {
    pub(super) fn configured(id: u64, spec: RuleSpec) -> Self {
        Self { id, spec, until: None, by: "the configuration".into(), owner: None, made: None }
    }

    /// Whether it applies to this job; a user's rule applies to the user's own jobs only.
    pub fn holds_for(&self, job: &RuleJob) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.owns(job))
    }

    /// Whether it has expired.
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    pub fn view(&self) -> RuleView {
        let raw = self.spec.raw();
        RuleView {
            id: self.id,
            metrics: raw.metrics,
            jobs: match &self.owner {
                Some(owner) => owner.only.join(" "),
                None => self.spec.jobs.0.clone(),
            },
            every: raw.every,
            accumulate: raw.accumulate,
            until: self.until.map(shown),
            by: self.by.clone(),
            uid: self.owner.as_ref().and_then(|owner| owner.uid),
            user: self.owner.as_ref().and_then(|owner| owner.user.clone()),
            made: self.made.map(shown),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metrics: Vec<&str> = self.spec.metrics.iter().map(Pattern::as_str).collect();
        let jobs = match &self.owner {
            Some(owner) => owner.only.join(" "),
            None => self.spec.jobs.0.clone(),
        };
        write!(f, "{} of {jobs} {}", metrics.join(" "), self.spec.setting)?;
        match self.until {
            Some(until) => write!(f, " until {}", shown(until)),
            None => Ok(()),
        }
    }
}

/// The time in RFC 3339.
pub fn shown(time: i64) -> String {
    Timestamp(time).to_string()
}
