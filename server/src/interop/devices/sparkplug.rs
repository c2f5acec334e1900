//! Sparkplug B (Eclipse Sparkplug 3.0): births name the metrics of a node and its devices, data refers to them, deaths end them. No I/O.
//!
//! Topics are `spBv1.0/GROUP/TYPE/NODE` and `spBv1.0/GROUP/TYPE/NODE/DEVICE`. The state lasts as long as the node's connection, as the
//! specification requires: after a new connection a node sends its births again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wholegrain_model::{SensorPath, Value};
use wholegrain_store::GAP;

use super::super::resolution::{SensorProperties, cut};
use super::template::{DeviceTemplate, TopicNames, push_level};
use super::{DeviceMessage, DeviceReading};
use crate::protobuf::{WireError, WireFields, WireValue, utf8};

/// The beginning of all topics of Sparkplug B.
pub const NAMESPACE: &str = "spBv1.0/";
/// The largest message, in bytes.
pub const SPARKPLUG_BYTES_MAX: usize = 4 << 20;
/// The most metrics of one message.
pub const METRICS_MAX: usize = 16_384;
/// The bytes that a known metric counts beside its texts.
const METRIC_BYTES: usize = 256;
/// The property of a metric with its unit, as Ignition and others send it.
const UNIT: &str = "engUnit";
/// The metric with the number of a birth, which its death repeats.
const BIRTH_NUMBER: &str = "bdSeq";
const MS: i64 = 1_000_000;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparkplugKind {
    NodeBirth,
    NodeData,
    NodeDeath,
    DeviceBirth,
    DeviceData,
    DeviceDeath,
}

/// The parts of a topic of a node or device; `None` for commands, states and other topics.
pub fn topic(topic: &str) -> Option<(SparkplugKind, TopicNames<'_>)> {
    let mut levels = topic.strip_prefix(NAMESPACE)?.split('/');
    let (group, kind, node, device) = (levels.next()?, levels.next()?, levels.next()?, levels.next());
    let kind = match (kind, device) {
        ("NBIRTH", None) => SparkplugKind::NodeBirth,
        ("NDATA", None) => SparkplugKind::NodeData,
        ("NDEATH", None) => SparkplugKind::NodeDeath,
        ("DBIRTH", Some(_)) => SparkplugKind::DeviceBirth,
        ("DDATA", Some(_)) => SparkplugKind::DeviceData,
        ("DDEATH", Some(_)) => SparkplugKind::DeviceDeath,
        _ => return None,
    };
    if levels.next().is_some() || [Some(group), Some(node), device].contains(&Some("")) {
        return None;
    }
    let names = [("group", Some(group)), ("node", Some(node)), ("device", device)];
    Some((kind, TopicNames(names.into_iter().filter_map(|(name, level)| Some((name, level?))).collect())))
}

/// A metric of a birth that is a sensor.
#[derive(Debug, PartialEq)]
struct KnownMetric {
    path: SensorPath,
    properties: SensorProperties,
    datatype: u64,
    /// The device; empty for the node itself.
    device: String,
}

#[derive(Debug, Default)]
struct EdgeNode {
    birth_number: Option<u64>,
    sequence: Option<u8>,
    /// By device and alias, so that devices whose aliases are not distinct get no values of each other. Metrics that are no sensors are `None`.
    by_alias: HashMap<String, HashMap<u64, Option<Arc<KnownMetric>>>>,
    /// By device and name, likewise.
    by_name: BTreeMap<(String, String), Option<Arc<KnownMetric>>>,
}

/// The nodes of one connection.
#[derive(Debug, Default)]
pub struct SparkplugNodes {
    nodes: HashMap<(String, String), EdgeNode>,
    /// What the known metrics count.
    bytes: usize,
}

/// What a message means.
#[derive(Debug, Default)]
pub struct SparkplugMessage {
    pub message: DeviceMessage,
    /// Whether messages before it were lost: its sequence number is not the next one.
    pub is_after_loss: bool,
}

