//! Remote write of Prometheus: the messages of versions 1.0 (`prometheus.WriteRequest`) and 2.0 (`io.prometheus.write.v2.Request`). No I/O.
//!
//! The whole message is checked before anything is stored; a series that is invalid by itself does not affect the others.

use std::borrow::Cow;

use super::metric_metadata::{MetricMetadata, MetricType};
use super::names::Tag;
use super::resolution::cut;
use crate::protobuf::{WireError, WireFields, WireValue, utf8, varint};

/// The most series of one request.
pub const SERIES_MAX: usize = 100_000;
/// The most labels of one series.
pub const LABELS_MAX: usize = 64;
/// The most bytes of the names and values of one series' labels.
pub const LABEL_BYTES_MAX: usize = 4096;
/// The most symbols of a request of version 2.0.
pub const SYMBOLS_MAX: usize = 1 << 20;
/// The most bytes of a `HELP` that are read.
const HELP_BYTES_MAX: usize = 512;
/// The most bytes of a unit that are read.
const UNIT_BYTES_MAX: usize = 64;
const METRIC_NAME: &str = "__name__";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteWriteVersion {
    V1,
    V2,
}

impl RemoteWriteVersion {
    /// The version that a media type declares; `None` for another media type.
    pub fn of(content_type: &str) -> Option<Self> {
        let mut parts = content_type.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case("application/x-protobuf") {
            return None;
        }
        let proto = parts.find_map(|part| part.strip_prefix("proto="));
        match proto.map(|name| name.trim_matches('"')) {
            None | Some("prometheus.WriteRequest") => Some(RemoteWriteVersion::V1),
            Some("io.prometheus.write.v2.Request") => Some(RemoteWriteVersion::V2),
            Some(_) => None,
        }
    }
}

/// One series of a request.
#[derive(Debug)]
pub struct WrittenSeries<'a> {
    /// The metric's name and the other labels, or why the series is invalid.
    pub names: Result<(&'a str, Vec<Tag<'a>>), String>,
    /// Native histograms, which are not stored.
    pub histograms: usize,
    /// The metadata of version 2.0.
    pub metadata: Option<MetricMetadata>,
    body: &'a [u8],
}

/// A request without its compression.
#[derive(Debug)]
pub struct WriteMessage<'a> {
    version: RemoteWriteVersion,
    bytes: &'a [u8],
    symbols: Vec<&'a str>,
    /// Metadata of version 1.0 by family.
    pub families: Vec<(String, MetricMetadata)>,
}

impl<'a> WriteMessage<'a> {
    /// Reads everything but the series.
    pub fn parse(version: RemoteWriteVersion, bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut message = Self { version, bytes, symbols: Vec::new(), families: Vec::new() };
        for field in WireFields(bytes) {
            match (version, field?) {
                (RemoteWriteVersion::V1, (3, WireValue::Bytes(body))) if message.families.len() < SERIES_MAX => {
                    message.families.push(family(body)?);
                }
                (RemoteWriteVersion::V2, (4, WireValue::Bytes(_))) if message.symbols.len() == SYMBOLS_MAX => {
                    return Err("it has over 1048576 symbols");
                }
                (RemoteWriteVersion::V2, (4, WireValue::Bytes(symbol))) => message.symbols.push(utf8(symbol)?),
                _ => {}
            }
        }
        if message.symbols.first().is_some_and(|first| !first.is_empty()) {
            return Err("its first symbol is not empty");
        }
        Ok(message)
    }

    /// Its series, one after the other.
    pub fn series(&self) -> impl Iterator<Item = Result<WrittenSeries<'_>, WireError>> {
        let (version, mut count) = (self.version, 0);
        WireFields(self.bytes).filter_map(move |field| {
            let series = match (version, field) {
                (RemoteWriteVersion::V1, Ok((1, WireValue::Bytes(body)))) => series_v1(body),
                (RemoteWriteVersion::V2, Ok((5, WireValue::Bytes(body)))) => series_v2(body, &self.symbols),
                (_, Ok(_)) => return None,
                (_, Err(error)) => Err(error),
            };
            count += 1;
            Some(if count > SERIES_MAX { Err("it has over 100000 series") } else { series })
        })
    }
}

