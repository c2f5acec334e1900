//! Job records in the pipeline: decoding, and the store's answer.

use std::time::Instant;

use wholegrain_model::JobRecord;
use wholegrain_model::job::JOB_RECORD_BYTES_MAX;
use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::topics::Topic;

use super::{BUSY_RETRY, BUSY_RETRY_MAX, FAILED_RETRY, PublishEffect, PublishPipeline, PublishState};

/// Whether a topic is that of an agent's job records. An MQTT 3.1.1 client can learn of a refusal only from the end of its connection, and would
/// reconnect with the same record: the record is acknowledged, counted and logged, so that the client can continue to send readings.
pub(super) fn is_one(topic: &str) -> bool {
    matches!(Topic::parse(topic), Some(Topic::Job { .. }))
}

/// Decodes a record that an agent may send, or returns the reason to refuse it.
pub(super) fn read(agent: &str, payload: &[u8]) -> Result<JobRecord, (ReasonCode, String)> {
    let malformed = |why: String| (ReasonCode::PAYLOAD_FORMAT_INVALID, format!("not a job record: {why}"));
    if payload.len() > JOB_RECORD_BYTES_MAX {
        return Err(malformed(format!("{} bytes, at most {JOB_RECORD_BYTES_MAX} are allowed", payload.len())));
    }
    // An empty array would decode as an empty record.
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return Err(malformed("write a JSON object".to_owned()));
    }
    let mut record: JobRecord = serde_json::from_slice(payload).map_err(|error| malformed(error.to_string()))?;
    record.bound().map_err(malformed)?;
    if record.node != agent {
        let why = format!("the job is on node {:?}, its topic is of {agent:?}", record.node);
        return Err((ReasonCode::NOT_AUTHORIZED, why));
    }
    Ok(record)
}

impl PublishPipeline {
    /// The store answered [`PublishEffect::PutJob`].
    pub(super) fn job_put(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<PublishEffect>,
    ) {
        let entry = &mut self.entries[(ticket - self.first) as usize];
        match result {
            Ok(appended) => {
                entry.state = PublishState::Done(ReasonCode::SUCCESS);
                self.retry_after = BUSY_RETRY;
                if appended == AppendOutcome::Stored {
                    effects.push(entry.incoming.forward(false));
                    self.metrics.job_records.inc();
                } else {
                    self.metrics.job_records_repeated.inc();
                }
            }
            Err(StoreError::Payload(why)) => {
                self.metrics.job_records_refused.inc();
                let why = format!("not a job record: {why}");
                return self.refuse(ticket, ReasonCode::PAYLOAD_FORMAT_INVALID, why, now, effects);
            }
            Err(StoreError::Busy) => {
                entry.state = PublishState::Waiting;
                self.retry(now, self.retry_after);
                self.retry_after = (self.retry_after * 2).min(BUSY_RETRY_MAX);
            }
            // Nothing is acknowledged, so the agent keeps it.
            Err(_) => {
                entry.state = PublishState::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }
}
