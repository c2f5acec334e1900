//! What a resource measures: pure functions from JSON to names, units and values.
//!
//! The same function gives the sensors when a resource is learned and the values when it is polled. A value of a wrong type, `null`, and what belongs to a
//! part that is absent is a gap. Schemas: DSP8010 (Thermal, Power, Fan, ThermalMetrics, PowerSupplyMetrics, EnvironmentMetrics, Sensor, ComputerSystem).

use serde_json::Value;
use wholegrain_model::name::sanitize_level;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};
use wholegrain_model::unit::Unit;
use wholegrain_model::{Kind, SensorDef};

use crate::links::resource_level;

/// How a document is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentKind {
    /// `Thermal`: temperatures and fans in arrays.
    Thermal,
    /// `Power`: controls, voltages and supplies in arrays.
    Power,
    /// `ThermalMetrics`: temperatures as excerpts.
    ThermalMetrics,
    /// A collection of `Fan`.
    Fans,
    /// `PowerSupplyMetrics` of several supplies.
    Supplies,
    /// `EnvironmentMetrics`: properties whose names end in a unit.
    Environment,
    /// A collection of `Sensor`.
    Sensors,
    /// `Status` and `PowerState` of a chassis, a system or a manager.
    State,
}

/// One value of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// Below the resource's prefix.
    pub name: String,
    pub unit: String,
    pub kind: Kind,
    pub is_float: bool,
    pub description: String,
    pub value: Option<f64>,
    /// The part is not there: it is no sensor unless it was one before.
    pub is_absent: bool,
}

impl Measure {
    /// The sensor below the agent's prefix.
    pub fn sensor(&self, prefix: &str) -> SensorDef {
        let name = format!("{prefix}/{}", self.name);
        let sensor = SensorDef { kind: self.kind, ..SensorDef::gauge(name, &self.unit, &self.description) };
        if self.is_float { sensor.float() } else { sensor }
    }

    /// The value as 64 bits of the sensor's type.
    pub fn bits(&self) -> Option<u64> {
        let value = self.value.filter(|value| value.is_finite())?;
        Some(if self.is_float { value.to_bits() } else { value as i64 as u64 })
    }
}

/// What is read besides the values themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct MeasureOptions {
    /// Thresholds as sensors of their own.
    pub thresholds: bool,
    /// The health of each part.
    pub health: bool,
}

/// The measures of documents, each with the name that its path gives it.
pub fn measures(kind: DocumentKind, documents: &[(String, Value)], options: MeasureOptions) -> Vec<Measure> {
    let mut out = MeasureList { measures: Vec::new(), options };
    for (level, document) in documents {
        match kind {
            DocumentKind::Thermal => out.thermal(document),
            DocumentKind::Power => out.power(document),
            DocumentKind::ThermalMetrics => out.thermal_metrics(document),
            DocumentKind::Fans => out.fan(level, document),
            DocumentKind::Supplies => out.excerpts(&format!("supply/{level}"), document),
            DocumentKind::Environment => out.excerpts("environment", document),
            DocumentKind::Sensors => out.sensor(level, document),
            DocumentKind::State => out.state(document),
        }
    }
    out.measures
}

