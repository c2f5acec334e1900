//! The rights of a remote broker: the paths that the configuration trusts it with.

use std::sync::Arc;

use bytes::Bytes;
use wholegrain_model::{JobRecord, Schema, SensorPath};
use wholegrain_transport::mqtt::ReasonCode;

use crate::broker::Broker;
use crate::ingest::{SchemaRegisterError, SenderRights};
use crate::interop::config::RemoteConfig;

/// The rights of one remote broker.
pub(super) struct RemoteRights {
    config: Arc<RemoteConfig>,
    broker: Arc<Broker>,
}

impl RemoteRights {
    pub fn new(config: Arc<RemoteConfig>, broker: Arc<Broker>) -> Self {
        Self { config, broker }
    }

    fn is_trusted(&self, path: &SensorPath) -> Result<(), String> {
        if self.config.trust.iter().any(|prefix| path.is_within(prefix)) {
            return Ok(());
        }
        Err(format!("{path} is not below the paths in `trust` of the remote {}", self.config.name))
    }
}

impl SenderRights for RemoteRights {
    fn sender(&self) -> &str {
        &self.config.client_id
    }

    fn may_publish(&self, topic: &str) -> Result<(), String> {
        SensorPath::new(topic).map_err(|error| error.to_string()).and_then(|path| self.is_trusted(&path))
    }

    fn may_write(&self, schema: &Schema) -> Result<(), String> {
        self.is_trusted(schema.prefix())
    }

    fn register(&self, payload: &Bytes) -> Result<Schema, SchemaRegisterError> {
        let refuse = SchemaRegisterError::Refused;
        let schema =
            Schema::decode(payload).map_err(|error| refuse(ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string()))?;
        self.may_write(&schema).map_err(|why| refuse(ReasonCode::NOT_AUTHORIZED, why))?;
        self.broker.register_trusted(&schema).map_err(SchemaRegisterError::Store)?;
        Ok(schema)
    }

    fn check_job(&self, record: &mut JobRecord, _: usize) -> Result<(), (ReasonCode, String)> {
        // The store refuses an invalid path with its own message.
        if let Ok(prefix) = SensorPath::new(record.prefix.as_str()) {
            self.is_trusted(&prefix).map_err(|why| (ReasonCode::NOT_AUTHORIZED, why))?;
        }
        self.broker.check_totals(&record.node.clone(), record);
        Ok(())
    }
}
