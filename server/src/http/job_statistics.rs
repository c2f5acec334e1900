//! `/api/v1/jobs/{id}/statistics`: statistics of a job's sensors on each node and over the nodes, streamed.

use std::io::{self, Write};
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{MetricOverNodes, NodeMetric, Spread, UtcTime};
use wholegrain_model::Timestamp;
use wholegrain_model::text::csv_field;
use wholegrain_query::jobs::JobScope;
use wholegrain_query::jobs::statistics::{MetricStatistics, NodeStatistics, ValueStatistics, statistics as measure};
use wholegrain_query::{CancellableSnapshot, SENSORS_MAX};
use wholegrain_store::{ReadSnapshot, ReadStore, SensorInfo};

use super::clock::now;
use super::jobs::listed;
use super::params::{JobFilter, QueryParams, check_range};
use super::read::{SensorPages, run_until_abandoned};
use super::sink::{BodySink, sink};
use super::visibility::only_user;
use super::{Api, ApiError, SENSORS_HEADER, job_scope};
use crate::access::tokens::Bearer;

pub(super) const STATISTICS: &[&str] = &["pattern", "at", "from", "to", "nodes", "format"];
/// Columns of the CSV. A row with an empty node is over all nodes; only it has values after `coverage`.
const CSV: &str = "metric,unit,node,count,min,mean,max,deviation,coverage,nodes,min_node,max_node,imbalance\n";

#[derive(Clone, Copy)]
struct StatisticsFormat {
    csv: bool,
    /// Whether each node is listed.
    nodes: bool,
}

pub(super) async fn statistics(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, STATISTICS)?;
    let (patterns, now) = (params.some_patterns()?, now());
    let time = |name: &str| params.read(name, |text| Timestamp::parse(text, now));
    let at = time("at")?.map(|at| at.0);
    let nodes = params.read("nodes", |text| match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("expected true or false"),
    })?;
    let csv = params.read("format", |text| match text {
        "json" => Ok(false),
        "csv" => Ok(true),
        _ => Err("expected json or csv"),
    })?;
    let form = StatisticsFormat { csv: csv == Some(true), nodes: nodes != Some(false) };
    let of_job = JobFilter { id, at, range_given: (true, true) };
    let Some(job) = job_scope::find(&api, &bearer, Some(&of_job)).await? else {
        return Err(job_scope::missing(&of_job.id, at));
    };
    let range = range_in(job.range(now.0), time("from")?, time("to")?)?;
    let permit = api.queries.try_take(&bearer)?;
    let user = only_user(&bearer).map(str::to_owned);
    let pages = SensorPages::new(&api, user.as_deref(), Some(&job), &patterns);
    let choose = move |is_gone: &dyn Fn() -> bool| (pages.at_most(SENSORS_MAX, is_gone), permit);
    let (sensors, permit) = run_until_abandoned(&api.metrics, choose).await?;
    if sensors.len() > SENSORS_MAX {
        let message = format!("the patterns choose over {SENSORS_MAX} sensors, which is the most; choose fewer");
        return Err(ApiError::bad_request(message));
    }
    let count = sensors.len();
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        api.metrics.queries_running.add(1);
        let client = sink.breaker();
        let snapshot = CancellableSnapshot::new(api.space.snapshot(), move || client.is_abandoned());
        let written = write(&job, &snapshot, &sensors, (range, now.0), form, &mut sink);
        if let Err(error) = written.and_then(|()| sink.flush()) {
            let breaker = sink.breaker();
            if breaker.is_abandoned() {
                api.metrics.queries_abandoned.inc();
            } else {
                tracing::error!("statistics of job {}: {error}", job.row().job);
            }
            breaker.fail(error);
        }
        api.metrics.queries_running.add(-1);
        drop(permit);
    });
    let kind = if form.csv { "text/csv; charset=utf-8" } else { "application/json" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(count)),
    ];
    Ok((headers, body).into_response())
}

/// The requested range, with the ends of the job's time where the request gives none.
fn range_in((begin, end): (i64, i64), from: Option<Timestamp>, to: Option<Timestamp>) -> Result<(i64, i64), ApiError> {
    let (begin, end) = (Timestamp(begin), Timestamp(end));
    let outside = match (from, to) {
        (Some(from), None) if from > end => format!("`from` ({from}) is after it"),
        (None, Some(to)) if to < begin => format!("`to` ({to}) is before it"),
        _ => {
            let (from, to) = (from.unwrap_or(begin), to.unwrap_or(end));
            return check_range(from, to).map(|()| (from.0, to.0));
        }
    };
    Err(ApiError::bad_request(format!("the job's time is {begin} to {end}, and {outside}; choose a time within it")))
}

