//! What the administrator says about metrics: path, unit, kind and scale, by patterns of names.

use wholegrain_model::pattern::glob;
use wholegrain_model::{Kind, SensorDef, Unit};

use super::family::Families;
use super::series::Series;
use super::template::PathTemplate;

/// A rule for the metrics whose names match: `{ metrics = "DCGM_FI_DEV_*_TEMP", unit = "Cel" }`.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricRule {
    /// Names of metrics, with `*` for any text.
    pub metrics: String,
    /// The path below the group's; default: that of the source.
    pub path: Option<PathTemplate>,
    /// The UCUM code; default: by UNIT line or name.
    pub unit: Option<String>,
    /// Default: by TYPE line.
    pub kind: Option<Kind>,
    /// What a raw value is multiplied with to get `unit`.
    pub scale: Option<f64>,
    /// Leaves the metrics out.
    #[serde(default)]
    pub drop: bool,
}

/// Makes sensors of series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SensorNaming {
    pub path: PathTemplate,
    /// The first rule that matches and has a property decides on it.
    pub rules: Vec<MetricRule>,
    /// Put before all paths.
    pub prefix: String,
    /// Values are integers, so that a decimal is a gap.
    pub integers: bool,
}

impl SensorNaming {
    /// The sensor of a series; `None` if a rule drops it.
    pub fn sensor(&self, series: &Series, families: &Families) -> Option<SensorDef> {
        let matching = || self.rules.iter().filter(|rule| glob(&rule.metrics, &series.name));
        if matching().next().is_some_and(|rule| rule.drop) {
            return None;
        }
        let meaning = families.meaning(&series.name);
        let path = matching().find_map(|rule| rule.path.as_ref()).unwrap_or(&self.path).path(series);
        let mut sensor = SensorDef::gauge(
            if self.prefix.is_empty() { path } else { format!("{}/{path}", self.prefix) },
            matching().find_map(|rule| rule.unit.as_deref()).unwrap_or(&meaning.unit),
            &meaning.description,
        );
        sensor.kind = matching().find_map(|rule| rule.kind).unwrap_or(meaning.kind);
        sensor.scale = matching().find_map(|rule| rule.scale).unwrap_or(1.0);
        Some(if self.integers { sensor } else { sensor.float() })
    }

    /// The first rule with a scale or a unit that a sensor cannot have.
    pub fn mistake(&self) -> Option<String> {
        let wrong = |rule: &MetricRule| match (rule.scale, &rule.unit) {
            (Some(scale), _) if !scale.is_finite() || scale == 0.0 => {
                Some(format!("the scale {scale} of the rule for {:?} must be finite and not 0", rule.metrics))
            }
            (_, Some(unit)) if unit.len() > wholegrain_model::schema::UNIT_BYTES_MAX => {
                Some(format!("the unit of the rule for {:?} is too long", rule.metrics))
            }
            (_, Some(unit)) => {
                Unit::parse(unit).err().map(|error| format!("in the rule for {:?}: {error}", rule.metrics))
            }
            _ => None,
        };
        self.rules.iter().find_map(wrong)
    }
}
