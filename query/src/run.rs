//! Runs a query: opens a snapshot for the sensors, plans, and returns the batches to pull.

use std::sync::Arc;

use wholegrain_model::Interval;
use wholegrain_store::{ReadSnapshot, ReadStore, SensorInfo};

use crate::batches::Batches;
use crate::error::QueryError;
use crate::jobs::scope::JobScope;
use crate::plan::QueryPlan;
use crate::query::{Query, SENSORS_MAX};
use crate::{across, points, units};

/// The sensors that a query selected, and the batches to pull.
pub struct QueryResult {
    /// The selected sensors, sorted by path. They are the dictionary of every batch, unless `series` is.
    pub sensors: Arc<[SensorInfo]>,
    /// With [`Query::across`]: the names of the series, then the dictionary of every batch.
    pub series: Option<Vec<String>>,
    /// The unit of each series' values in the answer, after the operation.
    pub units: Vec<String>,
    /// Sentences about data that is known to be missing before rows are read, such as damaged blocks in the range.
    /// After the last batch [`Batches::warnings`] and [`Batches::notes`] also have what reading found.
    pub warnings: Vec<String>,
    /// Sentences about data that is missing by intent, such as deleted by retention; [`Batches::notes`] may have more.
    pub notes: Vec<String>,
    /// The tier that is read where possible.
    pub tier: Option<Interval>,
    /// The width of the windows, also if `points` was given.
    pub every: Option<Interval>,
    /// [`Batches::schema`] says whether `value` is Float64 or Int64.
    pub batches: Batches,
}

/// Resolves the patterns and plans the query; pulling the batches reads the readings, all from one snapshot.
pub fn run(store: &dyn ReadStore, query: &Query) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let sensors = store.sensors_after(&query.patterns, None, SENSORS_MAX + 1);
    run_on(store.snapshot(), sensors, query)
}

/// As [`run`], over a snapshot and the given sensors. More than [`SENSORS_MAX`] sensors are refused.
pub fn run_on(
    snapshot: Box<dyn ReadSnapshot>,
    sensors: impl Into<Arc<[SensorInfo]>>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    start(snapshot.into(), None, sensors.into(), query)
}

/// As [`run_on`], with each sensor restricted to the job's time on its node. Sensors that do not belong to the job have no readings.
pub fn run_in_job(
    snapshot: Box<dyn ReadSnapshot>,
    job: &Arc<JobScope>,
    sensors: impl Into<Arc<[SensorInfo]>>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    start(snapshot.into(), Some(job.clone()), sensors.into(), query)
}

fn start(
    snapshot: Arc<dyn ReadSnapshot>,
    job: Option<Arc<JobScope>>,
    mut sensors: Arc<[SensorInfo]>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let query = &points::resolve(query, &snapshot.resolutions());
    if sensors.len() > SENSORS_MAX {
        return Err(too_many());
    }
    if !sensors.is_sorted_by(|a, b| a.path <= b.path) {
        let mut sorted = sensors.to_vec();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        sensors = sorted.into();
    }
    let plan = QueryPlan::new(query, snapshot.as_ref(), job, &sensors)?;
    let reader = snapshot.open(&mut plan.ranges(sensors.iter(), plan.range()))?;
    let (warnings, notes) = (plan.warnings(snapshot.as_ref()), plan.notes(snapshot.as_ref()));
    let groups = query.across.map(|across| across::groups(&sensors, across));
    let units: Vec<String> = match &groups {
        None => units::units(&sensors, query.op, |sensor| plan.agg_of(sensor), query.unit.as_deref()),
        Some(groups) => groups
            .iter()
            .map(|group| across::unit_of(group, &sensors, &plan, query.unit.as_deref()))
            .collect::<Result<_, QueryError>>()?,
    };
    let series = groups.as_ref().map(|groups| groups.iter().map(|group| group.name.clone()).collect());
    let tier = plan.tier.map(|tier| Interval::from_ns(tier.cast_unsigned()));
    let batches = Batches::new((snapshot, reader), sensors.clone(), groups, &units, plan);
    Ok(QueryResult { sensors, series, units, warnings, notes, tier, every: query.every, batches })
}

/// The error for patterns that select too many sensors.
fn too_many() -> QueryError {
    QueryError::Invalid(format!(
        "the patterns select more than {SENSORS_MAX} sensors, the most of one query; select fewer, such as one subtree at a time"
    ))
}
