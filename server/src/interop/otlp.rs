//! Metrics of OpenTelemetry: the message `ExportMetricsServiceRequest` of OTLP 1.x in protobuf encoding. No I/O.
//!
//! Gauges, cumulative sums and the cumulative parts of histograms and summaries become values of series. Data points that would need the values
//! before them (delta temporality), and buckets of exponential histograms, are refused with a reason.

use std::borrow::Cow;

use wholegrain_model::name::PATH_BYTES_MAX;
use wholegrain_model::{Kind, Value};
use wholegrain_store::GAP;

use super::names::{Tag, identity};
use super::resolution::cut;
use crate::protobuf::{WireError, WireFields, WireValue, utf8};

/// The most attributes of one data point.
pub const ATTRIBUTES_MAX: usize = 64;
/// The most bytes of the attributes of one data point.
pub const ATTRIBUTE_BYTES_MAX: usize = 4096;
/// The most attributes of a resource that are read.
pub const RESOURCE_ATTRIBUTES_MAX: usize = 128;
/// The most buckets, or quantiles, of one data point.
pub const BUCKETS_MAX: usize = 1024;
/// Texts are cut to this size: what is longer cannot be a level of a path, and its error names it.
const TEXT_BYTES_MAX: usize = PATH_BYTES_MAX + 1;
/// The most different reasons in an answer.
const REASONS_MAX: usize = 8;
/// The flag of a data point without a value.
const NO_RECORDED_VALUE: u64 = 1;
const CUMULATIVE: u64 = 2;
const DELTA: &str =
    "its temporality is not cumulative; set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative";

/// One data point of a metric.
#[derive(Debug)]
pub struct OtlpPoint<'a> {
    pub metric: &'a str,
    pub description: &'a str,
    pub attributes: &'a [Tag<'a>],
    pub resource: &'a [Tag<'a>],
    /// Differs for other attributes of the resource.
    pub resource_identity: u64,
    /// Since the Unix epoch.
    pub time_ns: i64,
    /// A histogram has several.
    pub values: Vec<OtlpValue<'a>>,
}

/// One value of a data point.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpValue<'a> {
    /// Empty for gauges and sums.
    pub field: &'static str,
    /// A further tag: the bound of a bucket, or a quantile.
    pub tag: Option<(&'static str, String)>,
    /// The UCUM code of its metric.
    pub unit: &'a str,
    pub kind: Kind,
    pub value: Value,
}

/// Data points that were not stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OtlpRefusals {
    /// The number of refused data points.
    pub points: u64,
    /// The first different reasons.
    pub reasons: Vec<String>,
}

impl OtlpRefusals {
    /// Counts refused points; 0 for a remark.
    pub fn add(&mut self, points: u64, why: String) {
        self.points += points;
        if self.reasons.len() < REASONS_MAX && !self.reasons.contains(&why) {
            self.reasons.push(why);
        }
    }
}

