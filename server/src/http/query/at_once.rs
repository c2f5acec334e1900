//! Small results without a blocking thread: each hand-over costs more than the query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::{Handle, RuntimeFlavor};
use wholegrain_query::Query;
use wholegrain_store::SensorInfo;

use super::super::Api;
use super::super::format::ResponseFormat;
use super::super::read::SensorPages;
use super::super::sink::BufferedBody;
use super::QueryHead;

/// The most sensors of a query that is tried this way.
const SENSORS_MAX: usize = 4096;
/// The most rows that it may be expected to have.
const ROWS_MAX: u64 = 4096;
/// The time limit. A longer query starts again and streams.
const TIME_MAX: Duration = Duration::from_millis(5);

/// The sensors that a query matches, if they were looked up and are not too many.
pub(super) type MatchingSensors = Option<Arc<[SensorInfo]>>;

/// Head and body of a small result. If it is not known to be small, turns out to be larger, or fails, the error holds its sensors.
pub(super) fn answer(
    api: &Arc<Api>,
    only_user: Option<&str>,
    query: &Query,
    format: ResponseFormat,
) -> Result<(QueryHead, Bytes), MatchingSensors> {
    let many = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    let rows = windows(query).map(|rows| rows.min(query.limit.unwrap_or(u64::MAX)));
    if !many || query.validate().is_err() || rows.is_some_and(|rows| rows > ROWS_MAX) {
        return Err(None);
    }
    // Reading may wait for the disk: other tasks of this thread move elsewhere meanwhile.
    tokio::task::block_in_place(|| {
        let until = Instant::now() + TIME_MAX;
        let is_late = || Instant::now() > until;
        let sensors = SensorPages::new(api, only_user, None, &query.patterns).at_most(SENSORS_MAX, &is_late);
        if sensors.len() > SENSORS_MAX || is_late() {
            return Err(None);
        }
        let sensors: Arc<[SensorInfo]> = sensors.into();
        let small = is_small(query, &sensors).then(|| run(api, &sensors, query, format, until));
        small.flatten().ok_or(Some(sensors))
    })
}

fn run(
    api: &Arc<Api>,
    sensors: &Arc<[SensorInfo]>,
    query: &Query,
    format: ResponseFormat,
    until: Instant,
) -> Option<(QueryHead, Bytes)> {
    let snapshot = api.space.snapshot_for(sensors);
    let mut result = wholegrain_query::run_on(snapshot, sensors.clone(), query).ok()?;
    let head = QueryHead::of(&result);
    let mut reported = std::mem::take(&mut result.warnings);
    reported.append(&mut result.notes);
    result.batches.stop_when(move || Instant::now() > until);
    let mut rows = 0;
    let whole =
        super::answer(result, &reported, format, BufferedBody::default(), |more| rows += more).ok()?.into_bytes();
    api.metrics.query_rows.add(rows);
    api.metrics.query_bytes.add(whole.len() as u64);
    Some((head, whole))
}

/// The number of windows of each series, if known.
fn windows(query: &Query) -> Option<u64> {
    let range = query.to.0.abs_diff(query.from.0);
    match (query.points, query.every) {
        (Some(points), _) => Some(points),
        (None, Some(every)) => Some(range / every.ns().max(1)),
        (None, None) => query.agg.map(|_| 1),
    }
}

/// Whether few rows are to be expected.
fn is_small(query: &Query, sensors: &[SensorInfo]) -> bool {
    let range = query.to.0.abs_diff(query.from.0);
    let rows = |sensor: &SensorInfo| {
        // Computed sensors take unknown time, and sensors without interval may have any number of readings.
        let computed = sensor.id.is_computed();
        let rows = windows(query).or_else(|| range.checked_div(sensor.interval_ns));
        rows.filter(|_| !computed).unwrap_or(u64::MAX)
    };
    let (mut most, mut all) = (0, 0u64);
    for rows in sensors.iter().map(rows) {
        most = rows.max(most);
        all = all.saturating_add(rows);
    }
    let rows = if query.across.is_some() && windows(query).is_some() { most } else { all };
    rows.min(query.limit.unwrap_or(u64::MAX)) <= ROWS_MAX
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Interval, Kind, Pattern, Timestamp, ValueType};
    use wholegrain_query::{Across, Agg};
    use wholegrain_store::SensorId;

    use super::*;

    #[test]
    fn small_is_what_has_few_rows_for_certain() {
        const SECOND: i64 = 1_000_000_000;
        let sensor = |id: u32, interval_ns: u64| SensorInfo {
            id: SensorId(id),
            path: "/n/x".into(),
            unit: String::new(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            wraps_at: None,
            description: String::new(),
            interval_ns,
            last_time: None,
            agent: "".into(),
        };
        let query = |seconds: i64, every: Option<u64>, across: bool| Query {
            patterns: vec![Pattern::new("/**").unwrap()],
            from: Timestamp(0),
            to: Timestamp(seconds * SECOND),
            every: every.map(|seconds| Interval::from_ns(seconds * SECOND.cast_unsigned())),
            points: None,
            agg: None,
            op: None,
            across: across.then_some(Across { agg: Agg::Sum, levels: None }),
            unit: None,
            limit: None,
        };
        let second = SECOND.cast_unsigned();
        let many = vec![sensor(1, second); 1000];
        assert!(is_small(&query(4096, None, false), &many[..1]));
        assert!(!is_small(&query(4097, None, false), &many[..1]));
        assert!(!is_small(&query(2100, None, false), &many[..2]));
        assert!(!is_small(&query(10, None, false), &[sensor(1, 0)]), "how many there are is not known");
        assert!(!is_small(&query(10, None, false), &[sensor(SensorId::COMPUTED, second)]));
        assert!(is_small(&query(600, Some(10), true), &many));
        assert!(!is_small(&query(600, Some(10), false), &many));
        assert!(!is_small(&query(600, None, true), &many));
        assert!(is_small(&Query { limit: Some(3), ..query(600, None, true) }, &many));
    }
}
