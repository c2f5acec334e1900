//! `/api/v1/watch`: streams readings as they are committed, one JSON object a line.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};
use wholegrain_model::{Column, Pattern, Schema, SchemaHash};
use wholegrain_query::Scale;
use wholegrain_store::{LiveBatch, LiveItem, LiveReadings, SensorId, Store};
use wholegrain_transport::payload;

use super::compression::NO_TRANSFORM;
use super::format::{accepted, json_text, reading, scaled};
use super::params::{self, QueryParams};
use super::read::SensorPages;
use super::visibility::only_user;
use super::watch_computed::ComputedWatch;
use super::{Api, ApiError, SENSORS_HEADER};
use crate::access::Role;
use crate::access::tokens::Bearer;
use crate::admission::QuotaPermit;
use crate::lifetime::wait_for_shutdown;
use crate::metrics::Metrics;

const EVENTS: &str = "text/event-stream";
/// Schemas whose matching sensors one watcher caches.
const SELECTIONS_MAX: usize = 65_536;
/// Schemaless sensors for which one watcher caches whether they match.
const SCHEMALESS_MAX: usize = 1 << 20;

/// Streams matching readings until the client disconnects or the server shuts down.
pub(super) async fn watch(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let patterns = QueryParams::of(&uri, params::WATCH)?.some_patterns()?;
    let as_events = accepted(&headers).any(|kind| kind == EVENTS);
    let share = share(&api, &bearer)?;
    let place = super::read::place(&api, &bearer).await?;
    // Subscribe first, then count: nothing in between is missed.
    let batches =
        api.live.watch().ok_or_else(|| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is going down"))?;
    let user = only_user(&bearer).map(str::to_owned);
    let (pages, space) = (SensorPages::new(&api, user.as_deref(), None, &patterns), api.space.clone());
    let (chosen, only_user) = (patterns.clone(), user.clone());
    let find = move |is_gone: &dyn Fn() -> bool| {
        let mut computed = space.virtuals().sensors_until(&chosen, is_gone);
        only_user.iter().for_each(|user| space.retain_seen(user, &mut computed));
        let _place = place;
        (pages.count(is_gone), computed, share)
    };
    let (count, computed, share) = super::read::run_until_abandoned(&api.metrics, find).await?;
    let computing = ComputedWatch::new(api.space.clone(), patterns.clone(), user.clone(), computed);
    let watcher = WatchStream::new(patterns, user, batches, computing, api.store.clone(), api.metrics.clone());
    let shutdown = api.shutdown.clone();
    let stream = futures_util::stream::unfold(watcher, move |mut watcher| {
        // Held as long as the stream.
        let _ = &share;
        let mut shutdown = shutdown.clone();
        async move {
            tokio::select! {
                lines = watcher.next() => {
                    let lines = lines.map(|lines| if as_events { events(&lines) } else { lines });
                    lines.map(|lines| (Ok::<_, std::convert::Infallible>(lines), watcher))
                }
                () = wait_for_shutdown(&mut shutdown) => None,
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(if as_events { EVENTS } else { "application/x-ndjson" })),
        // A compressor, here or in a proxy, would delay readings.
        (header::CACHE_CONTROL, HeaderValue::from_static(NO_TRANSFORM)),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(count)),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// Lines as server-sent events (HTML standard, 9.2), one each.
fn events(lines: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(lines.len() * 2);
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n\n");
    }
    out.into()
}

/// Takes one live stream from the token's quota.
fn share(api: &Api, bearer: &Bearer) -> Result<Option<QuotaPermit>, ApiError> {
    if bearer.role == Role::Admin {
        return Ok(None);
    }
    api.watches.take(&bearer.id).map(Some).ok_or_else(|| {
        let message = format!(
            "{} live streams of this token are open, which is the most (http.watches_per_token_max); close one, or watch more with one",
            api.watches.most()
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

struct SensorSubscription {
    index: usize,
    name: String,
    scale: Scale,
}

struct WatchStream {
    patterns: Vec<Pattern>,
    /// The user whose jobs' sensors are visible; `None` for all.
    only_user: Option<String>,
    /// The store's generation of jobs at the selection.
    jobs_generation: u64,
    /// The store's generation of properties when scales were read.
    properties_generation: u64,
    batches: broadcast::Receiver<LiveItem>,
    computing: ComputedWatch,
    store: Store,
    metrics: Arc<Metrics>,
    selections: HashMap<SchemaHash, Arc<[SensorSubscription]>>,
    /// Schemaless sensors: `None` for one that does not match.
    schemaless: HashMap<SensorId, Option<SensorSubscription>>,
}

impl WatchStream {
    fn new(
        patterns: Vec<Pattern>,
        only_user: Option<String>,
        batches: broadcast::Receiver<LiveItem>,
        computing: ComputedWatch,
        store: Store,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.watchers.add(1);
        let jobs_generation = store.jobs_generation();
        let properties_generation = store.properties_generation();
        let (selections, schemaless) = (HashMap::new(), HashMap::new());
        Self {
            patterns,
            only_user,
            jobs_generation,
            properties_generation,
            batches,
            computing,
            store,
            metrics,
            selections,
            schemaless,
        }
    }

    /// Batches of a job may arrive before its owner is known: sensors left out are examined again.
    fn refresh(&mut self) {
        let generation = self.store.jobs_generation();
        if self.only_user.is_some() && generation != self.jobs_generation {
            self.jobs_generation = generation;
            self.selections.clear();
            self.schemaless.clear();
        }
        // Another scale may have been set.
        let generation = self.store.properties_generation();
        if std::mem::replace(&mut self.properties_generation, generation) != generation {
            self.selections.clear();
            self.schemaless.clear();
        }
    }

    /// The lines of the next batch with matching readings; `None` if the store has been closed.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let item = tokio::select! {
                item = self.batches.recv() => item,
                (lines, count) = self.computing.next() => {
                    self.metrics.watch_readings.add(count);
                    return Some(lines);
                }
            };
            self.refresh();
            match item {
                Ok(LiveItem::Readings(readings)) => {
                    if let Some((lines, count)) = self.reading_lines(&readings) {
                        self.metrics.watch_readings.add(count);
                        return Some(lines);
                    }
                }
                Ok(LiveItem::Batch(batch)) => {
                    let chosen = self.select(&batch.schema);
                    if chosen.is_empty() {
                        continue;
                    }
                    match lines(&batch, &chosen) {
                        Ok((lines, readings)) => {
                            self.metrics.watch_readings.add(readings);
                            return Some(lines);
                        }
                        Err(error) => {
                            tracing::warn!("watch: a stored batch of {} cannot be read: {error}", batch.agent)
                        }
                    }
                }
                Err(RecvError::Lagged(count)) => self.metrics.watch_lost_batches.add(count),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The matching readings of schemaless sensors, in the order of arrival.
    fn reading_lines(&mut self, readings: &LiveReadings) -> Option<(Bytes, u64)> {
        let (mut out, mut count) = (Vec::new(), 0);
        for one in &readings.readings {
            if self.schemaless.len() >= SCHEMALESS_MAX && !self.schemaless.contains_key(&one.sensor) {
                self.schemaless.clear();
            }
            let (store, patterns, only_user) = (&self.store, &self.patterns, &self.only_user);
            let chosen = self.schemaless.entry(one.sensor).or_insert_with(|| {
                let info = store.sensor(one.sensor)?;
                let matches = patterns.iter().any(|pattern| pattern.matches(&info.path))
                    && only_user.as_ref().is_none_or(|user| store.sees(user, &info.path));
                let chosen =
                    SensorSubscription { index: 0, name: json_text(&info.path), scale: Scale::new(info.scale) };
                matches.then_some(chosen)
            });
            if let Some(chosen) = chosen {
                let value = Some(scaled(one.value, chosen.scale));
                // Writing into memory cannot fail.
                let _ = reading(&chosen.name, one.time, value, &mut out);
                count += 1;
            }
        }
        (count > 0).then(|| (out.into(), count))
    }

    fn select(&mut self, schema: &Schema) -> Arc<[SensorSubscription]> {
        if let Some(chosen) = self.selections.get(&schema.hash()) {
            return chosen.clone();
        }
        let chosen: Arc<[SensorSubscription]> = (0..schema.len())
            .map(|index| (index, schema.path(index)))
            .filter(|(_, path)| self.patterns.iter().any(|pattern| pattern.matches(path)))
            .filter(|(_, path)| self.only_user.as_ref().is_none_or(|user| self.store.sees(user, path)))
            .map(|(index, path)| SensorSubscription {
                index,
                name: json_text(&path),
                scale: Scale::new(self.store.scale(&path).unwrap_or(schema.sensors()[index].scale)),
            })
            .collect();
        if self.selections.len() >= SELECTIONS_MAX {
            self.selections.clear();
        }
        self.selections.insert(schema.hash(), chosen.clone());
        chosen
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.metrics.watchers.add(-1);
    }
}

/// The matching readings of a batch, in the order of time.
fn lines(batch: &LiveBatch, chosen: &[SensorSubscription]) -> Result<(Bytes, u64), payload::PayloadError> {
    let mut columns: Vec<Option<Column>> = chosen.iter().map(|_| None).collect();
    let mut next = 0;
    let times = payload::for_each_column(&batch.payload, &batch.schema, |index, column| {
        if chosen.get(next).is_some_and(|chosen| chosen.index == index) {
            columns[next] = Some(column.clone());
            next += 1;
        }
    })?;
    let mut out = Vec::new();
    for (sample, &time) in times.iter().enumerate() {
        for (chosen, column) in chosen.iter().zip(&columns) {
            let value = column.as_ref().and_then(|column| column.get(sample)).map(|value| scaled(value, chosen.scale));
            // Writing into memory cannot fail.
            let _ = reading(&chosen.name, time, value, &mut out);
        }
    }
    Ok((out.into(), (times.len() * chosen.len()) as u64))
}
