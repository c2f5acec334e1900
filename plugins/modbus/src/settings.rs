//! The table of the plug-in: devices with their registers, and the lines on which they are.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wholegrain_devices::hosts::expand;
use wholegrain_devices::{DeviceConfig, DeviceHost, PollTiming, config};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::unit::Unit;
use wholegrain_model::{Interval, Kind, SensorDef};
use wholegrain_sources::ConfigureContext;

use crate::block::Point;
use crate::frame::{DataTable, REGISTERS_MAX};
use crate::line::{Framing, LineSettings, UnitSettings};
use crate::serial::{Parity, SerialSettings, baud_rate};
use crate::value::{ByteOrder, Decoder, RegisterType};

/// The port of Modbus TCP.
const PORT: u16 = 502;
/// The most requests without an answer on a connection that a configuration can ask for.
const PIPELINE_MAX: usize = 16;
/// The longest time between two requests of a line: 10 s.
const PAUSE_MAX: Interval = Interval::from_s(10);
/// The most registers of one device.
const REGISTERS_OF_DEVICE_MAX: usize = 10_000;

/// The keys of `[plugins.modbus]` beside those that all sources of devices have: none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnKeys {}

/// The keys of a template or a list of devices.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModbusKeys {
    unit: Option<UnitNumber>,
    connect: Option<String>,
    framing: Option<FramingName>,
    serial: Option<PathBuf>,
    baud: Option<u32>,
    parity: Option<Parity>,
    stop_bits: Option<u8>,
    pipeline: Option<usize>,
    pause: Option<Interval>,
    order: Option<String>,
    gap: Option<u16>,
    registers_max: Option<u16>,
    #[serde(default)]
    register: Vec<RegisterKeys>,
}

/// A number, also as a text that parameters gave: `"{1}"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum UnitNumber {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FramingName {
    Tcp,
    Rtu,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterKeys {
    name: String,
    #[serde(default = "holding")]
    table: DataTable,
    address: u16,
    #[serde(rename = "type")]
    data_type: Option<RegisterType>,
    order: Option<String>,
    bit: Option<u8>,
    scale: Option<f64>,
    offset: Option<f64>,
    #[serde(default)]
    unit: String,
    #[serde(default = "gauge")]
    kind: Kind,
    #[serde(default)]
    wraps: bool,
    #[serde(default)]
    absent: Vec<i64>,
    #[serde(default)]
    description: String,
}

fn holding() -> DataTable {
    DataTable::Holding
}

fn gauge() -> Kind {
    Kind::Gauge
}

/// Where a line is.
#[derive(Debug, Clone, PartialEq)]
pub enum LinePlace {
    Tcp { host: DeviceHost, port: u16 },
    Serial(SerialSettings),
}

/// A line with the numbers of its devices, which are also the numbers of its units.
#[derive(Debug)]
pub struct LinePlan {
    pub place: LinePlace,
    pub settings: LineSettings,
    pub devices: Vec<usize>,
}

/// A device: its place below the agent's prefix, and what is read from it.
#[derive(Debug)]
pub struct DevicePlan {
    pub path: String,
    /// The host of the list, and the file of a serial line, for messages.
    pub host: String,
    pub timing: PollTiming,
    pub unit: UnitSettings,
    pub sensors: Vec<SensorDef>,
}

/// The checked table of the plug-in.
#[derive(Debug)]
pub struct ModbusPlan {
    pub devices: Vec<DevicePlan>,
    pub lines: Vec<LinePlan>,
    pub first_answers: Interval,
}

/// Reads and checks the table of the plug-in.
pub fn read(section: &Section, context: &ConfigureContext) -> Result<ModbusPlan, ConfigError> {
    let read: config::DevicesConfig<OwnKeys, ModbusKeys> = config::read(section, context)?;
    let OwnKeys {} = read.own;
    let mut plan = ModbusPlan { devices: Vec::new(), lines: Vec::new(), first_answers: read.first_answers };
    let mut by_place: HashMap<String, usize> = HashMap::new();
    for device in &read.devices {
        let (unit, sensors) = unit(device)?;
        let (place, settings) = line(device)?;
        let number = plan.devices.len();
        let at = *by_place.entry(place.to_string()).or_insert_with(|| {
            plan.lines.push(LinePlan { place: place.clone(), settings, devices: Vec::new() });
            plan.lines.len() - 1
        });
        let line = &mut plan.lines[at];
        if line.settings != settings || line.place != place {
            let other = line.devices.first().map_or("", |first| plan.devices[*first].path.as_str());
            let message = format!(
                "{} and {other} are both on {place}, with different settings of the line: framing, baud, parity, stop_bits, pipeline, \
                 pause, timeout and retries must be the same",
                device.path
            );
            return Err(device.section.error("hosts", message));
        }
        line.devices.push(number);
        let (path, mut host) = (device.path.clone(), device.host.text.clone());
        if let LinePlace::Serial(_) = place {
            host = format!("{host}, {place}");
        }
        plan.devices.push(DevicePlan { path, host, timing: device.timing, unit, sensors });
    }
    Ok(plan)
}