impl SparkplugNodes {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a message. `grow` reserves memory for a metric; without it the metric is left out.
    pub fn take(
        &mut self,
        template: &DeviceTemplate,
        kind: SparkplugKind,
        names: &TopicNames<'_>,
        payload: &[u8],
        arrived: i64,
        grow: &mut dyn FnMut(usize) -> bool,
    ) -> Result<SparkplugMessage, String> {
        if payload.len() > SPARKPLUG_BYTES_MAX {
            return Err(format!("the message has {} bytes; send at most {SPARKPLUG_BYTES_MAX}", payload.len()));
        }
        let payload =
            SparkplugPayload::parse(payload).map_err(|why| format!("the message is not Sparkplug B: {why}"))?;
        let name = |key| names.get(key).unwrap_or_default().to_owned();
        let (key, device) = ((name("group"), name("node")), name("device"));
        let mut answer = SparkplugMessage::default();
        match kind {
            SparkplugKind::NodeDeath => {
                let known = self.nodes.get(&key).and_then(|node| node.birth_number);
                // A death of an earlier connection, which arrives late, ends nothing.
                if known.is_none() || payload.birth_number().is_none_or(|number| Some(number) == known) {
                    answer.message.readings = self.end(&key, None, arrived);
                    self.forget(&key);
                }
                return Ok(answer);
            }
            SparkplugKind::NodeBirth => {
                self.forget(&key);
                let node = self.nodes.entry(key.clone()).or_default();
                node.birth_number = payload.birth_number();
            }
            _ => {}
        }
        let Some(node) = self.nodes.get_mut(&key) else {
            let why = "there is no birth of its node on this connection";
            answer.message.left_out += payload.metrics.len().max(1);
            answer.message.fault = Some(why.to_owned());
            return Ok(answer);
        };
        answer.is_after_loss = node.follows(kind, payload.sequence);
        match kind {
            SparkplugKind::DeviceDeath => {
                let at = payload.time.unwrap_or(arrived);
                answer.message.readings = self.end(&key, Some(&device), at);
                self.bytes -= self.nodes.get_mut(&key).map_or(0, |node| node.forget_device(&device));
            }
            SparkplugKind::DeviceBirth => {
                self.bytes -= node.forget_device(&device);
                self.bytes += node.born(template, names, &device, &payload, arrived, grow, &mut answer.message);
            }
            SparkplugKind::NodeBirth => {
                self.bytes += node.born(template, names, &device, &payload, arrived, grow, &mut answer.message);
            }
            _ => node.data(&device, &payload, arrived, &mut answer.message),
        }
        Ok(answer)
    }

    /// Gaps of all metrics: the connection has ended, and the nodes with it.
    pub fn end_all(&mut self, now: i64) -> Vec<DeviceReading> {
        let keys: Vec<_> = self.nodes.keys().cloned().collect();
        let gaps = keys.iter().flat_map(|key| self.end(key, None, now)).collect();
        self.nodes.clear();
        self.bytes = 0;
        gaps
    }

    /// Gaps of the metrics of a node, or of one device.
    fn end(&self, key: &(String, String), device: Option<&str>, time: i64) -> Vec<DeviceReading> {
        let metrics = self.nodes.get(key).into_iter().flat_map(|node| node.by_name.values().flatten());
        let of_device = metrics.filter(|metric| device.is_none_or(|device| metric.device == device));
        of_device.map(|metric| metric.reading(time, GAP)).collect()
    }

    fn forget(&mut self, key: &(String, String)) {
        let node = self.nodes.remove(key);
        self.bytes -=
            node.iter().flat_map(|node| &node.by_name).map(|(key, known)| bytes_of(key, known)).sum::<usize>();
    }
}

/// What a metric counts: its texts twice, because names and aliases refer to it.
fn bytes_of((device, name): &(String, String), known: &Option<Arc<KnownMetric>>) -> usize {
    let path = known.as_ref().map_or(0, |known| known.path.as_str().len() + known.properties.unit.len());
    METRIC_BYTES + 2 * (device.len() + name.len() + path)
}

impl KnownMetric {
    fn reading(&self, time: i64, value: Value) -> DeviceReading {
        DeviceReading { path: self.path.clone(), properties: self.properties.clone(), time, value }
    }
}

impl EdgeNode {
    /// Whether messages are missing before this one.
    fn follows(&mut self, kind: SparkplugKind, sequence: Option<u64>) -> bool {
        let Some(sequence) = sequence.map(|number| (number % 256) as u8) else { return false };
        let expected = if kind == SparkplugKind::NodeBirth { None } else { self.sequence };
        self.sequence = Some(sequence);
        expected.is_some_and(|before| before.wrapping_add(1) != sequence)
    }

