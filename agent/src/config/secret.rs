//! Secrets in files of their own.

use std::fs;
use std::path::Path;

use wholegrain_model::config::{ConfigError, Section};

/// The first line of a file that holds a secret.
pub(super) fn read_secret(section: &Section, key: &str, path: &Path) -> Result<String, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| section.error(key, format!("cannot read {}: {error}", path.display())))?;
    let secret = text.lines().next().unwrap_or_default().trim().to_owned();
    if secret.is_empty() {
        return Err(section.error(key, format!("{} is empty; its first line is the secret", path.display())));
    }
    Ok(secret)
}