/// Endings of properties with the unit of their values, and what remains of the ending in a sensor's name (DSP0266, section 9.11: units are in names).
const ENDINGS: [(&str, &str, Kind, &str); 13] = [
    ("Celsius", "Cel", Kind::Gauge, ""),
    ("Watts", "W", Kind::Gauge, ""),
    ("kWh", "kW.h", Kind::Counter, ""),
    ("Wh", "W.h", Kind::Counter, "Wh"),
    ("Joules", "J", Kind::Counter, "Joules"),
    ("Percent", "%", Kind::Gauge, ""),
    ("Voltage", "V", Kind::Gauge, "Voltage"),
    ("Volts", "V", Kind::Gauge, "Voltage"),
    ("Amps", "A", Kind::Gauge, ""),
    ("Hz", "Hz", Kind::Gauge, ""),
    ("RPM", "/min", Kind::Gauge, ""),
    ("kPa", "kPa", Kind::Gauge, ""),
    ("Humidity", "g/m3", Kind::Gauge, "Humidity"),
];
/// Values beside `Reading` in an excerpt of a sensor.
const BESIDE_READING: [(&str, &str, &str); 5] = [
    ("ApparentVA", "apparent_power", "V.A"),
    ("ReactiveVAR", "reactive_power", "V.A"),
    ("PowerFactor", "power_factor", "1"),
    ("CrestFactor", "crest_factor", "1"),
    ("SpeedRPM", "speed", "/min"),
];
/// Thresholds of `Thermal` and `Power`, and those of `Sensor`.
const THRESHOLDS: [(&str, &str, &str); 6] = [
    ("UpperThresholdNonCritical", "UpperCaution", "upper_caution"),
    ("UpperThresholdCritical", "UpperCritical", "upper_critical"),
    ("UpperThresholdFatal", "UpperFatal", "upper_fatal"),
    ("LowerThresholdNonCritical", "LowerCaution", "lower_caution"),
    ("LowerThresholdCritical", "LowerCritical", "lower_critical"),
    ("LowerThresholdFatal", "LowerFatal", "lower_fatal"),
];
/// Values of `ReadingUnits` that are no UCUM code, as services before version 1.0 of `Sensor` have them.
const SPELLINGS: [(&str, &str); 11] = [
    ("RPM", "/min"),
    ("{rev}/min", "/min"),
    ("Percent", "%"),
    ("Celsius", "Cel"),
    ("degree_C", "Cel"),
    ("Watts", "W"),
    ("Volts", "V"),
    ("Amps", "A"),
    ("Joules", "J"),
    ("kWh", "kW.h"),
    ("Hertz", "Hz"),
];
/// Units by `ReadingType`, for a sensor without a usable `ReadingUnits`.
const READING_TYPES: [(&str, &str); 12] = [
    ("Temperature", "Cel"),
    ("Humidity", "%"),
    ("Power", "W"),
    ("EnergykWh", "kW.h"),
    ("EnergyJoules", "J"),
    ("EnergyWh", "W.h"),
    ("Voltage", "V"),
    ("Current", "A"),
    ("Frequency", "Hz"),
    ("Rotational", "/min"),
    ("Percent", "%"),
    ("LiquidFlowLPM", "L/min"),
];

struct MeasureList {
    measures: Vec<Measure>,
    options: MeasureOptions,
}

impl MeasureList {
    fn push(&mut self, part: &Value, name: String, unit: &str, kind: Kind, text: String, value: Option<&Value>) {
        let is_absent = state_of(part) == Some("Absent");
        let value = value.and_then(Value::as_f64).filter(|_| !is_absent);
        self.measures.push(Measure {
            name,
            unit: unit.to_owned(),
            kind,
            is_float: true,
            description: cut(text, DESCRIPTION_BYTES_MAX),
            value,
            is_absent,
        });
    }

    fn push_number(&mut self, name: String, text: &str, value: Option<i64>, is_absent: bool) {
        self.measures.push(Measure {
            name,
            unit: "1".to_owned(),
            kind: Kind::Gauge,
            is_float: false,
            description: text.to_owned(),
            value: value.map(|value| value as f64),
            is_absent,
        });
    }

    /// A value with its thresholds and, if they are read, its health.
    fn part(&mut self, part: &Value, name: &str, unit: &str, kind: Kind, what: &str, value: &Value) {
        let limits: Vec<(&str, &Value)> = THRESHOLDS
            .iter()
            .filter_map(|(old, new, level)| {
                let limit = part.get(old).or_else(|| part.get("Thresholds")?.get(new)?.get("Reading"))?;
                limit.is_number().then_some((*level, limit))
            })
            .collect();
        let mut text = what.to_owned();
        for (level, limit) in &limits {
            text.push_str(&format!("; {} {limit}", level.replace('_', " ")));
        }
        self.push(part, name.to_owned(), unit, kind, text, Some(value));
        if self.options.thresholds && kind == Kind::Gauge {
            for (level, limit) in &limits {
                let text = format!("Threshold of {name}.");
                self.push(part, format!("threshold/{name}/{level}"), unit, kind, text, Some(limit));
            }
        }
        self.part_health(part, name);
    }

    fn part_health(&mut self, part: &Value, name: &str) {
        if self.options.health && part.pointer("/Status/Health").is_some() {
            let value = health(part.pointer("/Status/Health"));
            self.push_number(format!("health/{name}"), HEALTH_TEXT, value, state_of(part) == Some("Absent"));
        }
    }