    /// Forgets the metrics of a device; returns what they counted.
    fn forget_device(&mut self, device: &str) -> usize {
        let mut bytes = 0;
        self.by_name.retain(|key, known| {
            let keeps = key.0 != device;
            if !keeps {
                bytes += bytes_of(key, known);
            }
            keeps
        });
        self.by_alias.remove(device);
        bytes
    }

    /// Takes the metrics of a birth and their values; returns the memory of the metrics.
    #[allow(clippy::too_many_arguments, reason = "the parts of one message, which no other code has together")]
    fn born(
        &mut self,
        template: &DeviceTemplate,
        names: &TopicNames<'_>,
        device: &str,
        payload: &SparkplugPayload<'_>,
        arrived: i64,
        grow: &mut dyn FnMut(usize) -> bool,
        message: &mut DeviceMessage,
    ) -> usize {
        let mut bytes = 0;
        for metric in &payload.metrics {
            let Some(name) = metric.name else { continue };
            let key = (device.to_owned(), name.to_owned());
            if self.by_name.contains_key(&key) {
                message.leave_out(|| format!("the metric {:?} is in its birth twice", cut(name, 128)));
                continue;
            }
            let aliases = self.by_alias.get(device);
            if let Some(alias) = metric.alias.filter(|alias| aliases.is_some_and(|known| known.contains_key(alias))) {
                message.leave_out(|| format!("the alias {alias} is in its birth twice"));
                continue;
            }
            let known = match metric.known(template, names, device) {
                Ok(known) => known.map(Arc::new),
                Err(why) => {
                    message.leave_out(|| why);
                    continue;
                }
            };
            let size = bytes_of(&key, &known);
            if !grow(size) {
                message.leave_out(|| "the metrics of this identity take too much memory".to_owned());
                continue;
            }
            bytes += size;
            if let Some(alias) = metric.alias {
                self.by_alias.entry(device.to_owned()).or_default().insert(alias, known.clone());
            }
            if let Some(known) = &known {
                message.readings.extend(metric.value(known.datatype).map(|value| {
                    let time = metric.time.or(payload.time).unwrap_or(arrived);
                    known.reading(time, value)
                }));
            }
            self.by_name.insert(key, known);
        }
        bytes
    }

    fn data(&self, device: &str, payload: &SparkplugPayload<'_>, arrived: i64, message: &mut DeviceMessage) {
        let aliases = self.by_alias.get(device);
        for metric in &payload.metrics {
            let by_alias = metric.alias.and_then(|alias| aliases?.get(&alias));
            let by_name = || self.by_name.get(&(device.to_owned(), metric.name?.to_owned()));
            let known = match by_alias.or_else(by_name) {
                Some(None) => continue,
                Some(Some(known)) => Some(known),
                None => None,
            };
            match known {
                Some(known) => {
                    let time = metric.time.or(payload.time).unwrap_or(arrived);
                    message.readings.extend(metric.value(known.datatype).map(|value| known.reading(time, value)));
                }
                None => message.leave_out(|| "a metric is not in the birth".to_owned()),
            }
        }
    }
}

/// A message without its encoding.
#[derive(Debug, Default)]
struct SparkplugPayload<'a> {
    /// ns since the Unix epoch.
    time: Option<i64>,
    sequence: Option<u64>,
    metrics: Vec<SparkplugMetric<'a>>,
}

#[derive(Debug, Default)]
struct SparkplugMetric<'a> {
    name: Option<&'a str>,
    alias: Option<u64>,
    time: Option<i64>,
    datatype: u64,
    is_null: bool,
    unit: Option<&'a str>,
    value: Option<RawValue>,
}

/// A value as it is encoded; the datatype of the birth says what it means.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RawValue {
    Int(u64),
    Float(f64),
    Bool(bool),
    /// A text, bytes, a data set or a template.
    Other,
}

fn ns(ms: u64) -> Option<i64> {
    i64::try_from(ms).ok()?.checked_mul(MS)
}

impl<'a> SparkplugPayload<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut payload = Self::default();
        for field in WireFields(bytes) {
            match field? {
                (1, WireValue::Int(ms)) => payload.time = ns(ms),
                (2, WireValue::Bytes(_)) if payload.metrics.len() == METRICS_MAX => {
                    return Err("it has over 16384 metrics");
                }
                (2, WireValue::Bytes(body)) => payload.metrics.push(SparkplugMetric::parse(body)?),
                (3, WireValue::Int(number)) => payload.sequence = Some(number),
                _ => {}
            }
        }
        Ok(payload)
    }

    fn birth_number(&self) -> Option<u64> {
        let metric = self.metrics.iter().find(|metric| metric.name == Some(BIRTH_NUMBER))?;
        if let Some(RawValue::Int(number)) = metric.value { Some(number) } else { None }
    }
}

