//! Maps names of line protocols to sensor paths by templates. No I/O.
//!
//! A template is a path whose levels contain placeholders: `/{tag.cluster}/{tag.host}/{measurement}/{field}`. The first template whose pattern
//! matches the measurement and whose tags are all present is used.
//!
//! Names are untrusted: a placeholder expands to text within one level and never adds a level. Characters that a level cannot contain are written as
//! `%` and two hexadecimal digits for each byte (`/home` is `%2Fhome`, `a%b` is `a%25b`), so that two names never map to one path.

use std::borrow::Cow;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use wholegrain_model::SensorPath;
use wholegrain_model::name::{RESERVED, check_relative};
use wholegrain_model::pattern::glob;

pub const TEMPLATES_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineProtocol {
    /// The names of InfluxDB, as Telegraf writes them.
    Influx,
    Clustercockpit,
    /// Remote write: the measurement is the metric's name, the tags are its labels.
    Prometheus,
    /// Metrics of OpenTelemetry: tags in `{tags}` are the attributes of a data point; others are those of its resource.
    Otlp,
}

/// A tag of a series: key and value.
pub type Tag<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A number that differs for other tags, whatever their order; `seed` is the rest of the series' identity.
pub fn identity(tags: &[Tag<'_>], seed: impl Hash) -> u64 {
    let hash = |part: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        part(&mut hasher);
        hasher.finish()
    };
    let sum = tags.iter().fold(0u64, |sum, tag| sum.wrapping_add(hash(&|hasher| tag.hash(hasher))));
    hash(&|hasher| (sum, &seed).hash(hasher))
}

/// The names of one series in its protocol.
#[derive(Debug, Clone, Copy)]
pub struct SeriesNames<'a> {
    pub measurement: &'a str,
    /// Each key at most once.
    pub tags: &'a [Tag<'a>],
    /// Tags of the whole request or resource: only placeholders that name them use them.
    pub shared: &'a [Tag<'a>],
    /// Empty if the series has none; then a level that is only `{field}` is left out.
    pub field: &'a str,
}

impl SeriesNames<'_> {
    fn tag(&self, wanted: &str) -> Option<&str> {
        self.tags.iter().chain(self.shared).find(|(key, _)| key == wanted).map(|(_, value)| &**value)
    }
}

/// A template for the paths of selected measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct NameTemplate {
    /// Set if the template applies to one protocol only.
    pub protocol: Option<LineProtocol>,
    /// A pattern of measurements; `*` matches any characters.
    measurement: String,
    /// The parts of each level.
    levels: Vec<Vec<TemplatePart>>,
}

#[derive(Debug, Clone, PartialEq)]
enum TemplatePart {
    Literal(String),
    Tag(String),
    Measurement,
    Field,
    /// Every tag that the template does not name: a level `key=value` for each, sorted by key.
    Tags,
    /// ClusterCockpit's `type` and `type-id`: two levels, or none for the whole node.
    Type(&'static str, &'static str),
}

/// Why a line has no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamingError {
    /// No template matches the measurement.
    #[error("no template of [[interop.template]] matches the measurement {0:?}")]
    NoTemplate(String),
    /// The last matching template needs a missing tag.
    #[error("the tag {tag:?} is missing; {template} requires it")]
    NoTag { tag: String, template: String },
    /// The result is not a valid path.
    #[error("{0}")]
    Path(#[from] wholegrain_model::NameError),
}

