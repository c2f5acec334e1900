//! Registers schemas and sensors. Schemas that arrive at about the same time become durable with one transaction: while one is synced, later ones
//! wait for the next. Each caller gets its answer when its own schema is durable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::Schema;

use crate::StoreError;
use crate::catalogue::Catalogue;
use crate::files::{CommitState, FileSet};
use crate::sensors::info::SensorId;
use crate::sensors::reading::{SchemalessSensor, check_source};
use crate::sensors::{SchemalessProperties, SensorIndex};
use crate::work::WorkSignal;

/// The most schemas of one transaction.
const GROUP_SCHEMAS_MAX: usize = 1024;
/// The most sensors of one transaction, without those of its first schema.
const GROUP_SENSORS_MAX: usize = 1 << 19;

type RegistrationResult = Result<(), StoreError>;

/// A schema that waits, and its result.
struct PendingRegistration {
    schema: Schema,
    answer: Mutex<Option<RegistrationResult>>,
}

impl PendingRegistration {
    fn answer(&self) -> MutexGuard<'_, Option<RegistrationResult>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of schemas, in the order of arrival. Its length is bounded by the callers: each waits for its own.
#[derive(Default)]
pub(crate) struct RegistrationQueue {
    waiting: Mutex<Vec<Arc<PendingRegistration>>>,
}

impl RegistrationQueue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<PendingRegistration>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the schemas of the next transaction.
    fn take(&self) -> Vec<Arc<PendingRegistration>> {
        let mut waiting = self.waiting();
        let mut sensors = 0;
        let fits = |one: &&Arc<PendingRegistration>| {
            sensors += one.schema.len();
            sensors <= GROUP_SENSORS_MAX
        };
        let count = waiting.iter().take(GROUP_SCHEMAS_MAX).take_while(fits).count();
        let count = count.max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }
}

/// Makes schemas and sensors known.
pub(crate) struct Registration {
    files: Arc<FileSet>,
    catalogue: Arc<Catalogue>,
    sensors: Arc<SensorIndex>,
    work: Arc<WorkSignal>,
    queue: RegistrationQueue,
}

impl Registration {
    pub(crate) fn new(
        files: Arc<FileSet>,
        catalogue: Arc<Catalogue>,
        sensors: Arc<SensorIndex>,
        work: Arc<WorkSignal>,
    ) -> Self {
        Self { files, catalogue, sensors, work, queue: RegistrationQueue::default() }
    }

    /// Makes a schema known and lets it define its sensors; durable when it returns. Announcing a known one again costs little. What several threads
    /// register at about the same time shares a transaction.
    pub fn register_schema(&self, schema: &Schema) -> Result<(), StoreError> {
        let answers = self.register_schemas(std::slice::from_ref(schema));
        answers.into_iter().next().unwrap_or(Err(StoreError::Closed))
    }

    /// The same of several, in their order, with as few transactions as possible. One that cannot be registered has an error of its own.
    pub fn register_schemas(&self, schemas: &[Schema]) -> Vec<Result<(), StoreError>> {
        if self.work.is_closing() {
            return schemas.iter().map(|_| Err(StoreError::Closed)).collect();
        }
        let (mut ours, mut fresh) = (Vec::with_capacity(schemas.len()), Vec::new());
        {
            let sensors = self.sensors.read();
            for schema in schemas {
                // A later registration replaces what an earlier one defines.
                let known = fresh.is_empty() && sensors.is_current(schema);
                let answer = Mutex::new(known.then_some(Ok(())));
                let one = Arc::new(PendingRegistration { schema: schema.clone(), answer });
                if !known {
                    fresh.push(one.clone());
                }
                ours.push(one);
            }
        }
        if !fresh.is_empty() {
            self.queue.waiting().extend(fresh.iter().cloned());
            self.see_to(&fresh);
        }
        ours.iter().map(|one| one.answer().take().unwrap_or(Err(StoreError::Closed))).collect()
    }

    /// Waits for the running transaction and makes the next ones until these schemas have results, unless another thread did meanwhile.
    fn see_to(&self, ours: &[Arc<PendingRegistration>]) {
        let mut commit_state = self.files.commit_state();
        // While we hold the commit state no other thread registers: ours without a result are still queued.
        while ours.iter().any(|one| one.answer().is_none()) {
            let group = self.queue.take();
            if group.is_empty() {
                return;
            }
            let answers = self.register(&mut commit_state, &group);
            for (one, answer) in group.iter().zip(answers) {
                *one.answer() = Some(answer);
            }
        }
    }

