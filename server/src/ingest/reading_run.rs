//! Collects readings of consecutive messages for the store. No I/O.
//!
//! One read of a socket can return many messages with one reading each. Together they are one entry of the client's pipeline, one call of the store
//! and one record of its journal; each is acknowledged separately.

use std::ops::Range;

use wholegrain_model::Value;
use wholegrain_store::{Reading, SensorId};
use wholegrain_transport::mqtt::{ReasonCode, Text};

use super::effect::IncomingPublish;
use crate::interop::dcdb::SensorAnnouncement;
use crate::interop::devices::DeviceReading;
use crate::interop::resolution::{
    NameRequest, ReadingRefusal, ResolvedSensor, SensorProperties, SensorRequest, SensorResolution, is_float,
};

/// A run is closed at this number of readings.
pub const RUN_READINGS_MAX: usize = 16_384;
/// A run is closed at this number of messages.
pub const RUN_MESSAGES_MAX: usize = 4_096;

/// The placeholder for a sensor without a number.
const UNNAMED: SensorId = SensorId(u32::MAX);

#[derive(Debug, Default)]
pub struct ReadingRun {
    /// In order of arrival; without topic and payload if nothing needs them.
    pub messages: Vec<IncomingPublish>,
    pub readings: Vec<Reading>,
    /// Messages whose sensor has no number yet.
    unnamed: Vec<UnresolvedMessage>,
    /// Refused messages by index, in order, with the reason.
    refused: Vec<(usize, ReadingRefusal)>,
    /// Messages of devices by index, in order.
    devices: Vec<usize>,
    /// Set if the only message is an announcement.
    announced: Option<SensorAnnouncement>,
    /// The bytes that the pipeline counts for this run.
    pub counted_bytes: usize,
}

#[derive(Debug)]
struct UnresolvedMessage {
    topic: Text,
    message: usize,
    readings: Range<usize>,
    properties: SensorProperties,
}

impl ReadingRun {
    /// Creates a run of one announcement.
    pub fn announcement(incoming: IncomingPublish, announced: SensorAnnouncement) -> Self {
        Self { messages: vec![incoming], announced: Some(announced), ..Self::default() }
    }

    /// Adds a message with its readings; `keep` is set if subscribers get it later.
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
            let (topic, properties) = (incoming.topic.clone(), SensorProperties::default());
            self.unnamed.push(UnresolvedMessage { topic, message, readings, properties });
        }
        self.messages.push(if keep { incoming } else { incoming.emptied() });
    }

    /// Adds a device's message with its readings; `keep` is set if subscribers get it later.
    pub fn put_device(
        &mut self,
        incoming: IncomingPublish,
        readings: Vec<(Option<ResolvedSensor>, DeviceReading)>,
        keep: bool,
    ) {
        let message = self.messages.len();
        for (sensor, DeviceReading { path, properties, time, value }) in readings {
            let (known, at) = (sensor.unwrap_or(ResolvedSensor { id: UNNAMED, float: false }), self.readings.len());
            self.readings.push(Reading { sensor: known.id, time, value: known.fit(value) });
            if sensor.is_none() {
                let (topic, readings) = (path.as_str().into(), at..at + 1);
                self.unnamed.push(UnresolvedMessage { topic, message, readings, properties });
            }
        }
        self.devices.push(message);
        self.messages.push(if keep { incoming } else { incoming.emptied() });
    }

    /// Whether a message is of a device, whose connection a refusal does not close.
    pub fn is_of_device(&self, message: usize) -> bool {
        self.devices.binary_search(&message).is_ok()
    }

    /// Whether the run accepts no further message.
    pub fn is_full(&self) -> bool {
        self.readings.len() >= RUN_READINGS_MAX || self.messages.len() >= RUN_MESSAGES_MAX || self.announced.is_some()
    }

    /// The size of readings and payloads.
    pub fn bytes(&self) -> usize {
        self.readings.len() * size_of::<Reading>()
            + self.messages.iter().map(|message| message.payload.len()).sum::<usize>()
    }

    /// Whether it may change the sensors of later messages.
    pub fn is_announcement(&self) -> bool {
        self.announced.is_some()
    }

    /// Whether names have to be resolved first.
    pub fn is_unnamed(&self) -> bool {
        self.announced.is_some() || !self.unnamed.is_empty()
    }

    /// The names to resolve first.
    pub fn names(&self) -> Option<NameRequest> {
        if let Some(announced) = &self.announced {
            return Some(NameRequest::Announced(announced.clone()));
        }
        let has_float = |unnamed: &UnresolvedMessage| {
            self.readings[unnamed.readings.clone()].iter().any(|reading| is_float(reading.value))
        };
        let wanted = |unnamed: &UnresolvedMessage| SensorRequest {
            topic: unnamed.topic.as_str().to_owned(),
            float: has_float(unnamed),
            properties: unnamed.properties.clone(),
        };
        (!self.unnamed.is_empty()).then(|| NameRequest::Sensors(self.unnamed.iter().map(wanted).collect()))
    }

    /// Applies the results of [`ReadingRun::names`], in its order. Removes the readings of refused messages.
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
                    if self.refused.last().is_none_or(|(message, _)| *message != unnamed.message) {
                        self.refused.push((unnamed.message, refusal));
                    }
                    gone.push(unnamed.readings);
                }
            }
        }
        if !gone.is_empty() {
            self.readings.retain(|reading| reading.sensor != UNNAMED);
        }
    }

    /// Refuses all messages that are not refused yet.
    pub fn refuse(&mut self, code: ReasonCode, why: &str) {
        let all = (0..self.messages.len()).map(|at| (at, self.refusal(at).unwrap_or_else(|| (code, why.to_owned()))));
        self.refused = all.collect();
    }

    fn refusal(&self, at: usize) -> Option<ReadingRefusal> {
        self.refused.iter().find(|(message, _)| *message == at).map(|(_, refusal)| refusal.clone())
    }

    /// Refused messages by index, with the reason.
    pub fn refused(&self) -> &[(usize, ReadingRefusal)] {
        &self.refused
    }

    /// Returns each message with its refusal, if any.
    pub fn into_answers(self) -> impl Iterator<Item = (IncomingPublish, Option<ReadingRefusal>)> {
        let mut refused = self.refused.into_iter().peekable();
        self.messages.into_iter().enumerate().map(move |(at, message)| {
            let refusal = refused.next_if(|(refused, _)| *refused == at).map(|(_, refusal)| refusal);
            (message, refusal)
        })
    }
}