/// The templates after those of the configuration.
const DEFAULTS: &[(LineProtocol, &str)] = &[
    (LineProtocol::Influx, "/{tag.host}/{measurement}/{tags}/{field}"),
    (LineProtocol::Influx, "/{tag.hostname}/{measurement}/{tags}/{field}"),
    (LineProtocol::Clustercockpit, "/{tag.cluster}/{tag.hostname}/{type}/{stype}/{measurement}"),
    (LineProtocol::Clustercockpit, "/{tag.cluster}/{tag.host}/{type}/{stype}/{measurement}"),
    (LineProtocol::Prometheus, "/{tag.job}/{tag.instance}/{measurement}/{tags}"),
    (LineProtocol::Prometheus, "/{tag.instance}/{measurement}/{tags}"),
    (LineProtocol::Prometheus, "/prometheus/{measurement}/{tags}"),
    (LineProtocol::Otlp, "/{tag.host.name}/{tag.service.name}/{tag.service.instance.id}/{measurement}/{tags}/{field}"),
    (LineProtocol::Otlp, "/{tag.host.name}/{tag.service.name}/{measurement}/{tags}/{field}"),
    (LineProtocol::Otlp, "/{tag.service.name}/{tag.service.instance.id}/{measurement}/{tags}/{field}"),
    (LineProtocol::Otlp, "/{tag.service.name}/{measurement}/{tags}/{field}"),
];

/// Builds the default templates.
pub fn defaults() -> Vec<NameTemplate> {
    let made = DEFAULTS
        .iter()
        .map(|(protocol, path)| NameTemplate::new("*", path).map(|t| NameTemplate { protocol: Some(*protocol), ..t }));
    // A test builds each of them.
    made.filter_map(Result::ok).collect()
}

impl NameTemplate {
    /// Parses a path with placeholders; the error says what is wrong.
    pub fn new(measurement: &str, path: &str) -> Result<Self, String> {
        let rest = path.strip_prefix('/').ok_or_else(|| format!("{path:?} must begin with `/`"))?;
        let levels = rest.split('/').map(parts).collect::<Result<Vec<_>, String>>()?;
        for level in &levels {
            if level.len() > 1 && level.iter().any(|part| matches!(part, TemplatePart::Tags | TemplatePart::Type(..))) {
                return Err(format!("{path:?}: {{tags}}, {{type}} and {{stype}} must be alone in their level"));
            }
        }
        if measurement.is_empty() {
            return Err("measurement is empty; write \"*\" for all".to_owned());
        }
        Ok(Self { protocol: None, measurement: measurement.to_owned(), levels })
    }

    /// Restricts the template to one protocol.
    pub fn only_for(self, protocol: Option<LineProtocol>) -> Self {
        Self { protocol, ..self }
    }

    fn fits(&self, protocol: LineProtocol, measurement: &str) -> bool {
        self.protocol.is_none_or(|wanted| wanted == protocol) && glob(&self.measurement, measurement)
    }

    fn uses_field(&self) -> bool {
        self.levels.iter().flatten().any(|part| *part == TemplatePart::Field)
    }

    fn names(&self, key: &str) -> bool {
        self.levels.iter().flatten().any(|part| match part {
            TemplatePart::Tag(tag) => tag == key,
            TemplatePart::Type(name, id) => *name == key || *id == key,
            _ => false,
        })
    }

    /// Builds the path of one series; the error is the key of a missing tag.
    fn path<'a>(&'a self, names: &SeriesNames<'_>) -> Result<String, &'a str> {
        let mut path = String::with_capacity(64);
        for level in &self.levels {
            match level.first() {
                Some(TemplatePart::Tags) => {
                    self.other_tags(names, &mut path);
                    continue;
                }
                Some(TemplatePart::Type(name, id)) => {
                    let kind = names.tag(name).filter(|kind| !(*name == "type" && *kind == "node"));
                    for text in kind.into_iter().chain(kind.and(names.tag(id))) {
                        path.push('/');
                        whole_level(text, &mut path);
                    }
                    continue;
                }
                Some(TemplatePart::Field) if level.len() == 1 && names.field.is_empty() => continue,
                _ => {}
            }
            path.push('/');
            let start = path.len();
            for part in level {
                match part {
                    TemplatePart::Literal(text) => path.push_str(text),
                    TemplatePart::Tag(key) => escape(names.tag(key).ok_or(key.as_str())?, &mut path),
                    TemplatePart::Measurement => escape(names.measurement, &mut path),
                    TemplatePart::Field => escape(names.field, &mut path),
                    TemplatePart::Tags | TemplatePart::Type(..) => {}
                }
            }
            keep_level(start, &mut path);
        }
        Ok(path)
    }

