//! `/api/v1/jobs` and `/api/v1/jobs/{id}`: lists jobs, and everything known of one.

use std::io::{self, Write};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{JobAllocation, JobPage, JobRun, JobStepTimes, JobSummary, ListedJob, RunState, UtcTime};
use wholegrain_model::text::csv_field;
use wholegrain_model::{JobRecord, Timestamp};
use wholegrain_store::{JobFilter, JobRow, JobSearchResult, JobState};

use super::clock::now;
use super::params::QueryParams;
use super::sink::{BodySink, sink};
use super::visibility::only_user;
use super::{Api, ApiError};
use crate::access::tokens::Bearer;
use crate::jobs::add_to_summary;

pub(super) const JOBS: &[&str] =
    &["user", "node", "account", "partition", "manager", "name", "state", "from", "to", "limit", "after", "format"];
pub(super) const JOB: &[&str] = &["at"];
/// Default and maximum of rows in a page.
const LIMIT: (usize, usize) = (100, 10_000);

/// Lists jobs, the newest first.
pub(super) async fn jobs(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, JOBS)?;
    let filter = filter(&params, only_user(&bearer))?;
    let csv = params.read("format", |text| match text {
        "json" => Ok(false),
        "csv" => Ok(true),
        _ => Err("expected json or csv"),
    })?;
    let list = tokio::task::spawn_blocking(move || api.store.jobs(&filter)).await;
    let list = list.map_err(|error| ApiError::internal(format!("listing the jobs failed: {error}")))?;
    let next = list.next.map(|(time, count)| format!("{time}.{count}"));
    if csv != Some(true) {
        return Ok(Json(JobPage { jobs: list.rows.iter().map(listed).collect(), next }).into_response());
    }
    let mut text =
        String::from("job,also,manager,user,uid,name,account,partition,state,nodes,from,to,cpu_s,memory_peak\n");
    for job in &list.rows {
        let (text_of, time) = (
            |text: &Option<String>| csv_field(text.as_deref().unwrap_or_default()),
            |time| Timestamp(time).to_string(),
        );
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let fields = [
            csv_field(&job.job),
            text_of(&job.also),
            csv_field(&job.manager),
            text_of(&job.user),
            job.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            text_of(&job.name),
            text_of(&job.account),
            text_of(&job.partition),
            state(job.state).name().to_owned(),
            job.nodes.to_string(),
            time(job.from),
            job.to.map(time).unwrap_or_default(),
            number(job.cpu_s),
            number(job.memory_peak),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    let mut response = ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], text).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
        response.headers_mut().insert(super::NEXT_HEADER, next);
    }
    Ok(response)
}

fn filter(params: &QueryParams, only_user: Option<&str>) -> Result<JobFilter, ApiError> {
    let text = |name: &str| params.read(name, |text| Ok::<_, &str>(text.to_owned()));
    let now = now();
    let time =
        |name: &str| Ok::<_, ApiError>(params.read(name, |text| Timestamp::parse(text, now))?.map(|time| time.0));
    let limit = params.read("limit", |text| match text.parse() {
        Ok(limit) if (1..=LIMIT.1).contains(&limit) => Ok(limit),
        _ => Err(format!("expected 1 to {}", LIMIT.1)),
    })?;
    Ok(JobFilter {
        only_user: only_user.map(str::to_owned),
        user: text("user")?,
        node: text("node")?,
        account: text("account")?,
        partition: text("partition")?,
        manager: text("manager")?,
        name: text("name")?,
        state: params.read("state", |text| match text {
            "running" => Ok(JobState::Running),
            "ended" => Ok(JobState::Ended),
            _ => Err("expected running or ended"),
        })?,
        from: time("from")?,
        to: time("to")?,
        limit: limit.unwrap_or(LIMIT.0),
        after: params.read("after", |text| {
            let parts = text.split_once('.').and_then(|(time, count)| Some((time.parse().ok()?, count.parse().ok()?)));
            parts.ok_or("expected `next` of the previous page")
        })?,
    })
}

