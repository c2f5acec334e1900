//! `/api/v1/jobs/{id}/energy`: the energy of a job's nodes in its time, the rule of its share, and the covered part of the time.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{JobEnergyResult, JobEnergyTotal, JobNodeEnergy};
use wholegrain_model::{Pattern, Timestamp};
use wholegrain_query::jobs::energy::{
    EnergyMeter, EnergyShare, EnergySource, J_PER_KWH, MeasuredEnergy, ShareWeights, measure, rise, sources,
};
use wholegrain_query::jobs::{Cpus, JobNode, JobScope};
use wholegrain_query::{CancellableSnapshot, PATTERNS_MAX, SENSORS_MAX};
use wholegrain_store::{ReadSnapshot, ReadStore, SensorInfo};

use super::clock::now;
use super::job_statistics::begin_with_nodes;
use super::params::{JobFilter, QueryParams};
use super::read::{SensorPages, run_until_abandoned};
use super::sink::{BodySink, sink};
use super::visibility::only_user;
use super::{Api, ApiError, job_scope};
use crate::access::tokens::Bearer;

pub(super) const ENERGY: &[&str] = &["at", "pattern", "share", "source"];
/// The most other jobs on the job's nodes whose records are read to compute the share.
const BESIDE_MAX: usize = 100_000;
/// The most problems in a response.
const PROBLEMS_MAX: usize = 16;
/// The most sensors of one node in a response.
const NAMED_MAX: usize = 16;
/// The job metric of used CPU time.
const CPU_TIME: &str = "cpu/usage";

struct EnergyRequest {
    job: Arc<JobScope>,
    meters: Vec<EnergyMeter>,
    share: EnergyShare,
    /// `Some(true)`: the facility's meters; `Some(false)`: the nodes'; `None`: the nodes' if any is measured.
    facility: Option<bool>,
    user: Option<String>,
    now: i64,
}

pub(super) async fn energy(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, ENERGY)?;
    let now = now();
    let at = params.read("at", |text| Timestamp::parse(text, now))?.map(|at| at.0);
    let share = params.read("share", str::parse::<EnergyShare>)?.unwrap_or(api.jobs.share);
    let facility = params.read("source", |text| match text {
        "node" => Ok(false),
        "facility" if api.jobs.facility_power.is_empty() => {
            Err("the server has no jobs.facility_power; node is all there is")
        }
        "facility" => Ok(true),
        _ => Err("expected node or facility"),
    })?;
    let given = meters(&params)?;
    let meters = if given.is_empty() { api.jobs.power.clone() } else { given };
    let of_job = JobFilter { id, at, range_given: (true, true) };
    let Some(job) = job_scope::find(&api, &bearer, Some(&of_job)).await? else {
        return Err(job_scope::missing(&of_job.id, at));
    };
    let permit = api.queries.try_take(&bearer)?;
    let user = only_user(&bearer).map(str::to_owned);
    let question = EnergyRequest { job, meters, share, facility, user, now: now.0 };
    let metrics = api.metrics.clone();
    let choose = move |is_gone: &dyn Fn() -> bool| (EnergyResponse::new(api, question, is_gone), permit);
    let (answer, permit) = run_until_abandoned(&metrics, choose).await?;
    let answer = answer?;
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        let (api, job) = (answer.api.clone(), answer.question.job.row().job.clone());
        api.metrics.queries_running.add(1);
        let client = sink.breaker();
        let answer = answer.until(move || client.is_abandoned());
        if let Err(error) = answer.write(&mut sink).and_then(|()| sink.flush()) {
            let breaker = sink.breaker();
            if breaker.is_abandoned() {
                api.metrics.queries_abandoned.inc();
            } else {
                tracing::error!("the energy of job {job}: {error}");
            }
            breaker.fail(error);
        }
        api.metrics.queries_running.add(-1);
        drop(permit);
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The meters that the request names.
fn meters(params: &QueryParams) -> Result<Vec<EnergyMeter>, ApiError> {
    let given = params.texts("pattern");
    let patterns: usize = given.iter().map(|text| EnergyMeter::count_parts(text)).sum();
    if patterns > PATTERNS_MAX {
        let message = format!("parameter `pattern` has {patterns} patterns, at most {PATTERNS_MAX} are taken");
        return Err(ApiError::bad_request(message));
    }
    let meters: Result<Vec<EnergyMeter>, String> = given.iter().map(|text| EnergyMeter::new(text)).collect();
    meters.map_err(|why| ApiError::bad_request(format!("parameter `pattern`: {why}")))
}

