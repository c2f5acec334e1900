//! Metadata of metric families: kind, help and unit.

use std::collections::HashMap;

use wholegrain_model::Kind;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};

use super::lines::Line;
use super::series::SERIES_BYTES_MAX;

/// The kind of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
    GaugeHistogram,
    Summary,
    Info,
    StateSet,
    /// `untyped`, `unknown`, or no TYPE line.
    #[default]
    Unknown,
}

impl FamilyKind {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"counter" => Self::Counter,
            b"gauge" => Self::Gauge,
            b"histogram" => Self::Histogram,
            b"gaugehistogram" => Self::GaugeHistogram,
            b"summary" => Self::Summary,
            b"info" => Self::Info,
            b"stateset" => Self::StateSet,
            _ => Self::Unknown,
        }
    }
}

/// Endings that samples have and their families have not.
const SUFFIXES: [&str; 8] = ["_total", "_bucket", "_sum", "_count", "_created", "_info", "_gsum", "_gcount"];

/// The words with which names and UNIT lines say a unit, and its UCUM code.
const UNITS: &[(&str, &str)] = &[
    ("seconds", "s"),
    ("milliseconds", "ms"),
    ("microseconds", "us"),
    ("nanoseconds", "ns"),
    ("minutes", "min"),
    ("hours", "h"),
    ("days", "d"),
    ("bytes", "By"),
    ("bits", "bit"),
    ("celsius", "Cel"),
    ("kelvin", "K"),
    ("fahrenheit", "[degF]"),
    ("joules", "J"),
    ("watts", "W"),
    ("volts", "V"),
    ("amperes", "A"),
    ("amps", "A"),
    ("hertz", "Hz"),
    ("ratio", "1"),
    ("percent", "%"),
    ("meters", "m"),
    ("grams", "g"),
    ("pascals", "Pa"),
    ("rpm", "{revolution}/min"),
];

#[derive(Debug, Clone, Default)]
struct Family {
    kind: FamilyKind,
    help: String,
    unit: Option<String>,
}

/// The most bytes of all metadata of one text, each with its family's name: 8 MiB. What follows is ignored.
const METADATA_BYTES_MAX: usize = 8 << 20;
/// The bytes of a family without its texts.
const FAMILY_BYTES: usize = 200;

/// The metadata of one text.
#[derive(Debug, Clone, Default)]
pub struct Families {
    families: HashMap<String, Family>,
    bytes: usize,
}

impl Family {
    fn text_bytes(&self) -> usize {
        self.help.capacity() + self.unit.as_ref().map_or(0, String::capacity)
    }
}

/// What metadata say about one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleMeaning {
    pub kind: Kind,
    pub unit: String,
    pub description: String,
}

impl Families {
    /// Takes a line of metadata. A help text is cut to what a description can have.
    pub fn learn(&mut self, line: &Line<'_>) {
        let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let begin = |bytes: &[u8], most: usize| of(&bytes[..bytes.len().min(most)]);
        match line {
            Line::Type { family, kind } => self.change(family, |of| of.kind = FamilyKind::parse(kind)),
            Line::Help { family, text } => {
                // An escape has two bytes and becomes one.
                let help = unescaped(&begin(text, 2 * DESCRIPTION_BYTES_MAX));
                self.change(family, |of| of.help = cut(&help, DESCRIPTION_BYTES_MAX));
            }
            Line::Unit { family, unit } => {
                self.change(family, |of| of.unit = Some(begin(unit, UNIT_BYTES_MAX)));
            }
            _ => {}
        }
    }

    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Family)) {
        if name.len() > SERIES_BYTES_MAX || self.bytes > METADATA_BYTES_MAX {
            return;
        }
        let name = String::from_utf8_lossy(name);
        let family = self.families.entry(name.into_owned()).or_insert_with_key(|name| {
            self.bytes += FAMILY_BYTES + name.len();
            Family::default()
        });
        let before = family.text_bytes();
        change(family);
        self.bytes += family.text_bytes() - before.min(family.text_bytes());
    }

    /// The family of a sample, and the ending by which the sample's name differs from it.
    fn of_sample<'a>(&self, sample: &'a str) -> (Option<&Family>, &'a str) {
        if let Some(family) = self.families.get(sample) {
            return (Some(family), "");
        }
        SUFFIXES
            .iter()
            .find_map(|suffix| Some((self.families.get(sample.strip_suffix(suffix)?)?, *suffix)))
            .map_or((None, ""), |(family, suffix)| (Some(family), &sample[sample.len() - suffix.len()..]))
    }

    /// Kind, unit and description of a sample.
    pub fn meaning(&self, sample: &str) -> SampleMeaning {
        let (family, suffix) = self.of_sample(sample);
        let kind = family.map_or(FamilyKind::Unknown, |family| family.kind);
        let counts = matches!(suffix, "_bucket" | "_count" | "_gcount");
        let unit = match family.and_then(|family| family.unit.as_deref()) {
            _ if suffix == "_created" => "s",
            _ if counts || matches!(kind, FamilyKind::Info | FamilyKind::StateSet) => "1",
            Some(unit) if !unit.is_empty() => unit_of_word(unit).unwrap_or(unit),
            _ => unit_of_name(sample.strip_suffix(suffix).unwrap_or(sample)),
        };
        SampleMeaning {
            kind: if rises(kind, sample, suffix) { Kind::Counter } else { Kind::Gauge },
            unit: cut(unit, UNIT_BYTES_MAX),
            description: family.map_or(String::new(), |family| cut(&family.help, DESCRIPTION_BYTES_MAX)),
        }
    }
}

