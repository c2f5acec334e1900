//! The types of objects that are sampled, and their sensors.

use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_model::{Kind, SensorDef};

use crate::settings::{DeviceSettings, ObjectSettings};
use crate::tag::{ObjectId, TaggedValue, signed};
use crate::units::ucum;

/// The number of the type accumulator.
const ACCUMULATOR: u16 = 23;

/// A type of objects with a present value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectType {
    /// The number (clause 21, BACnetObjectType).
    pub number: u16,
    pub name: &'static str,
    pub is_float: bool,
    /// Whether it has the property units.
    pub has_units: bool,
    pub kind: Kind,
}

const fn of(number: u16, name: &'static str, is_float: bool, has_units: bool, kind: Kind) -> ObjectType {
    ObjectType { number, name, is_float, has_units, kind }
}

/// All types that are sampled.
pub const OBJECT_TYPES: &[ObjectType] = &[
    of(0, "analog-input", true, true, Kind::Gauge),
    of(1, "analog-output", true, true, Kind::Gauge),
    of(2, "analog-value", true, true, Kind::Gauge),
    of(3, "binary-input", false, false, Kind::Gauge),
    of(4, "binary-output", false, false, Kind::Gauge),
    of(5, "binary-value", false, false, Kind::Gauge),
    of(12, "loop", true, false, Kind::Gauge),
    of(13, "multi-state-input", false, false, Kind::Gauge),
    of(14, "multi-state-output", false, false, Kind::Gauge),
    of(19, "multi-state-value", false, false, Kind::Gauge),
    of(ACCUMULATOR, "accumulator", false, true, Kind::Counter),
    of(24, "pulse-converter", true, true, Kind::Gauge),
    of(45, "integer-value", false, true, Kind::Gauge),
    of(46, "large-analog-value", true, true, Kind::Gauge),
    of(48, "positive-integer-value", false, true, Kind::Gauge),
];

impl ObjectType {
    /// The type with this number.
    pub fn numbered(number: u16) -> Option<&'static ObjectType> {
        OBJECT_TYPES.iter().find(|kind| kind.number == number)
    }

    /// The type with this name.
    pub fn named(name: &str) -> Option<&'static ObjectType> {
        OBJECT_TYPES.iter().find(|kind| kind.name == name)
    }
}

/// The name of an object in messages, and that of its sensor: `analog-input/3`.
pub fn object_name(object: ObjectId) -> String {
    match ObjectType::numbered(object.kind) {
        Some(kind) => format!("{}/{}", kind.name, object.instance),
        None => format!("type {}/{}", object.kind, object.instance),
    }
}

/// An object that is sampled, with what the configuration or the device says of it.
#[derive(Debug, Clone)]
pub struct SampledObject {
    pub object: ObjectId,
    kind: &'static ObjectType,
    /// The object's keys in the configuration, if it has any.
    settings: Option<ObjectSettings>,
    unit: Option<(String, f64)>,
    /// Of an accumulator: the factor from its count to its unit, and the largest count.
    count_scale: Option<f64>,
    count_max: Option<u64>,
    /// The name that the device has for it.
    name: Option<String>,
}

/// The objects of the configuration, and those of the device's list that the configuration selects by type.
pub fn sampled(settings: &DeviceSettings, listed: &[ObjectId]) -> Vec<SampledObject> {
    let mut objects: Vec<SampledObject> = Vec::new();
    let configured = settings.objects.iter().map(|one| (one.object, Some(one.clone())));
    let selected = listed.iter().filter(|object| settings.lists.contains(&object.kind)).map(|object| (*object, None));
    let mut present = std::collections::HashSet::new();
    for (object, settings) in configured.chain(selected) {
        let Some(kind) = ObjectType::numbered(object.kind) else { continue };
        if present.insert(object) {
            let unit = settings.as_ref().and_then(|one| one.unit.clone()).map(|unit| (unit, 1.0));
            objects.push(SampledObject {
                object,
                kind,
                settings,
                unit,
                count_scale: None,
                count_max: None,
                name: None,
            });
        }
    }
    objects
}

impl SampledObject {
    /// Whether the device has to be asked for the unit.
    pub fn needs_unit(&self) -> bool {
        self.kind.has_units && self.unit.is_none()
    }

    /// Whether the device has to be asked for the factor and the largest value of a count (12.1 of the standard, since 2004).
    pub fn is_count(&self) -> bool {
        self.kind.number == ACCUMULATOR
    }

    /// Sets the factor of the property Scale: a float, or a power of ten.
    pub fn set_count_scale(&mut self, choice: u8, content: &[u8]) {
        let factor = match choice {
            0 => content.try_into().ok().map(|bytes| f64::from(f32::from_be_bytes(bytes))),
            1 => signed(content).ok().and_then(|power| i32::try_from(power).ok()).map(|power| 10f64.powi(power)),
            _ => None,
        };
        self.count_scale = factor.filter(|factor| factor.is_normal());
    }

    /// Sets the largest count, after which it begins at 0 again.
    pub fn set_count_max(&mut self, max: u64) {
        self.count_max = Some(max);
    }