/// Another job on a node at the same time.
struct ConcurrentJob {
    from: i64,
    to: i64,
    cores: Option<u64>,
    level: Box<str>,
}

#[derive(Default)]
struct EnergyTotal {
    joules: Option<f64>,
    covered_s: f64,
    time_s: f64,
    measured: usize,
}

impl EnergyTotal {
    fn add(&mut self, measured: Option<MeasuredEnergy>, time_ns: i64) {
        self.time_s += time_ns as f64 / 1e9;
        if let Some(measured) = measured.filter(|measured| measured.covered_ns > 0) {
            *self.joules.get_or_insert_default() += measured.joules;
            self.covered_s += measured.covered_ns as f64 / 1e9;
            self.measured += 1;
        }
    }
}

struct EnergyResponse {
    api: Arc<Api>,
    question: EnergyRequest,
    snapshot: Box<dyn ReadSnapshot>,
    beside: Vec<Vec<ConcurrentJob>>,
    problems: Vec<String>,
    /// For each node its meter and sensors.
    found: Vec<(Option<usize>, Vec<EnergySource>)>,
    /// The facility's sensors, if they are used.
    facility: Option<Vec<SensorInfo>>,
}

impl EnergyResponse {
    /// Selects the sensors; the selection is incomplete if the client disconnects.
    fn new(api: Arc<Api>, question: EnergyRequest, is_gone: &dyn Fn() -> bool) -> Result<Self, ApiError> {
        let snapshot = api.space.snapshot();
        let (beside, problems) = (Vec::new(), Vec::new());
        let mut answer = Self { api, question, snapshot, beside, problems, found: Vec::new(), facility: None };
        answer.beside = answer.look_beside()?;
        answer.problems.extend(answer.question.job.warnings());
        let (api, question) = (&answer.api, &answer.question);
        let mut most = 0;
        let mut seen = |patterns: &[Pattern], job: Option<&Arc<JobScope>>| {
            let sensors = SensorPages::new(api, question.user.as_deref(), job, patterns).at_most(SENSORS_MAX, is_gone);
            most = most.max(sensors.len());
            sensors
        };
        let of_job = |patterns: &[Pattern]| seen(patterns, Some(&question.job));
        answer.found = sources(&question.job, &question.meters, of_job, &mut answer.problems, PROBLEMS_MAX);
        let is_facility = question.facility.unwrap_or_else(|| {
            !api.jobs.facility_power.is_empty() && answer.found.iter().all(|(meter, _)| meter.is_none())
        });
        answer.facility = is_facility.then(|| seen(&api.jobs.facility_power, None));
        if most > SENSORS_MAX {
            let message =
                format!("a meter's patterns choose over {SENSORS_MAX} sensors, which is the most; choose fewer");
            return Err(ApiError::bad_request(message));
        }
        Ok(answer)
    }

    /// Stops reading when the client disconnects.
    fn until(self, is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { snapshot: Box::new(CancellableSnapshot::new(self.snapshot, is_over)), ..self }
    }

    fn span(&self, place: &JobNode) -> (i64, i64) {
        (place.from, if place.to == i64::MAX { self.question.now.max(place.from) } else { place.to })
    }

    /// Other jobs of the same manager on each node in the job's time there. Jobs of another manager are inside this job or around it.
    fn look_beside(&mut self) -> Result<Vec<Vec<ConcurrentJob>>, ApiError> {
        let (job, share) = (self.question.job.clone(), self.question.share);
        let mut beside: Vec<Vec<ConcurrentJob>> = job.places().iter().map(|_| Vec::new()).collect();
        if share == EnergyShare::All {
            return Ok(beside);
        }
        let by_node: HashMap<&str, usize> =
            job.places().iter().enumerate().map(|(number, place)| (&*place.node, number)).collect();
        let nodes: HashSet<&str> = by_node.keys().copied().collect();
        let range = job.range(self.question.now);
        let read = self.api.store.job_records_on(&nodes, range, BESIDE_MAX, |record| {
            let same = record.job == job.row().job || record.manager != job.row().manager;
            let Some(number) = by_node.get(record.node.as_str()).filter(|_| !same) else { return };
            let (begin, end) = self.span(&job.places()[*number]);
            let to = record.to.unwrap_or(i64::MAX);
            if record.from < end && to > begin {
                let cores = record.cpus.as_deref().and_then(Cpus::parse).map(|cpus| cpus.count());
                beside[*number].push(ConcurrentJob {
                    from: record.from,
                    to,
                    cores,
                    level: record.level.as_str().into(),
                });
            }
        });
        match read.map_err(|error| ApiError::internal(format!("reading the jobs failed: {error}")))? {
            Some(0) => Ok(beside),
            Some(damaged) => {
                self.problems
                    .push(format!("{damaged} records of jobs on these nodes are damaged; the share may lack them"));
                Ok(beside)
            }
            None => Err(ApiError::bad_request(format!(
                "over {BESIDE_MAX} jobs were on these nodes in the job's time; choose another share: all"
            ))),
        }
    }

