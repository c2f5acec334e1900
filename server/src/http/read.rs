//! `/api/v1/sensors` and `/api/v1/newest`: long lists, streamed a page at a time. Permits limit concurrent lists; a list ends when its client
//! disconnects.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{Sensor, UtcTime};
use wholegrain_model::{Pattern, Timestamp, Value};
use wholegrain_query::Scale;
use wholegrain_query::jobs::JobScope;
use wholegrain_store::SensorInfo;

use super::format::{json_text, json_value, scaled};
use super::params::{self, QueryParams};
use super::sink::{BodySink, sink};
use super::visibility::only_user;
use super::{Api, ApiError, NEXT_HEADER, SENSORS_HEADER};
use crate::access::tokens::Bearer;
use crate::metrics::Metrics;
use crate::token_permits::TokenPermit;

/// Default and maximum of sensors in a page.
const LIMIT: (usize, usize) = (10_000, 100_000);
/// How long a list waits for its permit.
const PLACE_TIME_MAX: Duration = Duration::from_secs(5);

/// Waits for a permit for a long list.
pub(super) async fn place(api: &Api, bearer: &Bearer) -> Result<TokenPermit, ApiError> {
    Ok(api.lists.take(bearer, PLACE_TIME_MAX).await?)
}

/// Lists a page of sensors; without a pattern all sensors.
pub(super) async fn sensors(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, params::SENSORS)?;
    let mut patterns = params.patterns()?;
    let job = super::job_scope::find(&api, &bearer, params::of_job(&params, super::clock::now())?.as_ref()).await?;
    if patterns.is_empty() {
        patterns.push(Pattern::new("/**").map_err(|error| ApiError::internal(error.to_string()))?);
    }
    let (limit, after) = limits(&params, LIMIT)?;
    let place = place(&api, &bearer).await?;
    let pages = SensorPages::new(&api, only_user(&bearer), job.as_ref(), &patterns);
    let choose = move |is_gone: &dyn Fn() -> bool| (pages.some(after.as_deref(), limit, is_gone), place);
    let ((chosen, next), place) = run_until_abandoned(&api.metrics, choose).await?;
    Ok(page("sensors", chosen.len(), next, move |sink| {
        let _place = place;
        let mut begins = true;
        for info in &chosen {
            begins = sensor(info, begins, sink)?;
        }
        Ok(())
    }))
}

/// Lists the newest readings of a page of sensors.
pub(super) async fn newest(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, params::NEWEST)?;
    let (patterns, (limit, after)) = (params.some_patterns()?, limits(&params, LIMIT)?);
    let place = place(&api, &bearer).await?;
    let pages = SensorPages::new(&api, only_user(&bearer), None, &patterns);
    let choose = move |is_gone: &dyn Fn() -> bool| (pages.some(after.as_deref(), limit, is_gone), place);
    let ((chosen, next), place) = run_until_abandoned(&api.metrics, choose).await?;
    Ok(page("readings", chosen.len(), next, move |sink| {
        let _place = place;
        let mut begins = true;
        for some in chosen.chunks(PAGE_SENSORS) {
            for (info, newest) in some.iter().zip(api.space.newest(some)) {
                if let Some((time, value)) = newest {
                    reading(info, time, value, begins, sink)?;
                    begins = false;
                }
            }
        }
        Ok(())
    }))
}

/// The size of a page, and the path after which it begins.
pub(super) fn limits(params: &QueryParams, (usual, most): (usize, usize)) -> Result<(usize, Option<String>), ApiError> {
    let limit = params.read("limit", |text| match text.parse() {
        Ok(limit) if (1..=most).contains(&limit) => Ok(limit),
        _ => Err(format!("expected 1 to {most}")),
    })?;
    Ok((limit.unwrap_or(usual), params.read("after", |text| Ok::<_, &str>(text.to_owned()))?))
}

