//! Input and output of a publish pipeline.

use std::time::Duration;

use bytes::Bytes;
use wholegrain_model::{JobRecord, SchemaHash};
use wholegrain_store::{Reading, StoreError};
use wholegrain_transport::mqtt::{Properties, QoS, ReasonCode, Text};

use crate::interop::resolution::NameRequest;

#[derive(Debug, Clone)]
pub struct IncomingPublish {
    pub topic: Text,
    pub payload: Bytes,
    pub qos: QoS,
    /// `None` for QoS 0.
    pub packet_id: Option<u16>,
    /// Whether it is retained for later subscribers.
    pub retain: bool,
    pub properties: Properties,
}

/// Actions that the pipeline requires, in this order.
#[derive(Debug, PartialEq)]
pub enum PublishEffect {
    /// Send PUBACK, or PUBREC for QoS 2.
    Ack {
        packet_id: u16,
        qos: QoS,
        reason: ReasonCode,
        /// The reason of a refusal; empty for success.
        why: String,
    },
    /// Check and register a schema, then call [`super::pipeline::PublishPipeline::registered`].
    Register {
        ticket: u64,
        payload: Bytes,
    },
    /// Resolve the sensors of readings, then call [`super::pipeline::PublishPipeline::named`].
    Name {
        ticket: u64,
        names: NameRequest,
    },
    /// Append readings, then call [`super::pipeline::PublishPipeline::appended`].
    AppendReadings {
        ticket: u64,
        readings: Vec<Reading>,
    },
    /// Append a batch, then call [`super::pipeline::PublishPipeline::appended`], or `denied` if its schema is not this agent's.
    Append {
        ticket: u64,
        /// As named in the batch's header.
        schema: SchemaHash,
        payload: Bytes,
    },
    /// Store a job record, then call [`super::pipeline::PublishPipeline::appended`], or `denied` if its prefix is not this agent's.
    PutJob {
        ticket: u64,
        record: Box<JobRecord>,
        /// The size of the encoded record.
        bytes: usize,
    },
    /// Forward a message to subscribers.
    Forward {
        topic: Text,
        payload: Bytes,
        qos: QoS,
        /// The packet identifier, if it is to be acknowledged: from now on it must not be accepted again.
        packet_id: Option<u16>,
        /// Whether it is retained for later subscribers.
        retain: bool,
        properties: Properties,
        /// The payload is this schema, which the store has.
        schema: Option<SchemaHash>,
    },
    /// An agent's answer to a command.
    Answered {
        agent: String,
        payload: Bytes,
    },
    Need(Vec<SchemaHash>),
    /// Log that a publish was refused.
    Refused(String),
    Close(CloseReason),
}

/// Why the server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    /// The reason code of DISCONNECT (MQTT 5).
    pub reason: ReasonCode,
    /// The text for the log.
    pub why: String,
}

impl CloseReason {
    pub fn new(reason: ReasonCode, why: impl Into<String>) -> Self {
        Self { reason, why: why.into() }
    }
}

/// Why a schema was not registered.
#[derive(Debug)]
pub enum SchemaRegisterError {
    /// The bytes are not a schema, or it is not allowed; with the reason.
    Refused(ReasonCode, String),
    /// The store failed; retry.
    Store(StoreError),
}

/// Identity and limits of one client.
#[derive(Debug, Clone)]
pub struct ClientTerms {
    /// The agent's authenticated name.
    pub identity: String,
    /// Whether PUBACK has reason codes (MQTT 5); else a refusal closes the connection.
    pub reasons: bool,
    /// Whether the client is a remote broker: native topics may be of any agent.
    pub relay: bool,
    pub inflight_max: usize,
    pub inflight_bytes_max: usize,
    /// Unacknowledged bytes of all clients; above it only clients without any are read.
    pub inflight_total_bytes_max: usize,
    /// How long a batch waits for its schema before the connection is closed.
    pub schema_wait_max: Duration,
}