fn state(state: JobState) -> RunState {
    match state {
        JobState::Running => RunState::Running,
        JobState::Ended => RunState::Ended,
    }
}

/// A job in lists.
pub(super) fn listed(row: &JobRow) -> ListedJob {
    ListedJob {
        job: row.job.clone(),
        also: row.also.clone(),
        manager: row.manager.clone(),
        user: row.user.clone(),
        uid: row.uid,
        name: row.name.clone(),
        account: row.account.clone(),
        partition: row.partition.clone(),
        state: state(row.state),
        nodes: row.nodes as u64,
        node_names: row.node_names.clone(),
        from: UtcTime(row.from),
        to: row.to.map(UtcTime),
        cpu_s: row.cpu_s,
        memory_peak: row.memory_peak,
    }
}

/// The record of a job on one node.
fn allocation(record: JobRecord) -> JobAllocation {
    let step = |step: wholegrain_model::StepRecord| JobStepTimes {
        name: step.name,
        from: UtcTime(step.from),
        to: step.to.map(UtcTime),
    };
    JobAllocation {
        job: record.job,
        level: record.level,
        manager: record.manager,
        node: record.node,
        prefix: record.prefix,
        owner: record.owner,
        uid: record.uid,
        user: record.user,
        cpus: record.cpus,
        devices: record.devices,
        from: UtcTime(record.from),
        to: record.to.map(UtcTime),
        end_unseen: record.end_unseen,
        name: record.name,
        account: record.account,
        partition: record.partition,
        nodes: record.nodes,
        also: record.also,
        steps: record.steps.into_iter().map(step).collect(),
        steps_dropped: record.steps_dropped,
        totals: record.totals,
        tasks_missing: record.tasks_missing,
        totals_at: record.totals_at.map(UtcTime),
        revision: record.revision,
    }
}

pub(super) async fn job(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let now = now();
    let at = QueryParams::of(&uri, JOB)?.read("at", |text| Timestamp::parse(text, now))?.map(|time| time.0);
    let Some(found) = api.store.find_job(&id, only_user(&bearer), at) else {
        return Err(super::job_scope::missing(&id, at));
    };
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = write_details(&api, &found, &mut sink).and_then(|()| sink.flush()) {
            if error.kind() != io::ErrorKind::BrokenPipe {
                tracing::error!("job {}: {error}", found.row.job);
            }
            sink.breaker().fail(error);
        }
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Writes a [`wholegrain_api::JobDetails`]: the job, then each allocation as it is read, then the summary.
fn write_details(api: &Api, found: &JobSearchResult, sink: &mut BodySink) -> io::Result<()> {
    let run = |run: &wholegrain_store::JobRun| JobRun {
        job: run.job.clone(),
        manager: run.manager.clone(),
        from: UtcTime(run.from),
        to: run.to.map(UtcTime),
        nodes: run.nodes as u64,
    };
    let runs: Vec<JobRun> = found.runs.iter().map(run).collect();
    write!(sink, "{{\"job\":")?;
    serde_json::to_writer(&mut *sink, &listed(&found.row))?;
    write!(sink, ",\"runs\":")?;
    serde_json::to_writer(&mut *sink, &runs)?;
    write!(sink, ",\n\"allocations\":[")?;
    let (mut summary, mut first) = (JobSummary::default(), true);
    let damaged = api.store.job_records(found, |record| {
        add_to_summary(&mut summary, &record);
        sink.write_all(if std::mem::take(&mut first) { b"" } else { b",\n" })?;
        serde_json::to_writer(&mut *sink, &allocation(record))?;
        sink.relay()
    });
    let damaged = damaged.map_err(io::Error::other)??;
    write!(sink, "],\n\"summary\":")?;
    serde_json::to_writer(&mut *sink, &summary)?;
    writeln!(sink, ",\"damaged\":{damaged}}}")
}
