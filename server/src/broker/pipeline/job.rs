//! Records of jobs in the pipeline: what is one, and what becomes of it when the store has answered.

use std::time::Instant;

use wholegrain_model::JobRecord;
use wholegrain_model::job::JOB_RECORD_BYTES_MAX;
use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::topics::Topic;

use super::{BUSY_RETRY, BUSY_RETRY_MAX, Effect, FAILED_RETRY, Pipeline, State};

/// Whether a topic is that of an agent's jobs. A client of MQTT 3.1.1 can be told of a refusal only by the end of its connection, and would come back
/// with the same record: it is acknowledged, counted and logged, so that its readings go on.
pub(super) fn is_one(topic: &str) -> bool {
    matches!(Topic::parse(topic), Some(Topic::Job { .. }))
}

/// Reads a record that an agent may send, or says why it is none.
pub(super) fn read(agent: &str, payload: &[u8]) -> Result<JobRecord, (ReasonCode, String)> {
    let malformed = |why: String| (ReasonCode::PAYLOAD_FORMAT_INVALID, format!("not a job record: {why}"));
    if payload.len() > JOB_RECORD_BYTES_MAX {
        return Err(malformed(format!("{} bytes, at most {JOB_RECORD_BYTES_MAX} are allowed", payload.len())));
    }
    // An array of nothing would be a record of nothing.
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return Err(malformed("an object in JSON is wanted".to_owned()));
    }
    let mut record: JobRecord = serde_json::from_slice(payload).map_err(|error| malformed(error.to_string()))?;
    record.bound().map_err(malformed)?;
    if record.node != agent {
        let why = format!("the job is on node {:?}, its topic is of {agent:?}", record.node);
        return Err((ReasonCode::NOT_AUTHORIZED, why));
    }
    Ok(record)
}

impl Pipeline {
    /// The store answered [`Effect::PutJob`].
    pub(super) fn job_put(
        &mut self,
        ticket: u64,
        result: Result<AppendOutcome, StoreError>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let entry = &mut self.entries[(ticket - self.first) as usize];
        match result {
            Ok(appended) => {
                entry.state = State::Done(ReasonCode::SUCCESS);
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
                entry.state = State::Waiting;
                self.retry(now, self.retry_after);
                self.retry_after = (self.retry_after * 2).min(BUSY_RETRY_MAX);
            }
            // Nothing is acknowledged, and the agent keeps it.
            Err(_) => {
                entry.state = State::Waiting;
                self.retry(now, FAILED_RETRY);
            }
        }
        self.pump(now, effects);
        self.acknowledge(now, effects);
    }
}