/// Whether the values of a sample only rise.
fn rises(kind: FamilyKind, sample: &str, suffix: &str) -> bool {
    match kind {
        FamilyKind::Counter => suffix != "_created",
        FamilyKind::Histogram => matches!(suffix, "_bucket" | "_count" | "_sum"),
        FamilyKind::Summary => matches!(suffix, "_count" | "_sum"),
        FamilyKind::Unknown => sample.ends_with("_total"),
        FamilyKind::Gauge | FamilyKind::GaugeHistogram | FamilyKind::Info | FamilyKind::StateSet => false,
    }
}

fn unit_of_word(word: &str) -> Option<&'static str> {
    UNITS.iter().find(|(name, _)| *name == word).map(|(_, unit)| *unit)
}

/// The unit that a name ends with, by the conventions of Prometheus; `1` without one.
fn unit_of_name(name: &str) -> &'static str {
    let name = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    match name.strip_suffix("_per_second") {
        Some(name) => match unit_of_last_word(name) {
            Some("By") => "By/s",
            Some("bit") => "bit/s",
            _ => "1/s",
        },
        None => unit_of_last_word(name).unwrap_or("1"),
    }
}

fn unit_of_last_word(name: &str) -> Option<&'static str> {
    unit_of_word(name.rsplit('_').next().filter(|word| word.len() < name.len())?)
}

/// Help texts have `\\` and `\n`. A description is one line.
fn unescaped(help: &str) -> String {
    help.replace("\\n", " ").replace("\\\\", "\\").replace("\\\"", "\"")
}

/// The text without control characters, at most `bytes` long.
fn cut(text: &str, bytes: usize) -> String {
    let mut out = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if out.len() + character.len_utf8() > bytes {
            break;
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Dialect;

    fn families(text: &str) -> Families {
        let mut families = Families::default();
        text.lines().for_each(|line| families.learn(&Line::parse(line.as_bytes(), Dialect::OpenMetrics)));
        families
    }

    #[track_caller]
    fn check(families: &Families, sample: &str, kind: Kind, unit: &str) {
        let SampleMeaning { kind: is, unit: has, .. } = families.meaning(sample);
        assert_eq!((is, has.as_str()), (kind, unit), "{sample}");
    }

    #[test]
    fn kinds_and_units() {
        let known = families(
            "# TYPE a counter\n# TYPE b_total counter\n# TYPE h_seconds histogram\n# TYPE s_bytes summary\n\
             # TYPE g gauge\n# UNIT g celsius\n# TYPE o gauge\n# UNIT o furlongs\n# TYPE i info\n# TYPE q gaugehistogram\n# HELP a One\\nhelp.",
        );
        use Kind::{Counter, Gauge};
        for (sample, kind, unit) in [
            ("a_total", Counter, "1"),
            ("a_created", Gauge, "s"),
            ("b_total", Counter, "1"),
            ("h_seconds_bucket", Counter, "1"),
            ("h_seconds_sum", Counter, "s"),
            ("h_seconds_count", Counter, "1"),
            ("s_bytes", Gauge, "By"),
            ("s_bytes_sum", Counter, "By"),
            ("g", Gauge, "Cel"),
            ("o", Gauge, "furlongs"),
            ("i_info", Gauge, "1"),
            ("q_bucket", Gauge, "1"),
            ("node_cpu_seconds_total", Counter, "s"),
            ("node_power_watts", Gauge, "W"),
            ("node_network_receive_bytes_per_second", Gauge, "By/s"),
            ("used_ratio", Gauge, "1"),
            ("seconds", Gauge, "1"),
            ("unknown", Gauge, "1"),
        ] {
            check(&known, sample, kind, unit);
        }
        assert_eq!(known.meaning("a_total").description, "One help.");
    }

    #[test]
    fn metadata_are_bounded() {
        let help = |count: usize, help: &str| {
            let lines: Vec<String> = (0..count).map(|number| format!("# HELP m{number} {help}")).collect();
            families(&lines.join("\n"))
        };
        let known = help(20_000, &"h".repeat(700));
        assert_eq!(known.meaning("m5").description, "h".repeat(DESCRIPTION_BYTES_MAX));
        assert!((9_000..20_000).contains(&known.families.len()), "{}", known.families.len());
        assert_eq!(help(20_000, "x").families.len(), 20_000);
        assert!(help(500_000, "x").families.len() < 50_000);
        assert!(families(&format!("# TYPE {} gauge", "n".repeat(SERIES_BYTES_MAX + 1))).families.is_empty());
    }
}
