//! The table of the plug-in: devices with the objects that are sampled.

use std::sync::Arc;

use serde::Deserialize;
use wholegrain_devices::{DeviceConfig, DevicesConfig, config};
use wholegrain_model::config::{ConfigError, Section, unknown};
use wholegrain_model::name::check_relative;
use wholegrain_model::unit::Unit;
use wholegrain_model::{Interval, Kind};
use wholegrain_sources::ConfigureContext;

use crate::device::OBJECTS_MAX;
use crate::objects::{OBJECT_TYPES, ObjectType};
use crate::tag::{INSTANCE_MAX, ObjectId};

/// The port of BACnet/IP: 0xBAC0.
pub const PORT: u16 = 47_808;
/// The lifetime of a subscription, by default 10 min.
const LIFETIME: Interval = Interval::from_s(600);
/// The shortest and the longest lifetime that a configuration can ask for.
const LIFETIME_MIN: Interval = Interval::from_s(10);
const LIFETIME_MAX: Interval = Interval::from_s(86_400);

/// The keys of `[plugins.bacnet]` beside those that all sources of devices have: none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoOwnKeys {}

/// The keys of a template or a list of devices.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct BacnetKeys {
    instance: Option<InstanceNumber>,
    #[serde(default)]
    objects: Vec<String>,
    names: Option<NameOrigin>,
    cov: Option<CovMode>,
    cov_lifetime: Option<Interval>,
    #[serde(default)]
    object: Vec<ObjectKeys>,
}

/// A number, also as a text that parameters gave: `"{1}"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum InstanceNumber {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NameOrigin {
    Instance,
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CovMode {
    Off,
    Unconfirmed,
    Confirmed,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectKeys {
    #[serde(rename = "type")]
    object_type: String,
    instance: u32,
    name: Option<String>,
    unit: Option<String>,
    scale: Option<f64>,
    kind: Option<Kind>,
    description: Option<String>,
}

/// An object of the configuration. What is `None` the device says.
#[derive(Debug, Clone)]
pub struct ObjectSettings {
    pub object: ObjectId,
    pub name: Option<String>,
    pub unit: Option<String>,
    pub scale: Option<f64>,
    pub kind: Option<Kind>,
    pub description: Option<String>,
}

/// How changes are subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CovSettings {
    /// Whether the device repeats a notice until it is acknowledged.
    pub is_confirmed: bool,
    pub lifetime_s: u32,
}

/// What is sampled of a device.
#[derive(Debug)]
pub struct DeviceSettings {
    /// The instance that the device must have; `None` for any.
    pub instance: Option<u32>,
    pub objects: Vec<ObjectSettings>,
    /// Types of which all objects of the device's list are sampled.
    pub lists: Vec<u16>,
    /// Whether sensors have the names that the device has for its objects.
    pub names_of_device: bool,
    pub cov: Option<CovSettings>,
}

/// The checked table of the plug-in.
pub type BacnetPlan = (DevicesConfig<(), ()>, Vec<Arc<DeviceSettings>>);

/// Reads and checks the table of the plug-in: the devices, and what is sampled of each.
pub fn read(section: &Section, context: &ConfigureContext) -> Result<BacnetPlan, ConfigError> {
    let read: DevicesConfig<NoOwnKeys, BacnetKeys> = config::read(section, context)?;
    let NoOwnKeys {} = read.own;
    let settings = read.devices.iter().map(|device| device_settings(device).map(Arc::new));
    let settings = settings.collect::<Result<Vec<_>, _>>()?;
    let devices = read.devices.into_iter().map(|device| DeviceConfig {
        host: device.host,
        port: device.port,
        path: device.path,
        timing: device.timing,
        credentials: device.credentials,
        protocol: Arc::new(()),
        section: device.section,
    });
    let devices = devices.collect();
    Ok((DevicesConfig { own: (), devices, in_flight: read.in_flight, first_answers: read.first_answers }, settings))
}

