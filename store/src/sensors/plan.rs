//! Plans a registration of schemas before it is durable: several share a transaction, and each must know the numbers that those before it get.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::{Schema, SchemaHash};

use super::paths::PathIndex;
use super::{SensorList, Sensors};
use crate::{SensorId, StoreError};

/// The numbers of a transaction that is not committed yet.
pub(crate) struct RegistrationPlan {
    staged: PathIndex,
    next: u32,
    /// Its schemas, and the first number of those that are numbered together.
    firsts: HashMap<SchemaHash, Option<u32>>,
}

/// One schema of a plan.
pub(crate) struct SchemaRegistration {
    pub schema: Schema,
    /// The name of its list, as [`Schema::encode_sensors`] gives it.
    pub list: SchemaHash,
    /// The number of its first sensor if they are numbered together, now or at an earlier registration.
    pub first: Option<u32>,
    /// Whether the numbers are new.
    pub is_new: bool,
    /// Sensors that are numbered separately, because others of the schema exist already.
    pub single: Vec<(u32, Arc<str>)>,
}

impl Sensors {
    pub(crate) fn plan(&self) -> RegistrationPlan {
        RegistrationPlan { staged: PathIndex::default(), next: self.next, firsts: HashMap::new() }
    }

    /// Adds a schema to the plan. An error leaves the plan unchanged.
    pub fn plan_schema(&self, plan: &mut RegistrationPlan, schema: &Schema) -> Result<SchemaRegistration, StoreError> {
        let known = self.list(schema);
        let made;
        let SensorList { order, name, .. } = match known {
            Some(list) => list,
            None => {
                made = SensorList::of(schema);
                &made
            }
        };
        let at = self.by_hash.get(&schema.hash());
        let known = at.and_then(|at| self.firsts.get(at)).copied();
        let first = plan.firsts.get(&schema.hash()).copied().flatten().or(known);
        let registration =
            |first, is_new, single| SchemaRegistration { schema: schema.clone(), list: *name, first, is_new, single };
        if first.is_some() {
            return Ok(registration(first, false, Vec::new()));
        }
        let free = self.paths.is_free(schema, order) && plan.staged.is_free(schema, order);
        let is_there = |path: &str| self.paths.id(path).is_some() || plan.staged.id(path).is_some();
        let fresh: Option<Vec<String>> =
            (!free).then(|| (0..schema.len()).map(|i| schema.path(i)).filter(|path| !is_there(path)).collect());
        let count = fresh.as_ref().map_or(schema.len(), Vec::len);
        let end = u32::try_from(count).ok().and_then(|count| plan.next.checked_add(count));
        let Some(end) = end.filter(|end| *end <= SensorId::COMPUTED) else {
            let (path, next) = (schema.prefix(), plan.next);
            return Err(StoreError::Sensor(format!(
                "registering {count} sensors below {path}: {next} numbers are in use, at most {} are possible; begin a new store",
                SensorId::COMPUTED
            )));
        };
        let first = std::mem::replace(&mut plan.next, end);
        // A schema that was registered when other schemas had its sensors keeps separate numbers.
        if count == schema.len() && at.is_none() {
            plan.staged.insert_family(first, schema.clone(), 0, order.clone());
            plan.firsts.insert(schema.hash(), Some(first));
            return Ok(registration(Some(first), true, Vec::new()));
        }
        let fresh = fresh.unwrap_or_else(|| (0..schema.len()).map(|i| schema.path(i)).collect());
        let single: Vec<(u32, Arc<str>)> = (first..).zip(fresh.into_iter().map(Arc::from)).collect();
        single.iter().for_each(|(id, path)| plan.staged.insert(path.clone(), SensorId(*id)));
        Ok(registration(None, false, single))
    }

    /// Adds a durable registration to the index.
    pub fn register(&mut self, registration: SchemaRegistration) {
        let SchemaRegistration { schema, first, is_new, single, .. } = registration;
        for (id, path) in single {
            self.take_path(path, SensorId(id));
        }
        if let Some(first) = first.filter(|_| is_new) {
            self.add_family(&schema, first);
        }
        self.add_schema(&schema);
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{SensorDef, SensorPath};

    use super::*;

    fn schema(prefix: &str, count: usize) -> Schema {
        let sensors = (0..count).map(|i| SensorDef::gauge(format!("m{i}"), "1", "")).collect();
        Schema::new(SensorPath::new(prefix).unwrap(), "g", sensors).unwrap()
    }

    #[test]
    fn one_for_which_there_are_no_numbers_fails_alone() {
        let sensors = Sensors::of_paths(Vec::new(), SensorId::COMPUTED - 5);
        let mut plan = sensors.plan();
        assert_eq!(sensors.plan_schema(&mut plan, &schema("/a", 3)).unwrap().first, Some(SensorId::COMPUTED - 5));
        let error = sensors.plan_schema(&mut plan, &schema("/b", 3)).err().unwrap();
        assert!(error.to_string().contains("registering 3 sensors below /b"), "{error}");
        assert_eq!(sensors.plan_schema(&mut plan, &schema("/c", 2)).unwrap().first, Some(SensorId::COMPUTED - 2));
    }

    #[test]
    fn the_same_schema_twice_keeps_its_numbers() {
        let sensors = Sensors::default();
        let mut plan = sensors.plan();
        for is_new in [true, false] {
            let planned = sensors.plan_schema(&mut plan, &schema("/a", 3)).unwrap();
            assert_eq!((planned.first, planned.is_new, planned.single.len()), (Some(0), is_new, 0));
        }
    }
}