    /// The job's share of a node, or why it is unknown; an error if the client has disconnected.
    fn weights(&self, number: usize, sink: &BodySink) -> io::Result<Result<ShareWeights, String>> {
        let (place, beside) = (&self.question.job.places()[number], &self.beside[number]);
        let (from, to) = self.span(place);
        if beside.is_empty() || self.question.share == EnergyShare::All {
            return Ok(Ok(ShareWeights::constant(from, to, 1.0)));
        }
        if self.question.share == EnergyShare::CpuTime {
            let part = self.part_of_cpu_time(place, beside, (from, to), sink)?;
            return Ok(part.map(|part| ShareWeights::constant(from, to, part)));
        }
        let own = place.cpus.as_ref().map(Cpus::count);
        let others: Option<Vec<(i64, i64, u64)>> =
            beside.iter().map(|other| Some((other.from, other.to, other.cores?))).collect();
        Ok(match (own, others) {
            (Some(own), Some(others)) => Ok(ShareWeights::of_cores((from, to), own, &others)),
            _ => {
                Err("other jobs were there, and it is not known which cores each had; choose another share: cpu_time (--share cpu-time) or all"
                    .to_owned())
            }
        })
    }

    fn part_of_cpu_time(
        &self,
        place: &JobNode,
        beside: &[ConcurrentJob],
        (from, to): (i64, i64),
        sink: &BodySink,
    ) -> io::Result<Result<f64, String>> {
        let used = |level: &str, from: i64, to: i64| -> io::Result<Option<f64>> {
            if sink.is_abandoned() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let path = format!("{}/job/{level}/{CPU_TIME}", place.prefix);
            let Ok(pattern) = Pattern::new(path) else { return Ok(None) };
            // Also of other users' jobs: the response only shows their sum.
            match self.api.space.sensors(&[pattern]).first() {
                Some(sensor) => rise(self.snapshot.as_ref(), sensor, from, to).map_err(io::Error::other),
                None => Ok(None),
            }
        };
        let Some(own) = used(&place.level, from, to)? else {
            return Ok(Err(format!(
                "other jobs were there, and no {CPU_TIME} of this job is stored; choose another share: cores or all"
            )));
        };
        let mut all = own;
        for other in beside {
            match used(&other.level, from.max(other.from), to.min(other.to))? {
                Some(seconds) => all += seconds,
                None => {
                    return Ok(Err(format!(
                        "no {CPU_TIME} of another job there is stored; choose another share: cores or all"
                    )));
                }
            }
        }
        Ok(if all > 0.0 {
            Ok(own / all)
        } else {
            Err("no job used CPU time there; choose another share: cores or all".to_owned())
        })
    }

