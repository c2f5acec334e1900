//! Definitions that the settings of several components share: a macro for settings, addresses, time limits, errors of configuration files.

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
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
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

/// How a changed setting comes into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeMode {
    Reload,
    Restart,
}

/// The settings of one section of the configuration file.
pub(crate) trait Settings {
    /// Adds the full name of each setting, with how a change of it comes into force; `section` is empty or ends in a dot.
    fn add_names(section: &str, names: &mut Vec<(String, ChangeMode)>);
}

/// Defines the struct of a section. Each field is a setting; the word after `=` is how a change comes into force: `reload`, `restart`, or `section`
/// for a section of its own.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty = $mode:ident,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$field_attribute])* $field_visibility $field: $type,)*
        }

        impl $crate::settings::Settings for $name {
            fn add_names(section: &str, names: &mut Vec<(String, $crate::settings::ChangeMode)>) {
                $($crate::settings::settings!(@add $mode, $type, format!("{section}{}", stringify!($field)), names);)*
            }
        }
    };
    (@add reload, $type:ty, $name:expr, $names:ident) => {
        $names.push(($name, $crate::settings::ChangeMode::Reload))
    };
    (@add restart, $type:ty, $name:expr, $names:ident) => {
        $names.push(($name, $crate::settings::ChangeMode::Restart))
    };
    (@add section, $type:ty, $name:expr, $names:ident) => {
        <$type as $crate::settings::Settings>::add_names(&format!("{}.", $name), $names)
    };
}
pub(crate) use settings;
