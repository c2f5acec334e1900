//! What goes into a pipeline and what comes out.

use std::time::Duration;

use bytes::Bytes;
use wholegrain_model::{JobRecord, SchemaHash};
use wholegrain_store::{Reading, StoreError};
use wholegrain_transport::mqtt::{Properties, QoS, ReasonCode, Text};

use crate::interop::run::Names;

/// A publish as it arrived.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Where.
    pub topic: Text,
    /// What.
    pub payload: Bytes,
    /// How surely.
    pub qos: QoS,
    /// To be acknowledged under this number; `None` for QoS 0.
    pub packet_id: Option<u16>,
    /// Whether later subscribers shall get it too.
    pub retain: bool,
    /// What the publisher says about it (MQTT 5).
    pub properties: Properties,
}

/// What the connection has to do, in this order.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Send PUBACK, or PUBREC for QoS 2.
    Ack {
        /// Of which publish.
        packet_id: u16,
        /// How surely it was published.
        qos: QoS,
        /// MQTT 5's reason.
        reason: ReasonCode,
        /// The reason in words; empty for success.
        why: String,
    },
    /// Check and register a schema, then call [`Pipeline::registered`].
    Register {
        /// Its number here.
        ticket: u64,
        /// The encoded schema.
        payload: Bytes,
    },
    /// Find out which sensors readings are of, then call [`Pipeline::named`].
    Name {
        /// Their number here.
        ticket: u64,
        /// What is to be found out.
        names: Names,
    },
    /// Append readings, then call [`Pipeline::appended`].
    AppendReadings {
        /// Their number here.
        ticket: u64,
        /// All of them.
        readings: Vec<Reading>,
    },
    /// Append a batch, then call [`Pipeline::appended`]; or [`Pipeline::denied`] when its schema is not this agent's.
    Append {
        /// Its number here.
        ticket: u64,
        /// The schema that its header names.
        schema: SchemaHash,
        /// The encoded batch.
        payload: Bytes,
    },
    /// Put a job's record into the store, then call [`Pipeline::appended`]; or [`Pipeline::denied`] when its prefix is not this agent's.
    PutJob {
        /// Its number here.
        ticket: u64,
        /// The record.
        record: Box<JobRecord>,
        /// How large it came, in bytes.
        bytes: usize,
    },
    /// Pass a message on to subscribers.
    Forward {
        /// Where it was published.
        topic: Text,
        /// What.
        payload: Bytes,
        /// How surely it was published.
        qos: QoS,
        /// Under which number, if it is to be acknowledged: from now on it must not be taken again.
        packet_id: Option<u16>,
        /// Whether to keep it for subscribers to come.
        retain: bool,
        /// What the publisher says about it.
        properties: Properties,
        /// The payload is this schema, which the store has.
        schema: Option<SchemaHash>,
    },
    /// An agent's answer to an order.
    Answered {
        /// The agent.
        agent: String,
        /// The answer.
        payload: Bytes,
    },
    /// Ask the agent for schemas.
    Need(Vec<SchemaHash>),
    /// Log that a publish was refused.
    Refused(String),
    /// End the connection.
    Close(Close),
}

/// Why a connection is ended by the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// MQTT 5's reason for DISCONNECT.
    pub reason: ReasonCode,
    /// For the log.
    pub why: String,
}

impl Close {
    /// With a reason and its explanation.
    pub fn new(reason: ReasonCode, why: impl Into<String>) -> Self {
        Self { reason, why: why.into() }
    }
}

/// Why a schema was not registered.
#[derive(Debug)]
pub enum RegisterError {
    /// The bytes are no schema, or one that is not allowed, and why.
    Refused(ReasonCode, String),
    /// The store failed; try again.
    Store(StoreError),
}

/// Bounds and identity of one client.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The agent's name that the client proved.
    pub identity: String,
    /// Whether PUBACK can carry a reason (MQTT 5); else a refusal closes the connection.
    pub reasons: bool,
    /// Whether it is a broker that passes on what others published: native topics may be of any agent.
    pub relay: bool,
    /// The most publishes not yet acknowledged.
    pub inflight_max: usize,
    /// The same in bytes.
    pub inflight_bytes_max: usize,
    /// The bytes of all clients together, beyond which only clients that have none are read.
    pub inflight_total_bytes_max: usize,
    /// How long a batch waits for its schema before the connection is closed.
    pub schema_wait_max: Duration,
}