fn device_settings(device: &DeviceConfig<BacnetKeys>) -> Result<DeviceSettings, ConfigError> {
    let (keys, section) = (&device.protocol, &device.section);
    let wrong = |key: &str, message: String| Err(section.error(key, message));
    let instance = match &keys.instance {
        None => None,
        Some(InstanceNumber::Number(number)) => Some(u32::try_from(*number).ok()),
        Some(InstanceNumber::Text(text)) => Some(text.parse().ok()),
    };
    // The largest number stands for any instance.
    let instance = match instance.map(|number| number.filter(|number| *number < INSTANCE_MAX)) {
        Some(None) => {
            return wrong(
                "instance",
                format!("instance of {} is not a number from 0 to {}", device.path, INSTANCE_MAX - 1),
            );
        }
        other => other.flatten(),
    };
    let lists = lists(&keys.objects).map_err(|message| section.error("objects", message))?;
    let mut objects: Vec<ObjectSettings> = Vec::new();
    for object in &keys.object {
        let object = object_settings(device, object).map_err(|message| {
            section.error("object", format!("object {}/{}: {message}", object.object_type, object.instance))
        })?;
        objects.push(object);
    }
    if objects.is_empty() && lists.is_empty() {
        let message = format!("{} has no objects; write objects = [\"all\"], or [[…object]]", device.path);
        return wrong("objects", message);
    }
    if objects.len() > OBJECTS_MAX {
        return wrong(
            "object",
            format!("{} has {} objects; at most {OBJECTS_MAX} are allowed", device.path, objects.len()),
        );
    }
    let lifetime = keys.cov_lifetime.unwrap_or(LIFETIME);
    if lifetime < LIFETIME_MIN || lifetime > LIFETIME_MAX {
        return wrong("cov_lifetime", format!("cov_lifetime is {lifetime}; expected {LIFETIME_MIN} to {LIFETIME_MAX}"));
    }
    let lifetime_s = lifetime.duration().as_secs() as u32;
    let cov = match keys.cov.unwrap_or(CovMode::Off) {
        CovMode::Off => None,
        mode => Some(CovSettings { is_confirmed: mode == CovMode::Confirmed, lifetime_s }),
    };
    let names_of_device = keys.names == Some(NameOrigin::Device);
    Ok(DeviceSettings { instance, objects, lists, names_of_device, cov })
}

/// The numbers of the types whose objects are all sampled.
fn lists(names: &[String]) -> Result<Vec<u16>, String> {
    let mut numbers = Vec::new();
    for name in names {
        match ObjectType::named(name) {
            Some(kind) => numbers.push(kind.number),
            None if name == "all" => numbers.extend(OBJECT_TYPES.iter().map(|kind| kind.number)),
            None => return Err(unknown_type(name)),
        }
    }
    Ok(numbers)
}

fn unknown_type(name: &str) -> String {
    let known: Vec<&str> = OBJECT_TYPES.iter().map(|kind| kind.name).chain(["all"]).collect();
    unknown("type", name, &known)
}

fn object_settings(device: &DeviceConfig<BacnetKeys>, keys: &ObjectKeys) -> Result<ObjectSettings, String> {
    let kind = ObjectType::named(&keys.object_type).ok_or_else(|| unknown_type(&keys.object_type))?;
    if keys.instance >= INSTANCE_MAX {
        return Err(format!("instance {} is above {}", keys.instance, INSTANCE_MAX - 1));
    }
    if let Some(name) = &keys.name {
        check_relative(&format!("{}/{name}", device.path)).map_err(|error| error.to_string())?;
    }
    if let Some(unit) = &keys.unit {
        Unit::parse(unit).map_err(|error| error.to_string())?;
    }
    if keys.scale.is_some_and(|scale| !scale.is_finite() || scale == 0.0) {
        return Err("scale must be finite, and not 0".to_owned());
    }
    Ok(ObjectSettings {
        object: ObjectId { kind: kind.number, instance: keys.instance },
        name: keys.name.clone(),
        unit: keys.unit.clone(),
        scale: keys.scale,
        kind: keys.kind,
        description: keys.description.clone(),
    })
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
