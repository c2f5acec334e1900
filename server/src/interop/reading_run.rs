//! Readings of consecutive messages on their way to the store together. No I/O.
//!
//! One read of a socket brings many messages with one reading each. They are one entry of the client's pipeline, one call of the store
//! and one record of its journal; each is acknowledged by itself.

use std::ops::Range;

use wholegrain_model::Value;
use wholegrain_store::{Reading, SensorId};
use wholegrain_transport::mqtt::{ReasonCode, Text};

use super::dcdb::SensorAnnouncement;
use super::{ReadingRefusal, SensorRequest};
use crate::broker::pipeline::IncomingPublish;

/// A run with so many readings is handed on, and the next message begins another.
pub const RUN_READINGS_MAX: usize = 16_384;
/// A run with so many messages is handed on.
pub const RUN_MESSAGES_MAX: usize = 4_096;
/// Integers up to this size are floats without loss.
const EXACT_MAX: u64 = 1 << 53;

/// What stands for a sensor that has no number yet.
const UNNAMED: SensorId = SensorId(u32::MAX);

/// A sensor that readings can be stored of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolvedSensor {
    /// Its number.
    pub id: SensorId,
    /// Whether its values are floats.
    pub float: bool,
}

impl ResolvedSensor {
    /// A value as this sensor has them: an integer of a sensor of floats is a float where nothing is lost. A float of a sensor of
    /// integers stays one; the store takes both.
    pub fn fit(self, value: Value) -> Value {
        match value {
            Value::Int(int) if self.float && int.unsigned_abs() <= EXACT_MAX => Value::Float(int as f64),
            other => other,
        }
    }
}

/// A sensor's number, or why its readings are refused.
pub type SensorResolution = Result<ResolvedSensor, ReadingRefusal>;

/// Messages and their readings.
#[derive(Debug, Default)]
pub struct ReadingRun {
    /// In the order of arrival; without topic and payload where nobody needs them any more.
    pub messages: Vec<IncomingPublish>,
    /// In the order of arrival.
    pub readings: Vec<Reading>,
    /// Messages whose sensor has no number yet.
    unnamed: Vec<UnresolvedMessage>,
    /// Which messages are refused, in their order, and why.
    refused: Vec<(usize, ReadingRefusal)>,
    /// The one message is an announcement.
    announced: Option<SensorAnnouncement>,
    /// What the pipeline counts for it, in bytes.
    pub counted_bytes: usize,
}

#[derive(Debug)]
struct UnresolvedMessage {
    topic: Text,
    message: usize,
    readings: Range<usize>,
}

/// What a run needs before it can be stored.
#[derive(Debug, Clone, PartialEq)]
pub enum NameRequest {
    /// Numbers of sensors.
    Sensors(Vec<SensorRequest>),
    /// That an announcement is kept.
    Announced(SensorAnnouncement),
}

impl ReadingRun {
    /// Of one announcement.
    pub fn announcement(incoming: IncomingPublish, announced: SensorAnnouncement) -> Self {
        Self { messages: vec![incoming], announced: Some(announced), ..Self::default() }
    }

    /// Adds a message with its readings. `keep` says whether it is passed on to subscribers later.
    pub fn put(
        &mut self,
        incoming: IncomingPublish,
        sensor: Option<ResolvedSensor>,
        readings: impl Iterator<Item = (i64, Value)>,
        keep: bool,
    ) {
        let (known, first) = (sensor.unwrap_or(ResolvedSensor { id: UNNAMED, float: false }), self.readings.len());
        self.readings.extend(readings.map(|(time, value)| Reading { sensor: known.id, time, value: known.fit(value) }));
        if sensor.is_none() {
            let (message, readings) = (self.messages.len(), first..self.readings.len());
            self.unnamed.push(UnresolvedMessage { topic: incoming.topic.clone(), message, readings });
        }
        self.messages.push(if keep { incoming } else { incoming.emptied() });
    }

    /// Whether it takes no further message.
    pub fn is_full(&self) -> bool {
        self.readings.len() >= RUN_READINGS_MAX || self.messages.len() >= RUN_MESSAGES_MAX || self.announced.is_some()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.readings.len() * size_of::<Reading>()
            + self.messages.iter().map(|message| message.payload.len()).sum::<usize>()
    }

    /// Whether later messages may be of a sensor that this one names.
    pub fn is_announcement(&self) -> bool {
        self.announced.is_some()
    }

    /// Whether something is to be found out first.
    pub fn is_unnamed(&self) -> bool {
        self.announced.is_some() || !self.unnamed.is_empty()
    }

    /// What is to be found out first.
    pub fn names(&self) -> Option<NameRequest> {
        if let Some(announced) = &self.announced {
            return Some(NameRequest::Announced(announced.clone()));
        }
        let is_float = |unnamed: &UnresolvedMessage| {
            self.readings[unnamed.readings.clone()]
                .first()
                .is_some_and(|reading| matches!(reading.value, Value::Float(_)))
        };
        let wanted = |unnamed: &UnresolvedMessage| SensorRequest {
            topic: unnamed.topic.as_str().to_owned(),
            float: is_float(unnamed),
            unit: String::new(),
        };
        (!self.unnamed.is_empty()).then(|| NameRequest::Sensors(self.unnamed.iter().map(wanted).collect()))
    }

    /// The answers to [`Run::names`], in its order. Readings of refused messages are taken out.
    pub fn named(&mut self, named: Vec<SensorResolution>) {
        if self.announced.take().is_some() {
            let refused = named.into_iter().filter_map(|named| Some((0, named.err()?)));
            return self.refused.extend(refused);
        }
        let mut gone = Vec::new();
        for (unnamed, named) in std::mem::take(&mut self.unnamed).into_iter().zip(named) {
            match named {
                Ok(known) => {
                    for reading in &mut self.readings[unnamed.readings] {
                        *reading = Reading { sensor: known.id, value: known.fit(reading.value), ..*reading };
                    }
                }
                Err(refusal) => {
                    self.refused.push((unnamed.message, refusal));
                    gone.push(unnamed.readings);
                }
            }
        }
        if !gone.is_empty() {
            self.readings.retain(|reading| reading.sensor != UNNAMED);
        }
    }

    /// Refuses everything that is not refused yet.
    pub fn refuse(&mut self, code: ReasonCode, why: &str) {
        let all = (0..self.messages.len()).map(|at| (at, self.refusal(at).unwrap_or_else(|| (code, why.to_owned()))));
        self.refused = all.collect();
    }

    fn refusal(&self, at: usize) -> Option<ReadingRefusal> {
        self.refused.iter().find(|(message, _)| *message == at).map(|(_, refusal)| refusal.clone())
    }

    /// Those refused.
    pub fn refused(&self) -> &[(usize, ReadingRefusal)] {
        &self.refused
    }

    /// Every message with its refusal, if there is one.
    pub fn into_answers(self) -> impl Iterator<Item = (IncomingPublish, Option<ReadingRefusal>)> {
        let mut refused = self.refused.into_iter().peekable();
        self.messages.into_iter().enumerate().map(move |(at, message)| {
            let refusal = refused.next_if(|(refused, _)| *refused == at).map(|(_, refusal)| refusal);
            (message, refusal)
        })
    }
}
