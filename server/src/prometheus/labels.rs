//! Derives the labels of a series from the levels of its sensor's path.

use wholegrain_store::SensorInfo;

/// The most patterns of `[prometheus] levels`.
pub const MAPPINGS_MAX: usize = 256;
pub const NAME: &str = "__name__";
pub const SENSOR: &str = "sensor";
pub const UNIT: &str = "unit";
/// The label of the node, unless a pattern sets another.
pub const NODE: &str = "node";
/// The level before a job's id in paths, as in `/n1/job/4711/cpu/usage`, and the label of the id.
const JOB: &str = "job";

/// Labels of a series, sorted by name; no name twice.
pub type Labels = Vec<(String, String)>;

/// A pattern of `[prometheus] levels`, such as `/{site}/{system}/{node}/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelMapping {
    parts: Vec<MappingPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MappingPart {
    /// `{name}`: the level is the value of a label.
    Label(String),
    /// The level must be equal and is a part of the metric's name.
    Exact(String),
    /// `*`: the level is ignored.
    Any,
    /// `**`, at the end: the remaining levels form the name, and labels as in [`rest`].
    Rest,
}

impl LevelMapping {
    /// Parses a pattern; the error says what is wrong.
    pub fn new(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("{text:?} {why}"));
        let Some(levels) = text.strip_prefix('/') else {
            return refuse("does not begin with `/`; write a pattern such as \"/{site}/{system}/{node}/**\"");
        };
        let mut parts = Vec::new();
        let mut levels = levels.split('/').peekable();
        while let Some(level) = levels.next() {
            let label = level.strip_prefix('{').and_then(|level| level.strip_suffix('}'));
            parts.push(match (level, label) {
                (_, Some(label)) => {
                    if !is_label(label) || [SENSOR, UNIT].contains(&label) {
                        return refuse(&format!(
                            "has the label {label:?}; use letters, digits and `_`, without a digit or `__` at the beginning; sensor and unit are reserved"
                        ));
                    }
                    if parts.iter().any(|part| matches!(part, MappingPart::Label(known) if known == label)) {
                        return refuse(&format!("has the label {label:?} twice"));
                    }
                    MappingPart::Label(label.to_owned())
                }
                ("**", _) if levels.peek().is_none() => MappingPart::Rest,
                ("*", _) => MappingPart::Any,
                ("", _) => return refuse("has an empty level"),
                _ if level.contains(['*', '{', '}']) => {
                    return refuse("has a level that is neither `{label}`, `*`, a name, nor `**` at the end");
                }
                _ => MappingPart::Exact(level.to_owned()),
            });
        }
        if !parts.iter().any(|part| matches!(part, MappingPart::Exact(_) | MappingPart::Rest)) {
            return refuse("leaves nothing for the metric's name; end it with `/**` or with the sensor's own name");
        }
        Ok(Self { parts })
    }

    /// The number of levels at the end that are not part of the name.
    pub fn trailing(&self) -> usize {
        self.parts.iter().rev().take_while(|part| matches!(part, MappingPart::Label(_) | MappingPart::Any)).count()
    }

    /// Adds a path's labels and the levels of its name; `None` if the path does not match.
    fn apply<'a>(&self, path: &'a str, labels: &mut Labels, name: &mut Vec<&'a str>) -> Option<()> {
        let levels: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let is_open = matches!(self.parts.last(), Some(MappingPart::Rest));
        if (is_open && levels.len() < self.parts.len()) || (!is_open && levels.len() != self.parts.len()) {
            return None;
        }
        if self
            .parts
            .iter()
            .zip(&levels)
            .any(|(part, level)| matches!(part, MappingPart::Exact(exact) if exact != level))
        {
            return None;
        }
        for (index, part) in self.parts.iter().enumerate() {
            match part {
                MappingPart::Label(label) => labels.push((label.clone(), levels[index].to_owned())),
                MappingPart::Exact(_) => name.push(levels[index]),
                MappingPart::Any => {}
                MappingPart::Rest => rest(&levels[index..], labels, name),
            }
        }
        Some(())
    }
}

fn is_label(text: &str) -> bool {
    !text.starts_with("__")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

/// Divides levels into name and labels. A number is the value of a label named by the level before it (`cpu/3/user` is `cpu_user{cpu="3"}`); so is
/// the level of a job.
fn rest<'a>(levels: &[&'a str], labels: &mut Labels, name: &mut Vec<&'a str>) {
    for (index, level) in levels.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| levels[before]);
        let is_number = level.bytes().all(|byte| byte.is_ascii_digit());
        let is_job = before == Some(JOB) && index + 1 < levels.len();
        let label = before.filter(|_| is_number || is_job).map(|before| fit(before, false));
        match label {
            Some(label) if is_label(&label) && labels.iter().all(|(known, _)| *known != label) && !is_taken(&label) => {
                labels.push((label, (*level).to_owned()));
            }
            _ => name.push(level),
        }
    }
}

fn is_taken(label: &str) -> bool {
    [SENSOR, UNIT].contains(&label)
}

/// Replaces characters that names of metrics (with colons) and of labels may not contain.
fn fit(text: &str, colons: bool) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    let mut fitted: String = text.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if fitted.is_empty() || fitted.starts_with(|c: char| c.is_ascii_digit()) {
        fitted.insert(0, '_');
    }
    fitted
}

