//! The rights of a client: topics, schemas, job records, and its hourly quotas.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::{JobRecord, Schema, SchemaHash, SensorPath};
use wholegrain_transport::mqtt::ReasonCode;

use super::Broker;
use crate::access::Identity;
use crate::admission::hourly_quotas::SCHEMA_BYTES_MIN;
use crate::ingest::{SchemaRegisterError, SenderRights};

/// The rights of one client of the broker.
pub(super) struct ClientRights {
    broker: Arc<Broker>,
    name: Arc<str>,
    anonymous: bool,
}

impl ClientRights {
    pub fn new(broker: Arc<Broker>, name: Arc<str>, anonymous: bool) -> Arc<Self> {
        Arc::new(Self { broker, name, anonymous })
    }

    /// Takes a new schema's bytes and new sensors from its agent's hourly quotas; returns what was taken, or why it is too much.
    fn take_allowance(&self, identity: &str, schema: &Schema, bytes: usize) -> Result<(u64, u64), SchemaRegisterError> {
        let (now, limits) = (Instant::now(), self.broker.limits());
        let (bytes, sensors) = (SCHEMA_BYTES_MIN.max(bytes as u64), self.broker.store.unknown_sensors(schema) as u64);
        let why = if !self.broker.new_schemas.take(identity, bytes, now) {
            format!(
                "over {} bytes of new schemas within an hour; does one of its groups change constantly? \
                 mqtt.limits.schema_bytes_per_hour_max is the bound",
                limits.schema_bytes_per_hour_max
            )
        } else if !self.broker.new_sensors.take(identity, sensors, now) {
            self.broker.new_schemas.give_back(identity, bytes);
            self.broker.metrics.schema_sensors_over_allowance.add(sensors);
            format!(
                "over {} new sensors within an hour, the last {sensors} of them below {}; \
                 mqtt.limits.schema_sensors_per_hour_max is the bound",
                limits.schema_sensors_per_hour_max,
                schema.prefix()
            )
        } else {
            return Ok((bytes, sensors));
        };
        self.broker.metrics.schemas_over_allowance.inc();
        Err(SchemaRegisterError::Refused(ReasonCode::QUOTA_EXCEEDED, format!("agent {identity:?} announced {why}")))
    }
}

impl SenderRights for ClientRights {
    fn sender(&self) -> &str {
        &self.name
    }

    fn may_publish(&self, topic: &str) -> Result<(), String> {
        self.broker.may_publish(Identity { name: &self.name, anonymous: self.anonymous }, topic)
    }

    fn may_write(&self, schema: &Schema) -> Result<(), String> {
        let access = &self.broker.security.access;
        access.claim(self.sender(), schema.prefix())?;
        access.may_write(self.sender(), schema)
    }

    fn register(&self, payload: &Bytes) -> Result<Schema, SchemaRegisterError> {
        let identity = self.sender();
        // A known schema is not decoded again: its names would be in memory twice for a while.
        let known = self.broker.store.schema(&SchemaHash::of(payload));
        let new = known.is_none();
        let schema = known
            .map_or_else(|| Schema::decode(payload), Ok)
            .map_err(|error| SchemaRegisterError::Refused(ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string()))?;
        let denied = |why| SchemaRegisterError::Refused(ReasonCode::NOT_AUTHORIZED, why);
        let access = &self.broker.security.access;
        access.may_publish_below(identity, schema.prefix()).map_err(denied)?;
        access.may_write(identity, &schema).map_err(denied)?;
        let taken = if new { self.take_allowance(identity, &schema, payload.len())? } else { (0, 0) };
        // Checked again while the prefix is claimed: another agent may have claimed it in between.
        access.claim(identity, schema.prefix()).map_err(denied)?;
        self.broker.store.register_schema(&schema).map_err(|error| {
            self.broker.new_schemas.give_back(identity, taken.0);
            self.broker.new_sensors.give_back(identity, taken.1);
            self.broker.log.warn(format_args!("schema {} of {identity}: {error}; retrying", schema.hash()));
            SchemaRegisterError::Store(error)
        })?;
        self.broker.schemas.send_modify(|generation| *generation += 1);
        Ok(schema)
    }

    fn check_job(&self, record: &mut JobRecord, bytes: usize) -> Result<(), (ReasonCode, String)> {
        let identity = self.sender();
        // The store refuses an invalid path with its own message.
        if let Ok(prefix) = SensorPath::new(record.prefix.as_str()) {
            let denied = |why| (ReasonCode::NOT_AUTHORIZED, why);
            self.broker.security.access.may_publish_below(identity, &prefix).map_err(denied)?;
        }
        if self.broker.job_bytes.take(identity, bytes as u64, Instant::now()) {
            self.broker.check_totals(identity, record);
            return Ok(());
        }
        self.broker.metrics.job_records_over_allowance.inc();
        let why = format!(
            "agent {identity:?} sent over {} bytes of job records within an hour; mqtt.limits.job_bytes_per_hour_max sets the limit",
            self.broker.limits().job_bytes_per_hour_max
        );
        Err((ReasonCode::QUOTA_EXCEEDED, why))
    }
}