    fn write(mut self, sink: &mut BodySink) -> io::Result<()> {
        let job = &self.question.job.clone();
        let mut problems = std::mem::take(&mut self.problems);
        let facility = self.facility.take();
        let is_facility = facility.is_some();
        begin_with_nodes(job, job.range(self.question.now), sink)?;
        let total = match facility {
            Some(sensors) => self.facility(sensors, &mut problems, sink)?,
            None => self.nodes(sink)?,
        };
        let range = job.range(self.question.now);
        let mut warnings = self.snapshot.warnings(range.0, range.1);
        warnings.extend(self.snapshot.notes());
        warnings.extend(problems);
        let share =
            EnergyShare::ALL.iter().find(|(_, share)| *share == self.question.share).map_or("", |(name, _)| *name);
        let meters: Vec<String> = match is_facility {
            true => self.api.jobs.facility_power.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            false => self.question.meters.iter().map(|meter| meter.text().to_owned()).collect(),
        };
        let mut rule = self.question.share.rule().to_owned();
        if is_facility {
            rule = format!(
                "each of {} nodes has the same part of the facility's energy; {rule}",
                self.api.jobs.facility_nodes
            );
        }
        let result = JobEnergyResult {
            total: JobEnergyTotal {
                joules: total.joules,
                kwh: total.joules.map(|joules| joules / J_PER_KWH),
                coverage: if total.time_s > 0.0 { total.covered_s / total.time_s } else { 0.0 },
                covered_s: total.covered_s,
                time_s: total.time_s,
                nodes: job.places().len() as u64,
                nodes_measured: total.measured as u64,
            },
            source: if is_facility { "facility" } else { "node" }.to_owned(),
            meters,
            share: share.to_owned(),
            rule,
            gaps: "energy is of the covered time only; gaps are not filled".to_owned(),
            warnings,
        };
        let text = serde_json::to_string(&result)?;
        writeln!(sink, "],\n{}", text.strip_prefix('{').unwrap_or(&text))
    }

    /// Each node by its own sensors.
    fn nodes(&self, sink: &mut BodySink) -> io::Result<EnergyTotal> {
        let mut total = EnergyTotal::default();
        for (number, place) in self.question.job.places().iter().enumerate() {
            let sources = &self.found[number].1;
            let weights = self.weights(number, sink)?;
            let mut measured: Option<MeasuredEnergy> = None;
            let mut problem = sources.is_empty().then(|| "no sensor measures this node".to_owned());
            match &weights {
                Ok(weights) => {
                    for source in sources {
                        if sink.is_abandoned() {
                            return Err(io::ErrorKind::BrokenPipe.into());
                        }
                        let one = measure(self.snapshot.as_ref(), source, weights).map_err(io::Error::other)?;
                        // The node's coverage is that of its worst sensor.
                        measured = Some(measured.map_or(one, |all| MeasuredEnergy {
                            joules: all.joules + one.joules,
                            covered_ns: all.covered_ns.min(one.covered_ns),
                        }));
                    }
                }
                Err(why) => problem = problem.or(Some(why.clone())),
            }
            let (from, to) = self.span(place);
            total.add(measured, to - from);
            let node = JobNodeEnergy {
                node: place.node.to_string(),
                joules: measured.filter(|measured| measured.covered_ns > 0).map(|measured| measured.joules),
                coverage: measured.map_or(0.0, |measured| measured.covered_ns as f64 / (to - from).max(1) as f64),
                share: weights.as_ref().ok().map(ShareWeights::mean),
                shared_with: self.beside[number].len() as u64,
                sensors: sources.iter().take(NAMED_MAX).map(|source| source.path().to_string()).collect(),
                problem,
            };
            if number > 0 {
                sink.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut *sink, &node)?;
            sink.relay()?;
        }
        Ok(total)
    }

    /// All nodes by the facility's meters.
    fn facility(
        &self,
        sensors: Vec<SensorInfo>,
        problems: &mut Vec<String>,
        sink: &mut BodySink,
    ) -> io::Result<EnergyTotal> {
        let (mut all, mut total) = (Vec::new(), EnergyTotal::default());
        for (number, place) in self.question.job.places().iter().enumerate() {
            match self.weights(number, sink)? {
                Ok(weights) => all.push(weights.scaled(1.0 / self.api.jobs.facility_nodes as f64)),
                Err(why) if problems.len() < PROBLEMS_MAX => problems.push(format!("{}: {why}", place.node)),
                Err(_) => {}
            }
        }
        let weights = ShareWeights::sum(&all);
        let mut measured: Option<MeasuredEnergy> = None;
        for sensor in sensors {
            match EnergySource::new(sensor) {
                Ok(source) => {
                    let one = measure(self.snapshot.as_ref(), &source, &weights).map_err(io::Error::other)?;
                    measured = Some(measured.map_or(one, |all| MeasuredEnergy {
                        joules: all.joules + one.joules,
                        covered_ns: all.covered_ns.min(one.covered_ns),
                    }));
                }
                Err(why) if problems.len() < PROBLEMS_MAX => problems.push(why),
                Err(_) => {}
            }
            if sink.is_abandoned() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        total.add(measured, weights.time_ns());
        total.measured = if total.joules.is_some() { all.len() } else { 0 };
        Ok(total)
    }
}
