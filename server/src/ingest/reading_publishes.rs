//! A connection's publishes on sensor paths: decides which are readings, and resolves their sensors.

use std::collections::HashMap;
use std::time::Instant;

use wholegrain_model::{SensorPath, Value};
use wholegrain_store::StoreError;
use wholegrain_transport::mqtt::ReasonCode;

use super::device_publishes::ConnectionDevices;
use super::effect::{IncomingPublish, PublishEffect};
use super::pipeline::PublishPipeline;
use crate::interop::dcdb::{self, DcdbPayload};
use crate::interop::resolution::{NameRequest, ResolvedSensor, SensorResolution, is_float};
use crate::interop::{Interop, now_ns, text};

/// The most topics of a connection with a cached sensor; beyond it the cache is cleared.
pub const TOPICS_MAX: usize = 8192;

/// The cache of sensors and the open announcements of one connection.
#[derive(Debug, Default)]
pub(crate) struct ReadingPublishes {
    pub(super) known: HashMap<Box<str>, ResolvedSensor>,
    generation: u64,
    /// Announcements without an answer. The cache is not used until all are answered.
    announcing: usize,
    pub(super) devices: ConnectionDevices,
}

/// The result of a publish on a sensor path.
pub(crate) enum PublishDisposition {
    /// The pipeline has it.
    Accepted,
    /// It is not a reading.
    Ordinary(IncomingPublish),
    /// Refused, with the reason.
    Refused(IncomingPublish, ReasonCode, String),
}

/// A payload with readings.
enum ReadingPayload {
    One(Value, Option<i64>),
    Records,
}

impl ReadingPublishes {
    /// Clears the cache after a change; `generation` covers names and permissions.
    pub fn refresh(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.known.clear();
        }
    }

    /// Handles a publish whose topic begins with `/`. `may` checks whether the sender may publish on a path; `keep` is set if there are subscribers
    /// to the topic.
    pub fn offer(
        &mut self,
        interop: &Interop,
        pipeline: &mut PublishPipeline,
        incoming: IncomingPublish,
        may: impl Fn(&str) -> Result<(), String>,
        keep: bool,
        effects: &mut Vec<PublishEffect>,
    ) -> PublishDisposition {
        let topic = incoming.topic.as_str();
        if topic.starts_with(dcdb::MAP) && interop.config.readings {
            return self.announcement(pipeline, incoming, effects);
        }
        let content = match content(&incoming.payload) {
            Ok(Some(content)) => content,
            Ok(None) => return self.not_a_reading(interop, incoming),
            Err(why) => return PublishDisposition::Refused(incoming, ReasonCode::PAYLOAD_FORMAT_INVALID, why),
        };
        let known = if self.announcing == 0 { self.known.get(topic).copied() } else { None };
        let needs_float = matches!(content, ReadingPayload::One(value, _) if is_float(value));
        // A sensor that had integers only: it may have floats by now, or becomes one with floats.
        let takes = |known: &ResolvedSensor| known.float || !needs_float;
        let sensor = match known.filter(takes) {
            Some(known) => Some(known),
            None => {
                if !interop.takes(topic) || SensorPath::new(topic).is_err() {
                    return self.not_a_reading(interop, incoming);
                }
                if let Err(why) = may(topic) {
                    return PublishDisposition::Refused(incoming, ReasonCode::NOT_AUTHORIZED, why);
                }
                if self.announcing == 0 { self.look_up(interop, topic, &may).filter(takes) } else { None }
            }
        };
        let keep = keep || incoming.is_kept();
        // A message that waits for the disk must not keep the receive buffer alive.
        let payload = incoming.payload.clone();
        let incoming = if keep { incoming.copied() } else { incoming };
        pipeline.gather(incoming, Instant::now(), effects, |run, incoming| match content {
            ReadingPayload::One(value, time) => {
                run.put(incoming, sensor, std::iter::once((time.unwrap_or_else(now_ns), value)), keep);
            }
            ReadingPayload::Records => {
                let (records, _) = payload.as_chunks::<{ dcdb::RECORD_BYTES }>();
                let readings = records.iter().map(|record| {
                    let (value, time) = dcdb::record(record);
                    (time, Value::Int(value))
                });
                run.put(incoming, sensor, readings, keep);
            }
        });
        PublishDisposition::Accepted
    }

    /// A payload that is not a reading goes to subscribers like any other message.
    fn not_a_reading(&self, interop: &Interop, incoming: IncomingPublish) -> PublishDisposition {
        interop.metrics.odd_readings.inc();
        PublishDisposition::Ordinary(incoming)
    }

    fn announcement(
        &mut self,
        pipeline: &mut PublishPipeline,
        incoming: IncomingPublish,
        effects: &mut Vec<PublishEffect>,
    ) -> PublishDisposition {
        match dcdb::announcement(&incoming.topic, &incoming.payload) {
            None => PublishDisposition::Ordinary(incoming),
            Some(Err(error)) => {
                PublishDisposition::Refused(incoming, ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string())
            }
            Some(Ok(announced)) => {
                self.announcing += 1;
                let incoming = incoming.copied();
                pipeline.announce(incoming, announced, Instant::now(), effects);
                PublishDisposition::Accepted
            }
        }
    }

    /// Finds a sensor that the store knows and that the sender may write.
    fn look_up(
        &mut self,
        interop: &Interop,
        topic: &str,
        may: &impl Fn(&str) -> Result<(), String>,
    ) -> Option<ResolvedSensor> {
        let path = interop.path(topic).ok()?;
        // The registration of new sensors reports the error.
        if path.as_str() != topic && may(path.as_str()).is_err() {
            return None;
        }
        let known = interop.find(path.as_str())?;
        if self.known.len() >= TOPICS_MAX {
            self.known.clear();
        }
        self.known.insert(topic.into(), known);
        Some(known)
    }

    /// Names were resolved (`found`), or will be requested again.
    pub fn answered(&mut self, names: &NameRequest, found: bool) {
        if found && matches!(names, NameRequest::Announced(_)) {
            self.announcing = self.announcing.saturating_sub(1);
        }
    }
}

/// Resolves the names of a run; blocks on the disk.
pub(crate) fn find_names(
    interop: &Interop,
    source: &str,
    names: &NameRequest,
    may: impl Fn(&str) -> Result<(), String>,
) -> Result<Vec<SensorResolution>, StoreError> {
    match names {
        NameRequest::Sensors(wanted) => interop.resolve(source, wanted, may),
        NameRequest::Announced(announced) => interop.announce(source, announced, may).map(|named| vec![named]),
    }
}

fn content(payload: &[u8]) -> Result<Option<ReadingPayload>, String> {
    if let Some((value, time)) = text::parse(payload) {
        return Ok(Some(ReadingPayload::One(value, time)));
    }
    match dcdb::payload(payload) {
        DcdbPayload::Value(value) => Ok(Some(ReadingPayload::One(Value::Int(value), None))),
        DcdbPayload::Records(_) => Ok(Some(ReadingPayload::Records)),
        DcdbPayload::TooMany(count) => {
            Err(format!("{count} records in one message; send at most {}", dcdb::RECORDS_MAX))
        }
        DcdbPayload::Other => Ok(None),
    }
}
