//! Registering schemas: those that come at about the same time become durable with one transaction. While one is synced, those that arrive wait for the
//! next; each caller hears of its own schema only once it is durable.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::Schema;

use crate::publish::reload_catalogue;
use crate::store::{CommitState, Shared};
use crate::{Store, StoreError};

/// The most schemas of one transaction.
const GROUP_SCHEMAS_MAX: usize = 1024;
/// The most sensors of one transaction, but for those of its first schema.
const GROUP_SENSORS_MAX: usize = 1 << 19;

type RegistrationResult = Result<(), StoreError>;

/// A schema that waits, and what became of it.
struct PendingRegistration {
    schema: Schema,
    answer: Mutex<Option<RegistrationResult>>,
}

impl PendingRegistration {
    fn answer(&self) -> MutexGuard<'_, Option<RegistrationResult>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where schemas wait, in the order in which they came. Bounded by its callers: each waits for what it brought.
#[derive(Default)]
pub(crate) struct RegistrationQueue {
    waiting: Mutex<Vec<Arc<PendingRegistration>>>,
}

impl RegistrationQueue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<PendingRegistration>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that go into the next transaction.
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

impl Store {
    /// Makes a schema known and lets it define its sensors; durable when it returns. Announcing a known one again costs little. What several threads
    /// register at about the same time shares a transaction.
    pub fn register_schema(&self, schema: &Schema) -> Result<(), StoreError> {
        let answers = self.register_schemas(std::slice::from_ref(schema));
        answers.into_iter().next().unwrap_or(Err(StoreError::Closed))
    }

    /// The same of several, in their order, with as few transactions as possible. One that cannot be registered has an error of its own.
    pub fn register_schemas(&self, schemas: &[Schema]) -> Vec<Result<(), StoreError>> {
        let shared = self.shared();
        if shared.closing.load(Relaxed) {
            return schemas.iter().map(|_| Err(StoreError::Closed)).collect();
        }
        let (mut ours, mut fresh) = (Vec::with_capacity(schemas.len()), Vec::new());
        {
            let sensors = shared.sensors();
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
            shared.registrations.waiting().extend(fresh.iter().cloned());
            see_to(shared, &fresh);
        }
        ours.iter().map(|one| one.answer().take().unwrap_or(Err(StoreError::Closed))).collect()
    }
}

/// Waits for the transaction under way, and makes the next ones until these are answered, unless somebody else did meanwhile.
fn see_to(shared: &Shared, ours: &[Arc<PendingRegistration>]) {
    let mut commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
    // With the ledger in hand nobody else makes one: what of ours has no answer is at the desk.
    while ours.iter().any(|one| one.answer().is_none()) {
        let group = shared.registrations.take();
        if group.is_empty() {
            return;
        }
        let answers = register(shared, &mut commit_state, &group);
        for (one, answer) in group.iter().zip(answers) {
            *one.answer() = Some(answer);
        }
    }
}

/// Makes one transaction of all that can be registered.
fn register(
    shared: &Shared,
    commit_state: &mut CommitState,
    group: &[Arc<PendingRegistration>],
) -> Vec<RegistrationResult> {
    if shared.catalogue.is_suspect()
        && let Err(error) = reload_catalogue(shared, commit_state)
    {
        return group.iter().map(|_| Err(error.clone())).collect();
    }
    let mut registrations = Vec::new();
    let mut answers: Vec<Option<RegistrationResult>> = Vec::with_capacity(group.len());
    {
        let sensors = shared.sensors();
        let mut plan = sensors.plan();
        for one in group {
            // A group that changes nothing needs no transaction.
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
    let outcome = if registrations.is_empty() { Ok(()) } else { shared.catalogue.add_schemas(&registrations) };
    if outcome.is_ok() {
        let mut sensors = shared.sensors.write().unwrap_or_else(PoisonError::into_inner);
        registrations.into_iter().for_each(|registration| sensors.register(registration));
    }
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| outcome.clone())).collect()
}