    /// Makes one transaction of all schemas that can be registered.
    fn register(&self, commit_state: &mut CommitState, group: &[Arc<PendingRegistration>]) -> Vec<RegistrationResult> {
        if self.catalogue.is_suspect()
            && let Err(error) = self.files.reload(commit_state)
        {
            return group.iter().map(|_| Err(error.clone())).collect();
        }
        let mut registrations = Vec::new();
        let mut answers: Vec<Option<RegistrationResult>> = Vec::with_capacity(group.len());
        {
            let sensors = self.sensors.read();
            let mut plan = sensors.plan();
            for one in group {
                // If nothing changes no transaction is needed.
                if registrations.is_empty() && sensors.is_current(&one.schema) {
                    answers.push(Some(Ok(())));
                    continue;
                }
                match sensors.plan_schema(&mut plan, &one.schema) {
                    Ok(registration) => {
                        registrations.push(registration);
                        answers.push(None);
                    }
                    Err(error) => answers.push(Some(Err(error))),
                }
            }
        }
        let outcome = if registrations.is_empty() { Ok(()) } else { self.catalogue.add_schemas(&registrations) };
        if outcome.is_ok() {
            let mut sensors = self.sensors.write();
            registrations.into_iter().for_each(|registration| sensors.register(registration));
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| outcome.clone())).collect()
    }

    /// Numbers for sensors without a schema, in their order; durable when it returns. A known path keeps its number. Where a schema has the path,
    /// the schema defines the sensor; else the latest registration does. Blocks on the disk when something is new. `source` is who sends them.
    pub fn register_sensors(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.register_with(source, sensors, |_| 0)
    }

    /// The same with learned intervals, ns, 0 for none. Of the known and the new interval the shorter counts, so that coarse readings of the past
    /// do not close holes between fine ones.
    pub(crate) fn register_with(
        &self,
        source: &str,
        sensors: &[SchemalessSensor],
        learned: impl Fn(usize) -> u64,
    ) -> Result<Vec<SensorId>, StoreError> {
        check_source(source)?;
        sensors.iter().try_for_each(SchemalessSensor::check)?;
        if self.work.is_closing() {
            return Err(StoreError::Closed);
        }
        let encoded: Vec<Vec<u8>> = {
            let known = self.sensors.read();
            let learned_before =
                |sensor: &SchemalessSensor| known.id(sensor.path.as_str()).map(|id| known.learned_interval(id));
            let interval = |at: usize, sensor| match (learned(at), learned_before(sensor).unwrap_or(0)) {
                (0, one) | (one, 0) => one,
                (new, before) => new.min(before),
            };
            let one = |(at, sensor)| SchemalessProperties::of(sensor, interval(at, sensor)).encode();
            sensors.iter().enumerate().map(one).collect()
        };
        let numbers = || {
            let known = self.sensors.read();
            let id = |sensor: &SchemalessSensor| known.id(sensor.path.as_str());
            let registered = |(sensor, encoded): (&SchemalessSensor, &Vec<u8>)| known.is_registered(sensor, encoded);
            let all = sensors.iter().zip(&encoded).all(registered);
            all.then(|| sensors.iter().filter_map(id).collect::<Vec<_>>())
        };
        if let Some(ids) = numbers() {
            return Ok(ids);
        }
        let _commit_state = self.files.reconcile()?;
        let mut rows: Vec<(u32, Option<&str>, Vec<u8>)> = Vec::new();
        let mut ids = Vec::with_capacity(sensors.len());
        {
            let known = self.sensors.read();
            let mut fresh: HashMap<&str, u32> = HashMap::new();
            let mut next = known.next_number();
            for (sensor, encoded) in sensors.iter().zip(encoded) {
                let path = sensor.path.as_str();
                let old = known.id(path).map(|id| id.0).or_else(|| fresh.get(path).copied());
                let id = old.unwrap_or(next);
                if old.is_none() {
                    fresh.insert(path, id);
                    next = next
                        .checked_add(1)
                        .filter(|next| *next < SensorId::COMPUTED)
                        .ok_or_else(|| StoreError::Sensor("too many sensors".to_owned()))?;
                }
                if old.is_none() || !known.is_registered(sensor, &encoded) {
                    rows.push((id, old.is_none().then_some(path), encoded));
                }
                ids.push(SensorId(id));
            }
        }
        self.catalogue.add_schemaless(source, &rows)?;
        let mut known = self.sensors.write();
        for (id, path, encoded) in &rows {
            if let Some(path) = path {
                known.add_path(path);
            }
            if let Some(properties) = SchemalessProperties::decode(encoded) {
                known.add_schemaless(SensorId(*id), source, properties);
            }
        }
        Ok(ids)
    }
}