impl std::fmt::Display for LinePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinePlace::Tcp { host, port } => write!(f, "{}:{port}", host.name),
            LinePlace::Serial(serial) => write!(f, "{}", serial.path.display()),
        }
    }
}

/// The line of a device.
fn line(device: &DeviceConfig<ModbusKeys>) -> Result<(LinePlace, LineSettings), ConfigError> {
    let (keys, section) = (&device.protocol, &device.section);
    let wrong = |key: &str, message: String| Err(section.error(key, message));
    let pipeline = keys.pipeline.unwrap_or(1);
    if !(1..=PIPELINE_MAX).contains(&pipeline) {
        return wrong("pipeline", format!("pipeline is {pipeline}; expected 1 to {PIPELINE_MAX}"));
    }
    if let Some(pause) = keys.pause.filter(|pause| *pause > PAUSE_MAX) {
        return wrong("pause", format!("pause is {pause}; at most {PAUSE_MAX} is allowed"));
    }
    let pause = keys.pause.map(Interval::duration);
    let timeout = device.timing.timeout.duration();
    let mut settings =
        LineSettings { framing: Framing::Tcp, timeout, in_flight: pipeline, pause: Duration::ZERO, retries: 0 };
    if let Some(path) = &keys.serial {
        if keys.connect.is_some() || keys.framing == Some(FramingName::Tcp) {
            return wrong("serial", "a serial line has neither connect nor framing = \"tcp\"".to_owned());
        }
        let baud = keys.baud.unwrap_or(19_200);
        let stop_bits = keys.stop_bits.unwrap_or(1);
        if baud_rate(baud).is_none() {
            return wrong("baud", format!("baud is {baud}; expected 1200, 2400, … 115200 or 230400"));
        }
        if !(1..=2).contains(&stop_bits) {
            return wrong("stop_bits", format!("stop_bits is {stop_bits}; expected 1 or 2"));
        }
        let serial =
            SerialSettings { path: path.clone(), baud, parity: keys.parity.unwrap_or(Parity::Even), stop_bits };
        settings.framing = Framing::Serial;
        settings.pause = pause.unwrap_or_else(|| serial.silence());
        settings.retries = device.timing.retries;
        return Ok((LinePlace::Serial(serial), settings));
    }
    for (key, is_given) in
        [("baud", keys.baud.is_some()), ("parity", keys.parity.is_some()), ("stop_bits", keys.stop_bits.is_some())]
    {
        if is_given {
            return wrong(key, format!("{key} is for serial lines; write serial = \"/dev/ttyUSB0\" too"));
        }
    }
    if keys.framing == Some(FramingName::Rtu) {
        settings.framing = Framing::RtuOverTcp;
        settings.retries = device.timing.retries;
    }
    settings.pause = pause.unwrap_or_default();
    let host = match &keys.connect {
        None => device.host.clone(),
        Some(text) => match expand(text, 1).map(|mut hosts| hosts.pop()) {
            Ok(Some(host)) => host,
            Ok(None) => return wrong("connect", format!("connect is {text:?}; write a name and a port")),
            Err(error) => return wrong("connect", error.to_string()),
        },
    };
    let port = host.port.or(device.port).unwrap_or(PORT);
    Ok((LinePlace::Tcp { host, port }, settings))
}

