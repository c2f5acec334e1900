//! What the settings of several components share: addresses, time limits, errors of configuration files.

use std::path::{Path, PathBuf};

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};

/// Minimum and maximum of time limits.
pub const LIMIT_TIME: (Interval, Interval) = (Interval::from_ms(100), Interval::from_ms(3_600_000));

#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("cannot read {what} {path}: {error}; {hint}", path = path.display())]
    Read {
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The file's content is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Reads a file of the configuration; `what` and `hint` are for the error.
pub(crate) fn read(path: &Path, what: &'static str, hint: &'static str) -> Result<String, ConfigFileError> {
    std::fs::read_to_string(path).map_err(|error| ConfigFileError::Read { what, path: path.to_owned(), error, hint })
}

/// An address, its default, or `None` for `"off"`.
pub(crate) fn listen(
    section: &Section,
    key: &str,
    given: Option<String>,
    default: Option<&str>,
) -> Result<Option<String>, ConfigError> {
    let text = match given {
        Some(text) => text,
        None => return Ok(default.map(str::to_owned)),
    };
    if text == "off" {
        return Ok(None);
    }
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        let message = format!(
            "{text:?} is not an address; write host:port, such as \"[::]:8883\", \"127.0.0.1:8883\", or \"off\""
        );
        return Err(section.error(key, message));
    }
    Ok(Some(text))
}