impl<'a> SparkplugMetric<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut metric = Self::default();
        for field in WireFields(body) {
            match field? {
                (1, WireValue::Bytes(name)) => metric.name = Some(utf8(name)?),
                (2, WireValue::Int(alias)) => metric.alias = Some(alias),
                (3, WireValue::Int(ms)) => metric.time = ns(ms),
                (4, WireValue::Int(datatype)) => metric.datatype = datatype,
                (7, WireValue::Int(is)) => metric.is_null = is != 0,
                (9, WireValue::Bytes(properties)) => metric.unit = unit(properties)?,
                (10 | 11, WireValue::Int(value)) => metric.value = Some(RawValue::Int(value)),
                (12, WireValue::Fixed32(bits)) => metric.value = Some(RawValue::Float(f32::from_bits(bits).into())),
                (13, WireValue::Fixed64(bits)) => metric.value = Some(RawValue::Float(f64::from_bits(bits))),
                (14, WireValue::Int(is)) => metric.value = Some(RawValue::Bool(is != 0)),
                (15..=19, _) => metric.value = Some(RawValue::Other),
                _ => {}
            }
        }
        Ok(metric)
    }

    /// The sensor of a metric of a birth; none for metrics that are no sensors.
    fn known(
        &self,
        template: &DeviceTemplate,
        names: &TopicNames<'_>,
        device: &str,
    ) -> Result<Option<KnownMetric>, String> {
        let name = self.name.unwrap_or_default();
        let is_control =
            name == BIRTH_NUMBER || name.starts_with("Node Control/") || name.starts_with("Device Control/");
        // Integers of 8 to 64 bits with and without a sign, floats, doubles, booleans.
        if is_control || !(1..=11).contains(&self.datatype) {
            return Ok(None);
        }
        let mut levels = String::new();
        name.split('/').for_each(|level| push_level(level, &mut levels));
        if !template.takes(&levels) {
            return Ok(None);
        }
        let path = template.path(names, &levels)?;
        let properties = template.properties(&levels, self.unit);
        Ok(Some(KnownMetric { path, properties, datatype: self.datatype, device: device.to_owned() }))
    }

    /// The value, with the datatype of its birth; a null is a gap.
    fn value(&self, datatype: u64) -> Option<Value> {
        if self.is_null {
            return Some(GAP);
        }
        Some(match (self.value?, datatype) {
            (RawValue::Int(bits), 1) => Value::Int((bits as i8).into()),
            (RawValue::Int(bits), 2) => Value::Int((bits as i16).into()),
            (RawValue::Int(bits), 3) => Value::Int((bits as i32).into()),
            (RawValue::Int(bits), 4) => Value::Int(bits.cast_signed()),
            (RawValue::Int(bits), 5) => Value::Int((bits as u8).into()),
            (RawValue::Int(bits), 6) => Value::Int((bits as u16).into()),
            (RawValue::Int(bits), 7) => Value::Int((bits as u32).into()),
            (RawValue::Int(bits), 8) => i64::try_from(bits).map_or(Value::Float(bits as f64), Value::Int),
            (RawValue::Float(value), 9 | 10) if !value.is_nan() => Value::Float(value),
            (RawValue::Float(_), 9 | 10) => GAP,
            (RawValue::Bool(is), 11) => Value::Int(is.into()),
            // A value of another type than its birth declared.
            _ => GAP,
        })
    }
}

/// The text of the property with the unit.
fn unit(properties: &[u8]) -> Result<Option<&str>, WireError> {
    let (mut at, mut keys) = (None, 0);
    for field in WireFields(properties) {
        if let (1, WireValue::Bytes(key)) = field? {
            if utf8(key)? == UNIT {
                at = Some(keys);
            }
            keys += 1;
        }
    }
    let Some(at) = at else { return Ok(None) };
    let mut values = 0;
    for field in WireFields(properties) {
        if let (2, WireValue::Bytes(value)) = field? {
            if values == at {
                for field in WireFields(value) {
                    if let (8, WireValue::Bytes(text)) = field? {
                        return utf8(text).map(Some);
                    }
                }
            }
            values += 1;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
