//! Files of definitions, and the library of definitions that Wholegrain includes.

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
    /// Describes the definitions; in the library also the place where they belong.
    #[serde(default)]
    pub about: String,
    /// Default values of parameters, which definitions contain in braces: `{power}`.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    #[serde(default, rename = "virtual")]
    pub definitions: Vec<WrittenDefinition>,
}

/// A definition in a file. A path without a leading `/` is relative to the place where the file is applied.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenDefinition {
    pub path: String,
    pub expression: String,
    pub unit: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub interval: Option<Interval>,
    #[serde(default)]
    pub bridge: Option<Interval>,
    #[serde(default)]
    pub missing: MissingOperands,
    /// The perf events to enable at the agent for the operands. Not evaluated, only shown to readers of the file.
    #[serde(default)]
    pub events: Vec<String>,
}

impl DefinitionFile {
    /// Parses a file; messages contain `name`.
    pub fn read(name: &str, text: &str) -> Result<Self, String> {
        Document::new(name, text).parse().map_err(|error| error.to_string())
    }

    /// Parses a file of the library.
    pub fn of_library(name: &str) -> Result<Self, String> {
        let found = LIBRARY.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = found else {
            let names: Vec<&str> = LIBRARY.iter().map(|(name, _)| *name).collect();
            return Err(unknown("library", name, &names));
        };
        Self::read(&format!("{name}.toml"), text)
    }

    /// The definitions with paths relative to `at` and parameters replaced.
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
        let definition = |entry: &WrittenDefinition| {
            let path = match (entry.path.starts_with('/'), place) {
                (true, _) => filled(&entry.path),
                (false, Some(place)) => format!("{place}/{}", filled(&entry.path)),
                (false, None) => {
                    let path = &entry.path;
                    return Err(format!("the path {path} is relative: give the place above it, such as /lab/*"));
                }
            };
            Ok(Definition {
                path,
                expression: filled(&entry.expression),
                unit: entry.unit.clone(),
                description: entry.description.clone(),
                interval: entry.interval,
                bridge: entry.bridge,
                missing: entry.missing,
            })
        };
        self.definitions.iter().map(definition).collect()
    }
}
