//! Publishes live readings as text: `text/<path without its first slash>` with `value;timestamp_ns`.
//!
//! Without subscribers to these topics a thread checks for them ten times a second, and does nothing else.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use wholegrain_model::{SchemaHash, Value};
use wholegrain_store::{LiveBatch, LiveItem, LiveReadings, SensorId};
use wholegrain_transport::mqtt;
use wholegrain_transport::payload::for_each_column;

use crate::broker::Broker;
use crate::lifetime::ServerLifetime;
use crate::text_topics;

/// The most commits of the journal that may wait for the thread. Beyond it the store drops readings for it and counts them.
const STORE_BOUND: usize = 1024;
/// How often the thread checks for subscribers.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most schemas and sensors with a cached selection.
const REMEMBERED_MAX: usize = 65_536;

/// Starts the thread. It ends when the server shuts down or the store is closed.
pub(crate) fn start(broker: Arc<Broker>, lifetime: ServerLifetime) -> std::io::Result<()> {
    std::thread::Builder::new().name("live-text".into()).spawn(move || {
        run(&broker, &lifetime.shutdown);
        // The server closes the store when all lifetimes have ended; nothing may use it after that.
        drop(broker);
        drop(lifetime);
    })?;
    Ok(())
}

fn run(broker: &Broker, shutdown: &watch::Receiver<bool>) {
    while !*shutdown.borrow() {
        if LiveText::filters(broker).is_empty() {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let items = broker.store.subscribe(STORE_BOUND);
        let mut text = LiveText::default();
        while !*shutdown.borrow() {
            match items.recv_timeout(LOOK_EVERY) {
                Ok(items) if text.has_subscribers(broker) => items.iter().for_each(|item| text.item(broker, item)),
                Err(RecvTimeoutError::Timeout) if text.has_subscribers(broker) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                _ => break,
            }
        }
    }
}

/// A sensor with at least one subscriber.
#[derive(Debug)]
struct TextSensor {
    column: usize,
    topic: String,
    scale: f64,
}

#[derive(Debug, Default)]
struct LiveText {
    generation: Option<u64>,
    /// The store's generation of properties when the scales were read.
    properties: u64,
    filters: Vec<String>,
    batches: HashMap<SchemaHash, Arc<[TextSensor]>>,
    /// `None` for a sensor without subscribers.
    schemaless: HashMap<SensorId, Option<TextSensor>>,
}

impl LiveText {
    fn filters(broker: &Broker) -> Vec<String> {
        broker.subscriptions.filters_below(text_topics::ROOT)
    }

    /// Reads the subscriptions again if they changed; returns whether there are any.
    fn has_subscribers(&mut self, broker: &Broker) -> bool {
        let generation = broker.subscriptions.text_generation();
        // Scales may have changed.
        let properties = broker.store.properties_generation();
        if self.generation != Some(generation) || self.properties != properties {
            let filters = Self::filters(broker);
            *self = Self { generation: Some(generation), properties, filters, ..Self::default() };
        }
        !self.filters.is_empty()
    }

    fn item(&mut self, broker: &Broker, item: &LiveItem) {
        match item {
            LiveItem::Batch(batch) => self.batch(broker, batch),
            LiveItem::Readings(readings) => self.readings(broker, readings),
        }
    }

    fn choose(filters: &[String], column: usize, path: &str, scale: f64) -> Option<TextSensor> {
        let topic = text_topics::topic(path);
        let wanted = filters.iter().any(|filter| mqtt::topic_matches(filter, &topic));
        wanted.then_some(TextSensor { column, topic, scale })
    }

    fn batch(&mut self, broker: &Broker, batch: &LiveBatch) {
        if self.batches.len() >= REMEMBERED_MAX {
            self.batches.clear();
        }
        let (schema, filters) = (&batch.schema, &self.filters);
        let chosen = self.batches.entry(schema.hash()).or_insert_with(|| {
            let one = |(column, sensor): (usize, &wholegrain_model::SensorDef)| {
                let path = schema.path(column);
                Self::choose(filters, column, &path, broker.store.scale(&path).unwrap_or(sensor.scale))
            };
            schema.sensors().iter().enumerate().filter_map(one).collect()
        });
        if chosen.is_empty() {
            return;
        }
        let chosen = chosen.clone();
        let mut columns = Vec::with_capacity(chosen.len());
        let mut next = chosen.iter().peekable();
        let decoded = for_each_column(&batch.payload, schema, |index, column| {
            if let Some(chosen) = next.next_if(|chosen| chosen.column == index) {
                columns.push((chosen, column.clone()));
            }
        });
        // The store validated the payload before.
        let Ok(times) = decoded else { return };
        for (at, time) in times.into_iter().enumerate() {
            for (chosen, column) in &columns {
                if let Some(value) = column.get(at) {
                    publish(broker, chosen, value, time);
                }
            }
        }
    }

    fn readings(&mut self, broker: &Broker, readings: &LiveReadings) {
        for reading in &readings.readings {
            if self.schemaless.len() >= REMEMBERED_MAX && !self.schemaless.contains_key(&reading.sensor) {
                self.schemaless.clear();
            }
            let filters = &self.filters;
            let chosen = self.schemaless.entry(reading.sensor).or_insert_with(|| {
                let info = broker.store.sensor(reading.sensor)?;
                Self::choose(filters, 0, &info.path, info.scale)
            });
            if let Some(chosen) = chosen {
                publish(broker, chosen, reading.value, reading.time);
            }
        }
    }
}

fn publish(broker: &Broker, chosen: &TextSensor, value: Value, time: i64) {
    broker.metrics.text_messages.inc();
    // Has no sender and never waits: messages beyond a subscriber's queue are dropped and counted.
    broker.subscriptions.publish(0, &chosen.topic, &Bytes::from(text(value, chosen.scale, time)), false);
}

/// Formats the value in the sensor's unit, and its time in ns.
fn text(value: Value, scale: f64, time: i64) -> String {
    let mut text = String::with_capacity(40);
    // Writing to a string cannot fail.
    let _ = match value {
        Value::Int(value) if scale == 1.0 => write!(text, "{value};{time}"),
        Value::Int(value) if scale.fract() == 0.0 && (value as f64 * scale).abs() < 9e15 => {
            write!(text, "{};{time}", value * scale as i64)
        }
        value => write!(text, "{};{time}", value.as_f64() * scale),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_their_unit() {
        for (value, scale, expected) in [
            (Value::Int(i64::MAX), 1.0, "9223372036854775807;5"),
            (Value::Int(-3), 1024.0, "-3072;5"),
            (Value::Int(25), 0.5, "12.5;5"),
            (Value::Float(0.25), 1.0, "0.25;5"),
            (Value::Float(2.0), 2.0, "4;5"),
        ] {
            assert_eq!(text(value, scale, 5), expected);
        }
    }
}