    fn thermal(&mut self, document: &Value) {
        for (name, part) in named_members(document, "Temperatures") {
            let what = description(part, "Temperature");
            self.part(part, &format!("temperature/{name}"), "Cel", Kind::Gauge, &what, &part["ReadingCelsius"]);
        }
        for (name, part) in named_members(document, "Fans") {
            let reading = part.get("Reading").or_else(|| part.get("ReadingRPM")).unwrap_or(&Value::Null);
            let is_percent = part["ReadingUnits"].as_str() == Some("Percent");
            let (quantity, unit) = if is_percent { ("percent", "%") } else { ("speed", "/min") };
            let what = description(part, "Fan");
            self.part(part, &format!("fan/{name}/{quantity}"), unit, Kind::Gauge, &what, reading);
        }
    }

    fn power(&mut self, document: &Value) {
        for (name, part) in named_members(document, "PowerControl") {
            let what = description(part, "Power");
            let of_metrics = |key: &str| part.get("PowerMetrics").and_then(|metrics| metrics.get(key));
            for (value, quantity) in [
                (part.get("PowerConsumedWatts"), "consumed"),
                (part.get("PowerCapacityWatts"), "capacity"),
                (part.get("PowerLimit").and_then(|limit| limit.get("LimitInWatts")), "limit"),
                (of_metrics("AverageConsumedWatts"), "average"),
                (of_metrics("MinConsumedWatts"), "minimum"),
                (of_metrics("MaxConsumedWatts"), "maximum"),
            ] {
                if let Some(value) = value {
                    let text = format!("{what}: {quantity}");
                    self.push(part, format!("power/{name}/{quantity}"), "W", Kind::Gauge, text, Some(value));
                }
            }
            self.part_health(part, &format!("power/{name}"));
        }
        for (name, part) in named_members(document, "Voltages") {
            let what = description(part, "Voltage");
            self.part(part, &format!("voltage/{name}"), "V", Kind::Gauge, &what, &part["ReadingVolts"]);
        }
        for (name, part) in named_members(document, "PowerSupplies") {
            let what = description(part, "Power supply");
            let output = part.get("PowerOutputWatts").or_else(|| part.get("LastPowerOutputWatts"));
            for (value, quantity, unit) in [
                (part.get("PowerInputWatts"), "input_power", "W"),
                (output, "output_power", "W"),
                (part.get("LineInputVoltage"), "input_voltage", "V"),
                (part.get("PowerCapacityWatts"), "capacity", "W"),
                (part.get("EfficiencyPercent"), "efficiency", "%"),
            ] {
                if let Some(value) = value {
                    let text = format!("{what}: {}", quantity.replace('_', " "));
                    self.push(part, format!("supply/{name}/{quantity}"), unit, Kind::Gauge, text, Some(value));
                }
            }
            self.part_health(part, &format!("supply/{name}"));
        }
    }

    fn thermal_metrics(&mut self, document: &Value) {
        let excerpts = document["TemperatureReadingsCelsius"].as_array().map_or(&[][..], Vec::as_slice);
        let names = excerpt_names(excerpts);
        for (name, part) in names.into_iter().zip(excerpts) {
            let what = description(part, "Temperature");
            self.push(part, format!("temperature/{name}"), "Cel", Kind::Gauge, what, part.get("Reading"));
        }
        let summary = document["TemperatureSummaryCelsius"].as_object();
        for (place, part) in summary.into_iter().flatten() {
            if let Some(reading) = part.get("Reading") {
                let name = format!("temperature_summary/{}", sanitize_level(&snake_case(place)));
                self.push(part, name, "Cel", Kind::Gauge, format!("Temperature: {place}"), Some(reading));
            }
        }
    }

    fn fan(&mut self, level: &str, document: &Value) {
        let what = description(document, "Fan");
        let speed = document.get("SpeedPercent").unwrap_or(&Value::Null);
        let name = format!("fan/{level}");
        if let Some(reading) = speed.get("Reading") {
            self.push(document, format!("{name}/percent"), "%", Kind::Gauge, what.clone(), Some(reading));
        }
        if let Some(reading) = speed.get("SpeedRPM") {
            self.push(document, format!("{name}/speed"), "/min", Kind::Gauge, what.clone(), Some(reading));
        }
        if let Some(reading) = document.get("PowerWatts").and_then(|power| power.get("Reading")) {
            self.push(document, format!("{name}/power"), "W", Kind::Gauge, what, Some(reading));
        }
        self.part_health(document, &name);
    }