/// What is read from a device, and its sensors.
fn unit(device: &DeviceConfig<ModbusKeys>) -> Result<(UnitSettings, Vec<SensorDef>), ConfigError> {
    let (keys, section) = (&device.protocol, &device.section);
    let wrong = |key: &str, message: String| Err(section.error(key, message));
    let unit = match &keys.unit {
        None => Some(1),
        Some(UnitNumber::Number(number)) => u8::try_from(*number).ok(),
        Some(UnitNumber::Text(text)) => text.parse().ok(),
    };
    let Some(unit) = unit else {
        return wrong("unit", format!("unit of {} is not a number from 0 to 255", device.path));
    };
    if keys.serial.is_some() && !(1..=247).contains(&unit) {
        return wrong("unit", format!("unit of {} is {unit}; a serial line has units from 1 to 247", device.path));
    }
    let registers_max = keys.registers_max.unwrap_or(REGISTERS_MAX);
    if !(4..=REGISTERS_MAX).contains(&registers_max) {
        return wrong("registers_max", format!("registers_max is {registers_max}; expected 4 to {REGISTERS_MAX}"));
    }
    let gap = keys.gap.unwrap_or(0);
    if gap > REGISTERS_MAX {
        return wrong("gap", format!("gap is {gap}; at most {REGISTERS_MAX} is allowed"));
    }
    if keys.register.is_empty() || keys.register.len() > REGISTERS_OF_DEVICE_MAX {
        let message = format!(
            "{} has {} registers; write [[…register]] with name and address, at most {REGISTERS_OF_DEVICE_MAX}",
            device.path,
            keys.register.len()
        );
        return wrong("register", message);
    }
    let (mut points, mut sensors): (Vec<Point>, Vec<SensorDef>) = (Vec::new(), Vec::new());
    let mut names = HashMap::new();
    for (index, register) in keys.register.iter().enumerate() {
        let (point, sensor) = point(device, register, keys.order.as_deref())
            .map_err(|message| section.error("register", format!("register {:?}: {message}", register.name)))?;
        if names.insert(sensor.name.clone(), index).is_some() {
            return wrong("register", format!("two registers of {} have the name {:?}", device.path, register.name));
        }
        points.push(point);
        sensors.push(sensor);
    }
    Ok((UnitSettings { unit, points, gap, registers_max }, sensors))
}

/// Where and what a value is, and its sensor.
fn point(
    device: &DeviceConfig<ModbusKeys>,
    keys: &RegisterKeys,
    common_order: Option<&str>,
) -> Result<(Point, SensorDef), String> {
    let default_type = if keys.table.has_bits() { RegisterType::Bit } else { RegisterType::U16 };
    let data_type = keys.data_type.unwrap_or(default_type);
    if keys.table.has_bits() && (data_type != RegisterType::Bit || keys.bit.is_some()) {
        return Err(format!("a {} is one bit: it has neither type nor bit", keys.table.name()));
    }
    let bit = match (data_type, keys.bit) {
        (RegisterType::Bit, Some(bit)) if bit > 15 => return Err(format!("bit is {bit}; a register has bits 0 to 15")),
        (RegisterType::Bit, bit) if keys.table.has_bits() || bit.is_some() => bit.unwrap_or(0),
        (RegisterType::Bit, _) => return Err("type = \"bit\" needs bit = 0 to 15".to_owned()),
        (_, Some(_)) => return Err("bit is for type = \"bit\"".to_owned()),
        _ => 0,
    };
    let order: ByteOrder = keys.order.as_deref().or(common_order).unwrap_or("big").parse()?;
    if !order.fits(data_type.registers()) {
        return Err(format!("order {order} has not the {} bytes of its type", data_type.registers() * 2));
    }
    if u32::from(keys.address) + u32::from(data_type.registers()) > 1 << 16 {
        return Err(format!("address {} is too near to the last one, 65535", keys.address));
    }
    for (key, number) in [("scale", keys.scale), ("offset", keys.offset)] {
        if number.is_some_and(|n| !n.is_finite() || (key == "scale" && n == 0.0)) {
            return Err(format!("{key} must be finite{}", if key == "scale" { ", and not 0" } else { "" }));
        }
    }
    let wraps_at = match (keys.wraps, data_type.modulus()) {
        (true, Some(modulus)) if keys.kind == Kind::Counter && keys.offset.is_none() => Some(modulus),
        (true, _) => {
            return Err("wraps is for counters of the types u16, u32, bcd16 and bcd32 without offset".to_owned());
        }
        _ => None,
    };
    Unit::parse(&keys.unit).map_err(|error| error.to_string())?;
    let linear = keys.offset.map(|offset| (keys.scale.unwrap_or(1.0), offset));
    let decoder = Decoder { data_type, order, bit, absent: keys.absent.clone(), linear };
    let unit = if keys.unit.is_empty() { "1" } else { &keys.unit };
    let sensor = SensorDef::gauge(format!("{}/{}", device.path, keys.name), unit, &keys.description);
    let sensor = SensorDef { kind: keys.kind, wraps_at, ..sensor };
    wholegrain_model::name::check_relative(&sensor.name).map_err(|error| error.to_string())?;
    let sensor = if data_type.is_float() || linear.is_some() { sensor.float() } else { sensor };
    let sensor = if linear.is_some() { sensor } else { sensor.scaled(keys.scale.unwrap_or(1.0)) };
    Ok((Point { table: keys.table, address: keys.address, decoder }, sensor))
}

#[cfg(test)]
mod tests;