    /// Appends a level for each tag that the template does not name.
    fn other_tags(&self, names: &SeriesNames<'_>, path: &mut String) {
        let mut rest: Vec<_> = names.tags.iter().filter(|(key, _)| !self.names(key)).collect();
        rest.sort();
        for (key, value) in rest {
            path.push('/');
            // A key that contains `=` must not read as another key and its value.
            let from = path.len();
            escape(key, path);
            let key = path.split_off(from).replace('=', "%3D");
            path.push_str(&key);
            path.push('=');
            escape(value, path);
        }
    }
}

/// Builds the path of one series with the first template that matches and whose tags it has.
pub fn path(
    templates: &[NameTemplate],
    protocol: LineProtocol,
    names: &SeriesNames<'_>,
) -> Result<SensorPath, NamingError> {
    let mut missing = None;
    for template in templates.iter().filter(|template| template.fits(protocol, names.measurement)) {
        match template.path(names) {
            Ok(mut path) => {
                // The values of a histogram must not become one sensor.
                if protocol == LineProtocol::Otlp && !names.field.is_empty() && !template.uses_field() {
                    path.push('/');
                    whole_level(names.field, &mut path);
                }
                return Ok(SensorPath::new(path)?);
            }
            // Reports the tag of the first template, which the sender most likely meant to send.
            Err(tag) => missing = missing.or_else(|| Some((tag.to_owned(), template.to_string()))),
        }
    }
    Err(match missing {
        Some((tag, template)) => NamingError::NoTag { tag, template },
        None => NamingError::NoTemplate(names.measurement.chars().take(64).collect()),
    })
}

impl std::fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for level in &self.levels {
            f.write_char('/')?;
            for part in level {
                match part {
                    TemplatePart::Literal(text) => f.write_str(text)?,
                    TemplatePart::Tag(key) => write!(f, "{{tag.{key}}}")?,
                    TemplatePart::Measurement => f.write_str("{measurement}")?,
                    TemplatePart::Field => f.write_str("{field}")?,
                    TemplatePart::Tags => f.write_str("{tags}")?,
                    TemplatePart::Type(name, _) => write!(f, "{{{name}}}")?,
                }
            }
        }
        Ok(())
    }
}

/// Parses one level of a template.
fn parts(level: &str) -> Result<Vec<TemplatePart>, String> {
    let (mut parts, mut rest) = (Vec::new(), level);
    while !rest.is_empty() {
        let (literal, placeholder) = rest.split_once('{').map_or((rest, None), |(before, after)| (before, Some(after)));
        if !literal.is_empty() {
            // Dots may form a whole level only if nothing is beside them.
            let checked =
                if literal == level { check_relative(literal) } else { check_relative(&format!("x{literal}")) };
            checked.map_err(|error| error.to_string())?;
            parts.push(TemplatePart::Literal(literal.to_owned()));
        }
        let Some(placeholder) = placeholder else { break };
        let (name, after) = placeholder.split_once('}').ok_or_else(|| format!("{level:?}: a `{{` is not closed"))?;
        parts.push(match name {
            "measurement" => TemplatePart::Measurement,
            "field" => TemplatePart::Field,
            "tags" => TemplatePart::Tags,
            "type" => TemplatePart::Type("type", "type-id"),
            "stype" => TemplatePart::Type("stype", "stype-id"),
            _ => match name.strip_prefix("tag.").filter(|key| !key.is_empty()) {
                Some(key) => TemplatePart::Tag(key.to_owned()),
                None => {
                    return Err(format!(
                        "{{{name}}} is not a placeholder; use {{tag.KEY}}, {{measurement}}, {{field}}, {{tags}}, {{type}}, {{stype}}"
                    ));
                }
            },
        });
        rest = after;
    }
    if parts.is_empty() { Err("a level is empty".to_owned()) } else { Ok(parts) }
}

