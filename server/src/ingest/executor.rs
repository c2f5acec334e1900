//! Carries out the effects of publish pipelines, of clients and of remote brokers: the only place where publishes reach the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_store::{AppendOutcome, Store, StoreError};
use wholegrain_transport::mqtt::{Properties, QoS, ReasonCode, Text};

use super::effect::{CloseReason, PublishEffect, SchemaRegisterError};
use super::pipeline::PublishPipeline;
use super::reading_publishes::{ReadingPublishes, find_names};
use crate::control::AgentControl;
use crate::interop::Interop;
use crate::interop::resolution::{NameRequest, SensorResolution};
use crate::log_limit::{LogLimit, TROUBLE_MAX};
use crate::metrics::Metrics;

/// The most schemas for which one connection remembers that it may publish their batches.
const SCHEMAS_MAX: usize = 4096;

/// A result for a pipeline: of the store, or of a check before it.
#[derive(Debug)]
pub(crate) enum StoreEvent {
    Appended(u64, Result<AppendOutcome, StoreError>),
    /// The sender may not publish this batch or job record; with the reason.
    Denied(u64, ReasonCode, String),
    Registered(u64, Result<Schema, SchemaRegisterError>),
    Named(u64, NameRequest, Result<Vec<SensorResolution>, StoreError>),
}

/// A message for subscribers.
pub(crate) struct ForwardedPublish {
    pub topic: Text,
    pub payload: Bytes,
    pub qos: QoS,
    /// The identifier of a publish that will be acknowledged: from now on it must not be accepted again.
    pub packet_id: Option<u16>,
    pub retain: bool,
    pub properties: Properties,
    /// The payload is this schema, which the store has.
    pub schema: Option<SchemaHash>,
}

/// The permissions and quotas of one sender. Threads of the runtime use them too.
pub(crate) trait SenderRights: Send + Sync + 'static {
    /// The name for which quotas count what it sends.
    fn sender(&self) -> &str;

    fn may_publish(&self, topic: &str) -> Result<(), String>;

    /// Whether it may write the sensors of a schema.
    fn may_write(&self, schema: &Schema) -> Result<(), String>;

    /// Checks a schema and stores it; blocks on the disk.
    fn register(&self, payload: &Bytes) -> Result<Schema, SchemaRegisterError>;

    /// Checks a job record of `bytes` bytes, and removes implausible totals.
    fn check_job(&self, record: &mut JobRecord, bytes: usize) -> Result<(), (ReasonCode, String)>;
}

/// The schemas whose sensors one sender may write.
#[derive(Debug, Default)]
pub(crate) struct PermittedSchemas(HashSet<SchemaHash>);

impl PermittedSchemas {
    fn insert(&mut self, schema: SchemaHash) {
        if self.0.len() >= SCHEMAS_MAX {
            self.0.clear();
        }
        self.0.insert(schema);
    }
}

/// The connection on which publishes arrive.
pub(crate) trait PublishConnection {
    type Rights: SenderRights;

    fn rights(&self) -> Arc<Self::Rights>;

    /// Returns results to this connection; they may come when it is over.
    fn events(&self) -> impl FnOnce(StoreEvent) + Send + 'static;

    fn permitted_schemas(&mut self) -> &mut PermittedSchemas;

    /// Sends PUBACK, or PUBREC for QoS 2.
    fn acknowledge(&mut self, packet_id: u16, qos: QoS, reason: ReasonCode, why: &str);

    fn forward(&mut self, message: ForwardedPublish);

    /// The schema of a batch is unknown; the pipeline may request it next.
    fn schema_is_missing(&mut self, schema: SchemaHash, batch: &Bytes);

    /// Requests schemas from the agents that sent batches of them.
    fn request_schemas(&mut self, schemas: &[SchemaHash]);

    /// Reports that a publish was refused.
    fn report_refusal(&mut self, why: &str);
}

/// Everything that publishes of all connections reach.
pub(crate) struct Ingest {
    store: Store,
    interop: Arc<Interop>,
    control: Arc<AgentControl>,
    metrics: Arc<Metrics>,
    /// Lines about a store that cannot write.
    log: LogLimit,
}

impl Ingest {
    pub fn new(store: Store, interop: Arc<Interop>, control: Arc<AgentControl>, metrics: Arc<Metrics>) -> Self {
        Self { store, interop, control, metrics, log: LogLimit::new(TROUBLE_MAX) }
    }