    /// Properties whose names end in a unit: numbers, excerpts of sensors, and arrays of excerpts.
    fn excerpts(&mut self, prefix: &str, document: &Value) {
        for (key, value) in document.as_object().into_iter().flatten() {
            let singular = key.strip_suffix('s').filter(|_| value.is_array()).unwrap_or(key);
            let Some((quantity, unit, kind)) = quantity(key).or_else(|| quantity(singular)) else { continue };
            let name = format!("{prefix}/{quantity}");
            match value {
                Value::Array(parts) => {
                    for (level, part) in excerpt_names(parts).into_iter().zip(parts) {
                        self.excerpt(document, &format!("{name}/{level}"), unit, kind, key, part);
                    }
                }
                Value::Object(_) => self.excerpt(document, &name, unit, kind, key, value),
                Value::Number(_) | Value::Null => {
                    self.push(document, name, unit, kind, key.clone(), Some(value));
                }
                _ => {}
            }
        }
        self.part_health(document, prefix);
    }

    fn excerpt(&mut self, document: &Value, name: &str, unit: &str, kind: Kind, key: &str, part: &Value) {
        let Some(reading) = part.get("Reading") else { return };
        self.push(document, name.to_owned(), unit, kind, key.to_owned(), Some(reading));
        for (beside, level, unit) in BESIDE_READING {
            if let Some(value) = part.get(beside) {
                let (name, text) = (format!("{name}_{level}"), format!("{key}: {beside}"));
                self.push(document, name, unit, Kind::Gauge, text, Some(value));
            }
        }
    }

    fn sensor(&mut self, level: &str, document: &Value) {
        let Some(reading) = document.get("Reading") else { return };
        let reading_type = document["ReadingType"].as_str().unwrap_or_default();
        let unit = sensor_unit(document["ReadingUnits"].as_str(), reading_type);
        let kind = if reading_type.starts_with("Energy") { Kind::Counter } else { Kind::Gauge };
        let mut what = description(document, "Sensor");
        if unit == "1" && !reading_type.is_empty() {
            what = format!("{what} ({reading_type})");
        }
        self.part(document, &format!("sensor/{level}"), &unit, kind, &what, reading);
    }

    fn state(&mut self, document: &Value) {
        let has = |pointer: &str| document.pointer(pointer).is_some();
        for (pointer, name) in [
            ("/Status/Health", "health"),
            ("/Status/HealthRollup", "health_rollup"),
            ("/Status/HealthRollUp", "health_rollup"),
            ("/ProcessorSummary/Status/Health", "processors_health"),
            ("/MemorySummary/Status/Health", "memory_health"),
        ] {
            let is_second = self.measures.iter().any(|measure| measure.name == name);
            if has(pointer) && !is_second {
                self.push_number(name.to_owned(), HEALTH_TEXT, health(document.pointer(pointer)), false);
            }
        }
        if has("/Status/State") {
            let state = state_of(document);
            let value = state.map(|state| i64::from(state == "Enabled"));
            self.push_number("enabled".to_owned(), "1 if its state is Enabled, else 0.", value, false);
        }
        if has("/PowerState") {
            let value = match document["PowerState"].as_str() {
                Some("Off") => Some(0),
                Some("On") => Some(1),
                Some("PoweringOn") => Some(2),
                Some("PoweringOff") => Some(3),
                Some("Paused") => Some(4),
                _ => None,
            };
            let text = "0 off, 1 on, 2 powering on, 3 powering off, 4 paused.";
            self.push_number("power_state".to_owned(), text, value, false);
        }
    }
}

const HEALTH_TEXT: &str = "Health: 0 OK, 1 warning, 2 critical.";

fn health(value: Option<&Value>) -> Option<i64> {
    match value?.as_str()? {
        "OK" => Some(0),
        "Warning" => Some(1),
        "Critical" => Some(2),
        _ => None,
    }
}

fn state_of(part: &Value) -> Option<&str> {
    part.get("Status")?.get("State")?.as_str()
}