impl<'a> WrittenSeries<'a> {
    /// Its samples: times in ms, and values.
    pub fn samples(&self) -> impl Iterator<Item = Result<(i64, f64), WireError>> + 'a {
        // Both versions have the samples in field 2.
        WireFields(self.body).filter_map(|field| match field {
            Ok((2, WireValue::Bytes(body))) => Some(sample(body)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }
}

fn sample(body: &[u8]) -> Result<(i64, f64), WireError> {
    let (mut time, mut value) = (0, 0.0);
    for field in WireFields(body) {
        match field? {
            (1, fixed @ WireValue::Fixed64(_)) => value = fixed.double().unwrap_or_default(),
            (2, WireValue::Int(ms)) => time = ms.cast_signed(),
            _ => {}
        }
    }
    Ok((time, value))
}

fn series_v1(body: &[u8]) -> Result<WrittenSeries<'_>, WireError> {
    let (mut labels, mut histograms) = (LabelSet::default(), 0);
    for field in WireFields(body) {
        match field? {
            (1, WireValue::Bytes(label)) => {
                let (mut name, mut value) = ("", "");
                for field in WireFields(label) {
                    match field? {
                        (1, WireValue::Bytes(text)) => name = utf8(text)?,
                        (2, WireValue::Bytes(text)) => value = utf8(text)?,
                        _ => {}
                    }
                }
                labels.push(name, value);
            }
            (4, WireValue::Bytes(_)) => histograms += 1,
            _ => {}
        }
    }
    Ok(WrittenSeries { names: labels.names(), histograms, metadata: None, body })
}

fn series_v2<'a>(body: &'a [u8], symbols: &[&'a str]) -> Result<WrittenSeries<'a>, WireError> {
    let symbol = |at: u64| {
        let symbol = usize::try_from(at).ok().and_then(|at| symbols.get(at));
        symbol.copied().ok_or("a reference is beyond its symbols")
    };
    let (mut labels, mut name, mut histograms, mut metadata) = (LabelSet::default(), None, 0, None);
    let mut reference = |at: u64| {
        let text = symbol(at)?;
        match name.take() {
            None => name = Some(text),
            Some(name) => labels.push(name, text),
        }
        Ok::<(), WireError>(())
    };
    for field in WireFields(body) {
        match field? {
            (1, WireValue::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    reference(varint(&mut packed)?)?;
                }
            }
            (1, WireValue::Int(at)) => reference(at)?,
            (3, WireValue::Bytes(_)) => histograms += 1,
            (5, WireValue::Bytes(body)) => {
                let mut declared =
                    MetricMetadata { metric_type: MetricType::Unknown, unit: String::new(), help: String::new() };
                for field in WireFields(body) {
                    match field? {
                        (1, WireValue::Int(number)) => declared.metric_type = MetricType::from_number(number),
                        (3, WireValue::Int(at)) => declared.help = cut(symbol(at)?, HELP_BYTES_MAX),
                        (4, WireValue::Int(at)) => declared.unit = cut(symbol(at)?, UNIT_BYTES_MAX),
                        _ => {}
                    }
                }
                metadata = Some(declared);
            }
            _ => {}
        }
    }
    if name.is_some() {
        return Err("a series has an odd number of label references");
    }
    Ok(WrittenSeries { names: labels.names(), histograms, metadata, body })
}

fn family(body: &[u8]) -> Result<(String, MetricMetadata), WireError> {
    let (mut name, mut metadata) =
        ("", MetricMetadata { metric_type: MetricType::Unknown, unit: String::new(), help: String::new() });
    for field in WireFields(body) {
        match field? {
            (1, WireValue::Int(number)) => metadata.metric_type = MetricType::from_number(number),
            (2, WireValue::Bytes(text)) => name = utf8(text)?,
            (4, WireValue::Bytes(text)) => metadata.help = cut(utf8(text)?, HELP_BYTES_MAX),
            (5, WireValue::Bytes(text)) => metadata.unit = cut(utf8(text)?, UNIT_BYTES_MAX),
            _ => {}
        }
    }
    Ok((name.to_owned(), metadata))
}

/// The labels of one series while they are read. After the first fault no further label is kept.
#[derive(Default)]
struct LabelSet<'a> {
    name: Option<&'a str>,
    tags: Vec<Tag<'a>>,
    bytes: usize,
    fault: Option<String>,
}

impl<'a> LabelSet<'a> {
    fn push(&mut self, name: &'a str, value: &'a str) {
        // A label without a value is the same as none.
        if self.fault.is_some() || value.is_empty() {
            return;
        }
        self.bytes += name.len() + value.len();
        let is_known =
            if name == METRIC_NAME { self.name.is_some() } else { self.tags.iter().any(|(known, _)| known == name) };
        if name.is_empty() {
            self.fault = Some("a label has no name".to_owned());
        } else if is_known {
            self.fault = Some(format!("the label {:?} appears twice", cut(name, 64)));
        } else if self.bytes > LABEL_BYTES_MAX {
            self.fault = Some(format!("its labels have over {LABEL_BYTES_MAX} bytes"));
        } else if self.tags.len() == LABELS_MAX {
            self.fault = Some(format!("it has over {LABELS_MAX} labels"));
        } else if name == METRIC_NAME {
            self.name = Some(value);
        } else {
            self.tags.push((Cow::Borrowed(name), Cow::Borrowed(value)));
        }
    }