    /// Whether the device has to be asked for the name.
    pub fn needs_name(&self) -> bool {
        self.settings.as_ref().is_none_or(|one| one.description.is_none() || one.name.is_none())
    }

    /// Sets the unit that the device has.
    pub fn set_unit(&mut self, unit: u32) {
        self.unit = Some(ucum(unit));
    }

    /// Sets the name that the device has.
    pub fn set_name(&mut self, name: &str) {
        let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        self.name = Some(name).filter(|name| !name.is_empty());
    }

    /// The name of the sensor below the device's path: from the configuration, or from the device's name, or from type and instance.
    pub fn sensor_name(&self, settings: &DeviceSettings) -> String {
        if let Some(name) = self.settings.as_ref().and_then(|one| one.name.clone()) {
            return name;
        }
        match &self.name {
            Some(name) if settings.names_of_device => sanitize_level(name),
            _ => object_name(self.object),
        }
    }

    /// The sensor of this object.
    pub fn sensor(&self, path: &str, name: &str) -> Result<SensorDef, String> {
        let (unit, unit_scale) = self.unit.clone().unwrap_or_else(|| ("1".to_owned(), 1.0));
        let settings = self.settings.as_ref();
        let object = object_name(self.object);
        let description = settings.and_then(|one| one.description.clone()).unwrap_or_else(|| match &self.name {
            Some(name) => format!("{name} ({object})"),
            None => object,
        });
        let sensor = SensorDef::gauge(format!("{path}/{name}"), &unit, &description);
        check_relative(&sensor.name).map_err(|error| error.to_string())?;
        let kind = settings.and_then(|one| one.kind).unwrap_or(self.kind.kind);
        // A scale of the configuration replaces that of the device.
        let scale = settings.and_then(|one| one.scale).or(self.count_scale).unwrap_or(1.0);
        let modulus = self.count_max.and_then(|max| max.checked_add(1)).filter(|modulus| *modulus > 1);
        let wraps_at = modulus.filter(|modulus| kind == Kind::Counter && i64::try_from(*modulus).is_ok());
        let sensor = SensorDef { kind, wraps_at, ..sensor }.scaled(unit_scale * scale);
        Ok(if self.kind.is_float { sensor.float() } else { sensor })
    }

    /// The 64 bits of a value in a row. `None` for a value of another type, and for a number that is not finite.
    pub fn bits(&self, value: &TaggedValue) -> Option<u64> {
        if self.kind.is_float {
            let number = match value {
                TaggedValue::Real(number) => *number,
                TaggedValue::Unsigned(number) => *number as f64,
                TaggedValue::Signed(number) => *number as f64,
                _ => return None,
            };
            return number.is_finite().then(|| number.to_bits());
        }
        match value {
            TaggedValue::Unsigned(number) => i64::try_from(*number).ok().map(|number| number as u64),
            TaggedValue::Signed(number) => Some(*number as u64),
            TaggedValue::Enumerated(number) => Some((*number).into()),
            TaggedValue::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }
}

/// Whether more than one of the names is this one.
pub fn is_same_name(name: &str, names: &[String]) -> bool {
    names.iter().filter(|other| *other == name).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accumulator(scale: Option<f64>) -> SampledObject {
        let one = ObjectSettings {
            object: ObjectId { kind: ACCUMULATOR, instance: 1 },
            name: Some("energy".to_owned()),
            unit: Some("W.h".to_owned()),
            scale,
            kind: None,
            description: None,
        };
        let settings =
            DeviceSettings { instance: None, objects: vec![one], lists: Vec::new(), names_of_device: false, cov: None };
        sampled(&settings, &[]).remove(0)
    }

    #[test]
    fn a_count_has_the_scale_and_the_largest_value_of_its_device() {
        let sensor = |object: &SampledObject| {
            let sensor = object.sensor("d", "energy").unwrap();
            (sensor.scale, sensor.wraps_at)
        };
        let mut object = accumulator(None);
        assert!(object.is_count());
        assert_eq!(sensor(&object), (1.0, None));
        for (choice, content, expected) in [
            (0, &0.25f32.to_be_bytes()[..], 0.25),
            (1, &[2], 100.0),
            (1, &[0xfd], 0.001),
            (0, &[1, 2], 1.0),
            (0, &[0; 4], 1.0),
            (1, &[0x7f, 0xff], 1.0),
            (2, &[1], 1.0),
        ] {
            object.set_count_scale(choice, content);
            assert_eq!(sensor(&object), (expected, None), "{choice} {content:?}");
        }
        for (max, expected) in
            [(99_999, Some(100_000)), (u64::from(u32::MAX), Some(1 << 32)), (0, None), (u64::MAX, None)]
        {
            object.set_count_max(max);
            assert_eq!(sensor(&object).1, expected, "{max}");
        }
        let mut object = accumulator(Some(5.0));
        object.set_count_scale(1, &[2]);
        assert_eq!(sensor(&object), (5.0, None), "that of the configuration");
    }
}
