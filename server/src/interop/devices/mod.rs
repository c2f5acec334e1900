//! Publishes of devices that do not know this server: JSON as Tasmota and Zigbee2MQTT send it, and Sparkplug B. No I/O.
//!
//! - Input: topic and payload, `[[mqtt.device]]`. Output: readings with their sensors' paths.
//! - Never: a name of a device that adds a level to a path; a value that was not in a message; a command to a device.
//!
//! `template.rs` maps topics and names to paths, `json.rs` and `sparkplug.rs` read the payloads.

pub mod config;
pub mod json;
pub mod sparkplug;
pub mod template;

use wholegrain_model::{SensorPath, Value};

use super::resolution::SensorProperties;

/// One value of a device's message.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReading {
    pub path: SensorPath,
    pub properties: SensorProperties,
    /// ns since the Unix epoch.
    pub time: i64,
    pub value: Value,
}

/// The readings of one message, and what is wrong with the others.
#[derive(Debug, Default, PartialEq)]
pub struct DeviceMessage {
    pub readings: Vec<DeviceReading>,
    /// Values without a reading: an invalid path, a text, an unknown alias.
    pub left_out: usize,
    /// The first reason of these, if it is a fault.
    pub fault: Option<String>,
}

impl DeviceMessage {
    /// Counts a value that cannot be a reading; the first reason is kept.
    pub fn leave_out(&mut self, why: impl FnOnce() -> String) {
        self.left_out += 1;
        self.fault.get_or_insert_with(why);
    }
}