/// Appends text, escaping everything that could end the level or have a meaning.
pub(super) fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        let harmless =
            !(c == '/' || c == '%' || c.is_control() || c.is_whitespace() || c == '\u{feff}' || RESERVED.contains(&c));
        if harmless {
            out.push(c);
        } else {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

fn whole_level(text: &str, out: &mut String) {
    let start = out.len();
    escape(text, out);
    keep_level(start, out);
}

/// Escapes levels `.` and `..`, which would refer to another path.
pub(super) fn keep_level(start: usize, path: &mut String) {
    if matches!(&path[start..], "." | "..") {
        let dots = path.len() - start;
        path.truncate(start);
        path.push_str(&"%2E".repeat(dots));
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::super::influx_lines::InfluxLines;
    use super::*;

    fn name(templates: &[NameTemplate], protocol: LineProtocol, text: &str) -> Result<String, NamingError> {
        let line = InfluxLines::new(text).next().unwrap().1.unwrap();
        let names =
            SeriesNames { measurement: &line.measurement, tags: &line.tags, shared: &[], field: &line.fields[0].0 };
        path(templates, protocol, &names).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn defaults_fit_telegraf_and_clustercockpit() {
        assert_eq!(defaults().len(), DEFAULTS.len());
        for (protocol, text, expected) in [
            (LineProtocol::Influx, "mem,host=n1 used=5i", "/n1/mem/used"),
            (LineProtocol::Influx, "cpu,cpu=cpu0,host=n1 usage_user=5", "/n1/cpu/cpu=cpu0/usage_user"),
            (
                LineProtocol::Influx,
                "disk,path=/home,device=sda1,host=n1 used=5i",
                "/n1/disk/device=sda1/path=%2Fhome/used",
            ),
            (LineProtocol::Influx, "mem,hostname=n1 used=5i", "/n1/mem/used"),
            (
                LineProtocol::Clustercockpit,
                "mem_used,cluster=c,hostname=n1,type=node,type-id=0 value=5",
                "/c/n1/mem_used",
            ),
            (
                LineProtocol::Clustercockpit,
                "ipc,cluster=c,hostname=n1,type=hwthread,type-id=3 value=5",
                "/c/n1/hwthread/3/ipc",
            ),
            (
                LineProtocol::Clustercockpit,
                "bw,cluster=c,hostname=n1,type=node,stype=filesystem,stype-id=/home,unit=MB/s value=5",
                "/c/n1/filesystem/%2Fhome/bw",
            ),
            (LineProtocol::Clustercockpit, "load,cluster=c,host=n1 value=5", "/c/n1/load"),
        ] {
            assert_eq!(name(&defaults(), protocol, text), Ok(expected.to_owned()), "{text}");
        }
        let error = name(&defaults(), LineProtocol::Influx, "m,a=b v=1").unwrap_err().to_string();
        assert_eq!(error, "the tag \"host\" is missing; /{tag.host}/{measurement}/{tags}/{field} requires it");
        let error = name(&defaults(), LineProtocol::Clustercockpit, "m,hostname=b value=1").unwrap_err().to_string();
        assert!(error.starts_with("the tag \"cluster\" is missing"), "{error}");
    }

    #[test]
    fn defaults_fit_prometheus_and_opentelemetry() {
        let tag = |key: &'static str, value: &'static str| (Cow::from(key), Cow::from(value));
        let named = |protocol, tags: &[Tag<'_>], shared: &[Tag<'_>], field| {
            let names = SeriesNames { measurement: "m", tags, shared, field };
            path(&defaults(), protocol, &names).map(|path| path.as_str().to_owned())
        };
        let labels = [tag("instance", "n1:9100"), tag("job", "node"), tag("mode", "idle")];
        let prometheus = |labels| named(LineProtocol::Prometheus, labels, &[], "").unwrap();
        assert_eq!(prometheus(&labels), "/node/n1:9100/m/mode=idle");
        assert_eq!(prometheus(&labels[..1]), "/n1:9100/m");
        assert_eq!(prometheus(&labels[2..]), "/prometheus/m/mode=idle");
        let resource = [tag("host.name", "n1"), tag("service.name", "s"), tag("service.instance.id", "7")];
        let otlp = |shared, field| named(LineProtocol::Otlp, &labels[2..], shared, field);
        assert_eq!(otlp(&resource, "").unwrap(), "/n1/s/7/m/mode=idle");
        assert_eq!(otlp(&resource[..2], "count").unwrap(), "/n1/s/m/mode=idle/count");
        assert_eq!(otlp(&resource[1..], "").unwrap(), "/s/7/m/mode=idle");
        assert_eq!(otlp(&resource[1..2], "").unwrap(), "/s/m/mode=idle");
        let own = [NameTemplate::new("*", "/{measurement}").unwrap()];
        let names = SeriesNames { measurement: "m", tags: &[], shared: &[], field: "count" };
        assert_eq!(path(&own, LineProtocol::Otlp, &names).unwrap().as_str(), "/m/count", "no two values merge");
        assert!(otlp(&resource[..1], "").unwrap_err().to_string().contains("\"service.name\" is missing"));
    }

    #[test]
    fn own_templates() {
        let one = [
            NameTemplate::new("cpu*", "/dc/{tag.rack}-{tag.host}/{measurement}.{field}").unwrap(),
            NameTemplate::new("*temp", "/t/{tags}").unwrap(),
        ];
        assert_eq!(name(&one, LineProtocol::Influx, "cpu_x,rack=r1,host=n1 v=1").unwrap(), "/dc/r1-n1/cpu_x.v");
        assert_eq!(name(&one, LineProtocol::Influx, "cputemp,b=2,a=1 v=1").unwrap(), "/t/a=1/b=2");
        let error = name(&one, LineProtocol::Influx, "mem v=1").unwrap_err().to_string();
        assert_eq!(error, "no template of [[interop.template]] matches the measurement \"mem\"");
        for (path, part) in [
            ("a", "must begin with `/`"),
            ("/", "a level is empty"),
            ("/a//b", "a level is empty"),
            ("/a/{b", "is not closed"),
            ("/a/{b}", "{b} is not a placeholder"),
            ("/a/{tag.}", "is not a placeholder"),
            ("/a b", "not allowed"),
            ("/a/../b", "which is relative"),
            ("/a/x{tags}", "must be alone"),
        ] {
            let error = NameTemplate::new("*", path).unwrap_err();
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(NameTemplate::new("", "/a").is_err());
    }

    #[test]
    fn names_stay_within_their_level_and_distinct() {
        let template = [NameTemplate::new("*", "/{tag.host}/{measurement}/{field}").unwrap()];
        let named = |host: &str| {
            let tags = [("host".into(), host.into())];
            let names = SeriesNames { measurement: "m", tags: &tags, shared: &[], field: "f" };
            path(&template, LineProtocol::Influx, &names)
        };
        for (host, expected) in [
            ("..", "/%2E%2E/m/f"),
            (".", "/%2E/m/f"),
            ("a/../b", "/a%2F..%2Fb/m/f"),
            ("a b", "/a%20b/m/f"),
            ("a%20b", "/a%2520b/m/f"),
            ("#+*", "/%23%2B%2A/m/f"),
            ("ü\u{7f}", "/ü%7F/m/f"),
            ("$SYS", "/%24SYS/m/f"),
        ] {
            assert_eq!(named(host).unwrap().as_str(), expected, "{host:?}");
        }
        assert!(named(&"x".repeat(129)).is_err() && named("").is_err());
        let mut random = Random::seeded_or(0x0a_e5);
        let mut seen = std::collections::HashMap::new();
        for round in 0..50_000 {
            let mut host = String::new();
            for _ in 0..1 + round % 6 {
                host.push(random.pick(&['/', '.', '%', '2', 'F', ' ', 'ü', '\0', '#', 'a']));
            }
            let path = named(&host).unwrap_or_else(|e| panic!("round {round} {host:?}: {e}"));
            assert_eq!(path.levels().count(), 3, "{host:?}: {path}");
            let other = seen.entry(path).or_insert_with(|| host.clone());
            assert_eq!(*other, host, "two names have one path");
        }
    }
}
