//! Files with one value, their sensors, and texts that name devices.

use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::format::ValueFormat;

/// The longest text of a device in a description, in characters.
const LABEL_CHARACTERS_MAX: usize = 100;

/// A file with a value, and its sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberFile {
    pub path: PathBuf,
    pub sensor: SensorDef,
    pub format: ValueFormat,
    /// Whether the file may hold text, so that discovery must read it.
    pub may_be_text: bool,
}

impl NumberFile {
    /// A file that holds a number whenever it exists.
    pub fn new(path: PathBuf, sensor: SensorDef) -> Self {
        Self { path, sensor, format: ValueFormat::Int, may_be_text: false }
    }
}

/// The content of a short text file, such as the name of a device, without white space around it; `None` for an empty or missing file.
pub fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let text: String = String::from_utf8_lossy(&bytes).trim().chars().take(LABEL_CHARACTERS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// Replaces `{1}`, `{2}`, … in a template.
pub fn filled_template(template: &str, captures: &[String]) -> String {
    let fill = |name: String, (index, capture): (usize, &String)| name.replace(&place(index), &sanitize_level(capture));
    captures.iter().enumerate().fold(template.to_owned(), fill)
}

/// The place in a template of the `index`-th capture, from 0.
pub fn place(index: usize) -> String {
    format!("{{{}}}", index + 1)
}