/// The labels of a sensor by the first matching mapping. Without one, the levels above the agent's name are `level1`, `level2`, …, the agent is
/// `node`, and the levels below form the name. If the path does not contain the agent's name, all levels but the last are labels.
pub fn labels(mappings: &[LevelMapping], sensor: &SensorInfo) -> Labels {
    let (mut labels, mut name) = (Labels::new(), Vec::new());
    if !mappings.iter().any(|mapping| mapping.apply(&sensor.path, &mut labels, &mut name).is_some()) {
        apply_default_mapping(sensor, &mut labels, &mut name);
    }
    labels.push((NAME.to_owned(), fit(&name.join("_"), true)));
    labels.push((SENSOR.to_owned(), sensor.path.to_string()));
    if !sensor.unit.is_empty() {
        labels.push((UNIT.to_owned(), sensor.unit.clone()));
    }
    labels.sort_unstable();
    labels
}

fn apply_default_mapping<'a>(sensor: &'a SensorInfo, labels: &mut Labels, name: &mut Vec<&'a str>) {
    let levels: Vec<&str> = sensor.path.trim_start_matches('/').split('/').collect();
    let last = levels.len() - 1;
    let node = levels[..last].iter().position(|level| **level == *sensor.agent);
    let above = node.unwrap_or(last);
    labels.extend((1..).zip(&levels[..above]).map(|(number, level)| (format!("level{number}"), (*level).to_owned())));
    match node {
        Some(node) => {
            labels.push((NODE.to_owned(), levels[node].to_owned()));
            rest(&levels[node + 1..], labels, name);
        }
        None => name.push(levels[last]),
    }
}

/// The value of a label; empty if missing, as in Prometheus.
pub fn value<'a>(labels: &'a Labels, name: &str) -> &'a str {
    labels.binary_search_by(|(known, _)| known.as_str().cmp(name)).map_or("", |at| &labels[at].1)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use wholegrain_model::{Kind, ValueType};
    use wholegrain_store::SensorId;

    use super::*;

    pub fn sensor(path: &str, agent: &str) -> SensorInfo {
        SensorInfo {
            id: SensorId(0),
            path: Arc::from(path),
            unit: "W".into(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            wraps_at: None,
            description: String::new(),
            interval_ns: 1_000_000_000,
            last_time: None,
            agent: agent.into(),
        }
    }

    #[track_caller]
    fn check(mappings: &[&str], path: &str, expected: &str) {
        let mappings: Vec<LevelMapping> = mappings.iter().map(|text| LevelMapping::new(text).unwrap()).collect();
        let labels = labels(&mappings, &sensor(path, "n1"));
        assert_eq!((value(&labels, SENSOR), value(&labels, UNIT)), (path, "W"));
        assert!(labels.is_sorted() && labels.windows(2).all(|pair| pair[0].0 != pair[1].0), "{labels:?}");
        let more: Vec<String> = labels
            .iter()
            .filter(|(name, _)| ![NAME, SENSOR, UNIT].contains(&name.as_str()))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(format!("{}{{{}}}", value(&labels, NAME), more.join(",")), expected);
    }

    #[test]
    fn without_configuration() {
        check(&[], "/lrz/sng/n1/meminfo/MemFree", "meminfo_MemFree{level1=lrz,level2=sng,node=n1}");
        check(&[], "/lrz/sng/n1/cpu/12/user", "cpu_user{cpu=12,level1=lrz,level2=sng,node=n1}");
        check(&[], "/n1/job/4711_a/cpu/usage", "job_cpu_usage{job=4711_a,node=n1}");
        check(&[], "/n1/hwmon/nct-6.1/0", "hwmon_nct_6_1{nct_6_1=0,node=n1}");
        check(&[], "/n1/cpu/1/cpu/2", "cpu_cpu_2{cpu=1,node=n1}");
        check(&[], "/n1/node/3/x", "node_3_x{node=n1}");
        check(&[], "/lrz/hall/pdu/3/power", "power{level1=lrz,level2=hall,level3=pdu,level4=3}");
        check(&[], "/n1/0", "_0{node=n1}");
        check(&[], "/n1", "n1{}");
    }

    #[test]
    fn with_mappings_the_first_that_fits_counts() {
        let mappings = &["/{site}/facility/{hall}/**", "/{site}/*/{node}/**", "/{site}/power/{phase}"];
        check(mappings, "/lrz/facility/west/pdu/3/power", "facility_pdu_power{hall=west,pdu=3,site=lrz}");
        check(mappings, "/lrz/sng/n7/cpu/0/user", "cpu_user{cpu=0,node=n7,site=lrz}");
        check(mappings, "/lrz/power/L1", "power{phase=L1,site=lrz}");
        check(mappings, "/lrz/n1/x", "x{level1=lrz,node=n1}");
        let mapping = |text: &str| LevelMapping::new(text).map(|mapping| mapping.trailing());
        assert_eq!((mapping("/{a}/x/{b}/*"), mapping("/x/**")), (Ok(2), Ok(0)));
    }

    #[test]
    fn mappings_that_are_none() {
        for (text, why) in [
            ("{site}/**", "does not begin"),
            ("/{site}/{node}", "leaves nothing"),
            ("/{site}/**/x", "neither"),
            ("/{9}/**", "has the label"),
            ("/{__x}/**", "has the label"),
            ("/{sensor}/**", "has the label"),
            ("/{a}/{a}/**", "twice"),
            ("//**", "empty level"),
            ("/a{b}/**", "neither"),
        ] {
            assert!(LevelMapping::new(text).unwrap_err().contains(why), "{text}");
        }
    }
}