/// Reads a request and passes its data points to `take`, which may refuse them.
pub fn read(
    bytes: &[u8],
    take: &mut dyn FnMut(&OtlpPoint<'_>) -> Result<(), String>,
) -> Result<OtlpRefusals, WireError> {
    let mut reader = OtlpReader { take, refusals: OtlpRefusals::default() };
    for body in messages(bytes, 1) {
        reader.resource_metrics(body?)?;
    }
    Ok(reader.refusals)
}

/// The fields of a message with this number that are messages or texts.
fn messages(bytes: &[u8], wanted: u64) -> impl Iterator<Item = Result<&[u8], WireError>> {
    WireFields(bytes).filter_map(move |field| match field {
        Ok((number, WireValue::Bytes(body))) if number == wanted => Some(Ok(body)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

struct OtlpReader<'t> {
    take: &'t mut dyn FnMut(&OtlpPoint<'_>) -> Result<(), String>,
    refusals: OtlpRefusals,
}

/// A metric without its data.
#[derive(Default, Clone, Copy)]
struct MetricHead<'a> {
    name: &'a str,
    description: &'a str,
    unit: &'a str,
    resource: &'a [Tag<'a>],
    resource_identity: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum MetricData {
    Gauge,
    Sum,
    Histogram,
    ExponentialHistogram,
    Summary,
}

impl OtlpReader<'_> {
    fn resource_metrics(&mut self, body: &[u8]) -> Result<(), WireError> {
        let mut resource = Vec::new();
        for message in messages(body, 1) {
            for attribute in messages(message?, 1) {
                // Arrays, such as process.command_args, cannot be a part of a path.
                if let (key, Some(value)) = key_value(attribute?)?
                    && resource.len() < RESOURCE_ATTRIBUTES_MAX
                {
                    resource.push((Cow::Owned(cut(key, TEXT_BYTES_MAX)), Cow::Owned(cut(&value, TEXT_BYTES_MAX))));
                }
            }
        }
        let head =
            MetricHead { resource: &resource, resource_identity: identity(&resource, ()), ..MetricHead::default() };
        for scope in messages(body, 2) {
            for metric in messages(scope?, 2) {
                self.metric(metric?, head)?;
            }
        }
        Ok(())
    }

    fn metric<'a>(&mut self, body: &'a [u8], mut head: MetricHead<'a>) -> Result<(), WireError> {
        let mut data = Vec::new();
        for field in WireFields(body) {
            match field? {
                (1, WireValue::Bytes(name)) => head.name = utf8(name)?,
                (2, WireValue::Bytes(text)) => head.description = utf8(text)?,
                (3, WireValue::Bytes(unit)) => head.unit = utf8(unit)?,
                (5, WireValue::Bytes(body)) => data.push((MetricData::Gauge, body)),
                (7, WireValue::Bytes(body)) => data.push((MetricData::Sum, body)),
                (9, WireValue::Bytes(body)) => data.push((MetricData::Histogram, body)),
                (10, WireValue::Bytes(body)) => data.push((MetricData::ExponentialHistogram, body)),
                (11, WireValue::Bytes(body)) => data.push((MetricData::Summary, body)),
                _ => {}
            }
        }
        // Data is one of these; of several the last one counts.
        if let Some((kind, body)) = data.pop() {
            self.data(&head, kind, body)?;
        }
        Ok(())
    }

    fn data(&mut self, head: &MetricHead<'_>, data: MetricData, body: &[u8]) -> Result<(), WireError> {
        let (mut temporality, mut is_monotonic) = (0, false);
        for field in WireFields(body) {
            match field? {
                (2, WireValue::Int(number)) => temporality = number,
                (3, WireValue::Int(number)) => is_monotonic = number != 0,
                _ => {}
            }
        }
        let has_temporality = !matches!(data, MetricData::Gauge | MetricData::Summary);
        let refusal = match () {
            () if head.name.is_empty() => Some("it has no name".to_owned()),
            () if head.name.len() > PATH_BYTES_MAX => Some(format!("its name has over {PATH_BYTES_MAX} bytes")),
            () if has_temporality && temporality != CUMULATIVE => Some(DELTA.to_owned()),
            () => None,
        };
        if let Some(why) = refusal {
            let points = messages(body, 1).collect::<Result<Vec<_>, _>>()?.len();
            self.refusals.add(points as u64, format!("metric {:?}: {why}", cut(head.name, 128)));
            return Ok(());
        }
        if data == MetricData::ExponentialHistogram {
            let why = "the buckets of exponential histograms are not stored, only count, sum, min and max";
            self.refusals.add(0, format!("metric {:?}: {why}", head.name));
        }
        for point in messages(body, 1) {
            let point = match data {
                MetricData::Gauge => number_point(point?, head, Kind::Gauge)?,
                MetricData::Sum if is_monotonic => number_point(point?, head, Kind::Counter)?,
                MetricData::Sum => number_point(point?, head, Kind::Gauge)?,
                MetricData::Histogram => histogram_point(point?, head)?,
                MetricData::ExponentialHistogram => exponential_point(point?, head)?,
                MetricData::Summary => summary_point(point?, head)?,
            };
            if let Err(why) = self.point(head, point) {
                self.refusals.add(1, format!("metric {:?}: {why}", head.name));
            }
        }
        Ok(())
    }

    fn point(&mut self, head: &MetricHead<'_>, point: PointParts<'_>) -> Result<(), String> {
        let attributes = point.attributes?;
        let time_ns = i64::try_from(point.time_ns).map_err(|_| "its time is after the year 2262")?;
        if time_ns == 0 {
            return Err("a data point has no time".to_owned());
        }
        let mut values = point.values?;
        if point.flags & NO_RECORDED_VALUE != 0 {
            values.iter_mut().for_each(|value| value.value = GAP);
        }
        let MetricHead { name: metric, description, resource, resource_identity, .. } = *head;
        (self.take)(&OtlpPoint {
            metric,
            description,
            attributes: &attributes,
            resource,
            resource_identity,
            time_ns,
            values,
        })
    }
}

/// The parts of a data point; attributes or values may be invalid by themselves.
struct PointParts<'a> {
    attributes: Result<Vec<Tag<'a>>, String>,
    time_ns: u64,
    flags: u64,
    values: Result<Vec<OtlpValue<'a>>, String>,
}

/// The attributes of one data point while they are read.
#[derive(Default)]
struct AttributeSet<'a> {
    tags: Vec<Tag<'a>>,
    bytes: usize,
    fault: Option<String>,
}