fn write(
    job: &JobScope,
    snapshot: &dyn ReadSnapshot,
    sensors: &[SensorInfo],
    (range, now): ((i64, i64), i64),
    form: StatisticsFormat,
    sink: &mut BodySink,
) -> io::Result<()> {
    match form.csv {
        true => sink.write_all(CSV.as_bytes())?,
        false => begin_with_nodes(job, range, sink)?,
    }
    let (mut written, mut first) = (Ok(()), true);
    let over = measure(job, snapshot, sensors, range, now, |row| {
        written = on_node(row, form, &mut first, sink);
        written.is_ok()
    });
    written?;
    let over = over.map_err(io::Error::other)?;
    if form.csv {
        return over.iter().try_for_each(|row| over_nodes_csv(row, sink));
    }
    let mut warnings = snapshot.warnings(range.0, range.1);
    warnings.extend(snapshot.notes());
    warnings.extend(job.warnings());
    write!(sink, "],\n\"metrics\":")?;
    let over: Vec<MetricOverNodes> = over.into_iter().map(metric).collect();
    serde_json::to_writer(&mut *sink, &over)?;
    write!(sink, ",\n\"warnings\":")?;
    serde_json::to_writer(&mut *sink, &warnings)?;
    sink.write_all(b"}\n")
}

/// Writes the beginning of a response whose next elements are nodes.
pub(super) fn begin_with_nodes(job: &JobScope, (from, to): (i64, i64), sink: &mut BodySink) -> io::Result<()> {
    write!(sink, "{{\"job\":")?;
    serde_json::to_writer(&mut *sink, &listed(job.row()))?;
    write!(sink, ",\"from\":\"{}\",\"to\":\"{}\",\n\"nodes\":[", UtcTime(from), UtcTime(to))
}

fn spread(of: ValueStatistics) -> Spread {
    let ValueStatistics { count, min, mean, max, deviation } = of;
    Spread { count, min, mean, max, deviation }
}

fn metric(of: MetricStatistics) -> MetricOverNodes {
    MetricOverNodes {
        metric: of.metric,
        unit: of.unit,
        nodes: of.nodes,
        spread: spread(of.spread),
        coverage: of.coverage,
        node_means: spread(of.node_means),
        min_node: of.min_node,
        max_node: of.max_node,
        imbalance: of.imbalance,
    }
}

fn on_node(row: &NodeStatistics<'_>, form: StatisticsFormat, first: &mut bool, sink: &mut BodySink) -> io::Result<()> {
    if sink.is_abandoned() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    if !form.nodes {
        return Ok(());
    }
    if form.csv {
        let (metric, unit, node) = (csv_field(row.metric), csv_field(row.unit), csv_field(row.node));
        writeln!(sink, "{metric},{unit},{node},{},{},,,,", spread_csv(&row.spread), row.coverage)?;
    } else {
        sink.write_all(if std::mem::take(first) { b"" } else { b",\n" })?;
        let row = NodeMetric {
            node: row.node.into(),
            metric: row.metric.into(),
            unit: row.unit.into(),
            spread: spread(row.spread),
            coverage: row.coverage,
        };
        serde_json::to_writer(&mut *sink, &row)?;
    }
    sink.relay()
}

fn over_nodes_csv(row: &MetricStatistics, sink: &mut BodySink) -> io::Result<()> {
    let node = |name: &Option<String>| csv_field(name.as_deref().unwrap_or_default());
    writeln!(
        sink,
        "{},{},,{},{},{},{},{},{}",
        csv_field(&row.metric),
        csv_field(&row.unit),
        spread_csv(&row.spread),
        row.coverage,
        row.nodes,
        node(&row.min_node),
        node(&row.max_node),
        number(row.imbalance)
    )?;
    sink.relay()
}

fn spread_csv(spread: &ValueStatistics) -> String {
    let ValueStatistics { count, min, mean, max, deviation } = *spread;
    format!("{count},{},{},{},{}", number(min), number(mean), number(max), number(deviation))
}

fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_end_outside_of_the_jobs_time_is_refused() {
        let job = (100, 200);
        let range = |from: Option<i64>, to: Option<i64>| range_in(job, from.map(Timestamp), to.map(Timestamp)).ok();
        assert_eq!(range(None, None), Some(job));
        assert_eq!(range(Some(150), None), Some((150, 200)));
        assert_eq!(range(Some(300), None), None, "the job has ended");
        assert_eq!(range(None, Some(50)), None, "the job had not begun");
        assert_eq!(range(Some(300), Some(400)), Some((300, 400)));
        assert_eq!(range(Some(4), Some(3)), None);
    }
}
