//! A connection's publishes of devices that do not know this server (`[[mqtt.device]]`): their values become readings of the resulting sensors.
//!
//! The permission is that of each sensor's path. The message goes to subscribers only if the client may publish on the topic itself.

use std::time::Instant;

use wholegrain_store::{GAP_BITS, Reading};
use wholegrain_transport::mqtt::ReasonCode;

use super::effect::{IncomingPublish, PublishEffect};
use super::pipeline::PublishPipeline;
use super::reading_publishes::{PublishDisposition, ReadingPublishes, TOPICS_MAX};
use crate::admission::QuotaPermit;
use crate::interop::devices::sparkplug::{self, SparkplugNodes};
use crate::interop::devices::template::DevicePayload;
use crate::interop::devices::{DeviceMessage, DeviceReading, json};
use crate::interop::resolution::{ResolvedSensor, is_float};
use crate::interop::{Interop, now_ns};
use crate::log_limit::quoted;

/// Nodes of Sparkplug on one connection, and the memory that they take of the identity's.
#[derive(Debug, Default)]
pub(super) struct ConnectionDevices {
    nodes: SparkplugNodes,
    memory: Option<QuotaPermit>,
}

impl ConnectionDevices {
    /// The readings of a publish; `None` if its topic is not of a device.
    fn read(
        &mut self,
        interop: &Interop,
        sender: &str,
        publish: &IncomingPublish,
    ) -> Option<Result<DeviceMessage, String>> {
        let topic = publish.topic.as_str();
        let sparkplug = sparkplug::topic(topic);
        for template in &interop.config.devices {
            match (template.payload, &sparkplug) {
                (DevicePayload::Json, _) => {
                    if let Some(names) = template.matches(topic) {
                        return Some(json::read(template, &names, &publish.payload, now_ns()));
                    }
                }
                (DevicePayload::Sparkplug, Some((kind, names))) => {
                    if self.memory.is_none() {
                        self.memory = interop.device_memory.take(sender);
                    }
                    let memory = &mut self.memory;
                    let mut grow = |bytes| memory.as_mut().is_some_and(|memory| memory.grow(bytes));
                    let taken = self.nodes.take(template, *kind, names, &publish.payload, now_ns(), &mut grow);
                    if let Some(memory) = memory {
                        memory.shrink_to(self.nodes.bytes() + 1);
                    }
                    return Some(taken.map(|taken| {
                        interop.metrics.sparkplug_losses.add(u64::from(taken.is_after_loss));
                        taken.message
                    }));
                }
                (DevicePayload::Sparkplug, None) => {}
            }
        }
        None
    }
}

impl ReadingPublishes {
    /// Handles a publish whose topic does not begin with `/`. `may` checks whether the sender may publish on a path or topic.
    pub fn offer_device(
        &mut self,
        interop: &Interop,
        pipeline: &mut PublishPipeline,
        incoming: IncomingPublish,
        may: impl Fn(&str) -> Result<(), String>,
        effects: &mut Vec<PublishEffect>,
    ) -> PublishDisposition {
        let sender = pipeline.identity_shared();
        let Some(read) = self.devices.read(interop, &sender, &incoming) else {
            return PublishDisposition::Ordinary(incoming);
        };
        let is_forwarded = may(&incoming.topic).is_ok();
        let (mut message, is_readable) = match read {
            Ok(message) => (message, true),
            Err(why) => (DeviceMessage { left_out: 1, fault: Some(why), ..DeviceMessage::default() }, false),
        };
        let (readings, denied) = self.device_sensors(interop, &mut message, &may);
        interop.metrics.device_values_left_out.add(message.left_out as u64);
        if let Some(why) = &message.fault {
            effects.push(PublishEffect::Refused(format!("{}: {why}", quoted(&incoming.topic))));
        }
        match denied {
            // Without reason codes a refusal would close the connection, and the device would send the same again for ever.
            Some(why) if readings.is_empty() && pipeline.has_reasons() => {
                return PublishDisposition::Refused(incoming, ReasonCode::NOT_AUTHORIZED, why);
            }
            _ if readings.is_empty() && is_forwarded => return PublishDisposition::Ordinary(incoming),
            _ if readings.is_empty() && !is_readable && pipeline.has_reasons() => {
                let why = message.fault.unwrap_or_default();
                return PublishDisposition::Refused(incoming, ReasonCode::PAYLOAD_FORMAT_INVALID, why);
            }
            _ if readings.is_empty() => pipeline.repeat(incoming.emptied(), Instant::now(), effects),
            _ => pipeline.gather(incoming, Instant::now(), effects, |run, incoming| {
                run.put_device(incoming, readings, is_forwarded);
            }),
        }
        PublishDisposition::Accepted
    }

    /// Finds the sensors that the store knows, and leaves out those that the sender may not write; returns a reason if there are such.
    fn device_sensors(
        &mut self,
        interop: &Interop,
        message: &mut DeviceMessage,
        may: &impl Fn(&str) -> Result<(), String>,
    ) -> (Vec<(Option<ResolvedSensor>, DeviceReading)>, Option<String>) {
        let (mut found, mut denied) = (Vec::with_capacity(message.readings.len()), None);
        for reading in std::mem::take(&mut message.readings) {
            let path = reading.path.as_str();
            let float = is_float(reading.value);
            if let Some(known) = self.known.get(path).filter(|known| known.float || !float) {
                found.push((Some(*known), reading));
                continue;
            }
            if let Err(why) = may(path) {
                message.leave_out(|| format!("{path}: {why}"));
                denied.get_or_insert(why);
                continue;
            }
            let known = interop.find_declared(&reading.path, float, &reading.properties);
            if let Some(known) = known {
                if self.known.len() >= TOPICS_MAX {
                    self.known.clear();
                }
                self.known.insert(path.into(), known);
            }
            // A value that was never there makes no sensor.
            let is_gap = matches!(reading.value, wholegrain_model::Value::Float(value) if value.to_bits() == GAP_BITS);
            if known.is_some() || !is_gap {
                found.push((known, reading));
            }
        }
        (found, denied)
    }

    /// The connection has ended, and with it the nodes of Sparkplug on it: gaps of their sensors.
    pub fn end_devices(&mut self, interop: &Interop, may: impl Fn(&str) -> Result<(), String>) -> Vec<Reading> {
        let gaps = self.devices.nodes.end_all(now_ns());
        let sensor = |gap: DeviceReading| {
            let known = may(gap.path.as_str()).ok().and_then(|()| interop.find(gap.path.as_str()))?;
            Some(Reading { sensor: known.id, time: gap.time, value: gap.value })
        };
        gaps.into_iter().filter_map(sensor).collect()
    }
}
