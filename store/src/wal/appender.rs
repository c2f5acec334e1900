//! Checks batches and readings and queues them for the journal.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use wholegrain_model::Schema;
use wholegrain_transport::payload::{Checked, check_batch, read_origin};

use crate::append::{AppendCallback, AppendOutcome};
use crate::head::live::LiveBatch;
use crate::head::readings::LiveReadings;
use crate::segment::files::SegmentFiles;
use crate::sensors::SensorIndex;
use crate::sensors::reading::{READINGS_MAX, Reading, check_source};
use crate::stats::{Counters, add, sub};
use crate::wal::quarantine::PlausibleTimes;
use crate::wal::queue::{AppendQueue, PendingAppend};
use crate::work::WorkSignal;
use crate::{StoreConfig, StoreError};

pub(crate) struct Appender {
    pub config: Arc<StoreConfig>,
    pub sensors: Arc<SensorIndex>,
    pub segments: Arc<SegmentFiles>,
    pub queue: Arc<AppendQueue>,
    pub counters: Arc<Counters>,
    pub work: Arc<WorkSignal>,
}

impl Appender {
    pub(crate) fn append(&self, payload: Bytes, done: AppendCallback) {
        let counters = &self.counters;
        let batch = match self.check(payload) {
            Ok(batch) => batch,
            Err(error) => {
                add(&counters.rejected, 1);
                return done(Err(error));
            }
        };
        if self.work.is_closing() {
            return done(Err(StoreError::Closed));
        }
        if !self.append_room() {
            add(&counters.busy, 1);
            return done(Err(StoreError::Busy));
        }
        let pending = PendingAppend::batch(batch, PlausibleTimes::of(&self.config), done);
        let bytes = pending.bytes();
        add(&counters.queue_bytes, bytes);
        if let Err(done) = self.queue.push(pending) {
            sub(&counters.queue_bytes, bytes);
            done(Err(StoreError::Closed));
        }
    }

    /// Refuses every batch that could not be decoded later.
    fn check(&self, payload: Bytes) -> Result<LiveBatch, StoreError> {
        let refuse = |error: wholegrain_transport::payload::PayloadError| StoreError::Payload(error.to_string());
        let (agent, hash, _) = read_origin(&payload).map_err(refuse)?;
        let (schema, agent) = {
            let sensors = self.sensors.read();
            let schema = sensors.schema(&hash).ok_or(StoreError::UnknownSchema(hash))?.clone();
            // All batches of an agent share its name.
            let known = sensors.group(&hash).map(|state| &state.agent).filter(|known| &***known == agent);
            (schema, known.map_or_else(|| agent.into(), Arc::clone))
        };
        live_batch(payload, schema, agent)
    }

    pub(crate) fn append_room(&self) -> bool {
        let (counters, config) = (&self.counters, &self.config);
        let queued = counters.queue_bytes.load(Relaxed);
        let backlog = self.segments.backlog_bytes();
        let live = counters.live_bytes.load(Relaxed).saturating_sub(backlog);
        queued < config.queue_bytes_max.0 && queued + live < config.live_bytes_max.0
    }

    pub(crate) fn append_readings(&self, source: &str, readings: Vec<Reading>, done: AppendCallback) {
        let counters = &self.counters;
        if let Err(error) = self.check_readings(source, &readings) {
            add(&counters.rejected, 1);
            return done(Err(error));
        }
        if self.work.is_closing() {
            return done(Err(StoreError::Closed));
        }
        if readings.is_empty() {
            return done(Ok(AppendOutcome::Stored));
        }
        if !self.append_room() {
            add(&counters.busy, 1);
            return done(Err(StoreError::Busy));
        }
        let pending = PendingAppend::readings(
            LiveReadings { source: source.into(), readings },
            PlausibleTimes::of(&self.config),
            done,
        );
        let bytes = pending.bytes();
        add(&counters.queue_bytes, bytes);
        if let Err(done) = self.queue.push(pending) {
            sub(&counters.queue_bytes, bytes);
            done(Err(StoreError::Closed));
        }
    }

    fn check_readings(&self, source: &str, readings: &[Reading]) -> Result<(), StoreError> {
        check_source(source)?;
        if readings.len() > READINGS_MAX {
            let reason = format!("{} readings at once, at most {READINGS_MAX} are allowed", readings.len());
            return Err(StoreError::Payload(reason));
        }
        let known = self.sensors.read();
        match readings.iter().find(|reading| !known.has(reading.sensor)) {
            None => Ok(()),
            Some(reading) => Err(StoreError::Sensor(format!(
                "no sensor has the number {}; register its path first",
                reading.sensor.0
            ))),
        }
    }
}

/// Checks a batch. Its header names `agent`.
fn live_batch(payload: Bytes, schema: Schema, agent: Arc<str>) -> Result<LiveBatch, StoreError> {
    let checked = check_batch(&payload, &schema).map_err(|error| StoreError::Payload(error.to_string()))?;
    let Checked { boot, seq, interval_ns, samples, range: (first_time, last_time), .. } = checked;
    Ok(LiveBatch { schema, agent, boot, seq, interval_ns, samples, first_time, last_time, payload, arrival: 0 })
}