impl<'a> AttributeSet<'a> {
    fn push(&mut self, body: &'a [u8]) -> Result<(), WireError> {
        let (key, value) = key_value(body)?;
        self.bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
        if self.fault.is_some() {
            return Ok(());
        }
        match value {
            None => self.fault = Some(format!("the attribute {:?} is not a plain value", cut(key, 128))),
            Some(_) if self.bytes > ATTRIBUTE_BYTES_MAX => {
                self.fault = Some(format!("its attributes have over {ATTRIBUTE_BYTES_MAX} bytes"));
            }
            Some(_) if self.tags.len() == ATTRIBUTES_MAX => {
                self.fault = Some(format!("it has over {ATTRIBUTES_MAX} attributes"));
            }
            Some(_) if self.tags.iter().any(|(known, _)| known == key) => {
                self.fault = Some(format!("the attribute {:?} appears twice", cut(key, 128)));
            }
            Some(value) => self.tags.push((Cow::Borrowed(key), value)),
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Tag<'a>>, String> {
        self.fault.map_or(Ok(self.tags), Err)
    }
}

/// An attribute; no value if it is an array, a map or bytes.
fn key_value(body: &[u8]) -> Result<(&str, Option<Cow<'_, str>>), WireError> {
    let (mut key, mut value) = ("", None);
    for field in WireFields(body) {
        match field? {
            (1, WireValue::Bytes(text)) => key = utf8(text)?,
            (2, WireValue::Bytes(any)) => {
                for field in WireFields(any) {
                    value = match field? {
                        (1, WireValue::Bytes(text)) => Some(Cow::Borrowed(utf8(text)?)),
                        (2, WireValue::Int(is)) => Some(Cow::Borrowed(if is != 0 { "true" } else { "false" })),
                        (3, WireValue::Int(number)) => Some(Cow::Owned(number.cast_signed().to_string())),
                        (4, WireValue::Fixed64(bits)) => Some(Cow::Owned(f64::from_bits(bits).to_string())),
                        _ => None,
                    };
                }
            }
            _ => {}
        }
    }
    Ok((key, value))
}

fn number_point<'a>(body: &'a [u8], head: &MetricHead<'a>, kind: Kind) -> Result<PointParts<'a>, WireError> {
    let (mut attributes, mut time_ns, mut flags, mut value) = (AttributeSet::default(), 0, 0, None);
    for field in WireFields(body) {
        match field? {
            (7, WireValue::Bytes(body)) => attributes.push(body)?,
            (3, WireValue::Fixed64(time)) => time_ns = time,
            (4, WireValue::Fixed64(bits)) => value = Some(float(f64::from_bits(bits))),
            (6, WireValue::Fixed64(bits)) => value = Some(Value::Int(bits.cast_signed())),
            (8, WireValue::Int(bits)) => flags = bits,
            _ => {}
        }
    }
    let value = if flags & NO_RECORDED_VALUE != 0 { value.or(Some(GAP)) } else { value };
    let value = value.map(|value| vec![OtlpValue { field: "", tag: None, unit: head.unit, kind, value }]);
    let values = value.ok_or_else(|| "a data point has no value".to_owned());
    Ok(PointParts { attributes: attributes.finish(), time_ns, flags, values })
}

fn float(value: f64) -> Value {
    if value.is_nan() { GAP } else { Value::Float(value) }
}

fn count(value: u64) -> Value {
    i64::try_from(value).map_or(GAP, Value::Int)
}

/// What histograms and summaries have in common.
#[derive(Default)]
struct Distribution {
    count: u64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Distribution {
    fn values<'a>(&self, unit: &'a str) -> Vec<OtlpValue<'a>> {
        let one = |field, unit, kind, value| OtlpValue { field, tag: None, unit, kind, value };
        let mut values = vec![one("count", "1", Kind::Counter, count(self.count))];
        values.extend(self.sum.map(|sum| one("sum", unit, Kind::Counter, float(sum))));
        values.extend(self.min.map(|min| one("min", unit, Kind::Gauge, float(min))));
        values.extend(self.max.map(|max| one("max", unit, Kind::Gauge, float(max))));
        values
    }
}

