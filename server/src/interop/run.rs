//! Readings of consecutive messages on their way to the store together. No I/O.
//!
//! One read of a socket brings many messages with one reading each. They are one entry of the client's pipeline, one call of the store
//! and one record of its journal; each is acknowledged by itself.

use std::ops::Range;

use wholegrain_model::Value;
use wholegrain_store::{Reading, SensorId};
use wholegrain_transport::mqtt::{ReasonCode, Text};

use super::dcdb::Announced;
use super::{Refusal, Wanted};
use crate::broker::pipeline::Incoming;

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
pub struct Known {
    /// Its number.
    pub id: SensorId,
    /// Whether its values are floats.
    pub float: bool,
}

impl Known {
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
pub type Named = Result<Known, Refusal>;

/// Messages and their readings.
#[derive(Debug, Default)]
pub struct Run {
    /// In the order of arrival; without topic and payload where nobody needs them any more.
    pub messages: Vec<Incoming>,
    /// In the order of arrival.
    pub readings: Vec<Reading>,
    /// Messages whose sensor has no number yet.
    unnamed: Vec<Unnamed>,
    /// Which messages are refused, in their order, and why.
    refused: Vec<(usize, Refusal)>,
    /// The one message is an announcement.
    announced: Option<Announced>,
    /// What the pipeline counts for it, in bytes.
    pub counted_bytes: usize,
}

#[derive(Debug)]
struct Unnamed {
    topic: Text,
    message: usize,
    readings: Range<usize>,
}

/// What a run needs before it can be stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Names {
    /// Numbers of sensors.
    Sensors(Vec<Wanted>),
    /// That an announcement is kept.
    Announced(Announced),
}

impl Run {
    /// Of one announcement.
    pub fn announcement(incoming: Incoming, announced: Announced) -> Self {
        Self { messages: vec![incoming], announced: Some(announced), ..Self::default() }
    }

    /// Adds a message with its readings. `keep` says whether it is passed on to subscribers later.
    pub fn put(
        &mut self,
        incoming: Incoming,
        sensor: Option<Known>,
        readings: impl Iterator<Item = (i64, Value)>,
        keep: bool,
    ) {
        let (known, first) = (sensor.unwrap_or(Known { id: UNNAMED, float: false }), self.readings.len());
        self.readings.extend(readings.map(|(time, value)| Reading { sensor: known.id, time, value: known.fit(value) }));
        if sensor.is_none() {
            let (message, readings) = (self.messages.len(), first..self.readings.len());
            self.unnamed.push(Unnamed { topic: incoming.topic.clone(), message, readings });
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
    pub fn names(&self) -> Option<Names> {
        if let Some(announced) = &self.announced {
            return Some(Names::Announced(announced.clone()));
        }
        let is_float = |unnamed: &Unnamed| {
            self.readings[unnamed.readings.clone()]
                .first()
                .is_some_and(|reading| matches!(reading.value, Value::Float(_)))
        };
        let wanted = |unnamed: &Unnamed| Wanted {
            topic: unnamed.topic.as_str().to_owned(),
            float: is_float(unnamed),
            unit: String::new(),
        };
        (!self.unnamed.is_empty()).then(|| Names::Sensors(self.unnamed.iter().map(wanted).collect()))
    }

    /// The answers to [`Run::names`], in its order. Readings of refused messages are taken out.
    pub fn named(&mut self, named: Vec<Named>) {
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

    fn refusal(&self, at: usize) -> Option<Refusal> {
        self.refused.iter().find(|(message, _)| *message == at).map(|(_, refusal)| refusal.clone())
    }

    /// Those refused.
    pub fn refused(&self) -> &[(usize, Refusal)] {
        &self.refused
    }

    /// Every message with its refusal, if there is one.
    pub fn into_answers(self) -> impl Iterator<Item = (Incoming, Option<Refusal>)> {
        let mut refused = self.refused.into_iter().peekable();
        self.messages.into_iter().enumerate().map(move |(at, message)| {
            let refusal = refused.next_if(|(refused, _)| *refused == at).map(|(_, refusal)| refusal);
            (message, refusal)
        })
    }
}
