//! What Prometheus knows about a metric (`TYPE`, `UNIT`, `HELP`), as properties of sensors. No I/O.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use wholegrain_model::Kind;

use super::resolution::SensorProperties;

/// The most bytes of metadata that are remembered for one sender: 4 MiB.
const SENDER_BYTES_MAX: usize = 4 << 20;
/// The most senders whose metadata is remembered; the one that sent none for the longest time is forgotten first.
const SENDERS_MAX: usize = 64;
/// The bytes that an entry counts beside its texts.
const ENTRY_BYTES: usize = 128;
/// The longest name of a metric that is remembered, in bytes.
const NAME_BYTES_MAX: usize = 512;

/// The type of a metric; the numbers are those of both versions of remote write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    Unknown,
    Counter,
    Gauge,
    Histogram,
    GaugeHistogram,
    Summary,
    Info,
    StateSet,
}

impl MetricType {
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => MetricType::Counter,
            2 => MetricType::Gauge,
            3 => MetricType::Histogram,
            4 => MetricType::GaugeHistogram,
            5 => MetricType::Summary,
            6 => MetricType::Info,
            7 => MetricType::StateSet,
            _ => MetricType::Unknown,
        }
    }
}

/// The metadata of one metric family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricMetadata {
    pub metric_type: MetricType,
    /// As OpenMetrics writes it (`seconds`); empty if not declared.
    pub unit: String,
    pub help: String,
}

impl MetricMetadata {
    /// Whether it says anything.
    pub fn is_empty(&self) -> bool {
        self.metric_type == MetricType::Unknown && self.unit.is_empty() && self.help.is_empty()
    }
}

/// The suffixes of the series of a family.
const SUFFIXES: [&str; 6] = ["_total", "_bucket", "_count", "_sum", "_created", "_info"];

/// Units of Prometheus' and OpenMetrics' names with their UCUM codes.
const UNITS: &[(&str, &str)] = &[
    ("seconds", "s"),
    ("milliseconds", "ms"),
    ("microseconds", "us"),
    ("nanoseconds", "ns"),
    ("minutes", "min"),
    ("hours", "h"),
    ("days", "d"),
    ("bytes", "By"),
    ("kibibytes", "KiBy"),
    ("mebibytes", "MiBy"),
    ("bits", "bit"),
    ("celsius", "Cel"),
    ("kelvin", "K"),
    ("meters", "m"),
    ("grams", "g"),
    ("volts", "V"),
    ("millivolts", "mV"),
    ("amperes", "A"),
    ("milliamperes", "mA"),
    ("watts", "W"),
    ("milliwatts", "mW"),
    ("joules", "J"),
    ("hertz", "Hz"),
    ("megahertz", "MHz"),
    ("pascals", "Pa"),
    ("lux", "lx"),
    ("ratio", "1"),
    ("percent", "%"),
    ("rpm", "{rotation}/min"),
];

/// The UCUM code of a unit; other texts, which may be UCUM codes already, are returned as they are.
pub fn ucum(unit: &str) -> &str {
    UNITS.iter().find(|(name, _)| *name == unit).map_or(unit, |(_, code)| code)
}