/// A page of a list: `write` writes the elements between the brackets; the cursor of the next page follows.
pub(super) fn page(
    name: &'static str,
    count: usize,
    next: Option<Arc<str>>,
    write: impl FnOnce(&mut BodySink) -> io::Result<()> + Send + 'static,
) -> Response {
    let tail = next.clone();
    let mut response = list(name, count, move |sink| {
        write(sink)?;
        match tail {
            Some(next) => writeln!(sink, "],\"next\":{}}}", json_text(&next)),
            None => sink.write_all(b"]}\n"),
        }
    });
    if let Some(next) = next.and_then(|next| HeaderValue::from_bytes(next.as_bytes()).ok()) {
        response.headers_mut().insert(NEXT_HEADER, next);
    }
    response
}

/// Reports the end of a request: the handler's future, and this with it, is dropped when the client disconnects.
#[derive(Default)]
pub(super) struct RequestGuard(Arc<AtomicBool>);

impl RequestGuard {
    /// A flag that becomes true when this is dropped.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs `work` on a blocking thread. `work` gets a function that returns whether the client has disconnected, and should call it now and then.
/// `work` must own its permit and may return it with the result: abandoned work goes on until its next call.
pub(super) async fn run_until_abandoned<T: Send + 'static>(
    metrics: &Arc<Metrics>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let over = RequestGuard::default();
    let (is_over, metrics) = (over.flag(), metrics.clone());
    let done = tokio::task::spawn_blocking(move || {
        let was_abandoned = Cell::new(false);
        let done = work(&|| {
            let is_over = is_over.load(Relaxed);
            was_abandoned.set(was_abandoned.get() || is_over);
            is_over
        });
        if was_abandoned.get() {
            metrics.requests_abandoned.inc();
        }
        done
    })
    .await;
    done.map_err(|error| ApiError::internal(format!("choosing the sensors failed: {error}")))
}

/// Sensors in memory at a time while a list is written.
const PAGE_SENSORS: usize = 4096;

/// The sensors that match the patterns and that the bearer may see (users do not see other users' jobs), optionally of one job, a page at a time:
/// there may be millions.
pub(super) struct SensorPages {
    api: Arc<Api>,
    patterns: Vec<Pattern>,
    only_user: Option<String>,
    job: Option<Arc<JobScope>>,
}

impl SensorPages {
    pub fn new(api: &Arc<Api>, only_user: Option<&str>, job: Option<&Arc<JobScope>>, patterns: &[Pattern]) -> Self {
        let (api, patterns) = (api.clone(), patterns.to_vec());
        Self { api, patterns, only_user: only_user.map(str::to_owned), job: job.cloned() }
    }

    /// A page after a path, and the cursor of the next one if there is one.
    fn page(&self, after: Option<&str>, is_over: &dyn Fn() -> bool) -> (Vec<SensorInfo>, Option<Arc<str>>) {
        let space = &self.api.space;
        let mut page = space.sensors_after_until(&self.patterns, after, PAGE_SENSORS, is_over);
        let next = (page.len() == PAGE_SENSORS).then(|| page.last().map(|last| last.path.clone())).flatten();
        if let Some(user) = &self.only_user {
            space.retain_seen(user, &mut page);
        }
        if let Some(job) = &self.job {
            job.retain(&mut page);
        }
        (page, next)
    }

    /// Passes each sensor to `take`, a page in memory at a time; fewer if the client disconnects.
    pub fn each(&self, is_gone: &dyn Fn() -> bool, mut take: impl FnMut(SensorInfo)) {
        let mut next: Option<Arc<str>> = None;
        while !is_gone() {
            let (page, after) = self.page(next.as_deref(), is_gone);
            page.into_iter().for_each(&mut take);
            next = after;
            if next.is_none() {
                return;
            }
        }
    }

    /// The number of sensors; fewer if the client disconnects.
    pub fn count(&self, is_gone: &dyn Fn() -> bool) -> usize {
        let mut count = 0;
        self.each(is_gone, |_| count += 1);
        count
    }