    fn names(self) -> Result<(&'a str, Vec<Tag<'a>>), String> {
        match (self.fault, self.name) {
            (Some(fault), _) => Err(fault),
            (None, None) => Err("it has no label __name__".to_owned()),
            (None, Some(name)) => Ok((name, self.tags)),
        }
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;
    use crate::prometheus::wire::{put_bytes, put_int, put_labels, put_sample, put_varint};

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn v1() -> Vec<u8> {
        let mut series = Vec::new();
        put_labels(&labels(&[("__name__", "up"), ("job", "node"), ("empty", "")]), &mut series);
        put_sample(1_700_000_000_000, 1.5, &mut series);
        put_sample(1_700_000_001_000, f64::from_bits(0x7ff0_0000_0000_0002), &mut series);
        put_bytes(4, b"\x08\x01", &mut series);
        let mut family = Vec::new();
        put_int(1, 2, &mut family);
        put_bytes(2, b"up", &mut family);
        put_bytes(4, b"Whether it is up.", &mut family);
        let mut message = Vec::new();
        put_bytes(1, &series, &mut message);
        put_bytes(3, &family, &mut message);
        message
    }

    fn v2(references: &[u64]) -> Vec<u8> {
        let mut message = Vec::new();
        for symbol in ["", "__name__", "rpc_total", "job", "a", "The calls.", "seconds"] {
            put_bytes(4, symbol.as_bytes(), &mut message);
        }
        let (mut series, mut packed, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
        references.iter().for_each(|at| put_varint(*at, &mut packed));
        put_bytes(1, &packed, &mut series);
        put_sample(5, 2.0, &mut series);
        put_bytes(3, b"", &mut series);
        [(1, 1), (3, 5), (4, 6)].into_iter().for_each(|(field, value)| put_int(field, value, &mut metadata));
        put_bytes(5, &metadata, &mut series);
        put_int(6, 3, &mut series);
        put_bytes(5, &series, &mut message);
        message
    }

    #[test]
    fn both_versions_are_read() {
        let bytes = v1();
        let message = WriteMessage::parse(RemoteWriteVersion::V1, &bytes).unwrap();
        let series = message.series().next().unwrap().unwrap();
        let tags = vec![(Cow::from("job"), Cow::from("node"))];
        assert_eq!((series.names.clone(), series.histograms), (Ok(("up", tags)), 1));
        let samples: Vec<_> = series.samples().map(Result::unwrap).collect();
        assert_eq!((samples[0], samples[1].1.to_bits()), ((1_700_000_000_000, 1.5), 0x7ff0_0000_0000_0002));
        let help = "Whether it is up.".to_owned();
        let expected = MetricMetadata { metric_type: MetricType::Gauge, unit: String::new(), help };
        assert_eq!(message.families, [("up".to_owned(), expected)]);

        let bytes = v2(&[1, 2, 3, 4]);
        let message = WriteMessage::parse(RemoteWriteVersion::V2, &bytes).unwrap();
        let series = message.series().next().unwrap().unwrap();
        let tags = vec![(Cow::from("job"), Cow::from("a"))];
        assert_eq!((series.names.clone(), series.histograms), (Ok(("rpc_total", tags)), 1));
        assert_eq!(series.samples().collect::<Vec<_>>(), [Ok((5, 2.0))]);
        let (help, unit) = ("The calls.".to_owned(), "seconds".to_owned());
        assert_eq!(series.metadata, Some(MetricMetadata { metric_type: MetricType::Counter, unit, help }));
    }

    #[test]
    fn an_invalid_series_is_named_and_an_invalid_message_refused() {
        for (pairs, expected) in [
            (vec![("job", "x")], "no label __name__"),
            (vec![("__name__", "x"), ("a", "1"), ("a", "2")], "\"a\" appears twice"),
            (vec![("__name__", "x"), ("__name__", "y")], "\"__name__\" appears twice"),
            (vec![("__name__", "x"), ("", "y")], "no name"),
            (vec![("__name__", "x"), ("a", &"v".repeat(LABEL_BYTES_MAX))], "over 4096 bytes"),
        ] {
            let (mut series, mut message) = (Vec::new(), Vec::new());
            put_labels(&labels(&pairs), &mut series);
            put_bytes(1, &series, &mut message);
            let message = WriteMessage::parse(RemoteWriteVersion::V1, &message).unwrap();
            let error = message.series().next().unwrap().unwrap().names.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        for (references, expected) in
            [(&[1, 2, 3][..], "odd number"), (&[1, 7], "beyond its symbols"), (&[u64::MAX, 1], "beyond its symbols")]
        {
            let bytes = v2(references);
            let message = WriteMessage::parse(RemoteWriteVersion::V2, &bytes).unwrap();
            let error = message.series().next().unwrap().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn media_types() {
        for (text, expected) in [
            ("application/x-protobuf", Some(RemoteWriteVersion::V1)),
            ("application/x-protobuf; proto=prometheus.WriteRequest", Some(RemoteWriteVersion::V1)),
            ("application/x-protobuf;proto=io.prometheus.write.v2.Request", Some(RemoteWriteVersion::V2)),
            ("application/x-protobuf;proto=x", None),
            ("application/json", None),
        ] {
            assert_eq!(RemoteWriteVersion::of(text), expected, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic() {
        let mut random = Random::seeded_or(0x9e_70);
        for round in 0..20_000_usize {
            let (version, mut bytes) = match round % 2 {
                0 => (RemoteWriteVersion::V1, v1()),
                _ => (RemoteWriteVersion::V2, v2(&[1, 2, 3, 4])),
            };
            for _ in 0..1 + round % 4 {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            if let Ok(message) = WriteMessage::parse(version, &bytes) {
                for series in message.series().flatten() {
                    series.samples().for_each(drop);
                }
            }
        }
    }
}