/// The properties of the sensor of a series, from its family's metadata or, without any, from its name.
pub fn properties(name: &str, metadata: Option<&MetricMetadata>) -> SensorProperties {
    let suffix = SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix));
    let base = suffix.and_then(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    let metric_type = metadata.map_or(MetricType::Unknown, |metadata| metadata.metric_type);
    let is_distribution =
        matches!(metric_type, MetricType::Histogram | MetricType::GaugeHistogram | MetricType::Summary);
    let counts = is_distribution && matches!(suffix, Some("_bucket" | "_count"));
    let is_counter = match metric_type {
        MetricType::Counter => suffix != Some("_created"),
        MetricType::Histogram | MetricType::Summary => matches!(suffix, Some("_bucket" | "_count" | "_sum")),
        // Without metadata the name decides, as far as it has only one meaning.
        MetricType::Unknown => matches!(suffix, Some("_total" | "_bucket")),
        _ => false,
    };
    let declared = metadata.map_or("", |metadata| metadata.unit.as_str());
    let in_name = || UNITS.iter().find(|(unit, _)| base.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')));
    let unit = match declared {
        _ if suffix == Some("_created") => "s",
        _ if counts || suffix == Some("_bucket") || matches!(metric_type, MetricType::Info | MetricType::StateSet) => {
            "1"
        }
        "" => in_name().map_or("", |(_, code)| code),
        unit => ucum(unit),
    };
    SensorProperties {
        unit: unit.to_owned(),
        kind: if is_counter { Kind::Counter } else { Kind::Gauge },
        description: metadata.map(|metadata| metadata.help.clone()).unwrap_or_default(),
        is_declared: metadata.is_some_and(|metadata| !metadata.is_empty()),
    }
    .bounded()
}

/// Metadata of remote write 1.0, which sends it apart from the samples, once a minute. Bounded for each sender.
#[derive(Debug, Default)]
pub struct MetadataCache(Mutex<CachedSenders>);

#[derive(Debug, Default)]
struct CachedSenders {
    senders: HashMap<String, CachedSender>,
    /// Rises with each request that brings metadata.
    clock: u64,
}

#[derive(Debug, Default)]
struct CachedSender {
    families: HashMap<String, MetricMetadata>,
    bytes: usize,
    used: u64,
}

impl MetadataCache {
    /// Remembers the metadata of a request.
    pub fn put(&self, sender: &str, families: Vec<(String, MetricMetadata)>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clock += 1;
        let used = all.clock;
        if all.senders.len() >= SENDERS_MAX
            && !all.senders.contains_key(sender)
            && let Some(oldest) = all.senders.iter().min_by_key(|(_, one)| one.used).map(|(name, _)| name.clone())
        {
            all.senders.remove(&oldest);
        }
        let one = all.senders.entry(sender.to_owned()).or_default();
        one.used = used;
        for (name, metadata) in families {
            let bytes = |name: &str, one: &MetricMetadata| name.len() + one.unit.len() + one.help.len() + ENTRY_BYTES;
            let before = one.families.get(&name).map_or(0, |known| bytes(&name, known));
            let after = one.bytes - before + bytes(&name, &metadata);
            if name.len() <= NAME_BYTES_MAX && after <= SENDER_BYTES_MAX {
                one.bytes = after;
                one.families.insert(name, metadata);
            }
        }
    }

    /// The metadata of a series, by its name or that of its family.
    pub fn find(&self, sender: &str, name: &str) -> Option<MetricMetadata> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let families = &all.senders.get(sender)?.families;
        let family = || SUFFIXES.into_iter().find_map(|suffix| families.get(name.strip_suffix(suffix)?));
        families.get(name).or_else(family).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(metric_type: MetricType, unit: &str, help: &str) -> MetricMetadata {
        MetricMetadata { metric_type, unit: unit.to_owned(), help: help.to_owned() }
    }

    #[test]
    fn metadata_and_names_give_unit_and_kind() {
        use MetricType::{Counter, Gauge, Histogram, Info, Summary, Unknown};
        for (name, metric_type, unit, expected) in [
            ("node_cpu_seconds_total", Counter, "", (Kind::Counter, "s")),
            ("node_cpu_seconds_total", Unknown, "", (Kind::Counter, "s")),
            ("node_memory_MemFree_bytes", Gauge, "", (Kind::Gauge, "By")),
            ("temp_celsius", Unknown, "", (Kind::Gauge, "Cel")),
            ("power", Gauge, "watts", (Kind::Gauge, "W")),
            ("power", Gauge, "kW", (Kind::Gauge, "kW")),
            ("rpc_seconds_bucket", Histogram, "", (Kind::Counter, "1")),
            ("rpc_seconds_sum", Histogram, "", (Kind::Counter, "s")),
            ("rpc_seconds_count", Summary, "", (Kind::Counter, "1")),
            ("rpc_seconds", Summary, "", (Kind::Gauge, "s")),
            ("things_count", Gauge, "", (Kind::Gauge, "")),
            ("things_count", Unknown, "", (Kind::Gauge, "")),
            ("requests_created", Counter, "", (Kind::Gauge, "s")),
            ("build_info", Info, "", (Kind::Gauge, "1")),
            ("bytes", Unknown, "", (Kind::Gauge, "")),
        ] {
            let found = properties(name, Some(&metadata(metric_type, unit, "")));
            assert_eq!((found.kind, found.unit.as_str()), expected, "{name} {metric_type:?}");
        }
        assert!(!properties("x", None).is_declared && properties("x", Some(&metadata(Gauge, "", ""))).is_declared);
        let long = properties("x", Some(&metadata(Gauge, &"u".repeat(65), &"ü".repeat(300))));
        assert_eq!((long.unit.as_str(), long.description.len()), ("", 512));
    }

    #[test]
    fn the_cache_is_bounded_for_each_sender() {
        let cache = MetadataCache::default();
        let one = |sender: &str, name: &str| cache.find(sender, name);
        cache.put("a", vec![("x".to_owned(), metadata(MetricType::Counter, "", "first"))]);
        cache.put("a", vec![("x".to_owned(), metadata(MetricType::Counter, "", "second"))]);
        assert_eq!(one("a", "x_total").unwrap().help, "second");
        assert_eq!((one("b", "x"), one("a", "y")), (None, None));
        let large = "h".repeat(1 << 20);
        let many = (0..10).map(|at| (format!("m{at}"), metadata(MetricType::Gauge, "", &large))).collect();
        cache.put("a", many);
        assert!(one("a", "m2").is_some() && one("a", "m3").is_none() && one("a", "x").is_some());
        for at in 0..SENDERS_MAX {
            cache.put(&format!("s{at}"), vec![("x".to_owned(), metadata(MetricType::Gauge, "", ""))]);
        }
        assert!(one("a", "x").is_none() && one("s0", "x").is_some());
    }
}
