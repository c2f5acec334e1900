//! Paths of sensors from names and labels.

use wholegrain_model::name::sanitize_level;

use super::series::Series;

/// A path with placeholders: `{name}` is the metric's name, `{label:x}` the value of the label `x`, `{labels}` the values of all labels that the
/// template does not name, in the order of the labels' names, and `{pairs}` the same as `label=value`. A level without text is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate {
    levels: Vec<Vec<TemplatePart>>,
    /// Labels that the template names.
    named: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Name,
    Label(String),
    Labels,
    Pairs,
}

impl Default for PathTemplate {
    /// The name, then the labels: `{name}/{labels}`.
    fn default() -> Self {
        Self { levels: vec![vec![TemplatePart::Name], vec![TemplatePart::Labels]], named: Vec::new() }
    }
}

impl PathTemplate {
    /// Parses a template. The error says which placeholder is wrong.
    pub fn new(text: &str) -> Result<Self, String> {
        let mut template = Self { levels: Vec::new(), named: Vec::new() };
        for level in text.split('/').filter(|level| !level.is_empty()) {
            let mut parts = Vec::new();
            let mut rest = level;
            while let Some(open) = rest.find('{') {
                if open > 0 {
                    parts.push(TemplatePart::Text(rest[..open].to_owned()));
                }
                let close = rest[open..].find('}').ok_or_else(|| format!("`{{` without `}}` in {level:?}"))? + open;
                parts.push(template.placeholder(&rest[open + 1..close])?);
                rest = &rest[close + 1..];
            }
            if !rest.is_empty() {
                parts.push(TemplatePart::Text(rest.to_owned()));
            }
            if parts.len() > 1 && parts.iter().any(|part| matches!(part, TemplatePart::Labels | TemplatePart::Pairs)) {
                return Err(format!("{{labels}} and {{pairs}} make levels of their own; {level:?} has more text"));
            }
            template.levels.push(parts);
        }
        let has_name = template.levels.iter().flatten().any(|part| !matches!(part, TemplatePart::Text(_)));
        if has_name {
            Ok(template)
        } else {
            Err("a path without a placeholder; write {name} or {label:…}".to_owned())
        }
    }

    fn placeholder(&mut self, text: &str) -> Result<TemplatePart, String> {
        match text {
            "name" => Ok(TemplatePart::Name),
            "labels" => Ok(TemplatePart::Labels),
            "pairs" => Ok(TemplatePart::Pairs),
            _ => match text.strip_prefix("label:").filter(|label| !label.is_empty()) {
                Some(label) => {
                    self.named.push(label.to_owned());
                    Ok(TemplatePart::Label(label.to_owned()))
                }
                None => Err(format!("{{{text}}} is none of {{name}}, {{label:x}}, {{labels}}, {{pairs}}")),
            },
        }
    }

    /// The path of a series. Characters that a level cannot have become `_`.
    pub fn path(&self, series: &Series) -> String {
        let mut path = String::new();
        let mut push = |level: &str| {
            if !level.is_empty() {
                if !path.is_empty() {
                    path.push('/');
                }
                path.push_str(&sanitize_level(level));
            }
        };
        let others = || series.labels().filter(|(label, _)| !self.named.iter().any(|named| named == label));
        for level in &self.levels {
            match level.as_slice() {
                [TemplatePart::Labels] => others().for_each(|(_, value)| push(value_of(value))),
                [TemplatePart::Pairs] => {
                    others().for_each(|(label, value)| push(&format!("{label}={}", value_of(value))))
                }
                parts => push(&parts.iter().map(|part| text_of(part, series)).collect::<String>()),
            }
        }
        path
    }
}

fn text_of<'a>(part: &'a TemplatePart, series: &'a Series) -> &'a str {
    match part {
        TemplatePart::Text(text) => text,
        TemplatePart::Name => &series.name,
        TemplatePart::Label(label) => value_of(series.label(label).unwrap_or_default()),
        TemplatePart::Labels | TemplatePart::Pairs => "",
    }
}

/// The bound `+Inf` of a bucket without the character that a level cannot have.
fn value_of(value: &str) -> &str {
    if value == "+Inf" { "Inf" } else { value }
}

impl<'de> serde::Deserialize<'de> for PathTemplate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let series =
            Series::parse(b"node_cpu_seconds_total{cpu=\"3\",mode=\"idle\",place=\"/a b\",le=\"+Inf\"}").unwrap();
        assert_eq!(PathTemplate::new(template).unwrap().path(&series), expected, "{template}");
    }

    #[test]
    fn labels_become_levels() {
        check("{name}/{labels}", "node_cpu_seconds_total/3/Inf/idle/_a_b");
        check("{name}/{pairs}", "node_cpu_seconds_total/cpu=3/le=Inf/mode=idle/place=_a_b");
        check("cpu/{label:cpu}/{label:mode}", "cpu/3/idle");
        check("cpu{label:cpu}/x-{name}-y/{labels}", "cpu3/x-node_cpu_seconds_total-y/Inf/idle/_a_b");
        check("a/{label:none}/{label:mode}/", "a/idle");
    }

    #[test]
    fn wrong_templates() {
        for (text, expected) in [
            ("", "a path without a placeholder"),
            ("a/b", "a path without a placeholder"),
            ("{name", "`{` without `}`"),
            ("{nam}", "{nam} is none of"),
            ("{label:}", "{label:} is none of"),
            ("x{labels}", "{labels} and {pairs} make levels of their own"),
        ] {
            let error = PathTemplate::new(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