fn histogram_point<'a>(body: &'a [u8], head: &MetricHead<'a>) -> Result<PointParts<'a>, WireError> {
    let (mut attributes, mut time_ns, mut flags, mut all) = (AttributeSet::default(), 0, 0, Distribution::default());
    let (mut counts, mut bounds): (Vec<u64>, Vec<f64>) = (Vec::new(), Vec::new());
    for field in WireFields(body) {
        match field? {
            (9, WireValue::Bytes(body)) => attributes.push(body)?,
            (3, WireValue::Fixed64(time)) => time_ns = time,
            (4, WireValue::Fixed64(number)) => all.count = number,
            (5, WireValue::Fixed64(bits)) => all.sum = Some(f64::from_bits(bits)),
            (6, WireValue::Bytes(packed)) => counts.extend(fixed(packed)?),
            (6, WireValue::Fixed64(number)) => counts.push(number),
            (7, WireValue::Bytes(packed)) => bounds.extend(fixed(packed)?.map(f64::from_bits)),
            (7, WireValue::Fixed64(bits)) => bounds.push(f64::from_bits(bits)),
            (10, WireValue::Int(bits)) => flags = bits,
            (11, WireValue::Fixed64(bits)) => all.min = Some(f64::from_bits(bits)),
            (12, WireValue::Fixed64(bits)) => all.max = Some(f64::from_bits(bits)),
            _ => {}
        }
    }
    let mut values = all.values(head.unit);
    let values = match (counts.len(), bounds.len()) {
        (0, 0) => Ok(values),
        (most, _) if most > BUCKETS_MAX => Err(format!("it has over {BUCKETS_MAX} buckets")),
        (counts, bounds) if counts != bounds + 1 => Err(format!("{bounds} bounds do not fit {counts} buckets")),
        _ => {
            let mut below = 0u64;
            for (at, bucket) in counts.iter().enumerate() {
                below = below.saturating_add(*bucket);
                let bound = bounds.get(at).map_or_else(|| "+Inf".to_owned(), f64::to_string);
                let (tag, value) = (Some(("le", bound)), count(below));
                values.push(OtlpValue { field: "bucket", tag, unit: "1", kind: Kind::Counter, value });
            }
            Ok(values)
        }
    };
    Ok(PointParts { attributes: attributes.finish(), time_ns, flags, values })
}

/// The numbers of a packed field of eight bytes each.
fn fixed(packed: &[u8]) -> Result<impl Iterator<Item = u64>, WireError> {
    let (numbers, rest) = packed.as_chunks::<8>();
    if rest.is_empty() { Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes))) } else { Err("it is truncated") }
}

fn exponential_point<'a>(body: &'a [u8], head: &MetricHead<'a>) -> Result<PointParts<'a>, WireError> {
    let (mut attributes, mut time_ns, mut flags, mut all) = (AttributeSet::default(), 0, 0, Distribution::default());
    for field in WireFields(body) {
        match field? {
            (1, WireValue::Bytes(body)) => attributes.push(body)?,
            (3, WireValue::Fixed64(time)) => time_ns = time,
            (4, WireValue::Fixed64(number)) => all.count = number,
            (5, WireValue::Fixed64(bits)) => all.sum = Some(f64::from_bits(bits)),
            (10, WireValue::Int(bits)) => flags = bits,
            (12, WireValue::Fixed64(bits)) => all.min = Some(f64::from_bits(bits)),
            (13, WireValue::Fixed64(bits)) => all.max = Some(f64::from_bits(bits)),
            _ => {}
        }
    }
    Ok(PointParts { attributes: attributes.finish(), time_ns, flags, values: Ok(all.values(head.unit)) })
}

fn summary_point<'a>(body: &'a [u8], head: &MetricHead<'a>) -> Result<PointParts<'a>, WireError> {
    let (mut attributes, mut time_ns, mut flags, mut all) = (AttributeSet::default(), 0, 0, Distribution::default());
    let mut quantiles = Vec::new();
    for field in WireFields(body) {
        match field? {
            (7, WireValue::Bytes(body)) => attributes.push(body)?,
            (3, WireValue::Fixed64(time)) => time_ns = time,
            (4, WireValue::Fixed64(number)) => all.count = number,
            (5, WireValue::Fixed64(bits)) => all.sum = Some(f64::from_bits(bits)),
            (6, WireValue::Bytes(body)) if quantiles.len() <= BUCKETS_MAX => {
                let (mut quantile, mut value) = (0.0, 0.0);
                for field in WireFields(body) {
                    match field? {
                        (1, WireValue::Fixed64(bits)) => quantile = f64::from_bits(bits),
                        (2, WireValue::Fixed64(bits)) => value = f64::from_bits(bits),
                        _ => {}
                    }
                }
                quantiles.push((quantile, value));
            }
            (8, WireValue::Int(bits)) => flags = bits,
            _ => {}
        }
    }
    let mut values = all.values(head.unit);
    for (quantile, value) in &quantiles {
        let (tag, value) = (Some(("quantile", quantile.to_string())), float(*value));
        values.push(OtlpValue { field: "quantile", tag, unit: head.unit, kind: Kind::Gauge, value });
    }
    let is_too_many = quantiles.len() > BUCKETS_MAX;
    let values = if is_too_many { Err(format!("it has over {BUCKETS_MAX} quantiles")) } else { Ok(values) };
    Ok(PointParts { attributes: attributes.finish(), time_ns, flags, values })
}

#[cfg(test)]
mod tests;