fn cut(mut text: String, bytes_max: usize) -> String {
    text.retain(|c| !c.is_control());
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// A part's name and place, for the description of its sensor.
fn description(part: &Value, what: &str) -> String {
    let text = |key: &str| part.get(key).and_then(Value::as_str).map(|text| text.chars().take(100).collect::<String>());
    let name =
        text("Name").or_else(|| text("FanName")).or_else(|| text("DeviceName")).unwrap_or_else(|| what.to_owned());
    match text("PhysicalContext") {
        Some(context) if context != name => format!("{name} ({context})"),
        _ => name,
    }
}

/// The members of an array with names that are unique in it. Names that several members have get the member's number.
fn named_members<'a>(document: &'a Value, key: &str) -> Vec<(String, &'a Value)> {
    let members = document.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let members: Vec<&Value> = members.iter().filter(|member| member.is_object()).collect();
    let text = |member: &Value, key: &str| member.get(key).and_then(Value::as_str).map(sanitize_level);
    let names: Vec<String> = members
        .iter()
        .map(|member| text(member, "Name").or_else(|| text(member, "FanName")).unwrap_or_else(|| "unnamed".to_owned()))
        .collect();
    let numbers =
        members.iter().enumerate().map(|(index, member)| text(member, "MemberId").unwrap_or(index.to_string()));
    unique(names, numbers.collect()).into_iter().zip(members).collect()
}

/// The names of excerpts: the device, else the sensor that they are taken from, else their number.
fn excerpt_names(parts: &[Value]) -> Vec<String> {
    let text = |part: &Value, key: &str| part.get(key).and_then(Value::as_str).map(str::to_owned);
    let source = |part: &Value| text(part, "DataSourceUri").map(|uri| resource_level(&uri));
    let name = |(index, part): (usize, &Value)| {
        let name = text(part, "DeviceName").map(|name| sanitize_level(&name));
        name.or_else(|| source(part)).unwrap_or_else(|| index.to_string())
    };
    let names = parts.iter().enumerate().map(name).collect();
    let numbers = parts.iter().enumerate().map(|(index, part)| source(part).unwrap_or(index.to_string()));
    unique(names, numbers.collect())
}

/// Names of which several are equal get what distinguishes them, and their position if that is equal too.
fn unique(names: Vec<String>, numbers: Vec<String>) -> Vec<String> {
    let count = |list: &[String], name: &String| list.iter().filter(|other| *other == name).count();
    let with_number = |(name, number): (&String, &String)| {
        if count(&names, name) > 1 { sanitize_level(&format!("{name}_{number}")) } else { name.clone() }
    };
    let distinguished: Vec<String> = names.iter().zip(&numbers).map(with_number).collect();
    let with_position = |(index, name): (usize, &String)| {
        if count(&distinguished, name) > 1 { sanitize_level(&format!("{name}_{index}")) } else { name.clone() }
    };
    distinguished.iter().enumerate().map(with_position).collect()
}

/// The quantity, unit and kind of a property that ends in a unit.
pub fn quantity(key: &str) -> Option<(String, &'static str, Kind)> {
    let (ending, unit, kind, kept) = ENDINGS.into_iter().find(|(ending, ..)| key.ends_with(ending))?;
    let stem = &key[..key.len() - ending.len()];
    let name = snake_case(&format!("{stem}{kept}"));
    (!name.is_empty()).then(|| (sanitize_level(&name), unit, kind))
}

fn snake_case(text: &str) -> String {
    let mut out = String::new();
    let mut was_upper = true;
    for c in text.chars() {
        if c.is_ascii_uppercase() && !was_upper {
            out.push('_');
        }
        was_upper = c.is_ascii_uppercase();
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The UCUM code of a sensor's unit; `1` if the service gives none that can be understood.
pub fn sensor_unit(units: Option<&str>, reading_type: &str) -> String {
    let of_table = |table: &[(&str, &str)], name: &str| {
        table.iter().find(|(spelling, _)| *spelling == name).map(|(_, unit)| (*unit).to_owned())
    };
    let given = units.filter(|units| !units.is_empty() && units.len() <= UNIT_BYTES_MAX);
    given
        .and_then(|units| of_table(&SPELLINGS, units))
        .or_else(|| given.filter(|units| Unit::parse(units).is_ok()).map(str::to_owned))
        .or_else(|| of_table(&READING_TYPES, reading_type))
        .unwrap_or_else(|| "1".to_owned())
}

#[cfg(test)]
#[path = "measures_tests.rs"]
mod tests;