    /// Carries out one effect. The error says why the connection must end.
    pub fn carry_out(&self, effect: PublishEffect, connection: &mut impl PublishConnection) -> Result<(), CloseReason> {
        match effect {
            PublishEffect::Ack { packet_id, qos, reason, why } => connection.acknowledge(packet_id, qos, reason, &why),
            PublishEffect::Register { ticket, payload } => {
                let (rights, send) = (connection.rights(), connection.events());
                tokio::task::spawn_blocking(move || send(StoreEvent::Registered(ticket, rights.register(&payload))));
            }
            PublishEffect::Append { ticket, schema, payload } => self.append(ticket, schema, payload, connection),
            PublishEffect::AppendReadings { ticket, readings } => {
                let send = connection.events();
                let done = Box::new(move |result| send(StoreEvent::Appended(ticket, result)));
                self.store.append_readings(connection.rights().sender(), readings, done);
            }
            PublishEffect::PutJob { ticket, mut record, bytes } => {
                let send = connection.events();
                match connection.rights().check_job(&mut record, bytes) {
                    Ok(()) => {
                        let done = Box::new(move |result| send(StoreEvent::Appended(ticket, result)));
                        self.store.put_jobs(vec![*record], done);
                    }
                    Err((code, why)) => send(StoreEvent::Denied(ticket, code, why)),
                }
            }
            PublishEffect::Name { ticket, names } => {
                let (rights, send, interop) = (connection.rights(), connection.events(), self.interop.clone());
                tokio::task::spawn_blocking(move || {
                    let result = find_names(&interop, rights.sender(), &names, |topic| rights.may_publish(topic));
                    send(StoreEvent::Named(ticket, names, result));
                });
            }
            PublishEffect::Forward { topic, payload, qos, packet_id, retain, properties, schema } => {
                connection.forward(ForwardedPublish { topic, payload, qos, packet_id, retain, properties, schema });
            }
            PublishEffect::Answered { agent, payload } => self.control.answered(&agent, &payload),
            PublishEffect::Need(schemas) => connection.request_schemas(&schemas),
            PublishEffect::Refused(why) => connection.report_refusal(&why),
            PublishEffect::Close(close) => return Err(close),
        }
        Ok(())
    }

    /// Sends a batch to the store if the sender may write the sensors of its schema.
    fn append(&self, ticket: u64, hash: SchemaHash, payload: Bytes, connection: &mut impl PublishConnection) {
        let send = connection.events();
        if !connection.permitted_schemas().0.contains(&hash) {
            let Some(schema) = self.store.schema(&hash) else {
                connection.schema_is_missing(hash, &payload);
                // The store is not asked: another client might have announced the schema by then.
                return send(StoreEvent::Appended(ticket, Err(StoreError::UnknownSchema(hash))));
            };
            if let Err(why) = connection.rights().may_write(&schema) {
                return send(StoreEvent::Denied(ticket, ReasonCode::NOT_AUTHORIZED, why));
            }
            connection.permitted_schemas().insert(hash);
        }
        self.store.append(payload, Box::new(move |result| send(StoreEvent::Appended(ticket, result))));
    }

    /// Gives a result to the pipeline that waits for it.
    pub fn take_event(
        &self,
        event: StoreEvent,
        pipeline: &mut PublishPipeline,
        readings: &mut ReadingPublishes,
        effects: &mut Vec<PublishEffect>,
    ) {
        let now = Instant::now();
        match event {
            StoreEvent::Appended(ticket, result) => {
                match &result {
                    Ok(_) => self.metrics.set_store_trouble(None),
                    Err(error @ (StoreError::DiskFull { .. } | StoreError::Io { .. })) => {
                        self.metrics.set_store_trouble(Some(error.to_string()));
                        self.log
                            .warn(format_args!("batch of {}: {error}; it is kept and retried", pipeline.identity()));
                    }
                    Err(_) => {}
                }
                pipeline.appended(ticket, result, now, effects);
            }
            StoreEvent::Denied(ticket, code, why) => pipeline.denied(ticket, code, why, now, effects),
            StoreEvent::Registered(ticket, result) => pipeline.registered(ticket, result, now, effects),
            StoreEvent::Named(ticket, names, result) => {
                readings.answered(&names, result.is_ok());
                pipeline.named(ticket, result, now, effects);
            }
        }
    }
}
