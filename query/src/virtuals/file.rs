//! Files of definitions: kept under version control and applied; and the library of those that come with Wholegrain.

use std::collections::BTreeMap;

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{Document, unknown};

use super::{Definition, MissingOperands};

/// The files of the library, by name.
pub const LIBRARY: &[(&str, &str)] = &[
    ("cpu", include_str!("../../../packaging/virtual/cpu.toml")),
    ("disk", include_str!("../../../packaging/virtual/disk.toml")),
    ("energy", include_str!("../../../packaging/virtual/energy.toml")),
    ("facility", include_str!("../../../packaging/virtual/facility.toml")),
    ("job", include_str!("../../../packaging/virtual/job.toml")),
    ("memory", include_str!("../../../packaging/virtual/memory.toml")),
    ("network", include_str!("../../../packaging/virtual/network.toml")),
    ("perf", include_str!("../../../packaging/virtual/perf.toml")),
];

/// A file of definitions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefinitionFile {
    /// What they are, and for a file of the library below what they belong.
    #[serde(default)]
    pub about: String,
    /// What stands in braces in the definitions, `{power}`, unless something else is given for it.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    #[serde(default, rename = "virtual")]
    pub definitions: Vec<WrittenDefinition>,
}

/// A definition in a file. A path that does not begin with `/` is below the place at which the file is applied.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenDefinition {
    pub path: String,
    /// What it is computed by.
    pub expression: String,
    pub unit: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub interval: Option<Interval>,
    /// What is interpolated over.
    #[serde(default)]
    pub bridge: Option<Interval>,
    /// What becomes of times at which operands are missing.
    #[serde(default)]
    pub missing: MissingOperands,
    /// What must stand in the source's configuration for the operands to be there, for people.
    #[serde(default)]
    pub events: Vec<String>,
}

impl DefinitionFile {
    /// Reads a file; `name` is for messages.
    pub fn read(name: &str, text: &str) -> Result<Self, String> {
        Document::new(name, text).parse().map_err(|error| error.to_string())
    }

    /// A file of the library.
    pub fn of_library(name: &str) -> Result<Self, String> {
        let found = LIBRARY.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = found else {
            let names: Vec<&str> = LIBRARY.iter().map(|(name, _)| *name).collect();
            return Err(unknown("library", name, &names));
        };
        Self::read(&format!("{name}.toml"), text)
    }

    /// The definitions with their places: relative paths below `at`, parameters replaced.
    pub fn placed(&self, at: Option<&str>, set: &[(String, String)]) -> Result<Vec<Definition>, String> {
        let mut parameters = self.parameters.clone();
        for (name, value) in set {
            let Some(known) = parameters.get_mut(name) else {
                let names: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
                return Err(unknown("parameter", name, &names));
            };
            known.clone_from(value);
        }
        let filled = |text: &str| {
            parameters.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
        };
        let place = at.map(|at| at.trim_end_matches('/'));
        let definition = |written: &WrittenDefinition| {
            let path = match (written.path.starts_with('/'), place) {
                (true, _) => filled(&written.path),
                (false, Some(place)) => format!("{place}/{}", filled(&written.path)),
                (false, None) => {
                    let path = &written.path;
                    return Err(format!(
                        "the path {path} is relative: name the place that it is below, such as /lab/*"
                    ));
                }
            };
            Ok(Definition {
                path,
                expression: filled(&written.expression),
                unit: written.unit.clone(),
                description: written.description.clone(),
                interval: written.interval,
                bridge: written.bridge,
                missing: written.missing,
            })
        };
        self.definitions.iter().map(definition).collect()
    }
}