    /// At most `limit` sensors after a path, and the last one's path if there are more; fewer if the client disconnects.
    pub fn some(
        &self,
        after: Option<&str>,
        limit: usize,
        is_gone: &dyn Fn() -> bool,
    ) -> (Vec<SensorInfo>, Option<Arc<str>>) {
        let (mut sensors, mut next) = self.page(after, is_gone);
        while let Some(after) = next.filter(|_| sensors.len() <= limit && !is_gone()) {
            let (page, after) = self.page(Some(&after), is_gone);
            sensors.extend(page);
            next = after;
        }
        let more = sensors.len() > limit;
        sensors.truncate(limit);
        let last = sensors.last().filter(|_| more).map(|last| last.path.clone());
        (sensors, last)
    }

    /// All sensors if there are at most `most`, else a few more than that; any number when `is_over`.
    pub fn at_most(&self, most: usize, is_over: &dyn Fn() -> bool) -> Vec<SensorInfo> {
        let (mut sensors, mut next) = if is_over() { (Vec::new(), None) } else { self.page(None, is_over) };
        while let Some(after) = next.filter(|_| sensors.len() <= most && !is_over()) {
            let (page, after) = self.page(Some(&after), is_over);
            sensors.extend(page);
            next = after;
        }
        sensors
    }
}

/// `{"<name>":[…]}`; `write` writes the rest after the first bracket, on a blocking thread.
fn list(
    name: &'static str,
    count: usize,
    write: impl FnOnce(&mut BodySink) -> io::Result<()> + Send + 'static,
) -> Response {
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        let written = write!(sink, "{{\"{name}\":[").and_then(|()| write(&mut sink)).and_then(|()| sink.flush());
        if let Err(error) = written {
            // Fails only if the client has disconnected; the response is broken off in any case.
            sink.breaker().fail(error);
        }
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(count)),
    ];
    (headers, body).into_response()
}

/// Writes one sensor; returns false, the next one's `first`.
fn sensor(info: &SensorInfo, first: bool, sink: &mut BodySink) -> io::Result<bool> {
    sink.write_all(if first { b"" } else { b",\n" })?;
    let sensor = Sensor {
        path: (&*info.path).into(),
        unit: (&*info.unit).into(),
        kind: info.kind,
        value_type: info.value_type,
        scale: info.scale,
        interval_ns: info.interval_ns,
        last_time: info.last_time.map(UtcTime),
        description: (&*info.description).into(),
        agent: (&*info.agent).into(),
    };
    serde_json::to_writer(&mut *sink, &sensor)?;
    sink.relay()?;
    Ok(false)
}

fn reading(info: &SensorInfo, time: i64, value: Option<Value>, first: bool, sink: &mut BodySink) -> io::Result<()> {
    sink.write_all(if first { b"" } else { b",\n" })?;
    write!(sink, "{{\"path\":{},\"time\":\"{}\",\"value\":", json_text(&info.path), Timestamp(time))?;
    json_value(value.map(|value| scaled(value, Scale::new(info.scale))), sink)?;
    write!(sink, ",\"unit\":{}}}", json_text(&info.unit))?;
    sink.relay()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_when_nobody_waits_for_it() {
        let (began, begun) = tokio::sync::oneshot::channel();
        let (ended, end) = tokio::sync::oneshot::channel();
        let (metrics, place) = (Arc::new(Metrics::default()), Arc::new(()));
        let (all, held) = (metrics.clone(), place.clone());
        let waiting = tokio::spawn(async move {
            run_until_abandoned(&all, move |is_gone| {
                assert!(!is_gone());
                began.send(()).unwrap();
                while !is_gone() {
                    std::thread::yield_now();
                }
                ended.send(Arc::strong_count(&held)).unwrap();
                held
            })
            .await
        });
        begun.await.unwrap();
        waiting.abort();
        let holders = tokio::time::timeout(Duration::from_secs(60), end).await.expect("it goes on").unwrap();
        assert_eq!(holders, 2, "the work has its place until it ends");
        let given_back = async {
            while Arc::strong_count(&place) > 1 || metrics.requests_abandoned.get() != 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), given_back)
            .await
            .expect("the place is given back, and it is counted");
        assert_eq!(run_until_abandoned(&metrics, |is_gone| is_gone()).await.ok(), Some(false));
        assert_eq!(metrics.requests_abandoned.get(), 1);
    }
}
